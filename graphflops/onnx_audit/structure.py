"""Whether the file is a program at all: names defined once and before use, calls that their operators allow."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from graphflops.errors import shown
from graphflops.onnx_audit.model import domain_of
from graphflops.onnx_audit.registry import Found, check
from graphflops.ops.onnx_versions import NEWEST, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from graphflops.onnx_audit.model import Model

_MOST = 50  # findings of one check at the level of the file
# Operators that onnxruntime's optimizers write under ai.onnx, where onnx does not have them.
_OF_ONNXRUNTIME = frozenset({"SimplifiedLayerNormalization", "FusedConv", "FusedGemm", "FusedMatMul"})


@check(
    "GF201",
    "unreadable",
    "error",
    fix="export the model again; what else is said about this file comes first",
    reads="file",
)
def unreadable(model: Model) -> Iterator[Found]:
    """The parts of the file do not fit together to a program: values in a circle, functions that call themselves.

    No cost can be told of such a file, and no runtime loads it. What an undefined value is the cause of is said by GF202.
    """
    if model.problem and not list(undefined_value(model)):
        yield Found(model.problem)


@check(
    "GF202",
    "undefined-value",
    "error",
    fix="restore the initializer or the call that made it: tools that cut models apart often lose one",
    reads="file",
)
def undefined_value(model: Model) -> Iterator[Found]:
    """A call uses, or a graph returns, a value that nothing defines: no input, initializer or call result has the name.

    A model like that does not load. A weight that a tool dropped shows here.
    """
    for graph, around in _scopes(model):
        known = around | _defined(graph)
        for node in graph.node:
            for name in node.input:
                if name and name not in known:
                    yield Found(f"{_title(node)} uses {_shown(name)}, which nothing defines", node)
        for value in graph.output:
            if value.name not in known:
                yield Found(f"the output {_shown(value.name)} is never computed")
    for function in model.proto.functions:
        known = {*function.input, *(name for node in function.node for name in node.output)}
        for node in function.node:
            for name in node.input:
                if name and name not in known:
                    where = f"{_title(node)} in the function {_shown(function.name)}"
                    yield Found(f"{where} uses {_shown(name)}, which nothing defines", node)


@check(
    "GF203",
    "defined-twice",
    "error",
    fix="rename one of the two: in ONNX a name stands for one value only",
    reads="file",
)
def defined_twice(model: Model) -> Iterator[Found]:
    """One name is given to two values of a graph, so that which one a later call means depends on who reads the file."""
    for graph in model.graphs:
        stored = Counter(tensor.name for tensor in graph.initializer)
        stored.update(tensor.values.name for tensor in graph.sparse_initializer)
        made = Counter(name for node in graph.node for name in node.output if name)
        given = Counter(value.name for value in graph.input)
        for name in {**stored, **made, **given}:
            # An initializer that is also an input is that input's default.
            if max(stored[name], given[name]) + made[name] > 1:
                kinds = {"initializer": stored[name], "result": made[name], "input": given[name]}
                said = " and ".join(f"{times} x {kind}" for kind, times in kinds.items() if times)
                yield Found(f"{_shown(name)} is defined more than once: {said}")


@check(
    "GF204",
    "invalid-call",
    "error",
    fix="compare the call with the operator's definition at this opset; convert the model's opset with a tool, not by hand",
    reads="file",
)
def invalid_call(model: Model) -> Iterator[Found]:
    """A call is not one that its operator allows at the opset the file imports: operands missing or too many,
    an attribute that does not exist, lacks, or has another type. Checked by onnx's own checker.
    """
    checker = importlib.import_module("onnx.checker")
    context = _context(model, checker)
    for node in _distinct(model.nodes):
        if _is_unregistered(node, model) or _is_deprecated(node, model):
            continue
        try:
            checker.check_node(_bare(node), context)
        except Exception as error:  # noqa: BLE001 it raises what its C++ makes of a damaged message
            yield Found(f"{_title(node)}: {_first_line(error)}", node)


@check(
    "GF205",
    "checker-failure",
    "error",
    fix="export the model again, or ask the tool that wrote it: runtimes refuse what onnx's checker refuses",
    reads="file",
)
def checker_failure(model: Model) -> Iterator[Found]:
    """Onnx's own checker refuses the model for a reason that no other check here tells: calls out of order, a type
    without element type, an IR version that does not allow what the file holds. It stops at the first.
    """
    for other in (undefined_value, defined_twice, invalid_call, unregistered, not_imported, deprecated):
        if next(iter(other(model)), None) is not None:
            return
    checker = importlib.import_module("onnx.checker")
    try:
        checker.check_model(_without_data(model.proto).SerializeToString())
    except Exception as error:  # noqa: BLE001 as above
        yield Found(_first_line(error))


@check(
    "GF206",
    "unregistered-operator",
    "error",
    fix="import the opset that has the operator, or write the call in the domain whose operator it is",
    reads="file",
)
def unregistered(model: Model) -> Iterator[Found]:
    """A call of an operator that its domain does not have at the opset imported: misspelled, newer than the opset, or an
    operator of onnxruntime written under ai.onnx, which no other runtime loads (a warning then).
    """
    for node in _distinct(model.nodes, by_operator=True):
        if _is_unregistered(node, model):
            where = f"opset {model.opsets[domain_of(node.domain)]} of {node.domain or 'ai.onnx'}"
            if node.op_type in _OF_ONNXRUNTIME:
                text = f"{_title(node)} is an operator of onnxruntime, not of {node.domain or 'ai.onnx'}"
                yield Found(text, node, severity="warning")
            else:
                yield Found(f"{where} has no operator {_shown(node.op_type)}", node)


@check(
    "GF207",
    "domain-not-imported",
    "error",
    fix="add the domain and its version to opset_import",
    reads="file",
)
def not_imported(model: Model) -> Iterator[Found]:
    """Operators of a domain are used whose version the file does not state, so that their meaning is a guess."""
    functions = {domain_of(function.domain) for function in model.proto.functions}
    missing: dict[str, Any] = {}
    for graph in model.graphs:
        for node in graph.node:
            domain = domain_of(node.domain)
            if domain not in model.opsets and (domain or model.proto.ir_version >= 3):
                missing.setdefault(domain, node)
    for domain, node in missing.items():
        of_functions = ", which functions of the file define" if domain in functions else ""
        yield Found(f"the domain {_shown(domain or 'ai.onnx')}{of_functions} is used, but not imported", node)


@check(
    "GF208",
    "deprecated-operator",
    "warning",
    fix="convert the model to the operator that replaced it, or import an opset that still has it",
    reads="file",
)
def deprecated(model: Model) -> Iterator[Found]:
    """A call of an operator that the opset imported has withdrawn (Upsample since 10, Scatter since 11). Some runtimes
    still run it, onnx's checker and others refuse the file.
    """
    for node in _distinct(model.nodes, by_operator=True):
        if _is_deprecated(node, model):
            version = model.opsets[domain_of(node.domain)]
            yield Found(f"{_title(node)}: {_shown(node.op_type)} is withdrawn at opset {version}", node)


@check(
    "GF209",
    "version-unknown",
    "warning",
    fix="update graphflops and onnx, or export with an opset that your runtime has",
    reads="file",
)
def version_unknown(model: Model) -> Iterator[Found]:
    """The file's IR version or an opset it imports is newer than what is known here, or it states none."""
    if model.graph is not None:
        for note in model.graph.notes:
            if note.code == "GF113":
                yield Found(note.message)


@check(
    "GF210",
    "data-length",
    "error",
    fix="export the weights again: this file is cut off, or was put together from two",
    reads="file",
)
def data_length(model: Model) -> Iterator[Found]:
    """A tensor's data have more or fewer bytes than its shape and element type need."""
    if model.graph is not None:
        for note in model.graph.notes:
            if note.code == "GF114":
                yield Found(note.message)


@check(
    "GF211",
    "call-name-twice",
    "note",
    fix="give each call a name of its own: profilers and quantizers address calls by name",
    reads="file",
)
def call_name_twice(model: Model) -> Iterator[Found]:
    """Several calls of a graph bear the same name. ONNX allows it, but what addresses calls by name then means them all."""
    for graph in model.graphs:
        names = Counter(node.name for node in graph.node if node.name)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
            yield Found(f"{names[twice[0]]} calls are named {_shown(twice[0])}{more}")


# What the checks share


def _scopes(model: Model) -> Iterator[tuple[Any, set[str]]]:
    """Each graph that is not part of a function, with the names it sees from around it."""
    waiting: list[tuple[Any, set[str]]] = [(model.proto.graph, set())]
    while waiting:
        graph, around = waiting.pop()
        yield graph, around
        known: set[str] | None = None
        for node in graph.node:
            for attribute in node.attribute:
                inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
                if inner:
                    known = known if known is not None else around | _defined(graph)
                    waiting += [(graph, known) for graph in inner]


def _defined(graph: Any) -> set[str]:
    return {
        *(value.name for value in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(tensor.values.name for tensor in graph.sparse_initializer),
        *(name for node in graph.node for name in node.output if name),
    }


def _distinct(nodes: Iterable[Any], *, by_operator: bool = False) -> Iterator[Any]:
    """One call of each kind that a checker can tell apart, and no more than is good to read."""
    seen = set()
    for node in nodes:
        key: tuple[Any, ...] = (node.domain, node.op_type)
        if not by_operator:
            attributes = [(a.name, a.type, a.ref_attr_name) for a in node.attribute]
            key += (tuple(map(bool, node.input)), len(node.output), *attributes)
        if key not in seen:
            seen.add(key)
            yield node
            if len(seen) > 100 * _MOST:
                return


def _is_unregistered(node: Any, model: Model) -> bool:
    domain = domain_of(node.domain)
    opset = model.opsets.get(domain)
    if opset is None or domain not in NEWEST or domain == "com.microsoft" or opset > NEWEST[domain]:
        return False
    if any(f.name == node.op_type and domain_of(f.domain) == domain for f in model.proto.functions):
        return False
    versions = VERSIONS.get(f"{domain}.{node.op_type}" if domain else node.op_type)
    return versions is None or versions[0] > opset


def _is_deprecated(node: Any, model: Model) -> bool:
    domain = domain_of(node.domain)
    opset = model.opsets.get(domain)
    if opset is None or domain not in NEWEST or domain == "com.microsoft":
        return False
    defs = importlib.import_module("onnx.defs")
    try:
        return bool(defs.get_schema(node.op_type, opset, domain).deprecated)
    except defs.SchemaError:
        return False


def _context(model: Model, checker: Any) -> Any:
    context = checker.C.CheckerContext()
    context.ir_version = model.proto.ir_version or 1
    context.opset_imports = {"": 1, **model.opsets}
    return context


def _bare(node: Any) -> Any:
    """The call without what is in its tensors and graphs: calls in those are checked by themselves."""
    if not any(len(a.tensors) or len(a.graphs) or a.HasField("t") or a.HasField("g") for a in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])):
            _empty(tensor)
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            graph.Clear()
            graph.name = "nested"
    return copy


def _without_data(proto: Any) -> Any:
    """The model with tensors of no elements: where the checker would look for data, there are none to look for."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    graphs = [copy.graph]
    nodes = [node for function in copy.functions for node in function.node]
    while graphs or nodes:
        for graph in graphs:
            nodes += graph.node
            for tensor in graph.initializer:
                _empty(tensor)
            del graph.sparse_initializer[:]
        graphs = []
        for node in nodes:
            for attribute in node.attribute:
                for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])):
                    _empty(tensor)
                graphs += [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
        nodes = []
    for stored in proto.graph.sparse_initializer:
        value = copy.graph.input.add(name=stored.values.name)
        value.type.tensor_type.elem_type = stored.values.data_type
        value.type.tensor_type.shape.SetInParent()
    return copy


def _empty(tensor: Any) -> None:
    for name in ("external_data", "data_location", "raw_data", "dims", "segment"):
        tensor.ClearField(name)
    for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"):
        tensor.ClearField(name)
    tensor.dims.append(0)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shown(lines[0] if lines else type(error).__name__, 300)


def _title(node: Any) -> str:
    name = _shown(node.name) if node.name else f"a call of {_shown(node.op_type)}"
    return f"{name} ({_shown(node.op_type)})" if node.name and node.op_type not in node.name else name


def _shown(name: Any) -> str:
    return shown(name.decode(errors="replace") if isinstance(name, bytes) else str(name))
