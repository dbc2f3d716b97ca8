"""Items of a run (tokens, images, frames, edges, samples), found from its calls; their rates, prices and FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from graphflops.base.record import Record
from graphflops.cost import Cost
from graphflops.dims import Dim
from graphflops.errors import ModelError, shown
from graphflops.open_sizes import of_report
from graphflops.ops import operator
from graphflops.report import Named, Report
from graphflops.tensor import TensorType
from graphflops.training import Training

if TYPE_CHECKING:
    from graphflops.devices import Device

_HOUR = 3600
_MILLION = 1e6
_ROUNDING = 1e-9  # seconds
_LARGEST = 2**64  # larger counts are no sizes of a real run


def throughput(report: Report) -> dict[str, float]:
    """Samples, tokens and the like per second, of the training step if there is one; {} without a predicted time."""
    time = report.step_time or report.totals.time
    if time is None or not time.seconds:
        return {}
    runs = 1 if report.step_time is None or report.training is None else report.training.accumulate
    counts = {name: count for name, count in items(report).items() if count < _LARGEST}
    return {name: runs * count / time.seconds for name, count in counts.items()}


def cost_per_million(rates: Mapping[str, float], price_per_hour: float | None) -> dict[str, float]:
    """The price of a million of each item, in the currency of `price_per_hour`; {} without a price."""
    if price_per_hour is None:
        return {}
    return {name: price_per_hour / _HOUR / rate * _MILLION for name, rate in rates.items()}


def outside_of_calls(report: Report) -> dict[str, float]:
    """Seconds of a micro-step or an inference, by phase, that belong to no call: for the loss, autograd and guards."""
    time, step = report.totals.time, report.step_time
    whole = {} if time is None else {"forward": time.seconds}
    if time is not None and step is not None and report.training is not None:
        backward, optimizer = (
            0.0 if totals is None or totals.time is None else totals.time.seconds
            for totals in (report.backward, report.optimizer)
        )
        both = (step.seconds - optimizer) / report.training.accumulate
        whole = {"forward": both - backward, "backward": backward}
    inside = {
        "forward": sum(row.time.seconds for row in report.rows if row.time is not None),
        "backward": sum(row.backward_time.seconds for row in report.rows if row.backward_time is not None),
    }
    outside = {phase: seconds - inside[phase] for phase, seconds in whole.items()}
    return {phase: seconds for phase, seconds in outside.items() if seconds > _ROUNDING}


Use = Literal["looks up", "picks", "collects", "image", "signal"]

_INTEGERS = ("int", "uint")
_BY_RANK: dict[int, Use] = {4: "image", 3: "signal"}  # by rank of a convolution's operand
_TEXT_RANK = 2  # one index per sample is a class or a time step, not text
_READING = ("gather", "scatter", "convolution")
_KEEPING = ("view", "identity", "cast", "movement", "elementwise", "resampling", "quantisation", "sequence")


def items(report: Report) -> Mapping[str, int]:
    """The number of items of each kind in one run.

    Tokens: elements of the first integer input of rank 2 or more whose values index a table of weights. Images: entries of
    an input that a 2-D convolution reads. Frames: positions, in all samples, that a 1-D convolution reads. Edges: integers
    that both pick rows which the program computes and scatter their sums; then the first axis counts nodes, not samples.
    Samples: the first axis of the first input, unless it counts images.
    """
    inputs = {named.name: named for named in report.inputs if named.type.rank}
    uses: dict[Use, dict[str, Named]] = {}
    for use, name, operand in _uses(report, inputs):
        uses.setdefault(use, {}).setdefault(name, operand)
    found: dict[str, Dim] = {}
    edges = [inputs[name].type.shape[-1] for name in uses.get("collects", ())]
    if edges and edges[0] in [inputs[name].type.shape[-1] for name in uses.get("picks", ())]:
        found["edges"] = edges[0]
    elif inputs:
        first, named = next(iter(inputs.items()))
        found["images" if first in uses.get("image", ()) else "samples"] = named.type.shape[0]
    for name, named in inputs.items():
        if name in uses.get("looks up", ()) and named.type.rank >= _TEXT_RANK and "edges" not in found:
            found.setdefault("tokens", named.type.numel)
        if name in uses.get("image", ()):
            found.setdefault("images", named.type.shape[0])
        if signal := uses.get("signal", {}).get(name):
            found.setdefault("frames", signal.type.shape[0] * signal.type.shape[-1])
    return {name: count for name, size in found.items() if (count := report.value(size))}


def token_ids(report: Report) -> TensorType | None:
    """The type of the first input of rank 2 or more whose values index a table of weights; None if there is none."""
    inputs = {named.name: named for named in report.inputs if named.type.rank >= _TEXT_RANK}
    found = (inputs[name].type for use, name, _ in _uses(report, inputs) if use == "looks up")
    return next(found, None)


def _uses(report: Report, inputs: Mapping[str, Named]) -> Iterator[tuple[Use, str, Named]]:
    """How calls use values of inputs that are at most changed element by element: use, input, operand with the values."""
    computed = {*inputs}  # values that depend on an input
    holds = {name: name for name in inputs}  # by value, the input whose values it holds
    kinds = {op: operator(op).kind for op in {row.op for row in report.rows}}
    last = max([place for place, row in enumerate(report.rows) if kinds[row.op] in _READING], default=-1)
    for row in report.rows[: last + 1]:
        kind = kinds[row.op]
        changing = [named.name for named in row.inputs if named.name in computed]
        for place, operand in enumerate(row.inputs) if kind in _READING else ():
            use: Use | None = None
            if kind == "convolution":
                use = None if place else _BY_RANK.get(operand.type.rank)
            elif place and operand.type.dtype.kind in _INTEGERS:
                picks: Use = "picks" if row.inputs[0].name in computed else "looks up"
                use = "collects" if kind == "scatter" else picks
            if use and operand.name in holds:
                yield use, holds[operand.name], operand
        if changing:
            computed.update([named.name for named in row.outputs])
        is_of_rows = kind == "gather" and changing == [named.name for named in row.inputs[:1]]
        if (is_of_rows or kind in _KEEPING) and len(changing) == 1 and changing[0] in holds:
            holds.update((named.name, holds[changing[0]]) for named in row.outputs)


_BACKWARD_OF_PRODUCT = 2  # products in the backward for each in the forward: one gradient for each factor
_SHARING = ("view", "identity", "cast")


class Convention(Record, frozen=True):
    """FLOPs of one item, counted in several ways."""

    dense: float  # the matrix work that the program runs, including masked pairs of attention
    visible: float  # without masked pairs
    active: float  # 2 (in training 6) for each multiplication of the item by a parameter, plus attention
    # As `active`, with all parameters that any item is multiplied by: also experts that the item is not routed to.
    total: float


class PerItem(Record, frozen=True):
    """FLOPs per item of a program."""

    axis: str  # the input axis whose entries are the items
    # In one run: the entries of the axis times the samples, which the first axis counts.
    items: int
    length: int | None  # the entries of the axis in one sample; None if it is the first axis
    forward: Convention
    # Forward and backward; in a report without backward three times the forward, by the 6N convention.
    training: Convention
    active_parameters: int  # parameters that one item is multiplied by
    parameters: int  # parameters that any item is multiplied by: tables that are only looked up do not count
    unknown: int = 0  # calls of unknown cost, which may add to all of these
    seconds: float | None = None  # predicted per item of a run; None without a prediction
    step_seconds: float | None = None  # predicted per item of a training step; None without a prediction
    is_lower_bound: bool = False  # the times lack calls of unknown cost


def per_item(report: Report, axis: str) -> PerItem:
    """FLOPs for each entry of an input axis, `ids[1]`. ModelError if no input has it, or a size has no value."""
    items, length = _items(report, axis)
    sizes: dict[str, int] = {}
    used: Counter[str] = Counter()  # by stored tensor, multiplications per item
    for name, size, flops in _multiplied(report):
        sizes[name] = size
        used[name] += flops / 2 / items  # type: ignore[assignment]
    stored, weights = sum(sizes.values()), sum(used.values())
    reached = sum(max(size, used[name]) for name, size in sizes.items())
    active = round(sum(min(size, used[name]) for name, size in sizes.items()))
    attention = value_of(report, sum(use.flops for use in report.attentions)) / items

    def counted(cost: Cost, active: float, total: float) -> Convention:
        matrix, masked = value_of(report, cost.matrix_flops), value_of(report, cost.masked_flops)
        return Convention(matrix / items, (matrix - masked) / items, active, total)

    cost, times = report.totals.cost, 1 + _BACKWARD_OF_PRODUCT
    forward = counted(cost, 2 * weights + attention, 2 * reached + attention)
    thrice = [times * part for part in (forward.dense, forward.visible, forward.active, forward.total)]
    # Per micro-step: each takes in `items` items.
    training = counted(cost + report.backward.cost, *thrice[2:]) if report.backward else Convention(*thrice)
    time, step, unknown = report.totals.time, report.step_time, report.coverage.unknown
    return PerItem(
        axis, items, length, forward, training, active, stored, unknown,
        None if time is None else time.seconds / items,
        None if step is None else step.seconds / items / (report.training or Training()).accumulate,
        any(each is not None and each.is_lower_bound for each in (time, step)),
    )  # fmt: skip


def _items(report: Report, axis: str) -> tuple[int, int | None]:
    """The entries of an input axis in all samples, and in one sample; None if it is the first axis, that of samples."""
    places = of_report(report).places(axis)
    infos = [report.symbols[place] for place in places if place in report.symbols]
    axes = {*places, *(place for info in infos for place in info.where if place not in info.computed)}
    for named in report.inputs:
        for place, size in enumerate(named.type.shape):
            if f"{named.name}[{place}]" in axes:
                samples, length = value_of(report, named.type.shape[0]), value_of(report, size)
                return (max(samples * length, 1), length) if place else (max(samples, 1), None)
    known = [f"{named.name}[{place}]" for named in report.inputs for place in range(named.type.rank)]
    raise ModelError(f"{shown(axis)}: no input has this axis; there are {', '.join(map(shown, known[:8]))}")


def value_of(report: Report, quantity: object) -> int:
    """A quantity at the known sizes. Raises ModelError if a size has no value."""
    value = report.value(quantity)  # type: ignore[arg-type]
    if value is None:
        what = f"FLOPs per item need a value for every size: {quantity} is open"
        raise ModelError(f"{what}; give it with --dim")
    return value


def _multiplied(report: Report) -> Iterator[tuple[str, int, int]]:
    """For each product by a stored tensor: the tensor's name, its elements, and the FLOPs. Attentions are left out."""
    made = {named.name for row in report.rows for named in row.outputs}
    made |= {named.name for named in report.inputs}
    of_attention = {name for use in report.attentions for name in use.calls}
    # By value that is computed from stored tensors alone, the tensor that it stands for.
    source: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for row in report.rows:
        stored = [named for named in row.inputs if named.name in source or named.name not in made]
        for named in stored:
            sizes.setdefault(source.get(named.name, named.name), value_of(report, named.type.numel))
        if stored and row.node not in of_attention and row.cost.matrix_flops != 0:
            names = dict.fromkeys(source.get(named.name, named.name) for named in stored)
            largest = max(names, key=sizes.__getitem__)
            if operator(row.op).kind == "recurrent":  # all matrices of its layers; a vector is a bias
                sizes[largest] = sum(value_of(report, x.type.numel) for x in stored if x.type.rank > 1)
            flops = value_of(report, row.cost.matrix_flops) if row.phase == "forward" else 0
            yield largest, sizes[largest], flops
        elif stored and stored[0] is row.inputs[0] and operator(row.op).kind in _SHARING:
            source.update((named.name, source.get(stored[0].name, stored[0].name)) for named in row.outputs)
        elif stored and len(stored) == len(row.inputs):
            # Dequantized, scaled or concatenated weights are a parameter of their own.
            source.update((named.name, named.name) for named in row.outputs)


def mfu(
    report: Report, seconds: float, device: str | Device, *, devices: int = 1, visible: bool = False
) -> float:
    """Model FLOPs utilisation: the matrix work of a run, or of a training analysis's step, over time and peak rate.

    seconds: measured time of the run, or of the step with all of its micro-steps. devices: how many share the work. visible:
    leave out masked pairs. Each element type counts at its own published peak. A gradient counts at most twice its forward:
    what checkpoints and fused attention recompute is not the model's work. A joint program counts as it runs.
    """
    from graphflops.devices import device as device_of

    profile = device_of(device) if isinstance(device, str) else device
    least, unknown = least_seconds(model_flops(report, visible=visible), profile)
    if unknown is not None:
        raise ModelError(f"{profile.name}: no published peak for {unknown} products")
    steps = 1 if report.training is None else report.training.accumulate
    return steps * least / (seconds * devices)


def least_seconds(flops: Mapping[str, int], profile: Device) -> tuple[float, str | None]:
    """Seconds of matrix work (by element type) at the published peaks, and an element type without a peak, or None."""
    from graphflops.time.predict import matrix_peak

    peaks = {dtype: matrix_peak(dtype, profile) for dtype in flops}
    least = sum(flops[dtype] / peak for dtype, peak in peaks.items() if peak)
    return least, next((dtype for dtype, peak in peaks.items() if peak is None), None)


def model_flops(report: Report, *, visible: bool) -> Mapping[str, int]:
    """Matrix work with gradients by element type, nothing twice. visible: only visible pairs. ModelError for open sizes."""
    found: Counter[str] = Counter()
    for row in report.rows:
        if row.cost.matrix_flops != 0:
            forward, backward = (
                value_of(report, cost.matrix_flops) - visible * value_of(report, cost.masked_flops)
                for cost in (row.cost, row.backward or Cost())
            )
            found[row.matrix_dtype] += forward + min(backward, _BACKWARD_OF_PRODUCT * forward)
    return +found
