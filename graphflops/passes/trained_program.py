"""The program that a training step runs: with adapters, at its precision, with its loss.

Each is a change of the graph, so that costs and memory follow from the calls as they do for any program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.base.patterns import modules_around
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, Input, Node, Note, Output, Ref
from graphflops.passes.checkpoints import with_checkpoints
from graphflops.passes.gradients import wants
from graphflops.rules.added_calls import added, converted, cross_entropy, linear, scaled, viewed
from graphflops.tensor import FLOAT32, INT64, TensorType
from graphflops.training import Training, matched

_SCALE = 2.0
_LORA = (".lora_A.weight", ".lora_B.weight")
_LABELS = "labels"  # what the loss compares the first result with


def trained_program(graph: Graph, training: Training) -> Graph:
    """The program as it is trained; ModelError where an option names nothing in it, or does not go with it."""
    options = {
        "--lora": training.lora_rank > 0,
        "--precision": training.precision is not None,
        "--loss cross-entropy": training.loss == "cross-entropy",
    }
    adding = next((option for option, is_given in options.items() if is_given), None)
    if adding and graph.declared is not None:
        raise ModelError(f"{adding} takes a program of torch.export, whose calls are those of PyTorch")
    if training.lora_rank:
        graph = with_adapters(graph, training.lora_rank, training.lora_modules)
    graph = with_checkpoints(_with_gradients(graph, training), training.recompute)
    if training.precision is not None:
        from graphflops.passes.precision import at_precision

        leaves = {entry.name for entry in graph.inputs if wants(graph.types.get(entry.name))}
        graph = at_precision(graph, training.precision, leaves)
    return with_cross_entropy(graph) if training.loss == "cross-entropy" else graph


def _with_gradients(graph: Graph, training: Training) -> Graph:
    """The graph whose inputs want a gradient where the step computes one."""
    users = {entry.name: graph.types.get(entry.name) for entry in graph.inputs if entry.role == "user"}
    for name in training.grad_inputs:
        value = users.get(name)
        if name not in users:
            raise ModelError(f"--grad-input {shown(name)}: no such input; inputs are {_some([*users])}")
        if not isinstance(value, TensorType) or not value.dtype.is_floating:
            raise ModelError(f"--grad-input {shown(name)}: an input of {value} has no gradient")
    types = dict(graph.types)
    parameters = [entry for entry in graph.inputs if entry.role == "parameter"]
    all_trained = not any(wants(types.get(entry.name)) for entry in parameters)
    paths = [entry.target for entry in parameters]
    found = chosen("--freeze", training.freeze, paths, "no parameters")
    if training.lora_rank:
        found |= {path for path in paths if not path.endswith(_LORA)}
    frozen = found | {entry.alias_of for entry in parameters if entry.target in found}
    for entry in graph.inputs:
        value = types.get(entry.name)
        if not isinstance(value, TensorType):
            continue
        wanted = entry.name in training.grad_inputs
        if entry.role == "parameter" and (entry.alias_of or entry.target) not in frozen:
            wanted = value.dtype.is_floating and (value.requires_grad or all_trained)
        types[entry.name] = replace(value, requires_grad=wanted)
    notes = graph.notes
    if all_trained and any(wants(types.get(entry.name)) for entry in parameters):
        text = "the file does not record which parameters are trained: all are taken to be"
        notes = (*notes, Note("GF107", "", text))
    return replace(graph, types=types, notes=notes)


def chosen(option: str, patterns: Sequence[str], paths: Sequence[str], nothing: str) -> set[str]:
    """The paths that a pattern matches, and those below a module that one matches; ModelError for one without a match.

    nothing: what the model has where there are no paths.
    """
    around = {path: modules_around(path) for path in paths}
    candidates = {*paths, *(module for modules in around.values() for module in modules)}
    found: set[str] = set()
    for pattern in patterns:
        hits = matched(pattern, candidates)
        if not hits:
            raise ModelError(
                f"{option} {shown(pattern)} matches nothing; the model has {_some(paths) or nothing}"
            )
        found.update(path for path in paths if path in hits or not hits.isdisjoint(around[path]))
    return found


def _some(paths: Sequence[str]) -> str:
    return ", ".join(map(shown, paths[:3])) + (", ..." if len(paths) > 3 else "")


# Adapters


def with_adapters(graph: Graph, rank: int, modules: Sequence[str]) -> Graph:
    """The graph with a trained adapter beside each linear layer in these modules: `y + B(A(x)) * scale`, as PEFT adds it."""
    targets = {
        entry.name: entry.target.rpartition(".")[0] for entry in graph.inputs if entry.role == "parameter"
    }
    layers = {
        node.name: targets[name]
        for node in graph.nodes
        if (name := _weight(node)) in targets and _is_linear(node, graph.types)
    }
    wanted = chosen("--lora", modules, list(layers.values()), "no linear layers")
    inputs, nodes, made = list(graph.inputs), [], set[str]()
    types: dict[str, Any] = dict(graph.types)
    for node in graph.nodes:
        layer = layers.get(node.name)
        if layer not in wanted:
            nodes.append(node)
            continue
        nodes += _adapted(node, types)
        if layer not in made:
            made.add(layer)
            weight: TensorType = types[_weight(node) or ""]
            outs, ins = weight.shape
            for name, shape, target in zip(_names(node), ((rank, ins), (outs, rank)), _LORA, strict=True):
                inputs.append(Input(name, "parameter", f"{layer}{target}"))
                types[name] = TensorType(shape, weight.dtype, requires_grad=True)
    return replace(graph, inputs=tuple(inputs), nodes=tuple(nodes), types=types)


def _weight(node: Node) -> str | None:
    """The name of a linear layer's weight; None for another call."""
    argument = node.arguments().get("weight" if node.operator.name == "linear" else "")
    return argument.name if isinstance(argument, Ref) else None


def _is_linear(node: Node, types: Mapping[str, Any]) -> bool:
    """Whether a call that reads a weight is a linear layer with one result; a malformed file may record anything."""
    weight, x = types[_weight(node) or ""], node.arguments().get("a")
    is_matrix = isinstance(weight, TensorType) and weight.rank == 2
    return is_matrix and isinstance(x, Ref) and len(node.outputs) == 1 and node.outputs[0] in types


def _names(node: Node) -> tuple[str, str]:
    weight = _weight(node)
    return f"{weight}_lora_A", f"{weight}_lora_B"


def _adapted(node: Node, types: dict[str, Any]) -> Iterator[Node]:
    """The layer's call and those of its adapter; the last one has the layer's result."""
    (result,) = node.outputs
    x = node.arguments()["a"]
    own, down, up, product = (f"{result}_{part}" for part in ("base", "lora_A", "lora_B", "scaled"))
    factors = _names(node)
    types[own] = types[result or ""]
    yield replace(node, outputs=(own,))

    yield linear(node, down, x, Ref(factors[0]))
    yield linear(node, up, Ref(down), Ref(factors[1]))
    yield scaled(node, product, Ref(up), _SCALE)
    yield replace(added(node, f"{result}_adapted", Ref(own), Ref(product)), outputs=(result,))


# The loss


def with_cross_entropy(graph: Graph) -> Graph:
    """The graph that ends in the cross-entropy of its first result, in float32, as language models compute it.

    Classes are the last axis; of images (batch, classes, height, width, ...) the second one.
    """
    results = ((name, graph.types.get(name)) for name in graph.seeds)
    logits, value = next(
        (
            (name, x)
            for name, x in results
            if isinstance(x, TensorType) and x.dtype.kind == "float" and x.rank > 1
        ),
        ("", None),
    )
    if value is None:
        raise ModelError(
            "--loss cross-entropy: no result of the program is a floating tensor with classes along an axis"
        )
    axis = 1 if value.rank > 3 else value.rank - 1
    rows = (*value.shape[:axis], *value.shape[axis + 1 :])
    types = {**graph.types, _LABELS: TensorType(rows, INT64)}
    flat, targets, nodes, like = Ref(logits), Ref(_LABELS), [], Node("", "")
    if value.dtype is not FLOAT32:
        nodes.append(converted(like, "logits_float32", flat, FLOAT32))
        flat = Ref("logits_float32")
    if value.rank == 3:
        nodes.append(viewed(like, "logits_flat", flat, (-1, value.shape[axis])))
        nodes.append(viewed(like, "labels_flat", targets, (-1,)))
        flat, targets = Ref("logits_flat"), Ref("labels_flat")
    nodes.append(cross_entropy(like, "loss", flat, targets))
    return replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        inputs=(*graph.inputs, Input(_LABELS, "user")),
        outputs=(*graph.outputs, Output(Ref("loss"), "loss")),
        types=types,
    )
