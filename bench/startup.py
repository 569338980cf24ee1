"""How long pamx takes to begin: help, the input line of a chat, the first token.

    python bench/startup.py [--runs 5] [--model NAME]

Each figure is the median of several processes, from their start: until `pamx --help` has ended,
until `pamx chat` in a pseudo-terminal shows its input line, and until `pamx generate hi
--max-tokens 1` has written the first byte of its answer. Warm: everything that pamx keeps between
starts is there. Cold: the model is there, but neither its packed weights nor the record of its
admission check; the files themselves are in the system's page cache in both. Beside the time on
the clock stands that on the CPU, of the whole process, which a busy machine changes less. Writes
bench/results/startup.json.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
from record import write_result

from pamx.models import fetch
from pamx.models.cache_dir import cache_root
from pamx.native.threads import usable_cpus

PAMX = [sys.executable, "-m", "pamx.cli"]
TARGETS = {"help": 0.3, "chat_line": 0.5, "first_token_warm": 3.0}


def cpu_seconds() -> float:
    """Of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_help() -> float:
    begin = time.perf_counter()
    subprocess.run([*PAMX, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def chat_line(model: list[str]) -> float:
    begin = time.perf_counter()
    child = pexpect.spawn(
        PAMX[0], [*PAMX[1:], "chat", *model], env=os.environ | {"TERM": "xterm"}, timeout=60
    )
    child.expect(">>>")
    elapsed = time.perf_counter() - begin
    child.send("/exit\r")
    child.expect(pexpect.EOF)
    child.close()
    return elapsed


def first_token(model: list[str], home: Path) -> float:
    command = [*PAMX, "generate", "hi", "--max-tokens", "1", *model]
    begin = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PAMX_HOME": str(home)},
    ) as process:
        assert process.stdout
        first = process.stdout.read(1)
        elapsed = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode or not first:
        sys.exit(f"{' '.join(command)} failed: run it to see why.")
    return elapsed


def cold_first_token(model: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(cache_root() / "models")
        return first_token(model, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    fetch(options.model)
    model = ["--model", options.model] if options.model else []
    measures: dict[str, Callable[[], float]] = {
        "help": run_help,
        "chat_line": lambda: chat_line(model),
        "first_token_cold": lambda: cold_first_token(model),
        "first_token_warm": lambda: first_token(model, cache_root()),
    }
    first_token(model, cache_root())  # keeps what the warm ones find
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    cpu: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(options.runs):  # in turn, so that a busy moment does not hit one alone
        for name, measure in measures.items():
            before = cpu_seconds()
            seconds[name].append(measure())
            cpu[name].append(cpu_seconds() - before)
    del cpu["chat_line"]  # its process loads on, for as long as it takes to leave it
    medians = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    on_cpu = {name: round(statistics.median(times), 3) for name, times in cpu.items()}
    for name, median in medians.items():
        target = f", target {TARGETS[name]} s" if name in TARGETS else ""
        spent = f", {on_cpu[name]:.3f} s on the CPU" if name in on_cpu else ""
        print(f"{name:18}{median:7.3f} s{spent}{target}")
    write_result(
        "startup",
        "seconds from the start of the command, medians",
        " ".join(["python", "bench/startup.py", *sys.argv[1:]]),
        {
            "model": options.model or "the built-in model",
            "runs": options.runs,
            "cpus": usable_cpus(),
            "target_seconds": TARGETS,
            "median_seconds": medians,
            "median_cpu_seconds": on_cpu,
            "all_seconds": {name: [round(t, 3) for t in ts] for name, ts in seconds.items()},
        },
    )


if __name__ == "__main__":
    main()
