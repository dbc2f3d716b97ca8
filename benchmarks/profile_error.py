"""Errors of the devices' profiles on measured kernels that are not among their calibration points.

`python -m benchmarks.profile_error` prints a line for each table in `benchmarks/measured`: the median, mean and 90th
percentile of the relative error, and the share of times inside the 90 % interval. The tables are halves of public ones, of
which the other halves are the calibration points. `--rows TABLE.csv --device h200` judges another table with these columns;
`--points h100` uses the calibration points of another device.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from graphflops.devices import Device, device
from graphflops.kernels.kernel import Attention, Kernel, Product, bytes_of
from graphflops.time.predict import predict

MEASURED = Path(__file__).parent / "measured"
GAP = 0.43e-6  # seconds between two kernels of a CUDA graph, which the tables of products hold
TILE = 128  # queries and keys of a tile of the attention kernel


def product(row: dict[str, str], dtype: str) -> Kernel:
    """A product that runs again and again, as tables of products are measured."""
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    width = int(bytes_of(dtype))
    read, written = width * k * (m + n), max(width, 2) * m * n
    return Kernel("matmul", dtype, 2 * m * n * k, 0, read, written, Product(m, n, k, is_alone=True))


def attention(row: dict[str, str], dtype: str) -> Kernel:
    """Causal attention over a whole sequence, or of one new token over those before it."""
    batch, heads, kv_heads, width, window = (
        int(row[name]) for name in ("batch", "heads", "kv_heads", "width", "window")
    )
    keys = int(row["length"]) if "length" in row else int(row["context"]) + 1
    queries = keys if "length" in row else 1
    computed = prefill_share(keys, window) if "length" in row else min(1.0, (window or keys) / keys)
    in_window = keys if queries > 1 else min(keys, window or keys)
    outputs, inputs = 2 * batch * heads * queries * width, 4 * batch * kv_heads * in_window * width
    flops = int(4 * batch * heads * queries * keys * width * computed)
    sizes = Attention(batch, heads, kv_heads, queries, keys, width, computed, "flash3")
    return Kernel("attention", dtype, flops, 0, inputs + outputs, outputs, sizes)


def prefill_share(length: int, window: int) -> float:
    """The share of tiles that hold a visible pair under a causal mask, within a window if it is not 0."""
    tiles = 0
    for start in range(0, length, TILE):
        last, first = min(length, start + TILE), max(0, start - window + 1) if window else 0
        tiles += max(1, ceil(last / TILE) - first // TILE)
    return min(1.0, tiles / ceil(length / TILE) ** 2)


def errors(path: Path, known: Device) -> list[tuple[float, bool]]:
    """Of each row: the relative error, and whether the measured time is inside the interval."""
    dtype = (
        "float8_e4m3fn"
        if "fp8" in path.stem
        else "float16"
        if "float16" in path.stem.split("_")
        else "bfloat16"
    )
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            is_product = "k" in row
            kernel = product(row, dtype) if is_product else attention(row, dtype)
            measured = float(row["ms"]) * 1e-3 - (GAP if is_product else 0.0)
            time = predict(kernel, known)
            found.append((abs(time.seconds / measured - 1), time.low <= measured <= time.high))
    return found


def line(name: str, found: list[tuple[float, bool]]) -> str:
    """The errors of a table as a line."""
    relative = [error for error, _ in found]
    ninth = statistics.quantiles(relative, n=10)[-1]
    inside = sum(is_inside for _, is_inside in found) / len(found)
    middle, mean = statistics.median(relative), statistics.mean(relative)
    return f"{name:<52} {len(found):>6} {middle:>8.1%} {mean:>8.1%} {ninth:>8.1%} {inside:>9.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, help="another table of measured products or attentions")
    parser.add_argument("--device", help="the device of that table")
    parser.add_argument("--points", help="use the calibration points of this device")
    given = parser.parse_args()
    own = sorted([*MEASURED.glob("*_gemm_*.csv"), *MEASURED.glob("*_attention_*.csv")])
    tables = [given.rows] if given.rows else own
    print(f"{'table':<52} {'rows':>6} {'median':>8} {'mean':>8} {'90th':>8} {'in band':>9}")
    for path in tables:
        known = device(given.device or path.stem.partition("_")[0])
        if given.points:
            known = replace(known, calibration=device(given.points).calibration)
        print(line(path.stem, errors(path, known)))
    if not given.rows and not given.points:
        path = next(MEASURED.glob("h200_gemm_bfloat16*.csv"))
        known = replace(device("h200"), calibration=device("h100").calibration)
        print(line(f"{path.stem}, points of the H100", errors(path, known)))


if __name__ == "__main__":
    main()
