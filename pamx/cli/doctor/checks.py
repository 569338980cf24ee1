"""All checks in the order in which they are reported, and running them beside each other.

Those that wait (for the network, for another program) and those that compute overlap: the former
run on threads, the latter in a process of their own. A check that does not end is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from functools import partial

from pamx.cli.doctor import compute, environment, machine, power, software, storage
from pamx.cli.doctor.isolated import compute_rows
from pamx.cli.doctor.row import Check, Row, guarded

_BEFORE: dict[str, Check] = {
    "system": machine.check_system,
    "cpu": machine.check_cpu,
    "instruction-set": machine.check_instruction_set,
    "cpu-caches": machine.check_caches,
    "memory": machine.check_memory,
    "memory-limit": machine.check_memory_limit,
    "power": power.check_power,
    "thermal": power.check_thermal,
    "python": software.check_python,
    "pamx": software.check_pamx,
    "mlx-lm": software.check_mlx_lm,
}
_AFTER: dict[str, Check] = {
    "environment": environment.check_environment,
    "cache": storage.check_cache,
    "hub-cache": storage.check_hub_cache,
    "models": storage.check_models,
    "default-model": storage.check_default_model,
}
IDS = (*_BEFORE, *compute.CHECKS, *_AFTER, "hub")

_PATIENCE = 4.0  # seconds for all that is no computation


def run_checks(wanted: Collection[str] = (), *, offline: bool = False) -> list[Row]:
    """The rows of these checks, in the order of `IDS`.

    Args:
        wanted: Ids; empty: all.
        offline: Do not use the network.
    """
    chosen = [name for name in IDS if not wanted or name in wanted]
    checks: dict[str, Check] = {
        **_BEFORE,
        **_AFTER,
        "hub": partial(storage.check_hub, offline=offline),
    }
    rows: dict[str, Row] = {}
    threads = {name: _started(name, checks[name], rows) for name in chosen if name in checks}
    for row in compute_rows([name for name in chosen if name in compute.CHECKS]):
        rows[row.id] = row
    deadline = time.monotonic() + _PATIENCE
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if name not in rows:
            rows[name] = Row(name, "warn", "It did not end in time, and was given up.")
    return [rows[name] for name in chosen]


def _started(name: str, check: Check, rows: dict[str, Row]) -> threading.Thread:
    def run() -> None:
        row = guarded(name, check)
        rows.setdefault(name, row)

    thread = threading.Thread(target=run, name=f"pamx-doctor-{name}", daemon=True)
    thread.start()
    return thread
