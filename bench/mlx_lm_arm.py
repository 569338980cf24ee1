"""Plain mlx-lm, measured in a process that knows nothing of pamx. Started by bench/llama_cpp.py.

    python bench/mlx_lm_arm.py FOLDER

Reads one JSON list a line, [measure, arguments...], and answers each with a line of JSON. Contexts
are filled with random keys and values, which costs no time and changes none.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import mlx.core as mx
from mlx_lm import batch_generate, load
from mlx_lm.models.cache import make_prompt_cache


class MlxLm:
    def __init__(self, folder: str) -> None:
        mx.set_default_device(mx.cpu)
        self.model, self.tokenizer, self.config = load(folder, return_config=True)

    def prefill(self, tokens: int) -> float:
        """Tokens a second, in mlx-lm's own steps."""
        rng = random.Random(tokens)
        prompt = [rng.randrange(3, self.config["vocab_size"]) for _ in range(tokens)]
        cache = make_prompt_cache(self.model)
        begin = time.perf_counter()
        mx.eval(mx.argmax(self.model(mx.array([prompt]), cache=cache)[:, -1], -1))
        return tokens / (time.perf_counter() - begin)

    def decode(self, depth: int, tokens: int) -> float:
        """Tokens a second of one sequence behind `depth` tokens."""
        heads = self.config["num_key_value_heads"]
        dim = self.config.get("head_dim") or (
            self.config["hidden_size"] // self.config["num_attention_heads"]
        )
        cache = make_prompt_cache(self.model)
        for layer in cache:
            layer.update_and_fetch(*(mx.random.normal((1, heads, depth, dim)) for _ in range(2)))
        token = mx.array([[5]])
        mx.eval(self.model(token, cache=cache))
        begin = time.perf_counter()
        for _ in range(tokens):
            token = mx.argmax(self.model(token, cache=cache)[:, -1], -1)[None]
            mx.eval(token)
        return tokens / (time.perf_counter() - begin)

    def batch(self, prompts: list[str], limits: list[int]) -> dict[str, float]:
        """Seconds, and tokens generated."""
        ids = [self.tokenizer.encode(prompt) for prompt in prompts]
        begin = time.perf_counter()
        response = batch_generate(
            self.model, self.tokenizer, ids, max_tokens=limits, return_token_ids=True
        )
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": sum(len(t) for t in response.token_ids)}


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    arm = MlxLm(sys.argv[1])
    for line in sys.stdin:
        request: list[Any] = json.loads(line)
        print(json.dumps(getattr(arm, request[0])(*request[1:])), file=replies, flush=True)


if __name__ == "__main__":
    main()
