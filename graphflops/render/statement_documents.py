"""A compute statement as the documents of others: CycloneDX, SPDX, the head of a model card on Hugging Face.

Nothing is drawn by lot or read from a clock: identifiers follow from the contents.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec

from graphflops.base.units import power
from graphflops.errors import OptionError
from graphflops.render.json import inert
from graphflops.render.statement import CONVENTIONS, facts, headline, markdown, unit
from graphflops.render.text import safe
from graphflops.statements.statement import Statement


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
