"""The functions that an ONNX file defines: each is read once, and the size of the inlined program is limited.

A function of the file counts in place of an operator of the same name; onnxruntime runs the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphflops.errors import FileError, shown
from graphflops.exporters.onnx_scope import Scope, domain_of, opsets_of
from graphflops.ops import operator
from graphflops.ops.onnx_versions import NEWEST
from graphflops.rules.registry import find

MOST_CALLS = 100_000  # of functions, and inside them
MOST_OPERANDS = 1_000_000  # formal operands, results, attributes, opsets and declared types, over all calls
MOST_NESTED_CALLS = 60


@dataclass(frozen=True)
class Function:
    """A FunctionProto, with what each call of it needs."""

    proto: Any

    @cached_property
    def name(self) -> str:
        return f"{self.proto.domain or 'ai.onnx'}.{self.proto.name}"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.proto.input)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.proto.output)

    @cached_property
    def opsets(self) -> dict[str, int]:
        return opsets_of(self.proto.opset_import)

    @cached_property
    def calls(self) -> int:
        """Calls in its body, those of nested graphs and of attributes' defaults among them."""
        return sum(_calls(node) for node in self.proto.node) + sum(
            map(_in_attribute, self.proto.attribute_proto)
        )

    @cached_property
    def operands(self) -> int:
        """Work of a call that is no call in the body."""
        proto = self.proto
        declared = len(proto.attribute_proto) + len(proto.value_info) + len(proto.opset_import)
        return len(self.inputs) + len(self.outputs) + declared


class Functions:
    """The functions of a model by operator, and what has been written out of them."""

    def __init__(self, protos: Iterable[Any]) -> None:
        self._known: dict[tuple[str, str, str], Function] = {}
        for proto in protos:
            function = Function(proto)
            if (
                self._known.setdefault((domain_of(proto.domain), proto.name, proto.overload), function)
                is not function
            ):
                raise FileError(f"the function {shown(function.name)} is defined twice")
        self._calls = self._operands = 0

    def find(self, domain: str, kind: str, overload: str) -> Function | None:
        """The function that defines an operator, if the file has one."""
        return self._known.get((domain, kind, overload))

    def hides(self, op: str, domain: str, opset: int) -> bool:
        """Whether runtimes have an operator of that name, at the opset that the file imports."""
        return domain in NEWEST and operator(op).version <= opset and find(op) is not None

    def enter(self, function: Function, operands: int, scope: Scope, name: str) -> None:
        """Count a call of a function; raises FileError where it cannot be written out."""
        if function.name in scope.functions:
            raise FileError(f"the function {shown(function.name)} calls itself")
        if len(scope.functions) >= MOST_NESTED_CALLS:
            raise FileError(f"functions that call one another nest deeper than {MOST_NESTED_CALLS} calls")
        if operands > len(function.inputs):
            taken = len(function.inputs)
            raise FileError(
                f"{shown(name)} gives {operands} operands to {shown(function.name)}, which takes {taken}"
            )
        self.count(1 + function.calls)
        self._operands += function.operands + len(scope.opsets)
        if self._operands > MOST_OPERANDS:
            raise FileError(f"functions that call one another have more than {MOST_OPERANDS:,} operands")

    def count(self, calls: int) -> None:
        """Counts calls of a function that is inlined once more."""
        self._calls += calls
        if self._calls > MOST_CALLS:
            raise FileError(f"functions that call one another have more than {MOST_CALLS:,} calls")


def _calls(node: Any) -> int:
    """A call and those in the graphs among its attributes."""
    return 1 + sum(map(_in_attribute, node.attribute))


def _in_attribute(attribute: Any) -> int:
    return sum(_calls(node) for graph in _graphs(attribute) for node in graph.node)


def _graphs(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
