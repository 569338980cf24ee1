"""Chat templates that fail: whose fault it is said to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamx.engine.prompt import prompt_tokens
from pamx.errors import ModelError, PamxError, RequestError
from pamx.models.load import read_tokenizer

Make = Callable[[Any], Any]


@pytest.fixture
def with_template(default_model_path: Path, tmp_path: Path) -> Make:
    """The default model's tokenizer with another chat template."""

    def make(template: Any) -> Any:
        for name in ("tokenizer.json", "config.json"):
            (tmp_path / name).symlink_to(default_model_path / name)
        config = json.loads((default_model_path / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return read_tokenizer(tmp_path, {}, False)

    return make


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1/0 }}", "division by zero"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% for i in range(10**12) %}{% endfor %}", "Range too big"),
        ("{{ raise_exception('No system.') }}", "No system. Many"),
    ],
)
def test_a_template_that_fails_refuses_the_conversation(
    with_template: Make, template: str, said: str
) -> None:
    with pytest.raises(RequestError, match="refuses this conversation") as caught:
        prompt_tokens(with_template(template), "Hello")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "Expected an expression, .* \\(line 1\\)"),
        ("{{ messages | nothing }}", "No filter named 'nothing' "),
        (5, "it is no text"),
        ({"other": "x"}, "it is no text"),
    ],
)
def test_a_template_that_is_broken_is_the_models_fault(
    with_template: Make, template: Any, said: str
) -> None:
    tokenizer = with_template(template)
    with pytest.raises(PamxError, match=f"template is damaged: {said}") as caught:
        prompt_tokens(tokenizer, "Hello")
    assert isinstance(caught.value, ModelError)
    assert prompt_tokens(tokenizer, "Hello", raw=True)
