"""A model on pages gives exactly the tokens that it gives on mlx-lm's own cache."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import families
import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

from pamx.attention.backend import Backend
from pamx.attention.placeholders import UnsupportedAttentionError
from pamx.attention.reference import attend as reference_attend
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.engine.draw import Drawn
from pamx.engine.slot import Dense, Slot
from pamx.engine.steps import decode
from pamx.errors import ModelError, OutOfBlocksError, PamxError, RequestError
from pamx.kv.block_table import BlockTable
from pamx.substitute import paged_model
from pamx.substitute.admission import Admission
from pamx.substitute.attention import ATTENTION
from pamx.substitute.paged_model import PagedModel

PROMPT = [int(t) for t in np.random.default_rng(4).integers(1, 500, 70)]


def greedy(
    model: Module, caches: list[Any], prompt: list[int], chunks: list[int], n: int
) -> list[int]:
    """`n` tokens after `prompt`, which is read in pieces of the given sizes."""
    start = 0
    for size in chunks:
        logits = model(mx.array([prompt[start : start + size]]), cache=caches)
        mx.eval(logits)
        start += size
    assert start == len(prompt)
    tokens = []
    for _ in range(n):
        tokens.append(int(mx.argmax(logits[0, -1])))
        logits = model(mx.array([[tokens[-1]]]), cache=caches)
    return tokens


@pytest.mark.parametrize("family", families.FAMILIES)
def test_greedy_tokens_equal_mlx_lm(family: str, backend: Backend) -> None:
    """Also with the prompt cut anywhere: pages and windows are crossed inside and between."""
    model = families.make(family)
    expected = greedy(model, make_prompt_cache(model), PROMPT, [70], 20)
    with PagedModel(model, context=128, backend=backend, block_size=8) as paged:
        for chunks in ([70], [1, 15, 16, 38], [8] * 8 + [6], [69, 1]):
            sequence = paged.sequence()
            assert greedy(model, sequence.caches, PROMPT, chunks, 20) == expected
            sequence.close()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
def test_16_bit_logits_are_as_exact_as_mlx_lm_s(family: str, dtype: mx.Dtype) -> None:
    """Both round; measured against the same weights in float32, pages are not the worse."""
    model = families.make(family, dtype)
    exact = families.make(family, dtype)
    exact.set_dtype(mx.float32)
    tokens = mx.array([PROMPT])

    def error(logits: mx.array) -> float:
        truth = exact(tokens, cache=make_prompt_cache(exact))
        return float(mx.sqrt(mx.mean(mx.square(logits.astype(mx.float32) - truth))))

    dense = error(model(tokens, cache=make_prompt_cache(model)))
    with PagedModel(model, context=128) as paged:
        assert paged.pool.layers[0].keys.dtype == dtype
        assert error(model(tokens, cache=paged.prompt_cache())) < 1.1 * dense


def test_only_the_loaded_model_changes_and_closing_restores_it() -> None:
    model, other = families.make("llama"), families.make("llama")
    module = importlib.import_module("mlx_lm.models.llama")
    function = getattr(module, ATTENTION)
    classes = [type(m) for _, m in model.named_modules()]
    expected = greedy(other, make_prompt_cache(other), PROMPT, [70], 5)

    with PagedModel(model, context=128) as paged:
        assert [type(m) for _, m in model.named_modules()] != classes
        assert getattr(module, ATTENTION) is function
        assert [type(m) for _, m in other.named_modules()] == classes
        assert isinstance(model.layers[0].self_attn, module.Attention)
        # The changed model still serves mlx-lm's own caches, and none at all.
        assert greedy(model, make_prompt_cache(model), PROMPT, [70], 5) == expected
        assert mx.argmax(model(mx.array([PROMPT]))[0, -1]).item() == expected[0]
    assert [type(m) for _, m in model.named_modules()] == classes
    paged.close()
    assert greedy(model, make_prompt_cache(model), PROMPT, [70], 5) == expected


def test_two_models_on_pages_at_once() -> None:
    first, second = families.make("llama"), families.make("llama", num_hidden_layers=2)
    wanted = [greedy(m, make_prompt_cache(m), PROMPT, [70], 6) for m in (first, second)]
    with PagedModel(first, context=128) as a, PagedModel(second, context=128) as b:
        assert greedy(first, a.prompt_cache(), PROMPT, [70], 6) == wanted[0]
        assert greedy(second, b.prompt_cache(), PROMPT, [70], 6) == wanted[1]


def test_two_sequences_of_one_model_do_not_mix() -> None:
    model = families.make("gemma3_text")
    other = PROMPT[::-1]
    wanted = [greedy(model, make_prompt_cache(model), p, [70], 6) for p in (PROMPT, other)]
    with PagedModel(model, context=256) as paged:
        a, b = paged.sequence(), paged.sequence()
        logits = {}
        for piece in range(7):  # turn and turn about
            for sequence, prompt in ((a, PROMPT), (b, other)):
                part = prompt[piece * 10 : piece * 10 + 10]
                logits[sequence] = model(mx.array([part]), cache=sequence.caches)
        for sequence, tokens in ((a, wanted[0]), (b, wanted[1])):
            assert mx.argmax(logits[sequence][0, -1]).item() == tokens[0]
            assert greedy(model, sequence.caches, tokens[:1], [1], 5) == tokens[1:]


def test_mlx_lm_runs_on_the_pages_by_itself(backend: Backend) -> None:
    """mlx-lm's own loop: chunked prefill, evaluation of `state`, lookahead, trimming."""
    model = families.make("llama")

    def run(cache: list[Any], prompt: list[int]) -> list[int]:
        steps = generate_step(
            mx.array(prompt), model, max_tokens=12, prompt_cache=cache, prefill_step_size=16
        )
        return [token for token, _ in steps]

    dense = make_prompt_cache(model)
    expected = run(dense, PROMPT)
    with PagedModel(model, context=128, backend=backend) as paged:
        cache = paged.prompt_cache()
        assert run(cache, PROMPT) == expected
        # The last token is not in the cache, or with a lookahead is: trim to the prompt.
        extra = cache[0].offset - 60
        assert trim_prompt_cache(cache, extra) == extra
        trim_prompt_cache(dense, dense[0].offset - 60)
        assert run(cache, PROMPT[60:]) == run(dense, PROMPT[60:])


def test_state_is_the_dense_cache_and_can_be_put_back(backend: Backend) -> None:
    model = families.make("llama")
    dense = make_prompt_cache(model)
    expected = greedy(model, dense, PROMPT, [70], 1)
    with PagedModel(model, context=256, backend=backend) as paged:
        first = paged.prompt_cache()
        assert first[0].state == ()
        greedy(model, first, PROMPT, [70], 1)
        saved = [c.state for c in first]
        for mine, theirs in zip(saved, dense, strict=True):
            assert mine[2] == theirs.offset == 71
            for a, b in zip(mine[:2], theirs.state[:2], strict=True):
                np.testing.assert_allclose(np.array(a), np.array(b[:, :, :71]), atol=1e-4)
        second = paged.prompt_cache()
        for cache, state in zip(second, saved, strict=True):
            cache.state = state
        trim_prompt_cache(second, 1)
        logits = model(mx.array([expected]), cache=second)
        again = model(
            mx.array([expected]), cache=[*dense] if not trim_prompt_cache(dense, 1) else dense
        )
        np.testing.assert_allclose(np.array(logits), np.array(again), atol=2e-3)


def test_pages_are_taken_one_by_one_and_all_given_back(backend: Backend) -> None:
    model = families.make("llama")
    with PagedModel(model, context=64, backend=backend, block_size=8) as paged:
        sequence = paged.sequence()
        used = []
        for token in PROMPT[:20]:
            mx.eval(model(mx.array([[token]]), cache=sequence.caches))
            used.append(paged.manager.num_used)
        assert used == [1] * 8 + [2] * 8 + [3] * 4
        assert sequence.caches[0].nbytes == 3 * 8 * 2 * 16 * 2 * 4
        sequence.trim(9)
        assert paged.manager.num_used == 2
        sequence.close()
        assert paged.manager.num_free == paged.manager.num_blocks


def test_a_full_pool_is_an_error_that_loses_nothing() -> None:
    model = families.make("llama")
    expected = greedy(model, make_prompt_cache(model), PROMPT[:30], [30], 2)
    with PagedModel(model, context=32, block_size=16) as paged:
        sequence = paged.sequence()
        mx.eval(model(mx.array([PROMPT[:29]]), cache=sequence.caches))
        with pytest.raises(OutOfBlocksError, match=r"are needed, and 0 of 2 are free"):
            model(mx.array([PROMPT[29:40]]), cache=sequence.caches)
        sequence.trim(29)
        assert greedy(model, sequence.caches, PROMPT[29:30], [1], 2) == expected


def test_a_context_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    model = families.make("llama")
    arithmetic = r"needs .* for its KV cache, and .* are left for it: .* may be used, of which"
    with pytest.raises(RequestError, match=arithmetic):
        PagedModel(model, context=10**12)
    assert type(model.layers[0].self_attn).__module__ == "mlx_lm.models.llama"
    assert type(model.layers[0].self_attn).__mro__[1] is Module


def test_a_step_waits_only_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps in flight have no more rows than a piece of a prompt; else memory doubles."""
    waited: list[bool] = []
    monkeypatch.setattr(paged_model, "prefill_chunk", lambda _: 8)
    with PagedModel(families.make("llama"), context=64) as paged:
        table, real = BlockTable(paged.manager), mx.eval

        def forward(rows: int) -> mx.array:
            table.grow(rows)
            part = SequenceSlice(tuple(table.blocks), table.num_tokens, rows)
            step = Step([part], Packing.SEQUENCE, paged.pool.num_blocks, paged.pool.block_size)
            with monkeypatch.context() as patch:
                waited.append(False)
                patch.setattr(mx, "eval", lambda *a: (waited.__setitem__(-1, True), real(*a)))
                logits = paged.forward(step, mx.array(PROMPT[:rows]), [rows - 1])
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            return logits

        for rows in (8, 1, 1, 7, 4, 5, 3):
            last = forward(rows)
        mx.eval(last)
    assert waited == [False, True, False, False, True, True, False]


def test_models_that_pages_cannot_serve_are_refused_in_words() -> None:
    own_softmax = families.make(
        "gemma2",
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    with pytest.raises(UnsupportedAttentionError, match="No layer of the model calls mlx-lm's"):
        PagedModel(own_softmax, context=64)
    recurrent = families.make(
        "mamba",
        state_size=8,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    with pytest.raises(UnsupportedAttentionError, match="keeps a ArraysCache"):
        PagedModel(recurrent, context=64)


@pytest.mark.parametrize("wrong", ["scale", "window", "late"])
def test_numbers_decide_not_structure(wrong: str, backend: Backend) -> None:
    """Attention that is slightly wrong passes every structural check; the probe finds it."""

    def attend(step: Any, pool: Any, queries: mx.array, *rest: Any, **options: Any) -> mx.array:
        if wrong == "scale":
            options["scale"] *= 1.02
        if wrong == "window" and options["window"]:
            options["window"] -= 1
        out = reference_attend(step, pool, queries, *rest, **options)
        if wrong == "late" and step.slices[0].query_len == 1:
            out = out + 0.02 * mx.roll(out, 1, axis=-1)
        return out

    model = families.make("gemma3_text")
    classes = [type(m) for _, m in model.named_modules()]
    broken = dataclasses.replace(backend, attend=attend)
    with pytest.raises(UnsupportedAttentionError, match="logits differ by"):
        PagedModel(model, context=64, backend=broken)
    assert [type(m) for _, m in model.named_modules()] == classes
    PagedModel(model, context=64, backend=broken, admission=Admission(True, True)).close()


def test_caches_of_a_closed_model_or_of_another_one_are_refused_at_once() -> None:
    model, other = families.make("llama"), families.make("llama")
    x = mx.array([PROMPT[:9]])
    with PagedModel(model, context=128) as paged:
        fresh, used = paged.prompt_cache(), paged.prompt_cache()
        model(x, cache=used)
        with pytest.raises(UnsupportedAttentionError, match="these caches belong to another model"):
            other(x, cache=fresh)
        with pytest.raises(UnsupportedAttentionError, match="the model brings 2 at a time"):
            model(mx.array([[5], [9]]), cache=paged.prompt_cache())
        with pytest.raises(PamxError, match="on pages already"):
            PagedModel(model, context=64)
        assert greedy(model, paged.prompt_cache(), PROMPT, [70], 2)
    for caches in (fresh, used):
        with pytest.raises(PamxError, match="PagedModel that is closed"):
            model(x, cache=caches)


def test_dropped_sequences_give_their_pages_back(backend: Backend) -> None:
    model = families.make("llama")
    with PagedModel(model, context=96, block_size=8, backend=backend) as paged:
        for _ in range(10):  # each takes all but one of the pages
            cache = paged.prompt_cache()
            mx.eval(model(mx.array([(PROMPT * 2)[:88]]), cache=cache))
        assert trim_prompt_cache(cache, 80) == 80
        assert paged.manager.num_used <= 2
        trim_prompt_cache(cache, 8)
        del cache
        assert paged.manager.num_used == 0


def test_trimming_and_growing_again_keeps_nothing_old() -> None:
    model = families.make("llama")
    with PagedModel(model, context=96) as paged:
        cache = paged.prompt_cache()
        model(mx.array([PROMPT]), cache=cache)
        for _ in range(30):
            trim_prompt_cache(cache, 1)
            mx.eval(model(mx.array([[7]]), cache=cache))
        assert len(paged._placeholders._owners) <= len(cache)


def test_a_model_whose_output_is_not_numbers_is_an_error() -> None:
    """Pages are refused; on mlx-lm's own cache the first token tells."""
    model = families.make("llama")
    model.model.norm.weight = model.model.norm.weight * mx.nan
    with pytest.raises(UnsupportedAttentionError, match=r"not numbers \(NaN\)"):
        PagedModel(model, context=64)
    slot = Slot(Dense(model))
    with pytest.raises(ModelError, match=r"not numbers \(NaN\)"):
        next(
            decode(
                model,
                slot,
                5,
                lambda logits, _: Drawn(mx.argmax(logits, axis=-1).astype(mx.int32)),
                3,
                False,
            )
        )
