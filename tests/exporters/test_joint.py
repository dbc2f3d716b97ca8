"""Programs of forward and backward in one."""

from __future__ import annotations

import pytest
import torch

from graphflops import analyze, capture
from graphflops.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    """A convolution, batch normalisation and a linear layer; two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(features), features


class Loss(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0].square().mean()


CONV, HEAD = 2 * 4 * 8 * 3 * 9 * 16 * 16, 2 * 4 * 8 * 10


def phases(report):
    return {
        phase: sum(row.cost.matrix_flops for row in report.rows if row.phase == phase)
        for phase in ("forward", "backward")
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make", [Net, Loss])
def test_the_work_of_a_step(make, device):
    with torch.device(device):
        module, x = make(), torch.randn(4, 3, 16, 16)
    report = analyze(capture(module, (x,), joint=True))
    assert phases(report) == {"forward": CONV + HEAD, "backward": CONV + 2 * HEAD}  # x wants no gradient
    assert report.totals.cost.matrix_flops == analyze(module, (x,), training=True).step().cost.matrix_flops
    assert {row.module for row in report.rows} >= {"conv", "head"}


def test_a_second_backward_is_refused():
    program = capture(Net(), (torch.randn(4, 3, 16, 16),), joint=True)
    with pytest.raises(ModelError, match="holds its gradients already"):
        analyze(program, training=True)


def test_the_module_is_left_as_it_was():
    module = Net()
    own = module.forward = module.forward
    capture(module, (torch.randn(4, 3, 16, 16),), joint=True)
    assert module.forward is own
    plain = Net()
    capture(plain, (torch.randn(4, 3, 16, 16),), joint=True)
    assert "forward" not in vars(plain)


def test_open_sizes_stay_open():
    batch = torch.export.Dim("batch")
    program = capture(Net(), (torch.randn(4, 3, 16, 16),), dynamic_shapes=({0: batch},), joint=True)
    assert analyze(program, dims={"x[0]": 8}).totals.cost.matrix_flops == 2 * (2 * CONV + 3 * HEAD)


def test_a_module_without_parameters():
    with pytest.raises(ModelError, match="joint: no result of the module depends on a parameter"):
        capture(torch.nn.ReLU(), (torch.randn(4),), joint=True)


def test_torchs_own_code_holds_nothing_past_its_last_use() -> None:
    """A joint program runs as torch.fx writes it: a variable is deleted where it is read last."""
    joint = capture(Net(), (torch.randn(4, 3, 16, 16),), joint=True)
    eager, graph = (analyze(joint, execution=way).totals.peak_bytes for way in ("eager", "graph"))
    assert eager == graph
