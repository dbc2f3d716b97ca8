"""Products of matrices and vectors: plain, with a fused addition, grouped, in chains."""

from collections.abc import Sequence
from itertools import pairwise

from graphflops.cost import Estimate
from graphflops.dims import Dim, broadcast, differ, dim_min, floor_div, meet, prod
from graphflops.rules.elementwise import WORK, result_type
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, Tensors, expanded, only_result, reduced, results, where_wanted
from graphflops.tensor import DType, TensorType

KIND = "product"

Number = Dim | float | complex
Mask = tuple[bool, ...]  # which results of a backward operator are wanted


def flops_of(multiply_adds: Dim, dtype: DType) -> Dim:
    """FLOPs of that many multiply-adds: 2 each, 8 between complex numbers."""
    return (8 if dtype.kind == "complex" else 2) * multiply_adds


def additions(out: TensorType) -> Dim:
    """Vector FLOPs of adding one value to every element: one operation each, two for complex numbers."""
    return (2 if out.dtype.kind == "complex" else 1) * out.numel


@rule("aten.mm bmm matmul linalg_matmul mv dot vdot", product=("a", "b"))
def matmul(a: TensorType, b: TensorType) -> Estimate:
    """Batched matrix product; a vector operand counts as a matrix with an axis of length one."""
    require(a.rank > 0 and b.rank > 0, f"a product of matrices needs axes: {a} and {b}")
    *batch_a, m, k = a.shape if a.rank > 1 else (1, *a.shape)
    *batch_b, inner, n = b.shape if b.rank > 1 else (*b.shape, 1)
    meet(k, inner, f"inner dimensions differ: {k} and {inner}")
    batch = broadcast(batch_a, batch_b)
    out = a.like((*batch, *(m,) * (a.rank > 1), *(n,) * (b.rank > 1)))
    return Estimate((out,), matrix_flops=flops_of(prod(batch) * m * k * n, a.dtype), reads=(a, b))


@rule("aten.mm.dtype", "aten.bmm.dtype", product=("a", "b"))
def matmul_into(a: TensorType, b: TensorType, out_dtype: DType) -> Estimate:
    """Matrix product accumulated and returned in another element type."""
    product = matmul(a, b)
    return Estimate((only_result(product).like(dtype=out_dtype),), product.matrix_flops, reads=(a, b))


@rule("aten.linalg_vecdot", product=("x", "y"))
def vecdot(x: TensorType, y: TensorType, *, dim: int = -1) -> Estimate:
    """One dot product per position of the other axes."""
    shape = broadcast(x.shape, y.shape)
    out = x.like(reduced(shape, dim), result_type(x, y))
    return Estimate((out,), matrix_flops=flops_of(prod(shape), out.dtype), reads=(x, y))


@rule("aten.linear", "aten.mkldnn_linear", product=("x", "weight"))
def linear(x: TensorType, weight: TensorType, bias: TensorType | None = None) -> Estimate:
    """Product of every row with a weight stored as (out, in); the bias is one vector addition per result."""
    require(weight.rank < 3, f"a weight of {weight.rank} axes")
    features, expected = x.shape[-1], weight.shape[-1]
    meet(features, expected, f"the input has {features} features, the weight takes {expected}")
    out = x.like((*x.shape[:-1], *weight.shape[:-1]))
    rows = prod(x.shape[:-1])
    if bias is not None:
        is_of_rows = (
            bias.rank == 2 and (x.rank == 1 or bias.shape[1] == 1) and not differ(bias.shape[0], rows)
        )
        expanded(bias, (rows, *weight.shape[:-1]) if is_of_rows else out.shape)
    flops = flops_of(rows * weight.numel, x.dtype)
    return Estimate((out,), flops, vector_flops=additions(out) if bias else 0, reads=(x, weight, bias))


@rule("aten.addmm", "aten.addmv", "aten.baddbmm", product=("a", "b")).takes("base a b")
def addmm(of: Operands, *, out_dtype: DType | None = None, beta: Number = 1, alpha: Number = 1) -> Estimate:
    """The product, and vector FLOPs for the remaining operations of beta * base + alpha * (a @ b)."""
    product = matmul(of.a, of.b) if out_dtype is None else matmul_into(of.a, of.b, out_dtype)
    return add_product(of.base, product, beta, alpha)


@rule("aten._addmm_activation", product=("a", "b")).takes("base a b; beta=1 alpha=1 use_gelu=False")
def addmm_activation(of: Operands) -> Estimate:
    """As addmm, followed by relu, one comparison, or gelu."""
    product = matmul(of.a, of.b)
    activated = WORK["gelu" if of.use_gelu else "relu"].on(only_result(product).numel)
    return add_product(of.base, product, of.beta, of.alpha).plus(activated)


@rule("aten.addbmm", product=("a", "b")).takes("base a b; beta=1 alpha=1")
def addbmm(of: Operands) -> Estimate:
    """As addmm with the batch of products summed: the sum over the batch is part of the accumulation."""
    product = matmul(of.a, of.b)
    out = only_result(product)
    summed = Estimate((out.like(out.shape[1:]),), product.matrix_flops, reads=product.reads)
    return add_product(of.base, summed, of.beta, of.alpha)


@rule("aten.addr", product=("a", "b"), kind="elementwise")
def addr(base: TensorType, a: TensorType, b: TensorType, *, beta: Number = 1, alpha: Number = 1) -> Estimate:
    """As addmm for a column times a row."""
    out = TensorType((*a.shape, *b.shape), result_type(base, a, b))
    return add_product(base, Estimate((out,), flops_of(out.numel, out.dtype), reads=(a, b)), beta, alpha)


def add_product(base: TensorType, product: Estimate, beta: Number, alpha: Number) -> Estimate:
    """The product and the remaining operations of beta * base + alpha * product; with beta 0 the base is not read."""
    out = only_result(product)
    fits = base.rank <= out.rank and not any(map(differ, broadcast(base.shape, out.shape), out.shape))
    require(fits, f"cannot add {base} to a product {out}")
    operations = (beta != 0) + (beta not in (0, 1)) + (alpha != 1)
    factor = product.reads[0]
    return Estimate(
        product.out,
        product.matrix_flops,
        vector_flops=operations * additions(out),
        reads=(base if beta != 0 else None, *product.reads),
        matrix_dtype=factor.dtype if isinstance(factor, TensorType) else None,
    )


@backward("aten.mv", "aten.dot", "aten.vdot", "aten.addmv", "aten.matmul", "aten.linalg_matmul", "aten.inner")
def product_gradients(call: ForwardCall) -> Estimate:
    """The gradient of a factor repeats the product; next to a vector it is an outer product: a multiplication per pair.

    A vector before a matrix is multiplied as a matrix of one row.
    """
    forward = call.estimate
    grad = only_result(forward)
    once = flops_of(1, grad.dtype)
    matrix: Dim = 0
    vector: Dim = forward.vector_flops if "base" in call.wants else 0
    is_row = call["a"].rank == 1 and call["b"].rank == 2
    for name, other in (("a", call["b"]), ("b", call["a"])):
        if name in call.wants and other.rank < 2 and not is_row:
            pairs = floor_div(forward.matrix_flops, once) if other.rank and call[name].rank else grad.numel
            vector += (6 if grad.dtype.kind == "complex" else 1) * pairs
        elif name in call.wants:
            matrix += forward.matrix_flops
    factors = [call[name] for name, other in (("a", "b"), ("b", "a")) if other in call.wants]
    return Estimate(call.gradients(), matrix, vector, reads=(grad.like(), *factors))


@backward("aten.linalg_vecdot")
def vecdot_gradients(call: ForwardCall) -> Estimate:
    """Each operand's gradient is the other operand scaled: a multiplication per element."""
    grad = only_result(call.estimate)
    others = tuple(call[name] for name, other in (("x", "y"), ("y", "x")) if other in call.wants)
    gradients, pairs = call.gradients(), floor_div(call.estimate.matrix_flops, flops_of(1, grad.dtype))
    each = 6 if grad.dtype.kind == "complex" else 1
    return Estimate(gradients, 0, len(gradients) * each * pairs, reads=(grad.like(), *others))


@rule("aten._grouped_mm", product=("a", "b")).takes("a b offs? bias? out_dtype?")
def grouped_mm(of: Operands) -> Estimate:
    """One product per group: offsets split rows, columns or inner axis; no more matrices are read than there are rows."""
    a, b, offs, bias, out_dtype = of
    m, n = a.shape[-2], b.shape[-1]
    meet(a.shape[-1], b.shape[-2], f"inner dimensions differ: {a.shape[-1]} and {b.shape[-2]}")
    shape: Shape = (m, n)
    multiply_adds = prod((m, a.shape[-1], n))
    read_a, read_b = a, b
    if a.rank == b.rank:
        require(a.rank == 3 or offs is not None, "a grouped product of two matrices needs the groups' ends")
        groups = a.shape[0] if offs is None or a.rank == 3 else offs.shape[0]
        shape = (groups, m, n)
        multiply_adds *= groups if a.rank == 3 else 1
    elif a.rank == 3:
        read_a = a.like((dim_min(a.shape[0], n), *a.shape[1:]))
    else:
        read_b = b.like((dim_min(b.shape[0], m), *b.shape[1:]))
    out = a.like(shape, out_dtype)
    vector = out.numel if bias else 0
    return Estimate((out,), flops_of(multiply_adds, a.dtype), vector, reads=(read_a, read_b, offs, bias))


@rule("aten.linalg_multi_dot", "aten.chain_matmul")
def multi_dot(matrices: Tensors) -> Estimate:
    """The cheapest order of multiplying the chain, as executed; the ends may be vectors."""
    first, last = matrices[0], matrices[-1]
    # rows of the first matrix, then columns of each
    shapes = [x.shape for x in matrices]
    shapes[0] = (1, *shapes[0]) if matrices[0].rank == 1 else shapes[0]
    shapes[-1] = (*shapes[-1], 1) if len(shapes) > 1 and matrices[-1].rank == 1 else shapes[-1]
    for (_, columns), (rows, _) in pairwise(shapes):
        meet(columns, rows, f"inner dimensions differ: {columns} and {rows}")
    matrix = flops_of(cheapest_chain([shapes[0][0], *(columns for _, columns in shapes)]), first.dtype)
    out = first.like(first.shape[:-1] * (first.rank > 1) + last.shape[1:] * (last.rank > 1))
    return Estimate((out,), matrix, reads=matrices, matrix_dtype=first.dtype)


@backward("aten.linalg_multi_dot", "aten.chain_matmul")
def multi_dot_backward(call: ForwardCall) -> Estimate:
    """Each product is repeated per side with a gradient; this takes both sides if two or more matrices have one."""
    wanted = tuple(x.like() for x in call["matrices"] if x.requires_grad)
    times = min(len(wanted), 2)
    return Estimate(wanted, times * call.estimate.matrix_flops, reads=(call.out, *call["matrices"]))


def cheapest_chain(sizes: Sequence[Dim]) -> Dim:
    """Multiply-adds of a chain of matrices (sizes[i], sizes[i+1]) in its cheapest order."""
    count = len(sizes) - 1
    best: dict[tuple[int, int], Dim] = {(i, i + 1): 0 for i in range(count)}
    for span in range(2, count + 1):
        for i in range(count - span + 1):
            k = i + span
            splits = (best[i, j] + best[j, k] + prod((sizes[i], sizes[j], sizes[k])) for j in range(i + 1, k))
            best[i, k] = dim_min(*splits)
    return best[0, count]


@rule("aten.linalg_matrix_power", "aten.matrix_power", kind="other")
def matrix_power(x: TensorType, n: int) -> Estimate:
    """Products of repeated squaring; a negative exponent first inverts, 2n^3 vector FLOPs."""
    size = x.shape[-1]
    meet(x.shape[-2], size, f"a power needs a square matrix, got {x.shape[-2]} by {size}")
    power = abs(n)
    products = power.bit_length() - 1 + bin(power).count("1") - 1 if power else 0
    multiply_adds = prod(x.shape) * size
    return Estimate(
        (x.like(),),
        matrix_flops=products * flops_of(multiply_adds, x.dtype),
        vector_flops=flops_of(multiply_adds, x.dtype) if n < 0 else 0,
        reads=(x,) if n else (),
    )


@backward("aten.linalg_matrix_power", "aten.matrix_power")
def matrix_power_backward(call: ForwardCall) -> Estimate:
    """Two products for each of the forward's; the gradient of an inverse is two products more."""
    x, n = call["x"], call["n"]
    inverse = 2 * flops_of(prod(x.shape) * x.shape[-1], x.dtype) if n < 0 else 0
    return Estimate((x.like(),), 2 * call.estimate.matrix_flops + inverse, reads=(x.like(), x))


@rule("aten.linear_backward", "aten.mkldnn_linear_backward")
def linear_backward(
    x: TensorType | Shape, grad: TensorType, weight: TensorType, output_mask: Mask
) -> Estimate:
    """For the input, of which only sizes may be given, and for the weight a product; for the bias a sum over rows."""
    given, shape = (x, x.shape) if isinstance(x, TensorType) else (None, x)
    # The gradients of weight and bias are computed together.
    wants_x, wants_rest = (output_mask[0], output_mask[1] or output_mask[2])
    product = flops_of(prod(grad.shape[:-1]) * weight.numel, grad.dtype)
    results = map(grad.like, (shape, weight.shape, grad.shape[-1:]))
    return Estimate(
        where_wanted(results, (wants_x, wants_rest, wants_rest)),
        matrix_flops=product * (wants_x + wants_rest),
        vector_flops=additions(grad) if wants_rest else 0,
        reads=(grad, weight if wants_x else None, given if wants_rest else None),
    )


rule("aten.mkldnn_linear_backward_input").derived(
    linear_backward, results(0), order="x grad weight", output_mask=(True, False, False)
)
rule("aten.mkldnn_linear_backward_weights").derived(
    linear_backward, results(1, 2), order="grad x weight _", output_mask=(False, True, True)
)


@rule("aten.matmul_backward")
def matmul_backward(grad: TensorType, a: TensorType, b: TensorType, mask: Mask) -> Estimate:
    """Gradients of matmul: the forward's product for each wanted operand."""
    return Estimate(
        where_wanted((a, b), mask[:2]),
        matrix_flops=matmul(a, b).matrix_flops * (mask[0] + mask[1]),
        reads=(grad, b if mask[0] else None, a if mask[1] else None),
    )
