"""The kernels of one call by the kind of its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Rows
from graphflops.time.lowering.attentions import attention
from graphflops.time.lowering.collectives import collective
from graphflops.time.lowering.convolutions import convolution
from graphflops.time.lowering.moved import (
    copy,
    elementwise,
    fill,
    is_strided,
    of_rows,
    reduction,
    rows_kernel,
)
from graphflops.time.lowering.norms import norm
from graphflops.time.lowering.products import product
from graphflops.time.lowering.recurrences import recurrent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.time.concrete import ConcreteCall
    from graphflops.time.lowering.moved import Lowering


def forward_kernels(call: ConcreteCall) -> list[Kernel]:
    """What a call launches in the forward, in order; nothing for a view."""
    lower = _BY_NAME.get(call.operator.name) or _FORWARD.get(call.operator.kind, _other)
    if lower is _layout or call.is_copy is not None:
        return _layout(call)
    if call.cost.read_bytes + call.cost.written_bytes == 0:
        return []
    return lower(call)


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


def _gathered(call: ConcreteCall) -> list[Kernel]:
    """Rows of the result are read from anywhere in the table."""
    out = call.out
    if out is None:
        return []
    return [rows_kernel("gather", out, call, call.cost.read_bytes, call.cost.written_bytes)]


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
    "gather": _gathered,
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
