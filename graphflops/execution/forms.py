"""Numbers for what is alike in a program, so that each distinct case is computed once: a model repeats its layers.

The form of a call that lies in memory is its operator, its attributes, and the types and strides of operands and results.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.passes.program import PricedCall

    Strides = tuple[Dim, ...]

Rest = ParamSpec("Rest")
Found = TypeVar("Found")
Self = TypeVar("Self", bound="Formed")


class Formed(Protocol):
    """What computes something of the calls of a graph. found: what it has computed, by form."""

    forms: Forms
    found: dict[tuple[Any, ...], Any]


def by_form(
    compute: Callable[Concatenate[Self, PricedCall, Rest], Found],
) -> Callable[Concatenate[Self, PricedCall, Rest], Found]:
    """A method that computes something of a call from its form alone: it is called once for each form."""

    @wraps(compute)
    def found(self: Self, call: PricedCall, /, *rest: Rest.args, **keywords: Rest.kwargs) -> Found:
        form = self.forms.of(call)
        if form is None:
            return compute(self, call, *rest, **keywords)
        key = (compute, form, rest)
        known = self.found
        if key not in known:
            known[key] = compute(self, call, *rest, **keywords)
        kept: Found = known[key]
        return kept

    return found


def places_by_form(
    compute: Callable[[Self, PricedCall], list[str | None]],
) -> Callable[[Self, PricedCall], list[str | None]]:
    """The same for a method that names some of the operands and results of a call."""

    @wraps(compute)
    def found(self: Self, call: PricedCall) -> list[str | None]:
        form, names = self.forms.of(call), (*call.uses, *call.node.outputs)
        places = None if form is None else self.found.get((compute, form))
        if places is not None:
            return [names[place] for place in places]
        chosen = compute(self, call)
        if form is not None and len(set(names)) == len(names):
            self.found[compute, form] = [names.index(name) for name in chosen]
        return chosen

    return found


class Laid(NamedTuple):
    """How a result lies. kind: number of its type and strides. is_copy: of a layout operator, whether it copies."""

    strides: Strides
    kind: int
    is_copy: bool | None


class Forms:
    """The forms of the calls of a graph.

    types: by value that is a tensor, a number of its type. kinds: a number of its type and strides; in row-major order it is
    that of its type. numbers: of the form of each call, by its name; calls that have none are left out.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.types = _numbered(values)
        self.kinds = dict(self.types)
        self.numbers: dict[str, int] = {}
        self._kinds: dict[tuple[int, Strides], int] = {}
        self._laid: dict[tuple[Any, ...], tuple[int, Sequence[Laid | None]]] = {}

    def results(
        self, call: PricedCall, results: Callable[[PricedCall], Sequence[Laid | None]]
    ) -> Sequence[Laid | None]:
        """How the results of a call lie, which `results` computes for the first call of a form."""
        if call.form is None:
            return results(call)
        operands = tuple(map(self.kinds.get, call.uses))
        made = tuple([None if name is None else self.types.get(name) for name in call.node.outputs])
        key = (call.form, call.gradient is None, operands, made)
        if key not in self._laid:
            self._laid[key] = len(self._laid), results(call)
        self.numbers[call.node.name], found = self._laid[key]
        return found

    def of(self, call: PricedCall) -> int | None:
        """The number of a call's form; None for a call that has none."""
        return None if call.form is None else self.numbers.get(call.node.name)

    def kind(self, name: str, strides: Strides) -> int:
        """The number of a tensor's type with these strides."""
        return self._kinds.setdefault((self.types[name], strides), -1 - len(self._kinds))


def _numbered(values: Mapping[str, Value]) -> dict[str, int]:
    """Numbers of the types of tensors: equal ones have the same. Types are compared where they are not one object."""
    numbers: dict[TensorType, int] = {}
    seen: dict[int, int] = {}
    found: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, TensorType):
            number = seen.get(id(value))
            if number is None:
                number = seen[id(value)] = numbers.setdefault(value, len(numbers))
            found[name] = number
    return found
