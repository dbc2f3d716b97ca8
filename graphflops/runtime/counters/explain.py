"""Explains why a GPU counts other FLOPs than the analysis: whole tiles, skipped tiles, other algorithms, no tensor cores.

Tile quantisation is explained by a division of a call's sizes into whole tiles that reproduces the counted FLOPs. Tile sizes
come from the kernels' names, else from a list of usual sizes. A layout reproduces the count exactly, or there is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from math import prod
from typing import Literal

from graphflops.base.record import Record, replace
from graphflops.kernels.convolution import up
from graphflops.report import Row
from graphflops.runtime.counters import problems
from graphflops.runtime.counters.ncu import KernelCount, RangeCount

Verdict = Literal["equal", "padded", "skipped", "algorithm", "different", "unknown"]
_FFT = "convolution by FFT"
_ALGORITHMS = {"winograd": "Winograd's algorithm", "fft2d": _FFT, "fft1d": _FFT}


class Explanation(Record, frozen=True):
    """FLOPs of one call by the analysis and by the counters."""

    model_flops: int | None  # matrix FLOPs of the analysis, None if unknown
    padded_flops: int | None  # in whole tiles, without masked ones; None if no tile sizes reproduce the count
    counted_flops: int  # of the kernels of the matrix work
    # equal; padded: whole tiles; skipped: masked tiles or taps on padding were not computed; algorithm: another known
    # algorithm; different: unexplained; unknown: the analysis has no number.
    verdict: Verdict
    reasons: tuple[str, ...] = ()  # in words; the first names the instructions if no tensor cores were used

    @property
    def reason(self) -> str:
        """All reasons; the verdict if there is none."""
        return "; ".join(self.reasons) or self.verdict

    @property
    def explained(self) -> bool:
        """True if the counts are equal or their difference is explained."""
        return self.verdict not in ("different", "unknown")


def explain_row(
    row: Row, counted: RangeCount, value: problems.Value, backward: bool = False, tiles: int | None = None
) -> Explanation:
    """Explain the counts of a row's NVTX range. value: `Report.value`. backward: for the gradients that the row prices."""
    cost = row.backward if backward else row.cost
    if row.state == "unknown" or cost is None:
        return explain(None, counted)
    masked, problem = value(cost.masked_flops) or 0, problems.problem_of(row, value, backward)
    return explain(value(cost.matrix_flops), counted, problem, masked, tiles)


def explain(
    model_flops: int | None, counted: RangeCount, problem: problems.Problem | None = None,
    masked_flops: int = 0, tiles: int | None = None,
) -> Explanation:  # fmt: skip
    """Compare the FLOPs of the analysis with the counted ones.

    problem: the sizes of the products; without it, only equality and masks are recognised. masked_flops: the masked part
    of model_flops. tiles: FLOPs of the tiles that the kernel itself counted, or that are predicted for it, if known.
    """
    total, path = counted.flops, _path(counted)

    def answer(verdict: Verdict, padded: int | None, *reasons: str) -> Explanation:
        return Explanation(model_flops, padded, total, verdict, (*path, *reasons))

    if model_flops is None:
        return Explanation(None, None, total, "unknown", ("the analysis has no number",))
    if not model_flops and counted.tensor_flops:
        return answer("different", None, "matrix work where the analysis has none")
    if not model_flops:  # multiply-adds of elementwise kernels are not matrix work
        return Explanation(0, 0, 0, "equal")
    if total == 0:
        return Explanation(model_flops, None, 0, "different", ("no matrix path",))
    if tiles is not None and tiles != total:
        return answer("different", tiles, f"the kernel's own tiles come to {tiles:,}")
    if total == model_flops:
        return answer("equal", total)
    fit = tiled_work(problem, counted, model_flops) if problem else None
    if fit is not None:
        return answer(_verdict(fit, model_flops), fit.flops, *fit.reasons)
    if tiles is not None:
        return answer("skipped" if total < model_flops else "padded", tiles, "the kernel's own tiles")
    names = " ".join(kernel.name.lower() for kernel in counted.kernels)
    if algorithms := dict.fromkeys(text for word, text in _ALGORITHMS.items() if word in names):
        return answer("algorithm", None, *algorithms)
    if problem and not counted.tensor_flops and model_flops < total <= smallest_tile_flops(problem, counted):
        return answer("padded", None, "a tiny product: less than one tile of 128x128x32 for each job")
    if masked_flops and model_flops - masked_flops <= total < model_flops:
        return answer("skipped", None, "masked tiles skipped")
    return answer("different", None, f"{total / model_flops:.3f} of the model")


def _verdict(fit: TiledWork, model_flops: int) -> Verdict:
    is_other = fit.flops == model_flops or any(text in fit.reasons for text in (THRICE, SEVEN))
    return "algorithm" if is_other else "skipped" if fit.flops < model_flops else "padded"


def _path(counted: RangeCount) -> tuple[str, ...]:
    kernels = [kernel for kernel in counted.matrix_kernels if not kernel.on_tensor_cores]
    names = {dtype: f"FP{dtype[5:]} by {word}" for dtype, word in (("float32", "FFMA"), ("float64", "DFMA"))}
    fused = {dtype for kernel in kernels for dtype in kernel.fma_flops}
    return tuple(text for dtype, text in names.items() if dtype in fused)


class Tile(Record, frozen=True):
    """The tile that one step of a kernel multiplies. In attention, rows are queries and columns are keys."""

    rows: int
    columns: int
    # Multiply-adds for each result in a step, None if the name does not state it. In attention, the padded head width.
    depth: int | None = None
    cluster: tuple[int, int] = (1, 1)  # number of tiles launched together, along rows and columns

    def __str__(self) -> str:
        return "x".join(str(size) for size in (self.rows, self.columns, self.depth) if size is not None)


THRICE = "each product three times: FP32 by TF32"
SEVEN = "seven products: each of two kernels computes the scores"
SCALED = "one more multiply-add for each result"
_SIZES = (16, 32, 64, 128, 256)  # of tiles, to try if the kernel's name does not state them
_TILES = tuple(Tile(rows, columns) for rows in _SIZES for columns in _SIZES)
_DEPTHS = (8, 16, 32, 64, 128)
_WIDTHS = (16, 32, 64, 128)  # head widths are padded to a multiple of one of these
_FINEST = 32  # keys: the second product may stop earlier within a tile
_SPLIT = 8  # elements: granularity of an uneven split of the depth


class TiledWork(Record, frozen=True):
    """Work in whole tiles that reproduces the counted FLOPs exactly."""

    flops: int
    reasons: tuple[str, ...] = ()


def tiled_work(problem: problems.Problem, counted: RangeCount, model_flops: int) -> TiledWork | None:
    """Whole tiles of every matrix kernel that reproduce its count; None if there are none, or if sizes contradict it.

    Each kernel does one job. There are fewer kernels than jobs if only some gradients are needed, and more in a loop.
    """
    kernels = counted.matrix_kernels
    if isinstance(problem, problems.AttentionProblem):
        return _attention_fit(problem, kernels) if problem.flops == model_flops else None
    if len(kernels) * problem.flops != model_flops:
        return None
    looped = len(kernels) > len(problem.jobs)
    for order in [problem.jobs] if looped else permutations(problem.jobs, len(kernels)):
        choices = [order] * len(kernels) if looped else [(job,) for job in order]
        found: list[TiledWork] = []
        for jobs, kernel in zip(choices, kernels, strict=True):
            found += islice((fit for job in jobs if (fit := _job_fit(job, kernel, problem))), 1)
        if len(found) == len(kernels):
            reasons = dict.fromkeys(text for fit in found for text in fit.reasons)
            return TiledWork(sum(fit.flops for fit in found), tuple(reasons))
    return None


def smallest_tile_flops(problem: problems.Problem, counted: RangeCount) -> int:
    """FLOPs of one large tile for each kernel, if every product of the call fits into one; else 0.

    Kernels for tiny products outside the tensor cores rarely state their tiles. Their counts include threads past the
    sizes, scaling, and sums of partial products, so no layout reproduces them, but they stay below this number.
    """
    if isinstance(problem, problems.AttentionProblem):
        return 0
    ways = [way for job in problem.jobs for way in job.ways[:1]]
    sizes = [(way.rows.length, way.columns.length, way.depth.length) for way in ways]
    fits = all(rows <= 128 and columns <= 128 and depth <= 32 for rows, columns, depth in sizes)
    batch = max((way.batch for way in ways), default=1)
    return 2 * 128 * 128 * 32 * batch * len(counted.matrix_kernels) if fits else 0


def _job_fit(job: problems.KernelJob, kernel: KernelCount, problem: problems.Products) -> TiledWork | None:
    role = _ROLE.search(kernel.name.lower())
    if role and role[1] != job.role:
        return None
    if kernel.flops == problem.flops:
        return TiledWork(kernel.flops)
    if kernel.flops == problem.inside:
        return TiledWork(kernel.flops, ("taps on padding skipped",))
    tile = tile_of(kernel.name)
    tiles = [tile] if tile else list(_TILES)
    # A kernel for several groups pads each group to the tile of one instruction.
    if _GROUPED.search(kernel.name):
        match = _INSTRUCTION.search(kernel.name)
        # 64 x 8 x 16 is that of a warp group in half precision.
        rows, columns, depth = map(int, match.groups() if match else (64, 8, 16))
        tiles.append(Tile(rows, columns, depth))
    found = _padded_fit(job, kernel, problem, tiles)
    if found is None and tile is not None:
        # Each block of the grid computes one tile, even past the sizes, or several blocks share the depth of one.
        blocks = prod(kernel.grid)
        shares = range(1, blocks + 1) if "segment_k_on" in kernel.name else (1,)
        for way, share in product(job.ways, shares):
            for depth in way.depth.padded(tile.depth or 1):
                count, rest = divmod(blocks, share)
                if not rest and kernel.flops == 2 * count * tile.rows * tile.columns * depth:
                    return TiledWork(kernel.flops, (f"{count} tiles of {tile} launched",))
    if found is None and tile is not None and tile.cluster == (1, 1) and kernel.on_tensor_cores:
        # The names of cuDNN's kernels do not state clusters.
        pairs = [replace(tile, cluster=cluster) for cluster in ((2, 1), (1, 2))]
        found = _padded_fit(job, kernel, problem, pairs)
    return found


def _padded_fit(
    job: problems.KernelJob, kernel: KernelCount, problem: problems.Products, tiles: Sequence[Tile]
) -> TiledWork | None:
    """The layout of a job in whole tiles that reproduces the kernel's count; None if there is none."""
    tile = tile_of(kernel.name)
    for one, way in product(tiles, job.ways):
        is_stated = tile is not None and one.cluster == tile.cluster
        for flops, results, words in _laid_out(way, one, kernel):
            said = f"padded to tiles of {one}" + (words if is_stated else f" (inferred){words}")
            changed = (said, way.note) if way.note else (said,) if flops != problem.flops else ()
            if kernel.flops == flops:
                return TiledWork(flops, changed)
            if kernel.flops == flops + 2 * results and not kernel.on_tensor_cores:
                return TiledWork(flops, (*changed, SCALED))
            if kernel.flops == 3 * flops and "tfloat32" in kernel.tensor_flops:
                return TiledWork(3 * flops, (*changed, THRICE))
    return None


def _laid_out(way: problems.MatrixProduct, tile: Tile, kernel: KernelCount) -> Iterator[tuple[int, int, str]]:
    """FLOPs, number of results and description of each layout of a product in whole tiles, simple layouts first."""
    up_by, along = tile.cluster
    shapes = dict.fromkeys(((tile.rows, tile.columns, up_by, along), (tile.columns, tile.rows, along, up_by)))
    clusters = (False, True) if tile.cluster != (1, 1) else (False,)
    # the number of parts into which the depth may be split, by the kernel's grid
    blocks = prod(kernel.grid)
    split = [size for size in kernel.grid[2:] if size > 1]
    if "splitK" in kernel.name:
        split = [number for number in range(2, blocks + 1) if blocks % number == 0]
    for parts, clustered in product((1, *split), clusters):
        for rows, columns, tall, wide in shapes:
            height, width = (rows * tall, columns * wide) if clustered else (rows, columns)
            words = f", in clusters of {up_by}x{along}" if clustered else ""
            words += f", the depth in {parts} parts" if parts > 1 else ""
            sizes = product(way.rows.padded(height), way.columns.padded(width), _depths(way, tile, parts))
            for m, n, k in sizes:
                yield 2 * way.batch * m * n * k, way.batch * m * n, words


def _depths(way: problems.MatrixProduct, tile: Tile, parts: int) -> Iterator[int]:
    """The depth in whole steps: as a whole or by segment, split in equal parts or in aligned parts and a remainder."""
    for step in (tile.depth,) if tile.depth else _DEPTHS:
        if parts == 1:
            yield from way.depth.padded(step)
            continue
        for length in way.depth.padded(step):
            yield up(length, step * parts)
        part = up(-(-way.depth.length // parts), _SPLIT)
        whole, rest = divmod(way.depth.length, part)
        yield whole * up(part, step) + up(rest, step)


def _attention_fit(problem: problems.AttentionProblem, kernels: Sequence[KernelCount]) -> TiledWork | None:
    """Products over pairs of queries and keys in whole tiles, with padded head widths."""
    total = sum(kernel.flops for kernel in kernels)
    named = [tile for kernel in kernels if (tile := tile_of(kernel.name))][:1]
    width, value = problem.width, problem.value_width
    # Products that sum over the head width, and those with it as columns: q k' and p v; backward also do v', and dv, dq, dk.
    summed: tuple[int, ...] = (width,)
    columns: tuple[int, ...] = (value,)
    words: tuple[str, ...] = ()
    if problem.backward:
        again = len(kernels) > 1
        summed, columns = (width, value) * (1 + again), (width, width, value)
        words = (SEVEN,) if again else ()
    factors = (1, 3) if any("tfloat32" in kernel.tensor_flops for kernel in kernels) else (1,)
    for one, factor in product((*named, *_TILES), factors):
        finer = dict.fromkeys((one.columns, one.rows, _FINEST)) if one in named else {one.columns: None}
        for last in finer:
            pairs = _pairs(problem, one.rows, one.columns), _pairs(problem, one.rows, last)
            for narrow, wide in product(dict.fromkeys((1, *_WIDTHS, one.depth or 1)), repeat=2):
                work = pairs[0] * sum(up(size, narrow) for size in summed)
                work += pairs[1] * sum(up(size, wide) for size in columns)
                if total == 2 * problem.heads * work * factor:
                    said = _attention_words(problem, one, (narrow, wide), one not in named)
                    return TiledWork(total, (*said, *words, *((THRICE,) if factor == 3 else ())))
    return None


def _attention_words(
    problem: problems.AttentionProblem, tile: Tile, widths: tuple[int, int], inferred: bool
) -> tuple[str, ...]:
    name = "" if inferred else f"of {tile.rows}x{tile.columns} "
    said = [f"masked tiles {name}skipped"] if problem.causal else []
    queries, keys = up(problem.queries, tile.rows), up(problem.keys, tile.columns)
    if (queries, keys) != (problem.queries, problem.keys):
        said.append(f"padded to {queries}x{keys} scores" if inferred else f"padded to tiles {name}".rstrip())
    sizes = {up(size, step) for size in (problem.width, problem.value_width) for step in widths}
    grown = sorted(sizes - {problem.width, problem.value_width})
    if grown:
        said.append(f"head widths padded to {' and '.join(map(str, grown))}")
    return tuple(said)


def _pairs(problem: problems.AttentionProblem, rows: int, columns: int) -> int:
    """The number of pairs of a query and a key in the computed tiles."""
    if not problem.causal:
        return up(problem.queries, rows) * up(problem.keys, columns)
    ends = range(rows, up(problem.queries, rows) + 1, rows)
    return sum(rows * up(min(end, problem.keys), columns) for end in ends)


# Names of kernels that state their tile.
_FORMS = (
    r"flash_\w*kernel<\w+_kernel_traits<{depth}, {rows}, {columns}",
    r"nvjet_\w+?_{rows}x{columns}_{depth}x\d+_{up}x{along}_",
    r"tilesize{rows}x{columns}x{depth}",
    r"sdpa_\w*?_{rows}x{columns}x{depth}_",  # cuDNN
    r"GemmShape<{rows}, {columns}, {depth}>",
    r"cutlass\w*_{rows}x{columns}_{depth}x\d+_",
    r"(?:cutlass|sgemm|dgemm|gemm)\w*_{rows}x{columns}_",
)
_SIZES_OF_TILE = {
    name: rf"(?:\(int\))?(?P<{name}>\d+)" for name in ("rows", "columns", "depth", "up", "along")
}
_PATTERNS = [re.compile(form.format(**_SIZES_OF_TILE)) for form in _FORMS]
_GROUPED = re.compile(r"_g([2-9]\d*|1\d+)_")
_ROLE = re.compile(r"(fprop|dgrad|wgrad)")  # the product of a convolution that a kernel computes
_INSTRUCTION = re.compile(r"tensor(\d+)x(\d+)x(\d+)")


def tile_of(name: str) -> Tile | None:
    """The tile of a kernel of cuBLAS, cuDNN, CUTLASS or flash attention; None if its name does not state it."""
    match = next(filter(None, (pattern.search(name) for pattern in _PATTERNS)), None)
    if match is None:
        return None
    sizes = {key: int(size) for key, size in match.groupdict().items()}
    cluster = sizes.pop("up", 1), sizes.pop("along", 1)
    return Tile(**sizes, cluster=cluster)
