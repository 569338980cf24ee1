"""Whether arms gave the same tokens, and where they first did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Tokens = Sequence[Sequence[int]]


def compare_outputs(base: Tokens | None, arm: Tokens | None, base_id: str) -> dict[str, Any]:
    """The field "outputs" of a cell.

    Returns:
        `same`: True, False, or None if an arm does not tell its tokens; and for False the first
        request that differs, the place in its answer and the token of each.
    """
    if base is None or arm is None:
        return {"compared_with": base_id, "same": None}
    differing = [i for i, (a, b) in enumerate(zip(base, arm, strict=True)) if list(a) != list(b)]
    if not differing:
        return {"compared_with": base_id, "same": True}
    request = differing[0]
    a, b = base[request], arm[request]
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if place is None:  # one is the beginning of the other
        place = min(len(a), len(b))
    return {
        "compared_with": base_id,
        "same": False,
        "requests_that_differ": len(differing),
        "request": request,
        "place": place,
        "base_token": a[place] if place < len(a) else None,
        "arm_token": b[place] if place < len(b) else None,
    }
