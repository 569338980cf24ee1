"""A sweep: programs are started once, every workload is measured by all arms, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from pamx.bench.measure import Cell, Patience, least_seconds, measure
from pamx.bench.metrics import DECISIVE
from pamx.bench.program import Outcome, Program, ProgramError, ProgramRefusal
from pamx.bench.record import Record
from pamx.bench.results import cell_record, comparison_records, imprecise, measurement_warnings
from pamx.bench.surroundings import noted
from pamx.bench.timetable import Timetable, work
from pamx.bench.workload import Arm, Workload
from pamx.errors import RequestError


@dataclass(frozen=True)
class ModelChoice:
    """What pamx's program loads; the fields are those of `pamx.load`."""

    name: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    compute: str | None = None
    threads: int | None = None

    def fields(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "compute": self.compute,
            "threads": self.threads,
        }


@dataclass(frozen=True)
class SweepPlan:
    """What to measure, and how long.

    Attributes:
        model: The model.
        workloads: In the order in which they are measured.
        arms: The first is what others are compared with.
        seconds: For all workloads, without loading.
        precision: See `Patience`.
        seed: Of prompts and of the order of arms.
        limits: For goodput, in seconds.
    """

    model: ModelChoice
    workloads: Sequence[Workload]
    arms: Sequence[Arm]
    seconds: float
    precision: float
    seed: int
    limits: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SweepPlan:
        """Raises KeyError or TypeError if `value` is no plan."""
        return cls(
            ModelChoice(**value["model"]),
            [Workload(**w) for w in value["workloads"]],
            [Arm(**a) for a in value["arms"]],
            value["seconds"],
            value["precision"],
            value["seed"],
            value["limits"],
        )


class UnfitError(RequestError):
    """What was asked for cannot be measured here; nothing has been measured yet.

    Args:
        message, hint: As for every error.
        option: What asked for it.
    """

    def __init__(self, message: str, hint: str, option: str) -> None:
        super().__init__(message, hint)
        self.option = option


class Programs:
    """The programs of a plan's arms, started when asked for; a context manager that ends them."""

    def __init__(self, model: ModelChoice, seed: int) -> None:
        self._model, self._seed = model, seed
        self._stack = ExitStack()
        self._started: dict[tuple[str, str | None], Program | ProgramError] = {}
        self._number = 0
        self.facts: dict[str, Any] = {}
        self.others: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Programs:
        self._stack.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def start_engine(self) -> Program:
        """pamx's own program, which loads the model first; the other programs need its facts."""
        engine = self._stack.enter_context(Program.built_in("pamx_engine", "pamx's engine"))
        self._started["pamx", None] = engine
        name = self._model.name or ""
        try:
            self.facts = engine.hello(name, name, self._seed, self._model.fields())
        except ProgramRefusal as error:
            raise UnfitError(error.message, error.hint, "--model") from error
        return engine

    def start(self, arm: Arm) -> None:
        """The program of an arm; one that does not start is remembered as failed."""
        key = (arm.kind, arm.command)
        if key in self._started:
            return
        program: Program | None = None
        try:
            if arm.kind == "mlx-lm":
                program = Program.built_in("mlx_lm", "mlx-lm")
            else:
                program = Program.of_command(arm.command or "")
            self._stack.enter_context(program)
            model = self.facts["model"]
            said = program.hello(
                model["path"],
                model["name"],
                self._seed,
                {"trust_remote_code": self._model.trust_remote_code},
            )
            self.others[arm.id] = {k: v for k, v in said.items() if k != "type"}
            self._started[key] = program
        except (ProgramError, ProgramRefusal) as error:
            self._started[key] = ProgramError(error.message, error.hint)
            if program is not None:
                program.kill()

    def run(self, arm: Arm, requests: Sequence[dict[str, Any]]) -> Outcome:
        program = self._started[arm.kind, arm.command]
        if isinstance(program, ProgramError):
            raise program
        self._number += 1
        try:
            return program.run(self._number, requests, arm.settings)
        except ProgramError as error:
            self._started[arm.kind, arm.command] = error
            program.kill()  # it may still compute, and would disturb the others
            raise

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._started.values() if isinstance(p, Program)]


def check_fit(engine: Program, plan: SweepPlan) -> None:
    """Raises UnfitError, with the arithmetic, if a workload does not fit."""
    pages = {
        (arm.settings["block_size"], arm.settings["kv_dtype"])
        for arm in plan.arms
        if arm.kind == "pamx"
    }
    shapes = [(w.context, w.batch) for w in plan.workloads]
    try:
        engine.ask({"type": "fit", "workloads": shapes, "pages": sorted(pages)}, "fits")
    except ProgramRefusal as error:
        raise UnfitError(error.message, error.hint, "--context and --batch") from error


def sweep(
    plan: SweepPlan,
    record: Record,
    save: Callable[[Record], None],
    progress: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Measures what the record lacks and there is time for, and saves it after each workload.

    Args:
        progress: Told what is done now.
        tell: Told what a person should know before it is done.

    Raises:
        UnfitError: the model cannot be loaded, or a workload does not fit.
        ProgramError: pamx's program failed.
    """
    with Programs(plan.model, plan.seed) as programs:
        progress("loading the model")
        engine = programs.start_engine()
        check_fit(engine, plan)
        for arm in plan.arms:
            if arm.kind != "pamx":
                progress(f"starting {arm.id}")
                programs.start(arm)
        record["provenance"] |= {
            "model": programs.facts["model"],
            "library": programs.facts["library"],
            "programs": programs.others,
        }
        done = {cell["workload"] for cell in record["cells"]}
        left = [w for w in plan.workloads if w.id not in done]
        timetable = Timetable(plan.seconds, {w.id: work(w) for w in left})
        for workload in left:
            if (share := timetable.share(workload)) is not None:
                least = _measure_one(
                    plan, workload, programs, engine, share, record, (progress, tell)
                )
                timetable.measured(workload, least)
                save(record)
        record["complete"] = not timetable.without
        save(record)


def _measure_one(
    plan: SweepPlan,
    workload: Workload,
    programs: Programs,
    engine: Program,
    seconds: float,
    record: Record,
    reports: tuple[Callable[[str], None], Callable[[str], None]],
) -> float:
    """Returns the least seconds that this workload could have taken."""
    lengths = [workload.prompt_tokens] * workload.batch
    answer = engine.ask({"type": "prompts", "wishes": lengths, "seed": plan.seed}, "prompts")
    requests = [
        {"prompt": ids, "text": text, "max_tokens": workload.output_tokens}
        for ids, text in zip(answer["prompts"], answer["texts"], strict=True)
    ]
    with noted(record, workload.id, lambda: programs.pids):
        cells = measure(
            workload,
            plan.arms,
            lambda arm: programs.run(arm, requests),
            Patience(seconds, plan.precision),
            plan.seed,
            *reports,
        )
    _add(record, cells, workload, plan.limits)
    record["warnings"] += imprecise(cells, workload, plan.precision, DECISIVE)
    return least_seconds(cells)


def _add(
    record: Record, cells: Sequence[Cell], workload: Workload, limits: Mapping[str, float]
) -> None:
    for cell in cells:
        record["cells"].append(cell_record(cell, workload, limits))
    comparisons = comparison_records(cells, workload, record["plan"]["precision"])
    record["comparisons"] += comparisons
    record["warnings"] += measurement_warnings(cells, comparisons, workload)
