"""A compute statement as text, page, JSON, CycloneDX, SPDX and model card; identifiers follow from the contents."""

import io
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec.structs import asdict

from graphflops.base.units import number, parameters, power
from graphflops.errors import OptionError
from graphflops.render import document as documents
from graphflops.render.text import Entry, Listing, TextTable, inert, safe
from graphflops.statements.figures import Flops, Interval
from graphflops.statements.statement import Statement

CONVENTIONS = {  # by field of Flops: its name, its formula, and where it parts from the first
    "model": ("model FLOPs", "matrix work of forward and gradients, visible pairs once", ""),
    "executed": ("executed FLOPs", "the same as kernels multiply it", "recomputation, and hidden pairs beside visible ones"),
    "six_nd": ("6ND", "6 x used parameters x tokens; 4 frozen, 2 untrained", "no attention, and embeddings count"),
    "six_nd_attention": ("6ND + attention", "6ND + 3 x attention of all pairs", "hidden pairs, and embeddings count"),
}  # fmt: skip


def document(found: Statement) -> documents.Document:
    """What the run cost, thresholds, assumptions; for programs as docs/statement.schema.json describes it."""
    figures = [safe(f"{name}: {value}", 2000) for name, value in facts(found)]
    title = f"{found.model}: compute statement"
    stages = [
        {"stage": one.name, "tokens": one.tokens, "length": one.length, **asdict(one.flops)}
        for one in found.stages
    ]
    parts = (tables(found), figures, headline(found), lambda: Listing.of(stages), lambda: found)
    return documents.Document(*parts, title=title, lists=lists(found))


def markdown(found: Statement) -> str:
    """A section of a model card."""
    return f"## Compute\n\n{documents.markdown(found)}"


def headline(found: Statement) -> str:
    """The run in one line."""
    flops, least = found.flops, "at least " if found.at_least else ""
    return f"{safe(found.model, 80)}: {least}{power(flops.model)} FLOPs of training, {power(flops.executed)} executed"


def facts(found: Statement) -> Iterator[tuple[str, str]]:
    """Parameters, hours, utilisation, energy and emissions by name, as far as they are known."""
    yield "parameters", f"{found.parameters:,}"
    yield f"parameters that a {unit(found)} uses", f"{found.used_parameters:,}"
    devices = f" on {found.devices:,} x {safe(found.device, 60)}" if found.device else ""
    known = {
        f"hours{devices}": found.hours,
        "energy in kWh": found.energy_kwh,
        "CO2 equivalent in kg": found.co2_kg,
    }
    yield from ((name, f"{span(part)} ({part.basis})") for name, part in known.items() if part)
    if found.mfu is not None and found.hfu is not None:
        least = "at least " * found.at_least
        yield "MFU", f"{least}{100 * found.mfu:.1f} %, model FLOPs over the published peak"
        yield "HFU", f"{least}{100 * found.hfu:.1f} %, executed FLOPs over the same"


def unit(found: Statement) -> str:
    """What is counted: tokens if the data has sequences, else samples."""
    return "sample" if found.stages[0].length is None else "token"


def span(interval: Interval) -> str:
    """An interval, or the one number that it is."""
    low, high = (f"{x:,.4g}" if x < 10_000 else f"{x:,.0f}" for x in (interval.low, interval.high))
    return low if low == high else f"{low} to {high}"


def tables(found: Statement) -> Iterator[TextTable]:
    """Stages, conventions and thresholds."""
    entries, names = [], [name for name, _, _ in CONVENTIONS.values()]
    for one in found.stages:
        name = safe(one.name, 60) + " (not counted)" * (not one.counted)
        length = "" if one.length is None else f"{one.length:,}"
        entries.append(Entry([name, parameters(one.tokens), length, *_figures(one.flops, one.at_least)]))
        each = _figures(one.flops, one.at_least, one.tokens)
        entries.append(Entry([f"per {unit(found)}", "", "", *each], 1))
    entries.append(Entry(["counted", "", "", *_figures(found.flops, found.at_least)]))
    yield TextTable(("stage", f"{unit(found)}s", "length", *names), entries)
    shares = {field: getattr(found.flops, field) / (found.flops.model or 1) for field in CONVENTIONS}
    ratios = [Entry([*CONVENTIONS[field], f"{share:.3f}"]) for field, share in shares.items()]
    yield TextTable(("convention", "what it is", "where it parts", "of model FLOPs"), ratios, 3)
    laws = [
        [one.threshold.name, power(one.flops), f"{one.share:.3g}", one.standing] for one in found.thresholds
    ]
    yield TextTable(("threshold", "FLOPs", "the run", "stands"), [*map(Entry, laws)])


def _figures(flops: Flops, at_least: bool, tokens: int = 0) -> Iterator[str]:
    for field in CONVENTIONS:
        count: float = getattr(flops, field)
        yield ">= " * at_least + (number(round(count / tokens)) if tokens else power(count))


def lists(found: Statement) -> Iterator[tuple[str, list[str]]]:
    """Sentences to quote with their sources, and assumptions."""
    quotes = []
    for one in found.thresholds:
        law, since = one.threshold, one.threshold.in_force or "not verified"
        quotes.append(f"{one.sentence} ({law.meaning}; in force: {since}; read {law.read}: {law.source})")
    for title, lines in (("To quote", quotes), ("Assumed", found.assumptions)):
        yield title, [safe(line, 2000) for line in lines]


def cyclonedx(found: Statement) -> str:
    """An ML-BOM of CycloneDX 1.6. cyclonedx-python-lib, which checks it in the tests, has no class for model cards."""
    metrics = [{"type": name, "value": value} for name, value in _metrics(found)]
    considered: dict[str, Any] = {"technicalLimitations": [safe(line, 2000) for line in found.assumptions]}
    if found.energy_kwh:
        cost = {"value": found.energy_kwh.high, "unit": "kWh"}
        provider = {"organization": {"name": "not stated"}, "energySource": "unknown", "energyProvided": cost}
        spent = {"activity": _activity(found), "energyProviders": [provider], "activityEnergyCost": cost}
        if found.co2_kg:
            spent["co2CostEquivalent"] = {"value": found.co2_kg.high / 1000, "unit": "tCO2eq"}
        considered["environmentalConsiderations"] = {"energyConsumptions": [spent]}
    card = {"quantitativeAnalysis": {"performanceMetrics": metrics}, "considerations": considered}
    component = {"type": "machine-learning-model", "name": safe(found.model), "modelCard": card}
    component |= {"supplier": {"name": safe(found.supplier)}} if found.supplier else {}
    name, _, version = found.tool.partition(" ")
    tool = {"type": "application", "name": name, "version": version}
    metadata: dict[str, Any] = {"tools": {"components": [tool]}}
    metadata |= {"timestamp": f"{found.date}T00:00:00Z"} if found.date else {}
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{_identity(found)}"}
    return inert(msgspec.json.encode({**head, "version": 1, "metadata": metadata, "components": [component]}))


def spdx(found: Statement) -> str:
    """SPDX 3.0.1 with the AI profile, by spdx-python-model. OptionError without that, a date or a supplier."""
    if not found.date or not found.supplier:
        raise OptionError("SPDX says when and by whom a document is made: give --date and --supplier")
    try:
        from spdx_python_model import v3_0_1 as model
    except ImportError:
        raise OptionError("SPDX needs spdx-python-model: pip install 'graphflops[statement]'") from None
    made = datetime.fromisoformat(found.date).replace(tzinfo=timezone.utc)
    base, info = f"urn:uuid:{_identity(found)}", model.CreationInfo(created=made, specVersion="3.0.1")

    def element(kind: Any, place: str, name: str, **fields: Any) -> Any:
        return kind(_id=f"{base}#{place}", creationInfo=info, name=name, **fields)

    supplier = element(model.Organization, "supplier", safe(found.supplier))
    tool = element(model.Tool, "tool", found.tool)
    info.createdBy, info.createdUsing = [supplier], [tool]
    package = element(model.ai_AIPackage, "model", safe(found.model), suppliedBy=supplier)
    package.software_primaryPurpose = model.software_SoftwarePurpose.model
    sentences = [one.sentence for one in found.thresholds]
    package.ai_informationAboutTraining = " ".join([f"{headline(found)}.", *sentences])
    package.ai_limitation = "Assumed: " + "; ".join(found.assumptions)
    package.ai_metric = [model.DictionaryEntry(key=key, value=value) for key, value in _metrics(found)]
    if energy := found.energy_kwh:
        unit = model.ai_EnergyUnitType.kilowattHour
        spent = model.ai_EnergyConsumptionDescription(ai_energyQuantity=energy.high, ai_energyUnit=unit)
        field = f"ai_{_activity(found).replace('-', '')}EnergyConsumption"
        package.ai_energyConsumption = model.ai_EnergyConsumption(**{field: [spent]})
    document = element(model.SpdxDocument, "document", "Compute statement", rootElement=[package])
    document.profileConformance = [model.ProfileIdentifierType.core, model.ProfileIdentifierType.ai]
    written = io.BytesIO()
    model.JSONLDSerializer().write(model.SHACLObjectSet([document, package, supplier, tool]), written)
    return inert(written.getvalue())


def huggingface(found: Statement) -> str:
    """The head of a model card with `co2_eq_emissions` where these are known, then the section of the card."""
    lines = ["# co2_eq_emissions: not known; give --carbon, and --kwh or --device"]
    if found.co2_kg:
        values = {
            "emissions": round(found.co2_kg.high * 1000),
            "source": f"{found.tool}, energy {found.co2_kg.basis}",
            "training_type": "fine-tuning" if _activity(found) == "fine-tuning" else "pre-training",
            "hardware_used": f"{found.devices:,} x {found.device}" if found.device else "not stated",
        }
        lines = [f"  {key}: {inert(msgspec.json.encode(value)).strip()}" for key, value in values.items()]
        lines.insert(0, "co2_eq_emissions:")
    return "\n".join(["---", *lines, "---", "", markdown(found)])


def _identity(found: Statement) -> str:
    return str(uuid5(NAMESPACE_URL, msgspec.json.encode(found).decode()))


def _activity(found: Statement) -> str:
    is_whole = any(stage.name.startswith("pre-training") for stage in found.stages)
    return "training" if is_whole else "fine-tuning"


def _metrics(found: Statement) -> Iterator[tuple[str, str]]:
    """Figures by name: FLOPs by convention and stage, with `>=` where work is unknown, those of the run, and standings."""
    parts = {"training compute": (found.flops, found.at_least)}
    for one in found.stages:
        parts[f"stage {one.name} of {one.tokens} {unit(found)}s"] = one.flops, one.at_least
    for title, (flops, at_least) in parts.items():
        for field, (name, formula, _) in CONVENTIONS.items():
            count = f"{'>= ' * at_least}{power(getattr(flops, field))} FLOPs"
            yield safe(f"{title}, {name}: {formula}"), count
    yield from facts(found)
    yield from ((f"threshold, {one.threshold.name}", one.sentence) for one in found.thresholds)
