"""What a finished answer cost, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamx.cli.batch.durations import duration_text
from pamx.cli.options import LONGEST_ANSWER
from pamx.sizes import counted

if TYPE_CHECKING:
    from pamx.engine import Completion, Engine


def cut_off(completion: Completion, max_tokens: int | None) -> str:
    """Why an answer ends before its end, in a sentence; "" if it does not, or just as asked.

    Args:
        completion: The answer.
        max_tokens: What was asked for; None: nothing, so that `LONGEST_ANSWER` held.
    """
    if completion.finish_reason != "length" or completion.completion_tokens == max_tokens:
        return ""
    if max_tokens is None and completion.completion_tokens >= LONGEST_ANSWER:
        count = counted(LONGEST_ANSWER, "token")
        return f"The answer is cut off after {count}; --max-tokens allows more."
    context = counted(completion.prompt_tokens + completion.completion_tokens, "token")
    return f"The answer is cut off: the context of {context} is full."


def summary(completion: Completion, max_tokens: int | None) -> str:
    """Tokens, speed, time to the first token, prompt tokens that needed no work; why it was cut."""
    count = completion.completion_tokens
    parts = [counted(count, "token")]
    if count > 1 and completion.decode_rate:
        parts.append(f"{completion.decode_rate:,.1f} tokens/s")
    if count:
        parts.append(f"first after {duration_text(completion.ttft)}")
    parts.append(
        f"{completion.cached_tokens:,} of {counted(completion.prompt_tokens, 'prompt token')} "
        "from cache"
    )
    line = ", ".join(parts)
    return f"{line}. {cut}" if (cut := cut_off(completion, max_tokens)) else line


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
