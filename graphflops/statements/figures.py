"""FLOPs of a run by named conventions, thresholds of laws (data) on them, hours and energy, given or predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from graphflops.attention.attention_use import AttentionUse, causal_fraction
from graphflops.base.units import power
from graphflops.derived.items import items, model_flops, per_item, value_of
from graphflops.errors import ModelError
from graphflops.graph import Graph
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from graphflops.devices import Device

_PRODUCTS = 3  # of a linear layer in training: the forward's, and one for each factor's gradient
_OPERANDS = 3  # of an attention without a mask that is passed as a tensor


class Flops(msgspec.Struct, frozen=True):
    """FLOPs by convention.

    model: each visible pair of an attention once, a gradient at most twice its forward. executed: what kernels multiply,
    recomputation and tiles of masked attention included. six_nd: 6 for each parameter that a token uses and each token, 4
    for a frozen one, 2 without training. six_nd_attention: the same and all pairs of attention.
    """

    model: float
    executed: float
    six_nd: float
    six_nd_attention: float


class Figures(msgspec.Struct, frozen=True):
    """FLOPs of one run, or of a micro-step of training. items, length: of its input; None if items form no sequences."""

    items: int
    length: int | None
    model: Mapping[str, int]  # each visible pair of an attention once, no recomputation, by element type
    executed: Mapping[str, int]  # what kernels multiply, by element type
    simple: int  # 6N, or 2N without training
    attention: int  # of all pairs, three times in training
    vector: int  # elementwise, in none of these
    update: int  # matrix work of one update of the optimizer
    used: int  # parameters that an item uses
    vocabulary: int | None  # rows of the first table that is looked up, None without one


def figures(report: Report, axis: str) -> Figures:
    """The figures of a report whose items are the entries of an input axis. Raises ModelError if a size has no value.

    N are the parameters that an item uses: all, embeddings too, except experts that it is not routed to. A frozen parameter
    counts 4 instead of 6: it has no gradient.
    """
    if any(row.phase == "backward" for row in report.rows):
        raise ModelError("the program holds its gradients already: give the one exported without them")
    per, is_trained = per_item(report, axis), report.training is not None
    executed: Counter[str] = Counter()
    uses = {name: use for use in report.attentions for name in use.calls}
    for row in report.rows:
        costs = [cost for cost in (row.cost, row.backward) if cost is not None and cost.matrix_flops != 0]
        if costs:
            part = _computed_part(report, row, uses.get(row.node))
            flops = [round(value_of(report, cost.matrix_flops) * part) for cost in costs]
            executed[row.matrix_dtype] += sum(flops)
    used = report.parameters - per.parameters + per.active_parameters
    passes = [totals.cost.vector_flops for totals in (report.totals, report.backward) if totals]
    attention = sum(value_of(report, use.flops) for use in report.attentions)
    return Figures(
        items=per.items,
        length=per.length,
        model=model_flops(report, visible=True),
        executed=executed,
        simple=per.items * (4 * used + 2 * min(used, _trained(report)) if is_trained else 2 * used),
        attention=attention * (_PRODUCTS if is_trained else 1),
        vector=sum(value_of(report, flops) for flops in passes),
        update=value_of(report, report.optimizer.cost.matrix_flops) if report.optimizer else 0,
        used=used,
        vocabulary=_vocabulary(report),
    )


def token_axis(program: Graph | Report) -> str:
    """The axis of tokens, the second of the first integer input with several. ModelError if there is none."""
    if isinstance(program, Report):
        entered: list[tuple[str, object]] = [*program.inputs] if "tokens" in items(program) else []
    else:
        entered = [(one.name, program.types.get(one.name)) for one in program.inputs if one.role == "user"]
    for name, typed in entered:
        if isinstance(typed, TensorType) and typed.rank > 1 and typed.dtype.kind in ("int", "uint"):
            return f"{name}[1]"
    raise ModelError("the program looks up no tokens: say what is counted, such as --per x[0] for images")


def _computed_part(report: Report, row: Row, use: AttentionUse | None) -> float:
    """The share of pairs in tiles that a fused kernel multiplies, if it knows the mask; else 1."""
    if use is None or not use.is_fused or use.mask != "structure":
        return 1.0
    # A mask that is passed as a tensor hides nothing.
    if len(row.inputs) > _OPERANDS and use.partial_blocks is None:
        return 1.0
    if use.pattern == "causal":
        return causal_fraction(value_of(report, use.queries), value_of(report, use.keys))
    return 1 - value_of(report, use.masked_flops) / max(value_of(report, use.flops), 1)


def _trained(report: Report) -> int:
    """Parameters that a step trains; ModelError for a saved report of a step that trains a part of them."""
    program, step = report.program, report.training
    if program is None:
        if step is not None and (step.lora_rank or step.freeze):
            raise ModelError("a saved report tells not which parameters are trained: give the model itself")
        return report.parameters
    names = [one.name for one in program.inputs if one.role == "parameter" and not one.alias_of]
    types = (typed for name in names if isinstance(typed := program.types.get(name), TensorType))
    return sum(value_of(report, typed.numel) for typed in types if typed.requires_grad)


def _vocabulary(report: Report) -> int | None:
    """Rows of the first stored table that is looked up."""
    made = {named.name for named in report.inputs}
    for row in report.rows:
        if operator(row.op).kind == "gather" and len(row.inputs) > 1 and row.inputs[0].name not in made:
            return value_of(report, row.inputs[0].type.shape[0])
        made.update([named.name for named in row.outputs])
    return None


_WORDS = {
    "below": "below the threshold",
    "above": "above the threshold",
    "between": "above or below the threshold, depending on the convention",
    "not known": "whether that is below the threshold is not known, for not all work is",
}


class Threshold(msgspec.Struct, frozen=True):
    """A threshold in FLOPs of training compute: `flops`, None for the original model's, over `divisor`.

    of: what is compared: the training of the model with all that came before, or the modification alone. in_force: since
    when, None if that was not verified. read: the day on which the text at `source` was read.
    """

    name: str
    of: Literal["training", "modification"]
    flops: float | None
    law: str
    meaning: str
    in_force: str | None
    read: str
    source: str
    divisor: int = 1


class Verdict(msgspec.Struct, frozen=True):
    """Where a run stands against so many FLOPs. share: of the run's model FLOPs. margin: FLOPs left, negative above it.

    standing: between is above or below, depending on the convention. sentence: to quote.
    """

    threshold: Threshold
    flops: float
    share: float
    margin: float
    standing: Literal["below", "above", "between", "not known"]
    sentence: str


def verdicts(
    name: str, flops: Flops, original: float | None, *, modifies: bool, at_least: bool
) -> Iterator[Verdict]:
    """Where a run stands against thresholds. original: FLOPs of the model it modifies. at_least: it may take more."""
    data = (Path(__file__).parent / "thresholds.json").read_bytes()
    for one in msgspec.json.decode(data, type=list[Threshold]):
        is_whole = one.of == "training"
        if not is_whole and not (modifies and (original is None) == (one.flops is not None)):
            continue
        threshold = ((original or 0.0) if one.flops is None else one.flops) / one.divisor
        before = (original or 0.0) if is_whole else 0.0
        own, executed = flops.model + before, flops.executed + before
        is_open = at_least or (is_whole and modifies and original is None)
        standing: Literal["below", "above", "between", "not known"] = "not known" if is_open else "below"
        if max(own, executed) > threshold:
            standing = "above" if min(own, executed) > threshold else "between"
        took = f"{'at least ' if is_open else ''}{power(own)} FLOPs (model FLOPs; {power(executed)} executed)"
        share = f"{own / threshold:.3g} times the {power(threshold)} FLOPs of {one.law}"
        sentence = f"The {one.of} of {name} took {took}, {share}: {_WORDS[standing]}."
        yield Verdict(one, threshold, own / threshold, threshold - own, standing, sentence)


HOUR = 3600  # seconds


class Interval(msgspec.Struct, frozen=True):
    """A quantity between two bounds. basis: whether the user gives it, or graphflops predicts it."""

    low: float
    high: float
    basis: Literal["given", "predicted"]


def predicted_hours(report: Report, runs: float) -> Interval | None:
    """Hours of so many runs, or micro-steps of training; None if no time is predicted, or only a lower bound."""
    time, step = report.step_time or report.totals.time, report.training
    if time is None or time.is_lower_bound:
        return None
    runs /= HOUR * (step.accumulate if step else 1)
    return Interval(time.low * runs, time.high * runs, "predicted")


def added(parts: Sequence[Interval | None]) -> Interval | None:
    """The sum of predicted intervals; None if one is not known."""
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    return Interval(sum(part.low for part in known), sum(part.high for part in known), "predicted")


def predicted_energy(hours: Interval | None, device: Device | None, devices: int) -> Interval | None:
    """Kilowatt-hours of the nodes that devices are in, from their power limit; None if hours or limit are not known."""
    if hours is None or device is None or device.power_watts is None:
        return None
    kilowatts, share = devices * device.power_watts / 1000, node_power()
    return Interval(hours.low * kilowatts * share["low"], hours.high * kilowatts * share["high"], "predicted")


def node_power() -> dict[str, Any]:
    """Power of a node in training over the power limits of its devices, `low` to `high`, and where that is from."""
    return msgspec.json.decode((Path(__file__).parent / "power.json").read_bytes(), type=dict[str, Any])
