"""Bodies of responses: the official client's own types read them, and lose nothing."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from qwill.errors import ModelError
from qwill.openai.responses import chat_completion, new_id, text_completion
from qwill.outputs import CompletionOutput, FinishReason, Logprob, Metrics, RequestOutput

VOCABULARY = {1: b"Hi", 2: b" \xe4\xb8", 3: b"\x96", 4: b"!", 5: b"<|im_end|>", 6: b"Ho"}
"""Token 2 ends in the middle of a character."""
TEXT = "Hi 世!"
IDS = [1, 2, 3, 4, 5]
IMPOSSIBLE = -math.inf


def logprobs(top: int) -> list[dict[int, Logprob]]:
    """For each token the `top` most probable ones; the chosen one is always among them, here as the fourth."""
    most = {6: Logprob(-0.5, 1, "Ho"), 4: Logprob(-1.5, 2, "!"), 9: Logprob(IMPOSSIBLE, 3, "?")}
    positions = []
    for token_id in IDS:
        position = dict(list(most.items())[:top])
        if token_id not in position:
            position[token_id] = Logprob(-2.0, 4, VOCABULARY[token_id].decode("utf-8", "replace"))
        positions.append(position)
    return positions


def output(*answers: CompletionOutput, prompt: int = 3, cached: int = 0) -> RequestOutput:
    metrics = Metrics(prompt_tokens=prompt, cached_tokens=cached)
    return RequestOutput("r", "prompt", list(range(prompt)), list(answers), metrics, finished=True)


def answer(index: int = 0, *, reason: FinishReason = "stop", **fields: Any) -> CompletionOutput:
    given = {"text": TEXT, "content": TEXT, "token_ids": IDS, **fields}
    return CompletionOutput(index, finish_reason=reason, **given)


def token_bytes(token_id: int) -> bytes:
    return VOCABULARY.get(token_id, b"?")


def chat(*answers: CompletionOutput, top: int | None = None, **about: Any) -> dict[str, Any]:
    body = chat_completion(output(*answers, **about), model="m", token_bytes=token_bytes, top_logprobs=top)
    return json.loads(json.dumps(body, allow_nan=False))


def completion(*outputs: RequestOutput) -> dict[str, Any]:
    return json.loads(json.dumps(text_completion(outputs, model="m", token_bytes=token_bytes), allow_nan=False))


def test_a_chat_completion_has_ids_time_model_and_usage() -> None:
    body = chat(answer(), prompt=7, cached=4)
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "m")
    assert abs(body["created"] - time.time()) < 5
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_ids_are_never_the_same() -> None:
    assert len({new_id("x") for _ in range(1000)}) == 1000


CALL = {"name": "f", "arguments": {"城市": "北京", "n": 1}}


@pytest.mark.parametrize(
    ("reason", "calls", "told"),
    [
        ("stop", [], "stop"),
        ("length", [], "length"),
        ("stop", [CALL], "tool_calls"),
        ("length", [CALL], "length"),
    ],
)
def test_why_an_answer_ended_is_told_in_openais_words(
    reason: FinishReason, calls: list[dict[str, Any]], told: str
) -> None:
    assert chat(answer(reason=reason, tool_calls=calls))["choices"][0]["finish_reason"] == told


def test_tool_calls_have_ids_and_their_arguments_as_json_text() -> None:
    message = chat(answer(content="", tool_calls=[CALL, {"name": "g", "arguments": {}}]))["choices"][0]["message"]
    first, second = message["tool_calls"]
    assert message["content"] is None
    assert (first["type"], first["function"]["name"]) == ("function", "f")
    assert json.loads(first["function"]["arguments"]) == CALL["arguments"]
    assert second["function"]["arguments"] == "{}"
    assert first["id"] != second["id"]


def test_an_answer_beside_a_tool_call_is_kept() -> None:
    assert chat(answer(tool_calls=[CALL]))["choices"][0]["message"]["content"] == TEXT


def test_thinking_is_told_apart_from_the_answer() -> None:
    message = chat(answer(reasoning="hm"))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", TEXT)
    assert "reasoning_content" not in chat(answer())["choices"][0]["message"]


def test_several_answers_are_choices_and_their_prompt_counts_once() -> None:
    body = chat(answer(0), answer(1, reason="length"), prompt=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("top", [0, 1, 3])
def test_log_probabilities_of_a_chat_have_openais_shape(top: int) -> None:
    content = chat(answer(logprobs=logprobs(top)), top=top)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == TEXT.encode() + b"<|im_end|>"
    assert [entry["token"] for entry in content] == ["Hi", " \ufffd", "\ufffd", "!", "<|im_end|>"]
    assert [len(entry["top_logprobs"]) for entry in content] == [top] * 5
    for entry in content:
        most = [each["logprob"] for each in entry["top_logprobs"]]
        assert most == sorted(most, reverse=True)
        assert all(math.isfinite(number) for number in most)


def test_log_probabilities_of_a_completion_have_the_older_shape() -> None:
    made = completion(output(answer(logprobs=logprobs(2))))["choices"][0]["logprobs"]
    assert made["tokens"] == ["Hi", "bytes:\\x20\\xe4\\xb8", "bytes:\\x96", "!", "<|im_end|>"]
    assert made["token_logprobs"] == [-2.0, -2.0, -2.0, -1.5, -2.0]
    assert made["text_offset"] == [0, 2, 3, 4, 5]
    assert all(TEXT[offset:].startswith(token) for offset, token in ((0, "Hi"), (2, " 世"), (4, "!")))
    assert made["top_logprobs"][0] == {"Ho": -0.5, "!": -1.5, "Hi": -2.0}


def test_a_completion_of_several_prompts_numbers_its_choices_through() -> None:
    body = completion(output(answer(0), answer(1), prompt=2, cached=1), output(answer(0), answer(1), prompt=5))
    assert body["id"].startswith("cmpl-")
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][0] == {"index": 0, "text": TEXT, "finish_reason": "stop", "logprobs": None}
    assert body["usage"]["prompt_tokens"] == 7
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_an_answer_that_failed_is_an_error_and_no_choice() -> None:
    failed = answer(reason="error", error=ModelError("the logits are not finite"))
    for build in (lambda: chat(answer(), failed), lambda: completion(output(answer()), output(failed))):
        with pytest.raises(ModelError):
            build()


@pytest.mark.parametrize(
    "body",
    [
        chat(answer()),
        chat(answer(0), answer(1, reason="length"), cached=2),
        chat(answer(reasoning="hm")),
        chat(answer(content="", tool_calls=[CALL])),
        chat(answer(logprobs=logprobs(3)), top=3),
    ],
)
def test_the_official_client_reads_a_chat_completion_and_loses_nothing(body: dict[str, Any]) -> None:
    kind = pytest.importorskip("openai.types.chat").ChatCompletion
    read = kind.model_validate(body, strict=True)
    assert read.to_dict() == body
    assert read.choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    "body",
    [completion(output(answer())), completion(output(answer(0, logprobs=logprobs(2)), answer(1, reason="length")))],
)
def test_the_official_client_reads_a_completion_and_loses_nothing(body: dict[str, Any]) -> None:
    kind = pytest.importorskip("openai.types").Completion
    assert kind.model_validate(body, strict=True).to_dict() == body
