"""Kernels that move more than they compute: elementwise, copies, reductions, norms, softmax, gathers, scans."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from graphflops.execution.strides import row_major
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import power_of_two
from graphflops.kernels.kernel import Kernel, Rows, Strided
from graphflops.kernels.operand_copies import operand_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.kernels.call import ConcreteCall, Tensor
    from graphflops.kernels.kernel import Family

    Lowering = Callable[[ConcreteCall], list[Kernel]]

REPEATING = ("reflect", "replicate")  # modes of padding that repeat elements
PLANES = "planes"  # variant: channels of images, whose pixels and images are added up
_HALF = 16  # bits
_SOFTMAX_THREADS, _FEW = limits("aten_2_11", "softmax", "threads", "few")


def elementwise(tensor: Tensor, read: int, written: int, work: int = 0, *, variant: str = "") -> Kernel:
    """A pointwise kernel of a tensor's element type."""
    return Kernel("elementwise", tensor.dtype, 0, work, read, written, variant=variant)


def pointwise(out: Tensor, operands: Sequence[Tensor], read: int, written: int, work: int = 0) -> Kernel:
    """A pointwise kernel on tensors that may be broadcast or lie in different orders."""
    sizes = strided(out, operands)
    variant = "" if sizes is None else "strided"
    return replace(elementwise(out, read, written, work, variant=variant), sizes=sizes)


def copy(tensor: Tensor, bits: int | None = None) -> Kernel:
    """A copy of a tensor in row-major order, as elements of `bits` bits."""
    width = bits or tensor.bits
    written = tensor.numel * width // 8
    steps = row_major(tensor.shape)
    return copy_to(replace(tensor, bits=width, strides=steps, nbytes=written), tensor)  # type: ignore[arg-type]


def copy_to(out: Tensor, x: Tensor) -> Kernel:
    """A copy of a tensor to where another lies; only float32 is narrowed as fast as elements are moved."""
    sizes = strided(out, [x])
    is_narrowed = x.dtype == "float32" and out.bits == _HALF
    if out.bits != x.bits and not is_narrowed:
        sizes = replace(sizes or Strided(out.numel, 1, 2), has_casts=True)
    variant = "" if sizes is None else "strided"
    return Kernel("copy", x.dtype, 0, 0, x.nbytes, out.full_bytes, sizes, variant=variant)


def copied(call: ConcreteCall, *, again: bool = False) -> list[Kernel]:
    """The copies of operands that do not lie as the kernels of a call read them. again: those that gradients make anew."""
    kernels = []
    for name, found in operand_copies(call.call, call).items():
        x = call.named(name)
        if x is not None and (found.is_again or not again):
            wide: Any = {"shape": found.shape, "strides": found.strides}
            kernels.append(copy(replace(x, **wide), found.dtype.bits))
    return kernels


def fill(tensor: Tensor) -> Kernel:
    """Writes one value everywhere."""
    return elementwise(tensor, 0, tensor.full_bytes)


def reduction(tensor: Tensor, results: int, *, is_inner: bool = True, bits: int | None = None) -> Kernel:
    """Reduces a tensor to so many results of `bits` bits. is_inner: along the innermost axes."""
    return Kernel(
        "reduction",
        tensor.dtype,
        vector_flops=tensor.numel,
        read_bytes=tensor.nbytes,
        written_bytes=results * (bits or tensor.bits) // 8,
        sizes=Rows(results, tensor.numel // max(results, 1), is_inner),
        variant="" if is_inner else "outer",
    )


def is_last(x: Tensor) -> bool:
    """Whether the channels are innermost."""
    return x.rank > 2 and x.shape[1] > 1 and x.strides[1] == 1


def sum_to(tensor: Tensor, kept: Sequence[int], bits: int | None = None) -> Kernel:
    """Reduces a tensor over all axes but `kept`. Which axis lies innermost decides how blocks are laid out."""
    results = prod(tensor.shape[axis] for axis in kept)
    reduced = [axis for axis in range(tensor.rank) if axis not in kept and tensor.shape[axis] > 1]
    steps = tensor.strides
    wide = [axis for axis in kept if tensor.shape[axis] > 1]
    if not reduced or not wide or min(steps[axis] for axis in wide) < min(steps[axis] for axis in reduced):
        return reduction(tensor, results, is_inner=not wide or not reduced, bits=bits)
    inner = reduction(tensor, results, bits=bits)
    is_planes = max(steps[axis] for axis in reduced) > max(steps[axis] for axis in wide)
    return replace(inner, variant=PLANES) if is_planes else inner


def of_rows(family: Family, kernels: int = 1) -> Lowering:
    """A lowering to kernels that each move the call's bytes and work on rows along the axis of the call."""

    def lower(call: ConcreteCall) -> list[Kernel]:
        like = next(iter(call.operands), call.out)
        if like is None or not call.cost.read_bytes + call.cost.written_bytes:
            return []
        return [rows_kernel(family, like, call, call.cost.read_bytes, call.cost.written_bytes)] * kernels

    return lower


def rows_kernel(family: Family, like: Tensor, call: ConcreteCall, read: int, written: int) -> Kernel:
    """A kernel on the rows of a tensor: those of its last axis unless the call names another."""
    axis = axis_of(call, like.rank)
    columns = like.shape[axis] if like.rank else 1
    is_inner = axis == like.rank - 1
    sizes = Rows(like.numel // max(columns, 1), columns, is_inner)
    work = call.cost.vector_flops + call.cost.transcendentals
    variant = call.operator.name if is_inner else "outer"
    return Kernel(family, like.dtype, 0, work, read, written, sizes, variant=variant)


def softmax_kernel(call: ConcreteCall, x: Tensor, variant: str, read: int, written: int) -> Kernel:
    """A softmax or its gradient. Along an outer axis a block has neighbouring rows, and threads share long ones."""
    kernel = replace(rows_kernel("softmax", x, call, read, written), variant=variant)
    axis = axis_of(call, x.rank)
    inner = prod(x.shape[axis + 1 :])
    if inner <= 1:
        return kernel
    across = min(power_of_two(inner), _SOFTMAX_THREADS)
    length = x.shape[axis]
    shared = min(_SOFTMAX_THREADS // across, length) if across <= _FEW and length >= _FEW else 1
    blocks = x.numel // max(length * inner, 1) * -(-inner // across)
    rows = Rows(blocks, -(-length // max(shared, 1)), is_inner=False)
    return replace(kernel, sizes=rows, variant="outer")


def axis_of(call: ConcreteCall, rank: int) -> int:
    """The axis that the call works along, counted from the front; the last one unless it says."""
    axis = call.arguments.get("axis", -1)
    return axis % rank if isinstance(axis, int) and rank and -rank <= axis < rank else rank - 1


_SECTOR, _BLOCK = limits("aten_2_11", "strided", "sector", "block")
_BITS = 8


def strided(out: Tensor, operands: Sequence[Tensor]) -> Strided | None:
    """The walk of a kernel that computes an address for each element; None where all tensors lie alike without gaps."""
    tensors = [out, *[tensor for tensor in operands if tensor.rank]]
    axes = _merged(out, [_steps(tensor, out) for tensor in tensors])
    has_casts = len({tensor.dtype for tensor in tensors[1:] if tensor.dtype != "bool"}) > 1
    is_alike = not axes or (len(axes) == 1 and set(axes[0][1]) == {1})
    if is_alike and not has_casts:
        return None
    waste = sum(_waste(axes, place, tensor.bits / _BITS) for place, tensor in enumerate(tensors) if axes)
    return Strided(out.numel, max(len(axes), 1), len(tensors), waste, has_casts)


def _steps(tensor: Tensor, out: Tensor) -> list[int]:
    """The stride of a tensor along each axis of the result; 0 where it is broadcast."""
    missing = out.rank - tensor.rank
    steps = [0] * max(missing, 0)
    for size, step in zip(tensor.shape, tensor.strides, strict=True):
        steps.append(0 if size == 1 else step)
    return steps[-out.rank :] if out.rank else []


def _merged(out: Tensor, steps: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """The axes from the innermost of the result on, with the stride of each tensor; neighbours become one where they can."""
    order = sorted((step, -axis) for axis, step in enumerate(steps[0]) if out.shape[axis] > 1)
    axes: list[tuple[int, list[int]]] = []
    for _, axis in order:
        size, own = out.shape[-axis], [each[-axis] for each in steps]
        if axes and all(step == axes[-1][0] * before for step, before in zip(own, axes[-1][1], strict=True)):
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, own))
    return axes


def _waste(axes: Sequence[tuple[int, Sequence[int]]], place: int, width: float) -> float:
    """Bytes that a tensor loads for each element beyond the element: a sector, unless neighbours use it as well."""
    size, steps = axes[0]
    if steps[place] <= 1:
        return 0.0
    users = 1
    if len(axes) > 1 and axes[1][1][place] == 1:
        users = max(1, min(_BLOCK // size, axes[1][0]))
    return float(max(min(_SECTOR / users, steps[place] * width) - width, 0.0))
