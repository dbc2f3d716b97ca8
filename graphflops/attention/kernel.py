"""Which kernel PyTorch runs for scaled_dot_product_attention on an NVIDIA GPU, and why.

PyTorch asks each kernel in turn whether it accepts the operands, and runs the first that does. The unfused kernel, "math",
accepts everything and stores the scores. The conditions are those of sdp_utils.cpp and sdp_utils_cpp.h (in
aten/src/ATen/native/transformers), where cuDNN's kernel comes first on compute capability 9.x and 10.x if cuDNN is new
enough. Conditions that depend on the release of PyTorch are in choices/aten_2.json.
On AMD GPUs, the flash and the efficient kernel are those of AOTriton.
A condition on an unknown size counts as met.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Literal

from graphflops.base.record import Record
from graphflops.devices import Platform
from graphflops.dims import Dim
from graphflops.kernels.choices import has_limit, limits
from graphflops.tensor import TensorType

Kernel = Literal["cudnn", "flash", "efficient", "math"]
Conditions = Callable[["Problem", Platform], Iterator[str]]  # of a kernel: "" for each that is met

_REMEDIES = {
    "4 axes": "give the attention operands of 4 axes: batch, heads, length, width",
    "the mask is not 1": "call contiguous() on the mask",
    "is not 1": "call contiguous() on the operands of the attention",
    "enable_gqa": "pass enable_gqa=True",
    "is no multiple of": "pad the heads to a multiple of 8",
}
_FLASH_WIDTH, _GRADIENT_WIDTH, _GRADIENT_WIDTH_WITHOUT_DROPOUT = limits(
    "aten_2", "attention.flash", "width gradient_width gradient_width_without_dropout"
)
_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
_CUDNN_WIDTH, _FIRST_AFTER, _DROPOUT_STEPS, _MOST_PROBLEMS, _CUDNN_GRADIENT_WIDTH, _WIDE_KEYS = limits(
    "aten_2", "attention.cudnn", "width first_after dropout problems gradient_width wide_keys"
)
(_TENSOR_CORE_BITS,) = limits("aten_2", "attention.efficient", "row")


class Operand(Record, frozen=True):
    """A tensor with its strides."""

    type: TensorType
    strides: tuple[Dim, ...]


class Choice(Record, frozen=True):
    """The kernel that runs, and why each faster one does not."""

    kernel: Kernel
    reason: str


class Problem(Record, frozen=True):
    """The operands of one attention. wants_gradient: whether a training step computes its gradients."""

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
        """The operands that every kernel reads."""
        return (self.query, self.key, self.value)

    def sizes(self, axis: int) -> tuple[Dim, ...]:
        return tuple([operand.type.shape[axis] for operand in self.operands])


def attention_kernel(problem: Problem, platform: Platform) -> Choice:
    """The first kernel in PyTorch's order on a platform that accepts the operands."""
    refusals: list[str] = []
    for kernel, refusals_of in _order(platform):
        why = next(filter(None, refusals_of(problem, platform)), "")
        if not why:
            return Choice(kernel, "; ".join(refusals))
        refusals.append(f"{kernel}: {why}")
    return Choice("math", "; ".join(refusals))


def last_refusal(reason: str) -> str:
    """Why the last kernel that PyTorch asked refused, from the reason of a choice."""
    return reason.rpartition("; ")[2].partition(": ")[2]


def remedy(reason: str) -> str:
    """What to change so that a fused kernel runs, by the reason why none does; "" if nothing simple helps."""
    return next((text for part, text in _REMEDIES.items() if part in reason), "")


def preferred(platform: Platform, *, is_half: bool) -> Kernel:
    """The fused kernel that PyTorch asks first. is_half: whether elements have 16 bits."""
    return _order(platform)[0][0] if is_half else "efficient"


def _order(platform: Platform) -> list[tuple[Kernel, Conditions]]:
    """The fused kernels in the order in which PyTorch asks them, with their conditions."""
    major, minor = platform.capability
    has_cudnn = major in (9, 10) and minor in (0, 3) and platform.cudnn > _FIRST_AFTER
    fused: list[tuple[Kernel, Conditions]] = [("efficient", _efficient)]
    fused = [("flash", _flash), *fused] if major == 0 or major >= 8 else fused
    return [("cudnn", _cudnn), *fused] if has_cudnn else fused


def _cudnn(problem: Problem, platform: Platform) -> Iterator[str]:
    yield _four_axes(problem)
    yield _one_type(problem, 16)
    if problem.mask is not None:
        mask = problem.mask.type
        yield "the mask wants a gradient" if mask.requires_grad and problem.wants_gradient else ""
        yield "" if mask.rank in (2, 4) else f"a mask of {mask.rank} axes"
    yield from (_rows_in_order(problem), _same_batch(problem), _same_heads(problem))
    widths = width, value_width = problem.sizes(-1)[::2]
    yield _too_wide(widths, _CUDNN_WIDTH)
    if any(size % 8 for size in widths if isinstance(size, int)):
        yield f"head width {width} is no multiple of 8"
    yield "one key only" if problem.sizes(2)[1] == 1 else ""
    limits_of = ("dropout", "problems", "gradient_width")
    asks = {name: has_limit("aten_2", f"attention.cudnn.{name}", platform.torch) for name in limits_of}
    if asks["dropout"] and not (problem.dropout * _DROPOUT_STEPS).is_integer():
        yield f"dropout of {problem.dropout:g} is no multiple of 1/{_DROPOUT_STEPS}"
    most = max(size for size in (*problem.query.type.shape[:2], 0) if isinstance(size, int))
    if asks["problems"] and most > _MOST_PROBLEMS:
        yield f"more than {_MOST_PROBLEMS} batch entries or heads"
    is_narrow = not _too_wide(widths, _CUDNN_GRADIENT_WIDTH)
    is_run = is_narrow or widths in ((_WIDE_KEYS, _CUDNN_GRADIENT_WIDTH), (_CUDNN_WIDTH, _CUDNN_WIDTH))
    if asks["gradient_width"] and problem.wants_gradient and not is_run:
        yield f"no gradients of head widths {width} and {value_width}"


def _flash(problem: Problem, platform: Platform) -> Iterator[str]:
    yield _four_axes(problem)
    yield "" if problem.mask is None else "a mask is given"
    widths = problem.sizes(-1)
    yield "query, key and value have different widths" if _differ(*widths) else ""
    yield _too_wide(widths, _FLASH_WIDTH)
    is_long = _differ(*problem.sizes(-2)[:2])
    yield "causal with as many queries as keys only" if problem.is_causal and is_long else ""
    yield from (_one_type(problem, 16), _same_batch(problem), _same_heads(problem), _rows_in_order(problem))
    # The gradients of wide heads need more shared memory than these devices have.
    has_little, width = platform.capability in _LITTLE_SHARED_MEMORY, widths[0]
    if has_little and problem.wants_gradient and isinstance(width, int) and width > _GRADIENT_WIDTH:
        is_run = width > _GRADIENT_WIDTH_WITHOUT_DROPOUT and problem.dropout == 0
        yield "" if is_run else f"gradients of head width {width} do not fit into shared memory"


def _efficient(problem: Problem, platform: Platform) -> Iterator[str]:
    yield _four_axes(problem)
    yield _one_type(problem, 16, 32)
    widths, alignment = problem.sizes(-1), max(4, _TENSOR_CORE_BITS // problem.query.type.dtype.bits)
    for width in widths:
        if isinstance(width, int) and width % alignment:
            yield f"head width {width} is no multiple of {alignment}"
    yield "query and key have different widths" if _differ(*widths[:2]) else ""
    yield from (_rows_in_order(problem), _same_batch(problem))
    yield "query heads share keys" if problem.is_grouped and _differ(*problem.sizes(1)) else ""
    yield _same_heads(problem)


def _four_axes(problem: Problem) -> str:
    return "" if {operand.type.rank for operand in problem.operands} == {4} else "operands do not have 4 axes"


def _one_type(problem: Problem, *bits: int) -> str:
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


def _rows_in_order(problem: Problem) -> str:
    """The last axis of every operand has stride 1."""
    for name, operand in zip(("query", "key", "value"), problem.operands, strict=True):
        if _differ(operand.strides[-1], 1) and operand.type.shape[-1] != 1:
            return f"the last stride of the {name} is not 1"
    if problem.mask is not None and problem.mask.strides and _differ(problem.mask.strides[-1], 1):
        return "the last stride of the mask is not 1"
    return ""


def _too_wide(widths: Iterable[Dim], most: int) -> str:
    found = max((width for width in widths if isinstance(width, int)), default=0)
    return f"head width {found} is more than {most}" if found > most else ""


def _differ(*sizes: Dim) -> bool:
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairwise(sizes))
