"""Runs the analyzed graph call by call.

The file is not loaded by torch: the spelling of a node's operator names the function of torch, and the node has its
arguments. Nested graphs run in the same way. Each value is freed after its last use.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.dims import Expr, evaluate
from graphflops.errors import GraphflopsError, ModelError, RunError, said_by, shown
from graphflops.exporters.pt2_values import LAYOUTS, MEMORY_FORMATS
from graphflops.graph import Graph, Node, Opaque, Ref
from graphflops.ops import Op
from graphflops.runtime.flex_nodes import Kernels, flex_attention, flex_attention_backward
from graphflops.runtime.operators import RUN, resolve
from graphflops.runtime.tensors import Weights, dtype_of
from graphflops.tensor import DType, flat

_TURNS = 100_000  # runs of nested graphs in one run of a program from a file


class TooManyTurnsError(RunError):
    """Loops of a program from a file run too often, which ends the run."""


class Step(Record, frozen=True):
    """One call that is about to run."""

    name: str  # of its row in the report, `cond/mm` for a call in a graph nested in `cond`
    node: Node
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    @property
    def nests(self) -> bool:
        """True if it runs nested graphs, whose calls are steps too. An attention's functions are not run as steps."""
        items = () if self.node.operator.has_score_function else flat((*self.args, *self.kwargs.values()))
        return any(isinstance(item, RunnableGraph) for item in items)


@dataclass
class Execution:
    """Runs of one program."""

    graph: Graph
    weights: Weights
    sizes: dict[str, int] = field(default_factory=dict)  # values of the program's symbols, as far as known
    trusted: bool = False  # True for a program in memory, False for one read from a file
    # Runs of nested graphs so far. They are limited for a program from a file, because it may never end.
    turns: int = 0
    around: Callable[[Step], Any] = lambda step: step()  # runs each step and returns its result, or raises
    # Called after each step with its results, one for each of the node's outputs.
    after: Callable[[Step, tuple[Any, ...]], None] = lambda step, results: None
    kernels: Kernels = field(default_factory=Kernels)  # our own attention kernels, and their counts
    sent: dict[str, int] = field(default_factory=dict)  # bytes sent to other devices, by the name of the call
    # Whether an error says that a call only runs on other devices.
    lacks: Callable[[Exception], bool] = lambda error: False
    _dead: dict[Graph, list[tuple[str, ...]]] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run the program, and return the value of each output of the graph.

        inputs: the program's inputs by name, on the device. In-place operators write to them.
        Raises RunError, in one line, if a call fails.
        """
        self.turns = 0
        values: dict[str, Any] = {}
        for entry in self.graph.inputs:
            if entry.role == "user":
                values[entry.name] = inputs.get(entry.name, self.graph.types.get(entry.name))
            elif entry.role in ("token", "object"):
                values[entry.name] = None
        checks = contextlib.nullcontext() if self.trusted else torch.sparse.check_sparse_tensor_invariants()
        # torch's checks refuse a sparse tensor with indices outside of it.
        with torch.no_grad(), checks:
            return self.calls(self.graph, values, "")

    def calls(self, graph: Graph, values: dict[str, Any], prefix: str) -> tuple[Any, ...]:
        """Run a graph, nested or not, given the values of its inputs and of its captures."""
        kinds = ("parameter", "buffer", "constant")
        stored = {entry.name: entry for entry in graph.inputs if entry.role in kinds}
        for node, uses, dead in zip(graph.nodes, graph.operands, self._last_uses(graph), strict=True):
            for name in uses:
                if name not in values and name in stored:
                    values[name] = self.weights.of(graph, stored[name])
            made = zip(node.outputs, self._one(node, values, prefix), strict=True)
            values.update((name, value) for name, value in made if name is not None)
            del made  # it holds references to the results
            for name in dead:
                values.pop(name, None)
        for output in graph.outputs:
            for _, name in output.uses():
                if name not in values and name in stored:
                    values[name] = self.weights.of(graph, stored[name])
        return tuple([self.argument(output.value, values, prefix) for output in graph.outputs])

    def _one(self, node: Node, values: dict[str, Any], prefix: str) -> tuple[Any, ...]:
        name = prefix + node.name
        try:
            step = Step(
                name,
                node,
                self.function(node.operator),
                tuple([self.argument(value, values, f"{name}/") for value in node.args]),
                {key: self.argument(value, values, f"{name}/") for key, value in node.kwargs},
            )
            returned, wanted = self.around(step), len(node.outputs)
            results = tuple(flat(returned)) if isinstance(returned, (tuple, list)) else (returned,)
            if wanted == 0:
                results = ()
            if (count := len(results)) != wanted:  # a None may stand for a result that is not computed
                results = tuple([item for item in results if item is not None])
            if len(results) != wanted:
                raise RunError(f"it returned {count} results, the program expects {wanted}")
        except torch.OutOfMemoryError:
            what = f"out of memory on {self.weights.device}: give smaller sizes by --dim"
            raise ModelError(f"{shown(name)} ({shown(node.op)}): {what}") from None
        except TooManyTurnsError:
            raise
        except GraphflopsError as error:
            raise RunError(f"{shown(name)} ({shown(node.op)}): {error}") from None
        except RecursionError:
            raise
        except Exception as error:
            raise RunError(f"{shown(name)} ({shown(node.op)}): {said_by(error)}") from error
        self.after(step, results)
        return results

    def function(self, op: Op) -> Callable[..., Any]:
        if op.has_score_function:
            return partial(flex_attention_backward if op.is_backward else flex_attention, self.kernels)
        if op.dialect == "higher_order" and op.word in RUN:
            return RUN[op.word]
        return resolve(op.spelling, self.trusted)

    def argument(self, argument: Any, values: Mapping[str, Any], prefix: str) -> Any:
        """An argument as torch takes it: the value of a reference, an element type of torch, the device of this run."""
        kind = type(argument)
        if kind is Ref:
            return values[argument.name]
        if kind is tuple:
            return [self.argument(item, values, prefix) for item in argument]
        if kind is Graph:
            return RunnableGraph(self, argument, {name: values[name] for name in argument.captures}, prefix)
        if kind is DType:
            return dtype_of(argument)
        if isinstance(argument, Expr):
            size = evaluate(argument, self.sizes)
            if size is None:
                raise ModelError(f"the size {shown(str(argument), 80)} is not known: give it by --dim")
            return size
        return self._opaque(argument.what) if kind is Opaque else argument

    def _opaque(self, what: str) -> Any:
        if what in LAYOUTS or what in MEMORY_FORMATS:
            return getattr(torch, what)
        if "." in what:  # the operator that a higher-order operator wraps
            return resolve(what.removeprefix("torch.ops."), self.trusted)
        if what.partition(":")[0] in ("cpu", "cuda", "meta", "mps", "xpu", "hpu"):
            return self.weights.device
        if what == "TreeSpec":  # how the operands of `flat_apply` are packed
            return None
        kind = "an object that the program stores as a pickle, which is not opened"
        raise ModelError(f"{shown(what)} is {kind}")

    def _last_uses(self, graph: Graph) -> list[tuple[str, ...]]:
        """By call: the values that no later call uses."""
        if graph not in self._dead:
            seen = {name for output in graph.outputs for _, name in output.uses()}
            found = []
            for node, uses in zip(reversed(graph.nodes), reversed(graph.operands), strict=True):
                here = dict.fromkeys([*uses, *[name for name in node.outputs if name is not None]])
                found.append(tuple([name for name in here if name not in seen]))
                seen.update(here)
            self._dead[graph] = found[::-1]
        return self._dead[graph]


class RunnableGraph(Record, frozen=True):
    """A nested graph as a Python function of its operands."""

    execution: Execution
    graph: Graph
    around: Mapping[str, Any]
    prefix: str

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        given = [entry for entry in self.graph.inputs if entry.role != "constant"]
        if len(given) != len(operands):
            raise RunError(f"graph {shown(self.graph.name)} takes {len(given)} operands, got {len(operands)}")
        self.execution.turns += 1
        if not self.execution.trusted and self.execution.turns > _TURNS:
            where = shown(self.prefix.rstrip("/"))
            raise TooManyTurnsError(f"{where}: loops of this program take more than {_TURNS:,} turns")
        values = dict(self.around)
        values.update((entry.name, value) for entry, value in zip(given, operands, strict=True))
        return self.execution.calls(self.graph, values, self.prefix)

    def alone(self) -> Callable[..., Any]:
        """The graph as a function with one result, whose calls are not steps of the execution."""
        program = self.execution
        apart = Execution(program.graph, program.weights, program.sizes, program.trusted)
        return lambda *operands: replace(self, execution=apart)(*operands)[0]
