"""A finding names the modules before and after its call."""

from __future__ import annotations

import pytest

from graphflops.report import Named, Row
from graphflops.report.findings import Neighbours
from tests.support import t


def row(node: str, op: str, module: str, reads: str, makes: str) -> Row:
    inputs, outputs = ((Named(name, t(4)),) for name in (reads, makes))
    return Row(node, op, module, "", "", "counted", inputs, outputs)


ROWS = (
    row("conv", "onnx.Conv.11", "layer3.5.conv3", "x", "a"),
    row("cast", "onnx.Cast.13", "", "a", "b"),
    row("relu", "onnx.Relu.14", "layer4", "b", "c"),
    row("neg", "onnx.Neg.13", "layer4", "c", "d"),
    row("abs", "onnx.Abs.13", "layer4", "d", "e"),
    row("exp", "onnx.Exp.13", "", "e", "f"),
)


@pytest.mark.parametrize(
    "node, expected",
    [
        ("cast", "layer3.5.conv3 and layer4"),
        ("neg", ""),  # both are in its own module, which the finding names
        ("abs", "Neg and Exp"),
        ("exp", "layer4 and the result"),
        ("conv", "the input and Cast"),
        ("none", ""),
    ],
)
def test_the_modules_before_and_after_a_call(node, expected):
    assert Neighbours(ROWS).between(node) == expected
