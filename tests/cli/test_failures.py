"""What a user reads and what a script sees when something goes wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pamx.cli import process
from pamx.cli.failures import explain, report
from pamx.errors import ModelError

from .conftest import PAMX, Run


def test_an_error_is_a_message_and_a_hint(run: Run) -> None:
    result = run("generate", "hi", "--model", "./nowhere")
    assert result.returncode == 1
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first == "Error: There is no file or folder ./nowhere."
    assert second


@pytest.mark.parametrize("command", [["generate", "hi", "-m"], ["pull"], ["chat"]])
def test_a_model_that_is_not_here(run: Run, command: list[str]) -> None:
    result = run(*command, "example/none", input="hello\n")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: example/none ")
    assert "offline" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bug_is_one_line_and_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAMX_DEBUG", raising=False)
    assert report(KeyError("x")) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: This is a bug in pamx: KeyError: 'x'.\n")
    assert "PAMX_DEBUG=1" in said
    assert "Traceback" not in said


def test_debugging_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAMX_DEBUG", "1")
    with pytest.raises(ModelError) as caught:
        raise ModelError("It broke.", "Mend it.")
    assert report(caught.value) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("Error: It broke.\nMend it.\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(errno.ENOSPC, "x", "/some/file"), "disk that holds /some/file is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/file"), "/file: Permission denied."),
        (RuntimeError(""), "bug in pamx: RuntimeError."),
    ],
)
def test_explanations(error: BaseException, said: str) -> None:
    assert said in explain(error)[0]


def test_a_limit_of_the_address_space_is_named() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from pamx.cli.failures import explain
for error in (MemoryError(), RuntimeError("can't start new thread")):
    print(*explain(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit = "its address space is limited to 3.2 GB (ulimit -v). Raise that limit."
    assert done.stdout.splitlines() == [
        f"There is not enough memory for this: {limit}",
        f"RuntimeError: can't start new thread. It may be for lack of memory: {limit}",
    ]


@pytest.mark.parametrize("command", [["generate", "hi"], ["doctor"]])
def test_a_working_directory_that_is_gone(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", str(gone), *PAMX, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 1
    assert "Error: The folder that this command runs in has been deleted.\n" in done.stderr


def test_what_is_no_exception_is_reported_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def panic(**_: object) -> None:
        raise Panic("no threads")

    monkeypatch.setattr(process, "app", panic)
    assert process._status() == 1
    assert "Panic: no threads" in capsys.readouterr().err


def test_a_message_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(ModelError("\x1b[2Jgone\x9b1m", "h\rint"))
    assert capsys.readouterr().err == "Error: [2Jgone1m\nhint\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_is_named(environment: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PAMX, "models", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    assert done.returncode == 1
    assert "full" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["bench", "show", "--help"],
        ["models"],
        ["models", "--json"],
        ["doctor", "--check", "python"],
        ["doctor", "--plan", "--heads", "32,8,128", "--context", "2000", "--cores", "40"],
        ["generate", "hi", "--max-tokens", "2"],
        ["generate", "hi", "--max-tokens", "2", "--beams", "2"],
    ],
    ids=" ".join,
)
def test_a_reader_that_leaves_ends_it_quietly(
    environment: dict[str, str], command: list[str]
) -> None:
    """As a program that SIGPIPE ends, seen from a shell."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PAMX, *command],
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_closed_streams_do_not_matter(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m pamx.cli models --json <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=environment).returncode == 0
