"""The body of a response of OpenAI's API, built from what `LLM.chat` and `LLM.generate` give back.

Two fields are vLLM's: `reasoning_content` of a message, and log probabilities of every token that was generated, those
of the thinking and of the token that ended the answer among them. Knows no model, file or HTTP.
"""

from __future__ import annotations

import codecs
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from qwill.outputs import CompletionOutput, Logprob, RequestOutput

__all__ = ["chat_completion", "new_id", "text_completion"]

TokenBytes = Callable[[int], bytes]

LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token that cannot come: JSON has no infinity."""


def new_id(kind: str) -> str:
    """An id that nothing else has: new_id("chatcmpl") -> "chatcmpl-3f2a…"."""
    return f"{kind}-{uuid.uuid4().hex}"


def chat_completion(
    output: RequestOutput, *, model: str, token_bytes: TokenBytes, top_logprobs: int | None = None
) -> dict[str, Any]:
    """A `chat.completion`: one choice per answer.

    `token_bytes` gives the bytes of a token id, `top_logprobs` is the `SamplingParams.logprobs` of the request.

    Raises:
        QwillError: what an answer ended with, where it is an error.
    """
    choices = [_chat_choice(answer, token_bytes, top_logprobs or 0) for answer in _answers([output])]
    return _body("chatcmpl", "chat.completion", model, choices, [output])


def text_completion(outputs: Sequence[RequestOutput], *, model: str, token_bytes: TokenBytes) -> dict[str, Any]:
    """A `text_completion`: the choices of the first prompt, then those of the second, and so on.

    Raises:
        QwillError: what an answer ended with, where it is an error.
    """
    choices = [
        {
            "index": index,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "logprobs": _text_logprobs(answer, token_bytes),
        }
        for index, answer in enumerate(_answers(outputs))
    ]
    return _body("cmpl", "text_completion", model, choices, outputs)


def _body(
    prefix: str, kind: str, model: str, choices: list[dict[str, Any]], outputs: Sequence[RequestOutput]
) -> dict[str, Any]:
    """What both kinds of completion have in common; `prefix` begins the id."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": _usage(outputs),
    }


def _answers(outputs: Sequence[RequestOutput]) -> list[CompletionOutput]:
    answers = [answer for output in outputs for answer in output.outputs]
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return answers


def _usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """A prompt counts once, however many answers it got."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(answer.token_ids) for answer in _answers(outputs))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.cached_tokens for output in outputs)},
    }


def _chat_choice(answer: CompletionOutput, token_bytes: TokenBytes, top: int) -> dict[str, Any]:
    called = answer.tool_calls and answer.finish_reason == "stop"
    return {
        "index": answer.index,
        "message": _message(answer),
        "logprobs": _chat_logprobs(answer, token_bytes, top),
        "finish_reason": "tool_calls" if called else answer.finish_reason,
    }


def _message(answer: CompletionOutput) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    return message


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": new_id("call"), "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _chat_logprobs(answer: CompletionOutput, token_bytes: TokenBytes, top: int) -> dict[str, Any] | None:
    """The chosen tokens, each with the `top` most probable ones, which come first in the order of their rank."""
    if answer.logprobs is None:
        return None
    content = []
    for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True):
        entries = {each: _entry(token_bytes(each), logprob) for each, logprob in position.items()}
        content.append({**entries[token_id], "top_logprobs": list(entries.values())[:top]})
    return {"content": content, "refusal": None}


def _entry(data: bytes, logprob: Logprob) -> dict[str, Any]:
    return {"token": logprob.decoded_token, "logprob": max(logprob.logprob, LEAST_LOGPROB), "bytes": list(data)}


def _text_logprobs(answer: CompletionOutput, token_bytes: TokenBytes) -> dict[str, Any] | None:
    """The older shape: four lists. A token that is no whole character is spelled `bytes:\\xe4\\xb8`, as by OpenAI."""
    if answer.logprobs is None:
        return None
    data = [token_bytes(token_id) for token_id in answer.token_ids]
    return {
        "tokens": [_spelled(each) for each in data],
        "token_logprobs": [
            max(position[token_id].logprob, LEAST_LOGPROB)
            for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True)
        ],
        "top_logprobs": [
            {_spelled(token_bytes(each)): max(logprob.logprob, LEAST_LOGPROB) for each, logprob in position.items()}
            for position in answer.logprobs
        ],
        "text_offset": _offsets(data, len(answer.text)),
    }


def _spelled(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _offsets(data: Sequence[bytes], length: int) -> list[int]:
    """At which character of the text each token begins; a token that is not in the text begins at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets, position = [], 0
    for each in data:
        offsets.append(min(position, length))
        position += len(decoder.decode(each))
    return offsets
