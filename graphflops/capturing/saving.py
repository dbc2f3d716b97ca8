"""Writes captured programs to one `.pt2`: those of several phases lie in it by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.capturing.run import Captured


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
