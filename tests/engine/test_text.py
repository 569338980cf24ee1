"""Text comes in whole characters and never shows any part of a stop string."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from pamx.engine.text import TextStream


@pytest.fixture(scope="module")
def tokenizer(default_model_path: Path) -> TokenizerWrapper:
    return load(default_model_path)


def stream(tokenizer: TokenizerWrapper, text: str, stop: list[str]) -> tuple[list[str], TextStream]:
    out = TextStream(tokenizer.detokenizer, stop)
    pieces = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        pieces.append(out.add(token))
        if out.stopped:
            break
    pieces.append(out.finish())
    return pieces, out


@pytest.mark.parametrize(
    "text",
    [
        "Hello, wörld.",
        "naïve café",
        "日本語のテスト",
        "👩‍👩‍👧‍👦 family",
        "a\n\n  b\t\tc",
        "e\u0301",
    ],
)
def test_pieces_are_whole_characters_and_join_to_the_text(
    tokenizer: TokenizerWrapper, text: str
) -> None:
    pieces, out = stream(tokenizer, text, [])
    assert "".join(pieces) == out.text == text
    assert "\ufffd" not in "".join(pieces)


def test_text_is_not_held_back_without_a_reason(tokenizer: TokenizerWrapper) -> None:
    pieces, _ = stream(tokenizer, "one two three four", ["stop"])
    assert [p for p in pieces if p] == ["one", " two", " three", " four"]


def test_a_beginning_of_a_stop_string_is_held_until_it_is_none(tokenizer: TokenizerWrapper) -> None:
    pieces, out = stream(tokenizer, "see the end of it", [" the enemy"])
    assert out.text == "see the end of it"
    assert not out.stopped
    assert " the" not in pieces


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ab END\n.é", min_size=1, max_size=30),
    stop=st.lists(st.text("ab END\n.é", min_size=1, max_size=4), max_size=3),
)
def test_the_answer_ends_before_the_stop_string_that_is_complete_first(
    tokenizer: TokenizerWrapper, text: str, stop: list[str]
) -> None:
    text = "x" + text  # mlx-lm's detokenizer drops a space at the very beginning
    pieces, out = stream(tokenizer, text, stop)
    found = [(i + len(s), i) for s in stop if (i := text.find(s)) >= 0]
    assert out.text == "".join(pieces)
    assert out.text == (text[: min(found)[1]] if found else text)
    assert out.stopped == bool(found)


def test_an_empty_stop_string_stops_nothing(tokenizer: TokenizerWrapper) -> None:
    _, out = stream(tokenizer, "hello", [""])
    assert (out.text, out.stopped) == ("hello", False)
