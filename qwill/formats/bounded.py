"""A cursor that cannot leave its buffer: every size from a file is compared with the bytes that remain before use.

Knows no format. This is the only place where a model file's lengths turn into reads, allocations and loop bounds.
"""

from __future__ import annotations

import mmap
import struct

from qwill.errors import FormatError

__all__ = ["Cursor"]

_UNPACK_U32 = struct.Struct("<I").unpack_from
_UNPACK_U64 = struct.Struct("<Q").unpack_from


class Cursor:
    """Reads little-endian values one after another.

    Attributes:
        data: the buffer.
        position: bytes from the buffer's start to the next value.
        end: where the buffer ends; no read goes past it.
        file: the name that errors give.
    """

    def __init__(self, data: mmap.mmap | bytes, *, file: str) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self.file = file

    def fail(self, what: str, *, hint: str = "", at: int | None = None) -> FormatError:
        """The error to raise: names the file and the offset (by default the present position)."""
        offset = self.position if at is None else at
        return FormatError(what, where=f"{self.file}, offset {offset}", hint=hint)

    def need(self, count: int, unit: int, what: str) -> int:
        """`count * unit`, after comparing it with the bytes that remain.

        Args:
            count: from the file; any whole number.
            unit: bytes that each item takes at least; from us, at least 1.

        Raises:
            FormatError: when that many bytes do not remain.
        """
        size = count * unit
        remaining = self.end - self.position
        if not 0 <= size <= remaining:
            raise self.fail(
                f"{what} needs {size} bytes, but {remaining} remain",
                hint="the file is cut short or damaged; pull it again",
            )
        return size

    def limit(self, count: int, most: int, what: str) -> int:
        """`count`, after comparing it with the most that qwill accepts."""
        if not 0 <= count <= most:
            raise self.fail(f"{what} is {count}; at most {most} is accepted")
        return count

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes."""
        self.need(count, 1, what)
        start = self.position
        self.position = start + count
        return self.data[start : self.position]

    def u32(self, what: str) -> int:
        """The next four bytes as an unsigned number."""
        self.need(4, 1, what)
        value: int = _UNPACK_U32(self.data, self.position)[0]
        self.position += 4
        return value

    def u64(self, what: str) -> int:
        """The next eight bytes as an unsigned number."""
        self.need(8, 1, what)
        value: int = _UNPACK_U64(self.data, self.position)[0]
        self.position += 8
        return value

    def string(self, most: int, what: str) -> str:
        """A 64-bit length and that many bytes of UTF-8, at most `most` of them."""
        start = self.position
        count = self.u64(f"the length of {what}")
        self.need(count, 1, what)
        try:
            return self.take(self.limit(count, most, f"the length of {what}"), what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8", at=start) from None
