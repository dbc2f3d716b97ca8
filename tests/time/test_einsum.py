"""Kernels of torch.einsum: the copies and products that PyTorch's profiler shows for it on an H200."""

import pytest
import torch

import graphflops
from graphflops.report import Row


class Equation(torch.nn.Module):
    """One einsum."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        """All operands by the equation."""
        return torch.einsum(self.equation, *operands)


def timed(equation: str, *shapes: tuple[int, ...]) -> Row:
    program = graphflops.capture(Equation(equation), tuple(torch.rand(shape) for shape in shapes))
    (row,) = graphflops.analyze(program, device="h200", execution="graph").rows
    return row


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("bik,bkj->bij", [(4, 8, 8), (4, 8, 8)], "matmul"),
        ("ebtf,efd->btd", [(2, 3, 4, 8), (2, 8, 4)], "copy, matmul"),  # experts and channels are one axis
        ("bte,btd,edf->ebtf", [(3, 4, 2), (3, 4, 8), (2, 8, 4)], "elementwise, matmul"),
        ("bi,bj->bij", [(4, 8), (4, 16)], "elementwise"),
    ],
)
def test_factors_are_multiplied_in_pairs(equation: str, shapes: list[tuple[int, ...]], expected: str) -> None:
    time = timed(equation, *shapes).time
    assert time is not None
    assert time.kernel == expected


def test_a_copy_of_an_operand_takes_at_least_its_traffic() -> None:
    copied = timed("ebtf,efd->btd", (8, 4, 256, 2048), (8, 2048, 512)).time
    in_order = timed("btf,fd->btd", (4, 256, 8 * 2048), (8 * 2048, 512)).time
    assert copied is not None
    assert in_order is not None
    assert copied.seconds - in_order.seconds > 2 * 4 * 2**24 / 4.8e12  # 2^24 float32 read and written
