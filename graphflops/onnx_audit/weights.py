"""How the file stores its weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Edit, Observation, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model

_LARGEST_PROTOBUF = 2**31 - 1
_SMALLEST_TWIN = 4096  # bytes; smaller tensors may be equal by chance, or cost nothing
_NOTABLE = 2**20


@check(
    "GF240",
    "weights-stored-twice",
    "warning",
    fix="point both users at one initializer: tie the weights in the module, or deduplicate the file with a tool",
)
def stored_twice(model: Model) -> Iterator[Observation]:
    """Two initializers hold the same bytes: tied weights that the export separated, or a copied block. They take space
    twice, in the file and in memory. External data are not opened, and so not compared.
    """
    from graphflops.exporters.onnx_digests import digests

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
            yield Observation(text, None, 0, wasted, None if wasted >= _NOTABLE else "note", edits)


@check(
    "GF241",
    "weights-inline",
    "error",
    fix="save with external data (onnx.save(..., save_as_external_data=True)): a protobuf message is limited to 2 GB",
    reads="file",
)
def weights_inline(model: Model) -> Iterator[Observation]:
    """The file with its weights is larger than two gigabytes, the limit of a protobuf message: onnx and most runtimes do not
    read it. From nine tenths of the limit on, it is a warning.
    """
    size = os.stat(model.path).st_size
    if size > _LARGEST_PROTOBUF:
        yield Observation(
            f"the file has {size:,} bytes, more than the {_LARGEST_PROTOBUF:,} of a protobuf message"
        )
    elif size > 0.9 * _LARGEST_PROTOBUF:
        text = f"the file has {size:,} bytes; a protobuf message cannot have more than {_LARGEST_PROTOBUF:,}"
        yield Observation(text, severity="warning")
