"""The lines of OpenAI's batch files (https://platform.openai.com/docs/guides/batch), read and built.

    in    {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    out   {"id": "batch_req_…", "custom_id": …, "response": {"status_code", "request_id", "body"}, "error": null}

A result's id is made of the text of the line that it answers, so that results which are found in a file can be told
from those of other requests that happen to have the same custom_id. Knows no file, no model and no order of lines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwill.errors import RequestError
from qwill.openai.errors import error_object, status_of
from qwill.openai.requests import parse_body
from qwill.openai.responses import new_id
from qwill.settings import shown

__all__ = [
    "CHAT_URL",
    "COMPLETION_URL",
    "BatchLine",
    "Result",
    "as_line",
    "failure",
    "read_line",
    "read_result",
    "success",
]

CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT_URL, COMPLETION_URL)
KEYS = ("custom_id", "method", "url", "body")
MAX_CUSTOM_ID = 512

PREFIX = "batch_req_"
ID = re.compile(PREFIX + "[0-9a-f]{32}")
STEERING = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What some readers take for the end of a line, and what could steer a terminal."""


@dataclass(frozen=True)
class BatchLine:
    """One request. Where `error` says why it cannot be answered, `url` and `body` mean nothing.

    `custom_id` is None where the line does not tell it.
    """

    id: str
    custom_id: str | None
    url: str = ""
    body: Any = field(default_factory=dict)
    error: RequestError | None = None


@dataclass(frozen=True)
class Result:
    """What a line of results is worth: which request it is for, and whether it answers it. `model` is who answered."""

    id: str
    custom_id: str | None
    answered: bool
    model: str | None


def result_id(data: bytes) -> str:
    """The id of the result for a request that is told by these bytes."""
    return PREFIX + hashlib.sha256(data).hexdigest()[:32]


def read_line(data: bytes) -> BatchLine:
    """Read a line of requests. It never raises: what is wrong with the line is its `error`."""
    id = result_id(data.strip())
    try:
        line = parse_body(data)
    except RequestError as error:
        return BatchLine(id, None, error=error)
    custom_id = line.get("custom_id")
    try:
        _check_custom_id(custom_id)
    except RequestError as error:
        return BatchLine(id, None, error=error)
    try:
        _check(line)
    except RequestError as error:
        return BatchLine(id, custom_id, error=error)
    return BatchLine(id, custom_id, line["url"], line["body"])


def _check_custom_id(custom_id: Any) -> None:
    if custom_id is None:
        raise RequestError("custom_id is missing", where="custom_id", code="missing_required_parameter")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        hint = f"allowed: a text of 1 … {MAX_CUSTOM_ID} characters"
        raise RequestError(f"custom_id = {shown(custom_id)} is not usable", where="custom_id", hint=hint)


def _check(line: Mapping[str, Any]) -> None:
    for name in line:
        if name not in KEYS:
            hint = "known: " + ", ".join(KEYS)
            raise RequestError(f"unknown field {name[:100]!r}", where=name[:100], hint=hint, code="unknown_parameter")
    if line.get("method") != "POST":
        what = f"method = {shown(line.get('method'))} is not supported"
        raise RequestError(what, where="method", hint='allowed: "POST"')
    if line.get("url") not in URLS:
        hint = "allowed: " + ", ".join(URLS)
        raise RequestError(f"url = {shown(line.get('url'))} is not supported", where="url", hint=hint)
    if "body" not in line:
        raise RequestError("body is missing", where="body", code="missing_required_parameter")


def success(line: BatchLine, body: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a request that was answered."""
    return _result(line, 200, body)


def failure(line: BatchLine, error: BaseException) -> dict[str, Any]:
    """The result of a request that was not. OpenAI keeps `error` for requests that never were: expired, cancelled."""
    return _result(line, status_of(error), {"error": error_object(error)})


def _result(line: BatchLine, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": new_id("req"), "body": body}
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": None}


def as_line(result: Mapping[str, Any]) -> bytes:
    """A result as one line of UTF-8, its line feed included."""
    text = json.dumps(result, ensure_ascii=False, allow_nan=False)
    text = STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def read_result(data: bytes) -> Result:
    """What a line that `as_line` made is worth.

    Raises:
        RequestError: it is not such a line.
    """
    try:
        line = json.loads(data)
        response, custom_id = line["response"], line["custom_id"]
        status, model = response["status_code"], response["body"].get("model")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RequestError("this is not a line of results") from error
    if not ID.fullmatch(str(line.get("id"))) or not isinstance(custom_id, str | None):
        raise RequestError("this is not a line of results")
    return Result(line["id"], custom_id, status == 200 and isinstance(custom_id, str), model)
