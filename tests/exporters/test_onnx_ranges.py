"""Ranges of sizes: stated under the exporter's names, wanted under the user's."""

from __future__ import annotations

import time

import pytest

from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin
from tests.exporters.onnx_files import model, value

KEY = "pkg.torch.export.ExportedProgram.range_constraints"


def ranges(text, *shapes, graph=True):
    """By size: its range in a program whose inputs have these shapes, and that states these ranges."""
    inputs = [value(f"x{place}", shape.split(", ")) for place, shape in enumerate(shapes)]
    program = model([], inputs, [])
    (program.graph if graph else program).metadata_props.add(key=KEY, value=text)
    symbols = Program(program).graph(Origin()).symbols
    return {name: (entry.minimum, entry.maximum) for name, entry in symbols.items()}


@pytest.mark.parametrize("graph", [True, False])
def test_a_size_that_bears_the_exporters_name(graph):
    stated = "{u0: VR[0, 7], s77: VR[2, 9], s53: VR[0, int_oo]}"
    assert ranges(stated, "s77, s53", graph=graph) == {"s77": (2, 9), "s53": (None, None)}


def test_sizes_that_cannot_be_told_apart_have_a_range_that_holds_for_each():
    """As torch 2.13 writes it of Dim("batch", max=64), 4 * Dim("h4", min=4), Dim("seq", min=3)."""
    stated = "{u0: VR[0, 2097152], s17: VR[2, 64], 4*s18: VR[16, 512], s32: VR[3, 4096], s18: VR[4, 128]}"
    found = ranges(stated, "batch, 4*h4", "batch, seq")
    assert found == dict.fromkeys(("batch", "h4", "seq"), (2, 4096))
    assert ranges("{s1: VR[2, 64]}", "batch") == {"batch": (2, 64)}
    assert ranges("{s1: VR[2, 64], s2: VR[2, int_oo]}", "N", "M") == {"N": (2, None), "M": (2, None)}
    assert ranges("{2*s1: VR[4, 8], s1: VR[2, 4], 2*s2: VR[20, 40], s2: VR[10, 20]}", "2*N, 2*M") == {
        "N": (2, 20),
        "M": (2, 20),
    }


def test_a_file_with_more_sizes_than_ranges_was_changed_since():
    assert ranges("{s1: VR[2, 64]}", "N, M") == {"N": (None, None), "M": (None, None)}
    assert ranges("{u0: VR[2, 64]}", "N") == {"N": (None, None)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{s1: VR[, ]}",
        "{s1: VR[x, y]}",
        "{s1: VR[9" + "9" * 40 + ", 1]}",
        "a" * 10**6,
        ": VR[" * 10**5,
    ],
)
def test_texts_that_state_nothing(text):
    began = time.process_time()
    assert ranges(text, "N") == {"N": (None, None)}
    assert time.process_time() - began < 5
