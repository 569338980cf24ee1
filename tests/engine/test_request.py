"""Requests that make no sense are refused at once and disturb nobody."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from pamx.engine.batch import BatchEngine
from pamx.engine.prompt import prompt_tokens
from pamx.engine.request import Request
from pamx.engine.sampling import Sampling
from pamx.errors import RequestError
from pamx.substitute.paged_model import PagedModel

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"id": 7}, "id of a request is 7; it must be a string"),
        ({"id": ["x"]}, "it must be a string"),
        ({"prompt": "text"}, "must be token ids, not str"),
        ({"prompt": b"\x01\x02"}, "must be token ids, not bytes"),
        ({"prompt": None}, "must be token ids, not NoneType"),
        ({"prompt": 5}, "must be token ids, not int"),
        ({"prompt": []}, "The prompt is empty"),
        ({"prompt": np.array([], np.int32)}, "The prompt is empty"),
        ({"prompt": [1, 2.0]}, r"must be whole numbers, ids of tokens; one is 2\.0"),
        ({"prompt": [1, None]}, "one is None"),
        ({"prompt": [True]}, "one is True"),
        ({"prompt": [[1, 2]]}, r"one is \[1, 2\]"),
        ({"max_tokens": 2.0}, r"max_tokens is 2\.0; it must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True; it must be a whole number"),
        ({"max_tokens": "9"}, "max_tokens is '9'; it must be a whole number"),
        ({"max_tokens": -3}, "max_tokens is -3; it must be at least 1"),
        ({"max_tokens": NAN}, "max_tokens is nan; it must be a whole number"),
        ({"min_tokens": 1.5}, r"min_tokens is 1\.5"),
        ({"min_tokens": None}, "min_tokens is None"),
        ({"n": 2.0}, r"n is 2\.0"),
        ({"n": False}, "n is False"),
        ({"n": 129}, "n is 129; it must be from 1 to 128"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"priority": 1.0}, r"priority is 1\.0"),
        ({"priority": 2**40}, "priority is"),
        ({"stop": 5}, "stop is 5; it must be strings"),
        ({"stop": ("a", 5)}, "must be strings"),
        ({"stop": (None,)}, "must be strings"),
        ({"stop_tokens": 5}, "stop_tokens must be token ids"),
        ({"stop_tokens": {"</s>"}}, "one is '</s>'"),
        ({"stop_tokens": [1.0]}, r"one is 1\.0"),
        ({"sampling": {"temperature": 1}}, "must be a pamx.Sampling"),
        ({"sampling": None}, "must be a pamx.Sampling"),
    ],
    ids=str,
)
def test_a_request_of_the_wrong_kind(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Request(**{"id": "x", "prompt": [1], **wrong})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": None}, "temperature is None"),
        ({"temperature": True}, "temperature is True; it must be a number"),
        ({"temperature": 1j}, "it must be a number"),
        ({"temperature": Decimal(1)}, "it must be a number"),
        ({"temperature": 10**400}, "it must be 0 or more"),
        ({"temperature": [1.0]}, "it must be a number"),
        ({"top_k": 4.0}, r"top_k is 4\.0; it must be a whole number"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": NAN}, "top_p is nan"),
        ({"top_p": False}, "top_p is False"),
        ({"min_p": "0.1"}, "min_p is '0.1'"),
        ({"seed": 1.0}, r"seed is 1\.0"),
        ({"seed": True}, "seed is True"),
        ({"presence_penalty": INF}, "presence_penalty is inf"),
        ({"frequency_penalty": 1e308}, r"frequency_penalty is 1e\+308; it must be from -10,000"),
        ({"repetition_penalty": None}, "repetition_penalty is None"),
        ({"logprobs": 2.0}, r"logprobs is 2\.0"),
        ({"logprobs": True}, "logprobs is True"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias is"),
        ({"logit_bias": None}, "logit_bias is None"),
        ({"logit_bias": {"5": 1.0}}, "keys of logit_bias must be whole numbers"),
        ({"logit_bias": {5: "1"}}, "logit_bias of token 5 is '1'"),
        ({"logit_bias": {5: NAN}}, "logit_bias of token 5 is nan"),
        ({"logit_bias": {5: True}}, "logit_bias of token 5 is True"),
    ],
    ids=str,
)
def test_sampling_of_the_wrong_kind(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Sampling(**wrong)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([1, 2.5], r"one is 2\.5"),
        ([None], "one is None"),
        ([True], "one is True"),
        (5, "The prompt is of the type int"),
        ({"role": "user"}, "The prompt is of the type dict"),
        ([{"role": "user", "content": "x"}, "y"], "A message of the prompt is 'y'"),
        ([{"content": "x"}], "A message of the prompt is"),
        ([{"role": 5, "content": "x"}], "A message of the prompt is"),
        ([{"role": "user"}], "refuses this conversation|is empty"),
        ([{"role": "user", "content": {"a": b"x"}}], "refuses this conversation"),
        (np.array([], np.int64), "The prompt is empty"),
    ],
    ids=str,
)
def test_a_prompt_of_the_wrong_kind(default_model_path: Path, prompt: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        prompt_tokens(load_tokenizer(default_model_path), prompt)


def test_numbers_of_numpy_are_numbers(default_model_path: Path) -> None:
    sampling = Sampling(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_p=1,
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        logit_bias={np.int32(4): np.float16(1.5)},  # type: ignore[dict-item]
    )
    assert (sampling.temperature, sampling.top_k, sampling.logit_bias) == (0.5, 3, {4: 1.5})
    request = Request(
        "x",
        np.array([1, 2]),  # type: ignore[arg-type]
        max_tokens=np.int16(4),  # type: ignore[arg-type]
        stop="end",  # type: ignore[arg-type]
        stop_tokens=[np.int64(9)],  # type: ignore[arg-type]
        sampling=sampling,
    )
    assert (request.prompt, request.max_tokens) == ([1, 2], 4)
    assert (request.stop, request.stop_tokens) == (("end",), {9})
    tokenizer = load_tokenizer(default_model_path)
    assert prompt_tokens(tokenizer, np.array([1, 2], np.uint16)) == [1, 2]  # type: ignore[arg-type]


def test_what_a_batch_refuses_disturbs_nobody(default_model_path: Path) -> None:
    model = families.make("llama")
    tokenizer = load_tokenizer(default_model_path)
    good = Request("good", [5, 6, 7], max_tokens=8)
    bad: list[Any] = [
        Request("id", [500]),
        Request("id", [-1]),
        Request("id", [1], stop_tokens=frozenset({500})),
        Request("id", [1], sampling=Sampling(logit_bias={500: 1.0})),
        Request("id", [1], sampling=Sampling(logit_bias={-1: 1.0})),
        Request("id", [1] * 64),
        Request("good", [1]),
        "good",
        {"id": "x", "prompt": [1]},
        None,
    ]
    with PagedModel(model, context=128) as paged:
        answers = []
        for disturb in (False, True):
            with BatchEngine(paged, tokenizer, 64, vocabulary=500) as batch:
                batch.submit(good)
                tokens = []
                while batch.has_work:
                    if disturb:
                        for request in bad:
                            with pytest.raises(RequestError):
                                batch.submit(request)
                    tokens += [o.token for o in batch.step()]
            answers.append(tokens)
        assert answers[0] == answers[1]
        assert paged.manager.num_used == 0
        for wrong in ({"max_seqs": 1.5}, {"token_budget": "x"}, {"swap_ram": -1}):
            with pytest.raises(RequestError):
                BatchEngine(paged, tokenizer, 64, **wrong)  # type: ignore[arg-type]
        assert paged.manager.num_used == 0
