"""Everything that owns pages: the block manager, block tables and the pool."""

from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockCopy, BlockTable

__all__ = ["BlockCopy", "BlockManager", "BlockTable"]
