"""What one program computes with and what it only looks up: values that depend on its inputs, and the stored ones they meet.

A value is constant where it follows from stored tensors alone. The constants that calls on other values use are compared
in an export check: before them a transposed, folded or dequantized weight looks different, there it does not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.cost import Cost
from graphflops.dims import prod
from graphflops.exporters.sources import unquantized
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.dims import Dim
    from graphflops.report import Report, Row
    from graphflops.tensor import DType

_PARAMETER, _STORED = "p_", ("p_", "b_", "c_")  # how torch.export begins the names of what it lifts to inputs


@dataclass(frozen=True, slots=True)
class ConstantUse:
    """A constant that calls of one module use.

    roots: the stored tensors it follows from.
    computed: more than views lie between the roots and the use.
    """

    value: str
    module: str
    roots: tuple[str, ...]
    shape: tuple[Dim, ...]
    dtype: DType
    computed: bool

    @property
    def numel(self) -> Dim:
        """Its elements."""
        return prod(self.shape)


@dataclass(slots=True)
class Constants:
    """The constants of a program and the calls that are not.

    rows: calls whose results depend on the program's inputs. folded: others with matrix work.
    uses: each constant by each module whose calls use it. types: shape and element type of what is stored, by name.
    """

    rows: list[Row] = field(default_factory=list)
    folded: list[Row] = field(default_factory=list)
    uses: list[ConstantUse] = field(default_factory=list)
    types: dict[str, tuple[tuple[Dim, ...], DType]] = field(default_factory=dict)

    def trained(self) -> list[ConstantUse]:
        """Uses of parameters of a program that torch.export wrote; of all that is stored where names do not tell."""
        told = any(name.startswith(_STORED) for name in self.types)
        return [
            use for use in self.uses if any(root.startswith(_PARAMETER) or not told for root in use.roots)
        ]


def constants(report: Report) -> Constants:
    """Separate what depends on the program's inputs from what does not; all depends on inputs that nobody knows."""
    found = Constants()
    changing = {named.name for named in report.inputs}
    made = {named.name for row in report.rows for named in row.outputs}
    roots: dict[str, tuple[str, ...]] = {}
    computed: dict[str, bool] = {}
    seen: set[tuple[str, str]] = set()
    regions = tuple(f"{row.node}/" for row in report.rows if row.regions)
    for row in report.rows:
        nested = bool(regions) and row.node.startswith(regions)
        for name, type_ in row.inputs:
            if name not in made and name not in changing and not nested:
                found.types.setdefault(name, (type_.shape, type_.dtype))
                roots.setdefault(name, (name,))
        used = [named for named in row.inputs if named.name not in changing]
        if nested or row.regions or not report.inputs or len(used) < len(row.inputs) or not _follows(row):
            found.rows.append(row)
            changing.update(named.name for named in row.outputs)
            for name, type_ in used:
                if roots.get(name) and (name, row.module) not in seen:
                    seen.add((name, row.module))
                    value = ConstantUse(
                        name, row.module, roots[name], type_.shape, type_.dtype, computed.get(name, False)
                    )
                    found.uses.append(value)
            continue
        if row.cost.matrix_flops != 0:
            found.folded.append(row)
        origin = tuple(dict.fromkeys(root for name, _ in used for root in roots.get(name, ())))
        works = row.state != "free" or any(computed.get(name, False) for name, _ in used)
        for name, _ in row.outputs:
            roots[name], computed[name] = origin, works
    return found


def _follows(row: Row) -> bool:
    """True unless a call's results are drawn at random."""
    return operator(row.op).kind != "random"


def plain(name: str) -> str:
    """The name of a stored tensor as either exporter would spell it."""
    for prefix in _STORED:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return unquantized(name).replace(".", "_")


def work(rows: Iterable[Row]) -> dict[str, Cost]:
    """Cost by module."""
    found: defaultdict[str, list[Cost]] = defaultdict(list)
    for row in rows:
        found[row.module].append(row.cost)
    return {module: Cost.sum(costs) for module, costs in found.items()}
