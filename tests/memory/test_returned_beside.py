"""What a module returns beside its result lives as long as the variable of its caller, however the caller spells it."""

# fmt: off
from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from tests.dispatched import Dispatched

WIDTH, LENGTH = 64, 128


class Attention(nn.Module):
    """Returns its weights beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        return self.o(shares @ self.v(x)), shares


class Pair(nn.Module):
    """The peak is behind the attention, while the caller still holds what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.att = Attention()
        self.wide = nn.Sequential(nn.Linear(WIDTH, 16 * WIDTH), nn.GELU(), nn.Linear(16 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _shares = self.att(x)
        return self.wide(x + out)


class Backslash(Pair):
    """The first target stands on a line above."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, \
            _shares = self.att(x)
        return self.wide(x + out)


class Brackets(Pair):
    """The same in brackets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (out,
            _shares) = self.att(x)
        return self.wide(x + out)


class Tuple(Pair):
    """Both results under one name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.att(x)
        return self.wide(x + both[0])


class First(Pair):
    """The second result is let go."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.att(x)[0]
        return self.wide(x + out)


@pytest.mark.parametrize("kind", [Pair, Backslash, Brackets, Tuple, First])
def test_eager_execution_holds_what_python_holds(kind: type[Pair]) -> None:
    module, x = kind().to("meta"), torch.empty(8, LENGTH, WIDTH, device="meta")
    with torch.no_grad(), Dispatched([x, *module.parameters()]) as mode:
        module(x)
    report = graphflops.analyze(graphflops.capture(module, (x,)), execution="eager")
    assert report.totals.peak_bytes == mode.peak + x.nbytes
