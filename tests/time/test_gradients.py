"""Kernels of gradients: their times against those of a profiler on an H200, and copies that their layouts take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphflops
from graphflops.devices import device
from graphflops.kernels.gradients import backward_kernels
from graphflops.kernels.kernel import Kernel, Rows
from graphflops.time.predict import predict
from tests.one_call import g
from tests.time.one_call import one_call

H200 = device("h200")


@pytest.mark.parametrize(
    ("results", "rows", "microseconds"),
    [  # gradients of biases, of bfloat16, as the profiler timed them
        (768, 512, 8.9),
        (1024, 4096, 12.3),
        (3072, 2048, 10.2),
        (384, 50176, 54.6),
    ],
)
def test_sums_over_rows_are_split_as_torch_splits_them(results: int, rows: int, microseconds: float) -> None:
    size = 2 * results * rows
    kernel = Kernel(
        *("reduction", "bfloat16", 0, results * rows, size, 2 * results, Rows(results, rows, False)),
        variant="outer",
    )
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.3)


def test_the_weight_of_a_layer_norm_adds_up_all_rows_one_after_the_other() -> None:
    columns, rows = 96, 50176
    kernel = Kernel(
        *("reduction", "bfloat16", 0, 4 * rows * columns, 4 * rows * columns, 0, Rows(columns, rows, False)),
        variant="layer_norm_weight",
    )
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(144.6, rel=0.2)  # a profiler's, on an H200


class Launches(TorchDispatchMode):
    """Keeps the calls that torch makes but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "detach" not in str(called):
            self.calls.append(str(called))
        return called(*args, **kwargs or {})


@pytest.mark.parametrize("name", ["erfc", "erfcx", "expm1", "i0e", "ndtri"])
def test_gradients_of_special_functions_launch_what_torch_launches(name: str) -> None:
    x = torch.rand(4, 64, requires_grad=True)
    result, gradient = getattr(torch.special, name)(x), torch.ones(4, 64)
    with Launches() as launches:
        result.backward(gradient)
    call = one_call(f"aten.special_{name}.default", g(4, 64))
    assert [kernel.family for kernel in backward_kernels(call)] == ["elementwise"] * len(launches.calls)


class Mixed(torch.nn.Module):
    """A linear layer over the second axis of a batch of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mixes the positions."""
        return self.linear(x.transpose(1, 2))


@pytest.mark.parametrize(
    ("model", "expected"),
    [(Mixed(), "copy, matmul, elementwise"), (torch.nn.Linear(32, 32), "matmul")],
)
def test_rows_that_do_not_follow_one_another_are_copied_and_their_bias_is_added_after(
    model: torch.nn.Module, expected: str
) -> None:
    program = graphflops.capture(model, (torch.rand(4, 32, 32),))
    rows = graphflops.analyze(program, device="h200", execution="graph").rows
    (time,) = [row.time for row in rows if row.op == "aten.linear.default"]
    assert time is not None
    assert time.kernel == expected


def test_a_module_that_runs_as_one_operator_copies_nothing() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    program = graphflops.capture(layer, (torch.rand(2, 16, 64),))
    times = [row.time for row in graphflops.analyze(program, device="h200", execution="graph").rows]
    launched = [time.kernel for time in times if time is not None and time.kernel]
    assert sorted(set(", ".join(launched).split(", "))) == [
        "attention",
        "elementwise",
        "matmul",
        "normalization",
    ]


def test_the_gradient_of_bags_sorts_the_entries_of_all_bags() -> None:
    class Bags(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.EmbeddingBag(100_000, 64, mode="sum", dtype=torch.bfloat16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

    program = graphflops.capture(Bags(), (torch.zeros(8192, 4, dtype=torch.int64),))
    report = graphflops.analyze(program, device="h200", execution="graph", training=True)
    assert report.backward is not None
    assert report.backward.time is not None
    # an H200: sorting 32,768 entries and finding their runs 83 us, sums 46 us, zeros and sizes 13 us
    assert report.backward.time.seconds == pytest.approx(142e-6, rel=0.35)
