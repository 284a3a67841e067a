"""What is put together for a request is what `transformers` computes, however it was computed here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.errors import SettingError
from qwill.request import Request
from qwill.tracing import RequestTrace, trace

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = "Shall I compare thee to a summer's day? 你好 🙂"
FULL: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "threads": 1}


KINDS = ["qwen3", "qwen3-untied", "qwen3-odd-heads", "qwen3-one-kv-head", "qwen2", "qwen3-yarn", "llama"]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_and_residuals_equal_those_of_transformers(
    kind: str, chat_folder: Callable[[str], Path], hf_model: Callable[..., Any]
) -> None:
    folder = chat_folder(kind)
    with LLM(folder, **FULL) as llm, trace(llm, residuals=True, attention=True) as seen:
        llm.generate(PROMPT, GREEDY)
    request = seen.request()
    official = hf_model(folder)
    official.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor([request.token_ids])
        told = official(ids, output_attentions=True, output_hidden_states=True)
    assert len(request.token_ids) == len(PROMPT.encode()) + 8
    for layer, weights in enumerate(told.attentions):
        torch.testing.assert_close(request.attention(layer), weights[0], atol=1e-5, rtol=0)
    states = [state[0] for state in told.hidden_states]
    torch.testing.assert_close(request.residuals[:-1], torch.stack(states[:-1]), atol=1e-4, rtol=1e-4)
    # transformers gives the last one after the final norm.
    with torch.no_grad():
        torch.testing.assert_close(official.model.norm(request.residuals[-1]), states[-1], atol=1e-4, rtol=1e-4)


def test_plain_pytorch_ops_are_seen_too() -> None:
    test = f"{__file__}::{test_attention_and_residuals_equal_those_of_transformers.__name__}[qwen3]"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", test]
    environment = {**os.environ, "QWILL_OPS": "reference"}
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_last_residuals_give_the_logits(llm: LLM) -> None:
    with trace(llm, residuals=True) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="last")
        request = seen.request()
        logits = llm.logits(request.token_ids, all_positions=True)
        torch.testing.assert_close(seen.logits(request.residuals[-1]), logits, atol=1e-4, rtol=1e-4)


def test_the_weights_times_the_values_are_what_the_op_gives(llm: LLM) -> None:
    """Attention weights are worked out beside the engine's op; here they are held against its result, in float64."""
    block = llm.service.between_steps(lambda engine: engine.runner.model).model.layers[1].self_attn
    inside: dict[str, torch.Tensor] = {}
    hooks = [
        block.qkv_proj.register_forward_hook(lambda _m, _i, out: inside.__setitem__("qkv", out)),
        block.o_proj.register_forward_pre_hook(lambda _m, inputs: inside.__setitem__("out", inputs[0])),
    ]
    with trace(llm, attention=True) as seen:
        llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1), cache_salt="values")
    for hook in hooks:
        hook.remove()
    weights, config = seen.request().attention(1).double(), llm.config
    values = inside["qkv"].double().unflatten(-1, (-1, config.head_dim))[:, -config.num_kv_heads :]  # (T, Hkv, D)
    given = inside["out"].double().unflatten(-1, (-1, config.head_dim))  # (T, Hq, D)
    for head in range(config.num_heads):
        own = values[:, head * config.num_kv_heads // config.num_heads]  # (T, D)
        torch.testing.assert_close(weights[head] @ own, given[:, head], atol=1e-5, rtol=1e-5)


def test_queries_and_keys_turn_by_their_position(llm: LLM) -> None:
    with trace(llm, attention=True) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="turns")
    request, config = seen.request(), llm.config
    for layer in range(config.num_layers):
        for plain, rotated in (
            (request.queries(layer, rotated=False), request.queries(layer)),
            (request.keys(layer, rotated=False), request.keys(layer)),
        ):
            half = config.head_dim // 2
            complex_plain = torch.complex(plain[..., :half].double(), plain[..., half:].double())
            complex_rotated = torch.complex(rotated[..., :half].double(), rotated[..., half:].double())
            turns = config.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / config.head_dim)
            angles = torch.arange(len(plain), dtype=torch.float64)[:, None, None] * turns
            expected = complex_plain * torch.polar(torch.ones_like(angles), angles)
            torch.testing.assert_close(complex_rotated, expected, atol=1e-4, rtol=1e-4)


def test_the_mlp_is_kept(llm: LLM, tiny_chat_model: Path, hf_model: Callable[..., Any]) -> None:
    with trace(llm, mlp=True) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="mlp")
    request, inside = seen.request(), []
    official = hf_model(tiny_chat_model)
    official.model.layers[2].mlp.down_proj.register_forward_pre_hook(lambda _, inputs: inside.append(inputs[0][0]))
    with torch.no_grad():
        official(torch.tensor([request.token_ids]))
    torch.testing.assert_close(request.mlp(2), inside[0], atol=1e-4, rtol=1e-4)


def test_a_prompt_in_pieces_beside_others_is_one_text_again(tiny_chat_model: Path) -> None:
    prompts = [PROMPT * 3, "x", "To be, or not to be, that is"]
    with LLM(tiny_chat_model, max_batch_tokens=7, **FULL) as llm:
        with trace(llm, residuals=True, attention=True) as seen:
            llm.generate(prompts, GREEDY)
        for request in seen.requests.values():
            with trace(llm, residuals=True, attention=True) as alone:
                llm.generate([request.token_ids], SamplingParams(temperature=0.0, max_tokens=1), cache_salt="alone")
            torch.testing.assert_close(request.residuals, alone.request().residuals, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(request.attention(1), alone.request().attention(1), atol=1e-5, rtol=0)
    assert len(seen.requests) == 3
    assert max(sum(share.count for share in step.shares) for step in seen.steps) <= 7


def test_wrong_guesses_leave_nothing_behind(tiny_chat_model: Path) -> None:
    prompt = "abc abd abc abe abc abf abc ab"
    with LLM(tiny_chat_model, speculative="prompt_lookup", **FULL) as llm:
        few = dict.fromkeys(llm.tokenize("abc "), 50.0)  # so that what was said is said again
        with trace(llm, residuals=True) as seen:
            llm.generate(prompt, SamplingParams(temperature=5.0, seed=3, max_tokens=40, logit_bias=few))
        request = seen.request()
        logits = llm.logits(request.token_ids, all_positions=True)
        torch.testing.assert_close(seen.logits(request.residuals[-1]), logits, atol=1e-4, rtol=1e-4)
    drafts = sum(share.num_drafts for step in seen.steps for share in step.shares)
    assert drafts > 40 - len(seen.steps)  # some were wrong


def test_a_guess_that_ends_the_answer_is_not_among_the_tokens(tiny_chat_model: Path) -> None:
    """With guesses its last token is computed, without them it is not: the text must have the same tokens.

    The steps are laid out here, with the numbers of a real text: how far the engine guesses depends on the time.
    """
    again = SamplingParams(temperature=0.0, max_tokens=40, min_tokens=12, stop_token_ids=[7], logit_bias={7: 100.0})
    with LLM(tiny_chat_model, **FULL) as llm:
        with trace(llm, residuals=True) as seen:
            llm.generate([[7] * 12], again)
        plain = seen.request()
        known = plain.request.tokens(0, plain.request.num_tokens)
        with trace(llm, residuals=True) as seen:
            llm.generate([known], SamplingParams(temperature=0.0, max_tokens=1), cache_salt="computed whole")
        whole = seen.request().residuals
    guessed = RequestTrace(plain.request, "guessed", llm.config)
    start = len(known) - 5
    for begin, stop in ((0, start), (start, len(known))):  # the last step computes a token, and four guesses
        guessed.add(begin, slice(begin, stop), known[begin:stop], {("residuals", i): x for i, x in enumerate(whole)})
    assert guessed.token_ids == plain.token_ids == known[:-1]
    torch.testing.assert_close(guessed.residuals, plain.residuals, atol=1e-4, rtol=1e-4)


def test_what_was_computed_again_after_a_preemption_is_one_text(tiny_chat_model: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    block = 2 * 3 * 16 * 2 * 16 * 4  # bytes: keys and values, layers, tokens, heads, head_dim, fp32
    prompts = [list(range(10, 40)), list(range(110, 140))]
    with LLM(tiny_chat_model, dtype="float32", max_model_len=80, threads=1, kv_memory=6 * block) as llm:
        with trace(llm, residuals=True, attention=True) as seen:
            llm.generate(prompts, params)
        assert llm.stats.preemptions == 1
        for request in seen.requests.values():
            assert len(request.token_ids) == 59
            logits = llm.logits(request.token_ids, all_positions=True)
            torch.testing.assert_close(seen.logits(request.residuals[-1]), logits, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(request.attention(1).sum(-1), torch.ones(llm.config.num_heads, 59))


def test_a_trace_that_begins_within_an_answer_has_the_keys_before_it(llm: LLM) -> None:
    stream = llm.stream(PROMPT, GREEDY, cache_salt="within")
    for _ in range(3):
        next(stream)
    with trace(llm, residuals=True, attention=True) as seen:
        list(stream)
    with trace(llm, residuals=True, attention=True) as whole:
        llm.generate(PROMPT, GREEDY, cache_salt="whole")
    late, complete = seen.request(), whole.request()
    assert late.first > late.num_prompt_tokens
    assert late.token_ids == complete.token_ids
    torch.testing.assert_close(late.residuals, complete.residuals[:, late.first :], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(late.attention(2), complete.attention(2)[:, late.first :], atol=1e-5, rtol=0)


def test_keys_of_a_cached_prefix_are_there(llm: LLM) -> None:
    salt = {"cache_salt": "keys"}
    with trace(llm, attention=True) as first:
        llm.generate(PROMPT, GREEDY, **salt)
    with trace(llm, attention=True) as second:
        llm.generate(PROMPT + " and more", GREEDY, **salt)
    whole, rest = first.request(), second.request()
    assert rest.first == rest.cached_tokens >= len(PROMPT.encode()) - 1
    assert torch.equal(rest.keys(0)[: rest.first], whole.keys(0)[: rest.first])
    weights = rest.attention(0)
    assert weights.shape == (llm.config.num_heads, len(rest.token_ids) - rest.first, len(rest.token_ids))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_what_was_not_kept_or_is_not_there_is_told(llm: LLM) -> None:
    with trace(llm, mlp=True) as seen:
        llm.generate(["a", "b"], GREEDY)
    with pytest.raises(SettingError, match="2 requests"):
        seen.request()
    with pytest.raises(SettingError, match="no request 'zero'"):
        seen.request("zero")
    request = next(iter(seen.requests.values()))
    with pytest.raises(SettingError, match="residuals was not kept"):
        _ = request.residuals
    with pytest.raises(SettingError, match="attention was not kept"):
        request.attention(0)
    for layer in (-1, llm.config.num_layers):
        with pytest.raises(SettingError, match="no such layer"):
            request.mlp(layer)
    with pytest.raises(SettingError, match="negative"), trace(llm, max_bytes=-1):
        pass


def test_a_request_that_ended_before_its_only_step_counted_says_so(llm: LLM) -> None:
    """As where the trace began late, and the request was aborted within the step that it saw."""
    request = Request("late", [1, 2], GREEDY, max_tokens=9, output_token_ids=[3])
    seen = RequestTrace(request, "late", llm.config)
    seen.add(2, slice(0, 1), [3], {("residuals", 0): torch.zeros(1, llm.config.hidden_size)})
    assert seen.token_ids == [1, 2]
    with pytest.raises(SettingError, match="no token of request 'late'"):
        _ = seen.residuals
