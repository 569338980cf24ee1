"""Beam search finds what a plain search over mlx-lm's own cache finds, on shared pages."""

from __future__ import annotations

import families
import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.base import Module

from pamx.engine.beam import beam_search
from pamx.errors import OutOfBlocksError, RequestError
from pamx.kv import BlockTable
from pamx.substitute.admission import Admission
from pamx.substitute.paged_model import PagedModel

PROMPT = [int(t) for t in np.random.default_rng(3).integers(3, 60, 37)]
END = {2, 5}


def make_model() -> Module:
    return families.make("llama", vocab_size=60)


def logprobs(model: Module, tokens: list[int]) -> np.ndarray:
    logits = model(mx.array([tokens]))[0, -1]
    return np.array(logits - mx.logsumexp(logits), dtype=np.float64)


def plain_search(model: Module, beams: int, length: int, penalty: float) -> list[list[int]]:
    """The textbook, with whole prompts computed again for every candidate."""
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for n in range(1, length + 1):
        candidates = sorted(
            (
                (score + float(row[token]), [*tokens, token])
                for score, tokens in going
                for row in [logprobs(model, [*PROMPT, *tokens])]
                for token in range(60)
            ),
            key=lambda c: -c[0],
        )
        going = []
        for score, tokens in candidates:
            if len(going) == beams:
                break
            if tokens[-1] in END:
                ended.append((score / n**penalty, tokens))
            else:
                going.append((score, tokens))
    everyone = sorted(ended, key=lambda c: -c[0])[:beams]
    if len(everyone) < beams:
        everyone += [(score / length**penalty, tokens) for score, tokens in going]
    return [tokens for _, tokens in sorted(everyone, key=lambda c: -c[0])[:beams]]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("rows", [True, False])
def test_finds_what_a_plain_search_finds(beams: int, penalty: float, rows: bool) -> None:
    model = make_model()
    expected = plain_search(model, beams, 7, penalty)
    with PagedModel(model, context=512, block_size=8, admission=Admission(rows, True)) as paged:
        found = beam_search(
            paged, PROMPT, beams=beams, max_tokens=7, end_tokens=END, length_penalty=penalty
        )
        assert [beam.tokens for beam in found] == expected
        assert [b.score for b in found] == sorted((b.score for b in found), reverse=True)
        assert paged.manager.num_used == 0


def test_scores_are_sums_of_log_probabilities() -> None:
    model = make_model()
    with PagedModel(model, context=512) as paged:
        (best, *_) = beam_search(paged, PROMPT, beams=3, max_tokens=5, end_tokens=END)
    total = sum(
        logprobs(model, [*PROMPT, *best.tokens[:i]])[token] for i, token in enumerate(best.tokens)
    )
    assert best.score == pytest.approx(total / len(best.tokens), abs=1e-4)


def test_beams_hold_the_prompt_once() -> None:
    with PagedModel(make_model(), context=512, block_size=8) as paged:
        most = 0
        allocate = paged.manager.allocate

        def watch(count: int) -> list[int]:
            nonlocal most
            blocks = allocate(count)
            most = max(most, paged.manager.num_used)
            return blocks

        paged.manager.allocate = watch  # type: ignore[method-assign]
        beam_search(paged, PROMPT * 8, beams=4, max_tokens=8, end_tokens=())
        prompt_blocks = len(PROMPT) * 8 // 8
        # Each beam may have two blocks of its own: a copied tail and one more.
        assert most <= prompt_blocks + 2 * 4


def test_wrong_numbers_and_a_pool_that_is_too_small() -> None:
    with PagedModel(make_model(), context=48, block_size=8) as paged:
        for wrong in ({"beams": 0, "max_tokens": 3}, {"beams": 33, "max_tokens": 3}):
            with pytest.raises(RequestError, match="beams is"):
                beam_search(paged, PROMPT, end_tokens=END, **wrong)
        with pytest.raises(RequestError, match="max_tokens is 0"):
            beam_search(paged, PROMPT, beams=2, max_tokens=0, end_tokens=END)
        with pytest.raises(OutOfBlocksError):
            beam_search(paged, PROMPT, beams=8, max_tokens=30, end_tokens=())
        assert paged.manager.num_used == 0


@pytest.mark.parametrize("penalty", [-0.5, 11.0, 1000.0])
def test_a_length_penalty_out_of_range(penalty: float) -> None:
    with (
        PagedModel(make_model(), context=64) as paged,
        pytest.raises(RequestError, match="length_penalty is"),
    ):
        beam_search(paged, PROMPT, beams=2, max_tokens=3, end_tokens=END, length_penalty=penalty)


@pytest.mark.parametrize("call", [1, 2, 3, 4, 7])
def test_a_search_that_breaks_off_gives_its_pages_back(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Ctrl-C can fall between two forks of a place."""
    calls = 0
    fork = BlockTable.fork

    def breaking(table: BlockTable) -> BlockTable:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return fork(table)

    monkeypatch.setattr(BlockTable, "fork", breaking)
    with PagedModel(make_model(), context=512) as paged:
        with pytest.raises(KeyboardInterrupt):
            beam_search(paged, PROMPT, beams=3, max_tokens=6, end_tokens=END)
        assert paged.manager.num_used == 0
