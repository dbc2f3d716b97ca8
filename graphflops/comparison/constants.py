"""What one program computes with and what it only looks up: values that depend on its inputs, and the stored ones they meet.

A value is constant where it follows from stored tensors and from sizes alone, as positions do. The constants that calls on
other values use are compared in an export check: before them a transposed, folded or dequantized weight looks different,
there it does not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from graphflops.cost import Cost
from graphflops.dims import Dim, prod
from graphflops.exporters.sources import unquantized
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import DType

_NO_WORD = re.compile(r"\W", re.ASCII)
_PARAMETER, STORED = "p_", ("p_", "b_", "c_")  # how torch.export begins the names of what it lifts to inputs


@dataclass(frozen=True, slots=True)
class ConstantUse:
    """A constant that calls of one module use."""

    value: str
    module: str
    roots: tuple[str, ...]  # the stored tensors it follows from
    shape: tuple[Dim, ...]
    dtype: DType
    computed: bool  # more than views lie between the roots and the use

    @property
    def numel(self) -> Dim:
        return prod(self.shape)


@dataclass(slots=True)
class Constants:
    """The constants of a program and the calls that are not."""

    rows: list[Row] = field(default_factory=list)  # calls whose results depend on the program's inputs
    folded: list[Row] = field(default_factory=list)  # others with matrix work
    # Calls with matrix work that no result of the program depends on.
    unused: list[Row] = field(default_factory=list)
    # The file records no module; they are read from names, which optimizers of graphs change.
    modules_guessed: bool = False
    uses: list[ConstantUse] = field(default_factory=list)  # each constant by each module whose calls use it
    types: dict[str, tuple[tuple[Dim, ...], DType]] = field(default_factory=dict)  # by name of what is stored

    def trained(self) -> list[ConstantUse]:
        """Uses of parameters of a program that torch.export wrote, of all that is stored where names do not tell.

        The first root of each is a parameter.
        """
        told = any(name.startswith(STORED) for name in self.types)
        found = []
        for use in self.uses:
            roots = [root for root in use.roots if root.startswith(_PARAMETER) or not told]
            if roots:
                found.append(replace(use, roots=tuple(dict.fromkeys((*roots, *use.roots)))))
        return found


def constants(report: Report, renamed: Callable[[Dim], Dim]) -> Constants:
    """Separate what depends on the program's inputs from what does not; all depends on inputs that nobody knows.

    renamed: the joint sizes for the program's own.
    """
    regions = tuple(f"{row.node}/" for row in report.rows if row.regions)
    found = Constants(modules_guessed=not any(row.module_type for row in report.rows))
    needed, found.unused = _by_need(report, regions)
    changing = {named.name for named in report.inputs}
    made = {named.name for row in report.rows for named in row.outputs}
    roots: dict[str, tuple[str, ...]] = {}
    computed: dict[str, bool] = {}
    uses: dict[tuple[str, str], ConstantUse] = {}
    for row in needed:
        nested = bool(regions) and row.node.startswith(regions)
        for name, type_ in row.inputs:
            if name not in made and name not in changing and not nested:
                found.types.setdefault(name, (tuple(map(renamed, type_.shape)), type_.dtype))
                roots.setdefault(name, (name,))
        read = row.inputs[operator(row.op).reads_sizes :]
        used = [named for named in read if named.name not in changing]
        # Results that do not follow from the operands listed.
        is_drawn = operator(row.op).kind in ("random", "sequence")
        if nested or row.regions or not report.inputs or len(used) < len(read) or is_drawn:
            found.rows.append(row)
            changing.update(named.name for named in row.outputs)
            for name, type_ in used:
                if roots.get(name) and (name, row.module) not in uses:
                    shape, works = tuple(map(renamed, type_.shape)), computed.get(name, False)
                    use = ConstantUse(name, row.module, roots[name], shape, type_.dtype, works)
                    uses[name, row.module] = use
            continue
        if row.cost.matrix_flops != 0:
            found.folded.append(row)
        origin = tuple(dict.fromkeys(root for name, _ in used for root in roots.get(name, ())))
        works = row.state != "free" or any(computed.get(name, False) for name, _ in used)
        for name, _ in row.outputs:
            roots[name], computed[name] = origin, works
    found.uses = [*uses.values()]
    return found


def _by_need(report: Report, regions: tuple[str, ...]) -> tuple[list[Row], list[Row]]:
    """The calls that results of the program depend on, all where the results are not known; and the other matrix work.

    regions: how names of calls in nested graphs begin. These, calls that write to an operand and unknown ones are needed.
    """
    wanted = set(report.outputs)
    needed, unused = [], []
    for row in reversed(report.rows):
        nested = row.regions or (regions and row.node.startswith(regions))
        acts = nested or not row.outputs or row.state == "unknown" or operator(row.op).mutates
        if not report.outputs or acts or not wanted.isdisjoint(name for name, _ in row.outputs):
            needed.append(row)
            wanted.update(name for name, _ in row.inputs)
        elif row.cost.matrix_flops != 0:
            unused.append(row)
    return needed[::-1], unused[::-1]


@lru_cache(maxsize=10_000)
def plain(name: str) -> str:
    """The name of a stored tensor as either exporter would spell it."""
    for prefix in STORED:
        if name.startswith(prefix):
            return name[len(prefix) :].lower()
    return _NO_WORD.sub("_", unquantized(name)).lower()


def work(rows: Iterable[Row]) -> dict[str, Cost]:
    """Cost by module."""
    found: defaultdict[str, list[Cost]] = defaultdict(list)
    for row in rows:
        found[row.module].append(row.cost)
    return {module: Cost.sum(costs) for module, costs in found.items()}


_FEW = 4  # a prefix leads to more than one in so many names: optimizers of graphs rename many


def is_export(old: Report, new: Report) -> bool:
    """True for a program and its export, which keeps the work and not the operators."""
    return (old.origin.format == "onnx") != (new.origin.format == "onnx")


def under_common_names(
    old: Report, new: Report, uniform: Callable[[str], float | None]
) -> tuple[Report, Report, Callable[[str], float | None]]:
    """Of an export check both programs by the names inside of the module that the inner one is, and `uniform` by those."""
    if not is_export(old, new):
        return old, new, uniform
    if prefix := _prefix(old, new):
        return old, _unwrapped(new, prefix)[0], uniform
    if prefix := _prefix(new, old):
        old, names = _unwrapped(old, prefix)
        return old, new, lambda name: uniform(names.get(name, name))
    return old, new, uniform


def _prefix(inner: Report, outer: Report) -> str:
    """How names of the outer program begin that are the inner one's behind it; "" where more are equal as they are."""
    found, names = _names(inner), _names(outer)
    met: Counter[str] = Counter()
    for name in names:
        ends = [0, *(place + 1 for place, sign in enumerate(name) if sign == "_"), len(name) + 1]
        met.update({name[: end - 1] if end else "" for end in ends if name[end:] in found})
    best = max(met, key=lambda prefix: (met[prefix], -len(prefix)), default="")
    return best if met[best] > max(met[""], min(len(found), len(names)) // _FEW) else ""


def _names(report: Report) -> set[str]:
    """Modules with products and stored tensors, as either exporter would spell them."""
    modules = {row.module for row in report.rows if row.cost.matrix_flops != 0}
    return {plain(name) for name in (*modules, *_stored(report))}


def _stored(report: Report) -> dict[str, None]:
    made = {named.name for named in report.inputs}.union(n.name for row in report.rows for n in row.outputs)
    return dict.fromkeys(n.name for row in report.rows for n in row.inputs if n.name not in made)


def _unwrapped(report: Report, prefix: str) -> tuple[Report, Mapping[str, str]]:
    """The program with what is in a module under its names there; by new name of a stored tensor the old one."""
    stored = _stored(report)
    inside = {name: _inside(name, prefix) for name in stored}
    names = {name: new for name, new in inside.items() if new not in stored}
    rows = tuple(
        row._replace(
            module=_inside(row.module, prefix),
            inputs=tuple(named._replace(name=names.get(named.name, named.name)) for named in row.inputs),
        )
        for row in report.rows
    )
    modules = {_inside(path, prefix): type_ for path, type_ in report.modules.items()}
    held = {_inside(path, prefix): count for path, count in report.parameter_modules.items()}
    found = replace(report, rows=rows, modules=modules, parameter_modules=held)
    return found, {new: old for old, new in names.items()}


def _inside(name: str, prefix: str) -> str:
    """A path or the name of a stored tensor without the prefix; one beside it as it is."""
    kind = next((kind for kind in STORED if name.startswith(kind)), "")
    rest = name.removeprefix(kind)
    if plain(name) == prefix or plain(name).startswith(f"{prefix}_"):
        rest = rest[len(prefix) + 1 :]
    return kind + rest
