"""The peer that the CPU benchmarks compare with: llama.cpp's own tools, and how to get them.

llama.cpp is no dependency of pamx. Its tools are found on PATH, or in the folder that --llama-cpp
names. Built natively from the sources that the Python package llama-cpp-python brings along:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xf llama_cpp_python-0.3.36.tar.gz
    cd llama_cpp_python-0.3.36/vendor/llama.cpp
    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
    cmake --build build --target llama-bench llama-batched-bench llama-perplexity llama-quantize
    export PATH="$PWD/build/bin:$PATH"
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil

from pamx.models.default import PROJECT, WHEEL_VERSION

BUILD = Path(__file__).parents[1] / "build" / "bench"


class LlamaCpp:
    """llama.cpp's tools on one GGUF file.

    Args:
        folder: Where they are; None: on PATH.
        gguf: The model.
        threads: Threads that each tool uses.
    """

    def __init__(self, folder: Path | None, gguf: Path, threads: int) -> None:
        self._folder = folder
        self._gguf = gguf
        self._threads = threads
        self.build = ""

    def prefill(self, tokens: int) -> float:
        """Tokens a second of reading a prompt."""
        return self._bench("-p", str(tokens), "-n", "0")

    def decode(self, depth: int, tokens: int) -> float:
        """Tokens a second of one sequence behind `depth` tokens."""
        return self._bench("-p", "0", "-n", str(tokens), "-d", str(depth))

    def decode_together(self, sequences: int, prompt: int, tokens: int) -> float:
        """Tokens a second of many sequences, all together, each behind its own prompt."""
        out = self.run(
            "llama-batched-bench",
            *("-t", str(self._threads), "-c", str(sequences * (prompt + tokens))),
            *("-npp", str(prompt), "-ntg", str(tokens), "-npl", str(sequences)),
            *("--output-format", "jsonl"),
        )
        (line,) = (line for line in out.splitlines() if line.startswith("{"))
        return float(json.loads(line)["speed_tg"])

    def _bench(self, *args: str) -> float:
        out = self.run("llama-bench", "-t", str(self._threads), *args, "-r", "1", "-o", "json")
        result: dict[str, Any] = json.loads(out)[0]
        self.build = str(result["build_commit"])
        return float(result["avg_ts"])

    def run(self, tool: str, *args: str) -> str:
        """What a tool prints, with the model as its first argument."""
        return run_tool(self._folder, tool, "-m", str(self._gguf), *args)


def run_tool(folder: Path | None, tool: str, *args: str) -> str:
    """Runs one of llama.cpp's tools and returns its standard output; ends this program without."""
    found = shutil.which(tool, path=None if folder is None else str(folder))
    if found is None:
        sys.exit(f"{tool} was not found; the docstring of bench/peer.py says how to build it.")
    done = subprocess.run([found, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tool} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def default_gguf() -> Path:
    """The GGUF file of pamx's default model, downloaded once into build/bench."""
    BUILD.mkdir(parents=True, exist_ok=True)
    if not any(BUILD.glob(f"{PROJECT.replace('-', '_')}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "-d", str(BUILD), f"{PROJECT}=={WHEEL_VERSION}"], check=True)
    (wheel,) = BUILD.glob(f"{PROJECT.replace('-', '_')}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        target = BUILD / Path(member).name
        if not target.exists():
            archive.extract(member, BUILD)
            (BUILD / member).replace(target)
    return target


def wait_for_quiet(patience: float, busy: float = 10.0) -> float:
    """Waits, at most `patience` seconds, until other programs leave the CPUs alone.

    Returns:
        Per cent of the CPUs that others used in the last half second before it gave way.
    """
    end = time.monotonic() + patience
    while (used := psutil.cpu_percent(0.5)) > busy and time.monotonic() < end:
        time.sleep(1)
    return float(used)
