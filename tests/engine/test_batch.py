"""Batch equals solo: a request's tokens do not depend on what it shares a step with."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from pamx.engine.batch import BatchEngine, Output
from pamx.engine.request import Request
from pamx.engine.sampling import Sampling
from pamx.engine.scheduler import Chunk, Plan, Scheduler
from pamx.engine.sequence import Sequence
from pamx.errors import RequestError
from pamx.kv import BlockCopy, BlockTable
from pamx.kv.swap import SwapSpace
from pamx.substitute.admission import Admission
from pamx.substitute.paged_model import PagedModel

VOCABULARY = 2000
Tokens = dict[tuple[str, int], list[int]]


@pytest.fixture(scope="module")
def tokenizer(default_model_path: Path) -> TokenizerWrapper:
    return load_tokenizer(default_model_path)


@pytest.fixture(scope="module")
def paged() -> Iterator[PagedModel]:
    model = families.make("llama", vocab_size=VOCABULARY, max_position_embeddings=4096)
    with PagedModel(model, context=8192) as paged:
        yield paged


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.8, top_p=0.9, seed=2, repetition_penalty=1.3),
    Sampling(temperature=1.2, top_k=30, min_p=0.02, seed=3),
    Sampling(presence_penalty=0.4, frequency_penalty=0.3, logit_bias={7: 2.0, 9: -50.0}),
]


def make_requests(count: int, longest: int, seed: int = 0) -> list[Request]:
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(longest // 2)]
    requests = []
    for number in range(count):
        length = int(longest ** rng.random())  # from 1 to `longest`, as many short as long
        own = [rng.randrange(3, VOCABULARY) for _ in range(length)]
        common = rng.choice([0, 0, len(shared) // 2, len(shared)])
        requests.append(
            Request(
                f"request-{number}",
                [*shared[:common], *own][:longest],
                max_tokens=rng.randint(1, 24),
                sampling=SAMPLINGS[number % len(SAMPLINGS)],
                min_tokens=rng.choice([0, 0, 1]),
                priority=rng.choice([0, 0, 0, 3]),
            )
        )
    return requests


def run(
    paged: PagedModel,
    tokenizer: Any,
    requests: list[Request],
    *,
    arrive: Callable[[int], int] = lambda _: 0,
    **options: Any,
) -> tuple[Tokens, BatchEngine]:
    """Answers `requests`, the i-th of which arrives before step `arrive(i)`."""
    before = paged.manager.num_used
    done: Tokens = {}
    todo = [(arrive(i), r) for i, r in enumerate(requests)]
    with BatchEngine(paged, tokenizer, 4096, **options) as batch:
        steps = 0
        while todo or batch.has_work:
            for entry in [e for e in todo if e[0] <= steps]:
                batch.submit(entry[1])
                todo.remove(entry)
            for output in batch.step():
                if output.completion:
                    done[output.request_id, output.index] = output.completion.tokens
            steps += 1
    assert paged.manager.num_used == before, "a page was lost"
    return done, batch


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return make_requests(64, 2000)


@pytest.fixture(scope="module")
def solo(paged: PagedModel, tokenizer: TokenizerWrapper, requests: list[Request]) -> Tokens:
    """Each request alone, without a prefix cache, its prompt in one piece."""
    tokens: Tokens = {}
    for request in requests:
        options = {"prefix_cache": False, "token_budget": 4096}
        tokens |= run(paged, tokenizer, [request], **options)[0]
    assert len({tuple(t) for t in tokens.values()}) > 50, "the requests are too alike"
    return tokens


def test_solo_equals_mlx_lm(paged: PagedModel, requests: list[Request], solo: Tokens) -> None:
    """The greedy ones against mlx-lm's own cache: the anchor of everything below."""
    model = paged._model
    for request in [r for r in requests if r.sampling == SAMPLINGS[0] and not r.min_tokens][:5]:
        caches = make_prompt_cache(model)
        logits = model(mx.array([request.prompt]), cache=caches)
        expected = solo[request.id, 0]
        for token in expected:
            assert mx.argmax(logits[0, -1]).item() == token
            logits = model(mx.array([[token]]), cache=caches)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token_budget": 37, "max_seqs": 5},
        {"token_budget": 2048, "max_seqs": 64, "prefix_cache": False},
        {"max_seqs": 1},
    ],
    ids=str,
)
def test_all_together(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    solo: Tokens,
    options: dict[str, Any],
) -> None:
    found, batch = run(paged, tokenizer, requests, **options)
    assert found == solo
    stats = batch.stats()
    assert (stats.cached_tokens > 0) == options.get("prefix_cache", True)
    assert stats.completion_tokens == sum(map(len, solo.values()))


@pytest.mark.parametrize("seed", [1, 2])
def test_in_any_order_and_at_any_time(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    solo: Tokens,
    seed: int,
) -> None:
    rng = random.Random(seed)
    shuffled = rng.sample(requests, len(requests))
    assert run(paged, tokenizer, shuffled, arrive=lambda _: rng.randrange(60))[0] == solo


@pytest.mark.parametrize("tier", ["recompute", "ram", "disk", "damaged"])
def test_preempted_at_random_steps(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    solo: Tokens,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    rng = random.Random(tier)
    original = Scheduler._continue

    def sometimes(self: Scheduler, sequence: Sequence, plan: Plan) -> None:
        if rng.random() < 0.08:
            self._preempt(sequence, plan)
        else:
            original(self, sequence, plan)

    monkeypatch.setattr(Scheduler, "_continue", sometimes)
    batches: list[BatchEngine] = []
    damaged = []

    def prefer_swap(sequence: Sequence) -> bool:
        swap = batches[0]._swap
        if tier == "damaged":
            for path in tmp_path.glob("*/*.kv"):
                if rng.random() < 0.5:
                    path.write_bytes(path.read_bytes()[:-1])
                    damaged.append(path)
        return tier != "recompute" and swap.reserve(sequence.id, len(sequence.table.blocks))

    made = BatchEngine.__init__

    def remember(self: BatchEngine, *args: Any, **kwargs: Any) -> None:
        batches.append(self)
        made(self, *args, **kwargs)

    monkeypatch.setattr(BatchEngine, "__init__", remember)
    room = {"swap_ram": 1 << 28} if tier == "ram" else {"swap_disk": 1 << 28}
    found, batch = run(
        paged, tokenizer, requests, prefer_swap=prefer_swap, swap_folder=tmp_path, **room
    )
    assert found == solo
    stats = batch.stats()
    assert stats.preemptions > 20
    assert (stats.swaps > 10) == (tier != "recompute")
    assert bool(damaged) == (tier == "damaged")
    assert list(tmp_path.iterdir()) == [], "swap files were left behind"


def test_a_pool_that_is_much_too_small_for_all(tokenizer: TokenizerWrapper) -> None:
    """Running out of pages is ordinary: everybody waits, is preempted, and ends."""
    model = families.make("gemma3_text", vocab_size=VOCABULARY, max_position_embeddings=4096)
    requests = make_requests(20, 60, seed=4)
    with PagedModel(model, context=4096) as roomy:
        solo: Tokens = {}
        for request in requests:
            solo |= run(roomy, tokenizer, [request])[0]
    with PagedModel(model, context=112, block_size=8) as paged:
        found, batch = run(paged, tokenizer, requests, max_seqs=12, token_budget=64)
        assert found == solo
        assert batch.stats().peak_blocks <= 14


def test_a_model_that_cannot_be_packed_in_rows_runs_one_by_one(
    tokenizer: TokenizerWrapper,
) -> None:
    model = families.make("qwen3", vocab_size=VOCABULARY)
    requests = make_requests(8, 100, seed=6)
    found = {}
    for rows, select in ((True, True), (False, True), (False, False), (True, False)):
        with PagedModel(model, context=2048, admission=Admission(rows, select)) as paged:
            found[rows, select] = run(paged, tokenizer, requests)[0]
    assert len({str(sorted(f.items())) for f in found.values()}) == 1


def test_samples_of_one_prompt_share_its_pages(
    paged: PagedModel, tokenizer: TokenizerWrapper
) -> None:
    """n samples of a long prompt take the prompt's pages once, and n tails."""
    prompt = make_requests(1, 2000, seed=8)[0].prompt
    prompt = (prompt * 2000)[:1000]
    sampling = Sampling(temperature=1.0, seed=5)
    request = Request("many", prompt, max_tokens=20, sampling=sampling, n=6)
    with BatchEngine(paged, tokenizer, 4096, prefix_cache=False) as batch:
        batch.submit(request)
        answers: dict[int, list[int]] = {}
        while batch.has_work:
            for output in batch.step():
                if output.completion:
                    answers[output.index] = output.completion.tokens
        size = paged.manager.block_size
        prompt_blocks, tails = 1000 // size, 6 * (-(-(1000 % size + 20) // size))
        assert batch.stats().peak_blocks <= prompt_blocks + tails
    assert sorted(answers) == list(range(6))
    assert len({tuple(a) for a in answers.values()}) > 1
    again, _ = run(paged, tokenizer, [request], max_seqs=2, token_budget=100)
    assert again == {("many", i): tokens for i, tokens in answers.items()}


def test_cancelling_frees_pages_and_reports_what_there_is(
    paged: PagedModel, tokenizer: TokenizerWrapper
) -> None:
    first, second = (
        Request(name, [5, 6, 7 + i], max_tokens=200) for i, name in enumerate(["first", "second"])
    )
    with BatchEngine(paged, tokenizer, 4096, prefix_cache=False) as batch:
        batch.submit(first)
        batch.submit(second)
        outputs: list[Output] = []
        for _ in range(6):
            outputs += batch.step()
        batch.cancel("first")
        outputs += batch.step()
        (end,) = [o for o in outputs if o.completion]
        assert end.completion is not None
        assert (end.request_id, end.completion.finish_reason) == ("first", "cancelled")
        heard = [o.token for o in outputs if o.request_id == "first" and o.token is not None]
        assert end.completion.tokens == heard
        assert batch.has_work
    assert paged.manager.num_used == 0, "closing ends what is left"


def test_every_sample_of_a_cancelled_request_is_reported(
    paged: PagedModel, tokenizer: TokenizerWrapper
) -> None:
    """Also of one that has not been forked, or of which some samples are over."""
    prompt = list(range(5, 105))
    with BatchEngine(paged, tokenizer, 4096, max_seqs=2, token_budget=40) as batch:
        for steps in (0, 1, 2, 3, 4, 30):
            batch.submit(Request("many", prompt, max_tokens=20, n=3))
            outputs: list[Output] = []
            for _ in range(steps):
                outputs += batch.step()
            batch.cancel("many")
            while batch.has_work:
                outputs += batch.step()
            ends = [o.index for o in outputs if o.completion]
            assert sorted(ends) == [0, 1, 2], steps


@pytest.mark.parametrize("call", [1, 2, 3, 5, 8, 13, 21])
@pytest.mark.parametrize("place", ["forward", "copy", "draw", "settle"])
def test_a_step_that_breaks_off_loses_no_answer_and_gives_no_wrong_one(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    solo: Tokens,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    call: int,
) -> None:
    """As Ctrl-C does, between any two things that a step does."""
    some = requests[:8]
    calls = 0

    def breaking(inner: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise KeyboardInterrupt
            return inner(*args, **more)

        return wrapper

    with BatchEngine(paged, tokenizer, 4096, max_seqs=4) as batch:
        owner, name = {
            "forward": (paged, "forward"),
            "copy": (paged.pool, "copy"),
            "draw": (batch, "_draw"),
            "settle": (batch, "_take"),
        }[place]
        monkeypatch.setattr(owner, name, breaking(getattr(owner, name)))
        for request in some:
            batch.submit(request)
        ends: list[Output] = []
        broken = 0
        for _ in range(2000):
            if not batch.has_work:
                break
            try:
                ends += [o for o in batch.step() if o.completion or o.error]
            except KeyboardInterrupt:
                broken += 1
                with pytest.raises(RequestError, match="broken off"):
                    batch.submit(replace(some[0], id="another"))
        assert not batch.has_work
        assert broken == 1
        assert sorted(o.request_id for o in ends) == sorted(r.id for r in some)
        for end in ends:
            if end.completion:
                assert end.completion.tokens == solo[end.request_id, end.index]
            else:
                assert "broken off" in str(end.error)
        assert any(end.error for end in ends)
        assert paged.manager.num_used == 0
    monkeypatch.undo()
    again, _ = run(paged, tokenizer, some)
    assert again == {key: tokens for key, tokens in solo.items() if key in again}


def test_a_batch_that_nobody_closes_gives_its_pages_back(
    paged: PagedModel, tokenizer: TokenizerWrapper
) -> None:
    free = paged.manager.num_free
    for number in range(3):
        batch = BatchEngine(paged, tokenizer, 4096)
        batch.submit(Request("left", [5 + number] * 70, max_tokens=100))
        for _ in range(3):
            batch.step()
        assert paged.manager.num_free < free
        del batch
        gc.collect()
        assert paged.manager.num_free == free


def test_pages_that_somebody_else_holds_are_an_error_and_no_hang(
    tokenizer: TokenizerWrapper,
) -> None:
    model = families.make("llama", vocab_size=VOCABULARY)
    with PagedModel(model, context=128) as paged:
        other = paged.sequence()
        mx.eval(model(mx.array([[5] * 100]), cache=other.caches))
        with BatchEngine(paged, tokenizer, 4096) as batch:
            batch.submit(Request("large", [5] * 60, max_tokens=4, n=2))
            batch.submit(Request("small", [6] * 3, max_tokens=4))
            outputs = []
            for _ in range(50):
                outputs += batch.step()
            assert not batch.has_work
        errors = {(o.request_id, o.index): str(o.error) for o in outputs if o.error}
        assert list(errors) == [("large", 0), ("large", 1)]
        assert "needs 4 blocks of 16 tokens now" in errors["large", 1]
        assert [o.request_id for o in outputs if o.completion] == ["small"]
        other.close()
        assert paged.manager.num_used == 0


def test_a_copy_reads_its_block_before_a_restored_sequence_gets_it(
    tokenizer: TokenizerWrapper,
) -> None:
    """A fork's block may be given away in the very round in which the copy is planned."""
    model = families.make("llama", vocab_size=VOCABULARY)
    with (
        PagedModel(model, context=64, block_size=8) as paged,
        BatchEngine(paged, tokenizer, 64, swap_ram=1 << 20) as batch,
    ):
        layer = paged.pool.layers[0]
        for block in range(8):
            layer.keys[block] = float(block)
        mx.eval(layer.keys)
        sequence, other = (Sequence(i, [1] * 8, 8, 9, BlockTable(paged.manager)) for i in range(2))
        assert batch._swap.reserve(0, 1)
        batch._swap.save(0, [7])
        plan = Plan(
            chunks=[Chunk(other, 0, 1, False, [BlockCopy(3, 5), BlockCopy(6, 3)])],
            swap_in=[(sequence, [6])],
        )
        batch._runner.move_pages(plan)
        assert [layer.keys[b].max().item() for b in (5, 3, 6)] == [3, 6, 7]


def test_cached_blocks_that_nobody_uses_give_way_to_others(tokenizer: TokenizerWrapper) -> None:
    model = families.make("llama", vocab_size=VOCABULARY)
    with PagedModel(model, context=128) as paged, BatchEngine(paged, tokenizer, 128) as batch:
        batch.submit(Request("x", [5] * 100, max_tokens=4))
        while batch.has_work:
            batch.step()
        assert paged.manager.num_free <= 2
        sequence = paged.sequence()
        mx.eval(model(mx.array([[7] * 120]), cache=sequence.caches))
        sequence.close()


def test_nothing_is_accepted_after_the_end(paged: PagedModel, tokenizer: TokenizerWrapper) -> None:
    batch = BatchEngine(paged, tokenizer, 4096, vocabulary=VOCABULARY)
    for wrong in (-4, VOCABULARY):
        with pytest.raises(RequestError, match=f"Token id {wrong} is not in the model's"):
            batch.submit(Request("x", [5, wrong]))
    batch.close()
    batch.close()
    with pytest.raises(RequestError, match="This batch is closed"):
        batch.submit(Request("x", [5]))


def test_logprobs_are_those_of_the_model(paged: PagedModel, tokenizer: TokenizerWrapper) -> None:
    request = Request("x", [5, 6, 7], max_tokens=3, sampling=Sampling(logprobs=4))
    with BatchEngine(paged, tokenizer, 4096) as batch:
        batch.submit(request)
        outputs = []
        while batch.has_work:
            outputs += [o for o in batch.step() if o.token is not None]
    tokens = list(request.prompt)
    for output in outputs:
        logits = paged._model(mx.array([tokens]))[0, -1]
        expected = logits - mx.logsumexp(logits)
        assert output.logprobs is not None
        assert output.token is not None
        assert output.logprobs.chosen == pytest.approx(expected[output.token].item(), abs=1e-4)
        assert len(output.logprobs.top) == 4
        assert max(output.logprobs.top, key=output.logprobs.top.__getitem__) == output.token
        tokens.append(output.token)


def test_stop_tokens_and_the_least_number_of_tokens(
    paged: PagedModel, tokenizer: TokenizerWrapper
) -> None:
    plain, _ = run(paged, tokenizer, [Request("x", [5, 6, 7], max_tokens=8)])
    tokens = plain["x", 0]
    stop = frozenset({tokens[2]})
    first = tokens.index(tokens[2])
    stopped, _ = run(paged, tokenizer, [Request("x", [5, 6, 7], max_tokens=8, stop_tokens=stop)])
    assert stopped["x", 0] == tokens[: first + 1]
    later, _ = run(
        paged, tokenizer, [Request("x", [5, 6, 7], max_tokens=8, stop_tokens=stop, min_tokens=6)]
    )
    assert len(later["x", 0]) >= 6
    assert not stop & set(later["x", 0][:6])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": []}, "The prompt is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"max_tokens": 2, "min_tokens": 3}, "more than max_tokens"),
        ({"n": 0}, "n is 0"),
        ({"prompt": [1] * 4096}, "context is 4,096 tokens"),
    ],
)
def test_requests_that_cannot_be_served(
    paged: PagedModel, tokenizer: TokenizerWrapper, wrong: dict[str, Any], message: str
) -> None:
    with BatchEngine(paged, tokenizer, 4096) as batch:
        with pytest.raises(RequestError, match=message):
            batch.submit(Request(**{"id": "x", "prompt": [1], **wrong}))
        assert not batch.has_work
        batch.submit(Request("x", [1]))
        with pytest.raises(RequestError, match="unfinished request with the id 'x'"):
            batch.submit(Request("x", [1]))


@pytest.mark.parametrize("place", ["drop", "close"])
def test_closing_that_breaks_off_can_be_done_again(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    batch = BatchEngine(paged, tokenizer, 4096, max_seqs=4)
    for request in requests[:6]:
        batch.submit(request)
    for _ in range(4):
        batch.step()
    owner = {"drop": batch._scheduler, "close": batch._swap}[place]

    def breaking(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, breaking)
        with pytest.raises(KeyboardInterrupt):
            batch.close()
    batch.close()
    batch.close()
    assert paged.manager.num_used == 0


def test_what_breaks_off_twice_still_ends_every_answer_once(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second Ctrl-C while the first one is dealt with."""
    drop = Scheduler.drop
    with BatchEngine(paged, tokenizer, 4096, max_seqs=3) as batch:
        for request in requests[:6]:
            batch.submit(request)
        batch.step()
        batch.submit(requests[6])
        calls = 0

        def breaking(self: Scheduler, sequence: Sequence) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt
            drop(self, sequence)

        monkeypatch.setattr(Scheduler, "drop", breaking)
        with monkeypatch.context() as patch:
            patch.setattr(batch, "_advance", lambda: mx.array([1]).reshape(2))
            with pytest.raises(KeyboardInterrupt):
                batch.step()
        ends = []
        for _ in range(5):
            if not batch.has_work:
                break
            ends += [o for o in batch.step() if o.error]
        assert not batch.has_work
        assert sorted(o.request_id for o in ends) == sorted(r.id for r in requests[:7])
    assert paged.manager.num_used == 0


def test_restoring_that_breaks_off_leaves_a_pool_that_can_be_used(
    paged: PagedModel,
    tokenizer: TokenizerWrapper,
    requests: list[Request],
    solo: Tokens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C between two layers' pages."""
    swap = SwapSpace(paged.pool, ram_bytes=1 << 24)
    assert swap.reserve(0, 2)
    swap.save(0, [3, 4])
    calls = 0
    prod = np.prod

    def breaking(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return prod(*args)

    with monkeypatch.context() as patch:
        patch.setattr("pamx.kv.swap.np.prod", breaking)
        with pytest.raises(KeyboardInterrupt):
            swap.restore(0, [5, 6])
    found, _ = run(paged, tokenizer, requests[:2])
    assert found == {key: tokens for key, tokens in solo.items() if key in found}
