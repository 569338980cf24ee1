"""`pamx doctor --plan`: which attention kernels a machine would run for given lengths, and why.

The machine need not be this one: the GPU's planner is pure arithmetic.
"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from pamx.cli.doctor.plan_text import for_people
from pamx.cli.terminal import write_json
from pamx.errors import NativeError
from pamx.native.step_limits import (
    LONGEST_CONTEXT,
    MOST_HEADS,
    MOST_QUERY_TOKENS,
    against_head,
)

if TYPE_CHECKING:
    from pamx.native.gpu_plan import GpuAttentionPlan

_MOST = {"--cores": 1 << 20, "--window": LONGEST_CONTEXT, "--new": MOST_QUERY_TOKENS}
_BLOCK_SIZES = (8, 16, 32)
_LARGEST_HEAD = 256  # that pages hold
_LARGEST_LATENT = 512
_MOST_DIGITS = 40


@dataclass(frozen=True)
class Question:
    """What to plan.

    Attributes:
        heads: "QUERY,KV,SIZE" or "QUERY,KV,KEY_SIZE,VALUE_SIZE".
        context: Tokens of each sequence, comma-separated; one number stands for `batch` sequences.
        cores: Of the GPU; None: unknown, and this machine's CPU is planned for too.
        batch: Sequences.
        new: Tokens that each sequence brings; 1: decoding.
        block_size: Tokens a block.
        dtype: Of the model.
        family: The GPU's architecture, for example "applegpu_g15g"; None: unknown.
        window: Positions that a token sees; None: all.
        mla: Whether the cache is a latent one.
    """

    heads: str
    context: str
    cores: int | None
    batch: int
    new: int
    block_size: int
    dtype: str
    family: str | None
    window: int | None
    mla: bool


def explain(question: Question, json: bool) -> None:
    """Writes the GPU's plan, and without a number of cores this machine's CPU's, to stdout.

    Raises:
        BadParameter: a value makes no sense.
        NativeError: no kernel serves this, or the native library cannot be used.
    """
    from pamx.native.gpu_plan import Gpu, plan_gpu_attention
    from pamx.native.plan import plan_cpu_attention

    heads, kv_heads, k_dim, v_dim = _geometry(question)
    _check_sizes(question)
    context = _context(question)
    if question.family is not None and not re.fullmatch(r"applegpu_g\d+[a-z]", question.family):
        raise _wrong("--family", f"{question.family!r} is no architecture; one is applegpu_g15g.")
    new = [question.new] * len(context)
    gpu = Gpu(question.cores or _cores_here(), question.family or "")
    cpu = None
    try:
        planned = plan_gpu_attention(
            heads,
            kv_heads,
            k_dim,
            v_dim,
            new,
            context,
            gpu=gpu,
            block_size=question.block_size,
            dtype=question.dtype,
            window=question.window,
            mla=question.mla,
        )
        if question.cores is None and not question.mla:
            cpu = plan_cpu_attention(
                heads,
                kv_heads,
                k_dim,
                v_dim,
                new,
                context,
                window=question.window,
                block_size=question.block_size,
            )
    except NativeError as error:  # the library's own begin like a clause
        message = for_people(error.message)
        raise NativeError(f"{message[0].upper()}{message[1:]}", error.hint) from error
    if json:
        write_json({"gpu": _gpu_json(planned), "cpu": None if cpu is None else asdict(cpu)})
        return
    from pamx.cli.tables import show

    texts = [("on a GPU", planned.text)] + ([("on this CPU", cpu.text)] if cpu else [])
    for number, (title, text) in enumerate(texts):
        if number:
            typer.echo()
        rows = [line.partition(": ")[::2] for line in for_people(text).splitlines()]
        show((title, "plan"), rows)


def _geometry(question: Question) -> tuple[int, int, int, int]:
    """Query heads, KV heads, and the sizes of keys and values."""
    numbers = _numbers("--heads", question.heads, "query heads, KV heads and head size")
    if len(numbers) not in (3, 4):
        raise _wrong("--heads", f"it is 3 or 4 numbers, such as 32,8,128, not {len(numbers)}.")
    heads, kv_heads, k_dim = numbers[:3]
    v_dim = numbers[-1]
    if heads > MOST_HEADS:
        raise _wrong("--heads", f"a layer has at most {MOST_HEADS:,} query heads, not {heads:,}.")
    if heads % kv_heads:
        raise _wrong(
            "--heads", f"{heads:,} query heads are not a multiple of {kv_heads:,} KV heads."
        )
    if question.mla:
        if kv_heads != 1:
            raise _wrong("--heads", f"with --mla there is 1 KV head, not {kv_heads:,}.")
        sizes = {v_dim: "latent part", k_dim - v_dim: "rotary part"}
        for size, name in sizes.items():
            if against_head(size, _LARGEST_LATENT):
                raise _wrong(
                    "--heads",
                    "with --mla a key is a latent part, the value's size, and a rotary part, each "
                    f"a multiple of 8 up to {_LARGEST_LATENT}, but the {name} would have {size:,}.",
                )
        return heads, kv_heads, k_dim, v_dim
    for size in (k_dim, v_dim):
        if why := against_head(size, _LARGEST_HEAD):
            raise _wrong("--heads", f"{why}, not {size:,}.")
    return heads, kv_heads, k_dim, v_dim


def _context(question: Question) -> list[int]:
    """Tokens of each sequence."""
    context = _numbers("--context", question.context, "numbers of tokens")
    if max(context) > LONGEST_CONTEXT:
        raise _wrong(
            "--context",
            f"a sequence has at most {LONGEST_CONTEXT:,} tokens, not {max(context):,}.",
        )
    if len(context) == 1:
        context *= question.batch
    elif question.batch not in (1, len(context)):
        raise _wrong(
            "--batch", f"it says {question.batch:,} sequences, --context {len(context):,}."
        )
    if min(context) < question.new:
        raise _wrong(
            "--new", f"a sequence of {min(context):,} tokens has no {question.new:,} new ones."
        )
    if question.new * len(context) > MOST_QUERY_TOKENS:
        raise _wrong(
            "--new",
            f"a step has at most {MOST_QUERY_TOKENS:,} new tokens, not "
            f"{question.new * len(context):,}.",
        )
    return context


def _check_sizes(question: Question) -> None:
    given = {"--cores": question.cores, "--window": question.window, "--new": question.new}
    for option, number in given.items():
        if number is not None and number > _MOST[option]:
            raise _wrong(
                option, f"the most that is planned for is {_MOST[option]:,}, not {number:,}."
            )
    if question.block_size not in _BLOCK_SIZES:
        raise _wrong(
            "--block-size", f"a block has 8, 16 or 32 tokens, not {question.block_size:,}."
        )


def _numbers(option: str, text: str, wanted: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(f"[0-9]{{1,{_MOST_DIGITS}}}", part) and int(part) for part in parts):
        shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
        raise _wrong(
            option, f"{shown!r} is not {wanted}: whole numbers of at least 1, with commas."
        )
    return [int(part) for part in parts]


def _wrong(option: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(why, param_hint=option)


def _cores_here() -> int | None:
    """GPU cores of this machine, if it is a Mac that tells."""
    if sys.platform != "darwin":
        return None
    from pamx.cli.doctor.compute import gpu_core_count
    from pamx.cli.doctor.machine import output_of

    return gpu_core_count(output_of("ioreg", "-rc", "AGXAccelerator", "-d", "1"))


def _gpu_json(planned: GpuAttentionPlan) -> dict[str, Any]:
    def part(found: Any) -> dict[str, Any] | None:
        if found is None:
            return None
        return asdict(found) | {
            "kind": found.kind.name,
            "kernel": found.kernel.name.lower(),
            "turned_down": [{"path": path, "reason": why} for path, why in found.turned_down],
        }

    return {
        "decode": part(planned.decode),
        "prefill": part(planned.prefill),
        "scratch_bytes": planned.scratch_bytes,
        "launches": [
            {
                "function": run.launch.function,
                "rows": run.shape.rows,
                "grid": run.launch.grid,
                "threadgroup": run.launch.threadgroup,
            }
            for run in planned.launches
        ],
        "text": planned.text,
    }
