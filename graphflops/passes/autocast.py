"""Rewrites a program as torch.autocast runs it on CUDA: conversions of operands become calls of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphflops.graph import Ref
from graphflops.rules.added_calls import converted
from graphflops.rules.autocast import autocast
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from graphflops.graph import Node


@dataclass(slots=True)
class Autocast:
    """Rewrites the calls of one program as autocast runs them, with conversions as calls of their own.

    lower: the element type of products. leaves: parameters with a gradient, whose converted copies last the whole forward.
    cached: these copies by parameter. taken: names of values so far.
    """

    lower: DType
    leaves: Collection[str]
    taken: set[str]
    cached: dict[str, str] = field(default_factory=dict)

    def calls(self, node: Node, types: Mapping[str, Any]) -> list[Node]:
        """The conversions before a call, and the call with their results as operands."""
        treatment = autocast(node.operator)
        if treatment is None:
            return [node]
        operands = [value for ref in node.reads() if (value := _eligible(types.get(ref))) is not None]
        if treatment == "single result":
            return [self._with_single_result(node, operands)]
        if treatment == "widest" and not any(value.dtype is FLOAT32 for value in operands):
            return [node]
        wanted = self.lower if treatment == "lower" else FLOAT32
        casts: list[Node] = []
        args = tuple(self._converted(x, wanted, node, types, casts) for x in node.args)
        kwargs = tuple((key, self._converted(x, wanted, node, types, casts)) for key, x in node.kwargs)
        return [*casts, replace(node, args=args, kwargs=kwargs)]

    def _with_single_result(self, node: Node, operands: Collection[TensorType]) -> Node:
        has_type = any(isinstance(x, DType) for x in (*node.args, *(value for _, value in node.kwargs)))
        if has_type or not any(value.dtype in (BFLOAT16, FLOAT16) for value in operands):
            return node
        return replace(node, kwargs=(*node.kwargs, ("dtype", FLOAT32)))

    def _converted(
        self, argument: Any, wanted: DType, node: Node, types: Mapping[str, Any], casts: list[Node]
    ) -> Any:
        """The argument with its tensors converted; adds the calls that do so to `casts`."""
        if isinstance(argument, tuple):
            return tuple(self._converted(x, wanted, node, types, casts) for x in argument)
        if not isinstance(argument, Ref):
            return argument
        value = _eligible(types.get(argument.name))
        if value is None or value.dtype is wanted:
            return argument
        is_cached = wanted is self.lower and value.dtype is FLOAT32 and argument.name in self.leaves
        if is_cached and argument.name in self.cached:
            return Ref(self.cached[argument.name])
        name = self._fresh(f"{argument.name}_{wanted.name}")
        if is_cached:
            self.cached[argument.name] = name
        casts.append(converted(node, name, argument, wanted))
        return Ref(name)

    def _fresh(self, name: str) -> str:
        number = 1
        fresh = name
        while fresh in self.taken:
            fresh, number = f"{name}_{number}", number + 1
        self.taken.add(fresh)
        return fresh


def _eligible(value: Any) -> TensorType | None:
    """The type of a tensor that autocast converts: real floating point of at most 32 bits."""
    is_tensor = isinstance(value, TensorType) and value.dtype.kind == "float" and value.dtype is not FLOAT64
    return value if is_tensor else None
