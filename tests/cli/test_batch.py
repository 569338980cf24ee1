"""`pamx generate --batch` on the default model, as a user runs it."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pamx.cli.app import app
from pamx.cli.batch.run import most_together

from .conftest import PAMX, Run

OPENINGS = ["Once upon a time", "The sky is", "One, two,", "A B C"]
BATCH = ["generate", "--raw", "--seed", "1", "--max-seqs", "3", "--quiet"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short rows; some are drawn at a temperature, and they end at different times."""
    path = tmp_path_factory.mktemp("batch") / "rows.jsonl"
    lines = [
        {"custom_id": f"row-{i}", "prompt": OPENINGS[i % 4], "max_tokens": 1 + i % 3}
        | ({"temperature": 1.0, "seed": i} if i % 3 == 0 else {})
        for i in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def uninterrupted(run: Run, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the rows give when nothing happens."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    done = run(*BATCH, "--batch", str(rows), "-o", str(out))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return read(out)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answers(results: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (one["custom_id"], one["text"], one["finish_reason"], one["fingerprint"]) for one in results
    ]


def start(
    environment: dict[str, str], *args: str, before: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PAMX, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=before,
    )


def test_every_row_is_answered_in_order(uninterrupted: list[Any]) -> None:
    assert [one["custom_id"] for one in uninterrupted] == [f"row-{i}" for i in range(12)]
    for i, one in enumerate(uninterrupted):
        assert one["error"] is None
        assert one["text"]
        assert one["usage"]["completion_tokens"] <= 1 + i % 3
        assert one["timing"]["ttft_s"] > 0


@pytest.mark.parametrize(("order", "kills"), [("input", 2), ("completed", 1)])
def test_killed_at_random_moments_and_resumed(
    environment: dict[str, str],
    run: Run,
    rows: Path,
    uninterrupted: list[Any],
    tmp_path: Path,
    order: str,
    kills: int,
) -> None:
    out = tmp_path / "out.jsonl"
    args = [*BATCH, "--batch", str(rows), "-o", str(out), "--resume", "--order", order]
    chance = random.Random(order)
    killed_between = 0
    for _ in range(kills):
        process = start(environment, *args)
        size = out.stat().st_size if out.exists() else 0
        while process.poll() is None and (not out.exists() or out.stat().st_size == size):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.04))  # all rows take a few tenths
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed_between += process.returncode == -signal.SIGKILL
    assert killed_between
    with out.open("ab") as stream:  # as if the last kill had come in the middle of a write
        stream.write(b'{"custom_id": "row-11", "te')
    done = run(*args)
    assert (done.returncode, done.stderr) == (0, "")
    results = answers(read(out))
    if order == "completed":
        results.sort(key=lambda one: int(one[0].removeprefix("row-")))
    assert results == answers(uninterrupted)


def test_ctrl_c_keeps_what_has_finished(
    environment: dict[str, str], rows: Path, uninterrupted: list[Any], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = start(environment, *BATCH, "--batch", str(rows), "-o", str(out))
    while not (out.exists() and out.stat().st_size) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == b""
    assert stderr == b"Interrupted. The same command with --resume continues.\n"
    results = read(out)
    assert 1 <= len(results) < 12
    assert answers(results) == answers(uninterrupted)[: len(results)]


def test_a_disk_that_fills_up_and_has_room_again(
    environment: dict[str, str], run: Run, tmp_path: Path
) -> None:
    prompts, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("One, two,\nThe sky is\nA B C\n")
    args = [*BATCH, "--max-tokens", "1", "--batch", str(prompts), "-o", str(out)]

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))

    process = start(environment, *args, before=fill)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 1
    assert stdout == b""
    first, second = stderr.decode().splitlines()
    assert first == f"Error: {out}: File too large."
    assert "--resume" in second
    kept = read(out)
    assert [one["custom_id"] for one in kept] == ["1"]
    done = run(*args, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["custom_id"] for one in read(out)] == ["1", "2", "3"]
    assert read(out)[0] == kept[0]


def test_results_go_to_stdout_and_the_rest_to_stderr(run: Run) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2}
    text = {"prompt": "The capital of France is", "max_tokens": 4, "n": 2}
    lines = [
        {"custom_id": "text", "method": "POST", "url": "/v1/completions", "body": text},
        {"custom_id": "chat", "url": "/v1/chat/completions", "body": body},
        {"custom_id": "long", "prompt": "word " * 200},
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines) + "{oops\n"
    args = ("--batch", "-", "--context", "96", "--max-tokens", "2", "--verbose")
    done = run("generate", *args, input=given)
    assert done.returncode == 1
    first, second, third = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["custom_id"], second["custom_id"], third["custom_id"]) == ("text", "chat", "long")
    choices = first["response"]["body"]["choices"]
    assert [choice["text"] for choice in choices] == [first["text"]] * 2  # both greedy
    assert "Paris" in first["text"]
    assert first["usage"] == {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 8}
    (choice,) = second["response"]["body"]["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    for token in content:
        assert len(token["top_logprobs"]) == 2
        assert token["logprob"] == token["top_logprobs"][0]["logprob"]  # greedy
    assert "context" in third["error"]["message"]
    assert third["text"] is None
    assert "standard input:4: it is not JSON" in done.stderr
    assert "Requests             2 done, 1 failed, 1 bad" in done.stderr
    assert "Peak pages" in done.stderr
    assert done.stderr.count("layers 0-29  fused: one native operation each\n") == 1
    assert "\nComputed by          fast: 30 layers fused; output head: 8-bit" in done.stderr
    assert "standard input:3: The prompt is 2" in done.stderr
    last = "Not every row was answered. Of 4 rows, 1 failed (line 3), 1 bad (line 4).\n"
    assert done.stderr.endswith(last)
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--batch", "x", "a prompt"], "PROMPT"),
        (["--batch", "x", "--json"], "--json"),
        (["--batch", ""], "name a file"),
        (["--batch", "x", "--resume"], "--output"),
        (["--batch", "x", "--format", "csv"], "--format"),
        (["--batch", "x", "--order", "random"], "--order"),
        (["--batch", "x", "--max-seqs", "0"], "--max-seqs"),
        (["--batch", "x", "--n", "0"], "--n"),
        (["--batch", "x", "--raw", "--system", "y"], "--system"),
        (["hi", "-o", "x"], "--output"),
        (["hi", "--resume"], "--batch"),
        (["hi", "--n", "2"], "--n"),
        (["hi", "-q"], "--quiet"),
        (["--batch", "x", "-o", ""], "name a file"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["generate", *args])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_rows_that_come_slowly_through_a_pipe(environment: dict[str, str]) -> None:
    """Each is answered when it comes; Ctrl-C while waiting for the next one ends the wait."""
    process = subprocess.Popen(
        [*PAMX, *BATCH, "--batch", "-", "--max-tokens", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin
    assert process.stdout
    for prompt in ("One, two,", "A B C"):
        process.stdin.write(prompt.encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["error"] is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.stdout.read() == b""
    process.communicate()


def test_ctrl_c_before_the_first_row(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*PAMX, *BATCH, "--batch", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.communicate() == (b"", b"Interrupted.\n")


def test_a_batch_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    done = run("generate", "--batch", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path}/none: No such file or directory.\n"


def test_long_prompts_run_together(run: Run, tmp_path: Path) -> None:
    """Each row fills most of a context; pages are made for as many as there are rows."""
    rows = tmp_path / "rows.txt"
    rows.write_text("".join(f"{number} " + "one two three " * 60 + "\n" for number in range(4)))
    done = run(
        *("generate", "--raw", "--batch", str(rows), "--context", "256", "--max-tokens", "8"),
        "--no-prefix-cache",
    )
    assert done.returncode == 0, done.stderr
    summary = dict(line.split("  ", 1) for line in done.stderr.splitlines() if "  " in line)
    peak, _, pages = summary["Peak pages"].strip().partition(" of ")
    assert int(pages) == 4 * 256 // 16
    assert int(peak) >= 4 * 181 // 16  # all of them at a time
    assert summary["Preemptions"].strip().startswith("0,")


def test_pages_are_for_no_more_rows_than_there_are(tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("one\n\ntwo\n")
    assert most_together(str(rows), 16, 1) == 2
    assert most_together(str(rows), 16, 3) == 6
    assert most_together(str(rows), 1, 3) == 1
    assert most_together("-", 16, 1) == 16  # nobody knows yet
