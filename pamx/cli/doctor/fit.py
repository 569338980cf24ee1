"""Does a model fit: the engine's own arithmetic, done before a byte of its weights is read.

The model is built by mlx-lm, lazily, in a process that loads what the engine loads; so its modules
say what they will hold, and the process what Python and the libraries take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pamx.cli.sizes import bytes_text
from pamx.errors import ModelError, NativeError, RequestError

_MOST_SEQUENCES = 4096
# A matrix that is packed in memory begins on a page of its own, 2 MiB large where the system has
# such pages: half of one is lost, on average.
_LOST_BY_MATRIX = 1 << 20
# What a tokenizer takes for each token, about, where it is not here to be loaded.
_TOKEN_BYTES = 700


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
class Fit:
    """The answer; bytes unless it says otherwise.

    Attributes:
        fits: Whether it does.
        verdict: That in words.
        fix: What to do if it does not.
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
        layers: What each layer keeps.
        activations, scratch, step_rows: Of a step of so many tokens.
        process, mapped: Memory of the process itself; of it, library code that the system can drop.
        peak: The most that the process will hold.
        first_start: The most at the first start, which packs the weights; None: that is done.
        buffer_cache, margin, limit: Left for reusable buffers; left alone; what may be used.
        limited_by: What sets the limit, in words.
        longest: Tokens that a sequence could have, `batch` of them at a time: what fits, and no
            more than the model was made for.
        largest_batch: Sequences of `context` tokens that would fit.
        trained: Tokens that the model was made for; None: unknown.
        attention: The plan of its attention, a paragraph a kind of step.
        notes: What else matters, in sentences.
    """

    fits: bool
    verdict: str
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
    layers: list[LayerGroup]
    activations: int
    scratch: int
    step_rows: int
    process: int
    mapped: int
    peak: int
    first_start: int | None
    buffer_cache: int
    margin: int
    limit: int
    limited_by: str
    longest: int
    largest_batch: int
    trained: int | None
    attention: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def answer(question: Question) -> Fit:
    """Works it out. For a process of its own: what this one holds counts.

    Raises:
        ModelError: there is no such model, it is damaged, or its sizes cannot be had.
        RequestError: what is asked for is nothing that pamx knows.
    """
    from pamx.models.outline import outline

    with outline(question.model, offline=question.offline) as found:
        return _Inquiry(question, found).fit()


class _Inquiry:
    """The model, built; what it needs is a question of how many sequences there are."""

    def __init__(self, question: Question, found: Any) -> None:
        import pamx.engine.engine  # noqa: F401  # as the engine's process has it
        from pamx.attention.backend import choose_backend
        from pamx.attention.placeholders import UnsupportedAttentionError
        from pamx.engine.admission_record import recall_admission
        from pamx.kv.budget import measure_memory
        from pamx.kv.limits import own_bytes
        from pamx.models.check import trained_context
        from pamx.models.load import LoadedModel, build, quiet, read_tokenizer
        from pamx.models.packed import kept_table
        from pamx.substitute.cache_sizes import measure_caches, query_heads
        from pamx.substitute.choices import checked_compute, checked_kv_dtype
        from pamx.substitute.computation import chosen_mode
        from pamx.substitute.geometry import discover_geometry
        from pamx.substitute.levels import AS_ASKED
        from pamx.substitute.needs import page_layers, runs_fused
        from pamx.substitute.weight_file import known_sizes

        self.question, self.found = question, found
        wanted, dtype = (
            checked_compute(question.compute) or "fast",
            checked_kv_dtype(question.kv_dtype),
        )
        if found.config.get("model_file") is not None:
            raise ModelError(
                f"{found.name} brings Python code of its own, without which its sizes are unknown.",
                "Read that code, then run the model with --trust-remote-code and a small context.",
            )
        self.backend = choose_backend()
        with quiet():
            self.model, config = build(found.folder, found.config["model_type"], False, True)
            tokenizer: Any = None
            if found.read == "folder":
                tokenizer = read_tokenizer(found.folder, config, False)
        self.trained = trained_context(config)
        self.notes: list[str] = []
        mode, self.reason = chosen_mode(wanted, self.backend)
        self.admission = None
        if found.read == "folder":
            loaded = LoadedModel(self.model, tokenizer, found.folder, found.name, config)
            self.admission = recall_admission(loaded, mode, dtype)
        recipe = None if self.admission is None else self.admission.recipe
        if recipe is not None and mode != "mlx" and recipe.refused:
            mode, self.reason = "mlx", recipe.refused
        elif recipe is not None and mode == "fast" and not recipe.fast:
            mode, self.reason = "exact", "Rounded activations change its output too much."
        with query_heads() as self.heads:
            try:
                self.layers = discover_geometry(self.model)
                self.pages = page_layers(self.layers, mode, dtype)
                self.caches = None
            except UnsupportedAttentionError as error:
                self.caches = measure_caches(self.model)
                self.notes.append(
                    f"Pages do not serve this model, and it answers one request at a time: "
                    f"{error.message}"
                )
                mode, self.reason = "mlx", "Pages do not serve this model."
                self.layers, self.pages = [], []
        self.reason = "" if self.reason == AS_ASKED else self.reason
        self.mode = mode
        table = kept_table(found.folder, config) if found.read == "folder" else None
        self.packed_here = table is not None
        self.known = known_sizes(table) if table is not None else _narrowed(found.narrow)
        self.memory = measure_memory()
        self.process = int(_resident())
        self.mapped = max(0, self.process - own_bytes())
        self.highest = _highest() or self.process
        self.fused = runs_fused(self.admission)
        if tokenizer is None:
            extra = int(config.get("vocab_size") or 0) * _TOKEN_BYTES
            self.process += extra
            self.notes.append(
                f"Its tokenizer is not here, and is taken to need {bytes_text(extra)}."
            )
        elif self.admission is None and mode != "mlx":
            self.notes.append(
                "It has not run here yet: that its layers can be fused is assumed, and a model "
                f"whose numbers {mode} would change runs in another mode."
            )

    # ---- numbers ---------------------------------------------------------------------------------

    def needs(self, sequences: int) -> Any:
        from pamx.substitute.needs import needs_of

        return needs_of(
            self.model,
            self.mode,
            self.pages,
            in_place=self.backend.in_place,
            known=self.known,
            fused=self.fused,
            sequences=sequences,
        )

    def cache_bytes(self, needs: Any, tokens: int, sequences: int) -> int:
        if self.caches is None:
            return int(needs.cache_bytes(tokens, sequences))
        return sequences * sum(cache.nbytes(tokens) for cache in self.caches)

    def longest(self, sequences: int) -> int:
        """Tokens that each of `sequences` can have."""
        needs = self.needs(sequences)
        room = self.memory.budget(needs.footprint).pages
        if self.caches is None:
            return int(needs.tokens_that_fit(room, sequences))
        return _largest(lambda n: self.cache_bytes(needs, n, sequences) <= room, 1 << 40)

    def largest_batch(self, tokens: int) -> int:
        if self.caches is not None:
            return min(1, self.longest(1) // tokens)
        return _largest(lambda count: self.longest(count) >= tokens, _MOST_SEQUENCES)

    # ---- answer ----------------------------------------------------------------------------------

    def fit(self) -> Fit:
        from pamx.kv.budget import UNASKED_SHARE, device_limit
        from pamx.kv.limits import cgroup_room
        from pamx.substitute.needs import prefill_chunk

        question, batch = self.question, self.question.batch
        if self.caches is not None and batch > 1:
            raise RequestError(
                f"{self.found.name} answers one request at a time: pages do not serve it.",
                "Ask without --batch.",
            )
        needs = self.needs(batch)
        budget = self.memory.budget(needs.footprint)
        longest = self.longest(batch)
        context = question.context
        if context is None:
            # As the engine chooses; a model that nothing limits gets what is usual.
            fits = (
                needs.tokens_that_fit(int(budget.pages * UNASKED_SHARE), batch)
                if self.caches is None
                else longest
            )
            context = max(1, min(self.trained or (fits if self.caches is None else 4096), fits))
        kv = self.cache_bytes(needs, context, batch)
        steady = self.process + needs.footprint.weights + needs.footprint.step + kv
        loading = self.highest + (needs.weights.resident if self.mode == "mlx" else 0)
        peak = max(steady, loading)
        first = None
        if self.mode != "mlx" and not self.packed_here:
            lost = min(needs.weights.packed // 4, self.packed_matrices() * _LOST_BY_MATRIX)
            first = peak + needs.weights.largest + lost
        too_long = self.trained is not None and context > self.trained
        fits = context <= longest and not too_long
        if device_limit():
            limited_by = "the GPU's recommended working set"
        elif cgroup_room() is not None:
            limited_by = "memory available now, within this container"
        else:
            limited_by = "memory available now"
        largest = self.largest_batch(context) if not too_long else 0
        asked = f"{context:,} tokens" if batch == 1 else f"{batch:,} times {context:,} tokens"
        verdict, fix = self._verdict(fits, too_long, asked, peak, budget, longest, largest, kv)
        if first is not None and first > self.memory.limit + self.mapped:
            self.notes.append("Its first start, which packs the weights, may not fit.")
        exact = self.mode == "mlx" or self.packed_here
        if not exact and any(_is_float32(f) for f in self.formats()):
            self.notes.append(
                "Scales in float32 take half as much where float16 holds them exactly; packing "
                "will tell."
            )
        return Fit(
            fits=fits,
            verdict=verdict,
            fix=fix,
            model=self.found.name,
            read=self.found.read,
            context=context,
            batch=batch,
            compute=self.mode,
            kv_dtype=self._kv_dtype(),
            reason=self.reason,
            paged=self.caches is None,
            matrices=self.packed_matrices(),
            weights=needs.weights.resident,
            packed=needs.weights.packed,
            dense=needs.weights.dense,
            exact_weights=exact,
            kv_bytes=kv,
            kv_token_bytes=needs.cache_bytes(1)
            if self.caches is None
            else sum(cache.per_token for cache in self.caches),
            layers=self._groups(context, batch),
            activations=needs.footprint.activations,
            scratch=needs.footprint.scratch,
            step_rows=max(prefill_chunk(self.mode), batch),
            process=self.process,
            mapped=self.mapped,
            peak=peak,
            first_start=first,
            buffer_cache=budget.buffer_cache,
            margin=budget.margin,
            limit=budget.limit,
            limited_by=limited_by,
            longest=min(longest, self.trained or longest),
            largest_batch=largest,
            trained=self.trained,
            attention=self._attention(context, batch),
            notes=self.notes,
        )

    def formats(self) -> list[Any]:
        from pamx.substitute.linear import packed_formats

        if self.mode == "mlx":
            return []
        return [entry.format for entry in packed_formats(self.model).values()]

    def packed_matrices(self) -> int:
        return len(self.formats())

    def _kv_dtype(self) -> str:
        if self.pages:
            return str(self.pages[0].dtype).rpartition(".")[2]
        return "the model's own"

    def _verdict(
        self,
        fits: bool,
        too_long: bool,
        asked: str,
        peak: int,
        budget: Any,
        longest: int,
        largest: int,
        kv: int,
    ) -> tuple[str, str]:
        name = self.found.name
        if too_long:
            return (
                f"No: {name} was made for {self.trained:,} tokens, not for {asked}.",
                f"Ask for at most {self.trained:,}.",
            )
        if fits:
            return (
                f"It fits: {name} with {asked} takes about {bytes_text(peak)} of the "
                f"{bytes_text(budget.limit)} that may be used.",
                "",
            )
        room = bytes_text(budget.pages)
        verdict = (
            f"It does not fit: {name} with {asked} needs {bytes_text(kv)} for its KV cache, and "
            f"{room} are left for it."
        )
        if longest < 1:
            return verdict, "Take a smaller model, or close other programs."
        shorter = min(longest, self.trained or longest)
        each = " each" if self.question.batch > 1 else ""
        fix = f"Ask for at most {shorter:,} tokens{each}"
        if self.question.batch > 1 and largest:
            fix += f", or for at most {largest:,} at a time"
        return verdict, f"{fix}, or close other programs."

    def _groups(self, context: int, batch: int) -> list[LayerGroup]:
        rows: list[tuple[str, int, int, int | None, int]] = []
        if self.caches is None:
            for g in self.pages:
                dims = f"{g.k_dim}" if g.k_dim == g.v_dim else f"{g.k_dim} + {g.v_dim}"
                heads = "KV head" if g.kv_heads == 1 else "KV heads"
                name = str(g.dtype).rpartition(".")[2]
                size = g.token_bytes * context * batch
                rows.append(
                    (f"{g.kv_heads} {heads} of {dims}, {name}", g.token_bytes, 0, g.window, size)
                )
        else:
            for c in self.caches:
                rows.append((c.kind, c.per_token, c.fixed, c.window, c.nbytes(context) * batch))
        groups: list[LayerGroup] = []
        for number, (keeps, per_token, fixed, window, size) in enumerate(rows):
            last = groups[-1] if groups else None
            if last and (last.keeps, last.token_bytes, last.fixed_bytes, last.window) == (
                keeps,
                per_token,
                fixed,
                window,
            ):
                groups[-1] = LayerGroup(
                    last.first, number, keeps, per_token, fixed, window, last.nbytes + size
                )
            else:
                groups.append(LayerGroup(number, number, keeps, per_token, fixed, window, size))
        return groups

    def _attention(self, context: int, batch: int) -> list[str]:
        """The plan of each kind of step, in words."""
        if self.caches is not None:
            return ["mlx-lm's own, on its own caches."]
        if self.backend.name != "native-cpu":
            return [f"Plain MLX operations over pages. {self.backend.reason}"]
        return list(dict.fromkeys(self._cpu_plans(context, batch)))

    def _cpu_plans(self, context: int, batch: int) -> list[str]:
        from pamx.native.plan import plan_cpu_attention
        from pamx.substitute.needs import prefill_chunk

        plans = []
        rows = min(prefill_chunk(self.mode), context)
        steps = {f"decode, {batch} x 1 token": [1] * batch}
        if rows > 1:
            steps[f"prompt, {rows} tokens"] = [rows]
        kinds = dict.fromkeys(zip(self.pages, self._query_heads(), strict=True))
        for title, lengths in steps.items():
            for g, heads in kinds:
                try:
                    plan = plan_cpu_attention(
                        heads,
                        g.kv_heads,
                        g.k_dim,
                        g.v_dim,
                        lengths,
                        [context] * len(lengths),
                        window=g.window,
                    )
                except (NativeError, ValueError) as error:  # far more tokens than can be planned
                    plans.append(f"{title}: {error}")
                    continue
                which = f"{heads} heads on {g.kv_heads} of {g.k_dim}"
                which += f", window {g.window:,}" if g.window else ""
                plans.append(f"{title} at {context:,} ({which})\n{plan.text.rstrip()}")
        return plans

    def _query_heads(self) -> list[int]:
        """Query heads of each layer: as seen, or at least one for each KV head."""
        if len(self.heads) == len(self.pages):
            return self.heads
        return [g.kv_heads for g in self.pages]


def _narrowed(names: frozenset[str]) -> Callable[[str, Any], int | None]:
    """Sizes of matrices whose float32 scales will be kept in float16."""
    import mlx.core as mx

    from pamx.native.matrices import MatrixFormat

    def size(name: str, wanted: MatrixFormat) -> int | None:
        if name not in names or wanted.scale_type != mx.float32:
            return None
        f = wanted
        return MatrixFormat(f.outputs, f.inputs, f.bits, f.group_size, mx.float16).nbytes

    return size


def _is_float32(matrix_format: Any) -> bool:
    import mlx.core as mx

    return bool(matrix_format.bits and matrix_format.scale_type == mx.float32)


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` of which a falling property holds; 0: of none."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _highest() -> int | None:
    """The most memory that this process has held, where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    except (OSError, StopIteration):
        return None
