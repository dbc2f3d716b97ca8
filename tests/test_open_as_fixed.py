"""A program exported with open axes costs at a size what one exported at that size costs: in bytes, memory, and time."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training, analyze

torch = pytest.importorskip("torch")

BATCH, LENGTH, WIDTH = 3, 11, 16


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer with something around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)


class Indexed(Layer):
    """The first axes of what is indexed are open: an export has slices of everything, which PyTorch does not take."""

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y[:, 0] + y[:, 1:3].sum(1) + y[:, :, None].mean((1, 2)) + y[1:, :].sum((0, 1))


class Whole(Layer):
    """`x[:, :]` is one view."""

    def forward(self, x: Any) -> Any:
        return self.linear(x[:, :])


class Part(Layer):
    """One position of each sequence."""

    def forward(self, x: Any) -> Any:
        return self.linear(x)[:, 0]


class Sized(Layer):
    """Products of sizes are numbers of Python."""

    def forward(self, x: Any) -> Any:
        return self.linear(x).view(x.shape[0] * x.shape[1], 2, WIDTH // 2).transpose(0, 1)


@pytest.mark.parametrize("execution", ["graph", "eager", "compiled"])
@pytest.mark.parametrize("kind", [Indexed, Whole, Sized])
def test_open_axes_cost_what_fixed_ones_do(kind: type[Layer], execution: Any) -> None:
    options: dict[str, Any] = {"execution": execution, "device": "h200", "training": Training()}
    sizes = torch.zeros(BATCH, LENGTH, WIDTH)
    fixed = analyze(torch.export.export(kind().eval(), (sizes,)), **options)
    axes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(kind().eval(), (torch.zeros(4, 5, WIDTH),), dynamic_shapes=axes)
    opened = analyze(program, dims={"x[0]": BATCH, "x[1]": LENGTH}, **options)
    for phase, other in zip((fixed.totals, fixed.backward), (opened.totals, opened.backward), strict=True):
        assert phase is not None
        assert other is not None
        assert (phase.cost, phase.peak_bytes) == (other.cost, other.peak_bytes)
        if execution == "eager":
            assert phase.time is not None
            assert other.time is not None
            assert other.time.seconds == pytest.approx(phase.time.seconds, rel=1e-9)


def test_the_gradient_of_a_part_is_written_once() -> None:
    """Of `y[:, 0]`, zeros as large as y with the part in them; the open first axis is not sliced."""
    program = torch.export.export(
        Part().eval(), (torch.zeros(BATCH, LENGTH, WIDTH),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    rows = analyze(program, dims={"x[0]": BATCH}, training=True).rows
    parts = [row for row in rows if row.op in ("aten.slice.Tensor", "aten.select.int")]
    written = sum(row.backward.written_bytes for row in parts if row.backward)
    assert written == BATCH * LENGTH * WIDTH * 4
