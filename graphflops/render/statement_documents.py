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
from graphflops.render.statement import CONVENTIONS, headline, markdown, span
from graphflops.render.text import safe
from graphflops.statements.statement import Statement

_TONNE = 1e6  # grams


def cyclonedx(found: Statement) -> str:
    """An ML-BOM of CycloneDX 1.6. cyclonedx-python-lib, which checks it in the tests, has no class for model cards."""
    metrics = [{"type": name, "value": value} for name, value in _metrics(found)]
    considered: dict[str, Any] = {"technicalLimitations": [safe(line, 2000) for line in found.assumptions]}
    if energy := found.energy_kwh:
        cost = {"value": energy.high, "unit": "kWh"}
        unknown = {"organization": {"name": "not stated"}, "energySource": "unknown", "energyProvided": cost}
        spent: dict[str, Any] = {"activity": _activity(found), "energyProviders": [unknown]}
        spent["activityEnergyCost"] = cost
        if found.carbon:
            spent["co2CostEquivalent"] = {"value": energy.high * found.carbon / _TONNE, "unit": "tCO2eq"}
        considered["environmentalConsiderations"] = {"energyConsumptions": [spent]}
    card = {"quantitativeAnalysis": {"performanceMetrics": metrics}, "considerations": considered}
    component = {"type": "machine-learning-model", "name": safe(found.model), "modelCard": card}
    component |= {"supplier": {"name": safe(found.supplier)}} if found.supplier else {}
    name, _, version = found.tool.partition(" ")
    tool = {"type": "application", "name": name, "version": version}
    metadata: dict[str, Any] = {"tools": {"components": [tool]}}
    metadata |= {"timestamp": f"{found.date}T00:00:00Z"} if found.date else {}
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{_identity(found)}"}
    rest = {"version": 1, "metadata": metadata, "components": [component]}
    return inert(msgspec.json.encode({**head, **rest}))


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
    supplier = model.Organization(_id=f"{base}#supplier", creationInfo=info, name=safe(found.supplier))
    tool = model.Tool(_id=f"{base}#tool", creationInfo=info, name=found.tool)
    info.createdBy, info.createdUsing = [supplier], [tool]
    package = model.ai_AIPackage(_id=f"{base}#model", creationInfo=info, name=safe(found.model))
    package.suppliedBy, package.software_primaryPurpose = supplier, model.software_SoftwarePurpose.model
    sentences = [one.sentence for one in found.thresholds]
    package.ai_informationAboutTraining = " ".join([f"{headline(found)}.", *sentences])
    package.ai_limitation = "Assumed: " + "; ".join(found.assumptions)
    package.ai_metric = [model.DictionaryEntry(key=key, value=value) for key, value in _metrics(found)]
    if energy := found.energy_kwh:
        unit = model.ai_EnergyUnitType.kilowattHour
        spent = model.ai_EnergyConsumptionDescription(ai_energyQuantity=energy.high, ai_energyUnit=unit)
        field = f"ai_{_activity(found).replace('-', '')}EnergyConsumption"
        package.ai_energyConsumption = model.ai_EnergyConsumption(**{field: [spent]})
    document = model.SpdxDocument(_id=f"{base}#document", creationInfo=info, name="Compute statement")
    document.rootElement = [package]
    document.profileConformance = [model.ProfileIdentifierType.core, model.ProfileIdentifierType.ai]
    written = io.BytesIO()
    model.JSONLDSerializer().write(model.SHACLObjectSet([document, package, supplier, tool]), written)
    return inert(written.getvalue())


def huggingface(found: Statement) -> str:
    """The head of a model card with `co2_eq_emissions` where these are known, then the section of the card."""
    lines, energy = ["# co2_eq_emissions: not known; give --carbon, and --kwh or --device"], found.energy_kwh
    if energy and found.carbon:
        values = {
            "emissions": round(energy.high * found.carbon),
            "source": f"{found.tool}, energy {energy.basis}",
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
    """Figures by name: FLOPs by convention and stage, with `>=` where work is unknown, hours, energy and standings."""
    parts = [(f"stage {one.name} of {one.tokens} tokens", one.flops, one.at_least) for one in found.stages]
    for title, flops, at_least in (("training compute", found.flops, found.at_least), *parts):
        for field, (name, formula, _) in CONVENTIONS.items():
            count = f"{'>= ' * at_least}{power(getattr(flops, field))} FLOPs"
            yield safe(f"{title}, {name}: {formula}"), count
    yield "parameters", str(found.parameters)
    yield "parameters that a token uses", str(found.used_parameters)
    for name, share in (("MFU", found.mfu), ("HFU", found.hfu)):
        if share is not None:
            yield name, f"{share:.4f}"
    for name, interval in (("hours", found.hours), ("energy in kWh", found.energy_kwh)):
        if interval is not None:
            yield name, f"{span(interval)} ({interval.basis})"
    for one in found.thresholds:
        yield f"threshold, {one.threshold.name}", one.sentence
