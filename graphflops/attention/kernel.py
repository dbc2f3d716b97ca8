"""Which kernel PyTorch runs for scaled_dot_product_attention on an NVIDIA GPU, and why.

PyTorch asks each kernel in turn whether it accepts the operands, and runs the first that does. The unfused kernel, "math",
accepts everything and stores the scores. The conditions are those of sdp_utils.cpp and sdp_utils_cpp.h (in
aten/src/ATen/native/transformers), where cuDNN's kernel comes first on compute capability 9.x and 10.x if cuDNN is new
enough. What they ask of a release of PyTorch is in choices/aten_2.json.
On AMD's GPUs the flash and the efficient kernel are those of AOTriton.
A condition on a size that is not known counts as met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Literal

from graphflops.base.record import Record
from graphflops.devices import Platform
from graphflops.dims import Dim
from graphflops.kernels.choices import has_limit, limits
from graphflops.tensor import TensorType

Condition = Callable[["Problem"], str]  # why a kernel does not accept the operands; "" where it does

Kernel = Literal["cudnn", "flash", "efficient", "math"]

_REMEDIES = {
    "4 axes": "give the attention operands of 4 axes: batch, heads, length, width",
    "the mask is not 1": "call contiguous() on the mask",
    "is not 1": "call contiguous() on the operands of the attention",
    "enable_gqa": "pass enable_gqa=True",
    "is no multiple of": "pad the heads to a multiple of 8",
}
_FLASH_WIDTH, _GRADIENT_WIDTH, _GRADIENT_WIDTH_WITHOUT_DROPOUT = limits(
    *("aten_2", "attention.flash", "width", "gradient_width", "gradient_width_without_dropout")
)
_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
_CUDNN_WIDTH, _FIRST_AFTER, _DROPOUT_STEPS, _MOST_PROBLEMS, _CUDNN_GRADIENT_WIDTH, _WIDE_KEYS = limits(
    *("aten_2", "attention.cudnn", "width", "first_after", "dropout", "problems", "gradient_width"),
    "wide_keys",
)
(_TENSOR_CORE_BITS,) = limits("aten_2", "attention.efficient", "row")


class Operand(Record, frozen=True):
    """A tensor as it lies in memory."""

    type: TensorType
    strides: tuple[Dim, ...]


class Choice(Record, frozen=True):
    """The kernel that runs, and why each faster one does not."""

    kernel: Kernel
    reason: str


class Problem(Record, frozen=True):
    """The operands of one attention; wants_gradient: whether a training step runs it backwards."""

    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None = None
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False
    wants_gradient: bool = False

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        """What every kernel reads."""
        return (self.query, self.key, self.value)

    def sizes(self, axis: int) -> tuple[Dim, ...]:
        """Of an axis of query, key and value."""
        return tuple([operand.type.shape[axis] for operand in self.operands])


def attention_kernel(problem: Problem, platform: Platform) -> Choice:
    """The first kernel in PyTorch's order on a platform that accepts the operands."""
    refusals: list[str] = []
    for kernel, conditions in _order(platform):
        why = next((text for accepts in conditions if (text := accepts(problem))), "")
        if not why:
            return Choice(kernel, "; ".join(refusals))
        refusals.append(f"{kernel}: {why}")
    return Choice("math", "; ".join(refusals))


def last_refusal(reason: str) -> str:
    """Why the last kernel that PyTorch asks does not accept the operands, of the reason of a choice."""
    return reason.rpartition("; ")[2].partition(": ")[2]


def remedy(reason: str) -> str:
    """What to change so that a fused kernel runs, by the reason why none does; "" where nothing simple helps."""
    return next((text for part, text in _REMEDIES.items() if part in reason), "")


def preferred(platform: Platform, *, is_half: bool) -> Kernel:
    """The fused kernel that PyTorch asks first. is_half: whether elements have 16 bits."""
    return _order(platform)[0][0] if is_half else "efficient"


def _order(platform: Platform) -> list[tuple[Kernel, tuple[Condition, ...]]]:
    major, minor = platform.capability
    flash = (*_FLASH, _narrow_gradient) if platform.capability in _LITTLE_SHARED_MEMORY else _FLASH
    fused: list[tuple[Kernel, tuple[Condition, ...]]] = [("efficient", _EFFICIENT)]
    if major == 0 or major >= 8:
        fused.insert(0, ("flash", flash))
    if major in (9, 10) and minor in (0, 3) and platform.cudnn > _FIRST_AFTER:
        later = [has for limit, has in _LATER.items() if has_limit("aten_2", limit, platform.torch)]
        fused.insert(0, ("cudnn", (*_CUDNN, *later)))
    return fused


def _four_axes(problem: Problem) -> str:
    ranks = {operand.type.rank for operand in problem.operands}
    return "" if ranks == {4} else "operands do not have 4 axes"


def _one_type(problem: Problem, bits: tuple[int, ...] = (16,)) -> str:
    types = {operand.type.dtype for operand in problem.operands}
    if len(types) > 1:
        return "operands of several element types"
    (dtype,) = types
    return "" if dtype.bits in bits and dtype.kind == "float" else f"{dtype} operands"


def _same_batch(problem: Problem) -> str:
    return "batch sizes differ" if _differ(*problem.sizes(0)) else ""


def _same_heads(problem: Problem) -> str:
    query, key, value = problem.sizes(1)
    if problem.is_grouped:
        return "" if not _differ(key, value) else "keys and values have different heads"
    return "numbers of heads differ without enable_gqa" if _differ(query, key, value) else ""


def _own_heads(problem: Problem) -> str:
    """Keys and values have as many heads as queries."""
    if problem.is_grouped and _differ(*problem.sizes(1)):
        return "query heads share keys"
    return _same_heads(problem)


def _rows_in_order(problem: Problem) -> str:
    """The last axis of every operand has stride 1."""
    for name, operand in zip(("query", "key", "value"), problem.operands, strict=True):
        if _is_not(operand.strides[-1], 1) and operand.type.shape[-1] != 1:
            return f"the last stride of the {name} is not 1"
    if problem.mask is not None and problem.mask.strides and _is_not(problem.mask.strides[-1], 1):
        return "the last stride of the mask is not 1"
    return ""


def _flash_width(problem: Problem) -> str:
    widths = problem.sizes(-1)
    if _differ(*widths):
        return "query, key and value have different widths"
    return _too_wide(widths, _FLASH_WIDTH)


def _narrow_gradient(problem: Problem) -> str:
    """The gradients of wide heads need more shared memory than these devices have."""
    width = problem.sizes(-1)[0]
    if not problem.wants_gradient or not isinstance(width, int) or width <= _GRADIENT_WIDTH:
        return ""
    is_run = width > _GRADIENT_WIDTH_WITHOUT_DROPOUT and problem.dropout == 0
    return "" if is_run else f"gradients of head width {width} do not fit into shared memory"


def _square_if_causal(problem: Problem) -> str:
    is_long = _differ(*problem.sizes(-2)[:2])
    return "causal with as many queries as keys only" if problem.is_causal and is_long else ""


def _cudnn_shapes(problem: Problem) -> str:
    width, _, value_width = problem.sizes(-1)
    if why := _too_wide((width, value_width), _CUDNN_WIDTH):
        return why
    if any(_is_not(size % 8, 0) for size in (width, value_width) if isinstance(size, int)):
        return f"head width {width} is no multiple of 8"
    return "one key only" if problem.sizes(2)[1] == 1 else ""


def _cudnn_dropout(problem: Problem) -> str:
    is_known = (problem.dropout * _DROPOUT_STEPS).is_integer()
    return "" if is_known else f"dropout of {problem.dropout:g} is no multiple of 1/{_DROPOUT_STEPS}"


def _cudnn_problems(problem: Problem) -> str:
    most = max(size for size in (*problem.query.type.shape[:2], 0) if isinstance(size, int))
    return f"more than {_MOST_PROBLEMS} batch entries or heads" if most > _MOST_PROBLEMS else ""


def _cudnn_gradient(problem: Problem) -> str:
    width, _, value_width = problem.sizes(-1)
    wide = ((_WIDE_KEYS, _CUDNN_GRADIENT_WIDTH), (_CUDNN_WIDTH, _CUDNN_WIDTH))
    is_narrow = not _too_wide((width, value_width), _CUDNN_GRADIENT_WIDTH)
    if not problem.wants_gradient or is_narrow or (width, value_width) in wide:
        return ""
    return f"no gradients of head widths {width} and {value_width}"


def _cudnn_mask(problem: Problem) -> str:
    if problem.mask is None:
        return ""
    mask = problem.mask.type
    if mask.requires_grad and problem.wants_gradient:
        return "the mask wants a gradient"
    return "" if mask.rank in (2, 4) else f"a mask of {mask.rank} axes"


def _efficient_width(problem: Problem) -> str:
    dtype = problem.query.type.dtype
    alignment = max(4, _TENSOR_CORE_BITS // dtype.bits)
    widths = problem.sizes(-1)
    for width in widths:
        if isinstance(width, int) and width % alignment:
            return f"head width {width} is no multiple of {alignment}"
    return "query and key have different widths" if _differ(*widths[:2]) else ""


def _too_wide(widths: Iterable[Dim], most: int) -> str:
    found = max((width for width in widths if isinstance(width, int)), default=0)
    return f"head width {found} is more than {most}" if found > most else ""


def _differ(*sizes: Dim) -> bool:
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairwise(sizes))


def _is_not(size: Dim, number: int) -> bool:
    return isinstance(size, int) and size != number


_CUDNN = (
    _four_axes, _one_type, _cudnn_mask, _rows_in_order, _same_batch, _same_heads, _cudnn_shapes,
)  # fmt: skip
_LATER: dict[str, Condition] = {  # by the limit that a release must have
    "attention.cudnn.dropout": _cudnn_dropout,
    "attention.cudnn.problems": _cudnn_problems,
    "attention.cudnn.gradient_width": _cudnn_gradient,
}
_FLASH = (
    _four_axes, lambda problem: "" if problem.mask is None else "a mask is given", _flash_width,
    _square_if_causal, _one_type, _same_batch, _same_heads, _rows_in_order,
)  # fmt: skip
_any_precision = partial(_one_type, bits=(16, 32))
_EFFICIENT = (_four_axes, _any_precision, _efficient_width, _rows_in_order, _same_batch, _own_heads)
