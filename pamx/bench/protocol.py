"""How a measured program talks: JSON, an object a line, requests on stdin, answers on stdout.

pamx starts the program once and ends it by closing its standard input. All times are seconds.

1. pamx writes `{"type": "hello", "protocol": 1, "model": PATH, "name": NAME, "seed": N}`; the
   program loads what it needs and answers `{"type": "ready", "name": ..., "version": ...}`.
   Other fields of the answer are kept in the record.
2. pamx writes `{"type": "run", "id": N, "requests": [{"prompt": [token ids], "text": ...,
   "max_tokens": N}, ...], "settings": {...}}`. All requests are submitted at this moment. The
   program generates greedily, does not stop before max_tokens, reuses nothing of earlier runs, and
   answers with
   `{"type": "token", "request": INDEX, "token": ID, "time": SECONDS}` for each token, where `time`
   counts from its receipt of the run, by its own clock. Without `time` the moment counts at which
   pamx reads the line. A program with another tokenizer leaves `token` out, or gives `text`.
   Lines may be held back until the run is over, which disturbs the measurement least.
   `{"type": "done", "id": N}` ends the run. It may carry `peak_memory_bytes`, `pages` and
   `dispatch`, an object that tells what really ran. With `"memory": true`, in a run whose times are
   not looked at, give back first what earlier runs left, so that the peak is this run's own.
3. `{"type": "error", "message": ..., "hint": ...}` may come in place of any answer.

4. A request may have `at`: seconds after the run began at which it is submitted, 0 without.

Whatever else a program prints on stdout, or before it is asked, is an error; the end of stderr is
shown if it fails. Times are finite, above 0, ascending within a request and not before its `at`;
tokens and counts are whole numbers, 0 or more, of 64 bits. A program that takes ten minutes for a
line while an answer is due, or writes one of more than 16 MiB, has failed. It runs in a process
group of its own, which is ended with it.
"""

from __future__ import annotations

PROTOCOL = 1
SILENCE = 600.0  # seconds
LONGEST_LINE = 16 << 20  # bytes
