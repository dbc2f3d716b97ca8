"""Weights of products in float8, as engines serve them: each product rounds its operand to float8, too."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

_TYPE = torch.float8_e4m3fn
_MULTIPLE = 16  # of rows and columns of a weight: others, torch._scaled_mm refuses


class Float8Linear(nn.Module):  # type: ignore[misc]
    """An `nn.Linear` whose weight is float8, with one scale for the weight and one for the operand, both known beforehand.

    x: [..., in_features] -> [..., out_features] of the same type.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.to(_TYPE), requires_grad=False)
        self.bias = linear.bias
        for name in ("scale", "operand_scale"):
            self.register_buffer(name, torch.ones((), dtype=torch.float32, device=linear.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit = torch.finfo(_TYPE).max
        rounded = (x / self.operand_scale.to(x.dtype)).clamp(-limit, limit).to(_TYPE)
        result = torch._scaled_mm(
            rounded.flatten(0, -2),
            self.weight.t(),
            scale_a=self.operand_scale,
            scale_b=self.scale,
            bias=self.bias,
            out_dtype=x.dtype,
        )
        return result.unflatten(0, x.shape[:-1])


def to_float8(model: nn.Module, whole: Collection[nn.Module | None]) -> int:
    """Put float8 weights into the linear layers of a model, but for those in `whole`; returns how many were changed."""
    changed = 0
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if type(child) is not nn.Linear or child in whole:
                continue
            if child.in_features % _MULTIPLE == 0 == child.out_features % _MULTIPLE:
                setattr(module, name, Float8Linear(child))
                changed += 1
    return changed
