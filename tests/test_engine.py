"""Many requests at once: each must get what it would get alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill.batch import KVCache
from qwill.config import load_config
from qwill.engine import Engine, StepOutput
from qwill.errors import ModelError, SettingError
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
from qwill.weights import load_model

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path]) -> CausalLM:
    folder = tiny_checkpoint("qwen3")
    with open_checkpoint(folder) as checkpoint:
        return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU)


def make_engine(model: CausalLM, *, blocks: int = 64, budget: int = 64, eos: Sequence[int] = ()) -> Engine:
    cache = KVCache.empty((3, blocks, 4, 2, 16), dtype=torch.float32, device=CPU)
    runner = ModelRunner(model, cache, CPU)
    return Engine(runner, Limits(budget), vocab_size=311, eos_token_ids=frozenset(eos))


def request(prompt: Sequence[int], tokens: int = 8, params: SamplingParams = GREEDY, **more: Any) -> Request:
    return Request("r", list(prompt), params, max_tokens=tokens, **more)


def random_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(311), k=length)


def run(engine: Engine, *requests: Request) -> list[StepOutput]:
    for one in requests:
        engine.add(one)
    outputs = []
    for _ in range(2000):
        if not engine.busy:
            return outputs
        outputs += engine.step()
    raise AssertionError("the engine did not come to an end")


def alone(model: CausalLM, prompt: Sequence[int], tokens: int = 8, params: SamplingParams = GREEDY) -> list[int]:
    one = request(prompt, tokens, params)
    run(make_engine(model, budget=1000), one)
    return one.output_token_ids


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen2", "llama", "qwen3-odd-heads"])
def test_greedy_tokens_equal_transformers(kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any) -> None:
    folder = tiny_checkpoint(kind)
    config = load_config(folder)
    with open_checkpoint(folder) as checkpoint:
        ours = load_model(checkpoint, config, dtype=torch.float32, device=CPU)
    shape = (config.num_layers, 16, 16, config.num_kv_heads, config.head_dim)
    runner = ModelRunner(ours, KVCache.empty(shape, dtype=torch.float32, device=CPU), CPU)
    engine = Engine(runner, Limits(7), vocab_size=311, eos_token_ids=frozenset())
    prompt = random_prompt(20, 1)
    cached, uncached = request(prompt, 64), request(prompt, 64, use_cache=False)
    run(engine, cached)
    run(engine, uncached)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        theirs = hf_model(folder).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False, pad_token_id=0
        )
    assert cached.output_token_ids == theirs[0, 20:].tolist()
    assert uncached.output_token_ids == cached.output_token_ids


def test_a_mixed_batch_gives_each_request_what_it_gets_alone(model: CausalLM) -> None:
    prompts = [random_prompt(length, length) for length in (1, 3, 50, 17, 4, 5)]
    requests = [request(prompt, 5 + number) for number, prompt in enumerate(prompts)]
    run(make_engine(model, budget=13), *requests)
    for one in requests:
        assert one.output_token_ids == alone(model, one.prompt_token_ids, one.max_tokens)


def test_a_small_cache_preempts_and_still_gives_the_same_tokens(model: CausalLM) -> None:
    requests = [request(random_prompt(10, seed), 20) for seed in range(4)]
    engine = make_engine(model, blocks=12, budget=32)  # 48 slots; the four need 120
    run(engine, *requests)
    assert engine.pool.num_free == 12
    for one in requests:
        assert one.output_token_ids == alone(model, one.prompt_token_ids, 20)


def test_a_seed_gives_the_same_tokens_alone_and_in_company(model: CausalLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    prompt = random_prompt(9, 3)
    want = alone(model, prompt, 12, params)
    others = [request(random_prompt(6, seed), 12, SamplingParams(temperature=1.0)) for seed in range(4)]
    ours = request(prompt, 12, params)
    run(make_engine(model, blocks=10, budget=11), *others[:2], ours, *others[2:])
    assert ours.output_token_ids == want


def test_answers_of_one_prompt_differ_by_their_index(model: CausalLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    answers = [request([5, 6], 12, params, index=index) for index in range(3)]
    run(make_engine(model), *answers)
    assert len({tuple(one.output_token_ids) for one in answers}) == 3


def test_every_end_token_ends_an_answer_unless_it_is_ignored(model: CausalLM) -> None:
    prompt = random_prompt(6, 2)
    free = alone(model, prompt, 12)
    eos = free[3]
    first = free.index(eos)
    one, ignoring = request(prompt, 12), request(prompt, 12, SamplingParams(temperature=0.0, ignore_eos=True))
    outputs = run(make_engine(model, eos=[300, eos]), one)
    assert one.output_token_ids == free[: first + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", None)
    outputs = run(make_engine(model, eos=[300, eos]), ignoring)
    assert ignoring.output_token_ids == free
    assert outputs[-1].finish_reason == "length"


def test_a_stop_token_id_is_reported(model: CausalLM) -> None:
    prompt = random_prompt(6, 2)
    stop = alone(model, prompt, 12)[2]
    one = request(prompt, 12, SamplingParams(temperature=0.0, stop_token_ids=(stop,)))
    outputs = run(make_engine(model), one)
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", stop)


def test_no_end_before_min_tokens(model: CausalLM) -> None:
    prompt = random_prompt(6, 2)
    eos = alone(model, prompt, 1)[0]
    one = request(prompt, 12, SamplingParams(temperature=0.0, min_tokens=5, max_tokens=12))
    run(make_engine(model, eos=[eos]), one)
    assert len(one.output_token_ids) >= 5
    assert eos not in one.output_token_ids[:5]


def test_one_request_with_bad_logits_ends_alone(model: CausalLM) -> None:
    """A poisoned row of the embedding, used by one prompt only."""
    poisoned = 310
    weight = model.model.embed_tokens.weight
    kept = weight[poisoned].clone()
    good = [request(random_prompt(5, seed), 6) for seed in range(3)]
    want = [alone(model, one.prompt_token_ids, 6) for one in good]
    try:
        weight[poisoned] = float("nan")
        bad = request([1, poisoned, 2], 6)
        # The head is tied to the embedding, so its last row is poisoned too: leave it out of the vocabulary.
        cache = KVCache.empty((3, 32, 4, 2, 16), dtype=torch.float32, device=CPU)
        engine = Engine(ModelRunner(model, cache, CPU), Limits(64), vocab_size=310, eos_token_ids=frozenset())
        outputs = run(engine, good[0], bad, *good[1:])
    finally:
        weight[poisoned] = kept
    failed = [output for output in outputs if output.request is bad]
    assert [output.finish_reason for output in failed] == ["error"]
    assert isinstance(failed[0].error, ModelError)
    assert [one.output_token_ids for one in good] == want
    assert engine.pool.num_free == 32


def test_finishing_is_idempotent_and_frees_the_blocks(model: CausalLM) -> None:
    engine = make_engine(model)
    one, other = request(random_prompt(9, 0), 50), request(random_prompt(9, 1), 3)
    engine.add(one)
    engine.add(other)
    engine.step()
    engine.finish(one)
    engine.finish(one)
    run(engine)
    assert engine.pool.num_free == 64
    assert other.output_token_ids == alone(model, other.prompt_token_ids, 3)


def test_parameters_that_name_unknown_tokens_are_refused_and_leave_no_trace(model: CausalLM) -> None:
    engine = make_engine(model)
    with pytest.raises(SettingError, match="311"):
        engine.add(request([1], 4, SamplingParams(logit_bias={311: 1.0})))
    assert not engine.busy


def test_random_arrivals_and_departures_leak_nothing(model: CausalLM) -> None:
    """Twenty seeded schedules with a tiny cache: every request ends, and all blocks come back."""
    for seed in range(20):
        choose = random.Random(seed)
        engine = make_engine(model, blocks=choose.randint(8, 20), budget=choose.randint(1, 30))
        waiting = [request(random_prompt(choose.randint(1, 20), n), choose.randint(1, 8)) for n in range(8)]
        present: list[Request] = []
        dropped: list[Request] = []
        while waiting or engine.busy:
            if waiting and choose.random() < 0.5:
                present.append(waiting.pop())
                engine.add(present[-1])
            if present and choose.random() < 0.05:
                dropped.append(present.pop(choose.randrange(len(present))))
                engine.finish(dropped[-1])
            engine.step()
        assert engine.pool.num_free == engine.runner.kv_cache.num_blocks
        assert all(len(one.output_token_ids) == one.max_tokens for one in present)
