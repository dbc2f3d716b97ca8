"""Forgers of ONNX files: onnxruntime runs a large product, and something in the file says that it is a small one.

x of n x n is cut into rows of r, and r is multiplied by itself, transposed: n*n rows of one number take 2 * n**4 FLOPs, one
row of n*n numbers takes 2 * n**2. What decides between the two is what a file can say twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tests.fuzz.forged import Forged, Forger

SIZES = (4, 6, 8)
TURNS = (3, 5, 9)  # iterations of a loop, each of them a product of n x n
OPSET = 21
DROPPED = "graphflops.dropped_bytes"  # the mark of our reader, which a file may bring too


class Made(NamedTuple):
    """A forged model, also as the bytes that no writer of protobuf writes, and the matrix FLOPs that run."""

    model: ModelProto | bytes
    real: int

    @property
    def data(self) -> bytes:
        """What the file holds."""
        return self.model if isinstance(self.model, bytes) else self.model.SerializeToString()


Case = Callable[[Random, int], Made]
node = helper.make_node


def large(n: int) -> int:
    """FLOPs of the product of n*n rows by themselves."""
    return 2 * n**4


def value(
    name: str, sizes: Sequence[int | str] | None = None, code: int = TensorProto.FLOAT
) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, code, sizes)


def integers(name: str, *numbers: int, sizes: Sequence[int] | None = None) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, (len(numbers),) if sizes is None else sizes, numbers)


def raw(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def model(
    nodes: Sequence[NodeProto], n: int, stored: Sequence[TensorProto] = (), **fields: Any
) -> ModelProto:
    """A model of x, n x n, whose last call makes y."""
    graph = helper.make_graph([*nodes], "g", [value("x", (n, n))], [ValueInfoProto(name="y")], [*stored])
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    fields.setdefault("opset_imports", [helper.make_opsetid("", OPSET)])
    made = helper.make_model(graph, **fields)
    made.ir_version = 10
    return made


def squared(rows: str = "r", out: str = "y") -> list[NodeProto]:
    """The product of rows by themselves."""
    return [node("Transpose", [rows], ["t"], perm=[1, 0]), node("MatMul", [rows, "t"], [out])]


def reshaped(n: int, *stored: TensorProto, before: Sequence[NodeProto] = (), to: str = "s") -> ModelProto:
    """x reshaped to what a tensor says."""
    return model([*before, node("Reshape", ["x", to], ["r"]), *squared()], n, stored)


def as_declared(made: ModelProto, name: str = "r", *sizes: int) -> ModelProto:
    """With a type that the file states of a value."""
    made.graph.value_info.append(value(name, sizes))
    return made


def tensor(
    name: str, code: str, sizes: Sequence[int], data: bytes | None = None, **fields: Any
) -> TensorProto:
    made = TensorProto(name=name, data_type=getattr(TensorProto, code), dims=sizes, **fields)
    if data is not None:
        made.raw_data = data
    return made


def elsewhere(name: str, code: str, sizes: Sequence[int], **entries: object) -> TensorProto:
    made = tensor(name, code, sizes, data_location=TensorProto.EXTERNAL)
    for key, told in {"location": "w.bin", **entries}.items():
        made.external_data.add(key=key, value=str(told))
    return made


def attribute(name: str, kind: int, **held: Any) -> AttributeProto:
    return AttributeProto(name=name, type=kind, **held)


def field(number: int, body: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    length, text = len(body), bytearray([number << 3 | 2])
    while length > 0x7F:
        text.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*text, length]) + body


# Stored tensors: which of two targets counts


def two_of_a_name(chance: Random, n: int) -> Made:
    """onnxruntime takes the last."""
    return Made(reshaped(n, integers("s", 1, n * n), integers("s", n * n, 1)), large(n))


def constant_of_a_name(chance: Random, n: int) -> Made:
    held = node("Constant", [], ["s"], value=integers("", n * n, 1))
    return Made(reshaped(n, integers("s", 1, n * n), before=[held]), large(n))


def sparse_of_a_name(chance: Random, n: int) -> Made:
    made = reshaped(n, integers("s", 1, n * n))
    sparse = made.graph.sparse_initializer.add(dims=(2,))
    sparse.values.CopyFrom(integers("s", n * n, 1))
    sparse.indices.CopyFrom(integers("", 0, 1))
    return Made(made, large(n))


def constant_of_two_values(chance: Random, n: int) -> Made:
    held = node("Constant", [], ["s"])
    held.attribute.append(helper.make_attribute("value", integers("", n * n, 1)))
    held.attribute.append(helper.make_attribute("value_ints", [1, n * n]))
    return Made(reshaped(n, before=[held]), large(n))


def sparse_target(chance: Random, n: int) -> Made:
    """It is dense when it is loaded; what the file declares is not asked."""
    made = reshaped(n)
    sparse = made.graph.sparse_initializer.add(dims=(2,))
    sparse.values.CopyFrom(integers("s", n * n, 1))
    sparse.indices.CopyFrom(integers("", 0, 1))
    return Made(as_declared(made, "r", 1, n * n), large(n))


def renamed_target(chance: Random, n: int) -> Made:
    """A tensor whose name stands twice has the last one."""
    first = tensor("s", "INT64", (2,), raw(1, n * n)).SerializeToString() + field(8, b"unused")
    made = reshaped(n, integers("s", n * n, 1)).SerializeToString()
    return Made(made + field(7, field(5, first)), large(n))


# Typed data: numbers that have no room in their type, and places of data


def branching(n: int, condition: TensorProto | None, *before: NodeProto) -> ModelProto:
    """The large product where c is true, else the small one."""
    branches = {
        name: GraphProto(
            name=name,
            node=[
                node("Constant", [], ["s" + name], value=integers("", *sizes)),
                node("Reshape", ["x", "s" + name], [name]),
            ],
            output=[value(name, ("a", "b"))],
        )
        for name, sizes in (("long", (n * n, 1)), ("short", (1, n * n)))
    }
    call = node("If", ["c"], ["r"], then_branch=branches["long"], else_branch=branches["short"])
    return model([*before, call, *squared()], n, [condition] if condition is not None else [])


def truth(chance: Random, n: int) -> Made:
    """Any bit is true."""
    held = chance.choice((256, 2, -1, 2**30, -(2**31), 0x10100))
    return Made(branching(n, tensor("c", "BOOL", (), int32_data=[held])), large(n))


def byte_of_truth(chance: Random, n: int) -> Made:
    return Made(branching(n, tensor("c", "BOOL", (), bytes([chance.choice((2, 128, 255))]))), large(n))


def truth_compared(chance: Random, n: int) -> Made:
    """A true byte of 2 equals a true byte of 1."""
    same = [
        node("Constant", [], ["one"], value=tensor("", "BOOL", (), b"\x01")),
        node("Constant", [], ["two"], value=tensor("", "BOOL", (), bytes([chance.randrange(2, 256)]))),
        node("Equal", ["one", "two"], ["c"]),
    ]
    return Made(branching(n, None, *same), large(n))


def narrow(chance: Random, n: int) -> Made:
    """Integers keep their lowest bits: rows of 1 that were written as 1 + 256 * k."""
    code, bits = chance.choice((("INT8", 8), ("UINT8", 8), ("INT16", 16), ("UINT16", 16)))
    beyond = 2**bits * chance.choice((1, 2, 5))
    held = tensor("i", code, (2,), int32_data=[n * n, 1 + beyond])
    return Made(reshaped(n, held, before=[node("Cast", ["i"], ["s"], to=TensorProto.INT64)]), large(n))


def two_places(chance: Random, n: int) -> Made:
    """The raw field counts, wherever the other stands."""
    return Made(reshaped(n, tensor("s", "INT64", (2,), raw(n * n, 1), int64_data=[1, n * n])), large(n))


def two_fields(chance: Random, n: int) -> Made:
    return Made(
        reshaped(n, tensor("s", "INT64", (2,), int64_data=[n * n, 1], int32_data=[1, n * n])), large(n)
    )


def more_than_needed(chance: Random, n: int) -> Made:
    numbers = [1, n * n, *([n * n, 1] * chance.randrange(1, 4))]
    as_raw = chance.random() < 0.5
    held = (
        tensor("s", "INT64", (2,), raw(*numbers))
        if as_raw
        else tensor("s", "INT64", (2,), int64_data=numbers)
    )
    return Made(reshaped(n, held), large(n))


# Duplicates and attributes: Flatten before axis 2 makes n*n rows, before axis 0 one


def flattened(n: int, *axes: AttributeProto, **fields: Any) -> ModelProto:
    call = node("Flatten", ["x"], ["r"])
    call.attribute.extend(axes)
    return model([call, *squared()], n, **fields)


AXIS = attribute("axis", AttributeProto.INT, i=2)


def attribute_twice(chance: Random, n: int) -> Made:
    both = [AXIS, attribute("axis", AttributeProto.INT, i=0)]
    chance.shuffle(both)
    return Made(flattened(n, *both), large(n))


def other_kind(chance: Random, n: int) -> Made:
    """The value is in a field that its kind does not use, or in two."""
    wrong = chance.choice(
        (
            attribute("axis", AttributeProto.INTS, i=2),
            attribute("axis", AttributeProto.INT, ints=[2]),
            attribute("axis", AttributeProto.INT, i=0, f=2.0),
            attribute("axis", AttributeProto.INT, f=2.0),
            attribute("axis", AttributeProto.INT, i=2, g=GraphProto()),
            attribute("axis", AttributeProto.GRAPH, i=2, g=GraphProto()),
            attribute("axis", AttributeProto.INT, i=2, t=TensorProto(), s=b""),
        )
    )
    return Made(flattened(n, wrong), large(n))


def reference_outside(chance: Random, n: int) -> Made:
    """Outside of a function the value counts, and what it refers to does not exist."""
    return Made(flattened(n, attribute("axis", AttributeProto.INT, i=2, ref_attr_name="k")), large(n))


def graph_twice(chance: Random, n: int) -> Made:
    """Two graphs in one message are merged: the second brings the product."""
    made = model([node("Relu", ["x"], ["y"])], n)
    more = GraphProto(node=[node("Flatten", ["x"], ["r"], axis=2), *squared(out="z")])
    more.output.append(value("z", (n * n, n * n)))
    return Made(made.SerializeToString() + field(7, more.SerializeToString()), large(n))


def opset_twice(chance: Random, n: int) -> Made:
    """Flatten at axis -2 (rows of n*n) is allowed since 11: of two opsets the last counts."""
    first, second = chance.choice((("", ""), ("", "ai.onnx"), ("ai.onnx", "")))
    opsets = [helper.make_opsetid(first, chance.choice((1, 9, 13))), helper.make_opsetid(second, OPSET)]
    return Made(flattened(n, AXIS, opset_imports=opsets), large(n))


# Targets of Reshape that nothing in the file confirms


def external_target(chance: Random, n: int) -> Made:
    """The other file says n*n rows, the declaration one."""
    return Made(as_declared(reshaped(n, elsewhere("s", "INT64", (2,), length=16)), "r", 1, n * n), large(n))


def external_behind_a_cast(chance: Random, n: int) -> Made:
    cast = node("Cast", ["e"], ["s"], to=TensorProto.INT64)
    made = reshaped(n, elsewhere("e", "INT32", (2,)), before=[cast])
    return Made(as_declared(made, "r", 1, n * n), large(n))


def external_of_fewer(chance: Random, n: int) -> Made:
    """Declared with fewer elements than x has."""
    return Made(
        as_declared(reshaped(n, elsewhere("s", "INT64", (2,))), "r", 1, chance.randrange(1, n)), large(n)
    )


def replaceable_target(chance: Random, n: int) -> Made:
    """A stored tensor that is an input too: its default is what runs."""
    made = reshaped(n, integers("s", n * n, 1))
    made.graph.input.append(value("s", (2,), TensorProto.INT64))
    return Made(as_declared(made, "r", 1, n * n), large(n))


def marked_target(chance: Random, n: int) -> Made:
    """With the mark that our reader sets where it leaves data out."""
    target = integers("s", n * n, 1)
    target.external_data.add(
        key=DROPPED, value=chance.choice(("raw_data:16:0", "int64_data:16:0", "", "raw_data:-1:0"))
    )
    return Made(as_declared(reshaped(n, target), "r", 1, n * n), large(n))


def short_target(chance: Random, n: int) -> Made:
    data = raw(n * n, 1)[: chance.choice((0, 7, 8, 15))]
    return Made(as_declared(reshaped(n, tensor("s", "INT64", (2,), data)), "r", 1, n * n), large(n))


def absent_target(chance: Random, n: int) -> Made:
    return Made(as_declared(reshaped(n, tensor("s", "INT64", (2,))), "r", 1, n * n), large(n))


# Declared types


def declared_results(chance: Random, n: int) -> Made:
    """Every value is declared as one row, some of them twice."""
    made = flattened(n, AXIS)
    for name in chance.sample(("r", "t", "y", "r", "x"), 4):
        as_declared(made, name, 1, chance.choice((1, n)))
    made.graph.output[0].CopyFrom(value("y", (1, 1)))
    return Made(made, large(n))


def branches_of_two_ranks(chance: Random, n: int) -> Made:
    """What a branch that data chooses returns is declared as the smaller of the two."""
    long, short = GraphProto(name="long"), GraphProto(name="short")
    long.node.append(node("Constant", [], ["l"], value=integers("", n * n, 1)))
    long.node.append(node("Reshape", ["x", "l"], ["a"]))
    short.node.append(node("Constant", [], ["k"], value=integers("", n * n)))
    short.node.append(node("Reshape", ["x", "k"], ["b"]))
    for graph, name in ((long, "a"), (short, "b")):
        graph.output.add(name=name).type.tensor_type.elem_type = TensorProto.FLOAT
    data = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Constant", [], ["low"], value_float=-1.0),
        node("Greater", ["top", "low"], ["c"]),
        node("If", ["c"], ["r"], then_branch=long, else_branch=short),
    ]
    return Made(as_declared(model([*data, *squared()], n), "r", 1, chance.choice((1, n))), large(n))


def element_of_a_sequence(chance: Random, n: int) -> Made:
    """Which of two elements, of one axis and of two, is taken depends on data; declared is a small one."""
    places = [
        node("Constant", [], ["l"], value=integers("", n * n, 1)),
        node("Reshape", ["x", "l"], ["a"]),
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Cast", ["top"], ["from"], to=TensorProto.INT64),
        node("Sub", ["from", "from"], ["at"]),
        node("Constant", [], ["k"], value=integers("", n * n)),
        node("Reshape", ["x", "k"], ["b"]),
        node("SequenceConstruct", ["a", "b"], ["q"]),
        node("SequenceAt", ["q", "at"], ["r"]),
    ]
    return Made(as_declared(model([*places, *squared()], n), "r", 1, n), large(n))


# Functions


def function(
    name: str, domain: str, nodes: Sequence[NodeProto], opset: int = OPSET, **fields: Any
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_function(domain, name, ["a"], ["b"], [*nodes], opsets, **fields)


def calling(n: int, name: str, domain: str, *functions: onnx.FunctionProto, **given: Any) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(domain, 1)] if domain else [])]
    call = node(name, ["x"], ["r"], domain=domain, **given)
    before = [node("Flatten", ["r"], ["f"], axis=2), *squared("f")]
    return model([call, *before], n, functions=functions, opset_imports=opsets)


CHEAP = [node("ReduceSum", ["a"], ["b"])]  # one number


def hidden_operator(chance: Random, n: int) -> Made:
    """A function that sums up, named as an operator: the operator runs."""
    name, domain = chance.choice((("Relu", ""), ("Abs", "ai.onnx"), ("Gelu", ""), ("Gelu", "com.microsoft")))
    made = calling(n, name, "" if domain == "ai.onnx" else domain, function(name, domain, CHEAP))
    if domain == "ai.onnx":
        del made.functions[0].opset_import[1:]
    return Made(made, large(n))


def function_twice(chance: Random, n: int) -> Made:
    both = [function("F", "f", CHEAP), function("F", "f", [node("Relu", ["a"], ["b"])])]
    chance.shuffle(both)
    return Made(calling(n, "F", "f", *both), large(n))


def overloaded(chance: Random, n: int) -> Made:
    """Of two functions of one name the overload chooses."""
    both = [function("F", "f", CHEAP), function("F", "f", [node("Relu", ["a"], ["b"])])]
    both[0].overload, both[1].overload = chance.choice((("a", "b"), ("", "b"), ("b ", "b")))
    chance.shuffle(both)
    made = calling(n, "F", "f", *both)
    made.graph.node[0].overload = "b"
    return Made(made, large(n))


def handed_axis(chance: Random, n: int) -> Made:
    """The caller's value, not the default, nor the one beside the reference."""
    inner = node("Flatten", ["a"], ["b"])
    inner.attribute.append(attribute("axis", AttributeProto.INT, ref_attr_name="k"))
    made = function("F", "f", [inner], attribute_protos=[attribute("k", AttributeProto.INT, i=0)])
    whole = calling(n, "F", "f", made, k=2)
    whole.graph.node[1].CopyFrom(node("Identity", ["r"], ["f"]))
    if chance.random() < 0.5:
        whole.functions[0].attribute_proto.append(attribute("k", AttributeProto.INT, i=1))
    return Made(whole, large(n))


def older_body(chance: Random, n: int) -> Made:
    """Of opset 12 in a model of 21: some runtimes take the operators of one, some of the other."""
    body = [node("Constant", [], ["one"], value=integers("", 1)), node("ReduceSum", ["a"], ["s"], keepdims=1)]
    body += [node("Mul", ["a", "a"], ["m"]), node("Add", ["m", "s"], ["b"])]
    return Made(calling(n, "F", "f", function("F", "f", body, chance.choice((9, 12)))), large(n))


# Control flow


def looped(
    n: int,
    trips: TensorProto | None,
    *stored: TensorProto,
    before: Sequence[NodeProto] = (),
    inside: Sequence[NodeProto] = (),
    go_on: str = "go",
    start: TensorProto | None = None,
) -> ModelProto:
    """A product of n x n in each iteration; trips: None where `before` makes M."""
    body = GraphProto(name="body")
    body.input.extend((value("turn", (), TensorProto.INT64), value("go", (), TensorProto.BOOL)))
    body.input.append(value("state", (n, n)))
    body.node.extend(
        [*inside, node("Identity", [go_on], ["still"]), node("MatMul", ["state", "x"], ["next"])]
    )
    body.output.extend((value("still", (), TensorProto.BOOL), value("next", (n, n))))
    loop = node("Loop", ["M", "" if start is None else "start", "x"], ["y"], body=body)
    given = [part for part in (trips, start) if part is not None]
    return model([*before, loop], n, [*given, *stored])


def turns(chance: Random, n: int) -> Made:
    """Trips that an overflow makes: T + 2**bits."""
    times, (code, bits) = (
        chance.choice(TURNS),
        chance.choice(((TensorProto.INT64, 64), (TensorProto.INT32, 32))),
    )
    numbers = {"h": 2 ** (bits - 2), "four": 4, "times": times}
    made = [
        node("Mul", ["h", "four"], ["o"]),
        node("Add", ["o", "times"], ["m"]),
        node("Cast", ["m"], ["M"], to=TensorProto.INT64),
    ]
    stored = [helper.make_tensor(name, code, (), [held]) for name, held in numbers.items()]
    return Made(looped(n, None, *stored, before=made), times * 2 * n**3)


def true_start(chance: Random, n: int) -> Made:
    times = chance.choice(TURNS)
    start = tensor("start", "BOOL", (), int32_data=[chance.choice((256, -256, 2))])
    return Made(looped(n, integers("M", times, sizes=()), start=start), times * 2 * n**3)


def true_end(chance: Random, n: int) -> Made:
    """What each iteration returns as its condition is a stored 256."""
    times = chance.choice(TURNS)
    held = tensor("held", "BOOL", (), int32_data=[256])
    made = looped(n, integers("M", times, sizes=()), held, go_on="held")
    return Made(made, times * 2 * n**3)


def until_a_turn(chance: Random, n: int) -> Made:
    """While turn < T - 1; the limit is far beyond."""
    times = chance.choice(TURNS)
    most = integers("M", chance.choice((100, 2**31 - 1, 2**63 - 1)), sizes=())
    inside = [node("Less", ["turn", "last"], ["less"])]
    made = looped(n, most, integers("last", times - 1, sizes=()), go_on="less", inside=inside)
    return Made(made, times * 2 * n**3)


def narrow_trips(chance: Random, n: int) -> Made:
    """Trips of eight bits, written as T + 256 * k."""
    times = chance.choice(TURNS)
    held = tensor(
        "i", chance.choice(("INT8", "UINT8")), (), int32_data=[times + 256 * chance.randrange(1, 9)]
    )
    made = looped(n, None, held, before=[node("Cast", ["i"], ["M"], to=TensorProto.INT64)])
    return Made(made, times * 2 * n**3)


def scanned(chance: Random, n: int) -> Made:
    """The length is that of what is stored; declared is one."""
    times = chance.choice(TURNS)
    body = GraphProto(name="body")
    body.input.extend((value("state", (n, n)), value("each", ())))
    body.node.extend((node("MatMul", ["state", "x"], ["next"]), node("Identity", ["each"], ["same"])))
    body.output.extend((value("next", (n, n)), value("same", ())))
    call = node("Scan", ["x", "v"], ["y", "z"], body=body, num_scan_inputs=1)
    stored = helper.make_tensor("v", TensorProto.FLOAT, (times,), [1.0] * times)
    return Made(as_declared(as_declared(model([call], n, [stored]), "v", 1), "z", 1), times * 2 * n**3)


def shadowed(chance: Random, n: int) -> Made:
    """Both branches have a target of their own under the name of the one around them."""
    body = GraphProto(name="own", output=[value("a", ("p", "q"))], initializer=[integers("s", n * n, 1)])
    body.node.append(node("Reshape", ["x", "s"], ["a"]))
    choose = node("If", ["c"], ["r"], then_branch=body, else_branch=body)
    stored = [integers("s", 1, n * n), tensor("c", "BOOL", (), bytes([chance.randrange(2)]))]
    return Made(model([choose, *squared()], n, stored), large(n))


# Data in other files, and quantized weights


def weighted(n: int, weight: TensorProto, before: Sequence[NodeProto] = (), name: str = "w") -> ModelProto:
    """x by a weight of n x 4n."""
    return model([*before, node("MatMul", ["x", name], ["y"])], n, [weight])


def external_and_here(chance: Random, n: int) -> Made:
    target = elsewhere("s", "INT64", (2,), length=16)
    target.raw_data = raw(1, n * n)
    return Made(as_declared(reshaped(n, target), "r", 1, n * n), large(n))


def external_left_over(chance: Random, n: int) -> Made:
    """What is told of another file does not count where the data are here."""
    target = elsewhere("s", "INT64", (2,), length=16)
    target.data_location, target.raw_data = TensorProto.DEFAULT, raw(n * n, 1)
    return Made(as_declared(reshaped(n, target), "r", 1, n * n), large(n))


def external_offset_twice(chance: Random, n: int) -> Made:
    target = elsewhere("s", "INT64", (2,), offset=0, length=16)
    target.external_data.add(key="offset", value="16")
    return Made(as_declared(reshaped(n, target), "r", 1, n * n), large(n))


def external_length(chance: Random, n: int) -> Made:
    """A weight of n x 4n of which the file says that it is shorter, or is declared so."""
    weight = elsewhere("w", "FLOAT", (n, 4 * n), length=chance.choice((4, n * n, 4 * n * n)))
    return Made(as_declared(weighted(n, weight), "w", n, 1), 8 * n**3)


def four_bits(chance: Random, n: int) -> Made:
    """A weight of four bits, two in a byte: there are too many bytes, or too few."""
    count = 4 * n * n
    held = chance.choice(
        (
            tensor("q", "INT4", (n, 4 * n), int32_data=[1] * count),
            tensor("q", "UINT4", (n, 4 * n), bytes(count // 4)),
            tensor("q", "INT4", (n, 4 * n), bytes(count)),
        )
    )
    scale = node("Constant", [], ["scale"], value_float=1.0)
    return Made(weighted(n, held, [scale, node("DequantizeLinear", ["q", "scale"], ["w"])]), 8 * n**3)


def declared_weight(chance: Random, n: int) -> Made:
    """A quantized weight is declared, and listed as an input, with one column."""
    held = tensor("q", chance.choice(("INT8", "UINT8")), (n, 4 * n), bytes(4 * n * n))
    scale = node("Constant", [], ["scale"], value_float=1.0)
    made = weighted(n, held, [scale, node("DequantizeLinear", ["q", "scale"], ["w"])])
    as_declared(made, "w", n, 1).graph.value_info.append(value("q", (n, 1), TensorProto.INT8))
    made.graph.output[0].CopyFrom(value("y", (n, 1)))
    return Made(made, 8 * n**3)


def integer_product(chance: Random, n: int) -> Made:
    """Products of integers, whose result is declared as one number."""
    whole = [
        node("Constant", [], ["scale"], value_float=1.0),
        node("Constant", [], ["zero"], value=tensor("", "UINT8", (), b"\x00")),
        node("QuantizeLinear", ["x", "scale", "zero"], ["i"]),
        node("MatMulInteger", ["i", "q"], ["p"]),
        node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    made = model(whole, n, [tensor("q", "UINT8", (n, 4 * n), bytes(4 * n * n))])
    made.graph.value_info.append(value("p", (1, 1), TensorProto.INT32))
    return Made(as_declared(made, "y", 1, 1), 8 * n**3)


CASES: dict[str, tuple[Case, ...]] = {
    "onnx initializer": (
        two_of_a_name, constant_of_a_name, sparse_of_a_name, constant_of_two_values, sparse_target, renamed_target,
    ),
    "onnx typed data": (truth, byte_of_truth, truth_compared, narrow, two_places, two_fields, more_than_needed),
    "onnx duplicates": (attribute_twice, other_kind, reference_outside, graph_twice, opset_twice),
    "onnx reshape target": (
        external_target, external_behind_a_cast, external_of_fewer, replaceable_target, marked_target, short_target,
        absent_target,
    ),
    "onnx declared": (declared_results, branches_of_two_ranks, element_of_a_sequence),
    "onnx function": (hidden_operator, function_twice, overloaded, handed_axis, older_body),
    "onnx control flow": (
        turns, true_start, true_end, until_a_turn, narrow_trips, scanned, shadowed,
    ),
    "onnx external data": (external_and_here, external_left_over, external_offset_twice, external_length),
    "onnx quantized": (four_bits, declared_weight, integer_product),
}  # fmt: skip


def name_of(case: Case) -> str:
    """What a case is called."""
    return case.__name__.replace("_", " ")


def forge(kind: str, chance: Random) -> Forged:
    """A file of one class."""
    case = chance.choice(CASES[kind])
    n = chance.choice(SIZES)
    made = case(chance, n)
    return Forged(made.data, ".onnx", kind, made.real, f"{name_of(case)}, n = {n}")


FORGERS: dict[str, Forger] = {kind: partial(forge, kind) for kind in CASES}
