"""Giving results back in the order of their rows, or as they come."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Order(Generic[T]):
    """Holds what is finished until its turn.

    Args:
        keep: Whether items wait for their turn at all.

    Attributes:
        held: Items that wait.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._tickets = self._turn = 0
        self._waiting: dict[int, T | None] = {}

    @property
    def held(self) -> int:
        return len(self._waiting)

    def ticket(self) -> int:
        """The place of the next item in the order."""
        self._tickets += 1
        return self._tickets - 1

    def put(self, ticket: int, item: T | None) -> list[T]:
        """Hands in the item of a ticket, None if there will be none.

        Returns:
            The items whose turn has come.
        """
        if not self._keep:
            return [] if item is None else [item]
        self._waiting[ticket] = item
        ready: list[T] = []
        while self._turn in self._waiting:
            first = self._waiting.pop(self._turn)
            self._turn += 1
            if first is not None:
                ready.append(first)
        return ready
