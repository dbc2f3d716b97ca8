"""Which results of a nested graph, or of a call in place, want a gradient: those that have one in torch's own backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from graphflops import analyze

Tensor = torch.Tensor
ROWS, WIDTH = 3, 4
PRODUCT = 2 * ROWS * WIDTH * WIDTH


class Between(torch.nn.Module):
    """A product, what a nested graph makes of it, and a product of each of its results."""

    def __init__(self, between: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.last = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return sum((y @ self.last for y in self.between(x @ self.first)), torch.zeros(()))


def unconverted(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return x.to(torch.float32), x * 2


def undropped(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return torch.dropout(x, 0.1, False), x.detach()


def in_place(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (x.mul_(2),)


def half_detached(x: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x.detach() * 2, x * 2


def detached_in_place(x: Tensor) -> tuple[Tensor, ...]:
    return ((x * 2).detach_(),)


def zeros_in_place(x: Tensor) -> tuple[Tensor, ...]:
    return (x.clone().zero_(),)


# The gradient of the first weight and, by result, that of the last one; then those of the results that want one.
@pytest.mark.parametrize(
    ("between", "backward"),
    [
        *(
            (unconverted, 1 + 2 + 1),
            (undropped, 1 + 2 + 1),
            (in_place, 1 + 1 + 1),
            (half_detached, 1 + 2 + 1),
        ),
        *((detached_in_place, 0 + 1 + 0), (zeros_in_place, 1 + 1 + 1)),
    ],
)
def test_results_that_want_a_gradient(between: Callable[[Tensor], tuple[Tensor, ...]], backward: int) -> None:
    module, x = Between(between), torch.ones(ROWS, WIDTH)
    report = analyze(torch.export.export(module, (x,)), training=True)
    assert report.backward is not None
    assert report.backward.cost.matrix_flops == backward * PRODUCT
    results = module(x)
    with FlopCounterMode(display=False) as counter:
        results.sum().backward()
    assert counter.get_total_flops() == backward * PRODUCT


@pytest.mark.parametrize(
    "formed",
    [
        lambda constant, x: constant.type_as(x),
        lambda constant, x: constant.to(x),
        lambda constant, x: constant.reshape_as(x),
        lambda constant, x: constant.expand_as(x),
    ],
)
def test_no_gradient_passes_to_a_tensor_whose_form_is_taken(
    formed: Callable[[Tensor, Tensor], Tensor],
) -> None:
    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            hidden = x @ self.weight
            return hidden @ formed(torch.ones(WIDTH, WIDTH), hidden)

    module, x = Fixed(), torch.ones(WIDTH, WIDTH)
    report = analyze(torch.export.export(module, (x,)), training=True)
    assert report.backward is not None
    # The weight's gradient and that of the first product; the constant wants none.
    assert report.backward.cost.matrix_flops == 2 * (2 * WIDTH**3)
    result = module(x)
    with FlopCounterMode(display=False) as counter:
        result.sum().backward()
    assert counter.get_total_flops() == 2 * (2 * WIDTH**3)


def test_a_target_beside_a_prediction_wants_no_gradient() -> None:
    class Distance(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return torch.nn.functional.mse_loss(x @ self.weight, target, reduction="none")

    x = torch.ones(ROWS, WIDTH)
    report = analyze(torch.export.export(Distance(), (x, x)), training=True)
    wanting = [
        kept.type.requires_grad for row in report.rows if "broadcast" in row.op for kept in row.outputs
    ]
    assert wanting == [True, False]
    assert report.backward is not None
    assert (
        report.backward.cost.vector_flops == 3 * ROWS * WIDTH
    )  # 2 (prediction - target) g, for the prediction


class Filled(torch.nn.Module):
    """Returns a buffer whose rows are products, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        filled = torch.zeros(2, ROWS, WIDTH)
        filled[0] = x @ self.weight
        filled.transpose(0, 1).select(1, 1).copy_(x @ self.weight)
        return filled


def test_what_is_written_to_a_result_has_a_gradient() -> None:
    module, x = Filled(), torch.ones(ROWS, WIDTH)
    report = analyze(torch.export.export(module, (x,)), training=True)
    assert report.backward is not None
    assert report.backward.cost.matrix_flops == 2 * PRODUCT
    results = module(x)
    with FlopCounterMode(display=False) as counter:
        results.sum().backward()
    assert counter.get_total_flops() == 2 * PRODUCT


class Parts(torch.nn.Module):
    """A product and four sines, all in one graph, or in graphs nested in it that have a part of the sines each."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.first
        for _ in range(self.parts):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for _ in range(4 // self.parts):
                    y = y.sin()
        return y if self.parts else y.sin().sin().sin().sin()


@pytest.mark.parametrize("parts", [0, 1, 2, 4])
def test_what_nested_graphs_save_is_held_until_their_gradients(parts: int) -> None:
    """The operand, the product and the sines, of which the last is the result; the gradient of a sine, and the next one."""
    program = torch.export.export(Parts(parts), (torch.ones(ROWS, WIDTH),))
    report = analyze(program, training=True)
    assert len(report.rows) == 1 + 4 + parts
    assert report.backward is not None
    assert report.totals.peak_bytes <= 4 * (ROWS * WIDTH) * 4  # without gradients, fewer are held
    assert report.backward.peak_bytes == 4 * (ROWS * WIDTH) * (1 + 1 + 4 + 2)


@pytest.mark.parametrize("nested", [False, True])
def test_results_of_nested_graphs_are_held_once_and_their_products_have_a_workspace(nested: bool) -> None:
    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not nested):
                return self.layer(x)

    program = torch.export.export(Frozen(), (torch.ones(ROWS, WIDTH),))
    report = analyze(program, device="h200", execution="eager")
    assert any("wrap" in row.op for row in report.rows) == nested
    assert report.totals.peak_bytes == 4 * (ROWS * WIDTH) * 2
    assert report.memory_use[0].workspaces == 2**25 + 2**20  # of cuBLAS and, for the bias, cuBLASLt
