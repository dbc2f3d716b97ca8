"""Types: contradicting operands and wrong declarations; how weights are stored.

Only this module reads weights that are inside the file.
"""

import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Iterator

from graphflops.dims import Expr
from graphflops.errors import shown
from graphflops.exporters import onnx_proto
from graphflops.exporters.onnx_scope import domain_of
from graphflops.onnx_audit.registry import Edit, Model, Observation, check, nested
from graphflops.onnx_audit.waste import order_of
from graphflops.passes import claims
from graphflops.report.findings import Severity
from graphflops.tensor import TensorType

_SMALL = 64 * 1024  # bytes: a smaller unused initializer is no problem


@check("GF118", "cannot-run", "error")
def type_contradiction(model: Model) -> Iterator[Observation]:
    """A call cannot run with its operands: inner dimensions of a product differ, a Reshape loses elements, or the operator
    does not take an element type. Reported only if it holds for every value of the open sizes.

    Fix: compare shapes and element types of the call's operands: one was changed and the other was not, or an attribute is
    wrong.
    """
    return model.said("GF118", {call.name: call for call in model.view.calls})


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
    for name, declared in (model.graph.declared or {}).items():
        derived = model.typed(name)
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
        for value in graph.value_info:
            if value.name in stored and (problem := onnx_proto.declared_otherwise(value, stored[value.name])):
                yield Observation(f"{shown(value.name)} {problem}")


@check("GF215", "unused-initializer", "warning")
def unused_initializer(model: Model) -> Iterator[Observation]:
    """A stored tensor that no call uses and that is not an output. A small one is only a note.

    Fix: remove it: it takes space in the file, and memory in runtimes that do not drop it.
    """
    for name, entry in model.view.stored.items():
        if name in model.view.users or name in model.view.returned:
            continue
        typed = model.typed(name)
        size = 0 if typed is None else model.at(typed.nbytes)
        if entry.role == "constant" and size < _SMALL:
            continue  # constant folding of exporters leaves such tensors
        text = f"{shown(entry.target or name)} ({typed}) is not used"
        severity: Severity | None = None if size >= _SMALL else "note"
        yield Observation(text, stored=size, severity=severity, edits=(Edit("dropped", name),))


@check("GF216", "unused-input", "note")
def unused_input(model: Model) -> Iterator[Observation]:
    """The program has an input that no call uses. The caller must still pass it, without any effect.

    Fix: remove the input from the export, or check that no part of the model is missing.
    """
    used = model.view.users.keys() | model.view.returned
    for entry in model.graph.inputs:
        if entry.role == "user" and entry.name not in used:
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
            needed.update(call.uses)
        else:
            dead.append(call)
    gone: set[int] = set()
    for call in reversed(dead):
        if call.row.state == "free":
            continue
        edits = [Edit("dropped", call.result)] if call.result else []
        freed = model.freed(call, (), gone)
        yield model.saving(f"no output depends on {shown(call.name)}", call, freed, *edits)


@check("GF218", "size-not-free", "note")
def size_not_free(model: Model) -> Iterator[Observation]:
    """The file gives different names to sizes of its inputs that some operator requires to be equal: a caller who chooses
    them independently gets an error from inside the model.

    Fix: export it as one size, or state in the file's documentation which sizes must be equal.
    """
    return model.said("GF112")


@check("GF219", "open-in-name-only", "note")
def open_in_name_only(model: Model) -> Iterator[Observation]:
    """An output is declared with an open size, although the size is the same number for all inputs.

    Fix: declare the number: for an open size, memory planners may allocate more than needed.
    """
    for output in model.graph.outputs:
        for _, name in output.uses():
            declared, derived = (model.graph.declared or {}).get(name), model.typed(name)
            if not isinstance(declared, TensorType) or derived is None or declared.rank != derived.rank:
                continue
            for axis, (a, b) in enumerate(zip(declared.shape, derived.shape, strict=True)):
                if isinstance(a, Expr) and isinstance(b, int) and model.is_open(a):
                    text = f"axis {axis} of the output {shown(name)} is always {b}"
                    edits = (Edit("sized", name, numbers=(axis, b)),)
                    yield Observation(text, model.view.makers.get(name), edits=edits)


_MOST_BETWEEN = 16


@check("GF250", "layout-ping-pong", "warning")
def layout_ping_pong(model: Model) -> Iterator[Observation]:
    """A Transpose that puts channels last after a convolution or pooling, and a later one that puts them first again, with
    only elementwise calls in between: each moves the whole activation without need.

    Fix: convert the model to one layout (tf2onnx: --inputs-as-nchw), or run a layout optimizer before shipping it.
    """
    for first in model.view.calls:
        order, maker = order_of(first, model), model.view.makers.get(first.value("x"))
        follows_images = maker is not None and (maker.operator.has("images") or maker.operator.is_pointwise)
        if order is None or len(order) < 3 or not follows_images:
            continue
        chain, at = [first], model.view.only_user(first.result)
        while at is not None and at.operator.is_pointwise and len(chain) <= _MOST_BETWEEN:
            stored = [name for name in at.operands if name in model.view.stored]
            are_scalars = all(typed is not None and typed.numel == 1 for typed in map(model.typed, stored))
            # all operands but one are stored scalars, whose axes need no permutation
            if len([*filter(None, at.operands)]) != len(stored) + 1 or not are_scalars:
                break
            chain.append(at)
            at = model.view.only_user(at.result)
        then = None if at is None else order_of(at, model)
        if at is None or then is None or len(chain) == 1 or len(then) != len(order):
            continue
        if [order[axis] for axis in then] == list(range(len(order))):
            moved, both = first.bytes + at.bytes, f"{shown(first.name)} and {shown(at.name)}"
            text = f"{both} undo each other around {len(chain) - 1} elementwise calls"
            edits = [Edit("instead", first.result, first.value("x"))]
            edits += [Edit("undeclared", each.result) for each in chain[1:]]
            edits.append(Edit("instead", at.result, chain[-1].result))
            yield Observation(text, first, 0, moved, model.graded(0, moved), tuple(edits))


def _digests(model: Model, smallest: int) -> dict[str, str]:
    """Digests by name of initializers' data of at least `smallest` bytes, and of a length that occurs more than once."""
    every = [(tensor.name, onnx_proto.dropped(tensor)) for tensor in model.proto.graph.initializer]
    found = [(name, one[0]) for name, one in every if len(one) == 1 and one[0].length >= smallest]
    lengths = Counter(place.length for _, place in found)
    with (
        model.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        return {
            name: hashlib.blake2b(data[begin : begin + length], digest_size=16).hexdigest()
            for name, (_, length, begin) in found
            if lengths[length] > 1
        }


_LARGEST_PROTOBUF = 2**31 - 1
_SMALLEST_TWIN = 4096  # bytes; smaller tensors may be equal by chance, or cost nothing
_NOTABLE = 2**20


@check("GF240", "weights-stored-twice", "warning")
def stored_twice(model: Model) -> Iterator[Observation]:
    """Two initializers hold the same bytes: tied weights that the export separated, or a copied block. They take space
    twice, in the file and in memory. External data are not opened, and so not compared.

    Fix: point both users at one initializer: tie the weights in the module, or deduplicate the file with a tool.
    """
    twins: dict[tuple[str, str, str], list[str]] = {}
    known = {entry.target: entry.name for entry in model.view.stored.values()}
    for name, digest in _digests(model, _SMALLEST_TWIN).items():
        typed = model.typed(known.get(name, name))
        if typed is not None:
            twins.setdefault((digest, str(typed.dtype), str(typed.nbytes)), []).append(name)
    for (_, dtype, size), names in twins.items():
        if len(names) > 1:
            wasted = int(size) * (len(names) - 1)
            some = ", ".join(shown(name) for name in names[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            text = f"{some}{more} are the same {dtype} data, {int(size):,} bytes each"
            values = [known.get(name, name) for name in names]
            same = len({model.view.types[value].shape for value in values}) == 1
            edits = tuple(Edit("instead", value, values[0]) for value in values[1:] if same)
            severity: Severity | None = None if wasted >= _NOTABLE else "note"
            yield Observation(text, severity=severity, edits=edits, stored=wasted)


@check("GF241", "weights-inline", "error", reads="file")
def weights_inline(model: Model) -> Iterator[Observation]:
    """The file with its weights is larger than two gigabytes, the limit of a protobuf message: onnx and most runtimes do not
    read it. From nine tenths of the limit on, it is a warning.

    Fix: save with external data (onnx.save(..., save_as_external_data=True)): a protobuf message is limited to 2 GB.
    """
    size = os.stat(model.path).st_size
    has, most = f"the file has {size:,} bytes", f"{_LARGEST_PROTOBUF:,}"
    if size > _LARGEST_PROTOBUF:
        yield Observation(f"{has}, more than the {most} of a protobuf message")
    elif size > 0.9 * _LARGEST_PROTOBUF:
        yield Observation(f"{has}; a protobuf message cannot have more than {most}", severity="warning")
