"""A model built without its weights, in a process like the engine's: what it would need.

mlx-lm builds it lazily, so its modules say what they will hold; the process, which has loaded what
a command loads, says what Python and the libraries take. Import this in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil

import pamx.cli.app  # what the process of a command holds
import pamx.engine.engine  # noqa: F401
from pamx.attention.backend import choose_backend
from pamx.attention.placeholders import UnsupportedAttentionError
from pamx.cli.doctor.fit import MOST_SEQUENCES, Question
from pamx.engine.admission_record import recall_admission
from pamx.errors import ModelError
from pamx.kv.budget import UNASKED_SHARE, MemoryBudget, measure_memory
from pamx.kv.limits import own_bytes
from pamx.kv.pool import LayerGeometry
from pamx.models.check import trained_context
from pamx.models.load import LoadedModel, build, quiet, read_tokenizer
from pamx.models.outline import Outline
from pamx.models.packed import kept_table
from pamx.native.matrices import MatrixFormat
from pamx.native.step_limits import LONGEST_CONTEXT
from pamx.sizes import bytes_text
from pamx.substitute.cache_sizes import CacheSize, measure_caches, query_heads
from pamx.substitute.choices import checked_compute, checked_kv_dtype
from pamx.substitute.computation import chosen_mode
from pamx.substitute.footprint import KnownSize
from pamx.substitute.geometry import discover_geometry
from pamx.substitute.levels import AS_ASKED
from pamx.substitute.linear import packed_formats
from pamx.substitute.needs import Needs, needs_of, page_layers, runs_fused
from pamx.substitute.weight_file import known_sizes

# A matrix that is packed in memory begins on a page of its own, 2 MiB large where the system has
# such pages: half of one is lost, on average.
_LOST_BY_MATRIX = 1 << 20
# What a tokenizer takes for each token, about, where it is not here to be loaded.
_TOKEN_BYTES = 700


class Inquiry:
    """The model, built; what it needs is a question of how many sequences there are."""

    def __init__(self, question: Question, found: Outline) -> None:
        self.question, self.found = question, found
        wanted = checked_compute(question.compute) or "fast"
        dtype = checked_kv_dtype(question.kv_dtype)
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
        self.caches: list[CacheSize] | None = None
        self.pages: list[LayerGeometry] = []
        with query_heads() as self.heads:
            try:
                self.pages = page_layers(discover_geometry(self.model), mode, dtype)
            except UnsupportedAttentionError as error:
                self.caches = measure_caches(self.model)
                self.notes.append(
                    f"Pages do not serve this model, and it answers one request at a time: "
                    f"{error.message}"
                )
                mode, self.reason = "mlx", "Pages do not serve this model."
        self.reason = "" if self.reason == AS_ASKED else self.reason
        self.mode = mode
        table = kept_table(found.folder, config) if found.read == "folder" else None
        self.packed_here = table is not None
        self.known = known_sizes(table) if table is not None else _narrowed(found.narrow)
        self.memory = measure_memory()
        self.process = int(psutil.Process().memory_info().rss)
        self.mapped = max(0, self.process - own_bytes())
        self.highest = _highest() or self.process
        self.fused = runs_fused(self.admission)
        self._needs: dict[tuple[int, int | None], Needs] = {}
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

    def needs(self, sequences: int, context: int | None = None) -> Needs:
        """What so many sequences need; `context`: steps as small as these make them."""
        if (sequences, context) not in self._needs:
            self._needs[sequences, context] = needs_of(
                self.model,
                self.mode,
                self.pages,
                in_place=self.backend.in_place,
                known=self.known,
                fused=self.fused,
                sequences=sequences,
                context=context,
            )
        return self._needs[sequences, context]

    def cache_bytes(self, tokens: int, sequences: int) -> int:
        """What so many sequences of so many tokens keep."""
        if self.caches is None:
            return self.needs(sequences).cache_bytes(tokens, sequences)
        return sequences * sum(cache.nbytes(tokens) for cache in self.caches)

    def budget(self, sequences: int) -> MemoryBudget:
        """What there is, and what is spoken for."""
        return self.memory.budget(self.needs(sequences).footprint)

    def longest(self, sequences: int) -> int:
        """Tokens that each of `sequences` can have, and a moment later too."""
        room = self.budget(sequences).lasting
        if self.caches is None:
            return self.needs(sequences).tokens_that_fit(room, sequences)
        return _largest(lambda n: self.cache_bytes(n, sequences) <= room, LONGEST_CONTEXT)

    def largest_batch(self, tokens: int) -> int:
        """Sequences of so many tokens that fit, and a moment later too."""
        if self.caches is not None:
            return min(1, self.longest(1) // tokens)
        return _largest(lambda count: self.longest(count) >= tokens, MOST_SEQUENCES)

    def usual_context(self, batch: int) -> int:
        """What the engine takes if no context is asked for."""
        if self.caches is not None:
            return max(1, min(self.trained or 4096, self.longest(1)))
        room = int(self.budget(batch).pages * UNASKED_SHARE)
        fits = self.needs(batch).tokens_that_fit(room, batch)
        return max(1, min(self.trained or fits, fits))

    def loading(self) -> int:
        """The most that the process holds before it is asked anything.

        The tokenizer is read while the weights come in: packed ones are checked by a thread of
        their own.
        """
        weights = self.needs(1).weights
        if self.mode == "mlx":
            return self.highest + weights.resident
        return self.highest + (weights.packed if self.packed_here else 0)

    def first_start(self, peak: int) -> int | None:
        """The most that it holds while it packs its weights; None: that is done."""
        if self.mode == "mlx" or self.packed_here:
            return None
        weights = self.needs(1).weights
        lost = min(weights.packed // 4, len(self.formats()) * _LOST_BY_MATRIX)
        return peak + weights.largest + lost

    def formats(self) -> list[MatrixFormat]:
        """Of the matrices that are packed."""
        if self.mode == "mlx":
            return []
        return [entry.format for entry in packed_formats(self.model).values()]

    def layer_kinds(self) -> list[tuple[LayerGeometry, int]]:
        """The kinds of layers, each with its query heads: as seen, or one for each KV head."""
        seen = len(self.heads) == len(self.pages)
        heads = self.heads if seen else [g.kv_heads for g in self.pages]
        return list(dict.fromkeys(zip(self.pages, heads, strict=True)))


def _narrowed(names: frozenset[str]) -> KnownSize:
    """Sizes of matrices whose float32 scales will be kept in float16."""

    def size(name: str, wanted: MatrixFormat) -> int | None:
        if name not in names or wanted.scale_type != mx.float32:
            return None
        f = wanted
        return MatrixFormat(f.outputs, f.inputs, f.bits, f.group_size, mx.float16).nbytes

    return size


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


def _highest() -> int | None:
    """The most memory that this process has held, where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    except (OSError, StopIteration):
        return None
