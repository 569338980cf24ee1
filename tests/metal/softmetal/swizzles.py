"""Writes swizzles.inc: the swizzle members of vec<T, 2>, vec<T, 3> and vec<T, 4>."""

from __future__ import annotations

from itertools import product


def text() -> str:
    lines = []
    for size in (2, 3, 4):
        lines.append(f"#if SM_SWIZZLES == {size}")
        for names in ("xyzw", "rgba"):
            for length in (2, 3, 4):
                for members in product(range(size), repeat=length):
                    kind = "sm_swizzle" if len(set(members)) == length else "sm_read_swizzle"
                    indices = ", ".join(map(str, members))
                    name = "".join(names[i] for i in members)
                    lines.append(f"{kind}<vec<T, {length}>, T, {size}, {indices}> {name};")
        lines.append("#endif")
    return "\n".join(lines) + "\n"
