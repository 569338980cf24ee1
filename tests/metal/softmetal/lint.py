"""What the Metal compiler would refuse in a shader, and a CPU compiler would not.

The shader is parsed as clang's C++ for OpenCL (PyPI's libclang), whose address spaces follow the
rules of Metal's: the first pass takes the parser's errors. The second walks the syntax tree for
what Metal leaves out of C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clang import cindex

from . import toolchain
from .build import extra_headers, include_flags, preprocess
from .errors import LintError
from .translate import translate

_MARKER = re.compile(r"#(?: |line )(\d+) \"([^\"]*)\"")
_COPY_FROM_CONSTANT = "no matching constructor for initialization of '__private "
_FLAGS = ["-x", "clcpp", "-cl-std=clc++2021", "-target", "x86_64-linux-gnu"]
_FLAGS += ["-cl-single-precision-constant", "-cl-no-stdinc", "-Wno-unknown-attributes"]
_FLAGS += ["-Wno-invalid-constexpr", "-include", str(toolchain.INCLUDE / "softmetal" / "check.hpp")]

# Metal's own keywords, beside the address spaces, that are plain names in C++ for OpenCL.
_KEYWORDS = {"vertex", "fragment"}


def check(path: Path, instantiations: Sequence[str], language: int) -> None:
    """Raises LintError if either pass finds something, MetalError if the shader cannot be read."""
    text = preprocess(path, instantiations, language)
    source = translate(text).render(erase_spaces=False)
    flags = [*_FLAGS, *include_flags(), *extra_headers(text, "check")]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "shader.clcpp"
        file.write_text(source)
        tree = _Tree(file, source, flags, language)
        if tree.errors and all(_COPY_FROM_CONSTANT in e for e in tree.errors):
            tree = _Tree(file, source, [*flags, "-DSM_CONSTANT_IS_DEVICE"], language)
        reasons = tree.errors or list(tree.reasons())
    if reasons:
        raise LintError(reasons)


class _Tree:
    """The syntax tree of one shader."""

    def __init__(self, file: Path, source: str, flags: list[str], language: int) -> None:
        self.kinds = cindex.CursorKind
        unit = cindex.Index.create().parse(str(file), args=flags)
        self.root = unit.cursor
        self.file = str(file)
        self.places = list(_places(source))
        self.errors = [
            f"{self._place(d.location)}: error: {d.spelling}"
            for d in unit.diagnostics
            if d.severity >= cindex.Diagnostic.Error
        ]
        self.calls: dict[str, set[str]] = {}
        self.names: dict[str, str] = {}
        k = self.kinds
        self.refused = {
            k.GOTO_STMT: "goto",
            k.CXX_NEW_EXPR: "new",
            k.CXX_DELETE_EXPR: "delete",
            k.CXX_TRY_STMT: "try",
            k.CXX_THROW_EXPR: "throw",
            k.CXX_DYNAMIC_CAST_EXPR: "dynamic_cast",
            k.CXX_TYPEID_EXPR: "typeid",
        }
        if language < 400:
            self.refused[k.LAMBDA_EXPR] = "a lambda expression"

    def _place(self, location: Any) -> str:
        if location.file and location.file.name == self.file:
            return self.places[location.line - 1]
        return f"{location.file}:{location.line}"

    def reasons(self) -> Iterator[str]:
        yield from self._walk(self.root, None, True)
        for function in self.calls:
            if self._reaches(function, function, set()):
                yield f"{self.names[function]} calls itself"

    def _walk(self, parent: Any, function: str | None, program_scope: bool) -> Iterator[str]:
        k = self.kinds
        for c in parent.get_children():
            if not c.location.file or c.location.file.name != self.file:
                continue
            place = self._place(c.location)
            if c.kind in self.refused:
                yield f"{place}: error: {self.refused[c.kind]} is not part of Metal"
            if c.kind == k.CXX_METHOD and c.is_virtual_method():
                yield f"{place}: error: a virtual function is not part of Metal"
            if c.kind in (k.VAR_DECL, k.PARM_DECL, k.FIELD_DECL):
                yield from self._variable(c, place, program_scope)
            if c.kind == k.CALL_EXPR and function and c.referenced:
                self.calls.setdefault(function, set()).add(c.referenced.get_usr())
            inside = function
            if c.kind in (k.FUNCTION_DECL, k.FUNCTION_TEMPLATE, k.CXX_METHOD):
                inside = c.get_usr()
                self.names[inside] = f"{place}: error: {c.spelling}"
            yield from self._walk(
                c, inside, program_scope and c.kind in (k.NAMESPACE, k.LINKAGE_SPEC)
            )

    def _variable(self, c: Any, place: str, program_scope: bool) -> Iterator[str]:
        if c.spelling in _KEYWORDS:
            yield f"{place}: error: '{c.spelling}' is a keyword of Metal"
        spelling = c.type.spelling
        pointer = ("*" in spelling or "&" in spelling) and "(&)" not in spelling
        if "__generic" in spelling and pointer and "&&" not in spelling:
            yield f"{place}: error: '{c.spelling}' is a pointer without an address space"
        if "double" in c.type.get_canonical().spelling.split():
            yield f"{place}: error: '{c.spelling}' is a double, which Metal does not have"
        if (
            program_scope
            and c.kind == self.kinds.VAR_DECL
            and not ("__constant" in spelling or "const __global" in spelling)
        ):
            yield f"{place}: error: '{c.spelling}' at program scope is not in constant memory"

    def _reaches(self, start: str, goal: str, seen: set[str]) -> bool:
        for called in self.calls.get(start, ()):
            if called == goal:
                return True
            if called not in seen:
                seen.add(called)
                if self._reaches(called, goal, seen):
                    return True
        return False


def _places(source: str) -> Iterator[str]:
    """file:line in the shader of each line of the source."""
    file, line = "?", 0
    for text in source.split("\n"):
        marker = _MARKER.match(text)
        if marker:
            file, line = marker[2], int(marker[1]) - 1
        else:
            line += 1
        yield f"{file}:{line}"
