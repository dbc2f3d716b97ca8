"""What index propagation needs of a domain of values: numbers, indices, elementwise functions, choices, stored arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from graphflops.attention.elementwise import Function
from graphflops.attention.scopes import Scope, Step
from graphflops.dims import Dim
from graphflops.tensor import DType, TensorType

V = TypeVar("V")

Indices = tuple[Any, ...]  # an index for each axis; None where it is not known (the batch)


class Evaluator(Protocol[V]):
    """Index propagation as operators and domains use it."""

    domain: Domain[V]
    scope: Scope
    before: int

    def value(self, name: str, at: Indices) -> V:
        """The value of that name at an index."""

    def operand(self, argument: Any, at: Indices) -> V:
        """An operand that broadcasts to the result's index, or a number."""

    def clipped(self, at: Indices, shape: tuple[Dim, ...]) -> Indices:
        """Indices with that of an axis of size one replaced by 0."""

    def number(self, argument: Any) -> Any:
        """An argument that is a number or list of numbers."""

    def type_of(self, argument: Any) -> TensorType | None:
        """Type of an operand that is a tensor."""

    def result_type(self, step: Step) -> DType | None:
        """Element type of the result."""

    def cast(self, step: Step, value: V) -> V | None:
        """A value in the element type of a step's result."""

    def span(self, start: Any, end: Any, size: Dim) -> tuple[Dim, Dim | None]:
        """First index of a slice and the one past its last. Raises TypeError where they are not known."""

    def from_end(self, place: int, size: Dim) -> Dim:
        """A negative index of an axis, counted from the start."""


class Domain(ABC, Generic[V]):
    """One kind of value. zero: the first index of an axis."""

    zero: Any

    @abstractmethod
    def unknown(self, dtype: DType | None) -> V:
        """An unknown value."""

    def score(self) -> V:
        """A score before its function: what it is does not tell whether the function hides it."""
        return self.unknown(None)

    @abstractmethod
    def is_unknown(self, value: V) -> bool:
        """Whether part of a value is not known."""

    @abstractmethod
    def literal(self, number: Any) -> V:
        """A number, size or truth value of the program."""

    @abstractmethod
    def as_index(self, value: V) -> Any:
        """A value as an index; None where it cannot be one."""

    @abstractmethod
    def from_index(self, index: Any, dtype: DType) -> V:
        """An index as a value."""

    @abstractmethod
    def wrapped(self, index: Any, size: Dim) -> Any:
        """An index that counts from the end where it is negative, counted from the start; None where that is not known."""

    def repeated(self, index: Any, size: Dim) -> Any:
        """An index modulo the size of the axis that is repeated; None where that is not known."""
        return None

    @abstractmethod
    def between(self, index: Any, begin: Dim, end: Dim | None) -> V:
        """Where an index is at least `begin`, and below `end` if there is one."""

    @abstractmethod
    def reshaped(self, at: Indices, shape: Sequence[Dim], source: Sequence[Dim]) -> Indices | None:
        """The index before a reshape from shape `source`, given the index after it; None where it is not followed."""

    @abstractmethod
    def apply(self, function: Function, values: Sequence[V | None]) -> V | None:
        """An elementwise function; None where the domain does not have it."""

    @abstractmethod
    def choose(self, condition: V, yes: V, no: V) -> V:
        """`yes` where the condition holds, else `no`."""

    @abstractmethod
    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> V | None:
        """An element of a tensor whose contents are known; None where they are not."""

    @abstractmethod
    def whole(self, evaluator: Evaluator[V], step: Step, at: Indices) -> V | None:
        """An element of the result of an operator along whole axes (a running sum, a maximum); None: not followed."""

    def captured(self, evaluator: Evaluator[V], name: str, at: Indices) -> V | None:
        """An element of a tensor that a function captures, from all of that tensor; None where there is no such way."""
        return None
