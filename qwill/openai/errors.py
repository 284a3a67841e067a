"""What was raised becomes OpenAI's error object and an HTTP status: the one place where that is decided.

A fault of the request is told in full. A fault of ours is told by its kind alone, as its text could hold paths and
other people's words. Knows no HTTP beyond the numbers.
"""

from __future__ import annotations

from typing import Any

from qwill.errors import (
    CapacityError,
    ContextLengthError,
    DeadlineError,
    ModelError,
    OverloadedError,
    QwillError,
    RequestError,
    TemplateError,
    UsageError,
)

__all__ = ["error_object", "status_of"]

KINDS: list[tuple[type[QwillError], int, str, str]] = [
    (ContextLengthError, 400, "invalid_request_error", "context_length_exceeded"),
    (CapacityError, 400, "invalid_request_error", "context_length_exceeded"),
    (UsageError, 400, "invalid_request_error", "invalid_value"),
    (TemplateError, 400, "invalid_request_error", "invalid_value"),
    (OverloadedError, 503, "server_error", "server_overloaded"),
    (DeadlineError, 504, "server_error", "timeout"),
    (ModelError, 500, "server_error", "model_error"),
]
"""Kind of error -> status, type and code; the first that fits counts."""

STATUS_OF_CODE = {"model_not_found": 404, "not_found": 404, "method_not_allowed": 405}
"""A `RequestError`'s code -> its status, where that is not 400."""


def status_of(error: BaseException) -> int:
    """The HTTP status of an error: 4xx where asking again in the same words is useless."""
    if isinstance(error, RequestError):
        return STATUS_OF_CODE.get(error.code, 400)
    return _kind(error)[0]


def error_object(error: BaseException) -> dict[str, Any]:
    """{"message", "type", "param", "code"} of an error; `param` is the field at fault, where one alone is."""
    _, kind, code = _kind(error)
    param = None
    if isinstance(error, RequestError):
        param, code = error.where or None, error.code
    return {"message": _message(error, code), "type": kind, "param": param, "code": code}


def _kind(error: BaseException) -> tuple[int, str, str]:
    for owner, status, kind, code in KINDS:
        if isinstance(error, owner):
            return status, kind, code
    return 500, "server_error", "internal_error"


def _message(error: BaseException, code: str) -> str:
    if not isinstance(error, QwillError) or code == "internal_error":
        return f"the answer could not be computed: internal error ({type(error).__name__})"
    where = "" if isinstance(error, RequestError) or not error.where else f" ({error.where})"
    return f"{error.what}{where}" + (f"; {error.hint}" if error.hint else "")
