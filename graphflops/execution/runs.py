"""The calls of a program's graphs as a GPU runs them, and the layouts of their values; memory and time both use these.

A file may record types that contradict a call; earlier passes have reported this. Rules of kernels and layouts assume that
operands and results fit together, so such a call keeps the bytes and the work that it was priced with, and otherwise runs as
an unknown operator.
"""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from operator import is_

from graphflops.attention import AttentionUse
from graphflops.base.record import replace
from graphflops.base.units import memory as bytes_text
from graphflops.cost import Estimate, Value
from graphflops.devices import Platform
from graphflops.dims import differ, evaluate, total
from graphflops.execution.composed_losses import expanded
from graphflops.execution.composites import Expanded, Prices
from graphflops.execution.export_only import as_run, in_place, placed, without_whole_slices
from graphflops.execution.fast_path import with_fast_paths
from graphflops.execution.frames import Lifetimes, References
from graphflops.execution.layouts import Layouts, chosen_kernel
from graphflops.execution.strides import Values
from graphflops.graph import EagerRun, Graph, Ref
from graphflops.passes.program import MemoryUse, PricedCall, PricedGraph, PricedProgram, latest, owners
from graphflops.tensor import TensorType

_OPERATOR = "unknown"  # the spelling of no operator: its kind is `other`, its arguments have no names


def consistent(graph: PricedGraph) -> Sequence[PricedCall]:
    """The calls of a graph; those that contradict their results are calls of an unknown operator.

    The same object if no call contradicts its results. Additional results that nothing reads, or that have as many elements
    as derived, keep the recorded types: kernels of different devices save different statistics.
    """
    found = [_judged(call, graph) for call in graph.calls]
    return graph.calls if all(map(is_, found, graph.calls)) else found


def _judged(call: PricedCall, graph: PricedGraph) -> PricedCall:
    outputs, derived, is_open = call.node.outputs, call.estimate.out, bool(call.estimate.unknown)
    is_whole = outputs and len(derived) == len(outputs) and not is_open
    if is_whole and all(map(is_, derived, map(graph.values.get, outputs))):  # type: ignore[arg-type]
        return call
    # Rules of kernels read a call's first result; a call that keeps no result has none to read.
    if not outputs and call.tensors(graph.values):
        return _unknown(call, graph.values)
    # Results whose derived types contradict the types of the program's values.
    ours = dict(zip(outputs, derived, strict=False))
    wrong = {x for x in outputs if x and not _agree(ours.get(x), graph.values.get(x), is_open)}
    if not wrong:
        return call
    recorded = _as_recorded(call, graph.values)
    # PyTorch 2.11 records an LSTM's states with an extra axis of size 1.
    sizes = [total(x.numel for x in out if isinstance(x, TensorType)) for out in (derived, recorded.out)]
    if call.node.outputs[0] not in wrong and (wrong.isdisjoint(graph.graph.used) or sizes[0] == sizes[1]):
        return replace(call, estimate=recorded)
    return _unknown(call, graph.values)


def _agree(ours: Value, value: Value, is_open: bool) -> bool:
    """Whether two types may be of one value; element types may differ, because autocasting chooses them."""
    if isinstance(ours, TensorType) and isinstance(value, TensorType):
        return ours.rank == value.rank and not any(map(differ, ours.shape, value.shape))
    return not (is_open or isinstance(ours, TensorType) or isinstance(value, TensorType))


def _as_recorded(call: PricedCall, values: Values) -> Estimate:
    """A call's estimate with the types of the program's values."""
    if not call.node.outputs and not call.estimate.out:
        return call.estimate  # a check; each layer has several, and copies of them would cost time
    out = tuple(None if name is None else values.get(name) for name in call.node.outputs)
    return replace(call.estimate, out=out)


def _unknown(call: PricedCall, values: Values) -> PricedCall:
    results = len(call.node.outputs)
    node = replace(call.node, op=_OPERATOR, args=tuple(map(Ref, call.uses)), kwargs=())
    gradient = placed(call.gradient, range(len(call.tensors(values))))
    if gradient is not None:
        gradient = replace(gradient, results=frozenset(each for each in gradient.results if each < results))
    return PricedCall(node, call.uses, _as_recorded(call, values), gradient, call.row)


# Kinds of operators whose result has the operand's elements, in the same or another order.
_COPYING = frozenset({"view", "identity"})
_NOTABLE = 100  # assumed lifetimes are reported if their bytes times this exceed the peak


class Run:
    """The calls of one graph in the order in which they run, and the layouts of their values.

    eager: what was recorded of an eager run; None if the graph runs otherwise.
    """

    def __init__(self, expanded: Expanded, layouts: Layouts, graph: Graph, eager: EagerRun | None) -> None:
        self.expanded, self.calls = expanded, expanded.calls
        self.layouts, self.graph, self.eager = layouts, graph, eager
        marks = graph.recomputed
        inside = {name: marks[of.name] for name, of in expanded.outer.items() if of.name in marks}
        self.recomputed = {**marks, **inside}  # by call, the number of the checkpoint that runs it again

    @property
    def is_recorded_alike(self) -> bool:
        """Whether the same attentions are unfused if autograd records the calls, and if it does not."""
        unfused = partial(is_unfused, layouts=self.layouts)
        calls = [call for call, _ in self.expanded.given if call.node.operator.kind == "attention"]
        return all(unfused(call, records=True) == unfused(call, records=False) for call in calls)

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The value whose memory each tensor shares."""
        return owners(self.calls, self.layouts.values, self.is_view)

    def is_view(self, call: PricedCall) -> bool:
        """Whether a call's results share its operands' memory; a layout operator copies or not by its operand's layout.

        Eager execution does not copy heads that an export repeats for attention, so such a copy shares its operand's memory.
        Other copies stay even if a record lacks them, because later calls read their memory.
        """
        results = [*filter(None, call.node.outputs)]
        is_copy = self.layouts.is_copy(next(iter(results), None))
        if self.eager and call.node.operator.kind in _COPYING and not self.eager.left_out.isdisjoint(results):
            x = self.layouts.values.get(call.uses[0]) if call.uses else None
            is_repeated = isinstance(x, TensorType) and x.stored is not None
            is_copy = False if is_repeated else is_copy
        return call.estimate.alias if is_copy is None else not is_copy

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """What Python's frames hold past its last use, and until when: as recorded, or else as the lines of code show."""
        calls, ends = zip(*self.expanded.given, strict=True) if self.calls else ((), ())
        if self.eager is not None:
            found = recorded(calls, self.eager)
        else:
            reads = dict(zip(map(id, self.graph.nodes), self.graph.operands, strict=True))
            read = [reads.get(id(call.node)) or call.node.reads() for call in calls]
            found = References([call.node for call in calls], read, self.owners, self.is_empty).lifetimes()
        until = {name: ends[place] for name, place in found.until.items()}
        return replace(found, until=self.until_returns | until)

    @cached_property
    def until_returns(self) -> dict[str, int]:
        """What composites and inlined functions hold, and until which call."""
        return latest(self.expanded.until, self.owners)

    def is_empty(self, name: str) -> bool:
        """Whether a value is a vector without elements, as `torch.tensor([])` is."""
        return getattr(self.layouts.values.get(name), "shape", None) == (0,)


def is_unfused(call: PricedCall, layouts: Layouts, *, records: bool) -> bool:
    """Whether a call is an attention that has no kernel of its own. records: whether autograd records the calls."""
    chosen = chosen_kernel(call, layouts, records)
    return chosen is not None and chosen[1].kernel == "math"


class Runs:
    """The runs of the graphs of one program, each found once."""

    def __init__(
        self,
        attentions: Sequence[AttentionUse],
        platform: Platform,
        *,
        is_eager: bool,  # whether Python runs the program, which then builds no masks that only an export has
        fast_paths: Sequence[str] = (),  # kinds of modules that take theirs; by default all
    ) -> None:
        self.attentions, self.platform = attentions, platform
        self.is_eager, self.fast_paths = is_eager, fast_paths
        self.found: list[Run] = []
        self.asked: dict[tuple[PricedGraph, bool, bool], Run] = {}
        self.consistent = cache(consistent)
        self.prices: Prices = {}

    def of(self, graph: PricedGraph, *, has_fast_paths: bool = False, records: bool = False) -> Run:
        """The run of a graph. has_fast_paths: modules with a fast path are one call, as where nothing wants a gradient.

        records: whether autograd records the calls; fewer attention kernels compute gradients.
        """
        key = (graph, has_fast_paths, records)
        if key not in self.asked:
            other = self.asked.get((graph, has_fast_paths, not records))
            self.asked[key] = other if other and other.is_recorded_alike else self._run(*key)
        return self.asked[key]

    def say_assumed(self, program: PricedProgram, memory: MemoryUse) -> None:
        """Report lifetimes that a run recorded, and those that were assumed because the lines do not show them."""
        examples = program.binding.examples
        for run in self.found:
            if "lifetimes" in vars(run) and run.eager is not None:
                text = "what eager execution holds is as a run of the module recorded it"
                program.notes.say("GF129", "", text)
            assumed = run.lifetimes.assumed if "lifetimes" in vars(run) else ()
            size = sum(evaluate(run.layouts.typed(name).nbytes, examples) or 0 for name in assumed)
            if size * _NOTABLE > (evaluate(memory.forward.bytes, examples) or 0):
                results = "1 result" if len(assumed) == 1 else f"{len(assumed)} results"
                text = f"{results}, {bytes_text(size)} together, taken to live until the function that makes them returns: "
                text += "the file does not record which variable holds them"
                program.notes.say("GF125", "", text)

    def _run(self, graph: PricedGraph, has_fast_paths: bool, records: bool) -> Run:
        given, values, program = self.consistent(graph), graph.values, graph.graph
        eager, calls = program.eager if self.is_eager else None, given
        if program.step is None and has_fast_paths:
            weights = {entry.name for entry in program.inputs if entry.role != "user"}
            calls = with_fast_paths(given, values, weights, program.returned, self.fast_paths)
            if calls is given:
                return self.of(graph, records=records)
        if program.step is None and self.is_eager:
            if program.has_exchanges:
                calls = in_place(calls)
            calls = without_whole_slices(calls, values, program.returned)
            calls, values = as_run(calls, self.attentions, values, eager)
        layouts = Layouts((), values, self.platform, program.orders, program.step)
        unfused = partial(is_unfused, layouts=layouts, records=records)
        found = expanded(calls, values, self.prices, unfused, layouts.extend)
        if graph.until:
            ends = {call.node.name: end for call, end in found.given}
            until = {name: ends[last] for name, last in graph.until.items() if last in ends}
            found = replace(found, until={**until, **found.until})
        self.found.append(Run(found, layouts, program, eager))
        return self.found[-1]


def recorded(calls: Sequence[PricedCall], eager: EagerRun) -> Lifetimes:
    """How long Python refers to each tensor, as an eager run recorded it; values without a record end at their last use."""
    made = {name: place for place, call in enumerate(calls) for name in call.node.outputs if name is not None}
    latest, last = [], -1  # by value of the record: the latest call that has run when the value is made
    for name in eager.values:
        last = max(last, made.get(name, last))
        latest.append(last)
    held = {name: latest[until] for name, until in zip(eager.values, eager.until, strict=True) if until >= 0}
    return Lifetimes({name: until for name, until in held.items() if name in made}, frozenset())
