"""A model that pages do not serve: loaded, said, and answered on mlx-lm's own cache."""

from __future__ import annotations

import json
from pathlib import Path

import families
import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

import pamx
from pamx.engine import load


@pytest.fixture(scope="module")
def gemma2_folder(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path) -> Path:
    """A tiny random Gemma 2, whose attention is its own, with the default model's tokenizer."""
    config = {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "vocab_size": 49152,
    }
    model = families.make("gemma2", **config)
    folder = tmp_path_factory.mktemp("gemma2")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    full = {**families.COMMON, **config, "model_type": "gemma2", "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(full))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((default_model_path / name).read_bytes())
    return folder


def test_it_runs_on_its_own_cache_and_says_so(gemma2_folder: Path) -> None:
    with load(str(gemma2_folder)) as engine:
        assert not engine.attention.paged
        assert engine.attention.kernel == "mlx-lm"
        assert "Pages do not serve this model: No layer" in engine.attention.reason
        chat = engine.chat()
        (*_, first) = chat.ask("Hello there.", max_tokens=4)
        (*_, second) = chat.ask("And now?", max_tokens=4)
        assert first.completion is not None
        assert second.completion is not None
        assert second.completion.cached_tokens >= first.completion.prompt_tokens
        again = engine.generate(chat.messages[:-1], max_tokens=4)
        assert again.tokens == second.completion.tokens
        hot = pamx.Sampling(temperature=1.0, seed=1)
        assert engine.generate("x", sampling=hot, max_tokens=3).completion_tokens <= 3
