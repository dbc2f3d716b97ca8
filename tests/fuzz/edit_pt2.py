"""Changes of the JSON of a `.pt2`: calls put in, types recorded otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]


class Tensor(NamedTuple):
    """A value that is a tensor."""

    name: str


class Number(NamedTuple):
    """A value that is a number: an `int`, a `float` or a `bool`."""

    name: str
    kind: str = "int"


def argument(value: Any) -> Json:
    """An operand as torch writes it."""
    if isinstance(value, Tensor):
        return {"as_tensor": {"name": value.name}}
    if isinstance(value, Number):
        return {f"as_sym_{value.kind}": {"as_name": value.name}}
    if isinstance(value, list):
        items = [{"as_name": x.name} if isinstance(x, Number) else {"as_int": x} for x in value]
        return {"as_sym_ints": items} if Number in map(type, value) else {"as_ints": value}
    return {"as_bool" if isinstance(value, bool) else f"as_{type(value).__name__}": value}


def call(target: str, result: Tensor | Number | None, **operands: Any) -> Json:
    """A call of an operator, its operands in the order given."""
    return {
        "target": target,
        "inputs": [{"name": name, "arg": argument(value), "kind": 1} for name, value in operands.items()],
        "outputs": [] if result is None else [argument(result)],
        "metadata": {},
        "is_hop_single_tensor_return": None,
    }


def graph_of(content: Json) -> Json:
    """The graph of a program."""
    graph: Json = content["graph_module"]["graph"]
    return graph


def put_in(content: Json, place: int, node: Json, recorded: Any = None) -> None:
    """A call at a place, with what is recorded of its result: a number, or sizes."""
    graph = graph_of(content)
    graph["nodes"].insert(place, node)
    for result in node["outputs"]:
        ((kind, held),) = result.items()
        if isinstance(recorded, list):
            graph["tensor_values"][held["name" if kind == "as_tensor" else "as_name"]] = meta(recorded)
        else:
            kept = recorded if isinstance(recorded, dict) else {kind.replace("sym_", ""): recorded}
            graph[f"{kind.removeprefix('as_')}_values"][held["as_name"]] = kept


def meta(sizes: Sequence[int | Json], dtype: int = 7) -> Json:
    """The recorded type of a tensor."""
    listed = [{"as_int": size} if isinstance(size, int) else size for size in sizes]
    strides = [{"as_int": 1} for _ in listed]
    zero = {"as_int": 0}
    place = {"type": "cpu", "index": None}
    found = {"dtype": dtype, "sizes": listed, "requires_grad": False, "device": place}
    return {**found, "strides": strides, "storage_offset": zero, "layout": 7}


def symbol(name: str, example: int | None = None) -> Json:
    """A size that is a symbol."""
    hint = None if example is None else {"as_int": example}
    return {"as_expr": {"expr_str": f"Symbol('{name}', integer=True)", "hint": hint}}


def record(content: Json, names: Iterable[str], old: Any, new: Any) -> None:
    """Replace a size in the recorded types of some values."""
    old, new = ({"as_int": size} if isinstance(size, int) else size for size in (old, new))
    values = graph_of(content)["tensor_values"]
    for name in names:
        values[name]["sizes"] = [new if size == old else size for size in values[name]["sizes"]]


def renamed(content: Json, place: int, old: str, new: str) -> None:
    """From a call on, one value in the place of another."""
    for node in graph_of(content)["nodes"][place:]:
        for operand in node["inputs"]:
            if operand["arg"] == {"as_tensor": {"name": old}}:
                operand["arg"] = {"as_tensor": {"name": new}}
