"""Which operands autograd keeps for its gradients: predicted from an export, against what PyTorch's hooks see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import graphflops
from graphflops.memory.on_gpu import Eager

PLACES = torch.randint(0, 16, (2, 4, 16, 16))
FROZEN = torch.randn(4, 4, 3, 3)
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reflection": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replication": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "circular padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "zero padding": lambda x: F.pad(x, (1, 1, 1, 1)),
    "convolution by a frozen weight": lambda x: F.conv2d(x, FROZEN),
    "depthwise convolution by a frozen weight": lambda x: F.conv2d(x, FROZEN[:, :1], groups=4),
    "transposed convolution by a frozen weight": lambda x: F.conv_transpose2d(x, FROZEN),
    "linear by a frozen weight": lambda x: F.linear(x, FROZEN.view(9, 16)),
    "product by a constant": lambda x: x @ FROZEN.view(16, 9),
    "average pooling": lambda x: F.avg_pool2d(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 4),
    "adaptive average of all": lambda x: F.adaptive_avg_pool2d(x, 1),
    "maximum pooling": lambda x: F.max_pool2d(x, 2),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 4),
    "pooling by a norm": lambda x: F.lp_pool2d(x, 2, 2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "sampled": lambda x: F.grid_sample(x, torch.rand(2, 5, 5, 2), align_corners=False),
    "gather": lambda x: x.gather(3, PLACES),
    "masked select": lambda x: x.masked_select(x > 0),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.0),
    "index": lambda x: x[:, PLACES[0, 0, 0] % 4],
    "index select": lambda x: x.index_select(1, torch.tensor([0, 1])),
    "scatter": lambda x: x.scatter(3, PLACES, 0.0),
    "where": lambda x: torch.where(PLACES > 3, x, 0.0),
    "transform of reals": lambda x: torch.fft.rfft(x).real,
    "padded transform": lambda x: torch.fft.rfft(x, n=16).real,
    "roll": lambda x: x.roll(1, 2),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "windows": lambda x: F.unfold(x, 3),
    "flip": lambda x: x.flip(1),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "top": lambda x: x.topk(2)[0],
    "sort": lambda x: x.sort()[0],
    "cumulative sum": lambda x: x.cumsum(1),
    "maximum of an axis": lambda x: x.max(1)[0],
    "largest": lambda x: x.amax(1),
    "mean": lambda x: x.mean(1),
    "standard deviation": lambda x: x.std(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(dim=1),
    "normalized": lambda x: F.normalize(x),
    "batch norm with fixed statistics": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "group norm": lambda x: F.group_norm(x, 2),
    "layer norm": lambda x: F.layer_norm(x, (16,)),
    "softmax": lambda x: x.softmax(-1),
    "likelihood": lambda x: F.nll_loss(x, PLACES[:, 0] % 4),
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "relu": F.relu,
    "elu": F.elu,
    "glu": lambda x: F.glu(x, 1),
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(min=0),
    "square": lambda x: x**2,
    "times a number": lambda x: x * torch.tensor(2.0),
    "times a constant": lambda x: x * FROZEN[0, 0, 0, 0],
    "divided by a constant": lambda x: x / FROZEN[0, 0, 0, 0],
    "exponential": torch.exp,
    "logarithm": torch.log1p,
    "absolute": torch.abs,
    "lerp": lambda x: torch.lerp(x, torch.ones(16), 0.5),
}


class Called(torch.nn.Module):
    """The call on a sum, which is kept by nothing else."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call, self.shift = call, torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shift
        return self.call(x)


def keeps_operand(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    """Whether autograd keeps the operand of a call."""
    kept = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call(x)
    return x.untyped_storage().data_ptr() in kept


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_is_kept_as_by_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()
    saved_values = Eager.saved_values

    def spied(self: Eager, call: object) -> list[str | None]:
        names = saved_values(self, call)
        found.update(name for name in names if name is not None)
        return names

    monkeypatch.setattr(Eager, "saved_values", spied)
    x = torch.randn(2, 4, 16, 16)
    program = torch.export.export(Called(CALLS[name]), (x,))
    graphflops.analyze(program, execution="eager", training=graphflops.Training(optimizer="none"))
    assert ("add" in found) == keeps_operand(CALLS[name], x.requires_grad_())
