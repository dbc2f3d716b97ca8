"""ONNX programs of many open sizes that meet, add up and multiply: each a function of the number of calls."""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto, TensorProto, helper

Made = tuple[list[NodeProto], dict[str, list[str]]]  # calls, inputs by name with their sizes
_node = helper.make_node


def _vectors(count: int) -> dict[str, list[str]]:
    return {f"x{i}": [f"s{i}"] for i in range(count)}


def chain(count: int) -> Made:
    """A sum of vectors that each have a size of their own: all are equal."""
    nodes = [_node("Add", [f"y{i - 1}" if i > 1 else "x0", f"x{i}"], [f"y{i}"]) for i in range(1, count)]
    return nodes, _vectors(count)


def pairs(count: int) -> Made:
    """Neighbours that meet, from the last to the first: each size is found equal to one that is itself replaced later."""
    return [_node("Mul", [f"x{i}", f"x{i + 1}"], [f"y{i}"]) for i in reversed(range(count))], _vectors(
        count + 1
    )


def sums(count: int) -> Made:
    """Each size is the sum of the next two."""
    nodes = []
    for i in range(count // 2):
        nodes.append(_node("Concat", [f"x{i + 1}", f"x{i + 2}"], [f"c{i}"], axis=0))
        nodes.append(_node("Add", [f"x{i}", f"c{i}"], [f"y{i}"]))
    return nodes, _vectors(count // 2 + 2)


def joined(count: int) -> Made:
    """Vectors that are computed apart and put together, so that totals are sums of all their sizes."""
    nodes = [_node("Relu", [f"x{i}"], [f"y{i}"]) for i in range(count)]
    return [*nodes, _node("Concat", [f"y{i}" for i in range(count)], ["y"], axis=0)], _vectors(count)


def data_dependent(count: int) -> Made:
    """Sizes that the analysis names itself, each of which meets the first."""
    nodes = []
    for i in range(count // 2):
        nodes.append(_node("NonZero", ["x0"], [f"z{i}"]))
        nodes.append(_node("Add", [f"z{i}", "z0"], [f"y{i}"]))
    return nodes, _vectors(1)


def products(count: int) -> Made:
    """Products of two sums of 30 sizes."""
    nodes = [_node("Shape", [f"x{i}"], [f"h{i}"]) for i in range(30)]
    nodes += [_node("Add", [f"e{i - 1}" if i > 1 else "h0", f"h{i}"], [f"e{i}"]) for i in range(1, 30)]
    for i in range(count):
        nodes.append(_node("Add", [f"a{i - 1}" if i else "e29", f"h{i % 30}"], [f"a{i}"]))
        nodes.append(_node("Mul", [f"a{i}", "e29"], [f"m{i}"]))
    return [*nodes, _node("ConstantOfShape", [f"m{count - 1}"], ["y"])], _vectors(30)


SHAPES: tuple[Callable[[int], Made], ...] = (chain, pairs, sums, data_dependent)


def written(shape: Callable[[int], Made], count: int) -> bytes:
    """The file of a program of so many calls."""
    nodes, given = shape(count)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in given.items()]
    out = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    graph = helper.make_graph(nodes, "g", inputs, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
