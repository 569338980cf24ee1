"""`pamx doctor --plan`: which attention kernels a machine would run for given lengths, and why.

The machine need not be this one: the GPU's planner is pure arithmetic.
"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from pamx.cli.terminal import write_json

if TYPE_CHECKING:
    from pamx.native.gpu_plan import GpuAttentionPlan

_LARGEST = 1 << 30
_MOST = {"--cores": 1 << 20, "--window": _LARGEST, "--new": 1 << 24}
_BLOCK_SIZES = (8, 16, 32)


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

    geometry = _numbers("--heads", question.heads, (3, 4))
    heads, kv_heads, k_dim, v_dim = geometry if len(geometry) == 4 else (*geometry, geometry[2])
    if heads % kv_heads:
        raise typer.BadParameter(
            f"{heads} query heads are not a multiple of {kv_heads} KV heads.", param_hint="--heads"
        )
    _check_sizes(question)
    context = _numbers("--context", question.context)
    if len(context) == 1:
        context *= question.batch
    elif question.batch not in (1, len(context)):
        raise typer.BadParameter(
            f"it says {question.batch} sequences, --context {len(context)}.", param_hint="--batch"
        )
    if min(context) < question.new:
        raise typer.BadParameter(
            f"a sequence of {min(context)} tokens has no {question.new} new ones.",
            param_hint="--new",
        )
    if question.family is not None and not re.fullmatch(r"applegpu_g\d+[a-z]", question.family):
        raise typer.BadParameter(
            f"{question.family!r} is no architecture; one is applegpu_g15g.", param_hint="--family"
        )
    new = [question.new] * len(context)
    gpu = Gpu(question.cores or _cores_here(), question.family or "")
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
    cpu = None
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
    if json:
        write_json({"gpu": _gpu_json(planned), "cpu": None if cpu is None else asdict(cpu)})
        return
    from pamx.cli.tables import show

    texts = [("GPU", planned.text)] + ([("this CPU", cpu.text)] if cpu else [])
    for number, (title, text) in enumerate(texts):
        if number:
            typer.echo()
        rows = [line.partition(": ")[::2] for line in text.splitlines()]
        show((title, "plan"), rows)


def _check_sizes(question: Question) -> None:
    given = {"--cores": question.cores, "--window": question.window, "--new": question.new}
    for option, number in given.items():
        if number is not None and number > _MOST[option]:
            raise typer.BadParameter(
                f"{number} is more than {_MOST[option]}, the most that is planned for.",
                param_hint=option,
            )
    if question.block_size not in _BLOCK_SIZES:
        raise typer.BadParameter(
            f"a block has 8, 16 or 32 tokens, not {question.block_size}.",
            param_hint="--block-size",
        )


def _numbers(option: str, text: str, counts: tuple[int, ...] = ()) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    right = all(re.fullmatch("[0-9]{1,10}", part) for part in parts)
    right = right and all(1 <= int(part) < _LARGEST for part in parts)
    if not right or (counts and len(parts) not in counts):
        wanted = "query heads, KV heads and head size" if counts else "numbers of tokens"
        raise typer.BadParameter(
            f"{text!r} is not {wanted}, separated by commas.", param_hint=option
        )
    return [int(part) for part in parts]


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
