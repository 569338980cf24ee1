"""How a model's attention will be cut into work, for each kind of step and of layer."""

from __future__ import annotations

from dataclasses import replace

from pamx.cli.doctor.fit import AttentionCall
from pamx.cli.doctor.inquiry import Inquiry
from pamx.errors import NativeError
from pamx.native.plan import plan_cpu_attention
from pamx.substitute.needs import step_rows


def attention_calls(inquiry: Inquiry, context: int, batch: int) -> list[AttentionCall]:
    """Decoding first, then a piece of a prompt; each for every kind of layer."""
    if inquiry.caches is not None:
        return []
    calls = []
    why = inquiry.backend.reason
    text = f"Plain MLX operations over pages. {why}" if inquiry.backend.name == "mlx" else why
    rows = min(step_rows(inquiry.mode), context)
    for step, sequences, new in (("decode", batch, 1), ("prompt", 1, rows)):
        if step == "prompt" and rows == 1:
            continue
        for geometry, heads in inquiry.layer_kinds():
            call = AttentionCall(
                step=step,
                sequences=sequences,
                new_tokens=new,
                context=context,
                heads=heads,
                kv_heads=geometry.kv_heads,
                head_size=geometry.k_dim,
                window=geometry.window,
                kernel=inquiry.backend.name,
                partition=None,
                items=None,
                threads=None,
                text=text,
            )
            calls.append(_planned(call, geometry.v_dim) if _is_ours(inquiry) else call)
    return calls


def _is_ours(inquiry: Inquiry) -> bool:
    return inquiry.backend.name == "native-cpu"


def _planned(call: AttentionCall, v_dim: int) -> AttentionCall:
    try:
        plan = plan_cpu_attention(
            call.heads,
            call.kv_heads,
            call.head_size,
            v_dim,
            [call.new_tokens] * call.sequences,
            [call.context] * call.sequences,
            window=call.window,
        )
    except NativeError as error:  # more work than is planned
        return replace(call, text=error.message)
    return replace(
        call,
        partition=plan.partition,
        items=plan.items,
        threads=plan.threads,
        text=plan.text.rstrip(),
    )
