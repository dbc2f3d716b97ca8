"""Files that are wrong, damaged or built to harm: one line that says what is wrong, in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graphflops import analyze
from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.report.contradictions import contradictions
from tests.exporters.build import (
    DATA,
    call,
    graph,
    meta,
    program,
    refused,
    save,
    size,
    tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def read_or_refused(path: Path) -> None:
    """Either outcome is fine; anything but a FileError is not."""
    with contextlib.suppress(FileError):
        load(path)


def changed(edit: Callable[[dict[str, Any]], Any], **fields: Any) -> dict[str, Any]:
    """A sound program, edited in place."""
    content = program(**fields)
    edit(content)
    return content


# JSON that is no program


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"graph_module": ', "not JSON"),
        (b'{"graph_module": {}, "nan": NaN', "not JSON"),
        (b"[]", "got `array`"),
        (b"{}", "missing required field `schema_version`"),
        (b'{"schema_version": {"major": 8, "minor": 1}}', "missing required field `graph_module`"),
        (json.dumps(program()).encode()[:-1] + b"\xff}", "not JSON"),
        (json.dumps(program()).replace("relu", "\udcff").encode("utf-8", "surrogateescape"), "not JSON"),
    ],
)
def test_not_the_schema(tmp_path: Path, content: bytes, says: str) -> None:
    refused(save(tmp_path / "a.pt2", content), says)


def test_the_path_inside_the_json(tmp_path: Path) -> None:
    content = changed(lambda c: c["graph_module"]["graph"]["nodes"][0].update(inputs=3))
    refused(
        save(tmp_path / "a.pt2", content),
        "node #0 does not follow the export schema",
        "got `int`",
        "$.inputs",
    )
    content = changed(lambda c: c["graph_module"]["graph"]["tensor_values"].update(x={"dtype": "float"}))
    refused(save(tmp_path / "b.pt2", content), "value x", "$.dtype")


@pytest.mark.parametrize("major", [99, 4, 9, -1])
def test_schema_major(tmp_path: Path, major: int) -> None:
    version = {"major": major, "minor": 0}
    advice = "update graphflops" if major > 8 else "export the model again"
    says = (f"schema major {major}", "reads 5 to 8", advice)
    refused(save(tmp_path / "a.pt2", program(schema_version=version)), *says)
    refused(save(tmp_path / "b.pt2", {"schema_version": version, "graph_module": 1}), *says)


def nested_lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def nested_graphs(depth: int) -> dict[str, Any]:
    innermost = graph([tensor("a")], [], [tensor("a")], {"a": meta(2)})
    for _ in range(depth):
        node = call(
            "torch.ops.higher_order.cond",
            {"as_graph": {"name": "g", "graph": innermost}},
            tensor("a"),
            out="b",
        )
        innermost = graph([tensor("a")], [node], [tensor("b")], {"a": meta(2), "b": meta(2)})
    return innermost


def test_nested_json(tmp_path: Path) -> None:
    whole = json.dumps(program())
    deep = nested_lists(1_000_000)
    refused(save(tmp_path / "a.pt2", whole[:-1] + f', "later": {deep}}}'), "nests too deep")
    refused(save(tmp_path / "b.pt2", whole.replace('"self"', deep)))
    refused(save(tmp_path / "c.pt2", whole.replace('{"as_tensor": {"name": "x"}}', dictionaries(400_000), 1)))


def dictionaries(depth: int) -> str:
    return '{"as_string_to_argument": {"k": ' * depth + '{"as_int": 1}' + "}}" * depth


def test_nested_dictionaries(tmp_path: Path) -> None:
    """Shallow enough for the decoder, too deep for what walks it: still one line."""
    whole = json.dumps(program())
    for depth in (50, 150, 300, 400, 2_000, 4_000):
        path = save(tmp_path / "a.pt2", whole.replace('{"as_tensor": {"name": "x"}}', dictionaries(depth), 1))
        read_or_refused(path)


@pytest.mark.parametrize("depth", [60, 100])
def test_nested_graphs(tmp_path: Path, depth: int) -> None:
    inner = {"as_graph": {"name": "g", "graph": nested_graphs(depth)}}
    nodes = [call("torch.ops.higher_order.cond", inner, tensor("x"))]
    refused(save(tmp_path / "a.pt2", program(nodes)), "deep")


def test_graphs_nested_as_deep_as_allowed(tmp_path: Path) -> None:
    inner = {"as_graph": {"name": "g", "graph": nested_graphs(40)}}
    assert load(save(tmp_path / "a.pt2", program([call("my.op", inner, tensor("x"))])))


# Sizes


@pytest.mark.parametrize(
    "bad",
    [
        size(-1),
        size(2**62 + 1),
        size(10**400),
        size("-5"),
        size("10**400"),
        size("__import__('os').system('touch harm')"),
        size("().__class__.__bases__[0].__subclasses__()"),
        size("lambda: 0"),
        size("s0 ** 9999999999"),
        size("9**9**9**9"),
        size("(" * 5000 + "s0" + ")" * 5000),
        size("+".join(f"s{n}*t{n}" for n in range(200_000))),
        size(""),
        size("s0\nimport os"),
        {"as_int": True},
        {"as_int": 1.5},
        {"as_float": 1.0},
        {},
        None,
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    monkeypatch.chdir(tmp_path)
    content = changed(lambda c: c["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].insert(0, bad))
    message = refused(save(tmp_path / "a.pt2", content), "value x")
    assert len(message) < 600
    assert os.listdir(tmp_path) == ["a.pt2"]


def test_size_of_a_scalar(tmp_path: Path) -> None:
    content = program(graph={"sym_int_values": {"n": size("__import__('os')")}})
    refused(save(tmp_path / "a.pt2", content), "value n")


@pytest.mark.parametrize(
    ("number", "says"),
    [(2**63, "`int` <= 9223372036854775807"), (-(2**63) - 1, "`int` >= -9223372036854775808")],
)
def test_operands_have_64_bits(tmp_path: Path, number: int, says: str) -> None:
    for operand in ({"as_int": number}, {"as_ints": [number]}):
        content = program([call("aten.roll", tensor("x"), operand)])
        refused(save(tmp_path / "a.pt2", content), "node #0 does not follow the export schema", says)


# References


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([call("aten.relu", tensor("nowhere"))], "uses value nowhere, which nothing before it defines"),
        ([call("aten.relu", tensor("y"))], "uses value y"),
        ([call("aten.relu", tensor("z")), call("aten.relu", tensor("y"), out="z")], "uses value z"),
        ([call("aten.relu", tensor("x"), out="x")], "defines value x, which exists already"),
        ([call("aten.cat", {"as_tensors": [{"name": "x"}, {"name": "q"}]})], "uses value q"),
        ([call("aten.view", {"as_sym_int": {"as_name": "n"}})], "uses value n"),
        ([call("aten.relu", tensor("x")), call("aten.relu", tensor("x"))], "defines value y"),
        (
            [call("aten.split", tensor("x"), out=[{"as_tensors": [{"name": "y"}, {"name": "y"}]}])],
            "defines value y",
        ),
        ([call("aten.relu", {})], "of a kind that this graphflops does not know"),
        ([call("aten.relu", {"as_new_kind": 1})], "of a kind that this graphflops does not know"),
        ([call("aten.relu", {"as_scalar_type": 77})], "element type number 77"),
        ([call("aten.relu", {"as_float": "1e5"})], "1e5 is not a number"),
        ([call("aten.relu", ("a", {"as_int": 1}), ("a", {"as_int": 2}))], "two operands of one name"),
    ],
)
def test_references(tmp_path: Path, nodes: list[Any], says: str) -> None:
    refused(
        save(tmp_path / "a.pt2", program(nodes)),
        f"node #{len(nodes) - 1 if 'defines' in says else 0} (aten.",
        says,
    )


def test_a_reference_out_of_a_nested_graph(tmp_path: Path) -> None:
    inner = graph(
        [tensor("a")], [call("aten.relu", tensor("x"), out="b")], [tensor("b")], {"a": meta(2), "b": meta(2)}
    )
    nodes = [
        call("higher_order.cond", {"as_graph": {"name": "body", "graph": inner}}, tensor("x"), name="cond")
    ]
    refused(
        save(tmp_path / "a.pt2", program(nodes)),
        "node cond (higher_order.cond): graph body: node #0",
        "uses value x",
    )


@pytest.mark.parametrize("is_list", [True, False])
def test_a_list_of_a_nested_graph_that_returns_one_tensor(tmp_path: Path, is_list: bool) -> None:
    """torch 2.13 runs such a file, and hands on the first row in the place of all of the tensor."""
    types, flag = {"a": meta(2), "b": meta(2)}, {"is_single_tensor_return": True}
    inner = graph([tensor("a")], [call("aten.relu", tensor("a"), out="b")], [tensor("b")], types, **flag)
    operands = {"as_bool": False}, {"as_graph": {"name": "body", "graph": inner}}, tensor("x")
    target = "torch.ops.higher_order.wrap_with_set_grad_enabled"
    path = save(
        tmp_path / "a.pt2", program([call(target, *operands, is_hop_single_tensor_return=not is_list)])
    )
    if is_list:
        refused(path, "(higher_order.wrap_with_set_grad_enabled): returns a list, its graph one tensor")
    else:
        assert len(load(path).nodes) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outputs": [{"user_output": {"arg": tensor("q")}}]}, "uses value q"),
        ({"outputs": [{"loss_output": {"arg": {"name": "q"}}}]}, "uses value q"),
        ({"outputs": [{"new_role": {}}]}, "an output of the program has a role"),
        ({"inputs": [{"new_role": {}}]}, "an input of the program has a role"),
        ({"inputs": [{"user_input": {"arg": tensor("x")}}] * 2}, "defines value x"),
        ({"inputs": [{"user_input": {"arg": {"as_int": 1}}}]}, "has no name of its own"),
        (
            {"inputs": [{"user_input": {"arg": {"as_tensors": [{"name": "x"}, {"name": "z"}]}}}]},
            "has no name of its own",
        ),
        ({"values": {"y": meta(2)}}, "input x has no recorded type"),
        ({"graph": {"outputs": [tensor("x")]}}, "output #0 of the program is x, in its signature y"),
        ({"graph": {"outputs": []}}, "output #0 of the program is missing, in its signature y"),
        ({"graph": {"inputs": [tensor("y")]}}, "input #0 of the program is y, in its signature x"),
        ({"graph": {"inputs": [{"as_int": 3}]}}, "input #0 of the program is a number, in its signature x"),
    ],
)
def test_signature(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    refused(save(tmp_path / "a.pt2", program(**fields)), says)


# Names


@pytest.mark.parametrize(
    "name", ["\x1b[31mred\x1b[0m", "<script>alert(1)</script>", "a\nb\rc", "\u202egnp", "\0", "x" * 100_000]
)
def test_names(tmp_path: Path, name: str) -> None:
    """A name is kept as it is in the graph, where renderers escape it, and made harmless in a message."""
    nodes = [call(f"my.{name}", tensor(name), name=name, metadata={"nn_module_stack": f"k,{name},{name}"})]
    values = {name: meta(2), "y": meta(2)}
    inputs = [{"user_input": {"arg": tensor(name)}}]
    found = load(save(tmp_path / "a.pt2", program(nodes, values, inputs)))
    assert found.inputs[0].name == name
    assert found.nodes[0].op == f"my.{name}"
    nodes = [call(f"my.{name}", tensor(f"q{name}"), name=name)]
    refused(save(tmp_path / "b.pt2", program(nodes, values, inputs)), "which nothing before it defines")


def test_name_of_the_file(tmp_path: Path) -> None:
    refused(tmp_path / "\x1b[31m.pt2", "\\x1b[31m.pt2")


def test_a_node_named_like_an_input(tmp_path: Path) -> None:
    found = load(save(tmp_path / "a.pt2", program([call("my.op", tensor("x"), name="x")])))
    assert found.nodes[0].name == "x_1"
    assert len(found.nx) == 2


# Pickles


class Harm:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    target = tmp_path / "harm"
    harmful = pickle.dumps(Harm(target))
    (tmp_path / "a.pt2").write_bytes(harmful)
    refused(tmp_path / "a.pt2", "pickle")
    names = [
        "m/data/weights/model.pt",
        "m/data/constants/model.pt",
        "m/data/sample_inputs/model.pt",
        "m/data.pkl",
    ]
    assert load(save(tmp_path / "b.pt2", program(), extra=dict.fromkeys(names, harmful)))
    (tmp_path / "b.pt2").unlink()
    with zipfile.ZipFile(tmp_path / "c.pt2", "w") as file:
        file.writestr("m/data.pkl", harmful)
    refused(tmp_path / "c.pt2", "checkpoint")
    assert not target.exists()
    pickle.loads(harmful)
    assert target.exists()


# At random


def mutations(value: Any, rng: random.Random) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from mutations(item, rng)


def test_random_changes_of_the_json(tmp_path: Path) -> None:
    """Whatever stands where: a graph or one line."""
    rng = random.Random(0)
    with zipfile.ZipFile(DATA / "lm_core_aten-torch2.6.0.pt2") as file:
        text = file.read("serialized_exported_program.json")
    junk = [
        None,
        0,
        -1,
        2**70,
        1.5,
        "",
        "s0",
        "\x1b",
        True,
        [],
        {},
        [1],
        {"as_int": -3},
        {"as_tensor": {"name": "x"}},
    ]
    for _ in range(25):
        content = json.loads(text)
        places = list(mutations(content, rng))
        for _ in range(3):
            container, key = rng.choice(places)
            try:
                container[key] = rng.choice(junk)
            except IndexError:
                continue
        path = save(tmp_path / "a.pt2", content, member="serialized_exported_program.json")
        read_or_refused(path)


def test_random_changes_of_the_bytes(tmp_path: Path) -> None:
    rng = random.Random(1)
    whole = save(
        tmp_path / "whole.pt2",
        program(),
        extra={"m/data/weights/model_weights_config.json": b'{"config": {}}'},
    )
    content = whole.read_bytes()
    path = tmp_path / "a.pt2"
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        read_or_refused(path)


@pytest.mark.parametrize(
    ("strides", "says"),
    [
        ((-8, 1), "strides [-8, 1]"),
        ((8,), "strides [8]"),
        ((8, 1, 1), "strides [8, 1, 1]"),
        ((), "strides []"),
    ],
)
def test_strides_that_no_tensor_has(tmp_path: Path, strides: tuple[int, ...], says: str) -> None:
    values = {"x": {**meta(8, 8), "strides": [{"as_int": stride} for stride in strides]}, "y": meta(8, 8)}
    refused(save(tmp_path / "a.pt2", program(None, values)), f"value x has {says}, which no tensor of")


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (
            {"strides": [{"as_int": -8}, {"as_int": 1}]},
            "value y has strides [-8, 1], which no tensor of float32[8, 8] has",
        ),
        (
            {"requires_grad": True, "dtype": 5},
            "value y requires a gradient, which no tensor of int64[8, 8] has",
        ),
    ],
)
def test_what_no_result_has(tmp_path: Path, recorded: dict[str, Any], says: str) -> None:
    values = {"x": meta(8, 8), "y": meta(8, 8) | recorded}
    refused(save(tmp_path / "a.pt2", program(None, values)), says)


@pytest.mark.parametrize(
    ("kind", "field", "role"),
    [
        ("buffer_mutation", "buffer_name", "mutation"),
        ("user_input_mutation", "user_input_name", "mutation"),
        ("gradient_to_parameter", "parameter_name", "gradient"),
    ],
)
def test_an_output_that_belongs_to_no_input(tmp_path: Path, kind: str, field: str, role: str) -> None:
    content = program(outputs=[{kind: {"arg": {"name": "y"}, field: "a.bias"}}])
    refused(save(tmp_path / "a.pt2", content), f"has a {role} of a.bias, which is no input of the program")


@pytest.mark.parametrize(("enabled", "codes"), [(True, set()), (False, {"GF103"})])
def test_element_types_where_autocasting_is_off(tmp_path: Path, enabled: bool, codes: set[str]) -> None:
    inner = graph(
        [tensor("a")],
        [call("torch.ops.aten.mm.default", tensor("a"), tensor("a"), out="b")],
        [tensor("b")],
        {"a": meta(8, 8), "b": meta(8, 8, dtype=13)},
    )
    region = {"as_graph": {"name": "f", "graph": inner}}
    given = ({"as_string": "cpu"}, {"as_none": True}, {"as_bool": enabled}, {"as_none": True}, region)
    node = call(
        "torch.ops.higher_order.wrap_with_autocast",
        *given,
        tensor("x"),
        out=[{"as_tensors": [{"name": "y"}]}],
    )
    values = {"x": meta(8, 8), "y": meta(8, 8, dtype=13)}
    report = analyze(save(tmp_path / "a.pt2", program([node], values)))
    assert {one.code for one in contradictions(report)} == codes


def test_the_strides_of_an_example_make_no_input_small(tmp_path: Path) -> None:
    """64 x 64 elements of one: a caller may pass 4,096, which relu reads."""
    repeated = {**meta(64, 64), "strides": [{"as_int": 0}, {"as_int": 0}]}
    report = analyze(save(tmp_path / "a.pt2", program(None, {"x": repeated, "y": meta(64, 64)})))
    assert report.total().read_bytes == 4 * 64 * 64


WRAP, COND = "torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.cond"


def relu_of(*sizes: int, made: tuple[int, ...] = (2,), **fields: Any) -> dict[str, Any]:
    """A nested graph whose operand and result are recorded with these sizes."""
    values = {"a": meta(*sizes), "b": meta(*made)}
    nodes = [call("torch.ops.aten.relu.default", tensor("a"), out="b")]
    inner = graph([tensor("a")], nodes, [tensor("b")], values, **fields)
    return {"as_graph": {"name": "body", "graph": inner}}


@pytest.mark.parametrize(
    ("inner", "codes"),
    [
        (relu_of(2), set()),
        (relu_of(3), {"GF102"}),
        (relu_of(2, 1), {"GF102"}),
        (relu_of(2, made=(3,)), {"GF102"}),
    ],
)
def test_types_of_the_operands_of_a_nested_graph(
    tmp_path: Path, inner: dict[str, Any], codes: set[str]
) -> None:
    node = call(WRAP, {"as_bool": False}, inner, tensor("x"), out=[{"as_tensors": [{"name": "y"}]}])
    content = program([node], {"x": meta(2), "y": meta(2)})
    assert {one.code for one in contradictions(analyze(save(tmp_path / "a.pt2", content)))} == codes


def test_an_element_type_of_an_operand_of_a_nested_graph(tmp_path: Path) -> None:
    inner = relu_of(2)
    inner["as_graph"]["graph"]["tensor_values"]["a"]["dtype"] = 8
    node = call(WRAP, {"as_bool": False}, inner, tensor("x"), out=[{"as_tensors": [{"name": "y"}]}])
    content = program([node], {"x": meta(2), "y": meta(2)})
    (said,) = contradictions(analyze(save(tmp_path / "a.pt2", content)))
    assert (said.code, said.message) == (
        "GF103",
        "a of graph body is given float32[2], the file records float64[2]",
    )


def branches(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    second["as_graph"]["name"] = "other"
    operands = {"as_tensors": [{"name": "x"}]}
    values = {"x": meta(2), "y": meta(2), "c": meta(dtype=12)}
    chosen = call("torch.ops.aten.any.default", tensor("x"), out="c")
    node = call(COND, tensor("c"), first, second, operands, out=[{"as_tensors": [{"name": "y"}]}])
    return program([chosen, node], values)


def test_what_contradicts_a_branch_that_then_cannot_run_is_said(tmp_path: Path) -> None:
    """torch traces both branches, so that each runs."""
    second = relu_of(2)
    inner = second["as_graph"]["graph"]
    inner["nodes"].append(call("torch.ops.aten.add.Tensor", tensor("a"), tensor("b"), out="c"))
    inner["tensor_values"] |= {"b": meta(7), "c": meta(2)}
    inner["outputs"] = [tensor("c")]
    codes = {
        one.code for one in contradictions(analyze(save(tmp_path / "a.pt2", branches(relu_of(2), second))))
    }
    assert "GF102" in codes


def test_branches_of_which_one_returns_a_list(tmp_path: Path) -> None:
    content = branches(relu_of(2), relu_of(2, is_single_tensor_return=True))
    content["graph_module"]["graph"]["nodes"][1]["is_hop_single_tensor_return"] = True
    refused(save(tmp_path / "a.pt2", content), "returns a list, its graph one tensor")


def test_a_program_returns_a_list(tmp_path: Path) -> None:
    content = program(graph={"is_single_tensor_return": True})
    refused(save(tmp_path / "a.pt2", content), "says that it returns one tensor and no list")


@pytest.mark.parametrize(
    ("sizes", "fits"), [((4, 8), True), ((1, 8), True), ((8,), True), ((2, 8), False), ((2, 4, 8), False)]
)
def test_what_is_written_over_an_input_has_its_sizes(
    tmp_path: Path, sizes: tuple[int, ...], fits: bool
) -> None:
    inputs = [
        {"buffer": {"arg": {"name": "w"}, "buffer_name": "w", "persistent": True}},
        {"user_input": {"arg": tensor("x")}},
    ]
    outputs = [{"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "w"}}]
    values = {"w": meta(4, 8), "x": meta(*sizes), "y": meta(*sizes)}
    report = analyze(save(tmp_path / "a.pt2", program(None, values, inputs, outputs)))
    found = [one.message for one in contradictions(report)]
    assert found == ([] if fits else [f"w of (4, 8) cannot be written with {sizes}"])
