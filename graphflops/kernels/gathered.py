"""Elements and rows that are read from any places of a table (Indexing.cu, IndexKernel.cpp and IndexKernelUtils.cu of ATen).

Up to 16 rows of a table are read one after the other. More are copied in blocks of 4,096 bytes if indices and rows are
contiguous and a row is a multiple of 16 bytes; else each element is read by itself. Several indices with different layouts,
such as rows beside columns, are first copied to row-major.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from graphflops.base.record import replace
from graphflops.dims import broadcast
from graphflops.execution.strides import is_contiguous, regrouped, repeated
from graphflops.kernels.beside import WARP
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import INDEX_BYTES, Kernel, Rows, Strided
from graphflops.kernels.moved import axis_of, copy, on_operand, rows_kernel

(_ALIGNED,) = limits("aten_2", "copy", "aligned")
_FEW, _COPIED = limits("aten_2", "gather", "few block")
_AT_ONCE, _PART = limits("aten_2", "embedding", "at_once part")
_ONE_BLOCK, _DEVIATIONS, _NARROW = limits("aten_2", "index", "one_block deviations narrow")
_OF_WARP = 128  # elements of an entry that a warp adds
_START = 3.3  # the time that a block takes to start, in warps
_ROWS = frozenset({"embedding", "index_select"})  # they take rows of a table


@on_operand
def gathered(call: ConcreteCall, _: Tensor, out: Tensor) -> list[Kernel]:
    """The kernel that reads the elements, after copies of the indices."""
    kernel = rows_kernel("gather", out, call, *call.cost.moved)
    each = replace(kernel, sizes=Strided(out.numel, 2, 3), variant="elements")
    name, (table, *indices) = call.operator.name, call.operands
    if name == "index":
        index, inside = indices[0], table.shape[1:]
        is_first = len(indices) == 1 and out.shape == (*index.shape, *inside)
        if is_first and is_contiguous(inside, table.strides[1:]) and index.is_contiguous:
            kernel = replace(kernel, sizes=_blocks(index.numel, prod(inside), out.bits), variant=name)
            return [each if prod(inside) * out.bits // 8 % _ALIGNED else kernel]
        return [*_copied_indices(indices), each]
    if name == "embedding_bag":  # a thread adds the entries of a bag one after the other
        bags, count = call.results[0].numel // max(table.shape[-1], 1), indices[0].numel
        return [replace(kernel, sizes=Rows(bags, -(-count // max(bags, 1))))]
    rows = call.operand("index")
    is_by_rows = name == "gather" and rows is not None and rows.rank > 1 and not any(rows.strides[1:])
    if is_by_rows and axis_of(call, out.rank) == 0 and table.is_contiguous:
        return [rows_taken(kernel, out.shape[0], prod(out.shape[1:]), out.bits)]
    if name not in _ROWS or not out.rank or (name == "index_select" and axis_of(call, out.rank)):
        return [kernel]
    copies, is_in_order = _listed(call.operand("index", "indices"))
    count = prod(out.shape[:-1]) if name == "embedding" else out.shape[0]
    columns = out.numel // max(count, 1)
    return [*copies, rows_taken(kernel, count, columns, out.bits, name, is_in_order=is_in_order)]


def rows_taken(
    kernel: Kernel, rows: int, columns: int, bits: int, name: str = "index", *, is_in_order: bool = True
) -> Kernel:
    """The kernel that reads `rows` rows of a table. name: the function that reads them, if it has a kernel of its own."""
    if rows <= _FEW:
        return replace(kernel, sizes=Rows(columns, rows), variant="few")
    if columns * bits // 8 % _ALIGNED or not is_in_order:
        return replace(kernel, sizes=Strided(rows * columns, 2, 3), variant="gather")
    if name == "embedding":
        return kernel
    return replace(kernel, sizes=_blocks(rows, columns, bits), variant="index")


def _blocks(rows: int, columns: int, bits: int) -> Rows:
    """The blocks that copy rows of `columns` elements, and the elements that each block copies."""
    each = -(-columns * bits // 8 // _COPIED)
    return Rows(rows * each, columns // max(each, 1))


def _copied_indices(indices: Sequence[Tensor]) -> list[Kernel]:
    """Copies of several indices, broadcast to one shape; none if all have the same strides."""
    shape: Any = broadcast(*[index.shape for index in indices])
    wide: list[Any] = [repeated(index.shape, index.strides, shape) for index in indices]
    if len(set(wide)) < 2:
        return []
    whole = [replace(index, shape=shape, strides=steps) for index, steps in zip(indices, wide, strict=True)]
    return [copy(index) for index in whole if not index.is_contiguous]


def _listed(index: Tensor | None) -> tuple[list[Kernel], bool]:
    """The copy that makes the indices one-dimensional, if no view can, and whether they are then contiguous."""
    if index is None or index.numel < 2:
        return [], True
    steps = regrouped(index.shape, index.strides, (index.numel,))
    return ([copy(index)], True) if steps is None else ([], steps == (1,))


def added_sorted(call: ConcreteCall, table: Tensor, out: Tensor) -> list[Kernel]:
    """The kernels that add gradients to a table's rows in the order of sorted indices, which are assumed to be random.

    For an embedding, a warp adds up to ten gradients of a row, and then the partial sums; with few rows it adds all at once.
    For an index, it adds all of a row one after the other (EmbeddingBackwardKernel.cu and Indexing.cu of ATen).
    """
    is_index = call.operator.name == "index"
    columns = prod(table.shape[1:])
    shapes = [x.shape for x in call.operands if "int" in x.dtype]
    if is_index and shapes:  # the elements of an entry, where several axes have one index each
        picked: Any = broadcast(*shapes)
        columns = max(out.numel // max(prod(picked), 1), 1)
    entries = call.operand("index") if call.operator.name == "embedding_bag" else None  # entries of all bags
    count = max(out.numel // max(columns, 1), 1) if entries is None else entries.numel
    rows, size = table.numel // max(columns, 1), int(table.bits * count * columns // 8)
    kind = "few" if count <= _ONE_BLOCK else "index" if is_index else "embedding"
    width = INDEX_BYTES * count
    order = Kernel("sort", "int64", 0, 0, width, width, Rows(1, count), f"{kind}_indices")
    added, repeats = Kernel("scatter", table.dtype, 0, 0, size, 0), count / max(rows, 1)
    if is_index:
        most = int(repeats + _DEVIATIONS * repeats**0.5)  # of one row
        most = most if columns > WARP else most // _NARROW
        written = min(size, table.full_bytes)
        warps = count * -(-columns // _OF_WARP)
        return [order, replace(added, sizes=Rows(warps, most), written_bytes=written, variant="repeated")]
    if rows <= _AT_ONCE:
        converted = [copy(table)] if table.bits < 32 else []  # the sums are in float32
        return [order, replace(added, sizes=Rows(count, int(repeats)), variant="at_once"), *converted]
    most = min(count, rows)  # distinct rows; each has a block
    parts = count // _PART + most
    sums = 2 * 4 * columns * parts  # written and read in float32
    blocks = Rows(int((parts + most) * max(-(-columns // WARP), _START)), 1)
    return [order, replace(added, read_bytes=size + sums, sizes=blocks, variant="parts")]
