"""What a finished answer cost, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamx.cli.batch.durations import duration_text

if TYPE_CHECKING:
    from pamx.engine import Completion, Engine


def summary(completion: Completion) -> str:
    """One line: tokens, speed, time to the first token, prompt tokens that needed no work."""
    count = completion.completion_tokens
    parts = [f"{count} token" if count == 1 else f"{count} tokens"]
    if count > 1 and completion.decode_rate:
        parts.append(f"{completion.decode_rate:.1f} tokens/s")
    if count:
        parts.append(f"first after {duration_text(completion.ttft)}")
    parts.append(
        f"{completion.cached_tokens} of {completion.prompt_tokens} prompt tokens from cache"
    )
    if completion.finish_reason == "length":
        parts.append("cut at the token limit")
    return ", ".join(parts)


def as_json(engine: Engine, text: str, completion: Completion | None) -> dict[str, Any]:
    """The answer as a JSON object; usage and timing are null if it was interrupted.

    Times are in seconds, rates in tokens a second.
    """
    attention, compute = engine.attention, engine.compute
    return {
        "model": engine.name,
        "text": text,
        "finish_reason": completion.finish_reason if completion else "cancelled",
        "usage": completion
        and {
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": completion.completion_tokens,
        },
        "timing": completion
        and {
            "ttft_s": completion.ttft,
            "decode_s": completion.decode_seconds,
            "prompt_tokens_per_s": completion.prompt_rate,
            "decode_tokens_per_s": completion.decode_rate,
        },
        "attention": {
            "kernel": attention.kernel,
            "paged": attention.paged,
            "reason": attention.reason,
            "kv_dtype": engine.kv_dtype,
        },
        "compute": {
            "mode": compute.mode,
            "reason": compute.reason,
            "summary": compute.summary(),
        },
    }
