"""Drawing tokens: what each setting allows, and what a seed repeats."""

from __future__ import annotations

import math
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from pamx.engine.draw import Drawn, Place, adjust, answer_seed, draw
from pamx.engine.logprobs import LogprobRows
from pamx.engine.sampling import Sampling
from pamx.engine.steps import check_numbers
from pamx.errors import ModelError, RequestError

PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS = mx.array(np.log(PROBABILITIES)[None].astype(np.float32))


def settled(drawn: Drawn) -> list[int]:
    drawn.settle()
    return drawn.tokens.tolist()  # type: ignore[return-value]


def one(sampling: Sampling, index: int = 0, logits: mx.array = LOGITS) -> int:
    """A token of an answer of its own."""
    return settled(draw(logits, [Place(sampling, answer_seed(sampling), index)]))[0]


def draws(sampling: Sampling, count: int = 400) -> Counter[int]:
    seed = answer_seed(sampling)
    places = [Place(sampling, seed, i) for i in range(count)]
    return Counter(settled(draw(mx.repeat(LOGITS, count, axis=0), places)))


def test_temperature_zero_takes_the_most_likely() -> None:
    assert set(draws(Sampling(), 3)) == {0}


def test_draws_follow_the_probabilities() -> None:
    counts = draws(Sampling(temperature=1.0, seed=7), 3000)
    found = np.array([counts[i] for i in range(5)]) / 3000
    np.testing.assert_allclose(found, PROBABILITIES, atol=0.04)


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 1e-320}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "min_p": 0.5}, {0, 1}),
    ],
)
def test_cuts_keep_what_they_should(setting: dict[str, float], allowed: set[int]) -> None:
    assert set(draws(Sampling(temperature=1.0, seed=1, **setting))) == allowed  # type: ignore[arg-type]


def test_an_extreme_temperature_is_no_noise() -> None:
    for cold in (1e-6, 1e-40, 1e-320):
        assert set(draws(Sampling(temperature=cold, seed=1), 20)) == {0}
    assert set(draws(Sampling(temperature=1e9, seed=1))) == {0, 1, 2, 3, 4}


def test_bias_penalties_and_bans() -> None:
    def best(sampling: Sampling, prompt: list[int], answer: list[int], banned: set[int]) -> int:
        return int(mx.argmax(adjust(LOGITS, sampling, prompt, answer, banned)))

    plain = Sampling()
    assert best(plain, [], [], set()) == 0
    assert best(plain, [], [], {0, 1}) == 2
    assert best(Sampling(logit_bias={3: 9.0}), [], [], set()) == 3
    assert best(Sampling(logit_bias={0: -100.0}), [], [], set()) == 1
    always = Sampling(temperature=1.0, seed=1, logit_bias={4: float("inf")})
    assert one(always, logits=adjust(LOGITS, always, [], [])) == 4
    assert best(Sampling(presence_penalty=0.5), [], [0, 0, 0], set()) == 1
    assert best(Sampling(presence_penalty=0.5), [0, 0, 0], [], set()) == 0  # the answer counts
    assert best(Sampling(frequency_penalty=0.2), [], [0], set()) == 0
    assert best(Sampling(frequency_penalty=0.2), [], [0, 0], set()) == 1
    # All logits are negative here, so the penalty multiplies.
    assert best(Sampling(repetition_penalty=1.5), [0], [], set()) == 1
    assert best(Sampling(repetition_penalty=1.5), [0], [1], set()) == 0
    assert best(Sampling(logit_bias={99: 9.0}), [98], [97], {96}) == 0  # outside the vocabulary


def test_the_cut_is_made_after_the_temperature() -> None:
    # At temperature 0.5 the probabilities are 0.54, 0.30, 0.08, ...: two reach 0.8.
    assert set(draws(Sampling(temperature=0.5, top_p=0.8, seed=1))) == {0, 1}


def test_a_seed_repeats_its_draws_whatever_else_is_drawn() -> None:
    sampling = Sampling(temperature=1.0, seed=42)
    first = [one(sampling, i) for i in range(40)]
    mx.random.seed(0)
    mx.random.normal((5,))
    assert [one(sampling, i) for i in range(40)] == first
    other = Sampling(temperature=1.0, seed=43)
    assert [one(other, i) for i in range(40)] != first


def test_no_seed_draws_anew() -> None:
    sampling = Sampling(temperature=1.0)
    runs = {tuple(one(sampling) for _ in range(40)) for _ in "ab"}
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 1.01}, "min_p is 1.01"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty is 1e-300"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3"),
    ],
)
def test_values_out_of_range(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sampling(**wrong)  # type: ignore[arg-type]


ROWS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.0, top_p=0.9, top_k=50),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=1.0, top_p=0.95, min_p=0.001),
    Sampling(temperature=1.0, top_k=2000),
]


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0], ids=["flat", "usual", "steep"])
def test_a_row_s_token_does_not_depend_on_the_others(spread: float) -> None:
    """Whatever their settings are, and whether top-p must look at all tokens."""
    places = [Place(ROWS[i % len(ROWS)], 1000 + i, i) for i in range(32)]
    logits = spread * mx.random.normal((32, 5000), key=mx.random.key(1))
    alone = [settled(draw(logits[i : i + 1], [place]))[0] for i, place in enumerate(places)]
    assert settled(draw(logits, places)) == alone
    some = [31, 2, 10, 18, 3, 0]
    assert settled(draw(logits[mx.array(some)], [places[i] for i in some])) == [
        alone[i] for i in some
    ]


@pytest.mark.parametrize(
    "setting", [{"top_p": 0.7}, {"top_p": 0.7, "min_p": 0.02}, {"top_k": 1500}]
)
@pytest.mark.parametrize("spread", [0.5, 3.0], ids=["flat", "steep"])
def test_of_a_large_vocabulary_exactly_the_kept_tokens_come(
    setting: dict[str, float], spread: float
) -> None:
    """A steep row's nucleus is among the first that are looked at, a flat one's is not."""
    count, size = 4000, 6000
    values = np.random.default_rng(3).normal(size=size).astype(np.float32) * np.float32(spread)
    sampling = Sampling(temperature=1.0, **setting)  # type: ignore[arg-type]
    order = np.argsort(-values)
    weights = np.exp((values - values.max()).astype(np.float64))[order]
    kept = np.ones(size, bool)
    kept[sampling.top_k or size :] = False
    kept &= np.cumsum(weights) - weights < sampling.top_p * weights.sum()
    kept &= weights >= sampling.min_p
    allowed = set(order[kept].tolist())
    drawn = draw(
        mx.repeat(mx.array(values)[None], count, axis=0),
        [Place(sampling, seed, 0) for seed in range(count)],
    )
    drawn.settle()
    again = draw(mx.array(values)[None], [Place(sampling, 0, 0)]).settle()
    assert not again or ("top_p" in setting and len(allowed) > 1024)
    found = Counter(drawn.tokens.tolist())  # type: ignore[arg-type]
    assert set(found) <= allowed
    best = order[0]
    expected = count * weights[0] / weights[kept].sum()
    assert abs(found[int(best)] - expected) < 5 * np.sqrt(expected) + 1
    assert len(found) > (0.4 if spread < 1 else 0.1) * len(allowed)


MANY = 37  # rows: two pieces and a part of one


@pytest.mark.parametrize("mixed", [False, True])
def test_many_rows_are_drawn_as_each_alone(mixed: bool) -> None:
    logits = mx.random.normal((MANY, 3000), key=mx.random.key(5))
    kinds = [Sampling(temperature=1.0, top_p=0.9), *([Sampling()] * mixed)]
    kinds += [Sampling(temperature=0.7, min_p=0.01), Sampling(temperature=1, top_k=9)] * mixed
    places = [Place(kinds[row % len(kinds)], row, row) for row in range(MANY)]
    rows = [(row * 7) % MANY for row in range(MANY)]

    def first_out(row: mx.array) -> mx.array:
        return mx.put_along_axis(row, mx.argmax(row, axis=-1, keepdims=True), mx.array(-9.0), -1)

    changes = dict.fromkeys(range(0, MANY, 5), first_out) if mixed else {}
    alone = []
    for number, (place, row) in enumerate(zip(places, rows, strict=True)):
        change = {0: changes[number]} if number in changes else None
        alone += settled(draw(logits[row : row + 1], [place], changes=change))
    assert settled(draw(logits, places, rows, changes)) == alone


def test_what_a_draw_takes_does_not_grow_with_its_rows() -> None:
    """Beside the logits: several arrays of 16 rows at most, whatever is asked for."""
    size = 20_000
    for sampling in (Sampling(temperature=1), Sampling(temperature=1, top_p=0.9, logprobs=3)):
        peaks = []
        for count in (16, 256):
            logits = mx.random.normal((count, size), key=mx.random.key(1))
            mx.eval(logits)
            held = mx.get_active_memory()
            mx.reset_peak_memory()
            drawn = draw(logits, [Place(sampling, seed, 0) for seed in range(count)])
            mx.eval(drawn.arrays())
            drawn.settle()
            if sampling.logprobs:
                ranked = LogprobRows(logits, [3] * count)
                ranked.choose(drawn.tokens)
                mx.eval(ranked.arrays())
                assert len(ranked.read()) == count
            mx.eval(drawn.tokens)
            peaks.append(mx.get_peak_memory() - held)
        assert peaks[1] < 2 * peaks[0]


def test_log_probabilities_of_many_rows_are_those_of_each_alone() -> None:
    logits = mx.random.normal((MANY, 200), key=mx.random.key(5))
    tokens = mx.arange(MANY)
    many = LogprobRows(logits, [row % 4 for row in range(MANY)])
    many.choose(tokens)
    alone = []
    for row in range(MANY):
        one = LogprobRows(logits, [row % 4], [row])
        one.choose(tokens[row : row + 1])
        alone += one.read()
    assert many.read() == alone


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_single_nan_is_found(dtype: mx.Dtype) -> None:
    for place in (0, 1500, 2999):
        logits = mx.random.normal((1, 3000)).astype(dtype)
        logits[0, 0:7] = -math.inf
        check_numbers(logits)
        logits[0, place] = math.nan
        with pytest.raises(ModelError, match="not numbers"):
            check_numbers(logits)


def test_equal_logits_are_kept_together() -> None:
    logits = mx.zeros((1, 3000))
    sampling = Sampling(temperature=1.0, top_p=0.5)
    drawn = draw(mx.repeat(logits, 2000, axis=0), [Place(sampling, s, 0) for s in range(2000)])
    assert max(settled(drawn)) > 2500
    assert min(settled(drawn)) < 500


def test_extreme_biases_and_penalties_stay_numbers() -> None:
    wild = Sampling(presence_penalty=-1e4, frequency_penalty=-1e4, logit_bias={1: -1e4, 2: 3e38})
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        logits = adjust(LOGITS.astype(dtype), wild, [], [0] * 1000 + [1])
        assert not mx.isnan(logits).any().item()
        assert int(mx.argmax(logits)) in (0, 2)


def test_log_probabilities_of_equals_name_the_lowest_ids_first() -> None:
    logits = mx.array([[0.0, 1.0, 1.0, 2.0], [3.0, 0.0, 0.0, 0.0]])
    rows = LogprobRows(logits, [3, 0])
    rows.choose(mx.array([2, 0]))
    first, second = rows.read()
    total = math.log(1 + 2 * math.e + math.e**2)
    assert list(first.top) == [3, 1, 2]
    assert list(first.top.values()) == pytest.approx([2 - total, 1 - total, 1 - total])
    assert first.chosen == pytest.approx(1 - total)
    assert second.top == {}
    assert second.chosen == pytest.approx(3 - math.log(math.e**3 + 3), abs=1e-6)
