"""A module with tied weights: real, on the meta device, and on fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Tied(nn.Module):
    """Embedding and output projection in one, constants made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        return (
            self.head(self.embedding(ids)) * torch.tensor([1.0, 2.0])[0] + torch.arange(ids.shape[1])[:, None]
        )


def real() -> Any:
    return Tied()


def meta() -> Any:
    with torch.device("meta"):
        return Tied()


def fake() -> Any:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return Tied()
