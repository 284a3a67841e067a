"""The small model's guesses are what it would say alone, whatever became of its guesses before."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from qwill.batch import KVCache
from qwill.config import load_config
from qwill.draft_model import DraftModel
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Scheduled
from qwill.weights import load_model

CPU = torch.device("cpu")
VOCAB = 300  # of the model's 311 ids; the others have no token
Load = Callable[..., CausalLM]


@pytest.fixture(scope="module")
def load(tiny_checkpoint: Callable[..., Path]) -> Load:
    def loaded(name: str = "qwen3", **config: int) -> CausalLM:
        folder = tiny_checkpoint(name, **config)
        with open_checkpoint(folder) as checkpoint:
            return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU)

    return loaded


@pytest.fixture(scope="module")
def small(load: Load) -> CausalLM:
    return load(num_hidden_layers=1)


class CountingRunner(ModelRunner):
    """Remembers how many tokens each step computed."""

    def run(self, scheduled: Sequence[Scheduled]) -> torch.Tensor:
        self.counts = [*getattr(self, "counts", []), sum(share.count for share in scheduled)]
        return super().run(scheduled)


def runner_of(model: CausalLM, blocks: int = 200) -> CountingRunner:
    config = model.config
    shape = (config.num_layers, blocks, 4, config.num_kv_heads, config.head_dim)
    return CountingRunner(model, KVCache.empty(shape, dtype=torch.float32, device=CPU), CPU)


def drafting(model: CausalLM, *, blocks: int = 200, budget: int = 1000) -> DraftModel:
    return DraftModel(runner_of(model, blocks), vocab_size=VOCAB, max_batch_tokens=budget)


def request(length: int, seed: int = 0) -> Request:
    return Request("r", random.Random(seed).choices(range(VOCAB), k=length), SamplingParams(), 10_000)


def written(model: CausalLM, tokens: list[int], count: int) -> list[int]:
    """The oracle: the model alone, computed anew from the first token, without a cache and without our class."""
    runner = ModelRunner(model, KVCache.empty((1, 1, 4, 1, 4), dtype=torch.float32, device=CPU), CPU)
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(runner.logits(tokens, all_positions=False)[0, :VOCAB].argmax()))
    return tokens[len(tokens) - count :]


def all_tokens(one: Request) -> list[int]:
    return one.tokens(0, one.num_tokens)


def test_guesses_are_what_the_small_model_says_alone(small: CausalLM) -> None:
    requests = [request(length, length) for length in (1, 30, 7)]
    guesses = drafting(small).propose(requests, [5, 0, 3])
    assert guesses == [written(small, all_tokens(requests[0]), 5), [], written(small, all_tokens(requests[2]), 3)]


@pytest.mark.parametrize("seed", range(6))
def test_so_are_they_after_any_mix_of_right_and_wrong_guesses(small: CausalLM, seed: int) -> None:
    rng = random.Random(seed)
    model, requests = drafting(small), [request(rng.randrange(1, 20), n) for n in range(3)]
    for _ in range(8):
        asked = [one for one in requests if rng.random() < 0.8]
        most = [rng.randrange(5) for _ in asked]
        guesses = model.propose(asked, most)
        for one, guess, count in zip(asked, guesses, most, strict=True):
            assert guess == written(small, all_tokens(one), count)
            if rng.random() < 0.8:  # else the step was lost to it, as when it was preempted
                one.output_token_ids += [*guess[: rng.randrange(count + 1)], rng.randrange(VOCAB)]
        for one in requests:  # several steps may pass before it is asked again
            one.output_token_ids += rng.choices(range(VOCAB), k=rng.choice((0, 0, 1, 3)))


def test_a_draft_equal_to_the_target_is_always_right(small: CausalLM) -> None:
    model, requests = drafting(small), [request(9, 1), request(4, 2)]
    answers = [written(small, all_tokens(one), 60) for one in requests]
    for _ in range(10):
        for one, guess, answer in zip(requests, model.propose(requests, [3, 5]), answers, strict=True):
            done = len(one.output_token_ids)
            assert guess == answer[done : done + len(guess)]
            one.output_token_ids += answer[done : done + len(guess) + 1]
    assert [len(one.output_token_ids) for one in requests] == [40, 60]


def test_a_round_computes_each_token_once(small: CausalLM) -> None:
    """Of a right guess nothing is computed again, and of a wrong one only what followed it."""
    runner, one = runner_of(small), request(10)
    model = DraftModel(runner, vocab_size=VOCAB, max_batch_tokens=1000)
    guess = model.propose([one], [3])[0]
    one.output_token_ids += [*guess, 5]
    guess = model.propose([one], [3])[0]
    one.output_token_ids += [guess[0], (guess[1] + 1) % VOCAB]
    model.propose([one], [2])
    # After all were right: the last guess was not computed yet, and the token after it is new.
    assert runner.counts == [10, 1, 1, 2, 1, 1, 1, 1]


def test_a_long_prompt_is_read_over_several_calls(small: CausalLM) -> None:
    model, long, short = drafting(small, budget=16), request(50, 1), request(3, 2)
    for _ in range(3):
        guesses = model.propose([long, short], [2, 2])
        assert guesses == [[], written(small, all_tokens(short), 2)]
    for _ in range(3):
        last = model.propose([long, short], [2, 2])[0]
    assert last == written(small, all_tokens(long), 2)


def test_a_full_cache_gives_up_who_was_left_longest_ago(small: CausalLM) -> None:
    model = drafting(small, blocks=8)  # 32 tokens
    first, second, third = (request(10, seed) for seed in range(3))
    for one in (first, second, third, first, third, second):
        assert model.propose([one], [3]) == [written(small, all_tokens(one), 3)]
    assert model.num_free_blocks == 2


def test_who_was_asked_of_late_keeps_what_was_computed(small: CausalLM) -> None:
    runner = runner_of(small, blocks=8)
    model = DraftModel(runner, vocab_size=VOCAB, max_batch_tokens=1000)
    first, second, third = (request(10, seed) for seed in range(3))
    for one in (first, second, first, third, first):
        model.propose([one], [1])
    assert runner.counts == [10, 10, 1, 10, 1]


def test_who_finds_no_room_gets_no_guesses_and_takes_none_from_others(small: CausalLM) -> None:
    model, requests = drafting(small, blocks=8), [request(10, seed) for seed in range(4)]
    for _ in range(10):
        guesses = model.propose(requests, [2] * 4)
        assert sorted(map(len, guesses)) == [0, 0, 2, 2]
        for one, guess in zip(requests, guesses, strict=True):
            assert guess in ([], written(small, all_tokens(one), 2))
    too_long = request(40)
    assert model.propose([too_long], [2]) == [[]]
    assert model.propose([requests[0]], [2]) == [written(small, all_tokens(requests[0]), 2)]


def test_answers_that_grow_beyond_a_tiny_cache_never_stop_each_other(small: CausalLM) -> None:
    rng = random.Random(0)
    model, requests = drafting(small, blocks=8, budget=20), [request(6, seed) for seed in range(3)]
    served = 0
    for _ in range(25):
        guesses = model.propose(requests, [3] * 3)
        served += any(guesses)
        for one, guess in zip(requests, guesses, strict=True):
            assert guess == written(small, all_tokens(one), len(guess))
            one.output_token_ids += [*guess[: rng.randrange(len(guess) + 1)], rng.randrange(VOCAB)]
            if one.num_tokens > 28:
                model.forget(one)
                one.output_token_ids = []
    assert served > 20


def test_ids_that_the_small_model_does_not_have_are_no_error(load: Load) -> None:
    model, one, other = drafting(load(num_hidden_layers=1, vocab_size=305)), request(5), request(5, 1)
    one.prompt_token_ids[2] = 308
    assert list(map(len, model.propose([one, other], [3, 3]))) == [0, 3]


def test_nothing_is_guessed_past_the_small_models_context(load: Load) -> None:
    model = drafting(load(num_hidden_layers=1, max_position_embeddings=16))
    assert list(map(len, model.propose([request(12), request(13)], [4, 4]))) == [4, 0]


def test_a_forgotten_request_frees_its_blocks_and_leaves_nothing_behind(small: CausalLM) -> None:
    model, one = drafting(small), request(30)
    model.propose([one], [4])
    assert model.num_free_blocks < 200
    model.forget(one)
    model.forget(one)
    assert model.num_free_blocks == 200
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
