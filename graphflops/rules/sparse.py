"""Sparse tensors.

The number of stored elements is part of a tensor's type: known from how the tensor is made, else a symbol. An operator
with a sparse operand is looked up as `sparse.NAME`; without such a rule it is unknown, because a dense rule would count
elements that are not stored.
"""

from collections.abc import Callable

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, broadcast, prod, total
from graphflops.errors import ShapeError
from graphflops.rules.elementwise import DEFAULT_FLOAT, result_type
from graphflops.rules.matmul import Number, add_product, flops_of
from graphflops.rules.operands import Operands
from graphflops.rules.reduce import SOFTMAX
from graphflops.rules.registry import find, rule
from graphflops.rules.shapes import Shape, Tensors, axes, reduced, results
from graphflops.tensor import INT32, INT64, DType, TensorType

KIND = "sparse"


# Operators that keep zeros zero: their work is that of the dense rule on the stored elements.
ELEMENTWISE = (
    *("abs", "neg", "relu", "sgn", "sign", "sin", "sinh", "tan", "tanh", "asin", "asinh", "atan", "atanh"),
    *("sqrt", "square", "expm1", "log1p", "erf", "floor", "ceil", "round", "trunc", "deg2rad", "rad2deg"),
    *("mul", "div", "clone", "to.dtype", "to.device", "to.dtype_layout", "_to_copy"),
)
# Operators that move elements or query a tensor, with any stored elements.
UNCHANGED = (
    *("t", "transpose", "numpy_T", "adjoint", "detach", "alias"),
    *("sym_size", "sym_numel", "_assert_tensor_metadata", "is_coalesced"),
)


def stored(x: TensorType) -> Dim:
    """How many elements a sparse tensor stores."""
    return data_dependent("nnz") if x.nonzeros is None else x.nonzeros


def storing(x: TensorType, nonzeros: Dim) -> TensorType:
    """The type with that number of stored elements."""
    return replace(x, nonzeros=nonzeros)


def both(*operators: str) -> tuple[str, ...]:
    """The keys of an operator for operands that are known to be sparse and for others."""
    return (*operators, *(f"sparse.{name}" for name in operators))


def elements(x: TensorType, dtype: DType | None = None) -> TensorType:
    """The stored elements, one after the other."""
    return x.like((stored(x),), dtype)


_PLACES = {"csr": "crow_col", "csc": "ccol_row", "bsr": "crow_col", "bsc": "ccol_row"}


@rule(
    *("aten.sparse_coo_tensor.indices_size", "aten._sparse_coo_tensor_unsafe"),
    "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten.sparse_compressed_tensor.comp_plain_value_size",
    *(f"aten.sparse_{kind}_tensor.{places}_value_size" for kind, places in _PLACES.items()),
    *(f"aten._sparse_{kind}_tensor_unsafe" for kind in (*_PLACES, "compressed")),
)
def sparse_tensor(*, values: TensorType, size: Shape, dtype: DType | None = None) -> Estimate:
    """Free: holds the given indices and values."""
    return free(storing(values.like(size, dtype), values.numel))


_MOST_AXES = 64  # as many as torch allows


@rule("aten.sparse_coo_tensor.indices")
def sparse_coo_tensor_as_large_as_needed(
    indices: TensorType, values: TensorType, *, dtype: DType | None = None
) -> Estimate:
    """Holds the given indices and values; sizes come from a maximum over the indices."""
    rank = indices.shape[0]
    if not isinstance(rank, int) or rank > _MOST_AXES:
        raise ShapeError(f"a tensor cannot have {rank} axes")
    sizes = tuple(data_dependent(f"largest{axis}") for axis in range(rank))
    out = storing(values.like((*sizes, *values.shape[1:]), dtype), values.numel)
    return Estimate((out,), vector_flops=indices.numel, reads=(indices,), writes=(), alias=True)


@rule("aten.sparse_coo_tensor.size")
def empty_sparse_tensor(size: Shape, *, dtype: DType | None = None) -> Estimate:
    """A sparse tensor without elements."""
    return free(TensorType(tuple(size), dtype or DEFAULT_FLOAT, nonzeros=0), alias=False)


@rule(
    *("aten.to_sparse", "aten._to_sparse", "aten.to_sparse_coo"),
    *(f"aten.{under}to_sparse_{kind}" for under in ("", "_") for kind in _PLACES),
)
def to_sparse(x: TensorType, *layout: object, **options: object) -> Estimate:
    """Reads all elements, writes the nonzero ones and their indices; their number is data-dependent."""
    return Estimate((storing(x.like(), data_dependent("nnz")),), reads=(x,))


@rule("sparse.aten.to_dense", "sparse.aten._to_dense")
def to_dense(x: TensorType, dtype: DType | None = None, masked_grad: bool | None = None) -> Estimate:
    """The stored elements added to zeros."""
    return Estimate((x.like(dtype=dtype),), vector_flops=stored(x), reads=(x,))


@rule(*both("aten.coalesce", "aten._coalesce"))
def coalesce(x: TensorType) -> Estimate:
    """Sums the elements of equal indices; their number is at most the number before."""
    return Estimate((storing(x.like(), stored(x)),), vector_flops=stored(x), reads=(x,))


def view(x: TensorType, *, shape: Callable[[TensorType], Shape], dtype: DType | None = INT64) -> Estimate:
    """A view."""
    return free(x.like(shape(x), dtype))


for _names, _shape in (
    ("indices _indices", lambda x: (x.rank, stored(x))),
    ("col_indices row_indices", lambda x: (stored(x),)),
    ("crow_indices", lambda x: (*x.shape[:-2], x.shape[-2] + 1)),
    ("ccol_indices", lambda x: (*x.shape[:-2], x.shape[-1] + 1)),
):
    rule(*(f"sparse.aten.{name}" for name in _names.split())).derived(view, shape=_shape)
rule("sparse.aten.values", "sparse.aten._values").derived(view, shape=lambda x: (stored(x),), dtype=None)


@rule("sparse.aten.sparse_mask", "sparse.aten.to_dense_backward")
def sparse_mask(x: TensorType, mask: TensorType, masked_grad: bool | None = None) -> Estimate:
    """Copies the elements, or their gradients, at the indices of another sparse tensor."""
    out = storing(x.like(), stored(mask))
    return Estimate((out,), reads=(out if x.nonzeros is None else x, mask))


@rule("sparse.aten._nnz")
def nnz(x: TensorType) -> Estimate:
    """Free: known without reading data."""
    return free(stored(x))


def as_dense(x: TensorType, *arguments: Value, single: str, is_elementwise: bool, **named: Value) -> Estimate:
    """The operator on the stored elements, as on a dense tensor of them; elementwise ones keep the others zero."""
    dense = find(single)
    assert dense is not None
    others = [elements(x, y.dtype) if isinstance(y, TensorType) else y for y in arguments]
    seen = elements(x) if is_elementwise else replace(x, nonzeros=None)
    estimate = dense.price(single, seen, *others, **named)
    out = [
        storing(x.like(dtype=y.dtype) if is_elementwise else y, stored(x)) if isinstance(y, TensorType) else y
        for y in estimate.out
    ]
    return replace(estimate, out=tuple(out))


for _name in (*ELEMENTWISE, *UNCHANGED):
    rule(f"sparse.aten.{_name}").derived(
        as_dense,
        single=f"aten.{_name}" if "." in _name else f"aten.{_name}.default",
        is_elementwise=_name in ELEMENTWISE,
    )


@rule("sparse.aten.add", "sparse.aten.sub")
def add(a: TensorType, b: TensorType, *, alpha: Number = 1) -> Estimate:
    """One operation per stored element, which the sum of two such tensors has as many of as both."""
    counts = [x.nonzeros for x in (a, b) if x.nonzeros is not None]
    out, count = a.like(broadcast(a.shape, b.shape), result_type(a, b)), total(counts)
    return Estimate((storing(out, count) if len(counts) == 2 else out,), vector_flops=count, reads=(a, b))


@rule(*both("aten._sparse_sum"), "sparse.aten.sum").takes("x dim? * keepdim? dtype?")
def sparse_sum(of: Operands) -> Estimate:
    """An addition per stored element; sums along some axes are stored like the elements, at most as many."""
    x, dim, keepdim, dtype = of
    out = x.like(reduced(x.shape, dim, bool(keepdim)), dtype)
    part = len(axes(None if dim == () else dim, x.rank)) < x.rank
    return Estimate((storing(out, stored(x)) if part else out,), vector_flops=stored(x), reads=(x,))


@rule(
    *both("aten._sparse_softmax", "aten._sparse_log_softmax"),
    *("sparse.aten._softmax", "sparse.aten._log_softmax"),
)
def sparse_softmax(x: TensorType, dim: int, dtype: DType | bool | None = None) -> Estimate:
    """A softmax over the stored elements of each row."""
    count = stored(x)
    out = x.like(dtype=None if isinstance(dtype, bool) else dtype)
    return Estimate((storing(out, count),), vector_flops=SOFTMAX * count, transcendentals=count, reads=(x,))


@rule(
    *both("aten._sparse_mm.default", "aten.smm"),
    *("sparse.aten.mm", "sparse.aten.matmul", "sparse.aten.bmm", "sparse.aten.mv"),
    product=("a", "b"),
)
def sparse_mm(a: TensorType, b: TensorType) -> Estimate:
    """A multiply-add per stored element and column; between two such matrices only data can tell how many."""
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
    out = a.like((*batch, *rows, *columns), result_type(a, b))
    if a.nonzeros is not None and b.nonzeros is not None:
        out = storing(out, data_dependent("nnz"))
        return Estimate((out,), flops_of(data_dependent("products"), a.dtype), reads=(a, b))
    if b.nonzeros is not None:
        return Estimate((out,), flops_of(b.nonzeros * prod(rows), a.dtype), reads=(a, b))
    a = storing(a, stored(a))
    return Estimate((out,), flops_of(stored(a) * prod(columns), a.dtype), reads=(a, b))


@rule(*both("aten._sparse_addmm", "aten.sspaddmm"), "sparse.aten.addmm").takes("base a b; beta=1 alpha=1")
def sparse_addmm(of: Operands) -> Estimate:
    """As _sparse_mm, added to a matrix."""
    return add_product(of.base, sparse_mm(of.a, of.b), of.beta, of.alpha)


@rule(*both("aten._sparse_mm_reduce_impl"))
def sparse_mm_reduce_impl(a: TensorType, b: TensorType, reduce: str) -> Estimate:
    """As _sparse_mm; the second result says which element was chosen, where that is asked for gradients."""
    product, is_told = sparse_mm(a, b), reduce in ("amax", "amin") and (a.requires_grad or b.requires_grad)
    chosen = TensorType((a.shape[0], b.shape[1]) if is_told else (0,), INT64)
    return replace(product, out=(*product.out, chosen))


rule(*both("aten._sparse_mm.reduce")).derived(sparse_mm_reduce_impl, results(0))


@rule(*both("aten.sparse_sampled_addmm")).takes("base a b")
def sparse_sampled_addmm(of: Operands) -> Estimate:
    """A dot product per stored element of the sparse operand."""
    base, a, b = of
    sampled, matrix = storing(base, stored(base)), flops_of(stored(base) * a.shape[-1], a.dtype)
    return Estimate((sampled.like(),), matrix, 3 * stored(base), reads=(sampled, a, b), writes=(sampled,))


@rule("aten._convert_indices_from_coo_to_csr")
def coo_to_csr(rows: TensorType, size: Dim, *, out_int32: bool = False) -> Estimate:
    """How many elements lie before each row: one comparison per element."""
    out = rows.like((*rows.shape[:-1], size + 1), INT32 if out_int32 else INT64)
    return Estimate((out,), vector_flops=rows.numel, reads=(rows,))


@rule("aten._convert_indices_from_csr_to_coo")
def csr_to_coo(crow_indices: TensorType, col_indices: TensorType, *, out_int32: bool = False) -> Estimate:
    """The row beside the column of each element."""
    out = col_indices.like((col_indices.rank + 1, col_indices.numel), INT32 if out_int32 else INT64)
    return Estimate((out,), reads=(crow_indices, col_indices))


# Sequences of different lengths, one after the other.


@rule("aten._jagged_to_padded_dense_forward")
def jagged_to_padded(values: TensorType, offsets: Tensors, max_lengths: Shape) -> Estimate:
    """Each sequence copied to a row of its own, the rest filled."""
    sequences = tuple(offset.shape[-1] - 1 for offset in offsets[:1])
    return Estimate((values.like((*sequences, *max_lengths, *values.shape[1:])),), reads=(values, *offsets))


@rule("aten._padded_dense_to_jagged_forward")
def padded_to_jagged(dense: TensorType, offsets: Tensors, total_L: Dim | None = None) -> Estimate:
    """Each row's sequence copied, one after the other."""
    rows = data_dependent("rows") if total_L is None else total_L
    out = dense.like((rows, *dense.shape[1 + len(offsets) :]))
    return Estimate((out,), reads=(out, *offsets))
