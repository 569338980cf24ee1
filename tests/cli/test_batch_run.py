"""What a batch does with its rows: order, errors, exit, messages. The engine here is a stand-in
that makes one token a step, so that what finishes when is known."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pamx.cli.batch import progress as progress_module
from pamx.cli.batch import serve as serving
from pamx.cli.batch.choices import Format, Order
from pamx.cli.batch.durations import duration_text
from pamx.cli.batch.feed import Feed
from pamx.cli.batch.lines import lines_text
from pamx.cli.batch.progress import Progress
from pamx.cli.batch.row import Options
from pamx.cli.batch.rows import Defaults
from pamx.cli.batch.run import Job, run_batch
from pamx.cli.batch.serve import Limits, Tick
from pamx.cli.batch.summary import table
from pamx.cli.failures import exit_status
from pamx.engine import AttentionStatus, Completion
from pamx.engine.batch import BatchStats, Output
from pamx.engine.checks import known_ids
from pamx.engine.request import Request
from pamx.errors import OutOfBlocksError, PamxError, RequestError
from pamx.substitute.levels import Levels

DEFAULTS = Defaults("model", Options(max_tokens=1))


class Engine:
    """Answers with its prompt; "refuse" is refused, "break" breaks off, each in its way.

    "interrupt" is as if Ctrl-C were pressed when it is answered.
    """

    name = "stand-in"
    compute = Levels("mlx", "As asked.")
    attention = AttentionStatus(True, "mlx", "It is.")
    kv_dtype = "float32"
    most_queued = 0

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.submitted_before: dict[str, int] = {}  # the end of a request, by its id

    def tokens(self, prompt: Any, *, raw: bool = False) -> list[int]:  # noqa: ARG002
        if isinstance(prompt, list) and isinstance(prompt[0], int):
            known_ids(prompt, 256)
            return prompt
        if prompt == "refuse":
            raise RequestError("It is refused.", "Ask otherwise.")
        return [ord(letter) for letter in str(prompt)]

    def batch(self, **limits: Any) -> Engine:
        self._max_seqs = limits["max_seqs"]
        self._requests: list[tuple[Request, int]] = []
        return self

    def submit(self, request: Request) -> None:
        self._requests.append((request, 0))
        self.submitted.append(request.id)
        self.most_queued = max(self.most_queued, len(self._requests))

    def step(self) -> list[Output]:
        outputs: list[Output] = []
        left = []
        self._requests.sort(key=lambda entry: -entry[0].priority)
        for place, (request, steps) in enumerate(self._requests):
            if place < self._max_seqs and steps + 1 == request.max_tokens:
                outputs += [self._answer(request, index) for index in range(request.n)]
            else:
                left.append((request, steps + (place < self._max_seqs)))
        self._requests = left
        return outputs

    def _answer(self, request: Request, index: int) -> Output:
        text = "".join(chr(token) for token in request.prompt)
        self.submitted_before[request.id] = len(self.submitted)
        if text == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if text == "break" and index == request.n - 1:
            return Output(request.id, index, "", error=OutOfBlocksError("No room."))
        done = Completion(f"{text}{index or ''}", [1, 2], "stop", len(text), 0, 0.5, 0.25)
        return Output(request.id, index, "", completion=done)

    def stats(self) -> BatchStats:
        return BatchStats(10, 5, 4, 3, 2, 7, 8, 1, [0.1, 0.2, 0.3])

    def close(self, *, restore: bool = True) -> None:
        pass

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


Start = Callable[..., tuple[bool, list[dict[str, Any]]]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Runs rows with an output file; returns whether all went well, and the results."""
    monkeypatch.chdir(tmp_path)
    plain = Job(
        "in.jsonl",
        "out.jsonl",
        Format.AUTO,
        Order.INPUT,
        resume=False,
        strict=False,
        quiet=False,
        limits=Limits(2, 512, True),
    )

    def call(
        rows: list[dict[str, Any]] | str,
        *,
        engine: Callable[[], Any] = Engine,
        defaults: Defaults = DEFAULTS,
        **changes: Any,
    ) -> tuple[bool, list[dict[str, Any]]]:
        text = rows if isinstance(rows, str) else "".join(f"{json.dumps(row)}\n" for row in rows)
        Path("in.jsonl").write_text(text)
        good = run_batch(replace(plain, **changes), defaults, engine, "stand-in")
        return good, results()

    return call


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [one["custom_id"] for one in found]


def prompts(*lengths: int) -> list[dict[str, Any]]:
    return [{"prompt": f"p{i}", "max_tokens": n} for i, n in enumerate(lengths, start=1)]


def test_results_in_the_order_of_the_rows(start: Start) -> None:
    good, found = start(prompts(5, 1, 1, 3, 1))
    assert good
    assert ids(found) == ["1", "2", "3", "4", "5"]
    assert [one["text"] for one in found] == ["p1", "p2", "p3", "p4", "p5"]


def test_results_as_they_are_completed(start: Start) -> None:
    good, found = start(prompts(5, 1, 1, 3, 1), order=Order.COMPLETED)
    assert good
    assert ids(found) == ["2", "3", "1", "4", "5"]


def test_a_result_has_all_that_was_promised(start: Start) -> None:
    _, (found,) = start([{"custom_id": "x", "prompt": "hello"}])
    assert next(iter(found)) == "custom_id"
    assert found == {
        "custom_id": "x",
        "text": "hello",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 2},
        "timing": {"ttft_s": 0.5, "decode_s": 0.25, "decode_tokens_per_s": 4.0},
        "error": None,
        "fingerprint": found["fingerprint"],
    }


def test_several_answers(start: Start) -> None:
    _, (found,) = start([{"prompt": "a", "n": 3}])
    assert [choice["text"] for choice in found["choices"]] == ["a", "a1", "a2"]
    assert found["text"] == "a"
    assert found["usage"]["completion_tokens"] == 6


def test_openai_rows_get_a_response_as_that_api_writes_it(start: Start) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "n": 2}
    good, (first, second, third) = start(
        [
            {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": chat},
            {"custom_id": "t", "url": "/v1/completions", "body": {"prompt": "b"}},
            {"custom_id": "f", "url": "/v1/completions", "body": {"prompt": "refuse"}},
        ]
    )
    assert not good
    body = first["response"]["body"]
    assert first["response"]["status_code"] == 200
    assert body["object"] == "chat.completion"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": first["text"]}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 4
    assert second["response"]["body"]["object"] == "text_completion"
    assert second["response"]["body"]["choices"][0]["text"] == "b"
    assert third["response"]["status_code"] == 400
    assert third["response"]["body"]["error"]["message"].startswith("It is refused.")


def test_one_failure_does_not_stop_the_others(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": text} for text in ("a", "refuse", "break", "b")]
    good, found = start(rows)
    assert not good
    assert [one["text"] for one in found] == ["a", None, None, "b"]
    assert found[1]["error"] == {
        "code": "RequestError",
        "message": "It is refused. Ask otherwise.",
    }
    assert found[2]["error"]["code"] == "OutOfBlocksError"
    said = capsys.readouterr().err
    assert "Requests             2 done, 2 failed, 0 bad" in said
    assert "in.jsonl:2: It is refused.\n" in said
    assert "in.jsonl:3: No room.\n" in said
    assert said.endswith("Not every row was answered. Of 4 rows, 2 failed (lines 2-3).\n")


def test_an_interrupted_batch_counts_what_is_left(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = [{"prompt": "z", "max_tokens": 10**9}] * 40  # more than are taken up at a time
    with pytest.raises(KeyboardInterrupt):
        start([{"prompt": "a"}, {"prompt": "interrupt"}, *endless])
    assert ids(results()) == ["1", "2"]
    said = capsys.readouterr().err
    assert "Requests             2 done, 0 failed, 0 bad, 40 unfinished" in said
    assert said.endswith("Interrupted. The same command with --resume continues.\n")


def test_of_several_answers_one_may_fail(start: Start) -> None:
    _, (found,) = start([{"prompt": "break", "n": 2}])
    assert found["error"]["message"] == "No room."
    assert found["text"] is None
    assert found["choices"] == [{"index": 0, "text": "break", "finish_reason": "stop"}, None]


def test_bad_rows_are_reported_with_their_place(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    good, found = start('{"prompt": "a"}\n\n{"prompt": 1}\n{"prompt": "b", "top_p": 2}\n')
    assert not good
    assert ids(found) == ["1"]
    said = capsys.readouterr().err
    assert 'in.jsonl:3: "prompt" is 1; it must be one text or token ids.\n' in said
    assert "in.jsonl:4: top_p is 2.0; it must be above 0 and at most 1.\n" in said
    assert "1 done, 0 failed, 2 bad" in said


def test_strict_stops_at_a_bad_row(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PamxError, match=r"in\.jsonl:2: ") as caught:
        start('{"prompt": "a"}\n{"prompt": 1}\n{"prompt": "b"}\n', strict=True)
    assert exit_status(caught.value) == 1  # as without --strict
    good, found = start('{"prompt": "a"}\n{"prompt": "c"}\n', strict=True, resume=True)
    assert good
    assert ids(found) == ["1", "2"]
    assert "in.jsonl:2" not in capsys.readouterr().err


def test_resuming_computes_only_what_is_missing(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": text} for text in ("a", "refuse", "b", "c")]
    start(rows)
    before = results()
    Path("out.jsonl").write_text("".join(json.dumps(one) + "\n" for one in before[:3]))
    seen: list[Engine] = []

    def engine() -> Engine:
        seen.append(Engine())
        return seen[-1]

    capsys.readouterr()
    good, found = start(rows, resume=True, engine=engine)
    assert not good
    assert found == before
    assert seen[0].most_queued == 1
    said = capsys.readouterr().err
    assert "1 done, 0 failed, 0 bad, 3 from an earlier run" in said
    assert said.endswith("Of 4 rows, 1 failed in an earlier run (line 2).\n")


def test_when_all_is_done_no_model_is_loaded(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_engine() -> Any:
        raise AssertionError("loaded")

    start(prompts(1, 1))
    capsys.readouterr()
    good, found = start(prompts(1, 1), resume=True, engine=no_engine)
    assert good
    assert len(found) == 2
    assert capsys.readouterr().err == "Nothing to do: out.jsonl has all results.\n"


def test_a_bad_line_that_was_mended_is_answered_on_resuming(start: Start) -> None:
    assert not start('{"prompt": "a"}\n{"prompt": \n')[0]
    good, found = start('{"prompt": "a"}\n{"prompt": "b"}\n', resume=True)
    assert good
    assert ids(found) == ["1", "2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": [{"prompt": "other"}]},
        {"defaults": Defaults("model", Options(max_tokens=2))},
        {"defaults": Defaults("other", Options(max_tokens=1))},
        {"defaults": replace(DEFAULTS, compute="mlx")},
        {"defaults": replace(DEFAULTS, kv_dtype="bfloat16")},
    ],
)
def test_results_of_another_request_are_not_taken_for_this_one_s(
    start: Start, changes: dict[str, Any]
) -> None:
    start([{"prompt": "a"}])
    before = Path("out.jsonl").read_bytes()
    with pytest.raises(RequestError, match=r"in\.jsonl:1: out\.jsonl has a result for '1'"):
        start(**({"rows": [{"prompt": "a"}], "resume": True} | changes))
    assert Path("out.jsonl").read_bytes() == before


def test_results_without_a_row_are_told(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(prompts(1, 1))
    good, found = start(prompts(1), resume=True)
    assert good
    assert len(found) == 2
    assert "1 result in out.jsonl belongs to no row here." in capsys.readouterr().err


def test_existing_results_are_not_overwritten(start: Start) -> None:
    start(prompts(1))
    with pytest.raises(RequestError, match="--resume"):
        start(prompts(1))


def test_the_batch_file_is_not_written_to(start: Start) -> None:
    for resume in (False, True):
        with pytest.raises(RequestError, match="batch file itself"):
            start(prompts(1), output="./in.jsonl", resume=resume)
    assert Path("in.jsonl").read_text().startswith('{"prompt"')


def test_an_empty_file_is_said_to_be_empty(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("\n\n") == (True, [])
    assert capsys.readouterr().err == "There are no rows in in.jsonl.\n"


def test_quiet_leaves_only_complaints(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start('{"prompt": "a"}\n{}\n', quiet=True)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("in.jsonl:2: ")
    assert second == "Not every row was answered. Of 2 rows, 1 bad (line 2)."


def test_priorities_decide_who_is_first(start: Start) -> None:
    rows = [{"prompt": "a", "p": n} for n in (0, 1, 2)]
    defaults = replace(DEFAULTS, priority_field="p")
    limits = Limits(1, 512, True)
    _, found = start(rows, defaults=defaults, limits=limits, order=Order.COMPLETED)
    assert ids(found) == ["3", "2", "1"]


def test_a_long_file_is_taken_up_bit_by_bit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four rows for each place are queued; nor do results pile up behind a slow row."""
    monkeypatch.setattr(serving, "_HELD", 10)
    engine = Engine()
    good, found = start(prompts(200, *[1] * 300), engine=lambda: engine)
    assert good
    assert len(found) == 301
    assert engine.most_queued <= 8
    assert engine.submitted_before["1"] <= 10 + 8


def test_a_feed_passes_on_where_reading_failed() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    feed = Feed(source())
    assert feed.take(5) == 1
    with pytest.raises(OSError, match="gone"):
        feed.take(5)
    assert feed.exhausted
    assert feed.take(5) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, total: int | None) -> str:
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress(total, quiet=False, clock=lambda: now[0])
    for second in range(1, 121):
        now[0] = float(second)
        progress.done += 1
        progress.show(Tick(second * 10, second, second, second))
    progress.say("news")
    return stream.getvalue()


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, io.StringIO(), 240).splitlines()
    assert lines == [
        "30 of 240 rows, 10.0 tokens/s, 60.0 rows/min, 4 min left",
        "60 of 240 rows, 10.0 tokens/s, 60.0 rows/min, 3 min left",
        "90 of 240 rows, 10.0 tokens/s, 60.0 rows/min, 2 min left",
        "120 of 240 rows, 10.0 tokens/s, 60.0 rows/min, 2 min left",
        "news",
    ]


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), None)
    assert text.count("\n") == 1
    assert text.endswith("\r\x1b[K120 rows, 10.0 tokens/s, 60.0 rows/min\r\x1b[Knews\n")


def test_progress_counts_answers_where_a_row_has_several() -> None:
    """One row of 128 answers is not "0 of 1 rows" until it is over."""
    now = [0.0]
    progress = Progress(1, quiet=False, answers=128, clock=lambda: now[0])
    now[0] = 60.0
    progress.show(Tick(600, 32, 128, 1))
    assert progress.line() == (
        "0 of 1 row, 32 of 128 answers, 10.0 tokens/s, 32.0 answers/min, 3 min left"
    )
    progress = Progress(1_000, quiet=False, answers=2, clock=lambda: now[0])
    now[0] = 120.0
    progress.done, progress.failed, progress.bad = 8, 1, 1
    progress.show(Tick(600, 20, 36, 18))  # 981 more rows of 2 answers each
    assert progress.line().startswith("10 of 1,000 rows, 1 failed, 1 bad, 20 of 1,998 answers, ")


def test_ticks_count_answers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[Tick] = []
    monkeypatch.setattr(Progress, "show", lambda _, tick: ticks.append(tick))
    start([{"prompt": "a", "n": 3}, {"prompt": "refuse", "n": 2}, {"prompt": "b"}])
    assert ticks[-1] == Tick(0, 6, 6, 3)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "line 3"),
        ([17, 3, 4], "lines 3-4, 17"),
        (range(1, 60, 2), "lines 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and 20 more"),
    ],
)
def test_line_numbers(numbers: Iterable[int], text: str) -> None:
    assert lines_text(numbers) == text


@pytest.mark.parametrize("field", [{"stop_token_ids": [300]}, {"logit_bias": {"-1": 1}}])
def test_tokens_that_the_model_does_not_have_are_refused(start: Start, field: Any) -> None:
    good, found = start([{"prompt": "a", **field}, {"prompt": "b"}])
    assert not good
    assert [one["text"] for one in found] == [None, "b"]
    assert found[0]["error"]["message"].startswith(f"{next(iter(field))}: Token id ")


def test_results_do_not_run_into_the_progress_on_one_terminal(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(progress_module, "_TERMINAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    Path("out.jsonl").touch()
    start(prompts(2, 5, 9), output=None)
    assert "rows/min" in screen.getvalue()
    for line in screen.getvalue().splitlines():
        shown_last = line.rsplit("\x1b[K")[-1]
        assert "rows/min{" not in shown_last


def test_the_summary() -> None:
    progress: Any = SimpleNamespace(done=4, failed=0, bad=1, unfinished=7)
    stats = BatchStats(1000, 250, 60, 3, 2, 7, 8, 9, [0.1, 0.2, 0.3, 0.4])
    text = table(progress, 30.0, stats, [1.0, 2.0, 3.0, 4.0], 2, "exact: 30 layers fused")
    assert text.splitlines() == [
        "Requests             4 done, 0 failed, 1 bad, 7 unfinished, 2 from an earlier run",
        "Tokens               1,000 of prompts, 60 generated",
        "Time                 30.0 s",
        "Throughput           2.0 tokens/s, 8.0 requests/min",
        "Time to first token  p50 2.5 s, p90 3.7 s, p99 4.0 s",
        "Between tokens       p50 250 ms, p90 370 ms, p99 397 ms",
        "Prefix hit rate      25.0 % (250 tokens)",
        "Preemptions          3, 2 of them swapped",
        "Peak pages           7 of 8",
        "Computed by          exact: 30 layers fused",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0354, "35 ms"), (2.44, "2.4 s"), (300, "5 min"), (12_000, "3 h 20 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
