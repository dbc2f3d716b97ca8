"""Generates the Triton source of a score or mask function, given as a Graph of scalars.

Every value is a scalar of the function and a tile of the kernel. Query indices are a column and key indices a row. So a
value that depends on only one of them is computed and loaded once for each row or column, not for each score.
"""

import keyword
import math
import re
from collections.abc import Sequence
from typing import Union

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.errors import ModelError, shown
from graphflops.graph import Argument, Graph, Node, Ref
from graphflops.runtime.flex.lowering import Value, literal, lowered, passes
from graphflops.tensor import TensorType

SCORE = ("score", "b", "h", "q", "kv")
MASK = SCORE[1:]
GRADIENT = (*SCORE, "grad")
_INDICES = frozenset(MASK)
_HELPERS = ("floor_divide", "remainder", "float_remainder", "trunc", "round_half_even", "sign", "tanh")
_TAKEN = frozenset({*GRADIENT, *_HELPERS, "expm1", "log1p", "power", "buffers", "tl", "triton", "float"})
_LONG = 2**31  # elements: an offset in a larger buffer needs 64 bits


class Buffer(Record, frozen=True):
    """A captured tensor: its index among the kernel's buffers, sizes and strides in elements, and element type."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class _View(Record, frozen=True):
    """Part of a buffer: the indices applied so far, as text, and the remaining axes."""

    name: str
    buffer: Buffer
    terms: tuple[str, ...]
    axes: tuple[int, ...]


_Known = Union[Value, _View]


def triton_function(graph: Graph, name: str, parameters: Sequence[str], buffers: Sequence[Buffer]) -> str:
    """The source of one `@triton.jit` function that computes the graph's only result.

    parameters: what the graph's first inputs are called; the rest are the buffers, in order.
    Raises ModelError for an operator without a translation.
    """
    return _Writer(graph, name, parameters, buffers).source()


def result_of(node: Node) -> str:
    """Name of the first result that somebody wants."""
    return next((name for name in node.outputs if name is not None), node.name)


class _Writer:
    def __init__(self, graph: Graph, name: str, parameters: Sequence[str], buffers: Sequence[Buffer]) -> None:
        self.graph, self.name, self.parameters = graph, name, tuple(parameters)
        self.known: dict[str, _Known] = {}
        self.lines: list[str] = []
        inputs = [entry.name for entry in graph.inputs]
        if len(inputs) != len(parameters) + len(buffers):
            taken = f"{len(parameters)} and {len(buffers)} buffers"
            raise ModelError(f"{shown(name)} takes {len(inputs)} values, not {taken}")
        for given, parameter in zip(inputs, parameters, strict=False):
            natural = parameter in _INDICES
            self.known[given] = Value(parameter, "tl.int32" if natural else self.type_of(given), natural)
        for given, buffer in zip(inputs[len(parameters) :], buffers, strict=True):
            name = f"buffer{buffer.place}"
            self.lines.append(f"{name} = buffers[{buffer.place}]")
            self.known[given] = _View(name, buffer, (), tuple(range(len(buffer.shape))))

    def source(self) -> str:
        for node in self.graph.nodes:
            self.node(node)
        (output,) = self.graph.outputs
        result = self.operand(output.value)
        if self.parameters == MASK:
            text = result.tensor("tl.int1").cast("tl.int1")
        else:  # in the type that scores are computed in
            text = result.tensor("tl.float32").cast(self.operand(Ref(self.graph.inputs[0].name)).type)
        kept: list[str] = []
        wanted = set(re.findall(r"\w+", text))
        for line in reversed(self.lines):  # only those that the result needs
            target, _, made = line.partition(" = ")
            if target in wanted:
                wanted.update(re.findall(r"\w+", made))
                kept.insert(0, line)
        head = f"def {self.name}({', '.join(self.parameters)}, buffers):"
        return "\n".join(["@triton.jit", head, *(f"    {line}" for line in kept), f"    return {text}", ""])

    # Values

    def type_of(self, name: str) -> str:
        known = self.graph.types.get(name)
        if not isinstance(known, TensorType):
            raise ModelError(f"{self.name}: the type of {shown(name)} is not known")
        if known.dtype.name not in _TYPES:
            raise ModelError(f"{self.name}: no translation of values of type {shown(known.dtype.name)}")
        return _TYPES[known.dtype.name]

    def operand(self, argument: Argument) -> Value:
        if isinstance(argument, Ref):
            known = self.known[argument.name]
            return self.loaded(argument.name, known) if isinstance(known, _View) else known
        if isinstance(argument, (bool, int, float)):
            return Value(literal(argument), "", not isinstance(argument, float) and argument >= 0)
        raise ModelError(f"{self.name}: {shown(str(argument))} is no number")

    def loaded(self, name: str, view: _View) -> Value:
        if any(view.buffer.shape[axis] != 1 for axis in view.axes):
            raise ModelError(
                f"{self.name}: a captured tensor of shape {list(view.buffer.shape)} is used whole; "
                "index it by batch, head, query or key"
            )
        place = " + ".join(view.terms) or "0"
        dtype = view.buffer.dtype
        text = f"tl.load({view.name} + {place})"
        if dtype == "bool":
            value = Value(self.assign(f"{name}_value", f"{text} != 0"), "tl.int1", True)
        else:
            kind = _TYPES[dtype]
            cast = f".to({kind})" if dtype in ("float16", "bfloat16") else ""
            value = Value(self.assign(f"{name}_value", text + cast), kind)
        self.known[name] = value
        return value

    def assign(self, name: str, text: str) -> str:
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"value{len(self.lines)}"
        name = f"{name}_" if name in _TAKEN else name
        self.lines.append(f"{name} = {text}")
        return name

    # Calls

    def node(self, node: Node) -> None:
        op, arguments = node.operator, node.arguments()
        name, view = result_of(node), self.view(arguments.get("x"))
        if op.name == "index":
            self.known[name] = self.indexed(arguments["x"], arguments["index"])
        elif op.name == "select":
            self.known[name] = self.selected(node)
        elif isinstance(view, _View) and (order := op.turned(arguments, len(view.axes))) is not None:
            self.known[name] = replace(view, axes=tuple([view.axes[axis] for axis in order]))
        elif passes(op) and isinstance(view, _View):
            self.known[name] = self.viewed(node)
        else:
            value = lowered(node, self.type_of(name), self.operand)
            if value is None:
                raise self.unknown(node)
            plain = passes(op) and value.text.isidentifier()
            text = value.text if plain else self.assign(name, value.text)
            self.known[name] = Value(text, value.type, value.natural)

    def unknown(self, node: Node) -> ModelError:
        return ModelError(f"{self.name}: no translation of {shown(node.op)} to the attention kernel")

    # Captured tensors

    def view(self, argument: Argument) -> _Known | None:
        return self.known.get(argument.name) if isinstance(argument, Ref) else None

    def viewed(self, node: Node) -> _Known:
        """A captured tensor without change; a scalar may also be cast."""
        view = self.view(node.arguments()["x"])
        assert isinstance(view, _View)
        name = result_of(node)
        known = self.graph.types.get(name)
        if view.axes and isinstance(known, TensorType) and len(known.shape) == len(view.axes):
            if known.dtype.name != view.buffer.dtype:
                raise self.unknown(node)
            return view
        value = self.loaded(f"{name}_whole", view)
        kind = self.type_of(name)
        return Value(self.assign(name, value.cast(kind)), kind, value.natural)

    def indexed(self, source: Argument, indices: Argument) -> _Known:
        view = self.view(source)
        if not isinstance(view, _View) or not isinstance(indices, tuple):
            raise ModelError(f"{self.name}: only captured tensors can be indexed")
        terms, axes = list(view.terms), []
        for place, axis in enumerate(view.axes):
            index = indices[place] if place < len(indices) else None
            if index is None:
                axes.append(axis)
            else:
                terms.append(self.term(view.buffer, axis, self.operand(index)))
        return replace(view, terms=tuple(terms), axes=tuple(axes))

    def selected(self, node: Node) -> _Known:
        arguments = node.arguments()
        view, axis = self.view(arguments["x"]), arguments["axis"]
        if not isinstance(view, _View) or not isinstance(axis, int):
            raise self.unknown(node)
        before = (None,) * (axis % len(view.axes))
        return self.indexed(arguments["x"], (*before, arguments["index"]))

    def term(self, buffer: Buffer, axis: int, index: Value) -> str:
        """The offset in memory of one index; a negative index counts from the end."""
        size, stride = buffer.shape[axis], buffer.strides[axis]
        text = index.text
        if not index.natural:
            text = f"tl.where({text} < 0, {text} + {size}, {text})" if index.type else f"({text} + {size})"
        if index.type and math.prod(buffer.shape) >= _LONG:
            text = f"{text}.to(tl.int64)"
        return text if stride == 1 else f"{text} * {stride}"


# Triton's type for computing with values of an element type; half precision is computed in single.
_TYPES = {
    "bool": "tl.int1", "uint8": "tl.uint8", "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32",
    "int64": "tl.int64", "float16": "tl.float32", "bfloat16": "tl.float32", "float32": "tl.float32",
    "float64": "tl.float64",
}  # fmt: skip
