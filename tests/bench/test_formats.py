"""Every form of a record, read back by readers that know nothing of pamx."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import matplotlib.image
import pandas as pd
import pytest

from pamx.bench import plot
from pamx.bench.compare import Comparison, compare_records, different_facts
from pamx.bench.formats import as_text, comparison_as_text
from pamx.bench.record import SCHEMA, DamagedError, Record, load, save
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
    assert (frame.ttft_low_s <= frame.ttft_s).all()
    assert (frame.ttft_s <= frame.ttft_high_s).all()
    # Columns have the names of the table.
    names = {"ttft_s", "tpot_s", "e2e_s", "output_tok_per_s", "prompt_tok_per_s", "user_tok_per_s"}
    names |= {"goodput_per_s", "memory_bytes", "pages", "kernel", "output_tok_per_s_ratio_vs_base"}
    assert names <= set(frame.columns)
    assert rows[0]["gap_p99_s"] == str(frame.gap_p99_s[0])


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
    assert len(re.findall(r"(?<!\\)\|", line)) == 16  # 15 columns


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


def test_a_plot_shows_each_arm_and_the_best_of_them(record: Record) -> None:
    figure = plot.make_figure(record)
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}  # type: ignore[union-attr]
    assert labels == {"pamx, partition auto", "pamx, partition 512", "mlx-lm"}
    written = [text.get_text() for text in figure.axes[-1].texts]
    assert len(written) == 4  # contexts times batches
    assert not any(text.startswith("pamx, partition 512") for text in written)


def test_the_map_names_nothing_that_may_be_chance() -> None:
    equal = synthetic_record(contexts=[64], batches=[1])
    (text,) = (t.get_text() for t in plot.make_figure(equal).axes[-1].texts)
    assert text == "no difference"
    for comparison in equal["comparisons"]:
        comparison |= {"verdict": "too few samples"}
    (text,) = (t.get_text() for t in plot.make_figure(equal).axes[-1].texts)
    assert text == "too few samples"
    fast = synthetic_record(contexts=[64], batches=[1], speeds={"pamx, partition 512": 0.5})
    (text,) = (t.get_text() for t in plot.make_figure(fast).axes[-1].texts)
    assert re.fullmatch(r"pamx, partition 512\n(1\.9|2\.0).x pamx, partition auto", text)


@pytest.mark.parametrize("contexts", [[64], [256, 1024], [1000, 1024]])
def test_no_arm_hides_another(contexts: list[int]) -> None:
    record = synthetic_record(contexts=contexts, batches=[1])
    axes = plot.make_figure(record).axes[0]
    lines = [container.lines[0] for container in axes.containers]  # type: ignore[attr-defined]
    places = [tuple(line.get_xdata()) for line in lines]
    assert len(places) == len(set(places)) == 3
    assert len({line.get_marker() for line in lines}) == 3
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
    with pytest.raises(RequestError, match="no valid figure"):
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
    ],
)
def test_files_that_are_no_records(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(RequestError, match=said):
        load(tmp_path / "r.json")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"[" * 100_000, b'{"schema_version": 1, "cells": [NaN]}']
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
        (("cells", 0, "samples", 0, "figures"), [], "figures is no object"),
        (("cells", 1, "outputs"), {"same": False}, "compared_with is missing"),
        (("cells",), {}, "cells is no array"),
        (("comparisons", 0, "metric"), "luck", "none of ttft"),
        (("comparisons", 0, "low"), None, "part of an interval"),
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
    assert any("model name: tiny, then other" in fact for fact in different_facts(first, changed))


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
    return Comparison(("a.json", "b.json"), compare_records(first, second), ["model name: x."])


def test_two_runs_in_every_form(comparison: Comparison) -> None:
    titles = [column.title for column in comparison.table().columns]
    assert titles == ["workload", "arm", "TTFT", "TPOT", "output tok/s", "E2E", "prompt tok/s"]
    frame = pd.read_csv(io.StringIO(comparison_as_text(comparison, "csv")))
    assert set(frame.metric) == {"ttft", "tpot", "output_tok_per_s", "e2e", "prompt_tok_per_s"}
    slow = frame[(frame.arm == "mlx-lm") & (frame.metric == "ttft")]
    assert slow.verdict.item() == "slower"
    lines = pd.read_json(io.StringIO(comparison_as_text(comparison, "jsonl")), lines=True)
    assert lines.ratio.tolist() == pytest.approx(frame.ratio.tolist())
    assert len(json.loads(comparison_as_text(comparison, "json"))["comparisons"]) == len(frame)
    text = comparison_as_text(comparison, "md")
    assert "| workload | arm | TTFT |" in text
    assert "- model name: x." in text
    assert "relative speed:" in text
    assert "relative speed:" not in comparison_as_text(comparison, "md", definitions=False)


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_a_plot_of_two_runs(comparison: Comparison, ending: str, tmp_path: Path) -> None:
    plot.draw_comparison(comparison, tmp_path / f"plot.{ending}")
    assert (tmp_path / f"plot.{ending}").stat().st_size > 2000
    few = Comparison(comparison.names, [comparison.ratios[0] | {"ratio": None}], [])
    with pytest.raises(RequestError, match="no ratio"):
        plot.draw_comparison(few, tmp_path / "few.png")
