"""The names under which people read sizes: given ones, those of the file, else input axes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from graphflops import cli, compare
from graphflops.analysis import analyze
from graphflops.derived.resize import sweep
from graphflops.dims import floor_div, symbol
from graphflops.errors import ModelError
from graphflops.exporters import load
from graphflops.loading import analyze as analyze_any
from graphflops.passes.sizes import labels_of
from graphflops.render import render
from graphflops.render.text import formula
from graphflops.report import Named, Report, SymbolInfo
from graphflops.report.size_names import called
from graphflops.tensor import FLOAT32, TensorType
from tests.passes.test_assume import program

PT2, ONNX = "samples/gqa_transformer.pt2", "samples/gqa_transformer.onnx"
FLOPS = 409_600 * 64 + 1_024 * 64 * 64  # at 1 x 64 tokens


def run(*args: str) -> str:
    result = CliRunner().invoke(cli.main, args, prog_name="graphflops")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_names_of_the_file_are_kept():
    assert analyze(ONNX).names == {"batch": "batch", "sequence": "sequence"}


def test_names_of_the_exporter_give_way_to_axes():
    report = analyze(PT2)
    assert report.names == {"s23": "ids[0]", "s27": "ids[1]"}
    assert formula(symbol("s23") * symbol("s27") ** 2, report.names) == "ids[0]·ids[1]²"


def test_a_given_name_counts_everywhere():
    report = analyze(PT2, names={"batch": "ids[0]", "seq": "s27"}, dims={"batch": 1})
    assert report.names == {"s23": "batch", "s27": "seq"}
    assert report.symbols["s23"].value == 1
    (point,) = sweep(report, {"seq": [64]})
    assert point.cost["matrix_flops"] == FLOPS
    again = Report.from_json(report.to_json())
    assert again.names == report.names
    assert analyze_any(again, dims={"seq": 64}).total().matrix_flops == FLOPS
    assert "409.6 k·seq + 1,024·seq²" in run("analyze", PT2, "--name", "seq=ids[1]", "--dim", "ids[0]=1")


def test_an_axis_that_is_an_expression_is_said_to_be_one():
    size = symbol("s4")
    infos = {"s4": SymbolInfo(56, "assumption", where=("x[2]",))}
    inputs = (Named("x", TensorType((1, 3, 4 * size), FLOAT32)),)
    report = replace(analyze(ONNX), symbols=infos, inputs=inputs)
    assert report.names == {"s4": "s4"}
    assert report.sizes == {"x[2]": 224}  # 4 * 56
    assert "x[2] = 224 (assumed)  4·s4 with s4 = 56" in render(report, "table")
    with pytest.raises(ModelError, match=r"--name sum=x0\[2\]: this is a \+ b; name a or b instead"):
        labels_of(program((1, 3, symbol("a") + symbol("b"))), {"sum": "x0[2]"})


def test_long_names_of_inputs_are_shortened():
    name = "past_key_values_of_layer_7_the_key"
    infos = {"s0": SymbolInfo(None, None, where=(f"{name}[2]",))}
    assert replace(analyze(ONNX), symbols=infos).names == {"s0": "past_key_val…r_7_the_key[2]"}


def test_a_name_that_no_size_has():
    graph = load(ONNX)
    with pytest.raises(ModelError, match=r"--name b=x\[0\]: no such size; the program has batch, sequence"):
        labels_of(graph, {"b": "x[0]"})
    with pytest.raises(ModelError, match="another size of that name"):
        labels_of(graph, {"sequence": "ids[0]"})
    assert labels_of(program((2, "seq")), {"batch": "x0[0]"}) == {}  # the axis has a fixed size


def test_both_programs_of_a_comparison_take_the_name():
    found = compare(PT2, ONNX, names={"rows": "ids[0]"}, dims={"rows": 3})
    assert {(size.name, size.value) for size in found.sizes} == {("rows", 3), ("sequence", 16)}


def test_formulas_with_names_that_are_no_identifiers():
    assert called(str(floor_div(symbol("ids[0]") + 1, 2)), {}) == "(ids[0] + 1)//2"
