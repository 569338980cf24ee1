"""The conversation with a person: line editing, slash commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from pamx.cli.conversation import Conversation
from pamx.cli.failures import report
from pamx.cli.paths import data_folder
from pamx.cli.statistics import summary
from pamx.cli.terminal import note, say
from pamx.errors import OutOfBlocksError, RequestError

_COMMANDS = {
    "/help": "show this list",
    "/clear": "forget the conversation",
    "/system TEXT": "start again with another system prompt",
    "/exit": "leave (also Ctrl-D)",
}


def talk(conversation: Conversation, name: str, max_tokens: int | None) -> None:
    """Reads questions and writes answers until the user leaves.

    Args:
        conversation: Answers.
        name: What a person calls the model.
        max_tokens: The longest answer that was asked for, if one was.
    """
    line_editor = _line_editor()
    # Only once the line is there: what loading imports would keep Python from drawing it.
    line_editor.app.after_render += lambda _: conversation.begin()
    note(f"Chat with {name}. /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
            text = line_editor.prompt(">>> ")
        except KeyboardInterrupt:
            note("Ctrl-D or /exit leaves.")
            continue
        except EOFError:
            return
        if text.startswith("/"):
            if _command(conversation, text):
                return
        elif text.strip():
            _answer(conversation, text, max_tokens)


def _answer(conversation: Conversation, text: str, max_tokens: int | None) -> None:
    try:
        conversation.open()
    except KeyboardInterrupt:
        note("Stopped waiting; the model goes on loading.")
        return
    try:
        completion = conversation.answer(text)
    except KeyboardInterrupt:
        note("Stopped.")
    except (RequestError, OutOfBlocksError) as error:
        report(error)
    else:
        if completion:
            note(summary(completion, max_tokens))


def _command(conversation: Conversation, text: str) -> bool:
    """Obeys a slash command; returns whether to leave."""
    word, _, rest = text.strip().partition(" ")
    match word:
        case "/exit":
            return True
        case "/help":
            _help()
        case "/clear":
            conversation.clear()
            note("The conversation is forgotten.")
        case "/system" if rest.strip():
            conversation.restart(rest.strip())
            note("A new conversation with this system prompt.")
        case "/system":
            say("Error: /system needs a text.")
        case _:
            say(f"Error: {word} is not a command. Start with a space to send it to the model.")
            _help()
    return False


def _help() -> None:
    for command, meaning in _COMMANDS.items():
        say(f"  {command:<14}{meaning}")
    say("  Alt-Enter starts a new line; Ctrl-C stops an answer.")


def _line_editor() -> PromptSession[str]:
    keys = KeyBindings()

    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    keys.add("escape", "enter")(newline)
    return PromptSession(history=_History(), key_bindings=keys, enable_suspend=True)


class _History(FileHistory):  # type: ignore[misc]
    """Earlier questions in a file that only its owner may read; optional in every way."""

    def __init__(self) -> None:
        self._file = data_folder() / "chat_history"
        super().__init__(str(self._file))

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            super().store_string(string)
        except (OSError, UnicodeError):
            pass
