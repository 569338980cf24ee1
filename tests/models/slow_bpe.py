"""Plain tokenizers to compare with: slow, written from the algorithms' definitions.

They share no code with pamx or with the ``tokenizers`` package.
"""

from __future__ import annotations

from itertools import pairwise

import regex
from samples import byte_alphabet

# GPT-2's encoder.py
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Llama 3's tokenizer.py
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen2's tokenization_qwen2.py
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class ByteLevelBpe:
    """Byte-level BPE with special tokens; ``digits`` splits every digit off first."""

    def __init__(
        self,
        tokens: list[str],
        types: list[int],
        merges: list[str],
        pattern: str,
        *,
        digits: bool = False,
        whole_words: bool = False,
    ) -> None:
        self.ids = {text: i for i, text in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.bytes = byte_alphabet()
        self.pattern = regex.compile(pattern)
        self.digits, self.whole_words = digits, whole_words
        marked = [text for text, kind in zip(tokens, types, strict=True) if kind in (3, 4)]
        self.marked = regex.compile(
            "(" + "|".join(regex.escape(t) for t in sorted(marked, key=len, reverse=True)) + ")"
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.marked.split(text):
            if self.marked.fullmatch(part):
                ids.append(self.ids[part])
                continue
            for run in regex.split(r"(\p{N})", part) if self.digits else [part]:
                for word in self.pattern.findall(run):
                    ids += self._word(word)
        return ids

    def _word(self, word: str) -> list[int]:
        symbols = [self.bytes[b] for b in word.encode()]
        if self.whole_words and "".join(symbols) in self.ids:
            return [self.ids["".join(symbols)]]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 60))
            if best not in self.ranks:
                break
            merged: list[str] = []
            i = 0
            while i < len(symbols):
                if tuple(symbols[i : i + 2]) == best:
                    merged.append("".join(best))
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            symbols = merged
        return [self.ids[symbol] for symbol in symbols]


def sentencepiece(
    text: str, tokens: list[str], scores: list[float], types: list[int], *, prefix: bool = True
) -> list[int]:
    """SentencePiece BPE of one text without special tokens, with byte fallback."""
    ids = {t: i for i, t in enumerate(tokens) if types[i] in (1, 4)}
    symbols = list((("▁" if prefix else "") + text).replace(" ", "▁"))
    while True:
        joined = [
            (scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids
        ]
        if not joined:
            break
        at = -max(joined)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    out: list[int] = []
    for symbol in symbols:
        if symbol in ids:
            out.append(ids[symbol])
        else:
            out += [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
    return out


DIFFICULT = [
    "",
    " ",
    "   leading and trailing   ",
    "Hello, world! Hello world hello",
    "it's they're I've I'M WE'LL don't'",
    "line\nline\r\n\r\n\n\ttab\t\t end\n",
    "a  b   c    d \n  e",
    "def f(x):\n    return {'a': [1, 2.5e-10, 0xFF]}  # ok\n\n\tif x!=y: pass\n",
    '<div class="a">&amp; <b>x</b></div> // <!-- -->',
    "1234567890 3.14159 1,000,000 2024-02-30 ¼ ²³ Ⅳ ٣٤ 一二三 ①",
    "日本語のテキスト。中文字符，한국어 텍스트 ภาษาไทย",
    "Ünïcödé naïve café cafe\u0301 ﬁ ß İ",
    "👍🏽 👩‍👩‍👧‍👦 🇫🇷 emoji 🙂🙃 text",
    "עברית العربية हिन्दी",
    "\u00a0nbsp\u2003em\u200bzero\u3000wide\ufeffbom",
    "control \x00\x01\x7f chars",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "not <|im_start |> < |im_end|> <|endoftext",
    "x" * 300 + " " + "ab" * 100 + " " * 65,
    "https://example.com/a_b?c=d&e=%20#f user@host C:\\dir\\file.txt",
    "$x^2 + \\frac{1}{2} \\le ∑_{i=0}^∞ √π ≠ ∅$",
    "���",
]
