"""A program's memory on a device, phase by phase: what is live at the peak, and what PyTorch's allocator reserves for it.

A phase starts from the timeline of activations, which comes from liveness. Parameters, buffers, optimizer state and library
workspaces are live throughout. The optimizer's step is the last moment of a training phase.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from graphflops.base.record import replace
from graphflops.devices import Device, Platform, platform_of
from graphflops.dims import Dim, Expr, dim_max, evaluate, total
from graphflops.errors import DimError
from graphflops.execution.strides import row_major
from graphflops.graph import Ref
from graphflops.kernels.beside import reduction_bytes
from graphflops.kernels.kernel import FLOAT_BYTES
from graphflops.memory.allocator import OPTIMIZER, Allocator, replay
from graphflops.passes.optimizer import Buffer, Parameter, known_bytes, trained, update
from graphflops.passes.program import MemoryUse, PricedCall, PricedGraph, PricedProgram
from graphflops.report import ENTRIES, LASTING, Execution, Held, MemoryPhase, PhaseMemory, Row, Timeline
from graphflops.report.timeline import HeldKind
from graphflops.tensor import grouped

Values = Mapping[str, int]  # of sizes, by symbol
Lasting = list[tuple[str, HeldKind, Dim]]  # what is held throughout: name, kind and bytes
_CUBLAS = "cuBLAS"
_LT_WORKSPACE = 2**20  # for products with a bias: CUBLASLT_WORKSPACE_SIZE by default
_SOME_SIZE = 4096  # for a size without a value, when moments are compared
_NOT_REPLAYED: dict[str, Any] = dict.fromkeys(("allocated_peak", "reserved_peak", "device_total"))
_NOTHING: Mapping[str, Any] = dict.fromkeys(ENTRIES.values(), 0) | _NOT_REPLAYED | {"peak_node": ""}
_NO_DEVICE: Mapping[str, Any] = {"device": "", "workspaces": None, "context": None}


def ledger(
    program: PricedProgram, memory: MemoryUse, execution: Execution, device: Device | None
) -> tuple[PhaseMemory, ...]:
    """What each phase of a program needs in an execution on a device. A recorded step is one phase."""
    measured = partial(_measured, program, execution, device)
    if (step := program.graph.step) is not None:
        recorded = memory.inference
        timeline = replace(recorded, held=(*_workspaces(program, device, recorded), *recorded.held))
        sizes = [held.bytes for held in timeline.held if isinstance(held.bytes, int)]
        activations = max(timeline.live_bytes(sizes)) - _lasting_bytes(timeline)
        return (measured("training" if step.is_training else "inference", timeline, activations),)
    lasting: Lasting = [(name, "weight", x.nbytes) for name, x in program.typed_inputs("parameter")]
    lasting += [(name, "buffer", x.nbytes) for name, x in program.typed_inputs("buffer", "constant")]
    inference = _with_lasting(memory.inference, lasting, _workspaces(program, device, memory.inference))
    phases = [measured("inference", inference, memory.forward.bytes)]
    if memory.step is not None:
        assert memory.training is not None
        workspaces = _workspaces(program, device, memory.step)
        platform = platform_of(device) if execution == "eager" else None
        timeline, alive = _training(program, memory, lasting, workspaces, platform)
        phases.append(measured("training", timeline, memory.training.bytes, alive))
    return tuple(phases)


def at_sizes(entry: PhaseMemory, values: Values, allocator: Allocator, rows: Sequence[Row]) -> PhaseMemory:
    """A phase's entry with its peak at these sizes, and with what the allocator reserves. rows: those of its report.

    What the allocator adds to the requested bytes depends on the numbers of blocks and segments, not on a formula of sizes.
    So the formulas are those of the requested bytes plus a number, which is exact at these sizes.
    """
    timeline = entry.timeline
    sizes = evaluated(timeline, values)
    moment = peak_moment(timeline, values, sizes)
    row = timeline.rows[moment]
    alive = [held for held in timeline.held if is_alive(held, moment)]
    parts = grouped((ENTRIES[held.kind], held.bytes) for held in alive)
    sums: dict[str, Any] = {name: total(parts.get(name, ())) for name in ENTRIES.values()}
    requested_peak = dim_max(entry.requested_peak, total(sums.values()))  # formulas omit some moments
    if entry.workspaces is None:
        del sums["workspaces"]
    node = rows[row].node if row != OPTIMIZER else ""
    peak = replace(entry, **sums, requested_peak=requested_peak, peak_node=node)
    known = [size for size in sizes if size is not None and size >= 0]
    if len(known) < len(sizes):
        return replace(peak, **_NOT_REPLAYED)
    replay(timeline, known, allocator)
    requested = evaluate(requested_peak, values) or 0
    peaks = (allocator.peak_allocated, allocator.peak_reserved)
    allocated, reserved = (requested_peak + (taken - requested) for taken in peaks)
    whole = None if entry.context is None else reserved + entry.context
    return replace(peak, allocated_peak=allocated, reserved_peak=reserved, device_total=whole)


def peak_moment(timeline: Timeline, values: Values, sizes: Sequence[int | None] | None = None) -> int:
    """The moment with the most live bytes; a size without a value is assumed to be large. sizes: by entry, where known."""
    sizes = evaluated(timeline, values) if sizes is None else sizes
    if None in sizes:
        names = {name for one in timeline.held if isinstance(one.bytes, Expr) for name in one.bytes.symbols}
        sizes = evaluated(timeline, {**dict.fromkeys(names, _SOME_SIZE), **values})
        sizes = [size or 0 for size in sizes]
    live = timeline.live_bytes(sizes)  # type: ignore[arg-type]
    return live.index(max(live))


def evaluated(timeline: Timeline, values: Values) -> list[int | None]:
    """The bytes of each entry; None if a size has no value."""
    sizes = [held.bytes for held in timeline.held]
    if {*map(type, sizes)} <= {int}:
        return sizes  # type: ignore[return-value]
    known = {size: evaluate(size, values) for size in set(sizes)}
    return [known[size] for size in sizes]


def on_device(entry: PhaseMemory, device: Device) -> PhaseMemory:
    """A phase's entry for another device, with that device's context and workspaces; the allocator's figures are omitted."""
    size = device.blas_workspace_bytes
    given, blas = entry.timeline.held, (_CUBLAS, "library")
    held = [x._replace(bytes=size) if size and (x.name, x.kind) == blas else x for x in given]
    more = total(x.bytes for x in held) - total(x.bytes for x in given)
    return replace(
        entry,
        device=device.name,
        workspaces=(entry.workspaces or 0) + more,
        requested_peak=entry.requested_peak + more,
        **_NOT_REPLAYED,
        context=device.context_bytes,
        timeline=replace(entry.timeline, held=tuple(held)),
    )


def is_alive(held: Held, moment: int) -> bool:
    """Whether memory is held at a moment; library workspaces stay from one run to the next."""
    return held.first <= moment <= held.last or held.kind == "library"


def _column_sums(parameters: Sequence[Parameter], platform: Platform) -> tuple[Buffer, ...]:
    """Adafactor, one parameter at a time: the buffer for a matrix's sums over rows, and the update before it."""
    moments: list[tuple[Buffer, ...]] = []
    for before, (name, value) in zip([None, *parameters], parameters, strict=False):
        if value.rank > 1:
            strides = row_major(value.shape)
            size = reduction_bytes(value.shape, strides, (value.rank - 2,), FLOAT_BYTES, platform)
            last = () if before is None else (Buffer(before.name, before.type.nbytes),)
            moments.append((*last, Buffer(name, size)))
    return max(moments, key=known_bytes, default=())


def _training(
    program: PricedProgram, memory: MemoryUse, lasting: Lasting, workspaces: Sequence[Held],
    eager_on: Platform | None,
) -> tuple[Timeline, Dim]:  # fmt: skip
    """The forward, the gradients, then the optimizer's step; and the bytes live in that step beside what lasts."""
    step = memory.step
    assert step is not None
    assert program.training is not None
    optimizer = update(program.training, trained(program))
    temporaries = optimizer.temporaries
    if eager_on and (program.training.optimizer, program.training.implementation) == ("adafactor", "single"):
        temporaries = max(temporaries, _column_sums(trained(program), eager_on), key=known_bytes)
    moment, ended = len(step.rows), len(step.held) - memory.lasting
    results = [held for held in step.held[ended:] if held.kind == "value"]  # freed before the update
    alive = [held._replace(last=moment) for held in step.held[ended:] if held.kind != "value"]
    alive += [Held(made.name, "temporary", moment, moment, made.bytes) for made in temporaries]
    targets = {entry.name: entry.target for entry in program.graph.inputs if entry.role == "parameter"}
    held = [
        one._replace(name=targets[one.name]) if one.kind == "gradient" and one.name in targets else one
        for one in (*step.held[:ended], *results, *alive)
    ]  # the gradient of a parameter has the parameter's name, as its optimizer state does
    whole = Timeline((*step.rows, OPTIMIZER), tuple(held), step.gradients_from)
    state: Lasting = [(kept.name, "optimizer", kept.bytes) for kept in optimizer.state]
    return _with_lasting(whole, [*lasting, *state], workspaces), total(held.bytes for held in alive)


def _lasting_bytes(timeline: Timeline) -> Dim:
    return total(held.bytes for held in timeline.held if held.kind in LASTING)


def _with_lasting(timeline: Timeline, lasting: Lasting, workspaces: Sequence[Held]) -> Timeline:
    """The timeline, with workspaces and with what is held from the first moment to the last."""
    rows = timeline.rows or (OPTIMIZER,)  # the weights of a program without calls are in memory too
    held = [Held(name, kind, 0, len(rows) - 1, size) for name, kind, size in lasting]
    held += [entry._replace(last=len(rows) - 1) for entry in workspaces]
    return Timeline(rows, (*held, *timeline.held), timeline.gradients_from)


def _workspaces(program: PricedProgram, device: Device | None, timeline: Timeline) -> list[Held]:
    """Workspaces of cuBLAS and cuBLASLt, each from its first use.

    Each thread that multiplies matrices has its own cuBLAS workspace, and the backward runs in a thread of its own.
    """
    size = None if device is None else device.blas_workspace_bytes
    products = {call.row: _products(call) for call in program.main.inlined.calls}
    uses = [moment for moment, row in enumerate(timeline.rows) if products.get(row)]
    if not size or not uses:
        return []
    last, turn = len(timeline.rows) - 1, timeline.gradients_from
    backward = [moment for moment in uses if turn is not None and moment >= turn]
    biased = [moment for moment in uses if any(products[timeline.rows[moment]])]
    held = [Held(_CUBLAS, "library", first, last, size) for first in (*uses[:1], *backward[:1])]
    return held + [Held("cuBLASLt", "library", first, last, _LT_WORKSPACE) for first in biased[:1]]


def _products(call: PricedCall) -> list[bool]:
    """Whether each product that a call runs, itself or in graphs nested in it, has a bias."""
    if call.node.operator.kind == "product":
        return [isinstance(call.node.arguments().get("bias"), Ref)]
    runs = [run for run, times in call.estimate.regions if times != 0 and isinstance(run, PricedGraph)]
    return [has_bias for run in runs for inside in run.calls for has_bias in _products(inside)]


def _measured(
    program: PricedProgram, execution: Execution, device: Device | None,
    name: MemoryPhase, timeline: Timeline, activations: Dim, update: Dim = 0,
) -> PhaseMemory:  # fmt: skip
    """A phase with its peaks, by liveness and by the allocator; if the formula grows too large, a name stands for it.

    activations: their peak, with the inputs. update: bytes live in the optimizer's step beside what lasts throughout.
    """
    try:
        requested = _lasting_bytes(timeline) + dim_max(activations, update)
    except DimError:
        requested = program.names.too_large("requested_peak")
    own = _NO_DEVICE if device is None else {"device": device.name, "context": device.context_bytes}
    entry = PhaseMemory(
        phase=name, execution=execution, requested_peak=requested, timeline=timeline, **{**_NOTHING, **own}
    )
    return at_sizes(entry, program.values, Allocator(), program.main.rows)
