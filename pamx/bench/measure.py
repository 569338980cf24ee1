"""One workload, all arms: warm-up, checks, mirrored rounds until the figures are narrow enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pamx.bench.metrics import DECISIVE, Metric
from pamx.bench.order import rounds
from pamx.bench.outputs import compare_outputs
from pamx.bench.program import Outcome, ProgramError, ProgramRefusal
from pamx.bench.statistics import FEWEST, drift, paired_ratio, typical
from pamx.bench.timing import RequestTiming
from pamx.bench.workload import Arm, Workload

# A round gives two pairs of samples.
FEWEST_ROUNDS, MOST_ROUNDS = FEWEST // 2, 40
# Before that, an interval may be narrow by chance.
ROUNDS_TO_BE_NARROW = 4
# Looking again only when there are so many times as many: it takes longer the more there are.
_LOOK_AGAIN = 1.1

Run = Callable[[Arm], Outcome]


@dataclass(frozen=True)
class Patience:
    """When a measurement ends.

    Attributes:
        seconds: Most time for the rounds of a workload. One sample of every arm is always taken; a
            round that would not be over in time is not begun.
        precision: Half the width of an interval, relative, that is narrow enough.
        clock: Tells the time.
        most_rounds: However much time is left.
    """

    seconds: float
    precision: float
    clock: Callable[[], float] = time.monotonic
    most_rounds: int = MOST_ROUNDS


@dataclass
class Cell:
    """One arm on one workload while it is measured."""

    arm: Arm
    invalid: str = ""
    failed: bool = False
    outputs: dict[str, Any] | None = None
    tokens: list[list[int]] | None = None
    told: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    other_outputs: int = 0
    warm_up: float = 0.0  # seconds

    def figures(self, metric: str) -> list[float]:
        """In the order of rounds and halves, so that arms' samples are pairs."""
        ordered = sorted(self.samples, key=lambda s: (s["block"], s["half"]))
        return [s["figures"][metric] for s in ordered if metric in s["figures"]]


def warm_up(
    workload: Workload,
    arms: Sequence[Arm],
    run: Run,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    unfit: Mapping[str, str] = MappingProxyType({}),
) -> list[Cell]:
    """Runs every arm once, and compares what they answer with the first that can be measured.

    Args:
        progress: Told what is done now.
        clock: Tells the time.
        unfit: Why an arm must not run, by its id.

    Raises:
        ProgramError: the program of the first arm, which the others are compared with, failed.
    """
    cells = [Cell(arm, invalid=unfit.get(arm.id, "")) for arm in arms]
    warm: list[Cell] = []
    for cell in cells:
        if cell.arm.control_of == cells[0].arm.id:  # what it runs is warm
            cell.invalid, cell.told = cells[0].invalid, cells[0].told
            cell.tokens, cell.warm_up = cells[0].tokens, cells[0].warm_up
            continue
        if cell.invalid:
            continue
        progress(f"{workload.id}: warming up {cell.arm.id}")
        cold = clock()
        with _told_if_base_fails(cell is cells[0], workload):
            _warm_up(cell, workload, run, is_base=cell is cells[0])
        cell.warm_up = clock() - cold
        if warm and not cell.invalid:
            cell.outputs = compare_outputs(warm[0].tokens, cell.tokens, warm[0].arm.id)
        warm += [] if cell.invalid else [cell]
    return cells


def measure(
    cells: Sequence[Cell],
    workload: Workload,
    run: Run,
    patience: Patience,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
    decisive: Sequence[Metric] = DECISIVE,
) -> None:
    """Has the cells that are warm and valid take turns until their figures are known.

    Args:
        progress: Told what is done now.
        decisive: What must be known narrowly enough before the measurement ends early.

    Raises:
        ProgramError: the program of the first arm failed.
    """
    able = [cell for cell in cells if not cell.invalid]
    begin = patience.clock()
    end = begin + patience.seconds

    def take(turns: Sequence[tuple[int, Cell]], number: int) -> None:
        for half, cell in turns:
            if not cell.invalid:
                progress(f"{workload.id}: round {number + 1}, {cell.arm.id}")
                at = patience.clock() - begin
                with _told_if_base_fails(cell is cells[0], workload):
                    _sample(cell, workload, run, (number, half, at), cell is cells[0])

    look = ROUNDS_TO_BE_NARROW
    for number, turns in enumerate(rounds(able, seed)):
        if number == patience.most_rounds or not able:
            break
        now = patience.clock()
        if number and now + (now - begin) / number > end:
            break  # another round would not be over in time
        take(turns[: len(able)], number)
        now = patience.clock()
        if not number and now + (now - begin) > end:
            break  # nor would the other half of the first
        take(turns[len(able) :], number)
        if number + 1 >= look:
            if narrow(able, decisive, patience.precision):
                break
            look = math.ceil(_LOOK_AGAIN * look)


def warm_up_seconds(cells: Sequence[Cell]) -> float:
    """What warming up took; a control runs what is warm."""
    return sum(cell.warm_up for cell in cells if cell.arm.control_of is None)


def verdict_seconds(cells: Sequence[Cell]) -> float:
    """What the rounds that a verdict needs will take, as far as the warm-up tells."""
    return 2 * FEWEST_ROUNDS * sum(cell.warm_up for cell in cells if not cell.invalid)


def _warm_up(cell: Cell, workload: Workload, run: Run, is_base: bool) -> None:
    try:
        outcome = run(cell.arm)
    except ProgramError as error:
        if is_base:
            raise
        cell.invalid, cell.failed = f"it failed: {error.message}", True
        return
    except ProgramRefusal as error:
        cell.invalid = error.message
        return
    cell.told, cell.tokens = outcome.told, outcome.tokens
    cell.invalid = _why_invalid(cell.arm, workload, outcome)


def _why_invalid(arm: Arm, workload: Workload, outcome: Outcome) -> str:
    """Why an arm's figures would not mean what its name says, or ""."""
    for number, request in enumerate(outcome.requests):
        if (count := len(request.times)) != workload.output_tokens:
            return (
                f"it gave {count} of {workload.output_tokens} tokens to request {number}, so it "
                "did other work."
            )
    wanted = arm.settings.get("partition")
    if wanted is None:
        return ""
    if reason := outcome.told.get("cannot_force"):
        return str(reason)
    ran = outcome.told.get("dispatch", {})
    if ran.get("partition") != wanted:
        return (
            f"partition {wanted} was asked for; {ran.get('kernel')} ran with "
            f"{ran.get('partition') or 'none'}."
        )
    return ""


@contextmanager
def _told_if_base_fails(is_base: bool, workload: Workload) -> Iterator[None]:
    """Says which workload it was that ended the whole measurement."""
    try:
        yield
    except ProgramError as error:
        if not is_base:
            raise
        raise ProgramError(f"{workload.id}: {error.message}", error.hint) from error


def _sample(
    cell: Cell, workload: Workload, run: Run, place: tuple[int, int, float], is_base: bool
) -> None:
    try:
        outcome = run(cell.arm)
    except (ProgramError, ProgramRefusal) as error:
        if is_base:
            raise
        cell.invalid, cell.failed = f"it failed: {error.message}", True
        return
    cell.invalid = _why_invalid(cell.arm, workload, outcome)
    cell.other_outputs += outcome.tokens != cell.tokens
    take_sample(cell, outcome, *place)


def take_sample(cell: Cell, outcome: Outcome, block: int, half: int, at: float) -> None:
    """Notes what a run brought; `at`: seconds since the measurement began."""
    cell.samples.append(
        {
            "block": block,
            "half": half,
            "at": round(at, 6),
            "figures": outcome.figures,
            "requests": [_request(r) for r in outcome.requests],
            "peak_memory_bytes": outcome.told.get("peak_memory_bytes"),
        }
    )


def _request(timing: RequestTiming) -> dict[str, Any]:
    return {
        "submitted": round(timing.submitted, 7),
        "prompt_tokens": timing.prompt_tokens,
        "times": [round(t, 7) for t in timing.times],
    }


def timings(sample: dict[str, Any]) -> list[RequestTiming]:
    """The requests of a recorded sample."""
    return [
        RequestTiming(r["submitted"], tuple(r["times"]), r["prompt_tokens"])
        for r in sample["requests"]
    ]


def narrow(cells: Sequence[Cell], decisive: Sequence[Metric], precision: float) -> bool:
    """Whether every comparison with the first arm, or its own figures alone, are narrow enough."""
    able = [cell for cell in cells if not cell.invalid]
    if not able:
        return True
    base, *others = able
    for metric in decisive:
        mine = base.figures(metric.name)
        if not mine:
            continue
        if not others:
            found = typical(mine)
            if found is None or (found.high - found.low) / 2 > precision * found.value:
                return False
        for other in others:
            ratio = paired_ratio(
                mine, other.figures(metric.name), smaller_is_better=metric.smaller_is_better
            )
            if ratio is None or (ratio.high - ratio.low) / 2 > precision * ratio.ratio:
                return False
    return True


def drifting(base: Cell, metric: str) -> float | None:
    """Relative change of a figure over the measurement, if it is worth a warning."""
    ordered = sorted(base.samples, key=lambda s: s["at"])
    found = drift([s["figures"][metric] for s in ordered])
    return found.change if found is not None and found.marked else None
