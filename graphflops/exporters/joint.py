"""Which module a call belongs to, where an export does not say: joint graphs of forward and backward.

They carry no module stack. But a parameter's name tells its module (`blocks.0.fc.weight`), and so do a call
that uses it and one that computes its gradient. Every other call follows the data: forward, the module that
produced its latest operand; backward, the module whose activation it takes the gradient of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.graph import Input, Node, Output


def with_modules(
    nodes: Sequence[Node], inputs: Iterable[Input], outputs: Sequence[Output]
) -> tuple[Node, ...]:
    """The calls, each with its module; as they are where the file names modules or computes no gradients."""
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
    """What is known of the values produced so far."""

    def __init__(self, owners: Mapping[str, str], forward: frozenset[str]) -> None:
        self.owners = dict(owners)  # module of a parameter, and of what is computed from parameters alone
        self.forward = forward
        self.produced: dict[str, tuple[int, bool, str]] = {}  # place in the program, whether forward, module

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
        """Module of the latest operand; a backward call's forward operand, a kept activation, goes first."""
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
    """Module by call, for calls that serve the gradients of one module's parameters and nothing else."""
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
    from graphflops.graph import Node

    return [name for _, name in Node("", "", (output.value,)).uses()]
