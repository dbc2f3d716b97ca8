"""Errors of the predicted times of collectives on measured ones that are not among the profiles' points.

`python -m benchmarks.collectives` prints, for each table `benchmarks/measured/DEVICE_nccl_*.csv`, the error by kind, group
and size: of the model that points near a message correct, and of the model alone, whose constants were fitted to rows of the
H200, so that all rows of the H100 are unseen. `--rows TABLE.csv --device h200` judges another table with these columns.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from graphflops.devices import Device, device
from graphflops.links import link_bytes, network_of, seconds

MEASURED = Path(__file__).parent / "measured"
SIZES = {"to 64 KiB": 2**16, "to 4 MiB": 2**22, "larger": 2**62}


class Row(NamedTuple):
    """A measured collective. message: bytes of all operands of all_gather, else of one."""

    kind: str
    group: int
    message: int
    seconds: float

    def error(self, known: Device) -> float:
        """The relative error of its predicted time."""
        operand = self.message // self.group if self.kind == "all_gather" else self.message
        assert link_bytes(self.kind, operand, self.group) > 0
        return seconds(self.kind, operand, self.group, network_of(known)).seconds / self.seconds - 1


def read(path: Path) -> list[Row]:
    """The rows of a table."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Row(
            row["collective"].replace("alltoall", "all_to_all"),
            *(int(row["gpus"]), 2 * int(row["elements"]), float(row["ms"]) * 1e-3),
        )
        for row in rows
    ]


def points(known: Device) -> list[Row]:
    """The measured collectives that correct the model."""
    tables = [table for table in known.calibration if table.family == "collective"]
    return [
        Row(table.variant, int(group), int(message), microseconds * 1e-6)
        for table in tables
        for message, group, microseconds, _ in table.points
    ]


def line(name: str, rows: list[Row], known: Device) -> str:
    """Mean, median and worst of the absolute errors of some rows, and their mean with its sign."""
    found = [row.error(known) for row in rows]
    off = [100 * abs(error) for error in found]
    mean, middle, signed = statistics.mean(off), statistics.median(off), 100 * statistics.mean(found)
    return f"  {name:34}{len(rows):5}{mean:8.1f}{middle:8.1f}{max(off):8.1f}{signed:+8.1f}"


def table(title: str, rows: list[Row], known: Device) -> None:
    """Prints the errors of rows by kind, group and size."""
    print(f"\n{title}\n  {'percent':34}{'rows':>5}{'mean':>8}{'median':>8}{'worst':>8}{'signed':>8}")
    print(line("all", rows, known))
    for kind in sorted({row.kind for row in rows}):
        print(line(kind, [row for row in rows if row.kind == kind], known))
    for group in sorted({row.group for row in rows}):
        print(line(f"{group} devices", [row for row in rows if row.group == group], known))
    least = 0
    for name, most in SIZES.items():
        if found := [row for row in rows if least < row.message <= most]:
            print(line(name, found, known))
        least = most


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--device", default="h200")
    arguments = parser.parse_args()
    if arguments.rows:
        table(f"{arguments.device}, {arguments.rows.name}", read(arguments.rows), device(arguments.device))
        return
    for path in sorted(MEASURED.glob("*_nccl_*.csv"), reverse=True):
        name = path.stem.partition("_")[0]
        known = device(name)
        rows = read(path)
        unseen = "seen when its constants were fitted" if name == "h200" else "unseen"
        table(f"{name}: {path.name}, not among the points", rows, known)
        model = replace(known, calibration=())
        table(f"{name}: the points by the model alone, {unseen}", points(known), model)


if __name__ == "__main__":
    main()
