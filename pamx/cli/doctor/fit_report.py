"""The answer to "does it fit", for people: the verdict in words, then the sum line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pamx.cli.doctor.plan_text import for_people
from pamx.cli.tables import show
from pamx.cli.terminal import printable, styled
from pamx.sizes import bytes_text, counted

if TYPE_CHECKING:
    from pamx.cli.doctor.fit import AttentionCall, Fit, LayerGroup

_READ = {
    "folder": "",
    "gguf": "read off the GGUF file's header",
    "hub": "read off headers that the Hub sent; nothing was downloaded",
}
_Row = tuple[str, str, str]


def show_fit(fit: Fit, verbose: bool) -> None:
    """Writes the answer to stdout.

    Args:
        fit: The answer.
        verbose: Also what each layer keeps, and how attention will be cut into work, and why.
    """
    verdict = printable(fit.verdict)
    if styled(sys.stdout):
        verdict = f"\x1b[1;{32 if fit.fits else 31}m{verdict}\x1b[0m"
    lines = [verdict, *(printable(line) for line in (fit.largest, fit.fix) if line)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if fit.trained is None or fit.context <= fit.trained:
        sys.stdout.write("\n")
        show((), [*_sum(fit, verbose), *_more(fit, verbose)], whole=2)


def _sum(fit: Fit, verbose: bool) -> list[_Row]:
    """Name, bytes and what they are for, from the parts to the limit."""
    step = f"results of up to {fit.step_rows:,} tokens at a time"
    process = "Python, MLX and the tokenizer"
    if verbose:
        step += (
            f": {bytes_text(fit.activations)} of activations, {bytes_text(fit.scratch)} of scratch"
        )
        process += f"; {bytes_text(fit.mapped)} of it code, mapped from files"
    rows = [
        ("weights", bytes_text(fit.weights), _weights(fit)),
        ("KV cache", bytes_text(fit.kv_bytes), _cache(fit)),
        *(("", "", _layers(group)) for group in fit.layers if verbose),
        ("step", bytes_text(fit.activations + fit.scratch), step),
        ("process", bytes_text(fit.process), process),
    ]
    if fit.loading == fit.peak:
        rows.append(
            ("loading", bytes_text(fit.loading), "while the tokenizer and weights are read")
        )
    rows.append(("peak", bytes_text(fit.peak), "the most that it will hold, as the system counts"))
    if fit.first_start is not None:
        text = "about, the first time, when its weights are packed"
        rows.append(("first start", bytes_text(fit.first_start), text))
    free = bytes_text(fit.buffer_cache + fit.margin)
    why = f"{bytes_text(fit.margin)} margin, {bytes_text(fit.buffer_cache)} for reusable buffers"
    return [*rows, ("kept free", free, why), ("limit", bytes_text(fit.limit), fit.limited_by)]


def _weights(fit: Fit) -> str:
    what = "as MLX holds them"
    if fit.matrices:
        matrices = "matrix" if fit.matrices == 1 else "matrices"
        known = "" if fit.exact_weights else "at most: "
        what = f"{known}{fit.matrices:,} packed {matrices}, and "
        what += f"{bytes_text(fit.dense)} that MLX keeps"
    return f"{what}; {_READ[fit.read]}" if _READ[fit.read] else what


def _cache(fit: Fit) -> str:
    each = f"{fit.kv_token_bytes:,} bytes a token"
    if not fit.paged:
        return f"mlx-lm's own, {each}"
    return f"{fit.kv_dtype}, {each}; {counted(fit.kv_blocks, 'block')} of {fit.block_size} tokens"


def _more(fit: Fit, verbose: bool) -> list[_Row]:
    rows = [("compute", "", f"{fit.compute}. {fit.reason}".rstrip())]
    texts = [_plan(call) for call in fit.attention] if verbose else _attention(fit)
    rows += [("attention" if n == 0 else "", "", text) for n, text in enumerate(texts)]
    rows += [("note", "", text) for text in fit.notes]
    return rows


def _attention(fit: Fit) -> list[str]:
    """A line for each kind of step; of kinds of layers, the first."""
    if not fit.attention:
        return ["mlx-lm's own, on its own caches."]
    first = {call.step: call for call in reversed(fit.attention)}
    if any(call.partition is None for call in first.values()):
        return [fit.attention[0].text]
    more = len(fit.attention) > len(first)
    other = "; other layers differ: --verbose says how" if more else ""
    return [
        f"{_step(call)}: {counted(call.items or 0, 'piece')} of work on "
        f"{counted(call.threads or 0, 'thread')}, partitions of {call.partition} tokens{other}"
        for call in (first[step] for step in ("decode", "prompt") if step in first)
    ]


def _plan(call: AttentionCall) -> str:
    which = f"{call.heads} heads on {call.kv_heads} of {call.head_size}"
    which += f", window {call.window:,}" if call.window else ""
    return f"{_step(call)} ({which})\n{for_people(call.text)}"


def _step(call: AttentionCall) -> str:
    if call.step == "decode":
        return f"decoding at {call.context:,}"
    return f"a prompt, {call.new_tokens:,} tokens at {call.context:,}"


def _layers(group: LayerGroup) -> str:
    count = group.last - group.first + 1
    name = f"layer {group.first}" if count == 1 else f"layers {group.first}-{group.last}"
    parts = [f"{group.token_bytes:,} bytes a token"] if group.token_bytes else []
    parts += [f"{group.fixed_bytes:,} bytes fixed"] if group.fixed_bytes else []
    window = f", window of {group.window:,}" if group.window else ""
    one = " each" if count > 1 else ""
    return (
        f"{name}: {group.keeps}{window}: {' and '.join(parts) or 'nothing'}{one}, "
        f"{bytes_text(group.nbytes)}"
    )
