"""The element types of indices and masks that torch's operators take; torch refuses a call with others.

A line of the table names an argument of the operators behind it, and the types that it takes. What only some releases or
devices of torch refuse is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphflops.errors import ShapeError
from graphflops.ops.operator import operator
from graphflops.tensor import TensorType

_TABLE = """
index int32 int64: gather scatter scatter_add scatter_reduce index_select index_add index_reduce index_select_backward
index int64: index_copy index_fill take put
indices int64: take_along_dim max_unpool2d max_unpool3d
indices int32 int64: embedding embedding_dense_backward _unsafe_index _unsafe_index_put
indices bool uint8 int32 int64: index index_put _index_put_impl
indices bool uint8 int8 int16 int32 int64: embedding_bag _embedding_bag _embedding_bag_forward_only
mask bool: masked_fill masked_select masked_scatter
"""
_TAKES = {
    f"aten.{name}": (argument, dtypes)
    for line in _TABLE.strip().splitlines()
    for (argument, *dtypes), names in [(part.split() for part in line.split(":"))]
    for name in names
}


def check(op: str, arguments: Mapping[str, object]) -> None:
    """Raises ShapeError for indices or a mask of an element type that the operator does not take."""
    called = operator(op)
    name, taken = _TAKES.get(called.functional or called.base, ("", []))
    given = arguments.get(name)
    for each in given if isinstance(given, tuple) else (given,):
        if isinstance(each, TensorType) and each.dtype.name not in taken:
            raise ShapeError(f"{name} of {op} cannot be {each.dtype}")
