"""The protocol, spoken with real processes: what they may say, and how they may fail."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pamx.bench.program import Program, ProgramError, ProgramRefusal
from pamx.errors import RequestError

REQUESTS = [{"prompt": [1, 2, 3], "max_tokens": 2}, {"prompt": [4], "max_tokens": 2}]
# As somebody would write it who wants to compare their own server.
GOOD = """
    import json, sys
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            print(json.dumps({"type": "ready", "name": "good", "version": asked["protocol"]}))
        else:
            for i, request in enumerate(asked["requests"]):
                for n in range(request["max_tokens"]):
                    said = {"type": "token", "request": i, "token": sum(request["prompt"]) + n}
                    print(json.dumps(said | {"time": 1e-6 * (n + 1)}))
            print(json.dumps({"type": "done", "id": asked["id"], "pages": 3}))
        sys.stdout.flush()
"""


def program(tmp_path: Path, source: str) -> Program:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(source))
    return Program([sys.executable, str(script)], "theirs")


def test_a_program_that_keeps_to_the_protocol(tmp_path: Path) -> None:
    with program(tmp_path, GOOD) as theirs:
        assert theirs.hello("/model", "model", 0)["version"] == 1
        for number in (1, 2):
            found = theirs.run(number, REQUESTS, {})
            assert found.tokens == [[6, 7], [4, 5]]
            assert found.requests[0].times == (1e-6, 2e-6)
            assert found.requests[0].prompt_tokens == 3
            assert found.told == {"pages": 3}
            assert found.figures["tpot"] == pytest.approx(1e-6)


def test_times_and_tokens_may_be_left_out(tmp_path: Path) -> None:
    source = GOOD.replace(' | {"time": 1e-6 * (n + 1)}', "").replace('"token": sum', '"other": sum')
    with program(tmp_path, source) as theirs:
        theirs.hello("/model", "model", 0)
        found = theirs.run(1, REQUESTS, {})
    assert found.tokens is None
    assert 0 < found.requests[0].ttft < found.seconds


def test_a_program_that_was_not_killed_ends_by_itself(tmp_path: Path) -> None:
    theirs = program(tmp_path, GOOD + f"    open({str(tmp_path / 'ended')!r}, 'w')\n")
    with theirs:
        theirs.hello("/model", "model", 0)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print('Loading...', flush=True); input()", "'Loading...', which is no JSON object"),
        ("import sys; print('no such file', file=sys.stderr); sys.exit(3)", "exit status 3"),
        ("import sys; print('no such file', file=sys.stderr); sys.exit(3)", "no such file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ('print(\'{"type": "done"}\', flush=True); input()', "does not fit"),
        ("print('[1]', flush=True); input()", "no JSON object with a type"),
    ],
)
def test_what_is_no_answer(tmp_path: Path, source: str, said: str) -> None:
    with (
        program(tmp_path, source) as theirs,
        pytest.raises(ProgramError, match=said.replace("(", r"\(")),
    ):
        theirs.hello("/model", "model", 0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("1e-6 * (n + 1)", "1e-6 * (2 - n)", "run backwards"),
        ("1e-6 * (n + 1)", "1e3", "after the end"),
        ("1e-6 * (n + 1)", "'soon'", "no number of seconds"),
        ("1e-6 * (n + 1)", "-1", "no number of seconds"),
        ("1e-6 * (n + 1)", "True", "no number of seconds"),
        ("1e-6 * (n + 1)", "10 ** 400", "no number of seconds"),
        ("1e-6 * (n + 1)", "float('nan')", "finite|no JSON"),
        ("1e-6 * (n + 1)", "float('inf')", "no JSON"),
        ("1e-6 * (n + 1)", "0", "took no time"),
        ("1e-6 * (n + 1)", "1e-12", "took no time"),
        ("1e-6 * (n + 1)", "1e-6", "the same time"),
        ('"pages": 3', '"pages": "many"', "pages that is no whole number"),
        ('"pages": 3', '"peak_memory_bytes": -1', "peak_memory_bytes that is no whole number"),
        ('"pages": 3', '"dispatch": []', "dispatch that cannot be"),
        ('"pages": 3', '"dispatch": {"partition": "all"}', "dispatch that cannot be"),
        ('request["max_tokens"]', '9 + request["max_tokens"]', "more tokens than"),
        ('"request": i', '"request": 9', "does not fit"),
        ('range(request["max_tokens"])', "range(0)", "gave no token"),
        ('"id": asked["id"]', '"id": 0', "does not fit"),
    ],
)
def test_answers_that_cannot_be(tmp_path: Path, before: str, after: str, said: str) -> None:
    with program(tmp_path, GOOD.replace(before, after)) as theirs:
        theirs.hello("/model", "model", 0)
        with pytest.raises(ProgramError, match=said):
            theirs.run(1, REQUESTS, {})


def test_a_refusal_is_told_in_the_programs_words(tmp_path: Path) -> None:
    source = 'print(\'{"type": "error", "message": "No.", "hint": "Ask later."}\')'
    with program(tmp_path, source) as theirs, pytest.raises(ProgramRefusal, match="Ask later"):
        theirs.hello("/model", "model", 0)


def test_a_refusal_without_words(tmp_path: Path) -> None:
    source = 'print(\'{"type": "error"}\')'
    with program(tmp_path, source) as theirs, pytest.raises(ProgramRefusal) as refused:
        theirs.hello("/model", "model", 0)
    assert "theirs refuses and does not say why" in str(refused.value)
    assert "None" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "asked", "said"),
    [
        ("import time; input(); time.sleep(60)", "model", "says nothing for 1 second"),
        ("import time; time.sleep(60)", "m" * 1_000_000, "reads nothing for 1 second"),
        ("input(); print('x' * 5000, flush=True); input()", "model", "more than 4,096 bytes"),
    ],
)
def test_a_program_that_never_ends_its_answer(source: str, asked: str, said: str) -> None:
    command = [sys.executable, "-c", source]
    begin = time.monotonic()
    with (
        pytest.raises(ProgramError, match=said),
        Program(command, "theirs", silence=1.0, longest_line=4096) as theirs,
    ):
        theirs.hello(asked, "model", 0)
    assert time.monotonic() - begin < 30


# A shell that starts a program, which a SIGKILL of the shell alone would leave running.
GRANDCHILD = "sleep 300 & echo $! > {file}; wait"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def written(file: Path) -> int:
    """The process id that a program writes there."""
    end = time.monotonic() + 30
    while not (file.exists() and file.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.05)
    return int(file.read_text())


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    theirs = Program(["sh", "-c", GRANDCHILD.format(file=file)], "theirs")
    pid = written(file)
    assert alive(pid)
    theirs.kill()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(pid)
    theirs.close()


def test_programs_end_when_who_measures_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    source = f"""
        from pamx.bench.program import Program
        import time
        held = Program(["sh", "-c", {GRANDCHILD.format(file=file)!r}], "theirs")
        time.sleep(300)
    """
    measuring = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)])
    pid = written(file)
    assert alive(pid)
    measuring.kill()
    measuring.wait()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(pid)


def test_commands_that_are_none() -> None:
    with pytest.raises(ProgramError, match="cannot be started: No such file"):
        Program.of_command("/nowhere/program --fast")
    with pytest.raises(RequestError, match="no command line"):
        Program.of_command("program 'unfinished")
