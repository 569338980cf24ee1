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
        ("1e-6 * (n + 1)", "10 ** 400", "a number of 401 digits"),
        ("1e-6 * (n + 1)", "None", "no number of seconds"),
        (
            "1e-6 * (n + 1)",
            "1e-6, 'token': int('9' * 4000)",
            "theirs gives a number of 4,000 digits",
        ),
        ("1e-6 * (n + 1)", "1e-6, 'token': 2 ** 63", "a number of 19 digits"),
        ("1e-6 * (n + 1)", "1e-6, 'token': -1", "theirs gives a token that is no whole number"),
        ("1e-6 * (n + 1)", "1e-6, 'token': 'seven'", "a token that is no whole number"),
        ("1e-6 * (n + 1)", "1e-6, 'token': 1.0", "a token that is no whole number"),
        ("1e-6 * (n + 1)", "1e-6, 'token': True", "a token that is no whole number"),
        ("1e-6 * (n + 1)", "float('nan')", "finite|no JSON"),
        ("1e-6 * (n + 1)", "float('inf')", "no JSON"),
        ("1e-6 * (n + 1)", "0", "took no time"),
        ("1e-6 * (n + 1)", "1e-12", "took no time"),
        ("1e-6 * (n + 1)", "1e-6", "the same time"),
        ('"pages": 3', '"pages": "many"', "pages that is no whole number"),
        ('"pages": 3', '"peak_memory_bytes": -1', "peak_memory_bytes that is no whole number"),
        ('"pages": 3', '"dispatch": []', "dispatch that cannot be"),
        ('"pages": 3', '"dispatch": {"partition": "all"}', "dispatch that cannot be"),
        ('"pages": 3', '"pages": 3, "dispatch": {"kernel": "\\x1b[2J"}', "dispatch that cannot be"),
        ('"pages": 3', '"pages": 3, "dispatch": {"kernel": "k" * 500}', "dispatch that cannot be"),
        ('"pages": 3', '"pages": 3, "cannot_force": "n" * 9999', "cannot_force that is no short"),
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


@pytest.mark.parametrize("number", ["9" * 6000, "-" + "9" * 6000])
def test_a_token_that_python_itself_would_not_read(tmp_path: Path, number: str) -> None:
    source = GOOD.replace(
        'print(json.dumps(said | {"time": 1e-6 * (n + 1)}))',
        f'print(\'{{"type": "token", "request": 0, "token": {number}, "time": 1}}\')',
    )
    with program(tmp_path, source) as theirs:
        theirs.hello("/model", "model", 0)
        with pytest.raises(ProgramError, match="theirs gives a number of 6,000 digits") as raised:
            theirs.run(1, REQUESTS, {})
    assert len(str(raised.value)) < 400


def test_what_is_said_before_it_was_asked_is_no_answer(tmp_path: Path) -> None:
    early = """
            for i in (0, 1):
                for n in (1, 2):
                    said = {"type": "token", "request": i, "token": 1, "time": 1e-6 * n}
                    print(json.dumps(said), flush=True)
"""
    source = GOOD.replace("        else:", early + "        else:")
    with program(tmp_path, source) as theirs:
        theirs.hello("/model", "model", 0)
        time.sleep(0.2)
        with pytest.raises(ProgramError, match=r"theirs wrote '.*' before it was asked"):
            theirs.run(1, REQUESTS, {})


def test_a_token_may_not_come_before_its_request(tmp_path: Path) -> None:
    with program(tmp_path, GOOD) as theirs:
        theirs.hello("/model", "model", 0)
        with pytest.raises(ProgramError, match="theirs gives a token before its request was sub"):
            theirs.run(1, [REQUESTS[0], REQUESTS[1] | {"at": 0.5}], {})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("sys.stdout.close(); os.close(1); time.sleep(60)", "theirs closed its streams"),
        ("sys.exit(0)", "theirs ended with exit status 0"),
        ("os.kill(os.getpid(), 9)", "theirs was ended by signal 9"),
        (r"os.write(1, b'\xff\xfe\n')", "which is no JSON object"),
        (r"""os.write(1, b'{"type": "token\xff"}\n')""", "which is no JSON object"),
        ("os.write(1, b'[' * 4000 + b'\\n')", "which is no JSON object"),
        ("[print(json.dumps({'type': 'log'}), flush=True) for _ in iter(int, 1)]", "does not fit"),
        ("[print('', flush=True) for _ in iter(int, 1)]", "no JSON object"),
        ("[os.write(1, b'x' * 1000) for _ in iter(int, 1)]", "a line of more than 4,096 bytes"),
        (
            "[(os.write(1, b'x'), time.sleep(0.3)) for _ in iter(int, 1)]",
            "ends no line for 1 second",
        ),
        (
            "[print(json.dumps({'type': 'token', 'request': 0, 'token': 1}), flush=True) "
            "for _ in iter(int, 1)]",
            "more tokens than were asked for",
        ),
        ("[os.write(2, b'x' * 99999) for _ in range(2000)]; sys.exit(4)", "exit status 4"),
    ],
)
def test_a_program_that_goes_wrong_during_a_run(tmp_path: Path, answer: str, said: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        'import json, os, sys, time\ninput()\nprint(\'{"type": "ready"}\', flush=True)\n'
        f"input()\n{answer}\ninput()\n"
    )
    begin = time.monotonic()
    command = [sys.executable, str(script)]
    with Program(command, "theirs", silence=1.0, longest_line=4096) as theirs:
        theirs.hello("/model", "model", 0)
        with pytest.raises(ProgramError, match=said) as raised:
            theirs.run(1, REQUESTS, {})
        theirs.kill()
    assert not psutil.pid_exists(theirs.pid)
    assert len(str(raised.value)) < 3000
    assert time.monotonic() - begin < 30


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
