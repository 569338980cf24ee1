"""How an attention call finds its cache: the stand-ins that caches gave the model.

A cache hands the model placeholder keys and, for windowed layers, marked masks. The model passes
them on to its attention call, and there they tell which cache and which window are meant. They
are known by identity, for models share K and V between layers and pass other layers' caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from pamx.errors import PamxError

if TYPE_CHECKING:
    from pamx.attention.cache import PagedKVCache


class UnsupportedAttentionError(PamxError):
    """A model asks of its cache what pages cannot give; it must keep mlx-lm's own cache."""


class WindowMask(str):
    """The mask "causal" with a window: equal to the plain string for a model that compares."""

    window: int | None

    def __new__(cls, window: int | None) -> WindowMask:
        mask = super().__new__(cls, "causal")
        mask.window = window
        return mask


class Placeholders:
    """The stand-ins of the current step, each with what it stands for."""

    def __init__(self) -> None:
        # The arrays are kept too: a freed one's id could come back as another's.
        self._owners: dict[int, tuple[mx.array, PagedKVCache]] = {}
        self._latest: dict[PagedKVCache, int] = {}
        self._windows: dict[int, tuple[mx.array, int | None]] = {}
        self.closed = False

    def close(self) -> None:
        """From now on no cache accepts rows: nothing routes attention calls to pages any more."""
        self.clear()
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise PamxError(
                "These caches are of a PagedModel that is closed.",
                "Use them while it is open, or make new ones from another PagedModel.",
            )

    def clear(self) -> None:
        self._owners.clear()
        self._latest.clear()
        self._windows.clear()

    def remember(self, keys: mx.array, cache: PagedKVCache) -> None:
        """Notes whose placeholder `keys` is; it replaces the one that the cache gave before."""
        self._owners.pop(self._latest.get(cache, 0), None)
        self._owners[id(keys)] = (keys, cache)
        self._latest[cache] = id(keys)

    def owner(self, keys: mx.array) -> PagedKVCache | None:
        found = self._owners.get(id(keys))
        return found[1] if found else None

    def remember_mask(self, mask: mx.array, window: int | None) -> None:
        self._windows[id(mask)] = (mask, window)

    def window_of(self, mask: object) -> int | None:
        """The window that a mask made by one of our caches stands for; None for no window.

        Raises:
            UnsupportedAttentionError: the mask carries something else.
        """
        if isinstance(mask, WindowMask):
            return mask.window
        if mask is None or isinstance(mask, str):
            return None
        if id(mask) in self._windows:
            return self._windows[id(mask)][1]
        raise UnsupportedAttentionError(
            "The model adds something of its own to the attention scores."
        )
