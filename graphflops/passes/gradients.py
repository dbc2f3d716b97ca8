"""Gradients of calls: what they cost and read, which of them a training step computes, and what checkpoints recompute.

A checkpoint is a module that the user names, a call of `torch.utils.checkpoint` in the recorded lines of code, or a
checkpointed graph that an export holds as one operator, whose calls then replace it in the program.
`torch.utils.checkpoint` saves the inputs of a checkpoint. When the first gradient needs a value from inside, the calls run
again, up to the last call that saves a value for its gradient; these values then stay until they are read.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from graphflops.base.patterns import modules_around
from graphflops.base.record import Record, replace
from graphflops.cost import MATRIX_QUANTITIES, Cost, Estimate, Value
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.program import Backward, PricedCall, owners
from graphflops.report import Row
from graphflops.rules.registry import ForwardCall, Rule, find_backward
from graphflops.tensor import PartType, TensorType, flat, grouped
from graphflops.training import matched


def gradient(rule: Rule, arguments: Mapping[str, Any], estimate: Estimate) -> Estimate | None:
    """The estimate of the backward of one call; None if no operand wants a gradient.

    Without a rule of its own, a product costs the forward's matrix work once per wanted factor, any other call the forward's
    vector work once per wanted operand; a view's gradient is a view.
    """
    wanted = frozenset(name for name, value in arguments.items() if _wanting(value))
    has_tensors = any(isinstance(value, TensorType) for value in estimate.out)
    if not wanted or (has_tensors and not _floating(estimate.out)):
        return None
    call, own = ForwardCall(estimate, dict(arguments), wanted), find_backward(rule.key)
    return _by_default(rule, call) if own is None else own(call)


def backward_of(
    rule: Rule, arguments: Mapping[str, Any], estimate: Estimate, operands: Sequence[TensorType]
) -> Backward | None:
    """The backward of one call with what it keeps in memory; None if no operand wants a gradient.

    operands: the call's tensors in order, each a separate object, so that the operands a rule reads can be identified.
    """
    back = gradient(rule, arguments, estimate)
    if back is None:
        return None
    places = {id(operand): place for place, operand in enumerate(operands)}
    wanted = [places[id(tensor)] for value in arguments.values() for tensor in _wanting(value)]
    operands_read, results_read, beside = _told_apart(back, estimate, places)
    kept = beside if find_backward(rule.key) else ()  # by default what is read is what the forward read
    return Backward(back, tuple(zip(wanted, _fresh(back), strict=False)), operands_read, results_read, kept)


def _by_default(rule: Rule, call: ForwardCall) -> Estimate:
    estimate, given = call.estimate, call.arguments
    wanted = {name: _wanting(given[name]) for name in given if name in call.wants}
    gradients = tuple(tensor.like() for tensors in wanted.values() for tensor in tensors)
    if estimate.writes == ():  # a view, or a call whose nested graphs have their own gradients
        return Estimate(gradients, writes=(), alias=True)
    if estimate.regions:  # one graph ran; by what the others' gradients may exceed its own is the call's
        runs = [run.backward for run, times in estimate.regions if times != 0]
        more = Cost.sum(runs).exceeded_by(run.backward for run, times in estimate.regions if times == 0)
        return more.estimate(gradients, alias=True)
    incoming = tuple([value.like() for value in _floating(estimate.out)])
    factors = wanted.keys() & set(rule.product)
    passed: tuple[TensorType, ...] = ()  # gradients that are the result's own
    if rule.product:
        matrix = len(factors)
        added = [(name, x) for x, name in zip(gradients, wanted, strict=False) if name not in factors]
        is_whole = given.get("beta", 1) == 1  # a bias is summed over rows, even if there is only one
        passed = tuple(x for name, x in added if is_whole and name != "bias" and _taken(x, [*incoming]))
        vector = int(len(added) > len(passed))  # the gradient of what is added to a product is a sum
        needed = {name for name in rule.product if factors - {name}}
        needless = _floating(value for name, value in given.items() if name not in needed)
    else:
        matrix = vector = len(gradients)
        moved = estimate.matrix_flops == estimate.vector_flops == estimate.transcendentals == 0
        # Values that are only moved: the gradient reads where to, not what.
        needless = _floating(given.values()) if moved else []
    times = {name: matrix if name in MATRIX_QUANTITIES else vector for name in estimate.work}
    work = {name: amount * times[name] for name, amount in estimate.work.items()}
    left_out = set(map(id, needless))
    reads = (*incoming, *(value for value in estimate.reads if id(value) not in left_out))
    written = None if not passed else tuple(x for x in gradients if all(x is not each for each in passed))
    return Estimate(gradients, reads=reads, writes=written, **work)  # type: ignore[arg-type]


def _floating(values: Iterable[Any]) -> list[TensorType]:
    """The floating tensors among values, and in lists among them."""
    return [value for value in flat(values) if isinstance(value, TensorType) and value.dtype.is_floating]


def _told_apart(
    back: Estimate, estimate: Estimate, places: Mapping[int, int]
) -> tuple[frozenset[int], frozenset[int], tuple[int, ...]]:
    """Positions of what a backward reads: operands, results, and others. Gradients of the results are in none of these.

    Operands and results are identified by object, a gradient by its type. If no gradient is found in this way, the first
    read of a result counts as a read of its gradient. Reads of gradients that the backward makes are part of its own work.
    """
    results = {id(value): place for place, value in enumerate(estimate.out) if isinstance(value, TensorType)}
    incoming = _floating(estimate.out)
    operands_read, results_read, beside = set(), [], []
    made = {id(value) for value in back.out}
    for index, value in enumerate(back.reads):
        if id(value) in made or isinstance(value, PartType):
            continue
        if id(value) in places:
            operands_read.add(places[id(value)])
        elif id(value) in results:
            results_read.append(results[id(value)])
        elif not _taken(value, incoming) and value is not None:
            beside.append(index)
    for result in incoming:
        if results[id(result)] in results_read:
            results_read.remove(results[id(result)])
    return frozenset(operands_read), frozenset(results_read), tuple(beside)


def _fresh(back: Estimate) -> list[bool]:
    """For each gradient, whether the backward writes it; if not, it is the result's own gradient."""
    if back.writes is None:
        return [True] * len(back.out)
    own = {id(value) for value in back.out}
    unclaimed = [value for value in back.writes if isinstance(value, TensorType) and id(value) not in own]
    written = {id(value) for value in back.writes}
    return [id(value) in written or _taken(value, unclaimed) for value in back.out]


def _taken(value: object, others: list[TensorType]) -> bool:
    """Whether others have a tensor of that shape and element type; the first such is removed."""
    for place, other in enumerate(others if isinstance(value, TensorType) else ()):
        if (other.shape, other.dtype) == (value.shape, value.dtype):  # type: ignore[attr-defined]
            del others[place]
            return True
    return False


def reached(calls: Sequence[PricedCall], values: Mapping[str, Value], seeds: Iterable[str]) -> set[int]:
    """Places of the calls whose gradients a step computes: those that lead to `seeds` through calls with gradients."""
    owner = owners(calls, values) if any(call.in_place for call in calls) else {}
    live = set(seeds)  # values with a gradient
    written = {owner.get(name, name) for name in live}  # owners of memory that some of these are views of
    places = set()
    for index, call in reversed([*enumerate(calls)]):
        operands = call.tensors(values)
        later = call.in_place and operands and owner.get(operands[0], operands[0]) in written
        if not later and live.isdisjoint(call.node.outputs):
            continue
        if call.gradient is not None:
            places.add(index)
            wanted = [operands[place] for place, _ in call.gradient.gradients]
        else:  # an operator without a rule may have a gradient
            wanted = operands if call.estimate.unknown else []
        live.update(wanted)
        if owner:
            written.update(owner.get(name, name) for name in wanted)
    return places


def pass_on(calls: Sequence[PricedCall], values: dict[str, Value]) -> None:
    """Mark other values that want a gradient because of the last call.

    An operand written in place wants one if its result does, and so do its views. Results of an operator without a rule want
    one if an operand does.
    """
    call = calls[-1]
    if not (call.estimate.unknown or call.in_place):
        return
    operands = call.tensors(values)
    wanting = [name for name in operands if wants(values[name])]
    written = [name for name in call.node.outputs if name and isinstance(values[name], TensorType)]
    marked: Iterable[str] = ()
    if wanting and call.estimate.unknown:
        marked = written
    elif call.in_place and operands and operands[0] not in wanting and any(wants(values[x]) for x in written):
        owner = owners(calls, values)
        shared = owner.get(operands[0], operands[0])
        marked = [name for name in values if owner.get(name, name) == shared]
    for name in marked:
        value = values[name]
        if isinstance(value, TensorType) and value.dtype.is_floating:
            values[name] = replace(value, requires_grad=True)


def wants(value: object) -> TypeGuard[TensorType]:
    """Whether a value wants a gradient."""
    return isinstance(value, TensorType) and value.requires_grad


def without_gradient(value: Value) -> Value:
    """The value with `requires_grad` off."""
    return replace(value, requires_grad=False) if wants(value) else value


def _wanting(value: Any) -> list[TensorType]:
    return [tensor for tensor in flat((value,)) if wants(tensor)]


class Checkpoint(Record, frozen=True):
    """Calls `first` to `last` of a graph; those before `end` run again."""

    first: int
    last: int
    end: int
    saved: Mapping[Any, int]  # by value that gradients read, the place of the first call whose gradient does


# The operands that a call saves for its gradient, and the results.
Kept = tuple[Collection[Any], Collection[Any]]


def checkpoints(
    calls: Sequence[PricedCall], marks: Mapping[str, int], kept_by: Callable[[PricedCall], Kept]
) -> list[Checkpoint]:
    """The checkpoints of a graph. marks: by name of a call, the number of its checkpoint."""
    names = [(place, call.node.name) for place, call in enumerate(calls)]
    together = grouped((marks[name], place) for place, name in names if name in marks)
    found = []
    for places in together.values():
        saved: dict[Any, int] = {}
        end = places[0]
        for place in places:
            operands, results = kept_by(calls[place])
            if results:
                end = place + 1
            elif operands:
                end = place
            for name in (*operands, *results):
                saved.setdefault(name, place)
        found.append(Checkpoint(places[0], places[-1], end, saved))
    return found


def gradient_checkpoints(calls: Sequence[PricedCall], marks: Mapping[str, int]) -> list[Checkpoint]:
    """The checkpoints of a graph, by what the gradients of its calls read, whatever memory it is in."""

    def kept(call: PricedCall) -> Kept:
        gradient = call.gradient
        return ((), ()) if gradient is None else (gradient.operands, (*gradient.results, *gradient.beside))

    return checkpoints(calls, marks, kept)


def add_recomputation(calls: Sequence[PricedCall], rows: list[Row], marks: Mapping[str, int]) -> None:
    """Add the recomputed work of checkpoints to the gradients of the calls that are run again."""
    ends = [call.row for call in calls[1:]] + [len(rows)]
    for checkpoint in gradient_checkpoints(calls, marks):
        for place in range(checkpoint.first, checkpoint.end):
            for row in range(calls[place].row, ends[place]):
                own = rows[row]
                again = own.cost if own.backward is None else own.backward + own.cost
                rows[row] = own._replace(backward=again)


_CHECKPOINTED = ("tag_activation_checkpoint", "wrap_activation_checkpoint")
_CALLS_CHECKPOINT = re.compile(
    r"(?<![\w])(?:checkpoint|checkpoint_sequential|_gradient_checkpointing_func)\("
)
_FRAME = re.compile(r'^[ \t]*File "[^"\n]*", line \d+, in (\S+)\n([^\n]*)', re.MULTILINE)


def with_checkpoints(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The graph with checkpoints marked and checkpointed graphs inlined; ModelError for a pattern without a match."""
    nodes: list[Node] = []
    types, marks = dict(graph.types), dict(graph.recomputed)
    inlined = 0  # checkpointed graphs whose calls replace the operators that hold them
    for node in graph.nodes:
        calls = _inlined(node, types) if node.operator.word in _CHECKPOINTED else None
        nodes += [node] if calls is None else calls
        if calls is not None:
            marks.update((call.name, inlined) for call in calls)
            inlined += 1
    if inlined:
        graph = replace(graph, nodes=tuple(nodes), types=types, recomputed=marks)
    called = {node.module for node in graph.nodes if node.module}
    paths = {path for module in called for path in (*modules_around(module), module)}
    hits = [matched("--recompute", pattern, paths, sorted(paths), "no modules") for pattern in patterns]
    modules = set[str]().union(*hits)
    marks = dict(graph.recomputed)
    number = max(marks.values(), default=-1)
    found = {node.name: _checkpoint_of(node, modules) for node in graph.nodes if node.name not in marks}
    parts = grouped((key[:2], key[2]) for key in found.values() if key is not None)
    # A lambda that calls several modules is one checkpoint; any other line may run again for each module of a loop.
    whole = {
        place for place, called in parts.items() if len({*called} - {place[1]}) <= _calls_of_lambda(place[0])
    }
    before: object = None
    for node in graph.nodes:
        own = found.get(node.name)
        key = marks.get(node.name) if own is None else own[:2] if own[:2] in whole else own
        if key is not None and node.name not in marks:
            number += key != before
            marks[node.name] = number
        before = key
    return replace(graph, recomputed=marks) if marks else graph


def _checkpoint_of(node: Node, modules: set[str]) -> tuple[str, str, str] | None:
    """A call's checkpoint: its line, the module of the line, the module that it calls; the last alone if a user names it."""
    if modules:
        inside = next((path for path in (*modules_around(node.module), node.module) if path in modules), None)
        if inside is not None:
            return ("", "", inside)
    if "checkpoint" not in node.python_stack:
        return None
    depth = 0
    for function, line in _FRAME.findall(node.python_stack):
        depth += function == "forward"
        if _CALLS_CHECKPOINT.search(line):
            stack = [entry.split(",")[1] for entry in node.module_stack.split(";") if entry.count(",") > 1]
            of, called = (
                stack[place] if 0 <= place < len(stack) else node.module for place in (depth - 1, depth)
            )
            return (line, of, called)
    return None


def _calls_of_lambda(line: str) -> int:
    """How many calls the lambda in a line of code has; 0 if there is none."""
    try:
        lambdas = [node.body for node in ast.walk(ast.parse(line.strip())) if isinstance(node, ast.Lambda)]
    except SyntaxError:  # the first of several lines
        return 0
    return sum(isinstance(node, ast.Call) for body in lambdas for node in ast.walk(body))


def _inlined(node: Node, types: dict[str, Any]) -> list[Node] | None:
    """The calls of a checkpointed graph, renamed; None unless its inputs and results match the operator's one by one."""
    from graphflops.passes.inlined import names_around, node_around  # few programs have such graphs

    region, *operands = node.args or (None,)
    if not isinstance(region, Graph) or len(region.inputs) != len(operands):
        return None
    given = {entry.name: operand for entry, operand in zip(region.inputs, operands, strict=True)}
    called = names_around(node, region, given)
    if called is None:
        return None
    own = {name: x.name for name, x in called.items() if isinstance(x, Ref) and name not in given}
    types.update((outer, region.types[name]) for name, outer in own.items() if name in region.types)
    return [node_around(call, node, called) for call in region.nodes]
