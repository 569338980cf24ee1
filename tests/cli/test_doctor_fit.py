"""`pamx doctor --model`: the answer is the engine's, and memory is what it said it would be."""

from __future__ import annotations

import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from models import samples
from models.hub_server import Repo, serve

import pamx
from pamx.cli.doctor import inquiry
from pamx.cli.doctor.fit import AttentionCall, Fit, LayerGroup, Question
from pamx.cli.doctor.fit_answer import answer
from pamx.errors import ModelError, RequestError
from pamx.kv import budget
from pamx.kv.budget import Memory
from pamx.substitute import paged_model

from .conftest import PAMX, Result, Run
from .test_doctor import SCHEMA

SNAPSHOTS = Path(__file__).parent / "snapshots"
# Fills the pages of a context, and says how much memory the process has held at most.
RUN_FULL = """
import random, sys
import pamx
model, context = sys.argv[1], int(sys.argv[2])
with pamx.load(model, context=context) as engine:
    ids = random.Random(0).choices(range(5, 260), k=context - 4)
    answer = engine.generate(ids, max_tokens=3)
    assert len(answer.tokens) == 3 or answer.finish_reason == "stop"
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    print(int(line.split()[1]) << 10)
"""


def asked(
    run: Run, *arguments: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], Result]:
    result = run("doctor", *arguments, "--json", env=env)
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["ok"] is report["fit"]["fits"] is (result.returncode == 0)
    return report["fit"], result


def measured(environment: dict[str, str], model: str, context: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", RUN_FULL, model, str(context)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 19 million random float32 weights."""
    folder = tmp_path_factory.mktemp("dense") / "model"
    sizes = {"HIDDEN": 512, "FFN": 1536, "LAYERS": 6, "HEADS": 8, "KV_HEADS": 4, "CONTEXT": 4096}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(samples, name, value)
        patch.setitem(samples.hf_weights.__kwdefaults__, "head_dim", 64)
        return samples.write_folder(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples.write_folder(tmp_path_factory.mktemp("small") / "model")


# ---- the prediction ------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(("which", "context"), [("default", 2048), ("dense", 2000)])
def test_the_peak_is_what_was_predicted(
    run: Run,
    environment: dict[str, str],
    home: Path,
    dense: Path,
    tmp_path: Path,
    which: str,
    context: int,
) -> None:
    model = "smollm2-135m" if which == "default" else str(dense)
    (tmp_path / "models").symlink_to(home / "models")
    own = {"PAMX_HOME": str(tmp_path)}
    environment = environment | own
    fit, _ = asked(run, "--model", model, "--context", str(context), env=own)
    # The first start packs the weights; what is said of it is a bound, and not far from it.
    first = measured(environment, model, context)
    assert 0.75 * fit["first_start"] < first <= 1.02 * fit["first_start"]
    fit, _ = asked(run, "--model", model, "--context", str(context), env=own)
    assert fit["first_start"] is None
    parts = fit["process"] + fit["weights"] + fit["activations"] + fit["scratch"] + fit["kv_bytes"]
    assert fit["peak"] == max(parts, fit["loading"])
    assert measured(environment, model, context) == pytest.approx(fit["peak"], rel=0.05)


WORDS = ["river", "stone", "light", "paper", "music", "garden", "window", "winter", "silver"]


def batch_peak(
    environment: dict[str, str],
    folder: Path,
    prompts: list[int],
    context: int,
    at_a_time: int,
    **more: Any,
) -> int:
    """The most that a real `pamx generate --batch` held of memory; a word is a token."""
    rows = []
    for seed, tokens in enumerate(prompts):
        text = " ".join(random.Random(seed).choices(WORDS, k=tokens))
        rows.append(json.dumps({"prompt": text, "max_tokens": 8} | more))
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    arguments = ["generate", "--batch", str(folder / "prompts.jsonl"), "--raw", "--quiet"]
    arguments += ["--context", str(context), "--max-seqs", str(at_a_time)]
    peak = 0
    with subprocess.Popen([*PAMX, *arguments], stdout=subprocess.PIPE, env=environment) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            peak = max(peak, int(found[1]) << 10 if found else 0)
            time.sleep(0.01)
        assert process.stdout is not None
        assert process.stdout.read().count(b'"prompt_tokens"') == len(prompts)
    assert process.returncode == 0
    return peak


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    ("context", "at_a_time", "prompts"),
    [
        (256, 1, [244]),
        (256, 4, [244] * 4),
        (1024, 4, [1012] * 4),
        (256, 16, [244] * 16),
        # More rows than places, of all lengths: no two steps have one size.
        (512, 4, [499, 120, 301, 450, 77, 260, 480, 333, 210, 499, 399, 150]),
    ],
)
def test_the_peak_of_a_batch_is_what_was_predicted(
    run: Run,
    environment: dict[str, str],
    tmp_path: Path,
    context: int,
    at_a_time: int,
    prompts: list[int],
) -> None:
    arguments = ("--model", "smollm2-135m", "--context", str(context), "--batch", str(at_a_time))
    fit, _ = asked(run, *arguments)
    if fit["first_start"] is not None:  # its weights are packed by whoever comes first
        batch_peak(environment, tmp_path, [8], 16, 1)
        fit, _ = asked(run, *arguments)
    measured_peak = batch_peak(environment, tmp_path, prompts, context, at_a_time)
    assert measured_peak == pytest.approx(fit["peak"], rel=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9, "top_p": 0.9}], ids=["best", "drawn"]
)
def test_the_peak_of_a_wide_batch_is_what_was_predicted(
    run: Run, environment: dict[str, str], tmp_path: Path, sampling: dict[str, float]
) -> None:
    """Whose logits are large, and several times so where tokens are drawn."""
    fit, _ = asked(run, "--model", "smollm2-135m", "--context", "128", "--batch", "64")
    if fit["first_start"] is not None:
        batch_peak(environment, tmp_path, [8], 16, 1)
        fit, _ = asked(run, "--model", "smollm2-135m", "--context", "128", "--batch", "64")
    peak = batch_peak(environment, tmp_path, [100] * 64, 128, 64, max_tokens=24, **sampling)
    assert peak == pytest.approx(fit["peak"], rel=0.05)


# ---- the answer is the engine's ------------------------------------------------------------------


BASELINE = 10 << 20


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has this process believe that it may use so many bytes."""

    def to(limit: int) -> None:
        memory = Memory(limit, BASELINE)
        for module in (budget, inquiry, paged_model):
            monkeypatch.setattr(module, "measure_memory", lambda: memory)

    return to


def limit_for(tokens: int, model: Path, spare: float = 0.0, **more: Any) -> int:
    """What leaves room for so many tokens, after the shares that are kept free."""
    fit = answer(Question(str(model), **more))
    needs = answer(Question(str(model), 512, **more))  # of a step as large as can be
    held = BASELINE + fit.weights + needs.activations + needs.scratch
    held += tokens * fit.kv_token_bytes
    return int(held / (1 - budget.MARGIN_SHARE - budget.BUFFER_CACHE_SHARE - spare)) + 1


@pytest.mark.parametrize("kv_dtype", ["auto", "float32"])
def test_what_fits_is_what_the_engine_takes(small: Path, limited: Any, kv_dtype: str) -> None:
    limited(limit_for(207, small, kv_dtype=kv_dtype))  # 12 blocks of 16, and almost a 13th
    fit = answer(Question(str(small), kv_dtype=kv_dtype))
    with pamx.load(str(small), kv_dtype=kv_dtype) as engine:
        assert fit.context == engine.context == 96  # half of the blocks
    assert answer(Question(str(small), context=192, kv_dtype=kv_dtype)).fits
    with pamx.load(str(small), context=192, kv_dtype=kv_dtype):
        pass
    too_long = answer(Question(str(small), context=193, kv_dtype=kv_dtype))
    assert not too_long.fits
    with pytest.raises(RequestError, match=r"needs .* for its KV cache, and .* are left"):
        pamx.load(str(small), context=193, kv_dtype=kv_dtype)


def test_advice_is_taken_though_less_is_free_by_then(small: Path, limited: Any) -> None:
    limit = limit_for(192, small, spare=budget.SPARE_SHARE)
    limited(limit)
    fit = answer(Question(str(small), 32))
    assert fit.longest == 192
    assert fit.lasting
    most = f"192 tokens, or {fit.largest_batch} sequences of 32 tokens at a time."
    assert fit.largest == f"The most that fits with 5 % of the memory to spare: {most}"
    close = answer(Question(str(small), 208))
    assert (close.fits, close.lasting) == (True, False)
    assert close.verdict.startswith("It only just fits: ")
    assert "at most 192 tokens" in close.fix
    limited(limit - fit.spare)
    with pamx.load(str(small), context=fit.longest):
        pass
    with pamx.load(str(small), context=32, sequences=fit.largest_batch):
        pass
    limited(limit)
    with pytest.raises(RequestError) as refused:
        pamx.load(str(small), context=512, sequences=9)
    assert f"at most {fit.longest:,} tokens, with 5 % of the memory" in refused.value.hint


def test_the_largest_batch_is_one_that_runs(small: Path, limited: Any) -> None:
    limited(limit_for(208, small, spare=budget.SPARE_SHARE))
    fit = answer(Question(str(small), context=32))
    assert 2 < fit.largest_batch <= 208 // 32
    with pamx.load(str(small), context=32, sequences=fit.largest_batch) as engine:
        assert engine.context == 32
    assert answer(Question(str(small), 32, fit.largest_batch)).lasting
    over = answer(Question(str(small), 32, 100))
    assert not over.fits
    assert f"at most {fit.largest_batch:,} sequences of 32 tokens at a time" in over.fix


def test_a_sequence_of_one_token_takes_a_block(small: Path, limited: Any) -> None:
    limited(1 << 40)
    fit = answer(Question(str(small), 1, 4096))
    assert (fit.kv_blocks, fit.block_size) == (4096, 16)
    assert fit.kv_bytes == 4096 * 16 * fit.kv_token_bytes
    assert sum(group.nbytes for group in fit.layers) == fit.kv_bytes
    assert "4,096 sequences of 1 token takes" in fit.verdict
    with pamx.load(str(small), context=1, sequences=3) as engine:
        assert engine.paged is not None
        assert engine.paged.manager.num_blocks == 3
    with pamx.load(str(small), context=1, at_most=3) as engine:
        assert engine.paged is not None
        assert engine.paged.manager.num_blocks == 3


@pytest.mark.parametrize(
    ("context", "at_most", "tokens"),
    [(32, 1, 32), (32, 2, 64), (32, 16, 208), (304, 4, 304), (None, 16, 208)],
)
def test_more_sequences_get_pages_as_far_as_half_of_the_memory_goes(
    small: Path, limited: Any, context: int | None, at_most: int, tokens: int
) -> None:
    limited(limit_for(416, small))
    with pamx.load(str(small), context=context, at_most=at_most) as engine:
        assert engine.paged is not None
        assert engine.paged.context == pytest.approx(tokens, abs=16)  # whole blocks
        assert engine.context == (context or engine.paged.context)


def test_a_pool_is_for_one_sequence_at_least(small: Path) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        pamx.load(str(small), sequences=0)


def test_a_model_that_does_not_fit_at_all(small: Path, limited: Any) -> None:
    limited(12 << 20)
    fit = answer(Question(str(small)))
    assert (fit.fits, fit.longest, fit.largest_batch) == (False, 0, 0)
    assert "smaller model" in fit.fix
    with pytest.raises(RequestError, match="no room"):
        pamx.load(str(small))


def test_no_weight_is_read(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer where the weights are a hole that cannot be read back."""
    monkeypatch.setenv("PAMX_HOME", str(tmp_path / "home"))
    hollow = tmp_path / small.name
    hollow.mkdir()
    for file in small.iterdir():
        (hollow / file.name).write_bytes(file.read_bytes())
    weights = hollow / "model.safetensors"
    size = weights.stat().st_size
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    with weights.open("r+b") as stream:
        stream.truncate(header)
        stream.truncate(size)
    real, hole = answer(Question(str(small), 64)), answer(Question(str(hollow), 64))
    assert real.weights == hole.weights
    assert weights.stat().st_blocks * 512 <= header + 8192


# ---- models that are not here --------------------------------------------------------------------


def test_a_gguf_file_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMX_HOME", str(tmp_path / "home"))
    weights = samples.hf_weights()
    q4 = samples.QType.Q4_1
    quantised = {
        name: (q4, samples.random_blocks(q4, *array.shape))
        for name, array in weights.items()
        if array.ndim == 2 and "blk" in name
    }
    file = samples.write_gguf(tmp_path / "model.gguf", weights, quantised=quantised)
    before = answer(Question(str(file), 64))
    assert before.read == "gguf"
    assert not (tmp_path / "home").exists()
    with pamx.load(str(file), context=64):
        pass
    after = answer(Question(str(file), 64))
    assert (after.read, after.exact_weights) == ("folder", True)
    assert (before.weights, before.kv_bytes) == (after.weights, after.kv_bytes)
    assert (before.trained, before.matrices) == (after.trained, after.matrices)


def test_a_repository_is_not_downloaded(run: Run, small: Path, tmp_path: Path) -> None:
    files = {file.name: file.read_bytes() for file in small.iterdir()}
    with serve({"org/model": Repo(files)}) as hub:
        env = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
        }
        arguments = ("--model", "org/model", "--context", "64")
        fit, result = asked(run, *arguments, env=env)
        here, _ = asked(run, "--model", str(small), "--context", "64")
        assert result.returncode == 0
        assert fit["read"] == "hub"
        assert fit["packed"] + fit["dense"] == fit["weights"] == here["weights"]
        assert any("tokenizer" in note for note in fit["notes"])
        whole = [r for r in hub.requests if r[0] == "GET" and "safetensors" in r[1] and not r[2]]
        assert not whole  # ranges alone
        offline = run("doctor", *arguments, "--offline", env=env)
        assert offline.returncode == 1
        assert "config.json" in offline.stderr
        nothing = run("doctor", "--model", "org/other", env=env)
        assert nothing.returncode == 2
        assert "org/other does not exist" in nothing.stderr


@pytest.mark.parametrize("answers", [False, True])
def test_a_hub_that_is_not_there_is_said_soon(run: Run, tmp_path: Path, answers: bool) -> None:
    """Nobody listens, or somebody who never says a word; one attempt is made."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        env = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": url, "HF_HOME": str(tmp_path)}
        begin = time.monotonic()
        result = run("doctor", "--model", "org/model", env=env)
    assert time.monotonic() - begin < 12  # 5 of them to wait for an answer
    assert result.returncode == 1
    assert f"{url} cannot be reached" in result.stderr


# ---- what is odd ---------------------------------------------------------------------------------


def test_too_long_for_the_model(run: Run) -> None:
    fit, result = asked(run, "--model", "smollm2-135m", "--context", "8193")
    assert result.returncode == 2
    assert fit["verdict"].startswith("No: smollm2-135m was made for 8,192 tokens")
    assert "at most 8,192" in fit["fix"]
    assert fit["longest"] <= 8192


@pytest.mark.parametrize("context", [2**30 + 1, 999_999_999_999, 10**29, int("9" * 4000)])
def test_lengths_beyond_any_sequence_are_wrong_usage(run: Run, context: int) -> None:
    result = run("doctor", "--model", "smollm2-135m", "--context", str(context))
    assert (result.returncode, result.stdout) == (2, "")
    assert "a sequence has at most 1,073,741,824 tokens, not " in " ".join(result.stderr.split())
    assert len(result.stderr) < 400


@pytest.mark.parametrize("context", ["0", "many", "1,2", "-1", "\u0663"])
def test_what_is_no_length_is_wrong_usage(run: Run, context: str) -> None:
    result = run("doctor", "--model", "smollm2-135m", "--context", context)
    assert (result.returncode, result.stdout) == (2, "")
    assert "it is one number of at least 1" in " ".join(result.stderr.split())


def test_the_longest_that_can_be_asked_for_is_answered_in_words(run: Run) -> None:
    result = run("doctor", "--model", "smollm2-135m", "--context", str(2**30), "--batch", "4096")
    assert result.returncode == 2
    assert result.stdout.splitlines() == [
        "No: smollm2-135m was made for 8,192 tokens, not for 1,073,741,824.",
        "Ask for at most 8,192 tokens.",
    ]


def test_a_damaged_config(run: Run, tmp_path: Path) -> None:
    folder = samples.write_folder(tmp_path / "model")
    (folder / "config.json").write_text("{")
    result = run("doctor", "--model", str(folder))
    assert result.returncode == 1
    assert result.stdout == ""
    assert "config.json is not valid JSON" in result.stderr
    assert "Traceback" not in result.stderr


def test_code_of_its_own_is_not_run(tmp_path: Path) -> None:
    folder = samples.write_folder(tmp_path / "model", model_file="own.py")
    (folder / "own.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ModelError, match="code of its own"):
        answer(Question(str(folder)))


def test_layers_that_differ_are_counted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows on two layers of three; and a hybrid of states and one layer of attention."""
    gemma = family_folder("gemma3_text", tmp_path)
    fit = answer(Question(str(gemma), 100))
    assert [(g.first, g.last, g.window) for g in fit.layers] == [(0, 1, 12), (2, 2, None)]
    assert fit.kv_bytes == sum(g.nbytes for g in fit.layers) == 112 * fit.kv_token_bytes
    assert [(call.step, call.window) for call in fit.attention] == [
        *(("decode", 12), ("decode", None), ("prompt", 12), ("prompt", None))
    ]

    monkeypatch.setattr(inquiry, "_highest", lambda: None)
    fit = answer(Question(str(family_folder("falcon_h1", tmp_path)), 100))
    assert not fit.paged
    assert {g.keeps for g in fit.layers} == {"ArraysCache", "KVCache"}
    states = [g for g in fit.layers if g.keeps == "ArraysCache"]
    assert all(g.fixed_bytes and not g.token_bytes for g in states)
    with pytest.raises(RequestError, match="one request at a time"):
        answer(Question(str(tmp_path / "falcon_h1"), 100, 2))


FALCON_H1 = {
    "attention_in_multiplier": 1.0, "attention_out_multiplier": 1.0,
    "embedding_multiplier": 1.0, "head_dim": 16, "key_multiplier": 1.0,
    "lm_head_multiplier": 1.0, "mamba_chunk_size": 16, "mamba_conv_bias": True,
    "mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 16,
    "mamba_expand": 1, "mamba_n_groups": 1, "mamba_n_heads": 4,
    "mamba_norm_before_gate": False, "mamba_proj_bias": False, "mamba_rms_norm": False,
    "mlp_multipliers": [1.0, 1.0], "projectors_bias": False, "attention_bias": False,
    "mlp_bias": False, "ssm_in_multiplier": 1.0, "ssm_multipliers": [1.0] * 5,
    "ssm_out_multiplier": 1.0, "rope_scaling": None, "mamba_use_mlp": True,
}  # fmt: skip


def family_folder(family: str, root: Path) -> Path:
    """A tiny random model of a family of mlx-lm's, saved, with a tokenizer."""
    import importlib

    import families
    import mlx.core as mx
    from mlx.utils import tree_flatten

    own = families.FAMILIES.get(family, FALCON_H1 if family == "falcon_h1" else {})
    config = {**families.COMMON, **own, "model_type": family, "vocab_size": len(samples.TOKENS)}
    arch = importlib.import_module(f"mlx_lm.models.{family}")
    model = arch.Model(arch.ModelArgs.from_dict(config))
    folder = samples.write_folder(root / family)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
    )
    return folder


def limited_run(kilobytes: int, environment: dict[str, str], *arguments: str) -> Result:
    """With a limit of the address space."""
    command = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "bash", *PAMX, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce it")
def test_a_limit_of_the_address_space_counts(environment: dict[str, str]) -> None:
    sizes = ("--model", "smollm2-135m", "--context", "1024", "--batch", "16")
    result = limited_run(800_000, environment, "doctor", *sizes)
    assert result.returncode == 1, result.stdout
    assert result.stdout.startswith("It does not fit: ")
    assert "`ulimit -v` leaves" in result.stdout
    row = limited_run(800_000, environment, "doctor", "--check", "memory-limit")
    assert "lets a process map 819 MB" in row.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce it")
def test_libraries_that_do_not_load_are_one_error(environment: dict[str, str]) -> None:
    result = limited_run(100_000, environment, "doctor", "--model", "smollm2-135m")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("Error: The libraries that a model needs do not load: ")
    assert "ulimit -v" in result.stderr


def test_a_partition_that_cannot_be_is_said_as_by_the_check(run: Run) -> None:
    own = {"PAMX_FORCE_PARTITION": "7"}
    result = run("doctor", "--model", "smollm2-135m", "--context", "100", env=own)
    assert (result.returncode, result.stdout) == (2, "")
    said = "PAMX_FORCE_PARTITION is 7, but a partition is a multiple of 16 tokens."
    assert said in result.stderr
    assert said in run("doctor", "--check", "environment", env=own).stdout


def test_what_is_there_and_no_model(run: Run) -> None:
    result = run("doctor", "--model", os.devnull)
    assert "is a device, not a file" in result.stderr


def test_a_folder_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of the other commands."""
    from pamx.cli.doctor import fit_answer, isolated
    from pamx.cli.failures import explain

    error = PermissionError(13, "Permission denied", "/models/config.json")

    def refused(_: Question) -> Fit:
        raise error

    sent: list[Any] = []
    monkeypatch.setattr(fit_answer, "answer", refused)
    sender: Any = type("Sender", (), {"send": staticmethod(sent.append)})
    isolated._run_fit(sender, Question("model"))
    assert sent == [(ModelError, *explain(error))]


# ---- what it looks like --------------------------------------------------------------------------


def test_the_answer_comes_first(run: Run) -> None:
    arguments = ("doctor", "--model", "smollm2-135m", "--context", "100", "--batch", "3")
    result = run(*arguments)
    assert result.returncode == 0
    first, most, blank, *rows = result.stdout.splitlines()
    assert first.startswith("It fits: smollm2-135m with 3 sequences of 100 tokens takes about ")
    assert most.startswith("The most that fits with 5 % of the memory to spare: 8,192 tokens for ")
    assert most.endswith(" sequences of 100 tokens at a time.")
    assert blank == ""
    names = [row.split("  ")[0] for row in rows if row[:1] not in ("", " ")]
    assert names[:3] == ["weights", "KV cache", "step"]
    assert "\x1b" not in result.stdout
    plan = rows[names.index("attention") :]
    assert len(rows) < 14
    assert any("decoding at 100: " in row for row in plan)
    assert "folding" not in result.stdout
    more = run(*arguments, "--verbose").stdout
    assert "folding" in more
    assert "layers 0-29: " in more


def test_one_convention_for_numbers(run: Run) -> None:
    """Decimal units and commas between thousands, in what the planner says too."""
    results = [
        run("doctor", "--model", "smollm2-135m", "--verbose").stdout,
        run("doctor", "--plan", "--heads", "32,8,128", "--context", "20000").stdout,
        run("doctor").stdout,
    ]
    for text in results:
        assert re.search(r"\d (kB|MB|GB)\b", text)
        assert not re.search(r"\d [KMGT]iB\b", text)
        assert not re.search(r"\b1 (tokens|sequences|blocks|pieces|threads)\b", text)
    for text in results[:2]:
        assert not re.search(r"(?<![\w.,])\d{4,}(?![\w.])", text)


def a_fit() -> Fit:
    mb, gb = 10**6, 10**9
    windowed = LayerGroup(0, 4, "8 KV heads of 128, bfloat16", 4096, 0, 4096, 160 * mb)
    whole = replace(windowed, first=5, last=5, window=None, nbytes=32 * mb)
    decode = AttentionCall(
        *("decode", 1, 1, 8192, 32, 8, 128, 4096, "native-cpu", 256, 16, 8),
        text="partition: 256 tokens.",
    )
    return Fit(
        fits=False,
        lasting=False,
        verdict="It does not fit: org/model with 8,192 tokens needs 192 MB for its KV cache, and "
        "100 MB are left for it.",
        largest="",
        fix="Ask for at most 4,096 tokens, with 5 % of the memory to spare, or close other "
        "programs.",
        model="org/model",
        read="hub",
        context=8192,
        batch=1,
        compute="fast",
        kv_dtype="bfloat16",
        reason="Native kernels; quantised matrices meet activations in 8 bits.",
        paged=True,
        matrices=42,
        weights=2 * gb,
        packed=2 * gb - mb,
        dense=mb,
        exact_weights=False,
        kv_bytes=192 * mb,
        kv_token_bytes=24576,
        kv_blocks=512,
        block_size=16,
        layers=[windowed, whole],
        activations=100 * mb,
        scratch=20 * mb,
        step_rows=512,
        process=150 * mb,
        mapped=30 * mb,
        loading=200 * mb,
        peak=3 * gb,
        first_start=4 * gb,
        buffer_cache=150 * mb,
        margin=300 * mb,
        limit=3 * gb,
        spare=150 * mb,
        limited_by="memory available now, within this container",
        longest=4096,
        largest_batch=0,
        trained=32768,
        attention=[decode, replace(decode, window=None)],
        notes=["Its tokenizer is not here, and is taken to need 30 MB."],
    )


def fit_table() -> None:
    from pamx.cli.doctor.fit_report import show_fit

    show_fit(a_fit(), verbose=False)


def fit_table_verbose() -> None:
    from pamx.cli.doctor.fit_report import show_fit

    show_fit(a_fit(), verbose=True)


def checks_table() -> None:
    from pamx.cli.doctor.command import _table
    from pamx.cli.doctor.row import Row

    _table(
        [
            Row("python", "ok", "CPython 3.12.1, /usr/bin/python3.12."),
            Row("shaders", "skip", "Metal shaders are compiled on macOS."),
            Row(
                "environment",
                "warn",
                "PAMX_NUM_THREADS is 'many', not a number from 1 to 1024.",
                fix="Correct or unset it. PAMX_NUM_THREADS: Correct or unset it.",
            ),
            Row("self-test-linear-exact", "fail", f"It is wrong. {'very ' * 30}much so."),
        ]
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("table", [fit_table, fit_table_verbose, checks_table])
@pytest.mark.parametrize("width", [60, 80, 120, 0])
def test_tables(table: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At several widths of a terminal, and in a pipe (0)."""
    out = _Terminal() if width else io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setenv("COLUMNS", str(width or 40))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "xterm")
        table()
    text = out.getvalue()
    assert "\x1b" not in text
    if width:
        assert all(len(line) <= width for line in text.splitlines()[3:])
    file = SNAPSHOTS / f"{table.__name__}-{width or 'piped'}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")
