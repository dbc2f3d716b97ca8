"""Reading `.pt2` files: those that releases of torch wrote, and small ones made for one point each."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from graphflops.dims import Expr, parse_dim
from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.exporters.pt2 import read
from graphflops.exporters.sources import Sources, module_path
from graphflops.graph import Graph, Node, Opaque, Output, Ref, Symbol
from graphflops.tensor import BFLOAT16, FLOAT32, INT64, TensorType
from tests.exporters.build import DATA, call, graph, meta, program, save, size, tensor

FILES = sorted(DATA.glob("*.pt2"))
LANGUAGE_MODELS = sorted(DATA.glob("lm_dynamic-*.pt2"))


def node(graph: Graph, name: str) -> Node:
    return next(entry for entry in graph.nodes if entry.name == name)


def parameters(graph: Graph) -> int:
    return sum(
        graph.types[entry.name].numel  # type: ignore[union-attr, misc]
        for entry in graph.inputs
        if entry.role == "parameter" and not entry.alias_of
    )


# Files as torch wrote them


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_release_is_read(path: Path) -> None:
    found = read(path)
    names = {entry.name for entry in found.inputs}
    for entry in found.nodes:
        assert {value for _, value in entry.uses()} <= names, entry.name
        names.update(name for name in entry.outputs if name is not None)
        assert entry.op.startswith(("aten.", "_operator.")), entry.op
    assert names <= found.types.keys()
    assert found.origin.producer in (f"torch {path.stem.partition('-torch')[2]}", "torch <=2.4")
    assert len(found.origin.sha256) == 64
    assert len(found.nx) == len(found.inputs) + len(found.nodes)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("conv_static", 31_822),
        ("conv_batch", 31_822),
        ("lm_dynamic", 112_484),
        ("lm_core_aten", 112_484),
        ("lstm_static", 37_888),
    ],
)
def test_parameters(name: str, count: int) -> None:
    for path in DATA.glob(f"{name}-*.pt2"):
        assert parameters(read(path)) == count, path


@pytest.mark.parametrize("path", LANGUAGE_MODELS, ids=lambda path: path.stem)
def test_symbols(path: Path) -> None:
    batch, time = read(path).symbols.values()
    assert (batch.minimum, batch.maximum, batch.hint, batch.where) == (2, 64, 3, ("ids[0]",))
    assert (time.minimum, time.maximum, time.hint, time.where) == (2, 512, 7, ("ids[1]",))


def test_releases_agree() -> None:
    """Same calls, types, modules and lines, whatever symbols are called and whichever of reshape and view."""
    told = []
    for path in LANGUAGE_MODELS:
        found = read(path)
        renamed = {name: f"d{index}" for index, name in enumerate(found.symbols)}
        told.append(
            [
                (
                    entry.op.replace("aten.view.", "aten.reshape."),
                    [_renamed(found.types[name], renamed) for name in entry.outputs if name is not None],
                    entry.module,
                    entry.module_type,
                    entry.source,
                )
                for entry in found.nodes
                if entry.op != "aten.sym_size.int"
            ]
        )
    assert len(told) == 5
    for other in told:
        assert other == told[0]


def _renamed(value: Any, names: dict[str, str]) -> str:
    sizes = value.shape if isinstance(value, TensorType) else (value,)
    symbols = {old: parse_dim(new) for old, new in names.items()}
    return str([str(s.substitute(symbols)) if isinstance(s, Expr) else s for s in sizes])


def test_a_call_of_a_new_file() -> None:
    found = read(DATA / "lm_dynamic-torch2.13.0.pt2")
    attention = node(found, "scaled_dot_product_attention")
    assert attention.op == "aten.scaled_dot_product_attention.default"
    assert attention.args == (Ref("getitem"), Ref("getitem_1"), Ref("getitem_2"), None, 0.0, True)
    assert (attention.module, attention.module_type) == ("blocks.0", "__main__.Block")
    assert attention.source == "models/gen_m.py:15"
    assert str(found.types["scaled_dot_product_attention"]) == "float32[s23, 4, s27, 16]"
    weight = next(entry for entry in found.inputs if entry.target == "blocks.0.qkv.weight")
    assert (weight.name, weight.role) == ("p_blocks_0_qkv_weight", "parameter")
    assert found.types[weight.name] == TensorType((192, 64), FLOAT32, requires_grad=True)
    assert found.modules[""] == "__main__.LM"
    assert found.modules["blocks.0.qkv"] == "torch.nn.modules.linear.Linear"


def test_an_old_file_names_its_operands() -> None:
    found = read(DATA / "lm_dynamic-torch2.6.0.pt2")
    attention = node(found, "scaled_dot_product_attention")
    assert attention.args == ()
    assert attention.kwargs[0] == ("query", Ref("getitem"))
    assert ("is_causal", True) in attention.kwargs
    assert attention.module == "blocks.0"


def test_equal_types_are_one_object() -> None:
    found = read(DATA / "lm_dynamic-torch2.13.0.pt2")
    assert found.types["linear"] is found.types["linear_4"]
    assert found.types["add"] is found.types["layer_norm"]


def test_torch_is_not_imported() -> None:
    heavy = "{'torch', 'sympy', 'numpy', 'pickle', 'networkx', 'onnx'}"
    load_it = f"from graphflops.exporters import load; load({str(FILES[0])!r})"
    code = f"import sys; {load_it}; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_json_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = zipfile.ZipFile.open

    def recording(self: zipfile.ZipFile, name: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(getattr(name, "filename", name))
        return original(self, name, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "open", recording)
    read(path)
    assert opened
    assert all(name.endswith(".json") for name in opened)


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
    assert found.types["x"] == TensorType((4,), FLOAT32)
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


# Tied weights


def tied_program(module: str = "head") -> dict[str, Any]:
    stack = "L__self__,,M;L__self__emb,emb,torch.nn.Embedding"
    inputs = [
        {"parameter": {"arg": {"name": "p_emb"}, "parameter_name": "emb.weight"}},
        {"parameter": {"arg": {"name": "p_head"}, "parameter_name": f"{module}.weight"}},
        {"parameter": {"arg": {"name": "p_other"}, "parameter_name": "other.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    nodes = [
        call(
            "torch.ops.aten.embedding.default",
            tensor("p_head"),
            tensor("x"),
            metadata={"nn_module_stack": stack},
        ),
        call("torch.ops.aten.linear.default", tensor("y"), tensor("p_head"), out="z"),
    ]
    values = {name: meta(8, 4) for name in ("p_emb", "p_head", "x", "y", "z")} | {"p_other": meta(9, 4)}
    return program(nodes, values, inputs)


def payloads(**path_names: str) -> dict[str, bytes]:
    names = {"emb": "emb.weight", "head": "head.weight", "other": "other.weight"}
    config = {
        names[key]: {"path_name": path, "is_param": True, "tensor_meta": meta(9 if key == "other" else 8, 4)}
        for key, path in path_names.items()
    }
    return {"m/data/weights/model_weights_config.json": json.dumps({"config": config}).encode()}


def aliases(graph: Graph) -> dict[str, str]:
    return {entry.target: entry.alias_of for entry in graph.inputs if entry.alias_of}


def test_tied_weights_share_a_payload(tmp_path: Path) -> None:
    extra = payloads(emb="weight_0", head="weight_0", other="weight_1")
    extra |= {"m/data/weights/weight_0": bytes(128), "m/data/weights/weight_1": bytes(128)}
    found = read(save(tmp_path / "a.pt2", tied_program(), extra=extra))
    assert aliases(found) == {"head.weight": "emb.weight"}
    assert parameters(found) == 8 * 4 + 9 * 4


def test_fake_weights_share_an_empty_payload(tmp_path: Path) -> None:
    """Weights of a program on fake tensors are stored in one empty member: that ties nothing; use does."""
    extra = payloads(emb="weight_0", head="weight_0", other="weight_0") | {"m/data/weights/weight_0": b""}
    found = read(save(tmp_path / "a.pt2", tied_program(), extra=extra))
    assert aliases(found) == {"head.weight": "emb.weight"}
    assert parameters(found) == 8 * 4 + 9 * 4


def test_tied_weights_of_the_old_layout(tmp_path: Path) -> None:
    found = read(save(tmp_path / "a.pt2", tied_program(), member="serialized_exported_program.json"))
    assert aliases(found) == {"head.weight": "emb.weight"}


def test_a_weight_that_nothing_uses_is_not_tied(tmp_path: Path) -> None:
    assert aliases(read(save(tmp_path / "a.pt2", tied_program("emb.inner")))) == {
        "emb.inner.weight": "emb.weight"
    }
    content = tied_program()
    content["graph_module"]["graph"]["nodes"][0]["metadata"] = {}
    assert aliases(read(save(tmp_path / "b.pt2", content))) == {}


def test_a_module_all_of_whose_weights_are_tied(tmp_path: Path) -> None:
    content = tied_program()
    whole, signature = content["graph_module"]["graph"], content["graph_module"]["signature"]
    signature["input_specs"][2:2] = [
        {"parameter": {"arg": {"name": name}, "parameter_name": target}}
        for name, target in (("p_emb_bias", "emb.bias"), ("p_bias", "bias"))
    ]
    whole["tensor_values"] |= {"p_emb_bias": meta(4), "p_bias": meta(4)}
    whole["nodes"][0]["inputs"].append({"name": "bias", "arg": tensor("p_bias"), "kind": 1})
    assert aliases(read(save(tmp_path / "a.pt2", content))) == {
        "head.weight": "emb.weight",
        "bias": "emb.bias",
    }


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (
            "shared.weight",
            (8, 4),
            {"shared.weight": "emb.weight"},
        ),  # as the tied two, of a module that makes no calls
        ("shared.weight", (7, 4), {}),
        ("head.bias", (5,), {"head.decoder.bias": "head.bias"}),  # of a module within its own
        ("other.bias", (5,), {}),
    ],
)
def test_a_tied_weight_of_a_module_that_makes_no_calls(
    target: str, shape: tuple[int, ...], expected: dict[str, str], tmp_path: Path
) -> None:
    content = tied_program()
    whole, signature = content["graph_module"]["graph"], content["graph_module"]["signature"]
    signature["input_specs"][2:2] = [
        {"parameter": {"arg": {"name": "p_more"}, "parameter_name": target}},
        {"parameter": {"arg": {"name": "p_bias"}, "parameter_name": "head.decoder.bias"}},
    ]
    whole["tensor_values"] |= {"p_more": meta(*shape), "p_bias": meta(5)}
    whole["nodes"][1]["inputs"].append({"name": "bias", "arg": tensor("p_bias"), "kind": 1})
    found = aliases(read(save(tmp_path / "a.pt2", content)))
    assert found == {"head.weight": "emb.weight"} | expected


# Several programs, and what is no program


def test_an_archive_with_several_programs(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.pt2", program(), extra={"m/models/decode.json": json.dumps(program([])).encode()}
    )
    with pytest.raises(FileError, match=r"several programs: choose one with --model \(decode, model\)"):
        load(path)
    assert len(load(path, "model").nodes) == 1
    with pytest.raises(FileError, match="no program x; it holds decode, model"):
        load(path, "x")


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


# Sources


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        (["models/gen.py", "torch/nn/modules/linear.py"], "models/gen.py:1"),
        (["/home/me/lab/model.py", "/usr/lib/python3/dist-packages/torch/nn/functional.py"], "model.py:1"),
        (["/home/me/model.py", "/v/lib/python3.11/site-packages/hf/llama.py"], "hf/llama.py:2"),
        (["/home/me/model.py", "<eval_with_key>.22", "<string>"], "model.py:1"),
        (["/home/me/model.py", "/usr/lib/python3.12/functools.py"], "model.py:1"),
        (["/home/me/torch/model.py"], "model.py:1"),
        (["C:\\work\\model.py", "C:\\v\\Lib\\site-packages\\torch\\nn\\x.py"], "model.py:1"),
        (["<stdin>"], "<stdin>:1"),
        (["torch/fx/passes/runtime_assert.py"], ""),
        ([], ""),
    ],
)
def test_source_lines(frames: list[str], line: str) -> None:
    trace = "".join(
        f'  File "{file}", line {index}, in forward\n    call()\n' for index, file in enumerate(frames, 1)
    )
    assert Sources().line(trace) == line


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        ("", ""),
        ("blocks.0.fc", "blocks.0.fc"),
        ("L['self']", ""),
        ("L['s'].blocks[0].n1", "blocks.0.n1"),
        ("L['self'].experts['left'].fc", "experts.left.fc"),
        ("fc@1", "fc"),
        ("a@2.fc@1", "a.fc"),
        ("_export_root.fc", "fc"),
    ],
)
def test_module_paths(recorded: str, path: str) -> None:
    assert module_path(recorded) == path


def test_module_stack() -> None:
    sources = Sources()
    hook = "_empty_nn_module_stack_from_metadata_hook"
    assert sources.place(f"{hook},{hook},{hook}") == ("", "")
    assert sources.place("L__self__,,__main__.Net;L__self__fc@1,fc,torch.nn.Linear") == (
        "fc",
        "torch.nn.Linear",
    )
    assert sources.modules == {"": "__main__.Net", "fc": "torch.nn.Linear"}
