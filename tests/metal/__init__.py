"""The GPU path, tested without a GPU."""
