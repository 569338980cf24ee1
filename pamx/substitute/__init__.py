"""Replacing parts of a loaded mlx-lm model, and undoing it."""

import pamx.quiet_mlx_lm  # noqa: F401  # before any module here imports mlx-lm
