"""One word for one thing: names that other code bases use for what has a name here are not used in qwill/.

Looks at what we name (variables, parameters, attributes, functions, classes, files), not at what we call:
`transformers` may have its `num_attention_heads`, and a checkpoint's keys are text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

QWILL = Path(__file__).resolve().parent.parent / "qwill"

WORDS = {
    "num_heads": "n_head n_heads num_attention_heads num_qo_heads num_q_heads nheads",
    "num_kv_heads": "n_kv_head n_kv_heads num_key_value_heads n_local_heads n_query_groups n_kv_groups kv_head_count",
    "heads_per_kv": "num_key_value_groups n_rep n_repeats kv_mul q_per_kv num_queries_per_kv group_size_kv",
    "head_dim": "head_size d_head dim_head dim_per_head hs",
    "hidden_size": "n_embd d_model emb_dim embed_dim model_dim embedding_size",
    "intermediate_size": "hidden_dim ffn_dim ffn_hidden_size d_ff mlp_dim",
    "num_layers": "n_layer n_layers num_hidden_layers block_count",
    "vocab_size": "n_vocab num_vocab padded_vocab_size",
    "gate_proj, up_proj, down_proj": "w1 w2 w3 fc1 fc2 fc3 fc_1 fc_2 c_fc",
    "q_proj, k_proj, v_proj, o_proj": "wq wk wv wo c_attn c_proj attn_q attn_k attn_v attn_output out_proj",
    "embed_tokens": "wte tok_embeddings tok_emb word_embeddings",
    "lm_head": "output_head unembed",
    "input_layernorm, post_attention_layernorm": "ln_1 ln_2 norm1 norm2 attention_norm ffn_norm attn_norm",
    "rope": "apply_rope apply_rotary apply_rotary_pos_emb rotary_emb pos_emb",
    "rope_theta": "rope_base rope_freq_base",
    "rms_norm_eps": "norm_eps layer_norm_eps rms_eps",
    "max_position_embeddings, max_model_len": "n_ctx ctx_len context_length max_seq_len max_seq_length context_size",
    "context_lens": "seq_len seq_lens seqlen seqlens sequence_length cu_seqlens kv_len kv_lens",
    "num_computed_tokens": "past_len past_key_values cached_len num_cached_tokens input_pos start_pos n_past",
    "num_scheduled_tokens": "extend_len num_new_tokens q_len",
    "block_size": "page_size block_len",
    "block_table": "page_table page_tables block_map block_ids_table",
    "slot_mapping": "out_loc out_cache_loc slot_map slots_map",
    "kv_cache": "past_kv key_value_cache cache_k cache_v k_cache v_cache",
    "Request, request_id": "req reqs sequence_id seq_id seq_group uid",
    "prompt_token_ids": "prompt_tokens_ids prompt_ids input_tokens",
    "max_tokens": "max_new_tokens n_predict num_predict max_gen_len",
    "temperature": "temp",
    "repetition_penalty": "repeat_penalty rep_penalty",
    "finish_reason": "stop_cause finished_reason",
    "reasoning": "reasoning_content thinking_text",
    "eos_token_ids": "eos_id eos_ids eot_id",
}
"""The right word -> the words that are not used for it."""

WRONG = {wrong: right for right, wrongs in WORDS.items() for wrong in wrongs.split()}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def wrong_words(text: str) -> list[str]:
    """What a piece of source names wrongly, as "line: word, the right word"."""
    found = [(line, name.strip("_").lower()) for name, line in names(ast.parse(text))]
    return [f"{line}: {name}, say {WRONG[name]}" for line, name in found if name in WRONG]


@pytest.mark.parametrize("path", sorted(QWILL.rglob("*.py")), ids=lambda path: path.relative_to(QWILL).as_posix())
def test_a_file_uses_the_words_of_the_glossary(path: Path) -> None:
    assert path.stem not in WRONG, f"say {WRONG[path.stem]}"
    assert wrong_words(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "n_heads = 1",
        "def f(page_table): ...",
        "def f(*, seq_len): ...",
        "self.w1 = w",
        "class Req: ...",
        "for n_layers in x: ...",
        "import transformers as wte",
        "head_size: int = 3",
        "_kv_mul = 2",
        "with f() as n_ctx: ...",
    ],
)
def test_the_search_finds_a_wrong_word_wherever_it_is_given(text: str) -> None:
    assert len(wrong_words(text)) == 1


@pytest.mark.parametrize("text", ["x = config.num_attention_heads", "f(max_new_tokens=3)", "x = d['n_heads']", "w = 1"])
def test_the_search_leaves_the_words_of_others_alone(text: str) -> None:
    assert wrong_words(text) == []


def test_no_right_word_is_a_wrong_one() -> None:
    right = {word.strip(",") for words in WORDS for word in words.split()}
    assert right & set(WRONG) == set()
