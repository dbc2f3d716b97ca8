"""The compute statement of a training run: its stages priced, added up, and held against thresholds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date as calendar_date
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from graphflops.analysis import analyze
from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.base.rendered import Rendered
from graphflops.base.units import percent
from graphflops.budget.amounts import amount
from graphflops.derived.items import least_seconds
from graphflops.errors import ModelError, OptionError, shown
from graphflops.graph import Graph
from graphflops.loading import Model, opened
from graphflops.report import Report
from graphflops.statements.figures import (
    HOUR,
    Figures,
    Flops,
    Interval,
    Verdict,
    added,
    figures,
    node_power,
    predicted_energy,
    predicted_hours,
    token_axis,
    verdicts,
)
from graphflops.training import Training, training_of
from graphflops.version import __version__

if TYPE_CHECKING:
    from graphflops.devices import Device

TRAINED = ("pre-training", "fine-tuning", "adapters")  # the others run forward alone
COUNTED = (*TRAINED, "teacher", "generation")  # what thresholds are compared with
KINDS = (*COUNTED, "evaluation", "inference")


class Stage(msgspec.Struct, frozen=True):
    """A stage: its kind, or the kind and a label, `pre-training/long`; tokens that it takes in, or generates.

    length: of a sequence; None for that of the stage before, at first that of the program. model: where it runs another
    program. Raises OptionError for a kind that does not exist, and for no tokens.
    """

    name: str
    tokens: int
    length: int | None = None
    model: Model | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.name.endswith("/"):
            raise OptionError(f"'{shown(self.name)}' is not KIND or KIND/LABEL; kinds are {', '.join(KINDS)}")
        if self.tokens < 1 or (self.length is not None and not 0 < self.length < 2**48):
            raise OptionError(f"{shown(self.name)}: tokens and length are integers from 1 on")

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


def number_of_tokens(text: str | float) -> int:
    """A number of tokens: `15T`, `800B`, `4M`. Text needs a unit, for nobody trains on 15. Raises OptionError."""
    if not isinstance(text, str):
        return int(text) if 1 <= text < 1e30 else number_of_tokens(f"{text}")
    number = text.removesuffix("tokens").strip()
    try:
        found = amount(number, "") if number != text.strip() or number[-1:].isalpha() else 0
    except ValueError:
        found = 0
    if found < 1:
        what = "has no unit" if number[-1:].isdecimal() else "is no number of tokens"
        raise OptionError(f"'{shown(text)}' {what}: write 15T, 800B, 4M or '2048 tokens'")
    return found


def stage(given: str | Stage) -> Stage:
    """A stage as it is written: `KIND[/LABEL]:TOKENS[:LENGTH[:MODEL]]`. Raises OptionError."""
    if isinstance(given, Stage):
        return given
    name, count, length, model, *_ = [*given.split(":", 3), "", "", ""]
    if not count or not (length == "" or (length.isascii() and length.isdecimal() and len(length) < 16)):
        form = "KIND:TOKENS[:LENGTH[:MODEL]], such as fine-tuning:2B:4096"
        raise OptionError(f"'{shown(given)}' is not {form}")
    return Stage(name, number_of_tokens(count), int(length) if length else None, model or None)


SCHEMA = 1
_OF_KINDS = {
    "teacher": "the teacher runs forward once for each token; its own training is not in this statement",
    "generation": "each generated token is computed once beside a cache of keys and values; prompts are not counted",
}


class StageCost(msgspec.Struct, frozen=True):
    """What one stage took. counted: thresholds are compared with it. at_least: calls of unknown cost may add to it.

    updates: of the optimizer, None if the batch is not known. hours: predicted, None if they are not.
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


class Statement(Rendered, msgspec.Struct, frozen=True):
    """What a training run cost.

    schema, tool: of this document, and the release that made it. program: digest of the program's own description.
    parameters: of the model; used_parameters: that a token uses. flops: of the stages that count. hours, energy_kwh: of all
    stages but inference; None if not known. mfu, hfu: model and executed FLOPs over what the devices could multiply in
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

    @property
    def co2_kg(self) -> Interval | None:
        """Kilograms of CO2 equivalent of the energy; None if that, or `carbon`, is not known."""
        if (energy := self.energy_kwh) is None or self.carbon is None:
            return None
        return Interval(energy.low * self.carbon / 1000, energy.high * self.carbon / 1000, energy.basis)


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

    Raises OptionError for wrong options, ModelError if they contradict one another or the program, FileError.
    """
    _check(device, date, hours=hours, devices=devices, kwh=kwh, carbon=carbon, original=original)
    step, profile = training_of(training), imported("graphflops.devices:device")(device) if device else None
    batch = None if batch_tokens is None else number_of_tokens(batch_tokens)
    run = _stages(tokens, stages, length, inference_tokens, step, batch)
    options["device"] = None if hours else device
    pricing = _Pricing(opened(model, model_name=model_name), step, per, batch, devices, options)
    priced = [pricing.priced(one) for one in run]
    own, counted = _own(priced), [one.cost for one in priced if one.cost.counted]
    total = Flops(*(sum(getattr(cost.flops, name) for cost in counted) for name in Flops.__struct_fields__))
    at_least = any(cost.at_least for cost in counted)
    trained = [one for one in priced if one.stage.kind != "inference"]
    took = Interval(hours, hours, "given") if hours else added([one.cost.hours for one in trained])
    energy = Interval(kwh, kwh, "given") if kwh else predicted_energy(took, profile, devices)
    mfu, hfu = (_utilisation(trained, hours, profile, devices) if hours and profile else None) or (None, None)
    modifies = original is not None or all(one.stage.kind != "pre-training" for one in priced)
    assumed = _assumed(own, priced, batch, took, energy, profile, mfu)
    held = verdicts(own.cost.model, total, original, modifies=modifies, at_least=at_least)
    return Statement(
        SCHEMA, f"graphflops {__version__}", own.cost.model, own.report.origin.sha256, own.report.parameters,
        own.figures.used, tuple(one.cost for one in priced), total, at_least, tuple(held), took, energy, mfu, hfu,
        profile.name if profile else "", devices, carbon, original, tuple(dict.fromkeys(assumed)), date, supplier or None,
    )  # fmt: skip


def _check(device: str | None, date: str | None, **numbers: float | None) -> None:
    """Raise OptionError for invalid numbers, and for options without the option that they need."""
    for name, value in numbers.items():
        if value is not None and not 0 < value < 1e40:
            raise OptionError(f"{name} is a number above zero, and below 1e40, not {value}")
    if device is None and numbers["devices"] != 1:
        raise OptionError(f"{numbers['devices']} devices of which kind? Give --device too")
    if device is None and numbers["carbon"] and not numbers["kwh"]:
        raise OptionError("--carbon is of each kWh: give --kwh, or --device to predict them")
    try:
        is_date = date is None or calendar_date.fromisoformat(date).isoformat() == date
    except ValueError:
        is_date = False
    if not is_date:
        raise OptionError(f"'{shown(str(date))}' is no date, such as 2026-11-23")


def _stages(
    given: str | float | None, stages: Sequence[str | Stage], length: int | None, served: str | float | None,
    step: Training, batch: int | None,
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
    if batch and all(batch > one.tokens for one in run if one.kind in TRAINED):
        raise OptionError(f"--batch-tokens {batch:,} is more than any stage trains on")
    run += [] if served is None else [Stage("inference", number_of_tokens(served))]
    for place, one in enumerate(run):
        length = one.length or length
        run[place] = replace(one, length=length)
    return run


class _Priced(NamedTuple):
    stage: Stage
    report: Report
    figures: Figures
    cost: StageCost


class _Pricing(msgspec.Struct, frozen=True):
    """Prices stages of a program. reports: those that were made, by program, length and training."""

    program: Graph | Report
    step: Training
    per: str | None
    batch: int | None
    devices: int
    options: Mapping[str, Any]
    reports: dict[object, Report] = {}

    def priced(self, one: Stage) -> _Priced:
        """A stage with what it cost. Raises OptionError and ModelError."""
        name, program = shown(one.name), opened(one.model or self.program)
        axis = self.per or token_axis(program)
        own = self.step if one.kind == "adapters" else replace(self.step, lora_rank=0, lora_modules=("**",))
        training: bool | Training = own if one.kind in TRAINED else False
        report = self.report(one, program, axis, training)
        if self.per is None:
            token_axis(report)
        found = plain = figures(report, axis)
        if one.length and found.length is None:
            raise OptionError(f"{name}: a length is of sequences, and {shown(axis)} counts samples")
        # Recomputed work looks like gradients of frozen layers.
        if training and own.recompute and isinstance(program, Graph):
            plain = figures(self.report(one, program, axis, replace(own, recompute=()), device=None), axis)
        updates = -(-one.tokens // self.batch) if self.batch and training else None
        runs = one.tokens / found.items
        executed = sum(found.executed.values()) * runs + found.update * (updates or 0)
        simple = found.simple * runs
        flops = Flops(sum(plain.model.values()) * runs, executed, simple, simple + found.attention * runs)
        cost = StageCost(
            name=name,
            model=shown(os.path.basename(report.origin.path)) or "the model",
            tokens=one.tokens,
            length=found.length,
            counted=one.kind in COUNTED,
            flops=flops,
            at_least=report.coverage.unknown > 0,
            updates=updates,
            hours=predicted_hours(report, runs / self.devices),
        )
        return _Priced(one, report, replace(found, model=plain.model), cost)

    def report(
        self, one: Stage, program: Graph | Report, axis: str, training: bool | Training, **changed: Any
    ) -> Report:
        """The report of a stage at its length. changed: options that are not those of the run."""
        place = one.model if one.model is None or isinstance(one.model, str) else id(one.model)
        key = (place, one.length, training, *changed)
        if key not in self.reports:
            given = {**({"device": self.options["device"]} if one.model else self.options), **changed}
            dims = {**(given.pop("dims", None) or {})}
            if one.length and dims.setdefault(axis, one.length) != one.length:
                raise OptionError(
                    f"--dim {shown(axis)}={dims[axis]} is not the length of {shown(one.name)}, {one.length:,}"
                )
            if isinstance(program, Graph):
                self.reports[key] = analyze(program, training=training, dims=dims, memory=False, **given)
            elif training == (program.training or False) or (program.training and training == Training()):
                inputs = given.get("inputs") or {}
                self.reports[key] = imported("graphflops.derived.resize:resized")(program, dims, inputs)
            else:
                raise ModelError(
                    f"{shown(one.name)}: a saved report is of one way of running a model, and this stage of another: give "
                    "the model itself"
                )
        return self.reports[key]


def _own(priced: Sequence[_Priced]) -> _Priced:
    """The first stage of the model itself; ModelError for one with other tokens, unless it generates text."""
    own = next(one for one in priced if one.stage.model is None)
    for one in priced:
        wanted, found = own.figures.vocabulary, one.figures.vocabulary
        if one.stage.kind != "generation" and None not in (wanted, found) and wanted != found:
            text = f"{one.cost.model} has a vocabulary of {found:,}, {own.cost.model} one of {wanted:,}"
            raise ModelError(f"{one.cost.name}: {text}: a stage takes the tokens of the model")
    return own


def _utilisation(
    trained: Sequence[_Priced], hours: float, profile: Device, devices: int
) -> tuple[float, float] | None:
    """MFU and HFU of all stages but inference, None if a peak is not known; ModelError for hours that are too few."""
    mfu = hfu = 0.0
    for one in trained:
        runs = one.cost.tokens / one.figures.items / (hours * HOUR * devices)
        parts = (one.figures.model, one.figures.executed)
        (model, unknown), (executed, _) = (least_seconds(flops, profile) for flops in parts)
        if unknown is not None:
            return None
        mfu, hfu = mfu + model * runs, hfu + executed * runs
    if mfu > 1:
        raise ModelError(
            f"{hours:g} hours on {devices:,} x {profile.name} imply an MFU of {mfu:.3g}, and nothing multiplies faster "
            "than the published peak: check the hours, the devices, the tokens and the precision"
        )
    return mfu, hfu


def _assumed(
    own: _Priced, priced: Sequence[_Priced], batch: int | None, hours: Interval | None, energy: Interval | None,
    device: Device | None, mfu: float | None,
) -> Iterator[str]:  # fmt: skip
    for one in priced:
        yield from _of_stage(one)
    share = percent(own.figures.vector, sum(own.figures.executed.values())) or "an unknown number of"
    yield f"figures are matrix work; elementwise work would add {share} % to the executed FLOPs of {own.cost.name}"
    if batch is None:
        yield "work of the optimizer's updates is not counted, for their number is not known: --batch-tokens"
    if own.report.parameters != own.figures.used:
        yield "routed experts take in exactly the tokens that the program sends them: none is dropped or padded"
    yield "each token is trained on as often as it is counted; failed, repeated and preliminary runs are not in the tokens"
    yield "thresholds are compared with all stages but evaluation and inference"
    if hours and hours.basis == "predicted":
        yield "hours are predicted from the device's profile at the program's sizes, with the work shared evenly"
        yield "neither communication nor failures take time in the predicted hours: real runs take longer"
    elif hours and mfu is None:
        why = f"no peak of {device.name} is published for these element types" if device else "give --device"
        yield f"utilisation is not known: {why}"
    if energy and energy.basis == "predicted":
        of = node_power()
        yield f"energy is predicted as {of['low']:g} to {of['high']:g} times the devices' power limit ({of['source']})"
        yield "cooling of the building is not in the predicted energy"
    elif device and energy is None and device.power_watts is None:
        yield f"energy is not known: no power limit of {device.name} is published; --kwh states what was measured"


def _of_stage(one: _Priced) -> Iterator[str]:
    report, name = one.report, one.cost.name
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
