"""Writes captured programs to one `.pt2`: those of several phases lie in it by name."""

from __future__ import annotations

import json
import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from graphflops.capturing.at_once import at_once
from graphflops.capturing.offline import offline
from graphflops.capturing.run import exports, silence
from graphflops.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.capturing.name import Name
    from graphflops.capturing.run import Captured


def capture_to(path: str, name: Name, *, joint: bool = False, training: bool = False) -> None:
    """Write the programs of a library's model to one `.pt2`, each exported in a process of its own if one can be forked.

    Raises ModelError, in one line, for what cannot be built, exported or saved.
    """
    with offline(), silence(), tempfile.TemporaryDirectory() as folder:
        found = exports(name, joint=joint, training=training)
        if len(found) == 1:
            save({phase: export() for phase, export in found.items()}, path)
            return
        parts = {phase: os.path.join(folder, f"{phase}.pt2") for phase in found}
        at_once([partial(_save_one, phase, export, parts[phase]) for phase, export in found.items()])
        join(parts, path)


def _save_one(phase: str, export: Callable[[], Captured], path: str) -> None:
    save({phase: export()}, path)


def save(captured: Mapping[str, Captured], path: str) -> None:
    """Write programs by name, with the records of their eager runs. Raises ModelError where torch cannot save them."""
    import msgspec
    import torch

    from graphflops.exporters.eager_record import file_name

    records = {file_name(name): one.record for name, one in captured.items() if one.record is not None}
    beside = {name: msgspec.json.encode(record).decode() for name, record in records.items()}
    try:
        if [*captured] == ["model"]:
            torch.export.save(captured["model"].program, path, extra_files=beside)
            return
        try:
            from torch.export.pt2_archive._package import package_pt2
        except ImportError:
            raise ModelError(
                f"torch {torch.__version__} writes one program a file: capture one --phase, or install torch 2.8"
            ) from None
        programs = {name: one.program for name, one in captured.items()}
        package_pt2(path, exported_programs=programs, extra_files=beside)
    except (OSError, ModelError):
        raise
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        problem = f"torch cannot save it: {type(error).__name__}: {line}".removesuffix(": ")
        raise ModelError(f"{problem}; write its report instead: --output NAME.json") from error


def join(parts: Mapping[str, str], path: str) -> None:
    """One file of those that `save` wrote of one phase each. parts: paths by phase."""
    from torch.export.pt2_archive._package import PT2ArchiveReader, PT2ArchiveWriter

    with PT2ArchiveWriter(path) as whole:
        for phase, part in parts.items():
            with PT2ArchiveReader(part) as own:
                for name in own.get_file_names():
                    folder, _, last = name.rpartition("/")
                    if not folder or folder == ".data":  # what every file says of itself
                        continue
                    content = own.read_bytes(name)
                    if last.endswith("_config.json") and folder in _TENSORS:
                        content = _renamed(json.loads(content), phase)
                    elif folder in _TENSORS:
                        name = f"{name}_{phase}"
                    whole.write_bytes(name, content)


_TENSORS = ("data/weights", "data/constants")


def _renamed(config: dict[str, Any], phase: str) -> bytes:
    """What says in which file each tensor is; those of other phases have the same names."""
    for tensor in config["config"].values():
        tensor["path_name"] += f"_{phase}"
    return json.dumps(config).encode()
