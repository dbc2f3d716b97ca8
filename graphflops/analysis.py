"""The loop: asks a rule about each call of a graph, compares what it derives with what the file recorded, adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphflops.backward import Backward, adamw, backward_of, reached
from graphflops.binding import Binding, bind
from graphflops.cost import QUANTITIES, Cost, Estimate, RegionRun, Value
from graphflops.derive import Guesses, mapped, merged, outgrown, renamed, sizes_in, trimmed
from graphflops.dims import Dim, Expr, differ, meetings, symbol
from graphflops.errors import DimError, GraphflopsError, ModelError, NoRuleError, RuleError, ShapeError, shown
from graphflops.graph import Graph, Node, Ref
from graphflops.memory import Event, Peak, SizesKnown, owners, peak_of
from graphflops.report import Coverage, Diagnostic, Named, RegionUse, Report, Row, State, Totals, scaled
from graphflops.rules import functorch
from graphflops.rules.registry import Rule, find, functional_name
from graphflops.tensor import TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# Keywords that place a tensor or seed it but change neither its type nor the work.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
_CUTS_GRADIENT = frozenset({"aten.detach", "aten.detach_", "aten.detach_copy"})
_PROGRESS_EVERY = 256


def analyze(
    model: object,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    training: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """What a model costs.

    model: path of a `.pt2` file, a `Graph`, or a `torch.export.ExportedProgram`.
    model_name: which program of an archive that holds several.
    dims: sizes by symbol (`s27`), or by input axis (`ids[1]`).
    inputs: whole shapes by input name; a static program is propagated again from them.
    training: price the backward of every call and an AdamW step too.
    progress: called now and then with (calls done, calls in all).

    Raises FileError for what cannot be read, ModelError where sizes given contradict the program.
    """
    graph = as_graph(model, model_name)
    binding = bind(graph, dims or {}, inputs or {})
    analysis = _Analysis(graph, binding, training, progress)
    report: Report | None = None
    if graph.declared is not None and binding.given and graph.symbols.keys() - binding.given.keys():
        probe = _Analysis(
            graph, bind(graph, {}, {}), False, None
        )  # of two sizes that are equal one may be given
        probe.report()
        met = probe.met
    else:
        report, met = analysis.report(), analysis.met
    whole, found = merged(graph, met, binding.given)
    if not found:
        return report or analysis.report()
    analysis = _Analysis(
        whole, bind(whole, renamed(dims or {}, found, graph), inputs or {}), training, progress
    )
    equal = ", ".join(f"{shown(name)} = {size}" for name, size in found.items())
    text = f"sizes meet where only equal ones can, from which follows {equal}"
    analysis.binding.diagnostics.append(Diagnostic("GF112", DIAGNOSTICS["GF112"], "", text))
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
class _Priced:
    """What is known of one distinct call (operator, operand types, attributes), however often it occurs."""

    state: State
    estimate: Estimate
    cost: Cost
    gradient: Backward | None = None
    gradient_cost: Cost | None = None
    in_place: bool = False
    placeholders: frozenset[str] = frozenset()
    code: str = ""
    problem: str = ""
    contradicts: bool = False
    met: tuple[tuple[Dim, Dim], ...] = ()
    outgrown: bool = False


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
            operands = tuple(_without_gradient(operand) for operand in operands)
        key = (autocast, *map(_key, operands))
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
    ) -> None:
        self.graph = graph
        self.binding = binding
        self.training = training
        self.progress = progress
        self.rules: dict[str, tuple[Rule | None, bool]] = {}
        self.priced: dict[tuple[Any, ...], _Priced] = {}
        self.regions: dict[tuple[Any, ...], _Region] = {}
        self.numbers: Counter[str] = Counter()
        self.contents: set[str] = set()
        self.untold = {
            name
            for name, entry in graph.symbols.items()
            if not entry.where and entry.hint is None and name not in binding.given
        }
        self.derives = graph.declared is not None
        self.guesses = Guesses()
        self.named: dict[Expr, Dim] = {}
        self.met: dict[tuple[Dim, Dim], None] = {}
        minimums = {name: entry.minimum for name, entry in graph.symbols.items() if entry.minimum is not None}
        self.sizes = SizesKnown(binding.hints, minimums)
        self.found: dict[tuple[str, str], Diagnostic] = {}

    # Whole program

    def report(self) -> Report:
        graph = self.graph
        operands = tuple(self.operand(entry.name, entry.role) for entry in graph.inputs)
        run = self.run(graph, operands, top=True)
        parameters = self.inputs_with("parameter")
        trainable = [entry.type for entry in parameters if entry.type.requires_grad]
        optimizer = adamw(trainable)
        if self.training and all(row.backward is None for row in run.rows):
            message = (
                "no result of the program depends on a trained parameter: a training step has no backward"
            )
            self.found["GF109", ""] = Diagnostic("GF109", DIAGNOSTICS["GF109"], "", message)
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
                *(
                    Diagnostic(note.code, DIAGNOSTICS[note.code], note.node, note.message)
                    for note in graph.notes
                ),
                *self.binding.diagnostics,
                *self.found.values(),
                *self.guesses.diagnostics(),
            ),
            modules=graph.modules,
            parameter_modules=dict(by_module),
            parameter_dtypes=dict(by_dtype),
            backward=Totals(run.backward, run.training_peak.bytes, run.training_peak.node)
            if self.training
            else None,
            optimizer=Totals(optimizer) if self.training else None,
        )

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
            return _without_gradient(value)
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
            priced = self.price(node, values)
            if priced.placeholders:
                priced = self.numbered(node, priced, graph)
            self.settle(node, priced, values, graph, autocast)
            row = Row(
                *(node.name, node.op, node.module, node.module_type, node.source, priced.state, priced.cost),
                backward=priced.gradient_cost,
                inputs=_tensors(uses, values),
                outputs=tuple(
                    Named(name, value)
                    for name in node.outputs
                    if name is not None and isinstance(value := values[name], TensorType)
                ),
                matrix_dtype=_matrix_dtype(priced.estimate),
                phase=phases.get(node.name, "forward"),
                regions=tuple(RegionUse(run.name, times, run.cost) for run, times in priced.estimate.regions),
            )
            firsts.append(len(rows))
            rows.append(row)
            inner = [(run, times) for run, times in priced.estimate.regions if isinstance(run, _Run)]
            for run, times in inner:
                rows.extend(_nested(run, times, row))
            peaks = [
                run.training_peak if self.training else run.forward_peak for run, times in inner if times != 0
            ]
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
        return _Run(
            name=graph.name,
            out=tuple(_flat(self.resolve(output.value, values) for output in graph.outputs)),
            cost=self.sum([row.cost for row in rows]),
            backward=self.sum([row.backward for row in rows if row.backward is not None]),
            rows=tuple(rows),
            forward_peak=self.peak(events, values, resident, returned),
            training_peak=self.peak(events, values, resident, returned, seeds) if self.training else Peak(),
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

    def peak(
        self,
        events: Sequence[Event],
        values: Mapping[str, Value],
        resident: Iterable[str],
        returned: Iterable[str],
        seeds: Sequence[str] | None = None,
    ) -> Peak:
        try:
            return peak_of(events, values, resident, returned, self.sizes, seeds)
        except DimError:
            return Peak(self.too_large("peak_bytes"))

    def too_large(self, name: str) -> Dim:
        """A name for a total whose formula grows too large."""
        quantity = self.fresh(f"{name}?")
        text = f"the formula of {name} grows too large, and goes by the name {quantity}: give sizes to get a number"
        self.found.setdefault(("GF116", name), Diagnostic("GF116", DIAGNOSTICS["GF116"], "", text))
        return quantity

    # One call

    def price(self, node: Node, values: Mapping[str, Value]) -> _Priced:
        """Ask the rule; equal calls are asked about once."""
        args = tuple([self.resolve(argument, values) for argument in node.args])
        dropped = () if self.derives else _PLACEMENT
        kwargs = tuple(
            [(key, self.resolve(value, values)) for key, value in node.kwargs if key not in dropped]
        )
        wanted = tuple([name is not None for name in node.outputs]) if self.derives else ()
        key = (node.op, _key(args), _key(kwargs), wanted)
        known = self.priced.get(key)
        if known is None:
            known = self.priced[key] = self.ask(node, args, kwargs, wanted)
        return known

    def ask(
        self, node: Node, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], wanted: tuple[bool, ...]
    ) -> _Priced:
        rule, in_place = self.rule_of(node.op)
        if rule is None:
            return _unknown("GF101", str(NoRuleError(node.op)))
        if self.training:
            args, kwargs = _distinct(args), _distinct(kwargs)
        if self.derives:
            if any(isinstance(value, UnknownType) for value in _flat(args)):
                return _unknown("GF104", "not even the number of axes of an operand is known")
            if "outputs" in rule.parameters[rule.positional :]:
                kwargs = (*kwargs, ("outputs", wanted))
        try:
            arguments = _bound(rule, args, kwargs, by_place=not self.derives)
            with meetings() as met:
                estimate = rule.call(arguments)
            if self.derives:
                estimate = trimmed(estimate, wanted)
            target = next((a for a in _flat(arguments.values()) if isinstance(a, TensorType)), None)
            if in_place and target is not None:
                written = target if _is_free(estimate) else target.view(target.shape)
                estimate = replace(estimate, out=(written, *estimate.out[1:]), alias=True)
            tensors = [value for value in _flat((args, kwargs)) if isinstance(value, TensorType)]
            back = backward_of(rule, arguments, estimate, tensors) if self.training else None
            if any(tensor.mapped for tensor in tensors) and not rule.key.startswith(functorch.MARKS):
                estimate = functorch.over_hidden_axes(estimate, tensors)
                if back is not None:
                    wanted_of = [tensors[place] for place, _ in back.gradients]
                    gradients = functorch.over_hidden_axes(back.estimate, tensors, wanted_of)
                    back = replace(back, estimate=gradients)
            return _Priced(
                state="free" if _is_free(estimate) else "counted",
                estimate=_marked(estimate, _flat(arguments.values()), node.op) if self.training else estimate,
                cost=estimate.cost,
                gradient=back,
                gradient_cost=None if back is None else back.estimate.cost,
                in_place=in_place,
                placeholders=_placeholders(estimate),
                met=tuple(met),
                outgrown=self.derives and any(map(outgrown, estimate.out)),
            )
        except ShapeError as error:
            return replace(_unknown("GF104", str(error)), contradicts=True)
        except GraphflopsError as error:
            return _unknown("GF101" if isinstance(error, NoRuleError) else "GF104", str(error))
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 a rule meets whatever operands a file makes up: one call is unknown, not all
            return _unknown("GF104", f"the rule of {shown(node.op)} does not fit this call: {error!r}")

    def rule_of(self, op: str) -> tuple[Rule | None, bool]:
        """The rule of an operator, and whether it is the functional rule of an in-place operator."""
        if op not in self.rules:
            rule = find(op)
            base = op.rpartition(".")[0]
            name = functional_name(base)
            self.rules[op] = (rule, rule is not None and name is not None and not rule.key.startswith(base))
        return self.rules[op]

    def resolve(self, argument: Any, values: Mapping[str, Value]) -> Any:
        kind = type(argument)
        if kind is Ref:
            return values[argument.name]
        if kind is tuple:
            return tuple([self.resolve(item, values) for item in argument])
        if kind is Graph:
            around = {name: values[name] for name in argument.captures}
            key = (argument, *around.values())
            if key not in self.regions:
                self.regions[key] = _Region(argument, self, around)
            return self.regions[key]
        return argument

    def numbered(self, node: Node, priced: _Priced, graph: Graph) -> _Priced:
        """Give each size that only data can tell its name: the recorded one where the file has one, else the next number."""
        names: dict[str, Dim] = {}
        for name, derived in zip(node.outputs, priced.estimate.out, strict=False):
            recorded = self.binding.value(graph, name) if name is not None else None
            if isinstance(derived, TensorType) and isinstance(recorded, TensorType):
                for size, known in zip(derived.shape, recorded.shape, strict=False):
                    names.update(_named_by(size, known, priced.placeholders))
            elif isinstance(derived, Expr) and isinstance(recorded, (int, Expr)):
                names.update(_named_by(derived, recorded, priced.placeholders))
        for placeholder in sorted(priced.placeholders - names.keys()):
            names[placeholder] = self.fresh(placeholder)
        estimate = _substituted(priced.estimate, names)
        back = priced.gradient
        if back is not None:
            back = replace(back, estimate=_substituted(back.estimate, names))
        return replace(
            priced,
            estimate=estimate,
            cost=estimate.cost,
            gradient=back,
            gradient_cost=None if back is None else back.estimate.cost,
        )

    def fresh(self, placeholder: str) -> Dim:
        """The next size of that origin."""
        what = placeholder.rstrip("?")
        while f"{what}_{self.numbers[what]}" in self.graph.symbols:
            self.numbers[what] += 1
        self.numbers[what] += 1
        return symbol(f"{what}_{self.numbers[what] - 1}")

    def settle(
        self, node: Node, priced: _Priced, values: dict[str, Value], graph: Graph, autocast: bool
    ) -> None:
        """Fix the type of each result: the recorded one wins unless sizes were given anew, a disagreement is said."""
        if priced.problem:
            if self.binding.moved and priced.code == "GF104":
                raise ModelError(
                    f"{_place(node)}: {priced.problem}; a size is fixed in the program: export it with dynamic shapes"
                )
            self.say(priced.code, node, priced.problem)
        if priced.estimate.hint:
            self.say("GF108", node, priced.estimate.hint)
        derived = priced.estimate.out
        if self.derives:
            self.settle_derived(node, priced, values, graph)
            return
        if priced.state != "unknown" and len(derived) != len(node.outputs):
            if self.binding.moved:
                raise ModelError(
                    f"{_place(node)}: it would give {len(derived)} results, the program takes {len(node.outputs)}; "
                    "a size is fixed in the program: export it with dynamic shapes"
                )
            self.say(
                "GF105", node, f"rule gives {len(derived)} results, the file records {len(node.outputs)}"
            )
        for index, name in enumerate(node.outputs):
            if name is None:
                continue
            ours = derived[index] if index < len(derived) else None
            recorded = self.binding.value(graph, name)
            if recorded is None or _is_same(ours, recorded):
                values[name] = ours
            else:
                if self.untold and self.learns(ours, recorded):
                    recorded = self.binding.value(graph, name)
                values[name] = self.agreed(node, ours, recorded, autocast, name in graph.used)
            if isinstance(settled := values[name], TensorType) and settled.value is not None:
                self.contents.add(name)
        if (
            self.contents
            and priced.state != "free"
            and functional_name(node.op.rpartition(".")[0]) is not None
        ):
            self.forget_contents(values)

    def settle_derived(self, node: Node, priced: _Priced, values: dict[str, Value], graph: Graph) -> None:
        """Fix the type of each result where files record none: the derived one, else the best guess."""
        self.met.update(dict.fromkeys(priced.met))
        derived = priced.estimate.out
        guesses: dict[int, Value] | None = None
        for place, name in enumerate(node.outputs):
            if name is None:
                continue
            value = derived[place] if place < len(derived) else None
            if value is not None:
                self.guesses.compare(name, value, graph)
                if priced.outgrown:
                    value = self.cut(node, value)
            else:
                if guesses is None:
                    operands = [self.resolve(argument, values) for argument in node.args]
                    attributes = None if priced.contradicts else dict(node.kwargs)
                    guesses = self.guesses.of(node, operands, attributes, graph)
                names = {n: self.fresh(n) for n in _open(sizes_in(guesses[place]))}
                value = _settled(guesses[place], names)
            values[name] = value

    def cut(self, node: Node, value: Value) -> Value:
        """The value with names for those of its sizes that have grown too large to go on computing with."""
        for size in outgrown(value):
            if size not in self.named:
                self.named[size] = self.fresh("size?")
                self.say(
                    "GF116",
                    node,
                    f"a size whose expression grows too large goes by the name {self.named[size]}",
                )
        return mapped(value, lambda dim: self.named.get(dim, dim) if isinstance(dim, Expr) else dim)  # type: ignore[no-any-return]

    def forget_contents(self, values: dict[str, Value]) -> None:
        """After a write in place no contents are known any more: what else shares the memory is not tracked this finely."""
        for name in self.contents & values.keys():
            value = values[name]
            if isinstance(value, TensorType):
                values[name] = replace(value, value=None)
        self.contents.clear()

    def learns(self, ours: Value, recorded: Value) -> bool:
        """Whether a derived size tells what the file calls by a name because only data could tell it while exporting."""
        if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
            told = map(self.learns, ours.shape, recorded.shape) if ours.rank == recorded.rank else ()
            return sum(told) > 0  # every axis is looked at
        if not isinstance(recorded, Expr) or not isinstance(ours, (int, Expr)) or isinstance(ours, bool):
            return False
        name = str(recorded)
        used = ours.symbols if isinstance(ours, Expr) else frozenset()
        if name not in self.untold or not self.untold.isdisjoint(used) or any(other.endswith("?") for other in used):
            return False
        self.untold.remove(name)
        self.binding.learn(name, ours)
        return True

    def agreed(self, node: Node, ours: Value, recorded: Value, autocast: bool, used: bool) -> Value:
        """Which of two types to go on with; the disagreement is said.

        But not of an element type where autocasting chose it, nor of a result that nobody uses: kernels of different devices
        keep different statistics and workspaces there.
        """
        if not isinstance(ours, TensorType) or not isinstance(recorded, TensorType):
            return ours if self.binding.moved and ours is not None else recorded
        if self.binding.moved:
            return ours
        if len(ours.shape) != len(recorded.shape) or any(map(differ, ours.shape, recorded.shape)):
            if used:
                self.say("GF102", node, f"derived {ours}, the file records {recorded}")
            return replace(recorded, requires_grad=ours.requires_grad)
        if ours.dtype is not recorded.dtype and used and not autocast:
            self.say("GF103", node, f"derived {ours}, the file records {recorded}")
        return replace(ours, shape=recorded.shape, dtype=recorded.dtype)

    def say(self, code: str, node: Node, message: str) -> None:
        """Keep a diagnostic; one per operator for the kinds that would repeat at every call of it."""
        where = node.op if code == "GF101" else node.name
        self.found.setdefault((code, where), Diagnostic(code, DIAGNOSTICS[code], node.name, message))


DIAGNOSTICS = {
    "GF101": "unknown-operator",
    "GF102": "shape-mismatch",
    "GF103": "dtype-mismatch",
    "GF104": "rule-failed",
    "GF105": "result-count",
    "GF106": "size-outside-range",
    "GF107": "assumed-trainable",
    "GF108": "dear-order",
    "GF109": "nothing-trained",
    "GF110": "type-not-derived",
    "GF111": "declared-otherwise",
    "GF112": "sizes-merged",
    "GF113": "version-unknown",
    "GF114": "data-length",
    "GF115": "domain-not-imported",
    "GF116": "size-named",
}


def _unknown(code: str, problem: str) -> _Priced:
    return _Priced("unknown", Estimate(writes=()), Cost(), code=code, problem=problem)


def _bound(
    rule: Rule, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], *, by_place: bool = True
) -> dict[str, Any]:
    """Arguments by parameter name.

    by_place: a keyword that the rule has no parameter of that name for is bound by its place: files of torch before 2.6
    name every argument and do not say which are positional, and rules may name leading operands as they like.
    """
    names = rule.parameters
    bound: dict[str, Any] = {}
    spare: list[Any] = []
    for index, value in enumerate(args):
        if index < rule.positional:
            bound[names[index]] = value
        elif rule.variadic:
            spare.append(value)
        else:
            raise RuleError(f"{rule.key} takes {rule.positional} operands, the call has {len(args)}")
    for index, (name, value) in enumerate(kwargs, start=len(args)):
        if name in names and name not in bound:
            bound[name] = value
        elif by_place and index < rule.positional and names[index] not in bound:
            bound[names[index]] = value
        elif rule.open_ended:
            bound[name] = value
        else:
            raise RuleError(f"the rule of {rule.key} has no parameter {shown(name)}")
    if spare:
        bound["*"] = tuple(spare)
    return bound


def _key(value: Any) -> Any:
    """A key under which 2, 2.0 and True differ."""
    kind = type(value)
    if kind is tuple:
        return tuple([_key(item) for item in value])
    if kind is float or kind is bool or kind is complex:
        return (kind, value)
    return value


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _distinct(value: Any) -> Any:
    """The same, every tensor type in it an object of its own, so that a rule's readings tell which operand they are of."""
    if isinstance(value, tuple):
        return tuple([_distinct(item) for item in value])
    return replace(value) if isinstance(value, TensorType) else value


def _without_gradient(value: Value) -> Value:
    return (
        replace(value, requires_grad=False)
        if isinstance(value, TensorType) and value.requires_grad
        else value
    )


def _marked(estimate: Estimate, operands: Iterator[Any], op: str) -> Estimate:
    """Mark floating results of a call on values that want a gradient as wanting one too."""
    if op.rpartition(".")[0] in _CUTS_GRADIENT:
        return estimate
    if not any(map(_wants, operands)):
        return estimate
    if estimate.regions and not any(_wants(value) for run, _ in estimate.regions for value in run.out):
        return estimate  # a graph that ran without recording gradients
    out = tuple(
        replace(value, requires_grad=True)
        if isinstance(value, TensorType) and value.dtype.is_floating
        else value
        for value in estimate.out
    )
    return replace(estimate, out=out)


def _pass_on(events: Sequence[Event], values: dict[str, Value]) -> None:
    """What an operator wrote in place wants a gradient from then on if its result does, and so do views of it.

    So do results of an operator without a rule, if an operand does.
    """
    event = events[-1]
    operands = event.tensors(values)
    wanting = [name for name in operands if _wants(values[name])]
    written = [
        name for name in event.node.outputs if name is not None and isinstance(values[name], TensorType)
    ]
    if wanting and not event.estimate.out:
        _want(written, values)
    elif event.in_place and any(_wants(values[name]) for name in written) and not _wants(values[operands[0]]):
        owner = owners(events, values)
        shared = owner.get(operands[0], operands[0])
        _want([name for name in values if owner.get(name, name) == shared], values)


def _wants(value: Value) -> bool:
    return isinstance(value, TensorType) and value.requires_grad


def _want(names: Iterable[str], values: dict[str, Value]) -> None:
    for name in names:
        value = values[name]
        if isinstance(value, TensorType) and value.dtype.is_floating:
            values[name] = replace(value, requires_grad=True)


def _is_same(ours: Value, recorded: Value) -> bool:
    return (
        isinstance(ours, TensorType)
        and isinstance(recorded, TensorType)
        and ours.shape == recorded.shape
        and ours.dtype is recorded.dtype
    )


def _is_free(estimate: Estimate) -> bool:
    makes = estimate.writes is None and any(isinstance(value, TensorType) for value in estimate.out)
    return not (makes or estimate.reads or estimate.writes or estimate.regions or estimate.cost)


def _matrix_dtype(estimate: Estimate) -> str:
    if estimate.matrix_flops == 0:
        return ""
    if estimate.matrix_dtype is not None:
        return estimate.matrix_dtype.name
    return next((value.dtype.name for value in estimate.reads if isinstance(value, TensorType)), "")


def _tensors(uses: Sequence[str], values: Mapping[str, Value]) -> tuple[Named, ...]:
    return tuple([Named(name, value) for name in uses if isinstance(value := values[name], TensorType)])


def _nested(run: _Run, times: Dim, call: Row) -> Iterator[Row]:
    for row in run.rows:
        inner = scaled(row, times, call.node)
        if not inner.module:
            inner = replace(inner, module=call.module, module_type=call.module_type)
        yield replace(inner, source=inner.source or call.source, phase=call.phase)


def _placeholders(estimate: Estimate) -> frozenset[str]:
    dims: list[Any] = list(_flat(getattr(estimate.cost, f) for f in Cost.__slots__))
    for value in estimate.out:
        dims.extend(sizes_in(value))
    dims.extend(times for _, times in estimate.regions)
    return _open(dims)


def _open(dims: Iterable[Any]) -> frozenset[str]:
    """Names of the sizes that only data can tell and that are not numbered yet."""
    return frozenset(
        name for dim in dims if isinstance(dim, Expr) for name in dim.symbols if name.endswith("?")
    )


def _settled(value: Any, names: Mapping[str, Dim]) -> Any:
    """The value with the sizes by these names put in."""
    return mapped(value, lambda dim: dim.substitute(names) if isinstance(dim, Expr) else dim)


def _named_by(size: Dim, recorded: Dim, placeholders: frozenset[str]) -> dict[str, Dim]:
    """What a recorded size says of a derived one that is nothing but a placeholder."""
    names = [name for name in placeholders if size is symbol(name)]
    return dict.fromkeys(names, recorded)


def _substituted(estimate: Estimate, names: Mapping[str, Dim]) -> Estimate:
    def settled(value: Any) -> Any:
        return _settled(value, names)

    return replace(
        estimate,
        out=tuple(map(settled, estimate.out)),
        reads=tuple(map(settled, estimate.reads)),
        writes=None if estimate.writes is None else tuple(map(settled, estimate.writes)),
        regions=tuple((run, settled(times)) for run, times in estimate.regions),
        **{
            name: settled(getattr(estimate, name))
            for name in ("matrix_flops", "vector_flops", "transcendentals", "masked_flops", "workspace")
        },
    )


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


def _place(node: Node) -> str:
    source = f" ({shown(node.source)})" if node.source else ""
    return f"{shown(node.name)}{source}, {shown(node.op)}"


def _number(dim: Dim) -> int:
    """Sizes of parameters are numbers in every exported program; one that is not counts at its lower bound."""
    return dim if isinstance(dim, int) else (dim.bounds()[0] or 0)
