"""One call as torch dispatches it, on tensors of the device `meta` that hold nothing, beside what this package predicts."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from graphflops.devices import HOPPER, device
from graphflops.execution.runs import Runs
from graphflops.graph import Output, Ref
from graphflops.memory.on_gpu import Eager
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.memory import memory_use
from graphflops.passes.price import price
from graphflops.tensor import DType, TensorType
from graphflops.time.launches import Launcher
from tests.one_call import program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

HOST = device("h200").host
assert HOST is not None

# Kernels of a CUDA device for one call of torch, where it is not one pointwise kernel, gather or copy ("simple").
KERNELS: dict[str, str] = {}
for kernels, names in {
    "": "detach _unsafe_view empty empty_like new_empty new_empty_strided",
    "matmul": "mm addmm bmm baddbmm addbmm mv addmv dot",
    "reduction": "sum mean amax amin aminmax max min var std var_mean linalg_vector_norm prod argmax norm nansum "
    "std_mean",
    "sort": "topk bucketize searchsorted",
    "simple simple simple simple sort": "sort",  # short rows in place: values copied, places counted and copied, Sort.cpp
    "scan": "cumsum cumprod cummax cummin logcumsumexp",
    "normalization": "native_layer_norm native_batch_norm native_batch_norm_backward",
    "normalization reduction": "native_layer_norm_backward",  # layer_norm_kernel.cu of ATen
    "normalization simple simple": "native_group_norm",  # moments, factors, their use: group_norm_kernel.cu
    "normalization simple simple simple": "native_group_norm_backward",
    "softmax": "_softmax _log_softmax _log_softmax_backward_data",
    "softmax simple reduction simple": "_safe_softmax",  # and rows of -inf alone, of which it is 0: SoftMax.cpp
    "simple softmax": "_softmax_backward_data",  # times the result first: SoftMax.cu
    "simple reduction": "count_nonzero _cdist_backward mse_loss smooth_l1_loss huber_loss binary_cross_entropy",
    "simple simple simple simple simple reduction": "binary_cross_entropy_with_logits",  # Loss.cpp
    f"reduction reduction matmul{9 * ' simple'}": "_euclidean_dist",  # Distance.cpp
    f"reduction reduction{7 * ' simple'}": "logsumexp",  # amax, abs, eq, masked_fill, sub, exp, sum, log, add: ReduceOps.cpp
    # zeros, to which something is added, or a division in place after it: Loss.cpp, Loss.cu, Embedding.cu, TensorShape.cpp
    "simple simple": "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
    "nll_loss_backward embedding_dense_backward slice_backward select_backward diagonal_backward unfold_backward "
    "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward "
    "_upsample_bilinear2d_aa_backward nll_loss2d_backward constant_pad_nd slice_scatter select_scatter diagonal_scatter "
    "reflection_pad2d_backward",
    "pool": "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d adaptive_max_pool2d "
    "_adaptive_avg_pool3d adaptive_max_pool3d avg_pool2d_backward avg_pool3d_backward upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
    "upsample_trilinear3d _upsample_bilinear2d_aa upsample_nearest1d_backward upsample_nearest2d_backward "
    "upsample_nearest3d_backward _upsample_nearest_exact2d_backward grid_sampler_2d grid_sampler_3d reflection_pad2d",
    "simple pool": "max_pool2d_with_indices_backward max_pool3d_with_indices_backward _adaptive_avg_pool2d_backward "
    "_adaptive_avg_pool3d_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward",  # DilatedMaxPool2d.cu, AdaptiveAveragePooling.cu
    "pool pool": "grid_sampler_2d_backward grid_sampler_3d_backward",  # one kernel; here one for each gradient
}.items():
    KERNELS.update(dict.fromkeys(names.split(), kernels))
HEAVY = {*" ".join(KERNELS.values()).split(), "convolution", "attention", "recurrence"} - {"simple"}
MULTIPLYING = {"matmul", "convolution", "attention", "recurrence", "other"}
# Out of place a copy comes first; autograd changes a tensor that it has just made in place, but not under a dispatch mode.
UPDATES = frozenset(
    (
        *(
            "scatter",
            "scatter_add",
            "scatter_reduce",
            "index_add",
            "index_copy",
            "index_put",
            "index_fill",
            "index_reduce",
            "put",
        ),
        *("masked_fill", "masked_scatter"),
    )
)
FRESH = frozenset(("zeros", "zeros_like", "new_zeros", "ge", "isnan", "scalar_tensor"))
JOINED = frozenset(("logical_and",))  # of masks, in place as well
# Bytes that the function of an operator makes beside its result, by its arguments.
INSIDE: dict[str, Callable[..., int]] = {
    "_softmax_backward_data": lambda g, *rest: g.nbytes,
    "_safe_softmax": lambda x, *rest: x.numel() + x.numel() // x.shape[-1],  # which are -inf
    "count_nonzero": lambda x, *axes: x.numel(),
    "logsumexp": lambda x, *axes: x.nbytes + x.nbytes // x.shape[-1],  # differences, and the extremes
    "binary_cross_entropy_with_logits": lambda x, *rest: 2 * x.nbytes,
    "_cdist_backward": lambda g, x, *rest: g.nbytes * x.shape[-1],  # DistanceKernel.cu
    # norms and ones, and both beside the rows
    "_euclidean_dist": lambda *xs: sum(x.nbytes // x.shape[-1] * (x.shape[-1] + 4) for x in xs),
    "_trilinear": lambda *given: 4 * sum(_trilinear(*given)[1]),
}


def _trilinear(*given: Any) -> tuple[list[str], list[int]]:
    """Kernels of `_trilinear`, and elements of both products for one position of axis 1 (Linear.cpp of ATen)."""
    expanded, summed = [set(axes) for axes in given[3:6]], set(given[6])
    sizes = [
        {axis: x.shape[place] for place, axis in enumerate(sorted({0, 1, 2, 3} - left))}
        for x, left in zip(given, expanded, strict=False)
    ]
    sizes = {axis: size for each in sizes for axis, size in each.items()}
    first, second = summed & expanded[2] - {1}, summed - expanded[2] - {1}
    kernels = [*("matmul" if axes else "simple" for axes in (first, second)), "simple"]
    joined = {axis for axis in range(4) if not (axis in expanded[0] and axis in expanded[1])}
    left = [prod(sizes[axis] for axis in axes - {1}) for axes in (joined - first, {0, 2, 3} - summed)]
    return ["simple", *kernels * sizes[1]], left


# Where the kernels of CUDA move other bytes than the tensors of the calls have: rows that indices name, parts that are
# written, layouts that libraries convert, results that start as a copy, several kernels of one call, parts of cells.
MOVED_OTHERWISE = {
    "forward": (
        "addbmm addmm alpha_dropout baddbmm batch_norm bilinear binary_cross_entropy "
        "binary_cross_entropy_with_logits cdist constant_pad_nd conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d count_nonzero cross_entropy_loss dropout embedding feature_dropout gather "
        "group_norm gru_cell hinge_embedding_loss huber_loss index index_add index_copy index_reduce "
        "index_select instance_norm log_sigmoid logsumexp lstm_cell masked_fill masked_scatter mse_loss msort "
        "nll_loss_nd pad rms_norm roll scaled_dot_product_attention scatter scatter_add scatter_reduce slice_scatter "
        "smooth_l1_loss sort take "
        "take_along_dim trace upsample_bicubic2d "
    ),
    "backward": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d add addcdiv amax "
        "amin aminmax atan2 avg_pool1d avg_pool2d avg_pool3d bilinear binary_cross_entropy cat cdist "
        "constant_pad_nd conv1d conv2d conv3d conv_transpose1d conv_transpose2d cosine_embedding_loss "
        "cosine_similarity cross_entropy_loss cummax cummin cumprod div dropout embedding expand fmax gather "
        "glu group_norm gru_cell huber_loss im2col index index_add index_copy index_put index_reduce "
        "index_select instance_norm kthvalue layer_norm lerp log_sigmoid lstm_cell masked_fill masked_scatter "
        "max max_pool1d max_pool2d max_pool2d_with_indices max_pool3d median min mish mode mse_loss msort mul "
        "narrow native_layer_norm nll_loss_nd pad prelu prod reflection_pad2d repeat_interleave "
        "replication_pad1d rms_norm roll scaled_dot_product_attention scatter scatter_add scatter_reduce select sign "
        "slice slice_scatter "
        "smooth_l1_loss softmax sort stack std_mean take take_along_dim topk trace unfold upsample_bicubic2d "
        "upsample_bilinear2d upsample_linear1d upsample_trilinear3d var_mean xlogy "
    ),
}


def kernels_of(name: str, args: tuple[Any, ...], out: Any) -> list[str]:
    """Families of the kernels of one call."""
    if name == "convolution":
        return ["convolution", *["simple"] * (args[2] is not None)]
    if name == "convolution_backward":
        return [
            kernel
            for kernel, wanted in zip(("convolution", "convolution", "reduction"), args[-1], strict=True)
            if wanted
        ]
    if name == "_trilinear":
        return _trilinear(*args)[0]
    found = KERNELS.get(name, "simple").split()
    if name == "native_layer_norm_backward":  # of the operand, of weight or bias
        of_x, *rest = args[-1]
        return found[:of_x] + found[1:] * any(rest)
    if name in ("addmm", "baddbmm", "addbmm") and args[0].shape == out.shape:  # the result starts as a copy
        return ["simple", *found]
    if name.endswith("_loss") and args[2:3] == (0,):  # no mean of the elements
        return ["simple"]
    return [*found, "sort"] if name == "index_put" and args[3:4] == (True,) else found


class Phase(NamedTuple):
    """What runs in a phase, the most bytes that live in it beside the operands, and the bytes that it reads and writes."""

    kernels: Counter[str]
    peak: int
    moved: tuple[int, int] = (0, 0)
    calls: tuple[str, ...] = ()


class Step(NamedTuple):
    """The forward and the gradients of one call."""

    forward: Phase
    backward: Phase


class Dispatched(TorchDispatchMode):
    """Notes the calls, and the bytes that live after each of them."""

    def __init__(self, operands: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.sizes = {id(x.untyped_storage()): 0 for x in operands}
        self.start()

    def start(self) -> None:
        self.calls: list[str] = []
        self.fresh: set[int] = set()
        self.kernels: Counter[str] = Counter()
        self.moved = 0, 0
        self.peak = sum(self.sizes.values())

    def phase(self) -> Phase:
        return Phase(self.kernels, self.peak, self.moved, tuple(self.calls))

    def __torch_dispatch__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = called(*args, **(kwargs or {}))
        name = called._schema.name.removeprefix("aten::")
        if any(x.alias_info is not None and not x.alias_info.is_write for x in called._schema.arguments):
            return out
        self.calls.append(name)
        if KERNELS.get(name) != "":
            reads, writes = (
                [x for x in tree_leaves(each) if isinstance(x, torch.Tensor)]
                for each in ((args, kwargs or {}), out)
            )
            self.moved = (
                self.moved[0] + sum(map(_stored, reads)),
                self.moved[1] + sum(x.nbytes for x in writes),
            )
        first = id(args[0].untyped_storage()) if args and isinstance(args[0], torch.Tensor) else 0
        is_in_place = name in UPDATES | JOINED and first in self.fresh
        self.kernels.update(kernels_of(name, args, out))
        self.kernels["simple"] += name in UPDATES and not is_in_place
        if is_in_place:
            self.sizes[first] = 0
        made = [x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        for storage in made:
            key = id(storage)
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, key)
            if name in FRESH or is_in_place:
                self.fresh.add(key)
        inside = INSIDE[name](*args) if name in INSIDE else 0
        self.peak = max(self.peak, sum(self.sizes.values()) + inside)
        return out


def _stored(x: torch.Tensor) -> int:
    """Bytes of a tensor without repeats."""
    return x.element_size() * prod(size for size, step in zip(x.shape, x.stride(), strict=True) if step)


def by_torch(op: str, *args: Any, **kwargs: Any) -> Step:
    """What torch does."""
    _, name, overload = op.split(".")
    given, named = tree_map_only(TensorType, _tensor, (args, kwargs))
    given, named = tree_map_only(DType, lambda dtype: getattr(torch, dtype.name), (given, named))
    operands = [x for x in tree_leaves((given, named)) if isinstance(x, torch.Tensor)]
    wanted = [x for x in operands if x.requires_grad]
    with Dispatched(operands) as mode:
        results = getattr(getattr(torch.ops.aten, name), overload)(*given, **named)
        forward = mode.phase()
        if not wanted:
            return Step(forward, Phase(Counter(), 0))
        results = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
        gradients = [torch.empty_like(x) for x in results]
        mode.start()
        torch.autograd.grad(results, wanted, gradients)
    return Step(forward, mode.phase())


def _tensor(x: TensorType) -> torch.Tensor:
    dtype = getattr(torch, x.dtype.name)
    return torch.empty(x.shape, dtype=dtype, device="meta", requires_grad=x.requires_grad)  # type: ignore


def by_us(op: str, *args: Any, **kwargs: Any) -> Step:
    """What this package predicts."""
    _, name, overload = op.split(".")
    results = getattr(getattr(torch.ops.aten, name), overload)._schema.returns
    outputs = by_count.get(op, len(results))
    program = program_of(op, *args, outputs=outputs, **kwargs)
    wanting = [f"y{place}" for place in range(outputs) if _wants(program.main.values[f"y{place}"])] or ["y0"]
    graph = replace(program.graph, outputs=tuple(Output(Ref(name)) for name in wanting))
    training = program.training and replace(program.training, loss="given")
    program = price(graph, bind(graph, {}, {}), facts_of, training=training)
    runs = Runs((), HOPPER, is_eager=True)
    launcher = Launcher(program, {}, runs, HOST.seconds)  # type: ignore[union-attr]
    memory = memory_use(program, partial(Eager, runs=runs))
    timeline = memory.step or memory.inference
    sizes = [0 if held.kind == "input" else int(str(held.bytes)) for held in timeline.held]
    live = timeline.live_bytes(sizes)
    turn = len(live) if timeline.gradients_from is None else timeline.gradients_from
    forward = _phase(launcher.forward(records=training is not None), live[:turn])
    if training is None:
        return Step(forward, Phase(Counter(), 0))
    return Step(forward, _phase(launcher.backward(), live[turn:]))


by_count: Mapping[str, int] = {"aten.split.Tensor": 2, "aten.chunk.default": 2, "aten.unbind.int": 4}


def _wants(value: Any) -> bool:
    return isinstance(value, TensorType) and value.requires_grad


def _phase(launches: Iterable[Any], live: Sequence[int]) -> Phase:
    kernels = [kernel for launch in launches if launch.row >= 0 for kernel in launch.kernels or ()]
    assert not any(kernel.flops for kernel in kernels if kernel.family not in MULTIPLYING)
    families = Counter(kernel.family if kernel.family in HEAVY else "simple" for kernel in kernels)
    moved = sum(kernel.read_bytes for kernel in kernels), sum(kernel.written_bytes for kernel in kernels)
    return Phase(families, max(live, default=0), moved)
