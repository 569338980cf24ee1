"""The block pool: each layer's K and V storage, allocated once, changed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from pamx.errors import NativeError, NoRoomError
from pamx.kv.block_table import BlockCopy


@dataclass(frozen=True)
class Storage:
    """How a pool's arrays are made and how blocks are copied in them.

    Attributes:
        allocate: (shape, dtype) to an array. A slot is read only after it was written, so the
            contents may be anything.
        copy: (sources, targets, keys, values) to the two pools after copying whole blocks.
    """

    allocate: Callable[[tuple[int, ...], mx.Dtype], mx.array]
    copy: Callable[[Sequence[int], Sequence[int], mx.array, mx.array], tuple[mx.array, mx.array]]


def plain_storage() -> Storage:
    """Storage in plain MLX operations."""

    def copy(
        sources: Sequence[int], targets: Sequence[int], keys: mx.array, values: mx.array
    ) -> tuple[mx.array, mx.array]:
        # Read before anything is written: an operation that reads the pool while another one
        # writes it would make MLX copy all of it.
        blocks = [pages[mx.array(list(sources))] for pages in (keys, values)]
        mx.eval(blocks)
        for pages, held in zip((keys, values), blocks, strict=True):
            pages[mx.array(list(targets))] = held
        return keys, values

    return Storage(mx.zeros, copy)


@dataclass(frozen=True)
class LayerGeometry:
    """What one attention layer stores for a token."""

    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: mx.Dtype
    window: int | None = None  # positions that a query sees; None: all

    @property
    def token_bytes(self) -> int:
        return self.kv_heads * (self.k_dim + self.v_dim) * self.dtype.size


class LayerPool:
    """One layer's pages.

    Attributes:
        keys: [num_blocks, block_size, kv_heads, k_dim].
        values: [num_blocks, block_size, kv_heads, v_dim].

    Each write makes new handles (`keys`, `values`) on the same buffers; holding an old handle
    past a write is the one mistake to make here.
    """

    def __init__(
        self, geometry: LayerGeometry, num_blocks: int, block_size: int, storage: Storage
    ) -> None:
        self.geometry = geometry
        shape = (num_blocks, block_size, geometry.kv_heads)
        self.keys = storage.allocate((*shape, geometry.k_dim), geometry.dtype)
        self.values = storage.allocate((*shape, geometry.v_dim), geometry.dtype)


class BlockPool:
    """All layers' pages: a fixed budget of `num_blocks` blocks.

    Args:
        layers: What each layer stores.
        num_blocks: Blocks in every layer's storage.
        block_size: Tokens a block.
        storage: Makes the arrays and copies blocks in them.

    Raises:
        NoRoomError: they cannot be allocated.
    """

    def __init__(
        self,
        layers: list[LayerGeometry],
        num_blocks: int,
        block_size: int,
        storage: Storage | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._storage = storage or plain_storage()
        try:
            self.layers = [LayerPool(g, num_blocks, block_size, self._storage) for g in layers]
            mx.eval([(layer.keys, layer.values) for layer in self.layers])
        except (RuntimeError, NativeError, MemoryError) as error:  # MLX's allocator, ours, Python's
            size = token_bytes(layers) * num_blocks * block_size
            why = f" ({text})" if (text := str(error).rstrip(".")) else ""
            raise NoRoomError(
                f"The system refuses the {size:,} bytes of pages for {num_blocks * block_size:,} "
                f"tokens{why}.",
                "Ask for a smaller context, or free some memory.",
            ) from error

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def copy(self, copies: list[BlockCopy]) -> None:
        """Copies whole blocks in every layer, for copy-on-write."""
        if not copies:
            return
        sources, targets = [c.source for c in copies], [c.target for c in copies]
        for layer in self.layers:
            layer.keys, layer.values = self._storage.copy(
                sources, targets, layer.keys, layer.values
            )


def token_bytes(layers: list[LayerGeometry]) -> int:
    """Bytes that one token occupies over all layers."""
    return sum(layer.token_bytes for layer in layers)
