"""Runs the very graph that was analyzed, call by call.

Nothing is loaded a second time: an operator's name says which of torch's operators to call, the node holds its arguments,
and graphs nested in it run the same way. Each value is let go after its last use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from graphflops.dims import Expr, evaluate
from graphflops.errors import GraphflopsError, ModelError, RunError, shown
from graphflops.exporters.pt2_values import LAYOUTS, MEMORY_FORMATS
from graphflops.graph import Graph, Node, Opaque, Ref
from graphflops.runtime import higher_order
from graphflops.runtime.flex_nodes import Kernels, flex_attention, flex_attention_backward
from graphflops.runtime.operators import resolve
from graphflops.runtime.tensors import dtype_of
from graphflops.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphflops.runtime.tensors import Weights

ATTENTION: dict[str, Callable[..., Any]] = {
    "higher_order.flex_attention": flex_attention,
    "higher_order.flex_attention_backward": flex_attention_backward,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call about to run.

    name: that of its row in the report: `cond/mm` for a call in a graph nested in `cond`.
    """

    name: str
    node: Node
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        """What the operator returns."""
        return self.function(*self.args, **self.kwargs)

    @property
    def nests(self) -> bool:
        """Whether it runs graphs of its own, whose calls are steps as well; those of an attention's functions are none."""
        return self.node.op not in ATTENTION and any(
            isinstance(item, Region) for item in leaves((*self.args, *self.kwargs.values()))
        )


def results_of(step: Step, returned: Any) -> tuple[Any, ...]:
    """What a step returned, flat, one for each of the node's outputs; None for those that do not exist."""
    found = tuple(leaves(returned)) if isinstance(returned, (tuple, list)) else (returned,)
    wanted = len(step.node.outputs)
    if wanted == 0:
        return ()
    if len(found) != wanted:
        present = tuple([item for item in found if item is not None])
        if len(present) != wanted:
            raise RunError(f"returned {len(found)} results, the program takes {wanted}")
        found = present
    return found


@dataclass
class Execution:
    """Runs of one program.

    sizes: what is known of the program's symbols.
    trusted: the program comes from memory, not from a file.
    around: what runs each step: it calls the step, and returns what that returned, or raises.
    after: is told of each step and its results, one for each of the node's outputs.
    kernels: our own attention kernels, and what they counted.
    """

    graph: Graph
    weights: Weights
    sizes: dict[str, int] = field(default_factory=dict)
    trusted: bool = False
    around: Callable[[Step], Any] = lambda step: step()
    after: Callable[[Step, tuple[Any, ...]], None] = lambda step, results: None
    kernels: Kernels = field(default_factory=Kernels)
    _dead: dict[Graph, list[tuple[str, ...]]] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run the program: the value of each of the graph's outputs.

        inputs: by name what a caller passes, on the device. Operators that write in place write into it.
        Raises RunError, in one line, where a call cannot run.
        """
        values: dict[str, Any] = {}
        for entry in self.graph.inputs:
            if entry.role == "user":
                values[entry.name] = inputs.get(entry.name, self.graph.types.get(entry.name))
            elif entry.role in ("token", "object"):
                values[entry.name] = None
        with torch.no_grad():
            return self.calls(self.graph, values, "")

    def calls(self, graph: Graph, values: dict[str, Any], prefix: str) -> tuple[Any, ...]:
        """Run a graph, nested or not, from the values of its inputs and of what it uses from around it."""
        stored = {
            entry.name: entry for entry in graph.inputs if entry.role in ("parameter", "buffer", "constant")
        }
        for node, uses, dead in zip(graph.nodes, graph.operands, self._last_uses(graph), strict=True):
            for name in uses:
                if name not in values and name in stored:
                    values[name] = self.weights.of(graph, stored[name])
            results = self._one(node, values, prefix)
            values.update(
                (name, value) for name, value in zip(node.outputs, results, strict=True) if name is not None
            )
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
                self.function(node.op),
                tuple([self.argument(value, values, f"{name}/") for value in node.args]),
                {key: self.argument(value, values, f"{name}/") for key, value in node.kwargs},
            )
            results = results_of(step, self.around(step))
        except torch.OutOfMemoryError:
            raise ModelError(
                f"{shown(name)} ({shown(node.op)}): out of memory on {self.weights.device}: give smaller sizes by --dim"
            ) from None
        except GraphflopsError as error:
            raise RunError(f"{shown(name)} ({shown(node.op)}): {error}") from None
        except RecursionError:
            raise
        except Exception as error:
            text = shown(str(error).strip().partition("\n")[0], 300)
            raise RunError(f"{shown(name)} ({shown(node.op)}): {type(error).__name__}: {text}") from error
        self.after(step, results)
        return results

    def function(self, op: str) -> Callable[..., Any]:
        """What runs an operator."""
        if op in ATTENTION:
            return partial(ATTENTION[op], self.kernels)
        return higher_order.RUN.get(op) or resolve(op, self.trusted)

    def argument(self, argument: Any, values: Mapping[str, Any], prefix: str) -> Any:
        """An argument as the operator takes it: values for references, torch's words for ours, our device for any other."""
        kind = type(argument)
        if kind is Ref:
            return values[argument.name]
        if kind is tuple:
            return [self.argument(item, values, prefix) for item in argument]
        if kind is Graph:
            return Region(self, argument, {name: values[name] for name in argument.captures}, prefix)
        if kind is DType:
            return dtype_of(argument)
        if isinstance(argument, Expr):
            size = evaluate(argument, self.sizes)
            if size is None:
                raise ModelError(f"the size {shown(str(argument), 80)} is not known: give it by --dim")
            return size
        return self._opaque(argument.what) if kind is Opaque else argument

    def _opaque(self, what: str) -> Any:
        if what in LAYOUTS:
            return getattr(torch, what)
        if what in MEMORY_FORMATS:
            return getattr(torch, what)
        if "." in what:  # the operator that a higher-order one wraps
            return resolve(what.removeprefix("torch.ops."), self.trusted)
        if what.partition(":")[0] in ("cpu", "cuda", "meta", "mps", "xpu", "hpu"):
            return self.weights.device
        raise ModelError(
            f"{shown(what)} is an object that the program keeps as a pickle, which is not opened"
        )

    def _last_uses(self, graph: Graph) -> list[tuple[str, ...]]:
        """By call: the values that nobody uses after it."""
        known = self._dead.get(graph)
        if known is None:
            returned = {name for output in graph.outputs for _, name in output.uses()}
            known = []
            seen = set(returned)
            for node, uses in zip(reversed(graph.nodes), reversed(graph.operands), strict=True):
                here = dict.fromkeys([*uses, *[name for name in node.outputs if name is not None]])
                known.append(tuple([name for name in here if name not in seen]))
                seen.update(here)
            known.reverse()
            self._dead[graph] = known
        return known


@dataclass(frozen=True, slots=True)
class Region:
    """A nested graph as a function of its operands."""

    execution: Execution
    graph: Graph
    around: Mapping[str, Any]
    prefix: str

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        given = [entry for entry in self.graph.inputs if entry.role != "constant"]
        if len(given) != len(operands):
            raise RunError(f"graph {shown(self.graph.name)} takes {len(given)} operands, got {len(operands)}")
        values = dict(self.around)
        values.update((entry.name, value) for entry, value in zip(given, operands, strict=True))
        return self.execution.calls(self.graph, values, self.prefix)


def leaves(values: Any) -> Iterator[Any]:
    """What tuples and lists hold, however deep."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from leaves(value)
        else:
            yield value
