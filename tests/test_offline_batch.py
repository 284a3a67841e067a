"""Files of requests: every line is answered or says why not, a kill at any moment loses nothing, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill import offline_batch
from qwill.async_llm import AsyncLLM
from qwill.errors import OverloadedError, UsageError
from qwill.hub.progress import SilentProgress
from qwill.offline_batch import Results, Summary, answer_all, open_requests, open_results, read_lines
from qwill.openai.batch import as_line, failure, read_line, success
from qwill.sampling_params import SamplingParams

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
MODEL = "tiny"


def request(custom_id: Any, url: str = COMPLETION, **body: Any) -> bytes:
    start = {"messages": [{"role": "user", "content": "hi"}]} if url == CHAT else {"prompt": "hi"}
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": {**start, **GREEDY, **body}}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


MIXED = [
    request("plain", prompt="Hello"),
    request("chat", CHAT),
    request("你好", prompt=["a", "b"], n=2),
    request("ids", prompt=[5, 6, 7], logprobs=2),
    request("sampled", CHAT, temperature=1, seed=3, logprobs=True, top_logprobs=2),
    request("thinking", CHAT, chat_template_kwargs={"enable_thinking": True}, max_thinking_tokens=3),
]


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(tiny_chat_model, max_model_len=256, threads=1)
    yield made
    asyncio.run(made.aclose())


def run(llm: AsyncLLM, data: bytes, results: Results, in_flight: int = 8) -> Summary:
    lines = list(read_lines(io.BytesIO(data)))
    summary = Summary(len(lines), skipped=len(results.answered))
    work = answer_all(
        llm, lines, results, names=(MODEL,), in_flight=in_flight, summary=summary, progress=SilentProgress()
    )
    asyncio.run(work)
    return summary


def answered(llm: AsyncLLM, data: bytes, **how: Any) -> dict[Any, Any]:
    """custom_id -> result of every line."""
    stream = io.BytesIO()
    run(llm, data, Results(stream), **how)
    return by_custom_id(stream.getvalue())


def by_custom_id(data: bytes) -> dict[Any, Any]:
    results = [json.loads(line) for line in data.splitlines()]
    assert len({result["id"] for result in results}) == len(results)
    return {result["custom_id"]: result for result in results}


def substance(results: dict[Any, Any]) -> dict[Any, Any]:
    """What must be the same in every run: all but ids and the time."""
    bodies = {name: dict(result["response"]["body"]) for name, result in results.items()}
    for body in bodies.values():
        for changing in ("id", "created"):
            body.pop(changing, None)
        body.get("usage", {}).pop("prompt_tokens_details", None)
    return bodies


def test_every_line_gets_the_answer_that_it_gets_alone(llm: AsyncLLM) -> None:
    together = answered(llm, b"".join(MIXED))
    assert {result["response"]["status_code"] for result in together.values()} == {200}
    alone: dict[Any, Any] = {}
    for line in MIXED:
        alone |= answered(llm, line)
    assert substance(together) == substance(alone)


def test_an_answer_is_the_one_that_the_python_api_gives(llm: AsyncLLM) -> None:
    results = answered(llm, b"".join(MIXED))
    params = llm.params(**GREEDY)
    plain = llm.llm.generate("Hello", params)[0].outputs[0]
    chat = llm.llm.chat([{"role": "user", "content": "hi"}], params)[0].outputs[0]
    body = results["plain"]["response"]["body"]
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (plain.text, "length")
    assert body["usage"]["completion_tokens"] == len(plain.token_ids) == 8
    assert body["model"] == MODEL
    assert results["chat"]["response"]["body"]["choices"][0]["message"]["content"] == chat.content
    assert len(results["你好"]["response"]["body"]["choices"]) == 4


def test_an_answer_follows_what_its_line_asks_for(llm: AsyncLLM) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [17]}}}
    results = answered(
        llm,
        request("choice", CHAT, structured_outputs={"choice": ["yes", "no"]}, ignore_eos=False, max_tokens=20)
        + request("schema", response_format=form, ignore_eos=False, max_tokens=20)
        + request("budget", CHAT, chat_template_kwargs={"enable_thinking": True}, max_thinking_tokens=3, max_tokens=9),
    )
    choices = {name: result["response"]["body"]["choices"][0] for name, result in results.items()}
    assert choices["choice"]["message"]["content"] in ("yes", "no")
    assert (choices["choice"]["finish_reason"], choices["schema"]["finish_reason"]) == ("stop", "stop")
    assert json.loads(choices["schema"]["text"]) == 17
    assert choices["budget"]["message"]["content"]


def test_the_summary_counts_answers_failures_and_tokens(llm: AsyncLLM) -> None:
    summary = run(llm, b"".join(MIXED[:2]) + b"?\n", Results(io.BytesIO()))
    assert (summary.total, summary.answered, summary.failed, summary.new_tokens) == (3, 2, 1, 16)
    assert summary.told().startswith("2 answered · 1 failed · 0 skipped · 16 tok · ")


BAD: list[tuple[bytes, str | None, int, str]] = [
    (b"not json\n", None, 400, "line 2: this is not a JSON object"),
    (b"[]\n", None, 400, "line 2"),
    (b'{"a": "\xff"}\n', None, 400, "UTF-8"),
    (b'{"custom_id": "x"\n', None, 400, "line 2"),
    (request(None), None, 400, "line 2: custom_id is missing"),
    (request(7), None, 400, "line 2: custom_id = 7"),
    (request("first"), None, 400, "line 2: custom_id 'first' was used in line 1 already"),
    (request("x").replace(b"POST", b"GET"), "x", 400, "method"),
    (request("x", url="/v1/embeddings"), "x", 400, "/v1/chat/completions"),
    (request("x", temperature=float("nan")), None, 400, "NaN"),
    (request("x", temperature=1).replace(b'"temperature": 1', b'"temperature": 1e999'), None, 400, "too large"),
    (request("x", stream=True), "x", 400, "stream"),
    (request("x", unknown=1), "x", 400, "unknown field 'unknown'"),
    (request("x", top_p="y"), "x", 400, "top_p = 'y'"),
    (request("x", prompt="EDGE").replace(b"EDGE", b"\\ud83d"), None, 400, "surrogate"),
    (request("x", prompt=""), "x", 400, "empty"),
    (request("x", prompt="y" * 300), "x", 400, "more than 256 tokens"),
    (request("x", prompt=[311]), "x", 400, "token id"),
    (request("x", model="gpt-4"), "x", 404, "tiny"),
    (request("x", logit_bias={"5000": 1}), "x", 400, "5000"),
    (request("x", CHAT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "x", 400, "text part"),
    (request("x", CHAT, messages=[]), "x", 400, "messages"),
    (request("x", structured_outputs={"regex": "["}), "x", 400, ""),
    (request("x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": 7}}}), "x", 400, ""),
    (request("x", n=17), "x", 400, "n = 17"),
    (b'{"a":' + b"[" * 50_000 + b"\n", None, 400, "line 2"),
]


@pytest.mark.parametrize(("line", "custom_id", "status", "told"), BAD)
def test_a_bad_line_is_told_and_hurts_no_other(
    llm: AsyncLLM, line: bytes, custom_id: str | None, status: int, told: str
) -> None:
    results = answered(llm, request("first") + line + request("last"))
    assert set(results) == {"first", custom_id, "last"}
    response = results[custom_id]["response"]
    assert response["status_code"] == status, response
    assert set(response["body"]["error"]) == {"message", "type", "param", "code"}
    assert told in response["body"]["error"]["message"]
    assert results["first"]["response"]["status_code"] == results["last"]["response"]["status_code"] == 200


def test_a_line_that_is_too_long_is_skipped_without_being_held(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_batch, "MAX_LINE_BYTES", 500)
    for length in (501, 502, 1002, 1003, 5000):
        file = io.BytesIO(request("first") + b"x" * length + b"\n" + request("last"))
        assert [line.custom_id for line in read_lines(file)] == ["first", None, "last"]
    file = io.BytesIO(b"\n" + b"x" * 600)
    assert ["line 2: the line is longer" in str(line.error) for line in read_lines(file)] == [True]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + request("a") + request("b"),
        request("a").replace(b"\n", b"\r\n") + b"\r\n\r\n" + request("b"),
        b"\n \n\t\n" + request("a") + b"\n\n" + request("b").rstrip(),
    ],
)
def test_marks_blank_lines_and_other_line_ends_are_no_trouble(data: bytes) -> None:
    lines = list(read_lines(io.BytesIO(data)))
    assert [(line.custom_id, line.error) for line in lines] == [("a", None), ("b", None)]


def test_the_lines_may_be_read_twice() -> None:
    file = io.BytesIO(b"".join(MIXED))
    assert list(read_lines(file)) == list(read_lines(file))


def test_a_stream_that_cannot_go_back_is_copied() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"".join(MIXED))
    os.close(writing)
    with open(reading, "rb") as pipe, open_requests(pipe) as file:
        assert len(list(read_lines(file))) == len(list(read_lines(file))) == len(MIXED)


@pytest.mark.parametrize("name", ["nowhere.jsonl", "."])
def test_requests_that_cannot_be_read_are_wrong_usage(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"), open_requests(tmp_path / name):
        pass


# Results in a file

LINES = [read_line(request(f"r{number}")) for number in range(6)]
WANTED = frozenset(line.id for line in LINES)


def good(number: int, model: str = MODEL) -> bytes:
    return as_line(success(LINES[number], {"model": model, "text": "x" * 40}))


def bad(number: int) -> bytes:
    return as_line(failure(LINES[number], OverloadedError("busy")))


def test_a_file_that_was_cut_at_any_byte_is_gone_on_with_from_its_last_whole_line(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", [good(0), bad(1), good(2)]
    data = b"".join(lines)
    ends = [sum(map(len, lines[:number])) for number in range(4)]
    for length in sorted(
        {*range(0, len(data), 9), *ends, *(end - 1 for end in ends[1:]), *(end + 1 for end in ends[:3])}
    ):
        path.write_bytes(data[:length])
        whole = [line for line, end in zip(lines, ends[1:], strict=True) if length >= end]
        with open_results(path, WANTED, MODEL) as results:
            assert path.read_bytes() == b"".join(line for line in whole if line != lines[1])
            assert results.answered == {LINES[n].id for n in (0, 2) if lines[n] in whole}


def test_failed_results_are_taken_out_and_answers_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    kept = [good(1), good(3)]
    path.write_bytes(bad(0) + kept[0] + bad(2) + kept[1] + bad(4))
    path.chmod(0o640)
    with open_results(path, WANTED, MODEL) as results:
        assert results.answered == {LINES[1].id, LINES[3].id}
    assert path.read_bytes() == b"".join(kept)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


def test_a_file_that_needs_nothing_is_not_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(good(0))
    before = path.stat().st_ino
    with open_results(path, WANTED, MODEL):
        pass
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"my thesis\n", "something else"),
        (b"x", "something else"),
        (request("a"), "something else"),
        (good(0) + b"a note\n" + good(1), "something else"),
        (as_line(success(read_line(request("r0", prompt="changed")), {"model": MODEL})), "another request"),
        (as_line(success(read_line(request("other")), {"model": MODEL})), "another request"),
        (good(0, "another"), "another model"),
    ],
)
def test_a_file_of_anything_else_is_refused_and_not_touched(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=told), open_results(path, WANTED, MODEL):
        pass
    assert path.read_bytes() == data


def test_only_one_writes_a_file_at_a_time(tmp_path: Path) -> None:
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    with open_results(path, WANTED, MODEL):
        for name in (path, link):
            with pytest.raises(UsageError, match="another process"), open_results(name, WANTED, MODEL):
                pass
    with open_results(link, WANTED, MODEL) as results:
        results.add(failure(LINES[0], OverloadedError("busy")))
    with open_results(link, WANTED, MODEL):
        pass
    assert link.is_symlink()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("name", ["folder", "file/out.jsonl"])
def test_a_file_that_cannot_be_written_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"), open_results(tmp_path / name, WANTED, MODEL):
        pass


def test_an_error_of_whoever_writes_is_not_taken_for_one_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), open_results(tmp_path / "out.jsonl", WANTED, MODEL):
        (tmp_path / "weights").read_bytes()


def test_missing_folders_are_made_and_devices_are_written_to(tmp_path: Path) -> None:
    with open_results(tmp_path / "a/b/out.jsonl", WANTED, MODEL) as results:
        results.add(success(LINES[0], {"model": MODEL}))
    assert (tmp_path / "a/b/out.jsonl").exists()
    with open_results(Path("/dev/null"), WANTED, MODEL) as results:
        results.add(success(LINES[0], {"model": MODEL}))


class Full(io.RawIOBase):
    """A disk that has room for some bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.data = room, b""

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        part = bytes(data[: min(self.room, 7)])
        self.room, self.data = self.room - len(part), self.data + part
        return len(part)


def test_a_full_disk_ends_the_run_and_leaves_only_its_last_line_cut(llm: AsyncLLM) -> None:
    disk = Full(len(request("a")) * 12)
    with pytest.raises(OSError, match="No space"):
        run(llm, b"".join(request(f"r{number}") for number in range(60)), Results(disk))  # type: ignore[arg-type]
    lines = disk.data.split(b"\n")
    assert len(lines) > 1
    assert all(json.loads(line)["response"]["status_code"] == 200 for line in lines[:-1])


class StopAfter(SilentProgress):
    """Looks on, and cancels the run when so many results are written."""

    def __init__(self, results: int) -> None:
        self.left = results

    def advance(self, count: int, item: str = "") -> None:
        self.left -= count
        if self.left == 0:
            self.run.cancel()


@pytest.mark.parametrize("results_of_each_run", [1, 7])
def test_a_run_that_is_cancelled_goes_on_later(llm: AsyncLLM, tmp_path: Path, results_of_each_run: int) -> None:
    data = b"".join(request(f"r{number}", CHAT) for number in range(20))
    lines = list(read_lines(io.BytesIO(data)))
    wanted, path = frozenset(line.id for line in lines), tmp_path / "out.jsonl"

    async def stopped(results: Results, summary: Summary) -> None:
        progress = StopAfter(results_of_each_run)
        how = {"names": (MODEL,), "in_flight": 4, "summary": summary, "progress": progress}
        progress.run = asyncio.create_task(answer_all(llm, lines, results, **how))
        await progress.run

    while not path.exists() or path.read_bytes().count(b"\n") < len(lines):
        with open_results(path, wanted, MODEL) as results:
            summary = Summary(len(lines), skipped=len(results.answered))
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(stopped(results, summary))
        assert summary.answered >= 1
        assert path.read_bytes().count(b"\n") == summary.skipped + summary.answered
    assert not llm.llm.service.busy
    assert substance(by_custom_id(path.read_bytes())) == substance(answered(llm, data))


def test_a_full_queue_is_waited_for(tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_batch, "PAUSE", 0.01)
    small = AsyncLLM(tiny_chat_model, max_model_len=64, threads=1, max_num_seqs=2, max_queue=2)
    results = answered(small, b"".join(request(f"r{number}", CHAT, n=3) for number in range(6)), in_flight=6)
    assert {result["response"]["status_code"] for result in results.values()} == {200}
    monkeypatch.setattr(offline_batch, "PATIENCE", 0.0)
    assert answered(small, request("r", CHAT, n=16))["r"]["response"]["status_code"] in (400, 503)
    asyncio.run(small.aclose())


def test_lines_give_what_the_official_client_reads(llm: AsyncLLM) -> None:
    types = pytest.importorskip("openai.types")
    chats = pytest.importorskip("openai.types.chat")
    for name, result in answered(llm, b"".join(MIXED)).items():
        kind = chats.ChatCompletion if name in ("chat", "sampled", "thinking") else types.Completion
        body = result["response"]["body"]
        assert kind.model_validate(body, strict=True).to_dict() == body


def test_the_default_of_a_field_is_the_models_own(llm: AsyncLLM) -> None:
    line = {"custom_id": "a", "method": "POST", "url": COMPLETION, "body": {"prompt": "hi", "seed": 1}}
    text = answered(llm, json.dumps(line).encode())["a"]["response"]["body"]["choices"][0]["text"]
    params = SamplingParams(temperature=0.6, top_k=20, seed=1, max_tokens=16)
    assert text == llm.llm.generate("hi", params)[0].outputs[0].text
