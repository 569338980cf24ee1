"""Traces and made-up arrivals, and driving an engine with them."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.stats

from pamx.bench.arrivals import Arrival, BadPatternError, lengths, make_arrivals, read_trace
from pamx.bench.programs.arrivals import drive
from pamx.errors import RequestError


def test_a_trace_is_ordered_and_begins_at_zero() -> None:
    lines = [
        b'{"arrival_s": 12.5, "prompt_tokens": 3, "output_tokens": 2}\n',
        b"\n",
        b'{"arrival_s": 10, "prompt": "Why?", "output_tokens": 1, "id": "x"}\n',
    ]
    assert read_trace(lines, "t") == [Arrival(0.0, "Why?", 1), Arrival(2.5, 3, 2)]


DIGITS = b"9" * 6000 + b"}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "line 2"),
        (b"\xff", "line 2"),
        (b"[1]", "no JSON object"),
        (b'{"prompt_tokens": 3, "output_tokens": 2}', "arrival_s"),
        (b'{"arrival_s": -1, "prompt_tokens": 3, "output_tokens": 2}', "0 or more"),
        (b'{"arrival_s": NaN, "prompt_tokens": 3, "output_tokens": 2}', "arrival_s"),
        (b'{"arrival_s": 1, "prompt_tokens": 0, "output_tokens": 2}', "prompt_tokens"),
        (
            b'{"arrival_s": 1' + b"0" * 400 + b', "prompt_tokens": 3, "output_tokens": 2}',
            "arrival_s",
        ),
        (b'{"arrival_s": 1, "prompt_tokens": 99999999999, "output_tokens": 2}', "9,999,999"),
        (b'{"arrival_s": 9e9, "prompt_tokens": 3, "output_tokens": 2}', "at most a week"),
        (b'{"arrival_s": 1, "prompt_tokens": 2.5, "output_tokens": 2}', "prompt_tokens"),
        (b'{"arrival_s": 1, "prompt": " ", "output_tokens": 2}', "prompt"),
        (b'{"arrival_s": 1, "prompt": "", "output_tokens": 2}', "a text that is not empty"),
        (b'{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 0}', "1 or more"),
        (b'{"arrival_s": 1e999, "prompt_tokens": 3, "output_tokens": 2}', "arrival_s"),
        (b'{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": ' + DIGITS, "more than 9,999,999"),
        (b'{"arrival_s": ' + DIGITS.replace(b"}", b', "prompt_tokens": 3}'), "arrival_s"),
        (b'{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 2', "is no JSON"),
        (b"[" * 200_000, "line 2: it is nested too deeply"),
        (b'"' + b"x" * (16 << 20) + b'"', "line 2: it is longer than 16,777,216 bytes"),
        (b"\xff\xfe{}", "it is not UTF-8"),
        (b'{"arrival_s": 1, "prompt_tokens": 3}', "output_tokens"),
    ],
)
def test_bad_lines_are_told_with_their_number(line: bytes, said: str) -> None:
    good = b'{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 2}'
    with pytest.raises(RequestError, match=said) as raised:
        read_trace([good, line], "t")
    assert str(raised.value).startswith("t, line 2: ") or "a week" in said
    assert len(str(raised.value)) < 300


def test_an_empty_trace() -> None:
    with pytest.raises(RequestError, match="no requests"):
        read_trace([b"\n"], "t")


def test_poisson_arrivals_have_exponential_gaps() -> None:
    found = make_arrivals("poisson:4", 2000, lengths("10"), lengths("2"), seed=0)
    gaps = np.diff([a.at for a in found])
    assert found[0].at == 0.0
    assert scipy.stats.kstest(gaps, "expon", args=(0, 1 / 4)).pvalue > 0.01
    assert found == make_arrivals("poisson:4", 2000, lengths("10"), lengths("2"), seed=0)
    assert found != make_arrivals("poisson:4", 2000, lengths("10"), lengths("2"), seed=1)


def test_bursts() -> None:
    found = make_arrivals("bursts:3@2.5s", 7, lengths("10"), lengths("2"), seed=0)
    assert [a.at for a in found] == [0, 0, 0, 2.5, 2.5, 2.5, 5]


def test_lengths_follow_their_distribution() -> None:
    rng = np.random.default_rng(0)
    uniform = [lengths("uniform:3-5")(rng) for _ in range(300)]
    assert set(uniform) == {3, 4, 5}
    drawn = [lengths("lognormal:100,0.5")(rng) for _ in range(3000)]
    assert np.median(drawn) == pytest.approx(100, rel=0.05)
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.05)
    assert max(lengths("lognormal:10,3")(rng) for _ in range(3000)) <= 200


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "x", "uniform:5-3", "uniform:0-3", "lognormal:10", "lognormal:1,99", "٣"),
        *(f"lognormal:{'9' * 6000},1", "lognormal:99999999,1", "lognormal:nan,1", "9" * 6000),
    ],
)
def test_bad_lengths(text: str) -> None:
    with pytest.raises(BadPatternError):
        lengths(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "poisson",
            "poisson:0",
            "bursts:0@1",
            "bursts:2@0",
            "x:1",
            "poisson:-1",
            "poisson:nan",
        ),
        *("poisson:inf", f"poisson:{'9' * 6000}", "bursts:0@0", f"bursts:1@{'9' * 6000}"),
        *("bursts:1@9999999", "poisson:0.0000001", f"poisson:0.{'0' * 400}1"),
    ],
)
def test_bad_patterns(text: str) -> None:
    with pytest.raises(BadPatternError) as raised:
        make_arrivals(text, 3, lengths("1"), lengths("1"), 0)
    assert len(str(raised.value)) < 300


def test_requests_are_submitted_when_they_are_due_and_none_is_lost() -> None:
    begin = time.perf_counter()
    submitted: dict[int, float] = {}
    queue: list[int] = []

    def submit(index: int) -> None:
        submitted[index] = time.perf_counter() - begin
        queue.append(index)

    def step() -> None:
        time.sleep(0.01)
        queue.pop()

    due = [0.0, 0.0, 0.05, 0.1]
    drive(due, submit, lambda: bool(queue), step)
    assert list(submitted) == [0, 1, 2, 3]
    assert not queue
    for index, moment in enumerate(due):
        assert moment <= submitted[index] < moment + 0.5
