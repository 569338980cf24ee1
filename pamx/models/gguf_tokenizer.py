"""The tokenizer inside a GGUF file as Hugging Face tokenizer files.

A GGUF holds the vocabulary, the merges or scores, and only the *name* of the rule that splits
text before merging. The rules behind the names: llama.cpp's src/llama-vocab.cpp; where the
original tokenizer.json is known to do the same thing in its own terms, that form is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from pamx.errors import ModelError
from pamx.models.gguf_file import Gguf

__all__ = ["GgufTokenizer", "read_tokenizer"]

# tokenizer.ggml.token_type
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6

# Texts of tokens that end a turn or a document; llama.cpp finds these by text as well, since
# the metadata names one end token and instruction models have two.
_END_TEXTS = {
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endofprompt|>",
    "<|END_OF_TURN_TOKEN|>",
}
_END_KEYS = ("eos", "eot", "eom")

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _Rule:
    """One ``tokenizer.ggml.pre``.

    Attributes:
        patterns: Each splits what the one before left in one piece.
        whole_words: A piece that is a token is taken as it is, whatever the merges say.
        add_bos: Whether a text starts with the BOS token if the file does not say.
        nfc: Text is put into Unicode form NFC first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_LLAMA3_RULE = _Rule((_LLAMA3,), whole_words=True, add_bos=True)
_RULES = {
    "default": _Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _Rule((_GPT2,)),
    "smollm": _Rule((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "qwen2": _Rule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": _Rule((_QWEN2,)),
}


@dataclass(frozen=True)
class GgufTokenizer:
    """What goes into tokenizer.json and its companions.

    Attributes:
        tokenizer: Becomes tokenizer.json.
        config: tokenizer_config.json.
        bos_token_id, pad_token_id: From the metadata; None if it has none.
        eos_token_ids: Every token that ends an answer, the metadata's own first.
    """

    tokenizer: Tokenizer
    config: dict[str, Any]
    bos_token_id: int | None
    pad_token_id: int | None
    eos_token_ids: list[int]


def read_tokenizer(gguf: Gguf, context_length: int) -> GgufTokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        ModelError: The file describes no tokenizer, one of an unsupported kind, or one that
            contradicts itself.
    """
    tokens: list[str] = gguf.require("tokenizer.ggml.tokens")
    types: list[int] = gguf.metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    kind = gguf.require("tokenizer.ggml.model")
    builders: dict[str, Callable[[Gguf, list[str], list[int]], Tokenizer]] = {
        "gpt2": _byte_level_bpe,
        "llama": _sentencepiece_bpe,
    }
    if kind not in builders:
        raise ModelError(
            f"{gguf.path} holds a tokenizer of the kind {kind!r}; from GGUF pamx reads "
            f"{', '.join(builders)}.",
            "Use the model's original files from the Hugging Face Hub instead.",
        )
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{gguf.path} holds a damaged vocabulary: repeated tokens, or types that do not match."
        )
    special = _special_ids(gguf, len(tokens))
    tokenizer = builders[kind](gguf, tokens, types)
    _add_marked_tokens(tokenizer, tokens, types)
    if tokenizer.get_vocab_size() != len(tokens):
        raise ModelError(f"{gguf.path} holds tokens that its vocabulary cannot place.")
    add_bos = _adds_bos(gguf, kind) and "bos" in special
    if add_bos:
        bos = tokens[special["bos"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, special["bos"])]
        )
    ends = [special[key] for key in _END_KEYS if key in special]
    ends += [
        i
        for i, (text, kind_of) in enumerate(zip(tokens, types, strict=True))
        if kind_of == _CONTROL and text in _END_TEXTS
    ]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": add_bos,
        "add_eos_token": False,
    }
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    config |= {f"{hf}_token": tokens[special[key]] for key, hf in names.items() if key in special}
    if template := gguf.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return GgufTokenizer(
        tokenizer, config, special.get("bos"), special.get("padding"), list(dict.fromkeys(ends))
    )


def _special_ids(gguf: Gguf, size: int) -> dict[str, int]:
    ids = {}
    for key in ("bos", "unknown", "padding", *_END_KEYS):
        value = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            continue
        if not 0 <= value < size:
            raise ModelError(
                f"{gguf.path} names token {value} as {key}, but has only {size} tokens."
            )
        ids[key] = int(value)
    return ids


def _adds_bos(gguf: Gguf, kind: str) -> bool:
    default = kind == "llama" or _rule(gguf).add_bos
    return bool(gguf.metadata.get("tokenizer.ggml.add_bos_token", default))


def _add_marked_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens become special, user-defined ones added: both match before any merging."""
    marked = zip(tokens, types, strict=True)
    added = [
        AddedToken(text, normalized=False, special=kind == _CONTROL)
        for text, kind in marked
        if kind in (_CONTROL, _USER_DEFINED) and text
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])


def _rule(gguf: Gguf) -> _Rule:
    name = gguf.metadata.get("tokenizer.ggml.pre", "default")
    if name not in _RULES:
        raise ModelError(
            f"{gguf.path} splits text by the rule {name!r}, which pamx does not know; it knows "
            f"{', '.join(_RULES)}.",
            "Use the model's original files from the Hugging Face Hub instead.",
        )
    return _RULES[name]


def _byte_level_bpe(gguf: Gguf, tokens: list[str], _types: list[int]) -> Tokenizer:
    rule = _rule(gguf)
    merges = [tuple(merge.split(" ")) for merge in gguf.require("tokenizer.ggml.merges")]
    vocab = {text: i for i, text in enumerate(tokens)}
    try:
        bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words)
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"{gguf.path} holds merges that do not fit: {error}.") from error
    tokenizer = Tokenizer(bpe)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(gguf: Gguf, tokens: list[str], types: list[int]) -> Tokenizer:
    """SentencePiece BPE: the pair whose union scores highest is merged first.

    ``tokenizers`` has no scores, so each way to make a piece from two becomes a merge, ordered
    by the score of the piece. Unknown characters fall back to the ``<0x..>`` byte tokens.
    """
    scores: list[float] = gguf.require("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{gguf.path} holds {len(scores)} scores for {len(tokens)} tokens.")
    pieces = {t: i for i, t in enumerate(tokens) if types[i] in (_NORMAL, _USER_DEFINED)}
    merges = [
        (-scores[i], pieces[text[:cut]], pieces[text[cut:]], text[:cut], text[cut:])
        for text, i in pieces.items()
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    unknown = gguf.metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(tokens)},
            merges=[(left, right) for *_, left, right in sorted(merges)],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    prefix = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), *spaces] if prefix else spaces
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return tokenizer
