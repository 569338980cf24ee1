"""What can be wrong with a shader: when it is compiled, when it runs, when it is checked."""

from __future__ import annotations


class MetalError(Exception):
    """A shader cannot be compiled, or its run did what no kernel may do."""


class LintError(MetalError):
    """A shader uses what the Metal compiler would not take.

    Attributes:
        reasons: one line each, with file and line.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons
