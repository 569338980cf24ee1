"""A measured program, from the side of the process that measures: start, ask, stop.

`pamx.bench.protocol` describes what is said.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from pamx.bench.answers import BadAnswerError, parsed, token_id, token_time, told_at_end
from pamx.bench.protocol import LONGEST_LINE, PROTOCOL, SILENCE
from pamx.bench.tail import Tail
from pamx.bench.timing import RequestTiming, sample_figures
from pamx.errors import PamxError, RequestError

_END_PATIENCE = 5.0  # seconds for a program to end by itself
_STDERR_SHOWN = 1500  # characters
_SHOWN = 200  # of what a program said, in a message
# Ends the process group $1 when whoever holds the other end of its standard input is gone, be it
# by SIGKILL; a line read before that means that all ended well.
_GUARD = "read ended || { kill -s TERM -- -$1; sleep 1; kill -s KILL -- -$1; }"
_LIKELY: dict[int, str] = {
    signal.SIGKILL: "Most often memory ran out: take a smaller --batch or --context, or close "
    "other programs.",
    signal.SIGTERM: "Somebody, or a limit on its time or memory, ended it.",
}


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


def _words(value: object) -> str:
    """A sentence that a program gave, if it is one."""
    return value.strip()[:_STDERR_SHOWN] if isinstance(value, str) else ""


class Program:
    """A process that runs workloads; a context manager that ends it.

    Args:
        command: Its command line.
        name: What to call it in messages.
        environment: Added to this process's own.
        silence: Most seconds that a line of its answer may take, or that it may not read.
        longest_line: Most bytes of a line of its answers.

    It runs in a process group of its own, all of which ends with it, and with this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        environment: dict[str, str] | None = None,
        *,
        silence: float = math.inf,
        longest_line: float = math.inf,
    ) -> None:
        self.name = name
        self._silence, self._longest_line = silence, longest_line
        self._read = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=subprocess.PIPE,
                env=os.environ | (environment or {}),
                # Ctrl-C is for the process that measures; it ends this one.
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramError(
                f"{name} cannot be started: {error.strerror or error}.",
                "Check its path; `--against` takes a command line, such as './server --threads 4'.",
            ) from error
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._errors = Tail(self._process.stderr)
        self._ended_group = False
        os.set_blocking(self._process.stdin.fileno(), False)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @classmethod
    def of_command(cls, text: str) -> Program:
        """A program that the user named by a command line, split as a shell would."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise RequestError(f"--against {text!r} is no command line: {error}.") from error
        if not words:
            raise RequestError("--against is empty.", "Name mlx-lm, or a command.")
        return cls(words, text, silence=SILENCE, longest_line=LONGEST_LINE)

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

    def run(
        self,
        number: int,
        requests: Sequence[dict[str, Any]],
        settings: Any,
        *,
        memory: bool = False,
    ) -> Outcome:
        """Runs requests that are submitted together.

        Args:
            memory: Whether to tell the peak memory of this run alone, which may cost it time.
        """
        question = {"type": "run", "id": number, "requests": list(requests), "settings": settings}
        question["memory"] = memory
        self._check_silent()
        begin = time.perf_counter()
        self._say(question)
        times: list[list[float]] = [[] for _ in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        silent = False
        for line in self._answers():
            if line["type"] == "done" and line.get("id") == number:
                break
            index = line.get("request")
            if line["type"] != "token" or type(index) is not int:
                raise self._unknown(line)
            if not 0 <= index < len(requests):
                raise self._unknown(line)
            if len(times[index]) >= requests[index]["max_tokens"]:
                raise ProgramError(
                    f"{self.name} gave more tokens than were asked for in request {index}."
                )
            due = requests[index].get("at", 0.0)
            said = line if "time" in line else line | {"time": time.perf_counter() - begin}
            with self._named():
                before = times[index][-1] if times[index] else due
                at = token_time(said, before, first=not times[index])
                token = token_id(line)
            times[index].append(at)
            if token is None:
                silent = True
            else:
                tokens[index].append(token)
        seconds = time.perf_counter() - begin
        if any(not t for t in times):
            raise ProgramError(f"{self.name} gave no token for a request.")
        if max(t[-1] for t in times) > seconds:
            raise ProgramError(f"{self.name} gives times that lie after the end of its answer.")
        if all(t[0] == t[-1] for t in times) and any(len(t) > 1 for t in times):
            raise ProgramError(
                f"{self.name} gives all tokens of an answer the same time, so that it has no time "
                "per token."
            )
        timings = [
            RequestTiming(request.get("at", 0.0), tuple(t), len(request["prompt"]))
            for t, request in zip(times, requests, strict=True)
        ]
        with self._named():
            told = told_at_end(line)
        return Outcome(timings, sample_figures(timings), None if silent else tokens, seconds, told)

    def lines(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Everything that is said until a "done", that included."""
        self._say(question)
        for line in self._answers():
            yield line
            if line["type"] == "done":
                return

    def close(self) -> None:
        """Ends the process, and what it started. Idempotent."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if process.poll() is not None else _END_PATIENCE)
        self._end_group()

    def kill(self) -> None:
        """Ends the process and what it started, at once."""
        self._end_group()
        self.close()

    def _end_group(self) -> None:
        if self._ended_group:
            return
        self._ended_group = True
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(BrokenPipeError):
            self._guard.communicate(b"ended\n")
        self._errors.text()

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
        left = memoryview(json.dumps(value).encode() + b"\n")
        try:
            while left:
                end = time.monotonic() + self._silence
                self._await(pipe, selectors.EVENT_WRITE, "reads nothing", end)
                left = left[os.write(pipe.fileno(), left) :]
        except BrokenPipeError:
            return  # what it said before it ended tells more
        except ValueError as error:
            raise self._ended() from error

    def _answers(self) -> Iterator[dict[str, Any]]:
        while line := self._line():
            with self._named():
                value = parsed(line)
            if value["type"] == "error":
                told = _words(value.get("message"))
                raise ProgramRefusal(
                    told or f"{self.name} refuses and does not say why.", _words(value.get("hint"))
                )
            yield value
        raise self._ended()

    def _line(self) -> bytes:
        """The next line; empty at the end of the stream."""
        pipe = self._process.stdout
        assert pipe is not None
        parts: list[bytes] = []
        length, end = 0, time.monotonic() + self._silence
        while b"\n" not in self._read:
            parts.append(self._read)
            length += len(self._read)
            self._read = b""
            self._check_length(length)
            said = "ends no line" if length else "says nothing"
            self._await(pipe, selectors.EVENT_READ, said, end)
            self._read = os.read(pipe.fileno(), 1 << 16)
            if not self._read:
                return b"".join(parts)
        line, self._read = self._read.split(b"\n", 1)
        self._check_length(length + len(line))
        return b"".join([*parts, line, b"\n"])

    def _check_silent(self) -> None:
        """What is said before anything was asked would pass for an answer."""
        pipe = self._process.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            if not self._read and selector.select(0):
                self._read = os.read(pipe.fileno(), 1 << 16)
                if not self._read:
                    raise self._ended()
        if self._read:
            said = self._read[:_SHOWN].decode("utf-8", "replace").strip()
            raise ProgramError(
                f"{self.name} wrote {said!r} before it was asked.",
                "`pydoc pamx.bench.protocol` describes when it may say what.",
            )

    def _check_length(self, length: int) -> None:
        if length > self._longest_line:
            raise ProgramError(
                f"{self.name} wrote a line of more than {self._longest_line:,} bytes.",
                "Give each token a line of its own.",
            )

    def _await(self, pipe: IO[bytes], event: int, what: str, end: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            wait = None if end == math.inf else max(0.0, end - time.monotonic())
            if not selector.select(wait):
                raise ProgramError(f"{self.name} {what} for {self._silence:,.0f} seconds.")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A bad answer, under the name of the program that gave it."""
        try:
            yield
        except BadAnswerError as error:
            raise ProgramError(f"{self.name} {error.message}", error.hint) from error

    def _unknown(self, line: dict[str, Any]) -> ProgramError:
        return ProgramError(
            f"{self.name} answered {json.dumps(line)[:200]}, which does not fit.",
            "`pydoc pamx.bench.protocol` describes what it may say.",
        )

    def _ended(self) -> ProgramError:
        hint = ""
        try:
            code = self._process.wait(_END_PATIENCE)
            how = f"ended with exit status {code}"
            if code < 0:
                how = f"was ended by signal {-code}"
                hint = _LIKELY.get(-code, "It crashed; `pamx doctor` may say why.")
        except subprocess.TimeoutExpired:
            how = "closed its streams"
        text = self._errors.text()[-_STDERR_SHOWN:]
        return ProgramError(f"{self.name} {how}." + (f" It said:\n{text}" if text else ""), hint)
