"""Two records side by side: their figures, how these relate, and what else differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pamx.bench.definitions import DEFINITIONS, title
from pamx.bench.measure import Cell
from pamx.bench.metrics import BY_NAME, CALL, COMPARED, Metric, slug
from pamx.bench.plain import visible
from pamx.bench.record import Record
from pamx.bench.results import figures
from pamx.bench.statistics import (
    FEWEST_WITH_RATIO,
    LEAST_MARGIN_BETWEEN_RUNS,
    equality_margin,
    independent_ratio,
    verdict_between_runs,
)
from pamx.bench.words import (
    IN_TABLES,
    Column,
    Table,
    above,
    comparison_words,
    load_of_others,
    machine,
    metric_spread,
    ratio_spread,
    subject,
)
from pamx.bench.workload import Arm
from pamx.errors import RequestError

# What makes two runs answer different questions if it differs; not where a file lies.
_FACTS = ("model", "machine", "versions", "library", "environment")
_NO_FACTS = {"path", "memory_bytes", "cache_bytes"}
_MEANT = ("typical", "interval", "ratio", "control", "verdict")
_RATIO = (
    "Speed of an arm in B relative to itself in A: exp of the difference of the 20 % trimmed means "
    "of logarithms. (low-high): its 99 % interval, of the means of 8 stretches of a run, wider by "
    "how far a control lies from its arm. What changed between the runs is in it."
)
_CONTROL = "The run's first arm once more, relative to itself: how far equal arms lie apart."
_VERDICT = (
    "faster, slower: the interval lies beyond the margin above, 2 x --precision but 6 % to 10 %. "
    "no difference detected: it lies within. cannot tell: it does both. no verdict: fewer than 6 "
    "samples."
)
_DEFINITIONS = {"ratio": _RATIO, "control": _CONTROL, "verdict": _VERDICT}


@dataclass(frozen=True)
class Comparison:
    """Two records side by side.

    Attributes:
        names: What they are called.
        runs: What was measured, on what and when.
        ratios: Of `compare_records`.
        differences: Of `different_facts`.
        warnings: Of both runs, and what only one of them has.
        busy: Which runs other programs disturbed.
    """

    names: tuple[str, str]
    runs: tuple[str, str]
    ratios: list[dict[str, Any]]
    differences: list[str]
    warnings: list[str]
    busy: list[str]

    def table(self) -> Table:
        """One row a workload, arm and figure."""
        columns = [
            *(Column("workload"), Column("arm", right=False), Column("figure", right=False)),
            *(Column("A", group=1), Column("B", group=1)),
            Column("ratio", group=2, right=False),
            *(Column("control", run, group=3, right=False) for run in "AB"),
        ]
        table = Table(self.heading(), columns, about=("typical", "interval", "verdict"))
        for found in self.ratios:
            metric = BY_NAME[found["metric"]]
            if metric in IN_TABLES:
                row = [found["workload"], found["arm"], metric.title]
                row += [metric_spread(metric, found[run]) for run in ("a", "b")]
                controls = [found[f"control_{run}"] for run in ("a", "b")]
                row += [comparison_words(found), *(ratio_spread(c) for c in controls)]
                table.rows.append(row)
        return table.shown()

    def heading(self) -> str:
        """What the ratios are, and what makes them doubtful."""
        busy = f"; {'; '.join(self.busy)}" if self.busy else ""
        return f"Speed of B relative to A ({above(self.ratios)}{busy})"

    def heads(self) -> list[str]:
        """What must be known before the figures: which runs these are, and how they differ."""
        runs = zip("AB", self.names, self.runs, strict=True)
        lines = [f"{letter}: {name}: {run}." for letter, name, run in runs]
        lines += [f"Not the same: {difference}" for difference in self.differences]
        return [visible(line) for line in lines]

    def notes(self) -> list[str]:
        return [visible(warning) for warning in self.warnings]

    def definitions(self) -> list[str]:
        """What the table means, under the names that it has there."""
        keys = dict.fromkeys(c["metric"] for c in self.ratios if BY_NAME[c["metric"]] in IN_TABLES)
        known = DEFINITIONS | _DEFINITIONS
        return [f"{title(key)}: {known[key]}" for key in (*keys, *_MEANT)]

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one a workload, arm and figure; a figure has the name of its column there."""
        return [_flat(found) for found in self.ratios]

    def as_json(self) -> dict[str, Any]:
        runs = zip(("a", "b"), self.names, self.runs, strict=True)
        return {
            "runs": {key: {"name": name, "about": run} for key, name, run in runs},
            "comparisons": self.ratios,
            "differences": self.differences,
            "warnings": self.warnings,
            "definitions": _DEFINITIONS,
        }


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: visible(found[name]) for name in ("workload", "arm")}
    row["metric"] = slug(title(found["metric"]))
    row["unit"] = BY_NAME[found["metric"]].unit
    for run in ("a", "b"):
        figure = found[run]
        row |= {run: figure["typical"], f"{run}_low": figure["low"], f"{run}_high": figure["high"]}
        row[f"{run}_samples"] = figure["samples"]
    for run in ("a", "b"):
        control = found[f"control_{run}"] or {}
        row |= {f"control_{run}": control.get("ratio")}
        row |= {f"control_{run}_{end}": control.get(end) for end in ("low", "high")}
    row |= {name: found[name] for name in ("ratio", "low", "high", "margin", "verdict")}
    return row if found["samples"] >= FEWEST_WITH_RATIO else row | {"ratio": None}


def compare(a: Record, b: Record, names: tuple[str, str]) -> Comparison:
    """Everything that can be said of two records.

    Raises:
        RequestError: as `compare_records`.
    """
    ratios = compare_records(a, b)
    runs = (_about(a), _about(b))
    compared = {c["workload"] for c in ratios}
    loads = {letter: load_of_others(run, compared) for letter, run in (("A", a), ("B", b))}
    busy = [f"{letter}: {load}" for letter, load in loads.items() if load]
    warnings = [
        f"{letter}: {warning}"
        for letter, run in (("A", a), ("B", b))
        for warning in run["warnings"]
        if _concerns(warning, run, compared)
    ]
    return Comparison(names, runs, ratios, different_facts(a, b), [*_alone(a, b), *warnings], busy)


def _concerns(warning: str, run: Record, compared: set[str]) -> bool:
    """Whether a warning is about a workload that is compared, or about none."""
    others = {c["workload"] for c in run["cells"]} - compared
    return warning.partition(": ")[0] not in others


def _about(record: Record) -> str:
    found = record["provenance"]
    return f"{subject(record)}, on {machine(record)}, {found['created'][:16].replace('T', ' ')}"


def compare_records(a: Record, b: Record) -> list[dict[str, Any]]:
    """For each workload, arm and metric that both have: both figures, and B's speed over A's.

    Nothing pairs samples of two runs, so the intervals are wider than within one run, and what
    the machine did in between is in the ratio: a verdict needs more than the margin.

    Raises:
        RequestError: they are of different kinds, or have nothing in common.
    """
    if a["kind"] != b["kind"]:
        raise RequestError(
            f"The first is a {a['kind']}, the second a {b['kind']}: they have no figures in common."
        )
    metrics: tuple[Metric, ...] = (CALL,) if a["kind"] == "kernel" else COMPARED
    margin = equality_margin(max(_precision(a), _precision(b)))
    margin = max(margin, LEAST_MARGIN_BETWEEN_RUNS)
    found = []
    for mine, theirs in _common(a, b):
        ours = figures(mine["samples"]), figures(theirs["samples"])
        for metric in metrics:
            values = _values(mine, metric.name), _values(theirs, metric.name)
            controls = [_control(run, mine["workload"], metric.name) for run in (a, b)]
            ratio = independent_ratio(
                *values,
                smaller_is_better=metric.smaller_is_better,
                controls=[c["ratio"] for c in controls if c is not None and c["ratio"]],
            )
            if ratio is None:
                continue
            found.append(
                {
                    "workload": mine["workload"],
                    "arm": mine["arm"],
                    "metric": metric.name,
                    "a": ours[0][metric.name],
                    "b": ours[1][metric.name],
                    "ratio": ratio.ratio,
                    "low": ratio.low if ratio.bounded else None,
                    "high": ratio.high if ratio.bounded else None,
                    "samples": ratio.pairs,
                    "control_a": controls[0],
                    "control_b": controls[1],
                    "margin": margin,
                    "verdict": verdict_between_runs(ratio, margin),
                }
            )
    if not found:
        raise RequestError(
            "The two have no workload and arm in common that both measured.",
            "Measure both with the same --context, --batch, --output-tokens and arms.",
        )
    return found


def _control(record: Record, workload: str, metric: str) -> dict[str, Any] | None:
    """How far equal arms lie apart in a run; None if it had no control."""
    for found in record["comparisons"]:
        if found["control"] and (found["workload"], found["metric"]) == (workload, metric):
            return {name: found[name] for name in ("ratio", "low", "high")}
    return None


def _precision(record: Record) -> float:
    return float(record["plan"].get("precision", 0.0))


def _common(a: Record, b: Record) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Valid cells of one arm on one workload, without controls."""
    others = {_key(c): c for c in b["cells"] if _counts(c)}
    for cell in a["cells"]:
        if _counts(cell) and (other := others.get(_key(cell))) is not None:
            yield cell, other


def _counts(cell: dict[str, Any]) -> bool:
    return bool(cell["valid"]) and cell["control_of"] is None


def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["workload"], cell["output_tokens"], cell["arm"]


def _values(cell: dict[str, Any], metric: str) -> list[float]:
    held = Cell(Arm(cell["arm"], cell["kind"]), samples=cell["samples"])
    return held.figures(metric)


def _alone(a: Record, b: Record) -> list[str]:
    """What only one of the two has."""
    keys = [{_key(c): c for c in run["cells"] if _counts(c)} for run in (a, b)]
    found = []
    for letter, mine, theirs in (("A", *keys), ("B", *keys[::-1])):
        alone = [f"{key[0]}, {key[2]}" for key in mine if key not in theirs]
        if alone:
            found.append(f"Only in {letter}, and not compared: {'; '.join(alone)}.")
    return found


def different_facts(a: Record, b: Record) -> list[str]:
    """Sentences: in what, beyond chance, the two runs differ."""
    found = []
    for fact in _FACTS:
        mine, theirs = a["provenance"].get(fact) or {}, b["provenance"].get(fact) or {}
        for name in mine | theirs:
            if name not in _NO_FACTS:
                found += _differs(f"{fact} {name}", mine.get(name), theirs.get(name))
    found += _differs("seed, and with it prompts", *(r["provenance"]["seed"] for r in (a, b)))
    threads = [(r["plan"].get("model") or r["plan"]).get("threads") for r in (a, b)]
    found += _differs("--threads", *threads)
    settings = [{c["arm"]: c["settings"] for c in r["cells"] if _counts(c)} for r in (a, b)]
    for arm in settings[0].keys() & settings[1].keys():
        mine, theirs = settings[0][arm], settings[1][arm]
        for name in mine | theirs:
            found += _differs(f"{name} of {arm}", mine.get(name), theirs.get(name))
    return found


def _differs(what: str, mine: Any, theirs: Any) -> list[str]:
    if mine == theirs:
        return []
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return [f"{what}."]
    return [f"{what}: {_short(mine)} in A, {_short(theirs)} in B."]


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
