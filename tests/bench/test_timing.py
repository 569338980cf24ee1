"""The definitions, each on timings whose figures can be worked out by hand."""

from __future__ import annotations

import pytest

from pamx.bench.definitions import DEFINITIONS
from pamx.bench.ranges import BadRangeError, whole_numbers
from pamx.bench.slo import BadLimitError, goodput, limits, meets
from pamx.bench.timing import (
    RequestTiming,
    output_throughput,
    prompt_throughput,
    sample_figures,
    span,
)

ONE = RequestTiming(1.0, (3.0, 3.5, 5.0), 10)
TWO = RequestTiming(2.0, (4.0,), 20)


def test_definitions() -> None:
    assert (ONE.ttft, ONE.e2e, ONE.tpot, ONE.gaps) == (2.0, 4.0, 1.0, [0.5, 1.5])
    assert (TWO.ttft, TWO.e2e, TWO.tpot, TWO.gaps) == (2.0, 2.0, None, [])
    assert span([ONE, TWO]) == 4.0
    assert prompt_throughput([ONE, TWO]) == 30 / (4.0 - 1.0)
    assert output_throughput([ONE, TWO]) == 1.0


def test_one_token_answers_have_no_tpot() -> None:
    figures = sample_figures([ONE, TWO])
    assert figures["tpot"] == 1.0
    assert figures["user_speed"] == 1.0
    assert figures["ttft"] == 2.0
    assert "tpot" not in sample_figures([TWO])
    # All tokens at once: a TPOT of 0, of which nobody has a speed.
    assert "user_speed" not in sample_figures([RequestTiming(0.0, (1.0, 1.0), 3)])


def test_goodput_counts_requests_that_meet_all_limits() -> None:
    wanted = limits("ttft=2s, tpot=900ms")
    assert wanted == {"ttft": 2.0, "tpot": 0.9}
    assert not meets(ONE, wanted)  # TPOT 1.0
    assert meets(TWO, wanted)
    assert goodput([ONE, TWO], wanted) == 1 / 4.0
    assert goodput([ONE, TWO], limits("e2e=4s")) == 2 / 4.0


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=1", "ttft=-1s", "ttft=0s", "itl=1s", "ttft=1s,ttft=2s", "ttft=1 m"]
)
def test_bad_limits(text: str) -> None:
    with pytest.raises(BadLimitError):
        limits(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("512", [512]),
        ("4,1, 4", [4, 1]),
        ("1-4", [1, 2, 3, 4]),
        ("1024-8192*2", [1024, 2048, 4096, 8192]),
        ("1-10*3,7", [1, 3, 9, 7]),
        ("5-5", [5]),
    ],
)
def test_ranges(text: str, numbers: list[int]) -> None:
    assert whole_numbers(text) == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "0", "-1", "1,,2", "4-1", "1-4*1", "1-1000", "1.5", "1-", "*2", "²", "9" * 20]
)
def test_bad_ranges(text: str) -> None:
    with pytest.raises(BadRangeError):
        whole_numbers(text)


def test_every_figure_of_a_record_is_defined() -> None:
    for name in ("ttft", "tpot", "itl", "e2e", "goodput", "prompt_throughput", "percentiles"):
        assert DEFINITIONS[name].endswith(".")
    assert "sampling" in DEFINITIONS["inside"]
    assert "tokenising" in DEFINITIONS["inside"]
