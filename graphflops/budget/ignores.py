"""Findings of an audit that graphflops.toml ignores: by code, file and module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Union

import msgspec

from graphflops.base.patterns import matches_file, matches_module
from graphflops.budget.limits import table_of
from graphflops.errors import FileError, shown
from graphflops.report.findings import Finding

_Names = Union[str, list[str]]


class Ignore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[audit.ignore]]`: a finding is ignored that meets all of what is stated."""

    codes: _Names = ()  # type: ignore[assignment]  # codes or how they begin
    files: _Names = ()  # type: ignore[assignment]  # patterns of models, relative to the folder of graphflops.toml
    modules: _Names = ()  # type: ignore[assignment]  # patterns

    def ignores(self, finding: Finding, file: str) -> bool:
        """True for a finding in the model at that path."""
        given = (self.codes, self.files, self.modules)
        codes, files, modules = ([names] if isinstance(names, str) else [*names] for names in given)
        return (
            (not codes or finding.code.startswith(tuple(codes)))
            and (not files or any(matches_file(pattern, file) for pattern in files))
            and (not modules or any(matches_module(pattern, finding.module) for pattern in modules))
        )


class _Audit(msgspec.Struct, forbid_unknown_fields=True):
    ignore: list[Ignore] = []


def read_ignores(path: str | None) -> Callable[[Iterable[Finding], str], list[Finding]]:
    """What leaves out the findings of a model that a file ignores: it takes all of them, and the model's path.

    Raises FileError, in one line, for a table [audit] that is wrong.
    """
    if path is None:
        return lambda findings, model: [*findings]
    try:
        audit = msgspec.convert(table_of(path).get("audit", {}), _Audit)
    except msgspec.ValidationError as error:
        raise FileError(f"{shown(path)}: audit: {error}") from None
    for index, entry in enumerate(audit.ignore):
        if not (entry.codes or entry.files or entry.modules):
            where = f"{shown(path)}: audit.ignore[{index}]"
            raise FileError(f"{where} ignores nothing: state codes, files or modules")
    folder = os.path.abspath(os.path.dirname(path))

    def kept(findings: Iterable[Finding], model: str) -> list[Finding]:
        file = os.path.relpath(os.path.abspath(model), folder).replace(os.sep, "/")
        return [one for one in findings if not any(entry.ignores(one, file) for entry in audit.ignore)]

    return kept
