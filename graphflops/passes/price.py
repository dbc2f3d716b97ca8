"""Prices a bound program: applies a rule to each call in program order, and fixes the types of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphflops.base.limits import LimitPassed, spend
from graphflops.base.record import Record, field, replace
from graphflops.cost import Estimate, RegionRun, Value
from graphflops.dims import Dim, at_least
from graphflops.errors import ModelError, NoRuleError, RuleError, ShapeError, shown
from graphflops.graph import Graph, Node, Phase, Ref
from graphflops.passes.bind import Binding
from graphflops.passes.gradients import add_recomputation, pass_on, reached, without_gradient
from graphflops.passes.price_call import Priced, converts, key_of, matrix_dtype, price_call, unknown_call
from graphflops.passes.program import Names, Notes, PricedCall, PricedGraph, PricedProgram, summed
from graphflops.passes.reconcile import Reconciler, place_of
from graphflops.report import Named, RegionUse, Row, scaled
from graphflops.rules.registry import find
from graphflops.tensor import TensorType, UnknownType, flat, with_sizes
from graphflops.training import Training

Progress = Callable[[int, int], None]
# Finds the fact of a call in a graph, given its arguments as the rule sees them; None for most calls.
FindFact = Callable[[Graph, Node, "tuple[Any, ...]"], "Fact | None"]

# Keywords that place a tensor or seed it but change neither its type nor the work.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
_PROGRESS_EVERY = 256


class Fact(Record, frozen=True):
    """Something that a rule needs to know of a call beyond its operands; it is passed to the rule as a keyword argument."""

    keyword: str
    value: Any  # None if nothing is known
    problem: str = ""  # why it is not known, or only a bound


def price(
    graph: Graph, binding: Binding, facts: Callable[[Graph], FindFact] = lambda _: lambda *_: None, *,
    training: Training | None = None, progress: Progress | None = None, fused: bool = False,
) -> PricedProgram:  # fmt: skip
    """The program with the cost of every call, nested graphs included.

    facts: by graph, what finds the facts of calls.
    fused: whether conversions from and to few bits are parts of neighbouring calls; not in training.
    Raises ModelError if the given sizes contradict the program.
    """
    pricer = Pricer(graph, binding, training is not None, facts(graph), progress, fuses=fused)
    operands = {entry.name: binding.value(graph, entry.name) for entry in graph.inputs}
    if training is None:  # nothing wants a gradient
        operands = {name: without_gradient(value) for name, value in operands.items()}
    main = pricer.run(graph, tuple(operands.values()), {})
    for _, never_used in binding.awaited.values():
        raise ModelError(never_used)
    for node, problem in pricer.types.claims.unasserted():
        pricer.types.say("GF127", node, problem)
    types, names, notes = pricer.types, pricer.names, pricer.notes
    found = main, frozenset(pricer.operators), pricer.found_facts, types.equalities, names, notes
    sources = () if types.fallback is None else tuple(types.fallback.diagnostics())
    return PricedProgram(graph, binding, training, operands, *found, type_sources=sources, fused=pricer.parts)


class _Region(Record, frozen=True, eq=False, dict=True):
    """A nested graph with the outer values that it uses, priced once for each kind of operands."""

    graph: Graph
    pricer: Pricer
    around: Mapping[str, Value]
    runs: dict[tuple[Any, ...], PricedGraph] = field(default_factory=dict)

    @property
    def declared(self) -> tuple[Value, ...]:
        stated = self.graph.types if self.graph.declared is None else self.graph.declared
        given = [stated.get(entry.name) for entry in self.graph.inputs if entry.role != "constant"]
        return tuple(with_sizes(typed, self.pricer.binding.bound) for typed in given)

    def __call__(self, *operands: Value, gradients: bool = True, autocast: bool = False) -> RegionRun:
        if not gradients:
            operands = tuple(without_gradient(operand) for operand in operands)
        key = (autocast, *map(key_of, operands))
        if key not in self.runs:
            self.runs[key] = self.pricer.run(self.graph, operands, self.around, autocast=autocast)
        return self.runs[key]


class Pricer:
    """Prices the graphs of one program; equal calls are priced once."""

    def __init__(
        self, graph: Graph, binding: Binding, training: bool, facts: FindFact,
        progress: Progress | None = None, *, fuses: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.binding, self.training, self.facts = graph, binding, training, facts
        self.progress, self.fuses = progress, fuses and not training
        # Whether any call is a conversion, and how many calls became parts of others.
        self.converts, self.parts = False, 0
        self.found_facts: dict[Node, Any] = {}  # what rules got beyond the operands of calls
        self.notes = Notes()
        self.names = Names(graph.symbols.keys(), self.notes)
        self.types = Reconciler(graph, binding, self.names, self.notes)
        self.operators: set[str] = set()  # spellings of all that were priced
        self.priced: dict[tuple[Any, ...], Priced] = {}
        self.forms: dict[tuple[Any, ...], int] = {}  # of calls that say where their results are placed
        self.regions: dict[tuple[Any, ...], _Region] = {}

    def run(
        self, graph: Graph, operands: Sequence[Value], around: Mapping[str, Value], *, autocast: bool = False
    ) -> PricedGraph:
        """Price one graph, nested or not, from the values of its inputs and the outer values that it uses."""
        values, top = self._inputs(graph, operands, around), graph is self.graph
        stuck, said = "", len(self.notes.found)
        rows, calls = list[Row](), list[PricedCall]()
        phases = graph.phases if top else {}
        spend("calls", len(graph.nodes))
        spend("rows", len(graph.nodes))
        for done, (node, uses) in enumerate(zip(graph.nodes, graph.operands, strict=True)):
            if top and self.progress and done % _PROGRESS_EVERY == 0:
                self.progress(done, len(graph.nodes))
            priced = self.price_of(node, values, graph, stated=True)
            if priced.placeholders:
                priced = self.types.numbered(node, priced, values, graph)
            self.types.reconcile(node, priced, values, graph, autocast)
            if node.operator.writes_operands:
                values.update(_reshaped(node, priced.estimate, calls, values, graph, is_nested=not top))
            calls.append(self._call(node, uses, priced, len(rows)))
            rows.append(_row(node, uses, priced, values, phases.get(node.name, "forward")))
            if priced.estimate.regions:
                rows.extend(_nested_rows(priced.estimate.regions, rows[-1]))
            stuck = self._why_stuck(node, priced) or stuck
            if self.training:
                pass_on(calls, values)
        self._settle(graph, calls, rows, values)
        out = tuple(flat(self._resolved(output.value, values) for output in graph.outputs))
        cost = summed([row.cost for row in rows], self.names)
        backward = summed([row.backward for row in rows if row.backward is not None], self.names)
        later = [*self.notes.found][said:] if stuck and not top and self.types.derives else []
        held = {key: self.notes.found.pop(key) for key in later}
        return PricedGraph(graph, out, cost, backward, tuple(rows), tuple(calls), values, stuck, held)

    def _why_stuck(self, node: Node, priced: Priced) -> str:
        """The call that cannot run, this one or the first in a graph that it runs, and why; "" if all can run."""
        for run, times in priced.estimate.regions:
            self.notes.found.update(run.held if times and isinstance(run, PricedGraph) else {})
        if priced.code == "GF118":
            return f"{place_of(node)}: {priced.estimate.unknown}"
        return next((run.stuck for run, times in priced.estimate.regions if at_least(times, 1)), "")

    def _settle(
        self, graph: Graph, calls: list[PricedCall], rows: list[Row], values: dict[str, Value]
    ) -> None:
        """Drop gradients that no step computes, add recomputed work, fuse conversions from and to few bits."""
        if self.training:
            # Calls that do not lead to a result have no gradients, nor have graphs nested in them.
            computed = reached(calls, values, graph.seeds)
            ends = [*(call.row for call in calls), len(rows)][1:]
            for index, (call, end) in enumerate(zip(calls, ends, strict=True)):
                if index not in computed:
                    calls[index] = replace(call, gradient=None)
                    rows[call.row : end] = [row._replace(backward=None) for row in rows[call.row : end]]
        if self.training and graph.recomputed:
            add_recomputation(calls, rows, graph.recomputed)
        if not (self.fuses and self.converts):
            return
        from graphflops.passes.quantized import fuse
        from graphflops.passes.quantized_islands import Islands

        stored = {entry.name for entry in self.graph.inputs if entry.role != "user"}
        stored |= {entry.name for entry in graph.inputs if entry.role == "constant"}
        self.parts += fuse(Islands(graph, calls, values, stored, self.price_of), rows)

    def _inputs(
        self, graph: Graph, operands: Sequence[Value], around: Mapping[str, Value]
    ) -> dict[str, Value]:
        top = graph is self.graph
        given = graph.inputs if top else [entry for entry in graph.inputs if entry.role != "constant"]
        if len(operands) != len(given):
            raise ShapeError(f"graph {shown(graph.name)} takes {len(given)} operands, got {len(operands)}")
        declared = {} if top else graph.declared or {}
        for entry, operand in zip(given, operands, strict=True):
            wanted = getattr(declared.get(entry.name), "dtype", None)
            if isinstance(operand, TensorType) and wanted not in (None, operand.dtype):
                what = f"{shown(entry.name)} of the graph {shown(graph.name)}"
                raise ShapeError(f"{what} is {wanted}, but gets {operand.dtype}")
            self.types.compare_input(graph, entry.name, operand)
        values = {entry.name: self.binding.value(graph, entry.name) for entry in graph.inputs}
        values.update(around)
        values.update((entry.name, operand) for entry, operand in zip(given, operands, strict=True))
        self.types.begin(graph, values)
        return values

    def price_of(
        self, node: Node, values: Mapping[str, Value], graph: Graph, *, stated: bool = False
    ) -> Priced:
        """Price a call, or reuse the price of an equal one. stated: check that the file's element types go together."""
        args = self._resolved(node.args, values)
        dropped = () if self.types.derives else _PLACEMENT
        kept = [entry for entry in node.kwargs if entry[0] not in dropped]
        kwargs = tuple([(key, self._resolved(value, values)) for key, value in kept])
        if (fact := self.facts(graph, node, args)) is not None:
            if fact.problem:
                self.types.say("GF117", node, fact.problem)
            if fact.value is not None:
                self.found_facts[node] = fact.value
                kwargs = (*kwargs, (fact.keyword, self.binding.bound(fact.value)))
        outputs = tuple([name is not None for name in node.outputs])
        key = (node.op, key_of(args), key_of(kwargs), outputs, stated)
        if key not in self.priced:
            self.converts |= converts(node.operator, args[0] if args else None)
            sparse = any(isinstance(x, TensorType) and x.nonzeros is not None for x in flat((args, kwargs)))
            spelling = f"sparse.{node.op}" if sparse else node.op
            self.operators.add(spelling)
            if (rule := find(spelling)) is None:
                asked = unknown_call("GF101", str(NoRuleError(node.op + " on sparse tensors" * sparse)))
            else:
                wanted = outputs if self.types.derives else None
                options: dict[str, Any] = {"wanted": wanted, "training": self.training, "stated": stated}
                try:
                    asked = price_call(rule, node.op, args, kwargs, outputs=outputs, **options)
                except LimitPassed as passed:
                    passed.at(place_of(node))
                    raise
            self.priced[key] = replace(asked, form=len(self.priced))
        return self.priced[key]

    def _call(self, node: Node, uses: tuple[str, ...], priced: Priced, row: int) -> PricedCall:
        """The priced call; calls of one price that place their results differently have different forms."""
        form = priced.form
        placement = tuple([entry for entry in node.kwargs if entry[0] in _PLACEMENT]) if node.kwargs else ()
        if form is not None and placement:
            form = self.forms.setdefault((form, placement), -1 - len(self.forms))
        return PricedCall(node, uses, priced.estimate, priced.gradient, row, form)

    def _resolved(self, argument: Any, values: Mapping[str, Value]) -> Any:
        kind = type(argument)
        if kind is Ref:
            return values[argument.name]
        if kind is tuple:
            return tuple([values[x.name] if type(x) is Ref else self._resolved(x, values) for x in argument])
        if kind is Graph:
            around = {name: values[name] for name in argument.captures}
            key = (argument, *around.values())
            if key not in self.regions:
                self.regions[key] = _Region(argument, self, around)
            return self.regions[key]
        return argument


def _row(node: Node, uses: Sequence[str], priced: Priced, values: Mapping[str, Value], phase: Phase) -> Row:
    regions = priced.estimate.regions
    return Row(
        *(node.name, node.op, node.module, node.module_type, node.source, priced.state),
        cost=priced.cost,
        backward=priced.gradient_cost,
        inputs=_tensors(uses, values),
        outputs=_tensors([name for name in node.outputs if name is not None], values),
        matrix_dtype=matrix_dtype(priced.estimate),
        phase=phase,
        regions=tuple([RegionUse(run.name, times, run.cost) for run, times in regions]) if regions else (),
    )


def _tensors(uses: Sequence[str], values: Mapping[str, Value]) -> tuple[Named, ...]:
    return tuple([Named(name, value) for name in uses if isinstance(value := values[name], TensorType)])


def _nested_rows(regions: Sequence[tuple[RegionRun, Dim]], call: Row) -> Iterator[Row]:
    """Rows of the graphs that run inside a call, multiplied by their number of runs."""
    for run, times in regions:
        if not isinstance(run, PricedGraph):
            continue
        spend("rows", len(run.rows))
        spend("characters of names", len(call.node) * len(run.rows))
        for row in run.rows:
            inner = scaled(row, times, call.node)
            if not inner.module:
                inner = inner._replace(module=call.module, module_type=call.module_type)
            yield inner._replace(source=inner.source or call.source, phase=call.phase)


# Calls that change the shape of a tensor in place, and so the type of all its names.

Links = list[tuple[str, str]]


def _reshaped(
    node: Node, estimate: Estimate, calls: Sequence[PricedCall], values: Mapping[str, Value], graph: Graph,
    *, is_nested: bool,
) -> dict[str, Value]:  # fmt: skip
    """New types of tensors whose shape a call changes; unknown for names that may or may not be the same object.

    calls: the earlier calls. Raises RuleError if a nested graph changes an outer tensor, which is not followed.
    """
    found: dict[str, Value] = {}
    for name, after in _written(node, estimate):
        before = values[name]
        if not isinstance(after, TensorType) or not isinstance(before, TensorType):
            continue
        if after.shape == before.shape:
            continue
        certain, possible = _links(calls, values, graph)
        perhaps = _reached(name, certain + possible)
        outside = perhaps & {entry.name for entry in graph.inputs} if is_nested else ()
        if outside:
            what = f"changes the shape of {shown(min(outside))}, which other graphs use"
            raise RuleError(f"{shown(node.name)} {what}")
        found.update(dict.fromkeys(perhaps, UnknownType(before.dtype)))
        found.update(dict.fromkeys(_reached(name, certain), after.like(dtype=before.dtype)))
    return {name: value for name, value in found.items() if name in values}


def _written(node: Node, estimate: Estimate) -> Iterator[tuple[str, Value]]:
    """The tensors that a call writes, each with its type afterwards: the first operand, or those given as `out`."""
    if node.operator.mutates:
        yield from zip(node.reads()[:1], estimate.out, strict=False)
    elif "out" in node.operator.variant:
        given = [value.name for _, value in node.kwargs if isinstance(value, Ref)]
        yield from zip(given[-len(estimate.out) :], estimate.out, strict=False)


def _links(calls: Sequence[PricedCall], values: Mapping[str, Value], graph: Graph) -> tuple[Links, Links]:
    """Pairs of names that are one tensor, and pairs that may be one; copies and computed results are new tensors."""
    certain: Links = []
    possible: Links = []
    for call in calls:
        results = [name for name in call.node.outputs if name is not None]
        written = [name for name, _ in _written(call.node, call.estimate)]
        certain += zip(results, written, strict=False)
        op, work = call.node.operator, call.estimate.cost
        copies = "copy" in op.word or "clone" in op.word or op.kind == "creation"
        makes = copies or bool(work.matrix_flops or work.vector_flops or work.transcendentals)
        if not written and (call.estimate.regions or op.shares_memory or not makes):
            pairs = [(result, name) for result in results for name in call.uses]
            possible += [pair for pair in pairs if _alike(*map(values.get, pair))]
    targets = {entry.target: entry.name for entry in graph.inputs if entry.target}
    shared = [(entry.name, entry.alias_of) for entry in graph.inputs if entry.alias_of]
    return certain, possible + [(name, targets[target]) for name, target in shared if target in targets]


def _alike(one: Value, other: Value) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return isinstance(one, UnknownType) or isinstance(other, UnknownType)
    return one.shape == other.shape and one.dtype is other.dtype


def _reached(name: str, links: Links) -> set[str]:
    import networkx

    graph = networkx.Graph(links)
    return {name, *networkx.node_connected_component(graph, name)} if name in graph else {name}
