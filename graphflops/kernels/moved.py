"""Kernels that move more than they compute: elementwise, copies, reductions, softmax, scans, scatters, and transfers.

A scatter writes or adds elements at the places that indices name; each thread handles several, one after the other. A
collective uses the fastest link of the device. Offloading copies between device memory and host memory: if host memory is
pinned, the copy runs at the speed of the bus; if it is pageable, the CPU copies the data once more.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal, cast

from graphflops.base.record import Record, replace
from graphflops.execution.strides import channels_last, row_major
from graphflops.graph import StorageKind
from graphflops.kernels.beside import merged, operand_copies
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import power_of_two, up
from graphflops.kernels.kernel import (
    HALF,
    IMAGE_RANK,
    INDEX_BYTES,
    Exchange,
    Family,
    Kernel,
    Rows,
    Strided,
    Transfer,
    Windows,
)
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

Lowering = Callable[[ConcreteCall], list[Kernel]]
OnOperand = Callable[[ConcreteCall, Tensor, Tensor], list[Kernel]]

_PLANE = 256  # threads of a block
REPEATING = ("reflect", "replicate")  # padding modes that repeat elements
PLANES = "planes"  # variant: a reduction of images to channels, over pixels and images
_SOFTMAX_THREADS, _FEW = limits("aten_2", "softmax", "threads few")


def on_operand(lower: OnOperand) -> Lowering:
    """A lowering that gets the first operand and the first result; no kernels if either is not a tensor."""

    def lowered(call: ConcreteCall) -> list[Kernel]:
        out = call.out
        return [] if out is None or not call.operands else lower(call, call.operands[0], out)

    return lowered


def elementwise(x: Tensor, read: int, written: int, work: int = 0, sizes: Strided | None = None) -> Kernel:
    """A pointwise kernel on a tensor's element type. sizes: if it computes an address for each element."""
    variant = "" if sizes is None else "strided"
    return Kernel("elementwise", x.dtype, 0, work, read, written, sizes, variant)


def pointwise(out: Tensor, operands: Sequence[Tensor], read: int, written: int, work: int = 0) -> Kernel:
    """A pointwise kernel on tensors that may be broadcast or have different layouts."""
    return elementwise(out, read, written, work, strided(out, operands))


def copy(tensor: Tensor, bits: int | None = None) -> Kernel:
    """A copy of a tensor to row-major, as elements of `bits` bits."""
    return copy_to(replace(tensor, bits=bits or tensor.bits, strides=row_major(tensor.shape)), tensor)


def copy_to(out: Tensor, x: Tensor) -> Kernel:
    """A copy of a tensor into another's layout. Special kernels convert float32 to 16 bits, and all types to float8.

    Any other conversion looks up the type of each element that it loads (Copy.cu of ATen).
    """
    sizes, variant = strided(out, [x]), "strided"
    is_narrowed = (x.dtype == "float32" and out.bits == HALF) or out.dtype.startswith("float8")
    is_cast = not is_narrowed and (out.bits != x.bits or out.dtype != x.dtype)
    if sizes is None:
        variant = "narrowed" if is_narrowed else "cast" if is_cast else "memcpy"
    if is_cast:
        sizes = replace(sizes or Strided(out.numel, 1, 2), has_casts=True)
    return Kernel("copy", x.dtype, 0, 0, x.nbytes, out.full_bytes, sizes, variant=variant)


def put_in_order(x: Tensor, *, is_last: bool) -> list[Kernel]:
    """The copy of a tensor to row-major or, if `is_last`, to channels last; none if it has that layout."""
    order = channels_last(x.rank) if is_last else range(x.rank)
    ordered = replace(x, strides=row_major(x.shape, order))
    return [] if x.permuted(*order).is_contiguous else [copy_to(ordered, x)]


def copied(call: ConcreteCall, *, again: bool = False) -> list[Kernel]:
    """The copies of operands whose layout a call's kernels cannot read. again: only those that gradients make anew."""
    kernels = []
    for name, found in operand_copies(call.call, call).items():
        x = call.named(name)
        if x is not None and (found.is_again or not again):
            wide: Any = {"shape": found.shape, "strides": found.strides}
            kernels.append(copy(replace(x, **wide)))
    return kernels


def fill(tensor: Tensor) -> Kernel:
    """Writes one value to all elements."""
    return elementwise(tensor, 0, tensor.full_bytes)


def repeat(tensor: Tensor) -> Kernel:
    """Writes one number, which a broadcast view repeats, to all elements."""
    number = replace(tensor, strides=(0,) * tensor.rank, nbytes=tensor.bits // 8)
    return replace(pointwise(tensor, [number], number.nbytes, tensor.full_bytes), variant="strided.repeated")


def reduction(tensor: Tensor, results: int, *, is_inner: bool = True, bits: int | None = None) -> Kernel:
    """A reduction of a tensor to `results` results of `bits` bits. is_inner: along the innermost axes."""
    moved = tensor.nbytes, results * (bits or tensor.bits) // 8
    sizes, variant = Rows(results, tensor.numel // max(results, 1), is_inner), "" if is_inner else "outer"
    return Kernel("reduction", tensor.dtype, 0, tensor.numel, *moved, sizes, variant=variant)


def spread(x: Tensor, out: Tensor) -> Kernel:
    """The gradient of a mean: the result's gradient, divided and broadcast."""
    return elementwise(x, out.full_bytes, x.full_bytes, x.numel, Strided(x.numel, 2, 2))


def is_last(x: Tensor) -> bool:
    """Whether channels are innermost."""
    return x.rank > 2 and x.shape[1] > 1 and x.strides[1] == 1


def sum_to(tensor: Tensor, kept: Sequence[int], bits: int | None = None) -> Kernel:
    """A reduction over all axes but `kept`. The innermost axis decides how its blocks are arranged."""
    results = prod(tensor.shape[axis] for axis in kept)
    reduced = [axis for axis in range(tensor.rank) if axis not in kept and tensor.shape[axis] > 1]
    steps = tensor.strides
    wide = [axis for axis in kept if tensor.shape[axis] > 1]
    if not reduced or not wide or min(steps[axis] for axis in wide) < min(steps[axis] for axis in reduced):
        return reduction(tensor, results, is_inner=not wide or not reduced, bits=bits)
    inner = reduction(tensor, results, bits=bits)
    is_planes = max(steps[axis] for axis in reduced) > max(steps[axis] for axis in wide)
    return replace(inner, variant=PLANES) if is_planes else inner


def of_rows(family: Family, call: ConcreteCall) -> list[Kernel]:
    """One kernel that moves the call's bytes and processes rows along its axis."""
    like, cost = next(iter(call.operands), call.out), call.cost
    if like is None or not cost.read_bytes + cost.written_bytes:
        return []
    return [rows_kernel(family, like, call, *cost.moved)]


def rows_kernel(family: Family, like: Tensor, call: ConcreteCall, read: int, written: int) -> Kernel:
    """A kernel on rows of a tensor, along the call's axis or, by default, the last one."""
    axis = axis_of(call, like.rank)
    is_inner, columns = axis == like.rank - 1, like.shape[axis] if like.rank else 1
    sizes = Rows(like.numel // max(columns, 1), columns, is_inner)
    variant = call.operator.name if is_inner else "outer"
    return Kernel(family, like.dtype, 0, call.cost.arithmetic, read, written, sizes, variant)


def softmax(x: Tensor, axis: int, work: int, variant: str, read: int, written: int) -> Kernel:
    """A softmax or its gradient. Along an outer axis, a block has neighbouring rows, and threads share long rows.

    A row is then what a full block processes, with as many columns as one thread loops over.
    """
    length, inner = x.shape[axis] if x.rank else 1, prod(x.shape[axis + 1 :])
    rows = Rows(x.numel // max(length, 1), length)
    if inner > 1:
        across = min(power_of_two(inner), _SOFTMAX_THREADS)
        shared = min(_SOFTMAX_THREADS // across, length) if across <= _FEW and length >= _FEW else 1
        blocks = x.numel // max(length * inner, 1) * -(-inner // across)
        rows = Rows(-(-blocks * across * shared // _SOFTMAX_THREADS), -(-length // shared), is_inner=False)
        parts = ("outer", *["shared"] * (shared > 1), *["backward"] * variant.endswith("backward"))
        variant = "_".join(parts)
    return Kernel("softmax", x.dtype, 0, work, read, written, rows, variant)


def axis_of(call: ConcreteCall, rank: int) -> int:
    """The call's axis, counted from the front; by default the last one."""
    axis = call.arguments.get("axis", -1)
    return axis % rank if isinstance(axis, int) and rank and -rank <= axis < rank else rank - 1


_SECTOR, _BLOCK, _BYTES_OF_BLOCK = limits("aten_2", "strided", "sector block bytes")
_BITS = 8


def strided(out: Tensor, operands: Sequence[Tensor]) -> Strided | None:
    """How a kernel that computes an address for each element walks; None if all tensors are dense with equal strides."""
    tensors = [out, *operands]
    steps = [_steps(tensor, out) for tensor in tensors]
    wide = [axis for axis in range(out.rank) if out.shape[axis] > 1]
    axes: Any = merged(out.shape, steps, sorted(wide, key=lambda axis: (steps[0][axis], -axis)))
    has_casts = len({tensor.dtype for tensor in tensors[1:] if tensor.dtype != "bool"}) > 1
    is_alike = not axes or (len(axes) == 1 and set(axes[0][1]) == {1})
    if is_alike and not has_casts:
        return None
    waste = sum(_waste(axes, place, tensor.bits / _BITS) for place, tensor in enumerate(tensors) if axes)
    return Strided(out.numel, max(len(axes), 1), len(tensors), waste, has_casts)


def _steps(tensor: Tensor, out: Tensor) -> list[int]:
    """A tensor's stride along each axis of the result; 0 where it is broadcast."""
    steps = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.strides, strict=True)]
    return ([0] * (out.rank - tensor.rank) + steps)[-out.rank :] if out.rank else []


def _waste(axes: Sequence[tuple[int, Sequence[int]]], place: int, width: float) -> float:
    """Bytes loaded for each element of a tensor beyond the element: its sector, unless others of its block use that too."""
    size, steps = axes[0]
    if steps[place] <= 1:
        return 0.0
    users = 1
    if len(axes) > 1 and axes[1][1][place] in (0, 1):
        is_repeated = any(each[place] == 0 for _, each in axes)  # so small that the cache holds all of it
        block = int(_BYTES_OF_BLOCK / width) if is_repeated else _BLOCK
        users = max(1, min(block // size, axes[1][0]))
    return float(max(min(_SECTOR / users, steps[place] * width) - width, 0.0))


def reflected(call: ConcreteCall, x: Tensor, out: Tensor, family: Family) -> list[Kernel]:
    """One kernel with a thread for each element of a reflection-padded plane, in blocks (ReflectionPad.cu); else none."""
    is_reflection = call.operator.word == "reflection_pad2d" or call.arguments.get("mode") == REPEATING[0]
    if not is_reflection or out.rank != IMAGE_RANK:
        return []
    threads = Windows(prod(out.shape[:2]) * up(prod(out.shape[2:]), _PLANE), 0)
    return [Kernel(family, x.dtype, 0, 0, x.full_bytes, out.full_bytes, threads, variant="reflect")]


_BY_ELEMENT = frozenset({"scatter", "scatter_add", "scatter_reduce"})
_BY_ROW = frozenset({"index_add", "index_copy", "index_reduce"})
_THREADS, _IN_TURN = limits("aten_2", "scatter", "threads in_turn")


def scatter(call: ConcreteCall) -> list[Kernel]:
    """A copy of the operand, unless the call is in-place, and the kernel that writes into it."""
    name, index = call.operator.name, call.operand("index")
    source = call.operand("source", "index")
    if name not in _BY_ELEMENT | _BY_ROW or source is None or index is None or not call.operands:
        kernels = of_rows("scatter", call)
        if not call.operator.mutates:  # a copy of the operand
            return [*kernels, *(elementwise(x, 0, 0) for x in call.operands[:1])]
        return [replace(kernel, sizes=_written_rows(kernel, call.operands[0])) for kernel in kernels]
    x = call.operands[0]
    elements = index.numel if name in _BY_ELEMENT else source.numel
    kernel = scattered_along(call, x, elements, name) if name in _BY_ELEMENT else added_rows(x, elements)
    if name == "index_copy":  # it does not read what it overwrites
        kernel = replace(kernel, read_bytes=kernel.written_bytes)
    if name == "scatter_reduce":
        return [copy(x)] * (2 - 2 * call.operator.mutates) + _reduced(call, x, source, kernel)
    return [copy(x)] * (not call.operator.mutates) + [kernel]


def _reduced(call: ConcreteCall, x: Tensor, source: Tensor, added: Kernel) -> list[Kernel]:
    """The kernels of `scatter_reduce`. Without the operand itself, elements are overwritten first; a mean counts its terms.

    Extremes and products load an element and exchange it in a loop, which takes two additions (TensorAdvancedIndexing.cpp).
    """
    how = call.own.get("reduce")
    before = [] if call.own.get("include_self", True) else [added]
    if how not in ("sum", "mean"):
        added = replace(added, read_bytes=2 * added.read_bytes, written_bytes=2 * added.written_bytes)
    counted = [fill(source), fill(x), added, *[elementwise(x, x.nbytes, x.full_bytes)] * 3]
    return [*before, added, *(counted if how == "mean" else ())]


def _written_rows(kernel: Kernel, x: Tensor) -> Rows:
    columns = max(prod(x.shape[-1:]), 1)
    return Rows(max(kernel.written_bytes * 8 // x.bits // columns, 1), columns)


def scattered(x: Tensor, elements: int, name: str) -> Kernel:
    """Writes or adds elements of a tensor's type, each at the place of its own index."""
    size = elements * x.bits // 8
    in_turn = Rows(elements, min(_IN_TURN, -(-elements // _THREADS)))
    variant = name if name == "scatter" else "scatter_add"
    return Kernel("scatter", x.dtype, 0, 0, size + INDEX_BYTES * elements, size, in_turn, variant)


def added_rows(x: Tensor, elements: int) -> Kernel:
    """Adds rows of a tensor's type with `elements` elements in total, by atomic additions."""
    size = elements * x.bits // 8
    repeated = Rows(elements, elements // max(x.numel, 1))  # additions to one element are serialised
    return Kernel("scatter", x.dtype, 0, 0, 2 * size, size, repeated, variant="index_add")


def scattered_along(call: ConcreteCall, x: Tensor, elements: int, name: str) -> Kernel:
    """Writes or adds elements along the call's axis, each at the place of its own index."""
    if axis_of(call, x.rank) == x.rank - 1:
        return scattered(x, elements, name)
    return replace(added_rows(x, elements), variant="elements")


_ON_A_COPY = ("all_reduce", "broadcast")  # they work in place, on a copy of the operand
_TAKEN_BACK = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
ONE_TO_ONE = frozenset({"send", "receive", "send_and_receive"})


def collective(call: ConcreteCall, *, is_backward: bool = False) -> list[Kernel]:
    """The exchange, after a copy of the operand if the collective works in place; nothing for a wait.

    The backward exchanges gradients: it gathers what the forward scattered, and the reverse. A message to one device takes
    the same kernel as messages to all; a receiver sends nothing, but waits as long.
    """
    operator, tensors, cost, estimate = call.operator, call.operands, call.cost, call.estimate
    name, is_copied = operator.name, operator.name in _ON_A_COPY and (is_backward or not operator.mutates)
    if is_backward:
        tensors, cost, name = call.results, call.backward_cost, _TAKEN_BACK.get(name, name)
        estimate = estimate if call.gradient is None else call.gradient.estimate
    if name == "wait_tensor" or not tensors:
        return []
    sent = cost.written_bytes if name == "receive" else cost.link_bytes
    variant = "all_to_all" if name in ONE_TO_ONE else name
    sizes = Exchange(sent, call.sizes(estimate.devices))
    exchange = Kernel("collective", call.operands[0].dtype, 0, 0, *cost.moved, sizes, variant=variant)
    return [*map(copy, tensors if is_copied else ()), exchange]


class HostCopy(Record, frozen=True):
    """A copy between the memories of host and device, as a recorded step makes it."""

    sizes: Transfer
    # The CPU waits for it, as it must if the host's memory is not pinned. Otherwise it is in a stream that the step made,
    # beside the kernels, or queued among them.
    order: Literal["waits", "beside", "queued"]

    def kernel(self, value: TensorType) -> Kernel:
        size = cast("int", value.like().nbytes)  # recorded steps have no open sizes
        return Kernel("transfer", value.dtype.name, 0, 0, size, size, self.sizes)


def host_copy(call: PricedCall, kinds: Mapping[str, StorageKind], aside: frozenset[str]) -> HostCopy | None:
    """What a recorded call copies between host and device. kinds: of host memory, by value. aside: made in own streams."""
    at = call.node.operator.word == "copy_"  # its first operand is what it writes to
    given, made = call.uses[at : at + 1], call.node.outputs[:1]
    if not given or not any(made) or (given[0] in kinds) == (made[0] in kinds):
        return None
    to_host = made[0] in kinds
    is_pinned = kinds[(made[0] if to_host else given[0]) or ""] == "pinned"
    waits = not (is_pinned and call.node.arguments().get("non_blocking") is True)
    order: Any = "waits" if waits else "beside" if made[0] in aside else "queued"
    return HostCopy(Transfer(to_host, is_pinned), order)
