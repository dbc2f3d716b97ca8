"""Nested graphs and functions of ONNX files."""

from __future__ import annotations

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.graph import Graph, Ref
from tests.exporters.onnx_files import ops, roles

IF = """g (bool c, float[N, 4] x) => (float[N, 4] y)
    <float[4, 4] w = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
    {
      z = Relu(x)
      y = If(c) <
        then_branch = then () => (float[N, 4] r) { r = MatMul(z, w) },
        else_branch = other () => (float[N, 4] z1) <float one = {1}> { z1 = Add(z, one) }
      >
    }"""


def test_nested_graphs_see_the_values_around_them(read):
    graph = read(IF)
    branches = dict(graph.nodes[1].kwargs)
    then, other = branches["then_branch"], branches["else_branch"]
    assert isinstance(then, Graph)
    assert then.captures == ("z", "w")
    assert other.captures == ("z", "one")
    assert roles(graph)["one"] == "constant"
    assert {name for _, name in graph.nodes[1].uses()} == {"c", "z", "w", "one"}
    report = analyze(graph)
    assert report.total().matrix_flops == 2 * 4 * 4 * symbol("N")
    assert report.coverage.unknown == 0
    assert report.parameters == 16


def test_a_name_inside_may_shadow_one_around(read):
    graph = read(
        """g (bool c, float[4] x) => (float[4] y) {
          a = Relu(x)
          b = If(c) <then_branch = t () => (float[4] a) { a = Neg(x) }, else_branch = e () => (float[4] a) { a = Abs(x) }>
          y = Add(a, b)
        }"""
    )
    branches = [value for _, value in graph.nodes[1].kwargs]
    assert [branch.nodes[0].outputs for branch in branches] == [("a_1",), ("a_2",)]
    assert graph.nodes[2].args == (Ref("a"), Ref("b"))


def test_a_value_reaches_through_two_nested_graphs(read):
    graph = read(
        """g (bool c, float[4] x) => (float[4] y) {
          y = If(c) <
            then_branch = t () => (float[4] a) {
              a = If(c) <
                then_branch = tt () => (float[4] b) { b = Neg(x) }, else_branch = te () => (float[4] d) { d = Abs(x) }
              >
            },
            else_branch = e () => (float[4] f) { f = Identity(x) }
          >
        }"""
    )
    outer = dict(graph.nodes[0].kwargs)["then_branch"]
    inner = dict(outer.nodes[0].kwargs)["then_branch"]
    assert set(outer.captures) == {"c", "x"}
    assert inner.captures == ("x",)


def test_regions_with_other_values_around_are_other_calls(read):
    graph = read(
        """g (bool c, float[2, 2] a, float[3, 3] b) => (float[2, 2] y, float[3, 3] q) {
          y = If(c) <
            then_branch = t () => (float[2, 2] r) { z = Relu(a) r = MatMul(z, z) },
            else_branch = e () => (float[2, 2] s) { s = Abs(a) }
          >
          q = If(c) <
            then_branch = t () => (float[3, 3] r) { z = Relu(b) r = MatMul(z, z) },
            else_branch = e () => (float[3, 3] s) { s = Abs(b) }
          >
        }"""
    )
    assert analyze(graph).total().matrix_flops == 2 * 2 * 2 * 2 + 2 * 3 * 3 * 3


def test_one_body_called_with_different_values_around(read):
    """A function that holds a branch is written out twice; what the branch captures differs."""
    graph = read(
        """g (bool c, float[2, 2] a, float[3, 3] b) => (float[2, 2] y, float[3, 3] q) { y = local.F(c, a) q = local.F(c, b) }
        <domain: "local", opset_import: ["": 21]>
        F (c, v) => (w) {
          w = If(c) <then_branch = t () => (r) { r = MatMul(v, v) }, else_branch = e () => (s) { s = Abs(v) }>
        }"""
    )
    assert analyze(graph).total().matrix_flops == 2 * 2 * 2 * 2 + 2 * 3 * 3 * 3


# Functions.


def test_functions_are_written_out_with_their_attributes(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.Outer<axis = 0>(x) }
        <domain: "local", opset_import: ["": 21, "local": 1]>
        Outer <axis> (a) => (b) { t = local.Inner<axis = @axis>(a) b = Relu(t) }
        <domain: "local", opset_import: ["": 21]>
        Inner <axis, keep: int = 7> (a) => (b) { b = Softmax<axis = @axis>(a) }"""
    )
    assert ops(graph) == ["onnx.Softmax.13", "onnx.Relu.14"]
    assert graph.nodes[0].kwargs == (("axis", 0),)
    assert graph.nodes[0].name == "Outer/Inner/Softmax"
    assert graph.nodes[1].outputs == ("y",)


def test_a_function_follows_its_own_opset(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.F(x) }
        <domain: "local", opset_import: ["": 11]>
        F (a) => (b) { b = Softmax(a) }"""
    )
    assert ops(graph) == ["onnx.Softmax.11"]


def test_defaults_of_attributes_and_operands_left_out(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = local.F(x) }
        <domain: "local", opset_import: ["": 21]>
        F <axis: int = 1> (a, low) => (b) { t = Clip(a, low) b = Softmax<axis = @axis>(t) }"""
    )
    assert graph.nodes[0].args == (Ref("x"),)
    assert graph.nodes[1].kwargs == (("axis", 1),)


def test_a_function_of_the_file_runs_in_place_of_an_operator_of_its_name(read):
    graph = read(
        """g (float[2, 6] x) => (float[2, 6] y) { y = com.microsoft.Gelu(x) }
        <domain: "com.microsoft", opset_import: ["": 21]>
        Gelu (a) => (b) { b = Relu(a) }"""
    )
    assert ops(graph) == ["onnx.Relu.14"]
