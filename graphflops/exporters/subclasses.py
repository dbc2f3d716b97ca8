"""Weights of tensor subclasses, such as torchao's quantized ones: what is stored are the plain tensors they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from graphflops.graph import Input, Node, Output, Ref
from graphflops.tensor import TensorType

_TAKES_PART = "export.access_subclass_inner_tensor.default"  # a weight, and the name of its part
_LONGEST = 500  # characters of a weight's name, behind which those of its parts stand


def with_parts(
    nodes: tuple[Node, ...], inputs: tuple[Input, ...], outputs: Iterable[Output], types: dict[str, object]
) -> tuple[tuple[Node, ...], tuple[Input, ...]]:
    """The calls and inputs, with parts (which may have parts) in place of each weight that the program only takes apart."""
    if not any(node.op == _TAKES_PART for node in nodes):
        return nodes, inputs
    others = [node for node in nodes if node.op != _TAKES_PART]
    others += [Node("", "", (output.value,)) for output in outputs]
    used = {name for node in others for _, name in node.uses()}
    weights = {entry.name: entry for entry in inputs if entry.target}
    parts: dict[str, list[Input]] = {}
    taken: set[str] = set()
    kept: list[Node] = []
    for node in nodes:
        whole, name = _asked(node)
        of = weights.get(whole)
        if of is None or whole in used or len(of.target) > _LONGEST:
            kept.append(node)
            continue
        target = f"{of.target}.{name}"
        shared = next((one for one in (target, f"{of.alias_of}.{name}") if one in taken), "")
        part = weights[str(node.outputs[0])] = Input(str(node.outputs[0]), of.role, target, shared)
        parts.setdefault(whole, []).append(part)
        taken.add(target)
        _train(types, whole, part.name)
    return tuple(kept), tuple(_taken_apart(inputs, parts))


def _asked(node: Node) -> tuple[str, str]:
    """The tensor that a call takes a part of, and the part's name; texts without a character for other calls."""
    if node.op == _TAKES_PART and len(node.args) == 2 and len(node.outputs) == 1 and node.outputs[0]:
        whole, name = node.args
        if isinstance(whole, Ref) and isinstance(name, str):
            return whole.name, name
    return "", ""


def _taken_apart(inputs: Sequence[Input], parts: Mapping[str, Sequence[Input]]) -> Iterator[Input]:
    """The inputs, and in the place of each that has parts these."""
    waiting = [*reversed(inputs)]
    while waiting:
        entry = waiting.pop()
        if entry.name in parts:
            waiting.extend(reversed(parts[entry.name]))
        else:
            yield entry


def _train(types: dict[str, object], whole: str, part: str) -> None:
    """A part in floating point is trained with its weight."""
    weight, typed = types.get(whole), types.get(part)
    if isinstance(weight, TensorType) and isinstance(typed, TensorType) and typed.dtype.is_floating:
        types[part] = replace(typed, requires_grad=weight.requires_grad)
