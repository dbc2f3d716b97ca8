"""Lowers what libraries compute: matrix products, convolutions and attention, with the copies that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import Dim, dim_max, prod
from graphflops.graph import Ref
from graphflops.inductor.layout_choice import image_and_weight, is_of_images
from graphflops.inductor.padding import aligned, padded_columns, padded_inner
from graphflops.inductor.unfused_attention import unfused
from graphflops.kernels import buffers as kernels
from graphflops.kernels.operand_copies import operand_copies
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.inductor.lowering import Lowering
    from graphflops.kernels.attention_memory import AttentionMemory
    from graphflops.passes.program import PricedCall

_FLOAT_BYTES, _SINGLE = 4, 32
_ALIGNED = 8  # channels that tensor cores read at once in half precision
_IN_PLACE = ("all_reduce", "broadcast")


def product(
    low: Lowering, call: PricedCall, operands: Sequence[str], made: Sequence[str]
) -> Mapping[str, str]:
    """A matrix product, after copies of operands whose axes cannot be merged, or that are padded."""
    names = call.tensors(low.values)
    copies = operand_copies(call, low.execution.layouts)
    reads = [
        low.copied(call, tensor, copies[name].nbytes, f"operand {place}", low.typed(name).dtype.bits, of=name)
        if name in copies
        else tensor
        for place, (name, tensor) in enumerate(zip(names, operands, strict=True))
    ]
    kept = {f"operand {place}": tensor for place, tensor in enumerate(reads)}
    views = frozenset(reshaped_operands(call, low.values, reads))
    has_bias = call.node.operator.name == "linear" and isinstance(call.node.arguments().get("bias"), Ref)
    out, size = made[0], low.nbytes(made[0])
    if has_bias and (copies or _is_added_apart(low, call)):
        out = _added(low, call, made[0])
        *reads, bias = reads
    more: dict[str, Any] = {"workspace": call.estimate.workspace, "views": views}
    padded = padded_columns(call, low.values, adds_bias=has_bias and out == made[0])
    if padded is not None:
        reads, size = _padded(low, call, reads, padded)
        more = {"views": views, "is_padded": True}
    elif (inner := padded_inner(call, low.values)) is not None:
        reads, size = _padded_batch(low, call, operands, inner)
        more = {"is_padded": True}
    low.add(call, "extern", (out,), reads, {out: size}, **more)
    if out != made[0]:
        low.add(call, "pointwise", made[:1], (out, bias))
    return kept


def _is_added_apart(low: Lowering, call: PricedCall) -> bool:
    """Whether the bias is added in the kernels that read the result: in float32, if none of these is of a library."""
    return low.typed(call.tensors(low.values)[1]).dtype.bits == _SINGLE and not low.is_read_by_library(
        call.node.outputs[0] or ""
    )


def _added(low: Lowering, call: PricedCall, out: str) -> str:
    """A tensor for the result of a library, to which a bias is added then."""
    inner = f"{out} without bias"
    low.joint.labels[inner] = (out, "value")
    return inner


def _padded(low: Lowering, call: PricedCall, reads: Sequence[str], columns: int) -> tuple[list[str], Dim]:
    """Copies of a linear layer's operands with their sizes up to multiples of 8, and the bytes of its result."""
    x, weight = (low.typed(name) for name in call.tensors(low.values)[:2])
    width = weight.dtype.bits // 8
    rows, inner = (
        aligned(size) if isinstance(size, int) else size for size in (prod(x.shape[:-1]), weight.shape[1])
    )
    sizes: list[Dim] = [rows * inner * width, inner * columns * width, columns * width]
    is_whole = sizes[0] == x.numel * width
    found = [
        name
        if place == 0 and is_whole
        else low.copied(call, name, sizes[place], f"padded {place}", weight.dtype.bits, is_alone=True)
        for place, name in enumerate(reads)
    ]
    return found, rows * columns * width


def _padded_batch(
    low: Lowering, call: PricedCall, operands: Sequence[str], inner: int
) -> tuple[list[str], Dim]:
    """Copies of the operands of batched products with their sizes up to multiples of 8, and the bytes of the result."""
    names = call.tensors(low.values)[:2]
    out = low.typed(call.node.outputs[0] or "")
    batch, width = prod(out.shape[:-2]), out.dtype.bits // 8
    rows, columns = (aligned(size) if isinstance(size, int) else size for size in out.shape[-2:])
    sizes = (batch * rows * inner * width, batch * inner * columns * width)
    reads = [
        low.copied(call, tensor, size, f"padded {place}", out.dtype.bits, of=name)
        for place, (name, tensor, size) in enumerate(zip(names, operands, sizes, strict=False))
    ]
    return reads, batch * rows * columns * width


def reshaped_operands(call: PricedCall, values: Mapping[str, Value], reads: Sequence[str]) -> list[str]:
    """Of the tensors that a product reads, those whose axes it merges: a linear layer wants two, other products three."""
    most = 2 if call.node.operator.name == "linear" else 3
    types = [values[name] for name in call.tensors(values)]
    return [
        tensor
        for tensor, value in zip(reads, types, strict=True)
        if isinstance(value, TensorType) and value.rank > most
    ]


def convolution(
    low: Lowering, call: PricedCall, operands: Sequence[str], made: Sequence[str]
) -> Mapping[str, str]:
    """A convolution; its weight, and an image, are copied with their channels last. The bias is added after."""
    if image_and_weight(call, low.values) is None:
        return low.extern(call, operands, made)
    names = call.tensors(low.values)
    reads = list(operands[:2])
    bias = operands[2:3] if isinstance(call.node.arguments().get("bias"), Ref) else ()
    workspace: Dim
    if low.channels_last and is_of_images(call, low.values):
        workspace = padded_image(low, names)
        reads = [
            low.copied(call, tensor, low.nbytes(name), use, low.typed(name).dtype.bits, of=name)
            if is_turned(low, name)
            else tensor
            for name, tensor, use in zip(names, operands, ("input", "weight"), strict=False)
        ]
    else:
        workspace = kernels.forward_bytes(call, low.execution.layouts)
    if is_sequence(low, names[0]):
        size = low.nbytes(names[0])
        reads[0] = low.copied(call, operands[0], size, "input", low.typed(names[0]).dtype.bits)
        workspace = dim_max(0, workspace - size)  # eagerly the call itself makes this copy
    out = made[0]
    if not bias:
        low.add(call, "extern", (out,), reads, workspace=workspace, allocates=True)
    else:
        inner = _added(low, call, out)
        low.add(
            call,
            "extern",
            (inner,),
            reads,
            sizes={inner: low.nbytes(out)},
            workspace=workspace,
            allocates=True,
        )
        low.add(call, "pointwise", (out,), (inner, *bias))
    return {f"operand {place}": tensor for place, tensor in enumerate(reads)}


def exchange(
    low: Lowering, call: PricedCall, operands: Sequence[str], made: Sequence[str]
) -> Mapping[str, str]:
    """A collective. One that works in place does so on its operand, or on a copy where something else reads that."""
    is_over = call.node.operator.name in _IN_PLACE and len(made) == 1
    name = call.tensors(low.values)[0]
    if is_over and (low.root.get(name, name) not in low.root or low.is_read_beside(call, name)):
        bits = low.typed(name).dtype.bits
        operands = (low.copied(call, operands[0], low.nbytes(made[0]), "copy", bits, of=name),)
    low.add(call, "extern", made, operands, allocates=not is_over, is_over=is_over, is_exchange=True)
    return {}


def is_turned(low: Lowering, name: str) -> bool:
    """Whether an operand of a convolution has to be copied to have its channels last."""
    value = low.values[name]
    assert isinstance(value, TensorType)
    is_given = low.root.get(name, name) not in low.root
    if not is_given or low.execution.layouts.has_channels_last(name):
        return False
    return value.shape[1] != 1 and any(size != 1 for size in value.shape[2:])


def is_sequence(low: Lowering, name: str) -> bool:
    """Whether an operand is a sequence whose channels are last: a convolution over one axis wants them first."""
    value = low.values[name]
    return isinstance(value, TensorType) and value.rank == 3 and low.execution.layouts.has_channels_last(name)


def padded_image(low: Lowering, names: Sequence[str]) -> Dim:
    """Bytes of an image and its weight once more: what a kernel makes of few channels, in half precision padded to 8."""
    x, weight = (low.values[name] for name in names[:2])
    assert isinstance(x, TensorType)
    assert isinstance(weight, TensorType)
    channels = weight.shape[1]
    if x.shape[1] != channels or not isinstance(channels, int) or channels >= _ALIGNED:
        return 0
    own = x.nbytes + weight.nbytes
    return own * _ALIGNED // channels if x.dtype.bits == 16 else own


def attention(
    low: Lowering, call: PricedCall, operands: Sequence[str], made: Sequence[str]
) -> Mapping[str, str]:
    """A fused kernel that keeps the row sums, or two products with a softmax between them."""
    found = low.execution.attention(call)
    if found is None or not found.is_fused:
        return (
            unfused(low, call, found, operands, made)
            if found is not None
            else low.extern(call, operands, made)
        )
    reads = [*operands]
    if found.mask_copy != 0:
        reads[3] = _converted_mask(low, call, operands[3], found)
    sizes = {made[0]: low.nbytes(made[0])}
    beside = {}
    if low.training or found.choice.kernel == "flash":
        beside["row sums"] = f"{call.node.name} row sums"
        sizes[beside["row sums"]] = prod(found.problem.query.type.shape[:-1]) * _FLOAT_BYTES
        low.joint.labels[beside["row sums"]] = (call.node.name, "saved")
    low.add(call, "extern", (made[0], *beside.values()), reads, sizes=sizes, allocates=True)
    return {**beside, **({"mask": reads[3]} if len(reads) > 3 else {})}


def _converted_mask(low: Lowering, call: PricedCall, mask: str, found: AttentionMemory) -> str:
    """The copy of a mask that a fused kernel reads. The partitioner finds that attentions with one mask share it."""
    shared, size, bits = f"{mask} converted", found.mask_copy, found.problem.query.type.dtype.bits
    if not low.training:
        return low.copied(call, mask, size, "mask", bits)
    if shared not in low.joint.sizes:
        low.add(call, "pointwise", (shared,), (mask,), {shared: size}, low.joint.number(size) * 8 // bits)
    return shared
