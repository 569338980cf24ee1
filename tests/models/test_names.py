"""What a model name is taken for, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pamx import models
from pamx.errors import ModelError
from pamx.models.source import BuiltIn, Folder, GgufFile, HubRepo, classify


def test_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "here").mkdir(parents=True)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "weights").write_bytes(b"GGUF and more")
    assert classify(None) == classify(models.DEFAULT_MODEL) == BuiltIn()
    assert classify("org/here") == Folder(Path("org/here"))
    assert classify("m.gguf") == GgufFile(Path("m.gguf"))
    assert classify("weights") == GgufFile(Path("weights"))
    assert classify("org/model-1.5B_x") == HubRepo("org/model-1.5B_x")
    assert classify("org/model@refs/pr/1") == HubRepo("org/model", "refs/pr/1")
    assert classify("org/model", "v2") == HubRepo("org/model", "v2")
    assert classify("org/model@v2", "v2") == HubRepo("org/model", "v2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./absent", "no file or folder ./absent"),
        ("/absent/model", "no file or folder /absent/model"),
        ("a/b/c", "no file or folder a/b/c"),
        ("absent.gguf", r"no file or folder absent\.gguf"),
        ("~nobody-here/x", "no file or folder"),
        ("smollm", "No model is called 'smollm'"),
        ("", "No model is called ''"),
        ("org/mo del", "No model is called"),
        ("a\0b", "No model is called"),
        ("x" * 5000, "No model is called"),
        (__file__, "is a file, but not a GGUF file"),
    ],
)
def test_what_is_nothing(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        classify(name)
    assert caught.value.hint


def test_revisions_belong_to_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no revisions"):
        classify(None, "main")
    with pytest.raises(ModelError, match="has no revisions"):
        classify(str(tmp_path), "main")
    with pytest.raises(ModelError, match="Two revisions"):
        classify("org/model@a", "b")


def test_importing_is_light() -> None:
    heavy = ["mlx", "mlx_lm", "transformers", "huggingface_hub", "numpy", "gguf", "tokenizers"]
    program = f"import sys, pamx.models; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.usefixtures("default_model_path")
@pytest.mark.parametrize("limit", [512, 20000])
def test_loading_leaves_the_limit_of_open_files_alone(limit: int) -> None:
    program = (
        "import resource\n"
        f"limit = min({limit}, resource.getrlimit(resource.RLIMIT_NOFILE)[1])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "from pamx import models\nmodels.load()\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, limit)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
