"""Convolutions: the kernel of cuDNN, the conversions to channels-last that its tensor-core kernels want, and the bias."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.time.kernel import DIRECT, Kernel
from graphflops.time.lowering.convolution_problem import problem_of
from graphflops.time.lowering.grouped import grouped
from graphflops.time.lowering.moved import copy, pointwise, sum_to

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.lowering.convolution_problem import Problem


def convolution(call: ConcreteCall) -> list[Kernel]:
    """Conversions, the convolution, the conversion back, the bias."""
    problem = problem_of(call)
    if problem is None:
        return _unknown_sizes(call)
    x, out = problem.x, problem.out
    bias = call.operand("bias")
    is_apart = bias is not None and bias.dtype != "int32"  # integers start the sums of integers
    added = [_added(out, bias)] if bias is not None and is_apart else []
    is_scattered = not problem.is_channels_last and not x.is_contiguous
    in_order = [copy(x)] if is_scattered else []
    return [*in_order, *passed(problem, call.cost.matrix_flops), *added]


def passed(problem: Problem, flops: int) -> list[Kernel]:
    """The pass that `problem.phase` names, with the conversions before and after it."""
    x, weight, out = problem.x, problem.weight, problem.out
    reads, writes = {"forward": ((x, weight), out), "input_gradient": ((out, weight), x)}.get(
        problem.phase, ((out, x), weight)
    )
    if (problem.groups > 1 and not problem.is_depthwise) or problem.has_several_filters_last:
        return grouped(problem, flops, reads, writes)
    kernel = problem.kernel(flops, reads, writes)
    if problem.is_weight_of_one_image:
        return [replace(kernel, variant=DIRECT)]
    return [*problem.converted(*reads), kernel, *problem.converted(writes)]


def _added(out: Tensor, bias: Tensor) -> Kernel:
    """The addition of a bias to each channel."""
    ones = (1,) * (out.rank - 2)
    by_channel = replace(bias, shape=(bias.numel, *ones), strides=(1, *ones))
    return pointwise(out, [out, by_channel], out.full_bytes + bias.nbytes, out.full_bytes)


def convolution_backward(call: ConcreteCall) -> list[Kernel]:
    """A convolution for the gradient of the operand and one for that of the weight, and the sum for that of the bias."""
    problem = problem_of(call)
    if problem is None:
        return []
    flops, kernels = call.cost.matrix_flops, []
    if problem.x.requires_grad:
        kernels += passed(problem._replace(phase="input_gradient"), flops)
    if problem.weight.requires_grad:
        kernels += passed(problem._replace(phase="weight_gradient"), flops)
    if call.wants("bias"):
        kernels.append(sum_to(problem.out, [1]))
    return kernels


def _unknown_sizes(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None:
        return []
    cost = call.cost
    return [Kernel("convolution", out.dtype, cost.matrix_flops, 0, cost.read_bytes, cost.written_bytes)]
