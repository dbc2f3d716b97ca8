"""The kernels as an operator of torch: compiled, exported, and refused where they cannot run."""

from __future__ import annotations

import pytest
import torch

from graphflops.errors import ModelError
from graphflops.runtime.flex import flex_attention, launch, prepare, sdpa

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        x = torch.empty(1, 2, 16, 16, device=DEVICE)
        self.attention = sdpa(x, x, is_causal=True)
        self.project = torch.nn.Linear(16, 16, device=DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(x, self.project(x), x)[0]
        return out


def test_compiled_with_gradients() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(1, 2, 16, 16, device=DEVICE)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x).square().sum(), model.project.weight)
    wanted = torch.autograd.grad(model(x).square().sum(), model.project.weight)
    assert torch.allclose(found[0], wanted[0], atol=1e-5)


def test_exported() -> None:
    model, x = Model(), torch.randn(1, 2, 16, 16, device=DEVICE)
    program = torch.export.export(model, (x,))
    assert torch.ops.graphflops.flex_attention.default in {node.target for node in program.graph.nodes}
    assert torch.allclose(program.module()(x), model(x), atol=1e-6)


@pytest.mark.parametrize("count, programs", [(0, 0), (2, 2)])
def test_fake_results_have_the_real_shapes(count: int, programs: int) -> None:
    q = torch.randn(1, 2, 16, 16, device=DEVICE)
    attention = prepare(q, q)
    real = attention.forward(q, q, q, count=count)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = attention.forward(*(mode.from_tensor(x) for x in (q, q, q)), count=count)
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in real]
    assert real[2].shape == (programs, 3)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((1, 3, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16)), "3 query heads for 2 key heads: pass enable_gqa"),
        (((1, 1, 16, 16), (1, 1, 16, 8), (1, 1, 16, 8)), "do not fit"),
        (((1, 1, 16, 300), (1, 1, 16, 300), (1, 1, 16, 16)), "head widths above 256"),
    ],
)
def test_operands_that_no_kernel_takes(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        flex_attention(*(torch.randn(shape, device=DEVICE) for shape in shapes))


def test_types_that_no_kernel_takes() -> None:
    x = torch.ones(1, 1, 16, 16, dtype=torch.int64)
    with pytest.raises(ModelError, match="int64 has no kernel"):
        launch.check(x, x, x)


def test_functions_of_another_process() -> None:
    x = torch.randn(1, 1, 16, 16, device=DEVICE)
    lists = [torch.ones(1, 1, 1, dtype=torch.int32, device=DEVICE)] * 8
    with pytest.raises(ModelError, match="attention functions abc are not of this process"):
        torch.ops.graphflops.flex_attention(x, x, x, lists, [], "abc", 1.0, 16, 16, 0, 0, 0)
