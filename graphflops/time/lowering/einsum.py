"""The kernels of torch.einsum: for each pair of factors the copies that it needs, then a batched product.

Factors that share no summed axis are multiplied elementwise.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.memory.einsum import einsum_memory
from graphflops.tensor import DTYPES, TensorType
from graphflops.time.concrete import Tensor
from graphflops.time.kernel import Product
from graphflops.time.lowering.moved import copy, pointwise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from graphflops.dims import Dim
    from graphflops.memory.einsum import Factor, Pair
    from graphflops.time.concrete import ConcreteCall
    from graphflops.time.kernel import Kernel


def pairs_of(call: ConcreteCall) -> list[Pair]:
    """What an einsum multiplies, in turn; empty where a factor is also summed alone, or nothing is known."""
    path = call.arguments.get("path")
    operands = call.operands
    found = einsum_memory(
        str(call.arguments.get("equation")),
        [TensorType(x.shape, DTYPES[x.dtype]) for x in operands],
        [x.strides for x in operands],
        [place for place in path if isinstance(place, int)] if isinstance(path, tuple) else (),
    )
    return [] if any(pair.is_reduced for pair in found.pairs) else found.pairs


def before_product(pair: Pair, like: Tensor) -> list[Kernel]:
    """The copies of factors that do not lie as a product reads them."""
    groups = ((*pair.both, *pair.left, *pair.summed), (*pair.both, *pair.summed, *pair.right))
    factors = zip((pair.a, pair.b), groups, pair.copied, strict=True)
    return [copy(_tensor(factor, axes, like)) for factor, axes, is_copied in factors if is_copied]


def multiplied(pair: Pair, like: Tensor) -> Kernel:
    """The elementwise product of two factors, each repeated along the axes of the other."""
    axes = list(pair.made.sizes)
    out, a, b = (_tensor(factor, axes, like, pair.made) for factor in (pair.made, pair.a, pair.b))
    return pointwise(out, [a, b], a.nbytes + b.nbytes, out.full_bytes, out.numel)


def product_sizes(pair: Pair) -> Product:
    """The batched product of a pair."""
    sizes = {**pair.a.sizes, **pair.b.sizes}
    m, n, k, batch = (_size(sizes, axes) for axes in (pair.left, pair.right, pair.summed, pair.both))
    second_is_t = not pair.copied[1] and _is_innermost(pair.b, pair.summed)
    first_is_t = not pair.copied[0] and not _is_innermost(pair.a, pair.summed)
    layout: Literal["tn", "nn", "nt", "tt"] = "tt" if second_is_t else "nt"
    if not first_is_t:
        layout = "tn" if second_is_t else "nn"
    return Product(m, n, k, batch, layout)


def _size(sizes: dict[str, Dim], axes: Sequence[str]) -> int:
    return prod(_number(sizes[axis]) for axis in axes)


def _is_innermost(factor: Factor, axes: Sequence[str]) -> bool:
    return any(factor.strides[axis] == 1 for axis in axes)


def _tensor(factor: Factor, axes: Sequence[str], like: Tensor, whole: Factor | None = None) -> Tensor:
    """A factor with its axes in this order, repeated along those of `whole` that it does not have."""
    sizes = (whole or factor).sizes
    shape = tuple([_number(sizes[axis]) for axis in axes])
    strides = tuple([_number(factor.strides.get(axis, 0)) for axis in axes])
    own = prod(_number(size) for size in factor.sizes.values())
    return Tensor(shape, like.dtype, like.bits, strides, own * like.bits // 8)


def _number(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise TypeError(dim)  # operands of a concrete call have numbers
    return dim
