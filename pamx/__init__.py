"""pamx: local language models on MLX with a paged KV cache."""
