"""What a user reads and what a script sees when something goes wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pamx.cli import process
from pamx.cli.failures import exit_status, explain, report
from pamx.errors import ModelError, NoRoomError, NotAModelError, OutOfBlocksError, RequestError

from .conftest import PAMX, Run


def test_an_error_is_a_message_and_a_hint(run: Run) -> None:
    result = run("generate", "hi", "--model", "./nowhere")
    assert result.returncode == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first == "Error: There is no file or folder ./nowhere."
    assert second


_NAMING = [  # all but the name of a model
    ["generate", "hi", "-m"],
    ["generate", "--batch", "{file}", "-m"],
    ["chat"],
    ["pull"],
    ["models", "path"],
    ["models", "rm", "--yes"],
]


@pytest.mark.parametrize("words", _NAMING, ids=" ".join)
@pytest.mark.parametrize(
    ("name", "status"),
    [("nosuch", 2), ("", 2), ("./nowhere", 2), ("{file}", 2), ("org/absent", 1)],
)
def test_a_wrong_name_has_one_exit_status(
    run: Run, words: list[str], name: str, status: int, tmp_path: Path
) -> None:
    """2: it can be no model; 1: it could not be had. That no question came hides neither."""
    file = tmp_path / "file"
    file.write_text("Hi\n")
    done = run(*(word.format(file=file) for word in [*words, name]))
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("Error: ")


def test_a_misspelt_default_is_recognised(run: Run) -> None:
    assert "Did you mean smollm2-135m?" in run("chat", "smollm-135m").stderr


@pytest.mark.parametrize(
    "args",
    [
        ["generate", "--batch", "{folder}/none"],
        ["generate", "--batch", "{folder}"],
        ["generate", "--batch", "{folder}/in", "-o", "{folder}/none/out"],
        ["generate", "--batch", "{folder}/in", "-o", "{folder}"],
        ["generate", "--batch", "{folder}/in", "-o", "{folder}/{long}"],
        ["generate", "--batch", "/dev/zero"],
        ["generate", "hi", "--context", "100000"],
        ["generate", "--batch", "{folder}/in", "--context", "100000"],
        ["generate", "hi", "--context", "8"],
        ["generate", "hi", "--beams", "2", "--context", "100000"],
        ["pull", "org/name@a", "--revision", "b"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_exits_with_2(run: Run, args: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("Hi\n")
    done = run(*(word.format(folder=tmp_path, long="x" * 300) for word in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [["generate", "hi"], ["chat"], ["generate", "hi", "--beams", "2"]]
)
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"PAMX_FORCE_PARTITION": "7"}, "is 7, but a partition is a multiple of 16 tokens."),
        ({"PAMX_FORCE_PARTITION": "x"}, "is 'x', not a number of tokens."),
        ({"PAMX_FORCE_PARTITION": "64", "PAMX_DISABLE_NATIVE": "1"}, " cannot be had: "),
    ],
    ids=str,
)
def test_a_partition_that_cannot_be_had_is_an_error(
    run: Run, command: list[str], settings: dict[str, str], said: str
) -> None:
    """And no answer by other means, which an A/B run would take for one with the partition."""
    done = run(*command, input="Hello\n", env=settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].startswith("Error: PAMX_FORCE_PARTITION")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotAModelError("x"), 2),
        (RequestError("x"), 2),
        (ModelError("a download that broke off"), 1),
        (OutOfBlocksError("x"), 1),
        (NoRoomError("x"), 1),
        (FileNotFoundError(errno.ENOENT, "x", "one of ours"), 1),
        (MemoryError(), 1),
        (KeyError("a bug"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
    ids=repr,
)
def test_exit_statuses(error: BaseException, status: int) -> None:
    assert exit_status(error) == status


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
from pamx.errors import NoRoomError
for error in (MemoryError(), NoRoomError("No."), RuntimeError("can't start new thread")):
    print(*explain(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit = "its address space is limited to 3.22 GB (ulimit -v). Raise that limit."
    assert done.stdout.splitlines() == [
        f"There is not enough memory for this: {limit}",
        f"No: {limit}",
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


_RESULTS = [
    ["--help"],
    ["models", "--json"],
    ["pull"],
    ["doctor", "--check", "python"],
    ["generate", "--raw", "hi", "--max-tokens", "2"],
    ["generate", "--raw", "--batch", "{rows}", "--max-tokens", "2"],
    ["chat", "--max-tokens", "2"],
]


@pytest.mark.parametrize("command", _RESULTS, ids=" ".join)
def test_results_that_cannot_be_written_are_a_failure(
    environment: dict[str, str], command: list[str], tmp_path: Path
) -> None:
    """As `echo hi >&-`: what was computed for nothing is no success."""
    done = _redirected("<in >&-", command, environment, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Standard output is closed.\n")


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("command", _RESULTS, ids=" ".join)
def test_messages_never_decide_the_result(
    environment: dict[str, str], command: list[str], where: str, tmp_path: Path
) -> None:
    done = _redirected(f"{where} <in", command, environment, tmp_path)
    assert done.returncode == 0
    assert done.stdout


def test_a_batch_whose_messages_cannot_be_written_fails_as_it_would(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Bad rows, a summary, nowhere to say so; all others answered into a file."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": 1}\n{"prompt": "A B"}\n')
    command = ["generate", "--raw", "--batch", "rows.jsonl", "-o", "out", "--max-tokens", "2"]
    for number, where in enumerate(("2>/dev/full", "2>&-", "2>&- >&- <&-")):
        command[5] = f"out{number}"
        assert _redirected(where, command, environment, tmp_path).returncode == 1
        assert len((tmp_path / command[5]).read_text().splitlines()) == 1


def _redirected(
    where: str, command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "in").write_text("Hello\n")
    (folder / "rows").write_text("A B\nC D\n")
    words = [word.replace("{rows}", "rows") for word in command]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *PAMX, *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=100,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_the_disk_takes_in_part_is_a_failure(tmp_path: Path, unbuffered: str) -> None:
    code = """import resource
from pamx.cli.streams import mend_streams
from pamx.cli.terminal import write
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
mend_streams()
write("x" * 100_000)
"""
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 1
    assert b"File too large" in done.stderr
