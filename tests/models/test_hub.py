"""Hub repositories, from a small server that answers as the Hub does.

huggingface_hub reads its environment when it is imported, so each case runs in a process of its
own, as a user's would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub, Repo, serve
from safetensors.numpy import save
from samples import write_folder

PROGRAM = """
import json, sys
from pamx import models
from pamx.errors import ModelError
for call in json.loads(sys.argv[1]):
    function = getattr(models, call.pop("do"))
    try:
        result = function(**call)
        print(json.dumps({"ok": str(getattr(result, "path", result))}))
    except ModelError as error:
        print(json.dumps({"message": error.message, "hint": error.hint}))
"""

CODE = "import pathlib\npathlib.Path(__file__).with_name('RAN').write_text('ran')\n"
MODEL_CODE = CODE + "from mlx_lm.models.llama import Model, ModelArgs\n"
TOKENIZER_CODE = (
    CODE + "from transformers import PreTrainedTokenizerFast\n"
    "class Own(PreTrainedTokenizerFast):\n    pass\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_folder(tmp_path_factory.mktemp("hub") / "model")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    config = json.loads(files["config.json"])
    own = json.dumps(config | {"model_file": "own_model.py"}).encode()
    settings = json.loads(files["tokenizer_config.json"])
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own_tok.Own"]}}
    other = {"config.json": files["config.json"], "tokenizer.json": files["tokenizer.json"]}
    large = save({"x": np.random.default_rng(0).integers(0, 255, 16_000_000, dtype=np.uint8)})
    repos = {
        "org/model": Repo(files | {"pytorch_model.bin": b"pickle", "model.gguf": b"GGUF"}),
        "org/large": Repo(
            files | {"model.safetensors": large}, cuts={"model.safetensors": [12_000_000]}
        ),
        "org/gated": Repo(files, closed="GatedRepo"),
        "org/private": Repo(files, closed="RepoNotFound"),
        "org/gguf": Repo(other | {"a.Q4_0.gguf": b"GGUF"}),
        "org/pytorch": Repo(other | {"pytorch_model.bin": b"pickle"}),
        "org/code": Repo(files | {"config.json": own, "own_model.py": MODEL_CODE.encode()}),
        "org/tokcode": Repo(
            files
            | {
                "tokenizer_config.json": json.dumps(settings).encode(),
                "own_tok.py": TOKENIZER_CODE.encode(),
            }
        ),
    }
    with serve(repos) as running:
        yield running


def call(hub: Hub | str, home: Path, *calls: dict[str, Any], **env: str) -> list[dict[str, str]]:
    """Run calls of pamx.models in a new process; one result each."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    url = hub if isinstance(hub, str) else hub.url
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(calls)],
        env=clean | {"HF_ENDPOINT": url, "HF_HOME": str(home)} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def load(name: str, **more: Any) -> dict[str, Any]:
    return {"do": "load", "name": name} | more


def fetch(name: str, **more: Any) -> dict[str, Any]:
    return {"do": "fetch", "name": name} | more


def test_download_then_load_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    hub.requests.clear()
    first, tagged = call(hub, tmp_path, load("org/model"), fetch("org/model@v1"))
    assert first == tagged
    got = [path for method, path, _ in hub.requests if method == "GET"]
    assert any(path.endswith("/model.safetensors") for path in got)
    assert not [path for path in got if path.endswith((".bin", ".gguf"))]

    hub.requests.clear()
    offline = call(
        hub,
        tmp_path,
        load("org/model"),
        fetch("org/model", revision="v1"),
        fetch("org/other"),
        HF_HUB_OFFLINE="1",
    )
    assert offline[:2] == [first, first]
    assert "offline mode is on" in offline[2]["message"]
    assert "HF_HUB_OFFLINE" in offline[2]["hint"]
    assert hub.requests == []

    closed = "http://127.0.0.1:9"
    cached, absent = call(closed, tmp_path, load("org/model"), fetch("org/other"))
    assert cached == first
    assert f"{closed} cannot be reached" in absent["message"]
    assert "network" in absent["hint"]


def test_a_connection_that_breaks_is_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    hub.requests.clear()
    (result,) = call(hub, tmp_path, fetch("org/large"))
    expected = hub.repos["org/large"].files["model.safetensors"]
    assert (Path(result["ok"]) / "model.safetensors").read_bytes() == expected
    assert [r for _, path, r in hub.requests if path.endswith("model.safetensors") and r]


def test_a_download_that_keeps_breaking_is_finished_by_the_next_start(
    hub: Hub, tmp_path: Path
) -> None:
    cuts = hub.repos["org/model"].cuts
    cuts["model.safetensors"] = [1000] * 50
    (broken,) = call(hub, tmp_path, load("org/model"))
    cuts.clear()
    assert "connection broke" in broken["message"]
    (offline,) = call(hub, tmp_path, load("org/model"), HF_HUB_OFFLINE="1")
    assert "not complete" in offline["message"]
    (whole,) = call(hub, tmp_path, load("org/model"))
    assert "ok" in whole


def test_each_refusal_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    names = ["gated", "private", "absent", "gguf", "pytorch", "model@nope"]
    results = call(hub, tmp_path, *(fetch(f"org/{name}") for name in names))
    gated, private, absent, gguf, pytorch, revision = results
    assert "gated" in gated["message"]
    assert f"{hub.url}/org/gated" in gated["hint"]
    assert "HF_TOKEN" in gated["hint"]
    for result in (private, absent):
        assert "does not exist" in result["message"]
        assert "private" in result["message"]
        assert "HF_TOKEN" in result["hint"]
    assert "only GGUF weights" in gguf["message"]
    assert ".gguf" in gguf["hint"]
    assert "only PyTorch weights" in pytorch["message"]
    assert "no revision nope" in revision["message"]


def test_a_token_opens_a_gated_repository(hub: Hub, tmp_path: Path) -> None:
    (result,) = call(hub, tmp_path, fetch("org/gated"), HF_TOKEN="let-me-in")
    assert "ok" in result


@pytest.mark.parametrize("name", ["org/code", "org/tokcode"])
def test_code_in_a_repository_runs_only_when_trusted(hub: Hub, tmp_path: Path, name: str) -> None:
    refused, fetched = call(hub, tmp_path, load(name), fetch(name))
    assert "Python code of its own" in refused["message"]
    assert "--trust-remote-code" in refused["hint"]
    assert not list(tmp_path.rglob("RAN"))
    (trusted,) = call(hub, tmp_path, load(name, trust_remote_code=True))
    assert trusted == fetched
    assert list(tmp_path.rglob("RAN"))


def test_a_cached_repository_is_listed_and_removed(hub: Hub, tmp_path: Path) -> None:
    program = """
from pamx import models
path = models.fetch("org/model")
(entry,) = [m for m in models.cached() if m.source == "hub"]
assert (entry.name, entry.path.resolve()) == ("org/model", path.resolve()), entry
assert entry.revision == path.name
assert entry.size_bytes > 1_000_000
models.fetch("org/gated")
gone = models.remove("org/model")
assert gone.size_bytes == entry.size_bytes
assert not path.exists()
assert [m.name for m in models.cached() if m.source == "hub"] == ["org/gated"]
try:
    models.remove("org/model")
except models.catalogue.ModelError as error:
    print(error.message)
"""
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": "let-me-in"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("org/model is not in the cache.\n", "")


def test_a_full_disk_and_a_closed_cache_are_told_apart_from_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import errno

    import huggingface_hub

    from pamx import models
    from pamx.errors import ModelError

    # No disk can be filled in a test; this is the error that one gives.
    for code, words in ((errno.ENOSPC, "is full"), (errno.EACCES, "cannot be written")):

        def fail(*_: Any, code: int = code, **__: Any) -> str:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        with pytest.raises(ModelError, match=words):
            models.fetch("org/model")
