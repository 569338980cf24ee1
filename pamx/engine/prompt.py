"""From what a person writes to the token ids that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from jinja2.exceptions import TemplateError

from pamx.errors import RequestError


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


Prompt = str | Sequence[Message] | Sequence[int]


def prompt_tokens(
    tokenizer: Any, prompt: Prompt, *, raw: bool = False, vocabulary: int | None = None
) -> list[int]:
    """Token ids of a prompt.

    Args:
        tokenizer: mlx-lm's tokenizer wrapper.
        prompt: Text, which becomes one user message if the model has a chat template; a list of
            messages; or token ids.
        raw: Take text as it is, without the chat template.
        vocabulary: Size of the model's vocabulary, to check token ids against.

    Raises:
        RequestError: the prompt is empty, has an id outside the vocabulary, or does not suit
            the model's chat template.
    """
    if isinstance(prompt, bytes | bytearray):
        raise RequestError("The prompt is bytes, not text.", "Decode it first.")
    if isinstance(prompt, str):
        _check_text(prompt)
        if not prompt.strip():
            raise RequestError("The prompt is empty.", "Write something for the model to answer.")
        if raw or not tokenizer.has_chat_template:
            return [int(t) for t in tokenizer.encode(prompt)]
        return _render(tokenizer, [{"role": "user", "content": prompt}])
    if not prompt:
        raise RequestError("The prompt is empty.", "Write something for the model to answer.")
    if isinstance(prompt[0], int):
        ids = [int(t) for t in prompt]  # type: ignore[arg-type]
        check_ids(ids, vocabulary or len(tokenizer))
        return ids
    return _render(tokenizer, list(prompt))  # type: ignore[arg-type]


def check_ids(ids: Sequence[int], vocabulary: int | None) -> None:
    """Raises RequestError for the first id that is not in a vocabulary of this size."""
    wrong = next((t for t in ids if t < 0 or (vocabulary is not None and t >= vocabulary)), None)
    if wrong is not None:
        size = "" if vocabulary is None else f" of {vocabulary} tokens"
        raise RequestError(f"Token id {wrong} is not in the model's vocabulary{size}.")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            "The text is not valid Unicode: it holds half of a surrogate pair at character "
            f"{error.start}.",
            "It was probably decoded wrongly; check its encoding.",
        ) from error


def _render(tokenizer: Any, messages: list[Message]) -> list[int]:
    if not tokenizer.has_chat_template:
        raise RequestError(
            "The model has no chat template, so it cannot take a conversation.",
            "Give plain text, or take a model that was tuned for chat (often named Instruct).",
        )
    for message in messages:
        _check_text(str(message.get("content", "")))
    try:
        return [int(t) for t in tokenizer.apply_chat_template(messages, add_generation_prompt=True)]
    except TemplateError as error:
        raise RequestError(
            f"The model's chat template refuses this conversation: {error}.",
            "Many templates want user and assistant to alternate, or allow no system message.",
        ) from error
