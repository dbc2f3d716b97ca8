"""What an einsum copies and how its result lies, against torch.einsum on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphflops
from graphflops.devices import HOPPER
from graphflops.execution.composed_losses import expanded
from graphflops.execution.layouts import Layouts
from graphflops.execution.strides import order_of
from graphflops.tensor import FLOAT32, TensorType
from tests.one_call import program_of


class Copies(TorchDispatchMode):
    """Counts the elements of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if "clone" in str(function):
            self.elements += result.numel()
        return result


def operand(shape: list[int], order: list[int]) -> torch.Tensor:
    """A tensor with its axes in this order in memory."""
    return torch.randn([shape[axis] for axis in order]).permute(
        [order.index(axis) for axis in range(len(shape))]
    )


def random_case(chance: random.Random) -> tuple[str, list[torch.Tensor]] | None:
    """Two operands that share an axis to sum; None where the labels drawn share none."""
    labels = "abcdefgh"
    sizes = {label: chance.choice([2, 3, 4, 5]) for label in labels}
    terms = ["".join(chance.sample(labels, chance.choice([2, 3, 4]))) for _ in range(2)]
    known = sorted(set("".join(terms)))
    result = "".join(chance.sample(known, chance.randint(1, min(5, len(known)))))
    if not set(terms[0]) & set(terms[1]) - set(result):
        return None
    tensors = []
    for term in terms:
        order = [*range(len(term))]
        chance.shuffle(order)
        tensors.append(operand([sizes[label] for label in term], order))
    return f"{','.join(terms)}->{result}", tensors


@pytest.mark.parametrize("seed", range(80))
def test_copies_and_strides_are_those_of_torch(seed: int) -> None:
    case = random_case(random.Random(seed))
    if case is None:
        return
    equation, tensors = case
    with Copies() as ran:
        result = torch.ops.aten.einsum(equation, tensors)
    types = tuple(TensorType(tuple(x.shape), FLOAT32) for x in tensors)
    run = expanded((main := program_of("aten.einsum.default", equation, types).main).calls, main.values)
    orders = {f"x1_{place}": order_of(x.stride()) for place, x in enumerate(tensors)}
    layouts = Layouts(run.calls, run.values, HOPPER, orders)
    assert sum(layouts.typed(name).numel for name in layouts.copies) == ran.elements
    assert layouts.of("y0") == result.stride()


def test_the_result_of_a_pair_is_kept_for_the_gradients_of_the_next() -> None:
    class Three(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.einsum("ij,jk,kl->il", a.sin(), b.sin(), c.sin())

    a, b, c = torch.randn(64, 32), torch.randn(32, 128), torch.randn(128, 16)
    program = torch.export.export(Three(), (a, b, c))
    training = graphflops.Training(optimizer="none", grad_inputs=("a", "b", "c"))
    report = graphflops.analyze(program, execution="eager", training=training)
    held = [held for held in report.memory_use[-1].timeline.held if held.bytes == 64 * 128 * 4]
    (product,) = [each for each in held if each.kind == "value"]  # (i, k)
    (gradient,) = [each for each in held if each.kind == "gradient"]
    assert product.first < gradient.first == product.last
