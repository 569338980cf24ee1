"""The Metal host, native/metal, run on a software device; on a Mac, on the real one."""
