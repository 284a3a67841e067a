"""Recording: the native calls of one step, and the memory that their results live in.

A step that is computed again and again with the same shapes (decoding) need not go through Python each time: its calls
are kept in a program and made again in one go, each on the very memory it was recorded with. Knows no model.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Memory", "Recording"]

ALIGNMENT = 64


Memory = list[np.ndarray[Any, Any]]


class Recording:
    """A program and its memory. What results no longer held need is given to later ones.

    Recordings that never run at the same time may share one `memory`: each may overwrite the results of the others.
    """

    def __init__(self, program: Any, memory: Memory | None = None) -> None:
        self.program = program
        self._blocks: Memory = [] if memory is None else memory  # kept: the program knows only their addresses
        self._free: Memory = list(self._blocks)

    @property
    def nbytes(self) -> int:
        """Memory of all results together."""
        return sum(block.nbytes for block in self._blocks)

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """fp32 memory that is used again as soon as the tensor, with all views of it, is gone."""
        count = math.prod(shape)
        block = self._take(count)
        # The tensor's storage, which all views share, holds this array; when it goes, the block is free.
        held = block[:count]
        weakref.finalize(held, self._free.append, block).atexit = False
        return torch.from_numpy(held).view(shape)

    def _take(self, count: int) -> np.ndarray[Any, Any]:
        """The smallest free block that is large enough, or a new one."""
        fitting = [i for i, block in enumerate(self._free) if len(block) >= count]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: len(self._free[i])))
        self._blocks.append(np.empty(-(-count // ALIGNMENT) * ALIGNMENT, dtype=np.float32))
        return self._blocks[-1]
