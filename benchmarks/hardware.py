"""Matrix FLOPs of the analysis against those that a GPU's counters read, for a dozen families of operators.

    python -m benchmarks.hardware

Each case is a module of one operator: exported, analyzed, then run under Nsight Compute, forward or gradients alone. Padded
FLOPs are those of whole tiles, by the names of the kernels. Bytes are told apart where they exceed the second-level cache.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import graphflops
from graphflops.runtime.counters import available, explain_row, measure, range_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.report import Report, Row
    from graphflops.runtime.counters import RangeCount
    from graphflops.runtime.flex import PreparedAttention

B, H, S, D = GRADIENTS = "bfloat16", "float16", "float32", "float64"
CUDNN, FLASH, EFFICIENT = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)
WINDOW = 512
CACHE = 60_000_000  # bytes
# What CUTLASS calls a kernel, inside of its template.
TEMPLATED = re.compile(r"(cutlass_(?:\d|tensorop|simt)\w+)")


@dataclass(frozen=True)
class Case:
    """One operator. ours: attention by our kernels, in place of what `function` runs and the analysis prices."""

    family: str
    dtype: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    note: str = ""
    backend: SDPBackend | None = None
    channels_last: bool = False
    tf32: bool = False
    ours: bool = False
    backward: bool = False

    def __str__(self) -> str:
        sizes = " ".join("x".join(map(str, shape)) for shape in dict.fromkeys(self.shapes))
        return f"{self.family}{' backward' if self.backward else ''} {sizes} {self.note}".rstrip()


class Operator(nn.Module):
    """The operator over parameters, so that each of them wants a gradient."""

    def __init__(self, case: Case, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layout = torch.channels_last if case.channels_last else torch.contiguous_format
        dtype = getattr(torch, case.dtype)
        tensors = (torch.randn(shape, device=device).to(dtype) for shape in case.shapes)
        self.operands = nn.ParameterList(
            nn.Parameter(
                x.to(memory_format=layout) if x.dim() == 4 else x, requires_grad=case.dtype in GRADIENTS
            )
            for x in tensors
        )
        self.case = case

    def forward(self) -> Any:
        return self.case.function(*self.operands)


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < WINDOW)


@functools.cache
def window_mask(length: int, device: str) -> Any:
    return create_block_mask(window, None, None, length, length, device=device)


def windowed(q: Any, k: Any, v: Any) -> Any:
    return flex_attention(q, k, v, block_mask=window_mask(q.shape[2], q.device.type))


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def our_tiles(case: Case) -> int | None:
    """FLOPs of the tiles that our kernels are predicted to multiply."""
    if not case.ours:
        return None
    operands = Operator(case, "cuda").operands
    q, _, v = operands
    ready = our_kernels(case, operands)
    flops = 0
    for kernel in ("query_gradient", "key_gradient") if case.backward else ("forward",):
        tiles = ready.predicted(kernel, q, v)
        flops += (tiles.full_tiles + tiles.partial_tiles) * ready.tile_flops(kernel, q, v)
    return flops


def our_kernels(case: Case, operands: Any) -> PreparedAttention:
    """Our attention, prepared."""
    from graphflops.runtime.flex import prepare, sdpa

    q, k, _ = operands
    if case.function is windowed:
        return prepare(q, k, None, window_mask(q.shape[2], q.device.type))
    return sdpa(q, k, is_causal=case.function is causal)


def conv(rank: int, **settings: Any) -> Callable[..., Any]:
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return lambda x, w: function(x, w, padding=1, groups=x.shape[1] // w.shape[1], **settings)


def transposed(x: Any, w: Any) -> Any:
    return F.conv_transpose2d(x, w, stride=2, padding=1)


def scaled(a: Any, b: Any) -> Any:
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)


def integer(a: Any, b: Any) -> Any:
    return torch._int_mm(a, b.t())


def qkv(*shape: int) -> tuple[tuple[int, ...], ...]:
    return (shape,) * 3


SDPA = F.scaled_dot_product_attention
STRIDED = conv(2, stride=2)
LAST = {"note": "channels last", "channels_last": True}
FORWARD = (
    Case("mm", B, torch.mm, ((4096, 4096), (4096, 4096))),
    Case("mm", B, torch.mm, ((8192, 8192), (8192, 8192))),
    Case("mm", B, torch.mm, ((1000, 1000), (1000, 1000))),
    Case("mm", H, torch.mm, ((2048, 512), (512, 3000))),
    Case("mm", B, torch.mm, ((64, 16384), (16384, 64))),
    Case("mm", B, torch.mm, ((127, 333), (333, 65))),
    Case("mm", S, torch.mm, ((2048, 2048), (2048, 2048))),
    Case("mm", S, torch.mm, ((1000, 500), (500, 700))),
    Case("mm", S, torch.mm, ((2048, 2048), (2048, 2048)), "TF32", tf32=True),
    Case("mm", D, torch.mm, ((1024, 1024), (1024, 1024))),
    Case("addmm", B, torch.addmm, ((3000,), (2048, 512), (512, 3000))),
    Case("addmm", B, torch.addmm, ((2048,), (4096, 1024), (1024, 2048))),
    Case("bmm", B, torch.bmm, ((32, 512, 256), (32, 256, 512))),
    Case("bmm", H, torch.bmm, ((7, 300, 80), (7, 80, 200))),
    Case("bmm", S, torch.bmm, ((8, 512, 256), (8, 256, 512))),
    Case("linear", B, F.linear, ((8, 1024, 4096), (11008, 4096))),
    Case("linear", B, F.linear, ((1, 4096), (32000, 4096))),
    Case("linear", B, F.linear, ((8, 4096), (32000, 4096))),
    Case("linear", S, F.linear, ((4, 197, 768), (3072, 768), (3072,))),
    Case("conv1d", B, conv(1), ((8, 80, 3000), (512, 80, 3))),
    Case("conv2d", B, conv(2), ((8, 64, 56, 56), (64, 64, 3, 3))),
    Case("conv2d", B, conv(2), ((8, 64, 56, 56), (64, 64, 3, 3)), **LAST),
    Case(
        "conv2d", H, STRIDED, ((4, 3, 224, 224), (64, 3, 7, 7)), "channels last, stride 2", channels_last=True
    ),
    Case("conv2d", B, conv(2), ((32, 256, 112, 112), (256, 256, 3, 3)), **LAST),
    Case("conv2d", S, conv(2), ((8, 64, 56, 56), (64, 64, 3, 3))),
    Case("conv2d", S, conv(2), ((8, 64, 56, 56), (64, 64, 3, 3)), "TF32", tf32=True),
    Case("conv3d", B, conv(3), ((2, 32, 16, 28, 28), (64, 32, 3, 3, 3))),
    Case("conv3d", S, conv(3), ((2, 32, 16, 28, 28), (64, 32, 3, 3, 3))),
    Case("grouped conv2d", B, conv(2), ((8, 256, 28, 28), (256, 8, 3, 3)), **LAST),
    Case("grouped conv2d", B, conv(2), ((8, 256, 28, 28), (256, 1, 3, 3))),
    Case("grouped conv2d", S, conv(2), ((8, 256, 28, 28), (256, 1, 3, 3))),
    Case("transposed conv2d", B, transposed, ((4, 128, 32, 32), (128, 64, 4, 4)), "stride 2"),
    Case("transposed conv2d", S, transposed, ((4, 128, 32, 32), (128, 64, 4, 4)), "stride 2"),
    *(
        Case(f"SDPA {name}", B, function, qkv(*shape), note, backend=backend)
        for name, backend in (("cuDNN", CUDNN), ("flash", FLASH), ("efficient", EFFICIENT))
        for function, shape, note in (
            (SDPA, (2, 16, 2048, 128), ""),
            (causal, (2, 16, 2048, 128), "causal"),
            (SDPA, (2, 16, 1000, 80), ""),
        )
    ),
    Case("SDPA efficient", S, SDPA, qkv(2, 4, 512, 64), backend=EFFICIENT),
    Case("our attention", B, SDPA, qkv(2, 16, 2048, 128), ours=True),
    Case("our attention", B, causal, qkv(2, 16, 2048, 128), "causal", ours=True),
    Case("our attention", B, SDPA, qkv(2, 16, 1000, 64), ours=True),
    Case("our attention", B, windowed, qkv(2, 16, 2048, 64), f"window of {WINDOW}", ours=True),
)
ONLY_FORWARD = (
    Case("scaled mm", "float8_e4m3fn", scaled, ((4096, 4096), (4096, 4096))),
    Case("integer mm", "int8", integer, ((2048, 2048), (2048, 2048))),
)
CASES = (*(replace(case, backward=way) for case in FORWARD for way in (False, True)), *ONLY_FORWARD)


def child(places: list[int]) -> None:
    """Run cases, each once to warm up and once in its range."""
    torch.autograd.set_multithreading_enabled(
        False
    )  # kernels of gradients are launched by the thread that holds the range
    for place in places:
        case = CASES[place]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.tf32
        module = Operator(case, "cuda")
        run = first_of(our_kernels(case, module.operands)) if case.ours else case.function
        with sdpa_kernel(case.backend) if case.backend else contextlib.nullcontext():
            for counted in (False, True):
                step = prepared(run, tuple(module.operands), case.backward)
                torch.cuda.synchronize()
                if counted:
                    torch.cuda.nvtx.range_push(range_name(place))
                step()
                torch.cuda.synchronize()
                if counted:
                    torch.cuda.nvtx.range_pop()


def first_of(attention: PreparedAttention) -> Callable[..., Any]:
    return lambda *operands: attention(*operands)[0]


def prepared(run: Callable[..., Any], operands: tuple[Any, ...], backward: bool) -> Callable[[], Any]:
    """A step to be counted: the operator, or the gradients of what it returned just before."""
    if not backward:
        given = [x.detach() for x in operands]
        return lambda: run(*given)
    out = run(*operands)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, operands, grad)


def analyzed(case: Case) -> tuple[Report, Row]:
    """The report of the exported operator, and its row."""
    device = "meta"
    if case.function is windowed:  # torch differentiates it on a GPU only, and makes masks outside of a trace
        device = "cuda"
        window_mask(case.shapes[0][2], device)
    module = Operator(case, device)
    report = graphflops.analyze(graphflops.capture(module, ()), training=case.backward)
    (row,) = (row for row in report.rows if report.value(row.cost.matrix_flops))
    return report, row


def line(case: Case, counted: RangeCount) -> tuple[str, str]:
    """A line of the table, and the verdict."""
    report, row = analyzed(case)
    found = explain_row(row, counted, report.value, case.backward, our_tiles(case))
    largest = max(counted.matrix_kernels or counted.kernels, key=lambda kernel: kernel.flops)
    cost = row.backward if case.backward else row.cost
    assert cost is not None
    ours = [report.value(cost.read_bytes) or 0, report.value(cost.written_bytes) or 0]
    counts = [counted.dram_read, counted.dram_written]
    large = sum(ours) > CACHE
    traffic = " ".join(
        f"{a / 1e6:6.0f}/{b / 1e6:6.0f}" if large else f"{'-':>13}" for a, b in zip(ours, counts, strict=True)
    )
    padded = "-" if found.padded_flops is None else f"{found.padded_flops:,}"
    text = (
        f"{case!s:70} {case.dtype:13} {short_name(largest.name, 44):44} {found.model_flops:>17,} {padded:>17} "
        f"{found.counted_flops:>17,} {traffic} {found.verdict:9} {found.reason if found.reasons else ''}"
    )
    return text.rstrip(), found.verdict


def short_name(name: str, limit: int = 60) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    plain = name.removeprefix("void ").replace("<unnamed>::", "")
    inner = TEMPLATED.search(plain)
    text = inner[1] if inner else re.split(r"[<(]", plain)[0].rpartition("::")[2]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def head() -> str:
    version = subprocess.run(
        [available() or "ncu", "--version"], capture_output=True, text=True, check=True
    ).stdout
    number = re.search(r"Version (\S+)", version)
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
        f"triton {triton.__version__}, Nsight Compute {number[1] if number else '?'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--case", type=int, nargs="*", help="places in the list of cases; all where none is given"
    )
    parser.add_argument("--child", action="store_true", help="only run them, marked; what is run under ncu")
    given = parser.parse_args()
    places = given.case or list(range(len(CASES)))
    if given.child:
        child(places)
        return
    print(head())
    command = [sys.executable, "-m", "benchmarks.hardware", "--child", "--case", *map(str, places)]
    table(places, measure(command))


def table(places: list[int], counted: Mapping[str, RangeCount]) -> None:
    """Every case's line, and how many of each verdict."""
    titles = ("model FLOPs", "padded", "counted", "MB read", "MB written")
    print("FLOPs are exact; bytes are those of the analysis / the counters, of cases that exceed the cache")
    print(
        f"{'case':70} {'type':13} {'largest kernel':44} {titles[0]:>17} {titles[1]:>17} {titles[2]:>17} "
        f"{titles[3]:>13} {titles[4]:>13} verdict"
    )
    verdicts: Counter[str] = Counter()
    for place in places:
        text, verdict = line(CASES[place], counted[range_name(place)])
        verdicts[verdict] += 1
        print(text, flush=True)
    print(
        f"{len(places)} cases: "
        + ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
    )


if __name__ == "__main__":
    main()
