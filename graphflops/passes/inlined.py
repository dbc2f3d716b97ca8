"""Graphs that run once within a call, such as under `torch.no_grad()` or as a branch, in place of that call.

Memory and time see the calls that run, one after the other, and torch.compile traces through them. The report keeps a row
for the call and one for each call inside.
"""

from collections.abc import Mapping
from typing import Any

from graphflops.attention.scopes import handed
from graphflops.base.record import replace
from graphflops.cost import Value
from graphflops.graph import Graph, Input, Node, Ref
from graphflops.passes.program import PricedCall, PricedGraph
from graphflops.tensor import flat


def inlined(graph: PricedGraph) -> PricedGraph:
    """The graph with the calls of those that run once; the same one if there are none."""
    calls, inputs, marks = list[PricedCall](), list[Input](), dict(graph.graph.recomputed)
    values, until = dict[str, Value](), dict[str, str]()
    for call in graph.calls:
        run = _run_once(call)
        called = None if run is None else _called(call, run)
        if run is None or called is None:
            calls.append(call)
            continue
        inner = run.inlined
        inputs += [replace(x, name=called[x.name].name) for x in inner.graph.inputs if x.role == "constant"]
        outside = {name: ref.name for name, ref in called.items() if isinstance(ref, Ref)}
        values.update((outer, inner.values[name]) for name, outer in outside.items())
        found = [_around(each, call, called) for each in inner.calls]
        if call.node.name in marks:
            marks.update((each.node.name, marks[call.node.name]) for each in found)
        calls += found
        until.update((outside.get(x, x), f"{call.node.name}/{last}") for x, last in inner.until.items())
        if not call.node.operator.word.startswith("wrap_with_"):  # it calls a function: no `with` statement
            until.update(dict.fromkeys(call.uses, calls[-1].node.name))
    if not values:
        return graph
    nodes = tuple(call.node for call in calls)
    around = replace(graph.graph, nodes=nodes, inputs=(*graph.graph.inputs, *inputs), recomputed=marks)
    return replace(graph, graph=around, calls=tuple(calls), values={**values, **graph.values}, until=until)


def _run_once(call: PricedCall) -> PricedGraph | None:
    """The graph that a call runs once, without running any other, if its results are those of the call."""
    (run, times), *others = call.estimate.regions or ((None, 0),)
    if not isinstance(run, PricedGraph) or times != 1 or any(turns != 0 for _, turns in others):
        return None
    return run if run.out == call.estimate.out else None


def _called(call: PricedCall, run: PricedGraph) -> dict[str, Any] | None:
    """What `names_around` says of a graph that runs inside a call."""
    given = {name: value for one, pairs in handed(call.node) if one is run.graph for name, value in pairs}
    return names_around(call.node, run.inlined.graph, given)


def names_around(node: Node, graph: Graph, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """By value of a graph that a call runs, what it is around the call; None unless inputs and results match one by one.

    given: the operands of its inputs.
    """
    made = {name for each in graph.nodes for name in each.outputs if name is not None}
    made.update(entry.name for entry in graph.inputs if entry.role == "constant")
    called: dict[str, Any] = {**{name: Ref(f"{node.name}/{name}") for name in made}, **given}
    results = [*flat(output.value for output in graph.outputs)]
    pairs = [(x, name) for x, name in zip(results, node.outputs, strict=False) if name is not None]
    own = {x.name: Ref(name) for x, name in pairs if isinstance(x, Ref) and x.name in made}
    is_whole = len(results) == len(node.outputs) and len(own) == len(pairs)
    if not is_whole or any(entry.name not in called for entry in graph.inputs):
        return None
    nested = [x for each in graph.nodes for x in flat((each.args, *each.kwargs))]
    captured = {name for x in nested if isinstance(x, Graph) for name in x.captures}
    return {**called, **own} if captured.isdisjoint(called) else None


def node_around(node: Node, of: Node, called: Mapping[str, Any]) -> Node:
    """A node of a graph that a call runs, as one of the graph around it. called: what its values are there."""
    return replace(
        node.changed(lambda x: called.get(x.name, x) if isinstance(x, Ref) else x),
        name=f"{of.name}/{node.name}",
        outputs=tuple([None if name is None else called[name].name for name in node.outputs]),
        python_stack=node.python_stack or of.python_stack,
        module_stack=node.module_stack or of.module_stack,
        module=node.module or of.module,
        module_type=node.module_type if node.module else of.module_type,
        source=node.source or of.source,
    )


def _around(inner: PricedCall, call: PricedCall, called: Mapping[str, Any]) -> PricedCall:
    """A call of a graph, as one of the graph around it."""
    node = node_around(inner.node, call.node, called)
    is_alike = inner.gradient is None or call.gradient is not None
    return replace(
        inner,
        node=node,
        uses=node.reads(),
        gradient=inner.gradient if is_alike else None,
        row=call.row + 1 + inner.row,
        form=inner.form if is_alike else None,
    )
