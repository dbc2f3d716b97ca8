"""Forgers of `.pt2` files: torch runs a large program, and what the file says of itself is that of a small one."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random

import torch

from tests.exporters.zips import Part, packed
from tests.fuzz.forged import Forged
from tests.fuzz.honest_pt2 import (
    PROGRAM,
    ROOT,
    ROWS,
    WIDTH,
    Chain,
    archive,
    members,
)

Files = dict[str, bytes]
SIZES = (48, 64, 80)


def two_readers(chance: Random) -> Forged:
    """Two programs in one archive: a chain of one product, and one of many."""
    times = chance.choice(SIZES)
    how = chance.choice([*TWO_READERS])
    data = TWO_READERS[how](members(Chain, 1), members(Chain, times), chance)
    return Forged(data, ".pt2", "two readers", times * 2 * ROWS * WIDTH * WIDTH, how)


def _other_case(small: Files, large: Files, chance: Random) -> bytes:
    names = (
        "Models/model.json",
        "models/model.JSON",
        "MODELS/MODEL.JSON",
        "modelS/model.json",
    )
    added = {ROOT + chance.choice(names): large[PROGRAM]}
    return archive({**small, **added})


def _other_suffix(small: Files, large: Files, chance: Random) -> bytes:
    return archive(
        {**small, ROOT + "models/model" + chance.choice((".onnx", ".yaml", "_copy", "12345")): large[PROGRAM]}
    )


def _two_ends(small: Files, large: Files, chance: Random) -> bytes:
    return packed(_parts(large), other=_parts(small))


def _old_layout(small: Files, large: Files, chance: Random) -> bytes:
    """A new layout that torch cannot read, without its version, beside an old one that it then reads."""
    old = old_layout(large, {"weight": torch.nn.Parameter(torch.ones(WIDTH, WIDTH))})
    gone = chance.choice((ROOT + ".data/version", ROOT + "archive_version"))
    return archive({name: data for name, data in {**small, **old}.items() if name != gone})


def old_layout(files: Files, weights: dict[str, torch.Tensor]) -> Files:
    """The members of torch 2.4 to 2.7."""
    return {
        "serialized_exported_program.json": files[PROGRAM],
        "serialized_state_dict.pt": saved(weights),
        "serialized_constants.pt": saved({}),
        "serialized_example_inputs.pt": saved(((torch.ones(ROWS, WIDTH),), {})),
        "version": b"8.20",
    }


def saved(value: object) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _parts(files: Files) -> list[Part]:
    return [Part(name, data) for name, data in files.items()]


TWO_READERS: dict[str, Callable[[Files, Files, Random], bytes]] = {
    "a name in another case": _other_case,
    "a program by another suffix": _other_suffix,
    "two end records": _two_ends,
    "an old layout beside the new one": _old_layout,
}
FORGERS = {"two readers": two_readers}
