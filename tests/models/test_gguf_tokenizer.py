"""Tokenizers built from a GGUF's metadata against slow references, for each splitting rule."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from samples import ADDED, MERGES, TEMPLATE, TOKENS, TYPES, hf_weights, write_gguf
from slow_bpe import DIFFICULT, GPT2, LLAMA3, QWEN2, ByteLevelBpe, sentencepiece

from pamx.errors import ModelError
from pamx.models.gguf_convert import convert
from pamx.models.gguf_file import open_gguf
from pamx.models.gguf_tokenizer import GgufTokenizer, read_tokenizer

MORE = [*DIFFICULT, "hello world 123 1234 12 x12345y", "Hello<tool>hello <tool>", "he'S it'S"]


def tokenizer(path: Path, **metadata: Any) -> GgufTokenizer:
    keys = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    without = tuple(key for key, value in keys.items() if value is None)
    kept = {key: value for key, value in keys.items() if value is not None}
    weights = {"token_embd.weight": hf_weights()["token_embd.weight"]}
    source = write_gguf(path / "t.gguf", weights, metadata=kept, without=without)
    return read_tokenizer(open_gguf(source), 512)


@pytest.mark.parametrize(
    ("pre", "pattern", "options"),
    [
        ("gpt-2", GPT2, {}),
        ("smollm", GPT2, {"digits": True}),
        ("qwen2", QWEN2, {}),
        ("llama-bpe", LLAMA3, {"whole_words": True}),
    ],
)
def test_ids_are_those_of_the_rule(
    tmp_path: Path, pre: str, pattern: str, options: dict[str, bool]
) -> None:
    built = tokenizer(tmp_path, pre=pre, add_bos_token=False).tokenizer
    reference = ByteLevelBpe(TOKENS, TYPES, MERGES, pattern, **options)
    for text in MORE:
        expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        ids = built.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(expected), text
        assert built.decode(ids, skip_special_tokens=False) == expected


def test_a_whole_word_wins_over_merges_only_where_the_rule_says_so(tmp_path: Path) -> None:
    # "world" is a token that no merge makes.
    tokens, types = [*TOKENS, "world"], [*TYPES, 1]
    keys = {"tokens": tokens, "token_type": types, "add_bos_token": False}
    with_rule = tokenizer(tmp_path, pre="llama-bpe", **keys).tokenizer
    assert with_rule.encode("world").ids == [tokens.index("world")]
    without = tokenizer(tmp_path, pre="gpt-2", **keys).tokenizer
    assert without.encode("world").tokens == ["w", "or", "ld"]


def test_default_rule_splits_digits_by_three_and_punctuation(tmp_path: Path) -> None:
    built = tokenizer(tmp_path, pre=None).tokenizer
    pieces = [word for word, _ in built.pre_tokenizer.pre_tokenize_str("a+b 12345!?")]
    assert pieces == ["a", "+", "b", "Ġ", "123", "45", "!?"]


def test_bos_is_added_when_the_file_or_else_the_rule_says_so(tmp_path: Path) -> None:
    def first(**metadata: Any) -> bool:
        return tokenizer(tmp_path, **metadata).tokenizer.encode("hello").ids[0] == 1

    assert first(add_bos_token=True)
    assert not first(add_bos_token=False)
    assert not first()
    assert first(pre="llama-bpe")
    assert not first(pre="llama-bpe", add_bos_token=False)


def test_every_token_that_ends_an_answer_is_found(tmp_path: Path) -> None:
    tokens = [*TOKENS, "<|eot_id|>", "<custom_end>", "</s>"]
    types = [*TYPES, 3, 3, 1]  # the last is ordinary text, so it ends nothing
    built = tokenizer(tmp_path, tokens=tokens, token_type=types, eot_token_id=len(tokens) - 2)
    assert built.eos_token_ids == [2, len(tokens) - 2, 0, len(tokens) - 3]


def test_control_tokens_are_special_and_added_ones_are_text(tmp_path: Path) -> None:
    built = tokenizer(tmp_path).tokenizer
    ids = built.encode("<|im_start|>hello<tool>").ids
    assert ids == [1, TOKENS.index("hello"), TOKENS.index(ADDED[0])]
    assert built.decode(ids) == "hello<tool>"


def test_transformers_loads_it_with_its_template(tmp_path: Path) -> None:
    from mlx_lm.utils import load_tokenizer

    folder = tmp_path / "out"
    folder.mkdir()
    convert(write_gguf(tmp_path / "m.gguf"), folder, "float32")
    loaded = load_tokenizer(folder, eos_token_ids=[2, 0])
    assert loaded.eos_token_ids == {0, 2}
    assert loaded.chat_template == TEMPLATE
    chat = [{"role": "user", "content": "hello <|im_end|>"}]
    text = loaded.apply_chat_template(chat, tokenize=False)
    assert text == "<|im_start|>user\nhello <|im_end|><|im_end|>\n"
    reference = ByteLevelBpe(TOKENS, TYPES, MERGES, GPT2, digits=True)
    assert loaded.apply_chat_template(chat) == reference.encode(text)


SPM_WORDS = [
    "▁",
    "e",
    "t",
    "a",
    "h",
    "▁t",
    "he",
    "▁the",
    "aa",
    "▁a",
    "at",
    "▁at",
    "the",
    "▁▁",
    "▁h",
]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *SPM_WORDS]
SPM_TYPES = [2, 3, 3] + [6] * 256 + [1] * len(SPM_WORDS)
SPM_SCORES = [0.0] * 259 + [float(-i) for i in range(len(SPM_WORDS))]


def sentencepiece_tokenizer(path: Path, **metadata: Any) -> GgufTokenizer:
    return tokenizer(
        path,
        model="llama",
        pre=None,
        merges=None,
        tokens=SPM_TOKENS,
        token_type=SPM_TYPES,
        scores=SPM_SCORES,
        unknown_token_id=0,
        **metadata,
    )


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids(tmp_path: Path, prefix: bool) -> None:
    built = sentencepiece_tokenizer(tmp_path, add_space_prefix=prefix)
    rng = random.Random(0)
    texts = ["".join(rng.choices("teha  é\n", k=rng.randint(1, 24))) for _ in range(200)]
    for text in [*texts, "the hat at the  heat", "日本 🙂"]:
        expected = sentencepiece(text, SPM_TOKENS, SPM_SCORES, SPM_TYPES, prefix=prefix)
        assert built.tokenizer.encode(text).ids == [1, *expected], text
        assert built.tokenizer.decode(expected) == text


def test_sentencepiece_bos_and_end(tmp_path: Path) -> None:
    built = sentencepiece_tokenizer(tmp_path, add_bos_token=False)
    assert 1 not in built.tokenizer.encode("the").ids
    assert built.eos_token_ids == [2]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"merges": ["h e", "qq zz"]}, "merges that do not fit"),
        ({"merges": ["h e", "lonely"]}, "merges that do not fit"),
        ({"tokens": [*TOKENS[:-1], TOKENS[0]]}, "damaged vocabulary"),
        ({"token_type": TYPES[:-1]}, "damaged vocabulary"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"model": "llama"}, "tokenizer.ggml.scores"),
    ],
)
def test_a_vocabulary_that_contradicts_itself(
    tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        tokenizer(tmp_path, **metadata)
