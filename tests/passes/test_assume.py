"""The values assumed for open sizes without an example, by the table in docs/report.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.analysis import analyze
from graphflops.dims import floor_div, symbol
from graphflops.errors import OptionError
from graphflops.exporters import load
from graphflops.graph import Graph, Input, Symbol
from graphflops.loading import analyze as analyze_any
from graphflops.passes.bind import assumed_sizes
from graphflops.report import SymbolInfo
from graphflops.tensor import FLOAT32, TensorType

MODEL = "samples/gqa_transformer.onnx"


def program(*shapes, **ranges):
    """A graph of inputs `x0`, `x1` ... of these shapes, texts being symbols; ranges by symbol."""
    graph = load("samples/convnet.onnx")
    sized = [tuple(symbol(size) if isinstance(size, str) else size for size in shape) for shape in shapes]
    inputs = tuple(Input(f"x{number}", "user") for number in range(len(shapes)))
    where: dict[str, list[str]] = {}
    for entry, shape in zip(inputs, sized, strict=True):
        for axis, size in enumerate(shape):
            for name in () if isinstance(size, int) else sorted(size.symbols):
                where.setdefault(name, []).append(f"{entry.name}[{axis}]")
    symbols = {
        name: Symbol(name, *ranges.get(name, (None, None)), where=tuple(places))
        for name, places in where.items()
    }
    types = {entry.name: TensorType(shape, FLOAT32) for entry, shape in zip(inputs, sized, strict=True)}
    return replace(graph, inputs=inputs, types=types, symbols=symbols)


def assumed(graph: Graph) -> dict[str, int]:
    return assumed_sizes(graph, ())


@pytest.mark.parametrize(
    "shape, expected",
    [
        (("batch", "seq"), {"batch": 1, "seq": 64}),
        (("s72", "s70"), {"s72": 1, "s70": 64}),  # names of the exporter tell nothing
        (("seq", "batch", 32), {"seq": 64, "batch": 1}),  # sequence first, as the names say
        (("tokens", 32), {"tokens": 64}),
        (("s0",), {"s0": 64}),  # one axis is a list, not a batch
        (("s0", 3, "s1", "s2"), {"s0": 1, "s1": 224, "s2": 224}),
        (("s0", "s1", "s2", 3), {"s0": 1, "s1": 224, "s2": 224}),  # channels last
        ((3, "s1", "s2"), {"s1": 224, "s2": 224}),
        (("s0", "s1", 3), {"s0": 1, "s1": 64}),  # points in space
        (("n", 1, "height", "width"), {"n": 1, "height": 224, "width": 224}),
        (("n", "channels", "h", "w"), {"n": 1, "channels": 64, "h": 224, "w": 224}),
        (("n", "h", "w", "c"), {"n": 1, "h": 224, "w": 224, "c": 64}),
        (("b", 3, 48, "width"), {"b": 1, "width": 224}),  # lines of text of one height
        (("b", 4, "height", "width"), {"b": 1, "height": 64, "width": 64}),  # a latent is no image
        (("b", 1, "q", "kv"), {"b": 1, "q": 64, "kv": 64}),  # a mask
        (("b", 3, "past", 64), {"b": 1, "past": 64}),  # keys of three heads
    ],
)
def test_the_table(shape, expected):
    assert assumed(program(shape)) == expected


def test_values_keep_to_their_range():
    graph = program(("batch", "seq", "frames"), batch=(2, 8), seq=(None, 48), frames=(128, None))
    assert assumed(graph) == {"batch": 2, "seq": 48, "frames": 128}


def test_an_axis_of_an_expression_is_as_long_as_assumed():
    quarter, past = symbol("h4"), symbol("past")
    graph = program((1, 3, 4 * quarter, 4 * symbol("w4")), (1, past + 8))
    assert assumed(graph) == {"h4": 56, "w4": 56, "past": 56}  # 224 / 4 and 64 - 8


def test_a_symbol_that_an_axis_does_not_grow_with_is_taken_as_it_is():
    assert assumed(program((1, floor_div(symbol("a"), 2))))["a"] == 64


def test_what_only_data_can_tell_is_at_its_upper_bound_or_open():
    graph = program(("batch", 4))
    open_ = {"u0": Symbol("u0", 0, 300), "u1": Symbol("u1", 0, None), "u2": Symbol("u2", 0, 2**62)}
    assert assumed(replace(graph, symbols={**graph.symbols, **open_})) == {"batch": 1, "u0": 300}


def test_totals_are_numbers_and_formulas_stay():
    report, open_ = analyze(MODEL), analyze(MODEL, assume=False)
    assert {name: (info.value, info.given_by) for name, info in report.symbols.items()} == {
        "batch": (1, "assumption"),
        "sequence": (64, "assumption"),
    }
    assert report.total() == open_.total()
    assert report.value(report.total().matrix_flops) == 409_600 * 64 + 1_024 * 64 * 64
    assert open_.value(open_.total().matrix_flops) is None


def test_what_is_given_is_not_assumed():
    report = analyze(MODEL, dims={"sequence": 10})
    assert report.symbols["sequence"] == SymbolInfo(10, "user", 1, 4096, ("ids[1]",))
    assert report.assumed == {"batch": 1}


def test_examples_of_the_export_win():
    assert not analyze("samples/gqa_transformer.pt2").assumed


def test_a_saved_report_is_as_it_was():
    with pytest.raises(OptionError, match="saved report"):
        analyze_any(analyze(MODEL), assume=False)
