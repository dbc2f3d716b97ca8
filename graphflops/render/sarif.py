"""Findings as SARIF 2.1.0, which code scanning shows beside the source lines they are about."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

from graphflops.dims import Dim, evaluate
from graphflops.render.text import inert, safe
from graphflops.report.findings import SEVERITIES, Finding, Findings, ModelFindings, RuleInfo
from graphflops.version import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST = 25_000  # results of one run that GitHub's code scanning accepts; graver ones come first
_LINE = re.compile(r"(.+):(\d{1,9})")
_DRIVE = re.compile(r"[A-Za-z]:/")
_LONGEST = 1_000  # characters of a sentence


def sarif(found: Findings, *, locate: Callable[[Iterable[str]], Mapping[str, str]] | None = None) -> str:
    """All findings as one run. locate: gives paths in the checkout of source files; others are placed at their model."""
    files = {} if locate is None else locate(source_files(found.models))
    listed = [(model, finding) for model in found.models for finding in model.findings]
    others = {one.code: RuleInfo(one.name, one.name, "", one.severity) for _, one in listed}
    known = {**found.rules, **others, **found.rules}
    index = {code: number for number, code in enumerate(known)}
    listed.sort(key=lambda pair: SEVERITIES.index(pair[1].severity))
    driver = {
        "name": "graphflops",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(code, info) for code, info in known.items()],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"graphflops/{found.command}/"},
        "invocations": [{"executionSuccessful": True}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(model, finding, index[finding.code], files) for model, finding in listed[:_MOST]],
    }
    return inert(msgspec.json.encode({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}))


def source_files(found: Sequence[ModelFindings]) -> list[str]:
    """The source files that findings name, as an export names them: `model.py`."""
    names = (_LINE.fullmatch(finding.source) for model in found for finding in model.findings)
    return sorted({name[1] for name in names if name})


def _rule(code: str, info: RuleInfo) -> dict[str, Any]:
    return {
        "id": code,
        "name": info.name,
        "shortDescription": {"text": info.summary},
        "help": {"text": info.help or info.summary},
        "defaultConfiguration": {"level": info.severity},
        "properties": {"tags": ["performance"]},
    }


def _result(model: ModelFindings, finding: Finding, rule: int, files: Mapping[str, str]) -> dict[str, Any]:
    name = _LINE.fullmatch(finding.source)
    at_line = name is not None and name[1] in files
    place = {
        "artifactLocation": _file(files[name[1]] if at_line and name else model.model),
        "region": {"startLine": max(int(name[2]), 1) if at_line and name else 1},
    }
    told = f"{model.model}: " if at_line else ""
    beside = f" ({finding.source})" if finding.source and not at_line else ""
    more = f" (`graphflops audit {model.model} {finding.command}`)" if finding.command else ""
    sentences = (f"{told}{finding.message.rstrip('.')}{beside}.", finding.fix and f"Fix: {finding.fix}{more}")
    text = " ".join(safe(one, _LONGEST).replace("](", "] (") for one in sentences if one)
    identity = (finding.code, model.model, finding.module, finding.op, finding.node)
    digest = sha256("\0".join(identity).encode(errors="backslashreplace")).hexdigest()
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": place, "logicalLocations": _inside(finding)}],
        "partialFingerprints": {"graphflops/v1": digest},
        "properties": {
            "model": safe(model.model),
            **{name: safe(getattr(finding, name)) for name in ("node", "op", "module", "source")},
            "applicability": finding.applicability,
            "flops": _quantity(finding.flops, model.values),
            "bytes": _quantity(finding.bytes, model.values),
            "stored": finding.stored,
        },
    }


def _inside(finding: Finding) -> list[dict[str, Any]]:
    name = safe(finding.module) or safe(finding.node)
    if not name:
        return []
    kind = "module" if finding.module else "element"
    return [{"name": name.rpartition(".")[2] or name, "fullyQualifiedName": name, "kind": kind}]


def _file(path: str) -> dict[str, str]:
    """A path as a URI, relative to the checkout where it is not absolute."""
    path = path.replace("\\", "/")
    while path.startswith("./"):
        path = path[2:]
    named = quote(path.encode(errors="surrogateescape"), safe="/")
    if path.startswith("/"):
        return {"uri": f"file://{named}"}
    if _DRIVE.match(path):
        return {"uri": f"file:///{path[:2]}{named[4:]}"}
    return {"uri": named, "uriBaseId": "%SRCROOT%"}


def _quantity(quantity: Dim | None, values: Mapping[str, int]) -> int | str | None:
    """A number where it is known, else its formula; a number beyond 2^53 is text, since many readers would round it."""
    if quantity is None:
        return None
    value = evaluate(quantity, values)
    if value is None:
        return str(quantity)
    return value if abs(value) < 2**53 else str(value)
