"""An engine and the one thread on which it is loaded, used and closed.

MLX's streams belong to the thread that made them, so everything that computes happens on one. The
caller's thread stays free: to read the next question while the model loads, and to notice Ctrl-C
at once, which therefore never lands in the middle of a step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from pamx.cli.terminal import is_terminal, note

if TYPE_CHECKING:
    from pamx.engine import Engine

T = TypeVar("T")

_NAME = "pamx-engine"
_PATIENCE = 1.0  # seconds of loading before a line says so


class EngineThread:
    """Loads an engine in the background; a context manager that finishes with it.

    Args:
        load: Makes the engine; what it raises is raised by the first use.
        name: What a person calls the model.
        later: Whether to load only when `begin` is called or the engine is first used.
    """

    def __init__(self, load: Callable[[], Engine], name: str, *, later: bool = False) -> None:
        self._name = name
        self._load = load
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._engine: Future[Engine] | None = None
        if not later:
            self.begin()

    def begin(self) -> None:
        """Starts to load, unless that has begun."""
        if self._engine is None:
            threading.Thread(target=self._work, name=_NAME, daemon=True).start()
            self._engine = self._submit(self._load)

    def call(self, job: Callable[[Engine], T]) -> T:
        """Runs `job` on the thread and returns what it returns, or raises what it raises."""
        engine = self._loaded()
        return self._submit(lambda: job(engine)).result()

    def stream(self, job: Callable[[Engine], Iterator[T]]) -> Generator[T, None, None]:
        """Iterates on the thread over what `job` returns; closing this closes that."""
        engine = self._loaded()
        items: SimpleQueue[T | _End] = SimpleQueue()
        stop = threading.Event()

        def pump() -> None:
            source = job(engine)
            try:
                for item in source:
                    items.put(item)
                    if stop.is_set():
                        return
            finally:
                close = getattr(source, "close", None)
                if close is not None:
                    close()

        done = self._submit(pump)
        done.add_done_callback(lambda _: items.put(_End()))
        try:
            while not isinstance(item := items.get(), _End):
                yield item
            done.result()
        finally:
            # Not waited for: a step cannot be interrupted, and whatever is asked next waits for
            # its turn on the thread anyway.
            stop.set()

    def close(self) -> None:
        """Lets the engine finish; if it is still loading, leaves that behind instead of waiting.

        Its model is not restored: the process is about to end.
        """
        if self._engine and self._engine.done() and self._engine.exception() is None:
            engine = self._engine.result()
            self._submit(lambda: engine.close(restore=False)).result()

    def __enter__(self) -> EngineThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt):  # then nobody wants to wait
            self.close()

    def _loaded(self) -> Engine:
        self.begin()
        assert self._engine is not None
        wait([self._engine], _PATIENCE)
        if not self._engine.done() and is_terminal(sys.stderr):
            note(f"Loading {self._name} ...")
        return self._engine.result()

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class _End:
    """Follows the last item of a stream."""


def was_started() -> bool:
    """Whether this process has an engine's thread; it must then end by os._exit.

    A load or a step cannot be interrupted. And when a thread that used MLX ends, destructors of
    MLX's thread-local state ask for the GIL; the process aborts if Python is shutting down by
    then. So such a thread never ends, and Python is never shut down under it.
    """
    return any(thread.name == _NAME for thread in threading.enumerate())
