"""Where reports go, and what of a file never gets to a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pamx.cli.app import app
from pamx.cli.bench.deliver import Delivery, deliver
from pamx.cli.bench.options import Format
from pamx.errors import PamxError

from .synthetic import synthetic_record

runner = CliRunner()


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A record that nothing had to be measured for."""
    return synthetic_record(contexts=[256], batches=[1])


def test_a_terminal_gets_attributes_and_not_their_spelling(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pamx.cli.terminal.is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    recorded["cells"][0]["arm"] = "\x1b[31mred"
    deliver(recorded, Delivery(Format.TABLE, None, None, False))
    out = capsys.readouterr().out
    assert "\x1b[1mtiny, fast" in out
    assert "\x1b[2mDefinitions\x1b[0m" in out
    assert "\x1b[31m" not in out
    assert "[1m" not in re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_a_report_in_a_file_leaves_stdout_alone(
    recorded: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.md"
    recorded["warnings"] = ["256x1: two equal arms differ."]
    deliver(recorded, Delivery(Format.MD, file, None, True))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-2:] == ["256x1: two equal arms differ.", f"Written to {file}."]
    assert "| 256x1 | control |" in file.read_text()
    # What cannot be written is shown instead: it may be all that is left.
    with pytest.raises(PamxError, match="cannot be written"):
        deliver(recorded, Delivery(Format.MD, tmp_path / "gone" / "report.md", None, True))
    assert "TTFT" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["report.txt", "report", "report.doc", ".hidden"])
def test_a_file_whose_ending_says_nothing_gets_the_table(
    name: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    run, file = tmp_path / "run.json", tmp_path / name
    run.write_text(json.dumps(recorded))
    result = runner.invoke(app, ["bench", "show", str(run), "-q", "-o", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    shown = runner.invoke(app, ["bench", "show", str(run), "-q"], env={"COLUMNS": "100"})
    assert file.read_text() == shown.stdout
    nowhere = runner.invoke(app, ["bench", "show", str(run), "-o", "/dev/null"])
    assert (nowhere.exit_code, nowhere.stdout) == (0, "")


@pytest.mark.parametrize(
    "content",
    [
        {"schema_version": "\x1b[2J\x9b1m"},
        {"schema_version": 1, "\x1b[2J\x9b1m": 1},
        {"schema_version": 1, "kind": "\x1b[2J"},
    ],
)
def test_a_hostile_file_reaches_no_terminal(content: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    whole = json.loads(json.dumps(synthetic_record(contexts=[256], batches=[1])))
    file.write_text(json.dumps(whole | content))
    for args in (["show", str(file)], ["compare", str(file), str(file)]):
        result = runner.invoke(app, ["bench", *args])
        assert result.exit_code in (1, 2)
        assert all(c.isprintable() or c == "\n" for c in result.output)
