"""The program's side of `pamx.bench.protocol`: reading questions, writing answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pamx.errors import PamxError

Answer = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]


def serve(answers: Mapping[str, Answer]) -> None:
    """Answers questions by their type until standard input ends."""
    # What libraries print must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            question = json.loads(line)
            try:
                for answer in answers[question["type"]](question):
                    out.write(json.dumps(answer) + "\n")
            except PamxError as error:
                said = {"type": "error", "message": error.message, "hint": error.hint}
                out.write(json.dumps(said) + "\n")
            except MemoryError:
                said = {"type": "error", "message": "There is not enough memory for this."}
                out.write(json.dumps(said) + "\n")
            out.flush()
    except BrokenPipeError:  # who asked is gone
        os._exit(1)


def token_lines(tokens: list[list[int]], times: list[list[float]]) -> Iterable[dict[str, Any]]:
    """One answer for each token of each request."""
    for request, (ids, moments) in enumerate(zip(tokens, times, strict=True)):
        for token, moment in zip(ids, moments, strict=True):
            yield {
                "type": "token",
                "request": request,
                "token": token,
                "time": round(moment, 7),
            }
