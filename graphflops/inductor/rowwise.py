"""Lowers normalisations, softmax and attention, with their gradients: sums over rows, and what is computed from the sums."""

from collections.abc import Sequence

from graphflops.dims import Dim, prod
from graphflops.inductor.library_calls import aligned_bytes
from graphflops.inductor.lowering import Extern, JointGraph, Loop, Lowered, Lowering, Reduction
from graphflops.kernels.kernel import FLOAT_BYTES, IMAGE_RANK

_OF_GROUPS = 26  # instructions per element of a group norm's gradient, about


def is_along_last(joint: JointGraph, shape: Sequence[Dim], summed: Sequence[bool]) -> bool:
    """Whether the axis that is innermost in memory is summed. summed: by axis.

    Four axes are those of an image, or of what a permutation makes of it: then the last two are not treated alike.
    """
    is_image = joint.channels_last and len(shape) == IMAGE_RANK and summed[2] == summed[3]
    axes = (0, 2, 3, 1) if is_image else range(len(shape))
    return next((summed[axis] for axis in reversed(axes) if shape[axis] != 1), True)


def _statistics(low: Lowering, of: Lowered, rows: Dim, is_inner: bool) -> str:
    """Append the reduction that a normalisation or softmax starts with; return its tensor, two statistics per row."""
    operator = of.call.node.operator
    name = low.save(of, "statistics", f"{of.call.node.name} statistics")
    space, size = max(map(low.elements, of.names)), 2 * FLOAT_BYTES * rows
    # Statistics of several channels are read by channel, so the kernel that applies them is separate.
    is_grouped = "group" in operator.name and rows != prod(low.typed(of.names[0]).shape[:2])
    order = {"is_inner": is_inner, "in_order": not is_grouped}
    role, kept = "moments" if operator.kind == "normalisation" else "", low.joint.number(rows)
    low.add(of, Reduction, {name: size}, of.operands[:1], space, kept=kept, role=role, **order)
    return name


def normalisation(low: Lowering, of: Lowered) -> None:
    """Moments, then the result; if the moments are stored, the result alone."""
    operator, arguments = of.call.node.operator, of.call.node.arguments()
    out, *moments = of.made
    # The result is float32 if all its readers compute in float32 and read it more than once.
    value, readers = low.typed(out), low.readers.get(out, [])
    is_activated = bool(readers) and all(reader.node.operator.has("gate") for reader in readers)
    normed = {out: value.numel * FLOAT_BYTES if is_activated else value.nbytes}
    if operator.name == "batch_norm" and arguments.get("training") is not True:
        low.add(of, Loop, normed, of.operands)
        return
    shape, given, groups = low.typed(of.names[0]).shape, arguments.get("shape"), arguments.get("groups")
    if operator.name == "batch_norm":
        rows: Dim = prod(shape[1:2])  # an empty tensor may have one axis
    elif isinstance(groups, int):
        rows = shape[0] * groups
    else:
        rows = prod(shape[: -len(given)] if isinstance(given, tuple) else shape[:-1])
    is_inner = not (low.joint.channels_last and (operator.has("images") or "group" in operator.name))
    statistics = _statistics(low, of, rows, is_inner)
    low.add(of, Loop, normed, (*of.operands, statistics))
    for name in moments:  # results of the call itself
        low.add(of, Loop, (name,), (statistics,))


def softmax(low: Lowering, of: Lowered) -> None:
    """The maximum and sum of each row, then the result."""
    out, statistics = low.typed(of.made[0]), _statistics(low, of, *rows_of(low, of))
    lined_up = None if of.made[0] in low.dense else aligned_bytes(out.shape, out.dtype.bits)
    size = out.nbytes if lined_up is None else lined_up
    low.add(of, Loop, {of.made[0]: size}, (*of.operands, statistics), low.elements(of.names[0]))


def rows_of(low: Lowering, of: Lowered) -> tuple[Dim, bool]:
    """The number of rows of a softmax, scan or loss, and whether they lie along the last axis."""
    x, call = low.typed(of.names[0]), of.call
    axis = call.node.arguments().get("axis", 1 if call.node.operator.kind == "loss" else -1)
    if not isinstance(axis, int) or not -x.rank <= axis < x.rank:
        return x.numel, False
    width = x.shape[axis]
    return (x.numel // width if width != 0 else 0), axis % x.rank == x.rank - 1


def loss(low: Lowering, of: Lowered) -> None:
    """A sum over what is compared; if labels are class indices, over the one element of each row that they select."""
    x, labels = (low.typed(name) for name in of.names[:2])
    reads, parts = of.operands, dict(of.parts)
    if of.call.node.operator.name == "cross_entropy_loss":
        reads = (*reads, _statistics(low, of, *rows_of(low, of)))
    space = low.elements(of.names[0])
    if labels.rank < x.rank:
        space = low.elements(of.names[1])
        parts[of.operands[0]] = {of.made[0]: space * x.dtype.bits // 8}
    low.add(of, Reduction, of.made, reads, space, kept=low.elements(of.made[0]), parts=parts)


def normalisation_gradient(low: Lowering, of: Lowered) -> None:
    """Two sums for each group, the operand's gradient, and sums over all groups for weight and bias."""
    operator, statistics = of.call.node.operator, of.beside.get("statistics")
    if statistics is not None and "group" in operator.name:
        _of_groups(low, of, statistics)
        return
    wide = low.elements(of.names[0])
    normed = (*of.incoming, *of.operands[:1], *([statistics] if statistics else []))
    is_batch, is_last = operator.name == "batch_norm", low.joint.channels_last
    order = {"is_inner": is_batch and not is_last}
    added = {place: tensor for place, tensor in of.fresh.items() if place > 0}
    for place, tensor in added.items():
        reads = normed if place == 1 else of.incoming
        kept = low.elements(of.names[place])
        low.add_back(of, Reduction, (tensor,), reads, wide, kept=kept, **order)
    if 0 not in of.fresh:
        return
    if statistics is None:
        reads = (*of.incoming, *of.operands[1:])
    else:
        reads = (*normed, *of.operands[1:2])
        is_shared = is_batch and len(added) > 1
        order = {"is_inner": not (is_last and operator.has("images"))}
        reads += tuple(added.values()) if is_shared else (_sums(low, of, of.names[0], reads, wide, **order),)
    low.add_back(of, Loop, (of.fresh[0],), reads, wide)


def _sums(low: Lowering, of: Lowered, name: str, reads: Sequence[str], space: int, **order: bool) -> str:
    """Append two sums for each row that has statistics. name: the value whose gradient needs them."""
    size = low.joint.sizes[of.beside["statistics"]]
    sums, kept = low.new_gradient(name, size), low.joint.number(size) // (2 * FLOAT_BYTES)
    low.add_back(of, Reduction, (sums,), reads, space, kept=kept, **order)
    return sums


def _of_groups(low: Lowering, of: Lowered, statistics: str) -> None:
    """Two sums for each channel; from these, sums for groups, weight and bias; the operand's gradient, in two parts."""
    x = low.typed(of.names[0])
    wide, channels = low.elements(of.names[0]), low.joint.number(prod(x.shape[:2]))
    normed, weight = (*of.incoming, *of.operands[:1]), of.operands[1:2]
    sums = [low.new_gradient(of.names[0], prod(x.shape[:2]) * FLOAT_BYTES) for _ in range(2)]
    is_inner = not low.joint.channels_last
    for tensor, reads in zip(sums, (normed, of.incoming), strict=True):
        low.add_back(of, Reduction, (tensor,), reads, wide, kept=channels, is_inner=is_inner)
    for place, tensor in of.fresh.items():
        if place > 0:
            kept = low.elements(of.names[place])
            low.add_back(of, Reduction, (tensor,), (*sums, statistics), channels, kept=kept, is_inner=False)
    if 0 not in of.fresh:
        return
    whole = _sums(low, of, of.names[0], (*sums, *weight), channels)
    part = low.new_gradient(of.names[0], x.numel * FLOAT_BYTES)
    read = (*normed, statistics, *weight, whole)
    low.add_back(of, Loop, (part,), read, wide, instructions=_OF_GROUPS)
    low.add_back(of, Loop, (of.fresh[0],), (part, statistics, whole), wide)


def softmax_gradient(low: Lowering, of: Lowered) -> None:
    """The sum over each row of gradient times result, then the gradient."""
    wide, (_, is_inner) = low.elements(of.names[0]), rows_of(low, of)
    reads = (*of.incoming, *low.read(of))
    for tensor in of.fresh.values():
        sums = _sums(low, of, of.call.node.name, reads, wide, is_inner=is_inner)
        low.add_back(of, Loop, (tensor,), (*reads, sums), wide)


def attention(low: Lowering, of: Lowered) -> None:
    """A library kernel, which saves the row sums."""
    found = low.execution.attention(of.call)
    if found is None:
        of.operands = _taken(low, of, of.operands)
        low.extern(of)
        return
    reads, out = [*of.operands], of.made[0]
    if found.mask_copy != 0:  # in training, the partitioner lets attentions with one mask share its copy
        bits, shared = found.problem.query.type.dtype.bits, f"{reads[3]} converted" if low.training else ""
        reads[3] = low.copied(of, reads[3], found.mask_copy, "mask", "", bits, shared)
    sizes = {out: low.nbytes(out)}
    if low.training or found.choice.kernel == "flash":
        sums = low.save(of, "row sums", f"{of.call.node.name} row sums")
        sizes[sums] = prod(found.problem.query.type.shape[:-1]) * FLOAT_BYTES
    of.beside.update({"mask": reads[3]} if len(reads) > 3 else {})
    low.add(of, Extern, sizes, _taken(low, of, reads), into="own")


def _taken(low: Lowering, of: Lowered, tensors: Sequence[str]) -> Sequence[str]:
    """What attention reads: without gradients, copies of the parts that it reads of tensors that need not be stored."""
    if low.training:
        return tensors
    taken: list[str] = []
    for x in dict.fromkeys(tensors):
        parts = of.parts.get(x, {}).items() if x in low.pointwise else ()
        taken += [low.copied(of, x, size, part, part) for part, size in parts] or [x]
    return taken


def attention_gradient(low: Lowering, of: Lowered) -> None:
    """One call for all gradients."""
    found = low.execution.attention(of.call)
    reads = (*of.incoming, *of.operands[:3], *of.results[:1], *of.beside.values())
    workspace = of.gradient.estimate.workspace if found is None else found.backward
    low.add_back(of, Extern, of.fresh.values(), reads, workspace=workspace, into="own")
