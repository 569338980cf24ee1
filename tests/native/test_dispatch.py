"""What is said of the kernels that ran, and partitions that are forced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from pamx.attention.backend import Backend, native_backend, reference_backend
from pamx.attention.layer import PagedAttentionLayer
from pamx.attention.step import SequenceSlice
from pamx.errors import NativeError
from pamx.native.dispatch import (
    DispatchKind,
    dispatch_counts,
    force_partition,
    last_dispatch,
    last_dispatches,
    last_partition_size,
    set_dispatch_diagnostics,
)
from pamx.native.partitions import against_partition
from pamx.native.plan import plan_cpu_attention

CPU, REFERENCE = DispatchKind.Cpu, DispatchKind.Reference
HEADS, KV_HEADS, DIM = 6, 2, 64
BY_RULE = plan_cpu_attention(HEADS, KV_HEADS, DIM, DIM, [1], [1]).partition


@pytest.fixture(autouse=True)
def diagnostics() -> Iterator[None]:
    set_dispatch_diagnostics(True)
    yield
    force_partition(None)
    set_dispatch_diagnostics(False)


def queue(
    context: int = 40,
    queries: int = 1,
    backend: Backend | None = None,
    block_size: int = 16,
    seed: int = 0,
) -> mx.array:
    """Queues one call; evaluates nothing."""
    rng = np.random.default_rng(seed)
    blocks = -(-context // block_size)
    layer = PagedAttentionLayer(
        num_blocks=blocks,
        block_size=block_size,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        backend=backend or native_backend(),
    )
    table = rng.permutation(blocks).tolist()
    k, v = (
        mx.array(rng.standard_normal((context, KV_HEADS, DIM)).astype(np.float32)) for _ in range(2)
    )
    q = mx.array(rng.standard_normal((context, HEADS, DIM)).astype(np.float32))
    if context > queries:
        first = context - queries
        mx.eval(layer(q[:first], k[:first], v[:first], [SequenceSlice(table, first, first)]))
        q, k, v = q[first:], k[first:], v[first:]
    return layer(q, k, v, [SequenceSlice(table, context, queries)])


def test_the_last_call_is_known_before_it_runs() -> None:
    out = queue(context=9, queries=9)
    before = dispatch_counts()[CPU]
    assert (last_dispatch(), last_partition_size()) == (CPU, BY_RULE)
    assert before == dispatch_counts()[CPU]
    mx.eval(out)
    assert dispatch_counts()[CPU] == before + 1
    mx.eval(queue(context=9, queries=9, backend=reference_backend("")))
    assert (last_dispatch(), last_partition_size()) == (REFERENCE, 0)
    mx.eval(queue())
    assert last_dispatch() is CPU
    assert len(last_dispatches()) == 1


def test_reference_calls_are_counted() -> None:
    before = dispatch_counts()
    mx.eval(queue(context=9, queries=9, backend=reference_backend("")))
    after = dispatch_counts()
    assert after[REFERENCE] == before[REFERENCE] + 1
    assert after[CPU] == before[CPU]
    assert set(after) == set(DispatchKind)


def test_each_thread_remembers_its_own_and_only_if_asked() -> None:
    queue()
    found: list[object] = []

    def elsewhere() -> None:
        found.append(last_dispatch())
        queue()
        found.append(last_dispatch())
        found.append(set_dispatch_diagnostics(True))
        queue(backend=reference_backend(""))
        found.append(last_dispatch())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [None, None, False, REFERENCE]
    assert last_dispatch() is CPU
    assert set_dispatch_diagnostics(False) is True
    assert last_dispatch() is last_partition_size() is None


def test_a_forced_partition_is_the_one_that_runs() -> None:
    expected = np.array(queue(context=700))
    for tokens in (16, 64, 128, 512, 1024):
        force_partition(tokens)
        out = queue(context=700)
        assert last_partition_size() == tokens
        force_partition(None)  # queued calls keep theirs
        np.testing.assert_allclose(np.array(out), expected, atol=2e-6)
        assert plan_cpu_attention(HEADS, KV_HEADS, DIM, DIM, [1], [1]).partition == BY_RULE
    queue()
    assert last_partition_size() == BY_RULE


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize(("context", "queries"), [(333, 1), (333, 3), (333, 200)])
def test_forced_partitions_of_every_kind_are_right(
    block_size: int, context: int, queries: int
) -> None:
    expected = np.array(queue(context, queries, block_size=block_size))
    for tokens in (max(16, block_size), 96, 224, 16_384):
        force_partition(tokens)
        found = np.array(queue(context, queries, block_size=block_size))
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_bits_do_not_depend_on_company_under_a_forced_partition() -> None:
    """The rule's partition has tests of its own; these rows are cut otherwise."""
    rng = np.random.default_rng(1)
    force_partition(64)

    def attend(slices: list[SequenceSlice], tokens: list[int]) -> np.ndarray:
        layer = PagedAttentionLayer(
            num_blocks=64,
            block_size=16,
            kv_heads=KV_HEADS,
            head_dim=DIM,
            backend=native_backend(),
        )
        q, k, v = (
            mx.array(np.concatenate([data[n] for n in tokens])) for data in (queries, keys, values)
        )
        return np.array(layer(q, k, v, slices))

    shape = {500: 500, 300: 300, 16: 16}
    queries, keys, values = (
        {n: rng.standard_normal((n, heads, DIM)).astype(np.float32) for n in shape}
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    tables = {500: list(range(32)), 300: list(range(32, 51)), 16: [51]}
    together = attend([SequenceSlice(tables[n], n, n) for n in shape], list(shape))
    alone = [attend([SequenceSlice(tables[n], n, n)], [n]) for n in shape]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_a_partition_that_cannot_be_forced_is_an_error() -> None:
    force_partition(24)
    with pytest.raises(NativeError, match=r"24 tokens are forced; they must be a multiple.* 16"):
        queue()
    with pytest.raises(NativeError, match="multiple of the block size, 16"):
        plan_cpu_attention(HEADS, KV_HEADS, DIM, DIM, [1], [1])
    with pytest.raises(NativeError, match=r"24 tokens are forced; on a CPU .* multiple of 16"):
        queue(block_size=8)
    force_partition(16_400)
    with pytest.raises(NativeError, match="a CPU has up to 16384"):
        queue()
    force_partition(64)
    with pytest.raises(NativeError, match="plain MLX operations"):
        queue(backend=reference_backend(""))
    with pytest.raises(NativeError, match="cannot have 0 tokens"):
        force_partition(0)


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_what_is_refused_before_is_what_a_call_refuses(block_size: int) -> None:
    for tokens in (8, 16, 24, 32, 40, 48, 64, 72, 100, 160):
        force_partition(tokens)
        if against_partition(tokens, block_size):
            with pytest.raises(NativeError, match="must be a multiple"):
                queue(block_size=block_size)
        else:
            queue(block_size=block_size)


def test_the_forced_partition_is_said() -> None:
    force_partition(96)
    text = plan_cpu_attention(HEADS, KV_HEADS, DIM, DIM, [1], [5000]).text
    assert f"partition: 96 tokens, which are forced; by rule it would be {BY_RULE}." in text


@pytest.mark.parametrize(
    ("value", "said"),
    [("128", "128"), ("20", "multiple of the block size"), ("x", "PAMX_FORCE_PARTITION is 'x'")],
)
def test_the_environment_forces_it_on_every_thread(value: str, said: str) -> None:
    code = (
        "from pamx.native.dispatch import *\n"
        "from pamx.attention import selftest\n"
        "set_dispatch_diagnostics(True)\n"
        "result = selftest.run('native-cpu')\n"
        "print(last_partition_size(), result.passed)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PAMX_FORCE_PARTITION": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in (done.stdout if value == "128" else done.stderr)
    assert (done.returncode == 0) == (value == "128")


def test_without_the_library_only_plain_operations_are_known() -> None:
    code = (
        "from pamx.native.dispatch import *\n"
        "from pamx.attention import selftest\n"
        "set_dispatch_diagnostics(True)\n"
        "selftest.run('mlx')\n"
        "print(last_dispatch().name, last_partition_size(), dispatch_counts()[DispatchKind.Cpu])"
    )
    env = os.environ | {"PAMX_DISABLE_NATIVE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "Reference 0 0\n"
    env |= {"PAMX_FORCE_PARTITION": "256"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "plain MLX operations" in done.stderr
