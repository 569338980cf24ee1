"""Local folders and GGUF files: what loads, what is refused, and how a conversion is kept."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pexpect
import pytest
from samples import TOKENS, hf_weights, llama_config, reference_logits, write_folder, write_gguf

from pamx import models
from pamx.errors import ModelError, NotAModelError


def test_a_folder_loads_as_it_is(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-model")
    loaded = models.load(str(folder))
    assert (loaded.path, loaded.name) == (folder, "my-model")
    assert loaded.tokenizer.eos_token_ids == {2}
    ids = [5, 9, 100]
    np.testing.assert_array_equal(
        np.array(loaded.model(mx.array([ids]))[0]),
        reference_logits(hf_weights(), llama_config(), ids),
    )


def test_a_lazy_load_reads_weights_when_they_are_asked_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    loaded = models.load(str(folder), lazy=True)
    models.read_weights(loaded)
    (folder / "model.safetensors").unlink()
    ids = [5, 9, 100]
    np.testing.assert_array_equal(
        np.array(loaded.model(mx.array([ids]))[0]),
        reference_logits(hf_weights(), llama_config(), ids),
    )


def test_what_was_read_by_one_thread_serves_another(tmp_path: Path) -> None:
    """Also arrays that are no parameters, such as the frequencies of a scaled rope."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    loaded = models.load(str(write_folder(tmp_path / "m", rope_scaling=scaling)), lazy=True)
    models.read_weights(loaded)
    with ThreadPoolExecutor(1) as other:
        logits = other.submit(lambda: np.array(loaded.model(mx.array([[5, 9, 100]])))).result()
    assert np.isfinite(logits).all()


def test_weights_that_vanish_before_they_are_read_are_an_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    loaded = models.load(str(folder), lazy=True)
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(ModelError, match="cannot be read"):
        models.read_weights(loaded)


def test_generation_config_adds_end_tokens(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert models.load(str(folder)).tokenizer.eos_token_ids == {0, 2}


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw) and None


def rename(name: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).rename(folder / new) and None


def pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def device(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")

    return damage


def config(**changes: Any) -> Callable[[Path], None]:
    return write("config.json", json.dumps(llama_config(**changes)))


INDEX = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights cut at the end": (cut("model.safetensors", 0.999), "safetensors is cut short"),
    "weights cut in half": (cut("model.safetensors", 0.5), "safetensors is cut short"),
    "weights cut in the header": (cut("model.safetensors", 0.0005), "is cut short"),
    "empty weights": (cut("model.safetensors", 0), "is cut short"),
    "weights are a pointer": (write("model.safetensors", LFS), "Git LFS pointer"),
    "weights are noise": (write("model.safetensors", bytes(range(256)) * 9), "safetensors file"),
    "weights header is noise": (
        write("model.safetensors", b"\x04" + bytes(7) + b"{{{{" + bytes(90)),
        "damaged header",
    ),
    "no weights": (remove("model.safetensors"), "no weights that mlx-lm reads"),
    "pytorch": (rename("model.safetensors", "pytorch_model.bin"), r"PyTorch \.bin files"),
    "a part is missing": (write("model.safetensors.index.json", INDEX), "lacks model-2"),
    "index is noise": (write("model.safetensors.index.json", "{"), "not valid JSON"),
    "numbered parts": (
        rename("model.safetensors", "model-00002-of-00003.safetensors"),
        "lacks model-00001-of-00003.safetensors, model-00003-of-00003.safetensors",
    ),
    "no config": (remove("config.json"), "is not a model folder"),
    "config cut": (cut("config.json", 0.5), r"config\.json is not valid JSON"),
    "config of something else": (write("config.json", "[]"), "no model_type"),
    "type unknown": (config(model_type="martian"), "does not know models of the type 'martian'"),
    "type of a helper": (config(model_type="cache"), "cannot be built"),
    "config lacks a value": (write("config.json", '{"model_type": "llama"}'), "cannot be built"),
    "fewer layers": (config(num_hidden_layers=1), r"not in model: .*layers\.1"),
    "more layers": (config(num_hidden_layers=3), r"Missing .*layers\.2"),
    "a billion layers": (config(num_hidden_layers=10**9), r"num_hidden_layers = 1,000,000,000"),
    "layers without end": (config(num_hidden_layers=float("inf")), r"num_hidden_layers = inf"),
    "no layers": (config(num_hidden_layers=0), "num_hidden_layers = 0, and a model has at least 1"),
    "less than none": (config(vocab_size=-3), "vocab_size = -3"),
    "a number without end": (config(rope_theta=10**400), r"rope_theta is about 10\^400, a number"),
    "a number inside": (config(rope_scaling={"factor": 10**40}), r"factor is about 10\^40,"),
    "a pipe for weights": (pipe("model.safetensors"), "safetensors is a named pipe, not a file"),
    "a pipe beside": (pipe("model-2.safetensors"), "model-2.safetensors is a named pipe"),
    "a pipe for a config": (pipe("config.json"), "config.json is a named pipe"),
    "a pipe for a tokenizer": (pipe("tokenizer.json"), "tokenizer.json is a named pipe"),
    "a device": (device("model.safetensors"), "safetensors is a device, not a file"),
    "a million wide": (config(hidden_size=10**6), "hidden_size = 1,000,000"),
    "a billion heads": (config(num_attention_heads=10**9), "num_attention_heads = 1,000"),
    "a billion tokens": (config(vocab_size=10**9), "vocab_size = 1,000,000,000"),
    "a billion layers inside": (
        config(text_config={"num_hidden_layers": 10**9}),
        "num_hidden_layers = 1,000,000,000: there are 20 tensors",
    ),
    "wrong shape": (config(intermediate_size=128), "shape"),
    "no tokenizer": (remove("tokenizer.json"), "holds no tokenizer"),
    "tokenizer cut": (cut("tokenizer.json", 0.5), "tokenizer in .* cannot be loaded"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_one_clear_sentence(
    tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "m")
    damage, words = DAMAGE[case]
    damage(folder)
    with pytest.raises(ModelError, match=words) as caught:
        models.load(str(folder))
    assert str(folder) in caught.value.message
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_named_with_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / name).chmod(0)
    really = Path.open

    def refused(path: Path, *args: Any, **kwargs: Any) -> Any:
        """As for others than root, whom no permissions bind."""
        if path.stat().st_mode & 0o400 == 0:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ModelError, match=f"{name} cannot be read: Permission denied") as caught:
        models.load(str(folder))
    assert "Download" not in str(caught.value)
    assert "chmod u+r" in caught.value.hint


def test_a_pipe_in_place_of_a_gguf_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(NotAModelError, match=r"m\.gguf is a named pipe, not a file"):
        models.load(str(tmp_path / "m.gguf"))


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"a folder with GGUF files") as caught:
        models.load(str(tmp_path))
    assert str(tmp_path / "a.gguf") in caught.value.hint


def test_code_in_a_folder_runs_only_when_trusted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model_file="own.py")
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nfrom mlx_lm.models.llama import Model, ModelArgs\n"
    (folder / "own.py").write_text(code)
    with pytest.raises(ModelError, match="--trust-remote-code"):
        models.load(str(folder))
    assert not ran.exists()
    models.load(str(folder), trust_remote_code=True)
    assert ran.exists()


def test_code_that_fails_is_still_one_sentence(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model_file="own.py")
    (folder / "own.py").write_text("1 / 0")
    with pytest.raises(ModelError, match="division by zero"):
        models.load(str(folder), trust_remote_code=True)


def test_a_gguf_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, pamx_home: Path
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    loaded = models.load(str(source))
    assert loaded.name == "tiny"
    assert loaded.tokenizer.eos_token_ids == {0, 2}
    weights = loaded.path / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert models.fetch(str(source)) == loaded.path
    assert weights.stat().st_mtime_ns == made

    write_gguf(source, hf_weights(seed=1))
    assert models.fetch(str(source)) == loaded.path
    assert weights.stat().st_mtime_ns > made
    assert len(list((pamx_home / "models").glob("gguf-*"))) == 1


@pytest.mark.usefixtures("pamx_home")
@pytest.mark.parametrize(
    "damage",
    [
        remove("model.safetensors"),
        remove("tokenizer.json"),
        cut("model.safetensors", 0.9),
        cut("config.json", 0.9),
        remove("pamx.json"),
        cut("pamx.json", 0.5),
        write("pamx.json", "[]"),
    ],
)
def test_an_incomplete_conversion_is_done_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    folder = models.fetch(str(source))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder)
    assert models.fetch(str(source)) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.usefixtures("pamx_home")
def test_a_conversion_by_another_version_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    made = (models.fetch(str(source)) / "config.json").stat().st_mtime_ns
    monkeypatch.setattr("pamx.models.gguf_target.CONVERTER_VERSION", 99)
    assert (models.fetch(str(source)) / "config.json").stat().st_mtime_ns > made


def test_a_conversion_that_was_killed_is_never_used(tmp_path: Path, pamx_home: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    # Stops for good once the weights are written, before the folder is complete.
    program = (
        "import time\nfrom pamx import models\nfrom pamx.models import gguf_convert\n"
        "gguf_convert._write_tokenizer = lambda *_: time.sleep(600)\n"
        f"models.fetch({str(source)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ)
    scratch = pamx_home / "models" / ".new"
    deadline = time.monotonic() + 60
    while not list(scratch.glob("*/config.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [m for m in models.cached() if m.source != "hub"] == []
    assert models.load(str(source)).config["vocab_size"] == len(TOKENS)
    assert list(scratch.iterdir()) == []


def test_a_terminal_is_told_of_a_conversion_and_a_pipe_is_not(
    tmp_path: Path, pamx_home: Path
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    program = f"from pamx import models; models.fetch({str(source)!r})"
    output, status = pexpect.run(f"{sys.executable} -c {shlex.quote(program)}", withexitstatus=True)
    assert (output, status) == (b"Converting tiny.gguf, once.\r\n", 0)
    models.remove("tiny")
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")
    assert list((pamx_home / "models").glob("gguf-tiny-*"))


def test_a_full_disk_while_converting_is_reported_and_leaves_nothing(
    tmp_path: Path, pamx_home: Path
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    # A limit on file size stands in for a full disk: writing fails half way through a file.
    program = (
        "import resource, signal\nfrom pamx import models\nfrom pamx.errors import ModelError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    models.fetch(" + repr(str(source)) + ")\n"
        "except ModelError as error:\n    print(error.message)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "cannot be written" in result.stdout
    assert result.stderr == ""
    assert list((pamx_home / "models" / ".new").iterdir()) == []
    assert models.fetch(str(source)).is_dir()


@pytest.mark.usefixtures("pamx_home")
def test_converted_models_are_listed_and_removed(tmp_path: Path) -> None:
    one = write_gguf(tmp_path / "one.gguf")
    (tmp_path / "sub").mkdir()
    two = write_gguf(tmp_path / "sub" / "two.gguf")
    also_one = write_gguf(tmp_path / "sub" / "one.gguf")
    folders = {str(path): models.fetch(str(path)) for path in (one, two, also_one)}
    listed = [m for m in models.cached() if m.source != "hub"]
    assert {m.name: m.path for m in listed} == folders
    for model in listed:
        assert model.source == "gguf"
        assert model.revision is None
        on_disk = sum(p.stat().st_size for p in model.path.iterdir() if p.name != "pamx.json")
        assert model.size_bytes == on_disk

    with pytest.raises(ModelError, match="fits several"):
        models.remove("one")
    assert models.remove("two").path == folders[str(two)]
    assert models.remove(str(one)).name == str(one)
    assert not folders[str(one)].exists()
    assert [m.name for m in models.cached() if m.source != "hub"] == [str(also_one)]
    assert one.exists()
    assert two.exists()
    with pytest.raises(ModelError, match="two is not in the cache"):
        models.remove("two")
    outside = write_folder(tmp_path / "folder")
    with pytest.raises(ModelError, match="not in the cache"):
        models.remove(str(outside))
    assert (outside / "config.json").exists()


@pytest.mark.parametrize("depth", [200_000])
def test_json_that_is_nested_past_every_limit_is_one_clear_sentence(
    tmp_path: Path, depth: int
) -> None:
    (tmp_path / "config.json").write_text("[" * depth + "]" * depth)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"config\.json"):
        models.fetch(str(tmp_path))


def test_a_home_of_nobody_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMX_HOME", "~no-such-user-at-all/x")
    with pytest.raises(ModelError, match="PAMX_HOME is '~no-such-user-at-all/x'"):
        models.cached()
