"""Values that are held in few bits: what converts them, computing and reading what, and who makes and reads values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from graphflops.cost import Value
from graphflops.dims import Dim, floor_div, total
from graphflops.graph import Graph
from graphflops.passes.price_call import converts, is_free
from graphflops.passes.program import PricedCall
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.tensor import DType, TensorType

TO_FLOAT = DEQUANTIZE - 1  # of a sum of integers: convert, multiply by the scales
_WIDEST = 16  # bits of an integer that is a factor of products


class Twin(NamedTuple):
    """The quantized form of a floating-point value. by: the call that dequantizes it. is_stored: whether it is a weight."""

    name: str
    type: TensorType
    by: PricedCall
    is_stored: bool

    @property
    def zeroed(self) -> Dim:
        """Subtractions that take the zero point off each element; none where there is no zero point."""
        return 0 if parameters(self.by)[1] in (None, 0) else self.type.numel

    def dequantizing(self, values: Mapping[str, Value], elements: Dim | None = None) -> Dim:
        """Work of converting all elements to floating point, or so many."""
        before, work = values[self.by.uses[0]], self.by.estimate.vector_flops
        whole = before.numel if isinstance(before, TensorType) else 1
        each = next((each for each in range(QUANTIZE + 1) if whole * each == work), DEQUANTIZE)
        return each * (self.type.numel if elements is None else elements)

    def scales(self, values: Mapping[str, Value], gathered: Dim | None) -> list[TensorType | Dim]:
        """Scales and zero points that are read with it; of a table, those of the elements that are gathered."""
        if gathered is None:
            return [*scales(self.by, values)]
        numel = self.type.numel
        return [floor_div(x.nbytes * gathered, numel) if x.rank else x for x in scales(self.by, values)]


def parameters(conversion: PricedCall) -> tuple[object, ...]:
    """Scale and zero point of a conversion: names of values, or numbers."""
    arguments = conversion.node.arguments()
    return arguments.get("scale"), arguments.get("zero_point")


def scales(conversion: PricedCall, values: Mapping[str, Value]) -> list[TensorType]:
    """Scales and zero points that a conversion reads."""
    return [x for name in conversion.uses[1:] if isinstance(x := values.get(name), TensorType)]


def is_narrow(dtype: DType) -> bool:
    """Whether products take factors of the type as they are."""
    return dtype.bits <= _WIDEST and dtype.kind in ("int", "uint", "float")


class Uses:
    """Who makes and reads the values of one graph."""

    def __init__(
        self, graph: Graph, calls: Sequence[PricedCall], values: dict[str, Value], stored: Collection[str]
    ) -> None:
        self.graph, self.calls, self.values = graph, calls, values
        self.returned = frozenset(graph.returned)
        self.stored = {*stored}  # names of weights and constants
        self.readers: dict[str, list[int]] = {}  # by value, calls that read its contents, not only its size
        for place, call in enumerate(calls):
            if not call.node.operator.reads_sizes:
                for name in dict.fromkeys(call.uses):
                    self.readers.setdefault(name, []).append(place)
            is_fixed = is_free(call.estimate) and not call.estimate.unknown
            if is_fixed and self.stored.issuperset(call.uses):  # a constant, a part of a weight
                self.stored.update(self.outputs(place))
        # Calls that quantize weights for conversions back, which is done once, when the model is loaded.
        self.folded = set[int]()
        for place, call in enumerate(calls):
            results, is_of_stored = self.outputs(place), self.stored.issuperset(call.uses)
            is_quantizing = call.node.operator.name == "quantize" and is_of_stored and bool(results)
            if is_quantizing and self.is_read_only_by(results[0], self.dequantizes):
                self.folded.add(place)
                self.stored.update(results)

    def outputs(self, place: int) -> list[str]:
        return [name for name in self.calls[place].node.outputs if name is not None]

    def dequantizes(self, place: int) -> bool:
        """Whether a call converts from few bits to floating point, be it by a plain cast."""
        call, results = self.calls[place], self.outputs(place)
        op = call.node.operator
        is_candidate = op.name == "dequantize" or (op.kind == "cast" and not op.mutates)
        if not is_candidate or not call.uses or call.estimate.unknown:
            return False
        is_float = all(map(self.is_float, results)) and bool(results)
        return is_float and converts(op, self.values[call.uses[0]])

    def type_of(self, name: str) -> TensorType:
        value = self.values[name]
        assert isinstance(value, TensorType)
        return value

    def elements(self, place: int) -> Dim:
        return total(self.type_of(name).numel for name in self.outputs(place))

    def is_float(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, TensorType) and value.dtype.kind == "float"

    def floats(self, names: Iterable[str]) -> list[str]:
        return [*filter(self.is_float, dict.fromkeys(names))]

    def is_number(self, name: str) -> bool:
        return name in self.stored or self.type_of(name).numel == 1

    def is_scale(self, name: str) -> bool:
        """Whether a value is one number, or one for each place along a single axis."""
        value = self.values.get(name)
        return not isinstance(value, TensorType) or sum(size != 1 for size in value.shape) < 2

    def is_read_only_by(self, name: str, is_meant: Callable[[int], bool]) -> bool:
        readers = self.readers.get(name, ())
        return bool(readers) and name not in self.returned and all(map(is_meant, readers))

    def only_reader(self, name: str) -> int | None:
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.returned else None

    def is_quantized(self, name: str) -> bool:
        def quantizes(place: int) -> bool:
            op, uses = self.calls[place].node.operator, self.calls[place].uses
            return op.name == "quantize" and name == uses[0] and name not in uses[1:]

        return self.is_read_only_by(name, quantizes)
