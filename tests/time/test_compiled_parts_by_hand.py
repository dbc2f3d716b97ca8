"""Parts of what torch.compile launches, one question at a time: costs of the CPU, slow instructions, padded sizes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.devices import HOPPER
from graphflops.inductor.lowering import Extern
from graphflops.inductor.plan import Plans
from graphflops.kernels.kernel import Convolution, Kernel, Product, Recurrence
from graphflops.time.compiled import CompiledLauncher, _host_seconds, _image_kernels, _of_product
from graphflops.time.written import _slow_gradient, _slow_result
from tests.inductor.one_call import plan_of
from tests.one_call import g, program_of
from tests.support import t
from tests.time.one_call import one_call

COSTS = {
    "compiled.inference.attention": 1.0,
    "compiled.training.attention": 2.0,
    "compiled.collective": 3.0,
    "compiled.training.convolution_gradient": 10.0,
    "compiled.inference.library": 100.0,
    "compiled.training.library": 1000.0,
    "forward.further_kernel": 7.0,
    "recurrent.call": 1e4,
    "recurrent.layer": 1e5,
    "recurrent.step": 1e6,
}


def kernels(*families: Any) -> list[Kernel]:
    return [Kernel(family, "float32") for family in families]


@pytest.mark.parametrize(
    ("families", "phase", "is_gradient", "seconds"),
    [
        (("attention",), "inference", False, 1),
        (("copy", "attention"), "training", True, 2),
        (("collective",), "inference", False, 3),
        (("matmul",), "inference", False, 100),
        (("matmul", "matmul", "copy"), "training", True, 3000),
        (("convolution",), "inference", False, 100),
        (("copy", "convolution", "copy"), "inference", False, 100),  # conversions are cuDNN's own
        (("convolution", "copy", "convolution"), "training", True, 20),
        (("convolution",), "training", False, 1000),
        ((), "inference", False, 0),
    ],
)
def test_what_the_cpu_does_for_a_library(
    families: tuple[str, ...], phase: str, is_gradient: bool, seconds: float
) -> None:
    assert _host_seconds(COSTS, phase, kernels(*families), is_gradient=is_gradient) == seconds


def test_groups_of_a_convolution_are_launched_one_by_one() -> None:
    one = Kernel("convolution", "float16", launches=48)
    assert _host_seconds(COSTS, "inference", [one], is_gradient=False) == 100 + 47 * 7
    assert _host_seconds(COSTS, "training", [one, one], is_gradient=True) == 2 * (10 + 47 * 7)


def test_recurrent_layers_are_launched_step_by_step() -> None:
    layer = Kernel("recurrence", "bfloat16", sizes=Recurrence(8, 1, 1, 512, 4, 3, 2))
    found = _host_seconds(COSTS, "inference", [layer], is_gradient=False)
    assert found == 100 + 1e4 + 6 * 1e5 + 8 * 6 * 1e6


CONV = Convolution(2, 16, 32, (8, 8), (8, 8), (3, 3))


@pytest.mark.parametrize(
    ("sizes", "copies"),
    [
        (CONV, 0),
        (replace(CONV, phase="input_gradient"), 0),
        (replace(CONV, phase="weight_gradient"), 1),
        (replace(CONV, phase="weight_gradient", filter=(1, 1)), 0),  # one tap lies alike
        (replace(CONV, phase="weight_gradient", filter=(1, 3)), 1),
        (replace(CONV, phase="weight_gradient", groups=16), 0),  # and so does one channel
        (replace(CONV, phase="weight_gradient", groups=8), 1),
    ],
)
def test_convolutions_with_channels_innermost(sizes: Convolution, copies: int) -> None:
    own = Kernel("convolution", "bfloat16", 7, 0, 100, 60, sizes)
    first, *rest = _image_kernels(own)
    assert first == replace(own, sizes=replace(sizes, channels_last=True))
    assert rest == [Kernel("copy", "bfloat16", 0, 0, 60, 60, variant="strided")] * copies
    other = Kernel("matmul", "bfloat16")
    assert _image_kernels(other) == [other]


def test_products_are_rounded_up_to_eight() -> None:
    plan = plan_of("aten.mm.default", t(12, 64), t(64, 30))
    (call,), op = plan.execution.calls, Extern(("y",), ("x0", "x1"), 360, 0, "y", is_padded=True)
    given = [Kernel("matmul", "bfloat16", sizes=Product(12, 30, 64, 3))] * 2
    found = _of_product(call, op, given, plan.execution.layouts)
    assert [kernel.sizes for kernel in found] == [Product(16, 32, 64, 3)] * 2


@pytest.mark.parametrize(
    ("op", "given", "loads"),
    [
        ("relu.default", (t(4, 8),), 0),
        ("exp.default", (t(4, 8),), 0.1),  # one instruction
        ("gelu.default", (t(4, 8),), 4.75),
        ("pow.Tensor_Tensor", (t(4, 8), t(4, 8)), 12.3),
        ("cat.default", ((t(4, 8), t(6, 8)),), 0),
        ("flip.default", (t(4, 8), (0,)), 0),
        ("avg_pool2d.default", (t(2, 3, 8, 8), (2, 2)), 2.5 * 5),  # four sums and a quotient
        ("max_pool2d.default", (t(2, 3, 8, 8), (3, 3)), 2.5 * 9),
        ("softmax.int", (t(4, 8), -1), 0.1),
        ("mm.default", (t(4, 8), t(8, 6)), 0),
        # four elements of the image, each in another sector; one of the nearest
        ("grid_sampler_2d.default", (t(2, 3, 8, 8), t(2, 5, 5, 2), 0, 0, False), 4 * 22),
        ("grid_sampler_2d.default", (t(2, 3, 8, 8), t(2, 5, 5, 2), 1, 0, False), 22),
        # each further element of the image is a load
        ("upsample_bilinear2d.vec", (t(2, 3, 8, 8), (16, 16), False, None), 4 - 1),
        ("upsample_bicubic2d.vec", (t(2, 3, 8, 8), (16, 16), False, None), 16 - 1),
        ("upsample_nearest2d.vec", (t(2, 3, 8, 8), (16, 16), None), 0),
        ("pow.Tensor_Scalar", (t(4, 8), 2), 0),  # a product
        ("pow.Tensor_Scalar", (t(4, 8), 0.5), 12.3),
        ("exp.default", (t(0, 8),), 0),
        ("exp.default", (t(),), 0.1),
        ("max_pool2d.default", (t(1, 1, 3, 3), (3, 3)), 2.5 * 9),
    ],
)
def test_slow_instructions_of_results(op: str, given: Any, loads: float) -> None:
    assert _slow_result(one_call(f"aten.{op}", *given)) == loads


INDEX = t(4, 5, dtype="int64")


@pytest.mark.parametrize(
    ("op", "given", "loads"),
    [
        ("erf.default", (g(4, 8),), 0.1),
        ("erf.default", (g(),), 0.1),
        ("erf.default", (g(0, 8),), 0),
        ("relu.default", (g(4, 8),), 0),
        ("exp.default", (g(4, 8),), 0),  # its result is kept
        ("log_softmax.int", (g(4, 8), -1), 0.1),  # the exponential of its result
        ("add.Tensor", (g(4, 8), g(4, 8)), 0),  # reads nothing
        ("erf.default", (t(4, 8),), 0),
        ("exp.default", (t(4, 8),), 0),
        ("softmax.int", (g(4, 8), -1), 0),
        ("softmax.int", (t(4, 8), -1), 0),
        ("tanh.default", (t(4, 8),), 0),
        # windows of pooling, of which each element of the operand is in 5 / 4; and none of the mean
        ("avg_pool2d.default", (g(2, 3, 8, 8), (2, 2)), 5.5),
        ("avg_pool2d.default", (g(2, 3, 8, 8), (4, 4), (1, 1)), 5.5 * 6),  # 25 windows of 17 for 64 elements
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (1, 1)), 0),
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (2, 2)), 5.5),
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (2, 1)), 5.5),
        # additions to rows of a table: one place is added to again and again
        ("embedding.default", (g(10, 64), INDEX), 4.7),
        ("index_select.default", (g(), 0, t(1, dtype="int64")), 4.7),  # of one number
        ("embedding.default", (g(10, 63), INDEX), 350_000 // 630),
        ("embedding.default", (g(10, 8), INDEX), 1400),
        ("embedding.default", (g(31, 8), INDEX), 1400),
        ("embedding.default", (g(32, 8), INDEX), 350_000 // 256),
        ("embedding.default", (g(10**6, 8), INDEX), 4.7),
        ("index.Tensor", (g(1000, 8), (t(4, dtype="int64"),)), 350_000 // 8000),
        ("index.Tensor", (g(1000, 8, dtype="bfloat16"), (t(4, dtype="int64"),)), 43_000_000 // 8000),
        ("index.Tensor", (g(100, 8, dtype="bfloat16"), (t(4, dtype="int64"),)), 18_000),
        ("embedding.default", (g(1000, 8, dtype="bfloat16"), INDEX), 350_000 // 8000),  # added in float32
        # of an interpolation each element adds to four, or sixteen
        ("upsample_bilinear2d.vec", (g(2, 3, 8, 8), (16, 16), False, None), 56 * 4),
        ("upsample_bicubic2d.vec", (g(2, 3, 8, 8), (16, 16), False, None), 56 * 16),
    ],
)
def test_slow_instructions_of_gradients(op: str, given: Any, loads: float) -> None:
    assert _slow_gradient(one_call(f"aten.{op}", *given)) == loads


ALL = {
    **COSTS,
    "compiled.guards": 0.5,
    "compiled.autograd": 0.25,
    "compiled.parameter": 0.125,
    "compiled.inference.fused": 1e7,
    "compiled.training.fused": 1e8,
}


@pytest.mark.parametrize("trained", [False, True])
def test_phases_begin_and_end_with_what_is_not_of_a_call(trained: bool) -> None:
    program = program_of("aten.relu.default", g(4, 8) if trained else t(4, 8))
    launcher = CompiledLauncher(program, {}, Plans(program, HOPPER), ALL)
    start, own = launcher.forward(records=trained)
    assert (start.row, start.kernels, start.host_seconds) == (-1, (), 0.5 + trained * 0.125)
    assert (own.row, own.host_seconds) == (0, 1e8 if trained else 1e7)
    if trained:
        first, *_, last = launcher.backward()
        assert (first.row, first.host_seconds) == (-1, 0.125)
        assert (last.row, last.kernels, last.host_seconds) == (-1, (), 0)  # there are no parameters
        assert first.kernels
