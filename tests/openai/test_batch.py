"""Lines of batch files: bad ones are errors of their own, results are the lines that OpenAI writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.errors import ModelError, PromptError, RequestError
from qwill.openai.batch import as_line, failure, read_line, read_result, result_id, success

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
ANSWER = {"model": "m", "choices": []}


def line(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode() + b"\n"


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_a_good_line_is_read(url: str) -> None:
    read = read_line(line(url=url, custom_id="你好"))
    assert (read.custom_id, read.url, read.body, read.error) == ("你好", url, {"prompt": "x"}, None)


@pytest.mark.parametrize(
    ("data", "custom_id", "param"),
    [
        (b"not json", None, None),
        (b"[1]", None, None),
        (b"\xff\xfe", None, None),
        (b'{"custom_id": "a", "custom_id": "b"}', None, None),
        (line(body={"temperature": float("nan")}), None, None),
        (line(custom_id="\ud800"), None, None),
        (without("custom_id"), None, "custom_id"),
        (line(custom_id=7), None, "custom_id"),
        (line(custom_id=""), None, "custom_id"),
        (line(custom_id="x" * 513), None, "custom_id"),
        (line(method="GET"), "a", "method"),
        (without("method"), "a", "method"),
        (line(url="/v1/embeddings"), "a", "url"),
        (line(url=["/v1/completions"]), "a", "url"),
        (without("url"), "a", "url"),
        (without("body"), "a", "body"),
        (line(priority=1), "a", "priority"),
    ],
)
def test_a_bad_line_is_an_error_of_its_own(data: bytes, custom_id: str | None, param: str | None) -> None:
    read = read_line(data)
    assert read.error is not None
    assert (read.custom_id, read.error.where or None) == (custom_id, param)


@given(st.binary(max_size=40))
def test_no_bytes_raise(data: bytes) -> None:
    assert read_line(data).error is not None


def test_the_id_of_a_result_is_that_of_its_request_alone() -> None:
    assert read_line(line()).id == read_line(b"  " + line().strip() + b"\r\n").id
    assert len({read_line(line(custom_id=name)).id for name in ("a", "b")} | {result_id(b"x")}) == 3


def test_an_answer_and_a_failure_have_openais_shape() -> None:
    request = read_line(line())
    good, bad = success(request, ANSWER), failure(request, PromptError("the prompt is empty"))
    for result in (good, bad):
        assert list(result) == ["id", "custom_id", "response", "error"]
        assert list(result["response"]) == ["status_code", "request_id", "body"]
        assert result["id"].startswith("batch_req_")
        assert (result["custom_id"], result["error"]) == ("a", None)
    assert (good["response"]["status_code"], good["response"]["body"]) == (200, ANSWER)
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["code"] == "invalid_value"
    assert good["response"]["request_id"] != bad["response"]["request_id"]


def test_what_was_written_is_read_back() -> None:
    request = read_line(line())
    good = read_result(as_line(success(request, ANSWER)))
    assert (good.id, good.custom_id, good.answered, good.model) == (request.id, "a", True, "m")
    bad = read_result(as_line(failure(request, ModelError("not finite"))))
    assert (bad.id, bad.answered) == (request.id, False)
    nameless = read_result(as_line(failure(read_line(b"?"), RequestError("no JSON"))))
    assert (nameless.custom_id, nameless.answered) == (None, False)


@given(st.text(max_size=20))
def test_a_result_is_one_line_whatever_its_text(text: str) -> None:
    data = as_line(success(read_line(line()), {"model": text}))
    assert data.endswith(b"\n")
    assert len(data.decode("utf-8").splitlines()) == 1
    assert json.loads(data)["response"]["body"]["model"] == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"{}",
        b"[]",
        b'{"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "body": {}}}',
        as_line(success(read_line(line()), ANSWER)).replace(b"batch_req_", b"vllm-"),
        as_line(success(read_line(line()), ANSWER)).replace(b'"a"', b"7"),
        as_line(success(read_line(line()), ANSWER))[:-20],
    ],
)
def test_other_lines_are_no_results(data: bytes) -> None:
    with pytest.raises(RequestError):
        read_result(data)
