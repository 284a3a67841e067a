"""BlockPool: which blocks of the KV cache are free. Torch-free; knows neither requests nor tensors."""

from __future__ import annotations

from qwill.errors import CapacityError

__all__ = ["BlockPool"]


class BlockPool:
    """Hands out block numbers 0 … num_blocks − 1.

    A context whose blocks are consecutive can be read in place. So a request grows into the block after its last
    one when that is free, and a new request starts in the middle of the longest free run, whose first half is left to
    whoever grows into it; in an empty pool, at its head.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = [True] * num_blocks
        self.num_free = num_blocks

    def allocate(self, after: int | None = None) -> int:
        """A free block: the one after block `after` if it is free, else one of the longest free run.

        Raises:
            CapacityError: none is free.
        """
        if self.num_free == 0:
            raise CapacityError("all blocks of the KV cache are in use", hint="raise kv_memory or run fewer requests")
        following = after + 1 if after is not None else len(self._free)
        block = following if following < len(self._free) and self._free[following] else self._longest_run()
        self._free[block] = False
        self.num_free -= 1
        return block

    def release(self, blocks: list[int]) -> None:
        """Give blocks back.

        Raises:
            ValueError: a block is free already, which would let two requests share it by mistake.
        """
        for block in blocks:
            if self._free[block]:
                raise ValueError(f"block {block} is free already")
            self._free[block] = True
            self.num_free += 1

    def _longest_run(self) -> int:
        best_start, best_length, start = 0, 0, 0
        for block, free in enumerate([*self._free, False]):
            if free:
                continue
            if block - start > best_length:
                best_start, best_length = start, block - start
            start = block + 1
        return best_start if best_length == len(self._free) else best_start + best_length // 2
