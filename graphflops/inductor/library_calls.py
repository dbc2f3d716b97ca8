"""Lowers what libraries compute, and its gradients: matrix products, convolutions, collectives, with copies before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphflops.dims import Dim, dim_max, prod
from graphflops.graph import Ref
from graphflops.inductor.layout_choice import (
    aligned,
    image_and_weight,
    is_of_images,
    is_turned,
    padded_columns,
    padded_inner,
    padded_rows,
)
from graphflops.inductor.lowering import GradientLowering, Lowered, Lowering
from graphflops.kernels import buffers as kernels
from graphflops.kernels.beside import operand_copies
from graphflops.kernels.kernel import SINGLE

_ALIGNED = 8  # channels that tensor cores read at once in half precision
_IN_PLACE = ("all_reduce", "broadcast")
_OF_LIBRARIES = frozenset({"product", "convolution", "attention"})  # kinds


def product(low: Lowering, of: Lowered) -> None:
    """A matrix product, after copies of operands whose axes cannot be merged, or that are padded."""
    call, out = of.call, of.made[0]
    copies = operand_copies(call, low.execution.layouts)
    reads = [*of.operands]
    for place, name in enumerate(of.names):
        if name in copies:
            size, bits = copies[name].nbytes, low.typed(name).dtype.bits
            rows = f"{name} in rows" if low.training else ""  # the partitioner finds what is copied twice
            reads[place] = low.copied(of, reads[place], size, f"operand {place}", bits, value=name, name=rows)
    of.beside = {f"operand {place}": tensor for place, tensor in enumerate(reads)}
    views, made, size = _reshaped(low, of, reads), out, low.nbytes(out)
    has_bias = call.node.operator.name == "linear" and isinstance(call.node.arguments().get("bias"), Ref)
    if has_bias:  # added in the kernels that read the result: in float32, if none of these is of a library
        is_single = low.typed(of.names[1]).dtype.bits == SINGLE
        readers = low.readers_of(call.node.outputs[0] or "")
        if copies or (is_single and all(other.node.operator.kind not in _OF_LIBRARIES for other in readers)):
            made = _without_bias(low, out)
            *reads, bias = reads
    more: dict[str, Any] = {"workspace": call.estimate.workspace, "views": views}
    padded = padded_columns(call, low.values, adds_bias=has_bias and made == out)
    if padded is not None:
        reads, size = _padded(low, of, reads, padded)
        more = {"views": views, "is_padded": True}
    elif (inner := padded_inner(call, low.values)) is not None:
        reads, size = _padded_batch(low, of, inner)
        more = {"is_padded": True}
    low.add(of, "extern", {made: size}, reads, **more)
    if made != out:
        low.add(of, "pointwise", (out,), (made, bias))


def product_gradient(back: GradientLowering, of: Lowered) -> None:
    """A product for each factor; what was added to the product gets the sum of its gradient."""
    call, low = of.call, back.forward
    assert call.gradient is not None
    operands = [of.beside.get(f"operand {place}", tensor) for place, tensor in enumerate(of.operands)]
    added = [ref.name for key in ("bias", "c") if isinstance(ref := call.node.arguments().get(key), Ref)]
    wide, views = low.elements(call.node.outputs[0]), _reshaped(low, of, operands)
    is_padded = padded_columns(call, low.values) is not None
    for place, tensor in of.fresh.items():
        if of.names[place] in added:
            count = low.elements(of.names[place])
            kind: Any = "reduction" if count < wide else "pointwise"
            back.add(of, kind, (tensor,), of.incoming[:1], wide, kept=count, is_inner=False)
            continue
        others = [operands[other] for other in sorted(call.gradient.operands) if other != place]
        reads = [*of.incoming[:1], *others]
        if is_padded:
            reads[0] = _padded_copy(back, of, reads[0], padded_rows(call, low.values))
            if place == 0:
                reads[1:] = [_padded_copy(back, of, x, low.nbytes(of.names[1])) for x in others]
        more: dict[str, Any] = {"workspace": back.workspace(of), "views": views, "is_padded": is_padded}
        back.add(of, "extern", (tensor,), reads, **more)


def _padded_copy(back: GradientLowering, of: Lowered, tensor: str, size: Dim) -> str:
    """Append a copy with rows or columns up to a multiple of 8."""
    copy = back.new(of.call.node.name, size)
    back.add(of, "pointwise", (copy,), (tensor,), back.joint.number(size))
    return copy


def _without_bias(low: Lowering, out: str) -> str:
    """A tensor for the result of a library, to which a bias is added then."""
    inner = f"{out} without bias"
    low.joint.labels[inner] = (out, "value")
    return inner


def _padded(low: Lowering, of: Lowered, reads: Sequence[str], columns: int) -> tuple[list[str], Dim]:
    """Copies of the operands with their sizes up to multiples of 8, and the bytes of its result."""
    x, weight = (low.typed(name) for name in of.names[:2])
    bits = weight.dtype.bits
    rows, inner = map(_aligned, (prod(x.shape[:-1]), x.shape[-1]))
    sizes: list[Dim] = [each * bits // 8 for each in (rows * inner, inner * columns, columns)]
    is_whole = sizes[0] == x.numel * bits // 8
    found = [*reads]
    for place in range(is_whole, len(found)):
        found[place] = low.copied(of, reads[place], sizes[place], f"padded {place}", bits, is_alone=True)
    return found, rows * columns * bits // 8


def _padded_batch(low: Lowering, of: Lowered, inner: int) -> tuple[list[str], Dim]:
    """Copies of the operands of batched products with their sizes up to multiples of 8, and the bytes of the result."""
    out = low.typed(of.call.node.outputs[0] or "")
    batch, width = prod(out.shape[:-2]), out.dtype.bits // 8
    rows, columns = map(_aligned, out.shape[-2:])
    sizes = (batch * rows * inner * width, batch * inner * columns * width)
    reads, bits = list[str](), out.dtype.bits
    for place, (name, tensor, size) in enumerate(zip(of.names, of.operands, sizes, strict=False)):
        reads.append(low.copied(of, tensor, size, f"padded {place}", bits, value=name))
    return reads, batch * rows * columns * width


def _aligned(size: Dim) -> Dim:
    """A size rounded up to what tensor cores load at once; an open one as it is."""
    return aligned(size) if isinstance(size, int) else size


def _reshaped(low: Lowering, of: Lowered, reads: Sequence[str]) -> frozenset[str]:
    """Of the tensors that a product reads, those whose axes it merges: a linear layer wants two, other products three."""
    most = 2 if of.call.node.operator.name == "linear" else 3
    pairs = zip(reads, of.names, strict=True)
    return frozenset(tensor for tensor, name in pairs if low.typed(name).rank > most)


def convolution(low: Lowering, of: Lowered) -> None:
    """A convolution; its weight, and an image, are copied with their channels last. The bias is added after."""
    call, out = of.call, of.made[0]
    if image_and_weight(call, low.values) is None:
        low.extern(of)
        return
    reads = list(of.operands[:2])
    bias = of.operands[2:3] if isinstance(call.node.arguments().get("bias"), Ref) else ()
    workspace: Dim
    is_last = low.channels_last and is_turned(call, low.values, is_copied=low.training)
    if is_last:
        workspace = _padded_image(low, of)
        for place, (name, use) in enumerate(zip(of.names, ("input", "weight"), strict=False)):
            # Whether it has to be copied to have its channels last.
            shape, is_given = low.typed(name).shape, low.root.get(name, name) not in low.root
            lies_so = not is_given or low.execution.layouts.has_channels_last(name)
            if not lies_so and shape[1] != 1 and any(size != 1 for size in shape[2:]):
                bits = low.typed(name).dtype.bits
                reads[place] = low.copied(of, reads[place], low.nbytes(name), use, bits, value=name)
    else:
        workspace = kernels.forward_bytes(call, low.execution.layouts)
    x = low.typed(of.names[0])
    if x.rank == 3 and low.execution.layouts.has_channels_last(of.names[0]):  # a sequence wants them first
        size = low.nbytes(of.names[0])
        reads[0] = low.copied(of, of.operands[0], size, "input", x.dtype.bits)
        workspace = dim_max(0, workspace - size)  # eagerly the call itself makes this copy
    made = _without_bias(low, out) if bias else out
    low.add(of, "extern", {made: low.nbytes(out)}, reads, workspace=workspace, allocates=True)
    if bias:
        is_other = low.channels_last and not is_last and is_of_images(call, low.values)
        moved = frozenset((made,) if is_other else ())
        low.add(of, "pointwise", (out,), (made, *bias), moved=moved)
    of.beside = {f"operand {place}": tensor for place, tensor in enumerate(reads)}


def convolution_gradient(back: GradientLowering, of: Lowered) -> None:
    """One call for the gradients of image and weight; the bias gets a sum."""
    call, low = of.call, back.forward
    operands = [of.beside.get(f"operand {place}", tensor) for place, tensor in enumerate(of.operands[:2])]
    workspace = back.workspace(of)
    if not (low.channels_last and is_turned(call, low.values, is_copied=False)):
        is_other = low.channels_last and is_of_images(call, low.values)
        workspace = dim_max(workspace, kernels.backward_bytes(call, low.execution.layouts, is_other))
    own = [tensor for place, tensor in of.fresh.items() if place < 2]
    if own:
        back.add(of, "extern", own, (*of.incoming[:1], *operands), workspace=workspace, allocates=True)
    wide = low.elements(call.node.outputs[0])
    order = {"is_inner": not low.channels_last, "in_order": False}
    for place, tensor in of.fresh.items():
        if place >= 2:
            kept = low.elements(of.names[place])
            back.add(of, "reduction", (tensor,), of.incoming[:1], wide, kept=kept, **order)


def _padded_image(low: Lowering, of: Lowered) -> Dim:
    """Bytes of an image and its weight once more: what a kernel makes of few channels, in half precision padded to 8."""
    x, weight = (low.typed(name) for name in of.names[:2])
    channels = weight.shape[1]
    if x.shape[1] != channels or not isinstance(channels, int) or channels >= _ALIGNED:
        return 0
    own = x.nbytes + weight.nbytes
    return own * _ALIGNED // channels if x.dtype.bits == 16 else own


def exchange(low: Lowering, of: Lowered) -> None:
    """A collective. One that works in place does so on its operand, or on a copy where something else reads that."""
    is_over = of.call.node.operator.name in _IN_PLACE and len(of.made) == 1
    name, operands = of.names[0], of.operands
    owner = low.root.get(name, name)
    is_read = any(other is not of.call and not low.views(other) for other in low.readers_of(owner))
    if is_over and (owner not in low.root or is_read):
        bits = low.typed(name).dtype.bits
        operands = (low.copied(of, operands[0], low.nbytes(of.made[0]), "copy", bits, value=name),)
    low.add(of, "extern", of.made, operands, allocates=not is_over, is_over=is_over, is_exchange=True)
