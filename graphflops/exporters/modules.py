"""The module of each call where an export does not record it: joint graphs of forward and backward, and nested graphs.

A joint graph carries no module stack. But a parameter's name tells its module (`blocks.0.fc.weight`), so a call that uses
the parameter, or that computes its gradient, is in that module. Every other call follows the data: in the forward pass it
is in the module that produced its latest operand; in the backward pass, in that whose activation it takes the gradient of.

Parameters reach a nested graph (a branch, the body of a loop) as operands: a call is in the module of the parameter that it
uses, otherwise in that of its latest operand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.graph import Argument, Graph, Node, Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.graph import Input, Output


def with_modules(
    nodes: Sequence[Node], inputs: Iterable[Input], outputs: Sequence[Output]
) -> tuple[Node, ...]:
    """The calls with their modules, for a joint graph that records none; the calls of any other graph unchanged."""
    if not any(output.role == "gradient" for output in outputs) or any(node.module for node in nodes):
        return tuple(nodes)
    owners = {
        e.name: e.target.rpartition(".")[0] for e in inputs if e.role in ("parameter", "buffer") and e.target
    }
    operands = {node.name: [name for _, name in node.uses()] for node in nodes}
    flow = _Flow(owners, _forward(nodes, operands, outputs))
    leads = _leads(nodes, operands, outputs)
    placed = []
    for node in nodes:
        module = flow.module(node, operands[node.name], leads)
        placed.append(replace(node, module=module) if module else node)
    return tuple(placed)


class _Flow:
    """The modules of the values produced so far."""

    def __init__(self, owners: Mapping[str, str], forward: frozenset[str]) -> None:
        self.owners = dict(owners)  # module of a parameter, and of what is computed from parameters alone
        self.forward = forward
        self.produced: dict[
            str, tuple[int, bool, str]
        ] = {}  # position in the program, True if forward, module

    def module(self, node: Node, operands: Sequence[str], leads: Mapping[str, str]) -> str:
        """Module of the next call in program order."""
        owned = [self.owners[name] for name in operands if name in self.owners]
        if owned:
            module = owned[0]
        elif node.name in leads:
            module = leads[node.name]
        else:
            module = self.inherited(node, operands)
        is_forward = node.name in self.forward
        entry = (len(self.produced), is_forward, module)
        for name in node.outputs:
            if name is not None:
                self.produced[name] = entry
                if owned and len(owned) == len(operands):
                    self.owners[name] = module
        return module

    def inherited(self, node: Node, operands: Sequence[str]) -> str:
        """Module of the latest operand; for a backward call, of the latest operand from the forward pass, if any."""
        known = [self.produced[name] for name in operands if name in self.produced and self.produced[name][2]]
        if node.name not in self.forward:
            known = [entry for entry in known if entry[1]] or known
        return max(known)[2] if known else ""


def _forward(
    nodes: Sequence[Node], operands: Mapping[str, Sequence[str]], outputs: Iterable[Output]
) -> frozenset[str]:
    """Names of the calls that lead to the loss, a user output or a mutation."""
    wanted = {name for output in outputs if output.role != "gradient" for name in _names(output)}
    forward = set()
    for node in reversed(nodes):
        if any(name in wanted for name in node.outputs if name is not None):
            forward.add(node.name)
            wanted.update(operands[node.name])
    return frozenset(forward)


def _leads(
    nodes: Sequence[Node], operands: Mapping[str, Sequence[str]], outputs: Iterable[Output]
) -> dict[str, str]:
    """Module by call, for calls whose results lead only to gradients of one module's parameters."""
    serves: dict[str, set[str]] = {}  # by value: modules served; "" stands for anything else
    for output in outputs:
        module = output.target.rpartition(".")[0] if output.role == "gradient" else ""
        for name in _names(output):
            serves.setdefault(name, set()).add(module)
    leads = {}
    for node in reversed(nodes):
        modules = set().union(*(serves.get(name, set()) for name in node.outputs if name is not None))
        if len(modules) != 1:
            modules = {""}
        (module,) = modules
        if module:
            leads[node.name] = module
        for name in operands[node.name]:
            serves.setdefault(name, set()).add(module)
    return leads


def _names(output: Output) -> list[str]:
    return [name for _, name in Node("", "", (output.value,)).uses()]


def with_nested_modules(nodes: Sequence[Node], inputs: Iterable[Input]) -> tuple[Node, ...]:
    """The calls, with modules set on the calls of nested graphs in their arguments."""
    owners = {
        entry.name: entry.target.rpartition(".")[0]
        for entry in inputs
        if entry.role in ("parameter", "buffer") and entry.target
    }
    return _with_owners(nodes, owners)


def _with_owners(nodes: Sequence[Node], owners: Mapping[str, str]) -> tuple[Node, ...]:
    return tuple([_entered(node, owners) if any(map(_is_graph, node.args)) else node for node in nodes])


def _entered(node: Node, owners: Mapping[str, str]) -> Node:
    last = max(index for index, argument in enumerate(node.args) if _is_graph(argument))
    operands = list(_flat(node.args[last + 1 :]))
    args = tuple(
        _placed(argument, operands, owners) if isinstance(argument, Graph) else argument
        for argument in node.args
    )
    return replace(node, args=args)


def _placed(graph: Graph, operands: Sequence[Argument], owners: Mapping[str, str]) -> Graph:
    if len(operands) != len(graph.inputs):
        return graph
    inner = {
        entry.name: owners[operand.name]
        for entry, operand in zip(graph.inputs, operands, strict=True)
        if isinstance(operand, Ref) and operand.name in owners
    }
    if not inner:
        return graph
    produced: dict[str, str] = {}
    nodes = []
    for node in _with_owners(graph.nodes, inner):
        uses = [name for _, name in node.uses()]
        owned = [inner[name] for name in uses if name in inner]
        inherited = [produced[name] for name in uses if name in produced]
        module = node.module or (owned or inherited[-1:] or [""])[0]
        produced.update((name, module) for name in node.outputs if name is not None)
        nodes.append(node if node.module else replace(node, module=module))
    return replace(graph, nodes=tuple(nodes))


def _flat(arguments: Iterable[Argument]) -> Iterator[Argument]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument


def _is_graph(argument: Argument) -> bool:
    return isinstance(argument, Graph)
