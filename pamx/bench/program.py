"""A measured program, from the side of the process that measures: start, ask, stop.

`pamx.bench.protocol` describes what is said.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from pamx.bench.protocol import PROTOCOL
from pamx.bench.timing import RequestTiming, sample_figures
from pamx.errors import PamxError, RequestError

_END_PATIENCE = 5.0  # seconds for a program to end by itself
_STDERR_SHOWN = 1500  # characters


class ProgramError(PamxError):
    """A measured program failed, died or said something that the protocol does not have."""


class ProgramRefusal(RequestError):  # noqa: N818
    """A measured program says that it cannot do what was asked."""


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        requests: Timing of each request.
        figures: One number a metric.
        tokens: Token ids of each request; None if the program does not tell them.
        seconds: From the request to the end of the answer, by the clock of this process.
        told: The rest of what the program said at the end.
    """

    requests: list[RequestTiming]
    figures: dict[str, float]
    tokens: list[list[int]] | None
    seconds: float
    told: dict[str, Any]


class Program:
    """A process that runs workloads; a context manager that ends it.

    Args:
        command: Its command line.
        name: What to call it in messages.
        environment: Added to this process's own.
    """

    def __init__(
        self, command: Sequence[str], name: str, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the program
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | (environment or {}),
                # Ctrl-C is for the process that measures; it ends this one.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise ProgramError(
                f"{name} cannot be started: {error.strerror or error}.",
                "Check its path; `--against` takes a command line, such as './server --threads 4'.",
            ) from error

    @classmethod
    def of_command(cls, text: str) -> Program:
        """A program that the user named by a command line, split as a shell would."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise RequestError(f"--against {text!r} is no command line: {error}.") from error
        if not words:
            raise RequestError("--against is empty.", "Name mlx-lm, or a command.")
        return cls(words, text)

    @classmethod
    def built_in(cls, module: str, name: str, environment: dict[str, str] | None = None) -> Program:
        """One of `pamx.bench.programs`."""
        command = [sys.executable, "-m", f"pamx.bench.programs.{module}"]
        return cls(command, name, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def hello(
        self, model: str, name: str, seed: int, more: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Has the program load; returns what it says about itself."""
        said = {"type": "hello", "protocol": PROTOCOL, "model": model, "name": name, "seed": seed}
        return self.ask(said | (more or {}), "ready")

    def ask(self, question: dict[str, Any], answer: str) -> dict[str, Any]:
        """One question, one answer of the type `answer`."""
        self._say(question)
        found = next(self._answers())
        if found["type"] != answer:
            raise self._unknown(found)
        return found

    def run(self, number: int, requests: Sequence[dict[str, Any]], settings: Any) -> Outcome:
        """Runs requests that are submitted together."""
        question = {"type": "run", "id": number, "requests": list(requests), "settings": settings}
        begin = time.perf_counter()
        self._say(question)
        times: list[list[float]] = [[] for _ in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        silent = False
        for line in self._answers():
            if line["type"] == "done" and line.get("id") == number:
                break
            index = line.get("request")
            if line["type"] != "token" or not isinstance(index, int):
                raise self._unknown(line)
            if not 0 <= index < len(requests):
                raise self._unknown(line)
            at = line.get("time", time.perf_counter() - begin)
            if not isinstance(at, int | float) or at < (times[index] or [0.0])[-1]:
                raise ProgramError(f"{self.name} gives times that run backwards: {line}.")
            times[index].append(float(at))
            if isinstance(line.get("token"), int):
                tokens[index].append(line["token"])
            else:
                silent = True
        seconds = time.perf_counter() - begin
        if any(not t for t in times):
            raise ProgramError(f"{self.name} gave no token for a request.")
        if max(t[-1] for t in times) > seconds:
            raise ProgramError(f"{self.name} gives times that lie after the end of its answer.")
        timings = [
            RequestTiming(request.get("at", 0.0), tuple(t), len(request["prompt"]))
            for t, request in zip(times, requests, strict=True)
        ]
        told = {k: v for k, v in line.items() if k not in ("type", "id")}
        return Outcome(timings, sample_figures(timings), None if silent else tokens, seconds, told)

    def lines(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Everything that is said until a "done", that included."""
        self._say(question)
        for line in self._answers():
            yield line
            if line["type"] == "done":
                return

    def close(self) -> None:
        """Ends the process. Idempotent."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            process.wait(0 if process.poll() is not None else _END_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _say(self, value: dict[str, Any]) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(value).encode() + b"\n")
            pipe.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._ended() from error

    def _answers(self) -> Iterator[dict[str, Any]]:
        pipe = self._process.stdout
        assert pipe is not None
        while line := pipe.readline():
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if not isinstance(value, dict) or not isinstance(value.get("type"), str):
                shown = line[:200].decode("utf-8", "replace").strip()
                raise ProgramError(
                    f"{self.name} wrote {shown!r}, which is no JSON object with a type.",
                    "Its standard output is for the protocol alone; print other things to stderr.",
                )
            if value["type"] == "error":
                raise ProgramRefusal(str(value.get("message")), str(value.get("hint") or ""))
            yield value
        raise self._ended()

    def _unknown(self, line: dict[str, Any]) -> ProgramError:
        return ProgramError(
            f"{self.name} answered {json.dumps(line)[:200]}, which does not fit.",
            "`pydoc pamx.bench.protocol` describes what it may say.",
        )

    def _ended(self) -> ProgramError:
        try:
            code = self._process.wait(_END_PATIENCE)
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"
        except subprocess.TimeoutExpired:
            how = "closed its streams"
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace").strip()[-_STDERR_SHOWN:]
        return ProgramError(f"{self.name} {how}." + (f" It said:\n{text}" if text else ""))
