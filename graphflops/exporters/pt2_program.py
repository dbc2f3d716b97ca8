"""What the graphs of one `.pt2` share: types, sizes, sources and operators, each distinct one built once.

A program of 80 equal layers has a few dozen tensor types and source lines.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from graphflops.dims import Dim, parse_dim
from graphflops.errors import DimError, FileError, shown
from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.pt2_values import dtype_of, number
from graphflops.exporters.sources import Sources
from graphflops.exporters.types import Types

if TYPE_CHECKING:
    from graphflops.graph import Graph
    from graphflops.tensor import TensorType

MAX_SIZE = 2**62  # elements along one axis


class Program:
    """What the graphs of one program share.

    nested: graphs that are arguments, by their JSON text; one that occurs again is the same object again.
    """

    def __init__(self) -> None:
        self.types = Types()
        self.sources = Sources()
        self.nested: dict[bytes, Graph] = {}
        self._metas: dict[bytes, TensorType] = {}
        self._ops: dict[str, str] = {}
        self._meta_decoder = msgspec.json.Decoder(schema.TensorMeta)
        self._graph_decoder = msgspec.json.Decoder(schema.Graph)
        self._node_decoder = msgspec.json.Decoder(schema.Node)

    def graph(self, name: str, text: bytes) -> schema.Graph:
        """A graph that is an argument."""
        return schema.decode_part(self._graph_decoder, text, f"graph {shown(name)}")

    def node(self, place: int, text: msgspec.Raw) -> schema.Node:
        """A call of a graph, by its place there."""
        return schema.decode_part(self._node_decoder, text, f"node #{place}")

    def op(self, target: str) -> str:
        """`aten.add.Tensor` for `torch.ops.aten.add.Tensor`."""
        known = self._ops.get(target)
        if known is None:
            known = self._ops[target] = target.removeprefix("torch.ops.")
        return known

    def tensor(self, name: str, raw: msgspec.Raw) -> TensorType:
        """The type of a value; equal types are one object."""
        key = bytes(raw)
        known = self._metas.get(key)
        if known is None:
            meta = self.meta(name, key)
            shape = tuple([self.size(name, size) for size in meta.sizes])
            known = self._metas[key] = self.types.tensor(shape, dtype_of(meta.dtype, name))
        return known

    def meta(self, name: str, text: bytes | msgspec.Raw) -> schema.TensorMeta:
        """The whole description of a value."""
        return schema.decode_part(self._meta_decoder, text, f"the type of value {shown(name)}")

    def size(self, name: str, size: schema.SymInt) -> Dim:
        """One axis of a tensor, never negative."""
        dim = self.integer(name, size)
        if isinstance(dim, int) and not 0 <= dim <= MAX_SIZE:
            raise FileError(
                f"value {shown(name)} has an axis of {shown(str(dim), 40)} elements, which no tensor has"
            )
        return dim

    def integer(self, name: str, value: schema.SymInt) -> Dim:
        """A recorded integer; keeps the example value of an expression."""
        if value.as_int is not None:
            return value.as_int
        if value.as_expr is None:
            raise FileError(f"value {shown(name)} has a size of a kind that this graphflops does not know")
        hint = value.as_expr.hint
        try:
            return self.types.dim(value.as_expr.expr_str, None if hint is None else hint.as_int)
        except DimError as error:
            raise FileError(f"value {shown(name)}: {error}") from None

    def floating(self, value: schema.SymFloat) -> float:
        """A recorded float: its example value where it is symbolic, NaN where there is none."""
        recorded = value.as_float
        if recorded is None and value.as_expr is not None and value.as_expr.hint is not None:
            recorded = value.as_expr.hint.as_float
        return math.nan if recorded is None else number(recorded)

    def truth(self, value: schema.SymBool) -> Dim | bool | None:
        """A recorded truth value: a literal, else the comparison where it can be read."""
        if value.as_bool is not None or value.as_expr is None:
            return value.as_bool
        try:
            dim = parse_dim(value.as_expr.expr_str)
        except DimError:
            return None  # a comparison of floats, say: nothing counts on it
        return bool(dim) if isinstance(dim, int) else dim
