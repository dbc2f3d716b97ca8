"""Peak of live activation memory, by liveness over the calls in program order.

A value lives from the call that makes it to its last use. Views share their operand's memory. Inputs and results live
throughout; parameters and buffers are not counted. In training, what a gradient reads lives until that gradient is computed,
in reverse order. A gradient lives from the call that computes it to the call whose result it is the gradient of; gradients
of parameters live to the end. A second gradient of a value is added to the first in place, unless that memory has other
holders. Values inside a checkpoint are not saved; they are recomputed when the first of the checkpoint's gradients is due.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Union

from graphflops.dims import Dim, dim_max, total
from graphflops.errors import DimError
from graphflops.graph import Ref, tensor_type
from graphflops.passes.gradients import Checkpoint, checkpoints
from graphflops.passes.meter import AGAIN, Meter, Reverse
from graphflops.passes.optimizer import trained_inputs
from graphflops.passes.program import CallByCall, MemoryUse, Peak, PricedCall, PricedGraph, PricedProgram
from graphflops.report import Timeline
from graphflops.tensor import TensorType, grouped

# In training, the values of a graph whose gradients come from outside; None outside of training.
Seeds = Union[Sequence[str], None]
# A peak, the timeline, and how many of its entries outlive the graph's run.
Measured = tuple[Peak, Timeline, int]

# Keys of memory, by place of the call whose gradient is the last to need it.
Released = dict[int, list[Hashable]]


def memory_use(
    program: PricedProgram,
    execution: Callable[[PricedGraph, bool], CallByCall] = CallByCall,
    kind: Callable[..., Peaks] | None = None,
) -> MemoryUse:
    """The peaks of a program's activations and their timeline.

    execution: what a graph allocates and frees; it is told whether gradients run too. kind: how graphs are measured; by
    default by liveness of their calls' values.
    """
    peaks = (kind or Peaks)(program, execution)
    forward, timeline, _ = peaks.of(peaks.main)
    if program.training is None:
        return MemoryUse(forward, timeline)
    return MemoryUse(forward, timeline, *peaks.of(peaks.main, program.graph.seeds))


class Peaks:
    """Peaks of the graphs of one program; a nested graph that runs at several calls is measured once."""

    def __init__(self, program: PricedProgram, execution: Callable[[PricedGraph, bool], CallByCall]) -> None:
        self.execution, self.program, self.main = execution, program, program.main.inlined
        self.names = program.names
        # By nested graph and whether its gradients run too.
        self.nested: dict[tuple[PricedGraph, bool], Peak] = {}

    def of(self, graph: PricedGraph, seeds: Seeds = None) -> Measured:
        """The peak of a graph's own values, their timeline, and how many of its entries outlive the graph's run."""
        try:
            return self.measured(self.execution(graph, seeds is not None), graph, seeds)
        except DimError:
            return Peak(self.names.too_large("peak_bytes")), Timeline(), 0

    def measured(self, execution: CallByCall, graph: PricedGraph, seeds: Seeds) -> Measured:
        """The same; raises DimError where the formula grows too large."""
        peaks = [self.inside(call, seeds is not None) for call in execution.calls]
        run = _Liveness(graph, peaks, self.meter(graph, execution), execution)
        return run.measured(seeds, self.earlier(graph, seeds), graph is self.program.summed)

    def meter(self, graph: PricedGraph, execution: CallByCall) -> Meter:
        """A meter at the start of a graph. Inputs are live throughout; a nested graph's inputs are counted outside of it."""
        meter = Meter(self.program)
        for entry in self.program.graph.inputs if graph is self.main else ():
            value = execution.values.get(entry.name)
            if entry.role == "user" and isinstance(value, TensorType):
                meter.take(entry.name, value.nbytes, "input")
        return meter

    def earlier(self, graph: PricedGraph, seeds: Seeds) -> Sequence[str]:
        """Parameters that have a gradient from the start, from an earlier micro-step."""
        training = self.program.training
        is_first = seeds is None or training is None or training.accumulate == 1
        return () if is_first or graph is not self.main else trained_inputs(self.program)

    def inside(self, call: PricedCall, training: bool) -> list[Peak]:
        """The peaks of the graphs that run in a call, beside its results."""
        runs = [(run, times) for run, times in call.estimate.regions if isinstance(run, PricedGraph)]
        return [self.beside(call, run.inlined, training) for run, times in runs if times != 0]

    def beside(self, call: PricedCall, run: PricedGraph, training: bool) -> Peak:
        """The peak of a nested graph. If its results are those of the call, they are in the same memory, and count there."""
        if (run, training) not in self.nested:
            self.nested[run, training], *_ = self.of(run, run.graph.seeds if training else None)
        peak = self.nested[run, training]
        if run.out != call.estimate.out:
            return peak
        execution = self.execution(run, training)
        owners, values = execution.owners(), execution.values
        names = [x.value.name for x in run.graph.outputs if isinstance(x.value, Ref)]
        made = [name for name, kept in zip(names, call.node.outputs, strict=False) if kept is not None]
        own = [name for name in dict.fromkeys(made) if owners.get(name) == name]
        results = total(value.nbytes for name in own if (value := tensor_type(name, values)))
        return Peak(dim_max(0, peak.bytes - results), peak.node)


class _Liveness:
    """Measures one graph: when each of its values is allocated and released."""

    def __init__(
        self, graph: PricedGraph, peaks: Sequence[Sequence[Peak]], meter: Meter, execution: CallByCall
    ) -> None:
        self.calls, self.peaks, self.meter = execution.calls, peaks, meter
        self.graph, self.execution = graph.graph, execution
        self.root = execution.owners()
        self.bytes: dict[str, Dim] = {}  # of each value that owns memory
        for name in [name for name, owner in self.root.items() if name == owner]:
            value = execution.values[name]
            if isinstance(value, TensorType):
                self.bytes[name] = value.like().nbytes if name in execution.copied else value.nbytes
        self.kept = {self.root[name] for name in graph.graph.returned if name in self.root}
        marks = execution.recomputed if execution.training else {}
        self.checkpoints = checkpoints(execution.calls, marks, self.kept_by) if marks else []
        # By place of a call in a checkpoint, that of the checkpoint's first call.
        self.starts = {
            x: found.first for found in self.checkpoints for x in range(found.first, found.last + 1)
        }
        self.saved = _saved(self.root, execution, self.starts) if execution.training else {}
        ends = {self.root[name]: len(self.calls) - 1 for name in graph.graph.lasting if name in self.root}
        held = {**execution.held_until(), **ends}
        # In program order, whatever order the caller releases them in.
        self.held = {name: held[name] for name in self.root if name in held}

    def measured(self, seeds: Seeds, earlier: Sequence[str], repeats: bool) -> Measured:
        saved = [name for name in self.saved if name not in self.kept and name in self.bytes]
        released: Released = grouped((self.saved[name], name) for name in saved)
        if seeds is None:
            self.forward(released)
            return self.meter.peak(), *self.meter.timeline(None)

        reverse = Reverse(self.graph, self.meter, self.execution, earlier)
        self.forward(released)
        turn = len(self.meter.rows)
        for name in seeds:
            reverse.give(name, repeats)
        reverse.backward(released, self.again(released))
        return self.meter.peak(), *self.meter.timeline(turn)

    def kept_by(self, call: PricedCall) -> tuple[Sequence[str], Sequence[str]]:
        """Owners of the operands and of the results that a call saves for its gradient; "" for memory of its own."""
        saved = self.execution.saved_values(call)
        names = [self.root[name] for name in saved if name is not None and name in self.root]
        made = [name for name in names if name in call.node.outputs]
        own = [""] if self.execution.saved_bytes(call) != 0 else []
        return [name for name in names if name not in made], [*made, *own]

    def forward(self, released: Released) -> None:
        """Run the calls; adds to `released` what is saved beside results, by the gradient that is the last to need it."""
        lasts = _last_uses(self.calls, self.root, self.held)
        kept = {*self.kept, *self.saved}
        for index in range(len(self.calls)):
            self.run(index, None if index in self.starts else released)
            for name in lasts.get(index, ()):
                if name not in kept:
                    self.meter.drop(name)

    def run(self, index: int, released: Released | None, again: str = "") -> None:
        """Run a call. released: None if gradients read what a second run makes. again: suffix of values of that run."""
        meter, call = self.meter, self.calls[index]
        meter.row = call.row
        kept_first, brief = self.first(index, released)
        for output in call.node.outputs:
            if output is not None and self.root.get(output) == output:
                meter.take(output, self.bytes.get(output, 0), "value", output + again)
        beside = self.execution.saved_bytes(call) if self.execution.training else 0
        workspace = self.execution.forward_bytes(call, beside) - total(brief)
        beside = beside - kept_first
        if released is None:
            workspace = workspace + beside
        elif beside != 0:  # what is saved beside the results was made while they were computed
            meter.take(call.node.name, beside, "saved", index)
            released.setdefault(index, []).append(index)
        meter.mark(call.node.name, self.peaks[index], (workspace,))
        meter.drop_before(brief)

    def first(self, index: int, released: Released | None) -> tuple[Dim, Sequence[Dim]]:
        """Allocate what a call makes before its results; return the bytes of it that are saved, and the other sizes."""
        meter, call = self.meter, self.calls[index]
        kept, brief = self.execution.made_first(call)
        if not kept and not brief:
            return 0, ()
        if released is None:
            kept, brief = (), (*kept, *brief)
        meter.take_before(call.node.name, brief)
        for place, size in enumerate(kept):
            meter.take(call.node.name, size, "saved", (index, place))
            assert released is not None
            released.setdefault(index, []).append((index, place))
        meter.step()
        return total(kept), brief

    def again(self, released: Released) -> dict[int, Callable[[], None]]:
        """By last call of a checkpoint, what runs the checkpoint again; adds to `released` what that saves."""
        order = {name: place for place, name in enumerate(self.held)} if self.checkpoints else {}

        def rerun(checkpoint: Checkpoint) -> None:
            calls = self.calls[checkpoint.first : checkpoint.end]
            names = {name for call in calls for name in (*call.node.outputs, *call.uses) if name}
            owners = {self.root.get(name, name) for name in names} & order.keys()
            first, last = checkpoint.first, checkpoint.end - 1
            held = {x: min(self.held[x], last) - first for x in sorted(owners, key=order.__getitem__)}
            lasts = _last_uses(calls, self.root, held)
            for index in range(first, checkpoint.end):
                self.run(index, released, AGAIN)
                for name in lasts.get(index - first, ()):
                    if name not in checkpoint.saved:
                        self.meter.drop(name + AGAIN)
            for name in (name for call in calls for name in call.node.outputs if name):
                if name not in checkpoint.saved:
                    self.meter.drop(name + AGAIN)

        for checkpoint in self.checkpoints:
            for name, index in checkpoint.saved.items():
                released.setdefault(index, []).append(name + AGAIN)
        return {checkpoint.last: partial(rerun, checkpoint) for checkpoint in self.checkpoints}


def _last_uses(
    calls: Sequence[PricedCall], root: Mapping[str, str], held: Mapping[str, int]
) -> dict[int, list[str]]:
    """By place of a call, the values of the program that are used, or held by the caller, there for the last time."""
    needed: set[str] = set()
    ends: dict[int, list[str]] = {}
    holding = grouped((last, name) for name, last in held.items())
    for index in range(len(calls) - 1, -1, -1):
        for name in (*calls[index].node.outputs, *calls[index].uses, *holding.get(index, ())):
            owner = None if name is None else root.get(name)
            if owner is not None and owner not in needed:
                needed.add(owner)
                if root.get(owner) == owner:
                    ends.setdefault(index, []).append(owner)
    return ends


def _saved(root: Mapping[str, str], execution: CallByCall, starts: Mapping[int, int]) -> dict[str, int]:
    """By value that is saved for gradients, the place of the earliest call whose gradient reads it.

    A checkpoint saves its inputs for its first call, and nothing that it makes.
    """
    made: dict[int, set[str]] = {}
    saved: dict[str, int] = {}
    for index, call in enumerate(execution.calls):
        start = starts.get(index)
        names = execution.saved_values(call) if start is None else call.uses
        for owner in dict.fromkeys(root[name] for name in names if name is not None and name in root):
            if start is None or owner not in made.setdefault(start, set()):
                saved.setdefault(owner, index if start is None else start)
        if start is not None:
            made.setdefault(start, set()).update(name for name in call.node.outputs if name is not None)
    return saved
