"""Reading `.pt2` files: those that releases of torch wrote, and small ones made for one point each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.exporters.pt2 import read
from graphflops.graph import Graph, Opaque, Output, Ref, Symbol
from graphflops.tensor import BFLOAT16, FLOAT32, INT64, TensorType
from tests.exporters.build import (
    call,
    graph,
    meta,
    program,
    save,
    size,
    tensor,
)

# One point each


def test_every_kind_of_argument(tmp_path: Path) -> None:
    inner = graph(
        [tensor("a")],
        [call("torch.ops.aten.neg.default", tensor("a"), out="b")],
        [tensor("b")],
        {"a": meta(2), "b": meta(2)},
    )
    given: list[tuple[dict[str, Any], Any]] = [
        (tensor("x"), Ref("x")),
        ({"as_none": True}, None),
        ({"as_tensors": [{"name": "x"}, {"name": "x"}]}, (Ref("x"), Ref("x"))),
        ({"as_int": -1}, -1),
        ({"as_ints": [1, 2]}, (1, 2)),
        ({"as_float": 0.5}, 0.5),
        ({"as_float": "-Infinity"}, -math.inf),
        ({"as_floats": [1.0, "Infinity"]}, (1.0, math.inf)),
        ({"as_string": "none"}, "none"),
        ({"as_strings": ["a", "b"]}, ("a", "b")),
        ({"as_sym_int": {"as_name": "n"}}, Ref("n")),
        ({"as_sym_int": {"as_int": 3}}, 3),
        ({"as_sym_ints": [{"as_name": "n"}, {"as_int": 3}]}, (Ref("n"), 3)),
        ({"as_scalar_type": 13}, BFLOAT16),
        ({"as_memory_format": 2}, Opaque("channels_last")),
        ({"as_layout": 7}, Opaque("strided")),
        ({"as_device": {"type": "cuda", "index": 1}}, Opaque("cuda:1")),
        ({"as_bool": False}, False),
        ({"as_bools": [True, False]}, (True, False)),
        ({"as_sym_bool": {"as_bool": True}}, True),
        ({"as_sym_bools": [{"as_name": "p"}, {"as_bool": True}]}, (Ref("p"), True)),
        ({"as_optional_tensors": [{"as_none": True}, tensor("x")]}, (None, Ref("x"))),
        ({"as_optional_tensor": tensor("x")}, Ref("x")),
        ({"as_custom_obj": {"name": "o", "class_fqn": "my.Class"}}, Opaque("my.Class")),
        ({"as_operator": "torch.ops.aten.mm.default"}, Opaque("aten.mm.default")),
        ({"as_sym_float": {"as_name": "f"}}, Ref("f")),
        ({"as_sym_floats": [{"as_name": "f"}, {"as_float": 2.0}]}, (Ref("f"), 2.0)),
        ({"as_complex": {"real": 1.0, "imag": 2.0}}, 1 + 2j),
        ({"as_nested_tensors": [[{"name": "x"}], []]}, ((Ref("x"),), ())),
        ({"as_int_lists": [[1], [2, 3]]}, ((1,), (2, 3))),
        ({"as_float_lists": [[1.0], []]}, ((1.0,), ())),
        ({"as_string_to_argument": {"k": {"as_int": 1}, "t": tensor("x")}}, (("k", 1), ("t", Ref("x")))),
        ({"as_graph": {"name": "body", "graph": inner}}, Graph),
    ]
    scalars = [
        call("torch.ops.aten.sym_size.int", tensor("x"), out=[{"as_sym_int": {"as_name": "n"}}]),
        call("_operator.gt", {"as_sym_int": {"as_name": "n"}}, out=[{"as_sym_bool": {"as_name": "p"}}]),
        call("torch.sym_float", {"as_sym_int": {"as_name": "n"}}, out=[{"as_sym_float": {"as_name": "f"}}]),
    ]
    values = {
        "sym_int_values": {"n": size("s0", 4)},
        "sym_bool_values": {"p": {"as_expr": {"expr_str": "s0 > 3", "hint": None}}},
        "sym_float_values": {"f": {"as_expr": {"expr_str": "ToFloat(s0)", "hint": {"as_float": 4.0}}}},
    }
    content = program([*scalars, call("my.op", *(argument for argument, _ in given))], graph=values)
    found = read(save(tmp_path / "a.pt2", content))
    args = found.nodes[-1].args
    for got, (_, wanted) in zip(args[:-1], given, strict=False):
        assert got == wanted
        assert type(got) is type(wanted)
    nested = args[-1]
    assert isinstance(nested, Graph)
    assert (nested.name, nested.nodes[0].op, nested.outputs) == (
        "body",
        "aten.neg.default",
        (Output(Ref("b")),),
    )
    assert (str(found.types["n"]), str(found.types["p"]), found.types["f"]) == ("s0", "(3 < s0)", 4.0)


def test_keywords_stay_keywords(tmp_path: Path) -> None:
    content = program(
        [
            call(
                "torch.ops.aten.sum.dim_IntList",
                tensor("x"),
                ("dim", {"as_ints": [1]}),
                ("dtype", {"as_scalar_type": 5}),
            )
        ]
    )
    entry = read(save(tmp_path / "a.pt2", content)).nodes[0]
    assert entry.args == (Ref("x"),)
    assert entry.kwargs == (("dim", (1,)), ("dtype", INT64))


def test_results_are_flat(tmp_path: Path) -> None:
    outputs = [
        tensor("a"),
        {"as_none": True},
        {"as_tensors": [{"name": "b"}, {"name": "c"}]},
        {"as_sym_int": {"as_name": "n"}},
    ]
    nodes = [
        call("my.op", tensor("x"), out=outputs, name="op"),
        call("my.op", tensor("a"), tensor("c"), name="op"),
    ]
    values = {name: meta(2) for name in "xabcy"}
    found = read(save(tmp_path / "a.pt2", program(nodes, values, graph={"sym_int_values": {"n": size(7)}})))
    assert found.nodes[0].outputs == ("a", None, "b", "c", "n")
    assert [entry.name for entry in found.nodes] == ["op", "op_1"]
    assert found.types["n"] == 7


def test_nodes_without_a_name_or_result(tmp_path: Path) -> None:
    check = call("torch.ops.aten._assert_scalar.default", {"as_bool": True}, out=[])
    found = read(
        save(tmp_path / "a.pt2", program([check, check, call("torch.ops.aten.relu.default", tensor("x"))]))
    )
    assert [entry.name for entry in found.nodes] == [
        "_assert_scalar_default",
        "_assert_scalar_default_1",
        "y",
    ]


def test_bare_infinities_of_older_files(tmp_path: Path) -> None:
    text = json.dumps(
        program(
            [
                call(
                    "my.op",
                    {"as_float": math.inf},
                    {"as_floats": [math.nan, -math.inf]},
                    {"as_string": 'a "NaN" b'},
                )
            ]
        )
    )
    assert "Infinity}" in text
    infinite, (nan, minus), word = read(save(tmp_path / "a.pt2", text)).nodes[0].args  # type: ignore[misc]
    assert infinite == math.inf
    assert math.isnan(nan)  # type: ignore[arg-type]
    assert (minus, word) == (-math.inf, 'a "NaN" b')


def test_symbols_of_expressions(tmp_path: Path) -> None:
    values = {"x": meta(size("2*s5", 8), size("u0"), "s1 + s5"), "y": meta(size("2*s5", 8))}
    ranges = {
        "s5": {"min_val": 2, "max_val": 2**63 - 2},
        "2*s5": {"min_val": 4, "max_val": None},
        "s1": {"min_val": 0, "max_val": 7},
    }
    found = read(save(tmp_path / "a.pt2", program(values=values, range_constraints=ranges)))
    assert dict(found.symbols) == {
        "u0": Symbol("u0", where=("x[1]",)),
        "s5": Symbol("s5", 2, None, 4, ("x[0]", "x[2]")),
        "s1": Symbol("s1", 0, 7, None, ("x[2]",)),
    }


def test_roles(tmp_path: Path) -> None:
    inputs = [
        {"parameter": {"arg": {"name": "p"}, "parameter_name": "fc.weight"}},
        {"buffer": {"arg": {"name": "b"}, "buffer_name": "mean", "persistent": False}},
        {"tensor_constant": {"arg": {"name": "c"}, "tensor_constant_name": "lifted"}},
        {"custom_obj": {"arg": {"name": "o", "class_fqn": "my.Class"}, "custom_obj_name": "queue"}},
        {"token": {"arg": {"name": "t"}}},
        {"user_input": {"arg": tensor("x")}},
        {"constant_input": {"name": "flag", "value": {"as_bool": True}}},
        {"constant_input": {"name": "nothing", "value": {"as_none": True}}},
    ]
    outputs = [
        {"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "mean"}},
        {"user_input_mutation": {"arg": {"name": "y"}, "user_input_name": "x"}},
        {"parameter_mutation": {"arg": {"name": "y"}, "parameter_name": "fc.weight"}},
        {"token": {"arg": {"name": "t"}}},
        {"user_output": {"arg": {"as_int": 3}}},
        {"user_output": {"arg": {"as_none": True}}},
        {"user_output": {"arg": tensor("y")}},
    ]
    values = {name: meta(4, requires_grad=True) for name in "pbcxy"}
    values["b"]["strides"] = [{"as_int": 0}]
    found = read(save(tmp_path / "a.pt2", program(None, values, inputs, outputs)))
    assert [(entry.role, entry.target) for entry in found.inputs] == [
        ("parameter", "fc.weight"),
        ("buffer", "mean"),
        ("constant", "lifted"),
        ("object", "queue"),
        ("token", ""),
        ("user", ""),
        ("user", ""),
        ("user", ""),
    ]
    assert found.types["p"] == TensorType((4,), FLOAT32, requires_grad=True)
    assert found.types["b"] == TensorType((4,), FLOAT32, stored=1)
    assert found.types["x"] == TensorType((4,), FLOAT32, requires_grad=True)
    assert found.types["flag"] is True
    assert found.types["nothing"] is None
    assert [(entry.role, entry.target, entry.value) for entry in found.outputs] == [
        ("mutation", "mean", Ref("y")),
        ("mutation", "x", Ref("y")),
        ("mutation", "fc.weight", Ref("y")),
        ("token", "", Ref("t")),
        ("user", "", 3),
        ("user", "", None),
        ("user", "", Ref("y")),
    ]


def test_nested_graphs(tmp_path: Path) -> None:
    """Operands fixed at export are written as their values; a graph that occurs again is the same object."""
    innermost = graph([tensor("a")], [], [tensor("a")], {"a": meta(2)})
    inner_call = call(
        "torch.ops.higher_order.cond",
        {"as_graph": {"name": "deep", "graph": innermost}},
        tensor("a"),
        out="b",
    )
    inner = graph(
        [tensor("a"), {"as_int": 3}], [inner_call], [tensor("b"), {"as_int": 1}], {"a": meta(2), "b": meta(2)}
    )
    body = {"as_graph": {"name": "body", "graph": inner}}
    nodes = [
        call("torch.ops.higher_order.cond", body, tensor("x")),
        call("torch.ops.higher_order.cond", body, tensor("y"), out="z"),
    ]
    values = {name: meta(2) for name in "xyz"}
    found = read(save(tmp_path / "a.pt2", program(nodes, values)))
    first, second = (entry.args[0] for entry in found.nodes)
    assert first is second
    assert isinstance(first, Graph)
    assert [(entry.name, first.types[entry.name]) for entry in first.inputs][1] == ("fixed_1", 3)
    assert first.outputs == (Output(Ref("b")), Output(1))
    assert isinstance(first.nodes[0].args[0], Graph)


# Several programs, and what is no program


def test_an_archive_with_several_programs(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.pt2", program(), extra={"m/models/decode.json": json.dumps(program([])).encode()}
    )
    with pytest.raises(FileError, match=r"holds decode, model: choose one, as in --model decode"):
        load(path)
    assert len(load(path, "model").nodes) == 1
    with pytest.raises(FileError, match="no program x; it holds decode, model"):
        load(path, "x")


@pytest.mark.parametrize("name", ["models", "my_models"])
def test_an_archive_of_any_name(tmp_path: Path, name: str) -> None:
    """The folder in an archive has the name of the file that torch saved."""
    tables = {f"{name}/data/weights/model_weights_config.json": b'{"config": {}}'}
    path = save(tmp_path / f"{name}.pt2", program(), f"{name}/models/model.json", tables)
    assert len(load(path).nodes) == 1
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),)), path)
    graph = load(path)
    assert [entry.name for entry in graph.inputs] == ["p_weight", "p_bias", "input"]
    assert graph.contents is not None
    assert graph.contents("p_weight") is not None


def test_joint_graphs(tmp_path: Path) -> None:
    """A call belongs to the module whose parameter it uses or derives by, else to that of its operands."""
    inputs = [
        {"parameter": {"arg": {"name": "w1"}, "parameter_name": "up.weight"}},
        {"parameter": {"arg": {"name": "w2"}, "parameter_name": "down.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    outputs = [
        {"loss_output": {"arg": {"name": "loss"}}},
        {"gradient_to_parameter": {"arg": {"name": "g1"}, "parameter_name": "up.weight"}},
        {"gradient_to_parameter": {"arg": {"name": "g2"}, "parameter_name": "down.weight"}},
        {"gradient_to_user_input": {"arg": {"name": "gx"}, "user_input_name": "x"}},
    ]
    steps = [
        ("h", ["x", "w1"], "up"),
        ("a", ["h"], "up"),
        ("t2", ["w2"], "down"),
        ("o", ["a", "t2"], "down"),
        ("loss", ["o"], "down"),
        ("go", ["o"], "down"),
        ("got", ["go"], "down"),
        ("g2", ["got", "a"], "down"),
        ("ga", ["go", "t2"], "down"),
        ("gh", ["ga", "h"], "up"),
        ("g1", ["gh", "x"], "up"),
        ("gx", ["gh", "w1"], "up"),
    ]
    nodes = [call("my.op", *map(tensor, operands), out=name, name=name) for name, operands, _ in steps]
    values = {name: meta(2, 2) for name in ("w1", "w2", "x", *(name for name, _, _ in steps))}
    found = read(save(tmp_path / "a.pt2", program(nodes, values, inputs, outputs)))
    assert [(entry.name, entry.module) for entry in found.nodes] == [
        (name, module) for name, _, module in steps
    ]
    assert [entry.role for entry in found.outputs] == ["loss", "gradient", "gradient", "gradient"]
    assert [name for name, phase in found.phases.items() if phase == "forward"] == [
        "h",
        "a",
        "t2",
        "o",
        "loss",
    ]
