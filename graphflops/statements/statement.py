"""The compute statement of a training run: its stages priced, added up, and held against thresholds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date as calendar_date
from typing import Any

from graphflops.analysis import analyze
from graphflops.base.lazy import imported
from graphflops.base.rendered import Rendered
from graphflops.base.units import percent
from graphflops.derived.resize import resized
from graphflops.devices import Device
from graphflops.errors import ModelError, OptionError, shown
from graphflops.graph import Graph
from graphflops.loading import Model, opened
from graphflops.report import Report
from graphflops.statements.figures import (
    HOUR,
    Figures,
    Interval,
    added,
    energy,
    figures,
    least_seconds,
    node_power,
    predicted_hours,
    token_axis,
)
from graphflops.statements.stages import COUNTED, TRAINED, Stage, stage
from graphflops.statements.stages import tokens as number_of_tokens
from graphflops.statements.thresholds import Verdict, verdicts
from graphflops.tensor import TensorType
from graphflops.training import Training, training_of
from graphflops.version import __version__

SCHEMA = 1
_OF_KINDS = {
    "teacher": "the teacher runs forward once for each token; its own training is not in this statement",
    "generation": "each generated token is computed once beside a cache of keys and values; prompts are not counted",
}


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs by convention.

    model: each visible pair of an attention once, a gradient at most twice its forward. executed: what kernels multiply,
    recomputation and tiles of masked attention included. six_nd: 6 for each parameter that a token uses and each token, 4
    for a frozen one, 2 without training. six_nd_attention: the same and all pairs of attention.
    """

    model: float
    executed: float
    six_nd: float
    six_nd_attention: float


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage took. counted: thresholds are compared with it. at_least: calls of unknown cost may add to it.

    updates: of the optimizer, None where the batch is not known. hours: predicted, None where they are not.
    """

    name: str
    model: str
    tokens: int
    length: int | None
    counted: bool
    flops: Flops
    at_least: bool
    updates: int | None
    hours: Interval | None


@dataclass(frozen=True, slots=True, repr=False)
class Statement(Rendered):
    """What a training run cost.

    schema, tool: of this document, and the release that made it. program: digest of the program's own description.
    parameters: of the model; used_parameters: that a token uses. flops: of the stages that count. hours, energy_kwh: of all
    stages but inference; None where not known. mfu, hfu: model and executed FLOPs over what the devices could multiply in
    the hours given. carbon: grams of CO2 equivalent of a kWh. original_flops: of the model that was modified.
    """

    schema: int
    tool: str
    model: str
    program: str
    parameters: int
    used_parameters: int
    stages: tuple[StageCost, ...]
    flops: Flops
    at_least: bool
    thresholds: tuple[Verdict, ...]
    hours: Interval | None
    energy_kwh: Interval | None
    mfu: float | None
    hfu: float | None
    device: str
    devices: int
    carbon: float | None
    original_flops: float | None
    assumptions: tuple[str, ...]
    date: str | None
    supplier: str | None


@dataclass(frozen=True, slots=True)
class Priced:
    """A stage with the report and figures that it is priced from."""

    stage: Stage
    report: Report
    figures: Figures
    cost: StageCost


def statement(
    model: Model, tokens: str | float | None = None, *, stages: Sequence[str | Stage] = (), length: int | None = None,
    training: bool | Training = True, batch_tokens: str | float | None = None, inference_tokens: str | float | None = None,
    hours: float | None = None, device: str | None = None, devices: int = 1, kwh: float | None = None,
    carbon: float | None = None, original: float | None = None, per: str | None = None, date: str | None = None,
    supplier: str | None = None, model_name: str | None = None, **options: Any,
) -> Statement:  # fmt: skip
    """States what a training run cost.

    model: as for `analyze`. tokens: that it is pre-trained on, `"15T"`, or trains adapters on where `training` has any.
    stages: further ones, `KIND[/LABEL]:TOKENS[:LENGTH[:MODEL]]` or `Stage`. length: of a sequence. training: options of a
    step. batch_tokens: of one update. inference_tokens: that the model served; no part of its training. hours: that the run
    took on so many devices; without them they are predicted. kwh: measured. carbon: grams of CO2 equivalent of a kWh.
    original: FLOPs of the model that this run modifies. per: the axis whose entries `tokens` counts. date: of the document,
    `2026-11-23`. supplier: who states it. options: dims, inputs, masks and execution, as for `analyze`.

    Raises OptionError for wrong options, ModelError where they contradict one another or the program, FileError.
    """
    _check({"hours": hours, "devices": devices, "kwh": kwh, "carbon": carbon, "original": original}, date)
    step, profile = training_of(training), imported("graphflops.devices:device")(device) if device else None
    run = _stages(tokens, stages, length, inference_tokens, step)
    batch = None if batch_tokens is None else number_of_tokens(batch_tokens)
    programs: dict[Any, Any] = {None: opened(model, model_name=model_name)}
    options["device"] = None if hours else device
    priced = [_priced(one, programs, step, per, batch, devices, options) for one in run]
    own, (total, at_least) = _own(priced), _counted(priced)
    given = Interval(hours, hours, "given") if hours else None
    took = given or added(one.cost.hours for one in _run(priced))
    used = Interval(kwh, kwh, "given") if kwh else energy(took, profile, devices)
    mfu, hfu = _utilisation(_run(priced), hours, profile, devices)
    modifies = original is not None or all(one.stage.kind != "pre-training" for one in priced)
    return Statement(
        SCHEMA, f"graphflops {__version__}", own.cost.model, own.report.origin.sha256, own.report.parameters,
        own.figures.used, tuple(one.cost for one in priced), total, at_least,
        verdicts(own.cost.model, total.model, total.executed, original, modifies=modifies, at_least=at_least),
        took, used, mfu, hfu, profile.name if profile else "", devices, carbon, original,
        _assumed(own, priced, batch, (took, used), profile, mfu), date, None if supplier is None else shown(supplier),
    )  # fmt: skip


def _check(numbers: Mapping[str, float | None], date: str | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < 1e40:
            raise OptionError(f"{name} is a number above zero, not {value}")
    try:
        calendar_date.fromisoformat(date or "2026-11-23")
    except ValueError:
        raise OptionError(f"{shown(str(date))} is no date, such as 2026-11-23") from None


def _stages(
    given: str | float | None, stages: Sequence[str | Stage], length: int | None, served: str | float | None, step: Training
) -> list[Stage]:  # fmt: skip
    """The stages in order, each with its length. Adapters are trained in the stages that say so, else in the first."""
    run = [stage(one) for one in stages]
    if given is not None:
        is_first = step.lora_rank and all(one.kind != "adapters" for one in run)
        run = [Stage("adapters" if is_first else "pre-training", number_of_tokens(given)), *run]
    if not any(one.kind in TRAINED and one.model is None for one in run):
        raise OptionError(f"MODEL is not trained: give --tokens, or a --stage of {' or '.join(TRAINED)}")
    if any(one.kind == "adapters" for one in run) != bool(step.lora_rank):
        raise OptionError("a stage of adapters and --lora R, their rank, need one another")
    run += [] if served is None else [Stage("inference", number_of_tokens(served))]
    for place, one in enumerate(run):
        length = one.length or length
        run[place] = replace(one, length=length)
    return run


def _priced(
    one: Stage, programs: dict[Any, Any], step: Training, per: str | None, batch: int | None, devices: int,
    options: Mapping[str, Any],
) -> Priced:  # fmt: skip
    """A stage with what it cost. programs: those that were read, by model, and their reports by length and training."""
    place = id(one.model) if one.model is not None and not isinstance(one.model, str) else one.model
    if one.model is not None and place not in programs:
        programs[place] = opened(one.model)
    program = programs[place]
    given = options if one.model is None else {"device": options["device"]}
    own = step if one.kind == "adapters" else replace(step, lora_rank=0, lora_modules=("**",))
    training: bool | Training = own if one.kind in TRAINED else False
    key = (place, one.length, training)
    if key not in programs:
        programs[key] = _report(program, per, one.length, training, given)
    report, axis = programs[key]
    found = plain = figures(report, axis)
    # It looks like gradients of frozen layers.
    if training and own.recompute and not isinstance(program, Report):
        once, untimed = replace(own, recompute=()), {**given, "device": None}
        plain = figures(*_report(program, per, one.length, once, untimed))
    updates = None if batch is None or not training else -(-one.tokens // batch)
    executed = sum(found.executed.values()) * one.tokens + found.update * (updates or 0) * found.items
    simple, attention = found.simple * one.tokens, found.attention * one.tokens
    run = (sum(plain.model.values()) * one.tokens, executed, simple, simple + attention)
    shape, (entry, _, size) = {named.name: named.type.shape for named in report.inputs}, axis.partition("[")
    length = None if size == "0]" else report.value(shape[entry][int(size[:-1])])
    hours = predicted_hours(report, one.tokens, found.items, devices)
    name = shown(os.path.basename(report.origin.path)) or "the model"
    flops, unknown, counted = (
        Flops(*(x / found.items for x in run)),
        report.coverage.unknown > 0,
        one.kind in COUNTED,
    )
    cost = StageCost(shown(one.name), name, one.tokens, length, counted, flops, unknown, updates, hours)
    return Priced(one, report, replace(found, model=plain.model), cost)


def _report(
    program: Graph | Report, per: str | None, length: int | None, training: bool | Training, options: Mapping[str, Any]
) -> tuple[Report, str]:  # fmt: skip
    """The report of a program at a length, and the axis along which its tokens stand. Raises ModelError."""
    axis = per or (token_axis(program) if isinstance(program, Report) else _likely_axis(program))
    dims = {**(options.get("dims") or {})}
    if length and axis and dims.setdefault(axis, length) != length:
        raise OptionError(f"--dim {shown(axis)}={dims[axis]} is not the length of this stage, {length:,}")
    if not isinstance(program, Report):
        given: dict[str, Any] = {**options, "dims": dims, "memory": options["device"] is not None}
        report = analyze(program, training=training, **given)
        return report, per or token_axis(report)
    if training and program.backward is None:
        raise ModelError("a saved report of an inference tells no gradients: give the model itself")
    inputs = options.get("inputs") or {}
    return resized(program, dims, inputs) if dims or inputs else program, axis


def _likely_axis(graph: Graph) -> str:
    """The second axis of the first input of integers, which an analysis confirms; "" where there is none."""
    types = ((entry.name, graph.types.get(entry.name)) for entry in graph.inputs if entry.role == "user")
    found = (name for name, typed in types
             if isinstance(typed, TensorType) and typed.dtype.kind in ("int", "uint") and typed.rank > 1)  # fmt: skip
    return next((f"{name}[1]" for name in found), "")


def _own(priced: Sequence[Priced]) -> Priced:
    """The first stage of the model itself. Raises ModelError for a stage whose tokens are not those of the model.

    Only generated data is exchanged as text.
    """
    own = next(one for one in priced if one.stage.model is None)
    for one in priced:
        wanted, found = own.figures.vocabulary, one.figures.vocabulary
        if one.stage.kind != "generation" and None not in (wanted, found) and wanted != found:
            raise ModelError(
                f"{shown(one.stage.name)}: {shown(one.cost.model)} has a vocabulary of {found:,}, "
                f"{shown(own.cost.model)} one of {wanted:,}: a stage takes the tokens of the model"
            )
    return own


def _counted(priced: Sequence[Priced]) -> tuple[Flops, bool]:
    """FLOPs of the stages that count, and whether they may be more."""
    counted = [one.cost for one in priced if one.cost.counted]
    sums = (sum(getattr(cost.flops, name) for cost in counted) for name in Flops.__slots__)
    return Flops(*sums), any(cost.at_least for cost in counted)


def _run(priced: Sequence[Priced]) -> list[Priced]:
    return [one for one in priced if one.stage.kind != "inference"]


def _assumed(
    own: Priced, priced: Sequence[Priced], batch: int | None, found: Sequence[Interval | None], device: Device | None,
    mfu: float | None,
) -> tuple[str, ...]:  # fmt: skip
    """All that was assumed, each once."""
    stages = [each for one in priced for each in _of_stage(one)]
    return tuple(dict.fromkeys([*stages, *_of_run(own, batch), *_of_resources(found, device, mfu)]))


def _utilisation(
    trained: Sequence[Priced], hours: float | None, profile: Device | None, devices: int
) -> tuple[float | None, float | None]:
    """MFU and HFU of all stages but inference; ModelError where the hours are too few for the model FLOPs."""
    if hours is None or profile is None:
        return None, None
    there = hours * HOUR * devices
    runs = [(one.figures, one.cost.tokens / one.figures.items / there) for one in trained]
    mfu = sum(least_seconds(found.model, profile) * times for found, times in runs)
    if mfu > 1:
        raise ModelError(
            f"{hours:g} hours on {devices:,} x {profile.name} imply an MFU of {mfu:.3g}, and nothing multiplies faster than "
            "the published peak: check the hours, the devices, the tokens and the precision"
        )
    hfu = sum(least_seconds(found.executed, profile) * times for found, times in runs)
    return (mfu, hfu) if mfu == mfu else (None, None)


def _of_stage(one: Priced) -> Iterator[str]:
    """What was assumed of a stage."""
    report, name = one.report, shown(one.cost.name)
    if one.stage.length is None and one.cost.length is not None and not report.assumed:
        yield f"{name}: sequences of {one.cost.length:,}, as the program was exported; --length gives another"
    for size, value in report.assumed.items():
        yield f"{name}: {shown(size)} = {value:,} is assumed, for the export has no example of it"
    if report.coverage.unknown:
        operators = ", ".join(map(shown, [*report.coverage.unknown_ops][:5]))
        yield f"{name}: FLOPs are at least those stated, for what these operators cost is not known: {operators}"
    if any(use.mask == "tensor" for use in report.attentions):
        yield f"{name}: masks that the caller passes in hide nothing; --mask says what they hide"
    if report.attentions:
        yield "tokens attend within their sequence as the program's mask says, whether documents are packed in it or not"
        yield "executed FLOPs: fused attention kernels skip tiles of 128 x 128 pairs that a causal mask hides whole"
    if one.stage.kind in _OF_KINDS:
        yield f"{name}: {_OF_KINDS[one.stage.kind]}"


def _of_run(own: Priced, batch: int | None) -> Iterator[str]:
    """What was assumed of all stages."""
    share = percent(own.figures.vector, sum(own.figures.executed.values())) or "an unknown number of"
    yield f"figures are matrix work; elementwise work would add {share} % to the executed FLOPs of {shown(own.cost.name)}"
    if batch is None:
        yield "work of the optimizer's updates is not counted, for their number is not known: --batch-tokens"
    if own.report.parameters != own.figures.used:
        yield "routed experts take in exactly the tokens that the program sends them: none is dropped or padded"
    yield "each token is trained on as often as it is counted; failed, repeated and preliminary runs are not in the tokens"
    yield "thresholds are compared with all stages but evaluation and inference"


def _of_resources(
    found: Sequence[Interval | None], device: Device | None, mfu: float | None
) -> Iterator[str]:
    """What was assumed of hours and energy."""
    hours, energy = (one is not None and one.basis == "predicted" for one in found)
    if hours:
        yield "hours are predicted from the device's profile at the program's sizes, with the work shared evenly"
        yield "neither communication nor failures take time in the predicted hours: real runs take longer"
    elif device is not None and found[0] is not None and mfu is None:
        yield f"utilisation is not known: {device.name} has no published peak for the program's element types"
    if energy:
        of = node_power()
        yield f"energy is predicted as {of['low']:g} to {of['high']:g} times the devices' power limit ({of['source']})"
        yield "cooling of the building is not in the predicted energy"
    if device is not None and device.power_watts is None:
        yield f"energy is not known: no power limit of {device.name} is published; --kwh states what was measured"
