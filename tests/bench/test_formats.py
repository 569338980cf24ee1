"""Every form of a record, read back by readers that know nothing of pamx."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import matplotlib.image
import pandas as pd
import pytest

from pamx.bench import plot
from pamx.bench.best import best
from pamx.bench.charts.best_map import best_words
from pamx.bench.charts.comparison import comparison_figure
from pamx.bench.charts.record import record_figure
from pamx.bench.compare import Comparison, compare, compare_records, different_facts
from pamx.bench.formats import as_text, comparison_as_text
from pamx.bench.metrics import TPOT
from pamx.bench.record import SCHEMA, DamagedError, Record, load, save
from pamx.bench.words import headed_table
from pamx.errors import PamxError, RequestError

from .synthetic import synthetic_record

SLOW = {"pamx, partition 512": 1.5}


@pytest.fixture(scope="module")
def record() -> Record:
    return synthetic_record(speeds=SLOW, limits={"ttft": 0.5})


def validate(record: Record) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(record, schema, jsonschema.Draft202012Validator)


def test_json_validates_and_holds_raw_samples(record: Record) -> None:
    found = json.loads(as_text(record, "json"))
    validate(found)
    cell = found["cells"][0]
    assert len(cell["samples"]) == 10
    times = cell["samples"][0]["requests"][0]["times"]
    assert len(times) == cell["output_tokens"]
    # The figure is what the definition says of the raw times.
    assert cell["samples"][0]["figures"]["e2e"] == pytest.approx(times[-1], abs=1e-6)


@pytest.mark.parametrize("damage", ["figures", "valid", "samples"])
def test_the_schema_notices_what_is_missing(record: Record, damage: str) -> None:
    found = json.loads(as_text(record, "json"))
    del found["cells"][0][damage]
    with pytest.raises(jsonschema.ValidationError):
        validate(found)


def test_csv_with_pandas_and_csv(record: Record) -> None:
    text = as_text(record, "csv")
    frame = pd.read_csv(io.StringIO(text))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(frame) == len(rows) == len(record["cells"])
    slow = frame[(frame.arm == "pamx, partition 512") & (frame.workload == "256x1")]
    base = frame[(frame.arm == "pamx, partition auto") & (frame.workload == "256x1")]
    assert slow.e2e_s.item() / base.e2e_s.item() == pytest.approx(1.5, rel=0.1)
    assert slow.e2e_verdict_vs_base.item() == "slower"
    assert slow.partition.item() == 512
    assert frame.ttft_max_s.notna().all()
    assert frame.ttft_p99_s.isna().all()  # ten requests have no hundredth
    assert (frame.ttft_low_s <= frame.ttft_s).all()
    assert (frame.ttft_s <= frame.ttft_high_s).all()
    # Columns have the names of the table.
    names = {"ttft_s", "tpot_s", "e2e_s", "output_tok_per_s", "prompt_tok_per_s", "user_tok_per_s"}
    names |= {"goodput_per_s", "memory_bytes", "pages", "kernel", "output_tok_per_s_ratio_vs_base"}
    assert names <= set(frame.columns)
    parts = [name for name in frame.columns if re.fullmatch("tpot_.*_vs_base", name)]
    assert parts == [f"tpot_{part}_vs_base" for part in ("ratio", "low", "high", "verdict")]
    assert frame.arm[1] == "control"  # as in the tables
    assert rows[0]["gap_p90_s"] == str(frame.gap_p90_s[0])


def test_the_speed_of_other_answers_is_marked() -> None:
    found = synthetic_record(contexts=[64], batches=[1, 4])
    arms = [row[1] for row in headed_table(found)[1].rows]
    assert arms[2:] == ["mlx-lm", "control", "pamx, partition 512", "mlx-lm (other answers)"]
    other = next(c for c in found["cells"] if (c["outputs"] or {}).get("same") is False)
    other["outputs"]["place"] = 7
    assert headed_table(found)[1].rows[-1][1] == "mlx-lm (differ at 7)"


def test_jsonl_with_pandas(record: Record) -> None:
    frame = pd.read_json(io.StringIO(as_text(record, "jsonl")), lines=True)
    other = pd.read_csv(io.StringIO(as_text(record, "csv")))
    assert list(frame.columns) == list(other.columns)
    assert frame.e2e_s.tolist() == pytest.approx(other.e2e_s.tolist())


def test_markdown_is_a_table(record: Record) -> None:
    lines = [line for line in as_text(record, "md").splitlines() if line.startswith("|")]
    tables = "\n".join(lines)
    assert len({line.count("|") for line in lines}) == 2  # figures, and comparisons
    assert "| 1024x4 | pamx, partition auto |" in tables
    assert "slower" in tables


def test_markdown_escapes_what_a_program_is_called() -> None:
    record = synthetic_record(contexts=[64], batches=[1])
    record["cells"][0]["arm"] = "a | b"
    line = next(line for line in as_text(record, "md").splitlines() if "a \\| b" in line)
    assert len(re.findall(r"(?<!\\)\|", line)) == 17  # 16 columns
    record["cells"][0]["arm"] = "python __init__.py --host <img src=x> *a* `b` [c](d)"
    assert r"python \_\_init\_\_.py --host \<img src=x\> \*a\* \`b\` \[c\](d)" in as_text(
        record, "md"
    )


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]


def test_plots(record: Record, tmp_path: Path) -> None:
    for ending in ("png", "svg", "html"):
        plot.draw(record, tmp_path / f"plot.{ending}")
    image = matplotlib.image.imread(tmp_path / "plot.png")
    assert image.shape[0] > 500
    assert image[..., :3].std() > 0.05  # something is drawn
    tree = ElementTree.parse(tmp_path / "plot.svg")
    assert tree.getroot().tag.endswith("svg")
    page = _Page()
    page.feed((tmp_path / "plot.html").read_text())
    assert "svg" in page.tags
    assert "table" in page.tags
    # Self-contained: nothing is fetched, links lead into the page itself.
    assert all(link.startswith(("#", "data:")) for link in page.links)


def test_the_same_record_gives_the_same_plot(record: Record, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot.draw(record, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def written(figure: Any) -> list[str]:
    """Every text of a figure's panels."""
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def test_a_plot_names_its_arms_and_what_was_measured_where(record: Record) -> None:
    figure = record_figure(record)
    assert figure.get_suptitle() == "tiny, fast, on Example CPU, 4 CPUs"
    for arm in ("pamx, partition auto", "pamx, partition 512", "mlx-lm (other answers)", "control"):
        assert written(figure).count(arm) >= 3  # beside its line, in each row
    headings = {axes.get_ylabel() for axes in figure.axes} | {a.get_title() for a in figure.axes}
    assert {"TTFT, s", "TPOT, ms", "output tok/s", "batch 1", "batch 4"} <= headings
    assert len(figure.axes[-1].texts) == 4  # contexts times batches
    assert not any(t.get_text().startswith("pamx, partition 512") for t in figure.axes[-1].texts)


@pytest.mark.parametrize("contexts", [[256], [256, 1024]])
@pytest.mark.parametrize("slow", [1.0, 40.0])
def test_no_interval_or_marker_is_cut(contexts: list[int], slow: float) -> None:
    found = synthetic_record(contexts=contexts, batches=[1], speeds={"mlx-lm": slow})
    for cell in found["cells"]:
        for name in cell["figures"]:
            typical = cell["figures"][name]["typical"]
            cell["figures"][name] |= {"low": typical / 1.9, "high": typical * 1.9}
    figure = record_figure(found)
    drawn = 0
    for axes in figure.axes:
        for container in getattr(axes, "containers", []):
            drawn += 1
            ends = [p for bar in container.lines[2] for s in bar.get_segments() for p in s]
            for x, y in ends:
                assert axes.get_xlim()[0] <= x <= axes.get_xlim()[1]
                assert min(axes.get_ylim()) <= y <= max(axes.get_ylim())
    assert drawn == 12  # three arms and a control, three figures
    scales = {axes.get_yscale() if contexts[1:] else axes.get_xscale() for axes in figure.axes}
    assert ("log" in scales) == (slow > 5)
    assert any("log scale" in a.get_ylabel() + a.get_title() for a in figure.axes) == (slow > 5)


@pytest.mark.parametrize("contexts", [[256], [256, 1024]])
def test_an_absurd_interval_does_not_flatten_the_rest(contexts: list[int]) -> None:
    found = synthetic_record(contexts=contexts, batches=[1], partitions=[None], others=())
    figure = found["cells"][0]["figures"]["tpot"]
    figure |= {"low": figure["typical"] / 1000, "high": figure["typical"] * 1000}
    axes = record_figure(found).axes[1]
    assert max(*axes.get_xlim(), *axes.get_ylim()) < 10 * figure["typical"] * 1e3
    (mark,) = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert mark.get_marker() in ("^", ">")  # it goes on there


def test_one_context_is_drawn_by_arm_with_its_figures() -> None:
    found = synthetic_record(contexts=[256], batches=[1, 4])
    figure = record_figure(found)
    arms = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert arms == ["pamx, partition auto", "pamx, partition 512", "mlx-lm", "control"]
    batched = [t.get_text() for t in figure.axes[3].get_yticklabels()]
    assert batched[2] == "mlx-lm (other answers)"
    assert any(re.fullmatch(r"\d+ ms ±\d+%", text) for text in written(figure))
    alone = record_figure(
        synthetic_record(contexts=[256], batches=[1], partitions=[None], others=())
    )
    assert len(alone.axes) == 3  # nothing to choose from: no map


@pytest.mark.parametrize("contexts", [[256], [256, 1024]])
def test_a_plot_says_what_makes_it_doubtful(contexts: list[int]) -> None:
    made = synthetic_record(contexts=contexts, batches=[1], others=(), rounds=2)
    load = {"workload": "256x1", "before": {}, "after": {}, "used_by_others": 0.64}
    made |= {"complete": False, "conditions": [load]}
    made["plan"]["workloads"].append({"context": 2048, "batch": 1, "output": 8})
    figure = record_figure(made)
    lines = figure.get_supxlabel().splitlines()
    assert max(map(len, lines)) <= 13 * figure.get_figwidth()  # none is cut
    caption = " ".join(lines)
    assert "Other programs used up to 64% of the CPUs meanwhile." in caption
    assert "Not complete: 2048x1 was not measured." in caption
    assert "Control: the first arm once more" in caption
    assert any(text.endswith("n=4") for text in written(figure))


def test_names_are_not_read_as_mathematics(tmp_path: Path) -> None:
    found = synthetic_record(contexts=[256, 512], batches=[1])
    for cell in found["cells"]:
        if cell["arm"] == "mlx-lm":
            cell["arm"] = "sh -c '$A_B^ $C'\x1b[2J"
    plot.draw(found, tmp_path / "plot.svg")  # matplotlib would raise
    assert "sh -c '\\$A_B^ \\$C'\ufffd[2J" in written(record_figure(found))


def test_a_page_has_the_readers_colours(record: Record, tmp_path: Path) -> None:
    plot.draw(record, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text()
    assert "color-scheme: light dark" in text
    assert "currentColor" in text
    assert not re.search(r"fill: #(ffffff|222222|000000)", text)  # no white card, no black ink
    assert "<h2>Definitions</h2>" in text


def test_the_map_names_nothing_that_may_be_chance() -> None:
    def fields(**made: Any) -> list[str]:
        found = synthetic_record(contexts=[64], batches=[1, 4], others=(), **made)
        return [t.get_text() for t in record_figure(found).axes[-1].texts]

    for text in fields():
        assert text.startswith("no arm is faster for sure\n(")
        assert {"pamx, partition auto", "pamx, partition 512"} == set(text.splitlines()[2:])
    assert set(fields(rounds=1)) == {"too few samples"}
    for text in fields(speeds={"pamx, partition 512": 0.5}):
        assert re.fullmatch(
            r"pamx, partition 512\n(1\.9|2\.0).x \(.*\) faster\nthan the next", text
        )


def test_the_best_is_compared_with_the_next_and_not_only_with_the_first() -> None:
    """Two partitions that are both faster than the first, and equal to each other."""
    fast = {"pamx, partition 64": 0.5, "pamx, partition 128": 0.5}
    made = synthetic_record([64], [1], [None, 64, 128], speeds=fast, others=(), rounds=10)
    verdicts = {c["arm"]: c["verdict"] for c in made["comparisons"] if c["metric"] == "tpot"}
    assert verdicts["pamx, partition 64"] == verdicts["pamx, partition 128"] == "faster"
    cells = [c for c in made["cells"] if c["control_of"] is None]
    found = best(cells, TPOT, 0.06)
    assert found is not None
    assert found.found in ("no difference detected", "cannot tell")
    assert {found.arm, *found.rivals} == set(fast)
    assert "pamx, partition auto" not in best_words(found)


@pytest.mark.parametrize("contexts", [[256, 1024], [1000, 1024]])
def test_no_arm_hides_another(contexts: list[int]) -> None:
    record = synthetic_record(contexts=contexts, batches=[1])
    axes = record_figure(record).axes[0]
    lines = [container.lines[0] for container in axes.containers]  # type: ignore[attr-defined]
    places = [tuple(line.get_xdata()) for line in lines]
    assert len(places) == len(set(places)) == 4  # with the control
    assert len({line.get_marker() for line in lines}) == 4
    # Each stays next to its own context.
    for ticks in zip(*places, strict=True):
        nearest = {min(contexts, key=lambda c: abs(math.log2(c) - x)) for x in ticks}
        assert len(nearest) == 1


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PamxError, match=r"pamx\[plots\]"):
        plot.check_available()


def test_a_record_without_valid_cells_is_not_drawn(record: Record, tmp_path: Path) -> None:
    invalid = record | {"cells": [c | {"valid": False} for c in record["cells"]]}
    with pytest.raises(PamxError, match="no valid figure"):
        plot.draw(invalid, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


# ---- files ---------------------------------------------------------------------------------------


def test_a_record_survives_a_file(record: Record, tmp_path: Path) -> None:
    save(record, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == json.loads(as_text(record, "json"))
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_full_disk_leaves_the_file_that_was_there(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    save(record, path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PamxError, match="No space left"):
        save(record | {"warnings": ["new"]}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "no record"),
        (b'{"a": 1}', "no record"),
        (b'{"schema_version": 2}', "schema version 2"),
        (b"", "no record"),
        (b"\xff\x00", "no record"),
        (b"# pamx", "no record"),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(RequestError, match=said):
        load(tmp_path / "r.json")


@pytest.mark.parametrize(
    "content", [b'{"cells": ' + b"[" * 100_000, b'{"schema_version": 1, "cells": [NaN]}']
)
def test_files_that_are_json_no_more(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"r\.json is damaged: it is not JSON"):
        load(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("cells", 0, "batch"), "4", r"cells\[0\].batch is no integer"),
        (("cells", 0, "figures", "ttft", "typical"), 0, "not above 0"),
        (("cells", 0, "figures", "ttft", "high"), None, "one end of an interval"),
        (("cells", 0, "figures", "ttft", "high"), 1e-9, "ttft lies outside its interval"),
        (("cells", 0, "samples", 0, "figures"), [], "figures is no object"),
        (("cells", 1, "outputs"), {"same": False}, "compared_with is missing"),
        (("cells",), {}, "cells is no array"),
        (("comparisons", 0, "metric"), "luck", "none of ttft"),
        (("comparisons", 0, "low"), None, "one end of an interval"),
        (("comparisons", 0, "low"), 1e9, "lies outside its interval"),
        (("comparisons", 0, "ratio"), None, "an interval of nothing"),
        (("comparisons", 0, "ratio"), -1, "not above 0"),
        (("plan", "arms", 0, "settings"), {}, "block_size is missing"),
        (("plan", "workloads", 0), 7, r"plan.workloads\[0\] is no object"),
        (("complete",), None, "complete is no boolean"),
        (("more",), 1, "more is unknown"),
        (("kind",), "replay", "replay is missing"),
    ],
)
def test_damaged_records_say_where(
    tmp_path: Path, path: tuple[str | int, ...], value: Any, said: str
) -> None:
    damaged: Any = json.loads(json.dumps(synthetic_record(contexts=[256], batches=[1])))
    place = damaged
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (tmp_path / "r.json").write_text(json.dumps(damaged))
    with pytest.raises(DamagedError, match=said):
        load(tmp_path / "r.json")


def test_a_link_to_a_report_stays_one(tmp_path: Path, record: Record) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "r.json")
    save(record, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "r.json") == record


def test_markdown_without_definitions() -> None:
    record = synthetic_record(contexts=[256], batches=[1])
    assert "TTFT: Time to first token" in as_text(record, "md")
    assert "TTFT: Time to first token" not in as_text(record, "md", definitions=False)


# ---- two records ---------------------------------------------------------------------------------


def test_comparing_two_runs() -> None:
    first = synthetic_record(contexts=[256], batches=[1, 4])
    second = synthetic_record(contexts=[256], batches=[1], speeds={"mlx-lm": 2.0}, seed=9)
    found = {(c["arm"], c["metric"]): c for c in compare_records(first, second)}
    assert {c["workload"] for c in found.values()} == {"256x1"}
    assert found["mlx-lm", "e2e"]["verdict"] == "slower"
    assert found["pamx, partition auto", "e2e"]["ratio"] == pytest.approx(1, abs=0.1)
    changed: dict[str, Any] = second | {
        "provenance": second["provenance"] | {"model": {"name": "other"}}
    }
    assert "model name: tiny in A, other in B." in different_facts(first, changed)
    assert "seed, and with it prompts: 3 in A, 9 in B." in different_facts(first, second)
    assert different_facts(first, first) == []


def test_settings_that_names_do_not_tell_are_compared() -> None:
    first = synthetic_record(contexts=[256], batches=[1])
    second: Record = json.loads(json.dumps(first))
    for cell in second["cells"]:
        if cell["kind"] == "pamx":
            cell["settings"]["block_size"] = 32
    second["plan"]["model"]["threads"] = 1
    second["provenance"]["machine"]["chip"] = "Other CPU"
    found = different_facts(first, second)
    assert "block_size of pamx, partition auto: 16 in A, 32 in B." in found
    assert "--threads: nothing in A, 1 in B." in found
    assert "machine chip: Example CPU in A, Other CPU in B." in found


def test_a_comparison_shows_both_figures_and_what_to_beware_of() -> None:
    first = synthetic_record(contexts=[256], batches=[1, 4])
    second = synthetic_record(contexts=[256], batches=[1], speeds={"mlx-lm": 2.0}, seed=9)
    second["warnings"] = ["256x1: other programs used 31% of the CPUs meanwhile."]
    first["warnings"] = ["256x4: nobody asked."]  # not compared
    found = compare(first, second, ("old.json", "new\x1b[2J.json"))
    assert not any("nobody asked" in note for note in found.notes())
    row = next(r for r in found.table().rows if r[1:3] == ["mlx-lm", "TTFT"])
    assert row[3].startswith("2")  # milliseconds of A
    assert row[4].startswith("4")
    assert re.fullmatch(r"0\.\d\dx \(0\.\d\d-0\.\d\d\) slower", row[5])
    heads = found.heads()
    assert heads[0].startswith("A: old.json: tiny, fast, on Example CPU, 4 CPUs, 20")
    assert heads[1].startswith("B: new\ufffd[2J.json: ")
    assert "Not the same: seed, and with it prompts: 3 in A, 9 in B." in heads
    assert any(n.startswith("Only in A, and not compared: 256x4, pamx") for n in found.notes())
    assert "B: 256x1: other programs used 31% of the CPUs meanwhile." in found.notes()
    one = compare(first, synthetic_record([256], [1], speeds={"mlx-lm": 2.0}, rounds=1), ("a", "b"))
    assert any(re.fullmatch(r"0\.\d\dx, 2 samples, no verdict", r[5]) for r in one.table().rows)


def test_other_programs_are_named_beside_verdicts() -> None:
    first = synthetic_record(contexts=[256], batches=[1])
    second = synthetic_record(contexts=[256, 512], batches=[1], seed=9)

    def load(workload: str, used: float) -> dict[str, Any]:
        return {"workload": workload, "before": {}, "after": {}, "used_by_others": used}

    first["conditions"] = [load("256x1", 0.19)]
    second["conditions"] = [load("256x1", 0.51), load("512x1", 0.7)]
    heading = compare(first, second, ("a", "b")).table().title
    assert heading.endswith("; B: other programs used up to 51% of the CPUs)")
    assert "other programs" not in headed_table(first)[1].title
    assert headed_table(second)[1].title.endswith("; other programs used up to 70% of the CPUs)")


def test_runs_without_anything_in_common() -> None:
    first, second = synthetic_record(contexts=[256]), synthetic_record(contexts=[512])
    with pytest.raises(RequestError, match="no workload and arm in common"):
        compare_records(first, second)
    with pytest.raises(RequestError, match="a sweep, the second a kernel"):
        compare_records(first, second | {"kind": "kernel"})


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    first = synthetic_record(contexts=[256], batches=[1])
    second = synthetic_record(contexts=[256], batches=[1], speeds={"mlx-lm": 2.0}, seed=9)
    return compare(first, second, ("a.json", "b.json"))


def test_two_runs_in_every_form(comparison: Comparison) -> None:
    titles = [column.title for column in comparison.table().columns]
    assert titles == [
        "workload",
        "arm",
        "figure",
        "A",
        "B",
        "relative speed",
        "control A",
        "control B",
    ]
    frame = pd.read_csv(io.StringIO(comparison_as_text(comparison, "csv")))
    assert set(frame.metric) == {"ttft", "tpot", "output_tok_per_s", "e2e", "prompt_tok_per_s"}
    slow = frame[(frame.arm == "mlx-lm") & (frame.metric == "ttft")]
    assert slow.verdict.item() == "slower"
    assert slow.b.item() / slow.a.item() == pytest.approx(2, rel=0.1)
    assert slow.unit.item() == "s"
    lines = pd.read_json(io.StringIO(comparison_as_text(comparison, "jsonl")), lines=True)
    assert lines.ratio.tolist() == pytest.approx(frame.ratio.tolist())
    told = json.loads(comparison_as_text(comparison, "json"))["comparisons"]
    assert len(told) == len(frame)
    assert all(c["samples"] == 10 and "pairs" not in c for c in told)  # nothing pairs two runs
    assert told[0]["control_b"]["ratio"] == pytest.approx(1, abs=0.1)
    assert frame.control_b[0] == pytest.approx(told[0]["control_b"]["ratio"])
    text = comparison_as_text(comparison, "md")
    assert "| workload | arm | figure | A | B |" in text
    assert "- Not the same: seed" in text
    assert "- relative speed:" in text
    assert "- relative speed:" not in comparison_as_text(comparison, "md", definitions=False)


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_a_plot_of_two_runs(comparison: Comparison, ending: str, tmp_path: Path) -> None:
    plot.draw_comparison(comparison, tmp_path / f"plot.{ending}")
    assert (tmp_path / f"plot.{ending}").stat().st_size > 2000
    few = replace(comparison, ratios=[comparison.ratios[0] | {"ratio": None}])
    with pytest.raises(PamxError, match="no ratio"):
        plot.draw_comparison(few, tmp_path / "few.png")


def test_a_plot_of_two_runs_says_what_its_points_are(comparison: Comparison) -> None:
    figure = comparison_figure(comparison)
    assert [axes.get_title() for axes in figure.axes] == ["TTFT", "TPOT", "output tok/s"]
    assert any(text.endswith(") slower") for text in written(figure))
    assert "A: a.json" in figure.get_supxlabel()


# ---- the README ----------------------------------------------------------------------------------


def test_the_readmes_tables_are_those_of_the_record_beside_them() -> None:
    root = Path(__file__).parents[2]
    text = (root / "README.md").read_text()
    record = load(root / "bench/results/partitions.json")
    assert f"$ {record['provenance']['command']}\n" in text
    section = text[text.index("### How fast?") : text.index("## From Python")]
    lines = [line.strip("|\n ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    starts = [i for i, line in enumerate(lines) if line[0] == "workload"]
    tables = headed_table(record)
    assert len(starts) == len(tables) == 2
    for start, table in zip(starts, tables, strict=True):
        titles = [column.title for column in table.columns]
        shown = [titles.index(name) for name in lines[start]]
        rows = [[row[i] for i in shown] for row in table.rows]
        assert lines[start + 2 : start + 2 + len(rows)] == rows
    drawn = (root / "bench/results/partitions.svg").read_bytes()
    assert drawn.startswith(b"<?xml")
