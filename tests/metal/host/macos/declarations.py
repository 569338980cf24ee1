"""Declarations of Metal as data: out of our Metal.h, and out of metal-cpp's headers.

metal-cpp is Apple's own C++ face of Metal, generated from its headers; the mlx-metal wheel carries
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Method:
    """A method of a Metal class or protocol, types as metal-cpp spells them without `const`."""

    owner: str  # without MTL
    selector: str
    returns: str
    arguments: tuple[str, ...]


# ---- our Metal.h --------------------------------------------------------------------------------

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Forward declarations, and the fields of the software device's classes.
_NEITHER = re.compile(r"@protocol [\w\s,]+;|SOFTMETAL_FIELDS\([^\n]*\)$", re.MULTILINE)
_BLOCK = re.compile(r"@(?:protocol|interface)\s+(\w+)[^;{]*?$(.*?)@end", re.DOTALL | re.MULTILINE)
_PROPERTY = re.compile(r"@property\s*\(([^)]*)\)\s*([\w\s*<>]*?)\s*(\w+)\s*;")
_METHOD = re.compile(r"^- \((.*?)\)(.*?);", re.DOTALL | re.MULTILINE)
_PART = re.compile(r"(\w+):\(((?:[^()]|\([^()]*\))*)\)\w+")
_ENUM = re.compile(r"typedef enum (\w+) : \w+ \{(.*?)\}", re.DOTALL)


def declared_methods(header: Path) -> list[Method]:
    text = _NEITHER.sub("", _COMMENT.sub("", header.read_text()))
    found = []
    for owner, body in _BLOCK.findall(text):
        name = owner.removeprefix("MTL")
        for attributes, kind, member in _PROPERTY.findall(body):
            found.append(Method(name, member, _cpp(kind), ()))
            if "readonly" not in attributes:
                setter = f"set{member[0].upper()}{member[1:]}:"
                found.append(Method(name, setter, "void", (_cpp(kind),)))
        for returns, rest in _METHOD.findall(body):
            parts = _PART.findall(rest)
            selector = "".join(f"{p}:" for p, _ in parts) or rest.split()[0]
            found.append(Method(name, selector, _cpp(returns), tuple(_cpp(k) for _, k in parts)))
    return found


def declared_values(header: Path) -> dict[str, int]:
    """Enumerators of our Metal.h without MTL."""
    text = _COMMENT.sub("", header.read_text())
    return {
        name.strip().removeprefix("MTL"): int(value)
        for _, body in _ENUM.findall(text)
        for name, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)
    }


def _cpp(objc: str) -> str:
    """A type as metal-cpp spells it."""
    kind = re.sub(r"\bconst\b|\s", "", objc)
    if wrapped := re.fullmatch(r"id<MTL(\w+)>", kind):
        return f"MTL::{wrapped[1]}*"
    kind = re.sub(r"^NS(?=U?Integer$|[A-Z])", "NS::", kind)
    kind = re.sub(r"^MTL", "MTL::", kind)
    return {"BOOL": "bool"}.get(kind, kind)


# ---- metal-cpp ----------------------------------------------------------------------------------

_SELECTOR = re.compile(r'_PRIVATE_DEF_SEL\(\s*(\w+)\s*,\s*"([^"]+)"')
_DEFINITION = re.compile(
    r"_MTL_INLINE ([^\n(]*?)\s*MTL::(\w+)::\w+\(([^\n]*)\)[^\n]*\n\{(.*?)\n\}", re.DOTALL
)
_SENT = re.compile(r"sendMessage\w*<[^;]*?_MTL_PRIVATE_SEL\((\w+)\)")
_MTL_ENUM = re.compile(r"_MTL_(?:ENUM|OPTIONS)\([^,]+,\s*(\w+)\)\s*\{(.*?)\}", re.DOTALL)


def metal_cpp_methods(folder: Path) -> set[Method]:
    headers = [p.read_text(errors="replace") for p in sorted((folder / "Metal").glob("*.hpp"))]
    names = {key: name for text in headers for key, name in _SELECTOR.findall(text)}
    found = set()
    for text in headers:
        for returns, owner, arguments, body in _DEFINITION.findall(text):
            if sent := _SENT.search(body):
                kinds = tuple(_plain(a.rsplit(None, 1)[0]) for a in _split(arguments))
                name = names.get(sent[1], sent[1])
                found.add(Method(owner, name, _plain(returns), kinds))
    return found


def metal_cpp_values(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in sorted((folder / "Metal").glob("*.hpp")):
        for _, body in _MTL_ENUM.findall(path.read_text(errors="replace")):
            for name, value in re.findall(r"(\w+)\s*=\s*([^,\n]+)", body):
                if re.fullmatch(r"[\d\s<|()]+", value):
                    found[name] = eval(value)
    return found


def _plain(kind: str) -> str:
    return re.sub(r"\bconst\b|\bclass\b|\s", "", kind)


def _split(arguments: str) -> list[str]:
    return [a.strip() for a in arguments.split(",") if a.strip()]
