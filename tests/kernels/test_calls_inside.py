"""The calls inside of operators that autograd sees whole, against those that torch's profiler sees on a CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from graphflops.execution.composed_gradients import gradient_calls, kernel_calls
from tests.one_call import g, program_of
from tests.support import t

VIEWS = "view reshape unsqueeze squeeze_ squeeze permute narrow mT transpose slice select as_strided detach t"
ALIKE = {"empty_like": "", "fill_": "full_like", "zeros": "new_zeros", "bernoulli_": "bernoulli"}


def inside(name: str, run: Any) -> list[Counter[str]]:
    """What an operator calls itself, each time that it runs."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    events = [event for event in found.events() if event.name == f"aten::{name}"]
    return [Counter(launched(child.name for child in event.cpu_children)) for event in events]


def launched(names: Any) -> list[str]:
    words = [name.removeprefix("aten::") for name in names]
    known = [ALIKE.get(word, word) for word in words if word not in VIEWS.split()]
    return [word for word in known if word]


def ours(calls: Any) -> Counter[str]:
    return Counter(launched(call.node.op.split(".")[1] for call in calls))


def random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


@pytest.mark.parametrize(
    ("op", "inner", "shapes", "rest"),
    [
        ("cdist", "_euclidean_dist", [(32, 6), (40, 6)], ()),
        ("binary_cross_entropy_with_logits", "", [(4, 6), (4, 6)], ()),
        ("binary_cross_entropy_with_logits", "", [(4, 6), (4, 6), (4, 6), (6,)], (0,)),
        ("bilinear", "_trilinear", [(4, 6), (4, 5), (3, 6, 5)], ()),
        ("slice_scatter", "", [(4, 6), (4, 3)], (1, 0, 3)),
    ],
)
def test_an_operator_calls_what_the_profiler_sees(op: str, inner: str, shapes: Any, rest: Any) -> None:
    program = program_of(f"aten.{op}.default", *[t(*shape) for shape in shapes], *rest)
    found = kernel_calls(program.main.calls[0], program.main.values)
    assert found is not None
    operands = [random(*shape).detach() for shape in shapes]
    (theirs,) = inside(inner or op, lambda: getattr(torch.ops.aten, op)(*operands, *rest))
    assert ours(found.calls) == theirs


def test_the_gradients_of_a_bilinear_layer_take_three_kernels_for_each_feature() -> None:
    shapes = [(4, 6), (4, 5), (3, 6, 5)]
    program = program_of("aten.bilinear.default", *[g(*shape) for shape in shapes])
    found = gradient_calls(program.main.calls[0], program.main.values)
    assert found is not None
    out = torch.ops.aten.bilinear(*[random(*shape) for shape in shapes])
    theirs = inside("_trilinear", lambda: out.backward(torch.ones_like(out)))
    assert ours(found.calls) == sum(theirs, Counter())
    assert ours(found.calls)["bmm"] == 3 * (1 + 1 + 1)  # features, and products of each gradient


N = 4 * 4 * 64  # bytes of 4 x 64 elements; of truth values a quarter


@pytest.mark.parametrize(
    ("op", "operands", "beside"),
    [
        # 24 zeros, of which every seventh is written: places 0, 7, 14 and 21, of 8 bytes
        ("trace.default", (g(4, 6),), 8 * 4),
        # zeros, the ratio and the product, of which two are gradients
        ("copysign.Tensor", (g(4, 64), g(4, 64)), 3 * N - 2 * N),
        # the angle and its square; of the slope a cosine, a sine, two products, a difference, a quotient
        ("sinc.default", (g(4, 64),), 2 * N + 6 * N - N),
        # complex: a first product, the result turned, the conjugate and a second product
        ("polar.default", (g(4, 64), g(4, 64)), 4 * 2 * N - 2 * N),
        # magnitudes and three masks
        ("nan_to_num.default", (g(4, 64),), N + 3 * N // 4 - N),
        # the gradient of the other; a difference, a ratio, a product
        ("dist.default", (g(4, 64), g(4, 64)), N + 3 * N - 2 * N),
        ("dist.default", (g(4, 64), t(4, 64)), 3 * N - N),
        # signs instead of ratios
        ("dist.default", (g(4, 64), t(4, 64), 1), 3 * N - N),
        # squares, their inverse, masked; both gradients, of one the operand less than zero and its product
        ("atan2.default", (g(4, 64), g(4, 64)), 2 * N + 2 * N + 3 * N - 2 * N),
        ("slice_scatter.default", (g(4, 64), g(4, 16), 1, 0, 16), N // 4),  # zeros of the part's size
        ("slice_scatter.default", (t(4, 64), g(4, 16), 1, 0, 16), 0),
        # the shares of 4 x 8 pairs and what is summed of them, which is the gradient
        ("cdist.default", (g(4, 64), t(8, 64)), 4 * 4 * 8 * 64),
        # both: another gradient, turned distances and their gradients, and 8 x 4 pairs
        ("cdist.default", (g(4, 64), g(8, 64)), N + 2 * 4 * 32 + 4 * 8 * 4 * 64 + 2 * N - 3 * N),
        ("addr.default", (g(4, 64), g(4), g(64)), 0),
        ("diag_embed.default", (g(4, 64),), None),
    ],
)
def test_the_most_bytes_that_a_gradient_makes_beside_itself(op: str, operands: Any, beside: int) -> None:
    program = program_of(f"aten.{op}", *operands)
    found = gradient_calls(program.main.calls[0], program.main.values)
    assert (found and found.beside) == beside
