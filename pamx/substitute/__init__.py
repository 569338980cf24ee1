"""Replacing parts of a loaded mlx-lm model, and undoing it."""
