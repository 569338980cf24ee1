"""Drawing tokens: what each setting allows, and what a seed repeats."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from pamx.engine.sampling import Sampling, adjust, make_sampler
from pamx.errors import RequestError

PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS = mx.array(np.log(PROBABILITIES)[None].astype(np.float32))


def draws(sampling: Sampling, count: int = 400) -> Counter[int]:
    sample = make_sampler(sampling)
    return Counter(int(sample(LOGITS, i)) for i in range(count))


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
    assert int(make_sampler(always)(adjust(LOGITS, always, [], []), 0)) == 4
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
    first = [int(make_sampler(sampling)(LOGITS, i)) for i in range(40)]
    mx.random.seed(0)
    mx.random.normal((5,))
    assert [int(make_sampler(sampling)(LOGITS, i)) for i in range(40)] == first
    other = Sampling(temperature=1.0, seed=43)
    assert [int(make_sampler(other)(LOGITS, i)) for i in range(40)] != first


def test_no_seed_draws_anew() -> None:
    sampling = Sampling(temperature=1.0)
    runs = {
        tuple(int(make_sampler(sampling)(LOGITS, i)) for _ in "ab" for i in range(40)) for _ in "ab"
    }
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
