"""Steps of a model while its threads lose the CPU at random: the same bits every time.

tests/native/noise_test.cpp does this to the kernels, 10,000 times; this does it to a whole model on
pages, 1,000 times, because every step is slow on a machine that is busy already. More by hand:

    python tests/native/test_descheduled.py 10000
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

STEPS, ANSWER, THREADS = 1000, 20, 4


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a thread be moved to one CPU")
def test_steps_give_the_same_bits_on_a_machine_that_takes_the_cpu_away() -> None:
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PAMX_NUM_THREADS": str(THREADS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["50", "answers,", "1", "different"]


def move_threads(stop: threading.Event) -> None:
    """Moves this process's threads to one CPU and back at random, and makes its helpers nice."""
    rng = random.Random(1)
    allowed = os.sched_getaffinity(0)
    cpus = sorted(allowed)
    while not stop.is_set():
        for thread in [int(task.name) for task in Path("/proc/self/task").iterdir()]:
            try:
                if rng.random() < 0.5:
                    where = {rng.choice(cpus)} if rng.random() < 0.75 else allowed
                    os.sched_setaffinity(thread, where)
                if thread != os.getpid() and rng.random() < 0.01:
                    os.setpriority(os.PRIO_PROCESS, thread, 5)
            except OSError:  # it ended meanwhile
                pass
        time.sleep(0.001)


def answers(steps: int) -> list[str]:
    """Digests of the logits of each answer; every answer is to the same prompt."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import llama

    from pamx.substitute.paged_model import PagedModel

    mx.random.seed(3)
    config = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    model = llama.Model(llama.ModelArgs.from_dict(config))
    nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    found = []
    with PagedModel(model, context=256) as paged:
        for _ in range(steps // ANSWER):
            digest = hashlib.sha256()
            sequence = paged.sequence()
            tokens = mx.arange(1, 70)[None]
            for _ in range(ANSWER):
                logits = model(tokens, cache=sequence.caches)[:, -1]
                digest.update(bytes(memoryview(logits)))
                tokens = mx.argmax(logits, axis=-1)[None]
            sequence.close()
            found.append(digest.hexdigest())
    return found


def main() -> None:
    busy = "import os\nos.nice(19)\nwhile os.getppid() == {}: os.sched_yield()"
    noise = [subprocess.Popen([sys.executable, "-c", busy.format(os.getpid())]) for _ in range(2)]
    stop = threading.Event()
    mover = threading.Thread(target=move_threads, args=(stop,))
    mover.start()
    try:
        found = answers(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
    finally:
        stop.set()
        mover.join()
        for process in noise:
            process.kill()
    print(len(found), "answers,", len(set(found)), "different")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
