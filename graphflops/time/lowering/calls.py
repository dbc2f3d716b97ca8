"""The kernels of one call, forward and backward, by the kind of its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Rows
from graphflops.time.lowering.attentions import attention, attention_backward
from graphflops.time.lowering.collectives import collective, collective_backward
from graphflops.time.lowering.convolutions import convolution, convolution_backward
from graphflops.time.lowering.moved import (
    copy,
    elementwise,
    fill,
    is_strided,
    of_rows,
    reduction,
    rows_kernel,
)
from graphflops.time.lowering.norms import norm, norm_backward
from graphflops.time.lowering.products import product, product_backward
from graphflops.time.lowering.recurrences import recurrent, recurrent_backward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.lowering.moved import Lowering


def forward_kernels(call: ConcreteCall) -> list[Kernel]:
    """What a call launches in the forward, in order; nothing for a view."""
    lower = _BY_NAME.get(call.operator.name) or _FORWARD.get(call.operator.kind, _other)
    if lower is _layout or call.is_copy is not None:
        return _layout(call)
    if call.cost.read_bytes + call.cost.written_bytes == 0:
        return []
    return lower(call)


def backward_kernels(call: ConcreteCall) -> list[Kernel]:
    """What the gradients of a call launch, in order."""
    if call.gradient is None or not call.gradient.gradients:
        return []
    return _BACKWARD.get(call.operator.kind, _other_backward)(call)


def _layout(call: ConcreteCall) -> list[Kernel]:
    """A copy where the operand does not lie as the result must, else a view."""
    moves = call.is_copy if call.is_copy is not None else not call.estimate.alias
    if not moves or not call.operands or (call.cost.read_bytes == 0 and call.is_copy is None):
        return []
    return [copy(call.operands[0])]


def _elementwise(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None:
        return []
    work = call.cost.vector_flops + call.cost.transcendentals
    variant = "strided" if is_strided(call.operands, out) else ""
    return [elementwise(out, call.cost.read_bytes, call.cost.written_bytes, work, variant=variant)]


def _cast(call: ConcreteCall) -> list[Kernel]:
    """A conversion; to the same element type it is no kernel."""
    out = call.out
    if out is None or not call.operands:
        return []
    return [] if call.estimate.alias else [copy(call.operands[0], out.bits)]


def _filled(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None or call.operator.name.startswith(("empty", "new_empty", "constant")):
        return []
    if call.operator.name == "copy":
        return [elementwise(out, call.cost.read_bytes, call.cost.written_bytes)]
    return [fill(out)]


def _pad(call: ConcreteCall) -> list[Kernel]:
    """The result filled with the padding, then the operand copied into it."""
    out = call.out
    return [] if out is None or not call.operands else [fill(out), copy(call.operands[0])]


def _reduced(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None or not call.operands:
        return []
    x = call.operands[0]
    is_inner = not out.rank or out.shape[-1] != x.shape[-1] or out.rank == x.rank == 1
    return [reduction(x, out.numel, is_inner=is_inner, bits=out.bits)]


def _resampled(call: ConcreteCall) -> list[Kernel]:
    """Interpolation has a thread for each position, which loops over batch and channels (UpSampleBilinear2d.cu of ATen)."""
    out, work = call.out, call.cost.vector_flops
    if out is None or out.rank < 3 or not work:
        return of_rows("pool")(call)
    images = out.shape[0] * out.shape[1]
    sizes = Rows(out.numel // max(images, 1), images, is_inner=False)
    moved = (call.cost.read_bytes, call.cost.written_bytes)
    return [Kernel("pool", out.dtype, 0, work, *moved, sizes, variant="interpolation")]


def _sorted(call: ConcreteCall) -> list[Kernel]:
    x = call.operands[0] if call.operands else None
    if x is None:
        return []
    return [rows_kernel("sort", x, call, call.cost.read_bytes, call.cost.written_bytes)]


def _moved(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    if out is None:
        return []
    variant = "" if all(x.is_contiguous for x in call.operands) else "joined"
    return [Kernel("copy", out.dtype, 0, 0, call.cost.read_bytes, call.cost.written_bytes, variant=variant)]


def _other(call: ConcreteCall) -> list[Kernel]:
    """An operator without a lowering of its own: one kernel with its work and traffic."""
    like = call.out or next(iter(call.operands), None)
    if like is None:
        return []
    cost = call.cost
    work = cost.vector_flops + cost.transcendentals
    return [Kernel("other", like.dtype, cost.matrix_flops, work, cost.read_bytes, cost.written_bytes)]


def _dropout(call: ConcreteCall) -> list[Kernel]:
    """One kernel that draws the mask and applies it; nothing while it is not training."""
    out = call.out
    if out is None or call.estimate.alias or call.cost.vector_flops == 0:
        return []
    return [
        Kernel("random", out.dtype, 0, call.cost.vector_flops, call.cost.read_bytes, call.cost.written_bytes)
    ]


# Backward


def _wanted(call: ConcreteCall) -> list[Tensor]:
    """The operands that want a gradient."""
    assert call.gradient is not None
    return [call.operands[place] for place, _ in call.gradient.gradients if place < len(call.operands)]


def _elementwise_backward(call: ConcreteCall) -> list[Kernel]:
    """A kernel for each wanted operand whose gradient is not the result's, a sum over the axes that were broadcast."""
    out = call.out
    assert call.gradient is not None
    if out is None:
        return []
    kernels = []
    extra = _FURTHER_KERNELS.get(call.operator.name, 0)
    for place, has_memory in call.gradient.gradients:
        if place >= len(call.operands):
            continue
        operand = call.operands[place]
        if has_memory and call.operator.name not in ("add", "sub", "expand"):
            reads = out.full_bytes * (1 + min(len(call.operands), 2))
            kernels += [elementwise(out, reads, out.full_bytes, 2 * out.numel)] * (1 + extra)
        if operand.numel < out.numel:
            kernels.append(_summed(out, operand))
    return kernels


def _summed(out: Tensor, operand: Tensor) -> Kernel:
    """The sum of a gradient over the axes that were broadcast; over a few repeats it runs like a pointwise kernel."""
    if out.numel < _FEW_REPEATS * operand.numel:
        return elementwise(out, out.full_bytes, operand.full_bytes, out.numel)
    return reduction(out, operand.numel, is_inner=operand.shape[-1:] != out.shape[-1:])


def _cast_backward(call: ConcreteCall) -> list[Kernel]:
    out = call.out
    return (
        [copy(out, call.operands[0].bits)]
        if out is not None and call.operands and not call.estimate.alias
        else []
    )


def _view_backward(call: ConcreteCall) -> list[Kernel]:
    """Of a part, zeros with the gradient copied in; of repeats, their sum; of parts that are all used, one copy."""
    out, name = call.out, call.operator.name
    if out is None or not call.operands:
        return []
    x = call.operands[0]
    if name in ("slice", "select", "narrow", "index_select", "diagonal", "unfold", "as_strided"):
        return [fill(x), copy(out)] if x.numel != out.numel else []
    if name in ("split", "chunk", "unbind"):
        return [Kernel("copy", x.dtype, read_bytes=x.full_bytes, written_bytes=x.full_bytes)]
    if name == "expand" and x.numel < out.numel:
        return [_summed(out, x)]
    return [copy(x)] if call.is_copy else []


def _reduction_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient is repeated over the axes that were reduced; a mean divides it first."""
    out = call.out
    if out is None or not call.operands:
        return []
    x = call.operands[0]
    if call.operator.name == "sum":
        return []
    return [
        elementwise(
            x, x.full_bytes if call.operator.name != "mean" else out.full_bytes, x.full_bytes, x.numel
        )
    ]


def _gather_backward(call: ConcreteCall) -> list[Kernel]:
    """Zeros of the table's size, and the gradient's rows added into them."""
    out = call.out
    table = call.operand("weight", "x")
    if out is None or table is None or not table.requires_grad:
        return []
    added = Kernel(
        "scatter", table.dtype, 0, out.numel, out.full_bytes, out.full_bytes, variant=call.operator.name
    )
    return [fill(table), added]


def _movement_backward(call: ConcreteCall) -> list[Kernel]:
    """Parts of the gradient are views of it; what was padded or repeated takes a copy."""
    if call.operator.name in ("cat", "stack"):
        return []
    return [copy(x) for x in _wanted(call)]


def _other_backward(call: ConcreteCall) -> list[Kernel]:
    """A kernel for each gradient with memory of its own, which share the work and the traffic."""
    assert call.gradient is not None
    count = sum(has_memory for _, has_memory in call.gradient.gradients)
    like, cost = call.out or next(iter(call.operands), None), call.backward_cost
    if like is None or not count or cost.written_bytes == 0:
        return []
    work = (cost.vector_flops + cost.transcendentals) // count
    moved = cost.read_bytes // count, cost.written_bytes // count
    family = _FAMILY_OF_BACKWARD.get(call.operator.kind, "other")
    variant = f"{call.operator.name}_backward"
    kernel = Kernel(family, like.dtype, cost.matrix_flops // count, work, *moved, variant=variant)  # type: ignore[arg-type]
    return [kernel] * count


# Kernels of a gradient beside the one that every elementwise operator has (derivatives.yaml of PyTorch).
_FURTHER_KERNELS = {"pow": 2, "rsqrt": 2, "sqrt": 1, "abs": 1, "sin": 1, "cos": 1, "div": 1, "where": 1}
_FEW_REPEATS = 32
_FAMILY_OF_BACKWARD = {
    "softmax": "softmax",
    "pooling": "pool",
    "resampling": "pool",
    "dropout": "elementwise",
    "scan": "scan",
}
_BY_NAME: Mapping[str, Lowering] = {"pad": _pad}
_FORWARD: Mapping[str, Lowering] = {
    "elementwise": _elementwise,
    "comparison": _elementwise,
    "logic": _elementwise,
    "quantisation": _elementwise,
    "cast": _cast,
    "identity": _layout,
    "view": _layout,
    "creation": _filled,
    "movement": _moved,
    "gather": of_rows("gather"),
    "scatter": of_rows("scatter"),
    "reduction": _reduced,
    "scan": of_rows("scan"),
    "sort": _sorted,
    "product": product,
    "convolution": convolution,
    "pooling": of_rows("pool"),
    "resampling": _resampled,
    "normalisation": norm,
    "softmax": of_rows("softmax"),
    "attention": attention,
    "recurrent": recurrent,
    "random": of_rows("random"),
    "dropout": _dropout,
    "collective": collective,
}
_BACKWARD: Mapping[str, Lowering] = {
    "elementwise": _elementwise_backward,
    "cast": _cast_backward,
    "identity": _view_backward,
    "view": _view_backward,
    "movement": _movement_backward,
    "gather": _gather_backward,
    "reduction": _reduction_backward,
    "product": product_backward,
    "convolution": convolution_backward,
    "normalisation": norm_backward,
    "attention": attention_backward,
    "recurrent": recurrent_backward,
    "collective": collective_backward,
}
