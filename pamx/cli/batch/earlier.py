"""What a results file already holds, so that no finished row is computed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pamx.cli.batch.row import Row, RowEvent
from pamx.errors import RequestError

_START = b'{"custom_id": '  # of every result row


@dataclass(frozen=True)
class Earlier:
    """A result of an earlier run: which request it answers, and whether that failed."""

    fingerprint: str
    failed: bool


def read_results(stream: BinaryIO, name: str) -> tuple[dict[str, Earlier], int]:
    """Results by custom_id, and how many bytes of whole rows there are.

    What a killed process or a crashed machine leaves after the last whole row does not count.

    Raises:
        RequestError: the file holds something else than results.
    """
    results: dict[str, Earlier] = {}
    size = 0
    for number, line in enumerate(stream, start=1):
        found = _result(line)
        if found is not None:
            results[found[0]] = found[1]
            size += len(line)
        elif _is_cut_off(line) and not stream.readline():
            break
        else:
            raise RequestError(
                f"{name}:{number}: this is not a result of pamx generate --batch.",
                "Name the results file of an earlier run, or one that does not exist yet.",
            )
    return results, size


def unfinished(
    rows: Iterator[RowEvent],
    earlier: dict[str, Earlier],
    source: str,
    results: str,
    failed: list[int],
) -> Iterator[RowEvent]:
    """`rows` without those that have a result; these are taken out of `earlier`.

    Args:
        rows: All rows.
        earlier: Results by custom_id.
        source: Name of the batch file.
        results: Name of the results file.
        failed: Gets the lines of rows whose result is an error.

    Raises:
        RequestError: a result answers another request than the row with its custom_id.
    """
    for row in rows:
        done = earlier.pop(row.custom_id, None) if isinstance(row, Row) else None
        if done is None or not isinstance(row, Row):
            yield row
        elif done.fingerprint != row.fingerprint:
            raise RequestError(
                f"{source}:{row.line}: {results} has a result for {row.custom_id!r}, but of "
                "another prompt, options or model.",
                "Resume with the same batch file, options and model, or write to another file.",
            )
        elif done.failed:
            failed.append(row.line)


def _result(line: bytes) -> tuple[str, Earlier] | None:
    if not line.endswith(b"\n") or not line.startswith(_START):
        return None
    try:
        value = json.loads(line)
        custom_id, fingerprint = value["custom_id"], value["fingerprint"]
        return str(custom_id), Earlier(str(fingerprint), value["error"] is not None)
    except (ValueError, KeyError, RecursionError):
        return None


def _is_cut_off(line: bytes) -> bool:
    """Whether this may be the start of a result, or blocks that a crash left empty."""
    start = line.rstrip(b"\0\n")
    return start.startswith(_START) or _START.startswith(start)
