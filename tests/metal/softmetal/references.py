"""The declarations at program scope, and which names each mentions: a shader's call graph."""

from __future__ import annotations

import re

from .tokens import Tokens

_WORD = re.compile(r"[A-Za-z_]\w*")
_SPACES = {"device", "constant", "threadgroup", "thread"}
_TYPES = {"struct", "class", "union", "enum"}


def references(tokens: Tokens) -> dict[str, set[str]]:
    """Identifiers in the declaration of each name. Overloads and specialisations share a set."""
    named: dict[str, set[str]] = {}
    for first, end in declarations(tokens):
        name = _declared(tokens, first, end)
        words = {w for w in tokens.words[first:end] if _WORD.fullmatch(w)}
        if name:
            named.setdefault(name, set()).update(words)
    return named


def same_without_spaces(tokens: Tokens) -> list[tuple[int, int]]:
    """Token ranges of definitions that differ from an earlier one in address spaces alone.

    Metal overloads and specialises by address space; where those are erased only one may stay.
    """
    seen: dict[tuple[str, ...], tuple[str, ...]] = {}
    repeated = []
    for first, end in declarations(tokens):
        words = tuple(tokens.words[first:end])
        if "{" not in words:
            continue
        erased = tuple(w for w in words if w not in _SPACES)
        if seen.setdefault(erased, words) != words:
            repeated.append((first, end))
    return repeated


def declarations(t: Tokens) -> list[tuple[int, int]]:
    """Token ranges of the declarations that lie in no braces but those of namespaces."""
    ranges, start, i = [], 0, 0
    while i < len(t):
        word = t.word(i)
        if word == "{" and any(w in ("namespace", "extern") for w in t.words[start:i]):
            start = i + 1
        elif word == "{":
            i = t.matching(i, "{", "}")
            if t.word(i + 1) not in (";", ",", "=", ")"):
                ranges.append((start, i + 1))
                start = i + 1
        elif word == "(":
            i = t.matching(i)
        elif word in (";", "}"):
            ranges.append((start, i))
            start = i + 1
        i += 1
    return ranges


def _declared(t: Tokens, first: int, end: int) -> str:
    i = first
    while t.word(i) in ("template", "[["):
        if t.word(i) == "[[":
            i = t.attribute_end(i)
        elif t.word(i + 1) == "<":
            i = t.matching(i + 1, "<", ">") + 1
        else:
            return ""  # an explicit instantiation
    last = ""
    while i < end:
        word = t.word(i)
        if word in _TYPES and last not in ("enum",) and _WORD.fullmatch(t.word(i + 1)):
            at = i + 1 if t.word(i + 1) not in _TYPES else i + 2
            if "{" in t.words[at:end]:
                return t.word(at)
        if word == "[[":
            i = t.attribute_end(i)
            if t.word(i) in ("", ";"):
                return last
            continue
        if word in ("(", "=", "["):
            return last
        if _WORD.fullmatch(word):
            last = word
        i += 1
    return last
