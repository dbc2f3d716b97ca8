"""A file as its bytes, of which only what is looked at is read."""

from __future__ import annotations

from typing import BinaryIO, overload

_PAGE = 16 * 2**10


class Pages:
    """The bytes of an open file by place, one page in memory at a time.

    A mapping of the file would do the same, but counts as the process's memory what lies beside the bytes looked at: for a
    file of weights much of it.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._page, self._begin = b"", 0

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> bytes: ...

    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, slice):
            begin, end, _ = place.indices(self._size)
            return self._read(begin, end - begin)
        if not 0 <= place - self._begin < len(self._page):
            self._page, self._begin = self._read(place, _PAGE), place
        return self._page[place - self._begin]

    def _read(self, place: int, length: int) -> bytes:
        self._file.seek(place)
        return self._file.read(length)
