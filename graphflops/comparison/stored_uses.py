"""The constants and the input-dependent calls of a program, and what became of each trained parameter in an export.

A value is constant if it follows from stored tensors and sizes alone, as positions do. An export check compares the
constants at the calls that use them: there a weight looks the same, however the export transposes, folds or dequantizes it
before. A parameter is found by name, by module, as a part, or folded into another.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from msgspec import Struct

from graphflops.base.record import Record
from graphflops.comparison.result import LedgerEntry, LedgerKind, LedgerStatus
from graphflops.comparison.sizes import Renamed
from graphflops.dims import Dim, prod, total
from graphflops.exporters.sources import unquantized
from graphflops.ops import operator
from graphflops.report import Row
from graphflops.tensor import DType, grouped

_NO_WORD = re.compile(r"\W", re.ASCII)
_PARAMETER, STORED = "p_", ("p_", "b_", "c_")  # prefixes of torch.export for what it lifts to inputs


class ConstantUse(Record, frozen=True):
    """A constant that calls of one module use."""

    value: str
    module: str
    roots: tuple[str, ...]  # the stored tensors it follows from
    shape: tuple[Dim, ...]
    dtype: DType
    computed: bool  # whether calls other than views lie between the roots and the use

    @property
    def numel(self) -> Dim:
        return prod(self.shape)


class Constants(Struct):
    """The constants of a program, and the calls that depend on its inputs."""

    renamed: Renamed  # puts joint sizes into a quantity
    rows: list[Row] = []  # calls whose results depend on the program's inputs
    folded: list[Row] = []  # others with matrix work
    # Calls with matrix work that no result of the program depends on.
    unused: list[Row] = []
    # The file records no modules: they are guessed from names, which graph optimizers change.
    modules_guessed: bool = False
    uses: list[ConstantUse] = []  # each constant by each module whose calls use it
    types: dict[str, tuple[tuple[Dim, ...], DType]] = {}  # by name of a stored tensor

    def flops(self, rows: Iterable[Row]) -> defaultdict[str, Dim]:
        """The matrix work of calls by module, in joint sizes."""
        by_module = grouped((row.module, row.cost.matrix_flops) for row in rows).items()
        each = {path: self.renamed(total(flops)) for path, flops in by_module}
        return defaultdict(int, {path: flops for path, flops in each.items() if flops != 0})

    def trained(self) -> list[ConstantUse]:
        """Uses of parameters if names show them (torch.export), else of all tensors; the first root of each is one."""
        told = any(name.startswith(STORED) for name in self.types)
        found = []
        for use in self.uses:
            roots = [root for root in use.roots if root.startswith(_PARAMETER) or not told]
            if roots:
                found.append(replace(use, roots=tuple(dict.fromkeys((*roots, *use.roots)))))
        return found


@lru_cache(maxsize=10_000)
def plain(name: str) -> str:
    """The name of a stored tensor as either exporter would spell it."""
    for prefix in STORED:
        if name.startswith(prefix):
            return name[len(prefix) :].lower()
    return _NO_WORD.sub("_", unquantized(name)).lower()


_UNEXPLAINED = ("work", "element_types", "parameters_lost", "weight_shapes", "unknown", "cannot_run")
_COSTLY = ("sizes_fixed", "attention_unfused", "heads_expanded")
_OTHERS: tuple[LedgerKind, ...] = (
    "batch_norms_folded", "shifts_left_out", "parameters_folded", "weights_packed", "weights_shared",
    "weights_split", "weights_quantized", "constants_lifted",
)  # fmt: skip


def entry(kind: LedgerKind, names: Iterable[str], before: str = "", after: str = "") -> Iterator[LedgerEntry]:
    """An entry of the ledger; none without names."""
    if listed := tuple(names):
        status: LedgerStatus = "unexplained" if kind in _UNEXPLAINED else "explained"
        yield LedgerEntry(kind, "costs_more" if kind in _COSTLY else status, listed, before, after)


Form = Callable[[tuple[Dim, ...]], object]  # of a shape


def _axes(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The axes of more than one element, in whatever order they are."""
    return tuple(sorted((size for size in shape if size != 1), key=str))


class Matcher:
    """Pairs the uses of constants in two programs. uniform: the number that fills an old vector."""

    def __init__(self, old: Constants, new: Constants, uniform: Callable[[str], float | None]) -> None:
        self.old, self.new, self.uniform = old, new, uniform
        self.found: dict[LedgerKind, list[str]] = defaultdict(list)
        self.shapes: list[tuple[str, str, str]] = []  # name, before, after
        self.dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)  # by before and after
        self.left = old.trained()
        # Constants that may stand for a parameter; integers too, since quantizers store them.
        self.free = [use for use in new.uses if use.roots and use.dtype.name not in ("bool", "int64")]
        self.all = tuple(self.free)
        self.partners: dict[str, set[str]] = defaultdict(set)
        self.met: set[tuple[str, str]] = set()  # parameters that were paired, with the module of the use
        self.named: set[str] = set()  # those that were paired by name

    def entries(self) -> Iterator[LedgerEntry]:
        """What became of the parameters. Exporters omit what changes nothing: biases and scales that are not trained yet."""
        lost = self._lost()
        zeros = [name for name in lost if self.uniform(name) in (0, 1)]
        yield from entry("parameters_lost", [plain(name) for name in lost if name not in zeros])
        yield from entry("zeros_left_out", map(plain, zeros))
        for name, *sides in self.shapes:
            yield from entry("weight_shapes", [name], *sides)
        for types, names in self.dtypes.items():
            yield from entry("element_types", names, *types)
        for kind in _OTHERS:
            yield from entry(kind, self.found[kind])

    def _lost(self) -> list[str]:
        """The parameters that nothing in the export stands for. Notes what became of the others."""
        norms = _norms(self.old.rows)
        gone = norms.keys() - _norms(self.new.rows).keys()
        aside = [use for use in self.left if use.module in gone]
        self.left = [use for use in self.left if use not in aside]
        self._pair(lambda ours, theirs: _same_name(ours, theirs) and self._is_stored_alike(ours, theirs))
        self._pair(lambda ours, theirs: ours.module == theirs.module and self._is_alike(ours, theirs))
        self._pair(lambda ours, theirs: _near(ours.module, theirs.module) and self._is_alike(ours, theirs))
        self._pair(lambda ours, theirs: self.new.modules_guessed and self._is_alike(ours, theirs))
        self._share()
        self._pack()
        self._pair(lambda ours, theirs: ours.module == theirs.module and self._is_alike(ours, theirs, prod))
        self._pair(lambda ours, theirs: _near(ours.module, theirs.module) and ours.numel == theirs.numel)
        self._fold_norms(aside, norms)
        roots, stored = ({use.value: use.roots[0] for use in side.uses} for side in (self.old, self.new))
        pairs = {(roots[value], one) for value, partners in self.partners.items() for one in partners}
        by_partner = grouped((partner, root) for root, partner in pairs).values()
        places = grouped({(root, stored[partner]) for root, partner in pairs}).items()
        shared = [name for names in by_partner if len(names) > 1 for name in names]
        self.found["weights_shared"] = sorted(map(plain, shared))
        self.found["weights_split"] = sorted(plain(root) for root, found in places if len(found) > 1)
        self.found["constants_lifted"] = sorted({use.value for use in self.free})
        # If another value is computed from a root in `met`, the root is present; so is one that kept its name, of which a
        # nested graph makes a second use.
        lost = [use for use in self.left if not (use.computed and (use.roots[0], use.module) in self.met)]
        return [*dict.fromkeys(use.roots[0] for use in lost if use.roots[0] not in self.named)]

    def _pair(self, fits: Callable[[ConstantUse, ConstantUse], bool]) -> None:
        rest = []
        for ours in self.left:
            theirs = next((one for one in self.free if fits(ours, one)), None)
            if theirs is None:
                rest.append(ours)
            else:
                self.free.remove(theirs)
                self._note(ours, theirs)
        self.left = rest

    def _is_alike(self, ours: ConstantUse, theirs: ConstantUse, form: Form = _axes) -> bool:
        """True if two constants have shapes of one form."""
        before, after = ({*map(form, _shapes(*side))} for side in ((ours, self.old), (theirs, self.new)))
        return not before.isdisjoint(after)

    def _is_stored_alike(self, ours: ConstantUse, theirs: ConstantUse) -> bool:
        before, after = self.old.types[ours.roots[0]][0], self.new.types[_root(theirs, ours)][0]
        return prod(before) == prod(after) or self._is_alike(ours, theirs, prod)

    def _note(self, ours: ConstantUse, theirs: ConstantUse) -> None:
        self.partners[ours.value].add(theirs.value)
        self.met.add((ours.roots[0], ours.module))
        self.named |= {ours.roots[0]} if _same_name(ours, theirs) else set()
        name = plain(ours.roots[0])
        if ours.computed and not theirs.computed and not _same_name(ours, theirs):
            self.found["parameters_folded"].append(name)
            return
        before, after = self.old.types[ours.roots[0]], self.new.types[_root(theirs, ours)]
        if _same_name(ours, theirs) and before[0] != after[0]:
            self.shapes.append((name, _shape(before[0]), _shape(after[0])))
        if before[1] != after[1]:
            if after[1].kind in ("int", "uint") and before[1].is_floating:
                self.found["weights_quantized"].append(name)
            else:
                self.dtypes[before[1].name, after[1].name].append(name)

    def _share(self) -> None:
        """Pairs parameters with a constant of the same module that already stands for another parameter."""
        rest = []
        for ours in self.left:
            here = (one for one in self.all if one.module == ours.module and one not in self.free)
            alike = (one for one in here if self._is_alike(ours, one) and not self._is_taken_here(one, ours))
            if theirs := next(alike, None):
                self.partners[ours.value].add(theirs.value)
            else:
                rest.append(ours)
        self.left = rest

    def _is_taken_here(self, theirs: ConstantUse, ours: ConstantUse) -> bool:
        """Whether the constant already stands for a parameter of the same module with other contents."""
        number = self.uniform(ours.roots[0])
        return any(
            theirs.value in self.partners.get(other.value, ())
            and (number is None or number != self.uniform(other.roots[0]))
            for other in self.old.uses
            if other.module == ours.module and other.value != ours.value
        )

    def _pack(self) -> None:
        """Pairs several parameters with one constant (joined), or one parameter with several (cut)."""
        for theirs in sorted(self.free, key=lambda one: -_int(one.numel)):
            self._packed(_parts(self.left, theirs), [theirs])
        for ours in list(self.left):
            self._packed([ours], _parts(self.free, ours))

    def _packed(self, ours: Sequence[ConstantUse], theirs: Sequence[ConstantUse]) -> None:
        if ours and theirs:
            self.left = [use for use in self.left if use not in ours]
            self.free = [use for use in self.free if use not in theirs]
            self.found["weights_packed"] += [plain(use.roots[0]) for use in ours]

    def _fold_norms(self, aside: Iterable[ConstantUse], norms: Mapping[str, Row]) -> None:
        """Batch norms whose product has a bias in the export are folded into it; the parameters of other norms are lost.

        Norms that were never trained have a bias of zeros, which an exporter omits: so a norm is also folded if its bias is
        read as zero, or if no product has a bias.
        """
        makers = {named.name: row for row in self.old.rows for named in row.outputs}
        found = grouped((use.module, use) for use in aside)
        products = {module: makers.get(norms[module].inputs[0].name) for module in found}
        shifted = {module: self._has_bias(row, found[module][0]) for module, row in products.items() if row}
        made = ((module, row) for module, row in products.items() if row and row.cost.matrix_flops != 0)
        bare = [module for module, row in made if len(row.inputs) < 3]
        if len(bare) < 2 or any(shifted[module] for module in bare):
            bare = [module for module in bare if self._shifts_nothing(norms[module])]
        for module, uses in found.items():
            if shifted.get(module):
                self.found["batch_norms_folded"].append(module)
            elif module in bare:
                self.found["shifts_left_out"].append(module)
            else:
                self.left += uses
        self.free = [one for one in self.free if not any(_int(one.numel) == _int(use.numel) for use in aside)]

    def _has_bias(self, product: Row, norm: ConstantUse) -> bool:
        """Whether the product of a folded norm reads one more vector of the norm's length than its weights."""
        if product.cost.matrix_flops == 0:
            return False
        places = (product.module, norm.module)
        weights = sum(_int(named.type.numel) == _int(norm.numel) for named in product.inputs[1:2])
        return sum(one.module in places and _int(one.numel) == _int(norm.numel) for one in self.all) > weights

    def _shifts_nothing(self, norm: Row) -> bool:
        return len(norm.inputs) > 3 and all(self.uniform(named.name) == 0 for named in norm.inputs[2:4])


def _shapes(use: ConstantUse, side: Constants) -> list[tuple[Dim, ...]]:
    """The shape of the stored tensor that a constant follows from, and its own shape if calls other than views lie between.

    A view that repeats elements counts as such a call: an exporter may store the repeats.
    """
    stored = side.types[use.roots[0]][0]
    is_repeated = _int(use.numel) > _int(prod(stored))
    own = [use.shape] if use.computed or len(use.roots) > 1 or is_repeated else []
    return own if len(use.roots) > 1 else [stored, *own]


def _norms(rows: Iterable[Row]) -> dict[str, Row]:
    return {row.module: row for row in rows if operator(row.op).name == "batch_norm"}


def _same_name(ours: ConstantUse, theirs: ConstantUse) -> bool:
    return plain(ours.roots[0]) == plain(_root(theirs, ours))


def _root(theirs: ConstantUse, ours: ConstantUse) -> str:
    """The stored tensor with the name of the other's first root, or else the first root."""
    name = plain(ours.roots[0])
    return next((root for root in theirs.roots if plain(root) == name), theirs.roots[0])


def _near(one: str, other: str) -> bool:
    inside = one.startswith(f"{other}.") or other.startswith(f"{one}.")
    return one == other or (bool(one and other) and inside)


def _parts(uses: Iterable[ConstantUse], whole: ConstantUse) -> list[ConstantUse]:
    """Constants in or around the module of `whole` that together have as many elements: equal ones, else all."""
    near, elements = [use for use in uses if _near(use.module, whole.module)], _int(whole.numel)
    sizes = [_int(use.numel) for use in near]
    for size in dict.fromkeys(sizes):
        if size and size < elements and elements % size == 0 and sizes.count(size) >= elements // size:
            return [use for use, own in zip(near, sizes, strict=True) if own == size][: elements // size]
    return near if len(near) > 1 and sum(sizes) == elements else []


def _int(size: Dim) -> int:
    return size if isinstance(size, int) else 0


def _shape(sizes: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
