"""Matrix products: one kernel of the BLAS library each, and copies of operands that no BLAS kernel can read."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.kernels.call import Tensor
from graphflops.kernels.kernel import GROUPED, Kernel, Product
from graphflops.kernels.moved import copied, elementwise, pointwise, reduction

if TYPE_CHECKING:
    from typing import Literal

    from graphflops.kernels.call import ConcreteCall

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
    if problem is None:
        return []
    x = call.operand("a")
    if call.operator.name == "grouped_mm":
        return _of_groups(call, problem)
    if call.operator.name == "linear" and x is not None and x.rank > _MATRIX_RANK and not x.is_contiguous:
        return _of_scattered_rows(call, problem)
    operands = [call.operand("a"), call.operand("b", "weight")]
    kernels = copied(call)
    bias, out = call.operand("bias"), call.out
    if bias is not None and out is not None and bias.rank > 1:  # the result starts as a copy of it
        kernels.append(elementwise(out, bias.nbytes, out.full_bytes))
        bias = None
    kernel = problem.kernel(with_bias=bias is not None)
    if problem.dtype == "int8" or len({x.bits for x in operands if x is not None}) > 1:  # of several widths
        kernel = replace(kernel, read_bytes=call.cost.read_bytes, written_bytes=call.cost.written_bytes)
    return [*kernels, kernel]


def _of_groups(call: ConcreteCall, problem: Problem) -> list[Kernel]:
    """Rows of each group times the matrix of the group, by one kernel; another finds where the groups begin.

    Which groups have rows is data: as many are taken to be read as have one where each row falls to any group alike.
    """
    weight = max(call.operands, key=lambda operand: operand.rank)
    groups, rows = max(weight.shape[0], 1), problem.sizes.m
    sizes = replace(problem.sizes, m=-(-rows // groups), batch=groups)
    kernel = Kernel(
        *("matmul", problem.dtype, call.cost.matrix_flops, 0, call.cost.read_bytes, call.cost.written_bytes),
        sizes,
    )
    if call.operands[0].rank == _MATRIX_RANK < weight.rank:
        unread = min(rows, groups) - groups * (1 - (1 - 1 / groups) ** rows)
        read = kernel.read_bytes - int(unread * weight.full_bytes / groups)
        kernel = replace(kernel, read_bytes=read, variant=GROUPED)
    return [Kernel("elementwise", "int64"), kernel]


def _of_scattered_rows(call: ConcreteCall, problem: Problem) -> list[Kernel]:
    """A linear layer of rows that do not follow one another: they are copied first where needed, the bias is added after."""
    copies = copied(call)
    ordered = problem._replace(sizes=replace(problem.sizes, layout="tn")) if copies else problem
    bias, out = call.operand("bias"), call.out
    added = []
    if bias is not None and out is not None:
        moved = (out.full_bytes + bias.nbytes, out.full_bytes)
        added = [pointwise(out, [out, bias], *moved, out.numel)]
    return [*copies, ordered.kernel(), *added]


def product_backward(call: ConcreteCall) -> list[Kernel]:
    """A product for each factor that wants a gradient, and the sum over rows that a bias wants."""
    problem = problem_of(call)
    if problem is None or call.gradient is None:
        return []
    kernels = []
    a, b = call.operand("a"), call.operand("b", "weight")
    for operand, other, gradient in ((a, b, problem.for_a), (b, a, problem.for_b)):
        if operand is not None and operand.requires_grad:
            vectors = [x for x in (other, b) if x is not None and x.rank < _MATRIX_RANK]
            is_outer = (
                len(vectors) == 2
            )  # a column times a row; a first vector is multiplied as a matrix of one row
            kernels.append(_outer(operand, call.out) if is_outer else gradient.kernel())
            kernels += _over_batches(operand, other, call.out)
    bias, is_of_rows = call.operand("bias"), call.operator.name == "linear"
    if bias is not None and bias.requires_grad and call.out is not None:
        is_summed = is_of_rows or bias.numel < call.out.numel
        kernels += [reduction(call.out, problem.sizes.n, is_inner=False)] * is_summed
    if not kernels:  # operands without canonical names, as of an einsum: as many products as gradients
        kernels = [problem.for_a.kernel(), problem.for_b.kernel()][: len(call.gradient.gradients)]
    return [*copied(call, again=True), *kernels]


def _outer(operand: Tensor, out: Tensor | None) -> Kernel:
    read = operand.shape[-1] * operand.bits // 8 + (0 if out is None else out.nbytes)
    return elementwise(operand, read, operand.full_bytes, operand.numel)


def _over_batches(operand: Tensor, other: Tensor | None, out: Tensor | None) -> list[Kernel]:
    """The sum of a factor's gradient over the batches that it is repeated to; next to a matrix all rows are one product."""
    if out is None or other is None or min(operand.rank, other.rank) <= _MATRIX_RANK:
        return []
    repeats = prod(out.shape[:-2]) // max(prod(operand.shape[:-2]), 1)
    size, shape = repeats * operand.full_bytes, (repeats, operand.numel)
    each = replace(operand, shape=shape, strides=(operand.numel, 1), nbytes=size)
    return [reduction(each, operand.numel, is_inner=False)] if repeats > 1 else []


def problem_of(call: ConcreteCall) -> Problem | None:
    """The sizes of a product; k follows from the FLOPs, whatever the operator."""
    out = call.out
    if out is None or not out.numel or not call.cost.matrix_flops or not call.operands:
        return None
    a, b = call.operand("a") or call.operands[0], call.operand("b", "weight")
    k = max(call.cost.matrix_flops // (2 * out.numel), 1)
    dtype = call.matrix_dtype or a.dtype
    batch, n = _batch_and_columns(call, out, b)
    m = out.numel // max(batch * n, 1)
    return Problem(Product(m, n, k, batch, _layout(call, a, b)), dtype, a.bits)


def _batch_and_columns(call: ConcreteCall, out: Tensor, b: Tensor | None) -> tuple[int, int]:
    """How many products there are, and the columns of each; a weight that all share makes them one."""
    n = out.shape[-1] if out.rank else 1
    if out.rank <= _MATRIX_RANK or (b is not None and b.rank <= _MATRIX_RANK):
        return 1, n
    return prod(out.shape[:-2]), n


def _layout(call: ConcreteCall, a: Tensor, b: Tensor | None) -> Literal["tn", "nn", "nt", "tt"]:
    """The first letter is that of the second operand, as BLAS orders them: t where k is innermost."""
    second_is_t = call.operator.name == "linear" or (b is not None and b.is_transposed)
    if a.is_transposed:
        return "tt" if second_is_t else "nt"
    return "tn" if second_is_t else "nn"
