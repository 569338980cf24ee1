"""The version that is told and recorded, of an installation and of a source tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import pamx
from pamx import version
from pamx.bench.provenance import provenance
from pamx.cli.doctor.software import check_pamx


def test_a_source_tree_has_the_version_of_its_project(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise version.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    monkeypatch.setattr("pamx.cli.doctor.software.version", missing)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    wanted = project["project"]["version"]
    assert pamx.__version__ == wanted
    assert provenance(["pamx"], 0, {})["versions"]["pamx"] == wanted
    row = check_pamx()
    assert row.value == wanted
    assert row.message == f"{wanted}, not installed, from {version.HOME}."


@pytest.mark.parametrize("text", [None, "{", "[project]", '[project]\nname="x"\nversion="1"'])
def test_another_project_beside_the_package_is_not_asked(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(version, "HOME", tmp_path)
    monkeypatch.setattr(version, "installed", lambda: None)
    assert pamx.__version__ == "unknown"
