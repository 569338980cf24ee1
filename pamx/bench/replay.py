"""Replay: requests arrive over time, and what they experience under that load is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pamx.bench.arrivals import Arrival
from pamx.bench.measure import Cell, take_sample, timings
from pamx.bench.outputs import compare_outputs
from pamx.bench.program import ProgramRefusal
from pamx.bench.record import Record
from pamx.bench.results import cell_record
from pamx.bench.slo import meets
from pamx.bench.surroundings import noted
from pamx.bench.sweep import ModelChoice, Programs, UnfitError, check_fit
from pamx.bench.timetable import UNASKED, in_words
from pamx.bench.workload import Arm, Workload


@dataclass(frozen=True)
class ReplayPlan:
    """What to replay.

    Attributes:
        model: The model.
        arms: Each replays all of it, one after the other.
        arrivals: Ordered by arrival.
        max_seqs: Most answers in progress at a time.
        seed: Of made-up prompts.
        limits: For goodput, in seconds.
    """

    model: ModelChoice
    arms: Sequence[Arm]
    arrivals: Sequence[Arrival]
    max_seqs: int
    seed: int
    limits: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def replay(
    plan: ReplayPlan,
    record: Record,
    save: Callable[[Record], None],
    progress: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Replays the arrivals with each arm.

    Args:
        progress, tell: As for `sweep`.

    Raises:
        UnfitError: the model cannot be loaded, or a request does not fit.
        ProgramError: pamx's program failed.
    """
    with Programs(plan.model, plan.seed) as programs:
        progress("loading the model")
        engine = programs.start_engine()
        record["provenance"] |= {k: programs.facts[k] for k in ("model", "library")}
        together = min(plan.max_seqs, len(plan.arrivals))
        known = [a.prompt + a.output_tokens for a in plan.arrivals if isinstance(a.prompt, int)]
        _unfit(programs, plan, max(known, default=1), together)  # before prompts are made up
        wishes = [a.prompt for a in plan.arrivals]
        try:
            answer = engine.ask({"type": "prompts", "wishes": wishes, "seed": plan.seed}, "prompts")
        except ProgramRefusal as error:
            raise UnfitError(error.message, error.hint, "--trace") from error
        requests = [
            {"prompt": ids, "max_tokens": arrival.output_tokens, "at": arrival.at}
            for ids, arrival in zip(answer["prompts"], plan.arrivals, strict=True)
        ]
        longest = max(len(r["prompt"]) + r["max_tokens"] for r in requests)
        shape = Workload(longest, together, max(r["max_tokens"] for r in requests))
        unfit = _unfit(programs, plan, longest, together)
        if (last := plan.arrivals[-1].at) > UNASKED:
            arms = f", for each of {len(plan.arms)} arms" if len(plan.arms) > 1 else ""
            tell(f"The last request arrives after {in_words(last)}{arms}.")
        base: Cell | None = None
        for arm in plan.arms:
            pool = (-(-longest // 32) + 1) * 32 * together  # one block to spare for each
            room = {"max_seqs": together, "pool_tokens": pool}
            own = Arm(arm.id, arm.kind, arm.settings | room)
            if arm.id in unfit:
                cell = Cell(own, invalid=unfit[arm.id])
            else:
                cell = _replay_one(own, requests, programs, progress, record)
            base = base or cell
            if cell is not base and not cell.invalid:
                cell.outputs = compare_outputs(base.tokens, cell.tokens, base.arm.id)
            found = cell_record(cell, shape, plan.limits)
            found |= {"workload": "replay", "replay": _summary(cell, requests, plan.limits)}
            record["cells"].append(found)
            save(record)
        record["complete"] = True
        save(record)


def _unfit(programs: Programs, plan: ReplayPlan, longest: int, together: int) -> dict[str, str]:
    """Why so many requests of that many tokens do not fit, by arm; UnfitError if none can run."""
    try:
        return check_fit(programs, {"replay": (longest, together)}, plan.arms).get("replay", {})
    except UnfitError as error:
        raise UnfitError(error.message, error.hint, "--max-seqs and lengths") from error


def _replay_one(
    arm: Arm,
    requests: Sequence[dict[str, Any]],
    programs: Programs,
    progress: Callable[[str], None],
    record: Record,
) -> Cell:
    cell = Cell(arm)
    progress(f"replay: warming up {arm.id}")
    first = [r | {"at": 0.0} for r in requests[:2]]
    wanted = arm.settings.get("partition")
    try:
        with noted(record, arm.id, lambda: programs.pids):
            programs.run(arm, first)
            progress(f"replay: {len(requests)} requests, {arm.id}")
            outcome = programs.run(arm, requests, memory=True)
    except ProgramRefusal as error:
        cell.invalid = error.message
        return cell
    cell.told, cell.tokens = outcome.told, outcome.tokens
    ran = outcome.told.get("dispatch") or {}
    if wanted is not None and outcome.told.get("cannot_force"):
        cell.invalid = outcome.told["cannot_force"]
    elif wanted is not None and ran.get("partition") != wanted:
        cell.invalid = f"partition {wanted} was asked for; {ran.get('partition')} ran."
    take_sample(cell, outcome, 0, 0, 0.0)
    return cell


def _summary(
    cell: Cell, requests: Sequence[dict[str, Any]], limits: Mapping[str, float]
) -> dict[str, Any]:
    """What the engine did: how long, for how many within the limits, how pages were shared out."""
    met = [meets(timing, limits) for sample in cell.samples for timing in timings(sample)]
    last = max((r["times"][-1] for s in cell.samples for r in s["requests"]), default=None)
    return {
        "requests": len(requests),
        "seconds": last,
        "offered_per_s": len(requests) / requests[-1]["at"] if requests[-1]["at"] > 0 else None,
        "met": sum(met) if limits and met else None,
        "preemptions": cell.told.get("preemptions"),
        "steps": cell.told.get("steps"),
    }
