"""What one run of a program takes in (tokens, images, frames, edges or samples), by what its calls do with its inputs.

With a predicted time: how many a second, what a million cost, what belongs to no call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from graphflops.dims import Dim
from graphflops.ops import operator
from graphflops.report import Named, Report, Row
from graphflops.tensor import TensorType

_HOUR = 3600
_MILLION = 1e6
_ROUNDING = 1e-9  # seconds
_LARGEST = 2**64  # no device takes so many in


def throughput(report: Report) -> dict[str, float]:
    """Samples, tokens and the like a second, of the training step where there is one; {} where no time is predicted."""
    time = report.step_time or report.totals.time
    if time is None or not time.seconds:
        return {}
    runs = 1 if report.step_time is None or report.training is None else report.training.accumulate
    counts = {name: count for name, count in items(report).items() if count < _LARGEST}
    return {name: runs * count / time.seconds for name, count in counts.items()}


def cost_per_million(rates: Mapping[str, float], price_per_hour: float | None) -> dict[str, float]:
    """What a million of each cost, in the currency of the price of one device for an hour; {} without a price."""
    if price_per_hour is None:
        return {}
    return {name: price_per_hour / _HOUR / rate * _MILLION for name, rate in rates.items()}


def outside_of_calls(report: Report) -> dict[str, float]:
    """Seconds of the forward and the backward of a micro-step, or of an inference, that belong to no call.

    The CPU takes them for the loss, for autograd and for the guards of a compiled program. Phases without any are left out.
    """
    rows, found = report.rows, {}
    inside = {
        "forward": sum(row.time.seconds for row in rows if row.time is not None),
        "backward": sum(row.backward_time.seconds for row in rows if row.backward_time is not None),
    }
    for phase, seconds in _micro_step(report).items():
        if seconds - inside[phase] > _ROUNDING:
            found[phase] = seconds - inside[phase]
    return found


def _micro_step(report: Report) -> dict[str, float]:
    """Seconds of the forward and the backward of one micro-step, or of an inference."""
    if report.totals.time is None:
        return {}
    if report.step_time is None or report.training is None:
        return {"forward": report.totals.time.seconds}
    backward, optimizer = (
        0.0 if totals is None or totals.time is None else totals.time.seconds
        for totals in (report.backward, report.optimizer)
    )
    both = (report.step_time.seconds - optimizer) / report.training.accumulate
    return {"forward": both - backward, "backward": backward}


Use = Literal["looks up", "picks", "collects", "image", "signal"]

_INTEGERS = ("int", "uint")
_BY_RANK: dict[int, Use] = {4: "image", 3: "signal"}  # of what a convolution reads
_TEXT_RANK = 2  # an index for each sample is a class or a time step
_READING = ("gather", "scatter", "convolution")
_KEEPING = ("view", "identity", "cast", "movement", "elementwise", "resampling", "quantisation", "sequence")


def items(report: Report) -> Mapping[str, int]:
    """How many samples, and what else, one run takes in.

    Tokens: the elements of the first input of integers in rows and columns whose values index a table of weights. Images:
    the entries of an input that a convolution over a plane reads; frames: the positions, in all samples, that a convolution
    along one axis reads. Edges: the integers that pick rows which the program computes and say where their sums belong; then
    the first axis counts nodes, no samples. Samples: the first axis of the first input, unless it counts images.
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
    """The type of the first input in rows and columns whose values index a table of weights; None where there is none."""
    inputs = {named.name: named for named in report.inputs if named.type.rank >= _TEXT_RANK}
    found = (inputs[name].type for use, name, _ in _uses(report, inputs) if use == "looks up")
    return next(found, None)


def _uses(report: Report, inputs: Mapping[str, Named]) -> Iterator[tuple[Use, str, Named]]:
    """How calls use values of inputs, changed element by element at most: use, input, and the operand that holds them."""
    computed = {*inputs}  # values that depend on an input
    holds = {name: name for name in inputs}  # by value: the input whose values it holds
    for row in report.rows:
        kind = operator(row.op).kind
        changing = [named.name for named in row.inputs if named.name in computed]
        for use, operand in _read(row, kind, computed) if kind in _READING else ():
            if operand.name in holds:
                yield use, holds[operand.name], operand
        if changing:
            computed.update([named.name for named in row.outputs])
        is_kept = kind in _KEEPING or (
            kind == "gather" and changing == [named.name for named in row.inputs[:1]]
        )  # rows of the operand
        if is_kept and len(changing) == 1 and changing[0] in holds:
            holds.update((named.name, holds[changing[0]]) for named in row.outputs)


def _read(row: Row, kind: str, computed: set[str]) -> Iterator[tuple[Use, Named]]:
    """How a call reads its operands."""
    if not row.inputs:
        return
    first, *others = row.inputs
    for index in others:
        if index.type.dtype.kind in _INTEGERS and kind == "gather":
            yield ("picks" if first.name in computed else "looks up"), index
        elif index.type.dtype.kind in _INTEGERS and kind == "scatter":
            yield "collects", index
    if kind == "convolution" and (use := _BY_RANK.get(first.type.rank)):
        yield use, first
