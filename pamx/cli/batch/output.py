"""Where results go: standard output, or a file that never holds half a row.

A row is appended by one write. If that fails midway, the file is cut back to the last whole row.
Every row survives the death of this process; at most the rows of the last second are lost if the
machine crashes, since the file is synced to the disk once a second and at the end.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pamx.cli.batch.earlier import Earlier, read_results
from pamx.cli.failures import explain
from pamx.cli.terminal import write
from pamx.errors import PamxError, RequestError

_SYNC = 1.0  # seconds


class Stdout:
    """Results on standard output, each at once; nothing was there before."""

    def __init__(self) -> None:
        self.earlier: dict[str, Earlier] = {}

    def write(self, row: dict[str, Any]) -> None:
        unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
        write(json.dumps(row, ensure_ascii=not unicode) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ResultFile:
    """A file that this process alone appends results to.

    Args:
        path: The file, or a device or pipe; it is made if it does not exist.
        resume: Continue the results that are there.

    Attributes:
        earlier: Results that were there, by custom_id.

    Raises:
        RequestError: it has content and is not to be resumed, or that content is something else
            than results; or there can be no such file.
        PamxError: another process writes to it.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._regular = not path.exists() or stat.S_ISREG(path.stat().st_mode)
        if resume and not self._regular:
            raise RequestError(f"{path} is not a file, so there is nothing in it to resume.")
        mode = os.O_RDWR if self._regular else os.O_WRONLY
        flags = mode | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o666)
        self._size = 0
        self._synced = time.monotonic()
        self.earlier: dict[str, Earlier] = {}
        try:
            if self._regular:
                self._lock()
                self._size = os.fstat(self._file).st_size
                if self._size:
                    self._continue(resume)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, row: dict[str, Any]) -> None:
        """Appends a row.

        Raises:
            PamxError: it cannot be written; the file holds whole rows alone.
        """
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            now = time.monotonic()
            if now - self._synced >= _SYNC:
                self._sync()
                self._synced = now
        except BaseException as error:
            if rest and self._regular:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise
        self._size += len(line)

    def close(self) -> None:
        """Syncs and closes the file.

        Raises:
            PamxError: the disk did not take the last rows.
        """
        try:
            self._sync()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(PamxError):  # the first error is the one to tell
                self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PamxError(
                f"Another process is writing to {self._path}.",
                "Wait until it has finished, or write to another file.",
            ) from None
        except OSError as error:
            # Some network file systems have no locks.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise

    def _continue(self, resume: bool) -> None:
        if not resume:
            raise RequestError(
                f"{self._path} already exists.",
                "--resume continues it; or remove it, or write to another file.",
            )
        with self._path.open("rb") as stream:
            self.earlier, whole = read_results(stream, str(self._path))
        if whole < self._size:
            os.ftruncate(self._file, whole)
            self._size = whole

    def _sync(self) -> None:
        if self._regular:
            os.fsync(self._file)

    def _failure(self, error: OSError) -> PamxError:
        named = OSError(error.errno, error.strerror, str(self._path))
        hint = "Once that is mended, the same command with --resume continues."
        return PamxError(explain(named)[0], hint if self._regular else "Write to a file instead.")
