"""What attention sees: steps, caches over pages, and the implementations behind them."""

import pamx.quiet_mlx_lm  # noqa: F401  # before any module here imports mlx-lm
