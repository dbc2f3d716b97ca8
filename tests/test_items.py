"""What a run takes in: what calls do with an input decides, not its element type and not its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from graphflops.derived.items import items
from graphflops.report import Report

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Program(torch.nn.Module):
    """A function of a program: every layer that the functions below use, and the function."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 8)
        self.linear = torch.nn.Linear(8, 8)
        self.plane = torch.nn.Conv2d(3, 8, 3)
        self.line = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.run = run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def taken(run: Callable[..., Tensor], *inputs: Tensor) -> dict[str, int]:
    from graphflops import analyze

    report = analyze(torch.export.export(Program(run).eval(), inputs))
    assert isinstance(report, Report)
    return dict(items(report))


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def test_tokens_are_integers_that_index_weights() -> None:
    expected = {"samples": 2, "tokens": 2 * 7}
    assert taken(lambda m, ids: m.linear(m.table(ids)), integers(2, 7)) == expected
    assert taken(lambda m, ids: m.linear(m.table.weight[ids.view(-1).int() + 1]), integers(2, 7)) == expected
    masked = lambda m, mask, ids: m.linear(m.table(ids)) * mask.unsqueeze(-1)  # noqa: E731
    assert taken(masked, integers(2, 9)[:, :7], integers(2, 7)) == expected


def test_other_integers_are_no_tokens() -> None:
    assert taken(lambda m, counts: m.linear(counts.float()), integers(4, 8)) == {"samples": 4}
    assert taken(lambda m, x, label: m.linear(m.table(label) + x), torch.ones(4, 8), integers(4)) == {
        "samples": 4
    }
    picked = lambda m, x, at: m.linear(x).gather(1, at)  # noqa: E731 - of what is computed
    assert taken(picked, torch.ones(4, 8), integers(4, 2)) == {"samples": 4}
    counted = lambda m, mask: m.linear(m.table(mask.cumsum(1)))  # noqa: E731 - positions, computed from a mask
    assert taken(counted, integers(4, 6)) == {"samples": 4}


def test_images_and_frames() -> None:
    pixels = lambda m, x: m.plane(x.permute(0, 3, 1, 2).float() / 255)  # noqa: E731
    assert taken(pixels, integers(5, 16, 16, 3, dtype=torch.uint8)) == {"images": 5}
    assert taken(lambda m, x: m.line(x.transpose(1, 2)), torch.ones(2, 30, 8)) == {
        "samples": 2,
        "frames": 2 * 30,
    }
    caption = lambda m, x, ids: m.plane(x).mean() + m.table(ids)  # noqa: E731
    assert taken(caption, torch.ones(2, 3, 16, 16), integers(2, 6)) == {"images": 2, "tokens": 2 * 6}
    reshaped = lambda m, x: m.plane(m.linear(x).view(2, 3, 8, 8))  # noqa: E731 - features, no image
    assert taken(reshaped, torch.ones(2, 24, 8)) == {"samples": 2}


def test_edges_of_a_graph() -> None:
    def passed(m: Program, x: Tensor, edges: Tensor) -> Tensor:
        rows = m.linear(x)
        return torch.zeros_like(rows).index_add(0, edges[1], rows[edges[0]])

    assert taken(passed, torch.ones(50, 8), integers(2, 200)) == {"edges": 200}
    picked = lambda m, x, edges: passed(m, x, edges[torch.tensor([1, 0])])  # noqa: E731 - as exports of ONNX take rows
    assert taken(picked, torch.ones(50, 8), integers(2, 200)) == {"edges": 200}
    of_types = lambda m, kinds, edges: passed(m, m.table(kinds), edges)  # noqa: E731
    assert taken(of_types, integers(50), integers(2, 200)) == {"edges": 200}
