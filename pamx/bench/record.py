"""The record of a run: made, saved so that nothing is lost, loaded and checked."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pamx.bench.check import fault, finite
from pamx.bench.definitions import DEFINITIONS
from pamx.bench.plain import visible
from pamx.errors import PamxError, RequestError

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).with_name("schema.json")

Record = dict[str, Any]


def new_record(kind: str, provenance: dict[str, Any], plan: dict[str, Any]) -> Record:
    """An empty record.

    Args:
        kind: "sweep", "kernel" or "replay".
        provenance: Of `pamx.bench.provenance`.
        plan: All that was asked for, so that an interrupted run can be continued.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "complete": False,
        "plan": plan,
        "definitions": DEFINITIONS,
        "provenance": provenance,
        "cells": [],
        "comparisons": [],
        "warnings": [],
        "conditions": [],
    }


def save(record: Record, path: Path) -> None:
    """Replaces the file at once: it is whole before and after.

    Raises:
        PamxError: it cannot be written.
    """
    write_whole(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file beside its place, syncs it and moves it there.

    Raises:
        PamxError: it cannot be written; what was there before stays.
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = None
    try:
        # Devices and pipes cannot be replaced by a file.
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        scratch = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(path)
    except OSError as error:
        if scratch is not None:
            with suppress(OSError):
                scratch.unlink()
        reason = error.strerror or str(error)
        raise PamxError(
            f"{path} cannot be written: {reason}.", "Free some space, or name another file."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class DamagedError(PamxError):
    """A file that was a record once, or a part of one."""

    def __init__(self, path: Path, where: str) -> None:
        super().__init__(
            f"{path} is damaged: {visible(where)}.", "Use another copy of it, or measure again."
        )


def load(path: Path) -> Record:
    """A record from a file, whole.

    Raises:
        RequestError: it is no record, or of a version that this pamx does not know.
        DamagedError: it is JSON no more, or something in it is missing or cannot be.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    try:
        value = json.loads(text, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] == b"{":
            raise DamagedError(path, f"it is not JSON ({error})") from error
        value = None
    if not isinstance(value, dict) or "schema_version" not in value:
        raise RequestError(
            f"{path} is no record of a benchmark.",
            "Name a file that `pamx bench -o FILE.json` wrote.",
        )
    if value["schema_version"] != SCHEMA_VERSION:
        raise RequestError(
            f"{path} has schema version {visible(str(value['schema_version']))}; this pamx reads "
            f"{SCHEMA_VERSION}.",
            "Read it with the pamx that wrote it, or measure again.",
        )
    schema = json.loads(SCHEMA.read_text())
    where = fault(value, schema, schema) or _disagreement(value)
    if where is not None:
        raise DamagedError(path, where)
    return value


def _disagreement(record: Record) -> str | None:
    """What no schema of single fields says: ends of intervals come together, and the like."""
    for number, arm in enumerate(record["plan"].get("arms", [])):
        for name in ("block_size", "kv_dtype"):
            if arm["kind"] in ("pamx", "machine") and name not in arm["settings"]:
                return f"plan.arms[{number}].settings.{name} is missing"
    for number, cell in enumerate(record["cells"]):
        place = f"cells[{number}]"
        if record["kind"] == "replay" and "replay" not in cell:
            return f"{place}.replay is missing"
        for name, figure in cell["figures"].items():
            if (why := _no_interval(figure["low"], figure["typical"], figure["high"])) is not None:
                return f"{place}.figures.{name} {why}"
        outputs = cell["outputs"] or {}
        if outputs.get("same") is False:
            for name in ("requests_that_differ", "request", "place", "base_token", "arm_token"):
                if name not in outputs:
                    return f"{place}.outputs.{name} is missing"
    for number, found in enumerate(record["comparisons"]):
        if (why := _no_interval(found["low"], found["ratio"], found["high"])) is not None:
            return f"comparisons[{number}] {why}"
    return None


def _no_interval(low: float | None, value: float | None, high: float | None) -> str | None:
    if (low is None) != (high is None):
        return "has one end of an interval"
    if low is None or high is None:
        return None
    if value is None:
        return "has an interval of nothing"
    return None if low <= value <= high else "lies outside its interval"
