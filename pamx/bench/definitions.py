"""What each figure means: printed in reports and carried in records."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "context": "Tokens of one sequence when its answer is complete: prompt and answer.",
    "batch": "Sequences that are submitted at the same moment.",
    "ttft": "Time to first token, of a request: its first non-empty output (one that brings a "
    "token) minus its submission.",
    "tpot": "Time per output token, of a request: (E2E - TTFT) / (output tokens - 1); requests "
    "with one output token have none.",
    "itl": "Gaps between tokens: differences between successive received tokens of a request, "
    "pooled over requests. Tokens received together have gaps of 0.",
    "e2e": "End-to-end latency, of a request: its last token minus its submission.",
    "prompt_throughput": "Prompt tokens of all requests / (last first token - submission).",
    "output_throughput": "Output tokens of all requests / (last token - submission).",
    "user_speed": "Tokens per second that one user sees after the first: 1 / TPOT.",
    "goodput": "Requests that meet all given limits, per second from the first submission to the "
    "last token.",
    "peak_memory": "Most resident memory of the arm's process during the sample, weights "
    "included, where the system tells; else the most that MLX held.",
    "pages": "Blocks of the KV pool that were in use at the same time, at most.",
    "partition": "Tokens of context that share one softmax before partial results are merged; as "
    "reported by the attention call itself, after it ran.",
    "percentiles": "By linear interpolation between order statistics; the standard deviation is "
    "the sample's (n - 1).",
    "typical": "exp of the 20 % trimmed mean of the logarithms of samples (the mean, of fewer than "
    "12), with a 95 % symmetric studentised bootstrap interval; a sample's own figure is the mean "
    "over its requests.",
    "call": "Seconds of one attention call, of all its sequences, from queueing to result; the "
    "mean over the calls of a sample.",
    "bandwidth": "Of an attention call: bytes of keys and values that its pages hold, per second. "
    "Of copy: bytes read and written; of read: bytes read, of as many bytes as the call reads.",
    "ratio": "Speed of an arm relative to the first arm: exp of the 20 % trimmed mean of the "
    "differences of logarithms of paired samples, with a 99 % symmetric studentised bootstrap "
    "interval over pairs; above 1 is faster.",
    "inside": "Inside the times: scheduling, sampling (greedy), detokenising in pamx, the return "
    "of tokens to the caller. Outside: loading, tokenising the prompt, warm-up.",
}
