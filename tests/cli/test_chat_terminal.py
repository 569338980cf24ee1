"""`pamx chat` with a person at a terminal."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest


@pytest.fixture
def spawn(environment: dict[str, str]) -> Any:
    def start(*args: str, **env: str) -> Any:
        return pexpect.spawn(
            sys.executable,
            ["-m", "pamx.cli", "chat", *args],
            env=environment | env,
            encoding="utf-8",
            timeout=60,
            dimensions=(40, 120),
        )

    return start


def test_a_conversation(spawn: Any, home: Path) -> None:
    pamx = spawn("--max-tokens", "200")
    pamx.expect(">>>")
    pamx.send("/help\r")
    pamx.expect("/clear")
    pamx.expect(">>>")

    pamx.send("Write a long story about the sea.\r")
    pamx.expect(r"\n\w+ \w+ \w+")
    pamx.sendintr()
    pamx.expect("Stopped.")
    pamx.expect(">>>")

    pamx.sendintr()
    pamx.expect("Ctrl-D or /exit leaves")
    pamx.expect(">>>")

    pamx.send("/nonsense\r")
    pamx.expect("/nonsense is not a command")
    pamx.expect("/help")
    pamx.expect(">>>")

    # A paste of two lines is one message, and the stopped turn is still in the conversation.
    pamx.send("\x1b[200~Say\nyes.\x1b[201~\r")
    pamx.expect(r"(\d+) of (\d+) prompt tokens from cache", timeout=90)
    assert int(pamx.match[1]) > 10
    pamx.expect(">>>")

    pamx.send("/clear\r")
    pamx.expect("forgotten")
    pamx.expect(">>>")
    pamx.send("/system Answer in capitals.\r")
    pamx.expect("A new conversation")
    pamx.expect(">>>")
    pamx.sendeof()
    pamx.expect(pexpect.EOF)
    pamx.close()
    assert pamx.exitstatus == 0

    history = home / "chat_history"
    assert "long story" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_the_line_does_not_wait_for_imports(environment: dict[str, str], tmp_path: Path) -> None:
    """Whatever loading imports, it begins once the line is drawn."""
    (tmp_path / "transformers.py").write_text("import time\ntime.sleep(30)\n")
    path = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    pamx = pexpect.spawn(
        sys.executable,
        ["-m", "pamx.cli", "chat"],
        env=environment | {"PYTHONPATH": path},
        encoding="utf-8",
        timeout=10,
    )
    pamx.expect(">>>")
    pamx.send("/help\r")
    pamx.expect("/clear")
    pamx.expect(">>>")
    pamx.close(force=True)


def test_an_idle_chat_uses_no_cpu(spawn: Any) -> None:
    pamx = spawn("--max-tokens", "4")
    pamx.expect(">>>")
    pamx.send("Hello\r")
    pamx.expect("prompt tokens from cache", timeout=90)
    pamx.expect(">>>")
    process = psutil.Process(pamx.pid)
    time.sleep(0.5)  # what follows an answer: drawing the line
    before = process.cpu_times()
    time.sleep(2)
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 0.05
    pamx.sendeof()
    pamx.expect(pexpect.EOF)
    pamx.close()


def test_leaving_does_not_wait_for_the_model(spawn: Any) -> None:
    pamx = spawn()
    pamx.expect(">>>")
    pamx.send("/exit\r")
    pamx.expect(pexpect.EOF, timeout=5)
    pamx.close()
    assert pamx.exitstatus == 0


def test_a_history_that_cannot_be_used_does_not_matter(
    spawn: Any, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").symlink_to(home / "models")
    (tmp_path / "chat_history").mkdir()
    pamx = spawn(PAMX_HOME=str(tmp_path))
    pamx.expect(">>>")
    pamx.send("/help\r")
    pamx.expect("/clear")
    pamx.expect(">>>")
    pamx.sendeof()
    pamx.expect(pexpect.EOF)
    pamx.close()
    assert pamx.exitstatus == 0
    assert "rror" not in pamx.before


def test_answers_into_a_pipe_do_not_leave_a_person_waiting(environment: dict[str, str]) -> None:
    """`pamx chat | tee log`: there is no prompt to see, so a line says what is expected."""
    command = f"{sys.executable} -m pamx.cli chat --max-tokens 2 | cat"
    pamx = pexpect.spawn("sh", ["-c", command], env=environment, encoding="utf-8", timeout=60)
    pamx.expect("Each line is a question; Ctrl-D ends.")
    pamx.sendeof()
    pamx.expect(pexpect.EOF)
    pamx.close()
    assert pamx.exitstatus == 0


def test_a_full_context_is_said(spawn: Any) -> None:
    pamx = spawn("--context", "64")
    pamx.expect(">>>")
    pamx.send("Tell me a long story.\r")
    pamx.expect("The answer is cut off: the context of 64 tokens is full.", timeout=90)
    pamx.expect(">>>")
    pamx.send("More.\r")
    pamx.expect("/clear at the prompt")
    pamx.expect(">>>")
    pamx.sendeof()
    pamx.expect(pexpect.EOF)


def test_a_wrong_name_is_known_before_the_first_question(spawn: Any) -> None:
    pamx = spawn("example/none")
    pamx.expect("Error: example/none ")
    pamx.expect(pexpect.EOF)
    pamx.close()
    assert pamx.exitstatus == 1
