"""The tree of modules of one program; equal modules have equal signatures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphflops.comparison.interned_calls import Counts, counted, together
from graphflops.report import Report

_DEEPEST = 100  # components of a path; what goes on past them counts as the last one


@dataclass(eq=False, slots=True)
class ComparedModule:
    """A module of one program, and what is in it.

    type: as the file records it. kind: without the package, which exporters and moves between files change.
    rows: of its own calls in program order. calls: (row, kind) of those that cost something.
    parameters: elements that it holds itself. first: the first of the calls in it, as a row of the report.
    mark: what its own calls are compared by.
    signature: equal for modules that are equal from here down, but for their own names.
    size: modules from here down.
    """

    path: str
    name: str
    parent: ComparedModule | None
    type: str = ""
    kind: str = ""
    rows: list[int] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    parameters: int = 0
    first: int | None = None
    children: dict[str, ComparedModule] = field(default_factory=dict)
    mark: Hashable = ()
    signature: int = -1
    size: int = 1
    _counts: Counts | None = None

    @property
    def own(self) -> Counts:
        """Its own calls, counted by kind."""
        return counted(kind for _, kind in self.calls)

    @property
    def counts(self) -> Counts:
        """All calls in the module and its submodules, counted by kind."""
        if self._counts is None:
            for module in self.below():
                if module._counts is None:
                    parts = [part for child in module.children.values() if (part := child._counts)]
                    module._counts = together([module.own, *parts]) if parts else module.own
        assert self._counts is not None
        return self._counts

    @property
    def holds(self) -> int:
        """Elements of parameters in the module and its submodules."""
        return sum(module.parameters for module in self.below())

    @property
    def numbered(self) -> bool:
        """True if its name is an index in a list."""
        return self.name.isascii() and self.name.isdecimal() and len(self.name) < 10

    def below(self) -> Iterator[ComparedModule]:
        """The module and all in it, submodules first."""
        ordered, stack = [], [self]
        while stack:
            module = stack.pop()
            ordered.append(module)
            stack.extend(module.children.values())
        return reversed(ordered)

    def above(self) -> Iterator[ComparedModule]:
        """The modules around this one, the innermost first."""
        module = self.parent
        while module is not None:
            yield module
            module = module.parent


def grown(
    report: Report,
    kinds: Sequence[int | None],
    parameters: Mapping[str, int],
    signatures: dict[Hashable, int],
    mark: Callable[[ComparedModule], Hashable],
) -> ComparedModule:
    """The modules of a report. `signatures` is shared by the programs that are compared."""
    root = ComparedModule("", "", None, report.modules.get("", ""))
    by_path = {"": root}

    def at(path: str) -> ComparedModule:
        found = by_path.get(path)
        if found is None:
            found, so_far = root, ""
            for part in path.split(".", _DEEPEST - 1):
                so_far = f"{so_far}.{part}" if so_far else part
                if part not in found.children:
                    found.children[part] = ComparedModule(so_far, part, found, report.modules.get(so_far, ""))
                found = found.children[part]
            by_path[path] = found
        return found

    for index, (row, kind) in enumerate(zip(report.rows, kinds, strict=True)):
        module = at(row.module)
        module.rows.append(index)
        if module.first is None and kind is not None:
            module.first = index
        module.type = module.type or row.module_type
        if kind is not None:
            module.calls.append((index, kind))
    for path, count in parameters.items():
        at(path).parameters += count
    for path in report.modules:
        at(path)
    for module in root.below():
        _finish(module, signatures, mark)
    return root


def _finish(
    module: ComparedModule, signatures: dict[Hashable, int], mark: Callable[[ComparedModule], Hashable]
) -> None:
    """Sorts the submodules of a module in program order and computes its signature from theirs."""
    module.kind = module.type.rpartition(".")[2]
    late = 1 << 60
    parts = sorted(module.children.values(), key=lambda part: late if part.first is None else part.first)
    module.children = {part.name: part for part in parts}
    starts = [part.first for part in (*parts, module) if part.first is not None]
    module.first = min(starts, default=None)
    module.size = 1 + sum(part.size for part in parts)
    module.mark = mark(module)
    key = (module.mark, module.parameters, *((part.name, part.signature) for part in parts))
    module.signature = signatures.setdefault(key, len(signatures))
