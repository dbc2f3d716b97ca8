"""Forgers of `.pt2` files: torch runs a large program, and what the file says of itself is that of a small one."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from tests.exporters.zips import Part, packed
from tests.fuzz.edit_pt2 import (
    Json,
    Number,
    Tensor,
    argument,
    call,
    graph_of,
    meta,
    put_in,
    record,
    renamed,
    symbol,
)
from tests.fuzz.forged import Forged, Forger
from tests.fuzz.honest_pt2 import (
    CONSTANTS_CONFIG,
    PROGRAM,
    ROOT,
    ROWS,
    WEIGHTS_CONFIG,
    WIDTH,
    Branches,
    Chain,
    Constants,
    Counted,
    Layers,
    archive,
    members,
    opened,
    with_json,
)

Files = dict[str, bytes]
SIZES = (48, 64, 80)
PRODUCT = 2 * ROWS * WIDTH * WIDTH  # FLOPs of the input by one weight


def two_readers(chance: Random) -> Forged:
    """Two programs in one archive: a chain of one product, and one of many."""
    times = chance.choice(SIZES)
    how = chance.choice([*TWO_READERS])
    data = TWO_READERS[how](members(Chain, 1), members(Chain, times), chance)
    return Forged(data, ".pt2", "two readers", times * PRODUCT, how)


def _other_case(small: Files, large: Files, chance: Random) -> bytes:
    names = ("Models/model.json", "models/model.JSON", "MODELS/MODEL.JSON", "modelS/model.json")
    return archive({**small, ROOT + chance.choice(names): large[PROGRAM]})


def _other_suffix(small: Files, large: Files, chance: Random) -> bytes:
    suffix = chance.choice((".onnx", ".yaml", "_copy", "12345"))
    return archive({**small, f"{ROOT}models/model{suffix}": large[PROGRAM]})


def _two_ends(small: Files, large: Files, chance: Random) -> bytes:
    return packed(_parts(large), other=_parts(small))


def _old_layout(small: Files, large: Files, chance: Random) -> bytes:
    """A new layout that torch cannot read, without its version, beside an old one that it then reads."""
    old = old_layout(large, {"weight": torch.nn.Parameter(torch.ones(WIDTH, WIDTH))})
    gone = chance.choice((ROOT + ".data/version", ROOT + "archive_version"))
    return archive({name: data for name, data in {**small, **old}.items() if name != gone})


TWO_READERS: dict[str, Callable[[Files, Files, Random], bytes]] = {
    "a name in another case": _other_case,
    "a program by another suffix": _other_suffix,
    "two end records": _two_ends,
    "an old layout beside the new one": _old_layout,
}


def old_layout(
    files: Files, weights: dict[str, torch.Tensor], constants: dict[str, torch.Tensor] | None = None
) -> Files:
    """The members of torch 2.4 to 2.7."""
    return {
        "serialized_exported_program.json": files[PROGRAM],
        "serialized_state_dict.pt": saved(weights),
        "serialized_constants.pt": saved(constants or {}),
        "serialized_example_inputs.pt": saved(((torch.ones(ROWS, WIDTH),), {})),
        "version": b"8.20",
    }


def saved(value: object) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _parts(files: Files) -> list[Part]:
    return [Part(name, data) for name, data in files.items()]


# What a program records of its values.


def hint(chance: Random) -> Forged:
    """A large program that records symbols with small examples in place of its sizes."""
    features = chance.choice(SIZES)
    content = opened(members(Layers, features))
    values = graph_of(content)["tensor_values"]
    how = chance.choice(("of weights and results", "of results", "of one result", "of an input", "two"))
    name, results = f"s{chance.randrange(1000)}", ("linear", "linear_1", "relu")
    small = symbol(name, chance.choice((2, 4)))
    content["range_constraints"] = {name: {"min_val": 2, "max_val": chance.choice((None, 9999))}}
    if how in ("of an input", "two"):
        small = symbol(name, 2 if how == "two" else ROWS)
        record(content, ("x",), ROWS, symbol(name, ROWS))
        record(content, (*results, "linear_2"), ROWS, small)
    if how == "two":
        graph_of(content)["tensor_values"] = {"relu": values["relu"], **values}
    else:
        weights = [name for name in values if name.startswith("p_")]
        some = results if how != "of one result" else (chance.choice(results),)
        record(content, (*some, *(weights if how == "of weights and results" else ())), features, small)
    data = archive(with_json(members(Layers, features), content))
    return Forged(data, ".pt2", "hint", _layers_cost(features), "an example " + how)


def _layers_cost(features: int) -> int:
    return 2 * ROWS * features * (WIDTH + features + WIDTH)


def recorded_value(chance: Random) -> Forged:
    """A number that the program computes, recorded smaller: as many copies of the input are multiplied."""
    times, content = chance.choice(SIZES), opened(members(Chain, 1))
    how = chance.choice([*NUMBERS])
    calls = NUMBERS[how](times)
    for place, (node, recorded) in enumerate(calls):
        put_in(content, place, node, recorded)
    _multiply(content, len(calls), Number(f"n{len(calls)}"), 1)
    data = archive(with_json(members(Chain, 1), content))
    return Forged(data, ".pt2", "recorded value", times * PRODUCT, how)


def _multiply(content: Json, place: int, times: Number, recorded: int | Json) -> None:
    """From a call on, so many copies of the input in its place; recorded: how many the file says."""
    node = call("torch.ops.aten.repeat.default", Tensor("copies"), self=Tensor("x"), repeats=[times, 1])
    put_in(content, place, node, [ROWS * recorded if isinstance(recorded, int) else recorded, WIDTH])
    renamed(content, place + 1, "x", "copies")


def _number(
    target: str, *operands: Any, place: int = 1, kind: str = "int", recorded: Any = 1
) -> tuple[Json, Any]:
    """A call that computes a number, and what is recorded of it."""
    return call(target, Number(f"n{place}", kind), **dict(zip("abc", operands, strict=False))), recorded


# By what computes a number that is n: the calls, and what is recorded of each.
NUMBERS: dict[str, Callable[[int], list[tuple[Json, Any]]]] = {
    "a product": lambda n: [_number("_operator.mul", n // 2, 2)],
    "a sum": lambda n: [_number("_operator.add", n - 1, 1)],
    "a difference": lambda n: [_number("_operator.sub", n + 1, 1)],
    "a quotient": lambda n: [_number("_operator.floordiv", 2 * n + 1, 2)],
    "a remainder": lambda n: [_number("_operator.mod", n, n + 1)],
    "a power": lambda n: [_number("_operator.pow", n, 1)],
    "a maximum": lambda n: [_number("torch.sym_max", n, 1)],
    "a minimum": lambda n: [_number("torch.sym_min", n, n + 1)],
    "a symbol": lambda n: [_number("_operator.mul", n, 1, recorded=symbol("s9", 1))],
    "two steps": lambda n: [
        _number("_operator.mul", n, 4),
        _number("_operator.floordiv", Number("n1"), 4, place=2),
    ],
    "a fraction": lambda n: [
        _number("_operator.truediv", 2 * n, 2, kind="float", recorded=1.0),
        _number("math.floor", Number("n1", "float"), place=2),
    ],
    "a choice": lambda n: [
        _number("_operator.gt", n, 2, kind="bool", recorded=False),
        _number("torch.sym_ite", Number("n1", "bool"), n, 1, place=2),
    ],
    "a tensor": lambda n: [
        (call("torch.ops.aten.ones.default", Tensor("big"), size=[n]), [n]),
        (call("torch.ops.aten.ones.default", Tensor("small"), size=[1]), [1]),
        (call("torch.sym_ite", Number("n1"), a=True, b=Tensor("big"), c=Tensor("small")), [1]),
        (call("torch.ops.aten.sym_size.int", Number("n4"), self=Tensor("n1"), dim=0), 1),
    ],
    "a size": lambda n: [
        (call("torch.ops.aten.ones.default", Tensor("n1"), size=[n]), [1]),
        (call("torch.ops.aten.sym_size.int", Number("n2"), self=Tensor("n1"), dim=0), 1),
    ],
}


def data(chance: Random) -> Forged:
    """A size that a stored number tells when the program runs, and that the file states too small."""
    times, how = chance.choice(SIZES), chance.choice(DATA)
    content = opened(members(Counted, times))
    graph = graph_of(content)
    if how != "a number of a later call":
        graph["nodes"] = [node for node in graph["nodes"] if node["target"].split(".")[-2] in COUNTED]
        content["range_constraints"]["u0"]["max_val"] = 1 if how == "a bound" else None
    if how == "a number":
        graph["sym_int_values"]["item"] = {"as_int": 1}
    if how.startswith("a number"):
        record(content, ("repeat", "matmul"), _copies(), ROWS)
    if how == "an example":
        graph["sym_int_values"]["item"] = symbol("u0", 1)
        record(content, ("repeat", "matmul"), _copies(), _copies(ROWS))
    if how == "another size":
        one = call("torch.ops.aten.full.default", Tensor("one"), size=[], fill_value=1)
        one["inputs"].append({"name": "dtype", "arg": {"as_scalar_type": 5}, "kind": 2})
        item = call("torch.ops.aten.item.default", Number("n1"), self=Tensor("one"))
        put_in(content, 0, one, [])
        put_in(content, 1, item, symbol("u0"))
        graph["tensor_values"]["one"]["dtype"] = 5
    return Forged(archive(with_json(members(Counted, times), content)), ".pt2", "data", times * PRODUCT, how)


DATA = ("a number", "a number of a later call", "a bound", "an example", "another size")
COUNTED = frozenset({"item", "repeat", "matmul"})


def _copies(example: int | None = None) -> Json:
    """The rows of as many copies of the input as are counted."""
    text = f"Mul(Integer({ROWS}), Symbol('u0', integer=True))"
    return {"as_expr": {"expr_str": text, "hint": None if example is None else {"as_int": example}}}


def control_flow(chance: Random) -> Forged:
    """Branches of one name, of which torch runs the last that was read: one product each, and in the last many."""
    times = chance.choice(SIZES) // 8  # torch takes long to export a branch of many calls
    how = chance.choice(("true_graph_0", "branch", "a"))
    content = opened(members(Branches, times))
    for node in graph_of(content)["nodes"]:
        for operand in node["inputs"]:
            graph = operand["arg"].get("as_graph")
            if graph is not None and graph["name"].startswith("true"):
                graph["name"] = how
    data = archive(with_json(members(Branches, times), content))
    return Forged(data, ".pt2", "control flow", Branches.COUNT * times * PRODUCT, "graphs of one name")


def contents(chance: Random) -> Forged:
    """A number that the program makes as 1 and then writes; as many copies of the input are multiplied."""
    times, content, how = chance.choice(SIZES), opened(members(Chain, 1)), chance.choice([*CONTENTS])
    calls = [_integer("one", 1), _integer("many", times), CONTENTS[how](times)]
    calls.append(call("torch.ops.aten.item.default", Number("n4"), self=Tensor("one")))
    for place, node in enumerate(calls):
        put_in(content, place, node, [] if place < 3 else 1)
        if place < 3:
            graph_of(content)["tensor_values"][node["outputs"][0]["as_tensor"]["name"]]["dtype"] = 5
    _multiply(content, len(calls), Number("n4"), 1)
    return Forged(archive(with_json(members(Chain, 1), content)), ".pt2", "contents", times * PRODUCT, how)


def _integer(name: str, value: int) -> Json:
    node = call("torch.ops.aten.full.default", Tensor(name), size=[], fill_value=value)
    node["inputs"].append({"name": "dtype", "arg": {"as_scalar_type": 5}, "kind": 2})
    return node


def _given(node: Json, name: str) -> Json:
    """A call whose result a tensor is given for."""
    node["inputs"].append({"name": "out", "arg": argument(Tensor(name)), "kind": 2})
    return node


def _in_region(times: int) -> Json:
    """A region without gradients that writes its operand."""
    fill = _aten("fill_.Scalar", "b", self=Tensor("a"), value=times)
    graph = _nested([fill], "b", {name: meta([], 5) for name in "ab"})
    operands = [{"as_bool": False}, {"as_graph": {"name": "f", "graph": graph}}, argument(Tensor("one"))]
    return _of_graphs("wrap_with_set_grad_enabled", operands)


# By what writes the number: the call.
CONTENTS: dict[str, Callable[[int], Json]] = {
    "in place": lambda n: _aten("fill_.Scalar", "z", self=Tensor("one"), value=n),
    "given for the result": lambda n: _given(
        _aten("mul.Scalar_out", "z", self=Tensor("one"), other=n), "one"
    ),
    "another's memory": lambda n: _aten("set_.source_Tensor", "z", self=Tensor("one"), source=Tensor("many")),
    "without a mark": lambda n: call(
        "torch.ops.prims.copy_to.default", Tensor("z"), a=Tensor("one"), b=Tensor("many")
    ),
    "in a region": _in_region,
}


def in_place(chance: Random) -> Forged:
    """A copy of the input that a call makes larger; the calls after it use its old name."""
    times, content = chance.choice(SIZES), opened(members(Chain, 1))
    how = chance.choice([*IN_PLACE])
    rows = ROWS * times
    put_in(content, 0, call("torch.ops.aten.clone.default", Tensor("y"), self=Tensor("x")), [ROWS, WIDTH])
    large = call("torch.ops.aten.ones.default", Tensor("large"), size=[rows, WIDTH])
    put_in(content, 1, large, [rows, WIDTH])
    for place, (node, sizes) in enumerate(IN_PLACE[how](rows), start=2):
        put_in(content, place, node, sizes)
    renamed(content, 1 + len(IN_PLACE[how](rows)) + 1, "x", "y")
    return Forged(archive(with_json(members(Chain, 1), content)), ".pt2", "in-place", times * PRODUCT, how)


def _aten(name: str, result: str, **operands: Any) -> Json:
    return call(f"torch.ops.aten.{name}", Tensor(result), **operands)


def _to(name: str, **operands: Any) -> Json:
    """A call that is given its result, y."""
    return _given(_aten(name, "z", **operands), "y")


def _in_branch(rows: int) -> Json:
    """A branch that enlarges its operand."""
    resize = _aten("resize_.default", "b", self=Tensor("a"), size=[rows, WIDTH])
    sum_ = _aten("sum.default", "c", self=Tensor("b"))
    values = {"a": meta([ROWS, WIDTH]), "b": meta([rows, WIDTH]), "c": meta([])}
    graph = _nested([resize, sum_], "c", values)
    branches = [{"as_graph": {"name": name, "graph": graph}} for name in ("f", "g")]
    return _of_graphs("cond", [{"as_bool": True}, *branches, {"as_tensors": [{"name": "y"}]}])


def _nested(nodes: list[Json], result: str, values: Json) -> Json:
    """A graph of one operand, a."""
    empty = {f"{kind}_values": {} for kind in ("sym_int", "sym_bool", "sym_float", "custom_obj")}
    ends = {"inputs": [argument(Tensor("a"))], "outputs": [argument(Tensor(result))]}
    return {**ends, "nodes": nodes, "tensor_values": values, **empty, "is_single_tensor_return": False}


def _of_graphs(name: str, operands: list[Json]) -> Json:
    """A call of an operator that runs graphs; its result is z."""
    node = call(f"torch.ops.higher_order.{name}", Tensor("z"))
    node["inputs"] = [{"name": "", "arg": operand, "kind": 1} for operand in operands]
    return {**node, "is_hop_single_tensor_return": False, "name": name}


_OLD, _Y = [ROWS, WIDTH], Tensor("y")
# By what makes y large: the calls with the sizes that are recorded of their results.
IN_PLACE: dict[str, Callable[[int], list[tuple[Json, list[int]]]]] = {
    "resize_": lambda n: [(_aten("resize_.default", "z", self=_Y, size=[n, WIDTH]), [n, WIDTH])],
    "resize_as_": lambda n: [
        (_aten("resize_as_.default", "z", self=_Y, the_template=Tensor("large")), [n, WIDTH])
    ],
    "set_": lambda n: [(_aten("set_.source_Tensor", "z", self=_Y, source=Tensor("large")), [n, WIDTH])],
    "as_strided_": lambda n: [
        (_aten("as_strided.default", "w", self=Tensor("large"), size=_OLD, stride=[WIDTH, 1]), _OLD),
        (_aten("set_.source_Tensor", "v", self=_Y, source=Tensor("w")), _OLD),
        (_aten("as_strided_.default", "z", self=_Y, size=[n, WIDTH], stride=[WIDTH, 1]), [n, WIDTH]),
    ],
    "out": lambda n: [(_to("mul.out", self=Tensor("large"), other=Tensor("large")), [n, WIDTH])],
    "out, unary": lambda n: [(_to("relu.out", self=Tensor("large")), [n, WIDTH])],
    "out, a sum": lambda n: [(_to("cumsum.out", self=Tensor("large"), dim=0), [n, WIDTH])],
    "the same object": lambda n: [
        (_aten("contiguous.default", "w", self=_Y), _OLD),
        (_aten("resize_.default", "z", self=Tensor("w"), size=[n, WIDTH]), [n, WIDTH]),
    ],
    "no dropout": lambda n: [
        (_aten("dropout.default", "w", input=_Y, p=0.5, train=False), _OLD),
        (_aten("resize_.default", "z", self=Tensor("w"), size=[n, WIDTH]), [n, WIDTH]),
    ],
    "twice": lambda n: [
        (_aten("unsqueeze_.default", "w", self=_Y, dim=0), [1, *_OLD]),
        (_aten("squeeze_.dim", "v", self=Tensor("w"), dim=0), _OLD),
        (_aten("resize_.default", "z", self=Tensor("v"), size=[n, WIDTH]), [n, WIDTH]),
    ],
    "in a branch": lambda n: [(_in_branch(n), [])],
}


def operands(chance: Random) -> Forged:
    """A call whose operands, taken as they are listed, make a small result; torch takes them by their names."""
    rows, how = ROWS * chance.choice(SIZES), chance.choice([*OPERANDS])
    content, calls = opened(members(Chain, 1)), OPERANDS[how](rows)
    for place, (node, sizes) in enumerate(calls):
        put_in(content, place, node, sizes)
    if how == "another order":
        real = 2 * rows * rows + PRODUCT
    else:
        real = 2 * rows * WIDTH * WIDTH
        renamed(content, len(calls), "x", "copies")
    return Forged(archive(with_json(members(Chain, 1), content)), ".pt2", "operands", real, how)


def _listed(name: str, sizes: list[int], *listed: tuple[str, Any]) -> tuple[Json, list[int]]:
    """A call that makes the copies, its operands as listed; sizes: what is recorded."""
    node = _aten(name, "copies")
    node["inputs"] = [{"name": name, "arg": argument(value), "kind": 1} for name, value in listed]
    return node, sizes


# By how the operands are listed: the calls with the sizes that are recorded of their results.
OPERANDS: dict[str, Callable[[int], list[tuple[Json, list[int]]]]] = {
    "another order": lambda n: [
        (_aten("ones.default", "column", size=[n, 1]), [n, 1]),
        (_aten("ones.default", "row", size=[1, n]), [1, n]),
        _listed("mm.default", [1, 1], ("mat2", Tensor("row")), ("self", Tensor("column"))),
    ],
    "a name twice": lambda n: [
        _listed("repeat.default", _OLD, ("self", Tensor("x")), ("repeats", [1, 1]), ("repeats", [n // ROWS, 1]))
    ],
    "a name of no operand": lambda n: [
        (_aten("ones.default", "large", size=[n, WIDTH]), [n, WIDTH]),
        _listed(
            "slice.Tensor", _OLD,
            *(("self", Tensor("large")), ("dim", 0), ("start", 0), ("end", n), ("a", 1), ("step", 1)),
        ),
    ],
}  # fmt: skip


# What a file stores beside the program.


def weight(chance: Random) -> Forged:
    """The program of a few features, the weights of many."""
    features, how = chance.choice(SIZES), chance.choice([*WEIGHTS_STORED])
    files = members(Layers, chance.choice((8, 16)))
    large = Layers(features).state_dict(keep_vars=True)
    data = archive(WEIGHTS_STORED[how](files, dict(large), members(Layers, features)))
    return Forged(data, ".pt2", "weight", _layers_cost(features), how)


def constant(chance: Random) -> Forged:
    """The program of a few features, constants and buffers of many."""
    features, how = chance.choice(SIZES), chance.choice([*CONSTANTS_STORED])
    files, large = members(Constants, chance.choice((8, 16))), Constants(features)
    tensors = {name: getattr(large, name) for name in ("first", "second", "third")}
    data = archive(CONSTANTS_STORED[how](files, tensors, members(Constants, features)))
    return Forged(data, ".pt2", "constant", _layers_cost(features), how)


Tensors = dict[str, torch.Tensor]


def _taken(kind: str) -> Callable[[Files, Tensors, Files], Files]:
    """The table of the large program and what it lists."""
    return lambda small, tensors, large: {
        **small,
        **{name: large[name] for name in large if f"/{kind}/" in name},
    }


def _pickled(kind: str, config: str) -> Callable[[Files, Tensors, Files], Files]:
    """The table of the small program, its tensors as pickles."""

    def forge(small: Files, tensors: Tensors, large: Files) -> Files:
        table = opened(small, config)
        files = dict(small)
        for name, entry in table["config"].items():
            entry["use_pickle"] = True
            files[f"{ROOT}data/{kind}/{entry['path_name']}"] = saved(tensors[name])
        return with_json(files, table, config)

    return forge


def _in_checkpoint(kind: str, config: str) -> Callable[[Files, Tensors, Files], Files]:
    """One checkpoint in the place of the table, as torch 2.8 wrote it."""

    def forge(small: Files, tensors: Tensors, large: Files) -> Files:
        files = {name: data for name, data in small.items() if name != config}
        return {**files, f"{ROOT}data/{kind}/model.pt": saved(tensors)}

    return forge


def _decoys(small: Files, tensors: Tensors, large: Files) -> Files:
    """The constants of the large program, and those of the small one listed as weights, where torch does not look."""
    files = _taken("constants")(small, tensors, large)
    moved = {name.replace("constants", "weights"): small[name] for name in small if "/constants/" in name}
    table = opened(moved, WEIGHTS_CONFIG)
    del table["config"]["third"]  # torch refuses it there
    return with_json({**files, **moved}, table, WEIGHTS_CONFIG)


def _expanded(tensors: Tensors) -> Tensors:
    """Tensors of one number each, repeated by a step of 0 in memory."""
    return {name: torch.nn.Parameter(torch.ones(1, 1).expand(x.shape)) for name, x in tensors.items()}


WEIGHTS_STORED: dict[str, Callable[[Files, Tensors, Files], Files]] = {
    "a table of other sizes": _taken("weights"),
    "pickles": _pickled("weights", WEIGHTS_CONFIG),
    "a checkpoint": _in_checkpoint("weights", WEIGHTS_CONFIG),
    "an old layout": lambda small, tensors, large: old_layout(small, tensors),
    "an old layout, expanded": lambda small, tensors, large: old_layout(small, _expanded(tensors)),
}
CONSTANTS_STORED: dict[str, Callable[[Files, Tensors, Files], Files]] = {
    "a table of other sizes": _taken("constants"),
    "pickles": _pickled("constants", CONSTANTS_CONFIG),
    "a checkpoint": _in_checkpoint("constants", CONSTANTS_CONFIG),
    "an old layout": lambda small, tensors, large: old_layout(small, {}, tensors),
    "decoys among the weights": _decoys,
}
FORGERS: dict[str, Forger] = {
    "two readers": two_readers,
    "hint": hint,
    "recorded value": recorded_value,
    "data": data,
    "contents": contents,
    "control flow": control_flow,
    "in-place": in_place,
    "operands": operands,
    "weight": weight,
    "constant": constant,
}
