"""A conversation: each turn computes only the tokens that the turns before have not."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from pamx.engine.completion import Delta
from pamx.engine.gate import Gated
from pamx.engine.prompt import Message, prompt_tokens
from pamx.engine.sampling import Sampling
from pamx.errors import RequestError

if TYPE_CHECKING:
    from pamx.engine.engine import Engine

GREEDY = Sampling()


class ChatSession:
    """Turns of a conversation over one sequence of pages.

    Args:
        engine: Answers the turns.
        system: System message, or None for the model's own default.

    Attributes:
        messages: The conversation so far.
    """

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self._engine = engine
        self._system = system
        self._slot = engine.new_slot()
        self._turn: Gated[Delta] | None = None
        self.messages: list[Message] = []
        self.clear()

    def ask(
        self,
        text: str,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> Iterator[Delta]:
        """Adds a user message and answers it, piece by piece.

        A turn that is stopped early stays in the conversation with what was said so far; one
        that ends before its first token leaves the conversation as it was. Asking again stops a
        turn that is still being answered; iterating over that one further raises a RequestError.

        Raises:
            RequestError: the message is empty, or the conversation has outgrown the context.
        """
        with self._engine.gate:
            return self._begin_turn(text, max_tokens, sampling, stop)

    def _begin_turn(
        self, text: str, max_tokens: int | None, sampling: Sampling, stop: Sequence[str]
    ) -> Gated[Delta]:
        self._stop_turn()
        if not text.strip():
            raise RequestError("The message is empty.", "Write something for the model to answer.")
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        prompt = prompt_tokens(self._engine.tokenizer, messages)
        try:
            self._engine.check_request(prompt, max_tokens, sampling)
        except RequestError as error:
            if len(prompt) < self._engine.context:
                raise
            raise RequestError(
                error.message, "Begin a new conversation (/clear at the prompt of pamx chat)."
            ) from error
        answer = self._answer(messages, prompt, max_tokens, sampling, stop)
        self._turn = Gated(self._engine.gate, answer)
        return self._turn

    def _answer(
        self,
        messages: list[Message],
        prompt: list[int],
        max_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
    ) -> Generator[Delta, None, None]:
        said = ""
        answered = False
        try:
            for delta in self._engine.answer(self._slot, prompt, max_tokens, sampling, stop):
                said += delta.text
                answered = answered or delta.token is not None
                yield delta
        finally:
            if answered:
                self.messages = [*messages, {"role": "assistant", "content": said}]

    def clear(self) -> None:
        """Forgets the conversation and frees its pages; the system message stays."""
        self.close()
        self.messages = (
            [] if self._system is None else [{"role": "system", "content": self._system}]
        )

    def close(self) -> None:
        """Frees the conversation's pages."""
        with self._engine.gate.alone:
            self._stop_turn()
            self._slot.close()

    def _stop_turn(self) -> None:
        if self._turn is not None:
            self._turn.break_off(
                RequestError(
                    "This answer was broken off: the conversation went on without it, or ended.",
                    "Take an answer to its end before the next question; chat.messages has what "
                    "was said.",
                )
            )
            self._turn = None
