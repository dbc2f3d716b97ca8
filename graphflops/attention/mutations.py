"""Writes in place: after one, a name stands for other contents than where it was made."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphflops.graph import Node
    from graphflops.ops import Op


class Call(Protocol):
    """What is asked of a call."""

    node: Node
    uses: tuple[str, ...]
    place: int
    shares: bool

    @property
    def operator(self) -> Op: ...

    @property
    def writes(self) -> bool: ...


class Mutations:
    """The calls that write in place, by the value that owns the memory they write to."""

    def __init__(self, calls: Sequence[Call], makers: Mapping[str, Call]) -> None:
        self.calls = calls
        self.makers = makers

    @cached_property
    def by_owner(self) -> dict[str, list[Call]]:
        """In program order; a view of another value is not among the keys."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.writes:
                for name in _written(call):
                    found.setdefault(self._owner(name), []).append(call)
        return found

    def last(self, name: str, before: int) -> Call | None:
        """The last call before that place in the program that wrote to the memory of a value; None without any."""
        if not self.by_owner:
            return None
        calls = self.by_owner.get(self._owner(name), ())
        return next((call for call in reversed(calls) if call.place < before), None)

    def is_view(self, name: str) -> bool:
        """Whether a value is a view of another, or that value itself after a write in place."""
        maker = self.makers.get(name)
        return maker is not None and (maker.writes or _is_view(maker))

    def path(self, name: str, write: Call) -> list[Call]:
        """The views that lead from the value that owns the memory to what a call writes to."""
        return [call for call in self._back(write.uses[0], name) if not call.writes][::-1]

    def _owner(self, name: str) -> str:
        for call in self._back(name):
            name = call.uses[0]
        return name

    def _back(self, name: str, until: str = "") -> Iterator[Call]:
        while name != until and self.is_view(name):
            yield (maker := self.makers[name])
            name = maker.uses[0]


def _written(call: Call) -> Sequence[str]:
    """Names of the values that a call writes to: its first operand, or all tensors of a list that comes first."""
    first = next(iter((*call.node.args, *(value for _, value in call.node.kwargs))), None)
    names = first if isinstance(first, tuple) else (first,)
    return [argument.name for argument in names if isinstance(argument, Ref)]


def _is_view(call: Call) -> bool:
    return bool(call.uses) and call.shares and call.operator.shares_memory
