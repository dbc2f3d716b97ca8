"""Runs the analyzed graph call by call.

The file is not loaded by torch: the spelling of a node's operator names the function of torch, and the node has its
arguments. Nested graphs run in the same way. Each value is freed after its last use.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from graphflops.base.record import Record, replace
from graphflops.dims import Expr, evaluate
from graphflops.errors import FileError, GraphflopsError, ModelError, RunError, first_line, said_by, shown
from graphflops.exporters.pt2_values import LAYOUTS, MEMORY_FORMATS
from graphflops.graph import Graph, Input, Node, Opaque, Ref, Stored
from graphflops.ops import Op
from graphflops.report import Report
from graphflops.runtime.flex_nodes import Kernels, flex_attention, flex_attention_backward
from graphflops.runtime.input_plans import LARGEST, random_values
from graphflops.runtime.operators import RUN, resolve
from graphflops.tensor import DType, TensorType, flat
from graphflops.view import View

SPREAD = 0.02  # standard deviation of random weights: small enough for sums to stay finite in half precision
_TURNS = 100_000  # runs of nested graphs in one run of a program from a file


class Weights:
    """Values of a program's parameters, buffers and constants on one device.

    random: use random numbers instead of the stored ones. keep: True keeps them on the device between runs, so that a run
    waits for no copy from the host; otherwise each is on the device from its first to its last use in a run.
    """

    def __init__(self, graph: Graph, device: torch.device, random: bool = False, keep: bool = False) -> None:
        self.graph, self.device, self.random, self.keep = graph, device, random, keep
        self._kept: dict[tuple[Graph, str], torch.Tensor] = {}

    def of(self, graph: Graph, entry: Input) -> torch.Tensor:
        """The value of an input of the program or of a nested graph. It is a copy if the program may write to it.

        Raises FileError if the file does not store it as numbers, and ModelError if a size is unknown.
        """
        if not self.keep:
            return self._made(graph, entry)
        if (graph, entry.name) not in self._kept:
            self._kept[graph, entry.name] = self._made(graph, entry)
        kept = self._kept[graph, entry.name]
        return kept.clone() if entry.role == "buffer" else kept

    def _made(self, graph: Graph, entry: Input) -> torch.Tensor:
        typed = graph.types.get(entry.name)
        if not isinstance(typed, TensorType):
            raise ModelError(f"input {shown(entry.name)} is not a tensor: {shown(str(typed), 80)}")
        if self.random:
            return random_weight(typed, self.device)
        stored = graph.contents(entry.name) if graph.contents is not None else None
        what = shown(entry.target or entry.name)
        if stored is not None:
            if stored.shape != typed.shape or stored.dtype is not typed.dtype:
                held = shown(str(TensorType(stored.shape, stored.dtype)))
                raise FileError(f"{what} is {typed} in the program, and {held} where it is stored")
            try:
                return tensor_of(stored).to(self.device, copy=entry.role != "parameter")
            except (TypeError, ValueError, OverflowError) as error:
                form = f"a form that torch does not accept: {first_line(error, 120)}"
                raise FileError(f"{what} is stored in {form}") from None
        found = self._checkpoint.get(entry.target)
        if isinstance(found, torch.Tensor) and not found.is_meta:
            return found.detach().to(self.device, copy=entry.role != "parameter")
        raise FileError(f"{what} is not stored in the program: use --random-weights")

    @cached_property
    def _checkpoint(self) -> dict[str, Any]:
        """Tensors in checkpoints, as torch before 2.9 wrote them; torch reads these without running code."""
        found: dict[str, Any] = {}
        for data in getattr(self.graph.contents, "checkpoints", list)():
            try:
                loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
            except Exception as error:  # noqa: BLE001 reading an untrusted file may raise anything
                why = f"a pickle of other objects, which is not opened ({first_line(error, 120)})"
                path = shown(self.graph.origin.path)
                raise FileError(f"{path}: its weights are {why}: use --random-weights") from None
            found |= loaded if isinstance(loaded, dict) else {}
        return found


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
        for name in graph.returned:
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
        except (TooManyTurnsError, RecursionError):
            raise
        except GraphflopsError as error:
            raise RunError(f"{shown(name)} ({shown(node.op)}): {error}") from None
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
            seen, found = {*graph.returned}, []
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


def dtype_of(dtype: DType) -> torch.dtype:
    """Torch's element type of that name. Raises ModelError if this torch has none."""
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise ModelError(f"this torch has no element type {shown(dtype.name)}")
    return found


def tensor_of(stored: Stored) -> torch.Tensor:
    """A stored tensor as torch's, which shares its memory."""
    dtype = dtype_of(stored.dtype)
    if 0 in stored.shape or not stored.memory:
        return torch.empty(stored.shape, dtype=dtype)
    with warnings.catch_warnings():
        # torch warns if memory is read-only; nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        whole = len(stored.memory) // dtype.itemsize * dtype.itemsize
        flat = torch.frombuffer(stored.memory, dtype=torch.uint8, count=whole)
    return flat.view(dtype).as_strided(stored.shape, stored.strides, stored.offset)


def random_weight(typed: TensorType, device: torch.device) -> torch.Tensor:
    """Values like those of a new layer: matrices near zero, vectors near one. Raises ModelError if a size is unknown."""
    shape = tuple([size for size in typed.shape if isinstance(size, int)])
    if len(shape) < len(typed.shape):
        unknown = [shown(str(size)) for size in typed.shape if not isinstance(size, int)]
        raise ModelError(f"sizes are unknown: give {', '.join(unknown)} by --dim")
    if math.prod(shape) > LARGEST:
        raise ModelError(f"a tensor of {shown(str(typed))} does not fit in memory")
    dtype = dtype_of(typed.dtype)
    if typed.dtype.kind == "bool":
        return torch.ones(shape, dtype=dtype, device=device)
    if not typed.dtype.is_floating:
        return torch.zeros(shape, dtype=dtype, device=device)
    if dtype.itemsize < 2:
        return torch.empty(shape, device=device).normal_(std=SPREAD).to(dtype)
    filled = torch.empty(shape, dtype=dtype, device=device).normal_(std=SPREAD)
    return filled if len(shape) > 1 else filled.abs_().add_(1)


def random_inputs(report: Report, view: View, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """One random tensor for each input of the program, as `random_values` says."""
    generator = torch.Generator().manual_seed(seed)
    normal, integers = (partial(make, generator=generator) for make in (torch.randn, torch.randint))
    made = random_values(report, view, normal, torch.ones, integers)
    return {name: numbers.to(dtype_of(dtype)).to(device) for name, dtype, numbers in made}
