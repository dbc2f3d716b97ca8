"""A prediction does not depend on the order in which a process happens to hash names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ORDERS = ("1", "2", "5")  # of hashes


class Embedded(nn.Module):
    """Three tables are added, whose gradients are the work of one kernel; a division's operands lie differently."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds, self.places = nn.Embedding(50, 64), nn.Embedding(2, 64), nn.Embedding(128, 64)
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        kinds = torch.zeros(ids.shape, dtype=torch.int64)
        places = torch.arange(ids.shape[1])
        x: torch.Tensor = self.out(self.norm(self.words(ids) + self.kinds(kinds) + self.places(places)))
        turned = x.transpose(0, 1).contiguous().transpose(0, 1)
        return x / turned


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("same") / "embedded.pt2"
    torch.export.save(torch.export.export(Embedded(), (torch.zeros(4, 128, dtype=torch.int64),)), path)
    return path


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_the_report_is_the_same_for_every_order_of_hashes(model: Path, execution: str) -> None:
    options = ["--training", "--device", "h200", "--execution", execution, "--format", "json"]
    command = [sys.executable, "-m", "graphflops", "analyze", str(model), *options]
    reports = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": order}, capture_output=True, check=True
        ).stdout
        for order in ORDERS
    }
    assert len(reports) == 1
