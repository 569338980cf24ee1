"""The covering sets cover, and leave out what is not allowed."""

from __future__ import annotations

from itertools import combinations

from metal.covering import covering

AXES = {"a": [1, 2, 3, 4], "b": ["x", "y", "z"], "c": [False, True], "d": list(range(5))}


def test_every_pair_occurs() -> None:
    rows = covering(AXES)
    for p, q in combinations(AXES, 2):
        assert {(r[p], r[q]) for r in rows} == {(x, y) for x in AXES[p] for y in AXES[q]}
    assert len(rows) <= 30  # of 120; 20 is the least there can be


def test_what_is_not_allowed_never_occurs() -> None:
    rows = covering(AXES, lambda r: not (r.get("a") == 1 and r.get("c") is True))
    assert not any(r["a"] == 1 and r["c"] for r in rows)
    assert any(r["a"] == 1 for r in rows)
    assert rows == covering(AXES, lambda r: not (r.get("a") == 1 and r.get("c") is True))
