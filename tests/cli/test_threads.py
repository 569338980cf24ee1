"""`--threads`: how many threads compute, and that it changes nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pamx.native.threads import usable_cpus

from .conftest import Run

COUNT = """
import sys
from pamx.cli.loading import Loading, load_engine
from pamx.cli.options import KvType
from pamx.native import library

threads = int(sys.argv[1]) if len(sys.argv) > 1 else None
with load_engine(Loading(None, None, False, 64, threads, None, KvType.AUTO)):
    print(library().lib.pamx_num_threads())
"""


def count(environment: dict[str, str], *args: str, **env: str) -> int:
    command = [sys.executable, "-c", COUNT, *args]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment | env, check=True, timeout=60
    )
    return int(done.stdout)


def test_the_option_comes_before_the_environment(environment: dict[str, str]) -> None:
    assert count(environment, PAMX_NUM_THREADS="5") == 5
    assert count(environment, "3", PAMX_NUM_THREADS="5") == 3
    assert count(environment, "3", PAMX_NUM_THREADS="abc") == 3


def test_an_answer_does_not_depend_on_it(run: Run) -> None:
    command = ("generate", "--raw", "--max-tokens", "4", "The capital of France is")
    one, three = (run(*command, "--threads", count) for count in ("1", "3"))
    assert one.returncode == three.returncode == 0
    assert one.stdout == three.stdout
    cpus = usable_cpus()
    assert one.stderr == ""
    assert (three.stderr == "") == (cpus >= 3)
    assert cpus != 2 or three.stderr == "3 threads on 2 CPUs: slower than 2.\n"


def test_without_the_library_it_says_that_it_changes_nothing(run: Run) -> None:
    command = ("generate", "--raw", "--max-tokens", "1", "Hello", "--threads", "2")
    result = run(*command, env={"PAMX_DISABLE_NATIVE": "1"})
    assert result.returncode == 0
    assert result.stderr == (
        "--threads changes nothing: The native library is switched off by PAMX_DISABLE_NATIVE.\n"
        "Slow: MLX computes this model, because the native library is switched off by "
        "PAMX_DISABLE_NATIVE. `pamx doctor` tells more.\n"
    )


@pytest.mark.parametrize("count", ["0", "abc", "10000"])
def test_a_wrong_count_is_said(run: Run, count: str) -> None:
    command = ("generate", "--raw", "--max-tokens", "1", "--json", "Hello")
    result = run(*command, env={"PAMX_NUM_THREADS": count})
    assert result.stderr == (
        f"Slow: MLX computes this model, because PAMX_NUM_THREADS is '{count}', not a number from "
        "1 to 1024. `pamx doctor` tells more.\n"
    )
    assert f"PAMX_NUM_THREADS is '{count}'" in json.loads(result.stdout)["compute"]["reason"]
    asked = run(*command, "--compute", "mlx", env={"PAMX_NUM_THREADS": count})
    assert asked.stderr == ""
