"""The block pool: each layer's K and V storage, allocated once, changed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from pamx.kv.block_table import BlockCopy

Allocate = Callable[[tuple[int, ...], mx.Dtype], mx.array]


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
        self, geometry: LayerGeometry, num_blocks: int, block_size: int, allocate: Allocate
    ) -> None:
        self.geometry = geometry
        shape = (num_blocks, block_size, geometry.kv_heads)
        self.keys = allocate((*shape, geometry.k_dim), geometry.dtype)
        self.values = allocate((*shape, geometry.v_dim), geometry.dtype)


class BlockPool:
    """All layers' pages: a fixed budget of `num_blocks` blocks.

    Args:
        layers: What each layer stores.
        num_blocks: Blocks in every layer's storage.
        block_size: Tokens a block.
        allocate: Makes the storage from (shape, dtype). A slot is read only after it was
            written, so the contents may be anything.
    """

    def __init__(
        self,
        layers: list[LayerGeometry],
        num_blocks: int,
        block_size: int,
        allocate: Allocate = mx.zeros,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = [LayerPool(g, num_blocks, block_size, allocate) for g in layers]
        mx.eval([(layer.keys, layer.values) for layer in self.layers])

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def copy(self, copies: list[BlockCopy]) -> None:
        """Copies whole blocks in every layer, for copy-on-write."""
        if not copies:
            return
        sources = mx.array([c.source for c in copies])
        targets = mx.array([c.target for c in copies])
        for layer in self.layers:
            layer.keys[targets] = layer.keys[sources]
            layer.values[targets] = layer.values[sources]
        # Settled at once: the native kernel takes a pool that exists, or one it made itself.
        mx.eval([(layer.keys, layer.values) for layer in self.layers])


def token_bytes(layers: list[LayerGeometry]) -> int:
    """Bytes that one token occupies over all layers."""
    return sum(layer.token_bytes for layer in layers)
