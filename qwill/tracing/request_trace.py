"""RequestTrace: what was computed for one request, put together from the steps it came in, by position.

A prompt may come in pieces, beside other requests, after a prefix that was cached, with guesses that turn out wrong,
and twice after a preemption. Here it is one text again, and all tensors are fp32 on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwill.config import ModelConfig
from qwill.errors import CapacityError, SettingError
from qwill.request import Request
from qwill.tracing.watcher import Kept

__all__ = ["RequestTrace"]


@dataclass(frozen=True)
class _Piece:
    """What one step computed of a request: rows of the step, for the positions from `start` on."""

    start: int
    rows: slice
    kept: Kept


class RequestTrace:
    """One request of a trace. T of its N tokens were computed while it was traced, from position `first` on.

    `request` is the engine's own record of it: parameters, prompt and answer.
    """

    def __init__(self, request: Request, name: str, config: ModelConfig) -> None:
        self.request_id = name
        self.first = 0
        self.request = request
        self._config = config
        self._pieces: list[_Piece] = []
        self._computed: dict[int, int] = {}  # position -> the token that was computed there last
        self._keys_before: dict[int, Tensor] = {}  # layer -> keys (first, Hkv, D) that were in the cache already
        self._overflow = ""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt came from the prefix cache when it began."""
        return self.request.cached_tokens

    @property
    def token_ids(self) -> list[int]:
        """The N tokens of prompt and answer that were computed. The last one of an answer never is, unless as a guess;
        then too it is left out, so that a text has the same N with guesses and without.
        """
        known = self.request.tokens(0, self.request.num_tokens - bool(self.request.output_token_ids))
        count = self.first
        while count < len(known) and self._computed.get(count) == known[count]:
            count += 1
        return known[:count]

    @property
    def answer_token_ids(self) -> list[int]:
        """All tokens of the answer so far, the last one too."""
        return list(self.request.output_token_ids)

    @property
    def residuals(self) -> Tensor:
        """The residual stream (L + 1, T, C): the embeddings, then what comes out of each layer, before the last norm.

        Raises:
            SettingError: it was not kept: trace with residuals=True.
            CapacityError: it was too much to keep.
        """
        layers = range(self._config.num_layers + 1)
        return torch.stack([self._rows("residuals", layer, "residuals") for layer in layers])

    def queries(self, layer: int, *, rotated: bool = True) -> Tensor:
        """Queries (T, Hq, D) of a layer, after the rotation or before it.

        Raises:
            SettingError: there is no such layer, or it was not kept: trace with attention=True.
            CapacityError: it was too much to keep.
        """
        return self._rows("rotated_queries" if rotated else "queries", layer, "attention")

    def keys(self, layer: int, *, rotated: bool = True) -> Tensor:
        """Keys of a layer: rotated ones of the whole context, as the cache holds them (N, Hkv, D), cached ones too;
        those before the rotation (T, Hkv, D).

        Raises:
            SettingError, CapacityError: see `queries`.
        """
        if not rotated:
            return self._rows("keys", layer, "attention")
        own = self._rows("rotated_keys", layer, "attention")
        if self.first == 0:
            return own
        return torch.cat((self._keys_before[layer][: self.first].float().cpu(), own))

    def attention(self, layer: int) -> Tensor:
        """Attention weights (Hq, T, N) of a layer: softmax(q kᵀ / sqrt(D)), 0 for the keys after a query.

        Worked out from the queries and keys that the model used; query head h looks at key head h // (Hq // Hkv).

        Raises:
            SettingError, CapacityError: see `queries`.
        """
        q, k = self.queries(layer).transpose(0, 1), self.keys(layer).transpose(0, 1)  # (Hq, T, D) (Hkv, N, D)
        k = k.repeat_interleave(len(q) // len(k), dim=0)  # (Hq, N, D)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])  # (Hq, T, N)
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + self.first)
        return scores.masked_fill_(later, -math.inf).softmax(-1)  # (Hq, T, N)

    def mlp(self, layer: int) -> Tensor:
        """What goes into the down projection of a layer (T, F): silu(gate) · up.

        Raises:
            SettingError: there is no such layer, or it was not kept: trace with mlp=True.
            CapacityError: it was too much to keep.
        """
        return self._rows("mlp", layer, "mlp")

    def add(self, start: int, rows: slice, token_ids: Sequence[int], kept: Kept) -> None:
        """A step computed `token_ids` at the positions from `start` on; `kept` has them in `rows`."""
        self.first = min(self.first, start) if self._pieces else start
        self._pieces.append(_Piece(start, rows, kept))
        self._computed.update(enumerate(token_ids, start))

    def add_context(self, layer: int, keys: Tensor) -> None:
        """Keys (positions, Hkv, D) of a layer that were in the cache before anything was computed."""
        self._keys_before[layer] = keys

    def overflow(self, why: str) -> None:
        """From here on nothing could be kept."""
        self._overflow = why

    def _rows(self, name: str, layer: int, capture: str) -> Tensor:
        """(T, …) of one kind in one layer, by position; later steps over earlier ones."""
        last = self._config.num_layers - (name != "residuals")
        if not 0 <= layer <= last:
            raise SettingError(f"layer = {layer}: there is no such layer", hint=f"allowed: 0 … {last}")
        if self._overflow:
            raise CapacityError(self._overflow, hint="trace fewer tokens, or raise max_bytes")
        stop = len(self.token_ids)
        if stop == self.first:
            raise SettingError(f"no token of request {self.request_id!r:.100} was computed inside the trace and kept")
        rows: Tensor | None = None
        for piece in self._pieces:
            if (name, layer) not in piece.kept:
                raise SettingError(f"{capture} was not kept by this trace", hint=f"trace(llm, {capture}=True)")
            x = piece.kept[name, layer][piece.rows][: max(stop - piece.start, 0)].float().cpu()
            if rows is None:
                rows = torch.empty(stop - self.first, *x.shape[1:])
            rows[piece.start - self.first : piece.start - self.first + len(x)] = x
        assert rows is not None  # a request is in a trace from its first piece on
        return rows
