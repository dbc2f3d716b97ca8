"""A program at another precision: its parameters converted, its products in a lower one as torch.autocast runs them.

The element types of all values follow from the rules of their operators. Where a program names the type that its parameters
have, it means their type, whatever that is (`x.to(weight.dtype)`), unless the line of code says float32. Conversions of
operands become calls of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphflops.graph import Graph, Node, Ref
from graphflops.passes.bind import bind
from graphflops.passes.price import Pricer
from graphflops.rules.added_calls import autocast, converted
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType, flat
from graphflops.training import Precision


@dataclass(slots=True)
class Autocast:
    """Rewrites the calls of one program as autocast runs them, with conversions as calls of their own."""

    lower: DType  # the element type of products
    leaves: Collection[str]  # parameters with a gradient, whose converted copies last the whole forward
    taken: set[str]  # names of values so far
    cached: dict[str, str] = field(default_factory=dict)  # these copies by parameter

    def calls(self, node: Node, types: Mapping[str, Any]) -> list[Node]:
        """The conversions before a call, and the call with their results as operands."""
        treatment = autocast(node.operator)
        if treatment is None:
            return [node]
        operands = [value for ref in node.reads() if (value := _eligible(types.get(ref))) is not None]
        if treatment == "single result":
            has_type = any(isinstance(x, DType) for x in (*node.args, *(value for _, value in node.kwargs)))
            if has_type or not any(value.dtype in (BFLOAT16, FLOAT16) for value in operands):
                return [node]
            return [replace(node, kwargs=(*node.kwargs, ("dtype", FLOAT32)))]
        if treatment == "widest" and not any(value.dtype is FLOAT32 for value in operands):
            return [node]
        wanted = self.lower if treatment == "lower" else FLOAT32
        casts: list[Node] = []
        args = tuple(self._converted(x, wanted, node, types, casts) for x in node.args)
        kwargs = tuple((key, self._converted(x, wanted, node, types, casts)) for key, x in node.kwargs)
        return [*casts, replace(node, args=args, kwargs=kwargs)]

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
        name = wished = f"{argument.name}_{wanted.name}"
        number = 1
        while name in self.taken:
            name, number = f"{wished}_{number}", number + 1
        self.taken.add(name)
        if is_cached:
            self.cached[argument.name] = name
        casts.append(converted(node, name, argument, wanted))
        return Ref(name)


def _eligible(value: Any) -> TensorType | None:
    """The type of a tensor that autocast converts: real floating point of at most 32 bits."""
    is_tensor = isinstance(value, TensorType) and value.dtype.kind == "float" and value.dtype is not FLOAT64
    return value if is_tensor else None


_FLOATING = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
_PARAMETERS: Mapping[Precision, DType] = {
    "fp32": FLOAT32,
    "bf16": BFLOAT16,
    "bf16-mixed": FLOAT32,
    "fp16-mixed": FLOAT32,
}
_PRODUCTS: Mapping[Precision, DType] = {"bf16-mixed": BFLOAT16, "fp16-mixed": FLOAT16}
_SAYS_FLOAT32 = re.compile(r"\.float32\b|\.float\(|torch\.float\b")


def at_precision(graph: Graph, precision: Precision, leaves: Iterable[str]) -> Graph:
    """The program with parameters, values and products of a precision. leaves: names of parameters that want a gradient."""
    elements: Counter[DType] = Counter()
    for entry in graph.inputs:
        value = graph.types.get(entry.name)
        if entry.role == "parameter" and isinstance(value, TensorType) and value.dtype in _FLOATING:
            elements[value.dtype] += value.numel if isinstance(value.numel, int) else 1
    own = elements.most_common(1)[0][0] if elements else FLOAT32  # that most of the parameters have
    pricer = Pricer(graph, bind(graph, {}, {}, assume=False), False, None, lambda _: None)
    autocast = None
    if precision in _PRODUCTS:
        autocast = Autocast(_PRODUCTS[precision], frozenset(leaves), {*graph.types})
    conversion = _Conversion(own, _PARAMETERS[precision], pricer, autocast)
    types = {
        entry.name: conversion.of_input(entry.role, graph.types.get(entry.name)) for entry in graph.inputs
    }
    converted = conversion.graph(graph, {name: value for name, value in types.items() if value is not None})
    cached = frozenset(autocast.cached.values()) if autocast else frozenset()
    return replace(converted, lasting=cached)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """From the type that most parameters have to a wanted one."""

    own: DType
    wanted: DType
    pricer: Pricer
    autocast: Autocast | None

    def of_input(self, role: str, value: Any) -> Any:
        """The type of an input: `module.to(dtype)` converts parameters and buffers, the caller what it passes in."""
        if not isinstance(value, TensorType) or value.dtype not in _FLOATING:
            return value
        is_converted = role in ("parameter", "buffer") or value.dtype is self.own
        return replace(value, dtype=self.wanted) if is_converted else value

    def graph(self, graph: Graph, inputs: Mapping[str, Any]) -> Graph:
        """The graph, nested or not, from the types of its inputs and of the values around it that it uses."""
        types: dict[str, Any] = {**graph.types, **inputs}
        nodes: list[Node] = []
        marks = dict(graph.recomputed)
        for recorded in graph.nodes:
            node = self.with_nested(self.with_type(recorded), types)
            for call in [node] if self.autocast is None else self.autocast.calls(node, types):
                self.derive(call, types, graph)
                nodes.append(call)
                if node.name in marks:
                    marks[call.name] = marks[node.name]
        return replace(graph, nodes=tuple(nodes), types=types, recomputed=marks)

    def with_type(self, node: Node) -> Node:
        """The call with the wanted type where it names that of the parameters."""
        names_own = self.own in node.args or any(value is self.own for _, value in node.kwargs)
        if self.own is self.wanted or not names_own:
            return node
        if self.own is FLOAT32 and _SAYS_FLOAT32.search(node.python_stack.rpartition("\n")[2]):
            return node
        args = tuple(self.wanted if x is self.own else x for x in node.args)
        kwargs = tuple((key, self.wanted if x is self.own else x) for key, x in node.kwargs)
        return replace(node, args=args, kwargs=kwargs)

    def with_nested(self, node: Node, types: Mapping[str, Any]) -> Node:
        """The call with its nested graphs converted: their inputs are the operands behind them, in order."""
        if not any(isinstance(argument, Graph) for argument in node.args):
            return node
        first = next(place for place, argument in enumerate(node.args) if isinstance(argument, Graph))
        operands = [types.get(ref.name) for ref in flat(node.args[first:]) if isinstance(ref, Ref)]

        def converted(argument: Any) -> Any:
            if not isinstance(argument, Graph):
                return argument
            names = [entry.name for entry in argument.inputs if entry.role != "constant"]
            around = {name: types[name] for name in argument.captures if name in types}
            given = {
                name: _with_type_of(argument.types.get(name), operand)
                for name, operand in zip(names, operands, strict=False)
            }
            # what one graph converts has no name in another
            own = None if self.autocast is None else replace(self.autocast, cached={})
            return replace(self, autocast=own).graph(argument, {**around, **given})

        return replace(node, args=tuple(converted(argument) for argument in node.args))

    def derive(self, node: Node, types: dict[str, Any], graph: Graph) -> None:
        """Fix the types of a call's results: the recorded sizes, with the element types that its rule derives."""
        estimate = self.pricer.price_of(node, types, graph).estimate
        reads = [value.dtype for name in node.reads() if isinstance(value := types.get(name), TensorType)]
        for place, name in enumerate(node.outputs):
            if name is None:
                continue
            ours = estimate.out[place] if place < len(estimate.out) else None
            recorded = types.get(name)
            if recorded is None:
                types[name] = ours
            elif isinstance(ours, TensorType):
                types[name] = _with_type_of(recorded, ours)
            elif isinstance(recorded, TensorType) and recorded.dtype is self.own and self.wanted in reads:
                types[name] = replace(recorded, dtype=self.wanted)


def _with_type_of(recorded: Any, ours: Any) -> Any:
    """The recorded type with the element type of another, where both are floating."""
    if not isinstance(recorded, TensorType) or not isinstance(ours, TensorType):
        return recorded
    if not recorded.dtype.is_floating or not ours.dtype.is_floating or recorded.dtype is ours.dtype:
        return recorded
    return replace(recorded, dtype=ours.dtype)
