"""`pamx doctor`: what it reports, and that it reports where something is broken."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pamx.cli.doctor.compute import gpu_core_count
from pamx.cli.doctor.isolated import ending
from pamx.cli.doctor.machine import memory_limit

from .conftest import Result, Run

IDS = {
    "system", "cpu", "instruction-set", "memory", "python", "pamx", "mlx-lm", "mlx", "gpu", "metal",
    "blas", "native-library", "attention", "compute", "self-test-mlx", "self-test-native", "cache",
    "hub-cache", "models", "default-model", "hub",
}  # fmt: skip


def checks(result: Result) -> dict[str, dict[str, object]]:
    report = json.loads(result.stdout)
    assert report["ok"] is (result.returncode == 0)
    for row in report["checks"]:
        assert set(row) == {"id", "status", "message", "value", "fix"}
    return {row["id"]: row for row in report["checks"]}


def test_a_working_installation(run: Run) -> None:
    result = run("doctor", "--json", env={"HF_TOKEN": "hf_not_to_be_shown"})
    rows = checks(result)
    assert result.returncode == 0
    assert set(rows) == IDS
    assert rows["compute"]["value"]["mode"] == "fast"  # type: ignore[index]
    assert rows["self-test-mlx"]["status"] == "ok"
    assert rows["default-model"]["status"] == "ok"
    assert rows["hub"]["value"]["token"] is True  # type: ignore[index]
    assert rows["hub"]["value"]["offline"] is True  # type: ignore[index]
    assert "hf_not_to_be_shown" not in result.stdout + result.stderr


def test_a_table_for_people(run: Run) -> None:
    result = run("doctor")
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert {line.split()[1] for line in result.stdout.splitlines() if line[0] != " "} == IDS


def test_without_the_native_library_it_warns(run: Run) -> None:
    result = run("doctor", "--json", env={"PAMX_DISABLE_NATIVE": "1"})
    rows = checks(result)
    assert result.returncode == 0
    assert rows["native-library"]["status"] == "warn"
    assert "PAMX_DISABLE_NATIVE" in str(rows["native-library"]["message"])
    assert rows["self-test-native"]["status"] == "skip"
    assert rows["compute"]["value"]["mode"] == "mlx"  # type: ignore[index]
    assert rows["compute"]["status"] == "warn"
    assert "Unset PAMX_DISABLE_NATIVE" in str(rows["compute"]["fix"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libmlx.so: no such file')", "libmlx.so: no such file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
    ],
)
def test_a_broken_mlx_is_reported(
    run: Run, environment: dict[str, str], tmp_path: Path, code: str, said: str
) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text(code)
    path = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    result = run("doctor", "--json", env={"PYTHONPATH": path})
    rows = checks(result)
    assert result.returncode == 1
    assert rows["mlx"]["status"] == "fail"
    assert said in str(rows["mlx"]["message"])
    assert rows["hub"]["status"] == "ok"
    assert "Traceback" not in result.stderr


def test_an_empty_machine(run: Run, tmp_path: Path) -> None:
    rows = checks(run("doctor", "--json", env={"PAMX_HOME": str(tmp_path / "new")}))
    assert rows["default-model"]["status"] == "skip"
    assert "pamx pull" in str(rows["default-model"]["fix"])
    assert not (tmp_path / "new").exists()


def test_a_cache_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rows = checks(run("doctor", "--json", env={"PAMX_HOME": str(tmp_path / "file")}))
    assert rows["cache"]["status"] == "warn"
    assert "PAMX_HOME" in str(rows["cache"]["fix"])


def test_gpu_cores_are_read_from_the_registry() -> None:
    text = '+-o AGXAcceleratorG13G_B0  <class AGXAcceleratorG13G_B0>\n  "gpu-core-count" = 8\n'
    assert gpu_core_count(text) == 8
    assert gpu_core_count("") is None


def test_the_smallest_limit_above_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    monkeypatch.setattr(Path, "read_text", _cgroup_at("0::/a/b\n", Path.read_text))
    assert memory_limit(tmp_path) == 1000
    (tmp_path / "a" / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None


def _cgroup_at(text: str, real: object) -> object:
    def read(path: Path, *args: object) -> str:
        return text if str(path) == "/proc/self/cgroup" else real(path, *args)  # type: ignore[operator,no-any-return]

    return read


def test_endings() -> None:
    assert ending(-signal.SIGSEGV) == "SIGSEGV"
    assert ending(3) == "exit status 3"
