"""The README's Python examples run as they stand, and importing pamx costs and changes nothing."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(code: str, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.split("\n")[0])
def test_an_example_runs(code: str, default_model_path: Path) -> None:
    out = run(code.replace("path/or/repository", str(default_model_path)))
    if "capital of France" in code:
        assert "The capital of France is Paris." in out
    if "# (2, 8, 64)" in code:
        assert out.split("\n")[:2] == ["(2, 8, 64)", "3"]


def test_importing_pamx_loads_nothing_heavy() -> None:
    code = "import sys, pamx; print([m for m in ('mlx', 'numpy', 'mlx_lm') if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_the_limit_of_open_files_stays_and_a_low_one_is_no_obstacle() -> None:
    code = """
import resource
before = resource.getrlimit(resource.RLIMIT_NOFILE)
import pamx
pamx.PagedModel, pamx.Engine, pamx.PagedAttentionLayer
assert resource.getrlimit(resource.RLIMIT_NOFILE) == before == (512, 512), before
"""
    run(code, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)))
