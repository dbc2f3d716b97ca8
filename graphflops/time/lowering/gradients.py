"""The kernels of the gradients of one call, by the kind of its operator."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.memory.gradient_formulas import gradient_kernels
from graphflops.rules.work import work_of_launch
from graphflops.time.kernel import Kernel, Rows, Strided
from graphflops.time.lowering.attentions import attention_backward
from graphflops.time.lowering.calls import forward_kernels
from graphflops.time.lowering.collectives import collective_backward
from graphflops.time.lowering.convolutions import convolution_backward
from graphflops.time.lowering.losses import loss_backward
from graphflops.time.lowering.moved import (
    copy,
    elementwise,
    fill,
    pointwise,
    rows_kernel,
    softmax_kernel,
    sum_to,
)
from graphflops.time.lowering.norms import norm_backward, weight_norm
from graphflops.time.lowering.pooling import pooling_backward
from graphflops.time.lowering.products import product_backward
from graphflops.time.lowering.recurrences import recurrent_backward
from graphflops.time.lowering.scatters import added_rows, scattered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.lowering.moved import Lowering


def backward_kernels(call: ConcreteCall) -> list[Kernel]:
    """What the gradients of a call launch, in order."""
    if call.gradient is None or not call.gradient.gradients:
        return []
    lower = _BY_NAME.get(call.operator.name) or _BACKWARD.get(call.operator.kind, _other_backward)
    return lower(call)


def _wanted(call: ConcreteCall) -> list[Tensor]:
    """The operands that want a gradient."""
    assert call.gradient is not None
    return [call.operands[place] for place, _ in call.gradient.gradients if place < len(call.operands)]


def _elementwise_backward(call: ConcreteCall) -> list[Kernel]:
    """The kernels of each wanted operand's formula, and a sum over the axes along which the operand is repeated."""
    out = call.out
    assert call.gradient is not None
    if out is None:
        return []
    kernels = []
    for place, has_memory in call.gradient.gradients:
        if place >= len(call.operands):
            continue
        operand = call.operands[place]
        if has_memory:
            kernels += _of_formula(call, place, out)
        if operand.numel < out.numel:
            kernels.append(_summed(out, operand))
    return kernels


def _of_formula(call: ConcreteCall, place: int, out: Tensor) -> list[Kernel]:
    """The kernels of one operand's gradient; one kernel where it is fused, or no formula is known."""
    found = gradient_kernels(call.call, place, call.values)
    if found is None or found.formula.is_fused:
        return [_one_kernel(call, out)]
    tensors: list[Tensor] = []
    kernels = []
    for launch in found.launches:
        if not launch.leaves:  # one number
            kernels.append(elementwise(out, 0, out.bits // _BYTE))
            tensors.append(out)
            continue
        read = [
            tensors[each] if isinstance(each, int) else call.named(found.named.get(each, "")) or out
            for each in launch.operands
        ]
        leaves = [call.named(found.named.get(leaf, "")) or out for leaf in launch.leaves]
        made = max(leaves, key=lambda leaf: (leaf.numel, leaf.bits))  # a mask is no wider than what it hides
        written = made.numel if launch.is_mask else made.full_bytes
        work = work_of_launch(launch)
        count = (work.flops + work.transcendentals) * made.numel
        kernels.append(pointwise(made, read, sum(x.nbytes for x in read), written, count))
        tensors.append(replace(made, bits=_BYTE, nbytes=made.numel) if launch.is_mask else made)
    return kernels


def _one_kernel(call: ConcreteCall, out: Tensor) -> Kernel:
    """One kernel for the gradient of an operator; transcendentals run beside, on units of their own."""
    cost = call.backward_cost
    count = sum(has_memory for _, has_memory in call.gradient.gradients) if call.gradient else 1
    read, work = cost.read_bytes // count, (cost.vector_flops + cost.transcendentals) // count
    return pointwise(out, [out, *call.operands[:1]], read, out.full_bytes, work)


def _summed(out: Tensor, operand: Tensor) -> Kernel:
    """The sum of a gradient over the axes that were broadcast; over a few repeats it runs like a pointwise kernel."""
    if out.numel < _FEW_REPEATS * operand.numel:
        return elementwise(out, out.full_bytes, operand.full_bytes, out.numel)
    before = out.rank - operand.rank
    kept = [before + axis for axis, size in enumerate(operand.shape) if size == out.shape[before + axis]]
    return sum_to(out, kept)


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
        variant = "joined" if name == "unbind" else ""
        return [Kernel("copy", x.dtype, 0, 0, x.full_bytes, x.full_bytes, variant=variant)]
    if name == "expand" and x.numel < out.numel:
        return [_summed(out, x)]
    return []


def _reduction_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient is repeated over the axes that were reduced; a mean divides it first."""
    out = call.out
    if out is None or not call.operands:
        return []
    x = call.operands[0]
    if call.operator.name == "sum":
        return []
    if call.operator.name == "mean":
        return [_spread(x, out)]
    return [elementwise(x, x.full_bytes, x.full_bytes, x.numel)]


def _spread(x: Tensor, out: Tensor) -> Kernel:
    """The gradient of a mean: that of the result, divided and repeated."""
    spread = elementwise(x, out.full_bytes, x.full_bytes, x.numel, variant="strided")
    return replace(spread, sizes=Strided(x.numel, 2, 2))


def _pooling_backward(call: ConcreteCall) -> list[Kernel]:
    """To one position an adaptive average is a mean."""
    out = call.out
    is_mean = out is not None and call.operator.name == "adaptive_avg_pool" and prod(out.shape[2:]) == 1
    if out is not None and is_mean and call.operands:
        return [_spread(call.operands[0], out)]
    return pooling_backward(call)


def _rolled_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient is turned back."""
    return forward_kernels(call)


def _resampling_backward(call: ConcreteCall) -> list[Kernel]:
    """Interpolation adds to each position of the operand, one thread after another; zeros come first."""
    out = call.out
    x = call.operand("x")
    if out is None or x is None or not x.numel:
        return []
    if "bicubic2d" in call.operator.word and "_aa" not in call.operator.word:
        size = _CORNERS_OF_CUBIC * out.full_bytes
        adds_of_cubic = Kernel("scatter", x.dtype, 0, 0, out.full_bytes, size, variant="bicubic")
        return [fill(x), adds_of_cubic]
    if "linear" not in call.operator.word:
        return _other_backward(call)
    adds = Rows(x.numel, max(out.numel * _CORNERS // x.numel, 1), is_inner=False)
    moved = (out.full_bytes, _CORNERS * out.full_bytes)
    return [fill(x), Kernel("scatter", x.dtype, 0, 0, *moved, adds, variant="interpolation")]


def _scan_backward(call: ConcreteCall) -> list[Kernel]:
    """The same scan from the last element to the first: the gradient is turned around before and after."""
    out = call.out
    if out is None:
        return []
    turned = Kernel(
        "copy", out.dtype, read_bytes=out.full_bytes, written_bytes=out.full_bytes, variant="strided"
    )
    return [turned, rows_kernel("scan", out, call, out.full_bytes, out.full_bytes), turned]


def _gather_backward(call: ConcreteCall) -> list[Kernel]:
    """Zeros of the table's size, and the gradient's rows added into them."""
    out = call.out
    table = call.operand("weight", "x")
    if out is None or table is None or not table.requires_grad:
        return []
    indices = max(out.numel // max(prod(table.shape[1:]), 1), 1)
    moved = (out.full_bytes, out.full_bytes)
    if call.operator.name == "embedding" and indices <= _UNSORTED:
        sizes = Rows(table.shape[-1], indices, is_inner=False)
        return [
            fill(table),
            Kernel("scatter", table.dtype, 0, 0, *moved, sizes, variant="embedding_backward"),
        ]
    if call.operator.name in ("embedding", "embedding_bag", "index"):
        order = _sorted_indices(call, indices)
        return [fill(table), order, Kernel("scatter", table.dtype, 0, 0, *moved, variant="sorted")]
    if call.operator.name == "gather":
        return [fill(table), scattered(table, out.numel, "scatter_add")]
    return [fill(table), added_rows(table, out.numel)]


def _sorted_indices(call: ConcreteCall, rows: int) -> Kernel:
    """The sort of the indices of all rows; of bags, of the entries of all bags."""
    entries = call.operand("index") if call.operator.name == "embedding_bag" else None
    count = rows if entries is None else entries.numel
    kind = "index" if call.operator.name == "index" else "embedding"
    width = _INDEX_BYTES * count
    return Kernel("sort", "int64", 0, 0, width, width, Rows(1, count), variant=f"{kind}_indices")


def _movement_backward(call: ConcreteCall) -> list[Kernel]:
    """Parts of the gradient are views of it; what was padded or repeated takes a copy."""
    if call.operator.name in ("cat", "stack"):
        return []
    return [copy(x) for x in _wanted(call)]


def _softmax_backward(call: ConcreteCall) -> list[Kernel]:
    """Of a softmax, the gradient is multiplied by the result first."""
    out = call.out
    if out is None or not out.numel:
        return []
    size, name = out.full_bytes, call.operator.name
    product = [] if name.startswith("log") else [elementwise(out, 2 * size, size, out.numel)]
    return [*product, softmax_kernel(call, out, f"{name}_backward", 2 * size, size)]


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


_BYTE = 8  # bits
_FEW_REPEATS = 32
_UNSORTED = 3072  # indices that one kernel adds in any order (Embedding.cu of ATen)
_INDEX_BYTES = 8
_CORNERS = 4
_CORNERS_OF_CUBIC = 16
_FAMILY_OF_BACKWARD = {
    "resampling": "pool",
    "dropout": "elementwise",
    "scan": "scan",
}
_BY_NAME: Mapping[str, Lowering] = {
    "roll": _rolled_backward,
    "weight_norm": weight_norm,
}
_BACKWARD: Mapping[str, Lowering] = {
    "elementwise": _elementwise_backward,
    "cast": _cast_backward,
    "identity": _view_backward,
    "view": _view_backward,
    "movement": _movement_backward,
    "gather": _gather_backward,
    "reduction": _reduction_backward,
    "pooling": _pooling_backward,
    "loss": loss_backward,
    "resampling": _resampling_backward,
    "scan": _scan_backward,
    "softmax": _softmax_backward,
    "product": product_backward,
    "convolution": convolution_backward,
    "normalisation": norm_backward,
    "attention": attention_backward,
    "recurrent": recurrent_backward,
    "collective": collective_backward,
}
