"""Company changes nothing: tokens and log probabilities have the same bits alone and together, however it comes to it.

On native kernels with packed weights, where the arithmetic of a token does not depend on what is computed beside it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill.batch import KVCache
from qwill.config import load_config
from qwill.engine import Engine
from qwill.errors import EngineError, ModelError
from qwill.faults import Faults
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.packing import Packing
from qwill.prompt_lookup import PromptLookup
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampler import Sampled
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
from qwill.speculative import Speculation
from qwill.weights import load_model

if native_ops() is None:
    pytest.skip("the native kernels were not built, or are not wanted", allow_module_level=True)

CPU = torch.device("cpu")
Answer = list[Sampled]


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path]) -> CausalLM:
    folder = tiny_checkpoint("qwen3")
    packing = Packing(torch.float32, "int8")
    with open_checkpoint(folder) as checkpoint:
        return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU, packing=packing)


LIMITS = Limits(4096)


def make_engine(model: CausalLM, *, blocks: int = 400, limits: Limits = LIMITS, size: int = 16, **more: Any) -> Engine:
    cache = KVCache.empty((3, blocks, size, 2, 16), dtype=torch.bfloat16, device=CPU)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return Engine(ModelRunner(model, cache, CPU), limits, vocab_size=311, eos_token_ids=frozenset([300]), **more)


def random_params(choose: random.Random) -> SamplingParams:
    """Greedy or sampled, with all that a sampler knows."""
    return SamplingParams(
        temperature=choose.choice((0.0, 0.7, 1.5)),
        top_k=choose.choice((0, 20)),
        top_p=choose.choice((1.0, 0.9)),
        min_p=choose.choice((0.0, 0.05)),
        repetition_penalty=choose.choice((1.0, 1.2)),
        presence_penalty=choose.choice((0.0, 1.0)),
        frequency_penalty=choose.choice((0.0, 0.5)),
        seed=choose.randrange(2**40),
        logprobs=choose.choice((0, 3)),
        min_tokens=choose.choice((0, 4)),
        logit_bias=choose.choice((None, {7: 3.0})),
    )


def copy_of(one: Request) -> Request:
    more = {"index": one.index, "cache_salt": one.cache_salt, "priority": one.priority}
    return Request(one.request_id, one.prompt_token_ids, one.params, max_tokens=one.max_tokens, **more)


def run(engine: Engine, requests: list[Request], abort: dict[Request, int] | None = None) -> dict[Request, Answer]:
    """Every request's tokens with their log probabilities; `abort`: after how many tokens one is given up."""
    answers: dict[Request, Answer] = defaultdict(list, {one: [] for one in requests})
    for one in requests:
        engine.add(one)
    for _ in range(20_000):
        if not engine.busy:
            return answers
        for output in engine.step():
            assert output.error is None
            if output.sampled is not None:
                answers[output.request].append(output.sampled)
            if abort and len(answers[output.request]) == abort.get(output.request):
                engine.finish(output.request)
    raise AssertionError("the engine did not come to an end")


def mixed_requests(seed: int, count: int = 32) -> list[Request]:
    """Lengths from 1 to 2,000; some begin alike, some are answers of one prompt."""
    choose = random.Random(seed)
    system = choose.choices(range(300), k=70)
    lengths = [1, 2000, 16, 17, *(int(2 ** choose.uniform(0, 9)) for _ in range(count - 4))]
    prompts = [choose.choices(range(300), k=length) for length in lengths]
    prompts = [[*system, *prompt] if choose.random() < 0.4 else prompt for prompt in prompts]
    prompts[9] = prompts[8]
    return [
        Request(str(n), prompt, random_params(choose), max_tokens=choose.randint(1, 20), index=int(n == 9))
        for n, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> list[Answer]:
    """What each of the mixed requests gets in an engine of its own."""
    answers = []
    for one in mixed_requests(1):
        mine = copy_of(one)
        answers.append(run(make_engine(model, prefix_cache=False), [mine])[mine])
    return answers


@pytest.mark.parametrize(
    ("blocks", "size", "limits"),
    [
        (400, 16, LIMITS),  # everything at once
        (400, 16, Limits(37)),  # prompts in pieces, beside generation
        (520, 4, Limits(300)),  # too few blocks: preemption, and the prefix cache runs over
        (400, 16, Limits(512, max_num_seqs=3)),  # most wait
    ],
)
def test_32_mixed_requests_get_what_each_gets_alone(
    model: CausalLM, alone: list[Answer], blocks: int, size: int, limits: Limits
) -> None:
    engine = make_engine(model, blocks=blocks, size=size, limits=limits)
    requests = mixed_requests(1)
    for _ in range(2):  # the second time, all prompts are in the prefix cache
        ours = [copy_of(one) for one in requests]
        abort = {ours[n]: 2 for n in (5, 11, 20)}
        answers = run(engine, ours, abort)
        for one, want in zip(ours, alone, strict=True):
            assert answers[one] == (want[:2] if one in abort else want)
        assert engine.pool.num_free == blocks
    assert engine.stats.prefix_hit_tokens > 0
    assert (engine.stats.preemptions > 0) == (size == 4)


def test_a_second_request_computes_only_what_is_new(model: CausalLM) -> None:
    engine = make_engine(model)
    prompt = random.Random(2).choices(range(300), k=100)
    params = SamplingParams(temperature=0.0, logprobs=2)
    first = Request("a", prompt, params, max_tokens=8)
    want = run(engine, [first])[first]
    before = engine.stats.computed_tokens
    again = Request("b", prompt, params, max_tokens=8)
    assert run(engine, [again])[again] == want
    assert engine.stats.computed_tokens - before == 8  # the last token of the prompt, and seven of the answer
    assert again.cached_tokens == 99


def test_answers_of_one_prompt_share_its_blocks(model: CausalLM) -> None:
    engine = make_engine(model)
    prompt = random.Random(3).choices(range(300), k=160)
    params = SamplingParams(temperature=1.0, seed=5)
    requests = [Request("r", prompt, params, max_tokens=4, index=n) for n in range(4)]
    for one in requests:
        engine.add(one)
    for _ in range(2):
        engine.step()
    assert engine.pool.num_blocks - engine.pool.num_free == 10 + 1  # and one for the first answer's beginning
    run(engine, [])
    assert engine.stats.computed_tokens == 160 + 3 + 4 * 3


def test_a_failing_forward_pass_ends_the_guilty_request_only(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [random.Random(n).choices(range(300), k=20 + n) for n in range(4)]
    params = SamplingParams(temperature=0.8, seed=3, logprobs=1)
    requests = [Request(str(n), prompt, params, max_tokens=6) for n, prompt in enumerate(prompts)]
    want = run(make_engine(model), [copy_of(one) for one in requests])
    for place in ("model", "sample"):
        monkeypatch.setenv("QWILL_FAULT", f"{place}:2")
        engine = make_engine(model)
        ours = [copy_of(one) for one in requests]
        for one in ours:
            engine.add(one)
        outputs = []
        while engine.busy:
            outputs += engine.step()
        assert [(o.request, type(o.error)) for o in outputs if o.error] == [(ours[2], EngineError)]
        got = [[o.sampled for o in outputs if o.request is one] for one in ours]
        assert [answer for n, answer in enumerate(got) if n != 2] == [a for n, a in enumerate(want.values()) if n != 2]
        assert engine.pool.num_free == engine.pool.num_blocks


def test_a_step_that_fails_once_costs_nobody_anything(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = mixed_requests(4, count=12)
    want = run(make_engine(model), [copy_of(one) for one in requests])
    monkeypatch.setenv("QWILL_FAULT", "model:#3")
    ours = [copy_of(one) for one in requests]
    got = run(make_engine(model), ours)
    assert list(got.values()) == list(want.values())


def test_a_failed_request_leaves_nothing_in_the_prefix_cache(model: CausalLM) -> None:
    engine = make_engine(model)
    prompt = random.Random(6).choices(range(300), k=40)
    engine._faults = Faults("sample:bad")
    engine.add(Request("bad", prompt, SamplingParams(temperature=0.0), max_tokens=3))
    assert isinstance(engine.step()[0].error, EngineError)
    assert engine.pool.num_cached == 0


def test_logits_that_are_not_finite_end_one_request(model: CausalLM) -> None:
    """One layer's norm is poisoned for a step, as a flipped bit in memory would do it."""
    engine = make_engine(model, limits=Limits(64, max_num_seqs=1))
    bad, good = (Request(n, [1, 2, 3], SamplingParams(temperature=0.0), max_tokens=3) for n in "ab")
    want = run(make_engine(model), [copy_of(good)])
    engine.add(bad)
    engine.add(good)
    weight = model.model.norm.weight
    kept = weight.clone()
    weight.fill_(float("nan"))
    try:
        outputs = engine.step()
    finally:
        weight.copy_(kept)
    assert isinstance(outputs[0].error, ModelError)
    run(engine, [])
    assert [sampled.token_id for sampled in next(iter(want.values()))] == good.output_token_ids


class Guessing(Speculation):
    """Always guesses, whether it pays or not: mostly what is known to come, sometimes something else."""

    def __init__(self, known: dict[tuple[str, int], list[int]], seed: int) -> None:
        super().__init__(PromptLookup(), max_tokens=6)
        self._known, self._choose = known, random.Random(seed)

    def propose(self, requests: Sequence[Request]) -> None:
        for one in requests:
            done = len(one.output_token_ids)
            room = max(one.max_tokens - done - 1, 0)
            come = self._known[one.request_id, one.index][done : done + min(self._choose.randint(0, 6), room)]
            wrong = [token if self._choose.random() < 0.85 else self._choose.randrange(311) for token in come]
            one.draft_token_ids = wrong if one.num_pending_tokens == 1 else []


@pytest.mark.parametrize(("blocks", "size", "limits"), [(400, 16, LIMITS), (520, 4, Limits(150)), (400, 16, Limits(9))])
def test_guesses_right_and_wrong_change_no_token_and_no_log_probability(
    model: CausalLM, alone: list[Answer], blocks: int, size: int, limits: Limits
) -> None:
    requests = mixed_requests(1)
    answers = zip(requests, alone, strict=True)
    known = {(one.request_id, one.index): [sampled.token_id for sampled in answer] for one, answer in answers}
    engine = make_engine(model, blocks=blocks, size=size, limits=limits, speculation=Guessing(known, 8))
    ours = [copy_of(one) for one in requests]
    got = run(engine, ours)
    assert list(got.values()) == alone
    assert engine.stats.accepted_tokens > 50
    assert engine.stats.drafted_tokens > engine.stats.accepted_tokens
    assert engine.pool.num_free == blocks


@pytest.mark.parametrize("rubbish", [[311], [-1], [2**31], [10**30], [5, 311, 5], [310]])
def test_guesses_outside_the_vocabulary_are_not_computed(
    model: CausalLM, alone: list[Answer], rubbish: list[int]
) -> None:
    class Rubbish(Speculation):
        def propose(self, requests: Sequence[Request]) -> None:
            for one in requests:
                one.draft_token_ids = rubbish if one.num_pending_tokens == 1 else []

    engine = make_engine(model, speculation=Rubbish(PromptLookup(), max_tokens=6))
    ours = [copy_of(one) for one in mixed_requests(1)]
    assert list(run(engine, ours).values()) == alone


def test_an_end_inside_a_run_of_guesses_ends_there(model: CausalLM) -> None:
    prompt = random.Random(12).choices(range(300), k=30)
    free = Request("r", prompt, SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=12)
    tokens = [sampled.token_id for sampled in run(make_engine(model), [free])[free]]
    end = next(n for n, token in enumerate(tokens) if n and token not in tokens[:n])
    for params in (
        SamplingParams(temperature=0.0, stop_token_ids=(tokens[end],)),
        SamplingParams(temperature=0.0, stop_token_ids=(tokens[end],), min_tokens=end),
    ):
        one = Request("r", prompt, params, max_tokens=12)
        engine = make_engine(model, speculation=Guessing({("r", 0): tokens}, 3))
        engine.add(one)
        outputs = []
        while engine.busy:
            outputs += engine.step()
        assert [o.sampled.token_id for o in outputs if o.sampled] == tokens[: end + 1]
        assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", tokens[end])


def test_prompt_lookup_finds_what_a_repeating_answer_repeats(model: CausalLM) -> None:
    """A tiny random model, decoding greedily, soon goes in circles: every guess is right then."""
    prompt = random.Random(13).choices(range(300), k=8)
    params = SamplingParams(temperature=0.0, logprobs=1, ignore_eos=True)
    plain, guessed = (Request("r", prompt, params, max_tokens=300) for _ in range(2))
    want = run(make_engine(model), [plain])[plain]
    engine = make_engine(model, speculation=Speculation(PromptLookup(), max_tokens=6))
    assert run(engine, [guessed])[guessed] == want
    assert engine.stats.steps < 301
