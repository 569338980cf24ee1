"""From what a person writes to the token ids that the model reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from jinja2 import TemplateSyntaxError

from pamx.engine.checks import known_ids, token_ids
from pamx.errors import ModelError, RequestError


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
        ModelError: the template is broken, whatever the conversation.
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
    if not isinstance(prompt, Iterable) or isinstance(prompt, Mapping):
        raise RequestError(
            f"The prompt is of the type {type(prompt).__name__}.",
            "Give text, a list of messages, or a list of token ids.",
        )
    items: list[Any] = list(prompt)
    if not items:
        raise RequestError("The prompt is empty.", "Write something for the model to answer.")
    if not isinstance(items[0], Mapping):
        ids = token_ids("The items of a prompt that is no list of messages", items)
        known_ids(ids, vocabulary or len(tokenizer))
        return ids
    for message in items:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"A message of the prompt is {message!r}.",
                'Each must be a dict such as {"role": "user", "content": "Hello"}.',
            )
    return _render(tokenizer, items)


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
    except TemplateSyntaxError as error:
        what = (error.message or "its syntax").rstrip(".")
        raise ModelError(
            f"The model's chat template is damaged: {what} (line {error.lineno}).", _MEND
        ) from error
    except Exception as error:
        # Templates are programs: contents that they do not expect can fail in any way.
        template = tokenizer.chat_template
        if isinstance(template, dict):  # templates by name
            template = template.get("default")
        if not isinstance(template, str):
            raise ModelError("The model's chat template is damaged: it is no text.", _MEND) from (
                error
            )
        why = str(error).strip().rstrip(".") or type(error).__name__
        raise RequestError(
            f"The model's chat template refuses this conversation: {why}.",
            "Many templates want user and assistant to alternate, or allow no system message.",
        ) from error


_MEND = "Download or copy the model again; or give text without the template (--raw, raw=True)."
