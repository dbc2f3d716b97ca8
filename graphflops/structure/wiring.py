"""Which call reads what another one makes, through nested graphs: the edges of a program, call by call.

`Fold` groups calls by module, modules within modules, and joins repeated ones. The graph of modules shows its parts at one
depth, the picture those in each open box.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from graphflops.base.record import field
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.report import Report, Row
from graphflops.tensor import TensorType, flat, grouped
from graphflops.view import nested_graphs

if TYPE_CHECKING:
    import networkx

Makers = ChainMap[str, tuple[str, ...]]  # by name of a value: the nodes that make it


class Use(NamedTuple):
    """A value on its way from the node that makes it to one that reads it. slot: the operand, `0` or `mask`."""

    maker: str
    user: str
    slot: str
    value: str
    type: TensorType | None


def program_of(report: Report) -> Graph:
    """The program that was analyzed. For a saved report, a graph of the tensors that its rows name.

    In that graph weights are named as values, sizes have no edges, and weights that nothing reads are missing.
    """
    if report.program is not None:
        return report.program
    made = {name for row in report.rows for name, _ in row.outputs}
    given = dict(report.inputs)
    read = dict.fromkeys(name for row in report.rows for name, _ in row.inputs)
    nodes = tuple([_as_node(row) for row in report.rows])
    inputs = [Input(name, "user" if name in given else "constant") for name in {**given, **read}]
    outputs = tuple([Output(Ref(name)) for name in report.outputs if name in made or name in given])
    return Graph(nodes, {}, tuple(one for one in inputs if one.name not in made), outputs)


def _as_node(row: Row) -> Node:
    args = tuple([Ref(name) for name, _ in row.inputs])
    return Node(row.node, row.op, args, (), tuple([name for name, _ in row.outputs]))


def unique(name: str, taken: dict[str, int]) -> str:
    """The name; numbered where it is taken, as `cond/linear (2)` in the other branch."""
    times = taken[name] = taken.get(name, 0) + 1
    return name if times == 1 else unique(f"{name} ({times})", taken)


class Wiring:
    """Nodes and edges of a report's program, found by going through its calls in the order of the rows.

    For a saved report they are those of its tensors, as far as its rows show them.
    """

    def __init__(self, report: Report) -> None:
        self.rows, self.place = report.rows, 0
        # The row of each call, by its unique name. Makers of values come before readers: a call that runs nested graphs
        # comes after their calls.
        self.calls: dict[str, int] = {}
        self.uses: list[Use] = []
        self.inputs: dict[str, Input] = {}  # by name of the node; constants of nested graphs are inputs
        self.outputs: dict[str, Output] = {}
        self.types: dict[str, TensorType] = {}
        self.taken: dict[str, int] = {}
        graph, makers = program_of(report), Makers()
        for entry in graph.inputs:
            makers[entry.name] = (self.input(entry.name, entry, graph),)
        self.types.update(report.inputs)
        self.graph(graph, "", makers)
        for place, output in enumerate(graph.outputs):
            name = f"output {place}" + (f": {output.target}" if output.target else "")
            node = unique(name, self.taken)
            self.outputs[node] = output
            self.use(node, list(output.uses()), makers)

    def input(self, name: str, entry: Input, graph: Graph) -> str:
        node = unique(name, self.taken)
        self.inputs[node] = entry
        recorded = graph.types.get(entry.name)
        if isinstance(recorded, TensorType):
            self.types.setdefault(entry.name, recorded)
        return node

    def use(self, user: str, uses: Sequence[tuple[str, str]], makers: Makers) -> None:
        for slot, value in uses:
            for maker in makers.get(value, ()):
                self.uses.append(Use(maker, user, slot, value, self.types.get(value)))

    def graph(self, graph: Graph, prefix: str, makers: Makers) -> None:
        """The calls of one graph. Calls without a row are left out: no rule prices them, as their parent's row says."""
        for node in graph.nodes:
            if self.place < len(self.rows) and self.rows[self.place].node == prefix + node.name:
                self.call(node, makers)

    def call(self, node: Node, makers: Makers) -> None:
        place, row = self.place, self.rows[self.place]
        self.place += 1
        name = unique(row.node, self.taken)
        for read, typed in (*row.inputs, *row.outputs):
            self.types[read] = typed
        uses = list(node.uses())
        if row.regions:
            uses = self.nested(node, row, name, uses, makers)
        self.use(name, uses, makers)
        self.calls[name] = place
        makers.update((output, (name,)) for output in node.outputs if output is not None)
        if node.operator.mutates and (written := node.reads()):
            makers[written[0]] = (name,)

    def nested(
        self, node: Node, row: Row, name: str, uses: list[tuple[str, str]], makers: Makers
    ) -> list[tuple[str, str]]:
        """The graphs that run in a call: they read its operands, and it reads what they return.

        Returns what the call also reads itself: a branch its condition; a loop its operands too, which are its results if
        it never runs.
        """
        inside = f"{row.node}/"
        graphs = list(nested_graphs(node))
        passed: set[str] = {name for graph in graphs for name in graph.captures}
        for region in row.regions:
            ahead = self.rows[self.place].node if self.place < len(self.rows) else ""
            named = (one for one in graphs if one.name == region.name)
            graph = next((one for one in named if not one.nodes or ahead == inside + one.nodes[0].name), None)
            if graph is None:
                continue
            scope, operands = self.scope(node, graph, name, makers)
            if all(one.times in (0, 1) for one in row.regions):
                passed |= operands
            self.graph(graph, inside, scope)
            for place, value in enumerate(graph.returned):
                self.use(name, [(f"{graph.name}[{place}]", value)], scope)
        alone = makers.new_child()
        while self.place < len(self.rows) and self.rows[self.place].node.startswith(inside):
            self.call(_as_node(self.rows[self.place]), alone)  # of a graph that is not available
        return [(slot, value) for slot, value in uses if value not in passed]

    def scope(self, node: Node, graph: Graph, name: str, makers: Makers) -> tuple[Makers, set[str]]:
        """The makers of values inside a nested graph, and the operands of the call that are its inputs.

        Where operands cannot be matched to inputs, each input has the makers of all operands.
        """
        scope = makers.new_child()
        for entry in [entry for entry in graph.inputs if entry.role == "constant"]:
            scope[entry.name] = (self.input(f"{name}/{entry.name}", entry, graph),)
        given = [entry for entry in graph.inputs if entry.role != "constant"]
        # What a call passes to its graphs: the arguments after them, or all; None for one that is not a value.
        last = max((place for place, value in enumerate(node.args) if isinstance(value, Graph)), default=-1)
        values = (item for item in flat(node.args[last + 1 :]) if not isinstance(item, (str, Graph)))
        operands = [item.name if isinstance(item, Ref) else None for item in values]
        names = {operand for operand in operands if operand is not None}
        if len(operands) == len(given):
            for entry, operand in zip(given, operands, strict=True):
                scope[entry.name] = makers.get(operand, ()) if operand is not None else ()
        else:
            every = tuple(dict.fromkeys(maker for operand in names for maker in makers.get(operand, ())))
            scope.update((entry.name, every) for entry in given)
        return scope, names


_PAGE = 60  # most parts at the default depth
_DEEPEST = 40  # modules within modules
_TRIED = 8  # how many places are tried for a second turn
# Attributes that are equal for corresponding calls of repeated layers.
_ALIKE = (
    "op", "exact", "status", "stage", "flops", "flops_formula", "vector_flops", "bytes", "bytes_formula",
)  # fmt: skip


class Turn(Struct, eq=False):
    """Calls in order. repeats: by repetition that they are part of, the number of their turn."""

    calls: list[str]
    repeats: dict[int, int] = field(default_factory=dict)


class Part(Struct, eq=False):
    """Calls of a module that run together. A module that is used again later is another part."""

    level: int  # names in the path of the module
    is_own: bool  # calls of a module itself, between those of its submodules
    turns: list[Turn]  # one for each repeated module; calls at the same place are alike
    cycle: list[Part] = field(default_factory=list)  # the parts that repeat together
    above: int = 0  # bits of the parts of the same module that it depends on

    def calls(self) -> Iterator[str]:
        return (call for turn in self.turns for call in turn.calls)


class Fold:
    """Groups calls by module and joins repeated modules. paths: of the calls' modules; calls that make values come first.

    reads: the calls that each reads from. forms: equal for calls that are alike. stages: those of different ones stay apart.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        reads: Mapping[str, Collection[str]],
        forms: Mapping[str, Hashable],
        stages: Mapping[str, int],
    ) -> None:
        self.path = {call: tuple(path.split(".", _DEEPEST)) if path else () for call, path in paths.items()}
        self.reads, self.forms, self.stages = reads, forms, stages
        self.top = Part(0, False, [Turn([*paths])])
        self.repetitions = 0
        self.held: dict[Part, list[Part]] = {}
        self.paths: dict[Part, set[tuple[str, ...]]] = {}

    @staticmethod
    def of(graph: networkx.MultiDiGraph, names: Iterable[str]) -> Fold:
        nodes = {name: graph.nodes[name] for name in names}
        paths = {x: str(data.get("module", "")) * (data.get("kind") == "call") for x, data in nodes.items()}
        reads = {name: [maker for maker in graph.pred[name] if maker in nodes] for name in nodes}
        forms = {name: tuple([data.get(key) for key in _ALIKE]) for name, data in nodes.items()}
        stages = {name: data["stage"] for name, data in nodes.items() if "stage" in data}
        return Fold(paths, reads, forms, stages)

    def within(self, part: Part) -> list[Part]:
        """The parts of a module: its submodules and its own calls, each after those that it depends on."""
        if part not in self.held:
            first = part.turns[0].calls
            parts = part.cycle or self._repeated(self._split(first, part.level), part.level)
            if len(part.turns) > 1 and not part.cycle:
                place = {call: number for number, call in enumerate(first)}
                for inner in parts:
                    _spread(inner, part.turns, place)
            self.held[part] = parts
        return self.held[part]

    def at_depth(self, depth: int | None) -> list[Part]:
        """The parts `depth` levels in. depth None: the deepest level with at most a page of them."""
        if depth is not None:
            return [*self._deeper(self.top, depth)]
        found = [*self._deeper(self.top, 1)]
        for tried in range(2, max(map(len, self.path.values()), default=0) + 1):
            deeper = [*self._deeper(self.top, tried)]
            if len(deeper) > _PAGE:
                break
            found = deeper
        return found

    def _deeper(self, part: Part, depth: int) -> Iterator[Part]:
        if part not in self.paths:
            self.paths[part] = {self.path[call] for call in part.turns[0].calls}
        is_cut = not part.cycle and all(cut(path, depth) <= part.level for path in self.paths[part])
        if part.is_own or is_cut:
            yield part
        else:
            for inner in self.within(part):
                yield from self._deeper(inner, depth)

    def _split(self, calls: Sequence[str], level: int) -> list[Part]:
        """The calls by module of the next level; a module is cut where it would both feed and need another part."""
        parts: list[Part] = []
        of: dict[str, int] = {}
        latest: dict[Hashable, int] = {}
        last, read_from = -1, set[int]()
        for call in calls:
            path = self.path[call]
            is_own = len(path) <= level
            key = (None if is_own else path[level], self.stages.get(call))
            place = latest.get(key, -1)
            reads = {of[read] for read in self.reads[call] if read in of}
            others = reads - {place} if place >= 0 else ()
            is_circle = any(parts[read].above >> place & 1 for read in others)
            if place < 0 or (is_own and place != last) or is_circle:
                place = latest[key] = len(parts)
                parts.append(Part(level + (not is_own), is_own, [Turn([])]))
            reads.discard(place)
            above = 0
            for read in reads:
                above |= 1 << read | parts[read].above
            if place in read_from and above & ~parts[place].above:
                for part in parts:
                    part.above |= above if part.above >> place & 1 else 0
            parts[place].above |= above
            read_from |= reads
            parts[place].turns[0].calls.append(call)
            of[call] = last = place
        if any(part.above >> place for place, part in enumerate(parts)):
            parts.sort(key=lambda part: part.above.bit_count())
        joined: list[Part] = []
        for part in parts:  # own calls may have become neighbours where a module moved
            stages = {self.stages.get(x.turns[0].calls[0]) for x in (*joined[-1:], part)}
            if joined and part.is_own and joined[-1].is_own and len(stages) == 1:
                joined[-1].turns[0].calls += part.turns[0].calls
            else:
                joined.append(part)
        return joined

    def _repeated(self, parts: list[Part], level: int) -> list[Part]:
        """The parts, repeated ones joined: first the longest run of equal turns, then repetitions within a turn."""
        numbers: dict[Hashable, int] = {}
        forms = [numbers.setdefault(self._form(part), len(numbers)) for part in parts]
        places = grouped((form, place) for place, form in enumerate(forms))
        made: list[Part] = []
        start = 0
        while start < len(parts):
            period, times = _repetition(forms, start, places[forms[start]])
            members = parts[start : start + period * times]
            start += len(members)
            if times < 2:
                made += members
                continue
            self.repetitions += 1
            for number, part in enumerate(members):
                for turn in part.turns:
                    turn.repeats[self.repetitions] = number // period
            around = range(len(members[0].turns))
            columns = []
            for n, one in enumerate(members[:period]):
                turns = [part.turns[turn] for turn in around for part in members[n::period]]
                columns.append(Part(one.level, one.is_own, turns))
            columns = self._repeated(columns, level)
            if len(columns) == 1:
                made += columns
                continue
            turns = [
                Turn([call for part in members[n : n + period] for call in part.turns[turn].calls])
                for turn in around
                for n in range(0, len(members), period)
            ]
            made.append(Part(level, False, turns, columns))
        return made

    def _form(self, part: Part) -> Hashable:
        """Equal for modules with the same calls, costs and edges inside; numbers in paths may differ."""
        calls = part.turns[0].calls
        at = {call: place for place, call in enumerate(calls)}
        found = []
        for call in calls:
            names = ("*" if name.isdecimal() else name for name in self.path[call][part.level - 1 :])
            found.append((*names, self.forms[call], *(at[read] for read in self.reads[call] if read in at)))
        return tuple(found)


@lru_cache(maxsize=4096)
def cut(path: tuple[str, ...], depth: int) -> int:
    """How many names of a path are `depth` levels in; the number of a layer is on the level of its list, as `layers.3`."""
    levels = 0
    for place, name in enumerate(path):
        levels += not (name.isdecimal() and place and not path[place - 1].isdecimal())
        if levels > depth:
            return place
    return len(path)


def _spread(part: Part, turns: Sequence[Turn], place: Mapping[str, int]) -> None:
    """Adds to a part of the first turn the calls at the same places in the other turns."""
    part.turns = [
        Turn([turn.calls[place[call]] for call in own.calls], turn.repeats | own.repeats)
        for turn in turns
        for own in part.turns
    ]
    for inner in part.cycle:
        _spread(inner, turns, place)


def _repetition(forms: Sequence[int], start: int, places: Sequence[int]) -> tuple[int, int]:
    """The period and number of the equal turns from `start` on that cover most parts; (1, 1) where nothing repeats."""
    best = (1, 1)
    for later in [place for place in places if place > start][:_TRIED]:
        period, turns = later - start, 1
        pattern = forms[start:later]
        while forms[start + turns * period : start + (turns + 1) * period] == pattern:
            turns += 1
        if turns > 1 and period * turns > best[0] * best[1]:
            best = (period, turns)
    return best
