"""What stands for a file's content where reading all of it would take too long."""

from __future__ import annotations

import os


def file_facts(name: str, info: os.stat_result) -> tuple[str, int, int, int, int]:
    """Name, size, modification time, and the two that no copy or archive can carry over: the
    inode and the time at which the inode last changed."""
    return name, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns
