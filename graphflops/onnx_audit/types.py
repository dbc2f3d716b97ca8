"""Whether types meet, and whether what the file says of its values is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Expr
from graphflops.errors import shown
from graphflops.onnx_audit.registry import Found, check
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model

_SMALL = 64 * 1024  # bytes of an unused initializer that nobody minds


@check(
    "GF212",
    "type-contradiction",
    "error",
    fix="look at the shapes of the call's operands: one was changed and the other not, or an attribute is off",
)
def type_contradiction(model: Model) -> Iterator[Found]:
    """The operands of a call cannot meet: inner dimensions of a product that differ, a Reshape that loses elements. Said
    only where it is certain for every value of the open sizes.
    """
    assert model.report is not None
    calls = {call.row.node: call for call in model.view.calls}
    for diagnostic in model.report.diagnostics:
        if diagnostic.code == "GF104":
            yield Found(diagnostic.message, calls.get(diagnostic.node))


@check(
    "GF213",
    "declared-otherwise",
    "warning",
    fix="remove the file's value_info and let a tool derive it anew: the one it has is out of date",
)
def declared_otherwise(model: Model) -> Iterator[Found]:
    """The file declares a value (in value_info, or as an output) with another shape or element type than follows from the
    inputs. A runtime that plans memory by it fails, or allocates too little.
    """
    graph = model.graph
    assert graph is not None
    for name, declared in (graph.declared or {}).items():
        derived = model.view.types.get(name)
        if not isinstance(declared, TensorType) or derived is None or name in model.view.stored:
            continue
        fixed = zip(declared.shape, derived.shape, strict=False)
        differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in fixed)
        if declared.rank != derived.rank or differs or declared.dtype is not derived.dtype:
            text = f"{shown(name)} is declared as {declared}, but is {derived}"
            yield Found(text, model.view.makers.get(name))


@check(
    "GF214",
    "initializer-declared-otherwise",
    "note",
    fix="remove the value_info of the initializer: the initializer itself is right",
    reads="file",
)
def initializer_declared_otherwise(model: Model) -> Iterator[Found]:
    """The file declares an initializer with another type or shape than the initializer has. Runtimes go by the initializer;
    onnx's own shape inference gives up on the whole file.
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
                yield Found(
                    text if not same else f"{shown(tensor.name)} is declared with another element type"
                )


@check(
    "GF215",
    "unused-initializer",
    "warning",
    fix="remove it: it takes space in the file, and memory where a runtime does not drop it",
)
def unused_initializer(model: Model) -> Iterator[Found]:
    """A stored tensor that no call uses and that is no output. Small ones are noted only."""
    for name, entry in model.view.stored.items():
        if name in model.view.users or name in model.view.returned:
            continue
        typed = model.view.types.get(name)
        size = 0 if typed is None else typed.nbytes
        if entry.role == "constant" and model.at(size) < _SMALL:
            continue  # what an exporter's folding leaves behind
        text = f"{shown(entry.target or name)} ({typed}) is used by nothing"
        yield Found(text, bytes=size, severity=None if model.at(size) >= _SMALL else "note")


@check(
    "GF216",
    "unused-input",
    "note",
    fix="drop the input from the export, or check that a part of the model did not get lost",
)
def unused_input(model: Model) -> Iterator[Found]:
    """The program has an input that no call uses. Its caller must give it all the same, and gains nothing."""
    assert model.graph is not None
    for entry in model.graph.inputs:
        if (
            entry.role == "user"
            and entry.name not in model.view.users
            and entry.name not in model.view.returned
        ):
            yield Found(f"the input {shown(entry.name)} is used by nothing")


@check(
    "GF217",
    "unreachable-call",
    "warning",
    fix="remove the calls, with a tool that eliminates dead code, or return what they compute",
)
def unreachable_call(model: Model) -> Iterator[Found]:
    """Calls whose results lead to no output. Runtimes that optimize drop them, others compute them."""
    needed: set[str] = set()
    dead = []
    for call in reversed(model.view.calls):
        results = [name for name in call.node.outputs if name]
        if any(name in model.view.returned or name in needed for name in results):
            needed.update(name for name in call.uses)
        else:
            dead.append(call)
    for call in reversed(dead):
        if call.row.state == "free":
            continue
        text = f"nothing that leads to an output uses what {shown(call.name)} computes"
        yield Found(text, call, call.flops, call.bytes, severity=model.graded(call.flops, call.bytes))


@check(
    "GF218",
    "size-not-free",
    "note",
    fix="export it as one size, or state in the file's documentation what must be equal",
)
def size_not_free(model: Model) -> Iterator[Found]:
    """The file gives sizes of its inputs different names, but they meet where only equal ones can: a caller who takes them
    for free gets an error from deep inside the model.
    """
    assert model.report is not None
    for diagnostic in model.report.diagnostics:
        if diagnostic.code == "GF112":
            yield Found(diagnostic.message)


@check(
    "GF219",
    "open-in-name-only",
    "note",
    fix="declare the number: planners allocate for an open size what they need not",
)
def open_in_name_only(model: Model) -> Iterator[Found]:
    """An output is declared with an open size, but is a number whatever the inputs are."""
    graph = model.graph
    assert graph is not None
    for output in graph.outputs:
        for _, name in output.uses():
            declared, derived = (graph.declared or {}).get(name), model.view.types.get(name)
            if not isinstance(declared, TensorType) or derived is None or declared.rank != derived.rank:
                continue
            for axis, (a, b) in enumerate(zip(declared.shape, derived.shape, strict=True)):
                if isinstance(a, Expr) and isinstance(b, int) and model.is_open(a):
                    yield Found(
                        f"axis {axis} of the output {shown(name)} is always {b}", model.view.makers.get(name)
                    )
