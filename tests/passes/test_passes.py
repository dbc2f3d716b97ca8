"""The passes by themselves: what each takes, gives and leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analysis
from graphflops.analysis import analyze
from graphflops.exporters import load
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes import price as price_module, report as report_module
from graphflops.passes.attention import facts_of, find_attentions
from graphflops.passes.bind import bind
from graphflops.passes.memory import memory_use
from graphflops.passes.price import price
from graphflops.passes.report import report
from graphflops.passes.sizes import with_sizes
from graphflops.report import Report
from tests.support import t

PT2, ONNX = "samples/gqa_transformer.pt2", "samples/gqa_transformer.onnx"


def priced(path):
    graph = load(path)
    return price(graph, bind(graph, {}, {}), facts_of)


@pytest.mark.parametrize("names", [{}, {"batch": "ids[0]"}], ids=["own names", "a label"])
@pytest.mark.parametrize("device", [None, "h200"])
def test_a_report_is_built_once(device, names, monkeypatch):
    built = []

    def kept(*args, **fields):
        built.append(Report(*args, **fields))
        return built[-1]

    monkeypatch.setattr(report_module, "Report", kept)
    assert analyze(PT2, device=device, names=names) is built[0]
    assert len(built) == 1


@pytest.fixture
def runs(monkeypatch):
    """Whether each pricing of a test priced a training step."""
    found = []

    def counted(*args, training=None, **kwargs):
        found.append(training is not None)
        return price(*args, training=training, **kwargs)

    monkeypatch.setattr(analysis, "price", counted)
    return found


def test_the_passes_one_by_one_give_the_report_of_an_analysis():
    program = with_sizes(find_attentions(priced(PT2), {}), {})
    assert report(program, memory_use(program)).to_json() == analyze(PT2).to_json()


def test_a_program_is_priced_once(runs):
    analyze(PT2, dims={"s27": 64}, training=True)
    assert runs == [True]


def test_a_program_whose_types_are_derived_is_priced_once_where_all_sizes_are_given(runs):
    analyze(ONNX, dims={"batch": 1, "sequence": 8})
    assert runs == [False]


def test_it_is_priced_twice_where_only_some_sizes_are_given(runs):
    """First without the sizes given, to find the sizes that must be equal."""
    analyze(ONNX, dims={"batch": 1}, training=True)
    assert runs == [False, True]


def test_the_attention_pass_leaves_the_priced_program_as_it_was():
    """The masks of an ONNX program are in no operator: only the pass finds what they hide, in each of the four blocks."""
    program = priced(ONNX)
    rows, cost = program.main.rows, program.main.cost
    found = find_attentions(program, {})
    assert len(found.attentions) == 4
    assert (cost.masked_flops, found.main.cost.masked_flops == 0) == (0, False)
    assert (program.main.rows, program.main.cost, program.attentions) == (rows, cost, ())


def test_a_program_without_attention_passes_the_attention_pass_unchanged():
    program = priced("samples/convnet.pt2")
    assert find_attentions(program, {}) is program


def test_the_loop_knows_no_operator_by_name():
    text = Path(price_module.__file__).read_text(encoding="utf-8")
    assert "aten." not in text
    assert "onnx." not in text
    assert "flex" not in text


@pytest.mark.parametrize(
    ("x", "statistic", "is_named"),
    [
        ("bfloat16", "bfloat16", False),  # as on a CPU
        ("bfloat16", "float32", False),  # as on a GPU
        ("float16", "float32", False),
        ("bfloat16", "float16", True),
        ("float32", "bfloat16", True),
        ("float32", "float64", True),
    ],
)
def test_statistics_of_norms_are_those_of_a_device(x: str, statistic: str, is_named: bool) -> None:
    norm = Node(
        "y", "aten.native_layer_norm.default", (Ref("x"), (8,), None, None, 1e-5), outputs=("y", "m", "r")
    )
    read = Node("z", "aten.relu.default", (Ref("m"),), outputs=("z",))
    types = {"x": t(4, 8, dtype=x), "y": t(4, 8, dtype=x)}
    types |= dict.fromkeys(("m", "r", "z"), t(4, 1, dtype=statistic))
    graph = Graph((norm, read), types, (Input("x", "user"),), (Output(Ref("y")), Output(Ref("z"))))
    codes = {found.code for found in analyze(graph).diagnostics}
    assert ("GF103" in codes) == is_named
