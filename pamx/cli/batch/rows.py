"""Reading a batch file: which format it has, and a Row or what is wrong for each line.

OpenAI rows have the form of https://platform.openai.com/docs/api-reference/batch/request-input.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, BinaryIO

from pamx.cli.batch.choices import Format
from pamx.cli.batch.fields import OPTIONS, BadFieldError, integer, options_of, shown
from pamx.cli.batch.lines import LONGEST, numbered_lines
from pamx.cli.batch.prompts import prompt_of, with_system
from pamx.cli.batch.row import BadRow, Endpoint, Notice, Options, Row, RowEvent
from pamx.errors import RequestError
from pamx.sizes import bytes_text

_ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
_KNOWN = ("custom_id", "id", "prompt", "messages", "top_logprobs")
_JSON_NAMES = (".jsonl", ".ndjson", ".json")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Defaults:
    """What the command line says about every row.

    Attributes:
        model: Which model answers: a part of the fingerprints.
        options: Options that a row may override.
        system: System prompt for rows that bring none.
        raw: Continue prompts as they are.
        priority_field: The field that holds a row's priority, or None.
        compute: The mode asked for, or None; a part of the fingerprints.
        kv_dtype: The type of pages asked for; a part of the fingerprints.
    """

    model: str
    options: Options = field(default_factory=Options)
    system: str | None = None
    raw: bool = False
    priority_field: str | None = None
    compute: str | None = None
    kv_dtype: str = "auto"


def read_rows(
    stream: BinaryIO, name: str, chosen: Format, defaults: Defaults
) -> Iterator[RowEvent]:
    """Reads a batch file line by line.

    Args:
        stream: The file.
        name: Its name, whose ending may tell the format.
        chosen: Its format, or "auto": JSON if the name ends with .jsonl, .ndjson or .json or the
            first line begins with a brace, where a row with a "body" is an OpenAI row; else text.
        defaults: What holds for rows that say nothing else.

    Raises:
        RequestError: the file is one JSON array, or no text, or has a line without an end.
    """
    lines = numbered_lines(stream, name)
    first = next(lines, None)
    if first is None:
        return
    if chosen is Format.AUTO:
        chosen = _detect(name, first[1])
    parser = _Parser(chosen, defaults)
    for number, line in chain([first], lines):
        try:
            yield parser.parse(number, line)
        except BadFieldError as error:
            yield BadRow(number, str(error))
        yield from parser.notices(number)


def _detect(name: str, first: bytes | None) -> Format:
    """The format, with AUTO left for JSON rows of either form."""
    start = (first or b"").lstrip()
    json_name = name.lower().endswith(_JSON_NAMES)
    if b"\0" in start and not json_name:
        raise RequestError(
            f"{name} is not a text file: its first line has a NUL byte.",
            "Name a file of prompts; if it is one in UTF-16, convert it: iconv -f UTF-16 -t UTF-8.",
        )
    if re.match(rb"\[\s*(\{|$)", start):
        raise RequestError(
            f"{name} begins like one JSON array; a batch file has one row a line.",
            "Convert it, for example: jq -c '.[]'; or read it as text with --format text.",
        )
    return Format.AUTO if json_name or start.startswith(b"{") else Format.TEXT


class _Parser:
    """Remembers what has been seen: ids, and the fields that are ignored."""

    def __init__(self, chosen: Format, defaults: Defaults) -> None:
        self._format = chosen
        self._defaults = defaults
        self._ids: set[str] = set()
        self._ignored: set[str] = set()
        self._new_ignored: list[str] = []

    def notices(self, number: int) -> Iterator[Notice]:
        """What is to be said about the fields of the last row, once for each field."""
        for name in self._new_ignored:
            reason = ": --model chooses it" if name == "model" else ""
            yield Notice(number, f'the field "{name}" is ignored, here and further on{reason}')
        self._new_ignored.clear()

    def parse(self, number: int, line: bytes | None) -> Row:
        """Raises BadFieldError for a line that is no request."""
        if line is None:
            raise BadFieldError(f"it is longer than {bytes_text(LONGEST)}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadFieldError(
                f"it is not valid UTF-8: the byte 0x{line[error.start]:02x} at place "
                f"{error.start + 1}"
            ) from None
        if "\0" in text:
            raise BadFieldError("it has a NUL byte, so the file is not text")
        if self._format is Format.TEXT:
            prompt = text if self._defaults.raw else with_system(text, self._defaults.system)
            return self._row(number, str(number), prompt, self._defaults.raw, {}, 0, None)
        return self._json_row(number, _json_object(line, text))

    def _json_row(self, number: int, fields: Mapping[str, Any]) -> Row:
        is_openai = self._format is Format.OPENAI
        if self._format is Format.AUTO:
            is_openai = "body" in fields
        custom_id = _custom_id(fields, number)
        raw = self._defaults.raw
        endpoint: Endpoint | None = None
        body: Mapping[str, Any] = fields
        if is_openai:
            body, endpoint = _openai_body(fields)
            raw = endpoint == "completions"
        prompt = prompt_of(body, self._defaults.system, raw=raw)
        priority = self._priority(fields, body)
        row = self._row(number, custom_id, prompt, raw, body, priority, endpoint)
        known = {self._defaults.priority_field, *_KNOWN, *OPTIONS}
        if is_openai:
            self._note_ignored(fields, known | {"method", "url", "body"})
        self._note_ignored(body, known)
        return row

    def _row(
        self,
        number: int,
        custom_id: str,
        prompt: Any,
        raw: bool,
        fields: Mapping[str, Any],
        priority: int,
        endpoint: Endpoint | None,
    ) -> Row:
        options = options_of(fields, self._defaults.options)
        if custom_id in self._ids:
            raise BadFieldError(f"the custom_id {shown(custom_id)} has been used by a row before")
        self._ids.add(custom_id)
        model = [self._defaults.model, self._defaults.compute, self._defaults.kv_dtype]
        request = [*model, custom_id, prompt, raw, endpoint, asdict(options)]
        text = json.dumps(request, sort_keys=True)
        fingerprint = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return Row(number, custom_id, prompt, raw, options, priority, endpoint, fingerprint)

    def _priority(self, fields: Mapping[str, Any], body: Mapping[str, Any]) -> int:
        name = self._defaults.priority_field
        if name is None:
            return 0
        value = fields.get(name, body.get(name))
        return 0 if value is None else integer(name, value)

    def _note_ignored(self, fields: Mapping[str, Any], known: set[str | None]) -> None:
        for name in fields:
            if name not in known and name not in self._ignored:
                self._ignored.add(name)
                self._new_ignored.append(name)


def _json_object(line: bytes, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        if _SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise BadFieldError(f"it is not JSON: {error.msg} at place {error.colno}") from None
    except UnicodeEncodeError:
        raise BadFieldError("it has half of a surrogate pair, which is not text") from None
    except (ValueError, RecursionError):
        raise BadFieldError("its JSON has numbers too long or is nested too deeply") from None
    if not isinstance(value, dict):
        raise BadFieldError(f"it is {shown(value)}; it must be a JSON object")
    return value


def _custom_id(fields: Mapping[str, Any], number: int) -> str:
    for name in ("custom_id", "id"):
        value = fields.get(name)
        if type(value) is int:
            return str(value)
        if isinstance(value, str) and value:
            return value
        if value is not None:
            raise BadFieldError(f'"{name}" is {shown(value)}; it must be a text')
    return str(number)


def _openai_body(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Endpoint]:
    body = fields.get("body")
    if not isinstance(body, dict):
        raise BadFieldError(f'"body" is {shown(body)}; it must be an object')
    method = fields.get("method", "POST")
    if method != "POST":
        raise BadFieldError(f'"method" is {shown(method)}; it must be "POST"')
    default = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    url = fields.get("url", default)
    if not isinstance(url, str) or url not in _ENDPOINTS:
        raise BadFieldError(f'"url" is {shown(url)}; it must be one of {", ".join(_ENDPOINTS)}')
    wanted = "prompt" if _ENDPOINTS[url] == "completions" else "messages"
    if body.get(wanted) is None:
        raise BadFieldError(f'its "body" has no "{wanted}", which {url} needs')
    return body, _ENDPOINTS[url]
