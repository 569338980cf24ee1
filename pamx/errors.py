"""The exceptions that pamx raises: each says what happened and what to do next."""

from __future__ import annotations


class PamxError(Exception):
    """Base of every error that pamx raises on purpose.

    Args:
        message: What happened and why, in one sentence.
        hint: What the reader can do next, in one sentence; empty if there is nothing to do.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class ModelError(PamxError):
    """A model cannot be found, fetched, read or built."""


class NotAModelError(ModelError):
    """What was named can be no model: a misspelt name, a path where nothing is, another file."""


class RequestError(PamxError):
    """A request cannot be served as asked: an empty prompt, a prompt past the context."""


class NoRoomError(RequestError):
    """Memory has no room for a model, however little is asked of it, or ended all the same."""


class OutOfBlocksError(PamxError):
    """The block pool has fewer free blocks than a request needs."""


class BlockTableError(PamxError):
    """A block table points outside its pool, or is too short for its sequence."""


class NativeError(PamxError):
    """The native library is missing, does not match this MLX, or refused a call."""
