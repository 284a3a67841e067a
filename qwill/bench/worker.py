"""A process that runs one contestant: `python -m qwill.bench.worker NAME`, requests and answers one JSON line each.

    {"op": "load", "setup": {…}}                                     -> {"result": {"seconds": …, "dtype": …, …}}
    {"op": "generate", "prompt_token_ids": […], "new_tokens": 128}   -> {"result": {"token_ids": […], "seconds": […]}}
    {"op": "logits", "token_ids": […], "wanted": […]}                -> {"result": […] or null}
    {"op": "peak_rss"}                                               -> {"result": bytes}
    {"op": "read_bandwidth", "threads": 2}                           -> {"result": bytes per second}

A request that fails is answered with {"error": "…"}. The end of standard input ends the process. Whatever libraries
print goes to stderr. Must not know what it is compared with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TextIO

from qwill.bench.contestants import CONTESTANTS, Contestant, Setup
from qwill.bench.machine import peak_rss, read_bandwidth

__all__ = ["answers", "main"]


def main(name: str) -> int:
    """Serve requests for one contestant until standard input ends. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business: it ends this process
    replies = _private_stdout()
    contestant = CONTESTANTS[name]()
    for reply in answers(contestant, sys.stdin):
        print(json.dumps(reply), file=replies, flush=True)
    replies.flush()
    os._exit(0)  # llama.cpp's threads would keep an orderly exit waiting


def answers(contestant: Contestant, requests: TextIO) -> Iterator[dict[str, Any]]:
    """The answer to each request line."""
    for line in requests:
        request = json.loads(line)
        op = _OPS[request.pop("op")]
        try:
            yield {"result": op(contestant, **request)}
        except Exception as error:  # whatever a peer raises is shown, not guessed at
            traceback.print_exc()
            yield {"error": f"{type(error).__name__}: {error}"}


def _private_stdout() -> TextIO:
    """The real standard output for our lines alone; file descriptor 1 becomes stderr, for everybody else."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _load(contestant: Contestant, setup: dict[str, Any]) -> dict[str, Any]:
    return asdict(contestant.load(Setup(**setup)))


def _generate(contestant: Contestant, prompt_token_ids: list[int], new_tokens: int) -> dict[str, Any]:
    return asdict(contestant.generate(prompt_token_ids, new_tokens))


def _logits(contestant: Contestant, token_ids: list[int], wanted: list[int]) -> list[float] | None:
    return contestant.logits(token_ids, wanted)


_OPS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "generate": _generate,
    "logits": _logits,
    "peak_rss": lambda _: peak_rss(),
    "read_bandwidth": lambda _, threads: read_bandwidth(threads),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
