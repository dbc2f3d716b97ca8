"""Finds the calls that runtimes fuse with conversions from and to few bits: islands, and what each costs as one call."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim, floor_div, total
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.price_call import Priced, converts, is_free
from graphflops.passes.program import PricedCall
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE, TO_FLOAT
from graphflops.tensor import DTYPES, INT32, INT64, TensorType, grouped

PriceOf = Callable[[Node, Mapping[str, Value], Graph], Priced]  # prices a call at other operand types

_HALF = 16  # bits of the narrowest float type that layers compute in
_WIDEST = 16  # bits of the widest integer that is a factor of products
_SUMS = (INT32, INT64)  # types in which products of integers are summed
_TURNS = 8  # tries to find layouts of quantized values
_UNFIT = ("control", "collective", "optimizer", "random", "creation", "size", "sequence")


class Twin(NamedTuple):
    """The quantized form of a floating-point value."""

    name: str
    type: TensorType
    by: PricedCall  # the call that dequantizes it
    is_stored: bool  # whether it is a weight
    scales: tuple[TensorType, ...]  # with zero points
    each: int  # work of converting one element to floating point


class End(NamedTuple):
    """What follows an operator: elementwise calls and layouts, then the calls that quantize its result `name`."""

    name: str = ""
    absorbed: tuple[int, ...] = ()
    quantizers: tuple[int, ...] = ()
    taken: tuple[str, ...] = ()  # operands of the elementwise calls that are read in quantized form


class Island(Record, frozen=True):
    """Calls that run as one, by their places."""

    place: int  # of the call that names it
    taken: frozenset[str]  # operands that are read in quantized form
    estimate: Estimate  # of the whole
    absorbed: tuple[int, ...] = ()  # calls after it; so are the quantizers
    quantizers: tuple[int, ...] = ()
    results: Mapping[str, tuple[str, ...]] = {}  # by result that is not stored: what is stored
    is_layout: bool = False  # one call that lays out the quantized value instead of the dequantized one


class Islands:
    """The islands of a graph, the readers of its values, and the quantized forms of values."""

    def __init__(
        self, graph: Graph, calls: list[PricedCall], values: dict[str, Value],
        stored: Collection[str], price_of: PriceOf,
    ) -> None:  # fmt: skip
        self.graph, self.calls, self.values, self.price_of = graph, calls, values, price_of
        self.returned = frozenset(graph.returned)
        self.stored = {*stored}  # names of weights and constants
        reading = [(place, call) for place, call in enumerate(calls) if not call.node.operator.reads_sizes]
        # By value, calls that read its contents, not only its sizes.
        self.readers = grouped((name, place) for place, call in reading for name in dict.fromkeys(call.uses))
        for place, call in enumerate(calls):
            is_fixed = is_free(call.estimate) and not call.estimate.unknown
            if is_fixed and self.stored.issuperset(call.uses):  # a constant, or a part of a weight
                self.stored.update(self.outputs(place))
        # Calls that quantize weights which are then dequantized: this runs once, when the model is loaded.
        self.folded = set[int]()
        for place, call in enumerate(calls):
            results, is_of_stored = self.outputs(place), self.stored.issuperset(call.uses)
            is_quantizing = call.node.operator.name == "quantize" and is_of_stored and bool(results)
            if is_quantizing and self.is_read_only_by(results[0], self.dequantizes):
                self.folded.add(place)
                self.stored.update(results)
        self.twins: dict[str, Twin] = {}  # the quantized form of values
        self.island_of: dict[int, Island] = {}  # by call
        self._find()

    def _find(self) -> None:
        """Find the islands, and the layouts of quantized values whose results nothing else reads."""
        barred: set[str] = set()
        for turn in range(_TURNS):
            self.twins.clear()
            self.island_of.clear()
            self._find_twins(barred, has_layouts=turn < _TURNS - 1)
            layouts = [*self.island_of]
            for place, call in enumerate(self.calls):
                island = self._island(place, call) if place not in self.island_of else None
                if island is not None:
                    parts = (place, *island.absorbed, *island.quantizers)
                    self.island_of.update(dict.fromkeys(parts, island))
            lost = [name for place in layouts for name in self.outputs(place) if not self.is_taken(name)]
            if not lost:
                return
            barred.update(lost)

    def outputs(self, place: int) -> list[str]:
        return [name for name in self.calls[place].node.outputs if name is not None]

    def type_of(self, name: str) -> TensorType:
        value = self.values[name]
        assert isinstance(value, TensorType)
        return value

    def is_float(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, TensorType) and value.dtype.kind == "float"

    def floats(self, names: Iterable[str]) -> list[str]:
        return [*filter(self.is_float, dict.fromkeys(names))]

    def elements(self, place: int) -> Dim:
        return total(self.type_of(name).numel for name in self.outputs(place))

    def scales(self, conversion: PricedCall) -> tuple[TensorType, ...]:
        """Scales and zero points that a conversion reads."""
        read = [self.values.get(name) for name in conversion.uses[1:]]
        return tuple([value for value in read if isinstance(value, TensorType)])

    def is_read_only_by(self, name: str, is_meant: Callable[[int], bool]) -> bool:
        readers = self.readers.get(name, ())
        return bool(readers) and name not in self.returned and all(map(is_meant, readers))

    def is_quantized(self, name: str) -> bool:
        def quantizes(place: int) -> bool:
            op, uses = self.calls[place].node.operator, self.calls[place].uses
            return op.name == "quantize" and name == uses[0] and name not in uses[1:]

        return self.is_read_only_by(name, quantizes)

    def is_taken(self, name: str) -> bool:
        """Whether all readers of a dequantized value read its quantized form instead."""
        islands = self.island_of
        return self.is_read_only_by(name, lambda place: place in islands and name in islands[place].taken)

    def dequantizes(self, place: int) -> bool:
        """Whether a call converts from few bits to floating point, possibly by a plain cast."""
        call, results = self.calls[place], self.outputs(place)
        op = call.node.operator
        is_candidate = op.name == "dequantize" or (op.kind == "cast" and not op.mutates)
        if not is_candidate or not call.uses or call.estimate.unknown:
            return False
        is_float = all(map(self.is_float, results)) and bool(results)
        return is_float and converts(op, self.values[call.uses[0]])

    def _find_twins(self, barred: set[str], *, has_layouts: bool) -> None:
        for place, call in enumerate(self.calls):
            x, names = call.uses[0] if call.uses else "", self.outputs(place)
            if self.dequantizes(place):
                whole, work = self.type_of(x), call.estimate.vector_flops
                each = next((n for n in range(QUANTIZE + 1) if whole.numel * n == work), DEQUANTIZE)
                twin = Twin(x, whole, call, x in self.stored, self.scales(call), each)
                self.twins.update((name, twin) for name in names)
            elif has_layouts and x in self.twins and barred.isdisjoint(names):
                estimate = self._laid_out(call, names)
                if estimate is None:
                    continue
                self.island_of[place] = Island(place, frozenset((x,)), estimate, is_layout=True)
                for name, value in zip(call.node.outputs, estimate.out, strict=False):
                    if name is not None and isinstance(value, TensorType):
                        self.twins[name] = self.twins[x]._replace(name=name, type=value)

    def _laid_out(self, call: PricedCall, names: Sequence[str]) -> Estimate | None:
        """A layout of a dequantized value, as one of the quantized value; a cast of it is that value itself."""
        twin, op = self.twins[call.uses[0]], call.node.operator
        if not names or not all(map(self.is_float, names)):
            return None
        if op.kind == "cast" and self.type_of(names[0]).dtype.bits >= _HALF:
            return free(twin.type)
        return self._at_twins(call, call.uses[:1]) if _lays_out(call) and not op.mutates else None

    def _at_twins(self, call: PricedCall, taken: Collection[str]) -> Estimate | None:
        """A call at the quantized types of some operands; None if its rule does not accept them."""
        types: dict[str, Value] = {name: self.twins[name].type for name in taken}
        priced = self.price_of(call.node, ChainMap(types, self.values), self.graph)
        return None if priced.state == "unknown" or priced.placeholders else priced.estimate

    def _island(self, place: int, call: PricedCall) -> Island | None:
        op, estimate = call.node.operator, call.estimate
        is_unfit = op.kind in _UNFIT or place in self.folded or self.dequantizes(place)
        if is_unfit or estimate.unknown or estimate.regions:
            return None
        if op.mutates:  # fused only if its operand was dequantized for it alone
            twin = self.twins.get(name := call.uses[0] if call.uses else "")
            is_alone = self.readers.get(name) == [place] and name not in self.returned
            if twin is None or name not in twin.by.node.outputs or not is_alone:
                return None
        floats = self.floats(call.uses)
        taken = [name for name in floats if name in self.twins]
        if op.name == "quantize":
            return self._requantized(place, call) if taken == list(call.uses[:1]) else None
        if not taken:
            return self._scaled_sums(place, call) if estimate.matrix_flops != 0 else None
        if estimate.matrix_flops != 0:
            bias = call.node.arguments().get("bias")
            factors = [name for name in floats if not (isinstance(bias, Ref) and bias.name == name)]
            twins = [self.twins[name] for name in factors if name in self.twins]
            types = [twin.type.dtype for twin in twins]  # that products may take without conversion
            is_narrow = all(x.bits <= _WIDEST and x.kind in ("int", "uint", "float") for x in types)
            if len(twins) == len(factors) and is_narrow:
                return self._integer_product(place, call, taken, twins)
            return self._of_weights(place, call, taken)
        if op.kind == "gather" and not all(map(self.is_quantized, self.outputs(place))):
            return self._of_weights(place, call, taken)
        return self._between(place, call, taken) if all(map(self._is_known, floats)) else None

    def _is_known(self, name: str) -> bool:
        """Whether a value has a quantized form, is a weight, or is one number."""
        return name in self.twins or name in self.stored or self.type_of(name).numel == 1

    def _requantized(self, place: int, call: PricedCall) -> Island:
        """A quantized value that is quantized again; it is the same value if scales and zero points are equal."""
        again, (out,) = self.twins[call.uses[0]], call.estimate.out
        whole = free(out)
        if _parameters(call) != _parameters(again.by):
            reads = (again.type, *again.scales, *self.scales(call))
            work = call.estimate.vector_flops + again.each * again.type.numel
            whole = Estimate((out,), vector_flops=work, reads=reads)
        return Island(place, frozenset(call.uses[:1]), whole)

    def _integer_product(
        self, place: int, call: PricedCall, taken: Sequence[str], factors: Sequence[Twin]
    ) -> Island | None:
        """A product of integers: zero points are subtracted from the factors, results are quantized or scaled."""
        estimate, end = self._at_twins(call, taken), self._end(place, is_product=True) or End()
        if estimate is None:
            return None
        zeroed = [twin for twin in factors if _parameters(twin.by)[1] not in (None, 0)]
        work = total(twin.type.numel for twin in zeroed) + self._dequantizing(end.taken)
        if not end.quantizers:
            work = work + TO_FLOAT * self.elements(place)
        # Integers, signed or not, are multiplied in the signed type of the most bits.
        dtypes = [twin.type.dtype for twin in factors]
        floats = [dtype for dtype in dtypes if dtype.is_floating]
        dtype = floats[0] if floats else DTYPES[f"int{max(dtype.bits for dtype in dtypes)}"]
        return self._whole(place, taken, end, replace(estimate, matrix_dtype=dtype), work)

    def _of_weights(self, place: int, call: PricedCall, taken: Sequence[str]) -> Island | None:
        """Float arithmetic with quantized weights: each weight is converted when it is read, and none is stored."""
        taken = [name for name in taken if self.twins[name].is_stored]
        estimate = self._at_twins(call, taken) if taken else None
        if estimate is None:
            return None
        end = self._end(place, is_product=True) or End()
        if not end.quantizers and any(self.twins[name].by.node.operator.kind == "cast" for name in taken):
            end = self._scaling(self.outputs(place)[0])
        work = self._dequantizing(taken)
        if call.node.operator.kind == "gather":
            work = self.elements(place) * sum(self.twins[name].each for name in taken)
        if call.estimate.matrix_flops != 0:
            others = [name for name in self.floats(call.uses) if name not in taken] or self.outputs(place)
            estimate = replace(estimate, matrix_dtype=self.type_of(others[0]).dtype)
        return self._whole(place, taken, end, estimate, work + self._dequantizing(end.taken))

    def _between(self, place: int, call: PricedCall, taken: Sequence[str]) -> Island | None:
        """Any other operator if all its float results are quantized."""
        end = self._end(place)
        estimate = None if end is None else self._at_twins(call, taken)
        if end is None or estimate is None or (estimate.alias and not call.in_place):
            return None
        conversions = [*(self.twins[name].by for name in taken), *map(self.calls.__getitem__, end.quantizers)]
        op, scaled = call.node.operator, [*map(_parameters, conversions)]
        moves = op.moves_elements or op.has("keeps_values") or op.kind == "gather"
        is_moved = moves and not end.absorbed and scaled.count(scaled[0]) == len(scaled)
        work = self._dequantizing([*taken, *end.taken])
        return self._whole(place, taken, end, estimate, None if is_moved else work)

    def _scaled_sums(self, place: int, call: PricedCall) -> Island | None:
        """A product of integers whose sums other calls convert to floating point and scale."""
        (name, *others) = self.outputs(place) or [""]
        value = self.values.get(name)
        if others or not isinstance(value, TensorType) or value.dtype not in _SUMS:
            return None
        end = self._scaling(name)
        return self._whole(place, (), end, call.estimate, 0) if self.is_float(end.name) else None

    def _followed(self, name: str, is_part: Callable[[int, str], bool]) -> tuple[str, tuple[int, ...]]:
        """The chain of calls after a value, each the only reader of the one before, and the value that the chain ends in."""
        parts: list[int] = []
        while len(readers := self.readers.get(name, [])) == 1 and name not in self.returned:
            results = self.outputs(readers[0])
            if len(results) != 1 or not is_part(readers[0], name):
                break
            parts.append(readers[0])
            (name,) = results
        return name, tuple(parts)

    def _scaling(self, name: str) -> End:
        """The calls after a product that convert and scale its results, each by one number or one number per channel."""

        def is_scale(name: str) -> bool:
            value = self.values.get(name)
            return not isinstance(value, TensorType) or sum(size != 1 for size in value.shape) < 2

        def is_part(place: int, name: str) -> bool:
            op, uses = self.calls[place].node.operator, self.calls[place].uses
            is_scaling = op.has("arithmetic") or op.kind in ("cast", "view")
            return is_scaling and all(is_scale(other) for other in uses if other != name)

        return End(*self._followed(name, is_part))

    def _end(self, place: int, *, is_product: bool = False) -> End | None:
        """What follows an operator up to the conversions of its float results; None if one stays float.

        is_product: any value may be added to its result.
        """
        made, beside = self.floats(self.outputs(place)), list[str]()
        if len(made) != 1:
            quantizers = tuple(reader for name in made for reader in self.readers.get(name, ()))
            return End(quantizers=quantizers) if all(map(self.is_quantized, made)) else None

        def is_part(place: int, name: str) -> bool:
            call, is_done = self.calls[place], self.is_quantized(name) or place in self.island_of
            is_elementwise = call.node.operator.kind in ("elementwise", "cast") or _lays_out(call)
            if is_done or not is_elementwise or call.estimate.unknown:
                return False
            others = self.floats(other for other in call.uses if other != name)
            beside.extend(others)
            return self.is_float(self.outputs(place)[0]) and (is_product or all(map(self._is_known, others)))

        name, absorbed = self._followed(made[0], is_part)
        taken = tuple(other for other in beside if other in self.twins)
        return End(name, absorbed, tuple(self.readers[name]), taken) if self.is_quantized(name) else None

    def _dequantizing(self, names: Iterable[str]) -> Dim:
        """Work of converting whole values to floating point."""
        return total(self.twins[name].each * self.twins[name].type.numel for name in names)

    def _whole(
        self, place: int, taken: Sequence[str], end: End, estimate: Estimate, work: Dim | None
    ) -> Island:
        """An island with what it absorbs. work: of converting operands; None if conversions change no number."""
        taken, node = [*taken, *end.taken], self.calls[place].node
        absorbed = [self.calls[other] for other in end.absorbed]
        parts = [call.estimate for call in absorbed]
        # What absorbed calls read beside the operator's result.
        inside = {name for part in (place, *end.absorbed) for name in self.outputs(part)}
        used = [name for call in absorbed if not is_free(call.estimate) for name in call.uses]
        beside = [name for name in used if name not in inside]
        values = [self.twins[name].type if name in end.taken else self.values[name] for name in beside]
        reads: list[TensorType | Dim] = [value for value in values if isinstance(value, TensorType)]
        if work is not None:
            share = self.elements(place) if node.operator.kind == "gather" else None
            # A gather reads only the scales of the gathered elements.
            for twin in map(self.twins.__getitem__, taken):
                numel = twin.type.numel
                for x in twin.scales:
                    reads.append(x if share is None or not x.rank else floor_div(x.nbytes * share, numel))
            for quantizer in map(self.calls.__getitem__, end.quantizers):
                parts.append(quantizer.estimate)
                reads += self.scales(quantizer)
        # By result that is not stored, what is stored instead.
        results, made = {}, self.outputs(place)
        for name in self.floats(made) or made:
            final = end.name if end.absorbed else name
            at = [other for other in end.quantizers if self.calls[other].uses[0] == final]
            stored = tuple(output for other in at for output in self.outputs(other))
            if stored or end.absorbed:
                results[name] = stored or (final,)
        outputs = [x for name in node.outputs for x in results.get(name or "", (name,))]
        out = tuple([None if name is None else self.values[name] for name in outputs])
        more = {"vector_flops": work or 0, "out": out, "writes": None, "alias": False}
        whole = estimate.plus(*parts, reads=tuple(reads), **more)
        return Island(place, frozenset(taken), whole, end.absorbed, end.quantizers, results)


def _parameters(conversion: PricedCall) -> tuple[object, ...]:
    """Scale and zero point of a conversion: names of values, or numbers."""
    arguments = conversion.node.arguments()
    return arguments.get("scale"), arguments.get("zero_point")


def _lays_out(call: PricedCall) -> bool:
    """Whether a call changes no number: a view, a copy, a dropout in evaluation."""
    is_layout = call.node.operator.kind in ("view", "identity") or is_free(call.estimate)
    return is_layout and not call.estimate.unknown
