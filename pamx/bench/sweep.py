"""A sweep: programs are started once, every workload is measured by all arms, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from pamx.bench.measure import Cell, Patience, measure, warm_up
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
        seconds: For all workloads, without loading; None: as `Timetable` has it.
        precision: See `Patience`.
        seed: Of prompts and of the order of arms.
        limits: For goodput, in seconds.
    """

    model: ModelChoice
    workloads: Sequence[Workload]
    arms: Sequence[Arm]
    seconds: float | None
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

    def run(self, arm: Arm, requests: Sequence[dict[str, Any]], *, memory: bool = False) -> Outcome:
        """One sample; see `Program.run`."""
        program = self._started[arm.kind, arm.command]
        if isinstance(program, ProgramError):
            raise program
        self._number += 1
        try:
            return program.run(self._number, requests, arm.settings, memory=memory)
        except ProgramError as error:
            self._started[arm.kind, arm.command] = error
            program.kill()  # it may still compute, and would disturb the others
            raise

    def prompts(self, lengths: Sequence[int], answer: int) -> list[dict[str, Any]]:
        """Requests with made-up prompts of these lengths, the same ones for the same seed."""
        engine = self._started["pamx", None]
        assert isinstance(engine, Program)
        wishes = {"type": "prompts", "wishes": list(lengths), "seed": self._seed}
        found = engine.ask(wishes, "prompts")
        return [
            {"prompt": ids, "text": text, "max_tokens": answer}
            for ids, text in zip(found["prompts"], found["texts"], strict=True)
        ]

    def unfit(self, arm: Arm, shapes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Why shapes (context, batch) do not fit, by their name; nothing of programs that cannot
        tell."""
        program = self._started.get((arm.kind, arm.command))
        if arm.kind not in ("pamx", "mlx-lm") or not isinstance(program, Program):
            return {}
        question = {"type": "fit", "shapes": list(shapes.values()), "settings": arm.settings}
        reasons = program.ask(question, "fits")["unfit"]
        return {name: why for name, why in zip(shapes, reasons, strict=True) if why}

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._started.values() if isinstance(p, Program)]


Unfit = dict[str, dict[str, str]]


def check_fit(
    programs: Programs, shapes: Mapping[str, tuple[int, int]], arms: Sequence[Arm]
) -> Unfit:
    """Which arms must not run a shape, since it does not fit, and why; before any is run.

    Args:
        shapes: Context and batch, by a name.
        arms: Those of pamx, and of others whose program can tell.

    Returns:
        Reasons by the arm's id, by the shape's name; all arms of a shape that no arm of pamx can
        run, since there is nothing to compare.

    Raises:
        UnfitError: nothing fits.
    """
    found: Unfit = {}
    for arm in arms:
        for name, why in programs.unfit(arm, shapes).items():
            found.setdefault(name, {})[arm.id] = why
    own = [arm.id for arm in arms if arm.kind == "pamx"]
    for reasons in found.values():
        if all(arm in reasons for arm in own):
            for arm in arms:
                reasons.setdefault(arm.id, f"no arm of pamx fits: {reasons[own[0]]}")
    if all(len(found.get(name, ())) == len(arms) for name in shapes):
        why = next(iter(found.values()))[own[0]]
        raise UnfitError(why, "Ask for a smaller batch or context.", "--context and --batch")
    return found


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
        UnfitError: the model cannot be loaded, or no workload fits.
        ProgramError: pamx's program failed.
    """
    with Programs(plan.model, plan.seed) as programs:
        progress("loading the model")
        programs.start_engine()
        done = {cell["workload"] for cell in record["cells"]}
        left = [w for w in plan.workloads if w.id not in done]
        shapes = {w.id: (w.context, w.batch) for w in left}
        own = [arm for arm in plan.arms if arm.kind == "pamx"]
        check_fit(programs, shapes, own)  # before other programs take their time to load
        for arm in plan.arms:
            if arm.kind != "pamx":
                progress(f"starting {arm.id}")
                programs.start(arm)
        record["provenance"] |= {
            "model": programs.facts["model"],
            "library": programs.facts["library"],
            "programs": programs.others,
        }
        unfit = check_fit(programs, shapes, plan.arms)
        able = [w for w in left if len(unfit.get(w.id, ())) < len(plan.arms)]
        timetable = Timetable(plan.seconds, {w.id: work(w) for w in able}, tell)
        for workload in left:
            reasons = unfit.get(workload.id, {})
            if reasons:
                tell(_unfit_words(workload, reasons, plan.arms))
            if workload not in able:
                cells = [Cell(arm, invalid=reasons[arm.id]) for arm in plan.arms]
                _add(record, cells, workload, plan.limits)
                save(record)
            elif timetable.admits(workload):
                _measure_one(plan, workload, programs, timetable, reasons, record, progress)
                save(record)
        record["complete"] = not timetable.without
        save(record)


def _unfit_words(workload: Workload, reasons: Mapping[str, str], arms: Sequence[Arm]) -> str:
    arm = next(arm.id for arm in arms if arm.id in reasons)
    what = "no arm fits" if len(reasons) == len(arms) else f"{', '.join(reasons)}: does not fit"
    return f"{workload.id}: {what}, and is not measured. {reasons[arm]}"


def _measure_one(
    plan: SweepPlan,
    workload: Workload,
    programs: Programs,
    timetable: Timetable,
    unfit: Mapping[str, str],
    record: Record,
    progress: Callable[[str], None],
) -> None:
    def report(text: str) -> None:
        progress(timetable.words() + text)

    requests = programs.prompts([workload.prompt_tokens] * workload.batch, workload.output_tokens)
    with noted(record, workload.id, lambda: programs.pids):
        cells = warm_up(
            workload,
            plan.arms,
            lambda arm: programs.run(arm, requests, memory=True),
            report,
            unfit=unfit,
        )
        measure(
            cells,
            workload,
            lambda arm: programs.run(arm, requests),
            Patience(timetable.share(workload, cells), plan.precision),
            plan.seed,
            report,
        )
    _add(record, cells, workload, plan.limits)
    record["warnings"] += imprecise(cells, workload, plan.precision, DECISIVE)


def _add(
    record: Record, cells: Sequence[Cell], workload: Workload, limits: Mapping[str, float]
) -> None:
    for cell in cells:
        record["cells"].append(cell_record(cell, workload, limits))
    comparisons = comparison_records(cells, workload, record["plan"]["precision"])
    record["comparisons"] += comparisons
    record["warnings"] += measurement_warnings(cells, comparisons, workload)
