"""Does a model fit: the question, and the answer in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pamx.native.step_limits import MOST_SEQUENCES as MOST_SEQUENCES


@dataclass(frozen=True)
class Question:
    """What is asked; see the command's options."""

    model: str | None
    context: int | None = None
    batch: int = 1
    compute: str | None = None
    kv_dtype: str = "auto"
    offline: bool = False


@dataclass(frozen=True)
class LayerGroup:
    """Neighbouring layers that keep the same.

    Attributes:
        first, last: Numbers of the layers.
        keeps: What they keep, in words.
        token_bytes: Bytes of each of them for a token.
        fixed_bytes: Bytes of each for a sequence, whatever its length.
        window: Tokens that attention sees; None: all.
        nbytes: Bytes of all of them for all sequences.
    """

    first: int
    last: int
    keeps: str
    token_bytes: int
    fixed_bytes: int
    window: int | None
    nbytes: int


@dataclass(frozen=True)
class AttentionCall:
    """How attention is computed in one kind of step, by one kind of layer.

    Attributes:
        step: "decode": a new token of each sequence; "prompt": a piece of one.
        sequences, new_tokens, context: Of the step; new tokens and context of each sequence.
        heads, kv_heads, head_size, window: Of the layers; None: they see everything.
        kernel: What computes it.
        partition, items, threads: Tokens that share one softmax, pieces of work, and threads that
            get some; None: it is not pamx that cuts it up.
        text: The plan in sentences, one a line, or why there is none.
    """

    step: str
    sequences: int
    new_tokens: int
    context: int
    heads: int
    kv_heads: int
    head_size: int
    window: int | None
    kernel: str
    partition: int | None
    items: int | None
    threads: int | None
    text: str


@dataclass(frozen=True)
class Fit:
    """The answer; bytes unless it says otherwise.

    Attributes:
        fits: Whether it does.
        lasting: Whether it still would if `spare` less were free.
        verdict: That in words.
        largest: The most that fits, in words; "" where `fix` says it.
        fix: What to do if it does not, or not for sure.
        model: Name of the model.
        read: "folder", "gguf" or "hub": where the sizes come from.
        context, batch: Tokens of a sequence; sequences.
        compute, kv_dtype: What would compute it; what pages hold.
        reason: Why that mode.
        paged: Whether pages serve it.
        matrices: How many are packed.
        weights, packed, dense: In all; in the kernels' layout; in MLX's arrays.
        exact_weights: Whether packing is done and its sizes known, or does not apply.
        kv_bytes, kv_token_bytes: Of all sequences; of a token of one.
        kv_blocks, block_size: Pages of all sequences; tokens a page. 0: pages do not serve it.
        layers: What each layer keeps.
        activations, scratch, step_rows: Of the largest step, which has so many tokens.
        process, mapped: Memory of the process itself; of it, library code that the system can drop.
        loading: The most that it will hold while it loads, weights packed already or not at all.
        peak: The most that the process will hold.
        first_start: The most at the first start, which packs the weights; None: that is done.
        buffer_cache, margin, limit: Left for reusable buffers; left alone; what may be used.
        spare: What `longest` and `largest_batch` leave besides, since what is free changes.
        limited_by: What sets the limit, in words.
        longest: Tokens that a sequence could have, `batch` of them at a time: what fits, and no
            more than the model was made for.
        largest_batch: Sequences of `context` tokens that would fit; no more than MOST_SEQUENCES.
        trained: Tokens that the model was made for; None: unknown.
        attention: The plan of its attention; empty where mlx-lm's own caches serve.
        notes: What else matters, in sentences.
    """

    fits: bool
    lasting: bool
    verdict: str
    largest: str
    fix: str
    model: str
    read: str
    context: int
    batch: int
    compute: str
    kv_dtype: str
    reason: str
    paged: bool
    matrices: int
    weights: int
    packed: int
    dense: int
    exact_weights: bool
    kv_bytes: int
    kv_token_bytes: int
    kv_blocks: int
    block_size: int
    layers: list[LayerGroup]
    activations: int
    scratch: int
    step_rows: int
    process: int
    mapped: int
    loading: int
    peak: int
    first_start: int | None
    buffer_cache: int
    margin: int
    limit: int
    spare: int
    limited_by: str
    longest: int
    largest_batch: int
    trained: int | None
    attention: list[AttentionCall]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
