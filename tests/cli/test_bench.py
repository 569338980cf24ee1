"""`pamx bench` as a user runs it: what it refuses, one real sweep, interruption, and its files."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import psutil
import pytest
from typer.testing import CliRunner

from pamx.bench import plot, sweep
from pamx.bench.record import SCHEMA
from pamx.cli.app import app
from pamx.cli.bench import command
from pamx.cli.bench.layout import laid_out
from tests.bench.synthetic import synthetic_record
from tests.bench.test_replay_figures import recomputed

from .conftest import PAMX, Run

runner = CliRunner()

# Gives as many tokens as are asked for, at once; a file tells it to hang instead.
OTHER = """
    import json, pathlib, sys, time
    hang = pathlib.Path(__file__).with_name("hang")
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            print(json.dumps({"type": "ready", "name": "other", "version": "9"}), flush=True)
            continue
        if hang.exists() and len(asked["requests"]) > 1:
            pathlib.Path(__file__).with_name("hangs").touch()
            time.sleep(600)
        for i, request in enumerate(asked["requests"]):
            for n in range(request["max_tokens"]):
                said = {"type": "token", "request": i, "token": 1, "time": 1e-6 * (n + 1)}
                print(json.dumps(said))
        print(json.dumps({"type": "done", "id": asked["id"]}), flush=True)
"""
SMALL = ("--output-tokens", "3", "--time", "20", "--precision", "50")


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The command line of another program."""
    script = tmp_path / "other.py"
    script.write_text(textwrap.dedent(OTHER))
    return f"{sys.executable} {script}"


def validate(record: dict[str, Any]) -> None:
    jsonschema.validate(record, json.loads(SCHEMA.read_text()))


def _usage() -> list[tuple[list[str], str]]:
    return [
        (["--context", "0"], "--context: '0' has a number below 1"),
        (["--context", "4-1"], "ends before it begins"),
        (["--batch", "-1"], "--batch"),
        (["--batch", "1-1000"], "more than 64"),
        (["--partition", "100"], "100 does not go: a partition is a multiple of 16 tokens."),
        (["--partition", "48", "--block-size", "16,32"], "with blocks of 32 tokens a partition is"),
        (["--partition", "2097152"], "more than 1,048,576"),
        (["--partition", "fast"], "--partition"),
        (["--block-size", "12"], "12 is no page size"),
        (["--kv-dtype", "int3"], "'int3' is not one of"),
        (["--context", "16", "--output-tokens", "16"], "no room for a prompt"),
        (["--output-tokens", "0"], "--output-tokens"),
        (["--time", "-1"], "--time"),
        (["--time", "nan"], "--time"),
        (["--precision", "0"], "--precision"),
        (["--slo", "ttft"], "not a limit such as"),
        (["--slo", "ttft=0s"], "met by nothing"),
        (["--against", ""], "--against"),
        (["--against", "/nowhere/server --fast"], "no program '/nowhere/server'"),
        (["--heads", "8,2,64"], "needs --kernel"),
        (["--kernel", "--heads", "99999999,1,64"], "more than 1024"),
        (["--kernel", "--heads", "9" * 5000 + ",1,64"], "three numbers"),
        (["--arrivals", "poisson:1", "--time", "9"], "beside --trace or --arrivals."),
        (["--kernel", "--heads", "8,3,64"], "cannot share"),
        (["--kernel", "--heads", "8,2"], "three numbers"),
        (["--kernel", "--against", "mlx-lm"], "--against"),
        (["--kernel", "--arrivals", "poisson:1"], "no arrivals to replay"),
        (["--requests", "3"], "needs --arrivals"),
        (["--max-seqs", "3"], "--batch says it"),
        (["--arrivals", "poisson:1", "--batch", "2"], "no meaning beside"),
        (["--arrivals", "sometimes"], "neither poisson:RATE"),
        (
            ["--arrivals", "poisson:1", "--prompt-tokens", "many"],
            "--prompt-tokens: 'many' is",
        ),
        (["--trace", "/nowhere/trace.jsonl"], "--trace: /nowhere/trace.jsonl: No such file"),
        (["--trace", "/dev/zero"], "--trace: /dev/zero, line 1: it is longer than"),
        (["--arrivals", "poisson:1", "--answer-tokens", "0"], "--answer-tokens: '0' is neither"),
        (["--arrivals", "poisson:1e-9"], "--arrivals: 'poisson:1e-9' is neither"),
        (
            ["--arrivals", "poisson:0.000001"],
            "'poisson:0.000001' takes more than a week",
        ),
        (["--slo", f"ttft={'9' * 400}s"], "--slo: ttft has no such limit"),
        (["--json", "--format", "csv"], "--json: it does not go with --format csv"),
        (["--context", "64", "show"], "--context: it stands before show"),
        (["show", "--json", "--format", "csv"], "--json: it does not go with --format csv"),
        (["compare", "a", "b", "--json", "--format", "md"], "--json: it does not go with --format"),
        (["--revision", "main"], "--model and --revision"),
        (["--output", " "], "--output: it is blank"),
        (["--output", "/nowhere/report.json"], "no folder /nowhere"),
        (
            ["--output", "/proc/run.json"],
            "--output: /proc/run.json cannot be written",
        ),
        (["--plot", "/proc/plot.svg"], "--plot: /proc/plot.svg cannot be written: No such file"),
        (["--plot", "p" * 300 + ".svg"], "cannot be written: File name too long"),
        (["--plot", "/"], "--plot: / is a folder; name a file"),
        (["--output", "x.svg", "--format", "md", "--plot", "x.svg"], "--plot: x.svg is --output"),
        (["--plot", "plot.gif"], "does not end in one of .png, .svg, .html"),
        (["--format", "xml"], "--format"),
        (["--model", "no/such/model"], "--model"),
        (["--model", "/nowhere/model"], "--model"),
        (["--resume", "/nowhere/run.json"], "--resume: /nowhere/run.json: No such file"),
        (["--resume", "run.json", "--batch", "2"], "as it was planned"),
        (["show", "/nowhere/run.json"], "FILE: /nowhere/run.json: No such file"),
        (["compare", "/nowhere/a.json", "b"], "A: /nowhere/a.json: No such file"),
        (["compare", "a.json"], "B"),
    ]


@pytest.mark.parametrize(("args", "said"), _usage())
def test_usage_errors_exit_with_2(args: list[str], said: str) -> None:
    result = runner.invoke(app, ["bench", *args])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""


WRONG = ["", " ", "0", "-1", "9" * 6000, "nan", "inf", "4-1", "٣", "²", "1e400", "x", "1,,2", "1.5"]
TAKES = {"--time": "0 1.5", "--precision": "1.5", "--seed": "0", "--against": ""}
# Odd names, but names: the table goes there.
TAKES["--output"] = " ".join(text for text in WRONG if text.strip() and len(text) < 255)
REPLAYED = ("--requests", "--prompt-tokens", "--answer-tokens", "--max-seqs")


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize(
    "option",
    [
        *("--context", "--batch", "--partition", "--block-size", "--kv-dtype", "--output-tokens"),
        *("--time", "--precision", "--seed", "--threads", "--slo", "--against", "--format"),
        *("--heads", "--output", "--plot", "--resume", "--compute", "--arrivals", "--trace"),
        *REPLAYED,
    ],
)
def test_a_wrong_value_is_one_sentence_about_its_option(
    option: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_measured", lambda *_: None)
    also = ["--arrivals", "poisson:1"] if option in REPLAYED else []
    also += ["--kernel"] if option == "--heads" else []
    result = runner.invoke(app, ["bench", *also, f"{option}={text}"])
    if text in TAKES.get(option, "").split():
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2, result.output
    *_, said = [line for line in result.stderr.splitlines() if line]
    assert said.startswith(f"Error: Invalid value for {option}: ".replace("'", "")) or (
        said.startswith(f"Error: Invalid value for '{option}': ")
    )
    assert len(said) < 350
    assert result.stdout == ""


def test_a_number_given_twice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    monkeypatch.setattr(command, "_measured", lambda record, *_: plans.append(record["plan"]))
    lists = ("--partition", "auto,64,auto,64-64", "--kv-dtype", "auto,float16,auto")
    lists += ("--block-size", "16,16", "--context", "64,64", "--batch", "1,1-1")
    result = runner.invoke(app, ["bench", *lists, "--against", "mlx-lm", "--against", " mlx-lm "])
    assert result.exit_code == 0, result.output
    (plan,) = plans
    assert [(w["context"], w["batch"]) for w in plan["workloads"]] == [(64, 1)]
    assert [arm["id"] for arm in plan["arms"]] == [
        "pamx, partition auto, KV auto",
        "pamx, partition auto, KV auto, control",
        "pamx, partition 64, KV auto",
        "pamx, partition auto, KV float16",
        "pamx, partition 64, KV float16",
        "mlx-lm",
    ]


def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(*_: object) -> None:
        pytest.fail("it was measured")

    monkeypatch.setattr(command, "_measured", measured)
    # Root may write everywhere but where the file system refuses.
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refusing)
    for option, name in (("--output", "run.json"), ("--plot", "plot.svg")):
        result = runner.invoke(app, ["bench", option, str(tmp_path / name)])
        assert result.exit_code == 2
        assert f"{option}: {tmp_path / name} cannot be written: Read-only file" in result.stderr
    run = tmp_path / "run.json"
    record = synthetic_record()
    record["complete"] = False
    run.write_text(json.dumps(record))
    result = runner.invoke(app, ["bench", "--resume", str(run)])
    assert result.exit_code == 2
    assert f"--resume: {run} cannot be written" in result.stderr


def refusing(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_missing_plotting_library_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_measured", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    result = runner.invoke(app, ["bench", "--plot", str(tmp_path / "plot.svg")])
    assert result.exit_code == 1
    assert "pamx[plots]" in result.stderr


@pytest.mark.parametrize("args", [["show", "F"], ["compare", "F", "F"], ["--resume", "F"]])
def test_a_damaged_file_is_said_to_be_damaged(args: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"schema_version": 1, "kind": "sweep", "complete": false, "plan": {}}')
    result = runner.invoke(app, ["bench", *(str(file) if a == "F" else a for a in args)])
    assert result.exit_code == 1, result.output
    assert f"Error: {file} is damaged: definitions is missing." in result.stderr


def test_what_does_not_fit_is_refused_before_anything_is_measured(run: Run) -> None:
    long = run("bench", "--context", "9000", "--batch", "1")
    assert long.returncode == 2
    assert "more than the 8,192 that smollm2-135m was made for" in long.stderr
    wide = run("bench", "--context", "8000", "--batch", "100000", "--kv-dtype", "float32")
    assert wide.returncode == 2
    assert "100,000 sequences of 8,000 tokens take 36,937,728,000,000 bytes" in wide.stderr
    assert "are kept free" in wide.stderr  # the budget's arithmetic
    assert long.stdout == wide.stdout == ""


def test_what_does_not_fit_costs_its_own_cells(run: Run) -> None:
    args = ("--context", "24,9000", "--batch", "1", "--output-tokens", "3", "--time", "0")
    result = run("bench", *args, "--no-control", "--json")
    assert result.returncode == 0, result.stderr
    assert "9000x1: no arm fits, and is not measured. A context of 9,000" in result.stderr
    record = json.loads(result.stdout)
    validate(record)
    fits, long = record["cells"]
    assert fits["valid"]
    assert not long["valid"]
    assert not long["failed"]
    assert "more than the 8,192" in long["why_invalid"]
    assert long["samples"] == []
    table = laid_out(record, 200)
    assert "9000x1, pamx: invalid, because A context of 9,000 tokens" in table


def test_a_sweep_of_the_default_model(run: Run, other: str, tmp_path: Path) -> None:
    file, csv = tmp_path / "run.json", tmp_path / "run.csv"
    arms = ("--partition", "auto,64,32768", "--against", other, "--slo", "ttft=60s,tpot=60s")
    result = run(
        *("bench", "--context", "70", "--batch", "1", *SMALL, *arms, "-o", str(file)),
        *("--plot", str(tmp_path / "plot.svg")),
    )
    assert result.returncode == 0, result.stderr
    record = json.loads(file.read_text())
    validate(record)
    assert record["complete"]
    cells = {cell["arm"]: cell for cell in record["cells"]}
    base = cells["pamx, partition auto"]
    forced, impossible = cells["pamx, partition 64"], cells["pamx, partition 32768"]
    assert base["dispatch"]["kernel"] == "native-cpu"
    assert base["pages"] == 5  # 70 tokens, 16 a page
    assert base["goodput"] > 0
    assert base["peak_memory_bytes"] > 50e6
    # What ran, not what was asked for.
    assert forced["valid"]
    assert forced["dispatch"]["partition"] == 64
    assert forced["dispatch"]["calls"]["native-cpu"] >= 30 * 3  # layers times steps
    assert not impossible["valid"]
    assert "32768" in impossible["why_invalid"]
    assert forced["outputs"]["same"] in (True, False)
    assert cells[other]["outputs"]["same"] is False
    model = record["provenance"]["model"]
    assert model["name"] == "smollm2-135m"
    assert len(model["sha256"]["model.safetensors"]) == 64
    assert record["provenance"]["library"]["build_hash"]
    assert record["provenance"]["command"].startswith("pamx bench --context 70")
    assert record["provenance"]["programs"][other]["version"] == "9"
    controls = {c["metric"] for c in record["comparisons"] if c["control"]}
    assert controls == {"ttft", "tpot", "e2e", "prompt_throughput", "output_throughput"}
    # The report is in the file and not on stdout; where it is, and warnings, on stderr.
    assert result.stdout == ""
    assert f"Written to {file}. `pamx bench show {file}` shows it." in result.stderr
    assert "partition 32768: invalid, because" in result.stderr
    shown = run("bench", "show", str(file))
    assert "(invalid)" in shown.stdout
    # No wider than 100 columns because it is piped.
    assert max(len(line) for line in shown.stdout.splitlines() if other not in line) <= 100
    assert "\x1b" not in shown.stdout
    assert "TTFT" in shown.stdout
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")

    again = run("bench", "show", str(file), "--format", "csv", "-o", str(csv), "-q")
    assert again.returncode == 0
    frame = pd.read_csv(csv)
    assert frame.ttft_s[0] == pytest.approx(base["figures"]["ttft"]["typical"])
    # Without a file it is the latest run.
    latest = run("bench", "show", "--format", "jsonl")
    lines = pd.read_json(io.StringIO(latest.stdout), lines=True)
    assert lines.arm.tolist() == frame.arm.tolist()
    compared = run("bench", "compare", str(file), str(file))
    assert compared.returncode == 0
    assert "1.00x (" in compared.stdout
    assert ") faster" not in compared.stdout
    # Long paths are folded, at hyphens too.
    assert f"A:{file}:smollm2-135m,fast,on" in "".join(compared.stdout.split())
    told = run("bench", "compare", str(file), str(file), "-o", str(tmp_path / "compared.csv"), "-q")
    assert told.returncode == 0
    assert f"Written to {tmp_path / 'compared.csv'}." in told.stderr
    assert told.stdout == ""
    ratios = pd.read_csv(tmp_path / "compared.csv")
    assert set(ratios.ratio) == {1.0}
    assert "output_tok_per_s" in set(ratios.metric)
    shown = run("bench", "show", str(file), "--json")
    assert json.loads(shown.stdout) == record
    as_json = run("bench", "compare", str(file), str(file), "--json")
    assert as_json.stdout == run("bench", "compare", *[str(file)] * 2, "--format", "json").stdout


def test_ctrl_c_keeps_what_is_finished_and_resume_measures_the_rest(
    environment: dict[str, str], run: Run, other: str, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    file = tmp_path / "run.json"
    child = subprocess.Popen(
        [
            *(*PAMX, "bench", "--context", "20", "--batch", "1,2", *SMALL),
            *("--against", other, "-o", str(file), "-q"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    end = time.monotonic() + 100
    while not (tmp_path / "hangs").exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    record = json.loads(file.read_text())
    validate(record)
    assert not record["complete"]
    assert {cell["workload"] for cell in record["cells"]} == {"20x1"}
    assert out == ""
    assert "Not complete: 20x2 was not measured." in err
    assert f"--resume {file}" in err
    assert "Traceback" not in err

    (tmp_path / "hang").unlink()
    again = run("bench", "--resume", str(file), "-q")
    assert again.returncode == 0, again.stderr
    whole = json.loads(file.read_text())
    validate(whole)
    assert whole["complete"]
    assert whole["cells"][: len(record["cells"])] == record["cells"]
    assert {cell["workload"] for cell in whole["cells"]} == {"20x1", "20x2"}
    complete = runner.invoke(app, ["bench", "--resume", str(file)])
    assert complete.exit_code == 2
    assert "is complete" in complete.stderr


def test_what_time_has_no_room_for_is_left_for_another_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    args = ("--context", "24", "--batch", "1,2", "--output-tokens", "3", "--time", "0")
    result = run("bench", *args, "-o", str(file))
    assert result.returncode == 0, result.stderr
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("A verdict for ")]
    assert said.startswith("A verdict for all 2 workloads needs about ")
    assert "; --time is 0 s, which is not enough for one: 24x1 alone is measured" in said
    assert result.stderr.count("24x2 was not measured.") == 1
    assert f"Out of time, so the run is not complete. `pamx bench --resume {file}`" in result.stderr
    assert "24x1: 1 sample of each arm fitted into the time" in result.stderr
    shown = run("bench", "show", str(file))
    assert re.search(r"24x1 +control +1 sample, no verdict", shown.stdout)
    record = json.loads(file.read_text())
    validate(record)
    assert not record["complete"]
    assert [len(cell["samples"]) for cell in record["cells"]] == [1, 1]
    again = run("bench", "--resume", str(file), "--time", "20", "-q")
    assert again.returncode == 0, again.stderr
    whole = json.loads(file.read_text())
    assert whole["complete"]
    assert {cell["workload"] for cell in whole["cells"]} == {"24x1", "24x2"}
    assert min(len(c["samples"]) for c in whole["cells"] if c["workload"] == "24x2") >= 6


def test_another_program_that_dies_costs_its_own_cells(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import sys; sys.exit('no weights here')")
    dies = f"{sys.executable} {script}"
    result = run(
        *("bench", "--context", "20", "--batch", "1", *SMALL, "--against", dies),
        *("--format", "json", "-q"),
    )
    assert result.returncode == 1, result.stderr
    cells = {cell["arm"]: cell for cell in json.loads(result.stdout)["cells"]}
    assert cells["pamx"]["valid"]
    assert "no weights here" in cells[dies]["why_invalid"]
    assert cells[dies]["failed"]


def test_sigterm_ends_what_is_measured(
    environment: dict[str, str], other: str, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    child = subprocess.Popen(
        [*PAMX, "bench", "--context", "20", "--batch", "2", *SMALL, "--against", other, "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    end = time.monotonic() + 100
    while not (tmp_path / "hangs").exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    measured = psutil.Process(child.pid).children(recursive=True)
    assert len(measured) >= 2
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGTERM, err
    assert "Interrupted: nothing was finished, nothing was written." in err
    _, left = psutil.wait_procs(measured, timeout=10)
    assert not left


def test_the_attention_call_alone(run: Run) -> None:
    args = ("--context", "512", "--batch", "2", "--time", "5", "--format", "json")
    result = run("bench", "--kernel", "--heads", "4,2,64", "--partition", "auto,64", *args)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    validate(record)
    cells = {cell["arm"]: cell for cell in record["cells"]}
    for name in ("pamx, partition auto", "pamx, partition 64"):
        cell = cells[name]
        assert cell["valid"], cell["why_invalid"]
        assert cell["pool_bytes"] == 2 * 512 * 2 * 2 * 64 * 2  # K and V, float16
        call, bandwidth = (cell["figures"][m]["typical"] for m in ("call", "bandwidth"))
        assert bandwidth == pytest.approx(cell["pool_bytes"] / call, rel=0.2)
        assert cell["fits_cache"]  # half a megabyte: no share of memory's bandwidth
        assert "share_of_read" not in cell
    table = laid_out(record, 200)
    assert "of plain read" in table
    assert "in cache" in table
    assert "of copy" not in table
    reads, copies = (cells[what]["samples"][0]["figures"] for what in ("read", "copy"))
    assert reads["bandwidth"] * reads["call"] == pytest.approx(cell["pool_bytes"])
    assert copies["bandwidth"] * copies["call"] == pytest.approx(2 * cell["pool_bytes"])
    assert cells["pamx, partition 64"]["dispatch"]["partition"] == 64
    assert cells["copy"]["figures"]["bandwidth"]["typical"] > 0
    assert {c["arm"] for c in record["comparisons"]} == {
        "pamx, partition auto, control",
        "pamx, partition 64",
    }


def test_a_replay_under_load(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival_s": 5.0 + at, "prompt_tokens": 20, "output_tokens": 3} for at in (0, 0, 0.2)]
    lines.append({"arrival_s": 5.3, "prompt": "Name three rivers.", "output_tokens": 2})
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ("--slo", "ttft=60s", "--max-seqs", "2", "--format", "json")
    result = run("bench", "--trace", str(trace), *args)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    validate(record)
    plot.draw(record, tmp_path / "replay.png")
    text = laid_out(record, 80)
    assert "TTFT max" in text  # of four requests
    assert "TTFT p9" not in text
    (cell,) = record["cells"]
    assert cell["replay"]["requests"] == 4
    requests = cell["samples"][0]["requests"]
    assert [r["submitted"] for r in requests] == pytest.approx([0, 0, 0.2, 0.3])
    assert [len(r["times"]) for r in requests] == [3, 3, 3, 2]
    assert all(r["times"][0] > r["submitted"] for r in requests)
    assert cell["requests"]["ttft"]["n"] == 4
    assert cell["goodput"] == pytest.approx(4 / cell["replay"]["seconds"], rel=1e-3)
    assert cell["replay"]["met"] == 4
    assert "4 of 4 requests met TTFT ≤ 60 s." in text
    assert "trace.jsonl, on" in " ".join(text.split())
    assert cell["peak_memory_bytes"] > 50e6
    frame, gaps = recomputed(requests)
    for name, values in [*frame.items(), ("itl", gaps)]:
        assert cell["requests"][str(name)]["p50"] == pytest.approx(values.median())


def test_a_second_ctrl_c_does_not_hide_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run.json"
    record = synthetic_record()
    record["complete"] = False
    run.write_text(json.dumps(record))
    monkeypatch.setattr(sweep, "sweep", interrupted)
    monkeypatch.setattr(command, "_deliver", interrupted)
    result = runner.invoke(app, ["bench", "--resume", str(run)])
    assert result.exit_code == 130
    assert f"Interrupted: `pamx bench --resume {run}` measures the rest." in result.stderr


def test_a_folder_of_results_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "bench").write_text("a file in its place")
    args = ("--kernel", "--heads", "4,2,64", "--context", "64", "--batch", "1,2", "--time", "0")
    result = run("bench", *args, "-q", env={"PAMX_HOME": str(home)})
    assert result.returncode == 0, result.stderr
    assert "This run is not kept for `pamx bench show` nor for --resume: -o FILE" in result.stderr
    assert "there is no folder" in result.stderr
    assert "Not complete: 64x2 was not measured." in result.stdout
    assert "Out of time, so the run is not complete." in result.stderr
    assert "64x2" not in result.stderr.split("Out of time")[1]
    told = run("bench", *args, "-q", "--json", env={"PAMX_HOME": str(home)})
    assert (told.returncode, json.loads(told.stdout)["complete"]) == (0, False)
    assert "Out of time, so the run is not complete: 64x2 was not measured." in told.stderr
    assert "--resume /" not in result.stderr
