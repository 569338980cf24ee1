"""What each figure means, and the name under which people meet it.

Records carry `DEFINITIONS` by the keys of their own fields. `TITLES` has the names that tables,
plots and printed definitions share, where these are not the keys themselves.
"""

from __future__ import annotations

from pamx.bench.metrics import BY_NAME

DEFINITIONS: dict[str, str] = {
    "workload": "Context x batch: tokens of one sequence when its answer is complete (prompt and "
    "answer), and sequences that are submitted at the same moment.",
    "arm": "A way to run a workload. The first is what others are compared with; `control` is the "
    "first measured once more, as if it were another.",
    "ttft": "Time to first token, of a request: its first non-empty output (one that brings a "
    "token) minus its submission.",
    "tpot": "Time per output token, of a request: (E2E - TTFT) / (output tokens - 1); requests "
    "with one output token have none.",
    "e2e": "End-to-end latency, of a request: its last token minus its submission.",
    "itl": "Between successive received tokens of a request, pooled over requests. Tokens received "
    "together have gaps of 0.",
    "prompt_throughput": "Prompt tokens of all requests / (last first token - submission).",
    "output_throughput": "Output tokens of all requests / (last token - submission).",
    "user_speed": "Tokens per second that one user sees after the first: 1 / TPOT.",
    "goodput": "Requests that meet all given limits, per second from the first submission to the "
    "last token.",
    "peak_memory": "Most resident memory of the arm's process while it warmed up on this workload, "
    "weights and the whole KV pool included, after it gave back what earlier arms left; where the "
    "system does not tell, the most that MLX held.",
    "pages": "Blocks of the KV pool that were in use at the same time, at most.",
    "partition": "Tokens of context that share one softmax before partial results are merged; as "
    "reported by the attention call itself, after it ran.",
    "kernel": "What computed attention; as reported by the attention call itself.",
    "outputs": "Whether all tokens are those of the first arm, or else the place of the first "
    "token that differs.",
    "requests": "How many arrived.",
    "offered": "Requests that arrived, per second.",
    "preempted": "How often a request had to give its pages back, to go on later.",
    "call": "Seconds of one attention call, of all its sequences, from queueing to result; the "
    "mean over the calls of a sample.",
    "bandwidth": "Of an attention call: bytes of keys and values that it reads, per second. Of the "
    "arm `read`: bytes read; of the arm `copy`: bytes read and bytes written. All three take as "
    "many bytes.",
    "share_of_read": "Bandwidth of the call / bandwidth of the arm `read`, which adds up as many "
    "bytes with as many threads: both count bytes that are read, and nothing else.",
    "kv_bytes": "Keys and values of all sequences, which a call reads once.",
    "typical": "The value is exp of the 20 % trimmed mean of the logarithms of samples (the mean, "
    "of fewer than 12), ± half the width of its 95 % symmetric studentised bootstrap interval; a "
    "sample's own figure is the mean over its requests.",
    "percentiles": "By linear interpolation between order statistics; the standard deviation is "
    "the sample's (n - 1).",
    "ratio": "Speed of an arm relative to the first arm: exp of the 20 % trimmed mean of the "
    "differences of logarithms of paired samples, with a 99 % symmetric studentised bootstrap "
    'interval over pairs; above 1 is faster. "No difference": none was detected, the interval '
    "includes 1.",
    "inside": "Scheduling, sampling (greedy), detokenising in pamx and the return of tokens to the "
    "caller are inside; loading, tokenising the prompt and warm-up are not.",
}

TITLES: dict[str, str] = {name: metric.title for name, metric in BY_NAME.items()} | {
    "itl": "gap",
    "peak_memory": "memory",
    "offered": "offered/s",
    "share_of_read": "of plain read",
    "kv_bytes": "KV bytes",
    "typical": "value ±",
    "percentiles": "p50, p99",
    "ratio": "relative speed",
    "inside": "times",
}


def title(key: str) -> str:
    """The name of a definition, or of the columns that it defines."""
    return TITLES.get(key, key)
