"""What a trace notes of each op and each step: numbers and names only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OpRecord", "ShareRecord", "StepRecord"]


@dataclass(frozen=True)
class OpRecord:
    """One call of an op.

    Attributes:
        step: index of the step in `Trace.steps`.
        op: its name in `qwill.ops`.
        module: the module that called it, by its path: "model.layers.0.self_attn.qkv_proj"; "" for `CausalLM` itself.
        layer: the decoder layer that module lies in; None for embedding, last norm and head.
        backend: "native" or "reference".
        inputs: shape of each tensor among the arguments, weights included.
        output: shape of the result; of several, the first one's.
        dtype: number format of the weight where there is one, else of the first tensor: "int8", "float32", …
        start: when it began, in seconds since the trace did.
        seconds: how long it took.
        nbytes: bytes that it has to read and write at least: weights, arguments, result, and keys and values.
        operations: multiplications and additions of a matrix product or of attention; 0 for all others.
    """

    step: int
    op: str
    module: str
    layer: int | None
    backend: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    dtype: str
    start: float
    seconds: float
    nbytes: int
    operations: int


@dataclass(frozen=True)
class ShareRecord:
    """One request's share of a step.

    Attributes:
        request_id: whose it is, as in `Trace.requests`.
        start: position of the first token that was computed.
        count: known tokens that were computed.
        num_drafts: guesses that were computed after them.
        num_logits: rows of logits that were wanted.
        block_table: the blocks of its context in order; empty without a cache.
        cached_tokens: how many tokens of its prompt came from the prefix cache when it began.
        num_prompt_tokens: length of its prompt.
    """

    request_id: str
    start: int
    count: int
    num_drafts: int
    num_logits: int
    block_table: tuple[int, ...]
    cached_tokens: int
    num_prompt_tokens: int


@dataclass(frozen=True)
class StepRecord:
    """One forward pass of the engine.

    Attributes:
        index: its place in `Trace.steps`.
        start: when it began, in seconds since the trace did.
        seconds: how long the forward pass took; choosing tokens is not in it.
        shares: what it computed for whom, in the order of the rows.
        num_blocks: blocks of the KV cache.
        free_blocks: of those, how many could still be had: empty ones, and cached ones without a user.
        cached_blocks: how many were in the prefix cache, with or without a user.
        copies: (from, to, tokens): blocks whose beginning was copied first, for a prefix that ends within a block.
    """

    index: int
    start: float
    seconds: float
    shares: tuple[ShareRecord, ...]
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    copies: tuple[tuple[int, int, int], ...]
