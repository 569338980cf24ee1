"""Help, version, completion, and what the program costs before it does anything."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main
from typer.testing import CliRunner

from pamx.cli.app import app

from .conftest import PAMX, Run

runner = CliRunner()
COMMANDS = [
    *("chat", "generate", "pull", "models", "models path", "models rm", "doctor"),
    *("bench", "bench show", "bench compare"),
]


def test_every_command_is_listed() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    listed = {line.split()[0] for line in result.stdout.split("Commands:")[1].splitlines() if line}
    assert listed == {command.split()[0] for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    node = typer.main.get_command(app)
    for word in command.split():
        node = node.commands[word]  # type: ignore[attr-defined]
    assert inspect.cleandoc(node.help or "").splitlines()[0] in result.stdout
    for parameter in node.params:
        assert parameter.help, f"{command}: {parameter.name} is not explained"
        for name in parameter.opts:
            if name.startswith("-"):
                assert name in result.stdout


@pytest.mark.parametrize("args", [["--help"], ["generate", "--help"], ["--version"]])
def test_nothing_heavy_is_imported(args: list[str], environment: dict[str, str]) -> None:
    probe = (
        "import atexit, sys; sys.argv = ['pamx', *sys.argv[1:]]\n"
        "heavy = {'mlx', 'mlx.core', 'mlx_lm', 'transformers', 'numpy', 'huggingface_hub', 'rich',"
        " 'pamx.engine', 'prompt_toolkit'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        "from pamx.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *args], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("pamx ")
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pamx ge", ["generate"]),
        ("pamx chat smol", ["smollm2-135m"]),
        ("pamx generate --model smol", ["smollm2-135m"]),
        ("pamx models rm smol", ["smollm2-135m"]),
        ("pamx chat zzz", []),
    ],
)
def test_bash_completion(run: Run, words: str, expected: list[str]) -> None:
    position = str(len(words.split()) - 1)
    result = run(
        env={"_PAMX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
    )
    assert result.stdout.split() == expected
    assert result.stderr == ""


def test_bash_accepts_the_completion_script(environment: dict[str, str]) -> None:
    env = environment | {"_PAMX_COMPLETE": "source_bash"}
    script = subprocess.run(PAMX, capture_output=True, text=True, env=env, check=True).stdout
    checked = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p pamx"], capture_output=True, text=True
    )
    assert checked.returncode == 0
    assert "_pamx_completion pamx" in checked.stdout


def _usage_errors() -> Iterator[tuple[list[str], str]]:
    yield ["genrate"], "Did you mean 'generate'"
    yield ["generate", "hi", "--modle", "x"], "--model"
    yield ["generate", "hi", "--max-tokens", "0"], "'--max-tokens': it must be at least 1."
    yield ["generate", "hi", "--max-tokens", "many"], "it must be a whole number."
    yield ["bench", "--time", "long"], "'--time': it must be a number."
    yield ["bench", "--precision", "101"], "it is 101; it must be a number, at least 0.1"
    yield ["doctor", "--batch", "1.5"], "it must be a whole number."
    yield ["generate", "one", "two"], "Nothing is expected here: two"
    yield ["generate", "hi", "--temp", "-1"], "--temp"
    yield ["generate", "hi", "--temp", "nan"], "'--temp': it is nan; it must be a number, at least"
    yield ["generate", "hi", "--temp", "inf"], "'--temp': it is inf; it must be a number, at least"
    yield ["generate", "hi", "--top-p", "0"], "it is 0; it must be a number, more than 0 and at mo"
    yield ["generate", "hi", "--top-p", "1.1"], "'--top-p': it is 1.1; it must be a number, more "
    yield ["generate", "hi", "--top-p", "nan"], "'--top-p': it is nan;"
    yield ["generate", "hi", "--min-p", "2"], "'--min-p': it is 2; it must be a number, at least 0"
    yield ["generate", "hi", "--min-p", "-inf"], "'--min-p': it is -inf;"
    yield ["generate", "hi", "--top-k", "-1"], "--top-k"
    yield ["generate", "hi", "--seed", str(2**64)], f"it must be at most {2**64 - 1}."
    yield ["generate", "hi", "--context", "none"], "--context"
    yield ["generate", "hi", "--threads", "0"], "--threads"
    yield ["chat", "--threads", "1025"], "--threads"
    yield ["generate", "hi", "--compute", "quick"], "'--compute': 'quick' is not one of 'fast'"
    yield ["chat", "--kv-dtype", "int3"], "'--kv-dtype': 'int3' is not one of 'auto'"
    yield ["generate", "hi", "--raw", "--system", "x"], "--system"
    yield ["generate", "\udcff"], "UTF-8"
    yield ["generate", ""], "empty"
    yield ["generate", " \n"], "empty"
    yield ["generate"], "empty"
    yield ["generate", "-"], "empty"
    yield ["chat", "one", "--model", "two"], "two models"
    yield ["models", "rm"], "NAME"


@pytest.mark.parametrize(("args", "said"), list(_usage_errors()))
def test_usage_errors_exit_with_2(args: list[str], said: str) -> None:
    result = runner.invoke(app, args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Input should" not in result.stderr
    assert "(s)" not in result.stderr
    assert result.stdout == ""
