"""What CUDA kernels need beside operands and results while a program runs eagerly: buffers that live during one call.

The sizes were measured on an H200 with PyTorch 2.11 and cuDNN 9 (benchmarks/memory.py): the peak of requested bytes during
an operator, minus the larger of the bytes before and after it. Each rule names its mechanism.
"""

from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from graphflops.base.record import Record
from graphflops.cost import Value
from graphflops.dims import Dim, broadcast, dim_max, prod, total
from graphflops.execution.composed_gradients import gradient_calls, kernel_calls
from graphflops.execution.layouts import Layouts
from graphflops.execution.strides import row_major, size_hint
from graphflops.graph import Ref, tensor_type
from graphflops.kernels import beside, cudnn
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.kernel import FLOAT_BYTES, INDEX_BYTES
from graphflops.kernels.moved import REPEATING
from graphflops.kernels.rowwise import loss_bytes
from graphflops.ops import Op
from graphflops.passes.program import PricedCall
from graphflops.rules.elementwise import REDUCTIONS, WORK, Formula
from graphflops.rules.formula import Launch, launches, numbers_of
from graphflops.tensor import TensorType

# Bytes of a partial result that is not one float32: a variance has a mean, a sum of squares and two counts.
_PARTIAL_BYTES = {"var": 16, "std": 16, "var_mean": 16}
_SUMMED = frozenset({"sum", "mean", "prod", "vector_norm", *_PARTIAL_BYTES})

_IN_ORDER = ("addcmul", "addcdiv")  # their gradients come in the order of `self`, `tensor1` and `tensor2`
_READ_RESULTS = ("leaky_relu", "elu", "celu", "selu")  # in-place, their gradients read the result instead
# Lists of 64-bit indices during a sort: those that are read and written, their places, and what the sort writes in between.
_LISTS_OF_INDICES = {"index": 6, "embedding": 5}
_SORTED_BY_BLOCK, _SORTED_ALONE = limits("aten_2", "sort", "block alone")
# Operands that autograd saves although only their shape is needed, by operator (derivatives.yaml of PyTorch).
_KEPT_OPERAND = {
    **dict.fromkeys(("max_pool", "adaptive_max_pool", "adaptive_avg_pool", "pad", "masked_select"), 0),
    **dict.fromkeys(("gather", "pow", "take", "real_fourier", "nll_loss"), 0),
    **dict.fromkeys(("index_add", "index_copy"), 2),
}


def forward_bytes(call: PricedCall, layouts: Layouts) -> Dim:
    """Bytes that the kernels of a call need beside its operands and results."""
    kind, name, values = call.node.operator.kind, call.node.operator.name, layouts.values
    if (inside := kernel_calls(call, values)) is not None:
        return inside.beside
    out = tensor_type(next(iter(call.node.outputs), None), values)
    if name == "convolution_backward":
        return backward_bytes(call, layouts)
    if kind == "convolution":
        found = _convolution_of(call, layouts)
        return 0 if found is None else cudnn.workspace(found[0], "forward", found[1], layouts.platform)
    if name == "max_pool":  # the positions of the maxima are computed even if no gradient needs them
        return 0 if out is None or len(call.node.outputs) > 1 else prod(out.shape) * INDEX_BYTES
    if kind == "recurrent" and call.node.operator.word.endswith("_cell"):
        from graphflops.rules.recurrent import KINDS  # no other program needs it

        return 0 if out is None or call.gradient is not None else KINDS[name].around * out.nbytes
    if kind == "loss":
        return loss_bytes(call, layouts)
    if name in ("sort", "argsort"):
        return _sorting(call, values)
    return _reduction(call, layouts, out) if out is not None and (name in _SUMMED or kind == "pooling") else 0


def backward_bytes(call: PricedCall, layouts: Layouts) -> Dim:
    """Bytes that the kernels of a call's gradients need beside the gradients."""
    if call.node.operator.kind == "convolution":
        found = _convolution_of(call, layouts)
        return 0 if found is None else cudnn.backward_bytes(*found, layouts.platform)
    first, parts = gradient_buffers(call, layouts)
    return total(first) + dim_max(*map(total, parts))


def gradient_buffers(call: PricedCall, layouts: Layouts) -> tuple[Sequence[Dim], Sequence[Sequence[Dim]]]:
    """Bytes of temporaries that are made before a call's gradients, and of what each gradient needs, in order of computing.

    All gradients need the same but for those of a convolution, or several of an elementwise call. A formula's temporaries
    live until its gradient is computed; gradients of the result's shape or type live until all are.
    """
    out, gradient = tensor_type(call.node.outputs[0], layouts.values), call.gradient
    if (found := _convolution_of(call, layouts)) is not None:
        return (), [(size,) for size in cudnn.gradient_bytes(*found, layouts.platform)] or ((),)
    if out is None or gradient is None:
        return (), ((),)
    if (inside := gradient_calls(call, layouts.values)) is not None:
        return (), ((*_sums(call, out, layouts), inside.beside),)
    if call.node.operator.kind == "softmax":  # the product of gradient and result
        return () if call.node.operator.name.startswith("log") else (out.like().nbytes,), ((),)
    if call.node.operator.kind == "product":
        return (), (_of_product(call, out, layouts),)
    if call.node.operator.name in _LISTS_OF_INDICES:
        return (), ((_sorted_indices(call, layouts),),)
    sums, made = _sums(call, out, layouts), _gradients(call, out, layouts)
    if len(gradient.gradients) < 2 or not made:
        return tuple([size for each in made.values() for size in (*each.made, *each.wide)]), (sums,)
    parts: list[list[Dim]] = []
    wide: list[Dim] = []
    for place, _ in sorted(gradient.gradients, reverse=is_last_operand_first(call)):
        wide += made[place].wide if place in made else []
        parts.append([*(made[place].made if place in made else []), *wide])
    summing = total(wide) + total(sums)
    parts[-1].append(dim_max(0, summing - total(parts[-1])))
    return (), parts


def _of_product(call: PricedCall, out: TensorType, layouts: Layouts) -> Sequence[Dim]:
    """The sum for a bias."""
    bias = tensor_type(call.node.arguments().get("bias"), layouts.values)
    if bias is None or not bias.requires_grad or not out.rank:
        return ()
    shape = (prod(out.shape[:-1]), out.shape[-1])
    return beside.reduction_buffers(shape, row_major(shape), (0,), FLOAT_BYTES, layouts.platform)


def is_last_operand_first(call: PricedCall) -> bool:
    """Whether the last operand's gradient is first: PyTorch goes by name, `mat2`, `other`, `self`, but `mat1` before all."""
    kind = call.node.operator.kind
    if kind == "product":
        return call.node.arguments().get("bias") is None
    return kind == "elementwise" and call.node.operator.name not in _IN_ORDER


class _Gradient(Record, frozen=True):
    made: list[Dim]  # temporaries of its formula
    wide: list[Dim]  # the gradient in the result's shape and type, if it is then summed or converted
    axes: list[int]  # axes along which the operand is broadcast, if a kernel of its own sums over them


def _gradients(call: PricedCall, out: TensorType, layouts: Layouts) -> dict[int, _Gradient]:
    """What the gradients of an elementwise call's operands make, by place of the operand."""
    found: dict[int, _Gradient] = {}
    if call.gradient is None or call.node.operator.kind not in ("elementwise", "reduction", "scan"):
        return found
    names = call.tensors(layouts.values)
    for place, _ in call.gradient.gradients:
        kernels = gradient_kernels(call, place, layouts.values)
        if kernels is not None:
            operand = layouts.typed(names[place])
            axes = list[int]()  # along which the operand is broadcast
            if not kernels.is_reduced:
                along = axes_of(call.node.operator, operand.shape, out.rank)
                own = dict(zip(along, operand.shape, strict=True))
                axes = [axis for axis, size in enumerate(out.shape) if own.get(axis, 1) == 1 and size != 1]
            is_wide = kernels.launches and not kernels.is_reduced and (axes or operand.dtype != out.dtype)
            made = temporary_bytes(kernels, out, layouts.values)
            found[place] = _Gradient(made, [out.like().nbytes] if is_wide else [], axes)
    return found


def _sums(call: PricedCall, out: TensorType, layouts: Layouts) -> Sequence[Dim]:
    """The largest buffers for summing gradients of the result's shape to those of broadcast operands."""
    strides, platform = layouts.of(call.node.outputs[0] or ""), layouts.platform
    axes = [each.axes for each in _gradients(call, out, layouts).values() if each.axes]
    found = [beside.reduction_buffers(out.shape, strides, each, FLOAT_BYTES, platform) for each in axes]
    return [dim_max(*sizes) for sizes in zip_longest(*found, fillvalue=0)]


def _sorted_indices(call: PricedCall, layouts: Layouts) -> Dim:
    """Lists of indices that are sorted before gradients are summed; for an embedding, before its gradient is allocated."""
    table, *indices = map(layouts.typed, call.tensors(layouts.values))
    if any(index.dtype.name == "bool" for index in indices):
        return 0  # how many elements a mask selects depends on data
    count = prod(broadcast(*[index.shape for index in indices]))
    later = table.like().nbytes if call.node.operator.name == "embedding" else 0
    return dim_max(0, _LISTS_OF_INDICES[call.node.operator.name] * INDEX_BYTES * count - later)


def _sorting(call: PricedCall, values: Mapping[str, Value]) -> Dim:
    """What a radix sort of long rows alternates between: values and places, and the numbers of rows."""
    x = tensor_type(call.uses[0], values)
    axis = call.node.arguments().get("axis", -1)
    if x is None or not x.rank or not isinstance(axis, int) or size_hint(x.shape[axis]) <= _SORTED_BY_BLOCK:
        return 0
    longest, each = x.shape[axis], x.dtype.bits // 8
    if size_hint(x.numel) == size_hint(longest) or size_hint(longest) >= _SORTED_ALONE:
        return longest * (each + 2 * INDEX_BYTES)
    return x.numel * (2 * each + 3 * INDEX_BYTES)


def saved_input_bytes(call: PricedCall, values: Mapping[str, Value]) -> Dim:
    """Bytes of autograd's copy of an operand that is overwritten in place but is needed for its gradient."""
    is_read = call.gradient is not None and 0 in call.gradient.operands
    if not is_read or not call.in_place or call.node.operator.name in _READ_RESULTS:
        return 0
    out = tensor_type(call.node.outputs[0], values)
    return 0 if out is None else out.like().nbytes


def kept_operands(call: PricedCall, values: Mapping[str, Value]) -> Sequence[str]:
    """Operands that autograd saves although no gradient reads their elements."""
    if call.gradient is None:
        return []
    operator, names = call.node.operator, call.tensors(values)
    if operator.kind == "convolution" or operator.name == "grid_sample":
        return names[:2]  # one formula has both gradients, even if only one is wanted
    if operator.name == "pad" and call.node.arguments().get("mode") not in REPEATING:
        return []
    out = tensor_type(call.node.outputs[0], values)
    if out is not None and beside.is_mean(operator, out.shape):
        return []
    place = _KEPT_OPERAND.get(operator.name)
    return names[place : place + 1] if place is not None else []


def _convolution_of(call: PricedCall, layouts: Layouts) -> tuple[Convolution, Layout, Sequence[Dim]] | None:
    """A convolution, the layout of its tensors, and the strides of its result's gradient.

    None for other calls, and for element types without tensor cores.
    """
    found = Convolution.of(call, layouts.values) if call.node.operator.kind == "convolution" else None
    if found is None or not (found.is_half or found.is_single):
        return None
    x, weight, grad = (layouts.operand(call.node.arguments(), name) for name in ("x", "weight", "grad"))
    layout = Layout.of(found.x.shape, layouts.of(x), found.weight.shape, layouts.of(weight))
    return found, layout, layouts.of(grad or call.node.outputs[0] or "")


def _reduction(call: PricedCall, layouts: Layouts, out: TensorType) -> Dim:
    if not (x := next(iter(call.tensors(layouts.values)), "")):
        return 0
    shape, strides = layouts.typed(x).shape, layouts.of(x)
    axes: Any = call.node.arguments().get("axes")
    if call.node.operator.kind == "pooling":
        if not beside.is_mean(call.node.operator, out.shape):
            return 0
        axes = tuple(range(2, len(shape)))
    axes = beside.reduced_axes(axes, len(shape))
    element = _PARTIAL_BYTES.get(call.node.operator.name, FLOAT_BYTES)
    return beside.reduction_bytes(shape, strides, axes, element, layouts.platform)


# The kernels of elementwise gradients: the formulas of `rules/work.txt`, applied to the tensors of a call


class GradientKernels(Record, frozen=True):
    """The kernels that compute the gradient of one operand."""

    formula: Formula
    launches: Sequence[Launch]
    named: Mapping[str, str]  # by the formula's names `a`, `b`, `c` and `out`, the names of the values
    is_reduced: bool = False  # the call is a reduction: its operand has more elements than `g` and `out`

    def shaped(self, launch: Launch) -> frozenset[str]:
        """The tensors that together determine the shape of a launch's result."""
        return launch.leaves & {"a"} if self.is_reduced and "a" in launch.leaves else launch.leaves


def gradient_kernels(call: PricedCall, place: int, values: Mapping[str, Value]) -> GradientKernels | None:
    """The kernels of the gradient for the operand at this place among the call's tensors; None without a known formula."""
    operator, arguments, outputs = call.node.operator, call.node.arguments(), call.node.outputs
    if operator.kind in ("reduction", "scan"):
        order = arguments.get("order")
        formula = REDUCTIONS.get(operator.name.removeprefix("aten."))
        if order not in (2, None):
            formula = REDUCTIONS.get(f"{operator.name}:{order}", REDUCTIONS["vector_norm:p"])
        if formula is None or (outputs[1:] and operator.name in ("max", "min")):
            return None  # along one axis, the gradient of an extreme is scattered to its place
        found, named = launches(formula.text, numbers_of((("p", order),))), {"a": call.uses[0]}
        named["out"] = outputs[0] or ""
        return GradientKernels(formula, found, named, operator.kind == "reduction")
    is_rounded = arguments.get("rounding_mode") is not None  # a division whose gradient is zero
    work = WORK.get("floor_divide" if is_rounded else operator.name)
    if work is None or not work.formulas:
        return None
    names = operator.parameters[: work.operands]
    given = [(letter, arguments.get(name)) for letter, name in zip("abc", names, strict=False)]
    tensors = [(letter, value) for letter, value in given if tensor_type(value, values) is not None]
    named = {letter: value.name for letter, value in tensors if isinstance(value, Ref)}
    letter = next(islice(named, place, None), None)
    if letter is None:
        return None
    formula = work.formulas["abc".index(letter)]
    if formula is None:  # the operand's gradient is that of the result
        return GradientKernels(Formula(""), (), {})
    given += [(name, value) for name, value in arguments.items() if name not in names]
    numbers = numbers_of(each for each in given if each[0] not in named)
    found = launches(formula.launched or formula.text, numbers)
    return GradientKernels(formula, found, {**named, "out": outputs[0] or ""})


def axes_of(operator: Op, operand: Sequence[Dim], rank: int) -> range:
    """The axes of a result of this rank that an operand has: the last ones; for the weight of a PReLU, the channels."""
    is_of_channels = operator.name == "prelu" and len(operand) == 1 < rank
    return range(1, 2) if is_of_channels else range(rank - len(operand), rank)


def temporary_bytes(found: GradientKernels, out: TensorType, values: Mapping[str, Value]) -> list[Dim]:
    """Bytes of each temporary that a formula makes. All live until the gradient is computed."""
    if found.formula.is_fused or not found.launches:
        return []
    result = len(found.launches) - 1
    while found.launches[result].is_in_place:
        result = next(each for each in found.launches[result].operands if isinstance(each, int))
    sizes = []
    for place, launch in enumerate(found.launches):
        if place != result and not launch.is_in_place:
            leaves = [tensor_type(found.named.get(leaf), values) or out for leaf in found.shaped(launch)]
            shapes = [leaf.shape for leaf in leaves]
            sizes.append(prod(broadcast(*shapes)) * (1 if launch.is_mask else out.dtype.bits // 8))
    return sizes
