"""What a program writes in place: the same name then holds something else than where it was made."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from graphflops.attention.roles import base_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.view import Call, View


class Writes:
    """The calls of a program that write in place, by the value whose memory they write to."""

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def by_owner(self) -> dict[str, list[Call]]:
        """In program order; a value that is a view of another is not among the keys."""
        found: dict[str, list[Call]] = {}
        for call in self.view.calls:
            if is_write(call):
                for name in call.uses if "_foreach" in call.node.op else call.uses[:1]:
                    found.setdefault(self._owner(name), []).append(call)
        return found

    def last(self, name: str, before: int) -> Call | None:
        """The last call before that place in the program which wrote to the memory of that value; None without any."""
        if not self.by_owner:
            return None
        calls = self.by_owner.get(self._owner(name), ())
        return next((call for call in reversed(calls) if call.place < before), None)

    def is_view(self, name: str) -> bool:
        """Whether a value is a view of another, or that itself after a write in place."""
        maker = self.view.makers.get(name)
        return maker is not None and (is_write(maker) or _is_view(maker))

    def part(self, name: str, write: Call) -> list[Call]:
        """The calls by which what is written to is made of the value that owns the memory."""
        return [call for call in self._back(write.uses[0], name) if not is_write(call)][::-1]

    def _owner(self, name: str) -> str:
        for call in self._back(name):
            name = call.uses[0]
        return name

    def _back(self, name: str, until: str = "") -> Iterator[Call]:
        while name != until and self.is_view(name):
            yield (maker := self.view.makers[name])
            name = maker.uses[0]


def is_write(call: Call) -> bool:
    """Whether a call writes to its first operand."""
    return bool(call.uses) and call.operator.mutates


def _is_view(call: Call) -> bool:
    return bool(call.uses) and call.row.state == "free" and "copy" not in base_of(call)
