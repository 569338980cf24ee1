"""An engine is for one thread at a time and for nobody once it is closed, and says so."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import pamx
import pamx.models
from pamx.engine import Engine
from pamx.errors import ModelError, NativeError, PamxError, RequestError

QUESTION = "What is the capital of France?"
OTHER = "Count to ten, please."


@pytest.fixture(scope="module")
def engine(default_model_path: Path) -> Iterator[Engine]:  # noqa: ARG001  # fetched once
    with pamx.load(context=128, sequences=8) as engine:
        yield engine


def in_thread(job: Callable[[], Any]) -> Any:
    """What `job` returns or raises on a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(job())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def uses(engine: Engine) -> dict[str, Callable[[], Any]]:
    """Everything that a person can call, begun before another thread came."""
    session, turn = engine.chat(), engine.chat().ask("Hi")
    stream = engine.stream(QUESTION)
    batch = engine.batch()
    return {
        "generate": lambda: engine.generate(QUESTION, max_tokens=2),
        "stream": lambda: engine.stream(QUESTION),
        "next of a stream": lambda: next(stream),
        "tokens": lambda: engine.tokens(QUESTION),
        "batch": lambda: engine.batch(),
        "beam_search": lambda: engine.beam_search(QUESTION, beams=2, max_tokens=2),
        "chat": lambda: engine.chat(),
        "ask": lambda: session.ask("Hi"),
        "next of a turn": lambda: next(turn),
        "step": lambda: batch.step(),
        "with": lambda: engine.__enter__(),
    }


def ends(engine: Engine) -> dict[str, Callable[[], Any]]:
    """What may be called of a closed engine, too."""
    session, stream, batch = engine.chat(), engine.stream(QUESTION), engine.batch()
    return {
        "close of a stream": lambda: stream.close(),  # type: ignore[attr-defined]
        "close of a chat": lambda: session.close(),
        "close of a batch": lambda: batch.close(),
        "close": lambda: engine.close(),
    }


def test_whatever_a_second_thread_calls_it_is_told(engine: Engine) -> None:
    expected = engine.generate(QUESTION).tokens
    calls = uses(engine) | ends(engine)
    with engine.gate:
        refused = {name: in_thread(call) for name, call in calls.items()}
    for name, error in refused.items():
        assert isinstance(error, PamxError), name
        assert "Another thread is using this engine" in str(error), name
    assert engine.generate(QUESTION).tokens == expected


def test_threads_that_crowd_get_the_right_answer_or_a_refusal(engine: Engine) -> None:
    prompts = [engine.tokens(text) for text in (QUESTION, OTHER)]
    expected = [engine.generate(prompt, max_tokens=24).tokens for prompt in prompts]
    together = threading.Barrier(4)

    def crowd(i: int) -> list[Any]:
        together.wait()
        found: list[Any] = []
        for _ in range(5):
            try:
                found.append(engine.generate(prompts[i % 2], max_tokens=24).tokens)
            except PamxError as error:
                found.append(str(error))
        return found

    results: dict[int, list[Any]] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.__setitem__(i, crowd(i)))  # type: ignore[misc]
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]
    answers = [(i, answer) for i, found in results.items() for answer in found]
    for i, answer in answers:
        assert answer == expected[i % 2] or "Another thread" in answer
    assert any("Another thread" in answer for _, answer in answers)
    assert engine.generate(prompts[0], max_tokens=24).tokens == expected[0]
    gc.collect()
    assert engine.paged is not None
    assert engine.paged.manager.num_used == 0


def test_threads_may_take_turns(engine: Engine) -> None:
    """Each token of two answers and of a batch on another thread than the one before."""
    prompts = [engine.tokens(text) for text in (QUESTION, OTHER)]
    expected = [engine.generate(prompt, max_tokens=12) for prompt in prompts]
    streams = [iter(engine.stream(prompt, max_tokens=12)) for prompt in prompts]
    last: list[Any] = [None, None]
    with engine.batch(max_seqs=2) as batch:
        for i, prompt in enumerate(prompts):
            batch.submit(pamx.Request(str(i), prompt, max_tokens=12))
        batched: dict[str, list[int]] = {}
        going = True
        while going:
            going = False
            for i, stream in enumerate(streams):
                delta = in_thread(lambda stream=stream: next(stream, None))  # type: ignore[misc]
                if delta is not None:
                    last[i], going = delta, True
            for output in in_thread(batch.step):
                if output.completion:
                    batched[output.request_id] = output.completion.tokens
            going = going or batch.has_work
    assert [delta.completion.tokens for delta in last] == [e.tokens for e in expected]
    assert [batched["0"], batched["1"]] == [e.tokens for e in expected]


def test_any_thread_may_submit_and_cancel_while_one_steps(engine: Engine) -> None:
    prompt = engine.tokens(QUESTION)
    expected = engine.generate(prompt, max_tokens=6).tokens
    with engine.batch(max_seqs=4) as batch:
        batch.submit(pamx.Request("first", prompt, max_tokens=6))
        refused: list[str] = []

        def client(name: str) -> None:
            for number in range(6):
                batch.submit(pamx.Request(f"{name}{number}", prompt, max_tokens=6))
                try:
                    batch.submit(pamx.Request(f"{name}{number}", prompt, max_tokens=6))
                except RequestError as error:
                    refused.append(str(error))
                if number % 2:
                    batch.cancel(f"{name}{number}")

        clients = [threading.Thread(target=client, args=(name,)) for name in "abc"]
        for thread in clients:
            thread.start()
        ends = {}
        while any(thread.is_alive() for thread in clients) or batch.has_work:
            for output in batch.step():
                if output.completion:
                    assert output.request_id not in ends
                    ends[output.request_id] = output.completion
    assert len(ends) == 19
    for name, end in ends.items():
        if end.finish_reason == "cancelled":
            assert name != "first"
            assert end.tokens == expected[: len(end.tokens)]
        else:
            assert end.tokens == expected
    assert all("unfinished request" in text for text in refused)


def test_a_cancelled_stranger_does_not_end_a_later_request(engine: Engine) -> None:
    with engine.batch() as batch:
        batch.cancel("x")
        batch.submit(pamx.Request("x", engine.tokens(QUESTION), max_tokens=2))
        reasons = []
        while batch.has_work:
            reasons += [o.completion.finish_reason for o in batch.step() if o.completion]
    assert reasons == ["length"]


def test_a_closed_engine_says_so(default_model_path: Path) -> None:  # noqa: ARG001
    with pamx.load(context=64, sequences=4) as engine:
        prompt = engine.tokens(QUESTION)
        stream = engine.stream(prompt)
        next(stream)
        batch = engine.batch()
        batch.submit(pamx.Request("x", prompt, max_tokens=4))
        batch.step()
        calls = uses(engine) | {
            "the rest of a stream": lambda: next(stream),
            "another step": lambda: batch.step(),
            "submit": lambda: batch.submit(pamx.Request("y", prompt)),
        }
        closing = ends(engine)
    for name, call in calls.items():
        with pytest.raises(RequestError, match=r"^The engine is closed") as caught:
            call()
        assert caught.value.hint, name
    for _ in range(2):
        for call in closing.values():
            call()
    batch.close()


def test_a_closed_batch_says_so(engine: Engine) -> None:
    batch = engine.batch()
    batch.close()
    batch.close()
    for call in (batch.step, batch.__enter__):
        with pytest.raises(RequestError, match="This batch is closed"):
            call()


@pytest.mark.parametrize("place", ["pool", "native pool", "weights", "interrupt"])
@pytest.mark.parametrize("compute", ["fast", "mlx"])
def test_an_engine_that_cannot_be_made_leaves_the_model_as_it_was(
    default_model_path: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    compute: Any,
) -> None:
    loaded = pamx.models.load(lazy=False)

    def logits() -> mx.array:
        found: mx.array = loaded.model(mx.array([[1, 5, 9, 100]]))
        return found

    expected, modules = logits(), [(m, type(m)) for m in loaded.model.modules()]

    def fail(*_: Any, **__: Any) -> Any:
        if place == "interrupt":
            raise KeyboardInterrupt
        if place == "native pool":
            raise NativeError("there is no memory for 9 bytes.")
        raise RuntimeError("[malloc] Unable to allocate 9 bytes.")

    def unreadable(*_: Any) -> Any:
        raise ModelError("The weights cannot be read.")

    if place == "weights":
        monkeypatch.setattr("pamx.models.read_weights", unreadable)
    else:
        # The first pools are those of the check; a model that passed it before has none.
        make = pamx.kv.pool.LayerPool

        def later(geometry: Any, num_blocks: int, *rest: Any) -> Any:
            return fail() if num_blocks == 4 else make(geometry, num_blocks, *rest)

        monkeypatch.setattr("pamx.kv.pool.LayerPool", later)
    wrong = KeyboardInterrupt if place == "interrupt" else PamxError
    with pytest.raises(wrong) as caught:
        Engine(loaded, context=64, compute=compute)
    if "pool" in place:
        assert "The system refuses the" in str(caught.value)
    assert [(m, type(m)) for m in loaded.model.modules()] == modules
    assert mx.array_equal(logits(), expected)
    monkeypatch.undo()
    with Engine(loaded, context=64, compute=compute) as engine:
        assert engine.generate(QUESTION).text == "The capital of France is Paris."
