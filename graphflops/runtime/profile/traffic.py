"""Kernels limited by memory traffic to measure: elementwise, normalizations, reductions, gathers, sorts and others."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch

from graphflops.base.record import Record
from graphflops.kernels.kernel import Chunks, Family, Kernel, Rows, Sizes, Strided, Windows
from graphflops.runtime.profile.trial import Calls, Clock, Trial, random, spread

Make = Callable[[torch.Tensor], Callable[[], object]]

ATEN = torch.ops.aten
_SECTOR = 32  # bytes
_CHUNK = 65536  # elements that a thread block of a multi-tensor kernel works through (MultiTensorApply.cuh of ATen)
_ONE_KERNEL = 256 * _CHUNK  # more elements need several kernels
_MOST_ELEMENTS = {"cuda": 2**28, "cpu": 2**23}


class Plan(Record, frozen=True):
    """One operator on a rows x columns tensor."""

    family: Family
    make: Make  # prepares a call from the tensor
    reads: float = 1.0  # bytes read per element, relative to the element type; so is `writes`
    writes: float = 1.0
    work: int = 1  # arithmetic per element
    count: int = 8
    columns: tuple[int, int] = (32, 16384)
    is_inner: bool = True  # a row is contiguous
    variant: str = ""
    is_cold: bool = False  # operands are not in the cache
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    most: int = 2**28
    tensors: int = 0  # over which the elements are spread, for a multi-tensor kernel
    # The kernel's sizes, from rows, columns and bytes per element; `Rows` by default.
    sizes: Callable[[int, int, int], Sizes] | None = None


def _with(make: Callable[..., object], *others: Callable[[torch.Tensor], Any]) -> Make:
    """A call of `make` on the tensor and operands that are made from it."""
    return lambda x: partial(make, x, *(other(x) for other in others))


def _same(x: torch.Tensor) -> torch.Tensor:
    return random(x.shape, x.dtype, x.device.type)


def _row(x: torch.Tensor) -> torch.Tensor:
    return random(x.shape[1:], x.dtype, x.device.type)


def _places(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), device=x.device).flip(0)


def _on_image(call: Callable[[torch.Tensor], object], **more: Any) -> Plan:
    """A call on rows that are images of 28 x 28 pixels, as batch x 32 channels."""

    def make(x: torch.Tensor) -> Callable[[], object]:
        return partial(call, x[: len(x) // 32 * 32].view(-1, 32, 28, 28))

    return Plan("pool", make, columns=(28 * 28, 28 * 28), **more)


def _layer_norm_backward(x: torch.Tensor) -> Callable[[], object]:
    weight, shape = _row(x), [x.shape[1]]
    _, mean, rstd = ATEN.native_layer_norm(x, shape, weight, weight, 1e-5)
    given = _same(x), x, shape, mean, rstd, weight, weight
    return partial(ATEN.native_layer_norm_backward, *given, [True] * 3)


def _layer_norm(x: torch.Tensor) -> Callable[[], object]:
    weight = _row(x)
    return partial(torch.layer_norm, x, (x.shape[1],), weight, weight)


def _batch_norm(is_training: bool) -> Callable[[torch.Tensor], Callable[[], object]]:
    def make(x: torch.Tensor) -> Callable[[], object]:
        image = x[: len(x) // 64 * 64].view(-1, 64, x.shape[1], 1)
        fills = (torch.zeros, torch.ones, torch.ones)
        mean, variance, weight = (fill(64, device=x.device, dtype=x.dtype) for fill in fills)
        given = image, weight, weight, mean, variance
        return partial(torch.batch_norm, *given, is_training, 0.1, 1e-5, is_training)

    return make


def _group_norm(x: torch.Tensor) -> Callable[[], object]:
    weight = random((32,), x.dtype, x.device.type)
    return partial(torch.group_norm, x.view(-1, 32, x.shape[1]), 32, weight, weight)


def _adam(x: torch.Tensor) -> Callable[[], object]:
    p, g, m, v = (list(random(x.shape, x.dtype, x.device.type).chunk(8)) for _ in range(4))
    v = [one.abs() for one in v]
    steps = [torch.ones((), device=x.device) for _ in p]
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return partial(torch._fused_adamw_, p, g, m, v, [], steps, **numbers, amsgrad=False, maximize=False)


def _transposed(*sizes: int) -> Make:
    """A copy of rows that form planes of these sizes, with two axes exchanged."""
    return lambda x: x.view(-1, *sizes, x.shape[1]).transpose(1, 2).contiguous


def _strided(axes: int, operands: int, **more: Any) -> Callable[[int, int, int], Sizes]:
    """Sizes of a kernel that walks `axes` axes of `operands` tensors."""
    return lambda rows, columns, width: Strided(rows * columns, axes, operands, **more)


def _turned(axes: int) -> Callable[[int, int, int], Sizes]:
    """Sizes of a copy that reads neighbours from places far apart, so each element loads a whole sector."""
    return lambda rows, columns, width: Strided(rows * columns, axes, 2, waste=_SECTOR - width)


def _windows(taps: int, left: float = 0.25) -> Callable[[int, int, int], Sizes]:
    """Sizes of a kernel that reads windows of an image. left: the pixels of its result for each pixel."""
    return lambda rows, columns, width: Windows(int(left * rows * columns), taps)


_average = partial(torch.nn.functional.avg_pool2d, kernel_size=2)
_twice = partial(torch.nn.functional.interpolate, scale_factor=2)
_softmax = partial(Plan, "softmax")
_to_float = partial(Plan, "copy", dtypes=("bfloat16",))
_scatter = partial(Plan, "scatter", most=2**24)
_sort = partial(Plan, "sort", dtypes=("float32",), most=2**24)
_optimizer = partial(Plan, "optimizer", columns=(1024, 1024), most=_ONE_KERNEL)
_FLOAT32 = ("float32",)
_PLANS: tuple[Plan, ...] = (
    Plan("elementwise", _with(torch.relu), count=14),
    Plan("elementwise", _with(torch.add, _same), reads=2, count=14),
    Plan("elementwise", _with(torch.relu), count=8, is_cold=True),
    Plan("elementwise", _with(torch.nn.functional.gelu), work=10),
    Plan("elementwise", _with(torch.mul, _row), variant="strided", sizes=_strided(2, 3)),
    Plan("elementwise", _with(torch.mul, lambda x: _same(x[:, :1])), variant="strided", sizes=_strided(2, 3)),
    Plan("elementwise", _with(torch.exp), work=1),
    Plan("elementwise", _with(torch.clamp, lambda _: 0)),
    Plan("normalization", _layer_norm, work=8, count=14, columns=(64, 8192)),
    Plan("normalization", _layer_norm_backward, reads=2, work=14, columns=(64, 8192)),
    Plan("normalization", _batch_norm(False), work=4, columns=(49, 12544), is_inner=False),
    Plan("normalization", _batch_norm(True), reads=2, work=8, columns=(49, 12544), is_inner=False),
    Plan("normalization", _group_norm, variant="group_norm", work=8, columns=(4096, 4096)),
    _softmax(_with(torch.softmax, lambda x: 1), work=5, variant="softmax", count=14, columns=(32, 65536)),
    _softmax(
        lambda x: partial(ATEN._softmax_backward_data, _same(x), torch.softmax(x, 1), 1, x.dtype),
        reads=2,
        work=4,
    ),
    Plan("copy", _with(torch.clone)),
    Plan("copy", lambda x: partial(torch.cat, [x, _same(x)]), reads=2, writes=2, variant="cat"),
    Plan("copy", lambda x: x.t().contiguous, variant="strided", sizes=_turned(2)),
    Plan("copy", _transposed(32), variant="strided", sizes=_turned(3)),
    Plan("copy", _transposed(16, 2), variant="strided", sizes=_strided(4, 2)),
    _to_float(lambda x: x.float, writes=2, variant="cast", sizes=_strided(1, 2, has_casts=True)),
    Plan("copy", lambda x: x.bfloat16, writes=0.5, variant="narrowed", dtypes=_FLOAT32),
    Plan("reduction", lambda x: partial(torch.sum, x, 1), writes=0, count=10, columns=(32, 65536)),
    Plan("reduction", lambda x: partial(torch.sum, x, 0), writes=0, count=10, is_inner=False),
    Plan("reduction", lambda x: partial(torch.sum, x), writes=0),
    Plan("reduction", lambda x: partial(torch.argmax, x, 1), writes=0),
    Plan("gather", _with(torch.index_select, lambda x: 0, _places), is_cold=True),
    Plan(
        "gather",
        lambda x: partial(torch.gather, x, 0, _places(x)[:, None].expand_as(x).contiguous()),
        reads=3,
    ),
    _scatter(lambda x: partial(x.index_add, 0, _places(x), _same(x)), reads=3, writes=2),
    _scatter(_with(ATEN.embedding_dense_backward, _places, len, lambda _: -1, lambda _: False)),
    _on_image(lambda x: torch.max_pool2d(x, 3, 2, 1), writes=0.25, variant="max_pool", sizes=_windows(9)),
    _on_image(_average, writes=0.25, variant="avg_pool", sizes=_windows(4)),
    _on_image(_twice, writes=4, work=0, variant="nearest", sizes=_windows(0, left=4)),
    _on_image(
        partial(_twice, mode="bilinear"),
        writes=4,
        variant="linear",
        sizes=lambda rows, columns, width: Rows(4 * columns, rows, is_inner=False),
    ),
    Plan("random", lambda x: partial(torch.native_dropout, x, 0.1, True), writes=1.25, work=3),
    Plan("scan", lambda x: partial(torch.cumsum, x, 1), variant="cumsum", dtypes=_FLOAT32),
    Plan("scan", lambda x: partial(torch.cumsum, x, 0), dtypes=_FLOAT32, is_inner=False, count=5, most=2**24),
    _sort(lambda x: partial(torch.sort, x, 1), variant="sort", writes=3),
    _sort(lambda x: partial(torch.topk, x, 8, 1), variant="topk", writes=0),
    Plan("fft", lambda x: partial(torch.fft.rfft, x), dtypes=_FLOAT32, most=2**26),
    _optimizer(_adam, reads=4, writes=3, work=15, variant="fused", tensors=8),
    _optimizer(
        lambda x: partial(torch._foreach_add, list(x.chunk(16)), list(_same(x).chunk(16))),
        reads=2,
        tensors=16,
    ),
)


def traffic(clock: Clock) -> Iterator[Trial]:
    """All plans at sizes from a few rows to as many as fit."""
    for plan in _PLANS:
        for dtype in plan.dtypes:
            most = min(plan.most, _MOST_ELEMENTS[clock.device])
            for elements, columns in spread(plan.count, (4096, most), plan.columns):
                rows = max(1, elements // columns // 64) * 64
                is_long = not plan.is_inner and plan.family != "normalization" and rows > 65536
                if rows * columns <= most and not is_long:
                    yield _trial(plan, dtype, rows, columns, clock)


def _trial(plan: Plan, dtype: str, rows: int, columns: int, clock: Clock) -> Trial:
    kind, span = getattr(torch, dtype), rows * columns
    read, written = int(plan.reads * span * kind.itemsize), int(plan.writes * span * kind.itemsize)
    variant = plan.variant if plan.is_inner else "outer"
    sizes: Sizes = Rows(rows, columns) if plan.is_inner else Rows(columns, rows, False)
    if plan.sizes is not None:
        sizes = plan.sizes(rows, columns, kind.itemsize)
    elif plan.tensors:
        each = span // plan.tensors
        sizes = Chunks(plan.tensors * -(-each // _CHUNK), min(each, _CHUNK))
    kernel = Kernel(plan.family, dtype, 0, plan.work * span, read, written, sizes, variant)
    return Trial(kernel, partial(_prepare, plan, kind, (rows, columns), clock))


def _prepare(plan: Plan, kind: torch.dtype, shape: tuple[int, int], clock: Clock) -> Calls:
    sets = clock.sets(prod(shape) * kind.itemsize) if plan.is_cold else 1
    return [plan.make(random(shape, kind, clock.device)) for _ in range(sets)]
