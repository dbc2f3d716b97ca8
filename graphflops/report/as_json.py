"""A report as JSON and back, derived from its classes; a quantity is an integer, or has its value and formula."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, Union

import msgspec
from msgspec import structs

from graphflops.base.json_form import Form, JsonForms, Key, Kind, Session, declared, dim, remembered, written
from graphflops.cost import CONVENTIONS, Cost
from graphflops.derived.items import cost_per_million, throughput
from graphflops.errors import DimError, FileError
from graphflops.graph import Origin
from graphflops.report import HELD, Coverage, Named, Report, Row, SymbolInfo, Timeline, Totals, phases_of
from graphflops.report.contradictions import diagnostic, saved
from graphflops.report.timeline import PhaseTime
from graphflops.tensor import TensorType, dtype_named
from graphflops.training import Training
from graphflops.version import __version__

SCHEMA: Literal[1] = 1
# Fields of a report that `_document` does not derive.
_APART = ("totals", "backward", "optimizer", "step_time", "program")
_PHASES = ("backward", "optimizer", "step")
_UNDERIVED = frozenset({"schema", "tool", "conventions", "origin"})  # files of other versions differ in these
_FORMS = {
    Cost: Form(computed={"macs": "matrix_flops"}, always=True, lenient=True, is_shared=True),
    Coverage: Form(computed={"nodes": ""}),
    Origin: Form(always=True),
    Report: Form(
        first=(
            *("origin", "symbols", "coverage", "modules", "parameter_modules", "parameter_dtypes"),
            *("rows", "diagnostics"),
        ),
        written=("modules", "parameter_modules", "parameter_dtypes", "diagnostics"),
    ),
    Row: Form(written=("inputs", "outputs", "cost")),
    SymbolInfo: Form(arrays={"range": ("minimum", "maximum")}, always=True, lenient=True),
    Timeline: Form(written=("rows", "held")),
    Totals: Form(always=True),
    Training: Form(always=True, lenient=True),
}


def encoded(report: Report) -> bytes:
    """The report as JSON, UTF-8, one object; raises nothing."""
    return msgspec.json.encode(_stated(report))


def _stated(report: Report) -> Any:
    """The object that is the report's JSON, with the figures that follow from the rest."""
    document, session, rates = _document(), Session(report.values), throughput(report)
    totals = {
        name: document.phase(**document.written_totals(session, part, report))
        for name, part in phases_of(report).items()
        if name != "forward"
    }
    return document.whole(
        schema=SCHEMA,
        tool=Tool("graphflops", __version__),
        conventions=CONVENTIONS,
        totals=document.totals(**document.written_totals(session, report.totals, report), **totals),
        throughput=rates or msgspec.UNSET,
        price_of_a_million=cost_per_million(rates, report.price_per_hour) or msgspec.UNSET,
        **{**written(session, report, document.keys), "origin": printable(report.origin)},
    )


def printable(origin: Origin) -> Origin:
    """The origin as UTF-8 can hold it: a file's name need not be valid text."""
    texts = structs.astuple(origin)
    return Origin(*(text.encode(errors="backslashreplace").decode() for text in texts))


def decoded(data: bytes) -> Report:
    """The report that JSON holds; FileError names the place in it where it is not a report of this schema."""
    document, session = _document(), Session()
    try:
        found: Any = msgspec.json.decode(data, type=document.whole)
        own = {key.source: key.kind.read(session, getattr(found, key.name)) for key in document.keys}
        step = document.read_totals(session, found.totals.step)
        report = Report(
            totals=document.read_totals(session, found.totals),
            backward=document.read_totals(session, found.totals.backward),
            optimizer=document.read_totals(session, found.totals.optimizer),
            step_time=None if step is None else step.time,
            **{name: getattr(found.totals, name) for name in HELD},
            **own,
        )
        checked, elsewhere = saved(report), _elsewhere(found, _stated(report))
    except (msgspec.MsgspecError, UnicodeDecodeError, DimError, RecursionError) as error:
        raise FileError(f"not a graphflops report of schema {SCHEMA}: {error}") from error
    if not elsewhere:
        return checked
    said = diagnostic("GF120", "", f"{elsewhere} is not what follows from the rest of the report")
    return structs.replace(checked, diagnostics=(*checked.diagnostics, said))


def _elsewhere(said: object, follows: object, where: str = "") -> str:
    """Where a report contradicts what follows from the rest of it; "" if nowhere. Figures left out contradict nothing."""
    if said == follows or said is msgspec.UNSET or where in _UNDERIVED:
        return ""
    parts: Iterable[tuple[object, object, object]] = ()
    if isinstance(said, msgspec.Struct) and type(said) is type(follows):
        names = said.__struct_fields__
        parts = ((name, getattr(said, name), getattr(follows, name)) for name in names)
    elif isinstance(said, dict) and isinstance(follows, dict):
        parts = ((name, each, follows.get(name)) for name, each in said.items())
    elif isinstance(said, list) and isinstance(follows, list):
        parts = ((place, *both) for place, both in enumerate(zip(said, follows, strict=False)))
    inner = (_elsewhere(one, other, f"{where}.{name}".lstrip(".")) for name, one, other in parts)
    return next(filter(None, inner), where)


class Tool(msgspec.Struct, frozen=True):
    """The program that wrote the document."""

    name: str
    version: str


class Tensor(msgspec.Struct, frozen=True):
    """A tensor under the name its file gives it."""

    name: str
    shape: list[Union[int, str]]
    dtype: str


class _Document(msgspec.Struct, frozen=True):
    whole: Any  # msgspec type of the object
    totals: Any  # of its totals
    phase: Any  # of one phase in these
    keys: list[Key]  # those of the object that stand for one field of the report
    costs: list[Key]  # those of a phase: of its cost, of its other totals, of the report
    own: list[Key]
    sizes: list[Key]
    cost: Any
    time: Key

    def written_totals(self, session: Session, totals: Totals, report: Report) -> dict[str, Any]:
        return {
            **written(session, totals.cost, self.costs),
            **written(session, totals, self.own),
            **written(session, report, self.sizes),
        }

    def read_totals(self, session: Session, found: Any) -> Any:
        """The totals of a phase; None if the report has no such phase."""
        if found is msgspec.UNSET:
            return None
        time = self.time.kind.read(session, found.time)
        cost = self.cost.read(session, self.cost.json(*(getattr(found, key.name) for key in self.costs)))
        return Totals(cost, dim(found.peak_bytes), found.peak_node, time)


@cache
def _document() -> _Document:
    forms = JsonForms(_FORMS, {Named: _NAMED})
    cost = forms.kind(Cost)
    costs, peaks = forms.keys(Cost), forms.keys(Totals, without=("cost", "time"))
    time = Key("time", "time", left_out(forms.kind(PhaseTime)), msgspec.UNSET)
    sizes = [Key(name, name, Kind(int)) for name in HELD]
    phase = declared(Totals, [*costs, *peaks, *sizes, time], name="Phase", is_omitting=False, kw_only=True)
    may_lack = Kind(Union[phase, msgspec.UnsetType])
    others = [time, *[Key(name, name, may_lack, msgspec.UNSET) for name in _PHASES]]
    totals = declared(Totals, [*costs, *peaks, *sizes, *others], is_omitting=False, kw_only=True)
    keys = [
        Key(key.name, key.source, left_out(key.kind, Timeline(), None), None) if key.name == "memory" else key
        for key in forms.keys(Report, without=(*_APART, *HELD))
    ]
    head = [Key("schema", "", Kind(Literal[1])), Key("tool", "", Kind(Tool))]
    origin, symbols, *rest = keys
    middle = [Key("conventions", "", Kind(dict[str, str])), Key("totals", "", Kind(totals))]
    rates = Kind(Union[dict[str, float], msgspec.UnsetType])
    rest += [Key(name, "", rates, msgspec.UNSET) for name in ("throughput", "price_of_a_million")]
    whole = declared(Report, [*head, origin, symbols, *middle, *rest], kw_only=True)
    return _Document(whole, totals, phase, keys, costs, [*peaks, time], sizes, cost, time)


def left_out(kind: Kind, empty: Any = None, said: Any = msgspec.UNSET) -> Kind:
    """The kind of a key that is written as `said` if its value is empty; by default the key is left out."""
    return Kind(
        Union[kind.json, None if said is None else msgspec.UnsetType],
        lambda session, value: said if value == empty else kind.write(session, value),
        lambda session, found: empty if found is said else kind.read(session, found),
    )


_described = remembered(
    lambda _, found: ([one if isinstance(one, int) else str(one) for one in found.shape], found.dtype.name),
    id,
)
_typed = remembered(
    lambda _, found: TensorType(tuple(map(dim, found.shape)), dtype_named(found.dtype)),
    lambda found: (*found.shape, found.dtype),
)
_NAMED = Kind(
    Tensor,
    lambda session, named: Tensor(named.name, *_described(session, named.type)),
    lambda session, found: Named(found.name, _typed(session, found)),
)
