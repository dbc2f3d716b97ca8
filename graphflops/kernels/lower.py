"""The kernels of one call, by kind of operator."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.execution.composed_gradients import kernel_calls
from graphflops.execution.composites import Inside
from graphflops.execution.strides import regrouped
from graphflops.kernels import attention, cudnn, moved, products, rowwise
from graphflops.kernels.beside import reduced_axes
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import chosen, library, limits
from graphflops.kernels.convolution import power_of_two
from graphflops.kernels.kernel import IMAGE_RANK, INDEX_BYTES, Kernel, Rows, Strided
from graphflops.ops.operator import by_name
from graphflops.passes.program import PricedCall


def forward_kernels(call: ConcreteCall) -> list[Kernel]:
    """The kernels of a call in the forward, in order; none for a view."""
    if (inside := kernel_calls(call.call, call.values)) is not None:
        return kernels_inside(call, inside)
    lower = _BY_NAME.get(call.operator.name) or _FORWARD.get(call.operator.kind, _other)
    if lower is _layout:
        return _layout(call)
    if call.cost.read_bytes + call.cost.written_bytes == 0:
        return []
    # The rule of a kind may need arguments by name, which only operators listed in `ops/` have.
    return lower(call) or ([] if call.operator.parameters else _other(call))


def kernels_inside(call: ConcreteCall, inside: Inside) -> list[Kernel]:
    """The kernels of the calls that compute another call or its gradients."""
    concrete = [ConcreteCall(each, inside.values, call.strides, call.sizes) for each in inside.calls]
    return [kernel for each in concrete for kernel in forward_kernels(each)]


def inside_operator(call: PricedCall, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The kernels of a call in a fused module: without copies; products also add biases and apply the next function."""
    kind = call.node.operator.kind
    if kind == "elementwise" and len(call.uses) == 1:
        return ()
    left = [kernel for kernel in kernels if kernel.family == "matmul" or kind != "product"]
    return tuple([kernel for kernel in left if kernel.family != "copy"])


def _layout(call: ConcreteCall) -> list[Kernel]:
    """A copy if the operand's layout is not that of the result, else no kernel."""
    if call.operator.word in _ONLY_EXPORTED:
        return []
    moves = call.is_copy if call.is_copy is not None else not call.estimate.alias
    if not moves or not call.operands or (call.cost.read_bytes == 0 and call.is_copy is None):
        return []
    return [moved.copy(call.operands[0])]


def _elementwise(call: ConcreteCall) -> list[Kernel]:
    """One kernel. Its arithmetic is what was measured for the operator, else that of its formula."""
    operator, out, cost = call.operator, call.out, call.cost
    if out is None or not out.numel:
        return []
    form = call.arguments.get("approximate", "none")
    name = operator.name if form == "none" else f"{operator.name}.{form}"
    measured = None if operator.is_backward else library("aten_2").constants.get(f"pointwise.{name}")
    # Special-function units evaluate the functions of a gradient at the same time.
    each = 1 if operator.is_backward else _TRANSCENDENTAL
    work = cost.vector_flops + each * cost.transcendentals
    work = work if measured is None else int(measured.value * out.numel)
    # Each thread reads a scalar tensor; ONNX runtimes pass scalars as kernel arguments.
    operands = [x for x in call.operands if x.rank or not operator.is_onnx]
    read, copies = cost.read_bytes, list[Kernel]()
    if operator.word in _COPIED_FIRST:
        copies = [moved.copy_to(out, operands[0])]
        operands, read = [out, *operands[1:]], read + out.full_bytes - operands[0].nbytes
    return [*copies, moved.pointwise(out, operands, read, cost.written_bytes, work)]


def _filled(call: ConcreteCall) -> list[Kernel]:
    out, name = call.out, call.operator.name
    is_made = name != "scalar_tensor" and not name.startswith(("empty", "new_empty", "constant"))
    if out is None or not out.numel or not is_made:  # a scalar stays on the CPU
        return []
    return [moved.elementwise(out, *call.cost.moved) if name == "copy" else moved.fill(out)]


@moved.on_operand
def _pad(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """A fill with the padding, then a copy of the operand into it; one kernel if there is no padding or elements repeat."""
    if reflected := moved.reflected(call, x, out, "pool"):
        return reflected
    if call.arguments.get("mode") in moved.REPEATING:
        return [moved.elementwise(out, x.nbytes, out.full_bytes)]
    if out.numel == x.numel:
        return [moved.copy(x)]
    inside = tuple([min(sizes) for sizes in zip(x.shape, out.shape, strict=True)])
    parts = [replace(each, shape=inside, nbytes=prod(inside) * each.bits // 8) for each in (out, x)]
    return [moved.fill(out), moved.copy_to(*parts)]


@moved.on_operand
def _transformed(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One cuFFT kernel per axis, the real one first or last, after a copy if the batch axes do not merge."""
    dims = call.own["dim"]
    others = sorted({*range(x.rank)} - {axis % x.rank for axis in dims}, key=lambda axis: -x.strides[axis])
    batch = x.permuted(*others)
    copies = [] if regrouped(batch.shape, batch.strides, (batch.numel,)) else [moved.copy(x)]
    wide = max(x, out, key=lambda each: each.bits)  # the complex one, which the other axes' kernels transform
    kernel = Kernel("fft", wide.dtype, 0, call.cost.arithmetic // len(dims), x.full_bytes, out.full_bytes)
    inside = replace(kernel, read_bytes=wide.full_bytes, written_bytes=wide.full_bytes)
    return [*copies, kernel, *[inside] * (len(dims) - 1)]


# Reductions to a mean and squares, or to a value and its place: each element waits for the one before (SharedReduceOps.h).
_OF_PAIRS = frozenset({"var", "std", "argmax", "argmin"})
_PAIRS = {"": "pairs", "outer": "outer_pairs"}


@moved.on_operand
def _reduced(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    reduced = reduced_axes(call.arguments.get("axes"), x.rank)
    kept = [axis for axis in range(x.rank) if axis not in reduced]
    if prod(x.shape[axis] for axis in kept) == out.numel:
        kernel = moved.sum_to(x, kept, out.bits)
    else:  # the arguments do not give the axes
        is_inner = not out.rank or out.shape[-1] != x.shape[-1]
        kernel = moved.reduction(x, out.numel, is_inner=is_inner, bits=out.bits)
    if call.operator.name in _OF_PAIRS or len(call.estimate.out) > 1:
        kernel = replace(kernel, variant=_PAIRS.get(kernel.variant, kernel.variant))
    return [kernel]


@moved.on_operand
def _softmax(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel on contiguous rows."""
    axis, work, name = moved.axis_of(call, x.rank), call.cost.arithmetic, call.operator.name
    return [*moved.copied(call), moved.softmax(x, axis, work, name, x.full_bytes, out.full_bytes)]


@moved.on_operand
def _sorted(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    kernel, name = moved.rows_kernel("sort", x, call, *call.cost.moved), call.operator.name
    longest = kernel.sizes.columns if isinstance(kernel.sizes, Rows) else 0
    if name == "topk":
        return [replace(kernel, variant=chosen(library("aten_2").choices[name].tree, kernel.sizes))]
    if (edges := call.operand("edges")) is not None:
        steps = edges.shape[-1].bit_length()  # loads that a thread makes one after the other for each value
        return [replace(kernel, sizes=Rows(out.numel, steps), variant="search")]
    if name not in _SORTING:
        return [kernel]
    rows = x.numel // max(longest, 1)
    if longest > _SORTED_BY_BLOCK:
        # All rows are sorted together, and then by row number; or each row is sorted by itself.
        is_joined = rows > 1 and longest < _SORTED_ALONE
        passes, sorts = x.bits // _RADIX + (3 if is_joined else 1), 1 if is_joined else rows
        kernel = replace(kernel, vector_flops=0, read_bytes=passes * x.full_bytes, written_bytes=0)
        return [replace(kernel, sizes=Rows(sorts * passes, x.numel // max(sorts, 1)), variant="radix")]
    # An in-place sort: a copy of the values, and places that are counted, repeated for each row and copied.
    places = replace(x, dtype="int64", bits=8 * INDEX_BYTES, nbytes=INDEX_BYTES * x.numel)
    counted = moved.fill(replace(places, shape=(longest,)))
    before = [moved.copy(x), counted, moved.copy(places), moved.copy(places)]
    if longest <= _SORTED_BY_WARP:
        return [*before, replace(kernel, variant="warp")]
    work = rows * max(power_of_two(longest), _LEAST_SORTED) * x.bits
    return [*before, replace(kernel, vector_flops=work, sizes=Rows(1, x.bits), variant="block")]


@moved.on_operand
def _moved(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel, or one for each part if joined parts have too many axes. Stacked parts have one axis less."""
    if reflected := moved.reflected(call, x, out, "pool"):
        return reflected
    parts, joins, axis = [*call.operands], call.operator.name in _JOINING, moved.axis_of(call, out.rank)
    is_inside = x.rank < out.rank and axis < x.rank  # stacked parts get a new axis only at the end
    if joins and (x.rank if is_inside else out.rank) > _MOST_AXES:
        strides = out.strides if x.rank == out.rank else (*out.strides[:axis], *out.strides[axis + 1 :])
        return [moved.copy_to(replace(x, dtype=out.dtype, bits=out.bits, strides=strides), x) for x in parts]
    are_last = out.rank == IMAGE_RANK and all(map(moved.is_last, (*parts, out)))
    if are_last:  # channels-last images are rows of channels, one after the other
        *parts, out = (each.permuted(0, 2, 3, 1) for each in (*parts, out))
    # The kernel loads 16 bytes at a time if each part begins and ends at a multiple of 16 bytes.
    sizes = zip(out.shape, parts[0].shape, strict=False)
    first = next((place for place, (whole, part) in enumerate(sizes) if whole != part), 0)
    runs = [prod(x.shape[first:]) * x.bits // 8 for x in parts]  # bytes of contiguous runs
    is_aligned, is_narrow = not any(run % ALIGNED for run in runs), max(runs) < _SECTOR
    joined = "cat_last" if are_last else "cat_aligned" if is_aligned else "cat_narrow" if is_narrow else "cat"
    variant, looked_at = joined if len(parts) > 1 else "", 0
    if call.operator.word in _OF_CHUNKS:
        variant = "chunks" if x.dtype == out.dtype else "chunks_converting"
    # What joins nothing, as the first keys of a cache, counts as one that does not lie in order (TensorShape.cpp).
    if not all(x.is_contiguous and x.shape != (0,) for x in parts):
        variant, looked_at = "joined", max(x.numel for x in parts)
    if variant == "cat_narrow":  # each part visits all sectors of the result
        looked_at = len(parts) * out.full_bytes
    if joins and variant == "cat_aligned" and len(parts) > _FEW_PARTS:
        # Each part has as many blocks as the largest needs (Shape.cu of ATen); with two parts, at most half are idle.
        looked_at = len(parts) * max(x.numel for x in parts)
    return [Kernel("copy", out.dtype, 0, looked_at, *call.cost.moved, variant=variant)]


def _other(call: ConcreteCall) -> list[Kernel]:
    """An operator without a lowering of its own: one kernel with its work and traffic."""
    cost, like = call.cost, (*call.results, *call.operands)[:1]
    return [Kernel("other", x.dtype, cost.matrix_flops, cost.arithmetic, *cost.moved) for x in like]


@moved.on_operand
def _dropout(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel that draws the mask and applies it; none outside of training."""
    if call.estimate.alias or call.cost.vector_flops == 0:
        return []
    drawn = moved.elementwise(out, 0, prod(out.shape[:2]) * out.bits // 8)  # one number per channel
    before = [drawn, drawn] if call.operator.word == "feature_dropout" else []  # and scaled
    mask = Kernel("random", out.dtype, 0, call.cost.vector_flops, *call.cost.moved, variant="dropout")
    return [*before, mask]


def _drawn(call: ConcreteCall) -> list[Kernel]:
    """One kernel. `multinomial` first checks its weights, then compares their quotients (Distributions.cpp)."""
    kernels, x, out = moved.of_rows("random", call), call.operand("x"), call.out
    if call.operator.name != "multinomial" or x is None or out is None or call.own.get("replacement"):
        return kernels
    rows, small = out.numel // max(out.shape[-1], 1), moved.elementwise(out, 0, 0)
    whole, sums = moved.reduction(x, 1), moved.reduction(x, rows)
    picked = replace(sums, variant=_PAIRS[""]) if out.numel == rows else kernels[0]
    divided = moved.elementwise(x, 2 * x.full_bytes, x.full_bytes)
    return [*[whole, small] * 2, *[small] * 2, sums, *[small] * 4, *kernels, divided, picked]


_SORTING = frozenset({"sort", "argsort"})
_SORTED_BY_WARP, _LEAST_SORTED, _SORTED_BY_BLOCK = limits("aten_2", "sort", "warp least block")
_SORTED_ALONE, _RADIX = limits("aten_2", "sort", "alone radix")
(ALIGNED,) = limits("aten_2", "copy", "aligned")
(_SECTOR,) = limits("aten_2", "strided", "sector")
_TRANSCENDENTAL = 3  # arithmetic operations that take as long as one transcendental
_JOINING = frozenset({"cat", "stack"})
_FEW_PARTS = 2
_MOST_AXES = 4  # of tensors that one kernel joins; parts with more axes are copied one by one
# They copy many tensors to a buffer with a kernel of their own (TensorShape.cu of ATen).
_OF_CHUNKS = frozenset({"chunk_cat", "chunk_cat_mixed_dtype", "_chunk_cat"})
# A constant in the code: eager execution has a number, or a tensor that is made on the device.
_ONLY_EXPORTED = frozenset({"lift_fresh_copy"})
_COPIED_FIRST = frozenset({"masked_fill"})  # copied to row-major, then changed in place


def _of(function: str) -> Callable[..., list[Kernel]]:
    """A function of a module that many programs do not need, which is imported when it is first called."""
    return lambda *given: imported(f"graphflops.kernels.{function}")(*given)


_BY_NAME: Mapping[str, moved.Lowering] = by_name(
    {
        "col2im": moved.on_operand(_of("images:image")),
        "fourier": _transformed,
        "im2col": moved.on_operand(_of("images:columns")),
        "pad": _pad,
        # A copy of an image with six axes, some of which merge.
        "pixel_shuffle": moved.on_operand(
            lambda call, x, out: [replace(moved.copy(x), sizes=Strided(x.numel, 4, 2), variant="strided")]
        ),
        "roll": moved.on_operand(
            lambda call, x, out: [Kernel("copy", x.dtype, 0, 0, x.full_bytes, x.full_bytes, variant="roll")]
        ),
        "weight_norm": rowwise.weight_norm,
        "weight_norm_backward": rowwise.weight_norm,
    }
)
_FORWARD: Mapping[str, moved.Lowering] = {
    **dict.fromkeys(("elementwise", "comparison", "logic", "quantisation"), _elementwise),
    **dict.fromkeys(("identity", "view"), _layout),
    # A conversion to the same element type runs no kernel.
    "cast": moved.on_operand(lambda call, x, out: [] if call.estimate.alias else [moved.copy_to(out, x)]),
    "creation": _filled,
    "movement": _moved,
    "gather": _of("gathered:gathered"),
    "scatter": moved.scatter,
    "reduction": _reduced,
    "scan": partial(moved.of_rows, "scan"),
    "sort": _sorted,
    "product": products.product,
    "convolution": cudnn.convolution,
    "pooling": _of("images:pooling"),
    "loss": rowwise.loss,
    "resampling": _of("images:interpolation"),
    "normalisation": rowwise.norm,
    "softmax": _softmax,
    "attention": attention.attention,
    "recurrent": products.recurrent,
    "random": _drawn,
    "dropout": _dropout,
    "collective": moved.collective,
    "foreach": _of("foreach:foreach"),
    "linear_algebra": lambda call: _of("matrices:decomposition")(call) or _other(call),
}
