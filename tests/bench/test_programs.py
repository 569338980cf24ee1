"""The built-in programs as processes, on a tiny random model that both of them load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import llama

from pamx.bench.program import Program, ProgramRefusal
from pamx.bench.programs import memory

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
PAGES: dict[str, Any] = {"partition": None, "block_size": 16, "kv_dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path) -> Path:
    """Random weights under which tokens matter, and the default model's tokenizer."""
    mx.random.seed(5)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    plain = tree_flatten(model.parameters())
    model.update(tree_unflatten([(n, v + 0.1 * mx.random.normal(v.shape)) for n, v in plain]))
    found = tmp_path_factory.mktemp("model")
    mx.save_safetensors(str(found / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (found / "config.json").write_text(json.dumps(CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (found / name).write_bytes((default_model_path / name).read_bytes())
    return found


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Program]:
    with Program.built_in("pamx_engine", "pamx's engine") as program:
        program.hello(str(folder), "tiny", 0, {"compute": "exact"})
        yield program


@pytest.fixture(scope="module")
def peer(folder: Path) -> Iterator[Program]:
    with Program.built_in("mlx_lm", "mlx-lm") as program:
        program.hello(str(folder), "tiny", 0)
        yield program


def requests(engine: Program, lengths: list[int], tokens: int = 6) -> list[dict[str, Any]]:
    answer = engine.ask({"type": "prompts", "wishes": lengths, "seed": 0}, "prompts")
    assert [len(ids) for ids in answer["prompts"]] == lengths
    return [{"prompt": ids, "max_tokens": tokens} for ids in answer["prompts"]]


@pytest.mark.parametrize("lengths", [[40], [40, 40, 40]])
def test_both_give_the_same_tokens(engine: Program, peer: Program, lengths: list[int]) -> None:
    asked = requests(engine, lengths)
    ours = engine.run(1, asked, PAGES, memory=True)
    theirs = peer.run(1, asked, {}, memory=True)
    assert ours.tokens == theirs.tokens
    assert all(len(r.times) == 6 for r in (*ours.requests, *theirs.requests))
    for found in (ours, theirs):
        assert found.told["peak_memory_bytes"] > 50e6
        assert all(0 < r.ttft < r.e2e <= found.seconds for r in found.requests)
    assert ours.told["pages"] == 3 * len(lengths)  # 46 tokens
    # All at once: one step reads the prompts and gives first tokens, one for each token after it.
    assert ours.told["steps"] == 6


def test_a_run_repeats_itself_and_reuses_nothing(engine: Program) -> None:
    asked = requests(engine, [64, 64])
    first, second = (engine.run(number, asked, PAGES) for number in (1, 2))
    assert first.tokens == second.tokens
    assert second.told["cached_tokens"] == 0


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("partition", [None, 64, 512])
def test_the_partition_that_was_forced_ran(
    engine: Program, block_size: int, partition: int | None
) -> None:
    asked = requests(engine, [100])
    settings = PAGES | {"block_size": block_size, "partition": partition}
    found = engine.run(1, asked, settings)
    ran = found.told["dispatch"]
    assert ran["kernel"] == "native-cpu"
    assert ran["partition"] == (partition or 256)
    # Two layers; one chunk of prompt that gives the first token, five steps after it.
    assert ran["calls"] == {"native-cpu": 2 * 6}
    assert found.told["pages"] == -(-106 // block_size)
    by_rule = engine.run(2, asked, PAGES)
    assert by_rule.told["dispatch"]["partition"] == 256
    assert found.tokens == by_rule.tokens


def test_a_partition_that_cannot_be_is_refused_and_the_next_run_is_not(engine: Program) -> None:
    asked = requests(engine, [40])
    with pytest.raises(ProgramRefusal, match="32768"):
        engine.run(1, asked, PAGES | {"partition": 32768})
    assert engine.run(2, asked, PAGES).told["dispatch"]["partition"] == 256


def test_requests_that_come_later(engine: Program, peer: Program) -> None:
    asked = requests(engine, [20, 20, 20])
    for request, at in zip(asked, (0.0, 0.05, 0.3), strict=True):
        request["at"] = at
    for program, settings in ((engine, PAGES | {"max_seqs": 2}), (peer, {})):
        found = program.run(1, asked, settings)
        assert [r.submitted for r in found.requests] == [0.0, 0.05, 0.3]
        assert all(r.times[0] > r.submitted for r in found.requests)
        # Waiting for the last one is not part of anybody's latency.
        assert found.requests[0].ttft < 0.25


def test_what_does_not_fit(engine: Program, peer: Program) -> None:
    def fit(program: Program, settings: dict[str, Any], *shapes: tuple[int, int]) -> list[str]:
        question = {"type": "fit", "shapes": shapes, "settings": settings}
        found = program.ask(question, "fits")["unfit"]
        assert len(found) == len(shapes)
        return list(found)

    many = (2048, 10**7)
    for dtype, size in (("float32", 512), ("float16", 256)):  # 2 layers, K and V, 2 heads of 16
        good, long, wide = fit(engine, PAGES | {"kv_dtype": dtype}, (2048, 4), (2049, 1), many)
        assert good == ""
        assert "made for" in long
        assert f"take {(2048 + 16) * 10**7 * size:,} bytes" in wide
    good, wide = fit(peer, {}, (2048, 4), many)
    assert good == ""
    assert f"take {2048 * 10**7 * 512:,} bytes of dense cache" in wide
    # Scores of 8 prompts at a time, 4 heads, before and after softmax.
    assert f"{2 * 4 * 4 * 8 * 2048 * 2048:,} for the scores" in wide


def test_memory_is_that_of_one_arm_in_any_order(engine: Program) -> None:
    asked = requests(engine, [1900] * 8, tokens=2)

    def peak(number: int, dtype: str) -> tuple[int, int]:
        told = engine.run(number, asked, PAGES | {"kv_dtype": dtype}, memory=True).told
        assert told["peak_memory_of"] == memory.OF_PROCESS
        return told["peak_memory_bytes"], told["pool_bytes"]

    peak(0, "float16")  # what is loaded once
    found = [peak(n, d) for n, d in enumerate(("float32", "float16", "float32", "float16"), 1)]
    wide, narrow = found[0], found[1]
    # 8 sequences of 1,902 tokens in 120 pages of 16 each, 512 bytes a token in float32.
    assert wide[1] == 2 * narrow[1] == 8 * 120 * 16 * 512
    for (first, pool), (second, half) in zip(found[::2], found[1::2], strict=True):
        assert first - second == pytest.approx(pool - half, abs=2e6)
    assert found[2][0] == pytest.approx(wide[0], abs=2e6)
    assert found[3][0] == pytest.approx(narrow[0], abs=2e6)


def test_memory_of_runs_that_are_timed_is_not_asked_for(engine: Program, peer: Program) -> None:
    asked = requests(engine, [20])
    for program, settings in ((engine, PAGES), (peer, {})):
        assert program.run(1, asked, settings).told["peak_memory_bytes"] is None
        assert program.run(2, asked, settings, memory=True).told["peak_memory_bytes"] > 50e6
