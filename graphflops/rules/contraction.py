"""Sums of products over named axes (einsum, tensordot, bilinear), outer and cross products."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from graphflops.cost import Estimate, free
from graphflops.dims import Dim, broadcast, differ, meet, prod
from graphflops.rules.elementwise import WORK, elementwise, result_type
from graphflops.rules.matmul import additions, flops_of
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Tensors, axes, axis_of, shown
from graphflops.tensor import TensorType

KIND = "product"

_ORDERS_TRIED = 4  # all contraction orders are tried for at most this many operands: 18 orders of four
Sizes = dict[str, Dim]  # size by label, without labels of size 1


class Contraction(Struct):
    """Work of a sequence of pairwise contractions, in multiply-adds and vector operations."""

    multiply_adds: Dim = 0
    vector: Dim = 0
    gradient: Dim = 0  # multiply-adds of the backward: a pair's product per side that wants a gradient

    def add_sum(self, operand: Sizes, summed: Iterable[str]) -> Sizes:
        """Sums the operand along some labels."""
        gone = operand.keys() & set(summed)
        if not gone:
            return operand
        self.vector += prod(operand.values())
        return {label: size for label, size in operand.items() if label not in gone}

    def add_pair(self, a: Sizes, b: Sizes, summed: Iterable[str], wants: int = 0) -> Sizes:
        """Two operands multiplied, by elements if they share no label to sum; a label of only one is summed beforehand."""
        gone = set(summed)
        a, b = self.add_sum(a, gone & (a.keys() - b.keys())), self.add_sum(b, gone & (b.keys() - a.keys()))
        product = prod((a | b).values())
        if gone & a.keys():
            self.multiply_adds += product
            self.gradient += wants * product
        else:
            self.vector += product
        return {label: size for label, size in (a | b).items() if label not in gone}


class Equation(NamedTuple):
    """A parsed einsum equation: the labels of each operand and of the result, and the size of every label."""

    inputs: list[list[str]]
    output: list[str]
    sizes: Sizes


def contract(read: Equation, tensors: Tensors, path: Sequence[int] | None) -> Contraction:
    """Contracts pairs along the path, else from left to right; a label is summed when no later operand has it."""
    work, operands = Contraction(), []
    for labels, x in zip(read.inputs, tensors, strict=True):
        pairs = zip(labels, x.shape, strict=True)
        operands.append(({label: size for label, size in pairs if size != 1}, x.requires_grad))
    kept = set(read.output)
    uses = Counter(label for operand, _ in operands for label in operand)
    steps = iter(path or ())
    while len(operands) > 1:
        first, second = sorted((next(steps, 0), next(steps, 1)))
        b, b_wants = operands.pop(second)
        a, a_wants = operands.pop(first)
        done = {label for label in a | b if uses[label] == (label in a) + (label in b)} - kept
        uses.subtract(a.keys() & b.keys())
        joined = (work.add_pair(a, b, done, a_wants + b_wants), a_wants or b_wants)
        operands.insert(len(operands) if path else 0, joined)
    ((last, _),) = operands
    work.add_sum(last, last.keys() - kept)
    return work


def read_equation(equation: str, tensors: Tensors) -> Equation:
    """Parses the equation; axes under an ellipsis get labels by their place from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = (left.replace(",", "") + right).replace("...", "")
    require(not letters or letters.isalpha(), f"{equation!r} is not an einsum equation")
    terms = left.split(",")
    require(len(terms) == len(tensors), f"equation {equation!r} got {len(tensors)} operands")
    hidden = [t.rank - len(term.replace("...", "")) for term, t in zip(terms, tensors, strict=True)]
    inputs = [_labels(term, extra) for term, extra in zip(terms, hidden, strict=True)]
    sizes: Sizes = {}
    for labels, tensor in zip(inputs, tensors, strict=True):
        require(len(labels) == tensor.rank, f"equation {equation!r} does not fit {tensor}")
        for label, size in zip(labels, tensor.shape, strict=True):
            (sizes[label],) = broadcast((sizes.get(label, 1),), (size,))
    ellipsis = max((extra for term, extra in zip(terms, hidden, strict=True) if "..." in term), default=0)
    if arrow:
        output = _labels(right, ellipsis)
        fits = sizes.keys() >= set(output) and len(set(output)) == len(output)
        require(fits, f"the result of equation {equation!r} has a label twice, or one that no operand has")
        return Equation(inputs, output, sizes)
    once = Counter(label for labels in inputs for label in labels if label.isalpha())
    alone = sorted(label for label, count in once.items() if count == 1)
    return Equation(inputs, _labels("..." + "".join(alone), ellipsis), sizes)


def _labels(term: str, ellipsis: int) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *(str(place) for place in range(ellipsis, 0, -1) if dots), *after]


@rule("aten.einsum")
def einsum(equation: str, tensors: Tensors, *, path: tuple[int, ...] | None = None) -> Estimate:
    """The pairwise contractions along the given path, else from left to right; without a summed label by elements."""
    read = read_equation(equation, tensors)
    work = contract(read, tensors, path)
    out = tensors[0].like([read.sizes[label] for label in read.output], result_type(*tensors))
    if len(tensors) == 1 and work.vector == 0:
        return free(tensors[0].view(out.shape))
    matrix = flops_of(work.multiply_adds, out.dtype)
    reads = tuple(
        x if len(set(labels)) == len(labels) else x.like(dict(zip(labels, x.shape, strict=True)).values())
        for x, labels in zip(tensors, read.inputs, strict=True)
    )
    hint = _cheaper_order(read, tensors, work.multiply_adds)
    return Estimate((out,), matrix, work.vector, reads=reads, matrix_dtype=out.dtype, hint=hint)


def _cheaper_order(read: Equation, tensors: Tensors, executed: Dim) -> tuple[str, str] | None:
    """A note if another contraction order needs fewer FLOPs than the executed one; only few operands are tried."""
    if not (2 < len(tensors) <= _ORDERS_TRIED and isinstance(executed, int)):
        return None
    costs = {path: contract(read, tensors, path).multiply_adds for path in _paths(len(tensors))}
    known = {path: cost for path, cost in costs.items() if isinstance(cost, int)}
    best = min(known, key=lambda path: known[path], default=())
    if not best or known[best] >= executed:
        return None
    pairs = [list(best[i : i + 2]) for i in range(0, len(best), 2)]
    flops, least = 2 * executed, 2 * known[best]
    return "GF108", f"executed order: {flops} FLOPs; {least} in the order {pairs} (torch.backends.opt_einsum)"


def _paths(count: int) -> Iterator[tuple[int, ...]]:
    """Every order of contracting `count` operands in pairs, as positions in the shrinking list of operands."""
    if count == 1:
        yield ()
        return
    for second in range(1, count):
        for first in range(second):
            for rest in _paths(count - 1):
                yield (first, second, *rest)


@backward("aten.einsum")
def einsum_backward(call: ForwardCall) -> Estimate:
    """Repeats each pair's product for every side that leads to an operand with a gradient."""
    tensors: Tensors = call["tensors"]
    work = contract(read_equation(call["equation"], tensors), tensors, call.get("path"))
    wanted = tuple(x.like() for x in tensors if x.requires_grad)
    matrix, vector = flops_of(work.gradient, tensors[0].dtype), len(wanted) * call.estimate.vector_flops
    return Estimate(wanted, matrix, vector, reads=(call.out, *tensors))


@rule("aten.tensordot", product=("a", "b"))
def tensordot(a: TensorType, b: TensorType, dims_a: tuple[int, ...], dims_b: tuple[int, ...]) -> Estimate:
    """One matrix product over the listed axes; an axis of size 1 on one side is summed on the other first."""
    axes_a, axes_b = axes(dims_a, a.rank), axes(dims_b, b.rank)
    inner_size: Dim = 1
    vector: Dim = 0
    for i, j in zip(axes_a, axes_b, strict=True):
        one, other = a.shape[i], b.shape[j]
        if 1 not in (one, other):
            meet(one, other, f"contracted sizes differ: {one} and {other}")
        if other == 1:
            vector += a.numel if one != 1 else 0
        elif one == 1:
            vector += b.numel
        else:
            inner_size *= one
    sides = ((a, axes_a), (b, axes_b))
    out = a.like(size for x, gone in sides for index, size in enumerate(x.shape) if index not in gone)
    return Estimate((out,), flops_of(out.numel * inner_size, a.dtype), vector, reads=(a, b))


@rule("aten.inner", product=("a", "b"), kind="other")
def inner(a: TensorType, b: TensorType) -> Estimate:
    """A dot product for every pair of rows; a 0-d operand only scales."""
    return tensordot(a, b, (-1,), (-1,)) if a.rank and b.rank else outer_product(a, b, (*a.shape, *b.shape))


@rule("aten.outer", "aten.ger", kind="elementwise")
def outer(a: TensorType, b: TensorType) -> Estimate:
    """One multiplication per pair: an elementwise product of a column with a row."""
    return outer_product(a, b, (*a.shape, *b.shape))


@rule("aten.kron", kind="elementwise")
def kron(a: TensorType, b: TensorType) -> Estimate:
    """One multiplication per pair of elements."""
    rank = max(a.rank, b.rank)
    padded = [(1,) * (rank - x.rank) + x.shape for x in (a, b)]
    return outer_product(a, b, [m * n for m, n in zip(*padded, strict=True)])


def outer_product(a: TensorType, b: TensorType, shape: Sequence[Dim]) -> Estimate:
    """Every element of one tensor times every element of another."""
    dtype = result_type(a, b)
    flat = elementwise(WORK["mul"], a.like((a.numel, 1), dtype), b.like((1, b.numel), dtype))
    return Estimate((a.like(shape, dtype),), vector_flops=flat.vector_flops, reads=(a, b))


@rule("aten._trilinear", product=("a", "b", "c")).takes("a b c expand1= expand2= expand3= sumdim=")
def trilinear(of: Operands, *, unroll_dim: int = 1) -> Estimate:
    """Contracts the first two operands along the axes that the third lacks, then the result with the third."""
    a, b, c, *places, sumdim = of
    padded = [_unsqueeze(x, expand) for x, expand in zip((a, b, c), places, strict=True)]
    full = broadcast(*padded)
    one, two, three = ({str(i): size for i, size in enumerate(shape) if size != 1} for shape in padded)
    work, unrolled = Contraction(), str(unroll_dim)
    shared = {str(i) for i in sumdim if i in places[2]} - {unrolled}
    pair = work.add_pair(one, two, shared)
    result = work.add_pair(pair, three, {str(i) for i in sumdim} - shared - {unrolled})
    work.add_sum(result, {unrolled} if unroll_dim in sumdim else ())
    out = a.like(size for index, size in enumerate(full) if index not in sumdim)
    return Estimate((out,), flops_of(work.multiply_adds, a.dtype), work.vector, reads=(a, b, c))


def _unsqueeze(x: TensorType, places: tuple[int, ...]) -> list[Dim]:
    sizes = iter(x.shape)
    return [1 if index in places else next(sizes) for index in range(x.rank + len(places))]


BILINEAR_PLACES, BILINEAR_SUMMED = ((1, 3), (0,), (1, 2)), (2, 3)  # of rows, weight, rows in `_trilinear`


def gradients_of_three(
    call: ForwardCall,
    factors: Mapping[str, TensorType],
    grad: TensorType,
    places: Sequence[tuple[int, ...]],
    summed: tuple[int, ...],
) -> Estimate:
    """The wanted gradients of three factors: the same contraction, with the factor replaced by the result's gradient."""
    work = Estimate()
    for place, name in enumerate(factors):
        if name in call.wants:
            others, axes = [*factors.values()], [*places]
            others[place], axes[place] = grad, summed
            work = work.plus(trilinear(*others, *axes, places[place]))
    read = (call[name] for name in factors if call.wants & (factors.keys() - {name}))
    bias = additions(call.out) if "bias" in call.wants else 0
    return work.plus(out=call.gradients(), vector_flops=bias, reads=(call.out.like(), *read))


@backward("aten._trilinear")
def trilinear_backward(call: ForwardCall) -> Estimate:
    """The contraction again for each wanted factor, over the axes that the factor lacks."""
    factors, places = {name: call[name] for name in "abc"}, [call[f"expand{number}"] for number in (1, 2, 3)]
    return gradients_of_three(call, factors, call.out, places, call["sumdim"])


@backward("aten.bilinear")
def bilinear_backward(call: ForwardCall) -> Estimate:
    """As the gradient of `_trilinear`, for rows and weight; the gradient of the bias is a sum."""
    a, b, grad = (x.view((prod(x.shape[:-1]), x.shape[-1])) for x in (call["a"], call["b"], call.out))
    factors = {"a": a, "weight": call["weight"], "b": b}
    return gradients_of_three(call, factors, grad, BILINEAR_PLACES, BILINEAR_SUMMED)


@rule("aten.bilinear", product=("a", "b", "weight"))
def bilinear(a: TensorType, b: TensorType, weight: TensorType, bias: TensorType | None = None) -> Estimate:
    """A @ weight for every output feature, then the dot product of each with b; the bias is vector work."""
    rows_a, rows_b = a.like((prod(a.shape[:-1]), a.shape[-1])), b.like((prod(b.shape[:-1]), b.shape[-1]))
    rows = not any(map(differ, a.shape[:-1], b.shape[:-1])) and a.rank == b.rank
    require(rows, f"{shown(a.shape)} and {shown(b.shape)} have other rows")
    for x, size in ((a, weight.shape[1]), (b, weight.shape[2])):
        meet(x.shape[-1], size, f"{x.shape[-1]} features, weight takes {size}")
    product = trilinear(rows_a, weight, rows_b, *BILINEAR_PLACES, BILINEAR_SUMMED)
    out = a.like((*a.shape[:-1], weight.shape[0]))
    vector = product.vector_flops + (additions(out) if bias else 0)
    return Estimate((out,), product.matrix_flops, vector, reads=(a, b, weight, bias))


@rule("aten.linalg_cross", kind="linear_algebra")
def linalg_cross(a: TensorType, b: TensorType, *, dim: int = -1) -> Estimate:
    """Two multiplications and a subtraction per component; a complex multiplication is six operations."""
    require(a.rank == b.rank, f"vectors of {a.rank} and of {b.rank} axes")
    out = a.like(broadcast(a.shape, b.shape), result_type(a, b))
    for length in (x.shape[axis_of(dim, x.rank)] for x in (a, b)):
        meet(length, 3, f"a cross product takes vectors of 3, not {length}")
    each_component = 2 * 6 + 2 if out.dtype.kind == "complex" else 3
    return Estimate((out,), vector_flops=each_component * out.numel, reads=(a, b))


@rule("aten.cross", kind="linear_algebra")
def cross(a: TensorType, b: TensorType, dim: int | None = None) -> Estimate:
    """As `linalg_cross`, along the first axis of three where none is named."""
    threes = [place for place, size in enumerate(a.shape) if not differ(size, 3)]
    require(bool(threes), "no axis holds vectors of 3")
    return linalg_cross(a, b, dim=threes[0] if dim is None else dim)
