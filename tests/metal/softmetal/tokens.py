"""Tokens of a preprocessed shader, with their place in the text and in the original files."""

from __future__ import annotations

import re
from bisect import bisect_right

from .errors import MetalError

_TOKEN = re.compile(
    r"^[ \t]*\#[^\n]*"  # what the preprocessor left: line markers and pragmas
    r"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
    r"|[A-Za-z_]\w*|\.?\d[\w.]*|\[\[|::|->|<<|[^\s\w]",
    re.MULTILINE,
)
_MARKER = re.compile(r"^# (\d+) \"([^\"]*)\"[^\n]*\n", re.MULTILINE)
_DEPTH = {"(": 1, ")": -1, "[": 1, "[[": 2, "]": -1, "{": 1, "}": -1}


class Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [
            m.span() for m in _TOKEN.finditer(text) if not m.group().lstrip().startswith("#")
        ]
        self.words = [text[a:b] for a, b in self.spans]
        self._markers = [(m.end(), int(m[1]), m[2]) for m in _MARKER.finditer(text)]
        self._marker_ends = [end for end, _, _ in self._markers]

    def __len__(self) -> int:
        return len(self.words)

    def word(self, i: int) -> str:
        return self.words[i] if 0 <= i < len(self.words) else ""

    def slice(self, first: int, end: int) -> str:
        """The text of tokens first..end-1, as it stands."""
        return self.text[self.spans[first][0] : self.spans[end - 1][1]] if end > first else ""

    def place(self, i: int) -> str:
        """file:line of a token."""
        at = self.spans[min(i, len(self.spans) - 1)][0]
        marker = bisect_right(self._marker_ends, at) - 1
        if marker < 0:
            return "?"
        start, line, file = self._markers[marker]
        return f"{file}:{line + self.text.count(chr(10), start, at)}"

    def matching(self, i: int, opening: str = "(", closing: str = ")") -> int:
        """The token that closes the bracket at i."""
        depth = 0
        for j in range(i, len(self.words)):
            if self.words[j] == opening:
                depth += 1
            elif self.words[j] == closing:
                depth -= 1
                if depth == 0:
                    return j
        raise MetalError(f"{self.place(i)}: '{opening}' is never closed")

    def attribute_end(self, i: int) -> int:
        """The token after the attribute list whose '[[' is at i."""
        depth = 0
        for j in range(i, len(self.words)):
            depth += {"[[": 2, "[": 1, "]": -1}.get(self.words[j], 0)
            if depth == 0:
                return j + 1
        raise MetalError(f"{self.place(i)}: '[[' is never closed")

    def split(self, first: int, end: int) -> list[tuple[int, int]]:
        """The ranges between the top-level commas of tokens first..end-1."""
        parts, start, depth, angle = [], first, 0, 0
        for i in range(first, end):
            word = self.words[i]
            depth += _DEPTH.get(word, 0)
            if depth == 0:
                angle += {"<": 1, ">": -1}.get(word, 0)
            if word == "," and depth == 0 and angle == 0:
                parts.append((start, i))
                start = i + 1
        if end > start:
            parts.append((start, end))
        return parts

    def statement_end(self, i: int) -> int:
        """The ';' that ends the declaration at i."""
        depth = 0
        for j in range(i, len(self.words)):
            depth += _DEPTH.get(self.words[j], 0)
            if self.words[j] == ";" and depth == 0:
                return j
        raise MetalError(f"{self.place(i)}: a declaration without ';'")
