"""A conversation that is written to stdout, whoever asks the questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pamx.cli.engine_thread import EngineThread
from pamx.cli.terminal import write

if TYPE_CHECKING:
    from pamx.engine import ChatSession, Completion, Delta


class Conversation:
    """A chat session on an engine's thread; a context manager that ends both.

    Args:
        thread: The engine, which may not be loaded yet.
        ask: Starts the answer to one user message.
        system: The system prompt, or None.
    """

    def __init__(
        self,
        thread: EngineThread,
        ask: Callable[[ChatSession, str], Iterator[Delta]],
        system: str | None,
    ) -> None:
        self._thread = thread
        self._ask = ask
        self._system = system
        self._session: ChatSession | None = None

    def begin(self) -> None:
        """Starts to load the engine, unless that has begun."""
        self._thread.begin()

    def open(self) -> ChatSession:
        """Waits for the engine and begins a session, unless one is open."""
        if self._session is None:
            self._session = self._thread.call(lambda engine: engine.chat(self._system))
        return self._session

    def answer(self, text: str) -> Completion | None:
        """Writes the answer to stdout as it comes, and a newline after it.

        Returns:
            What it cost.

        Raises:
            RequestError, OutOfBlocksError: this turn cannot be answered; another one may.
            KeyboardInterrupt: Ctrl-C; the answer has been stopped.
        """
        session = self.open()
        completion: Completion | None = None
        wrote = False
        try:
            with closing(self._thread.stream(lambda _: self._ask(session, text))) as deltas:
                for delta in deltas:
                    completion = delta.completion or completion
                    write(delta.text)
                    wrote = True
        finally:
            if wrote:
                write("\n")
        return completion

    def clear(self) -> None:
        """Forgets what was said; the system prompt stays."""
        session = self._session
        if session is not None:
            self._thread.call(lambda _: session.clear())

    def restart(self, system: str) -> None:
        """Forgets what was said and takes another system prompt."""
        session = self._session
        if session is not None:
            self._thread.call(lambda _: session.close())
        self._system, self._session = system, None

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()
