"""Numbers for what is alike in a program, so that each distinct case is computed once: a model repeats its layers.

The form of a call that lies in memory is its operator, its attributes, and the types and strides of operands and results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.passes.program import PricedCall

    Strides = tuple[Dim, ...]


class Laid(NamedTuple):
    """How a result lies. kind: number of its type and strides. is_copy: of a layout operator, whether it copies."""

    strides: Strides
    kind: int
    is_copy: bool | None


class Forms:
    """The forms of the calls of a graph.

    types: by value that is a tensor, a number of its type. kinds: a number of its type and strides; where nobody has said
    how it lies, that of its type. numbers: of the form of each call, by its name; calls that have none are left out.
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
        kinds, types = self.kinds, self.types
        operands = [kinds.get(name) for name in call.uses]
        made = [None if name is None else types.get(name) for name in call.node.outputs]
        key = (call.form, call.gradient is None, *operands, *made)
        if key not in self._laid:
            self._laid[key] = len(self._laid), results(call)
        self.numbers[call.node.name], found = self._laid[key]
        return found

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
