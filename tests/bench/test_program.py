"""The protocol, spoken with real processes: what they may say, and how they may fail."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

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
        ("1e-6 * (n + 1)", "'soon'", "run backwards"),
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


def test_commands_that_are_none() -> None:
    with pytest.raises(ProgramError, match="cannot be started: No such file"):
        Program.of_command("/nowhere/program --fast")
    with pytest.raises(RequestError, match="no command line"):
        Program.of_command("program 'unfinished")
