"""Matrix products: one kernel of the BLAS library each, and copies of operands that no BLAS kernel can read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.memory.strides import regrouped
from graphflops.time.kernel import Kernel, Product
from graphflops.time.lowering.einsum import before_product, multiplied, pairs_of, product_sizes
from graphflops.time.lowering.moved import copy, elementwise, pointwise, reduction

if TYPE_CHECKING:
    from typing import Literal

    from graphflops.memory.einsum import Pair
    from graphflops.time.concrete import ConcreteCall, Tensor

_MATRIX_RANK = 2


class Problem(NamedTuple):
    """A product with its element type."""

    sizes: Product
    dtype: str
    bits: int

    def kernel(self, *, with_bias: bool = False) -> Kernel:
        """The kernel that computes it, a bias added in its epilogue."""
        batch, m, n, k = self.sizes.batch, self.sizes.m, self.sizes.n, self.sizes.k
        return Kernel(
            "matmul",
            self.dtype,
            flops=2 * batch * m * n * k,
            read_bytes=((m * k + k * n) * batch + with_bias * n) * self.bits // 8,
            written_bytes=batch * m * n * self.bits // 8,
            sizes=self.sizes,
        )

    @property
    def for_a(self) -> Problem:
        """The product whose result is the gradient of the first operand: grad x b^T."""
        was = self.sizes
        layout: Literal["tn", "nn"] = "nn" if was.layout == "tn" else "tn"
        return self._replace(sizes=replace(was, n=was.k, k=was.n, layout=layout))

    @property
    def for_b(self) -> Problem:
        """The product whose result is the gradient of the second operand: a^T x grad."""
        was = self.sizes
        return self._replace(sizes=replace(was, m=was.n, n=was.k, k=was.m, layout="nt"))


def product(call: ConcreteCall) -> list[Kernel]:
    """The product itself after the copies that it needs."""
    problem = problem_of(call)
    if call.operator.name == "einsum":
        return _of_einsum(call, problem)
    if problem is None:
        return []
    x = call.operand("a")
    if "grouped_mm" in call.operator.name:
        return _of_groups(call, problem)
    if call.operator.name == "linear" and x is not None and x.rank > _MATRIX_RANK and not x.is_contiguous:
        return _of_scattered_rows(call, problem, x)
    operands = [call.operand("a"), call.operand("b", "weight")]
    kernels = [copy(tensor) for tensor in operands if tensor is not None and must_copy(tensor)]
    bias, out = call.operand("bias"), call.out
    if bias is not None and out is not None and bias.rank > 1:  # the result starts as a copy of it
        kernels.append(elementwise(out, bias.nbytes, out.full_bytes))
        bias = None
    kernel = problem.kernel(with_bias=bias is not None)
    if problem.dtype == "int8" or len({x.bits for x in operands if x is not None}) > 1:  # of several widths
        kernel = replace(kernel, read_bytes=call.cost.read_bytes, written_bytes=call.cost.written_bytes)
    return [*kernels, kernel]


def _pairs(call: ConcreteCall) -> list[Pair]:
    """What an einsum multiplies; empty for other operators."""
    return pairs_of(call) if call.operator.name == "einsum" else []


def _of_einsum(call: ConcreteCall, problem: Problem | None) -> list[Kernel]:
    """The pairs of an einsum, one after the other."""
    kernels: list[Kernel] = []
    for pair in _pairs(call):
        like = call.operands[0]
        if not pair.summed:
            kernels.append(multiplied(pair, like))
        elif problem is not None:
            kernels += [*before_product(pair, like), problem._replace(sizes=product_sizes(pair)).kernel()]
    return kernels or ([] if problem is None else [problem.kernel()])


def _of_groups(call: ConcreteCall, problem: Problem) -> list[Kernel]:
    """Rows of each group times the matrix of the group, by one kernel; another finds where the groups begin."""
    weight = max(call.operands, key=lambda operand: operand.rank)
    groups = max(weight.shape[0], 1)
    sizes = replace(problem.sizes, m=-(-problem.sizes.m // groups), batch=groups)
    moved = call.cost.read_bytes, call.cost.written_bytes
    kernel = Kernel("matmul", problem.dtype, call.cost.matrix_flops, 0, *moved, sizes)
    return [Kernel("elementwise", "int64"), kernel]


def _of_scattered_rows(call: ConcreteCall, problem: Problem, x: Tensor) -> list[Kernel]:
    """A linear layer of rows that do not follow one another: they are copied first where needed, the bias is added after."""
    are_even = regrouped(x.shape, x.strides, (x.numel // max(x.shape[-1], 1), x.shape[-1])) is not None
    copied = [] if are_even else [copy(x)]
    ordered = problem if are_even else problem._replace(sizes=replace(problem.sizes, layout="tn"))
    bias, out = call.operand("bias"), call.out
    added = []
    if bias is not None and out is not None:
        moved = (out.full_bytes + bias.nbytes, out.full_bytes)
        added = [pointwise(out, [out, bias], *moved, out.numel)]
    return [*copied, ordered.kernel(), *added]


def product_backward(call: ConcreteCall) -> list[Kernel]:
    """A product for each factor that wants a gradient, and the sum over rows that a bias wants."""
    problem = problem_of(call)
    if problem is None or call.gradient is None:
        return []
    kernels = []
    if call.wants("a"):
        kernels.append(problem.for_a.kernel())
    if call.wants("b", "weight"):
        kernels.append(problem.for_b.kernel())
    if call.wants("bias") and call.out is not None:
        kernels.append(reduction(call.out, problem.sizes.n, is_inner=False))
    if not kernels:  # operands without canonical names, as of an einsum: as many products as gradients
        kernels = [problem.for_a.kernel(), problem.for_b.kernel()][: len(call.gradient.gradients)]
    return kernels


def problem_of(call: ConcreteCall) -> Problem | None:
    """The sizes of a product; k follows from the FLOPs, whatever the operator."""
    out = call.out
    if out is None or not out.numel or not call.cost.matrix_flops or not call.operands:
        return None
    a, b = call.operand("a") or call.operands[0], call.operand("b", "weight")
    k = max(call.cost.matrix_flops // (2 * out.numel), 1)
    dtype = call.matrix_dtype or a.dtype
    products = [product_sizes(pair) for pair in _pairs(call) if pair.summed]
    if products:
        return Problem(products[-1], dtype, a.bits)
    batch, n = _batch_and_columns(call, out, b)
    m = out.numel // max(batch * n, 1)
    return Problem(Product(m, n, k, batch, _layout(call, a, b)), dtype, a.bits)


def _batch_and_columns(call: ConcreteCall, out: Tensor, b: Tensor | None) -> tuple[int, int]:
    """How many products there are, and the columns of each; a weight that all share makes them one."""
    n = out.shape[-1] if out.rank else 1
    if call.operator.name == "einsum":
        return 1, n
    if out.rank <= _MATRIX_RANK or (b is not None and b.rank <= _MATRIX_RANK):
        return 1, n
    return prod(out.shape[:-2]), n


def _layout(call: ConcreteCall, a: Tensor, b: Tensor | None) -> Literal["tn", "nn", "nt", "tt"]:
    """The first letter is that of the second operand, as BLAS orders them: t where k is innermost."""
    second_is_t = call.operator.name == "linear" or (b is not None and b.is_transposed)
    if a.is_transposed:
        return "tt" if second_is_t else "nt"
    return "tn" if second_is_t else "nn"


def must_copy(tensor: Tensor) -> bool:
    """Whether BLAS cannot read an operand: it repeats, no matrix axis is innermost, or matrices are not evenly apart."""
    if tensor.rank <= _MATRIX_RANK or not tensor.nbytes:
        return False
    if tensor.nbytes < tensor.full_bytes:
        return True
    wide = [axis for axis in range(tensor.rank) if tensor.shape[axis] != 1]
    matrix = [tensor.strides[axis] for axis in wide if axis >= tensor.rank - 2]
    if matrix and 1 not in matrix:
        return True
    batches = [axis for axis in wide if axis < tensor.rank - 2]
    return any(tensor.strides[i] != tensor.strides[j] * tensor.shape[j] for i, j in pairwise(batches))
