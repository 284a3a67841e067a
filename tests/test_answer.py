"""Text of one request: stop strings never leak, pieces join to the whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.answer import Answer, StopStrings
from qwill.chat import OutputParser
from qwill.sampling_params import SamplingParams
from qwill.tokenizer import Tokenizer


def feed(stops: list[str], pieces: list[str], *, keep: bool = False) -> tuple[str, str | None]:
    scanner, given_out = StopStrings(stops, keep=keep), ""
    for piece in pieces:
        text, stop = scanner.push(piece)
        given_out += text
        if stop is not None:
            return given_out, stop
    return given_out + scanner.finish(), None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@given(
    st.text("abST", max_size=30),
    st.lists(st.text("abST", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30)),
)
def test_stop_strings_do_not_depend_on_where_text_is_cut(text: str, stops: list[str], places: list[int]) -> None:
    whole = feed(stops, list(text))
    got, stop = feed(stops, cut(text, places))
    if stop is None:
        assert (got, None) == (text, whole[1])
    else:
        assert stop in text
        assert not any(other in got for other in stops)


@pytest.mark.parametrize("place", range(5))
def test_a_stop_string_in_two_pieces_does_not_leak(place: int) -> None:
    assert feed(["STOP"], ["a" + "STOP"[:place], "STOP"[place:] + "b"]) == ("a", "STOP")
    assert feed(["STOP"], ["a" + "STOP"[:place], "STOP"[place:] + "b"], keep=True) == ("aSTOP", "STOP")


def test_a_stop_string_may_begin_before_min_tokens_and_end_after(tiny_chat_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_chat_model)
    for text, min_tokens, want in (("abcENDdef", 5, "abc"), ("aENDbcENDd", 5, "aENDbc"), ("abcEND", 6, "abc")):
        answer = Answer(tokenizer, SamplingParams(stop=("END",), min_tokens=min_tokens), 0, None)
        for token_id in tokenizer.encode(text):
            answer.push(token_id)
            if answer.output.finish_reason:
                break
        assert (answer.output.text, answer.output.stop_reason) == (want, "END")


def test_nothing_is_held_back_at_the_end() -> None:
    assert feed(["STOP"], ["a", "ST"]) == ("aST", None)


def test_the_first_of_several_stops_wins() -> None:
    assert feed(["yy", "xx"], ["a xx yy"]) == ("a ", "xx")


@given(st.text(max_size=20), st.booleans())
def test_events_join_to_the_text(tiny_chat_model: Path, text: str, thinking: bool) -> None:
    tokenizer = Tokenizer.load(tiny_chat_model)
    answer = Answer(tokenizer, SamplingParams(stop=("qq",)), 0, OutputParser(thinking))
    events = []
    for token_id in tokenizer.encode(text.replace("qq", "")):
        events += answer.push(token_id)
    answer.output.finish_reason = "length"
    events += answer.finish()
    assert answer.output.text == text.replace("qq", "")
    for kind, whole in (("thinking", answer.output.reasoning), ("content", answer.output.content)):
        assert "".join(event.text for event in events if event.kind == kind) == (whole or "")
    assert all("\ufffd" not in event.text for event in events) or "\ufffd" in text
    assert [i for event in events for i in event.token_ids] == answer.output.token_ids


def test_a_token_that_ended_the_answer_stays_out_of_the_text(tiny_chat_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_chat_model)
    answer = Answer(tokenizer, SamplingParams(), 0, None)
    for token_id in tokenizer.encode("hi"):
        answer.push(token_id)
    answer.push(tokenizer.encode("!")[0], silent=True)
    answer.output.finish_reason = "stop"
    answer.finish()
    assert answer.output.text == "hi"
    assert len(answer.output.token_ids) == 3
