"""Does a model fit: the engine's own arithmetic, done before a byte of its weights is read."""

from __future__ import annotations

import mlx.core as mx

from pamx.cli.doctor import fit_words
from pamx.cli.doctor.fit import Fit, LayerGroup, Question
from pamx.cli.doctor.fit_attention import attention_calls
from pamx.cli.doctor.inquiry import Inquiry
from pamx.errors import RequestError
from pamx.kv.budget import device_limit
from pamx.kv.limits import limited_by
from pamx.models.outline import outline
from pamx.substitute.needs import step_rows


def answer(question: Question) -> Fit:
    """Works it out. For a process of its own: what this one holds counts.

    Raises:
        ModelError: there is no such model, it is damaged, or its sizes cannot be had.
        RequestError: what is asked for is nothing that pamx knows.
    """
    with outline(question.model, offline=question.offline) as found:
        inquiry = Inquiry(question, found)
        if inquiry.caches is not None and question.batch > 1:
            raise RequestError(
                f"{found.name} answers one request at a time: pages do not serve it.",
                "Ask without --batch.",
            )
        return _answer(inquiry)


def _answer(inquiry: Inquiry) -> Fit:
    batch = inquiry.question.batch
    context = inquiry.question.context or inquiry.usual_context(batch)
    budget, longest = inquiry.budget(batch), inquiry.longest(batch)
    needs, kv = inquiry.needs(batch, context), inquiry.cache_bytes(context, batch)
    weights, paged = needs.weights, inquiry.caches is None
    loading = inquiry.loading()
    peak = max(inquiry.process + weights.resident + needs.footprint.step + kv, loading)
    too_long = inquiry.trained is not None and context > inquiry.trained
    found = fit_words.Finding(
        name=inquiry.found.name,
        context=context,
        batch=batch,
        trained=inquiry.trained,
        kv_bytes=kv,
        peak=peak,
        budget=budget,
        longest=min(longest, inquiry.trained or longest),
        largest_batch=0 if too_long else inquiry.largest_batch(context),
    )
    first = inquiry.first_start(peak)
    exact = inquiry.mode == "mlx" or inquiry.packed_here
    return Fit(
        fits=found.fits,
        lasting=found.lasting,
        verdict=fit_words.verdict(found),
        largest=fit_words.largest(found),
        fix=fit_words.fix(found),
        model=found.name,
        read=inquiry.found.read,
        context=context,
        batch=batch,
        compute=inquiry.mode,
        kv_dtype=_dtype_name(inquiry.pages[0].dtype) if inquiry.pages else "the model's own",
        reason=inquiry.reason,
        paged=paged,
        matrices=len(inquiry.formats()),
        weights=weights.resident,
        packed=weights.packed,
        dense=weights.dense,
        exact_weights=exact,
        kv_bytes=kv,
        kv_token_bytes=needs.token_bytes + needs.copied_bytes
        if inquiry.caches is None
        else sum(cache.per_token for cache in inquiry.caches),
        kv_blocks=needs.blocks(context) * batch if paged else 0,
        block_size=needs.block_size if paged else 0,
        layers=_groups(inquiry, context, batch),
        activations=needs.footprint.activations,
        scratch=needs.footprint.scratch,
        step_rows=step_rows(inquiry.mode, batch, context),
        process=inquiry.process,
        mapped=inquiry.mapped,
        loading=loading,
        peak=peak,
        first_start=first,
        buffer_cache=budget.buffer_cache,
        margin=budget.margin,
        limit=budget.limit,
        spare=budget.spare,
        limited_by=_limited_by(),
        longest=found.longest,
        largest_batch=found.largest_batch,
        trained=inquiry.trained,
        attention=[] if too_long else attention_calls(inquiry, context, batch),
        notes=[*inquiry.notes, *_notes(inquiry, first, exact)],
    )


def _notes(inquiry: Inquiry, first_start: int | None, exact: bool) -> list[str]:
    notes = []
    if first_start is not None and first_start > inquiry.memory.limit + inquiry.mapped:
        notes.append("Its first start, which packs the weights, may not fit.")
    if not exact and any(f.bits and f.scale_type == mx.float32 for f in inquiry.formats()):
        notes.append(
            "Scales in float32 take half as much where float16 holds them exactly; packing will "
            "tell."
        )
    return notes


def _limited_by() -> str:
    if device_limit():
        return "the GPU's recommended working set"
    return limited_by()


def _groups(inquiry: Inquiry, context: int, batch: int) -> list[LayerGroup]:
    """What each layer keeps, neighbours that keep the same together."""
    needs = inquiry.needs(batch)
    held = needs.blocks(context) * needs.block_size
    rows: list[tuple[str, int, int, int | None, int]] = []
    for g in inquiry.pages:
        dims = f"{g.k_dim}" if g.k_dim == g.v_dim else f"{g.k_dim} + {g.v_dim}"
        heads = "KV head" if g.kv_heads == 1 else "KV heads"
        keeps = f"{g.kv_heads} {heads} of {dims}, {_dtype_name(g.dtype)}"
        rows.append((keeps, g.token_bytes, 0, g.window, g.token_bytes * held * batch))
    for c in inquiry.caches or ():
        rows.append((c.kind, c.per_token, c.fixed, c.window, c.nbytes(context) * batch))
    groups: list[LayerGroup] = []
    for number, (keeps, per_token, fixed, window, size) in enumerate(rows):
        first, nbytes = number, size
        if groups:
            last = groups[-1]
            kept = (last.keeps, last.token_bytes, last.fixed_bytes, last.window)
            if kept == (keeps, per_token, fixed, window):
                first, nbytes = last.first, last.nbytes + size
                groups.pop()
        groups.append(LayerGroup(first, number, keeps, per_token, fixed, window, nbytes))
    return groups


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]
