"""Trace: watch an LLM for the time of a `with` block.

The engine's runner is replaced by one that lets a watcher see each forward pass and then does as ever; at the end of
the block the old one is put back. So there is nothing to pay when nobody traces. While one does, decoding steps are
computed op by op, not replayed, which gives the same bits. Knows the engine's steps; knows no text.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwill.block_pool import BlockPool
from qwill.errors import QwillError, SettingError, UsageError
from qwill.ops.observed import observing
from qwill.request import Request
from qwill.runner import ModelRunner, Runner
from qwill.scheduler import BlockCopy, Scheduled
from qwill.system import available_memory
from qwill.tracing.records import OpRecord, ShareRecord, StepRecord
from qwill.tracing.request_trace import RequestTrace
from qwill.tracing.watcher import Kept, Watcher

if TYPE_CHECKING:
    from qwill.engine import Engine
    from qwill.llm import LLM

__all__ = ["Trace", "trace"]


@contextmanager
def trace(
    llm: LLM, *, residuals: bool = False, attention: bool = False, mlp: bool = False, max_bytes: int | None = None
) -> Iterator[Trace]:
    """Note every op and every step of `llm` inside the block, whoever asks for them; of an `AsyncLLM`, give its `.llm`.

    `residuals`, `attention` and `mlp` also keep what was computed, in memory: at most `max_bytes`, by default a quarter
    of what is free. Results do not change. What the prefix cache holds is not computed, so not seen: a request with a
    `cache_salt` of its own is computed from its first token.

    Raises:
        UsageError: it is being traced already, or is closed.
        SettingError: max_bytes is negative.
    """
    if max_bytes is not None and max_bytes < 0:
        raise SettingError(f"max_bytes = {max_bytes} is negative")
    most = (available_memory() or 1 << 32) // 4 if max_bytes is None else max_bytes
    found = Trace(llm, most)
    wants = {"residuals": residuals, "attention": attention, "mlp": mlp}
    runner = llm.service.between_steps(lambda engine: found.begin(engine, wants))
    try:
        yield found
    finally:
        with contextlib.suppress(QwillError):  # closed inside the block: nothing to put back
            llm.service.between_steps(lambda engine: setattr(engine, "runner", runner))
        found.end()


class Trace:
    """What was seen. `ops` and `steps` are in order of time, `requests` in order of appearance, by request_id; the
    further answers of a request that asked for several, and later ones of the same name, have "#1", "#2", … added.
    """

    def __init__(self, llm: LLM, max_bytes: int) -> None:
        self.ops: list[OpRecord] = []
        self.steps: list[StepRecord] = []
        self.requests: dict[str, RequestTrace] = {}
        self.model_name = llm.name
        self.config = llm.config
        self.decode_bytes = llm.decode_bytes
        self.block_size = 0
        self.llm = llm
        self._names: dict[Request, str] = {}
        self._left = max_bytes
        self._watcher: Watcher | None = None

    def request(self, request_id: str | None = None) -> RequestTrace:
        """One request; without a name, the only one.

        Raises:
            SettingError: there is no such request, or not exactly one.
        """
        names = ", ".join(map(repr, list(self.requests)[:10])) or "none: nothing was computed inside the block"
        if request_id is None and len(self.requests) != 1:
            raise SettingError(f"the trace has {len(self.requests)} requests: say which", hint=f"there are {names}")
        if request_id is None:
            return next(iter(self.requests.values()))
        if request_id not in self.requests:
            raise SettingError(f"the trace has no request {request_id!r:.100}", hint=f"there are {names}")
        return self.requests[request_id]

    def logits(self, x: Tensor) -> Tensor:
        """What the model's end makes of rows of the residual stream: the last norm, then the head.

        x (R, C) -> logits (R, V), both fp32 on the CPU.

        Raises:
            UsageError: the LLM was closed.
        """

        def apply(engine: Engine) -> Tensor:
            model = engine.runner.model
            with torch.inference_mode():
                weight = model.model.norm.weight
                logits: Tensor = model.lm_head(model.model.norm(x.to(weight.device, weight.dtype)))
                return logits.float().cpu()

        return self.llm.service.between_steps(apply).clone()

    def begin(self, engine: Engine, wants: dict[str, bool]) -> Runner:
        """Watch this engine from now on. Returns the runner to put back."""
        runner = engine.runner
        if not isinstance(runner, ModelRunner):
            raise UsageError("this LLM is being traced already", hint="one trace at a time; end the other block first")
        began = time.perf_counter()
        self._watcher = Watcher(runner.model, **wants, began=began)
        self.ops = self._watcher.ops
        self.block_size = runner.kv_cache.block_size
        engine.runner = _TracedRunner(runner, engine.pool, self, self._watcher, began)
        return runner

    def name_of(self, request: Request) -> str:
        """What a request is called here."""
        if request not in self._names:
            taken, name, count = set(self._names.values()), request.request_id, 0
            while name in taken:
                count += 1
                name = f"{request.request_id}#{count}"
            self._names[request] = name
        return self._names[request]

    def end(self) -> None:
        """Take the hooks off the model."""
        if self._watcher is not None:
            self._watcher.remove()

    def note(self, step: StepRecord, scheduled: Sequence[Scheduled], kept: Kept, runner: ModelRunner) -> None:
        """A step was computed."""
        self.steps.append(step)
        size = sum(tensor.nbytes for tensor in kept.values())
        self._left = max(self._left - size, -1)
        row = 0
        for share, record in zip(scheduled, step.shares, strict=True):
            seen = self.requests.get(record.request_id)
            if seen is None:
                seen = self.requests[record.request_id] = RequestTrace(share.request, record.request_id, self.config)
                if record.start and any(name == "rotated_keys" for name, _ in kept):
                    _add_context(seen, record, runner)
            count = record.count + record.num_drafts
            if self._left < 0:
                seen.overflow("the trace holds as much as it may")
            token_ids = [*share.request.tokens(record.start, record.count), *share.draft]
            seen.add(record.start, slice(row, row + count), token_ids, kept if self._left >= 0 else {})
            row += count


class _TracedRunner:
    """Runs steps as `runner` does, and shows them to the watcher."""

    def __init__(self, runner: ModelRunner, pool: BlockPool, seen: Trace, watcher: Watcher, began: float) -> None:
        self.model, self.kv_cache, self.device = runner.model, runner.kv_cache, runner.device
        self._runner, self._pool, self._seen, self._watcher, self._began = runner, pool, seen, watcher, began
        self._copies: list[tuple[int, int, int]] = []

    def copy_block(self, copy: BlockCopy) -> None:
        """See `ModelRunner.copy_block`."""
        self._runner.copy_block(copy)
        self._copies.append((copy.source, copy.target, copy.count))

    def run(self, scheduled: Sequence[Scheduled]) -> Tensor:
        """See `ModelRunner.run`. A step that fails leaves no trace."""
        seen, noted = self._seen, len(self._watcher.ops)
        free, cached = self._pool.num_free, self._pool.num_cached
        shares = tuple(_share(share, seen.name_of(share.request)) for share in scheduled)
        self._watcher.begin(len(seen.steps))
        start = time.perf_counter()
        try:
            with observing(self._watcher):
                logits = self._runner.run(scheduled, replay=False)
        except BaseException:
            del self._watcher.ops[noted:]
            raise
        finally:
            kept = self._watcher.end()
        end = time.perf_counter()
        step = StepRecord(
            index=len(seen.steps),
            start=start - self._began,
            seconds=end - start,
            shares=shares,
            num_blocks=self._pool.num_blocks,
            free_blocks=free,
            cached_blocks=cached,
            copies=tuple(self._copies),
        )
        self._copies.clear()
        seen.note(step, scheduled, kept, self._runner)
        return logits

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        """See `ModelRunner.logits`; it belongs to no step and is not noted."""
        return self._runner.logits(token_ids, all_positions=all_positions)


def _share(share: Scheduled, name: str) -> ShareRecord:
    request = share.request
    return ShareRecord(
        request_id=name,
        start=request.num_computed_tokens,
        count=share.count,
        num_drafts=len(share.draft),
        num_logits=share.num_logits,
        block_table=tuple(request.block_table),
        cached_tokens=request.cached_tokens,
        num_prompt_tokens=len(request.prompt_token_ids),
    )


def _add_context(seen: RequestTrace, record: ShareRecord, runner: ModelRunner) -> None:
    """The keys of what came before the trace, out of the cache."""
    positions = torch.arange(record.start, device=runner.device)
    size = runner.kv_cache.block_size
    slots = torch.tensor(record.block_table, device=runner.device)[positions // size] * size + positions % size
    for layer in range(runner.kv_cache.keys.shape[0]):
        seen.add_context(layer, runner.kv_cache.keys_at(layer, slots))
