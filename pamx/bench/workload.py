"""What is measured: workloads say how much work there is, arms say who does it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ArmKind = Literal["pamx", "mlx-lm", "external", "machine"]
CONTROL = "control"


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together, all of one length.

    Attributes:
        context: Tokens of a sequence when its answer is complete.
        batch: Sequences.
        output_tokens: Tokens of each answer.
    """

    context: int
    batch: int
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return self.context - self.output_tokens

    @property
    def id(self) -> str:
        return f"{self.context}x{self.batch}"


@dataclass(frozen=True)
class Arm:
    """Something that runs every workload.

    Attributes:
        id: Names it in tables and records.
        kind: Which program runs it; "machine" moves bytes and computes nothing.
        settings: What a request to pamx's program carries: partition (None: the planner's own),
            block_size, kv_dtype.
        command: The command line of an external program.
        control_of: The arm of which this one is an exact copy, measured to see how far two equal
            arms lie apart here.
    """

    id: str
    kind: ArmKind
    settings: dict[str, Any] = field(default_factory=dict)
    command: str | None = None
    control_of: str | None = None


def workloads(contexts: Sequence[int], batches: Sequence[int], output: int) -> list[Workload]:
    """Every context with every batch, the small ones first."""
    pairs = itertools.product(sorted(contexts), sorted(batches))
    return [Workload(context, batch, output) for context, batch in pairs]


def arms(
    partitions: Sequence[int | None],
    block_sizes: Sequence[int],
    kv_dtypes: Sequence[str],
    others: Sequence[str],
    control: bool,
) -> list[Arm]:
    """All arms; the first is what the others are compared with.

    Args:
        partitions: Tokens a partition of attention; None: the planner's choice, which comes first.
        others: "mlx-lm", or command lines.
        control: Whether to add a copy of the first arm.
    """
    partitions = sorted(partitions, key=lambda p: p is not None)
    found = []
    for block_size, kv_dtype, partition in itertools.product(block_sizes, kv_dtypes, partitions):
        words = [f"partition {partition or 'auto'}"] if len(partitions) > 1 or partition else []
        words += [f"KV {kv_dtype}"] if len(kv_dtypes) > 1 else []
        words += [f"pages of {block_size}"] if len(block_sizes) > 1 else []
        settings = {"partition": partition, "block_size": block_size, "kv_dtype": kv_dtype}
        found.append(Arm("pamx" + (f", {', '.join(words)}" if words else ""), "pamx", settings))
    for other in others:
        if other == "mlx-lm":
            found.append(Arm("mlx-lm", "mlx-lm"))
        else:
            taken = any(arm.id == other for arm in found)
            found.append(Arm(f"{other} (command)" if taken else other, "external", command=other))
    if control:
        base = found[0]
        found.insert(1, Arm(f"{base.id}, {CONTROL}", base.kind, base.settings, control_of=base.id))
    return found
