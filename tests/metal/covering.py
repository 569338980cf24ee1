"""Few combinations in which every two values of different axes still meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

Row = dict[str, Any]


def covering(
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool] = lambda row: True,  # noqa: ARG005
    seed: int = 0,
) -> list[Row]:
    """Rows of one value for each axis; every allowed pair of values occurs in one of them.

    Greedy: each row starts from a pair that is still missing and takes, axis by axis, the value
    that completes the most missing pairs. The same axes and seed give the same rows.

    Args:
        allowed: false for rows, complete or not, that must not occur.
    """
    random = Random(seed)
    names = sorted(axes)
    missing = {
        (a, i, b, j)
        for a, b in combinations(names, 2)
        for i, x in enumerate(axes[a])
        for j, y in enumerate(axes[b])
        if allowed({a: x, b: y})
    }
    rows = []
    while missing:
        a, i, b, j = min(missing)
        chosen = {a: i, b: j}
        for name in random.sample(names, len(names)):
            if name in chosen:
                continue
            order = random.sample(range(len(axes[name])), len(axes[name]))
            fitting = [k for k in order if allowed(_row(axes, {**chosen, name: k}))]
            chosen[name] = max(fitting, key=lambda k: _completed(missing, chosen, name, k))
        missing -= {(a, chosen[a], b, chosen[b]) for a, b in combinations(names, 2)}
        rows.append(_row(axes, chosen))
    return rows


def _row(axes: Mapping[str, Sequence[Any]], chosen: Mapping[str, int]) -> Row:
    return {name: axes[name][i] for name, i in chosen.items()}


def _completed(
    missing: set[tuple[str, int, str, int]], chosen: Mapping[str, int], name: str, value: int
) -> int:
    return sum(
        ((name, value, other, i) if name < other else (other, i, name, value)) in missing
        for other, i in chosen.items()
    )
