"""Requests on the real default model: answers, reuse of pages, limits, and giving up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

import pamx
import pamx.models
from pamx.engine import Engine, Sampling
from pamx.engine.admission_record import recall_admission, remember_admission
from pamx.engine.batch import Output
from pamx.engine.draw import Drawn
from pamx.engine.request import Request
from pamx.engine.slot import Dense, Slot
from pamx.engine.steps import decode, prefill
from pamx.errors import OutOfBlocksError, RequestError

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def engine(default_model_path: Path) -> Iterator[Engine]:  # noqa: ARG001  # fetched once
    # Small, because a prompt token takes about 0.1 s on plain MLX matrix products on a CPU.
    with pamx.load(context=256, compute="exact") as engine:
        yield engine


@pytest.fixture(scope="module")
def small_engine(engine: Engine) -> Iterator[Engine]:  # fetched once
    with pamx.load(context=64, compute="exact") as engine:
        yield engine


def free_blocks(engine: Engine) -> int:
    assert engine._paged is not None
    return engine._paged.manager.num_free


def test_what_is_remembered_of_a_model_holds_for_one_dtype_of_pages(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pamx.engine.admission_record.cache_root", lambda: tmp_path)
    loaded = pamx.models.load()
    paged = engine._paged
    assert paged is not None
    remember_admission(loaded, "exact", mx.bfloat16, replace(paged.admission, rows=False))
    found = recall_admission(loaded, "exact", mx.bfloat16)
    assert found is not None
    assert not found.rows
    assert recall_admission(loaded, "exact", mx.float16) is None


def test_the_default_model_answers_from_pages(engine: Engine) -> None:
    before = free_blocks(engine)
    answer = engine.generate(QUESTION)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
    assert answer.completion_tokens == len(answer.tokens) == 8
    assert answer.ttft > 0
    assert engine.attention.paged
    assert engine.attention.kernel == "native-cpu"
    assert free_blocks(engine) == before


def test_tokens_equal_plain_mlx_lm_whatever_the_chunks(engine: Engine) -> None:
    prompt = engine.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Explain in detail what a page table is, please."}],
        add_generation_prompt=True,
    )
    caches = make_prompt_cache(engine.model)
    logits = engine.model(mx.array([prompt]), cache=caches)
    expected = []
    for _ in range(24):
        expected.append(int(mx.argmax(logits[0, -1])))
        logits = engine.model(mx.array([expected[-1:]]), cache=caches)

    def greedy(logits: mx.array, _: int) -> Drawn:
        return Drawn(mx.argmax(logits, axis=-1))

    for chunk, lookahead in ((512, True), (7, False)):
        slot = engine.new_slot()
        list(prefill(engine.model, slot, prompt, chunk))
        assert list(decode(engine.model, slot, prompt[-1], greedy, 24, lookahead)) == expected
        slot.close()


def test_streamed_pieces_join_to_the_answer(engine: Engine) -> None:
    deltas = list(engine.stream(QUESTION, max_tokens=5))
    last = deltas[-1].completion
    assert last is not None
    assert all(d.completion is None for d in deltas[:-1])
    assert "".join(d.text for d in deltas) == last.text
    assert [d.token for d in deltas[:-1] if d.token is not None] == last.tokens
    assert last.finish_reason == "length"


def test_stop_strings_and_raw_prompts(engine: Engine) -> None:
    answer = engine.generate(QUESTION, stop=["France"])
    assert (answer.text, answer.finish_reason) == ("The capital of ", "stop")
    raw = engine.generate("1, 2, 3, 4,", raw=True, max_tokens=4)
    assert raw.prompt_tokens < 15
    ids = engine.tokenizer.encode("1, 2, 3, 4,")
    assert engine.generate(ids, max_tokens=4).tokens == raw.tokens


def test_a_second_turn_computes_only_what_is_new(engine: Engine) -> None:
    session = engine.chat()
    (*_, first) = session.ask(QUESTION)
    (*_, second) = session.ask("And of Italy?", max_tokens=8)
    assert first.completion is not None
    assert second.completion is not None
    assert first.completion.cached_tokens == 0
    new = second.completion.prompt_tokens - second.completion.cached_tokens
    assert second.completion.cached_tokens >= first.completion.prompt_tokens
    assert new < 20
    # The same conversation from scratch gives the same answer.
    alone = engine.generate(session.messages[:-1], max_tokens=8)
    assert alone.tokens == second.completion.tokens
    assert [m["role"] for m in session.messages] == ["user", "assistant"] * 2
    session.clear()
    assert session.messages == []
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]


def test_stopping_early_frees_pages_and_keeps_the_conversation_usable(engine: Engine) -> None:
    before = free_blocks(engine)
    answer = engine.stream(QUESTION)
    next(answer)
    assert free_blocks(engine) < before
    answer.close()
    assert free_blocks(engine) == before

    session = engine.chat()
    turn = session.ask(QUESTION)
    said = next(turn).text + next(turn).text
    turn.close()
    assert session.messages[-1] == {"role": "assistant", "content": said}
    (*_, after) = session.ask(QUESTION, max_tokens=8)
    assert after.completion is not None
    assert after.completion.cached_tokens > 30
    fresh = engine.generate(session.messages[:-1], max_tokens=8)
    assert after.completion.tokens == fresh.tokens
    session.close()


def test_a_step_that_breaks_off_is_mended(engine: Engine) -> None:
    """Ctrl-C can fall between any two layers of a forward pass."""
    session = engine.chat()
    turn = session.ask(QUESTION)
    next(turn)
    layer = engine.model.layers[17]
    original = type(layer)

    class Interrupted(original):  # type: ignore[misc,valid-type]
        def __call__(self, *_: object, **__: object) -> mx.array:
            raise KeyboardInterrupt

    layer.__class__ = Interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            list(turn)
    finally:
        layer.__class__ = original
    (*_, after) = session.ask(QUESTION, max_tokens=6)
    assert after.completion is not None
    assert after.completion.tokens == engine.generate(session.messages[:-1], max_tokens=6).tokens
    session.close()
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=2.0),
        Sampling(presence_penalty=1.5, frequency_penalty=0.5, temperature=0.7, seed=3),
        Sampling(logit_bias={504: -100.0}),
    ],
)
def test_penalties_and_bias_hold_alone_as_in_a_batch(engine: Engine, sampling: Sampling) -> None:
    prompt = engine.tokens("What is the capital of France?")
    alone = engine.generate(prompt, max_tokens=16, sampling=sampling).tokens
    assert alone != engine.generate(prompt, max_tokens=16).tokens
    with engine.batch() as batch:
        batch.submit(Request("same", prompt, max_tokens=16, sampling=sampling))
        outputs: list[Output] = []
        while batch.has_work:
            outputs += batch.step()
    assert [o.token for o in outputs if o.token is not None] == alone


def test_log_probabilities_are_not_silently_left_out(engine: Engine) -> None:
    wanted = Sampling(logprobs=3)
    for ask in (
        lambda: engine.stream("Hi", sampling=wanted),
        lambda: engine.chat().ask("Hi", sampling=wanted),
    ):
        with pytest.raises(RequestError, match=r"without log-probabilities.*Use Engine\.batch"):
            ask()


def test_seeds_repeat(engine: Engine) -> None:
    hot = pamx.Sampling(temperature=1.5, top_k=50, seed=11)
    first, second = (engine.generate(QUESTION, sampling=hot, max_tokens=8).tokens for _ in "ab")
    assert first == second


def test_asking_again_or_clearing_ends_the_turn_before(engine: Engine) -> None:
    session = engine.chat()
    first = session.ask(QUESTION)
    heard = next(first).text + next(first).text
    (*_, second) = session.ask("Say hello.", max_tokens=4)
    for _ in "ab":  # no end that could be taken for the answer's
        with pytest.raises(RequestError, match="broken off"):
            next(first)
    assert [m["content"] for m in session.messages[:3]] == [QUESTION, heard, "Say hello."]
    assert second.completion is not None
    assert second.completion.tokens == engine.generate(session.messages[:3], max_tokens=4).tokens
    third = session.ask("And again?")
    next(third)
    session.clear()
    with pytest.raises(RequestError, match="broken off"):
        next(third)
    assert session.messages == []
    fourth = session.ask("Bye.", max_tokens=2)
    list(fourth)
    session.clear()
    assert list(fourth) == []  # it had ended
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]


def test_a_long_prompt_can_be_stopped_between_its_pieces(engine: Engine) -> None:
    answer = engine.stream("word " * 90)
    assert next(answer).token is None
    answer.close()
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The prompt is empty"),
        ("  \n", "The prompt is empty"),
        ([], "The prompt is empty"),
        ([3, 10**9], r"Token id 1000000000 is not in the model's vocabulary of 49152 tokens"),
        ([-1], "Token id -1"),
        ("a\ud800", "half of a surrogate pair at character 1"),
        ([{"role": "user", "content": "\udfff"}], "half of a surrogate pair at character 0"),
        (b"bytes", "The prompt is bytes"),
        ("word " * 600, r"The prompt is 6\d\d tokens long, and the context is 256 tokens"),
    ],
)
def test_prompts_that_cannot_be_served(engine: Engine, prompt: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.stream(prompt)  # type: ignore[arg-type]


def test_an_answer_ends_where_the_context_does(small_engine: Engine) -> None:
    answer = small_engine.generate([5] * 61)
    assert (answer.finish_reason, answer.prompt_tokens + answer.completion_tokens) == ("length", 64)


def test_two_conversations_share_the_pool_or_say_that_it_is_full(small_engine: Engine) -> None:
    engine = small_engine
    first, second = engine.chat(), engine.chat()
    (*_, _) = first.ask("word " * 10, max_tokens=1)
    with pytest.raises(OutOfBlocksError, match="are free"):
        list(second.ask("word " * 10, max_tokens=1))
    first.close()
    (*_, last) = second.ask("Hello", max_tokens=1)
    assert last.completion is not None
    second.close()
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]


def test_wrong_requests_for_a_context(engine: Engine) -> None:  # noqa: ARG001  # fetched
    with pytest.raises(RequestError, match=r"more than the 8,192 that smollm2-135m was made for"):
        pamx.load(context=9000)
    with pytest.raises(RequestError, match="must be at least 1"):
        pamx.load(context=0)


def test_the_dense_fallback_answers_the_same(engine: Engine) -> None:
    """A model that pages do not serve runs on mlx-lm's own cache, trimming included."""
    slot = Slot(Dense(engine.model))
    prompt = engine.tokenizer.encode("One two three four five six seven")
    other = [*prompt[:-2], *prompt[-3:]]
    (*_, last) = engine.answer(slot, prompt, 4, pamx.Sampling(), ())
    (*_, again) = engine.answer(slot, other, 4, pamx.Sampling(), ())
    assert last.completion is not None
    assert again.completion is not None
    assert last.completion.tokens == engine.generate(prompt, max_tokens=4).tokens
    assert again.completion.cached_tokens > 0
    assert again.completion.tokens == engine.generate(other, max_tokens=4).tokens


def test_beam_search_finds_an_answer_at_least_as_likely_as_the_greedy_one(engine: Engine) -> None:
    greedy = engine.beam_search(QUESTION, beams=1, max_tokens=12)
    best, second = engine.beam_search(QUESTION, beams=2, max_tokens=12)
    assert greedy[0].text == "The capital of France is Paris."
    assert best.score >= second.score
    assert best.score >= greedy[0].score
    assert free_blocks(engine) == engine._paged.manager.num_blocks  # type: ignore[union-attr]
    with pytest.raises(RequestError, match=r"for each of 8 beams"):
        engine.beam_search(QUESTION, beams=8, max_tokens=200)


def test_a_load_that_fails_does_not_restore_what_it_throws_away(
    default_model_path: Path,  # noqa: ARG001  # fetched once
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where memory has ended, there is none to unpack weights into."""

    def full(*_: object) -> None:
        raise MemoryError

    def unpack(*_: object) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr("pamx.substitute.paged_model.PagedModel._make_pool", full)
    monkeypatch.setattr("pamx.native.matrices.Matrix.unpack", unpack)
    with pytest.raises(MemoryError):
        pamx.load(context=64)


@pytest.mark.parametrize("name", [5, b"org/model", ["x"]])
def test_what_is_no_name_is_refused_in_words(name: Any) -> None:
    with pytest.raises(RequestError, match="A model's name is wanted"):
        pamx.load(name)


def test_a_batch_has_a_largest_size(engine: Engine) -> None:
    with pytest.raises(RequestError, match="max_seqs is 4097; it must be from 1 to 4,096"):
        engine.batch(max_seqs=4097)


def test_a_batch_of_a_closed_engine_has_no_work(default_model_path: Path) -> None:  # noqa: ARG001
    """Else `while batch.has_work` would go on with steps that can only fail."""
    with pamx.load(context=64, compute="exact") as engine:
        batch = engine.batch(max_seqs=2)
        batch.submit(Request("a", engine.tokens(QUESTION), max_tokens=4))
        batch.step()
        assert batch.has_work
    assert not batch.has_work
    batch.close()
    assert not batch.has_work
