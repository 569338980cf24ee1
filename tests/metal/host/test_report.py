"""The report that a Mac's owner attaches to an issue says what passed, what failed and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from metal.host import library, report


def test_counts_and_failures(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_other():\n    pytest.skip('no')\n"
    )
    suite = report.run("some", [str(tests)])
    assert (suite.passed, suite.skipped, len(suite.failures)) == (1, 1, 1)
    assert "assert 1 == 2" in suite.failures[0][1]
    written = report.text('{"ok": true}', {"some": suite}, ["| a | b | 1 | 2 |"])
    assert "| some | 1 | 1 | 1 |" in written
    assert "## some: " in written
    assert '"ok": true' in written


def test_measures_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    library.need(library.missing())
    monkeypatch.setattr(report, "MEASURED", [(4, 2, 64, 2, 40)])
    (row,) = report.measured()
    assert row.startswith("| (4, 2, 64), 2 x 40 | ")
