"""The result row of a request: one JSON object.

Every result has `custom_id`, `text`, `finish_reason`, `usage`, `timing`, `error` and
`fingerprint`. Of several answers (n > 1) `text` and `finish_reason` are the first's, and `choices`
has them all. `logprobs` are there, or in the choices, if they were asked for. A request that failed
has null there and an `error` of `code` and `message`. Rows in the OpenAI batch format also get
`response`, as that API writes it, with their logprobs:
https://platform.openai.com/docs/api-reference/batch/request-output.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pamx.cli.batch.logprobs import for_chat, for_completions, plain
from pamx.cli.batch.serve import Finished

if TYPE_CHECKING:
    from pamx.engine import Completion
    from pamx.errors import PamxError


def result(done: Finished, model: str) -> dict[str, Any]:
    """The result of a row; times are in seconds, rates in tokens a second."""
    row = done.row
    answers = [answer for answer in done.samples if answer is not None]
    first = answers[0] if answers and done.error is None else None
    value: dict[str, Any] = {
        "custom_id": row.custom_id,
        "text": first and first.text,
        "finish_reason": first and first.finish_reason,
        "usage": _usage(answers) if answers else None,
        "timing": _timing(answers) if answers else None,
        "error": _error(done.error) if done.error else None,
    }
    choices = [_plain_choice(done, index, answer) for index, answer in enumerate(done.samples)]
    if row.options.n > 1:
        value["choices"] = choices
    elif choices and choices[0] and "logprobs" in choices[0]:
        value["logprobs"] = choices[0]["logprobs"]
    if row.endpoint is not None:
        value["response"] = _response(done, answers, model)
    return value | {"fingerprint": row.fingerprint}


def _plain_choice(done: Finished, index: int, answer: Completion | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    choice = {"index": index, "text": answer.text, "finish_reason": answer.finish_reason}
    if done.row.options.logprobs is None or done.row.endpoint is not None:
        return choice
    return choice | {"logprobs": plain(done.logprobs[index])}


def _usage(answers: list[Completion]) -> dict[str, int]:
    return {
        "prompt_tokens": answers[0].prompt_tokens,
        "cached_tokens": answers[0].cached_tokens,
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
    }


def _timing(answers: list[Completion]) -> dict[str, float | None]:
    """Of several answers: the first token of any, and the longest decoding."""
    longest = max(answers, key=lambda answer: answer.decode_seconds)
    return {
        "ttft_s": min(answer.ttft for answer in answers),
        "decode_s": longest.decode_seconds,
        "decode_tokens_per_s": longest.decode_rate,
    }


def _error(error: PamxError) -> dict[str, str]:
    return {"code": type(error).__name__, "message": str(error)}


def _response(done: Finished, answers: list[Completion], model: str) -> dict[str, Any]:
    if done.error is not None:
        invalid = type(done.error).__name__ == "RequestError"
        return {
            "status_code": 400 if invalid else 500,
            "request_id": f"req_{done.row.fingerprint}",
            "body": {
                "error": {
                    "message": str(done.error),
                    "type": "invalid_request_error" if invalid else "server_error",
                    "param": None,
                    "code": None,
                }
            },
        }
    usage = _usage(answers)
    chat = done.row.endpoint == "chat"
    return {
        "status_code": 200,
        "request_id": f"req_{done.row.fingerprint}",
        "body": {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{done.row.fingerprint}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [_choice(done, index, answer) for index, answer in enumerate(answers)],
            "usage": {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            },
        },
    }


def _choice(done: Finished, index: int, answer: Completion) -> dict[str, Any]:
    chat = done.row.endpoint == "chat"
    content: dict[str, Any] = (
        {"message": {"role": "assistant", "content": answer.text}}
        if chat
        else {"text": answer.text}
    )
    logprobs = None
    if done.row.options.logprobs is not None:
        logprobs = (for_chat if chat else for_completions)(done.logprobs[index])
    return {
        "index": index,
        **content,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
    }
