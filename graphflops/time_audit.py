"""What makes a program slow for no reason on a device: findings with the time they cost and the fix.

Each check is a function with a stable code; its docstring is the explanation that users read. It looks at the rows of a
report with predicted times. Equal calls of several layers are one finding.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from graphflops.attention.kernel import last_refusal, remedy
from graphflops.base import units
from graphflops.base.files import opened
from graphflops.base.record import Record, replace
from graphflops.base.units import starred
from graphflops.devices import Device, complete, device
from graphflops.errors import FileError, OptionError, shown
from graphflops.kernels.convolution import up
from graphflops.kernels.kernel import Kernel, Product, bytes_of
from graphflops.onnx_audit.registry import Check
from graphflops.ops import operator
from graphflops.report import Execution, Report, Row
from graphflops.report.findings import Finding, ModelFindings, RuleInfo, Severity, with_neighbours
from graphflops.tensor import grouped
from graphflops.time.predict import fused_instead, predict

Progress = Callable[[int, int], None]

_ALIGNED = 8
_LEAST_SHARE = 0.01  # of the program's time that a finding saves
_NOTABLE_SHARE = 0.05  # from which on a finding is a warning
_LAUNCH_SHARE = 0.1
_COPY_RATE = 0.7  # of the memory's bandwidth that a copy reaches
_HALF = ("bfloat16", "float16")
_MOVING = ("movement", "view", "identity")


class Waste(NamedTuple):
    """One call that takes longer than it must. seconds: what the fix saves. fix: where it is not the check's own."""

    row: Row | None
    seconds: float
    message: str
    fix: str = ""


class _Program(Record, frozen=True):
    """A report with times, and the device that they are predicted for. graph_seconds: the time without waits for the CPU."""

    report: Report
    device: Device
    graph_seconds: Callable[[], float]

    def size(self, quantity: object) -> int:
        return self.report.value(quantity) or 0  # type: ignore[arg-type]

    def products(self) -> Iterator[tuple[Row, Product, float]]:
        """Products that run as such, with their sizes and times."""
        for row in self.report.rows:
            if row.time is None or operator(row.op).kind != "product" or not row.outputs:
                continue
            shape = [self.size(size) for size in row.outputs[0].type.shape]
            elements, flops = self.size(row.outputs[0].type.numel), self.size(row.cost.matrix_flops)
            if shape and elements and flops:
                k, n = flops // (2 * elements), shape[-1]
                # Where both factors have a batch, one product is as high as the result; else all rows are one product.
                ranks = [named.type.rank for named in row.inputs[-2:]]
                m = shape[-2] if len(ranks) > 1 and min(ranks) > 2 and len(shape) > 1 else elements // n
                yield row, Product(m, n, k, elements // (m * n)), row.time.seconds

    def saved(self, row: Row, dtype: str, now: Product, then: Product) -> float:
        """What other sizes or another element type save of a product's time: nothing where the CPU is what takes it."""
        if row.time is None or row.time.bound == "launch":
            return 0.0
        kernels = _product(row.matrix_dtype, now), _product(dtype, then)
        before, after = (predict(kernel, self.device).seconds for kernel in kernels)
        return row.time.seconds * max(0.0, 1 - after / before)


def time_findings(
    report: Report, profile: Device, codes: frozenset[str], graph_seconds: Callable[[], float]
) -> list[Finding]:
    """The findings about a report with times, the most costly first: one for what equal calls of several layers waste.

    codes: of the checks to run. graph_seconds: the time of the program as a graph, which not every check asks for.
    """
    time = report.totals.time
    if time is None or not time.seconds:
        return []
    program, whole = _Program(report, profile, graph_seconds), time.seconds
    found: list[Finding] = []
    for check in [check for check in SLOW_CHECKS if check.code in codes]:
        modules = (("" if one.row is None else starred(one.row.module), one) for one in check.run(program))
        alike = grouped(((module, one.message, one.fix or check.fix), one) for module, one in modules)
        for (_, message, fix), calls in alike.items():
            row: Row | None = calls[0].row
            wasted = sum(one.seconds for one in calls)
            share = wasted / whole
            if share < _LEAST_SHARE:
                continue
            times = f" ({len(calls):,} calls)" if len(calls) > 1 else ""
            saved = f"{units.seconds(wasted)} of {units.seconds(whole)} ({100 * share:.0f} %)"
            text = f"{message}{times}: {saved} could be saved"
            place = ("", "", "", "") if row is None else (row.node, row.op, row.module, row.source)
            severity: Severity = "warning" if share >= _NOTABLE_SHARE else "note"
            found.append(Finding(check.code, check.name, severity, text, fix, *place, seconds=wasted))
    return with_neighbours(sorted(found, key=lambda finding: -(finding.seconds or 0)), report.rows)


SLOW_CHECKS: list[Check] = []
Run = Callable[[_Program], Iterator[Waste]]


def _check(code: str, name: str, fix: str) -> Callable[[Run], Run]:
    """A check whose findings are warnings at most; one that saves little of the time is a note."""

    def register(run: Run) -> Run:
        SLOW_CHECKS.append(Check(code, name, "time", "warning", fix, "report", run))
        return run

    return register


@_check("GF270", "unaligned-product", "pad the size to a multiple of 8, better of 64")
def _unaligned(program: _Program) -> Iterator[Waste]:
    """A matrix product in half precision whose columns or inner size are no multiple of 8. Tensor cores load rows of 16
    bytes; others run at a fraction of the peak: a vocabulary of 50,257 costs about eight times one of 50,304. Products of a
    matrix and a vector do not run on tensor cores.
    """
    of_attention = {name for use in program.report.attentions for name in use.calls}  # see GF271
    for row, sizes, _ in program.products():
        if row.matrix_dtype not in _HALF or 1 in (sizes.n, sizes.k) or row.node in of_attention:
            continue
        wide = replace(sizes, n=up(sizes.n, _ALIGNED), k=up(sizes.k, _ALIGNED))
        named = (("n", sizes.n, wide.n), ("k", sizes.k, wide.k))
        uneven = [f"{name} = {size:,}" for name, size, even in named if size != even]
        if uneven:
            text = f"a product of {' and '.join(uneven)}, no multiple{'s' * (len(uneven) - 1)} of 8"
            yield Waste(row, program.saved(row, row.matrix_dtype, sizes, wide), text)


@_check(
    "GF271",
    "unfused-attention",
    "call scaled_dot_product_attention with is_causal or a contiguous mask, in half precision where heads share keys; "
    "in ONNX use Attention of opset 23",
)
def _unfused(program: _Program) -> Iterator[Waste]:
    """Attention that stores its scores: written as several operators, or on operands that no fused kernel takes, such
    as a mask whose last axis is not contiguous. A fused kernel keeps the scores on chip.
    """
    report = program.report
    softmaxes = {row.node for row in report.rows if row.time and "softmax" in row.time.kernel}
    uses = [use for use in report.attentions if not use.op or not softmaxes.isdisjoint(use.calls)]
    for use, row, own, fused in fused_instead(uses, report.rows, report.values, program.device):
        if own:
            why = last_refusal(use.kernel_reason)
            reason = f", because {why}" if why else ""
            text = f"attention runs unfused, its scores in memory{reason}"
            yield Waste(row, own - fused, text, remedy(why))


@_check("GF272", "float32-product", "run the product in half precision, or under autocast")
def _float32_products(program: _Program) -> Iterator[Waste]:
    """Products in float32 in a program whose other products are in half precision. Without tensor cores they run at a tenth
    of the rate and move twice the bytes.
    """
    work: Counter[str] = Counter()
    for row in program.report.rows:
        work[row.matrix_dtype] += program.size(row.cost.matrix_flops)
    if not any(work[name] > work["float32"] for name in _HALF):
        return
    for row, sizes, _ in program.products():
        if row.matrix_dtype == "float32":
            saved = program.saved(row, "bfloat16", sizes, sizes)
            yield Waste(row, saved, "a product in float32 among others in half precision")


_OF_HEADS = "pass enable_gqa=True instead of repeating heads; in ONNX use Attention of opset 23"


@_check("GF273", "heads-repeated", _OF_HEADS)
def _repeated_heads(program: _Program) -> Iterator[Waste]:
    """Keys and values that are written out once for each query head that shares them. Attention kernels read shared heads in
    place.
    """
    rows = {row.node: row for row in program.report.rows}
    makers = {named.name: row for row in program.report.rows for named in row.outputs}
    for use in program.report.attentions:
        if program.size(use.repeated_bytes):
            # The calls that only move what those of the attention read, back to the calls that compute it.
            copies: dict[str, Row] = {}
            waiting = [named.name for name in use.calls if name in rows for named in rows[name].inputs]
            while waiting:
                row = makers.get(waiting.pop())
                is_copy = row is not None and row.node not in use.calls and operator(row.op).kind in _MOVING
                if row is not None and is_copy and row.node not in copies:
                    copies[row.node] = row
                    waiting += [named.name for named in row.inputs]
            seconds = sum(row.time.seconds for row in copies.values() if row.time is not None)
            yield Waste(rows.get(use.calls[0]), seconds, "keys and values copied for each query head")


_OF_LAYOUTS = "convert model and input once: .to(memory_format=torch.channels_last)"


@_check("GF274", "layout-converted", _OF_LAYOUTS)
def _converted_layouts(program: _Program) -> Iterator[Waste]:
    """Convolutions on images in row-major order that convert their operands to channels-last for tensor cores, and their
    results back.
    """
    for row in program.report.rows:
        if row.time is None or row.time.bound == "launch" or not row.inputs or not row.outputs:
            continue
        if row.time.kernel.startswith("copy") and "convolution" in row.time.kernel:
            nbytes = program.size(row.inputs[0].type.nbytes) + program.size(row.outputs[0].type.nbytes)
            moving = 2 * nbytes / (program.device.bandwidth * _COPY_RATE)
            yield Waste(row, moving, "a convolution converts its layout and back")


@_check(
    "GF275", "launch-bound", "use torch.compile with mode='reduce-overhead' (CUDA graphs), or a larger batch"
)
def _waits_for_cpu(program: _Program) -> Iterator[Waste]:
    """A program whose kernels finish faster than the CPU launches them, so that the GPU waits. The module that waits longest
    is named.
    """
    time = program.report.totals.time
    if time is None or time.shares.get("launch", 0.0) < _LAUNCH_SHARE:
        return
    launching: Counter[str] = Counter()
    for row in program.report.rows:
        if row.time is not None and row.time.bound == "launch":
            launching[starred(row.module)] += row.time.seconds  # type: ignore[assignment]
    module, most = max(launching.items(), key=lambda item: item[1], default=("", 0.0))
    place = f", {100 * most / sum(launching.values()):.0f} % of it in {module}" if module else ""
    text = f"the GPU waits for the CPU to launch kernels{place}"
    yield Waste(None, time.seconds - program.graph_seconds(), text)


@_check("GF276", "product-repeated", "compute it once and keep the result")
def _repeated_products(program: _Program) -> Iterator[Waste]:
    """A product of the same two operands that an earlier call has computed already."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for row, _, seconds in program.products():
        key = (row.op, tuple(named.name for named in row.inputs))
        if key in seen:
            yield Waste(row, seconds, "a product of operands that were multiplied before")
        seen.add(key)


def rules() -> dict[str, RuleInfo]:
    """What is said of each code."""
    return {check.code: check.info for check in SLOW_CHECKS}


def chosen(select: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Codes of the checks that are selected and not ignored, by code or prefix; OptionError for a prefix of no check."""
    from graphflops.onnx_audit.audit import checks

    codes = [*checks(), *rules()]
    for prefix in (*select, *ignore):
        if not prefix or not any(code.startswith(prefix) for code in codes):
            text = f"no check has the code {prefix!r}: `graphflops audit --explain all` lists them"
            raise OptionError(text)
    selected = [code for code in codes if not select or code.startswith(tuple(select))]
    return [code for code in selected if not ignore or not code.startswith(tuple(ignore))]


def audited(
    model: str, *, codes: Sequence[str], on: tuple[str, Execution | None] | None, progress: Progress, **sizes: Any
) -> ModelFindings:  # fmt: skip
    """The findings about one model: those of an ONNX file, and those about the time on a device and in an execution."""
    from graphflops.exporters import regular_file
    from graphflops.loading import analyze, opened as read
    from graphflops.onnx_audit.audit import audit

    if regular_file(model).suffix == ".pt2" and on is None:
        text = f"{shown(model)}: is not an ONNX model; others are audited for time: name a device with --device h200"
        raise FileError(text)
    found = ModelFindings(model, ())
    if on is None or not _is_program_of_torch(model):
        found = audit(model, codes=codes, progress=progress, **sizes).of_model()
    if on is None:
        return found
    program = read(model)
    report = analyze(program, device=on[0], execution=on[1], progress=progress, **sizes)

    def graph_seconds() -> float:
        time = analyze(program, device=on[0], execution="graph", **sizes).totals.time
        return 0.0 if time is None else time.seconds

    times = time_findings(report, complete(device(on[0])), frozenset(codes), graph_seconds)
    seconds = report.totals.time.seconds if report.totals.time is not None else 0.0
    return ModelFindings.of(model, (*found.findings, *times), report, seconds)


def _is_program_of_torch(path: str) -> bool:
    """Whether a file is an archive or a saved report, which the checks of ONNX files do not read."""
    with opened(path) as file:
        return file.read(2).lstrip()[:1] in (b"P", b"{")


def _product(dtype: str, sizes: Product) -> Kernel:
    width, (m, n, k) = int(bytes_of(dtype)), (sizes.m, sizes.n, sizes.k)
    moved = width * sizes.batch
    return Kernel("matmul", dtype, 2 * sizes.batch * m * n * k, 0, moved * (m + n) * k, moved * m * n, sizes)
