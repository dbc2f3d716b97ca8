"""The program that a training step runs: with adapters, at its precision, with its loss.

Each is a change of the graph, so that costs and memory follow from the calls as for any program. At another precision,
parameters are converted, or products run in a lower precision as under torch.autocast; the element types of all values
follow from the operators' rules. Where a program names the type of its parameters, it is assumed to mean whatever type they
have (`x.to(weight.dtype)`), unless the line of code says float32. Conversions of operands become calls of their own.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count, zip_longest
from typing import Any, TypeGuard

from graphflops.base.patterns import modules_around
from graphflops.base.record import Record, field, replace
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, Input, Node, Note, Output, Ref, tensor_type
from graphflops.passes.bind import bind
from graphflops.passes.gradients import wants, with_checkpoints
from graphflops.passes.price import Pricer
from graphflops.rules import added_calls
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, DType, TensorType, flat
from graphflops.training import Precision, Training, matched, some

_SCALE = 2.0
_LORA = (".lora_A.weight", ".lora_B.weight")


def trained_program(graph: Graph, training: Training) -> Graph:
    """The program as it is trained; ModelError if an option names nothing in it, or does not fit it."""
    options = {
        "--lora": training.lora_rank > 0,
        "--precision": training.precision is not None,
        "--loss cross-entropy": training.loss == "cross-entropy",
    }
    adding = next((option for option, is_given in options.items() if is_given), None)
    if adding and graph.declared is not None:
        raise ModelError(f"{adding} takes a program of torch.export, whose calls are those of PyTorch")
    if any(output.role == "gradient" for output in graph.outputs):
        raise ModelError("the program holds its gradients already: give the one exported without them")
    if training.lora_rank:
        graph = with_adapters(graph, training.lora_rank, training.lora_modules)
    graph = with_checkpoints(_with_gradients(with_returned(graph), training), training.recompute)
    if training.precision is not None:
        leaves = {entry.name for entry in graph.inputs if wants(graph.types.get(entry.name))}
        graph = at_precision(graph, training.precision, leaves)
    return with_cross_entropy(graph) if training.loss == "cross-entropy" else graph


def with_returned(graph: Graph) -> Graph:
    """The graph in which an operand that a nested no-grad graph returns is read as itself, and so has a gradient.

    Under `torch.no_grad`, `x.to(dtype)` of an `x` of that type is `x`, and so are `x.mul_(2)` and dropout in evaluation.
    Anything else that is computed there has no gradient.
    """
    nodes, instead = list[Node](), dict[str, str]()
    for node in graph.nodes:
        here = node.renamed(instead) if instead else node
        if any(isinstance(value, Graph) for value in here.args):
            here = here.changed(lambda value: with_returned(value) if isinstance(value, Graph) else value)
        match here.args:
            case (False, Graph() as region, *_) if here.operator.name == "wrap":
                instead |= _returned(here, region)
        nodes.append(here)
    if not instead and all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    outputs = tuple([output.renamed(instead) for output in graph.outputs])
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _returned(call: Node, region: Graph) -> dict[str, str]:
    """By result of a call of a nested graph, the operand that it is."""
    itself: dict[str, Any] = dict(zip([entry.name for entry in region.inputs], call.args[2:], strict=False))
    for node in region.nodes:
        given = node.arguments()
        first = next(iter(given.values()), None)
        if isinstance(first, Ref) and node.outputs and node.outputs[0] is not None:
            both = [region.types.get(name) for name in (first.name, node.outputs[0])]
            is_same = len({x.dtype if isinstance(x, TensorType) else None for x in both}) == 1
            is_off = node.operator.kind == "dropout" and given.get("training") is False
            if node.operator.mutates or is_off or (node.operator.name == "cast" and is_same):
                itself[node.outputs[0]] = itself.get(first.name)
    found = {}
    for name, output in zip(call.outputs, region.outputs, strict=False):
        operand = itself.get(output.value.name) if isinstance(output.value, Ref) else None
        if name and isinstance(operand, Ref):
            found[name] = operand.name
    return found


def _with_gradients(graph: Graph, training: Training) -> Graph:
    """The graph whose inputs want a gradient if the step computes one."""
    users = {entry.name: graph.types.get(entry.name) for entry in graph.inputs if entry.role == "user"}
    for name in training.grad_inputs:
        value = users.get(name)
        if name not in users:
            raise ModelError(f"--grad-input {shown(name)}: no such input; inputs are {some([*users])}")
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
        wanted = entry.name in training.grad_inputs or (value.requires_grad and entry.role == "user")
        if entry.role == "parameter" and (entry.alias_of or entry.target) not in frozen:
            wanted = value.dtype.is_floating and (value.requires_grad or all_trained)
        types[entry.name] = replace(value, requires_grad=wanted)
    notes = graph.notes
    if all_trained and any(wants(types.get(entry.name)) for entry in parameters):
        text = "the file does not record which parameters are trained: all are taken to be"
        notes = (*notes, Note("GF107", "", text))
    return replace(graph, types=types, notes=notes)


def chosen(option: str, patterns: Sequence[str], paths: Sequence[str], nothing: str) -> set[str]:
    """The paths that a pattern matches, with those inside a matching module; ModelError for a pattern without a match.

    nothing: what the error says that the model has if there are no paths.
    """
    around = {path: modules_around(path) for path in paths}
    candidates = {*paths, *(module for modules in around.values() for module in modules)}
    found: set[str] = set()
    for pattern in patterns:
        hits = matched(option, pattern, candidates, paths, nothing)
        found.update(path for path in paths if path in hits or not hits.isdisjoint(around[path]))
    return found


def with_adapters(graph: Graph, rank: int, modules: Sequence[str]) -> Graph:
    """The graph with a trained adapter beside each linear layer in these modules: `y + B(A(x)) * scale`, as PEFT adds it."""
    parameters = [entry for entry in graph.inputs if entry.role == "parameter"]
    targets = {entry.name: entry.target.rpartition(".")[0] for entry in parameters}
    weights = {node.name: _weight(node, graph.types) for node in graph.nodes}
    layers = {name: targets[weight] for name, weight in weights.items() if weight in targets}
    wanted = chosen("--lora", modules, list(layers.values()), "no linear layers")
    inputs, nodes, made = list(graph.inputs), [], set[str]()
    types: dict[str, Any] = dict(graph.types)
    for node in graph.nodes:
        layer = layers.get(node.name)
        if layer not in wanted:
            nodes.append(node)
            continue
        result, name = node.outputs[0], weights[node.name]
        own, down, up, product = (f"{result}_{part}" for part in ("base", "lora_A", "lora_B", "scaled"))
        factors = f"{name}_lora_A", f"{name}_lora_B"
        types[own] = types[result or ""]
        nodes += [
            replace(node, outputs=(own,)),
            added_calls.linear(node, down, node.arguments()["a"], Ref(factors[0])),
            added_calls.linear(node, up, Ref(down), Ref(factors[1])),
            added_calls.scaled(node, product, Ref(up), _SCALE),
            replace(added_calls.added(node, f"{result}_adapted", Ref(own), Ref(product)), outputs=(result,)),
        ]
        if layer not in made:
            made.add(layer)
            outs, ins = types[name].shape
            for factor, shape, target in zip(factors, ((rank, ins), (outs, rank)), _LORA, strict=True):
                inputs.append(Input(factor, "parameter", f"{layer}{target}"))
                types[factor] = TensorType(shape, types[name].dtype, requires_grad=True)
    return replace(graph, inputs=tuple(inputs), nodes=tuple(nodes), types=types)


def _weight(node: Node, types: Mapping[str, Any]) -> str:
    """The weight of a linear layer with one result; "" for other calls, and for weights without a recorded type."""
    given = node.arguments() if node.operator.name == "linear" else {}
    weight, matrix = given.get("weight"), tensor_type(given.get("weight"), types)
    is_typed = matrix is not None and matrix.rank == 2 and len(node.outputs) == 1 and node.outputs[0] in types
    return weight.name if is_typed and isinstance(weight, Ref) and isinstance(given.get("a"), Ref) else ""


def with_cross_entropy(graph: Graph) -> Graph:
    """The graph with a cross-entropy of its first result in float32 at the end, as language models compute it.

    Classes are on the last axis; for images (batch, classes, height, width, ...) on the second.
    """
    typed = ((name, tensor_type(name, graph.types)) for name in graph.seeds)
    found = [(name, x) for name, x in typed if x is not None and x.dtype.kind == "float" and x.rank > 1]
    if not found:
        problem = "no result of the program is a floating tensor with classes along an axis"
        raise ModelError(f"--loss cross-entropy: {problem}; --loss sum takes the results as they are")
    logits, value = found[0]
    taken = {*graph.types, *[entry.name for entry in graph.inputs], *[node.name for node in graph.nodes]}
    names = ("labels", "loss", "logits_float32", "logits_flat", "labels_flat")
    labels, loss, single, rows_of, classes = (_unused(name, taken) for name in names)
    axis = 1 if value.rank > 3 else value.rank - 1
    rows = (*value.shape[:axis], *value.shape[axis + 1 :])
    types = {**graph.types, labels: TensorType(rows, INT64)}
    flat, targets, nodes, like = Ref(logits), Ref(labels), [], Node("", "")
    if value.dtype is not FLOAT32:
        nodes.append(added_calls.converted(like, single, flat, dtype=FLOAT32))
        flat = Ref(single)
    if value.rank == 3:
        nodes.append(added_calls.viewed(like, rows_of, flat, (-1, value.shape[axis])))
        nodes.append(added_calls.viewed(like, classes, targets, (-1,)))
        flat, targets = Ref(rows_of), Ref(classes)
    nodes.append(added_calls.cross_entropy(like, loss, flat, targets))
    inputs, outputs = Input(labels, "user"), Output(Ref(loss), "loss")
    ends = {"inputs": (*graph.inputs, inputs), "outputs": (*graph.outputs, outputs)}
    return replace(graph, nodes=(*graph.nodes, *nodes), types=types, **ends)


def _unused(wished: str, taken: set[str]) -> str:
    """The name, with a number if a value has it already; taken: those that have, to which it is added."""
    names = (f"{wished}_{number}" if number else wished for number in count())
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


_FLOATING = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
# Element types of parameters, and of products if autocast runs them in another type.
_PRECISIONS: Mapping[Precision, tuple[DType, DType | None]] = {
    "fp32": (FLOAT32, None),
    "bf16": (BFLOAT16, None),
    "bf16-mixed": (FLOAT32, BFLOAT16),
    "fp16-mixed": (FLOAT32, FLOAT16),
}
_SAYS_FLOAT32 = re.compile(r"\.float32\b|\.float\(|torch\.float\b")


def at_precision(graph: Graph, precision: Precision, leaves: Iterable[str]) -> Graph:
    """The program with parameters, values and products of a precision. leaves: names of parameters that want a gradient."""
    typed = [(entry, tensor_type(entry.name, graph.types)) for entry in graph.inputs]
    floating = [(entry, value) for entry, value in typed if value is not None and value.dtype in _FLOATING]
    elements: Counter[DType] = Counter()
    for entry, value in floating:
        if entry.role == "parameter":
            elements[value.dtype] += value.numel if isinstance(value.numel, int) else 1
    own = elements.most_common(1)[0][0] if elements else FLOAT32  # the type of most parameters
    pricer = Pricer(graph, bind(graph, {}, {}, assume=False), False, lambda *_: None)
    wanted, lower = _PRECISIONS[precision]
    types = {}
    for entry, value in floating:
        # `module.to(dtype)` converts parameters and buffers; the caller converts its inputs.
        if entry.role in ("parameter", "buffer") or value.dtype is own:
            types[entry.name] = replace(value, dtype=wanted)
    conversion = _Conversion(own, wanted, lower, frozenset(leaves), pricer, {*graph.types})
    return replace(conversion.graph(graph, types), lasting=frozenset(conversion.cached.values()))


def _is_eligible(value: Any) -> TypeGuard[TensorType]:
    """Whether autocast converts a value: a tensor of real floating point of at most 32 bits."""
    return isinstance(value, TensorType) and value.dtype.kind == "float" and value.dtype is not FLOAT64


class _Conversion(Record, frozen=True):
    """Converts the type of most parameters to a wanted type, and products to a lower type as autocast does."""

    own: DType
    wanted: DType
    lower: DType | None  # None without autocast
    leaves: Collection[str]  # parameters with a gradient; their converted copies last for the whole forward
    pricer: Pricer
    taken: set[str]  # names of values so far
    cached: dict[str, str] = field(default_factory=dict)  # by parameter, its converted copy

    def graph(self, graph: Graph, inputs: Mapping[str, Any]) -> Graph:
        """The graph, nested or not, given the types of its inputs."""
        types: dict[str, Any] = {**graph.types, **inputs}
        nodes: list[Node] = []
        marks = dict(graph.recomputed)
        for recorded in graph.nodes:
            node = self.with_nested(self.with_type(recorded), types)
            for part in [node] if self.lower is None else self.parts(node, types):
                for call in [part] if self.lower is None else self.autocast(part, types, self.lower):
                    self.derive(call, types, graph)
                    nodes.append(call)
                    if node.name in marks:
                        marks[call.name] = marks[node.name]
        return replace(graph, nodes=tuple(nodes), types=types, recomputed=marks)

    def parts(self, node: Node, types: Mapping[str, Any]) -> list[Node]:
        """The two calls of a cross-entropy with classes; autocast converts what is between them (LossNLL.cpp of ATen)."""
        given = node.arguments() if node.operator.name == "cross_entropy_loss" else {}
        x, labels = (tensor_type(given.get(name), types) for name in ("x", "labels"))
        is_plain = x is not None and labels is not None and not labels.dtype.is_floating
        is_smooth = bool(given.get("label_smoothing")) or any(node.args[5:])
        if x is None or not is_plain or is_smooth or node.operator.dialect != "aten":
            return [node]
        name = _unused(f"{node.name}_log_softmax", self.taken)
        logarithms = added_calls.log_softmax(node, name, given["x"], min(x.rank - 1, 1), x.dtype)
        others = {key: value for key, value in node.kwargs if key in ("reduction", "ignore_index")}
        operands = Ref(name), given["labels"], given.get("weight"), *node.args[3:5]
        loss = added_calls.nll_loss(node, node.name, *operands, **others)
        return [logarithms, replace(loss, outputs=node.outputs)]

    def autocast(self, node: Node, types: Mapping[str, Any], lower: DType) -> list[Node]:
        """The conversions before a call, as calls of their own, and the call on their results."""
        treatment = added_calls.autocast(node.operator)
        if treatment is None:
            return [node]
        read = {value.dtype for value in map(types.get, node.reads()) if _is_eligible(value)}
        if treatment == "single result":
            has_type = any(isinstance(x, DType) for x in (*node.args, *(value for _, value in node.kwargs)))
            if has_type or read.isdisjoint((BFLOAT16, FLOAT16)):
                return [node]
            return [replace(node, kwargs=(*node.kwargs, ("dtype", FLOAT32)))]
        if treatment == "widest" and FLOAT32 not in read:
            return [node]
        wanted = lower if treatment == "lower" else FLOAT32
        calls: list[Node] = []

        def cast(argument: Any) -> Any:
            value = types.get(argument.name) if isinstance(argument, Ref) else None
            if not _is_eligible(value) or value.dtype is wanted:
                return argument
            is_cached = wanted is lower and value.dtype is FLOAT32 and argument.name in self.leaves
            if is_cached and argument.name in self.cached:
                return Ref(self.cached[argument.name])
            name = _unused(f"{argument.name}_{wanted.name}", self.taken)
            if is_cached:
                self.cached[argument.name] = name
            calls.append(added_calls.converted(node, name, argument, dtype=wanted))
            return Ref(name)

        calls.append(node.changed(cast))
        return calls

    def with_type(self, node: Node) -> Node:
        """The call with the wanted type in place of the parameters' type."""
        names_own = self.own in node.args or any(value is self.own for _, value in node.kwargs)
        if self.own is self.wanted or not names_own:
            return node
        if self.own is FLOAT32 and _SAYS_FLOAT32.search(node.python_stack.rpartition("\n")[2]):
            return node
        return node.changed(lambda x: self.wanted if x is self.own else x)

    def with_nested(self, node: Node, types: Mapping[str, Any]) -> Node:
        """The call with its nested graphs converted; their inputs are the operands after them, in order."""
        first = next((place for place, x in enumerate(node.args) if isinstance(x, Graph)), None)
        if first is None:
            return node
        operands = [types.get(ref.name) for ref in flat(node.args[first:]) if isinstance(ref, Ref)]

        def converted(argument: Any) -> Any:
            if not isinstance(argument, Graph):
                return argument
            names = [entry.name for entry in argument.inputs if entry.role != "constant"]
            pairs = zip(names, operands, strict=False)
            given = {name: _with_type_of(argument.types.get(name), operand) for name, operand in pairs}
            # A copy that one graph makes has no name in another.
            return replace(self, cached={}).graph(argument, given)

        return replace(node, args=tuple(converted(argument) for argument in node.args))

    def derive(self, node: Node, types: dict[str, Any], graph: Graph) -> None:
        """Fix the types of a call's results: the recorded sizes, with the element types that its rule derives."""
        estimate = self.pricer.price_of(node, types, graph).estimate
        reads = [value.dtype for name in node.reads() if isinstance(value := types.get(name), TensorType)]
        for name, ours in zip_longest(node.outputs, estimate.out):
            if name is None:
                continue
            recorded = types.get(name)
            if recorded is None:
                types[name] = ours
            elif isinstance(ours, TensorType):
                types[name] = _with_type_of(recorded, ours)
            elif isinstance(recorded, TensorType) and recorded.dtype is self.own and self.wanted in reads:
                types[name] = replace(recorded, dtype=self.wanted)


def _with_type_of(recorded: Any, ours: Any) -> Any:
    """The recorded type with another's element type, if both are floating."""
    if not isinstance(recorded, TensorType) or not isinstance(ours, TensorType):
        return recorded
    if not recorded.dtype.is_floating or not ours.dtype.is_floating or recorded.dtype is ours.dtype:
        return recorded
    return replace(recorded, dtype=ours.dtype)
