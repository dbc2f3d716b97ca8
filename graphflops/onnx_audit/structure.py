"""Structure of the file: each name is defined once and before use, each call is one that its operator allows."""

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from graphflops.errors import first_line, shown
from graphflops.exporters.onnx_scope import defined, domain_of
from graphflops.exporters.onnx_tensors import HOLD
from graphflops.onnx_audit.registry import File, Model, Observation, check, held, nested
from graphflops.ops import operator
from graphflops.ops.onnx_operands import NEWEST, versions

_NEWEST = 2**31 - 1  # the largest version that onnx's checker can hold
_MOST = 50  # findings of one check about the file


@check("GF201", "unreadable", "error", reads="file")
def unreadable(model: Model) -> Iterator[Observation]:
    """The file is no valid program: values depend on one another in a cycle, or functions call themselves.

    Its cost is unknown, and no runtime loads it. Undefined values are GF202, and those defined twice GF203.

    Fix: fix the other findings about this file first, then export the model again.
    """
    if model.problem and not any(any(check(model)) for check in (undefined_value, defined_twice)):
        yield Observation(model.problem)


@check("GF202", "undefined-value", "error", reads="file")
def undefined_value(model: Model) -> Iterator[Observation]:
    """A call uses, or a graph returns, a value that is not defined: no input, initializer or call result has the name.

    Such a model does not load. A frequent cause is a weight that a tool dropped.

    Fix: restore the initializer or the call that defined it: tools that split models often lose one.
    """
    # each graph outside functions, with the names visible from the enclosing graphs
    waiting: list[tuple[Any, set[str]]] = [(model.proto.graph, set())]
    while waiting:
        graph, around = waiting.pop()
        known = around | defined(graph)
        yield from _undefined(graph.node, known)
        for value in graph.output:
            if value.name not in known:
                yield Observation(f"the output {_shown(value.name)} is never computed")
        waiting += [(each, known) for node in graph.node for each in nested(node)]
    for function in model.proto.functions:
        known = {*function.input, *(name for node in function.node for name in node.output)}
        yield from _undefined(function.node, known, f" in the function {_shown(function.name)}")


def _undefined(nodes: Iterable[Any], known: set[str], where: str = "") -> Iterator[Observation]:
    for node in nodes:
        for name in node.input:
            if name and name not in known:
                yield Observation(f"{_title(node)}{where} uses {_shown(name)}, which nothing defines", node)


@check("GF203", "defined-twice", "error", reads="file")
def defined_twice(model: Model) -> Iterator[Observation]:
    """Two values of a graph have one name, so the value that a later call uses depends on the reader of the file.

    Fix: rename one of the two: in ONNX a name denotes one value only.
    """
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
                yield Observation(f"{_shown(name)} is defined more than once: {said}")


@check("GF204", "invalid-call", "error", reads="file")
def invalid_call(model: Model) -> Iterator[Observation]:
    """A call that its operator does not allow at the opset the file imports: missing or too many operands, or an attribute
    that does not exist, is missing, or has another type. Checked by onnx's own checker.

    Fix: compare the call with the operator's definition at this opset; convert the model's opset with a tool, not by
    hand.
    """
    checker = importlib.import_module("onnx.checker")
    context = checker.C.CheckerContext()
    context.ir_version = min(max(model.proto.ir_version, 1), _NEWEST)
    context.opset_imports = {"": 1, **{name: min(max(v, 1), _NEWEST) for name, v in model.opsets.items()}}
    for node in _distinct(model.nodes):
        is_imported = domain_of(node.domain) in context.opset_imports
        if not is_imported or _is_unregistered(node, model) or _is_deprecated(node, model):
            continue
        bare = node
        # without the content of its tensors and graphs, whose calls are checked apart
        if held(node) or nested(node):
            bare = type(node)()
            bare.CopyFrom(node)
            for tensor in held(bare):
                _empty(tensor)
            for graph in nested(bare):
                graph.Clear()
                graph.name = "nested"
        try:
            checker.check_node(bare, context)
        except Exception as error:  # noqa: BLE001 its C++ may raise anything for a damaged message
            yield Observation(f"{_title(node)}: {first_line(error)}", node)


@check("GF205", "checker-failure", "error", reads="file")
def checker_failure(model: Model) -> Iterator[Observation]:
    """Onnx's own checker rejects the model for a reason that no other check reports: calls out of order, a type without
    element type, or content that the file's IR version does not allow. The checker stops at the first error.

    Fix: export the model again, or report it to the exporter: runtimes reject what onnx's checker rejects.
    """
    for other in (undefined_value, defined_twice, invalid_call, unregistered, not_imported, deprecated):
        if next(iter(other(model)), None) is not None:
            return
    # with all tensors empty, so that the checker looks for no data
    checker, copy = importlib.import_module("onnx.checker"), type(model.proto)()
    copy.CopyFrom(model.proto)
    bare = File(Path(), copy)
    for tensor in bare.tensors:
        _empty(tensor)
    for graph in bare.graphs:
        del graph.sparse_initializer[:]
    for stored in model.proto.graph.sparse_initializer:
        value = copy.graph.input.add(name=stored.values.name)
        value.type.tensor_type.elem_type = stored.values.data_type
        value.type.tensor_type.shape.SetInParent()
    try:
        checker.check_model(copy.SerializeToString())
    except Exception as error:  # noqa: BLE001 as above
        yield Observation(first_line(error))


@check("GF206", "unregistered-operator", "error", reads="file")
def unregistered(model: Model) -> Iterator[Observation]:
    """A call of an operator that its domain does not have at the imported opset: the name is misspelled or newer than the
    opset, or it is an operator of onnxruntime under ai.onnx, which no other runtime loads (then a warning).

    Fix: import an opset that has the operator, or use the domain that the operator belongs to.
    """
    for node in _distinct(model.nodes, by_operator=True):
        if _is_unregistered(node, model):
            where = f"opset {model.opsets[domain_of(node.domain)]} of {node.domain or 'ai.onnx'}"
            # true for an operator of onnxruntime, which its optimizers may write under ai.onnx
            if node.op_type not in versions() and operator(f"com.microsoft.{node.op_type}").kind != "other":
                text = f"{_title(node)} is an operator of onnxruntime, not of {node.domain or 'ai.onnx'}"
                yield Observation(text, node, severity="warning")
            else:
                yield Observation(f"{where} has no operator {_shown(node.op_type)}", node)


@check("GF207", "domain-not-imported", "error", reads="file")
def not_imported(model: Model) -> Iterator[Observation]:
    """The file uses operators of a domain whose version it does not state, so their meaning is not certain.

    Fix: add the domain and its version to opset_import.
    """
    functions = {domain_of(function.domain) for function in model.proto.functions}
    missing: dict[str, Any] = {}
    for graph in model.graphs:
        for node in graph.node:
            domain = domain_of(node.domain)
            if domain not in model.opsets and (domain or model.proto.ir_version >= 3):
                missing.setdefault(domain, node)
    for domain, node in missing.items():
        of_functions = ", which functions of the file define" if domain in functions else ""
        text = f"the domain {_shown(domain or 'ai.onnx')}{of_functions} is used, but not imported"
        yield Observation(text, node)


@check("GF208", "deprecated-operator", "warning", reads="file")
def deprecated(model: Model) -> Iterator[Observation]:
    """A call of an operator that is withdrawn at the imported opset (Upsample since 10, Scatter since 11). Some runtimes
    still run it; onnx's checker and other runtimes reject the file.

    Fix: convert the model to the operator that replaced it, or import an opset that has it.
    """
    for node in _distinct(model.nodes, by_operator=True):
        if _is_deprecated(node, model):
            version = model.opsets[domain_of(node.domain)]
            yield Observation(f"{_title(node)}: {_shown(node.op_type)} is withdrawn at opset {version}", node)


@check("GF209", "version-unknown", "warning", reads="file")
def version_unknown(model: Model) -> Iterator[Observation]:
    """The file's IR version or an imported opset is newer than the newest known one, or not stated.

    Fix: update graphflops and onnx, or export with an opset that your runtime supports.
    """
    return model.said("GF209")


@check("GF210", "data-length", "error", reads="file")
def data_length(model: Model) -> Iterator[Observation]:
    """A tensor's data have more or fewer bytes than its shape and element type require, or it is the default of an input of
    another type.

    Fix: export the weights again: the file is truncated, or mixed from two exports.
    """
    return model.said("GF210")


@check("GF130", "read-differently", "error", reads="file")
def read_differently(model: Model) -> Iterator[Observation]:
    """A function of the file has the name of an operator that runtimes have, or imports another opset than the model, in
    which an operator that it calls differs, or a nested graph gives a value the name of one around it: some runtimes take
    the one, some the other.

    Fix: rename the function or the value, or let the function import the opset of the model.
    """
    return model.said("GF130")


@check("GF211", "call-name-twice", "note", reads="file")
def call_name_twice(model: Model) -> Iterator[Observation]:
    """Several calls of a graph have the same name. ONNX allows it, but tools cannot address these calls by name.

    Fix: give each call a name of its own: profilers and quantizers address calls by name.
    """
    for graph in model.graphs:
        names = Counter(node.name for node in graph.node if node.name)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
            yield Observation(f"{names[twice[0]]} calls are named {_shown(twice[0])}{more}")


def _distinct(nodes: Iterable[Any], *, by_operator: bool = False) -> Iterator[Any]:
    """One call of each kind that a checker distinguishes, up to a limit."""
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
    domain, opset = domain_of(node.domain), _opset(node, model)
    if opset is None or opset > NEWEST[domain]:
        return False
    if any(f.name == node.op_type and domain_of(f.domain) == domain for f in model.proto.functions):
        return False
    known = versions().get(f"{domain}.{node.op_type}" if domain else node.op_type)
    return known is None or known[0] > opset


def _opset(node: Any, model: Model) -> int | None:
    """The version in force of a domain of ONNX itself; None of another, or where the file states none."""
    domain = domain_of(node.domain)
    return model.opsets.get(domain) if domain in NEWEST and domain != "com.microsoft" else None


def _is_deprecated(node: Any, model: Model) -> bool:
    domain, opset = domain_of(node.domain), _opset(node, model)
    if opset is None:
        return False
    defs = importlib.import_module("onnx.defs")
    try:
        return bool(defs.get_schema(node.op_type, min(max(opset, 1), _NEWEST), domain).deprecated)
    except defs.SchemaError:
        return False


def _empty(tensor: Any) -> None:
    for name in ("external_data", "data_location", "dims", "segment", *HOLD):
        tensor.ClearField(name)
    tensor.dims.append(0)


def _title(node: Any) -> str:
    name = _shown(node.name) if node.name else f"a call of {_shown(node.op_type)}"
    return f"{name} ({_shown(node.op_type)})" if node.name and node.op_type not in node.name else name


def _shown(name: Any) -> str:
    return shown(name.decode(errors="replace") if isinstance(name, bytes) else str(name))
