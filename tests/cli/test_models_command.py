"""`pamx pull` and `pamx models`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from pamx.sizes import bytes_text

from .conftest import Run


@pytest.fixture
def own(home: Path, tmp_path: Path) -> dict[str, str]:
    """A cache with a copy of the default model that may be deleted."""
    shutil.copytree(home / "models", tmp_path / "models")
    return {"PAMX_HOME": str(tmp_path)}


def test_pull_prints_the_folder(run: Run, home: Path) -> None:
    result = run("pull")
    assert result.returncode == 0
    assert result.stderr == ""
    folder = Path(result.stdout.removesuffix("\n"))
    assert (folder / "config.json").is_file()
    assert folder.parent == home / "models"


def test_list_and_path(run: Run) -> None:
    listed = run("models", "--json")
    assert listed.returncode == 0
    assert listed.stderr == ""
    (model,) = json.loads(listed.stdout)
    assert (model["name"], model["source"]) == ("smollm2-135m", "built-in")
    assert model["size_bytes"] > 100_000_000
    assert run("models", "path", "smollm2-135m").stdout == f"{model['path']}\n"

    table = run("models")
    header, row = table.stdout.splitlines()
    assert header.split() == ["NAME", "SOURCE", "SIZE", "PACKED", "PATH"]
    assert row.split()[0] == "smollm2-135m"
    assert row.endswith(model["path"])  # whole, however long
    assert "\x1b" not in table.stdout


def test_packed_weights_are_counted_and_go_with_their_model(
    run: Run, own: dict[str, str], tmp_path: Path
) -> None:
    def pack(folder: Path) -> None:
        code = "import sys; from pathlib import Path; from packed_model import load"
        code += "; load(Path(sys.argv[1]), 5000)"
        subprocess.run([sys.executable, "-c", code, str(folder)], env=env, check=True)

    folder = tmp_path / "mine"
    folder.mkdir()
    tests = Path(__file__).parents[1] / "models"
    paths = os.pathsep.join([str(tests), *sys.path])
    env = {**os.environ, **own, "PYTHONPATH": paths}
    (model,) = json.loads(run("models", "--json", env=own).stdout)
    pack(Path(model["path"]))
    pack(folder)
    (size,) = {file.stat().st_size for file in (tmp_path / "packed").iterdir()}

    listed = json.loads(run("models", "--json", env=own).stdout)
    assert [m["packed_bytes"] for m in listed] == [size, size]
    assert listed[1]["name"] == str(folder)
    assert listed[1]["source"] == "folder"
    assert bytes_text(size) in run("models", env=own).stdout

    kept = run("models", "rm", "--packed", "--yes", "smollm2-135m", env=own)
    assert kept.stderr == f"Deleted the packed weights of smollm2-135m, {bytes_text(size)}.\n"
    again = run("models", "rm", "--packed", "--yes", "smollm2-135m", env=own)
    assert again.returncode == 1
    assert "No packed weights of smollm2-135m" in again.stderr
    assert (Path(model["path"]) / "config.json").is_file()
    pack(Path(model["path"]))

    gone = run("models", "rm", "--yes", str(folder), env=own)
    assert gone.stderr == f"Deleted the packed weights of {folder}, {bytes_text(size)}.\n"
    assert folder.is_dir()
    assert len(list((tmp_path / "packed").iterdir())) == 1
    assert run("models", "rm", "--yes", "smollm2-135m", env=own).returncode == 0
    assert list((tmp_path / "packed").iterdir()) == []


def test_what_a_model_was_made_from_may_be_gone(
    run: Run, own: dict[str, str], tmp_path: Path
) -> None:
    (converted,) = (tmp_path / "models").iterdir()
    marker = json.loads((converted / "pamx.json").read_text())
    source = tmp_path / "mine.gguf"
    source.touch()
    marker |= {"name": str(source), "source": "gguf"}
    (converted / "pamx.json").write_text(json.dumps(marker))
    assert [m["gone"] for m in json.loads(run("models", "--json", env=own).stdout)] == [False]
    assert run("models", "path", str(source), env=own).returncode == 0
    assert "~nobody-here is not on this" in run("models", "path", "~nobody-here", env=own).stderr
    source.unlink()
    assert [m["gone"] for m in json.loads(run("models", "--json", env=own).stdout)] == [True]
    assert "gguf, gone" in run("models", env=own).stdout
    assert run("models", "rm", "--yes", "mine", env=own).returncode == 0


def test_an_empty_list(run: Run, tmp_path: Path) -> None:
    env = {"PAMX_HOME": str(tmp_path)}
    assert json.loads(run("models", "--json", env=env).stdout) == []
    table = run("models", env=env)
    assert table.returncode == 0
    assert table.stdout == ""
    assert "pamx pull" in table.stderr


@pytest.mark.parametrize("command", ["path", "rm"])
@pytest.mark.parametrize(("name", "status"), [("nothing", 2), ("", 2), ("org/nothing", 1)])
def test_a_model_that_is_not_here(run: Run, command: str, name: str, status: int) -> None:
    """2 for what can be no model, as everywhere; 1 for one that may be elsewhere."""
    result = run("models", command, name)
    assert result.returncode == status
    assert result.stdout == ""
    assert f"Error: {name or 'A model without a name'} is not on this machine" in result.stderr
    assert "`pamx models`" in result.stderr


def test_rm_needs_consent(run: Run, own: dict[str, str]) -> None:
    refused = run("models", "rm", "smollm2-135m", env=own, input="y\n")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert json.loads(run("models", "--json", env=own).stdout)

    done = run("models", "rm", "smollm2-135m", "--yes", env=own)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "Deleted smollm2-135m" in done.stderr
    assert json.loads(run("models", "--json", env=own).stdout) == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [("n\r", 1), ("\r", 1), ("yess\r", 1), ("\x04", 1), ("\x03", 130), ("Yes\r", 0)],
)
def test_rm_asks_a_person(
    environment: dict[str, str], own: dict[str, str], answer: str, status: int
) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "pamx.cli", "models", "rm", "smollm2-135m"],
        env=environment | own,
        encoding="utf-8",
        timeout=30,
    )
    child.expect(r"Delete smollm2-135m \(\d+ MB\)\?")
    child.expect(r"\[y/N\]: ")
    child.send(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == status
    assert (Path(own["PAMX_HOME"]) / "models").exists()
    left = list((Path(own["PAMX_HOME"]) / "models").glob("smollm2*"))
    assert bool(left) is (status != 0)
    assert ("Interrupted." in child.before) is (status == 130)
