"""Convolutions: the kernel of cuDNN, the conversions to channels-last that its tensor-core kernels want, and the bias."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.time.kernel import Convolution, Kernel
from graphflops.time.lowering.moved import elementwise, reduction

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Pass

_ALIGNED = 8  # channels: others are padded up to a multiple for tensor cores


class Problem(NamedTuple):
    """A convolution of concrete sizes."""

    x: Tensor
    weight: Tensor
    out: Tensor
    groups: int
    stride: tuple[int, ...]
    transposed: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups > 1 and self.weight.shape[1] == 1

    @property
    def is_product(self) -> bool:
        """Whether it is a plain product of matrices in row-major order: 1 x 1, stride 1, sizes that align."""
        is_pointwise = all(size == 1 for size in self.weight.shape[2:]) and self.groups == 1
        return is_pointwise and set(self.stride) == {1} and prod(self.x.shape[2:]) % _ALIGNED == 0

    @property
    def needs_channels_last(self) -> bool:
        """Whether cuDNN converts operands to channels-last and the result back."""
        return (
            self.x.bits == 16 and not self.is_depthwise and not self.is_product and not self.is_channels_last
        )

    @property
    def is_channels_last(self) -> bool:
        """Whether the operand has its channels innermost already."""
        return self.x.rank > 2 and self.x.shape[1] > 1 and self.x.strides[1] == 1

    def sizes(self, phase: Pass) -> Convolution:
        """As the kernel sees it."""
        channels, filters = self.x.shape[1], self.out.shape[1]
        return Convolution(
            *(
                self.x.shape[0],
                channels,
                filters,
                self.x.shape[2:],
                self.out.shape[2:],
                self.weight.shape[2:],
            ),
            groups=self.groups,
            channels_last=self.needs_channels_last or self.is_channels_last,
            transposed=self.transposed,
            phase=phase,
        )

    def kernel(self, phase: Pass, flops: int, reads: tuple[Tensor, ...], writes: Tensor) -> Kernel:
        """One pass of the convolution."""
        read = sum(tensor.full_bytes for tensor in reads)
        return Kernel(
            "convolution",
            self.x.dtype,
            flops,
            read_bytes=read,
            written_bytes=writes.full_bytes,
            sizes=self.sizes(phase),
        )

    def converted(self, *tensors: Tensor) -> list[Kernel]:
        """The conversions of these tensors to channels-last or back; few channels are padded."""
        return [_conversion(tensor) for tensor in tensors] if self.needs_channels_last else []


def _conversion(tensor: Tensor) -> Kernel:
    channels = tensor.shape[1]
    padded = -(-channels // _ALIGNED) * _ALIGNED
    written = tensor.full_bytes * padded // max(channels, 1)
    return Kernel("copy", tensor.dtype, 0, 0, tensor.full_bytes, written, variant="channels_last")


def problem_of(call: ConcreteCall) -> Problem | None:
    """The convolution that a call is; None where an operand is missing."""
    x, weight, out = call.operand("x"), call.operand("weight"), call.out
    if (
        x is None
        or weight is None
        or out is None
        or x.rank < 3
        or weight.rank != x.rank
        or out.rank != x.rank
    ):
        return None
    transposed = call.operator.name == "conv_transpose" or call.arguments.get("transposed") is True
    stride = call.per_axis("stride", x.rank - 2, 1)
    return Problem(x, weight, out, call.number("groups", 1), stride, transposed)


def convolution(call: ConcreteCall) -> list[Kernel]:
    """Conversions, the convolution, the conversion back, the bias."""
    problem = problem_of(call)
    if problem is None:
        return _unknown_sizes(call)
    x, weight, out = problem.x, problem.weight, problem.out
    bias = call.operand("bias")
    return [
        *problem.converted(x, weight),
        problem.kernel("forward", call.cost.matrix_flops, (x, weight), out),
        *problem.converted(out),
        *(
            [elementwise(out, out.full_bytes + bias.nbytes, out.full_bytes, variant="strided")]
            if bias is not None
            else []
        ),
    ]


def convolution_backward(call: ConcreteCall) -> list[Kernel]:
    """A convolution for the gradient of the operand and one for that of the weight, and the sum for that of the bias."""
    problem = problem_of(call)
    if problem is None:
        return []
    x, weight, out, flops = problem.x, problem.weight, problem.out, call.cost.matrix_flops
    kernels = []
    if x.requires_grad:
        kernels += problem.converted(out, weight)
        kernels += [problem.kernel("input_gradient", flops, (out, weight), x), *problem.converted(x)]
    if weight.requires_grad:
        kernels += problem.converted(out, x)
        kernels += [problem.kernel("weight_gradient", flops, (out, x), weight), *problem.converted(weight)]
    if call.wants("bias"):
        kernels.append(reduction(out, out.shape[1], is_inner=False))
    return kernels


def _unknown_sizes(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None:
        return []
    cost = call.cost
    return [Kernel("convolution", out.dtype, cost.matrix_flops, 0, cost.read_bytes, cost.written_bytes)]
