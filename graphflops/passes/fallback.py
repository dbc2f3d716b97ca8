"""Result types of calls whose rule gives none: those that the format infers, else those that the file declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphflops.cost import Value
from graphflops.dims import Dim
from graphflops.errors import shown
from graphflops.graph import Graph, Node
from graphflops.report import Diagnostic
from graphflops.report.diagnostics import diagnostic
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType

_KNOWN = (TensorType, SequenceType, OptionalType)
_MOST_NAMES = 3  # in one diagnostic
_FEW = 64  # elements of an integer tensor that sizes may be computed from
_SOURCES = {
    "inferred": "onnx's own shape inference",
    "declared": "what the file declares",
    "unknown": "nowhere",
}


class FallbackTypes:
    """Result types of calls whose rule gives none: those that the format infers, else those that the file declares.

    sources: names of values by where their types come from. outdated: values that the file declares with another type.
    integers: stored ones whose contents are not known, each with their number. makers: calls by result, where looked for.
    """

    def __init__(self, graph: Graph) -> None:
        self.integers = dict(_unread_integers(graph))
        self.makers: dict[Graph, dict[str, Node]] = {}
        self.sources: dict[str, list[str]] = {}
        self.outdated: list[str] = []

    def of(
        self, node: Node, operands: Sequence[Value], derived: Sequence[Value], graph: Graph
    ) -> dict[int, Value]:
        """The best known type of each wanted result that the rule gives none for, by its position.

        derived: results of the rule, which may be no more than an element type.
        """
        infer = graph.fallback_types
        found = {} if infer is None else dict(enumerate(infer(node, operands)))
        types: dict[int, Value] = {}
        for place, name in enumerate(node.outputs):
            ours = derived[place] if place < len(derived) else None
            if name is None or isinstance(ours, _KNOWN):
                continue
            declared = (graph.declared or {}).get(name)
            candidates = {"inferred": found.get(place), "declared": declared}
            source = next(
                (source for source, candidate in candidates.items() if isinstance(candidate, _KNOWN)),
                "unknown",
            )
            vague = (ours, *candidates.values())
            unknown = next(
                (
                    candidate
                    for candidate in vague
                    if isinstance(candidate, UnknownType) and candidate.dtype is not None
                ),
                UnknownType(),
            )
            types[place] = candidates.get(source, unknown)  # type: ignore[assignment]
            self.sources.setdefault(source, []).append(name)
        return types

    def unread(self, operands: Sequence[str], values: Mapping[str, Value], graph: Graph) -> bool:
        """Whether one of the operands is stored integers that are not read, or computed from a few such."""
        if not self.integers or any(name in self.integers for name in operands):
            return bool(self.integers)
        makers = self.makers.setdefault(graph, {})
        if not makers:
            makers.update((made, node) for node in graph.nodes for made in node.outputs if made is not None)
        waiting, seen = [*operands[1:]], set()
        while waiting:
            name = waiting.pop()
            typed = values.get(name)
            if name in seen or not isinstance(typed, TensorType) or typed.dtype.kind != "int":
                continue
            seen.add(name)
            if self.integers.get(name, _FEW + 1) <= _FEW:
                return True
            waiting.extend(used for _, used in (makers[name].uses() if name in makers else ()))
        return False

    def compare(self, name: str, ours: Value, graph: Graph) -> None:
        """Record a value whose declared type provably differs from the derived one."""
        if graph.declared is None or name not in graph.declared:
            return
        declared = graph.declared[name]
        if isinstance(ours, TensorType) and declared_otherwise(declared, ours):
            self.outdated.append(f"{shown(name)} is {ours}, declared as {declared}")

    def diagnostics(self) -> list[Diagnostic]:
        """One for each source of types, and one for values declared with another type."""
        found = []
        for source, names in self.sources.items():
            known = f"known from {_SOURCES[source]} alone" if source != "unknown" else "not known"
            text = f"the types of {_listed(names)} are {known}"
            found.append(diagnostic("GF110", "", text))
        if self.outdated:
            text = f"what the file declares of {len(self.outdated)} values is out of date: {self.outdated[0]}"
            found.append(diagnostic("GF213", "", text))
        return found


def _listed(names: list[str]) -> str:
    some = ", ".join(shown(name) for name in names[:_MOST_NAMES])
    rest = len(names) - _MOST_NAMES
    return f"{some} and {rest} more values" if rest > 0 else some


def declared_otherwise(declared: object, ours: TensorType) -> bool:
    """Whether the type that a file declares of a value provably differs from its own; of any rank, the element type does."""
    if isinstance(declared, UnknownType):
        return declared.dtype not in (None, ours.dtype)
    if not isinstance(declared, TensorType):
        return False
    if declared.rank != ours.rank or declared.dtype is not ours.dtype:
        return True
    return any(map(_is_other, ours.shape, declared.shape))


def _is_other(ours: Dim, declared: Dim) -> bool:
    return isinstance(declared, int) and isinstance(ours, int) and ours != declared


def _unread_integers(graph: Graph) -> Iterator[tuple[str, int]]:
    """The stored integers of a program whose contents are not known, and how many elements they have."""
    for entry in graph.inputs:
        typed = graph.types.get(entry.name) if entry.role != "user" else None
        if isinstance(typed, TensorType) and typed.dtype.kind == "int" and typed.value is None:
            yield entry.name, typed.numel  # type: ignore[misc]  # stored tensors have numbers for sizes
