"""`pamx doctor`: what it reports, and that it reports where something is broken."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pamx.cli.doctor.checks import IDS
from pamx.cli.doctor.compute import gpu_core_count
from pamx.cli.doctor.isolated import ending
from pamx.cli.doctor.machine import check_instruction_set
from pamx.cli.doctor.power import speed_limit
from pamx.cli.doctor.row import Row
from pamx.cli.doctor.summary import closing
from pamx.errors import NativeError

from .conftest import PAMX, Result, Run

SCHEMA = json.loads((Path(__file__).parents[2] / "pamx/cli/doctor/schema.json").read_text("utf-8"))
SELF_TESTS = [name for name in IDS if name.startswith("self-test-")]
# Nothing listens there.
NOBODY = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}


def checks(result: Result) -> dict[str, dict[str, Any]]:
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["ok"] is (result.returncode == 0)
    return {row["id"]: row for row in report["checks"]}


def test_a_working_installation(run: Run) -> None:
    start = time.monotonic()
    result = run("doctor", "--json", env={"HF_TOKEN": "hf_not_to_be_shown"})
    took = time.monotonic() - start
    rows = checks(result)
    assert result.returncode == 0
    assert tuple(rows) == IDS
    assert rows["compute"]["value"]["mode"] == "fast"
    assert rows["default-model"]["status"] == "ok"
    assert rows["hub"]["value"]["token"] is True
    assert rows["hub"]["value"]["offline"] is True
    assert rows["hub"]["status"] == "skip"
    assert rows["abi"]["value"]["compiled"] == rows["abi"]["value"]["mlx"]
    assert "hf_not_to_be_shown" not in result.stdout + result.stderr
    assert took < 20  # 5 on a machine that is not busy


def test_every_family_of_kernels_was_run_and_timed(run: Run) -> None:
    rows = checks(run("doctor", "--json", *[f"--check={name}" for name in SELF_TESTS]))
    assert list(rows) == SELF_TESTS
    for row in rows.values():
        assert row["status"] == "ok"
        assert 0 < row["value"]["max_error"] <= row["value"]["tolerance"]
        assert row["value"]["milliseconds"] > 0


def test_a_wrong_kernel_fails_its_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    from pamx.cli.doctor import compute
    from pamx.native import selftest

    right = selftest.linear
    monkeypatch.setattr(selftest, "linear", lambda *given: 1.01 * right(*given))
    row = compute.check_self_test_linear_exact()
    assert row.status == "fail"
    assert "PAMX_DISABLE_NATIVE=1" in row.fix


def test_a_table_for_people(run: Run) -> None:
    result = run("doctor")
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    *rows, blank, last = result.stdout.splitlines()
    assert tuple(line.split()[1] for line in rows if line[0] != " ") == IDS
    assert blank == ""
    assert re.fullmatch(rf"{len(IDS)} checks: [0-9]+ ok, .*skipped\. pamx works here.*\.", last)


def test_one_check(run: Run) -> None:
    result = run("doctor", "--check", "python")
    assert result.returncode == 0
    assert result.stdout.startswith("ok  python  CPython 3.")
    assert len(result.stdout.splitlines()) == 1


def test_the_last_line_counts_and_judges() -> None:
    good, bad = Row("a", "ok", "Good."), Row("b", "fail", "Bad.")
    poor, none = Row("c", "warn", "Poor."), Row("d", "skip", "None.")
    assert closing([good, good, none]) == "3 checks: 2 ok, 1 skipped. pamx works here."
    assert closing([good, poor]) == (
        "2 checks: 1 ok, 1 warning. pamx works here; c could be better."
    )
    assert closing([good, poor, poor, bad]) == (
        "4 checks: 1 ok, 2 warnings, 1 failed. pamx does not work here as it should: see b."
    )


def test_the_summary_is_for_programs_too(run: Run) -> None:
    result = run("doctor", "--json", env={"PAMX_TYPO": "1"})
    report = json.loads(result.stdout)
    found = [row["status"] for row in report["checks"]]
    assert report["summary"] == {s: found.count(s) for s in ("ok", "warn", "fail", "skip")}
    assert report["verdict"] == "pamx works here; environment could be better."


@pytest.mark.parametrize("darwin", [False, True])
def test_metal_and_the_readme_say_the_same(monkeypatch: pytest.MonkeyPatch, darwin: bool) -> None:
    from pamx.cli.doctor import metal

    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text("utf-8").split())
    assert "never on Apple hardware" in readme
    assert "translated to CUDA, on an NVIDIA H200" in readme
    monkeypatch.setattr(sys, "platform", "darwin" if darwin else "linux")
    row = metal._without({})
    assert row.status == "skip"
    if darwin:
        assert "never run on Apple hardware" in row.message
        assert "translated to CUDA, they ran on an NVIDIA H200" in row.message
    else:
        assert row.message == "Metal is for Macs."


def test_an_unknown_check_is_wrong_usage(run: Run) -> None:
    result = run("doctor", "--check", "python", "--check", "nothing")
    assert result.returncode == 2
    assert result.stdout == ""
    words = " ".join(result.stderr.split())
    assert "'nothing'" in words
    assert all(name in words for name in IDS)


def test_options_of_the_other_use_are_wrong_usage(run: Run) -> None:
    assert "needs --model" in run("doctor", "--context", "5").stderr
    both = run("doctor", "--model", "smollm2-135m", "--strict")
    assert both.returncode == 2
    assert "no place beside --model" in both.stderr


def test_strict_counts_warnings(run: Run) -> None:
    arguments = ("doctor", "--check", "environment", "--json")
    env = {"PAMX_TYPO": "1"}
    assert run(*arguments, env=env).returncode == 0
    assert run(*arguments, "--strict", env=env).returncode == 1
    assert run(*arguments, "--strict").returncode == 0


def test_a_hub_that_does_not_answer(run: Run) -> None:
    arguments = ("doctor", "--check", "hub", "--json")
    row = checks(run(*arguments, env=NOBODY))["hub"]
    assert row["status"] == "warn"
    assert "cannot be reached" in row["message"]
    assert row["value"]["reachable"] is False
    offline = checks(run(*arguments, "--offline", env=NOBODY))["hub"]
    assert offline["status"] == "skip"
    assert offline["value"]["reachable"] is None


@pytest.mark.parametrize(
    ("name", "value", "status", "said"),
    [
        ("PAMX_NUM_THREADS", "many", "warn", "not a number from 1 to 1024"),
        ("PAMX_CPU_ISA", "sse2", "warn", "there are kernels for avx512"),
        ("PAMX_BLAS", "maybe", "warn", "it counts as on"),
        ("PAMX_DISABLE_NATIVE", "nein", "warn", "it counts as on"),
        ("PAMX_DISABLE_PREFIX", "1", "warn", "pamx reads no variable"),
        ("PAMX_CPU_ISA", "foo", "warn", "Correct or unset it"),
        ("PAMX_FORCE_PARTITION", "256k", "fail", "not a number of tokens"),
        ("PAMX_FORCE_PARTITION", "24", "fail", "a partition is a multiple of 16 tokens"),
        ("PAMX_WEIGHT_CACHE", "much", "fail", "not a size"),
        ("PAMX_HOME", "~nobody-of-this-name/x", "fail", "nobody-of-this-name"),
        ("PAMX_NUM_THREAD", "4", "warn", "Did you mean PAMX_NUM_THREADS?"),
    ],
)
def test_a_bad_variable_is_named_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, status: str, said: str
) -> None:
    from pamx.cli.doctor.environment import check_environment

    for other in [name for name in os.environ if name.startswith("PAMX_")]:
        monkeypatch.delenv(other)
    assert check_environment().status == "ok"
    monkeypatch.setenv(name, value)
    row = check_environment()
    assert row.status == status
    assert name in row.message
    assert said in f"{row.message} {row.fix}"
    assert row.fix


def test_a_bad_number_of_threads_is_seen_in_every_row_it_concerns(run: Run) -> None:
    rows = checks(run("doctor", "--json", env={"PAMX_NUM_THREADS": "0"}))
    assert rows["environment"]["status"] == "warn"
    assert rows["native-library"]["status"] == "warn"
    assert "PAMX_NUM_THREADS" in rows["native-library"]["message"]
    assert rows["abi"]["status"] == "skip"


def test_without_the_native_library_it_warns(run: Run) -> None:
    result = run("doctor", "--json", env={"PAMX_DISABLE_NATIVE": "1"})
    rows = checks(result)
    assert result.returncode == 0
    assert rows["native-library"]["status"] == "warn"
    assert "PAMX_DISABLE_NATIVE" in rows["native-library"]["message"]
    assert {rows[name]["status"] for name in SELF_TESTS} == {"ok", "skip"}
    assert rows["self-test-mlx"]["status"] == "ok"
    assert rows["compute"]["value"]["mode"] == "mlx"
    assert rows["compute"]["status"] == "warn"
    assert "Unset PAMX_DISABLE_NATIVE" in rows["compute"]["fix"]


def test_an_installation_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from pamx.cli.doctor import compute
    from pamx.native import loader

    missing = NativeError("This installation of pamx has no native library.", "Install it again.")
    monkeypatch.setattr(loader, "_load_once", lambda: missing)
    row = compute.check_native()
    assert (row.status, row.message, row.fix) == ("warn", missing.message, missing.hint)
    assert compute.check_abi().status == "skip"
    assert compute.check_self_test_small().status == "skip"


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
    assert said in rows["mlx"]["message"]
    assert tuple(rows) == IDS  # what could not be run says so
    assert rows["python"]["status"] == "ok"
    assert "Traceback" not in result.stderr


def test_an_empty_machine(run: Run, tmp_path: Path) -> None:
    rows = checks(run("doctor", "--json", env={"PAMX_HOME": str(tmp_path / "new")}))
    assert rows["default-model"]["status"] == "skip"
    assert "pamx pull" in rows["default-model"]["fix"]
    assert not (tmp_path / "new").exists()


def test_a_cache_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ("doctor", "--json", "--check", "cache")
    rows = checks(run(*arguments, env={"PAMX_HOME": str(tmp_path / "file")}))
    assert rows["cache"]["status"] == "warn"
    assert "PAMX_HOME" in rows["cache"]["fix"]
    for home, why in [(tmp_path / "file" / "x", "not a folder"), (tmp_path / ("x" * 300), "long")]:
        rows = checks(run(*arguments, env={"PAMX_HOME": str(home)}))
        assert rows["cache"]["status"] == "warn"
        assert f"PAMX_HOME is {home}, which cannot be written" in rows["cache"]["message"]
        assert why in rows["cache"]["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_without_the_native_library_metal_is_still_for_macs(run: Run) -> None:
    result = run("doctor", "--json", "--check", "metal", env={"PAMX_DISABLE_NATIVE": "1"})
    assert checks(result)["metal"]["status"] == "skip"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_is_said_once(environment: dict[str, str]) -> None:
    for arguments in (["--check", "python"], ["--check", "python", "--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*PAMX, "doctor", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env=environment,
            )
        assert done.returncode == 1
        assert done.stderr.count("Error: ") == 1
        assert "is full" in done.stderr
        assert "Exception ignored" not in done.stderr


def test_faster_instruction_sets_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    flags = "fpu avx2 fma f16c avx512f avx512_vnni"
    monkeypatch.setattr("pamx.cli.doctor.machine._cpuinfo", lambda _: flags)
    row = check_instruction_set()
    assert row.value == ["avx2", "fma", "f16c", "avx512f", "avx512_vnni"]
    assert "avx512_vnni" in row.message


def test_what_macos_prints_is_read() -> None:
    text = '+-o AGXAcceleratorG13G_B0  <class AGXAcceleratorG13G_B0>\n  "gpu-core-count" = 8\n'
    assert gpu_core_count(text) == 8
    assert gpu_core_count("") is None
    assert (
        speed_limit("CPU Power notify\n\tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 70\n")
        == 70
    )
    assert speed_limit("Note: No thermal warning level has been recorded") is None


def test_endings() -> None:
    assert ending(-signal.SIGSEGV) == "SIGSEGV"
    assert ending(3) == "exit status 3"
