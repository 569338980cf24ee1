"""Batch files: formats, options of rows, and lines that are no request."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from pamx.cli.batch import lines
from pamx.cli.batch.choices import Format
from pamx.cli.batch.row import BadRow, Notice, Options, Row
from pamx.cli.batch.rows import Defaults, read_rows
from pamx.errors import RequestError

PLAIN = Defaults("model")


def read(
    data: bytes | str,
    name: str = "file",
    chosen: Format = Format.AUTO,
    defaults: Defaults = PLAIN,
) -> list[Row | BadRow | Notice]:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return list(read_rows(stream, name, chosen, defaults))


def one(fields: dict[str, Any], **keywords: Any) -> Row:
    row = read(json.dumps(fields), **keywords)[0]
    assert isinstance(row, Row), row
    return row


def reason(fields: Any, **keywords: Any) -> str:
    row = read(json.dumps(fields), name="x.jsonl", **keywords)[0]
    assert isinstance(row, BadRow), row
    return row.reason


def openai(body: Any, **fields: Any) -> dict[str, Any]:
    chat = {"method": "POST", "url": "/v1/chat/completions"}
    return {"custom_id": "a", **chat, "body": body, **fields}


def test_plain_text_is_one_prompt_a_line() -> None:
    rows = read(b"\xef\xbb\xbfone\r\n\r\n  \n two \nthree")
    assert [(row.line, row.custom_id, row.prompt) for row in rows if isinstance(row, Row)] == [
        (1, "1", "one"),
        (4, "4", " two "),
        (5, "5", "three"),
    ]
    assert len(rows) == 3


def test_json_rows_are_recognized_by_their_brace_or_the_file_s_name() -> None:
    assert one({"prompt": "hi"}).prompt == "hi"
    assert read('"hi"\n', name="x.jsonl") == [BadRow(1, "it is 'hi'; it must be a JSON object")]
    text = read('{"prompt": "hi"}', chosen=Format.TEXT)[0]
    assert isinstance(text, Row)
    assert text.prompt == '{"prompt": "hi"}'


def test_each_json_row_may_have_either_form() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    first, second = read(json.dumps(openai(body)) + "\n" + json.dumps(body))
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert first.prompt == second.prompt == body["messages"]
    assert (first.endpoint, second.endpoint) == ("chat", None)
    assert (first.custom_id, second.custom_id) == ("a", "2")
    assert '"body" is None' in reason(body, chosen=Format.OPENAI)
    assert "neither" in reason(openai(body), chosen=Format.JSONL)


def test_a_json_array_is_refused_with_a_way_out() -> None:
    for data in ('[{"prompt": "a"}]', "[\n"):
        with pytest.raises(RequestError, match="jq"):
            read(data)


def test_rows_override_the_command_line() -> None:
    defaults = Defaults("model", Options(max_tokens=9, temperature=0.5, stop=("x",)))
    assert one({"prompt": "hi", "top_k": None}, defaults=defaults).options == defaults.options
    fields = {
        "max_tokens": 3,
        "min_tokens": 1,
        "n": 2,
        "stop": "y",
        "stop_token_ids": [4],
        "temperature": 0,
        "top_p": 0.9,
        "top_k": 5.0,
        "min_p": 0.1,
        "seed": 6,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"7": -100},
        "logprobs": 2,
    }
    wanted = Options(3, 1, 2, ("y",), (4,), 0.0, 0.9, 5, 0.1, 6, 1.1, 0.2, 0.3, {7: -100.0}, 2)
    assert one({"prompt": "hi", **fields}, defaults=defaults).options == wanted
    assert one(openai({"messages": [{"role": "user", "content": ""}], **fields})).options == wanted


def test_the_openai_names() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]
    row = one(openai({"messages": messages, "max_completion_tokens": 5}))
    assert row.options.max_tokens == 5
    assert row.prompt == [{"role": "user", "content": "aa"}]
    body = {"messages": messages, "logprobs": True, "top_logprobs": 3}
    assert one(openai(body)).options.logprobs == 3
    assert one(openai({"messages": messages, "logprobs": False})).options.logprobs is None
    row = one(openai({"prompt": "text"}, url="/v1/completions"))
    assert (row.endpoint, row.prompt, row.raw) == ("completions", "text", True)
    assert one(openai({"prompt": [1, 2]}, url="/v1/completions")).prompt == [1, 2]


def test_a_system_prompt_is_for_rows_that_bring_none() -> None:
    defaults = Defaults("model", system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "hi"}
    other = {"role": "system", "content": "Be long."}
    assert one({"prompt": "hi"}, defaults=defaults).prompt == [system, user]
    assert one({"messages": [user]}, defaults=defaults).prompt == [system, user]
    assert one({"messages": [other, user]}, defaults=defaults).prompt == [other, user]
    body = openai({"prompt": "hi"}, url="/v1/completions")
    assert one(body, defaults=defaults).prompt == "hi"


def test_priorities_come_from_the_named_field() -> None:
    defaults = Defaults("model", priority_field="urgent")
    assert one({"prompt": "a", "urgent": 3}, defaults=defaults).priority == 3
    assert one({"prompt": "a"}, defaults=defaults).priority == 0
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert one(openai(body, urgent=-1), defaults=defaults).priority == -1
    assert '"urgent"' in reason({"prompt": "a", "urgent": "very"}, defaults=defaults)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([1], "must be a JSON object"),
        ({}, "neither"),
        ({"prompt": "a", "messages": []}, "both"),
        ({"prompt": 1}, '"prompt" is 1'),
        ({"prompt": ["a", "b"]}, '"prompt"'),
        ({"messages": []}, '"messages" is []'),
        ({"messages": ["a"]}, "message 1"),
        ({"messages": [{"role": "user"}]}, '"content" of message 1'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"prompt": "a", "custom_id": ["x"]}, '"custom_id"'),
        ({"prompt": "a", "custom_id": ""}, '"custom_id"'),
        ({"prompt": "a", "max_tokens": 0}, '"max_tokens" is 0; it must be 1 or more'),
        ({"prompt": "a", "max_tokens": True}, '"max_tokens"'),
        ({"prompt": "a", "n": 129}, "at most 128"),
        ({"prompt": "a", "temperature": "hot"}, "\"temperature\" is 'hot'"),
        ({"prompt": "a", "temperature": float("nan")}, '"temperature"'),
        ({"prompt": "a", "stop": [1]}, '"stop"'),
        ({"prompt": "a", "logit_bias": {"x": 1}}, '"logit_bias"'),
        ({"prompt": "a", "logprobs": True, "top_logprobs": "x"}, '"top_logprobs"'),
        ({"prompt": "\ud800"}, "surrogate"),
        (openai([]), '"body" is []'),
        (openai({"messages": []}, method="GET"), '"method"'),
        (openai({"input": "a"}, url="/v1/embeddings"), '"url"'),
        (openai({"prompt": "a"}), 'no "messages"'),
    ],
)
def test_rows_that_are_no_request(fields: Any, said: str) -> None:
    assert said in reason(fields)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": ', "not JSON"),
        (b'{"prompt": "\xff"}', "0xff at place 13"),
        (b"{\0}", "NUL"),
        (b'{"prompt": "\\ud83d"}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000, "nested"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too long"),
    ],
)
def test_a_bad_line_is_named_and_does_not_hide_the_next(line: bytes, said: str) -> None:
    bad, good = read(b"\n" + line + b'\n{"prompt": "fine \\ud83d\\ude00"}\n', name="a.jsonl")
    assert isinstance(bad, BadRow)
    assert bad.line == 2
    assert said in bad.reason
    assert isinstance(good, Row)
    assert (good.custom_id, good.prompt) == ("3", "fine \N{GRINNING FACE}")


def test_a_custom_id_is_used_once() -> None:
    rows = read('{"prompt":"a","custom_id":"2"}\n{"prompt":"b"}\n{"prompt":"c","id":3}\n')
    assert [type(row) for row in rows] == [Row, BadRow, Row]
    assert isinstance(rows[1], BadRow)
    assert "'2'" in rows[1].reason


def test_unknown_fields_are_told_once() -> None:
    rows = read('{"prompt":"a","x":1}\n{"prompt":"b","x":1,"model":"gpt"}\n')
    notices = [row for row in rows if isinstance(row, Notice)]
    assert [notice.line for notice in notices] == [1, 2]
    assert '"x"' in notices[0].text
    assert "--model" in notices[1].text


def test_a_line_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 8)
    stream = io.BytesIO(b"12345678\r\n" + b"x" * 50 + b"\n123456789\nlast")
    assert list(lines.numbered_lines(stream, "f")) == [
        (1, b"12345678"),
        (2, None),
        (3, None),
        (4, b"last"),
    ]


def test_a_line_that_never_ends_is_an_error_with_its_number() -> None:
    with Path("/dev/zero").open("rb") as zero:
        stream: Any = io.BufferedReader(_After(b"first\n", zero))
        found = lines.numbered_lines(stream, "rows")
        assert next(found) == (1, b"first")
        with pytest.raises(RequestError, match="rows:2: this line has more than 256 MB and no end"):
            next(found)


class _After(io.RawIOBase):
    """A beginning, and then what another file gives."""

    def __init__(self, beginning: bytes, rest: Any) -> None:
        self._beginning, self._rest = beginning, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._beginning:
            return int(self._rest.readinto(buffer))
        size = min(len(buffer), len(self._beginning))
        buffer[:size], self._beginning = self._beginning[:size], self._beginning[size:]
        return size


@pytest.mark.parametrize("data", [b"\x7fELF\0\xff\n" * 9, "one\ntwo\n".encode("utf-16")])
def test_a_file_that_is_no_text_is_refused_once(data: bytes) -> None:
    with pytest.raises(RequestError, match="not a text file"):
        read(data)


@pytest.mark.parametrize("data", [b"", b"\n\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_rows(data: bytes) -> None:
    assert read(data) == []


def test_fingerprints_tell_requests_apart() -> None:
    prints = {
        one({"prompt": "a"}).fingerprint,
        one({"prompt": "b"}).fingerprint,
        one({"prompt": "a", "custom_id": "x"}).fingerprint,
        one({"prompt": "a", "seed": 1}).fingerprint,
        one({"prompt": "a"}, defaults=Defaults("other")).fingerprint,
        one({"prompt": "a"}, defaults=Defaults("model", Options(max_tokens=1))).fingerprint,
        one({"prompt": "a"}, defaults=Defaults("model", raw=True)).fingerprint,
        one({"prompt": "a"}, defaults=Defaults("model", compute="exact")).fingerprint,
        one({"prompt": "a"}, defaults=Defaults("model", kv_dtype="float16")).fingerprint,
    }
    assert len(prints) == 9
    assert one({"prompt": "a"}).fingerprint == one({"prompt": "a", "extra": 1}).fingerprint


def test_a_number_past_every_float_makes_one_bad_row() -> None:
    from pamx.cli.batch.fields import _number, _Unfit

    for wrong in (int("1" * 400), float("inf"), "1", True):
        with pytest.raises(_Unfit):
            _number(wrong)
    assert _number(2) == 2.0
