"""Runs a process under Nsight Compute (`ncu`) and reads its counters, per NVTX range and kernel.

The process marks each call with a range named by `range_name`. A range that is pushed and popped has the kernels of its
thread; one that is started and ended has those of all threads, autograd's too. Kernels outside of ranges run at full speed.
A kernel inside is replayed several times, and memory is restored in between, so its results are those of one run.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE

from graphflops.base.record import Record
from graphflops.errors import ModelError, shown

_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/usr/local/NVIDIA-Nsight-Compute")
_TENSOR = "sm__ops_path_tensor_src_"
_INSTRUCTION = "smsp__sass_thread_inst_executed_op_{}_pred_on"
_INSTRUCTIONS = ("ffma", "fadd", "fmul", "hfma", "dfma")
_READ, _WRITTEN = "dram__bytes_read", "dram__bytes_write"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tfloat32", "fp64": "float64", "fp8": "float8"}
_UNUSED = "int1"  # not read: no operator has such operands, and each counter costs a replay
_RANGE = re.compile(r":(gf:\d+(?:\.\d+)*):")
_FILTERS = ("regex:gf:.*/", "regex:gf:.*")  # pushed and popped; started and ended
_FORBIDDEN = "ERR_NVGPUCTRPERM"


def range_name(*place: int) -> str:
    """The NVTX range of a call, by numbers alone: `gf:12`, and `gf:12.3` for the fourth call of a graph nested in it."""
    return "gf:" + ".".join(map(str, place))


def available() -> str | None:
    """Path of `ncu`, from PATH or the folders where CUDA installs it; None if there is none."""
    found = shutil.which("ncu")
    if found:
        return found
    below = [path for place in _PLACES for path in (Path(place) / "ncu", *sorted(Path(place).glob("*/ncu")))]
    return next((str(path) for path in below if os.access(path, os.X_OK)), None)


def measure(argv: Sequence[str], *, timeout: float | None = None) -> dict[str, RangeCount]:
    """Run a command under `ncu` and return the counts of the kernels of each range.

    argv: the command; it should run each call once before the first range, so that no range contains tuning or compilation.
    timeout: seconds. Ranges of the same name are added up; a range without kernels is not in the result.
    Raises ModelError if ncu is missing or cannot read the counters, and if the command fails.
    """
    ncu = available()
    if ncu is None:
        raise ModelError("no Nsight Compute: put ncu on PATH (it comes with the CUDA toolkit)")
    if shutil.which(argv[0]) is None:
        raise ModelError(f"{shown(argv[0])}: no such program")
    metrics = ",".join(f"{name}.sum" for name in _metrics(ncu))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--nvtx"]
        options += [word for text in _FILTERS for word in ("--nvtx-include", text)]
        ran = _run([ncu, *options, "--metrics", metrics, "--log-file", str(log), *argv], timeout)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if ran.returncode or "==ERROR==" in text:
        raise ModelError(_failure(text, ran))
    return read_csv(text)


def read_csv(text: str) -> dict[str, RangeCount]:
    """The counters by (innermost) range that `ncu --csv --page raw --nvtx` prints. ModelError if a counter is missing."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    kernels: dict[str, list[KernelCount]] = {}
    for row in csv.DictReader(lines):
        if not row["ID"]:  # this line has the units
            continue
        texts = [cell for column, cell in row.items() if "_Range:" in column]
        ranges = [name for text in texts for name in _RANGE.findall(text)]
        if ranges:
            kernels.setdefault(max(ranges, key=len), []).append(_kernel(row))
    return {name: RangeCount(tuple(found)) for name, found in kernels.items()}


def _kernel(row: Mapping[str, str]) -> KernelCount:
    counts = {
        column[: -len(".sum")]: _number(column, text)
        for column, text in row.items()
        if column.endswith(".sum") and column.startswith((_TENSOR, "smsp__sass", "dram__"))
    }
    absent = [name for name in (_READ, _WRITTEN, _INSTRUCTION.format("ffma")) if name not in counts]
    if absent:
        raise ModelError(f"no {absent[0]} in the output of ncu: its columns are not the requested ones")
    tensor = Counter[str]()
    for name, count in counts.items():
        if name.startswith(_TENSOR) and count:
            source = name[len(_TENSOR) :].partition("_")[0]
            tensor[_DTYPES.get(source, source)] += count
    instructions = {name: counts.get(_INSTRUCTION.format(name), 0) for name in _INSTRUCTIONS}
    return KernelCount(
        name=row["Kernel Name"],
        tensor_flops=tensor,
        instructions={name: count for name, count in instructions.items() if count},
        grid=tuple(int(size) for size in re.findall(r"\d+", row["Grid Size"])),
        dram_read=counts[_READ],
        dram_written=counts[_WRITTEN],
    )


def _number(column: str, text: str) -> int:
    try:
        return round(float(text.replace(",", "")))
    except ValueError:
        raise ModelError(f"ncu did not read {column}: {shown(text)}") from None


@functools.cache
def _metrics(ncu: str) -> tuple[str, ...]:
    """The counters to read on this GPU; ModelError if it has no counters of the tensor cores."""
    ran = _run([ncu, "--query-metrics"], 120)
    names = {line.split(maxsplit=1)[0] for line in ran.stdout.splitlines() if line.strip()}
    if ran.returncode:
        raise ModelError(_failure(ran.stdout, ran))
    if _READ not in names:
        raise ModelError(f"the counters of this GPU are not supported: ncu lists no {_READ}")
    listed = sorted(name for name in names if name.startswith(_TENSOR) and _UNUSED not in name)
    # Leave out counters that are part of another: `src_fp8_sparsity_on` is in `src_fp8`.
    tensor = [name for name in listed if not any(name.startswith(f"{other}_") for other in listed)]
    if not tensor:
        raise ModelError("this GPU has no counters of tensor operations: Ampere and later have them")
    return (*tensor, *(_INSTRUCTION.format(name) for name in _INSTRUCTIONS), _READ, _WRITTEN)


def _run(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    try:
        process = subprocess.Popen(
            command, stdout=PIPE, stderr=PIPE, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        raise ModelError(f"{shown(command[0])} does not run: {error.strerror}") from None
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # killing ncu alone would leave the command on the GPU
            if isinstance(error, subprocess.TimeoutExpired):
                limit = f"{timeout:g} s: allow more time, or count fewer calls"
                raise ModelError(f"counting did not finish in {limit}") from None
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _failure(log: str, ran: subprocess.CompletedProcess[str]) -> str:
    """In one line, the error of ncu, or the last line of the command's output if the command failed."""
    if _FORBIDDEN in log + ran.stderr:
        return "the driver keeps counters for administrators: run as root, or set NVreg_RestrictProfilingToAdminUsers=0"
    errors = [line.partition("==ERROR==")[2].strip() for line in log.splitlines() if "==ERROR==" in line]
    if errors and "error code" not in errors[0]:
        return f"ncu did not count: {shown(errors[0], 200)}"
    last = [line.strip() for line in ran.stderr.splitlines() if line.strip()][-1:]
    return f"the command failed under ncu (exit status {ran.returncode}): {shown((last or errors or ['no output'])[0], 200)}"


# Fused multiply-adds by element type. Half precision is not counted: HFMA and HFMA2, which does two operations, share one
# counter, and compilers also move constants with them.
_FUSED = {"float32": "ffma", "float64": "dfma"}
_NOT_MATRIX = 64  # a kernel with less than 1/64 of the largest kernel's FLOPs is an auxiliary kernel


class KernelCount(Record, frozen=True):
    """Counts of one kernel launch."""

    name: str  # demangled
    tensor_flops: Mapping[str, int]  # of the tensor cores by element type of the operands, in whole tiles
    instructions: Mapping[str, int]  # of other arithmetic, by name (ffma, fadd, ...), summed over threads
    grid: tuple[int, ...]  # blocks launched along each axis
    dram_read: int  # bytes, with empty caches before the launch
    dram_written: int  # bytes; data that remains in a cache is not written

    @property
    def fma_flops(self) -> dict[str, int]:
        """FLOPs of fused multiply-adds outside the tensor cores, by element type."""
        counts = {dtype: 2 * self.instructions.get(name, 0) for dtype, name in _FUSED.items()}
        return {dtype: flops for dtype, flops in counts.items() if flops}

    @property
    def flops(self) -> int:
        """FLOPs of the tensor cores; FLOPs of fused multiply-adds if the kernel does not use tensor cores."""
        return sum(self.tensor_flops.values()) or sum(self.fma_flops.values())

    @property
    def on_tensor_cores(self) -> bool:
        return any(self.tensor_flops.values())


class RangeCount(Record, frozen=True):
    """Counts of the kernels of one range, in the order of their launches."""

    kernels: tuple[KernelCount, ...]

    @property
    def tensor_flops(self) -> dict[str, int]:
        """FLOPs of the tensor cores, by element type of the operands."""
        return sum((Counter(kernel.tensor_flops) for kernel in self.kernels), Counter())

    @property
    def dram_read(self) -> int:
        return sum(kernel.dram_read for kernel in self.kernels)

    @property
    def dram_written(self) -> int:
        return sum(kernel.dram_written for kernel in self.kernels)

    @property
    def matrix_kernels(self) -> tuple[KernelCount, ...]:
        """The kernels of the matrix work: all on tensor cores, and others with a notable share of the FLOPs."""
        most = max((kernel.flops for kernel in self.kernels), default=0)
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.on_tensor_cores or (kernel.flops and kernel.flops * _NOT_MATRIX >= most)
        )

    @property
    def flops(self) -> int:
        return sum(kernel.flops for kernel in self.matrix_kernels)
