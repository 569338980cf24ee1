"""Importing mlx-lm through pamx changes nothing but what it costs."""

from __future__ import annotations

import subprocess
import sys

NAMES = """
import hashlib, sys, transformers
from transformers.models import auto

def names(module):
    return sorted(n for n in dir(module) if not n.startswith("_"))

listed = [names(transformers), names(transformers.models), names(auto)]
assert "AutoTokenizer" in listed[0] and "llama" in listed[1]
assert transformers.LlamaConfig().model_type == "llama"
print(len(listed[0]), len(listed[1]), hashlib.sha256(repr(listed).encode()).hexdigest())
"""

READS = """
import sys
reads = {}

def count(event, args):
    if event == "open" and "transformers/models/llama/modeling" in str(args[0]):
        reads[args[0]] = reads.get(args[0], 0) + 1

sys.addaudithook(count)
import pamx.quiet_mlx_lm
print(list(reads.values()))
"""


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_transformers_has_the_same_names() -> None:
    assert python("import pamx.quiet_mlx_lm\n" + NAMES) == python("import mlx_lm.utils\n" + NAMES)


def test_its_sources_are_read_once() -> None:
    assert python(READS) == "[1]\n"


def test_the_limit_of_open_files_stays() -> None:
    code = "import resource as r; b = r.getrlimit(r.RLIMIT_NOFILE); import pamx.quiet_mlx_lm\n"
    assert python(code + "print(b == r.getrlimit(r.RLIMIT_NOFILE))") == "True\n"
