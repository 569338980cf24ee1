"""The results file: whole rows only, one writer, and what may be resumed."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pamx.cli.batch.earlier import Earlier
from pamx.cli.batch.output import ResultFile
from pamx.cli.failures import exit_status
from pamx.errors import PamxError, RequestError


def row(number: int, error: Any = None) -> dict[str, Any]:
    text = "\N{GREEK SMALL LETTER PI}\n" * (number % 7)
    return {"custom_id": f"r{number}", "text": text, "error": error, "fingerprint": f"f{number}"}


def write(path: Path, *rows: dict[str, Any], resume: bool = False) -> None:
    with ResultFile(path, resume=resume) as output:
        for one in rows:
            output.write(one)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_resuming_tells_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, row(1), row(2, {"code": "x"}), resume=True)
    with ResultFile(path, resume=True) as output:
        assert output.earlier == {"r1": Earlier("f1", False), "r2": Earlier("f2", True)}
        output.write(row(3))
    assert ids(path) == ["r1", "r2", "r3"]


def test_cut_anywhere_only_the_last_row_goes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, row(1), row(2))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with ResultFile(path, resume=True) as output:
            kept = len(output.earlier)
            output.write(row(3))
        assert kept == (size >= first) + (size == len(whole))
        assert ids(path) == [*["r1", "r2"][:kept], "r3"]


@pytest.mark.parametrize("tail", [b"\0" * 4096, b'{"custom_id": "r3", "te\0\0\0', b'{"cust'])
def test_what_a_crash_leaves_goes(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "out"
    write(path, row(1))
    with path.open("ab") as stream:
        stream.write(tail)
    write(path, row(2), resume=True)
    assert ids(path) == ["r1", "r2"]


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"my notes\nmore\n",
        b'{"a": 1}\n',
        b'{"custom_id": "r0"}\n{"custom_id": "r1"}\n',
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="out:1: this is not a result"):
        ResultFile(path, resume=True)
    with pytest.raises(RequestError, match="already exists"):
        ResultFile(path, resume=False)
    assert path.read_bytes() == content


def test_an_empty_file_may_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.touch()
    write(path, row(1))
    assert ids(path) == ["r1"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with ResultFile(path, resume=False) as output:
        for resume in (False, True):
            with pytest.raises(PamxError, match="Another process") as caught:
                ResultFile(path, resume=resume)
            assert exit_status(caught.value) == 1
        output.write(row(1))
    write(path, row(2), resume=True)
    assert ids(path) == ["r1", "r2"]


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "out", row(1))
    assert ids(tmp_path / "out") == ["r1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_device() -> None:
    with (
        pytest.raises(PamxError, match=r"disk that holds /dev/full is full\. Write to a file"),
        ResultFile(Path("/dev/full"), resume=False) as output,
    ):
        output.write(row(1))
    with pytest.raises(RequestError, match="nothing in it to resume"):
        ResultFile(Path("/dev/full"), resume=True)


def test_a_disk_that_fills_keeps_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    output = ResultFile(path, resume=False)
    output.write(row(1))
    size = path.stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        with pytest.raises(PamxError, match="out: File too large"):
            output.write(row(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size
    output.write(row(3))  # some room has been made
    output.close()
    assert ids(path) == ["r1", "r3"]


WRITER = """
import sys, tests_row
from pathlib import Path
from pamx.cli.batch.output import ResultFile
with ResultFile(Path(sys.argv[1]), resume=True) as output:
    print("open", flush=True)
    for number in range(int(sys.argv[2])):
        if f"r{number}" not in output.earlier:
            output.write(tests_row.row(number))
"""


def test_killed_at_random_moments_while_writing(tmp_path: Path) -> None:
    source = "def row(n):\n    return {'custom_id': f'r{n}', 'text': 'x' * (n % 50000),"
    (tmp_path / "tests_row.py").write_text(source + " 'error': None, 'fingerprint': 'f'}\n")
    path = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}"}
    chance = random.Random(5)
    sizes = [0]
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), "20000"],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout
        assert process.stdout.read(5) == b"open\n"
        time.sleep(chance.uniform(0, 0.04))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        sizes.append(path.stat().st_size)
    assert len(set(sizes)) > 4, "the kills came before anything was written"
    write(path, resume=True)
    found = ids(path)
    assert found == [f"r{number}" for number in range(len(found))]
