"""The loop: asks a rule about each call of a graph, has the types of its results settled, adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphflops.backward import adamw, reached
from graphflops.binding import Binding, bind
from graphflops.calls import (
    Call,
    Priced,
    flat,
    key_of,
    matrix_dtype,
    unknown_call,
    wants,
    without_gradient,
)
from graphflops.cost import QUANTITIES, Cost, RegionRun, Value
from graphflops.derive import merged, renamed
from graphflops.diagnostics import diagnostic
from graphflops.errors import DimError, ModelError, NoRuleError, ShapeError, shown
from graphflops.graph import Graph, Node, Ref
from graphflops.memory import Event, Peak, SizesKnown, memory_of, owners
from graphflops.ops import operator
from graphflops.report import Coverage, Named, RegionUse, Report, Row, Timeline, Totals, scaled
from graphflops.rules.registry import Rule, find
from graphflops.settle import Settling
from graphflops.tensor import TensorType
from graphflops.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from graphflops.attention.flex import FlexAttentions
    from graphflops.attention.group import AttentionUse
    from graphflops.attention.stated import Stated
    from graphflops.dims import Dim
    from graphflops.rules.flex import Seen

# Keywords that place a tensor or seed it but change neither its type nor the work.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
_PROGRESS_EVERY = 256


def analyze(
    model: object,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    masks: Mapping[str, str] | None = None,
    training: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """What a model costs.

    model: path of a `.pt2` or `.onnx` file, a `Graph`, or a `torch.export.ExportedProgram`.
    model_name: which program of an archive that holds several.
    dims: sizes by symbol (`s27`), or by input axis (`ids[1]`).
    inputs: whole shapes by input name; a static program is propagated again from them.
    masks: by input name, what a mask that the caller passes in lets through: `causal`, `window:1024`, `prefix:128` or
        `density:0.3`; the last query is at the place of the last key.
    training: price the backward of every call and an AdamW step too.
    progress: called now and then with (calls done, calls in all).

    Raises FileError for what cannot be read, ModelError where sizes given contradict the program.
    """
    graph = as_graph(model, model_name)
    binding = bind(graph, dims or {}, inputs or {})
    stated = _stated(masks, graph)
    analysis = _Analysis(graph, binding, training, progress, stated)
    report: Report | None = None
    if graph.declared is not None and binding.given and graph.symbols.keys() - binding.given.keys():
        probe = _Analysis(
            graph, bind(graph, {}, {}), False, None
        )  # of two sizes that are equal one may be given
        probe.report()
        met = probe.types.met
    else:
        report, met = analysis.report(), analysis.types.met
    whole, found = merged(graph, met, binding.given)
    if not found:
        return report or analysis.report()
    analysis = _Analysis(
        whole, bind(whole, renamed(dims or {}, found, graph), inputs or {}), training, progress, stated
    )
    equal = ", ".join(f"{shown(name)} = {size}" for name, size in found.items())
    text = f"sizes meet where only equal ones can, from which follows {equal}"
    analysis.binding.diagnostics.append(diagnostic("GF112", "", text))
    return analysis.report()


def as_graph(model: object, model_name: str | None = None) -> Graph:
    """The graph of whatever `analyze` accepts."""
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        from graphflops.exporters import load

        return load(model, model_name)
    if hasattr(model, "graph_module") and hasattr(model, "graph_signature"):
        from graphflops.exporters.live import from_exported_program

        return from_exported_program(model)
    raise ModelError(f"cannot analyze a {type(model).__name__}: give a path, an ExportedProgram or a Graph")


@dataclass(frozen=True, slots=True)
class _Run:
    """One analysed graph at given operand types; as a `RegionRun` it is what rules of control flow see."""

    name: str
    out: tuple[Value, ...]
    cost: Cost
    backward: Cost
    rows: tuple[Row, ...]
    forward_peak: Peak
    training_peak: Peak
    memory: Timeline


@dataclass(frozen=True, eq=False)
class _Region:
    """A nested graph bound to the analysis it is part of, and to the values around it that it uses."""

    graph: Graph
    analysis: _Analysis
    around: Mapping[str, Value]
    runs: dict[tuple[Any, ...], _Run] = field(default_factory=dict)

    @property
    def declared(self) -> tuple[Value, ...]:
        given = [entry for entry in self.graph.inputs if entry.role != "constant"]
        return tuple(self.analysis.binding.value(self.graph, entry.name) for entry in given)

    def __call__(self, *operands: Value, gradients: bool = True, autocast: bool = False) -> RegionRun:
        if not gradients:
            operands = tuple(without_gradient(operand) for operand in operands)
        key = (autocast, *map(key_of, operands))
        if key not in self.runs:
            self.runs[key] = self.analysis.run(self.graph, operands, self.around, autocast=autocast)
        return self.runs[key]


class _Analysis:
    """One walk over one program; holds what is shared by the program and the graphs nested in it."""

    def __init__(
        self,
        graph: Graph,
        binding: Binding,
        training: bool,
        progress: Callable[[int, int], None] | None,
        masks: Mapping[str, Stated] | None = None,
    ) -> None:
        self.graph = graph
        self.masks = masks or {}
        self.binding = binding
        self.training = training
        self.progress = progress
        self.rules: dict[str, tuple[Rule | None, bool]] = {}
        self.priced: dict[tuple[Any, ...], Priced] = {}
        self.regions: dict[tuple[Any, ...], _Region] = {}
        self.types = Settling(graph, binding)
        minimums = {name: entry.minimum for name, entry in graph.symbols.items() if entry.minimum is not None}
        self.sizes = SizesKnown(binding.hints, minimums)
        self.flex: FlexAttentions | None = None
        self.flexible: dict[Node, Seen] = {}

    # Whole program

    def report(self) -> Report:
        graph = self.graph
        operands = tuple(self.operand(entry.name, entry.role) for entry in graph.inputs)
        run, attentions = self.with_attentions(self.run(graph, operands, top=True))
        self.binding.refuse_awaited()
        parameters = self.inputs_with("parameter")
        trainable = [entry.type for entry in parameters if entry.type.requires_grad]
        optimizer = adamw(trainable)
        if self.training and trainable and self.binding.all_trainable:
            message = "the file does not record which parameters are trained: all are taken to be"
            self.types.found["GF107", ""] = diagnostic("GF107", "", message)
        if self.training and all(row.backward is None for row in run.rows):
            message = (
                "no result of the program depends on a trained parameter: a training step has no backward"
            )
            self.types.found["GF109", ""] = diagnostic("GF109", "", message)
        by_module: Counter[str] = Counter()
        by_dtype: Counter[str] = Counter()
        for entry in parameters:
            by_module[entry.name.rpartition(".")[0]] += _number(entry.type.numel)
            by_dtype[entry.type.dtype.name] += _number(entry.type.nbytes)
        return Report(
            origin=graph.origin,
            symbols=self.binding.describe(graph, (run.cost, run.backward)),
            totals=Totals(run.cost, run.forward_peak.bytes, run.forward_peak.node),
            parameters=sum(by_module.values()),
            parameter_bytes=sum(by_dtype.values()),
            buffer_bytes=sum(
                _number(e.type.nbytes) for e in self.inputs_with("buffer") + self.inputs_with("constant")
            ),
            coverage=_coverage(run.rows),
            rows=run.rows,
            diagnostics=(
                *(diagnostic(note.code, note.node, note.message) for note in graph.notes),
                *self.binding.diagnostics,
                *self.types.found.values(),
                *self.types.guesses.diagnostics(),
            ),
            modules=graph.modules,
            parameter_modules=dict(by_module),
            parameter_dtypes=dict(by_dtype),
            backward=Totals(run.backward, run.training_peak.bytes, run.training_peak.node)
            if self.training
            else None,
            optimizer=Totals(optimizer) if self.training else None,
            memory=run.memory,
            inputs=tuple(self.passed()),
            attentions=attentions,
        )

    def passed(self) -> Iterator[Named]:
        """The tensors that a caller passes in, as a report shows them."""
        for entry in self.graph.inputs:
            if entry.role == "user" and isinstance(value := self.operand(entry.name, entry.role), TensorType):
                yield Named(entry.name, value.like())

    def with_attentions(self, run: _Run) -> tuple[_Run, tuple[AttentionUse, ...]]:
        """The attentions of the program, and the run with what their masks are found to make needless.

        Where no operator can be part of one, nothing is looked for.
        """
        from graphflops.attention.program import attentions, may_hold

        if not self.masks and not any(map(may_hold, self.rules)):
            return run, ()
        given = None if self.binding.moved else self.binding.given
        uses, masked, of_gradients, inputs = attentions(
            View(self.graph, run.rows, given, self.flexible), self.masks
        )
        rows = [_masked(row, masked.get(row.node, 0), of_gradients.get(row.node, 0)) for row in run.rows]
        pairs = [(row, was) for row, was in zip(rows, run.rows, strict=True) if row is not was]
        cost = replace(run.cost, masked_flops=self.masked(run.cost, [(a.cost, b.cost) for a, b in pairs]))
        backward = self.masked(run.backward, [(a.backward, b.backward) for a, b in pairs])
        run = replace(run, rows=tuple(rows), cost=cost, backward=replace(run.backward, masked_flops=backward))
        if inputs:
            text = (
                f"attention is masked, or its scores are added to, by {', '.join(map(shown, inputs))}, and what that"
                f" hides is not counted: say what it is, as with --mask {shown(inputs[0])}=causal"
            )
            self.types.found["GF117", ""] = diagnostic("GF117", "", text)
        return run, uses

    def masked(self, whole: Cost, pairs: Sequence[tuple[Cost | None, Cost | None]]) -> Dim:
        """What is masked in all, where some calls have come to have more of it than before."""
        found = [
            Cost(masked_flops=after.masked_flops)
            for after, before in pairs
            if after is not None and after is not before
        ]
        return self.total("masked_flops", [whole, *found])

    def inputs_with(self, role: str) -> list[Named]:
        """Inputs of a role that are tensors, each storage once, under the names they bear in the model."""
        chosen = [entry for entry in self.graph.inputs if entry.role == role and not entry.alias_of]
        typed = [(entry.target, self.operand(entry.name, role)) for entry in chosen]
        return [Named(target, value) for target, value in typed if isinstance(value, TensorType)]

    def operand(self, name: str, role: str) -> Value:
        """The value of a program input: as given, else as recorded."""
        value = self.binding.value(self.graph, name)
        if not isinstance(value, TensorType):
            return value
        if not self.training or role != "parameter" or not value.dtype.is_floating:
            return without_gradient(value)
        return replace(value, requires_grad=value.requires_grad or self.binding.all_trainable)

    # One graph

    def run(
        self,
        graph: Graph,
        operands: Sequence[Value],
        around: Mapping[str, Value] | None = None,
        *,
        top: bool = False,
        autocast: bool = False,
    ) -> _Run:
        """Walk one graph, nested or not, from the values of its inputs and of what it uses from around it."""
        given = graph.inputs if top else [entry for entry in graph.inputs if entry.role != "constant"]
        if len(operands) != len(given):
            raise ShapeError(f"graph {shown(graph.name)} takes {len(given)} operands, got {len(operands)}")
        values: dict[str, Value] = {
            entry.name: self.binding.value(graph, entry.name) for entry in graph.inputs
        }
        values.update(around or {})
        values.update((entry.name, operand) for entry, operand in zip(given, operands, strict=True))
        rows: list[Row] = []
        events: list[Event] = []
        firsts: list[int] = []  # by call: its row, which those of the graphs nested in it follow
        phases = graph.phases if top else {}
        for done, (node, uses) in enumerate(zip(graph.nodes, graph.operands, strict=True)):
            if top and self.progress and done % _PROGRESS_EVERY == 0:
                self.progress(done, len(graph.nodes))
            priced = self.price(node, values, graph)
            if priced.placeholders:
                priced = self.types.numbered(node, priced, graph)
            self.types.settle(node, priced, values, graph, autocast, self.resolve)
            regions = priced.estimate.regions
            row = Row(
                *(node.name, node.op, node.module, node.module_type, node.source, priced.state, priced.cost),
                backward=priced.gradient_cost,
                inputs=_tensors(uses, values),
                outputs=_tensors([name for name in node.outputs if name is not None], values),
                matrix_dtype=matrix_dtype(priced.estimate),
                phase=phases.get(node.name, "forward"),
                regions=tuple([RegionUse(run.name, times, run.cost) for run, times in regions]),
            )
            firsts.append(len(rows))
            rows.append(row)
            peaks: list[Peak] = []
            for run, times in regions:
                if isinstance(run, _Run):
                    rows.extend(_nested(run, times, row))
                    if times != 0:
                        peaks.append(run.training_peak if self.training else run.forward_peak)
            events.append(Event(node, uses, priced.estimate, priced.gradient, tuple(peaks)))
            if self.training:
                _pass_on(events, values)
        resident = [entry.name for entry in graph.inputs if entry.role == "user"] if top else []
        returned = [name for output in graph.outputs for _, name in output.uses()]
        seeds = [name for output in graph.outputs if output.role != "mutation" for _, name in output.uses()]
        if self.training:
            for index in set(range(len(events))) - reached(events, values, seeds):
                events[index] = replace(events[index], gradient=None)
                for place in range(
                    firsts[index], firsts[index + 1] if index + 1 < len(firsts) else len(rows)
                ):
                    rows[place] = replace(rows[place], backward=None)
        forward_peak, memory = self.memory(events, firsts, values, resident, returned)
        training_peak = Peak()
        if self.training:
            training_peak, memory = self.memory(events, firsts, values, resident, returned, seeds)
        return _Run(
            name=graph.name,
            out=tuple(flat(self.resolve(output.value, values) for output in graph.outputs)),
            cost=self.sum([row.cost for row in rows]),
            backward=self.sum([row.backward for row in rows if row.backward is not None]),
            rows=tuple(rows),
            forward_peak=forward_peak,
            training_peak=training_peak,
            memory=memory,
        )

    def sum(self, costs: Sequence[Cost]) -> Cost:
        """Costs of a whole graph; a quantity whose formula grows too large goes by a name instead."""
        try:
            return _sum(costs)
        except DimError:
            parts = {name: [Cost(**{name: getattr(cost, name)}) for cost in costs] for name in QUANTITIES}
            return Cost(**{name: self.total(name, of) for name, of in parts.items()})

    def total(self, name: str, costs: Sequence[Cost]) -> Dim:
        try:
            quantity: Dim = getattr(_sum(costs), name)
        except DimError:
            quantity = self.too_large(name)
        return quantity

    def memory(
        self,
        events: Sequence[Event],
        rows: Sequence[int],
        values: Mapping[str, Value],
        resident: Iterable[str],
        returned: Iterable[str],
        seeds: Sequence[str] | None = None,
    ) -> tuple[Peak, Timeline]:
        try:
            return memory_of(events, rows, values, resident, returned, self.sizes, seeds)
        except DimError:
            return Peak(self.too_large("peak_bytes")), Timeline()

    def too_large(self, name: str) -> Dim:
        """A name for a total whose formula grows too large."""
        quantity = self.types.fresh(f"{name}?")
        text = f"the formula of {name} grows too large, and goes by the name {quantity}: give sizes to get a number"
        self.types.found.setdefault(("GF116", name), diagnostic("GF116", "", text))
        return quantity

    # One call

    def price(self, node: Node, values: Mapping[str, Value], graph: Graph) -> Priced:
        """Ask the rule; equal calls are asked about once."""
        args = self.resolve(node.args, values)
        dropped = () if self.types.derives else _PLACEMENT
        kwargs = tuple(
            [(key, self.resolve(value, values)) for key, value in node.kwargs if key not in dropped]
        )
        if node.operator.has_score_function and (seen := self.seen(node, args, graph)) is not None:
            kwargs = (*kwargs, ("seen", seen))
        wanted = tuple([name is not None for name in node.outputs]) if self.types.derives else ()
        key = (node.op, key_of(args), key_of(kwargs), wanted)
        known = self.priced.get(key)
        if known is None:
            known = self.priced[key] = self.ask(node, args, kwargs, wanted)
        return known

    def ask(
        self, node: Node, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], wanted: tuple[bool, ...]
    ) -> Priced:
        sparse = any(isinstance(x, TensorType) and x.nonzeros is not None for x in flat((args, kwargs)))
        rule, in_place = self.rule_of(f"sparse.{node.op}" if sparse else node.op)
        if rule is None:
            return unknown_call("GF101", str(NoRuleError(node.op + " on sparse tensors" * sparse)))
        call = Call(rule, node.op, args, kwargs, in_place, wanted if self.types.derives else None)
        return call.priced(self.training)

    def seen(self, node: Node, args: tuple[Any, ...], graph: Graph) -> Seen | None:
        """What is visible of an attention with functions of its own."""
        from graphflops.attention.flex import FlexAttentions

        if self.flex is None:
            self.flex = FlexAttentions(self.graph)
        found, problem = self.flex.seen(graph, node, args)
        if problem:
            self.types.say("GF117", node, problem)
        if found is not None:
            self.flexible[node] = found
        return found

    def rule_of(self, op: str) -> tuple[Rule | None, bool]:
        """The rule of an operator, and whether it is the functional rule of an in-place operator."""
        if op not in self.rules:
            rule = find(op)
            call = operator(op)
            self.rules[op] = (rule, rule is not None and call.mutates and not rule.key.startswith(call.base))
        return self.rules[op]

    def resolve(self, argument: Any, values: Mapping[str, Value]) -> Any:
        kind = type(argument)
        if kind is Ref:
            return values[argument.name]
        if kind is tuple:
            return tuple(
                [values[item.name] if type(item) is Ref else self.resolve(item, values) for item in argument]
            )
        if kind is Graph:
            around = {name: values[name] for name in argument.captures}
            key = (argument, *around.values())
            if key not in self.regions:
                self.regions[key] = _Region(argument, self, around)
            return self.regions[key]
        return argument


def _stated(masks: Mapping[str, str] | None, graph: Graph) -> Mapping[str, Stated]:
    if not masks:
        return {}
    from graphflops.attention.stated import parsed

    return parsed(masks, graph)


def _pass_on(events: Sequence[Event], values: dict[str, Value]) -> None:
    """What an operator wrote in place wants a gradient from then on if its result does, and so do views of it.

    So do results of an operator without a rule, if an operand does.
    """
    event = events[-1]
    operands = event.tensors(values)
    wanting = [name for name in operands if wants(values[name])]
    written = [
        name for name in event.node.outputs if name is not None and isinstance(values[name], TensorType)
    ]
    if wanting and event.estimate.unknown:
        _want(written, values)
    elif event.in_place and any(wants(values[name]) for name in written) and not wants(values[operands[0]]):
        owner = owners(events, values)
        shared = owner.get(operands[0], operands[0])
        _want([name for name in values if owner.get(name, name) == shared], values)


def _want(names: Iterable[str], values: dict[str, Value]) -> None:
    for name in names:
        value = values[name]
        if isinstance(value, TensorType) and value.dtype.is_floating:
            values[name] = replace(value, requires_grad=True)


def _masked(row: Row, forward: Dim, backward: Dim) -> Row:
    """The row with what attention's masks make needless, where its rule knows of no mask."""
    if forward != 0 and row.cost.masked_flops == 0:
        row = replace(row, cost=replace(row.cost, masked_flops=forward))
    if backward != 0 and row.backward is not None and row.backward.masked_flops == 0:
        row = replace(row, backward=replace(row.backward, masked_flops=backward))
    return row


def _tensors(uses: Sequence[str], values: Mapping[str, Value]) -> tuple[Named, ...]:
    return tuple([Named(name, value) for name in uses if isinstance(value := values[name], TensorType)])


def _nested(run: _Run, times: Dim, call: Row) -> Iterator[Row]:
    for row in run.rows:
        inner = scaled(row, times, call.node)
        if not inner.module:
            inner = replace(inner, module=call.module, module_type=call.module_type)
        yield replace(inner, source=inner.source or call.source, phase=call.phase)


def _sum(costs: Iterable[Cost]) -> Cost:
    """Costs of a whole graph: equal calls share one Cost object, so count objects first and add polynomials after."""
    counted: dict[int, tuple[Cost, int]] = {}
    for cost in costs:
        known = counted.get(id(cost))
        counted[id(cost)] = (cost, 1 if known is None else known[1] + 1)
    return Cost.sum(cost * times for cost, times in counted.values())


def _coverage(rows: Sequence[Row]) -> Coverage:
    states = Counter(row.state for row in rows)
    unknown = Counter(row.op for row in rows if row.state == "unknown")
    return Coverage(states["counted"], states["free"], states["unknown"], dict(unknown.most_common()))


def _number(dim: Dim) -> int:
    """Sizes of parameters are numbers in every exported program; one that is not counts at its lower bound."""
    return dim if isinstance(dim, int) else (dim.bounds()[0] or 0)
