"""Masks as expressions over the places i and j, rendered as programs in every spelling, and evaluated in plain Python.

A number is `i`, `j`, a whole number, or (name, operands); a truth is (name, operands). `table` is a captured row of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphflops.dims import symbol
from graphflops.graph import Graph, Input, Node, Output, Ref, Stored, Symbol
from graphflops.tensor import BOOL, FLOAT32, INT32, INT64, TensorType

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.tensor import DType

Expression = Any
TABLE = [0, 0, 0, 1, 1, 2, 2, 2, 2, 5, 3, 3, 3, 3, 1, 0]
LONGEST = len(TABLE)
WIDTH = 8
PAIR = 2 * (WIDTH + WIDTH)  # FLOPs of a pair in both products
HIDDEN = float("-inf")

PYTHON: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
    "abs": abs,
    "neg": lambda a: -a,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda condition, a, b: a if condition else b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "not": lambda a: not a,
}
ATEN = {
    **{
        name: f"aten.{name}.Tensor"
        for name in ("add", "sub", "mul", "remainder", "le", "lt", "ge", "gt", "eq", "ne")
    },
    **{
        name: f"aten.{name}.default" for name in ("floor_divide", "minimum", "maximum", "abs", "neg", "clamp")
    },
    "where": "aten.where.self",
    "and": "aten.bitwise_and.Tensor",
    "or": "aten.logical_or.default",
    "xor": "aten.bitwise_xor.Tensor",
    "not": "aten.logical_not.default",
}
ONNX = {
    "add": "onnx.Add.14",
    "sub": "onnx.Sub.14",
    "mul": "onnx.Mul.14",
    "remainder": "onnx.Mod.13",
    "minimum": "onnx.Min.13",
    "maximum": "onnx.Max.13",
    "abs": "onnx.Abs.13",
    "neg": "onnx.Neg.13",
    "clamp": "onnx.Clip.13",
    "where": "onnx.Where.16",
    "le": "onnx.LessOrEqual.16",
    "lt": "onnx.Less.13",
    "ge": "onnx.GreaterOrEqual.16",
    "gt": "onnx.Greater.13",
    "eq": "onnx.Equal.13",
    "and": "onnx.And.7",
    "or": "onnx.Or.7",
    "xor": "onnx.Xor.7",
    "not": "onnx.Not.1",
}
TRUTHS = frozenset({"le", "lt", "ge", "gt", "eq", "ne", "and", "or", "xor", "not"})


def evaluated(expression: Expression, i: int, j: int) -> Any:
    """The value at one pair."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return {"i": i, "j": j}[expression]
    name, *operands = expression
    values = [evaluated(operand, i, j) for operand in operands]
    return TABLE[values[0]] if name == "table" else PYTHON[name](*values)


def is_truth(expression: Expression) -> bool:
    if isinstance(expression, (int, str)):
        return False
    return expression[0] in TRUTHS or (expression[0] == "where" and is_truth(expression[2]))


def names_in(expression: Expression) -> set[str]:
    if not isinstance(expression, tuple):
        return set()
    return {expression[0]}.union(*map(names_in, expression[1:]))


@dataclass
class Builder:
    """The calls of one graph. index: element type of places; scalar: whether every value is of one pair."""

    dialect: dict[str, str]
    index: DType = INT64
    scalar: bool = False
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, Any] = field(default_factory=dict)

    def call(self, op: str, *arguments: Any, dtype: DType, shape: tuple[Dim, ...], **named: Any) -> Ref:
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(name, op, arguments, tuple(named.items()), (name,)))
        self.types[name] = TensorType(shape, dtype)
        return Ref(name)

    def number(self, value: float, dtype: DType) -> Any:
        """A literal, for ONNX an initializer."""
        if self.dialect is not ONNX:
            return value
        name = f"c{len(self.types)}"
        whole = int(value) if dtype is not FLOAT32 else None
        self.types[name] = TensorType((), dtype, value=whole, uniform=None if whole is not None else value)
        return Ref(name)

    def shape(self, *operands: Any) -> tuple[Dim, ...]:
        """What operands broadcast to."""
        shapes = [
            self.types[x.name].shape for x in operands if isinstance(x, Ref) and self.types[x.name].shape
        ]
        if not shapes:
            return ()
        return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True))

    def made(self, expression: Expression, leaves: dict[str, Ref]) -> Any:
        """The value of an expression."""
        if isinstance(expression, int):
            return self.number(expression, self.index)
        if isinstance(expression, str):
            return leaves[expression]
        name, *operands = expression
        values = [self.made(operand, leaves) for operand in operands]
        shape, dtype = self.shape(*values), BOOL if is_truth(expression) else self.index
        if name == "table":
            op, index = (
                ("onnx.Gather.13", values[0]) if self.dialect is ONNX else ("aten.index.Tensor", (values[0],))
            )
            return self.call(op, Ref("table"), index, dtype=self.index, shape=shape)
        if name == "ne" and self.dialect is ONNX:
            equal = self.call(self.dialect["eq"], *values, dtype=BOOL, shape=shape)
            return self.call(self.dialect["not"], equal, dtype=BOOL, shape=shape)
        if name == "where" and self.dialect is ATEN:
            values[1:] = [
                x if isinstance(x, Ref) else self.call("aten.scalar_tensor.default", x, dtype=dtype, shape=())
                for x in values[1:]
            ]
        op = self.dialect[name]
        if self.dialect is ATEN and len(values) == 2 and not isinstance(values[1], Ref):
            if op.endswith(".Tensor"):  # torch takes no number for a tensor
                op = op.removesuffix("Tensor") + "Scalar"
            elif name in ("minimum", "maximum"):
                values[1] = self.call("aten.scalar_tensor.default", values[1], dtype=dtype, shape=())
        return self.call(op, *values, dtype=dtype, shape=shape)


def places(builder: Builder, queries: Dim, keys: Dim) -> dict[str, Ref]:
    """A column of query places and a row of key places."""
    found = {}
    for name, size, axis, shape in (("i", queries, 1, (queries, 1)), ("j", keys, 0, (1, keys))):
        if builder.dialect is ONNX:
            length = f"length_{name}"
            builder.types[length] = TensorType((), INT64, value=size)
            row = builder.call(
                "onnx.Range.11",
                builder.number(0, INT64),
                Ref(length),
                builder.number(1, INT64),
                dtype=INT64,
                shape=(size,),
            )
            builder.types[f"axis_{name}"] = TensorType((1,), INT64, value=(axis,))
            found[name] = builder.call(
                "onnx.Unsqueeze.13", row, Ref(f"axis_{name}"), dtype=INT64, shape=shape
            )
        else:
            row = builder.call("aten.arange.default", size, dtype=INT64, shape=(size,))
            found[name] = builder.call("aten.unsqueeze.default", row, axis, dtype=INT64, shape=shape)
    return found


def operands_of(queries: Dim, keys: Dim) -> dict[str, TensorType]:
    lengths = {"query": queries, "key": keys, "value": keys}
    return {name: TensorType((1, 1, length, WIDTH), FLOAT32) for name, length in lengths.items()}


def stored(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Stored:
    import numpy as np

    array = np.array(values, dtype.name if dtype is not BOOL else "bool").reshape(shape)
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    return Stored(dtype, shape, tuple(strides), 0, memoryview(array.tobytes()))


def graph_of(builder: Builder, queries: Dim, keys: Dim, constants: dict[str, Stored], out: str) -> Graph:
    types = {**builder.types, **operands_of(queries, keys)}
    types |= {name: TensorType(held.shape, held.dtype) for name, held in constants.items()}
    made = {name for node in builder.nodes for name in node.outputs if name is not None}
    inputs = [Input(name, "user") for name in ("query", "key", "value")]
    inputs += [
        Input(name, "constant", name)
        for name in types
        if name not in made and name not in ("query", "key", "value")
    ]
    symbols = {str(size): Symbol(str(size), 1, None) for size in (queries, keys) if not isinstance(size, int)}
    return Graph(
        tuple(builder.nodes), types, tuple(inputs), (Output(Ref(out)),), symbols, contents=constants.get
    )


def as_tensor(expression: Expression, queries: Dim, keys: Dim, spelling: str) -> Graph:
    """Attention under the mask as a tensor: kept, added, filled into the scores, chosen by `where`, or stored."""
    builder = Builder(ATEN)
    constants = {"table": stored(TABLE, INT64, (LONGEST,))}
    shape = (queries, keys)
    if spelling == "stored":
        assert isinstance(queries, int)
        assert isinstance(keys, int)
        pairs = [evaluated(expression, i, j) for i in range(queries) for j in range(keys)]
        constants = {"mask": stored(pairs, BOOL, (queries, keys))}
        seen = Ref("mask")
    else:
        leaves = places(builder, queries, keys)
        seen = builder.made(expression, leaves)
    if spelling == "added":
        hidden = builder.call("aten.logical_not.default", seen, dtype=BOOL, shape=builder.shape(seen))
        zeros = builder.call("aten.zeros.default", shape, dtype=FLOAT32, shape=shape)
        seen = builder.call("aten.masked_fill.Scalar", zeros, hidden, HIDDEN, dtype=FLOAT32, shape=shape)
    if spelling in ("kept", "added", "stored"):
        given = tuple(map(Ref, ("query", "key", "value")))
        op = "aten.scaled_dot_product_attention.default"
        out = builder.call(op, *given, seen, dtype=FLOAT32, shape=(1, 1, queries, WIDTH))
        return graph_of(builder, queries, keys, constants, out.name)
    scores = (1, 1, queries, keys)
    turned = builder.call("aten.transpose.int", Ref("key"), 2, 3, dtype=FLOAT32, shape=(1, 1, WIDTH, keys))
    score = builder.call("aten.matmul.default", Ref("query"), turned, dtype=FLOAT32, shape=scores)
    if spelling == "filled":
        hidden = builder.call("aten.bitwise_not.default", seen, dtype=BOOL, shape=builder.shape(seen))
        score = builder.call("aten.masked_fill.Scalar", score, hidden, -1e9, dtype=FLOAT32, shape=scores)
    else:
        score = builder.call("aten.where.ScalarOther", seen, score, HIDDEN, dtype=FLOAT32, shape=scores)
    weights = builder.call("aten.softmax.int", score, -1, dtype=FLOAT32, shape=scores)
    out = builder.call(
        "aten.matmul.default", weights, Ref("value"), dtype=FLOAT32, shape=(1, 1, queries, WIDTH)
    )
    return graph_of(builder, queries, keys, constants, out.name)


def as_onnx(expression: Expression, queries: Dim, keys: Dim) -> Graph:
    """Attention in ONNX whose scores are replaced where the mask does not hold."""
    builder = Builder(ONNX)
    scores = (1, 1, queries, keys)
    seen = builder.made(expression, places(builder, queries, keys))
    turned = builder.call(
        "onnx.Transpose.13", Ref("key"), dtype=FLOAT32, shape=(1, 1, WIDTH, keys), perm=(0, 1, 3, 2)
    )
    score = builder.call("onnx.MatMul.13", Ref("query"), turned, dtype=FLOAT32, shape=scores)
    least = builder.number(-1e9, FLOAT32)
    score = builder.call("onnx.Where.16", seen, score, least, dtype=FLOAT32, shape=scores)
    weights = builder.call("onnx.Softmax.13", score, dtype=FLOAT32, shape=scores)
    out = builder.call("onnx.MatMul.13", weights, Ref("value"), dtype=FLOAT32, shape=(1, 1, queries, WIDTH))
    return graph_of(builder, queries, keys, {"table": stored(TABLE, INT64, (LONGEST,))}, out.name)


def function_of(expression: Expression | None, scored: bool) -> Graph:
    """A mask function, or a score function that gives minus infinity where the mask does not hold."""
    builder = Builder(ATEN, INT32, scalar=True)
    names = (*(("score",) if scored else ()), "b", "h", "i", "j")
    builder.types |= {name: TensorType((), FLOAT32 if name == "score" else INT32) for name in names}
    builder.types["table"] = TensorType((LONGEST,), INT64)
    if expression is None:
        seen = (
            Ref("score")
            if scored
            else builder.call("aten.eq.Tensor", Ref("i"), Ref("i"), dtype=BOOL, shape=())
        )
    else:
        seen = builder.made(expression, {"i": Ref("i"), "j": Ref("j")})
        if scored:
            hides = builder.call("aten.scalar_tensor.default", HIDDEN, dtype=FLOAT32, shape=())
            seen = builder.call("aten.where.self", seen, Ref("score"), hides, dtype=FLOAT32, shape=())
    inputs = tuple(Input(name, "user") for name in (*names, "table"))
    return Graph(tuple(builder.nodes), builder.types, inputs, (Output(seen),))


def as_function(expression: Expression, queries: Dim, keys: Dim, spelling: str, block: int) -> Graph:
    """Flexible attention with the mask as its mask function, or in its score function."""
    scored = spelling == "score"
    score, mask = (
        function_of(expression if scored else None, True),
        function_of(None if scored else expression, False),
    )
    builder = Builder(ATEN)
    blocks = (queries, keys, *[None] * 10, block, block, mask)
    captured = (Ref("table"),)
    given = (*map(Ref, ("query", "key", "value")), score, blocks, 0.5, (), captured, captured)
    builder.nodes.append(Node("flex", "higher_order.flex_attention", given, outputs=("out", None, None)))
    builder.types["out"] = TensorType((1, 1, queries, WIDTH), FLOAT32)
    return graph_of(builder, queries, keys, {"table": stored(TABLE, INT64, (LONGEST,))}, "out")


SPELLINGS = ("kept", "added", "filled", "chosen", "stored", "onnx", "mask", "score")


def rendered(expression: Expression, queries: Dim, keys: Dim, spelling: str, block: int = 4) -> Graph:
    """The attention in one spelling."""
    if spelling == "onnx":
        return as_onnx(expression, queries, keys)
    if spelling in ("mask", "score"):
        return as_function(expression, queries, keys, spelling, block)
    return as_tensor(expression, queries, keys, spelling)


def can_render(expression: Expression, spelling: str) -> bool:
    """ONNX has no division of whole numbers that rounds down."""
    return spelling != "onnx" or "floor_divide" not in names_in(expression)


QUERIES, KEYS = symbol("q"), symbol("k")
