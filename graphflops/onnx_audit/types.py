"""Types: operands that contradict one another, and declarations of the file that are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from graphflops.dims import Expr
from graphflops.errors import shown
from graphflops.onnx_audit.model import Model, domain_of, nested
from graphflops.onnx_audit.registry import Edit, Observation, check
from graphflops.passes import claims
from graphflops.report.findings import Severity
from graphflops.tensor import TensorType

_SMALL = 64 * 1024  # bytes: a smaller unused initializer is no problem


@check("GF118", "cannot-run", "error")
def type_contradiction(model: Model) -> Iterator[Observation]:
    """The operands of a call contradict one another: inner dimensions of a product differ, or a Reshape loses elements.
    Reported only if it holds for every value of the open sizes.

    Fix: compare the shapes of the call's operands: one was changed and the other was not, or an attribute is wrong.
    """
    assert model.report is not None
    calls = {call.row.node: call for call in model.view.calls}
    for diagnostic in model.report.diagnostics:
        if diagnostic.code == "GF118":
            yield Observation(diagnostic.message, calls.get(diagnostic.node))


@check("GF212", "unused-function", "note", reads="file")
def unused_function(model: Model) -> Iterator[Observation]:
    """The file defines a function that no call of the program needs.

    Fix: remove it: readers and runtimes parse it for nothing.
    """
    functions = {(domain_of(f.domain), f.name, f.overload): f for f in model.proto.functions}
    waiting, called = [model.proto.graph.node], set[tuple[str, str, str]]()
    while waiting:
        for node in waiting.pop():
            key = (domain_of(node.domain), node.op_type, node.overload)
            if key in functions and key not in called:
                called.add(key)
                waiting.append(functions[key].node)
            waiting += [graph.node for graph in nested(node)]
    idle = [name for (domain, name, overload) in functions.keys() - called]
    if idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        yield Observation(f"no call needs the function {shown(idle[0])}{more}", edits=(Edit("functions"),))


@check("GF213", "declared-otherwise", "warning")
def declared_otherwise(model: Model) -> Iterator[Observation]:
    """The file declares a value (in value_info, or as an output) with a shape or element type that differs from the one
    derived from the inputs. A runtime that plans memory by the declaration fails, or allocates too little.

    Fix: remove the file's value_info and let a tool derive it again: the present one is out of date.
    """
    graph = model.graph
    assert graph is not None
    for name, declared in (graph.declared or {}).items():
        derived = model.view.types.get(name)
        if derived is None or name in model.view.stored:
            continue
        if claims.declared_otherwise(declared, derived):
            text = f"{shown(name)} is declared as {declared}, but is {derived}"
            edits = () if name in model.view.returned else (Edit("undeclared", name),)
            yield Observation(text, model.view.makers.get(name), edits=edits)


@check("GF214", "initializer-declared-otherwise", "note", reads="file")
def initializer_declared_otherwise(model: Model) -> Iterator[Observation]:
    """The file declares an initializer with a type or shape that the initializer does not have. Runtimes use the
    initializer's own; the shape inference of onnx fails on the whole file.

    Fix: remove the value_info of the initializer: the initializer itself is right.
    """
    for graph in model.graphs:
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for value in (*graph.value_info, *graph.input):
            tensor = stored.get(value.name)
            if tensor is None or not value.type.HasField("tensor_type"):
                continue
            declared = value.type.tensor_type
            sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared.shape.dim]
            same = not declared.HasField("shape") or (
                len(sizes) == len(tensor.dims)
                and all(a in (None, b) for a, b in zip(sizes, tensor.dims, strict=True))
            )
            if not same or (declared.elem_type and declared.elem_type != tensor.data_type):
                text = f"{shown(tensor.name)} has the sizes {list(tensor.dims)}, but is declared with {sizes}"
                yield Observation(
                    text if not same else f"{shown(tensor.name)} is declared with another element type"
                )


@check("GF215", "unused-initializer", "warning")
def unused_initializer(model: Model) -> Iterator[Observation]:
    """A stored tensor that no call uses and that is not an output. A small one is only a note.

    Fix: remove it: it takes space in the file, and memory in runtimes that do not drop it.
    """
    for name, entry in model.view.stored.items():
        if name in model.view.users or name in model.view.returned:
            continue
        typed = model.view.types.get(name)
        size = 0 if typed is None else typed.nbytes
        if entry.role == "constant" and model.at(size) < _SMALL:
            continue  # constant folding of exporters leaves such tensors
        text = f"{shown(entry.target or name)} ({typed}) is not used"
        severity: Severity | None = None if model.at(size) >= _SMALL else "note"
        yield Observation(text, stored=model.at(size), severity=severity, edits=(Edit("dropped", name),))


@check("GF216", "unused-input", "note")
def unused_input(model: Model) -> Iterator[Observation]:
    """The program has an input that no call uses. The caller must still pass it, without any effect.

    Fix: remove the input from the export, or check that no part of the model is missing.
    """
    assert model.graph is not None
    for entry in model.graph.inputs:
        read = entry.name in model.view.users or entry.name in model.view.returned
        if entry.role == "user" and not read:
            yield Observation(f"the input {shown(entry.name)} is not used")


@check("GF217", "unreachable-call", "warning")
def unreachable_call(model: Model) -> Iterator[Observation]:
    """Calls whose results reach no output. Optimizing runtimes drop them, others compute them.

    Fix: remove the calls with a tool that eliminates dead code, or return their results.
    """
    needed: set[str] = set()
    dead = []
    for call in reversed(model.view.calls):
        results = [name for name in call.node.outputs if name]
        if any(name in model.view.returned or name in needed for name in results):
            needed.update(name for name in call.uses)
        else:
            dead.append(call)
    gone: set[int] = set()
    for call in reversed(dead):
        if call.row.state == "free":
            continue
        text = f"no output depends on {shown(call.name)}"
        flops, moved, stored = model.freed(call, (), gone)
        severity, edits = model.graded(flops, moved), (Edit("dropped", call.result),)
        yield Observation(text, call, flops, moved, severity, edits if call.result else (), stored=stored)


@check("GF218", "size-not-free", "note")
def size_not_free(model: Model) -> Iterator[Observation]:
    """The file gives different names to sizes of its inputs that some operator requires to be equal: a caller who chooses
    them independently gets an error from inside the model.

    Fix: export it as one size, or state in the file's documentation which sizes must be equal.
    """
    assert model.report is not None
    for diagnostic in model.report.diagnostics:
        if diagnostic.code == "GF112":
            yield Observation(diagnostic.message)


@check("GF219", "open-in-name-only", "note")
def open_in_name_only(model: Model) -> Iterator[Observation]:
    """An output is declared with an open size, although the size is the same number for all inputs.

    Fix: declare the number: for an open size, memory planners may allocate more than needed.
    """
    graph = model.graph
    assert graph is not None
    for output in graph.outputs:
        for _, name in output.uses():
            declared, derived = (graph.declared or {}).get(name), model.view.types.get(name)
            if not isinstance(declared, TensorType) or derived is None or declared.rank != derived.rank:
                continue
            for axis, (a, b) in enumerate(zip(declared.shape, derived.shape, strict=True)):
                if isinstance(a, Expr) and isinstance(b, int) and model.is_open(a):
                    text = f"axis {axis} of the output {shown(name)} is always {b}"
                    edits = (Edit("sized", name, numbers=(axis, b)),)
                    yield Observation(text, model.view.makers.get(name), edits=edits)
