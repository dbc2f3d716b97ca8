"""Lowers library calls and their gradients: matrix products, convolutions and collectives, with copies before them.

If it pays, images are channels last (`decide_layout_opt`) and products have padded sizes (`pad_mm`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphflops.dims import Dim, dim_max, prod, total
from graphflops.execution.strides import Values
from graphflops.graph import Ref
from graphflops.inductor.lowering import Extern, Loop, Lowered, Lowering, Reduction
from graphflops.kernels import buffers as kernels, cudnn
from graphflops.kernels.beside import Copy, operand_copies
from graphflops.kernels.choices import constants, limits
from graphflops.kernels.convolution import Convolution, Layout, known, up
from graphflops.kernels.kernel import HALF, IMAGE_RANK, SINGLE
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

ALIGNED, _LINE_BYTES, _LONG = limits("inductor_2", "pad", "aligned line long")
_IN_PLACE = ("all_reduce", "broadcast")
_LAST = Layout(operand=True, weight=True)
_PADDING = "#3"  # of windows, an argument by place


def product(low: Lowering, of: Lowered) -> None:
    """A matrix product, after copies of operands whose axes do not merge or are padded. It copies others for BLAS itself."""
    call, out = of.call, of.made[0]
    copies = operand_copies(call, low.execution.layouts)
    reads, inside = [*of.operands], call.estimate.workspace + _inside(copies, of.names)
    for place, name in enumerate(of.names):
        if name in copies and not copies[name].is_inside:
            rows = f"{name} in rows" if low.training else ""  # the partitioner finds equal copies
            size, use = copies[name].nbytes, f"operand {place}"
            reads[place] = low.copied(of, reads[place], size, use, name, name=rows)
    of.operands = tuple(reads)
    views, made, size = _reshaped(low, of, reads), out, low.nbytes(out)
    has_bias = call.node.operator.name == "linear" and isinstance(call.node.arguments().get("bias"), Ref)
    if has_bias and copies:  # the kernels that read the result add it
        made = low.joint.without_bias(out)
        *reads, bias = reads
    is_matrix = not has_bias and low.typed(out).rank == 2 and call.node.operator.name in _BY_MATRIX
    more: dict[str, Any] = {"workspace": inside, "views": views}
    adding = "product and bias" if low.typed(of.names[1]).dtype.bits == SINGLE else "product and sum"
    more["role"] = adding if has_bias and not copies else "product" if is_matrix else ""
    padded = padded_columns(call, low.values, adds_bias=has_bias and made == out)
    if padded is not None:
        reads, size = _padded(low, of, reads, low.typed(of.names[0]).shape[-1], padded)
        more |= {"workspace": 0, "is_padded": True}
    low.add(of, Extern, {made: size}, reads, **more)
    if made != out:
        low.add(of, Loop, (out,), (made, bias))


def _inside(copies: Mapping[str, Copy], names: Iterable[str]) -> Dim:
    """Bytes of the copies of these operands that a product makes itself."""
    return total(copies[name].nbytes for name in names if name in copies and copies[name].is_inside)


def product_gradient(low: Lowering, of: Lowered) -> None:
    """A product for each factor; a bias or addend gets the sum of the result's gradient."""
    call = of.call
    added = [ref.name for key in ("bias", "c") if isinstance(ref := call.node.arguments().get(key), Ref)]
    wide, views = low.elements(call.node.outputs[0]), _reshaped(low, of, of.operands)
    padded, copies = padded_columns(call, low.values), operand_copies(call, low.execution.layouts)
    for place, tensor in of.fresh.items():
        if of.names[place] in added:
            count = low.elements(of.names[place])
            low.add_back(of, Reduction, (tensor,), of.incoming, wide, kept=count, is_inner=False)
            continue
        others = [other for other in sorted(of.gradient.operands) if other != place]
        inside = _inside(copies, [of.names[other] for other in others])
        reads = [*of.incoming, *[of.operands[other] for other in others]]
        if padded is not None:  # rows of the gradient start at cache lines
            row = -(-padded * HALF // 8 // _LINE_BYTES) * _LINE_BYTES
            reads[0] = _padded_copy(low, of, reads[0], _rows(call, low.values) * row)
            if place == 0:
                reads[1:] = [_padded_copy(low, of, x, low.nbytes(of.names[1])) for x in reads[1:]]
        more: dict[str, Any] = {"workspace": of.gradient.estimate.workspace + inside, "views": views}
        more["role"] = "product" if low.typed(of.names[place]).rank == 2 else ""
        low.add_back(of, Extern, (tensor,), reads, is_padded=padded is not None, **more)


def _padded_copy(low: Lowering, of: Lowered, tensor: str, size: Dim) -> str:
    """Append a copy with rows or columns padded to a multiple of 8."""
    copy = low.new_gradient(of.call.node.name, size)
    low.add_back(of, Loop, (copy,), (tensor,), low.joint.number(size))
    return copy


def _padded(
    low: Lowering, of: Lowered, reads: Sequence[str], inner: Dim, columns: Dim
) -> tuple[list[str], Dim]:
    """Copies of the operands with sizes padded to multiples of 8, and the bytes of the result."""
    out = low.typed(of.call.node.outputs[0] or "")
    bits = out.dtype.bits
    given = (prod(out.shape[:-1]), inner, columns)
    rows, inner, columns = (up(size, ALIGNED) if isinstance(size, int) else size for size in given)
    sizes = [each * bits // 8 for each in (rows * inner, inner * columns, columns)]
    is_whole = sizes[0] == low.typed(of.names[0]).numel * bits // 8
    found = [*reads]
    for place in range(is_whole, len(found)):
        found[place] = low.copied(of, reads[place], sizes[place], f"padded {place}", "", bits, is_alone=True)
    return found, rows * columns * bits // 8


def _reshaped(low: Lowering, of: Lowered, reads: Sequence[str]) -> dict[str, str]:
    """By tensor whose axes a product merges, the value: a linear layer takes two axes, other products three."""
    most = 2 if of.call.node.operator.name == "linear" else 3
    pairs = zip(reads, of.names, strict=True)
    return {tensor: name for tensor, name in pairs if low.typed(name).rank > most}


def patches(low: Lowering, of: Lowered) -> None:
    """Patches of an image: the padded image, which is not recomputed, and its elements by their places."""
    x, given = low.typed(of.names[0]), of.call.node.arguments().get(_PADDING)
    sides = given if isinstance(given, tuple) else (0, 0)
    rows, columns = [each if isinstance(each, int) else 0 for each in sides]
    image, reads = f"{of.call.node.name} padded", tuple(of.operands)
    if rows or columns:
        count = prod((*x.shape[:-2], x.shape[-2] + 2 * rows, x.shape[-1] + 2 * columns))
        more: dict[str, Any] = {"recomputable": False, "instructions": 1}
        low.add(of, Loop, {image: count * x.dtype.bits // 8}, reads, low.joint.number(count), **more)
        reads = (image,)
    low.add(of, Loop, of.made, reads, moved=frozenset(reads))


def convolution(low: Lowering, of: Lowered) -> None:
    """A convolution; its weight and image are copied to channels last if they have to be. The bias is added afterwards."""
    call, out, conv = of.call, of.made[0], convolution_of(of.call, low.values)
    if conv is None:
        low.extern(of)
        return
    reads = list(of.operands[:2])
    bias = of.operands[2:] if isinstance(call.node.arguments().get("bias"), Ref) else ()
    is_last = low.joint.channels_last and is_turned(conv, is_copied=low.training)
    if is_last:
        workspace = cudnn.workspace(conv, "forward", _LAST, low.joint.platform)
        for place, (name, use) in enumerate(zip(of.names, ("input", "weight"), strict=False)):
            # Whether the tensor has to be copied to be channels last.
            shape, is_given = low.typed(name).shape, low.root.get(name, name) not in low.root
            lies_so = not is_given or low.execution.layouts.has_channels_last(name)
            if not lies_so and shape[1] != 1 and any(size != 1 for size in shape[2:]):
                # Few channels of a pixel: a block goes along pixels, each of which has them elsewhere.
                is_few = use == "input" and isinstance(shape[1], int) and shape[1] < cudnn.FEW
                role = "apart" if is_few else ""
                reads[place] = low.copied(of, reads[place], low.nbytes(name), use, name, role=role)
    else:
        workspace = kernels.forward_bytes(call, low.execution.layouts)
    x = low.typed(of.names[0])
    if x.rank == 3 and low.execution.layouts.has_channels_last(of.names[0]):  # sequences need channels first
        size = low.nbytes(of.names[0])
        reads[0] = low.copied(of, of.operands[0], size, "input", "", x.dtype.bits)
        workspace = dim_max(0, workspace - size)  # in eager execution the call makes this copy
    made = low.joint.without_bias(out) if bias else out
    low.add(of, Extern, {made: low.nbytes(out)}, reads, workspace=workspace, into="own")
    if bias:
        is_other = low.joint.channels_last and not is_last and is_turned(conv)
        low.add(of, Loop, (out,), (made, *bias), moved=frozenset((made,) if is_other else ()))
    of.operands = (*reads, *bias)


def convolution_gradient(low: Lowering, of: Lowered) -> None:
    """One call for the gradients of image and weight; a bias gets a sum."""
    call, conv, workspace = of.call, convolution_of(of.call, low.values), of.gradient.estimate.workspace
    if conv is not None and low.joint.channels_last and is_turned(conv, is_copied=False):
        places = {"input_gradient": 0, "weight_gradient": 1}
        phases = [name for name, place in places.items() if place in of.fresh]
        of_phases = [cudnn.workspace(conv, phase, _LAST, low.joint.platform) for phase in phases]
        workspace = dim_max(workspace, *of_phases)
    else:
        is_last = low.joint.channels_last and is_turned(conv)
        copied = low.nbytes(call.node.outputs[0] or "") if is_last else 0  # the result's gradient, row-major
        workspace = dim_max(workspace, copied + kernels.backward_bytes(call, low.execution.layouts))
    own = [tensor for place, tensor in of.fresh.items() if place < 2]
    if own:
        low.add_back(of, Extern, own, (*of.incoming, *of.operands[:2]), workspace=workspace, into="own")
    wide = low.elements(call.node.outputs[0])
    is_inner = not low.joint.channels_last
    for place, tensor in of.fresh.items():
        if place >= 2:
            kept = low.elements(of.names[place])
            low.add_back(of, Reduction, (tensor,), of.incoming, wide, kept=kept, is_inner=is_inner)


def exchange(low: Lowering, of: Lowered) -> None:
    """A collective. One that works in place uses its operand, or a copy if something else reads the operand."""
    is_over = of.call.node.operator.name in _IN_PLACE and len(of.made) == 1
    name, operands = of.names[0], of.operands
    owner = low.root.get(name, name)
    readers = [call for x, calls in low.readers.items() if low.root.get(x, x) == owner for call in calls]
    # Those that do more than make a view.
    computing = [call for call in readers if all(low.root.get(x or "") == x for x in call.node.outputs)]
    if is_over and (owner not in low.root or any(call is not of.call for call in computing)):
        operands = (low.copied(of, operands[0], low.nbytes(of.made[0]), "copy", name),)
    low.add(of, Extern, of.made, operands, into="operand" if is_over else "own", role="exchange")


# Time with channels last relative to without, by class of convolution.
_GROUPED, _DEFAULT = constants("inductor_2", "channels_last", "grouped default")
_NARROWING, _SMALL = constants("inductor_2", "channels_last", "narrowing small")
_MOST_NODES, _FEW_CHANNELS = limits("inductor_2", "channels_last", "most_nodes few")
# Number of operators that a call becomes, about; 1 for other kinds.
_OPS = {"product": 4, "normalisation": 11, "softmax": 5, "attention": 3}
_OPS_OF_GATE = 6


def prefers_channels_last(calls: Sequence[PricedCall], values: Values, given: int, *, training: bool) -> bool:
    """Whether a program's convolutions run channels last. given: the number of its inputs, with weights."""
    found = [(call, conv) for call in calls if (conv := convolution_of(call, values)) is not None]
    sizes = [size for _, conv in found for size in (*conv.x.shape, *conv.weight.shape)]
    nodes = given + sum(map(_nodes, calls))
    is_open = nodes >= _MOST_NODES * len(found) or not all(isinstance(size, int) for size in sizes)
    if is_open or not any(conv.x.rank == IMAGE_RANK for _, conv in found):
        return False
    times = [_time_channels_last(conv) for _, conv in found]
    if training:
        is_slow = _GROUPED in times or any(_is_narrowing(conv) for _, conv in found)
        return not is_slow and any(time != _SMALL for time in times)
    work = [flops if isinstance(flops := call.estimate.matrix_flops, int) else 0 for call, _ in found]
    return sum(flops * time for flops, time in zip(work, times, strict=True)) <= sum(work)


def _nodes(call: PricedCall) -> int:
    """About how many nodes torch.compile's graph has for a call: none for assertions and for dropout in evaluation."""
    node, operator = call.node, call.node.operator
    if not node.outputs or (operator.kind == "dropout" and node.arguments().get("training") is False):
        return 0
    return _OPS_OF_GATE if operator.has("gate") else _OPS.get(operator.kind, 1)


def is_turned(conv: Convolution | None, *, is_copied: bool = True) -> bool:
    """Whether a convolution runs channels last in a program that does: it has two spatial axes.

    is_copied: whether its weight is a channels-last copy, as in the forward of a training step. One channel has the same
    layout either way. Then the weight decides, and without such a copy the result's channels come first.
    """
    return conv is not None and conv.x.rank == IMAGE_RANK and (is_copied or conv.x.shape[1] != 1)


def convolution_of(call: PricedCall, values: Values) -> Convolution | None:
    """The convolution that a call runs; None for other calls, and for those that compute gradients."""
    is_known = call.node.operator.kind == "convolution" and not call.estimate.unknown
    return Convolution.of(call, values) if is_known and "grad" not in call.node.arguments() else None


def _time_channels_last(conv: Convolution) -> float:
    if conv.groups > 1 and conv.weight.shape[1] != 1:
        return _GROUPED
    if max(map(known, conv.weight.shape[:2])) <= _FEW_CHANNELS:
        return _SMALL
    return _NARROWING if _is_narrowing(conv) else _DEFAULT


def _is_narrowing(conv: Convolution) -> bool:
    """Whether a convolution of more than one position has at most half as many results as channels."""
    results, channels = map(known, conv.weight.shape[:2])
    return 2 * results <= channels and conv.kernel[0] != 1


# Multiply-adds per element that is read or written: half of what an H200 computes while it loads an element.
_COMPUTE_BOUND = 95
_BY_MATRIX = frozenset({"linear", "matmul", "mm"})


def padded_columns(call: PricedCall, values: Values, *, adds_bias: bool = False) -> int | None:
    """Padded columns of rows times a matrix; None if they are a multiple of 8 or tensor cores are not used.

    If arithmetic takes longest, inductor measures whether the copy pays off: for a vocabulary of 50,257 words it does. A
    product that adds a bias is always padded.
    """
    names = call.tensors(values)
    weight = values.get(names[1]) if call.node.operator.name in _BY_MATRIX else None
    if not isinstance(weight, TensorType) or weight.dtype.bits != HALF or weight.rank != 2:
        return None
    columns, inner = weight.shape if call.node.operator.name == "linear" else weight.shape[::-1]
    if not isinstance(columns, int) or columns == 1 or columns % ALIGNED == 0:
        return None
    rows = _rows(call, values)
    if not adds_bias and isinstance(rows, int) and isinstance(inner, int):
        moved = rows * inner + inner * columns + rows * columns
        if rows * inner * columns < _COMPUTE_BOUND * moved:
            return None
    return up(columns, ALIGNED)


def _rows(call: PricedCall, values: Values) -> Dim:
    out = values[call.node.outputs[0] or ""]
    assert isinstance(out, TensorType)
    return prod(out.shape[:-1])


def aligned_bytes(shape: Sequence[Dim], bits: int) -> int | None:
    """Bytes of a stored result whose longer strides (over 1024 elements) are padded to cache lines.

    None if they are aligned already, or a size is open. Source: `_pad_strides` in torch/_inductor/ir.py.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or 0 in sizes:
        return None
    line, stride, last, is_aligned = _LINE_BYTES * 8 // bits, 1, 0, True
    for size in reversed(sizes):
        if stride > _LONG and stride % line:
            stride, is_aligned = -(-stride // line) * line, False
        last += (size - 1) * stride
        stride *= size
    return None if is_aligned else (last + 1) * bits // 8
