"""Runs the Metal suite on this Mac's GPU and writes build/metal-report.md, for an issue."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from oracle import Case

ROOT = Path(__file__).parents[3]
OUT = ROOT / "build"
SUITES = {
    "host": ["tests/metal/host"],
    "kernels": ["tests/metal", "--ignore=tests/metal/host"],
    "operations of MLX": [
        "tests/native/test_paged_attention.py",
        "tests/native/test_copy_blocks.py",
        "tests/attention",
    ],
}
# Decoding: query heads, KV heads, head size, sequences, tokens of each.
MEASURED = [(32, 8, 128, 1, 8192), (32, 8, 128, 8, 4096), (9, 3, 64, 8, 4096)]


@dataclass
class Suite:
    """What pytest counted, and the failures: test, message."""

    passed: int
    skipped: int
    failures: list[tuple[str, str]]


def main() -> int:
    OUT.mkdir(exist_ok=True)
    doctor = subprocess.run(
        [sys.executable, "-m", "pamx.cli", "doctor", "--json"], capture_output=True, text=True
    )
    suites = {name: run(name, paths) for name, paths in SUITES.items()}
    path = OUT / "metal-report.md"
    path.write_text(text(doctor.stdout or doctor.stderr, suites, measured()))
    failed = sum(len(s.failures) for s in suites.values())
    print(f"{path}: {failed} failures. Please attach it to an issue.")
    return 1 if failed else 0


def run(name: str, paths: list[str]) -> Suite:
    report = OUT / "metal-report.xml"
    report.unlink(missing_ok=True)
    print(f"Running {name} ...", file=sys.stderr)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *paths]
    ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr)
    if not report.exists():  # the process died
        return Suite(0, 0, [(name, f"pytest ended with status {ended.returncode}")])
    return counted(report)


def counted(report: Path) -> Suite:
    """What a report of pytest's (JUnit XML) says."""
    suite = Suite(0, 0, [])
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next((c for c in case if c.tag in ("failure", "error")), None)
        if wrong is not None:
            test = f"{case.get('classname')}::{case.get('name')}"
            suite.failures.append((test, (wrong.text or wrong.get("message") or "").strip()))
        elif case.find("skipped") is not None:
            suite.skipped += 1
        else:
            suite.passed += 1
    return suite


def measured() -> list[str]:
    """Rows of a table: the geometry, the plan's kernel, microseconds and GB of pages a second."""
    from metal.host.library import MetalError, load, names

    rows = []
    for heads, kv_heads, dim, sequences, tokens in MEASURED:
        case = Case([tokens] * sequences, [1] * sequences, heads, kv_heads, dim, dim, 16)
        step = case.build()
        try:
            load(names()[0]).attention(step, "float16")  # compiles
            answers = [load(names()[0]).attention(step, "float16") for _ in range(5)]
        except MetalError as error:
            rows.append(f"| {case.heads}, {kv_heads}, {dim} | {error} | | |")
            continue
        seconds = float(np.median([a.seconds for a in answers]))
        read = 2 * 2 * sequences * tokens * kv_heads * dim
        plan = answers[0].text.splitlines()[0]
        rows.append(
            f"| ({heads}, {kv_heads}, {dim}), {sequences} x {tokens} | {plan} "
            f"| {seconds * 1e6:.0f} | {read / seconds / 1e9:.0f} |"
        )
    return rows


def text(doctor: str, suites: dict[str, Suite], rows: list[str]) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    lines = ["# pamx: Metal on this Mac", "", f"Sources: {commit or 'unknown'}", ""]
    lines += ["| suite | passed | skipped | failed |", "|---|---|---|---|"]
    for name, suite in suites.items():
        lines.append(f"| {name} | {suite.passed} | {suite.skipped} | {len(suite.failures)} |")
    lines += ["", "| decoding, float16 | plan | microseconds | GB/s |", "|---|---|---|---|", *rows]
    for name, suite in suites.items():
        for test, message in suite.failures:
            lines += ["", f"## {name}: {test}", "", "```", message[-4000:], "```"]
    lines += ["", "## pamx doctor", "", "```json", _pretty(doctor), "```", ""]
    return "\n".join(lines)


def _pretty(doctor: str) -> str:
    try:
        return json.dumps(json.loads(doctor), indent=1)
    except ValueError:
        return doctor


if __name__ == "__main__":
    sys.exit(main())
