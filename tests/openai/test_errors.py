"""Errors in OpenAI's terms: reliability is in the status, since the official clients ask again after every 5xx."""

from __future__ import annotations

import json
import re

import pytest

from qwill import errors
from qwill.openai.errors import error_object, status_of

CLIENTS_RETRY = {408, 409, 429}


def every_error() -> list[type[errors.QwillError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.QwillError)]


@pytest.mark.parametrize("kind", every_error())
def test_every_error_has_a_status_and_the_four_fields(kind: type[errors.QwillError]) -> None:
    error = kind("what", where="/home/me/model", hint="do this")
    told = error_object(error)
    assert set(told) == {"message", "type", "param", "code"}
    assert all(isinstance(told[name], str) for name in ("message", "type", "code"))
    assert 400 <= status_of(error) < 600
    assert (status_of(error) >= 500) == (told["type"] == "server_error")
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("kind", [kind for kind in every_error() if issubclass(kind, errors.UsageError)])
def test_a_fault_of_the_request_is_told_in_full_and_never_tried_again(kind: type[errors.QwillError]) -> None:
    error = kind("top_p is 7", hint="allowed: 0 … 1")
    assert status_of(error) < 500
    assert status_of(error) not in CLIENTS_RETRY
    assert error_object(error)["message"] == "top_p is 7; allowed: 0 … 1"


def test_a_request_error_names_its_field_and_its_code() -> None:
    error = errors.RequestError("there is no model 'x'", where="model", code="model_not_found")
    assert status_of(error) == 404
    assert error_object(error) == {
        "message": "there is no model 'x'",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ContextLengthError("the prompt has 9 tokens"), 400, "context_length_exceeded"),
        (errors.CapacityError("does not fit"), 400, "context_length_exceeded"),
        (errors.PromptError("the prompt is empty"), 400, "invalid_value"),
        (errors.TemplateError("no chat template"), 400, "invalid_value"),
        (errors.OverloadedError("the queue is full"), 503, "server_overloaded"),
        (errors.DeadlineError("time is up"), 504, "timeout"),
        (errors.ModelError("the logits are not finite"), 500, "model_error"),
        (errors.EngineError("boom"), 500, "internal_error"),
        (ValueError("boom"), 500, "internal_error"),
    ],
)
def test_the_error_contract(error: Exception, status: int, code: str) -> None:
    assert (status_of(error), error_object(error)["code"]) == (status, code)


@pytest.mark.parametrize("kind", [errors.EngineError, errors.WeightsError, ValueError, KeyError])
def test_a_fault_of_ours_tells_no_text_of_the_exception(kind: type[Exception]) -> None:
    message = error_object(kind("<object at 0x7f00deadbeef> in /home/me/secret.py"))["message"]
    assert not re.search(r"0x[0-9a-f]{6,}|/home|secret|Traceback", message)
    assert kind.__name__ in message
