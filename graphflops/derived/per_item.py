"""FLOPs of a token or sample, in the conventions that people compare: what runs, what masks leave, and 6N plus attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.errors import ModelError, shown
from graphflops.open_sizes import of_report
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.training import Training

if TYPE_CHECKING:
    from graphflops.devices import Device

_BACKWARD_OF_PRODUCT = 2  # products of a gradient for each of the forward: one for each factor
_SHARING = ("view", "identity", "cast")


@dataclass(frozen=True, slots=True)
class Convention:
    """FLOPs of one item, counted in several ways.

    dense: the matrix work that the program runs, hidden pairs of attention included. visible: without the hidden pairs.
    active: 2 FLOPs for each multiplication of the item by a parameter, and the attention's; 6 in training.
    total: the same with all parameters that are multiplied by any item: experts that the item is not routed to included.
    """

    dense: float
    visible: float
    active: float
    total: float


@dataclass(frozen=True, slots=True)
class PerItem:
    """FLOPs per item of a program.

    axis: the input axis whose entries are the items. items: how many one run takes in: the entries of the axis in all
        samples, which the first axis counts. length: the entries in one sample, None for that first axis.
    forward: of a run; training: of a run with its gradients, None where the report has none: then three times the
        forward's, as the 6N convention has it.
    seconds, step_seconds: predicted time of an item, of a run and of a training step; None where no time is predicted, and
        is_lower_bound where calls of unknown cost are not in it.
    active_parameters: parameters that one item is multiplied by; parameters: that any item is, embeddings that are only
        looked up not counted. unknown: calls of unknown cost, which may add to all of these.
    """

    axis: str
    items: int
    length: int | None
    forward: Convention
    training: Convention
    active_parameters: int
    parameters: int
    unknown: int = 0
    seconds: float | None = None
    step_seconds: float | None = None
    is_lower_bound: bool = False


def per_item(report: Report, axis: str) -> PerItem:
    """FLOPs for each entry of an input axis, such as a token `ids[1]`, or a sample `x[0]`.

    Raises ModelError where no input has that axis, or where a size has no value.
    """
    items, length = _items(report, axis)
    sizes: dict[str, int] = {}
    used: Counter[str] = Counter()  # multiplications of one item, by stored tensor
    for name, size, flops in _multiplied(report):
        sizes[name] = size
        used[name] += flops / 2 / items  # type: ignore[assignment]
    stored, weights = sum(sizes.values()), sum(used.values())
    reached = sum(max(size, used[name]) for name, size in sizes.items())
    active = round(sum(min(size, used[name]) for name, size in sizes.items()))
    attention = value_of(report, sum(use.flops for use in report.attentions)) / items
    cost = report.totals.cost
    matrix, masked = value_of(report, cost.matrix_flops), value_of(report, cost.masked_flops)
    forward = Convention(
        matrix / items, (matrix - masked) / items, 2 * weights + attention, 2 * reached + attention
    )
    training, unknown = _training(report, items, forward), report.coverage.unknown
    time, step = report.totals.time, report.step_time
    return PerItem(
        axis, items, length, forward, training, active, stored, unknown,
        None if time is None else time.seconds / items,
        None if step is None else step.seconds / items / (report.training or Training()).accumulate,
        any(each is not None and each.is_lower_bound for each in (time, step)),
    )  # fmt: skip


def _training(report: Report, items: int, forward: Convention) -> Convention:
    times = 1 + _BACKWARD_OF_PRODUCT
    if report.backward is None:
        return Convention(
            *(times * part for part in (forward.dense, forward.visible, forward.active, forward.total))
        )
    cost = report.totals.cost + report.backward.cost  # of one micro-step, which is what takes the items in
    matrix, masked = value_of(report, cost.matrix_flops), value_of(report, cost.masked_flops)
    return Convention(
        matrix / items, (matrix - masked) / items, times * forward.active, times * forward.total
    )


def _items(report: Report, axis: str) -> tuple[int, int | None]:
    """The entries of an input axis in all samples, which its first axis counts, and in one; None for that axis itself."""
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
    """A quantity at the known sizes; ModelError where one has no value."""
    value = report.value(quantity)  # type: ignore[arg-type]
    if value is None:
        raise ModelError(
            f"FLOPs per item need a value for every size: {quantity} is open; give it with --dim"
        )
    return value


def _multiplied(report: Report) -> Iterator[tuple[str, int, int]]:
    """For each product with a stored tensor: its name, its elements, and the FLOPs. Attentions count by themselves."""
    made = {named.name for row in report.rows for named in row.outputs}
    made |= {named.name for named in report.inputs}
    of_attention = {name for use in report.attentions for name in use.calls}
    source: dict[str, str] = {}  # by value computed from stored tensors alone: the tensor that it stands for
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
            yield largest, sizes[largest], _forward_flops(report, row)
        elif stored and stored[0] is row.inputs[0] and operator(row.op).kind in _SHARING:
            source.update((named.name, source.get(stored[0].name, stored[0].name)) for named in row.outputs)
        elif stored and len(stored) == len(row.inputs):
            # Dequantized, scaled or joined: a parameter of its own.
            source.update((named.name, named.name) for named in row.outputs)


def _forward_flops(report: Report, row: Row) -> int:
    return value_of(report, row.cost.matrix_flops) if row.phase == "forward" else 0


def mfu(
    report: Report, seconds: float, device: str | Device, *, devices: int = 1, visible: bool = False
) -> float:
    """Model FLOPs utilisation: matrix work of a run, or of the step of a training analysis, by its time and the peak rate.

    seconds: measured time of the run, or of the step with all of its micro-steps. devices: how many share it. visible: leave
    out what masks hide. Each element type counts at its own published peak. A gradient counts at most twice its forward:
    what checkpoints and fused attention compute again is no work of the model. A joint program counts as it runs.
    """
    from graphflops.devices import device as device_of

    profile = device_of(device) if isinstance(device, str) else device
    least, unknown = least_seconds(model_flops(report, visible=visible), profile)
    if unknown is not None:
        raise ModelError(f"{profile.name}: no published peak for {unknown} products")
    steps = 1 if report.training is None else report.training.accumulate
    return steps * least / (seconds * devices)


def least_seconds(flops: Mapping[str, int], profile: Device) -> tuple[float, str | None]:
    """Seconds that matrix work by element type takes at the published peaks, and an element type that has none, or None."""
    from graphflops.time.predict import matrix_peak

    peaks = {dtype: matrix_peak(dtype, profile) for dtype in flops}
    least = sum(flops[dtype] / peak for dtype, peak in peaks.items() if peak)
    return least, next((dtype for dtype, peak in peaks.items() if peak is None), None)


def model_flops(report: Report, *, visible: bool) -> Mapping[str, int]:
    """Matrix work of all calls and their gradients by element type, nothing computed twice. visible: without hidden pairs.

    Raises ModelError where a size has no value.
    """
    found: Counter[str] = Counter()
    for row in report.rows:
        if row.cost.matrix_flops != 0:
            forward, backward = (
                value_of(report, cost.matrix_flops) - visible * value_of(report, cost.masked_flops)
                if cost
                else 0
                for cost in (row.cost, row.backward)
            )
            found[row.matrix_dtype] += forward + min(backward, _BACKWARD_OF_PRODUCT * forward)
    return +found
