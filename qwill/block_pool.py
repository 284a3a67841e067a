"""BlockPool: which blocks of the KV cache are free, which are in use, and what the computed ones hold.

The prefix cache: a block whose tokens were all computed enters a tree, in which its place is the tokens before it and
its own. Tokens are compared one by one, so two prompts never share a block by a hash's accident. Who comes later with
the same beginning uses the same blocks. A block that nobody uses any more stays in the tree until its room is needed,
the one that was left longest ago first. Torch-free; knows neither requests nor tensors.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from qwill.errors import CapacityError

__all__ = ["BlockPool", "Prefix"]


@dataclass(eq=False)
class _Node:
    """One block's place in the tree. A root stands for the start of a text and has no block."""

    block: int
    token_ids: tuple[int, ...]
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)  # the children's tokens, sorted
    salt: str = ""  # of a root

    def add(self, child: _Node) -> None:
        """One more child."""
        self.children[child.token_ids] = child
        bisect.insort(self.order, child.token_ids)

    def remove(self, child: _Node) -> None:
        """One child less."""
        del self.children[child.token_ids]
        del self.order[bisect.bisect_left(self.order, child.token_ids)]

    def most_alike(self, token_ids: tuple[int, ...]) -> tuple[int, int]:
        """With how many of these tokens a child begins at most, and its block.

        Sorted, they would stand beside such a child: there may be thousands, and only two are looked at.
        """
        place = bisect.bisect_left(self.order, token_ids)
        near = self.order[max(place - 1, 0) : place + 1]
        return max(((_common(other, token_ids), self.children[other].block) for other in near), default=(0, -1))


@dataclass(frozen=True)
class Prefix:
    """What the cache holds of the beginning of some tokens.

    `blocks` are whole blocks, to be shared; then come `count` tokens at the head of block `partial`, to be copied,
    because what follows them there is another text.
    """

    blocks: list[int]
    partial: int = -1
    count: int = 0


class BlockPool:
    """Hands out block numbers 0 … num_blocks − 1, each of `block_size` tokens, and counts who uses them.

    A context whose blocks are consecutive can be read in place. So a request grows into the block after its last
    one when that is empty, and a new request starts in the middle of the longest empty run, whose first half is left
    to whoever grows into it; in an empty pool, at its head.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._users = [0] * num_blocks
        self._nodes: list[_Node | None] = [None] * num_blocks
        self._empty = bytearray(b"\1" * num_blocks)  # 1: neither in use nor in the tree
        self._num_empty = num_blocks
        self._unused: OrderedDict[int, None] = OrderedDict()  # in the tree but not in use, longest unused first
        self._roots: dict[str, _Node] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be had: the empty ones, and cached ones that nobody uses."""
        return self._num_empty + len(self._unused)

    @property
    def num_cached(self) -> int:
        """Blocks in the tree, in use or not."""
        return sum(node is not None for node in self._nodes)

    def num_new_users(self, blocks: Sequence[int]) -> int:
        """How many of these are not in use now, so that sharing them takes them from the free ones."""
        return sum(self._users[block] == 0 for block in blocks)

    def allocate(self, after: int | None = None) -> int:
        """A block for one user: the one after block `after` if it is empty, else another, at last a cached one.

        Raises:
            CapacityError: all are in use.
        """
        if self._num_empty == 0:
            return self._evict()
        following = after + 1 if after is not None else self.num_blocks
        block = following if following < self.num_blocks and self._empty[following] else self._longest_run()
        self._users[block], self._empty[block] = 1, 0
        self._num_empty -= 1
        return block

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def grow(self, block_table: list[int], num_blocks: int) -> None:
        """Lengthen a context's table, in place, to so many blocks; one that is longer stays as it is.

        Raises:
            CapacityError: all are in use.
        """
        while len(block_table) < num_blocks:
            block_table.append(self.allocate(after=block_table[-1] if block_table else None))

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of these cached blocks."""
        for block in blocks:
            self._users[block] += 1
            self._unused.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each block of a context, given in its order.

        Raises:
            ValueError: a block is not in use, so it could come to two requests by mistake.
        """
        for block in reversed(blocks):  # the end of a text goes before its beginning, which more texts may share
            if self._users[block] == 0:
                raise ValueError(f"block {block} is free already")
            self._users[block] -= 1
            if self._users[block] > 0:
                continue
            if self._nodes[block] is None:
                self._empty[block] = 1
                self._num_empty += 1
            else:
                self._unused[block] = None

    def discard(self, blocks: Sequence[int]) -> None:
        """Take a context out of the tree, as far as nobody else uses it or goes on from it: it may be wrong."""
        for block in reversed(blocks):
            node = self._nodes[block]
            if node is not None and self._users[block] == 1 and not node.children:
                self._take_out(block)

    def find(self, token_ids: Sequence[int], salt: str = "") -> Prefix:
        """The longest beginning of `token_ids` that is cached, to the token. Takes nothing: see `share`."""
        node = self._roots.get(salt)
        if node is None:
            return Prefix([])
        blocks: list[int] = []
        start = 0
        while child := node.children.get(tuple(token_ids[start : start + self.block_size])):
            if len(child.token_ids) < self.block_size:
                return Prefix(blocks, child.block, len(child.token_ids))
            node = child
            blocks.append(node.block)
            start += self.block_size
        rest = tuple(token_ids[start : start + self.block_size])
        count, block = node.most_alike(rest)
        return Prefix(blocks, block, count) if count else Prefix(blocks)

    def publish(self, block: int, token_ids: Sequence[int], before: int | None, salt: str = "") -> int:
        """Enter a computed block into the tree, after block `before` (None: a text begins here).

        Returns the block that holds these tokens from now on, with one user taken from `block`: another one where the
        same text was computed twice. A block that is not full can only be copied from; it enters as it is released.
        """
        parent = self._root(salt) if before is None else self._nodes[before]
        if parent is None or self._nodes[block] is not None:
            return block
        key = tuple(token_ids)
        known = parent.children.get(key)
        if known is not None:
            if len(key) < self.block_size:
                return block
            self.share([known.block])
            self.release([block])
            return known.block
        self._nodes[block] = node = _Node(block, key, parent)
        parent.add(node)
        return block

    def _root(self, salt: str) -> _Node:
        return self._roots.setdefault(salt, _Node(-1, (), None, salt=salt))

    def _evict(self) -> int:
        """The block that was left longest ago. It has no children: who used those used it too, and left it later."""
        if not self._unused:
            raise CapacityError("all blocks of the KV cache are in use", hint="raise kv_memory or run fewer requests")
        block, _ = self._unused.popitem(last=False)
        self._take_out(block)
        self._users[block] = 1
        return block

    def _take_out(self, block: int) -> None:
        """Out of the tree, with the root where it was the last."""
        node = self._nodes[block]
        assert node is not None
        assert node.parent is not None
        node.parent.remove(node)
        self._nodes[block] = None
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.salt]

    def _longest_run(self) -> int:
        """Where to begin in the longest run of empty blocks; searched as bytes, as it happens in steps."""
        longest = max(map(len, self._empty.split(b"\0")))
        start = self._empty.find(b"\1" * longest)
        return start if longest == self.num_blocks else start + longest // 2


def _common(some: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (a, b) in enumerate(zip(some, other, strict=False)) if a != b), min(len(some), len(other)))
