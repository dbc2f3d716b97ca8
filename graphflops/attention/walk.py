"""Follows a value back through the program, asked for at one place, in ATen's spelling and in ONNX's.

A place is an index for each axis, or None where nothing is known of it (the batch). Calls that lay out change the indices;
what an index and a value are is for those to say that are derived from `Walk`: formulas in the query's and the key's place
(`masks`), or arrays of numbers (`grids`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from graphflops.attention.roles import base_of
from graphflops.attention.writes import is_write
from graphflops.dims import Expr
from graphflops.errors import GraphflopsError
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.attention.writes import Writes
    from graphflops.dims import Dim
    from graphflops.tensor import TensorType
    from graphflops.view import Call, View

Indices = tuple[Any, ...]

# Whatever a file holds, not to follow a mask is never wrong.
_NOT_FOLLOWED = (ArithmeticError, AttributeError, GraphflopsError, LookupError, TypeError, ValueError)
_DEEPEST = 80  # calls between a mask and what it is made of


V = TypeVar("V")


class Walk(ABC, Generic[V]):
    """One way to follow values.

    handlers: what to do about a call, by the operator's own name. zero: the first index of an axis.
    unknown, uncertain: a number and a truth of which nothing is known.
    """

    zero: Any
    unknown: V
    uncertain: V

    def __init__(
        self, view: View, writes: Writes, handlers: Mapping[str, Callable[[Any, Call, Indices], V | None]]
    ) -> None:
        self.view = view
        self.writes = writes
        self.handlers = handlers
        self.left = 0  # calls that may still be looked at
        self.depth = 0
        self.before = len(view.calls)  # what is written in place from that call on is not seen

    @abstractmethod
    def literal(self, number: Any) -> V:
        """A number, size or truth value as a value."""

    @abstractmethod
    def as_index(self, value: V) -> Any:
        """A value as an index; None where it is none."""

    @abstractmethod
    def between(self, index: Any, begin: Dim, end: Dim | None) -> V:
        """Where an index is not below one bound and below another, if there is one."""

    @abstractmethod
    def unflattened(self, at: Indices, shape: Sequence[Dim], inner: Sequence[Dim]) -> Indices | None:
        """The place in a tensor of shape `inner` of what is somewhere after it was laid out anew; None: not followed."""

    @abstractmethod
    def chosen(self, condition: Any, yes: V, no: V) -> V | None:
        """One value where a condition holds, another where it does not."""

    @abstractmethod
    def held(self, name: str, typed: TensorType, at: Indices) -> V | None:
        """What a tensor whose contents are known holds there; None where they are not."""

    def of(self, name: str, at: Indices) -> V:
        """The value of that name at a place."""
        self.left -= 1
        typed = self.view.types.get(name)
        if self.left < 0 or self.depth > _DEEPEST or typed is None or len(at) != typed.rank:
            return self.nothing(typed)
        self.depth += 1
        try:
            return self.found(name, typed, at)
        finally:
            self.depth -= 1

    def found(self, name: str, typed: TensorType, at: Indices) -> V:
        """The same, one step back."""
        found: V | None = None
        maker = self.view.makers.get(name)
        write = self.writes.last(name, self.before)
        if write is None:
            found = self.held(name, typed, at)
        elif maker is None or not self.writes.is_view(name):
            with suppress(*_NOT_FOLLOWED):
                return self.written(name, write, at)
            return self.nothing(typed)
        if found is None and maker is not None and name in maker.node.outputs[:1]:
            before = self.before
            if write is None:
                self.before = maker.place
            found = self.of(maker.uses[0], at) if is_write(maker) else self.handled(maker, at)
            self.before = before
        return self.nothing(typed) if found is None else found

    def nothing(self, typed: TensorType | None) -> V:
        """What is known of a value that cannot be followed."""
        return self.uncertain if typed is not None and typed.dtype.kind == "bool" else self.unknown

    def handled(self, call: Call, at: Indices) -> V | None:
        """The first result of a call; None where it cannot be followed."""
        handler = self.handlers.get(base_of(call))
        if handler is not None and call.row.state != "unknown":
            with suppress(*_NOT_FOLLOWED):
                return handler(self, call, at)
        return None

    def written(self, name: str, write: Call, at: Indices) -> V:
        """The value of that name after a call wrote in place to it, or to a part of it."""
        before, self.before = self.before, write.place
        try:
            place: Indices | None = at
            conditions: list[V] = []
            for call in self.writes.part(name, write):
                place = None if place is None else self.inside(call, place, conditions)
            nothing = self.nothing(self.view.types[name])
            if place is None:
                return nothing
            found = self.handled(write, place)
            for condition in conditions:
                found = self.chosen(condition, nothing if found is None else found, self.of(name, at))
            return nothing if found is None else found
        finally:
            self.before = before

    def inside(self, call: Call, at: Indices, conditions: list[V]) -> Indices | None:
        """The place in a view of what is at a place of its operand, under conditions that are added; None: not followed."""
        base, typed, args = base_of(call), self.view.types[call.uses[0]], arguments(call)
        if base in ("slice", "select"):
            axis = args.get("dim", 0) % typed.rank
            if base == "slice":
                begin, end = self.span(args.get("start"), args.get("end"), typed.shape[axis])
            else:
                begin, _ = self.span(args["index"], None, typed.shape[axis])
                end = begin + 1
            if at[axis] is None or args.get("step", 1) != 1:
                return None
            conditions.append(self.between(at[axis], begin, end))
            return (*at[:axis], *((at[axis] + -begin,) if base == "slice" else ()), *at[axis + 1 :])
        same = self.view.types[call.result].shape == typed.shape
        return at if base in ("detach", "alias", "view") and same else None

    def operand(self, argument: Any, at: Indices) -> V:
        """An operand that broadcasts to where the result is asked for, or a number."""
        if isinstance(argument, Ref):
            typed = self.view.types.get(argument.name)
            if typed is None:
                size = self.view.size(argument.name)
                return self.unknown if size is None else self.literal(size)
            return self.of(argument.name, self.clipped(at[len(at) - typed.rank :], typed))
        return self.literal(argument) if isinstance(argument, (bool, int, float, Expr)) else self.unknown

    def operands(self, call: Call, at: Indices, most: int = 2) -> list[V]:
        """The first operands of a call."""
        return [self.operand(argument, at) for argument in call.given[:most]]

    def clipped(self, at: Indices, typed: TensorType) -> Indices:
        """Indices with that of an axis of size one replaced by 0: it broadcasts."""
        return tuple([self.zero if size == 1 else index for size, index in zip(typed.shape, at, strict=True)])

    def from_end(self, place: int, size: Dim) -> Dim:
        """A place below zero of an axis, counted from the front; before the first it is the first."""
        return 0 if place <= -_NO_END or (isinstance(size, int) and size + place < 0) else size + place

    def span(self, start: Any, end: Any, size: Dim) -> tuple[Dim, Dim | None]:
        """Where a slice of an axis begins and ends, None for its end. Raises TypeError where that is not known."""
        begin, last = (0 if start is None else self.number(start)), self.number(end)
        if not isinstance(begin, (int, Expr)) or (end is not None and not isinstance(last, (int, Expr))):
            raise TypeError
        begin, last = (self.from_end(n, size) if isinstance(n, int) and n < 0 else n for n in (begin, last))
        return begin, None if isinstance(last, int) and last >= _NO_END else last

    def number(self, argument: Any) -> Any:
        """An argument that is a number or list of numbers, in the call or in a small tensor."""
        if isinstance(argument, Ref):
            typed = self.view.types.get(argument.name)
            return self.view.size(argument.name) if typed is None else typed.value
        if isinstance(argument, tuple):
            return tuple(map(self.number, argument))
        return argument


def arguments(call: Call) -> dict[str, Any]:
    """Arguments of an ATen call by the names that the operators handled here give them."""
    names = _NAMES.get(base_of(call), ())
    return {**dict(zip(names, call.node.args, strict=False)), **dict(call.node.kwargs)}


_NO_END = 2**62  # past the end of any axis
_NAMES = {
    name: names.split()
    for several, names in {
        "transpose transpose_copy swapaxes": "self dim0 dim1",
        "slice slice_copy": "self dim start end step",
        "slice_scatter": "self src dim start end step",
        "select select_copy": "self dim index",
        "select_scatter": "self src dim index",
        "index_select gather": "self dim index",
        "repeat_interleave": "self repeats dim",
        "flip": "self dims",
    }.items()
    for name in several.split()
}
