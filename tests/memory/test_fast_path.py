"""Fast paths of torch.nn: peaks that an H200 measured with PyTorch 2.11 (8 sequences of 256 x 512, bfloat16)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops

MIB = 2**20


class SelfAttention(nn.Module):
    """One attention module on one sequence."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.attention = nn.MultiheadAttention(512, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=self.weights)[0]


def layer(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(512, 8, 2048, 0.1, **options)  # type: ignore[arg-type]


def peak(module: nn.Module, training: bool = False) -> int:
    x = torch.empty(8, 256, 512, dtype=torch.bfloat16, device="meta")
    program = graphflops.capture(module.to("meta", torch.bfloat16).eval(), (x,))
    report = graphflops.analyze(program, execution="eager", training=training)
    return report.totals.peak_bytes - x.nbytes


@pytest.mark.parametrize(
    ("module", "measured"),
    [
        (
            layer(batch_first=True),
            12 * MIB,
        ),  # the sequence, four times as much between the linear layers, the result
        (layer(batch_first=True, norm_first=True), 14 * MIB),
        (SelfAttention(weights=False), 10 * MIB),  # query, key, value, attention, projection
        (SelfAttention(weights=True), 18 * MIB),  # and scores of 8 MiB
    ],
)
def test_a_module_runs_as_one_operator(module: nn.Module, measured: int) -> None:
    assert peak(module) == measured


def test_a_layer_with_the_batch_second_has_no_fast_path() -> None:
    assert peak(layer()) > peak(layer(batch_first=True))


class KeptWeights(nn.Module):
    """The second result of an attention, the mean of its probabilities, stays in a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.MultiheadAttention(512, 8, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.first(x, x, x)
        z, _weights = self.second(y, y, y)
        return z


def test_the_weights_of_an_attention_live_while_the_next_one_runs() -> None:
    """The sequence before it, the weights of 8 x 256 x 256 in bfloat16, and 18 MiB for the second attention."""
    assert peak(KeptWeights()) == (2 + 1 + 18) * MIB
