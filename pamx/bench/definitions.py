"""What each figure means, and the name under which people meet it.

Records carry `DEFINITIONS` by the keys of their own fields. `TITLES` has the names that tables,
plots and printed definitions share, where these are not the keys themselves.
"""

from __future__ import annotations

from pamx.bench.metrics import BY_NAME

DEFINITIONS: dict[str, str] = {
    "workload": "Tokens of a sequence, prompt and answer, x sequences submitted together.",
    "arm": "A way to run workloads.",
    "control": "The first arm once more, as if it were another.",
    "samples": "How often the arm ran: twice a round, which is all arms in random order and back.",
    "ttft": "Time to first token, of a request: first non-empty output - submission.",
    "tpot": "Time per output token, of a request: (E2E - TTFT) / (output tokens - 1), if above 1.",
    "e2e": "End-to-end latency, of a request: last token - submission.",
    "itl": "Time between tokens received one after the other, of all requests; 0 if together.",
    "prompt_throughput": "Prompt tokens of all requests / (last of first tokens - submission).",
    "output_throughput": "Output tokens of all requests / (last token - submission).",
    "user_speed": "What one user sees after the first token: 1 / TPOT.",
    "goodput": "Requests within all --slo limits / (last token - first submission).",
    "peak_memory": "Most resident memory of the arm's process in its warm-up, with weights and KV "
    "pool; else MLX's peak.",
    "pages": "Most blocks of the KV pool in use at a time.",
    "partition": "Tokens of context in one softmax before merging; as the attention call reported.",
    "kernel": "What computed attention; as the attention call reported.",
    "outputs": "Whether tokens are those of the first arm, or where the first other one is: at 0, "
    "the arm gives other answers.",
    "requests": "How many arrived.",
    "offered": "Requests / (last arrival - first).",
    "preempted": "How often a request gave its pages back, to go on later.",
    "call": "From queueing an attention call of all sequences to its result; a sample's mean.",
    "bandwidth": "Bytes of keys and values / call. `read`: bytes read; `copy`: read and written.",
    "share_of_read": "Bandwidth / that of `read`, a sum over as many bytes on as many threads. In "
    "cache: less than the largest cache holds, which says nothing of memory. Partly: less than "
    "twice as much, or than 67.1 MB.",
    "calls": "That make up a sample, median: as many as take 50 ms, at most 2,000.",
    "kv_bytes": "Keys and values of all sequences, which a call reads once.",
    "typical": "Of a sample the mean of its requests; of samples exp of the 20 % trimmed mean of "
    "logarithms (of 6 to 11 the mean; of fewer the median, without an interval).",
    "interval": "± or (low-high), 95 %: symmetric studentised bootstrap, at most 1.5 x Yuen's.",
    "percentiles": "Linear interpolation between order statistics; p90 from 10 values, p99 from "
    "100.",
    "ratio": "Speed relative to the first arm: exp of the 20 % trimmed mean of differences of "
    "logarithms in pairs of samples, (low-high): its 99 % interval, as of values.",
    "verdict": "faster, slower: the interval excludes 1. no difference detected: it includes 1 and "
    "stays within the margin above, 2 x --precision but at most 10 %. cannot tell: it includes 1 "
    "and reaches further. no verdict: fewer than 6 samples.",
    "inside": "Inside: scheduling, greedy sampling, detokenising, returning tokens. Outside: "
    "loading, tokenising, warm-up.",
}

TITLES: dict[str, str] = {name: metric.title for name, metric in BY_NAME.items()} | {
    "itl": "gap",
    "peak_memory": "memory",
    "offered": "offered/s",
    "share_of_read": "of plain read",
    "kv_bytes": "KV bytes",
    "typical": "value",
    "percentiles": "p50, p90, p99",
    "ratio": "relative speed",
    "inside": "times",
}


def title(key: str) -> str:
    """The name of a definition, or of the columns that it defines."""
    return TITLES.get(key, key)
