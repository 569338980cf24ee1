"""A record in words: the tables and sentences that people read, before any layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pamx.bench.definitions import DEFINITIONS, title
from pamx.bench.metrics import (
    BANDWIDTH,
    CALL,
    DECISIVE,
    E2E,
    OUTPUT,
    PROMPT,
    TPOT,
    TTFT,
    USER,
    Metric,
)
from pamx.bench.numerals import (
    NONE,
    bandwidth,
    duration,
    per_second,
    rate,
    share,
    size,
    spread,
    times,
)
from pamx.bench.plain import visible
from pamx.bench.record import Record
from pamx.bench.statistics import FEWEST_WITH_RATIO, TOO_FEW
from pamx.bench.workload import CONTROL
from pamx.sizes import counted


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Of its definition.
        part: Which of several columns with that definition it is.
        group: Columns of one group stay beside each other in a narrow table where they can; those
            of group 0 identify a row and are in every part of it.
        right: Whether its cells end at the same place.
    """

    key: str
    part: str = ""
    group: int = 0
    right: bool = True

    @property
    def title(self) -> str:
        return f"{title(self.key)} {self.part}".rstrip()


@dataclass(frozen=True)
class Table:
    """`about`: keys of definitions, besides those of the columns, that explain its cells."""

    title: str
    columns: list[Column]
    rows: list[list[str]] = field(default_factory=list)
    about: tuple[str, ...] = ()

    def shown(self) -> Table:
        """The same with nothing in it that a terminal obeys: a record may be anybody's."""
        rows = [[visible(cell) for cell in row] for row in self.rows]
        return replace(self, title=visible(self.title), rows=rows)


# Share of the CPUs that others use, from which on no verdict is read without a word about it.
_BUSY = 0.20
# Of a limit close to 1.
_MOST_DIGITS = 6
_WHICH = [Column("workload"), Column("arm", right=False)]


def headed_table(record: Record) -> list[Table]:
    """The figures, and the comparisons if there are any."""
    tables = [_figures(record), *_comparisons(record)]
    return [table.shown() for table in tables if table.rows]


def _figures(record: Record) -> Table:
    if record["kind"] == "kernel":
        return _calls(record)
    if record["kind"] == "replay":
        return _replays(record)
    limited = any(cell.get("goodput") is not None for cell in record["cells"])
    parts = _parts(record, "itl")
    columns = [
        *_WHICH,
        Column("samples", group=1),
        *(Column(metric.name, group=1) for metric in (TTFT, TPOT, E2E)),
        *(Column(metric.name, group=2) for metric in (OUTPUT, PROMPT, USER)),
        *([Column("goodput", group=2)] if limited else []),
        *(Column("itl", part, group=3) for part in parts),
        Column("peak_memory", group=3),
        Column("pages", group=3),
        *_ran(4),
        Column("outputs", group=4, right=False),
    ]
    table = Table(_title(record), columns, about=("typical", "interval", "percentiles", "inside"))
    for cell in record["cells"]:
        figures, gaps = cell["figures"], cell["requests"].get("itl")
        table.rows.append(
            [
                cell["workload"],
                _arm(cell),
                f"{len(cell['samples']):,}",
                *(metric_spread(m, figures.get(m.name)) for m in (TTFT, TPOT, E2E)),
                *(metric_spread(m, figures.get(m.name)) for m in (OUTPUT, PROMPT, USER)),
                *([per_second(cell.get("goodput"))] if limited else []),
                *(duration(gaps and gaps[part]) for part in parts),
                size(cell["peak_memory_bytes"]),
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                *_dispatched(cell),
                outputs(cell["outputs"]),
            ]
        )
    return table


def _calls(record: Record) -> Table:
    columns = [
        *_WHICH,
        Column("samples", group=1),
        Column("calls", group=1),
        Column("call", group=1),
        Column("bandwidth", group=1),
        Column("share_of_read", group=1),
        Column("kv_bytes", group=2),
        *_ran(2),
    ]
    table = Table(_title(record), columns, about=("typical", "interval"))
    for cell in record["cells"]:
        table.rows.append(
            [
                cell["workload"],
                _arm(cell),
                f"{len(cell['samples']):,}",
                NONE if (calls := cell.get("calls")) is None else f"{calls:,}",
                *(metric_spread(m, cell["figures"].get(m.name)) for m in (CALL, BANDWIDTH)),
                _of_read(cell),
                size(cell.get("pool_bytes")),
                *_dispatched(cell),
            ]
        )
    return table


def _of_read(cell: dict[str, Any]) -> str:
    """Of what the machine does by itself there is no share."""
    if cell["kind"] == "machine":
        return ""
    if cell.get("fits_cache"):
        return "in cache"
    partly = ", partly in cache" if cell.get("partly_in_cache") else ""
    return f"{share(cell.get('share_of_read'))}{partly}"


def _replays(record: Record) -> Table:
    names = ("ttft", "tpot", "e2e", "itl")
    parts = [(name, part) for name in names for part in _parts(record, name)]
    columns = [
        Column("requests"),
        Column("arm", right=False),
        Column("offered", group=1),
        Column("goodput", group=1),
        Column(OUTPUT.name, group=1),
        *(Column(name, part, group=2 + i // 4) for i, (name, part) in enumerate(parts)),
        Column("preempted", group=4),
        Column("pages", group=4),
        *_ran(4),
    ]
    table = Table(_title(record), columns, about=("percentiles", "inside"))
    for cell in record["cells"]:
        done, summaries = cell["replay"], cell["requests"]
        table.rows.append(
            [
                f"{done['requests']:,}",
                _arm(cell),
                rate(done["offered_per_s"]),
                per_second(cell["goodput"]),
                metric_spread(OUTPUT, cell["figures"].get(OUTPUT.name)),
                *(duration(summaries[n][p] if n in summaries else None) for n, p in parts),
                NONE if done["preemptions"] is None else f"{done['preemptions']:,}",
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                *_dispatched(cell),
            ]
        )
    return table


def _parts(record: Record, name: str) -> tuple[str, str]:
    """The median, and the farthest percentile that all cells have enough values for."""
    found = [cell["requests"][name] for cell in record["cells"] if name in cell["requests"]]
    for part in ("p99", "p90"):
        if all(summary[part] is not None for summary in found):
            return "p50", part
    return "p50", "max"


def _arm(cell: dict[str, Any]) -> str:
    name = CONTROL if cell["control_of"] is not None else str(cell["arm"])
    return name + ("" if cell["valid"] else " (invalid)")


def _ran(group: int) -> list[Column]:
    return [Column("partition", group=group), Column("kernel", group=group, right=False)]


def _dispatched(cell: dict[str, Any]) -> list[str]:
    ran = cell["dispatch"] or {}
    partition = ran.get("partition")
    return [f"{partition:,}" if partition else NONE, str(ran.get("kernel") or NONE)]


def _title(record: Record) -> str:
    return f"{subject(record)}, on {machine(record)}"


def subject(record: Record) -> str:
    """What was measured."""
    if heads := record["provenance"].get("heads"):
        query, kv, dim = heads
        return f"Attention alone: {query} query heads on {kv} KV heads of {dim}"
    model = record["provenance"].get("model") or {}
    settings = [str(model.get("name", "")), str(model.get("compute", "")), arrivals(record)]
    return ", ".join(word for word in settings if word) or str(record["kind"])


def arrivals(record: Record) -> str:
    """Where the requests of a replay came from: a pattern, or a file's name; "" of others."""
    settings = record["provenance"]["settings"]
    if record["kind"] != "replay":
        return ""
    return str(settings.get("arrivals") or Path(str(settings.get("trace") or "")).name)


def machine(record: Record) -> str:
    """What measured it."""
    found = record["provenance"]["machine"]
    return f"{found['chip']}, {counted(found['usable_cpus'], 'CPU')}"


# E2E and prompt throughput follow from these three; they are in the files.
IN_TABLES = (*DECISIVE, CALL)


def _comparisons(record: Record) -> list[Table]:
    """One table for each arm that others are compared with: a second if the first is invalid."""
    bases = dict.fromkeys(c["base"] for c in record["comparisons"])
    return [
        _ratios(record, [c for c in record["comparisons"] if c["base"] == base], base)
        for base in bases
    ]


def _ratios(record: Record, comparisons: list[dict[str, Any]], base: str) -> Table:
    """One row a workload and arm, one column a metric."""
    compared = {c["metric"] for c in comparisons}
    names = [m.name for m in IN_TABLES if m.name in compared]
    columns = [Column(n, group=i + 1, right=False) for i, n in enumerate(names)]
    busy = load_of_others(record, {c["workload"] for c in comparisons})
    pairs = "from pairs of samples, not the quotient of the figures above"
    heading = f"Speed relative to {base}, {pairs} ({above(comparisons)}{busy and f'; {busy}'})"
    table = Table(heading, [*_WHICH, *columns], about=("ratio", "verdict"))
    marks = {(c["workload"], c["arm"]): answers_mark(c["outputs"]) for c in record["cells"]}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for comparison in comparisons:
        mark = marks.get((comparison["workload"], comparison["arm"]), "")
        arm = CONTROL if comparison["control"] else comparison["arm"]
        key = comparison["workload"], f"{arm} ({mark})" if mark else arm
        rows.setdefault(key, {})[comparison["metric"]] = comparison_words(comparison)
    for (workload, arm), found in rows.items():
        table.rows.append([workload, arm, *(found.get(name, NONE) for name in names)])
    return table


def above(comparisons: Sequence[dict[str, Any]]) -> str:
    """How to read ratios, and the margin of no difference."""
    margins = {c["margin"] for c in comparisons if "margin" in c}
    within = f"; no difference: within {max(margins):.0%} of 1x" if margins else ""
    return f"above 1x is faster{within}"


def load_of_others(record: Record, workloads: Collection[str]) -> str:
    """A warning to stand beside verdicts: other programs took much of the machine meanwhile.

    Returns:
        Of the workload with the most of it; nothing where that is little.
    """
    used = (c["used_by_others"] for c in record["conditions"] if c["workload"] in workloads)
    most = max(used, default=0.0)
    return f"other programs used up to {most:.0%} of the CPUs" if most > _BUSY else ""


def metric_spread(metric: Metric, figure: dict[str, Any] | None) -> str:
    """A metric's figure with its interval."""
    write = {"s": duration, "bytes/s": bandwidth}.get(metric.unit, rate)
    return spread(figure, write)


def comparison_words(comparison: dict[str, Any]) -> str:
    """Such as "1.12x (1.08-1.15) faster", or "1.80x, 2 samples, no verdict".

    A single sample has no ratio: nobody knows how far the next one would lie from it.
    """
    if (ratio := comparison["ratio"]) is None:
        return str(comparison["verdict"])
    if comparison["verdict"] == TOO_FEW:
        count = comparison["pairs"] if "pairs" in comparison else comparison["samples"]
        told = f"{times(ratio)}, " if count >= FEWEST_WITH_RATIO else ""
        return f"{told}{counted(count, 'sample')}, no verdict"
    return f"{ratio_spread(comparison)} {comparison['verdict']}"


def ratio_spread(found: dict[str, Any] | None) -> str:
    """A ratio with its interval: "1.12x (1.08-1.15)"; a limit that excludes 1 never reads 1.00."""
    if found is None or found["ratio"] is None:
        return NONE
    ratio, low, high = (found[name] for name in ("ratio", "low", "high"))
    if low is None:
        return times(ratio)
    digits = 3 if high < 1.02 * low else 2
    for limit in (low, high):
        while (low > 1 or high < 1) and float(f"{limit:.{digits}f}") == 1 and digits < _MOST_DIGITS:
            digits += 1
    ends = f"{times(low, digits)[:-1]}-{times(high, digits)[:-1]}"
    return f"{times(ratio, digits)} ({ends})"


# ---- sentences ----------------------------------------------------------------------------------


def notes(record: Record) -> list[str]:
    """What must be said beside the tables: what is invalid, what differs, warnings."""
    found = []
    if not record["complete"]:
        found.append(f"Not complete: {missing(record)}.")
    if record["kind"] == "replay":
        found += _of_replay(record)
    elif any(cell.get("goodput") is not None for cell in record["cells"]):
        found.append(f"Goodput counts requests with {limits_words(record)}.")
    found += _invalid(record)
    for cell in record["cells"]:
        if (cell["outputs"] or {}).get("same") is False:
            where = f"{cell['workload']}, {cell['arm']}"
            found.append(f"{where}: {difference(cell['outputs'])}")
    return [visible(line) for line in [*found, *record["warnings"]]]


def _of_replay(record: Record) -> list[str]:
    """What arrived, how many requests were served within the limits, and what that is worth."""
    cells = record["cells"]
    found = [_arrived(record, cells[0]["replay"])] if cells else []
    for cell in cells:
        met = cell["replay"].get("met")
        if met is not None:
            which = f"{cell['arm']}: " if len(cells) > 1 else ""
            of = f"{met:,} of {counted(cell['replay']['requests'], 'request')}"
            found.append(f"{which}{of} met {limits_words(record)}.")
    if len(cells) > 1:
        found.append(
            "Each arm replayed the requests once: figures have no interval, and a difference may "
            "be chance."
        )
    elif cells:
        found.append("It was replayed once: figures have no interval, and may differ next time.")
    return found


def _arrived(record: Record, done: dict[str, Any]) -> str:
    settings = record["provenance"]["settings"]
    what = counted(done["requests"], "request")
    if settings.get("arrivals"):
        what += f", drawn from {arrivals(record)} with seed {record['provenance']['seed']},"
    offered = done["offered_per_s"]
    if offered is None:
        return f"{what} arrived all at once."
    seconds = duration(done["requests"] / offered)
    return f"{what} arrived within {seconds}: {rate(offered)} a second were offered."


def limits_words(record: Record) -> str:
    """Such as "TTFT ≤ 500 ms and TPOT ≤ 50 ms"."""
    limits = record["plan"].get("limits") or {}
    return " and ".join(f"{title(name)} ≤ {_limit(most)}" for name, most in limits.items())


def _limit(seconds: float) -> str:
    """As it may have been given: in ms below a second."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _invalid(record: Record) -> list[str]:
    """Why cells are invalid; arms of a workload that have one reason share a sentence."""
    arms: dict[tuple[str, str], list[str]] = {}
    for cell in record["cells"]:
        if not cell["valid"]:
            key = str(cell["workload"]), str(cell["why_invalid"])
            arms.setdefault(key, []).append(str(cell["arm"]))
    whole = Counter(str(cell["workload"]) for cell in record["cells"])
    found = []
    for (workload, why), names in arms.items():
        every = 1 < len(names) == whole[workload]
        which = f"all {len(names)} arms" if every else "; ".join(names)
        found.append(f"{workload}, {which}: invalid, because {why}")
    return found


def missing(record: Record) -> str:
    """What a record that is not complete lacks, in words."""
    measured = {cell["workload"] for cell in record["cells"]}
    ids = [f"{w['context']}x{w['batch']}" for w in record["plan"].get("workloads", [])]
    left = [name for name in ids if name not in measured]
    if not left:
        return "it was interrupted"
    return f"{', '.join(left)} {'was' if len(left) == 1 else 'were'} not measured"


def definitions(record: Record, tables: Sequence[Table]) -> list[str]:
    """What the columns of these tables mean, under the names that they have there."""
    keys = [column.key for table in tables for column in table.columns]
    keys += [key for table in tables for key in table.about]
    if any(cell["control_of"] is not None for cell in record["cells"]):
        keys.append("control")
    known = DEFINITIONS | record["definitions"]
    found = dict.fromkeys(key for key in keys if key in known)
    return [visible(f"{title(key)}: {known[key]}") for key in found]


def difference(outputs: dict[str, Any]) -> str:
    return (
        f"other tokens than {outputs['compared_with']} in "
        f"{counted(outputs['requests_that_differ'], 'request')}; first in request "
        f"{outputs['request']:,} at token {outputs['place']:,} "
        f"({outputs['base_token']} there, {outputs['arm_token']} here)."
    )


OTHER_ANSWERS = "other answers"


def answers_mark(found: dict[str, Any] | None) -> str:
    """What to write beside the speed of an arm whose outputs are not those of the first one.

    From the first token on, it computes something else; at a later one it may be a rounding.
    """
    if found is None or found["same"] is not False:
        return ""
    return outputs(found) if found["place"] else OTHER_ANSWERS


def outputs(found: dict[str, Any] | None) -> str:
    """A cell's outputs in a word or two."""
    if found is None:
        return NONE
    if found["same"] is None:
        return "not told"
    return "same" if found["same"] else f"differ at {found['place']:,}"
