"""A comparison as JSON, as docs/diff.md describes it: derived from the classes of comparison/result.py."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union

import msgspec

from graphflops.base import json_form
from graphflops.comparison.result import Comparison, Fact, Figure, ModuleChange, ServedChange, TimeChange
from graphflops.dims import Dim
from graphflops.graph import Origin
from graphflops.render.text import inert
from graphflops.report import Row
from graphflops.report.as_json import Tool, left_out, printable
from graphflops.version import __version__

SCHEMA: Literal[1] = 1
_FORMS: dict[type, json_form.Form] = {
    Comparison: json_form.Form(
        names={"dtypes": "parameter_dtypes", "unchanged": "unchanged_modules"}, always=True
    ),
    Fact: json_form.Form(first=("kind", "what"), always=True),
    ModuleChange: json_form.Form(
        first=(
            *("status", "before", "after", "before_type", "after_type", "whole", "modules"),
            *("figures", "backward", "facts"),
        ),
        always=True,
    ),
}


class FigureChange(msgspec.Struct, frozen=True):
    """One quantity; delta is after less before."""

    before: Union[int, json_form.Formula]
    after: Union[int, json_form.Formula]
    delta: Union[int, json_form.Formula]


class CallSummary(msgspec.Struct, frozen=True):
    """One call, as a row of its report has it."""

    node: str
    op: str
    source: str
    state: str
    inputs: list[str]
    outputs: list[str]


def json(comparison: Comparison) -> str:
    """The whole comparison, one object on one line."""
    whole, keys, origin = _document()
    session = json_form.Session()
    document = whole(
        diff=SCHEMA,
        tool=Tool("graphflops", __version__),
        before=origin(session, printable(comparison.old.origin)),
        after=origin(session, printable(comparison.new.origin)),
        **json_form.written(session, comparison, keys),
    )
    return inert(msgspec.json.encode(document))


@cache
def _document() -> tuple[Any, list[json_form.Key], Any]:
    """The msgspec type, the keys of one field of the comparison, and the writer of an origin."""
    figures = json_form.Kind(dict[str, FigureChange], json_form.remembered(_changes, id))
    special = {Mapping[str, Figure]: figures, Row: json_form.Kind(CallSummary, _call)}
    forms = json_form.JsonForms(_FORMS, special, default=json_form.Form(always=True))
    keys = forms.keys(Comparison, without=("old", "new", "folded", "causes", "calls"))
    keys.append(json_form.Key("time", "time", left_out(forms.kind(TimeChange)), msgspec.UNSET))
    keys.append(json_form.Key("serving", "serving", left_out(forms.kind(ServedChange)), msgspec.UNSET))
    head = [
        json_form.Key("diff", "", json_form.Kind(Literal[1])),
        json_form.Key("tool", "", json_form.Kind(Tool)),
    ]
    origin = forms.kind(Origin)
    sides = [json_form.Key(side, "", json_form.Kind(origin.json)) for side in ("before", "after")]
    return json_form.declared(Comparison, [*head, *sides, *keys], kw_only=True), keys, origin.write


def _changes(_: json_form.Session, figures: Mapping[str, Figure]) -> dict[str, FigureChange]:
    return {
        name: FigureChange(
            _quantity(figure.before, figure.before_value),
            _quantity(figure.after, figure.after_value),
            _quantity(figure.formula, figure.delta),
        )
        for name, figure in figures.items()
    }


def _quantity(dim: Dim, value: int | None) -> int | json_form.Formula:
    return dim if isinstance(dim, int) else json_form.Formula(value, str(dim))


def _call(_: json_form.Session, row: Row) -> CallSummary:
    tensors = ([str(named.type) for named in side] for side in (row.inputs, row.outputs))
    return CallSummary(row.node, row.op, row.source, row.state, *tensors)
