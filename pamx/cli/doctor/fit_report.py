"""The answer to "does it fit", for people: the verdict in words, then the sum line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pamx.cli.sizes import bytes_text
from pamx.cli.tables import show
from pamx.cli.terminal import printable, styled

if TYPE_CHECKING:
    from pamx.cli.doctor.fit import Fit, LayerGroup

_READ = {
    "folder": "",
    "gguf": "read off the GGUF file's header",
    "hub": "read off headers that the Hub sent; nothing was downloaded",
}


def show_fit(fit: Fit) -> None:
    """Writes the answer to stdout."""
    verdict = printable(fit.verdict)
    if styled(sys.stdout):
        verdict = f"\x1b[1;{32 if fit.fits else 31}m{verdict}\x1b[0m"
    lines = [verdict, *([printable(fit.fix)] if fit.fix else []), ""]
    sys.stdout.write("\n".join(lines) + "\n")
    show((), [*_sum(fit), *_more(fit)], whole=2)


def _sum(fit: Fit) -> list[tuple[str, str, str]]:
    """Name, bytes and what they are for, from the parts to the limit."""
    matrices = "matrix" if fit.matrices == 1 else "matrices"
    if fit.matrices:
        known = "" if fit.exact_weights else "at most "
        what = f"{known}{bytes_text(fit.packed)} in {fit.matrices} packed {matrices}, "
        what += f"{bytes_text(fit.dense)} left to MLX"
    else:
        what = "as MLX holds them"
    if where := _READ[fit.read]:
        what += f"; {where}"
    each = f"{fit.kv_token_bytes:,} bytes a token"
    sequences = f"{fit.batch:,} x {fit.context:,} tokens" if fit.batch > 1 else ""
    rows = [
        ("weights", bytes_text(fit.weights), what),
        ("KV cache", bytes_text(fit.kv_bytes), f"{sequences or f'{fit.context:,} tokens'}, {each}"),
        *(("", "", _layers(group)) for group in fit.layers),
        (
            "step",
            bytes_text(fit.activations + fit.scratch),
            f"{bytes_text(fit.activations)} activations of {fit.step_rows} tokens, "
            f"{bytes_text(fit.scratch)} scratch",
        ),
        (
            "process",
            bytes_text(fit.process),
            f"Python, MLX and the tokenizer; {bytes_text(fit.mapped)} of it code, mapped from "
            "files",
        ),
        ("peak", bytes_text(fit.peak), "the most that it will hold, as the system counts"),
    ]
    if fit.first_start is not None:
        text = "about, the first time, when its weights are packed"
        rows.append(("first start", bytes_text(fit.first_start), text))
    reserve = fit.buffer_cache + fit.margin
    return [
        *rows,
        (
            "kept free",
            bytes_text(reserve),
            f"{bytes_text(fit.margin)} margin, {bytes_text(fit.buffer_cache)} for MLX's reusable "
            "buffers",
        ),
        ("limit", bytes_text(fit.limit), fit.limited_by),
    ]


def _more(fit: Fit) -> list[tuple[str, str, str]]:
    if fit.trained is None or fit.longest < fit.trained:
        longest = f"{fit.longest:,} tokens"
    else:
        longest = f"{fit.trained:,} tokens, all that it was made for"
    each = f" each, {fit.batch:,} at a time" if fit.batch > 1 else ""
    rows = [
        ("longest", "", f"{longest}{each}"),
        ("largest batch", "", f"{fit.largest_batch:,} x {fit.context:,} tokens"),
        ("compute", "", f"{fit.compute}. {fit.reason}".rstrip()),
    ]
    rows += [("attention" if n == 0 else "", "", text) for n, text in enumerate(fit.attention)]
    rows += [("note", "", text) for text in fit.notes]
    return rows


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
