"""Which values are made alike: each layer of a decomposed program may make the same mask anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.attention.grids import HANDLED
from graphflops.attention.roles import base_of
from graphflops.graph import Ref

if TYPE_CHECKING:
    from graphflops.view import View

_DEEPEST = 80  # calls between a value and what it is made of; a longer chain is like no other


class Alike:
    """A number for each value, the same for values that equal calls make of the same values.

    To be asked only of programs that write nothing in place.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.numbers: dict[Any, int] = {}
        self.known: dict[str, int] = {}

    def number(self, name: str, depth: int = 0) -> int:
        """The number of a value."""
        if name not in self.known:
            maker = self.view.makers.get(name)
            made: Any = name
            if maker is not None and maker.result == name and base_of(maker) in HANDLED and depth < _DEEPEST:
                arguments = (maker.node.args, maker.node.kwargs)
                made = (maker.node.op, self.view.types.get(name), self._argument(arguments, depth + 1))
            self.known[name] = self.numbers.setdefault(made, len(self.numbers))
        return self.known[name]

    def _argument(self, argument: Any, depth: int) -> Any:
        if isinstance(argument, Ref):
            return Ref, self.number(argument.name, depth)
        if isinstance(argument, tuple):
            return tuple([self._argument(item, depth) for item in argument])
        return type(argument), argument
