"""The one thread on which an engine lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pamx.cli.engine_thread import EngineThread
from pamx.errors import ModelError


class Recorder:
    """In the place of an engine: notes on which thread it is used."""

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.closed = False
        self.stopped = False

    def count(self) -> Iterator[int]:
        try:
            for number in range(1_000_000):
                self.threads.add(threading.get_ident())
                yield number
        finally:
            self.stopped = True

    def finish(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed = True


def load(thread: Any) -> Recorder:
    return thread.call(lambda engine: engine)


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    loads = 0

    def make() -> Any:
        nonlocal loads
        loads += 1
        return Recorder()

    with EngineThread(make, "x", later=True) as thread:
        assert loads == 0
        thread.begin()
        thread.begin()
        load(thread)
    assert loads == 1
    with EngineThread(make, "x", later=True) as thread:
        load(thread)
    assert loads == 2
    with EngineThread(make, "x", later=True):
        pass
    assert loads == 2


def test_everything_happens_on_one_thread_that_is_not_ours() -> None:
    make: Any = Recorder
    with EngineThread(make, "x") as thread:
        engine = load(thread)
        with closing(thread.stream(lambda e: e.count())) as numbers:  # type: ignore[attr-defined]
            assert [next(numbers) for _ in range(3)] == [0, 1, 2]
        # Closing the stream closes what it came from, before anything else may start there.
        assert thread.call(lambda e: e.stopped)  # type: ignore[attr-defined]
    assert engine.closed
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads


def test_what_goes_wrong_there_is_raised_here() -> None:
    def fail() -> Any:
        raise ModelError("It does not load.", "Take another.")

    with EngineThread(fail, "x") as thread, pytest.raises(ModelError, match="does not load"):
        thread.call(lambda engine: engine)

    def broken(_: Any) -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    make: Any = Recorder
    with EngineThread(make, "x") as thread:
        numbers = thread.stream(broken)
        assert next(numbers) == 1
        with pytest.raises(ValueError, match="broken"):
            next(numbers)


def test_leaving_does_not_wait_for_a_load() -> None:
    loaded = threading.Event()

    def slow() -> Any:
        loaded.wait(60)

    with EngineThread(slow, "x"):
        pass
    assert not loaded.is_set()
    loaded.set()
