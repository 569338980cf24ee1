"""`pamx generate` on the default model."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess

import pytest

from pamx.cli.generate import read_prompt
from pamx.cli.statistics import cut_off
from pamx.engine.completion import Completion, FinishReason

from .conftest import PAMX, Run

# Text continued as it is: short, and so quickly read.
RAW = ("generate", "--raw", "--max-tokens", "6")


def test_answer_goes_to_stdout_and_statistics_to_stderr(run: Run) -> None:
    result = run(*RAW, "--verbose", "-", input="The capital of France is\n")
    assert result.returncode == 0
    assert "Paris" in result.stdout
    assert result.stdout.endswith("\n")
    levels, statistics = result.stderr.rsplit("\n", 2)[:2]
    first, layers, head, pages, threads = levels.splitlines()
    assert first.startswith("compute: fast. ")
    assert layers == "layers 0-29  fused: one native operation each"
    assert head == "output head  8-bit weights, 15-bit activations"
    assert pages.startswith("KV cache     float")
    assert re.fullmatch(r"threads      \d+, \w+ kernels", threads)
    assert statistics.startswith("6 tokens, ")
    assert "0 of 5 prompt tokens from cache" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_json_says_what_the_answer_cost(run: Run) -> None:
    result = run(*RAW, "--json", "--stop", ",", "--stop", ".", "The capital of France is")
    assert result.returncode == 0
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["model"] == "smollm2-135m"
    assert answer["text"].strip() == "Paris"
    assert answer["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["cached_tokens"] == 0
    assert 1 <= answer["usage"]["completion_tokens"] <= 3
    assert answer["timing"]["ttft_s"] > 0
    assert answer["attention"]["kernel"] in ("native-cpu", "mlx")
    assert answer["attention"]["kv_dtype"] in ("float16", "bfloat16")
    assert answer["compute"]["mode"] == "fast"
    assert answer["compute"]["reason"].startswith("Native kernels")


@pytest.mark.parametrize(
    ("argument", "piped", "prompt"),
    [
        ("Explain:", b"x = 1\n\n", "Explain:\n\nx = 1"),
        (None, b"a\nb\r\n", "a\nb"),
        ("-", b"a\n", "a"),
        ("alone", b"", "alone"),
    ],
)
def test_the_prompt_comes_from_the_argument_and_the_pipe(
    monkeypatch: pytest.MonkeyPatch, argument: str | None, piped: bytes, prompt: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
    assert read_prompt(argument) == prompt


def test_a_system_prompt_replaces_the_model_s_own(run: Run) -> None:
    result = run("generate", "--json", "--max-tokens", "1", "--system", "Be brief.", "Hello")
    answer = json.loads(result.stdout)
    assert answer["finish_reason"] == "length"
    # The default one alone is longer than this.
    assert 10 < answer["usage"]["prompt_tokens"] < 25


def test_a_prompt_longer_than_the_context_is_refused(run: Run) -> None:
    result = run("generate", "--context", "16", "one two three " * 20)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "the context is" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("options", [["64"], ["64", "--json"], ["128", "--beams", "2"]])
def test_an_answer_that_the_context_cuts_is_said_to_be(run: Run, options: list[str]) -> None:
    result = run("generate", "Tell me a long story.", "--context", *options)
    assert result.returncode == 0
    assert result.stderr.startswith("The answer is cut off: the context ")


def _answer(tokens: int, reason: FinishReason) -> Completion:
    return Completion("", [1] * tokens, reason, 1_000, 0, 0.1, 0.1)


@pytest.mark.parametrize(
    ("answer", "asked", "said"),
    [
        (_answer(24, "length"), None, "the context of 1,024 tokens is full."),
        (_answer(24, "length"), 100, "the context of 1,024 tokens is full."),
        (_answer(24, "length"), 24, ""),
        (_answer(24, "stop"), None, ""),
        (_answer(1_024, "length"), None, "after 1,024 tokens; --max-tokens allows more."),
    ],
)
def test_why_an_answer_is_cut(answer: Completion, asked: int | None, said: str) -> None:
    assert cut_off(answer, asked).endswith(said)
    assert bool(cut_off(answer, asked)) is bool(said)


def test_input_that_is_not_text_is_refused_before_the_model_loads(run: Run) -> None:
    result = run("generate", input=b"fine\nnot \xff fine\n")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "line 2" in result.stderr
    assert "0xff at place 5" in result.stderr


def test_ctrl_c_keeps_what_has_been_said(environment: dict[str, str]) -> None:
    process = _long_answer(environment, "--verbose")
    assert process.stdout
    said = process.stdout.read(8)
    out, err = _interrupt(process)
    assert len(said) == 8
    assert out.endswith(b"\n")
    assert len(out) < 400
    assert b"tokens/s" not in err


def test_ctrl_c_with_json_gives_what_has_been_said(environment: dict[str, str]) -> None:
    for patience in (4, 8, 16, 32):  # nothing shows when the first token has come
        process = _long_answer(environment, "--json")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(patience)
        out, err = _interrupt(process)
        assert err == b"Interrupted.\n"
        if out:
            break
    answer = json.loads(out)
    assert answer["finish_reason"] == "cancelled"
    assert answer["text"]


@pytest.mark.parametrize("delay", [0.5, 1.0, 1.25, 1.5])
@pytest.mark.parametrize("options", [(), ("--beams", "2")])
def test_ctrl_c_at_any_time_before_the_answer(
    environment: dict[str, str], delay: float, options: tuple[str, ...]
) -> None:
    process = _long_answer(environment, *options)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay)
    _, err = _interrupt(process)
    assert err == b"Interrupted.\n"


def test_a_reader_that_leaves_stops_the_answer(environment: dict[str, str]) -> None:
    process = _long_answer(environment)
    assert process.stdout
    assert process.stderr
    process.stdout.read(4)
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def _long_answer(environment: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PAMX, "generate", "--raw", "Once upon a time", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def _interrupt(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()  # one that does not end must not run on beside the other tests
    assert process.returncode == 130
    return out, err


def test_beams_write_the_best_answer_or_all(run: Run) -> None:
    question = "What is the capital of France?"
    done = run("generate", question, "--beams", "2", "--max-tokens", "10", "--json")
    assert done.returncode == 0, done.stderr
    best, second = json.loads(done.stdout)["beams"]
    assert best["score"] >= second["score"]
    assert "Paris" in best["text"]
    wrong = run("generate", question, "--beams", "2", "--temp", "1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "does not go with --beams" in wrong.stderr
