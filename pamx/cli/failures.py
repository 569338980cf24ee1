"""From an exception to what the user reads and the exit status."""

from __future__ import annotations

import errno
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pamx.cli.terminal import is_terminal, say, settle_stdout
from pamx.errors import NoRoomError, NotAModelError, PamxError, RequestError
from pamx.sizes import bytes_text
from pamx.switches import switched_on

FAILED, WRONG_USE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

# An OSError of a file that somebody named, when it is the name that is wrong.
_NO_SUCH_FILE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
)


class ToldInterrupt(KeyboardInterrupt):
    """Ctrl-C about which the command itself has said more than that it came."""


def report(error: BaseException) -> int:
    """Says on stderr what went wrong and what to do; returns the exit status."""
    if switched_on("PAMX_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, OSError):
        settle_stdout()  # if it is stdout that failed, this message says so for all that is left
    if isinstance(error, KeyboardInterrupt):
        if not isinstance(error, ToldInterrupt):
            if is_terminal(sys.stderr):
                sys.stderr.write("\r")  # over the ^C that the terminal shows
            say("Interrupted.")
    elif not isinstance(error, BrokenPipeError):
        message, hint = explain(error)
        say(f"Error: {message}")
        if hint:
            say(hint)
    return exit_status(error)


def exit_status(error: BaseException) -> int:
    """The exit status of a command that `error` ended, the same in every command.

    2 if what was given is wrong: the same command cannot succeed, whatever the machine, the disk
    or the network do. 130 for Ctrl-C and 141 for a closed pipe, as a shell has them. Else 1.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    given_wrongly = isinstance(error, NotAModelError | RequestError)
    if given_wrongly and not isinstance(error, NoRoomError):
        return WRONG_USE
    return FAILED


@contextmanager
def as_given(path: Path | str) -> Iterator[None]:
    """Around the opening of a file that the command line names: a wrong name is a wrong use.

    Raises:
        RequestError: nothing of that name can be opened.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE:
            raise
        raise RequestError(f"{path}: {error.strerror}.") from error


def explain(error: BaseException) -> tuple[str, str]:
    """The message and the hint that a person should read; the hint may be empty."""
    limit = _address_limit()
    if isinstance(error, NoRoomError) and limit:
        return f"{error.message.removesuffix('.')}: {limit}.", "Raise that limit."
    if isinstance(error, PamxError):
        return error.message, error.hint
    if isinstance(error, MemoryError):
        return (
            f"There is not enough memory for this{f': {limit}' if limit else ''}.",
            "Raise that limit."
            if limit
            else "Choose a smaller model or a smaller --context, or close other programs.",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" that holds {error.filename}" if error.filename else " written to"
        return f"The disk{where} is full.", "Free some space and run this again."
    if isinstance(error, OSError) and error.errno == errno.EBADF and not error.filename:
        return "Standard output is closed.", "Send it to a file, a program or a terminal."
    if isinstance(error, FileNotFoundError) and not error.filename and _is_nowhere():
        return (
            "The folder that this command runs in has been deleted.",
            "Change to a folder that exists, and run it again.",
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}.", ""
    what = f"{type(error).__name__}: {error}".strip().rstrip(":. ")
    if limit:
        return f"{what}. It may be for lack of memory: {limit}.", "Raise that limit."
    return (
        f"This is a bug in pamx: {what}.",
        "Run the command again with PAMX_DEBUG=1 for the traceback, and report it with that.",
    )


def _address_limit() -> str:
    """What `ulimit -v` leaves this process, in words; empty for no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"its address space is limited to {bytes_text(limit)} (ulimit -v)"


def _is_nowhere() -> bool:
    """Whether the working directory is gone."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
