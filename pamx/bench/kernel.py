"""The attention call alone, in turn with copies and reads of as many bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pamx.bench.measure import Cell, Patience, measure, warm_up
from pamx.bench.metrics import CALL
from pamx.bench.program import Outcome, Program, ProgramRefusal
from pamx.bench.record import Record
from pamx.bench.results import cell_record, comparison_records, imprecise, measurement_warnings
from pamx.bench.statistics import typical
from pamx.bench.surroundings import noted
from pamx.bench.sweep import UnfitError
from pamx.bench.timetable import Timetable
from pamx.bench.workload import Arm, Workload
from pamx.errors import RequestError

MACHINE = ("copy", "read")
# Calls that read more than the largest cache holds are told as a share of a plain read; up to twice
# of it a part of their bytes may still be there. Where the system tells of no cache that all cores
# share, there may be one of so many bytes.
CACHES, LEAST_OF_MEMORY = 2, 64 << 20
# Between pages of different dtypes or partitions, relative to values near 1. More is a bug.
_LARGEST_ERROR = 0.02
# A sample takes milliseconds: --time ends a measurement, and this one that nothing makes narrow.
MOST_ROUNDS = 200


@dataclass(frozen=True)
class KernelPlan:
    """What to measure; `heads` are (query, KV, size), the rest is as in a sweep."""

    heads: tuple[int, int, int]
    workloads: Sequence[Workload]
    arms: Sequence[Arm]
    seconds: float | None
    precision: float
    seed: int
    threads: int | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KernelPlan:
        """Raises KeyError or TypeError if `value` is no plan."""
        fields = dict(value)
        fields["heads"] = tuple(value["heads"])
        fields["workloads"] = [Workload(**w) for w in value["workloads"]]
        fields["arms"] = [Arm(**a) for a in value["arms"]]
        return cls(**fields)


def kernel_arms(arms: Sequence[Arm]) -> list[Arm]:
    """A sweep's arms, and the machine's own: "auto" pages become float16."""
    found = []
    for arm in arms:
        dtype = arm.settings["kv_dtype"]
        settings = arm.settings | {"kv_dtype": "float16" if dtype == "auto" else dtype}
        found.append(replace(arm, settings=settings | {"what": "attention"}))
    base = found[0].settings
    return found + [Arm(what, "machine", base | {"what": what}) for what in MACHINE]


def model_heads(folder: Path) -> tuple[int, int, int]:
    """Query heads, KV heads and head size that a model's config.json tells.

    Raises:
        RequestError: it does not tell.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        config |= config.get("text_config") or {}
        query = int(config["num_attention_heads"])
        kv = int(config.get("num_key_value_heads") or query)
        dim = int(config.get("head_dim") or config["hidden_size"] // query)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise RequestError(
            f"{folder / 'config.json'} does not tell the model's heads.",
            "Say them: --heads QUERY,KV,SIZE.",
        ) from error
    return query, kv, dim


def measure_kernel(
    plan: KernelPlan,
    record: Record,
    save: Callable[[Record], None],
    progress: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Measures what the record lacks and there is time for, and saves it after each workload.

    Args:
        progress, tell: as for `sweep`.

    Raises:
        UnfitError: no workload fits into memory.
        ProgramError: the program failed.
    """
    with Program.built_in("attention_call", "the attention call") as program:
        progress("starting")
        said = program.hello("", "", plan.seed, {"threads": plan.threads})
        record["provenance"] |= {"library": said["library"], "heads": list(plan.heads)}
        done = {cell["workload"] for cell in record["cells"]}
        left = [w for w in plan.workloads if w.id not in done]
        shapes = [_settings(plan, w, plan.arms[0]) for w in left]
        reasons = program.ask({"type": "fit", "shapes": shapes}, "fits")["unfit"]
        unfit = {w.id: why for w, why in zip(left, reasons, strict=True) if why}
        if left and len(unfit) == len(left):
            why = unfit[left[0].id]
            raise UnfitError(why, "Ask for a smaller batch or context.", "--context and --batch")
        able = [w for w in left if w.id not in unfit]
        # A sample repeats calls for as long as any other does, whatever the workload.
        timetable = Timetable(plan.seconds, {w.id: 1.0 for w in able}, tell)

        def report(text: str) -> None:
            progress(timetable.words() + text)

        for workload in left:
            if (why := unfit.get(workload.id)) is not None:
                tell(f"{workload.id} does not fit, and is not measured. {why}")
                add_cells(record, [Cell(arm, invalid=why) for arm in plan.arms], workload)
                save(record)
                continue
            if not timetable.admits(workload):
                continue

            def run(arm: Arm, workload: Workload = workload) -> Outcome:
                return _run(program, _settings(plan, workload, arm))

            with noted(record, workload.id, lambda: [program.pid]):
                cells = warm_up(workload, plan.arms, run, report)
                measure(
                    cells,
                    workload,
                    run,
                    Patience(
                        timetable.share(workload, cells), plan.precision, most_rounds=MOST_ROUNDS
                    ),
                    plan.seed,
                    report,
                    decisive=(CALL,),
                )
            add_cells(record, cells, workload)
            record["warnings"] += imprecise(cells, workload, plan.precision, (CALL,), MOST_ROUNDS)
            save(record)
        record["complete"] = not timetable.without
        save(record)


def _settings(plan: KernelPlan, workload: Workload, arm: Arm) -> dict[str, Any]:
    shape = {"context": workload.context, "batch": workload.batch, "heads": plan.heads}
    return arm.settings | shape


def _run(program: Program, settings: dict[str, Any]) -> Outcome:
    answer = program.ask({"type": "call", "settings": settings}, "called")
    if answer.get("output_error", 0.0) > _LARGEST_ERROR:
        raise ProgramRefusal(
            f"its output differs from the first arm's by {answer['output_error']:.2g}."
        )
    figures = {"call": answer["seconds"], "bandwidth": answer["bytes"] / answer["seconds"]}
    figures["calls"] = answer["calls"]
    return Outcome([], figures, None, answer["seconds"], answer)


def add_cells(record: Record, cells: Sequence[Cell], workload: Workload) -> None:
    """Records what was measured, and each call's share of a plain read."""
    reading = next(c for c in cells if c.arm.id == "read")
    for cell in cells:
        found = cell_record(cell, workload, {})
        found |= _cached(found["pool_bytes"], record)
        if counts := cell.figures("calls"):
            found["calls"] = round(median(counts))
        # Not of the copy, which writes as much as it reads: a call only reads.
        if cell.arm.kind != "machine" and not cell.invalid and not found["fits_cache"]:
            found["share_of_read"] = _share(cell, reading)
        record["cells"].append(found)
    comparisons = comparison_records(cells, workload, record["plan"]["precision"], (CALL,))
    record["comparisons"] += comparisons
    record["warnings"] += measurement_warnings(cells, comparisons, workload, CALL.name)


def _cached(nbytes: int | None, record: Record) -> dict[str, bool]:
    """Whether caches may hold what calls read again and again, or a good part of it."""
    largest = record["provenance"]["machine"].get("cache_bytes")
    fits = nbytes is not None and nbytes < (largest or LEAST_OF_MEMORY)
    below = max(LEAST_OF_MEMORY, CACHES * (largest or 0))
    return {
        "fits_cache": fits,
        "partly_in_cache": nbytes is not None and not fits and nbytes < below,
    }


def _share(cell: Cell, machine: Cell) -> float | None:
    """Typical share of a bandwidth that was measured close to each sample."""
    pairs = zip(cell.figures("bandwidth"), machine.figures("bandwidth"), strict=False)
    found = typical([mine / theirs for mine, theirs in pairs])
    return None if found is None else found.value
