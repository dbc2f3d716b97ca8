"""Makes programs smaller: `split` to what one tensor-parallel device runs, `folded` to few of the repeated layers."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from graphflops.base.record import Record
from graphflops.dims import Expr, evaluate, symbol
from graphflops.graph import Argument, EagerRun, Graph, Node, Ref
from graphflops.planning.parts import INDIVISIBLE, Split, axis_of
from graphflops.report import Report
from graphflops.structure.wiring import Fold, Part, Wiring
from graphflops.tensor import TensorType

_FACTORS = 2  # factors of the columns that are tried after the leading one
_LAYOUT = frozenset({"reshape", "expand", "split"})  # their second argument is the sizes of the result
# Linear calls: applied to partial sums, they give partial sums of their result.
_REARRANGING = frozenset({"view", "cast", "gather"})
_LINEAR = frozenset({"mul", "sum"})
# Attention gets the keys and values of the other devices
_ANY_PART = frozenset({"attention", "gather", "size"})


def split(graph: Graph, devices: int, *, can_copy: bool = False) -> Split:
    """The program of one of `devices` devices. Products are not split if a later call needs their whole result.

    can_copy: whether several devices may hold the same head, if there are fewer heads of keys and values than devices.
    """
    refused: dict[str, str] = {}
    factors: dict[str, int] = {}
    pieces: dict[str, int] | None = {} if can_copy else None
    # Sizes that do not divide are a better reason than a call that needs the whole.
    reasons: dict[str, str] = {}
    while True:
        found = Split(graph, devices, refused=refused, factors=factors, pieces=pieces)
        problems = map(found.problem, graph.nodes if devices > 1 else ())
        problem, origins = next(filter(None, problems), ("", ()))
        if not problem:
            late = (_latest(found, one.value) if one.side == "out" else one.value for one in found.exchanged)
            pairs = zip(found.exchanged, late, strict=True)  # partial sums are added where they are smallest
            exchanged = [one._replace(value=value) for one, value in pairs]
            return replace(found, graph=_of_one(found), exchanged=exchanged)
        if pieces is not None and found.fewer:
            pieces.update(found.fewer)
            continue
        for origin in origins:
            if pieces is not None and pieces.get(origin):
                pieces[origin] = 0
            factors[origin] = factors.get(origin, 0) + 1
            reasons[origin] = reasons[origin] if INDIVISIBLE in reasons.get(origin, "") else problem
            if factors[origin] > _FACTORS:
                found.refused[origin] = reasons[origin]
        refused = found.refused


def _latest(split: Split, value: str) -> str:
    """The smallest of a value and of what linear calls make of it alone; the first of equals."""
    graph, readers = split.graph, split.readers
    found, most = value, _nbytes(graph, value)
    while value not in graph.returned and len(readers.get(value, ())) == 1:
        (node,) = readers[value]
        (out, *more), reads = node.outputs, node.reads()
        is_linear = node.operator.kind in _REARRANGING or node.operator.name in _LINEAR
        if out is None or more or not is_linear or reads.count(value) != 1 or node.operator.mutates:
            break
        if node.operator.name != "mul" and reads[0] != value:
            break
        value = out
        if (size := _nbytes(graph, value)) < most:
            found, most = value, size
    return found


def _nbytes(graph: Graph, value: str) -> int:
    """Bytes of a value with open sizes set to 1, to compare the values of one path."""
    typed = graph.types.get(value)
    size = evaluate(typed.nbytes, dict.fromkeys(graph.symbols, 1)) if isinstance(typed, TensorType) else None
    return 0 if size is None else size


def _of_one(found: Split) -> Graph:
    """The program with the sizes that one device has."""
    if found.devices == 1:
        return found.graph
    types = {name: replace(found.types[name], shape=found.shape(name)) for name in found.parts}
    nodes = tuple([_resized(node, found) for node in found.graph.nodes])
    return replace(found.graph, types={**found.graph.types, **types}, nodes=nodes)


def _resized(node: Node, found: Split) -> Node:
    """A call whose arguments have the sizes of one device for the split axis."""
    out = next((name for name in node.outputs if name in found.parts), None)
    word = node.operator.name
    if out is None or not (word in _LAYOUT or node.operator.reads_sizes):
        return node
    axis, pieces = found.parts[out].axis, found.parts[out].pieces or found.devices
    if word == "split" and axis_of(node.arguments().get("axis", 0), found.rank(out)) != axis:
        return node
    whole, less = found.types[out].shape, found.shape(out)

    def put(argument: Argument) -> Argument:
        if word == "split":  # one length for all parts, or one for each
            parts = argument if isinstance(argument, tuple) else (argument,)
            each = tuple([part // pieces if isinstance(part, int) else part for part in parts])
            return each if isinstance(argument, tuple) else each[0]
        if isinstance(argument, tuple) and len(argument) == len(less):
            sizes = zip(argument, whole, less, strict=True)
            return tuple([of_one if one == of_all else one for one, of_all, of_one in sizes])
        return argument

    # Files of torch before 2.7 name every argument.
    args = [put(value) if place == 1 else value for place, value in enumerate(node.args)]
    named = enumerate(node.kwargs, start=len(args))
    kwargs = [(name, put(value) if place == 1 else value) for place, (name, value) in named]
    return replace(node, args=tuple(args), kwargs=tuple(kwargs))


# Context parallelism: whether each call other than attention works on the tokens of one device.


def mixed(graph: Graph, length: str) -> str:
    """The first call that needs a whole sequence, with the reason; "" if every call works on a part of it.

    length: the symbol of the tokens of a sequence. Integers are left out: each device can hold all positions, and all
    integers that masks are made of. An axis that merges batch and tokens is no obstacle: calls treat each token alone.
    """
    found, size = Split(graph, 1), symbol(length)
    for node in graph.nodes:
        for name in node.reads() if node.operator.kind not in _ANY_PART else ():
            typed = found.types.get(name)
            if typed is None or typed.dtype.kind != "float":
                continue
            axes = [axis for axis, one in enumerate(typed.shape) if one == size]
            if not all(_is_split(found, node, name, axis, length) for axis in axes):
                return f"{node.name}: {node.op} needs the whole sequence"
    return ""


def _is_split(found: Split, node: Node, name: str, axis: int, length: str) -> bool:
    """Whether a call works on a part of an operand along `axis`, the axis of tokens."""
    given, rank = node.arguments(), found.rank(name)
    out = [typed for typed in map(found.types.get, filter(None, node.outputs)) if typed is not None]
    if not out:
        return True
    if node.operator.kind == "product":
        first = given.get("a", given.get("#0"))
        is_first = isinstance(first, Ref) and first.name == name
        return axis != (rank - 1 if is_first or "weight" in given else max(rank - 2, 0))
    if node.operator.kind == "view" and "axis" not in node.operator.parameters:
        return any(isinstance(one, Expr) and length in one.symbols for one in out[0].shape)
    # Slices of the axis, and concatenations along it, have another length.
    is_left = all(symbol(length) in typed.shape for typed in out)
    return is_left and (node.operator.name == "cat" or found.axis_of_result(node, name, axis) is not None)


# Layers that are kept: the last one follows a layer, and is followed by what comes after the layers
TURNS = 2


class Folded(Record, frozen=True):
    """A program with few of its repeated layers."""

    graph: Graph
    layers: int  # repeated layers of the whole program; 0 if none repeat
    turn: Mapping[str, int]  # by call, the layer it is in: -1 before the layers, `turns` after them
    turns: int = TURNS


def folded(report: Report, kept: int = TURNS) -> Folded:
    """The program of a report with at most `kept` of its layers."""
    graph = report.program
    assert graph is not None
    turns = _turns(report)
    if not turns:
        return Folded(graph, 0, dict.fromkeys((node.name for node in graph.nodes), TURNS))
    number, kept = len(turns), min(kept, len(turns))
    of = {name: turn for turn, names in enumerate(turns) for name in names}
    nodes = {node.name: node for node in graph.nodes}
    instead: dict[str, str] = {}
    for names in turns[kept:]:
        for name, alike in zip(names, turns[kept - 1], strict=True):
            pairs = zip(nodes[name].outputs, nodes[alike].outputs, strict=False)
            instead.update({old: new for old, new in pairs if old is not None and new is not None})
    first = next(place for place, node in enumerate(graph.nodes) if node.name in of)
    turn: dict[str, int] = {}
    kept_nodes = []
    for place, node in enumerate(graph.nodes):
        if of.get(node.name, 0) >= kept:
            continue
        turn[node.name] = of.get(node.name, -1 if place < first else kept)
        kept_nodes.append(node.renamed(instead))
    outputs = tuple([output.renamed(instead) for output in graph.outputs])
    less = replace(graph, nodes=tuple(kept_nodes), outputs=outputs)
    tied = {entry.alias_of for entry in graph.inputs if entry.name in less.used} - {""}
    taken = (one for one in graph.inputs if one.name in less.used or one.target in tied or one.role == "user")
    less = replace(less, inputs=tuple(taken), eager=_eager(graph.eager, less.makers))
    return Folded(less, number, turn, kept)


def _turns(report: Report) -> list[list[str]]:
    """The calls of each layer in program order, for the repetition with the most calls; empty if nothing repeats."""
    found = Wiring(report)
    rows = {name: report.rows[place] for name, place in found.calls.items()}
    reads: dict[str, list[str]] = {name: [] for name in rows}
    for use in found.uses:
        if use.user in rows and use.maker in rows:
            reads[use.user].append(use.maker)
    forms = {name: (row.op, row.state, row.cost) for name, row in rows.items()}
    fold = Fold({name: row.module for name, row in rows.items()}, reads, forms, {})
    repeated = [[turn.calls for turn in part.turns] for part in _repeated(fold, fold.top)]
    most = max(repeated, key=lambda turns: sum(map(len, turns)), default=[])
    place = {name: number for number, name in enumerate(rows)}
    best = [[rows[name].node for name in sorted(turn, key=place.__getitem__)] for turn in most]
    best = [[name for name in names if "/" not in name] for names in best]
    return best if len(best) >= TURNS and len({*map(len, best)}) == 1 else []


def _repeated(fold: Fold, part: Part) -> Iterator[Part]:
    """The outermost parts that repeat."""
    if len(part.turns) > 1:
        yield part
    elif not part.is_own:
        for inner in fold.within(part):
            yield from _repeated(fold, inner)


def _eager(run: EagerRun | None, made: Container[str]) -> EagerRun | None:
    """The record of an eager run, for the values that are left."""
    if run is None:
        return None
    places, left = [], -1
    for value in run.values:
        left += value in made
        places.append(left)
    values = tuple([value for value in run.values if value in made])
    until = [last for value, last in zip(run.values, run.until, strict=True) if value in made]
    return replace(run, values=values, until=tuple([places[last] if last >= 0 else -1 for last in until]))
