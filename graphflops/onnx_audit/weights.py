"""How the file stores its weights (only here are those inside it read), and transposes that only switch layouts."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from graphflops.errors import shown
from graphflops.exporters.onnx_proto import fields
from graphflops.onnx_audit.model import Model
from graphflops.onnx_audit.registry import Edit, Observation, check
from graphflops.report.findings import Severity
from graphflops.view import Call

_MOST_BETWEEN = 16


@check("GF250", "layout-ping-pong", "warning")
def layout_ping_pong(model: Model) -> Iterator[Observation]:
    """A Transpose that puts channels last after a convolution or pooling, and a later one that puts them first again, with
    only elementwise calls in between: each moves the whole activation without need.

    Fix: convert the model to one layout (tf2onnx: --inputs-as-nchw), or run a layout optimizer before shipping it.
    """
    for first in model.view.calls:
        order = _order(first)
        if order is None or len(order) < 3 or not _follows_images(first, model):
            continue
        between = 0
        at: Call | None = model.view.only_user(first.result)
        last, edits = first, [Edit("instead", first.result, first.value("x"))]
        while (
            at is not None and at.operator.is_pointwise and between < _MOST_BETWEEN and _is_unary(at, model)
        ):
            last, between = at, between + 1
            edits.append(Edit("undeclared", last.result))
            at = model.view.only_user(last.result)
        then = None if at is None else _order(at)
        if at is None or then is None or not between or len(then) != len(order):
            continue
        if [order[axis] for axis in then] == list(range(len(order))):
            moved = first.bytes + at.bytes
            text = (
                f"{shown(first.name)} and {shown(at.name)} undo each other around {between} elementwise calls"
            )
            edits.append(Edit("instead", at.result, last.result))
            yield Observation(text, first, 0, moved, model.graded(0, moved), tuple(edits))


def _order(call: Call) -> tuple[int, ...] | None:
    """The order that a Transpose states; None for another operator, or where it states none."""
    return (call.argument("order") or None) if call.operator.name == "permute" else None


def _follows_images(call: Call, model: Model) -> bool:
    maker = model.view.makers.get(call.value("x"))
    return maker is not None and (maker.operator.is_of_images or maker.operator.is_pointwise)


def _is_unary(call: Call, model: Model) -> bool:
    """True if all operands but one are stored scalars, whose axes need no permutation."""
    varying = [name for name in call.operands if name and name not in model.view.stored]
    fixed = [model.view.types.get(name) for name in call.operands if name and name in model.view.stored]
    return len(varying) == 1 and all(typed is not None and typed.numel == 1 for typed in fixed)


_GRAPH, _INITIALIZER = 7, 5
_NAME, _DATA = 8, (4, 5, 7, 9, 10, 11)


def digests(path: Path | str, smallest: int) -> dict[str, str]:
    """Digests of initializers' data by name; {} for a file that is not a binary ModelProto.

    Only data of at least `smallest` bytes, and of a length that occurs more than once, is read.
    """
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = memoryview(mapped)
        try:
            found = [(name, at, end) for name, at, end in _tensors(data) if end - at >= smallest]
        except (IndexError, ValueError):
            return {}
        else:
            lengths = Counter(end - at for _, at, end in found)
            return {
                name: hashlib.blake2b(data[at:end], digest_size=16).hexdigest()
                for name, at, end in found
                if lengths[end - at] > 1
            }
        finally:
            data.release()


def _tensors(data: memoryview) -> Iterator[tuple[str, int, int]]:
    """Name, and begin and end of the data, of each initializer of the program's own graph."""
    for number, at, end in fields(data, 0, len(data)):
        if number != _GRAPH:
            continue
        for inner, start, stop in fields(data, at, end):
            if inner != _INITIALIZER:
                continue
            parts = {field: (a, b) for field, a, b in fields(data, start, stop) if field in (_NAME, *_DATA)}
            name = parts.pop(_NAME, None)
            if name is not None and len(parts) == 1:
                ((a, b),) = parts.values()
                yield bytes(data[slice(*name)]).decode(errors="replace"), a, b


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
    for name, digest in digests(model.path, _SMALLEST_TWIN).items():
        typed = model.view.types.get(known.get(name, name))
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
    if size > _LARGEST_PROTOBUF:
        yield Observation(
            f"the file has {size:,} bytes, more than the {_LARGEST_PROTOBUF:,} of a protobuf message"
        )
    elif size > 0.9 * _LARGEST_PROTOBUF:
        text = f"the file has {size:,} bytes; a protobuf message cannot have more than {_LARGEST_PROTOBUF:,}"
        yield Observation(text, severity="warning")
