"""A score or mask function, as a Graph of scalars, in Triton's language.

Every value is a scalar of the function and a tile of the kernel. Indices come as a column and a row, so that what
depends on one of them only is computed and loaded once for the row or column, not for each score.
"""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, Node, Opaque, Ref
from graphflops.runtime.flex import operators
from graphflops.tensor import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.graph import Argument

SCORE = ("score", "b", "h", "q", "kv")
MASK = SCORE[1:]
GRADIENT = (*SCORE, "grad")
_INDICES = frozenset(MASK)
_HELPERS = ("floor_divide", "remainder", "float_remainder", "trunc", "round_half_even", "sign", "tanh")
_TAKEN = frozenset({*GRADIENT, *_HELPERS, "expm1", "log1p", "power", "buffers", "tl", "triton", "float"})
_LONG = 2**31  # elements from which on a place in a buffer needs 64 bits


@dataclass(frozen=True, slots=True)
class Buffer:
    """A captured tensor: its place among the kernel's buffers, sizes and strides in elements, and element type."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Value:
    """Text of a value, its Triton type ("" for a literal), and whether it is known to be no less than zero."""

    text: str
    type: str
    natural: bool = False


@dataclass(frozen=True, slots=True)
class _View:
    """Part of a buffer: indices given so far, as text, and the axes that are left."""

    name: str
    buffer: Buffer
    terms: tuple[str, ...]
    axes: tuple[int, ...]


_Known = Union[_Value, _View]


def triton_function(graph: Graph, name: str, parameters: Sequence[str], buffers: Sequence[Buffer]) -> str:
    """The source of one `@triton.jit` function that computes the graph's only result.

    parameters: what the graph's first inputs are called; the rest are the buffers, in order.
    Raises ModelError for an operator without a translation.
    """
    return _Writer(graph, name, parameters, buffers).source()


class _Writer:
    def __init__(self, graph: Graph, name: str, parameters: Sequence[str], buffers: Sequence[Buffer]) -> None:
        self.graph, self.name, self.parameters = graph, name, tuple(parameters)
        self.known: dict[str, _Known] = {}
        self.lines: list[str] = []
        inputs = [entry.name for entry in graph.inputs]
        if len(inputs) != len(parameters) + len(buffers):
            raise ModelError(
                f"{shown(name)} takes {len(inputs)} values, not {len(parameters)} and {len(buffers)} buffers"
            )
        for given, parameter in zip(inputs, parameters, strict=False):
            natural = parameter in _INDICES
            self.known[given] = _Value(parameter, "tl.int32" if natural else self.type_of(given), natural)
        for given, buffer in zip(inputs[len(parameters) :], buffers, strict=True):
            self.buffer(given, buffer)

    def source(self) -> str:
        for node in self.graph.nodes:
            self.node(node)
        (output,) = self.graph.outputs
        result = self.operand(output.value)
        mask = self.parameters == MASK
        text = self.cast(
            self.tensor(result, "tl.int1" if mask else "tl.float32"), "tl.int1" if mask else self.score
        )
        kept = _needed(self.lines, text)
        head = f"def {self.name}({', '.join(self.parameters)}, buffers):"
        return "\n".join(["@triton.jit", head, *(f"    {line}" for line in kept), f"    return {text}", ""])

    @property
    def score(self) -> str:
        """The type scores are computed in."""
        given = self.known[self.graph.inputs[0].name]
        assert isinstance(given, _Value)
        return given.type

    # Values

    def type_of(self, name: str) -> str:
        known = self.graph.types.get(name)
        if not isinstance(known, TensorType):
            raise ModelError(f"{self.name}: the type of {shown(name)} is not known")
        return _type(known.dtype, self.name)

    def buffer(self, given: str, buffer: Buffer) -> None:
        name = f"buffer{buffer.place}"
        self.lines.append(f"{name} = buffers[{buffer.place}]")
        self.known[given] = _View(name, buffer, (), tuple(range(len(buffer.shape))))

    def operand(self, argument: Argument) -> _Value:
        """A value that is read as a number."""
        if isinstance(argument, Ref):
            known = self.known[argument.name]
            return self.loaded(argument.name, known) if isinstance(known, _View) else known
        if isinstance(argument, (bool, int, float)):
            return _Value(_literal(argument), "", not isinstance(argument, float) and argument >= 0)
        raise ModelError(f"{self.name}: {shown(str(argument))} is no number")

    def loaded(self, name: str, view: _View) -> _Value:
        if any(view.buffer.shape[axis] != 1 for axis in view.axes):
            raise ModelError(
                f"{self.name}: a captured tensor of shape {list(view.buffer.shape)} is used whole; "
                "index it by batch, head, query or key"
            )
        place = " + ".join(view.terms) or "0"
        dtype = view.buffer.dtype
        text = f"tl.load({view.name} + {place})"
        if dtype == "bool":
            value = _Value(self.assign(f"{name}_value", f"{text} != 0"), "tl.int1", True)
        else:
            kind = _TYPES[dtype]
            cast = f".to({kind})" if dtype in ("float16", "bfloat16") else ""
            value = _Value(self.assign(f"{name}_value", text + cast), kind)
        self.known[name] = value
        return value

    def assign(self, name: str, text: str) -> str:
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"value{len(self.lines)}"
        name = f"{name}_" if name in _TAKEN else name
        self.lines.append(f"{name} = {text}")
        return name

    def cast(self, value: _Value, kind: str) -> str:
        """The value's text in a type; literals take the type of what they meet."""
        if value.type in ("", kind):
            return value.text
        if kind == "tl.int1":
            return f"({value.text} != 0)"
        return f"{value.text}.to({kind})"

    def tensor(self, value: _Value, kind: str) -> _Value:
        """The value as a Triton tensor, which a literal is not."""
        return value if value.type else _Value(f"tl.full([], {value.text}, {kind})", kind, value.natural)

    def natural(self, values: Iterable[_Value]) -> bool:
        return all(value.natural for value in values)

    # Calls

    def node(self, node: Node) -> None:
        namespace, _, rest = node.op.partition(".")
        word = rest.partition(".")[0]
        name = next((name for name in node.outputs if name is not None), node.name)
        if namespace == "higher_order" and word == "flat_apply":
            self.known[name] = self.flat_apply(node)
        elif namespace not in ("aten", "prims", "_operator"):
            raise self.unknown(node)
        elif word == "index":
            self.known[name] = self.indexed(node.args[0], node.args[1])
        elif word == "select":
            self.known[name] = self.selected(node)
        elif word in ("t", "transpose", "permute"):
            self.known[name] = self.permuted(node, word)
        elif word in operators.SAME and isinstance(self.view(node.args[0]), _View):
            self.known[name] = self.viewed(node, word)
        else:
            value = self.value(node, word, name)
            plain = word in operators.SAME and value.text.isidentifier()
            text = value.text if plain else self.assign(name, value.text)
            self.known[name] = _Value(text, value.type, value.natural)

    def unknown(self, node: Node) -> ModelError:
        return ModelError(f"{self.name}: no translation of {shown(node.op)} to the attention kernel")

    def value(self, node: Node, word: str, name: str) -> _Value:
        """One call, as text."""
        kind = self.type_of(name)
        filled = _filled(node, word)
        if filled is not None:
            text = _literal(filled)
            return _Value(f"tl.full([], {text}, {kind})", kind, filled >= 0)
        named = dict(node.kwargs)
        arguments = [a for a in node.args if not isinstance(a, (DType, Opaque, tuple))]
        if word == "clamp":
            return self.clamp(node, kind)
        if word in ("pow", "__pow__"):
            return self.power(node, kind)
        if word in operators.SAME or word == "copy":
            value = self.operand(node.args[word == "copy"])
            return _Value(self.cast(self.tensor(value, kind), kind), kind, value.natural)
        values = [self.operand(argument) for argument in arguments]
        if word in ("add", "sub", "rsub"):
            return self.sum(values, word, named.get("alpha", 1), kind)
        if word in ("div", "true_divide", "truediv", "floor_divide", "floordiv", "remainder", "mod"):
            return self.divide(values, word, named.get("rounding_mode"), kind)
        if word == "where":
            condition, *choices = values
            texts = [self.cast(self.tensor(choice, kind), kind) for choice in choices]
            return _Value(
                f"tl.where({self.cast(condition, 'tl.int1')}, {', '.join(texts)})",
                kind,
                self.natural(choices),
            )
        return self.by_table(node, word, values, kind)

    def by_table(self, node: Node, word: str, values: Sequence[_Value], kind: str) -> _Value:
        word = {"and_": "__and__", "or_": "__or__", "xor": "__xor__"}.get(word, word)
        if word == "bitwise_not":
            text = self.cast(values[0], kind)
            return _Value(f"{text} == 0" if kind == "tl.int1" else f"~{text}", kind)
        if word in operators.ARITHMETIC:
            texts = self.texts(values, kind)
            natural = self.natural(values) and word not in ("neg", "sign", "sgn")
            return _Value(operators.ARITHMETIC[word].format(*texts), kind, natural)
        if word in operators.FLOATING:
            return _Value(operators.FLOATING[word].format(*self.texts(values, kind)), kind)
        if word in operators.ROUNDING:
            text = self.texts(values, kind)[0]
            return _Value(
                operators.ROUNDING[word].format(text) if "float" in kind else text, kind, self.natural(values)
            )
        if word in operators.COMPARISON:
            texts = self.texts(values, _common(values))
            return _Value(operators.COMPARISON[word].format(*texts), "tl.int1", True)
        if word in operators.LOGICAL:
            texts = self.texts(values, "tl.int1")
            return _Value(operators.LOGICAL[word].format(*texts), "tl.int1", True)
        raise self.unknown(node)

    def texts(self, values: Sequence[_Value], kind: str) -> list[str]:
        """Operands in one type; the first is a tensor, which Triton's functions want."""
        first, *rest = values
        return [self.cast(self.tensor(first, kind), kind), *(self.cast(value, kind) for value in rest)]

    def sum(self, values: Sequence[_Value], word: str, alpha: Argument, kind: str) -> _Value:
        a, b = self.texts(values, kind)
        if alpha != 1:
            b = f"{b} * {_literal(alpha)}"
        if word == "add":
            return _Value(f"{a} + {b}", kind, self.natural(values) and alpha == 1)
        return _Value(f"{b} - {a}" if word == "rsub" else f"{a} - {b}", kind)

    def divide(self, values: Sequence[_Value], word: str, mode: Argument, kind: str) -> _Value:
        a, b = self.texts(values, kind)
        whole, natural = "int" in kind, self.natural(values)
        if word in ("remainder", "mod"):
            function = "remainder" if whole else "float_remainder"
            return _Value(f"{a} % {b}" if whole and natural else f"{function}({a}, {b})", kind, natural)
        floor = mode == "floor" or word in ("floor_divide", "floordiv")
        if whole and (floor or mode == "trunc"):
            plain = natural or mode == "trunc"
            return _Value(f"{a} // {b}" if plain else f"floor_divide({a}, {b})", kind, natural)
        rounding = "tl.floor({})" if floor else "trunc({})" if mode == "trunc" else "{}"
        return _Value(rounding.format(f"{a} / {b}"), kind, natural)

    def clamp(self, node: Node, kind: str) -> _Value:
        named = dict(node.kwargs)
        low = node.args[1] if len(node.args) > 1 else named.get("min")
        high = node.args[2] if len(node.args) > 2 else named.get("max")
        value = self.tensor(self.operand(node.args[0]), kind)
        text, natural = self.cast(value, kind), value.natural
        if low is not None:
            text = f"tl.maximum({text}, {self.cast(self.operand(low), kind)})"
            natural = natural or self.operand(low).natural
        if high is not None:
            text = f"tl.minimum({text}, {self.cast(self.operand(high), kind)})"
            natural = natural and self.operand(high).natural
        return _Value(text, kind, natural)

    def power(self, node: Node, kind: str) -> _Value:
        base, exponent = self.operand(node.args[0]), node.args[1]
        text = self.cast(self.tensor(base, kind), kind)
        if isinstance(exponent, (int, float)) and float(exponent).is_integer() and 1 <= exponent <= 8:
            return _Value(" * ".join([text] * int(exponent)), kind, base.natural)
        if exponent in (0.5, -0.5):
            return _Value(f"tl.sqrt({text})" if exponent == 0.5 else f"tl.rsqrt({text})", kind)
        if "float" not in kind:
            raise self.unknown(node)
        return _Value(f"power({text}, {self.cast(self.tensor(self.operand(exponent), kind), kind)})", kind)

    # Captured tensors

    def view(self, argument: Argument) -> _Known | None:
        return self.known.get(argument.name) if isinstance(argument, Ref) else None

    def viewed(self, node: Node, word: str) -> _Known:
        """A captured tensor passed on as it is; a scalar may also be cast."""
        view = self.view(node.args[0])
        assert isinstance(view, _View)
        name = next((name for name in node.outputs if name is not None), node.name)
        known = self.graph.types.get(name)
        if view.axes and isinstance(known, TensorType) and len(known.shape) == len(view.axes):
            if known.dtype.name != view.buffer.dtype:
                raise self.unknown(node)
            return view
        value = self.loaded(f"{name}_whole", view)
        kind = self.type_of(name)
        return _Value(self.assign(name, self.cast(value, kind)), kind, value.natural)

    def permuted(self, node: Node, word: str) -> _Known:
        view = self.view(node.args[0])
        if not isinstance(view, _View):
            raise self.unknown(node)
        order = list(range(len(view.axes)))
        if word == "permute":
            given = node.args[1]
            assert isinstance(given, tuple)
            order = [order[axis] for axis in given if isinstance(axis, int)]
        else:
            first, second = node.args[1:3] if word == "transpose" else (0, -1)
            assert isinstance(first, int)
            assert isinstance(second, int)
            order[first], order[second] = order[second], order[first]
        return _View(view.name, view.buffer, view.terms, tuple(view.axes[axis] for axis in order))

    def flat_apply(self, node: Node) -> _Known:
        """Indexing as torch's tracer records it inside a score function."""
        if len(node.args) < 5 or not str(node.args[2]).endswith("ModIndex"):
            raise self.unknown(node)
        return self.indexed(node.args[3], tuple(node.args[4:]))

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
        return _View(view.name, view.buffer, tuple(terms), tuple(axes))

    def selected(self, node: Node) -> _Known:
        view, dim = self.view(node.args[0]), node.args[1]
        if not isinstance(view, _View) or not isinstance(dim, int):
            raise self.unknown(node)
        dim %= len(view.axes)
        term = self.term(view.buffer, view.axes[dim], self.operand(node.args[2]))
        return _View(view.name, view.buffer, (*view.terms, term), (*view.axes[:dim], *view.axes[dim + 1 :]))

    def term(self, buffer: Buffer, axis: int, index: _Value) -> str:
        """What one index adds to the place in memory; negative ones count from the end."""
        size, stride = buffer.shape[axis], buffer.strides[axis]
        text = index.text
        if not index.natural:
            text = f"tl.where({text} < 0, {text} + {size}, {text})" if index.type else f"({text} + {size})"
        if index.type and math.prod(buffer.shape) >= _LONG:
            text = f"{text}.to(tl.int64)"
        return text if stride == 1 else f"{text} * {stride}"


_TYPES = {
    "bool": "tl.int1",
    "uint8": "tl.uint8",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "float16": "tl.float32",
    "bfloat16": "tl.float32",
    "float32": "tl.float32",
    "float64": "tl.float64",
}


def _type(dtype: DType, where: str) -> str:
    """Triton's type for computing with values of an element type; half precision is computed in single."""
    try:
        return _TYPES[dtype.name]
    except KeyError:
        raise ModelError(f"{where}: no translation of values of type {shown(dtype.name)}") from None


def _common(values: Sequence[_Value]) -> str:
    """The type two operands are compared in."""
    types = {value.type for value in values if value.type}
    literals = [value.text for value in values if not value.type]
    for kind in ("tl.float64", "tl.float32"):
        if kind in types:
            return kind
    if any(not text.lstrip("-").isdigit() and text not in ("True", "False") for text in literals):
        return "tl.float32"
    ordered = ("tl.int64", "tl.int32", "tl.int16", "tl.int8", "tl.uint8")
    return next((kind for kind in ordered if kind in types), "tl.int1" if types else "tl.int32")


def _literal(value: object) -> str:
    """A number as Triton reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (bool, int, float)):
        return f"({value!r})" if value < 0 else repr(value)
    raise ModelError(f"{shown(str(value))} is no number")


def _filled(node: Node, word: str) -> bool | int | float | None:
    """The number that a call makes a tensor of."""
    if word in operators.ZEROS or word in operators.ONES:
        return int(word in operators.ONES)
    place = operators.FILLED.get(word)
    if place is None:
        return None
    named: Mapping[str, Argument] = dict(node.kwargs)
    value = node.args[place] if place < len(node.args) else named.get("fill_value", named.get("value"))
    return value if isinstance(value, (bool, int, float)) else None


def _needed(lines: Sequence[str], result: str) -> list[str]:
    """The lines that the result depends on."""
    kept: list[str] = []
    wanted = _names(result)
    for line in reversed(lines):
        target, _, text = line.partition(" = ")
        if target in wanted:
            wanted |= _names(text)
            kept.append(line)
    return kept[::-1]


def _names(text: str) -> set[str]:
    word, names = "", set()
    for character in f"{text} ":
        if character.isalnum() or character == "_":
            word += character
        elif word:
            names.add(word)
            word = ""
    return names
