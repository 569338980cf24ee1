"""The native library: loading, versions, and typed wrappers of its calls."""

from pamx.native.loader import Library, library

__all__ = ["Library", "library"]
