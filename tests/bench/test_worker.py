"""The worker's side of the protocol."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence

from qwill.bench.contestants import Generation, Loaded, Setup
from qwill.bench.worker import answers


class Echo:
    """A contestant that does almost nothing."""

    def load(self, setup: Setup) -> Loaded:
        return Loaded(1.5, setup.dtype, setup.threads)

    def generate(self, prompt_token_ids: Sequence[int], new_tokens: int) -> Generation:
        if new_tokens > 3:
            raise ValueError("too many")
        return Generation(list(prompt_token_ids)[:new_tokens], [0.5] * new_tokens)

    def logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float] | None:
        return [float(token_ids[-1])] * len(wanted)


def asked(*requests: dict[str, object]) -> list[dict[str, object]]:
    return list(answers(Echo(), io.StringIO("".join(json.dumps(request) + "\n" for request in requests))))


def test_each_request_has_its_answer() -> None:
    setup = {"path": "x", "dtype": "float32", "threads": 2, "max_model_len": 8}
    assert asked(
        {"op": "load", "setup": setup},
        {"op": "generate", "prompt_token_ids": [7, 8, 9], "new_tokens": 2},
        {"op": "logits", "token_ids": [1, 4], "wanted": [0, 1]},
    ) == [
        {"result": {"seconds": 1.5, "dtype": "float32", "threads": 2, "versions": {}, "weight_bytes": None}},
        {"result": {"token_ids": [7, 8], "seconds": [0.5, 0.5]}},
        {"result": [4.0, 4.0]},
    ]


def test_a_failed_request_is_answered_and_the_next_one_works() -> None:
    generate = {"op": "generate", "prompt_token_ids": [7]}
    first, second = asked({**generate, "new_tokens": 4}, {**generate, "new_tokens": 1})
    assert first == {"error": "ValueError: too many"}
    assert second["result"] == {"token_ids": [7], "seconds": [0.5]}


def test_what_libraries_print_does_not_mix_with_the_answers() -> None:
    code = (
        "import os\nfrom qwill.bench import worker\nreplies = worker._private_stdout()\n"
        "print('noise'); os.write(1, b'more noise')\n"
        "print('answer', file=replies, flush=True)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "answer\n"
    assert "noise" in result.stderr
    assert "more noise" in result.stderr
