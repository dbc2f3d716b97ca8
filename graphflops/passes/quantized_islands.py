"""Finds the calls that runtimes fuse with conversions from and to few bits: islands, and what each costs as one call."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim, total
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.price_call import Priced, is_free
from graphflops.passes.program import PricedCall
from graphflops.passes.quantized_values import (
    TO_FLOAT,
    Twin,
    Uses,
    is_narrow,
    parameters,
    scales,
)
from graphflops.tensor import DTYPES, INT32, INT64, TensorType

PriceOf = Callable[[Node, Mapping[str, Value], Graph], Priced]

_HALF = 16  # bits of the narrowest floating-point type that layers compute in
_SUMS = (INT32, INT64)  # types in which products of integers are summed
_TURNS = 8  # of looking for layouts of quantized values
_UNFIT = ("control", "collective", "optimizer", "random", "creation", "size", "sequence")


class End(NamedTuple):
    """What follows an operator: elementwise calls and layouts, then the calls that quantize its result, called `name`."""

    name: str = ""
    absorbed: tuple[int, ...] = ()
    quantizers: tuple[int, ...] = ()
    taken: tuple[str, ...] = ()  # quantized operands of these calls


class Island(Record, frozen=True):
    """Calls that run as one, by their places."""

    place: int  # of the call that gives its name
    taken: frozenset[str]  # operands that are read in their quantized form
    absorbed: tuple[int, ...]  # calls after it, as the quantizers
    quantizers: tuple[int, ...]
    results: Mapping[str, tuple[str, ...]]  # by result of the first that is not stored: what is instead
    estimate: Estimate  # of the whole


class Islands(Uses):
    """The islands of one graph."""

    def __init__(
        self,
        graph: Graph,
        calls: Sequence[PricedCall],
        values: dict[str, Value],
        stored: Collection[str],
        price_of: PriceOf,
    ) -> None:
        super().__init__(graph, calls, values, stored)
        self.price_of = price_of
        self.twins: dict[str, Twin] = {}  # the quantized form of values
        self.layouts: dict[int, Estimate] = {}  # by call, of a quantized value in place of a dequantized one
        self.islands: dict[int, Island] = {}  # by the call that gives its name
        self.island_of: dict[int, Island] = {}
        # finds the islands, and those layouts of quantized values that nothing else reads
        barred: set[str] = set()
        for turn in range(_TURNS):
            self._find_twins(barred, has_layouts=turn < _TURNS - 1)
            self.islands.clear()
            self.island_of.clear()
            for place, call in enumerate(self.calls):
                if place in self.island_of or place in self.layouts or place in self.folded:
                    continue
                island = self._island(place, call)
                if island is not None:
                    self.islands[place] = island
                    parts = (place, *island.absorbed, *island.quantizers)
                    self.island_of.update(dict.fromkeys(parts, island))
            lost = [name for place in self.layouts for name in self.outputs(place) if not self.is_taken(name)]
            if not lost:
                return
            barred.update(lost)

    def is_taken(self, name: str) -> bool:
        """Whether all that read a dequantized value read its quantized form instead."""

        def takes(place: int) -> bool:
            if place in self.layouts:
                return self.calls[place].uses[0] == name
            return place in self.island_of and name in self.island_of[place].taken

        return self.is_read_only_by(name, takes)

    # Values that have a quantized form

    def _find_twins(self, barred: set[str], *, has_layouts: bool) -> None:
        self.twins.clear()
        self.layouts.clear()
        for place, call in enumerate(self.calls):
            x, names = call.uses[0] if call.uses else "", self.outputs(place)
            if self.dequantizes(place):
                twin = Twin(x, self.type_of(x), call, x in self.stored)
                self.twins.update((name, twin) for name in names)
            elif has_layouts and x in self.twins and barred.isdisjoint(names):
                estimate = self._laid_out(call, names)
                if estimate is None:
                    continue
                self.layouts[place] = estimate
                for name, value in zip(call.node.outputs, estimate.out, strict=False):
                    if name is not None and isinstance(value, TensorType):
                        self.twins[name] = self.twins[x]._replace(name=name, type=value)

    def _laid_out(self, call: PricedCall, names: Sequence[str]) -> Estimate | None:
        """A layout of a dequantized value as one of the quantized value, a cast of it as that value itself."""
        twin, op = self.twins[call.uses[0]], call.node.operator
        if not names or not all(map(self.is_float, names)):
            return None
        if op.kind == "cast" and self.type_of(names[0]).dtype.bits >= _HALF:
            return free(twin.type)
        is_layout = self._lays_out(call) and not op.mutates
        priced = self._at_twins(call, call.uses[:1]) if is_layout else None
        return None if priced is None else priced.estimate

    def _at_twins(self, call: PricedCall, taken: Collection[str]) -> Priced | None:
        """The price of a call at the quantized types of some operands; None where its rule does not take these."""
        types: dict[str, Value] = {name: self.twins[name].type for name in taken}
        priced = self.price_of(call.node, ChainMap(types, self.values), self.graph)
        return None if priced.state == "unknown" or priced.placeholders else priced

    # Islands

    def _island(self, place: int, call: PricedCall) -> Island | None:
        op, estimate = call.node.operator, call.estimate
        if op.kind in _UNFIT or self.dequantizes(place) or estimate.unknown or estimate.regions:
            return None
        if op.mutates:  # fused where what it writes in place was dequantized for it alone
            name = call.uses[0] if call.uses else ""
            twin = self.twins.get(name)
            if twin is None or name not in twin.by.node.outputs or self.only_reader(name) is None:
                return None
        floats = self.floats(call.uses)
        taken = [name for name in floats if name in self.twins]
        if op.name == "quantize":
            if taken != list(call.uses[:1]):
                return None
            # A quantized value that is quantized again: the same value where the scales are equal.
            again, (out,) = self.twins[taken[0]], call.estimate.out
            whole = free(out)
            if parameters(call) != parameters(again.by):
                reads = (again.type, *scales(again.by, self.values), *scales(call, self.values))
                work = call.estimate.vector_flops + again.dequantizing(self.values)
                whole = Estimate((out,), vector_flops=work, reads=reads)
            return Island(place, frozenset(taken), (), (), {}, whole)
        if not taken:
            return self._scaled_sums(place, call) if estimate.matrix_flops != 0 else None
        if estimate.matrix_flops != 0:
            bias = call.node.arguments().get("bias")
            factors = [name for name in floats if not (isinstance(bias, Ref) and bias.name == name)]
            if all(name in self.twins and is_narrow(self.twins[name].type.dtype) for name in factors):
                return self._integer_product(place, call, taken, factors)
            return self._of_weights(place, call, taken)
        if op.kind == "gather" and not all(map(self.is_quantized, self.outputs(place))):
            return self._of_weights(place, call, taken)
        if all(name in self.twins or self.is_number(name) for name in floats):
            return self._between(place, call, taken)
        return None

    def _integer_product(
        self, place: int, call: PricedCall, taken: Sequence[str], factors: Sequence[str]
    ) -> Island | None:
        """Integers are multiplied; zero points are taken off the factors, results are quantized or scaled."""
        priced = self._at_twins(call, taken)
        if priced is None:
            return None
        end = self._end_of_product(place)
        work = total(self.twins[name].zeroed for name in factors) + self._dequantizing(end.taken)
        if not end.quantizers:
            work = work + TO_FLOAT * self.elements(place)
        # The type of products of integers, signed or not, is the signed one of the most bits.
        dtypes = [self.twins[name].type.dtype for name in factors]
        floats = [dtype for dtype in dtypes if dtype.is_floating]
        dtype = floats[0] if floats else DTYPES[f"int{max(dtype.bits for dtype in dtypes)}"]
        return self._whole(place, taken, end, replace(priced.estimate, matrix_dtype=dtype), work)

    def _of_weights(self, place: int, call: PricedCall, taken: Sequence[str]) -> Island | None:
        """Quantized weights in arithmetic of floating point: each that is read is converted, and none stored."""
        taken = [name for name in taken if self.twins[name].is_stored]
        priced = self._at_twins(call, taken) if taken else None
        if priced is None:
            return None
        end = self._end_of_product(place)
        if not end.quantizers and any(self.twins[name].by.node.operator.kind == "cast" for name in taken):
            end = self._scaling(self.outputs(place)[0])
        read = self.elements(place) if call.node.operator.kind == "gather" else None
        work = total(self.twins[name].dequantizing(self.values, read) for name in taken)
        estimate = priced.estimate
        if call.estimate.matrix_flops != 0:
            others = [name for name in self.floats(call.uses) if name not in taken] or self.outputs(place)
            estimate = replace(estimate, matrix_dtype=self.type_of(others[0]).dtype)
        return self._whole(place, taken, end, estimate, work + self._dequantizing(end.taken))

    def _between(self, place: int, call: PricedCall, taken: Sequence[str]) -> Island | None:
        """Another operator, where all of its results in floating point are quantized."""
        made = self.floats(self.outputs(place))
        if len(made) == 1:
            end = self._end(made[0])
        else:
            are_quantized = all(map(self.is_quantized, made))
            quantizers = tuple(reader for name in made for reader in self.readers.get(name, ()))
            end = End(quantizers=quantizers) if are_quantized else None
        priced = None if end is None else self._at_twins(call, taken)
        if end is None or priced is None or (priced.estimate.alias and not call.in_place):
            return None
        scaled = [parameters(self.twins[name].by) for name in taken]
        scaled += [parameters(self.calls[quantizer]) for quantizer in end.quantizers]
        op = call.node.operator
        moves = op.moves_elements or op.has("keeps_values") or op.kind == "gather"
        is_moved = moves and not end.absorbed and scaled.count(scaled[0]) == len(scaled)
        work = self._dequantizing([*taken, *end.taken])
        return self._whole(place, taken, end, priced.estimate, None if is_moved else work)

    def _scaled_sums(self, place: int, call: PricedCall) -> Island | None:
        """A product of integers whose sums are converted to floating point and scaled by further calls."""
        (name, *others) = self.outputs(place) or [""]
        value = self.values.get(name)
        if others or not isinstance(value, TensorType) or value.dtype not in _SUMS:
            return None
        end = self._scaling(name)
        return self._whole(place, (), end, call.estimate, 0) if self.is_float(end.name) else None

    def _scaling(self, name: str) -> End:
        """The calls after a product that convert and scale its results, each with one number or one for a channel."""
        absorbed: list[int] = []
        while (user := self.only_reader(name)) is not None:
            op, results = self.calls[user].node.operator, self.outputs(user)
            if not (op.has("arithmetic") or op.kind in ("cast", "view")) or len(results) != 1:
                break
            if not all(self.is_scale(other) for other in self.calls[user].uses if other != name):
                break
            absorbed.append(user)
            (name,) = results
        return End(name, tuple(absorbed))

    def _end_of_product(self, place: int) -> End:
        """The same of a product, which may add any value to its result, and whose result may stay float."""
        results = self.outputs(place)
        return (self._end(results[0], is_product=True) if len(results) == 1 else None) or End()

    def _end(self, name: str, *, is_product: bool = False) -> End | None:
        """What follows an operator up to the conversions of its result; None where that stays floating point."""
        absorbed: list[int] = []
        taken: list[str] = []
        while not self.is_quantized(name):
            place = self.only_reader(name)
            if place is None or place in self.island_of:
                return None
            call, results = self.calls[place], self.outputs(place)
            passes = call.node.operator.kind in ("elementwise", "cast") or self._lays_out(call)
            if not passes or call.estimate.unknown or len(results) != 1 or not self.is_float(results[0]):
                return None
            others = self.floats(other for other in call.uses if other != name)
            if not is_product and not all(other in self.twins or self.is_number(other) for other in others):
                return None
            taken += [other for other in others if other in self.twins]
            absorbed.append(place)
            (name,) = results
        return End(name, tuple(absorbed), tuple(self.readers[name]), tuple(taken))

    def _lays_out(self, call: PricedCall) -> bool:
        """Whether a call changes no number: a view, a copy, a dropout that does nothing."""
        is_layout = call.node.operator.kind in ("view", "identity") or is_free(call.estimate)
        return is_layout and not call.estimate.unknown

    # Work and traffic

    def _dequantizing(self, names: Iterable[str]) -> Dim:
        """Work of converting whole values to floating point."""
        return total(self.twins[name].dequantizing(self.values) for name in names)

    def _whole(
        self, place: int, taken: Sequence[str], end: End, estimate: Estimate, work: Dim | None
    ) -> Island:
        """The island with what it absorbs. work: of converting operands; None where conversions change no number."""
        taken = [*taken, *end.taken]
        parts = [self.calls[other].estimate for other in end.absorbed]
        # What absorbed calls read beside the result of the operator.
        inside = {name for part in (place, *end.absorbed) for name in self.outputs(part)}
        computed = [self.calls[part] for part in end.absorbed if not is_free(self.calls[part].estimate)]
        names = [name for call in computed for name in call.uses if name not in inside]
        values = [self.twins[name].type if name in end.taken else self.values[name] for name in names]
        reads = [*estimate.reads, *(value for value in values if isinstance(value, TensorType))]
        if work is not None:
            parts += [self.calls[quantizer].estimate for quantizer in end.quantizers]
            gathered = self.elements(place) if self.calls[place].node.operator.kind == "gather" else None
            for name in taken:
                reads += self.twins[name].scales(self.values, gathered)
            for quantizer in end.quantizers:
                reads += scales(self.calls[quantizer], self.values)
        results = self._results(place, end)
        outputs = self.calls[place].node.outputs
        stored = [made for name in outputs for made in results.get(name or "", (name,))]
        whole = replace(
            estimate,
            out=tuple([None if name is None else self.values[name] for name in stored]),
            vector_flops=estimate.vector_flops + (work or 0) + total(part.vector_flops for part in parts),
            transcendentals=estimate.transcendentals + total(part.transcendentals for part in parts),
            reads=tuple(reads),
            writes=None,
            alias=False,
        )
        return Island(place, frozenset(taken), end.absorbed, end.quantizers, results, whole)

    def _results(self, place: int, end: End) -> dict[str, tuple[str, ...]]:
        """By result that is not stored: what is stored in its place."""
        found, made = {}, self.outputs(place)
        for name in self.floats(made) or made:
            final = end.name if end.absorbed else name
            at = [other for other in end.quantizers if self.calls[other].uses[0] == final]
            stored = tuple(output for other in at for output in self.outputs(other))
            if stored or end.absorbed:
                found[name] = stored or (final,)
        return found
