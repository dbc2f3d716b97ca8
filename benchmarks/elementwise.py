"""Peak memory of programs with one elementwise function, run on a GPU, against the predictions.

`python -m benchmarks.elementwise` measures for each function the peak of requested bytes in inference and in a forward with
gradients: what autograd's formula of a gradient makes on its way decides the latter (`graphflops/rules/formula.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import graphflops
from benchmarks.memory import measured, predicted

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = "rsqrt reciprocal sqrt square erf cos tan log1p expm1 atan sin logit asin abs log2"
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in NAMES.split()},
    "pow": lambda x: x**3,
    "clamp": lambda x: x.clamp(0.3, 0.6),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "where": lambda x: torch.where(x > 0.4, x, 0.0),
}


class Program(nn.Module):
    """A layer, and a function of values between 0.25 and 0.75."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(1024, 1024), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(torch.sigmoid(self.layer(x)) * 0.5 + 0.25)


def main() -> None:
    """Print a line a function: measured megabytes, and measured by predicted bytes."""
    torch.autograd.set_multithreading_enabled(False)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__.partition('+')[0]}, bfloat16, 8192 x 1024 elements"
    )
    print(f"{'function':12} {'inference MB':>12} {'ratio':>6} {'training MB':>12} {'ratio':>6}")
    for name, function in FUNCTIONS.items():
        model = Program(function).to("cuda", torch.bfloat16).eval()
        x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16)
        pairs = zip(
            measured(model, (x,), {}), predicted(graphflops.capture(model, (x,)), "eager"), strict=True
        )
        cells = (f"{found / 1e6:12.3f} {found / said:6.3f}" for found, said in pairs)
        print(f"{name:12}", *cells, flush=True)


if __name__ == "__main__":
    main()
