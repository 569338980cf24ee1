"""How many tokens fit: whole blocks of each sequence, and advice that holds a moment later."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pamx.errors import RequestError
from pamx.kv.budget import Footprint, MemoryBudget
from pamx.substitute.footprint import Weights
from pamx.substitute.needs import Needs, pool_tokens, step_rows

NEEDS = Needs("fast", Weights(0, 0, 0, 0), Footprint(0, 0, 0), 1000, 0, 16)


def budget(limit: int) -> MemoryBudget:
    return MemoryBudget(limit, 0, 0, 0, 0, 0)


def test_each_sequence_takes_whole_blocks() -> None:
    assert NEEDS.cache_bytes(1) == NEEDS.cache_bytes(16) == 16_000
    assert NEEDS.cache_bytes(1, 4096) == 4096 * 16_000
    assert NEEDS.cache_bytes(17, 2) == 2 * 32_000
    copying = replace(NEEDS, copied_bytes=500, block_size=8)
    assert copying.cache_bytes(9, 3) == 16 * 3500


@pytest.mark.parametrize(("room", "sequences"), [(15_999, 1), (16_000, 1), (99_999, 3), (0, 1)])
def test_what_fits_is_the_most_that_does(room: int, sequences: int) -> None:
    tokens = NEEDS.tokens_that_fit(room, sequences)
    assert tokens % 16 == 0
    assert NEEDS.cache_bytes(tokens, sequences) <= room < NEEDS.cache_bytes(tokens + 1, sequences)


def refused(wanted: int, limit: int) -> RequestError:
    with pytest.raises(RequestError) as error:
        pool_tokens(NEEDS, budget(limit), wanted, None)
    return error.value


def test_advice_is_taken_though_less_is_free_by_then() -> None:
    limit = 160_000_000
    assert pool_tokens(NEEDS, budget(limit), 160_000 // 16 * 16, None) == 160_000
    error = refused(160_001, limit)
    (advised,) = re.findall(r"at most ([0-9,]+) tokens, with 5 % of the memory", error.hint)
    tokens = int(advised.replace(",", ""))
    assert tokens == 152_000
    assert pool_tokens(NEEDS, budget(int(limit * 0.951)), tokens, None) == tokens


@pytest.mark.parametrize("wanted", [160_001, 161_000, 10**6, 10**12])
def test_a_refusal_does_not_say_that_as_much_is_left_as_is_needed(wanted: int) -> None:
    error = refused(wanted, 160_000_000)
    need, left = re.findall(r"([0-9.,]+) ([kMGT]?B)", error.message)[:2]
    assert need[1] == left[1]
    assert float(need[0].replace(",", "")) > float(left[0].replace(",", ""))


def test_where_nothing_lasting_fits_a_smaller_model_is_advised() -> None:
    assert "smaller model" in refused(1, 15_999).hint
    with pytest.raises(RequestError, match="no room for a KV cache, of which 16 tokens take"):
        pool_tokens(NEEDS, budget(15_999), None, None)


def test_a_step_has_no_more_rows_than_there_are_tokens() -> None:
    assert step_rows("fast") == 512
    assert step_rows("fast", 4, 100) == 400
    assert step_rows("fast", 4, 1000) == 512
    assert step_rows("fast", 4096) == step_rows("fast", 4096, 1) == 4096
