"""Which operands variables hold past their last use, against the modules run eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from tests.memory.test_frames import WIDTH, LiveBytes
from tests.memory.test_frames_of_statements import Linears
from tests.memory.test_references_by_hand import ran, until


class Angles(nn.Module):
    """Reads no element of its first operand."""

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return torch.sin(position * x.shape[-1])


class Unread(Linears):
    """A call that reads another of its variables does not show that the first one was bound again."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = Angles()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(x)
        position = torch.cos(wide[..., :WIDTH])
        angles = self.angles(wide, position)
        return self.wide(angles)


class Again(Linears):
    """A method's result takes the place of what the same variable held, which no line says by name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = (
            self.up(x)
            .view(8, 16, 4, WIDTH)
            .transpose(1, 2)
        )  # fmt: skip
        k = (
            self.up(x)
            .view(8, 16, 4, WIDTH)
            .transpose(1, 2)
        )  # fmt: skip
        h = h.reshape(32, 16, WIDTH)
        k = k.reshape(32, 16, WIDTH)
        return torch.tanh(torch.cat([h, k], -1))


class Experts(Linears):
    """Sorted rows, which a function without lines multiplies by groups, live until it returns, though it calls a module."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()
        self.first = nn.Parameter(torch.randn(4, WIDTH, 4 * WIDTH, dtype=torch.bfloat16))
        self.second = nn.Parameter(torch.randn(4, 4 * WIDTH, WIDTH, dtype=torch.bfloat16))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.full((4,), 32).cumsum(0, dtype=torch.int32)
        rows = x.flatten(0, 1).to(torch.bfloat16)[torch.arange(128).flip(0)]
        y = torch._grouped_mm(rows, self.first, offs=ends)
        y = self.act(y)
        y = torch._grouped_mm(y, self.second, offs=ends)
        return y.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


class Weighing(nn.Module):
    """Returns no weights: their variable is bound again."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        score = x @ x.transpose(1, 2)
        score = score.softmax(-1)
        score = score @ x
        return score, None


class Unweighed(Linears):
    """The second variable of an attention's results holds nothing while the next module runs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Weighing(), nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _weights = self.attention(x)
        return self.mlp(y)


class Parts(nn.Module):
    """A list that its variable no longer holds once it is joined. Each turn of the loop calls another module."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Linear(WIDTH // 4, WIDTH) for _ in range(4))
        self.up = nn.Sequential(nn.Linear(4 * WIDTH, 8 * WIDTH), nn.Tanh(), nn.Linear(8 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for place in range(4):
            found.append(self.tables[place](x[..., 16 * place : 16 * place + 16]))
        found = torch.cat(found, -1)  # type: ignore[assignment]
        return self.up(found)


class Joining(Linears):
    """The operand that it gives the module is no list that the module joins."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.parts(x)
        return self.up(y)


@pytest.mark.parametrize(
    "module", [Unread(), Again(), Experts(), Unweighed(), Joining()], ids=lambda module: type(module).__name__
)
def test_the_peak_is_that_of_the_module_run_eagerly(module: nn.Module) -> None:
    x = torch.randn(8, 16, WIDTH)
    report = graphflops.analyze(torch.export.export(module, (x,)), execution="eager")
    with torch.no_grad(), LiveBytes((x, dict(module.named_parameters()))) as ran:
        module(x)
    assert report.totals.peak_bytes - x.nbytes == ran.peak


def test_what_reads_a_size_holds_nothing() -> None:
    """An export takes the length of the sines from the angles, which end with the function that made them."""
    caller, table = (5, "sine = self.inner(x)"), (7, "angles = x.tile(2)")
    calls = [
        ran("angles", "tile.default", "x", caller, table),
        ran("sine", "sin.default", "angles", caller, (8, "sine = torch.sin(angles)")),
        ran("other", "cos.default", "sine", caller, (9, "return torch.cos(sine)")),
        ran("length", "sym_size.int", "angles", (6, "n = sine.shape[0]")),
        ran("y", "tanh.default", "other length", (6, "y = torch.tanh(sine)")),
    ]
    assert until(*calls)["angles"] == 2  # the function's last call
