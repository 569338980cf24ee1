"""The engine: one loaded model that answers one request at a time."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import mlx.core as mx

import pamx.models as models
from pamx.attention.backend import choose_backend
from pamx.attention.placeholders import UnsupportedAttentionError
from pamx.closing import Closing
from pamx.engine.admission_record import recall_admission, remember_admission
from pamx.engine.batch import BatchEngine
from pamx.engine.beam import Beam, beam_search, check_beams
from pamx.engine.chat import ChatSession
from pamx.engine.checks import known_ids, stop_strings, whole
from pamx.engine.completion import BeamAnswer, Completion, Delta, FinishReason
from pamx.engine.draw import history_sampler
from pamx.engine.gate import Gate, Gated
from pamx.engine.prompt import Prompt, prompt_tokens
from pamx.engine.sampling import Sampling
from pamx.engine.slot import Dense, Paged, Slot
from pamx.engine.steps import decode, prefill
from pamx.engine.text import TextStream
from pamx.errors import RequestError
from pamx.models import LoadedModel
from pamx.models.check import trained_context
from pamx.native.partitions import partition_from_environment
from pamx.substitute.choices import KvDtype, checked_compute, checked_kv_dtype
from pamx.substitute.computation import chosen_mode
from pamx.substitute.levels import ComputeMode, Levels
from pamx.substitute.needs import prefill_chunk
from pamx.substitute.paged_model import PagedModel
from pamx.substitute.weight_file import FileStore

GREEDY = Sampling()


@dataclass(frozen=True)
class AttentionStatus:
    """What serves a model's attention.

    Attributes:
        paged: Whether the KV cache is paged.
        kernel: "native-cpu", "mlx" (plain MLX operations), or "mlx-lm" (the model's own cache).
        reason: One sentence: why.
    """

    paged: bool
    kernel: str
    reason: str


class Engine(Closing):
    """A model, its pages, and what answers requests with them.

    Make one with `pamx.load`. Closing it restores the mlx-lm model. Threads may take turns at it;
    one that comes while another is inside is refused with a PamxError. With each method of a closed
    engine but `close`, a RequestError says so.

    Attributes:
        gate: Lets one thread at a time in.
        model: The mlx-lm model.
        tokenizer: mlx-lm's tokenizer wrapper.
        context: Tokens that a prompt and its answer may have together.
        attention: What serves attention, and why.
        compute: What computes each layer, and why.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        context: int | None = None,
        sequences: int = 1,
        at_most: int = 1,
        block_size: int = 16,
        compute: ComputeMode | None = None,
        kv_dtype: KvDtype = "auto",
        disposable: bool = False,
    ) -> None:
        self.name = loaded.name
        self.path: Path = loaded.path
        self.model = loaded.model
        self.tokenizer: Any = loaded.tokenizer
        self._vocabulary: int | None = loaded.config.get("vocab_size")
        self._trained = trained = trained_context(loaded.config)
        if context is not None:
            whole("context", context, "at least 1", 1)
        if context is not None and trained is not None and context > trained:
            raise RequestError(
                f"A context of {context:,} tokens is more than the {trained:,} that "
                f"{loaded.name} was made for.",
                f"Ask for at most {trained:,}.",
            )
        whole("sequences", sequences, "at least 1", 1)
        whole("at_most", at_most, "at least 1", 1)
        self.gate = Gate()
        self._paged: PagedModel | None = None
        self._weights = loaded.weights
        wanted, dtype = checked_compute(compute) or "fast", checked_kv_dtype(kv_dtype)
        try:
            self._put_on_pages(
                loaded, context, sequences, at_most, block_size, wanted, dtype, disposable
            )
            if self._weights is not None:
                self._weights.save()
            models.read_weights(loaded)
        except BaseException:
            self.close(restore=not disposable)
            raise

    def _put_on_pages(
        self,
        loaded: LoadedModel,
        context: int | None,
        sequences: int,
        at_most: int,
        block_size: int,
        compute: ComputeMode,
        kv_dtype: mx.Dtype | None,
        disposable: bool,
    ) -> None:
        """Sets what tells how the model is computed, and replaces what of it can be."""
        trained = self._trained
        try:
            backend = choose_backend()
            mode, _ = chosen_mode(compute, backend)
            known = recall_admission(loaded, mode, kv_dtype)
            length = context or trained

            def in_blocks(tokens: int, count: int) -> int:  # each sequence has its own
                return -(-tokens // block_size) * block_size * count

            self._paged = PagedModel(
                loaded.model,
                context=context if sequences == 1 else context and in_blocks(context, sequences),
                max_context=trained and in_blocks(trained, sequences),
                more=in_blocks(length, at_most) if length else 0,
                block_size=block_size,
                backend=backend,
                admission=known,
                compute=compute,
                kv_dtype=kv_dtype,
                weights=None if loaded.weights is None else FileStore(loaded.weights),
                disposable=disposable,
            )
            if self._paged.admission != known:
                remember_admission(loaded, mode, kv_dtype, self._paged.admission)
            self.compute = self._paged.compute
            self.context = min(context or trained or self._paged.context, self._paged.context)
            self.attention = AttentionStatus(True, backend.name, backend.reason)
        except UnsupportedAttentionError as error:
            if partition_from_environment(block_size):
                raise RequestError(
                    f"PAMX_FORCE_PARTITION cannot be had: {error.message}", "Unset it."
                ) from error
            self.context = context or trained or 4096
            self.attention = AttentionStatus(
                False, "mlx-lm", f"Pages do not serve this model: {error.message}"
            )
            self.compute = Levels("mlx", self.attention.reason)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        raw: bool = False,
    ) -> Completion:
        """Answers a prompt and returns the whole answer. Arguments as for `stream`."""
        for delta in self.stream(
            prompt, max_tokens=max_tokens, sampling=sampling, stop=stop, raw=raw
        ):
            completion = delta.completion
        assert completion is not None
        return completion

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        raw: bool = False,
    ) -> Iterator[Delta]:
        """Answers a prompt piece by piece.

        Args:
            prompt: Text, which becomes a user message through the model's chat template; a list
                of messages (dicts of role and content); or token ids.
            max_tokens: Longest answer; None: until the model ends it or the context is full.
            sampling: How tokens are drawn.
            stop: Strings that end the answer; they are not part of it.
            raw: Take text as it is, without the chat template.

        Yields:
            A Delta for each token, and a last one that carries the Completion; before the first
            token, an empty one after each piece of a long prompt. Closing the iterator early
            stops the work and frees the pages.

        Raises:
            RequestError: the prompt is empty, does not suit the template, or leaves no room for
                an answer; or log-probabilities are wanted, which only batches report.
        """
        with self.gate:
            tokens = self.tokens(prompt, raw=raw)
            self.check_request(tokens, max_tokens, sampling)
            stop = stop_strings(stop)
            return Gated(self.gate, self._answer_alone(tokens, max_tokens, sampling, stop))

    def tokens(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The token ids of a prompt, as `stream` reads it.

        Raises:
            RequestError: the prompt is empty, or does not suit the template.
        """
        with self.gate:
            return prompt_tokens(self.tokenizer, prompt, raw=raw, vocabulary=self._vocabulary)

    def batch(
        self,
        *,
        max_seqs: int = 16,
        token_budget: int | None = None,
        prefix_cache: bool = True,
        swap_ram: int | None = None,
        swap_disk: int | None = None,
    ) -> BatchEngine:
        """Starts an engine that answers many requests at once, over this model's pages.

        Args:
            max_seqs: Most sequences with pages at a time, up to 4,096.
            token_budget: Most tokens in a step; None: what suits the device.
            prefix_cache: Whether equal beginnings of prompts share their pages.
            swap_ram: Bytes of memory for the pages of preempted sequences; None: a quarter of
                the pool.
            swap_disk: Bytes of files for them; None: as large as the pool.

        Raises:
            RequestError: pages do not serve this model, so it answers one request at a time.
        """
        with self.gate:
            if self._paged is None:
                raise RequestError(
                    f"{self.name} answers one request at a time. {self.attention.reason}",
                    "Take a model that pages serve for batches.",
                )
            pool = self._paged.pool.nbytes
            return BatchEngine(
                self._paged,
                self.tokenizer,
                self.context,
                gate=self.gate,
                vocabulary=self._vocabulary or len(self.tokenizer),
                fingerprint=str(self.path),
                max_seqs=max_seqs,
                token_budget=token_budget,
                prefix_cache=prefix_cache,
                swap_ram=pool // 4 if swap_ram is None else swap_ram,
                swap_disk=pool if swap_disk is None else swap_disk,
            )

    def beam_search(
        self,
        prompt: Prompt,
        *,
        beams: int,
        max_tokens: int | None = None,
        length_penalty: float = 1.0,
        raw: bool = False,
    ) -> list[BeamAnswer]:
        """The most likely answers to a prompt that a beam search finds, the best first.

        Args:
            prompt: As for `stream`.
            beams: How many answers are followed at a time, and returned.
            max_tokens: Longest answer; None: as many as the pool can hold for all beams.
            length_penalty: 0 favours short answers; larger values favour long ones.
            raw: Take text as it is, without the chat template.

        Raises:
            RequestError: the prompt or a number cannot be served, or pages do not serve this
                model.
        """
        with self.gate:
            if self._paged is None:
                raise RequestError(
                    f"Beam search needs pages. {self.attention.reason}", "Take another model."
                )
            check_beams(beams)
            tokens = self.tokens(prompt, raw=raw)
            self.check_request(tokens, max_tokens)
            room = self._paged.context - len(tokens)
            # A beam may hold a copied tail and a partial block besides its own tokens.
            most = room // beams - 2 * self._paged.pool.block_size
            most = min(most, self.context - len(tokens))
            if (max_tokens or 1) > most:
                raise RequestError(
                    f"The pool has room for {room:,} tokens besides the prompt: {max(most, 0):,} "
                    f"for each of {beams} beams.",
                    "Ask for fewer beams or tokens, or for a larger context.",
                )
            found = beam_search(
                self._paged,
                tokens,
                beams=beams,
                max_tokens=max_tokens or most,
                end_tokens=self.tokenizer.eos_token_ids,
                length_penalty=length_penalty,
            )
            return [self._read_beam(beam) for beam in found]

    def _read_beam(self, beam: Beam) -> BeamAnswer:
        text = TextStream(self.tokenizer.detokenizer)
        for token in beam.tokens[:-1] if beam.finished else beam.tokens:
            text.add(token)
        text.finish()
        reason: FinishReason = "stop" if beam.finished else "length"
        return BeamAnswer(text.text, beam.tokens, beam.score, reason)

    def chat(self, system: str | None = None) -> ChatSession:
        """Starts a conversation that keeps its pages between turns."""
        with self.gate:
            return ChatSession(self, system)

    def _answer_alone(
        self, tokens: list[int], max_tokens: int | None, sampling: Sampling, stop: Sequence[str]
    ) -> Generator[Delta, None, None]:
        slot = self.new_slot()
        try:
            yield from self._answer(slot, tokens, max_tokens, sampling, stop)
        finally:
            slot.close()

    @property
    def paged(self) -> PagedModel | None:
        """The model on its pages; None if pages do not serve it."""
        return self._paged

    @property
    def trained_context(self) -> int | None:
        """Tokens that the model was made for, if its config tells."""
        return self._trained

    @property
    def kv_dtype(self) -> str | None:
        """What pages hold, such as "float16"; None if pages do not serve the model."""
        return None if self._paged is None else str(self._paged.kv_dtype).rpartition(".")[2]

    # ---- what a chat session is built from -------------------------------------------------------

    def new_slot(self) -> Slot:
        """An empty sequence."""
        self.gate.check_open()
        return Slot(Paged(self._paged.sequence()) if self._paged else Dense(self.model))

    def check_request(
        self, prompt: list[int], max_tokens: int | None, sampling: Sampling = GREEDY
    ) -> None:
        """Raises RequestError if a prompt cannot be answered, alone and within the context."""
        if not isinstance(sampling, Sampling):
            raise RequestError(f"sampling is {sampling!r}; it must be a pamx.Sampling.")
        if sampling.logprobs is not None:
            raise RequestError(
                "An answer by itself comes without log-probabilities.", "Use Engine.batch."
            )
        if max_tokens is not None:
            whole("max_tokens", max_tokens, "at least 1", 1)
        known_ids(sampling.logit_bias, self._vocabulary or len(self.tokenizer), " of logit_bias")
        if not prompt:
            raise RequestError("The prompt is empty.", "Write something for the model to answer.")
        if len(prompt) >= self.context:
            raise RequestError(
                f"The prompt is {len(prompt):,} tokens long, and the context is "
                f"{self.context:,} tokens, the answer included.",
                "Shorten it, or ask for a larger context."
                if self._trained is None or self.context < self._trained
                else "Shorten it, or take a model that was made for longer ones.",
            )

    def answer(
        self,
        slot: Slot,
        prompt: list[int],
        max_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
    ) -> Iterator[Delta]:
        """Answers a prompt in a slot, computing only what the slot does not hold."""
        return Gated(self.gate, self._answer(slot, prompt, max_tokens, sampling, stop))

    def _answer(
        self,
        slot: Slot,
        prompt: list[int],
        max_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
    ) -> Generator[Delta, None, None]:
        begin = time.perf_counter()
        cached = slot.reuse(prompt)
        limit = self.context - len(prompt)
        if max_tokens is not None:
            limit = min(limit, max_tokens)
        text = TextStream(self.tokenizer.detokenizer, stop)
        ends = self.tokenizer.eos_token_ids
        tokens: list[int] = []
        reason: FinishReason = "length"
        first = last = begin
        for _ in prefill(self.model, slot, prompt, prefill_chunk(self.compute.mode)):
            yield Delta("", None)
        new_tokens = decode(
            self.model,
            slot,
            prompt[-1],
            history_sampler(sampling, prompt, tokens),
            limit,
            lookahead=not sampling.needs_history
            and (self._paged is None or self._paged.backend.in_place),
        )
        for token in new_tokens:
            last = time.perf_counter()
            first = last if not tokens else first
            tokens.append(token)
            if token in ends:
                reason = "stop"
                break
            yield Delta(text.add(token), token)
            if text.stopped:
                reason = "stop"
                break
        rest = text.finish()
        yield Delta(
            rest,
            None,
            Completion(
                text=text.text,
                tokens=tokens,
                finish_reason=reason,
                prompt_tokens=len(prompt),
                cached_tokens=cached,
                ttft=first - begin,
                decode_seconds=last - first,
            ),
        )

    # ---- life ------------------------------------------------------------------------------------

    def close(self, *, restore: bool = True) -> None:
        """Restores the mlx-lm model, and waits for what is being written to disk. Idempotent.

        Args:
            restore: False: nobody will use the model again, so its packed weights need not be
                unpacked.
        """
        with self.gate.alone:
            self.gate.closed = True
            if self._paged is not None:
                self._paged.close(restore=restore)
            if self._weights is not None:
                self._weights.close()

    def __enter__(self) -> Self:
        with self.gate:
            return self


def load(
    name: str | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    context: int | None = None,
    sequences: int = 1,
    at_most: int = 1,
    block_size: int = 16,
    compute: ComputeMode | None = None,
    kv_dtype: KvDtype = "auto",
    progress: bool = True,
) -> Engine:
    """Loads a model and puts its KV cache on pages.

    Args:
        name: The built-in default (None), a model folder, a .gguf file, or a Hugging Face
            repository id.
        revision: Branch, tag or commit of a repository.
        trust_remote_code: Run code that the checkpoint brings along.
        context: Tokens that a prompt and its answer may have together; None: as many as the
            model was made for, or as fit half of the free memory.
        sequences: How many of such length the pages hold at a time; a batch shares them.
        at_most: More than that, up to so many, as far as they fit half of the free memory.
        block_size: Tokens a page: 8, 16 or 32.
        compute: "fast", "exact" or "mlx", as for `PagedModel`; None: "fast". Where the native
            library does not serve MLX, "mlx" does.
        kv_dtype: What pages hold: "float32", "float16" or "bfloat16", or such an mx.Dtype; "auto"
            or None: float16 for a float32 model in "fast", else the dtype of the model.
        progress: Show download progress on a terminal.

    Raises:
        ModelError: the model cannot be found, fetched or built.
        RequestError: the context does not fit; `compute` or `kv_dtype` is unknown; or
            PAMX_FORCE_PARTITION is wrong, or nothing that serves here has partitions.
    """
    if name is not None and not isinstance(name, str | Path):
        raise RequestError(
            f"A model's name is wanted, not {name!r}.",
            "Give a name, the path of a folder or of a .gguf file, or nothing for the default.",
        )
    partition_from_environment(block_size)  # before anything is fetched
    compute, kv_dtype = checked_compute(compute), checked_kv_dtype(kv_dtype)
    loaded = models.load(
        name,
        revision=revision,
        trust_remote_code=trust_remote_code,
        progress=progress,
        lazy=compute != "mlx",
    )
    return Engine(
        loaded,
        context=context,
        sequences=sequences,
        at_most=at_most,
        block_size=block_size,
        compute=compute,
        kv_dtype=kv_dtype,
        disposable=True,  # if this fails, nobody has the model
    )
