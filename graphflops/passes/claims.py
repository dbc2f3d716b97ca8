"""What a file claims of numbers and sizes, where its operators give something else or nothing.

A data-dependent size is believed if the program asserts it at run time: torch writes such an assertion for every number that
it records, and for every bound that it records of one.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product

from graphflops.cost import Value
from graphflops.dims import Dim, Expr, arguments, differ, dim_min, evaluate, evaluate_all, same, symbol
from graphflops.errors import shown
from graphflops.exporters.types import STORED
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.bind import Binding, known_sizes, open_sizes
from graphflops.report import Diagnostic
from graphflops.report.contradictions import diagnostic
from graphflops.tensor import BOOL, OptionalType, SequenceType, TensorType, UnknownType, sizes_in

_FACTORS = 2, 3, 5  # by which examples are multiplied
_MOST_CONDITIONS = 1000  # that are tried at other sizes
_EVEN = 12  # sizes without an example are tried at its multiples, so that halves and thirds are whole
# Comparisons which say that the first operand is at most the second, and by how much it is less.
_AT_MOST = {"eq": 0, "le": 0, "lt": 1}


class Claims:
    """Compares recorded values with derived ones."""

    def __init__(self, graph: Graph, binding: Binding) -> None:
        self._graph, self._symbols = graph, graph.symbols
        self._binding = binding
        self._examples = {**binding.examples, **binding.given}
        least = {name: -(-(entry.minimum or 0) // _EVEN) for name, entry in graph.symbols.items()}
        numbered = enumerate(least.items(), start=1)
        self._made_up = {name: _EVEN * (low + place) for place, (name, low) in numbered}
        # By symbol of the file for a data-dependent size, the graph and the call that gives the size.
        self.told: dict[str, tuple[Graph, Node]] = {}

    def is_free(self, name: str) -> bool:
        """Whether a symbol of the file is no input's size and has no given value."""
        return name in self._symbols and not self._symbols[name].where and name not in self._binding.given

    def contradict(self, ours: Value, recorded: Value) -> bool:
        if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
            return ours.rank != recorded.rank or any(map(self._differ, ours.shape, recorded.shape))
        if isinstance(ours, TensorType) or isinstance(recorded, TensorType) or ours is None:
            # NaN: no example.
            return recorded is not None and not isinstance(recorded, bool) and recorded == recorded
        if isinstance(ours, (int, float, Expr)) and isinstance(recorded, (int, float, Expr)):
            # A number may be computed from floats, which are recorded at the examples alone.
            return self._differ(ours, recorded, elsewhere=isinstance(ours, Expr))
        return False

    def _differ(self, ours: Dim | float, recorded: Dim | float, elsewhere: bool = True) -> bool:
        """Whether two numbers differ: provably, at the examples, or elsewhere."""
        if isinstance(ours, float) or isinstance(recorded, float):
            numbers = [x for x in (ours, recorded) if isinstance(x, (int, float)) and not math.isnan(x)]
            return len(numbers) == 2 and not math.isclose(*numbers)
        if differ(ours, recorded):
            return True
        if isinstance(ours, Expr) and (_is_within(ours, recorded) or self._is_as_large(ours, recorded)):
            return False
        if not isinstance(ours, Expr) and not isinstance(recorded, Expr):
            return False
        now, then = evaluate_all((ours, recorded), self._examples)
        names = ours.symbols & self._symbols.keys() if isinstance(ours, Expr) else ()
        known = [self._symbols[name] for name in names]
        if recorded == 0 and any(place.startswith(STORED) for entry in known for place in entry.where):
            return False  # torch records that a sparse input stores nothing
        if now is None or then is None:
            # whether one of two sizes has a symbol that is no input's size, and the other does not have it
            one, other = (size.symbols if isinstance(size, Expr) else set() for size in (ours, recorded))
            made_up, free = {**self._made_up, **self._examples}, [*filter(self.is_free, one | other)]
            small = [evaluate_all((ours, recorded), made_up | dict.fromkeys(free, n)) for n in range(3)]
            has_name = str(recorded) in self._symbols
            if not has_name and all(now is not None and now == then for now, then in small):
                return False  # for data within the bounds of a slice
            if one <= self._symbols.keys() and any(map(self.is_free, one ^ other)):
                return True
            now, then = evaluate_all((ours, recorded), made_up)
        if now is None or then is None or now != then:
            return None not in (now, then)
        others = (evaluate_all((ours, recorded), sizes) for sizes in self._elsewhere if elsewhere)
        found = (None not in sizes and sizes[0] != sizes[1] for sizes in others)
        return any(found) if self._graph.lists_guards else next(found, False) and all(found)

    @cached_property
    def _elsewhere(self) -> list[dict[str, int]]:
        """Other sizes than the examples at which the program runs too: its guards and assertions hold. If the file lists all
        guards, nothing else ties sizes to one another, or to numbers that divide them.
        """
        graph, axes, symbols = self._graph, open_sizes(self._graph).axes, self._symbols
        checks = [name for node in graph.nodes if node.operator.name == "check" for name in node.reads()]
        told = {*graph.guards.values(), *map(graph.types.get, checks)}
        names = [name for name, entry in symbols.items() if entry.where and name in self._examples]
        # Multiples of the examples: by one factor, by factors that grow or fall from symbol to symbol, and 1 more.
        ways = ((0, 0), (1, 0), (-1, 0), (1, 1), (-1, 1)) if graph.lists_guards else ((0, 0),)
        found = []
        for factor, (step, more) in product(_FACTORS, ways) if len(told) <= _MOST_CONDITIONS else ():
            sizes = dict(self._examples)
            for place, name in enumerate(names):
                moved, most = sizes[name] * (factor + place * step % len(names)) + more, symbols[name].maximum
                sizes[name] = moved if most is None or moved <= most else symbols[name].minimum or 0
            sizes |= known_sizes(axes, sizes)
            if all(evaluate(x, sizes) != 0 for x in told if isinstance(x, Expr)):
                found.append(sizes)
        return found

    def _is_as_large(self, ours: Expr, recorded: Dim) -> bool:
        """Whether a data-dependent size has a name of its own, as for `x[:n]`: given, open, or as large as possible."""
        name, given = str(recorded), self._binding.given.items()
        if not any(map(self.is_free, ours.symbols)):
            return False
        if isinstance(recorded, int):
            equal = [key for key, size in given if size == recorded and key in self._symbols]
            return any(not self._symbols[key].where for key in equal)
        if name in self.told or not self.is_free(name):
            return False
        taken = self._examples.get(name)
        ranges = {size: (0, self._symbols[size].maximum) for size in ours.symbols & self._symbols.keys()}
        most = ours.bounds(ranges)[1]
        return taken is None or (most is not None and most <= taken)

    def problem(self, node: Node, graph: Graph, name: str, axis: int | None, told: Dim) -> str:
        """What is wrong with a result's data-dependent size that the file records; "" if nothing is."""
        if isinstance(told, int):
            is_open = any(isinstance(x, Expr) for x in sizes_in(graph.types.get(name)))
            is_given = is_open and self._binding.given
            if is_given or isinstance(told, bool) or _is_asserted(graph, _numbers(graph, name, axis), told):
                return ""
            return f"a size that depends on data is {told:,} in the file, and the program does not assert it"
        for symbol_name in filter(self.is_free, told.symbols):
            made, first = self.told.setdefault(symbol_name, (graph, node))
            if first is not node and _data(made, first).isdisjoint(_data(graph, node)):
                return f"{symbol_name} depends on the data of {shown(first.name)} and on other data"
        return ""

    def unasserted(self) -> Iterator[tuple[Node, str]]:
        """The calls with results at a bound that the file records but the program does not assert."""
        for name, (graph, node) in self.told.items():
            most = self._symbols[name].maximum
            if most is not None and name in self._binding.assumed and name not in self._binding.learned:
                sizes = {value for value, kind in graph.types.items() if kind is symbol(name)}
                asked = graph.types.get("".join(node.reads())) if node.operator.name == "item" else None
                is_boolean = isinstance(asked, TensorType) and asked.dtype is BOOL and most > 0
                if not is_boolean and not _is_asserted(graph, sizes, most):
                    yield node, f"{name} is at most {most:,} in the file, and the program does not assert it"


def _data(graph: Graph, node: Node) -> set[str]:
    """The values that a call reads, under all their names: conversions to the same type are followed back."""
    names: set[str] = set()
    for value in node.reads():
        name = value
        while name not in names:
            names.add(name)
            maker = graph.makers.get(name)
            source = maker.args[0] if maker and maker.operator.has("keeps_values") else None
            if isinstance(source, Ref) and graph.types.get(source.name) == graph.types.get(name):
                name = source.name
    return names


def _is_within(ours: Expr, recorded: Dim) -> bool:
    """Whether a size is the recorded one up to a limit, within which the program may assert that it is."""
    limits = ((ours.terms.get((atom,), 0), atom) for atom in ours.atoms() if atom.kind == "min")
    return any(
        factor > 0 and same(ours + factor * (size - dim_min(*arguments(atom))), recorded)
        for factor, atom in limits
        for size in arguments(atom)
    )


def paired(ours: Value, recorded: Value) -> Iterator[tuple[int | None, Dim, Dim]]:
    """Each derived size with the one recorded for it, by axis; None as axis for a plain number."""
    if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
        for axis, sizes in enumerate(zip(ours.shape, recorded.shape, strict=False)):
            yield axis, *sizes
    elif isinstance(ours, Expr) and isinstance(recorded, (int, Expr)):
        yield None, ours, recorded


def _numbers(graph: Graph, name: str, axis: int | None) -> set[str | None]:
    """The values of a graph that are a number, or one axis of a tensor."""
    if axis is None:
        return {name}
    asked = [node for node in graph.nodes if node.operator.name == "size"]
    wanted = {"x": Ref(name), "axis": axis}
    return {node.outputs[0] for node in asked if node.outputs and node.arguments() == wanted}


def _is_asserted(graph: Graph, sizes: Container[str | None], number: int) -> bool:
    """Whether a call checks that one of these sizes is at most a number."""
    bounded: set[str | None] = set()
    for node in graph.nodes:
        name = node.operator.name
        first = node.args[0] if node.args else None
        is_size = isinstance(first, Ref) and first.name in sizes
        if name in _AT_MOST and is_size and len(node.args) == 2:
            most = node.args[1]
            if isinstance(most, int) and most - _AT_MOST[name] <= number:
                bounded.update(node.outputs)
        elif name == "check" and isinstance(first, Ref):
            most = dict(node.kwargs).get("max") if is_size else None
            if first.name in bounded or (isinstance(most, int) and most <= number):
                return True
    return False


_KNOWN = (TensorType, SequenceType, OptionalType)
_MOST_NAMES = 3  # in one diagnostic
_FEW = 64  # elements of an integer tensor that sizes may be computed from
_SOURCES = {"declared": "known only from what the file declares", "unknown": "not known"}


class FallbackTypes:
    """Result types of calls whose rule gives none: those that the file declares."""

    def __init__(self, graph: Graph) -> None:
        self.integers: dict[str, int] = {}  # stored integers whose contents are not known, with their number
        for entry in graph.inputs:
            typed = graph.types.get(entry.name) if entry.role != "user" else None
            if isinstance(typed, TensorType) and typed.dtype.kind == "int" and typed.value is None:
                self.integers[entry.name] = typed.numel  # type: ignore[assignment]  # stored tensors have numbers for sizes
        self.sources: dict[str, list[str]] = {}  # by source of types, the names of values
        self.outdated: list[str] = []  # values whose declared type is another one

    def of(self, name: str, ours: Value, graph: Graph) -> Value:
        """The best known type of a result for which the rule gives none. ours: the rule's, or its element type."""
        declared = (graph.declared or {}).get(name)
        if isinstance(declared, _KNOWN):
            self.sources.setdefault("declared", []).append(name)
            return declared
        self.sources.setdefault("unknown", []).append(name)
        vague = (x for x in (ours, declared) if isinstance(x, UnknownType) and x.dtype is not None)
        return next(vague, UnknownType())

    def unread(self, operands: Sequence[str], values: Mapping[str, Value], graph: Graph) -> bool:
        """Whether an operand is stored integers that are not read, or is computed from a few of these."""
        if not self.integers or any(name in self.integers for name in operands):
            return bool(self.integers)
        waiting, seen = [*operands[1:]], set()
        while waiting:
            name = waiting.pop()
            typed = values.get(name)
            if name in seen or not isinstance(typed, TensorType) or typed.dtype.kind != "int":
                continue
            seen.add(name)
            if self.integers.get(name, _FEW + 1) <= _FEW:
                return True
            waiting.extend(used for _, used in (graph.makers[name].uses() if name in graph.makers else ()))
        return False

    def compare(self, name: str, ours: Value, graph: Graph) -> None:
        """Record a value whose declared type provably differs from the derived one."""
        declared = (graph.declared or {}).get(name)
        if isinstance(ours, TensorType) and declared_otherwise(declared, ours):
            self.outdated.append(f"{shown(name)} is {ours}, declared as {declared}")

    def diagnostics(self) -> list[Diagnostic]:
        """One diagnostic for each source of types, and one for values declared with another type."""
        found = []
        for source, names in self.sources.items():
            some, rest = ", ".join(map(shown, names[:_MOST_NAMES])), len(names) - _MOST_NAMES
            listed = f"{some} and {rest} more values" if rest > 0 else some
            found.append(diagnostic("GF110", "", f"the types of {listed} are {_SOURCES[source]}"))
        if self.outdated:
            more = f", and {len(self.outdated) - 1} more values" if len(self.outdated) > 1 else ""
            text = f"what the file declares is out of date: {self.outdated[0]}{more}"
            found.append(diagnostic("GF213", "", text))
        return found


def declared_otherwise(declared: object, ours: TensorType) -> bool:
    """Whether a declared type provably differs from the value's; if the rank is unknown, whether the element type does."""
    if isinstance(declared, UnknownType):
        return declared.dtype not in (None, ours.dtype)
    if not isinstance(declared, TensorType):
        return False
    if declared.rank != ours.rank or declared.dtype is not ours.dtype:
        return True
    sizes = zip(ours.shape, declared.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
