"""Programs that eight releases of torch saved: whatever the layout and spelling of the file, the totals are the formula's.

FLOPs by hand, two per multiply-add. The language model has width 64, 2 layers, a vocabulary of 100; the numbers per token
are those of its products: 2 * (64*192 + 64*64 + 64*256 + 256*64) a layer, and 2 * 64*100 for the output; attention is
4 * 64 per pair of tokens and layer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.dims import parse_dim

FILES = Path(__file__).parent / "data" / "pt2"
PER_TOKEN = 2 * 2 * (64 * 192 + 64 * 64 + 64 * 256 + 256 * 64) + 2 * 64 * 100
PER_PAIR = 2 * 4 * 64
# One LSTM layer each way and layer: 4 * hidden * (input + hidden) multiply-adds a step.
RECURRENT = {"directions": 2, "batch": 2, "time": 5, "products": 4 * 32 * (16 + 32) + 4 * 32 * (64 + 32)}


def matching(pattern):
    paths = sorted(FILES.glob(pattern))
    assert paths, pattern
    return [pytest.param(path, id=path.stem) for path in paths]


def analyzed(path):
    report = analyze(path)
    assert report.coverage.unknown == 0
    assert report.diagnostics == ()
    return report


def axes(report, **names):
    """The formula's own names for the symbols, by the axis where each stands."""
    where = {axis: name for name, info in report.symbols.items() for axis in info.where}
    return {where[axis]: parse_dim(name) for name, axis in names.items()}


@pytest.mark.parametrize("path", matching("lm_*.pt2"))
def test_a_language_model_with_free_batch_and_sequence(path):
    report = analyzed(path)
    total = report.total().matrix_flops
    assert total.substitute(axes(report, batch="ids[0]", seq="ids[1]")) is parse_dim(
        f"{PER_TOKEN}*batch*seq + {PER_PAIR}*batch*seq**2"
    )
    assert report.value(total) == PER_TOKEN * 3 * 7 + PER_PAIR * 3 * 7 * 7
    assert report.parameters == 112484


@pytest.mark.parametrize("path", matching("conv_batch*.pt2"))
def test_a_convnet_with_a_free_batch(path):
    report = analyzed(path)
    assert report.total().matrix_flops.substitute(axes(report, batch="x[0]")) is parse_dim("251712*batch")
    assert report.parameters == 31822


@pytest.mark.parametrize("path", matching("conv_static*.pt2"))
def test_a_static_convnet(path):
    report = analyzed(path)
    assert report.total().matrix_flops == 2 * 251712
    assert report.parameters == 31822


@pytest.mark.parametrize("path", matching("lstm_static*.pt2"))
def test_an_lstm(path):
    report = analyzed(path)
    steps = RECURRENT["directions"] * RECURRENT["batch"] * RECURRENT["time"]
    assert report.total().matrix_flops == 2 * steps * RECURRENT["products"]
    assert report.parameters == 37888


@pytest.mark.parametrize("path", matching("*.pt2"))
def test_every_call_has_an_operator_and_every_parameter_a_module(path):
    report = analyzed(path)
    assert all(row.op and row.state in ("counted", "free") for row in report.rows)
    assert "" not in report.parameter_modules


@pytest.mark.parametrize(("release", "said"), [("2.4.1", ["GF107"]), ("2.6.0", []), ("2.13.0", [])])
def test_a_file_that_does_not_say_what_is_trained(release, said):
    """torch 2.4 recorded no parameter as trained; its training step is that of any other release's file."""
    report = analyze(FILES / f"lm_dynamic-torch{release}.pt2", training=True)
    assert [d.code for d in report.diagnostics] == said
    assert report.value(report.backward.cost.matrix_flops) > report.value(report.total().matrix_flops)
