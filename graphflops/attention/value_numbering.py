"""Value numbering: equal numbers for values that the same operators compute from the same operands."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from graphflops.attention.concrete import array_of_value
from graphflops.attention.index_propagation import is_followed
from graphflops.graph import Ref

if TYPE_CHECKING:
    from graphflops.attention.scopes import Scope

_DEEPEST = 80  # steps of a chain; longer chains get a fresh number


class ValueNumbers:
    """Numbers of values. A value of a scope that writes in place has a number of its own.

    by_contents: whether stored tensors with the same contents have the same number, or only the same tensor.
    """

    def __init__(self, *, by_contents: bool) -> None:
        self.by_contents = by_contents
        self.numbers: dict[Any, int] = {}
        self.known: dict[tuple[Scope, str], int] = {}

    def of(self, scope: Scope, argument: Any, depth: int = 0) -> Any:
        """The number of a value, or of what an argument is made of."""
        if isinstance(argument, Ref):
            if (scope, argument.name) not in self.known:
                made = self._made(scope, argument.name, depth)
                self.known[scope, argument.name] = self.numbers.setdefault(made, len(self.numbers))
            return Ref, self.known[scope, argument.name]
        if isinstance(argument, tuple):
            return tuple([self.of(scope, item, depth) for item in argument])
        return type(argument), argument

    def _made(self, scope: Scope, name: str, depth: int) -> Any:
        maker, around, typed = scope.makers.get(name), scope.bound.get(name), scope.type_of(name)
        if scope.mutations.by_owner or depth > _DEEPEST:
            return scope, name
        if around is not None:
            return self.of(around[0], around[1], depth + 1)
        if maker is not None and maker.result == name and is_followed(maker):
            arguments = maker.node.args, maker.node.kwargs
            return maker.node.op, typed, self.of(scope, arguments, depth + 1)
        if typed is None or maker is not None or not self.by_contents:
            return scope, name
        array = array_of_value(scope, name, typed)
        return (scope, name) if array is None else digest(array)


def digest(array: Any) -> Any:
    """Equal for arrays that hold the same."""
    import numpy as np

    contents = np.ascontiguousarray(array).data
    return array.dtype.str, array.shape, hashlib.blake2b(contents, digest_size=16).digest()
