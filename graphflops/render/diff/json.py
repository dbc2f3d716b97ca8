"""A comparison as JSON, as docs/diff.md describes it: derived from the classes of comparison/result.py."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union

import msgspec

from graphflops.base.json_form import (
    Form,
    Formula,
    JsonForms,
    Key,
    Kind,
    Session,
    declared,
    remembered,
    written,
)
from graphflops.comparison.result import Comparison, Fact, Figure, ModuleChange, ServedChange, TimeChange
from graphflops.dims import Dim
from graphflops.graph import Origin
from graphflops.render.text import inert
from graphflops.report import Row
from graphflops.report.as_json import Tool, left_out, printable
from graphflops.version import __version__

SCHEMA: Literal[1] = 1
_FORMS: dict[type, Form] = {
    Comparison: Form(names={"dtypes": "parameter_dtypes", "unchanged": "unchanged_modules"}, always=True),
    Fact: Form(first=("kind", "what"), always=True),
    ModuleChange: Form(
        first=(
            *("status", "before", "after", "before_type", "after_type", "whole", "modules"),
            *("figures", "backward", "facts"),
        ),
        always=True,
    ),
}


class FigureChange(msgspec.Struct, frozen=True):
    """One quantity; delta is after less before."""

    before: Union[int, Formula]
    after: Union[int, Formula]
    delta: Union[int, Formula]


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
    session = Session()
    document = whole(
        diff=SCHEMA,
        tool=Tool("graphflops", __version__),
        before=origin(session, printable(comparison.old.origin)),
        after=origin(session, printable(comparison.new.origin)),
        **written(session, comparison, keys),
    )
    return inert(msgspec.json.encode(document))


@cache
def _document() -> tuple[Any, list[Key], Any]:
    """The msgspec type, the keys of one field of the comparison, and the writer of an origin."""
    figures = Kind(dict[str, FigureChange], remembered(_changes, id))
    special = {Mapping[str, Figure]: figures, Row: Kind(CallSummary, _call)}
    forms = JsonForms(_FORMS, special, default=Form(always=True))
    keys = forms.keys(Comparison, without=("old", "new", "folded", "causes", "calls"))
    keys.append(Key("time", "time", left_out(forms.kind(TimeChange)), msgspec.UNSET))
    keys.append(Key("serving", "serving", left_out(forms.kind(ServedChange)), msgspec.UNSET))
    head = [Key("diff", "", Kind(Literal[1])), Key("tool", "", Kind(Tool))]
    origin = forms.kind(Origin)
    sides = [Key(side, "", Kind(origin.json)) for side in ("before", "after")]
    return declared(Comparison, [*head, *sides, *keys], kw_only=True), keys, origin.write


def _changes(_: Session, figures: Mapping[str, Figure]) -> dict[str, FigureChange]:
    return {
        name: FigureChange(
            _quantity(figure.before, figure.before_value),
            _quantity(figure.after, figure.after_value),
            _quantity(figure.formula, figure.delta),
        )
        for name, figure in figures.items()
    }


def _quantity(dim: Dim, value: int | None) -> int | Formula:
    return dim if isinstance(dim, int) else Formula(value, str(dim))


def _call(_: Session, row: Row) -> CallSummary:
    tensors = ([str(named.type) for named in side] for side in (row.inputs, row.outputs))
    return CallSummary(row.node, row.op, row.source, row.state, *tensors)
