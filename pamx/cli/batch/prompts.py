"""The prompt or the messages of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pamx.cli.batch.fields import BadFieldError, shown

if TYPE_CHECKING:
    from pamx.engine import Message


def prompt_of(
    fields: Mapping[str, Any], system: str | None, *, raw: bool
) -> str | list[Message] | list[int]:
    """What to answer: text or token ids as they are, or messages.

    Args:
        fields: Has "prompt" (a text or token ids) or "messages" (as in the OpenAI API).
        system: System prompt for rows that bring none.
        raw: The text is for the model as it is, so there is no place for a system prompt.

    Raises:
        BadFieldError: there is none or both, or it has the wrong form.
    """
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if prompt is not None and messages is not None:
        raise BadFieldError('both "prompt" and "messages" are there; give one')
    if messages is not None:
        return _messages(messages, system)
    if prompt is None:
        raise BadFieldError('neither "prompt" nor "messages" is there')
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return list(prompt)
    if not isinstance(prompt, str):
        raise BadFieldError(f'"prompt" is {shown(prompt)}; it must be one text or token ids')
    return prompt if raw else with_system(prompt, system)


def with_system(text: str, system: str | None) -> str | list[Message]:
    """`text` as a user's message after a system prompt, if there is one."""
    if system is None:
        return text
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def _messages(value: Any, system: str | None) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise BadFieldError(f'"messages" is {shown(value)}; it must be a list of messages')
    messages = [_message(one, place) for place, one in enumerate(value, start=1)]
    if system is not None and messages[0]["role"] not in ("system", "developer"):
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message(value: Any, place: int) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise BadFieldError(f'message {place} is {shown(value)}; it must have a "role"')
    content = value.get("content")
    if isinstance(content, list):
        content = "".join(_text_of_part(part, place) for part in content)
    if not isinstance(content, str):
        raise BadFieldError(
            f'the "content" of message {place} is {shown(content)}; it must be a text'
        )
    return {"role": value["role"], "content": content}


def _text_of_part(part: Any, place: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise BadFieldError(f"message {place} has a part that is not text, and only text is read")
