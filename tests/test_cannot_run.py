"""ONNX calls that provably cannot run: the report is printed, then a line for each of them, and the exit code is 1."""

from __future__ import annotations

import json

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from graphflops import analyze, cli
from tests.exporters.onnx_files import model, node, value


def stored(name: str, dims: list[int], numbers: list[int] | None = None) -> TensorProto:
    """Integers that the file holds, or a tensor of which only the shape matters."""
    if numbers is not None:
        return helper.make_tensor(name, TensorProto.INT64, dims, numbers)
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


IMAGE, A, B = value("x", [1, 8, 10, 10]), value("a", [4, 8]), value("b", [7, 5])
WEIGHT, LARGE = stored("w", [4, 8, 3, 3]), stored("w", [4, 8, 13, 13])


@pytest.mark.parametrize(
    ("call", "inputs", "weights", "said"),
    [
        (node("MatMul", ["a", "b"], ["y"]), [A, B], [], "inner dimensions differ: 8 and 7"),
        (node("Conv", ["x", "w"], ["y"], group=0), [IMAGE], [WEIGHT], "0 groups"),
        (node("Conv", ["x", "w"], ["y"], strides=[0, 0]), [IMAGE], [WEIGHT], "strides (0, 0)"),
        (node("Conv", ["x", "w"], ["y"]), [IMAGE], [LARGE], "a window of 13 is larger than its input of 10"),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[20, 20]), [IMAGE], [], "larger than its input of 10"),
        (node("Conv", ["x"], ["y"]), [IMAGE], [], "called without operand 2"),
        (node("Conv", ["x", "w"], ["y"], group="two"), [IMAGE], [WEIGHT], "must be an integer, not 'two'"),
        (
            node("Einsum", ["a", "b"], ["y"], equation="i..j,jk->ik"),
            [A, B],
            [],
            "'i..j,jk->ik' is not an einsum equation",
        ),
        (node("Einsum", ["a", "b"], ["y"], equation="ij,jk->ik"), [A, B], [], "sizes 8 and 7"),
        (node("Einsum", ["a", "b"], ["y"]), [A, B], [], "called without its attribute equation"),
        (
            node("Reshape", ["a", "t"], ["y"]),
            [A],
            [stored("t", [1], [7])],
            "32 elements, which do not fit [7]",
        ),
        (node("Reshape", ["a", "t"], ["y"]), [A], [stored("t", [2], [-1, -1])], "only one size can be -1"),
        (node("Concat", ["a", "b"], ["y"], axis=0), [A, B], [], "sizes 8 and 5 differ"),
        (node("Transpose", ["a"], ["y"], perm=[0, 0]), [A], [], "names an axis twice"),
    ],
)
def test_each_call_is_an_error_behind_the_report(call, inputs, weights, said, tmp_path):
    relu = node("Relu", ["c"], ["z"], name="before")
    call.name = "broken"
    outputs = [value("z", [3]), helper.make_empty_tensor_value_info("y")]
    path = tmp_path / "damaged.onnx"
    onnx.save(model([relu, call], [value("c", [3]), *inputs], outputs, weights), path)
    done = CliRunner().invoke(cli.main, ["analyze", str(path), "--format", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["totals"]["vector_flops"] == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("graphflops: error: broken cannot run: ")
    assert said in line
    assert "Error(" not in line


def test_what_only_data_decides_is_no_error(tmp_path):
    target = value("t", ["R"], TensorProto.INT64)
    path = tmp_path / "open.onnx"
    output = helper.make_empty_tensor_value_info("y")
    onnx.save(model([node("Reshape", ["a", "t"], ["y"])], [A, target], [output]), path)
    assert CliRunner().invoke(cli.main, ["analyze", str(path)]).exit_code == 0


def test_a_reshape_to_sizes_in_another_file_has_the_declared_ones(tmp_path):
    target = stored("t", [2])
    target.data_type = TensorProto.INT64
    path = tmp_path / "outside.onnx"
    nodes = [node("Reshape", ["a", "t"], ["r"]), node("MatMul", ["r", "b"], ["y"])]
    inputs, outputs = [A, value("b", [2, 5])], [helper.make_empty_tensor_value_info("y")]
    proto = model(nodes, inputs, outputs, [target])
    proto.graph.value_info.append(value("r", [16, 2]))
    onnx.save(proto, path)
    report = analyze(path)
    assert report.total().matrix_flops == 2 * 16 * 2 * 5
    assert [d.message for d in report.diagnostics if d.code == "GF110"] == [
        "the types of r are known only from what the file declares"
    ]


def test_a_loop_of_very_many_turns_multiplies(tmp_path):
    body = helper.make_graph(
        [node("Identity", ["go"], ["still"]), node("MatMul", ["state", "m"], ["next"])],
        "body",
        [value("turn", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", [4, 4])],
        [value("still", [], TensorProto.BOOL), value("next", [4, 4])],
    )
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [10**18])
    loop = node("Loop", ["turns", "", "q"], ["y"], body=body)
    path = tmp_path / "loop.onnx"
    onnx.save(model([loop], [value("q", [4, 4]), value("m", [4, 4])], [value("y", [4, 4])], [turns]), path)
    assert analyze(path).total().matrix_flops == 10**18 * 2 * 4 * 4 * 4
