"""Text editing with guesses from the prompt, against plain decoding: the same ids, in how much of the time?"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_texts import EDITS
from benchmarks.engine_work import Finding, Work
from qwill import LLM, SamplingParams
from qwill.errors import BenchmarkError
from qwill.outputs import RequestOutput

__all__ = ["lookup"]

GUESSING: dict[str, Any] = {"speculative": "prompt_lookup"}
"""What an LLM is told besides."""
FEWEST_TOKENS = 200
"""A shorter answer did not give the text back, and says little."""


def lookup(work: Work) -> list[Finding]:
    """Tokens per second of all edits with guesses over those without, in turns; and of each edit."""
    params = SamplingParams(temperature=0, max_tokens=work.answer_tokens)
    tokens: dict[str, int] = {}
    seconds: dict[str, dict[str, list[float]]] = {name: {"plain": [], "guessing": []} for name in EDITS}
    with LLM(work.real, threads=work.threads) as plain, LLM(work.real, threads=work.threads, **GUESSING) as guessing:
        for number in range(-1, work.rounds):  # the first is for warming up
            for name, said in EDITS.items():
                done = {
                    way: llm.chat([{"role": "user", "content": said}], params)[0]
                    for way, llm in (("plain", plain), ("guessing", guessing))
                }
                tokens[name] = _same_tokens(name, *done.values())
                if number >= 0:
                    for way, output in done.items():
                        seconds[name][way].append(output.metrics.decode_seconds)
        guesses = {"drafted_tokens": guessing.stats.drafted_tokens, "accepted_tokens": guessing.stats.accepted_tokens}
    everything = _finding("all edits", tokens, seconds, at_least=1.7)
    everything.details.update(guesses)
    return [*(_finding(name, tokens, {name: seconds[name]}) for name in EDITS), everything]


def _same_tokens(name: str, plain: RequestOutput, guessing: RequestOutput) -> int:
    """How many tokens both answers have, which must be equal."""
    expected, got = (output.outputs[0].token_ids for output in (plain, guessing))
    if expected != got:
        raise BenchmarkError(f"{name}: with guesses the answer is another one", where=f"{expected} and {got}")
    return len(got)


def _finding(
    name: str, tokens: dict[str, int], seconds: dict[str, dict[str, list[float]]], *, at_least: float | None = None
) -> Finding:
    """The best time of each edit and way counts."""
    plain, guessing = (sum(min(one[way]) for one in seconds.values()) for way in ("plain", "guessing"))
    decoded = sum(tokens[edit] - 1 for edit in seconds)
    details = {
        "tokens": {edit: tokens[edit] for edit in seconds},
        "gives_the_text_back": all(tokens[edit] >= FEWEST_TOKENS for edit in seconds),
        "plain_tokens_per_second": decoded / plain,
        "guessing_tokens_per_second": decoded / guessing,
        "seconds": seconds,
    }
    return Finding(f"prompt lookup, {name}, × plain decode", plain / guessing, at_least=at_least, details=details)
