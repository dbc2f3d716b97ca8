"""Reads budgets: a TOML file as typed limits, fully checked; and which findings of an audit it ignores."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Union

import msgspec

from graphflops.base.files import content
from graphflops.base.patterns import matches_file, matches_module
from graphflops.base.record import Record
from graphflops.budget.amounts import amount, growth, percent
from graphflops.budget.measure import OF_DEVICES, OF_MODULES, SERVED, UNITS, Limit
from graphflops.errors import FileError, OptionError, shown
from graphflops.report import Execution
from graphflops.report.findings import Finding
from graphflops.training import Training, changed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from fractions import Fraction

_LARGEST_FILE = 2**20  # bytes of a budget
_MOST_PARTS = 64  # of a dotted key
_STRINGS = re.compile(  # and comments; each matches to the end of the text where it is not closed
    r'''"""[\s\S]*?(?:"""|\Z)|'{3}[\s\S]*?(?:'{3}|\Z)|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|#.*'''
)
_BETWEEN_KEYS = re.compile(r"[=,\[\]{}\n]")
_Amounts = Union[str, int, float, list[Union[str, int, float]]]


class Sizes(Record, frozen=True):
    """What a model is analyzed at; equal for all limits that one analysis can answer."""

    dims: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    training: bool | Training = False
    names: tuple[tuple[str, str], ...] = ()  # what sizes are called, the symbol or input axis by name
    device: str = ""  # where the program runs, "" for none
    execution: Execution | Literal[""] = ""  # how it runs, "" for the default
    # Options of `graphflops.serve`, with one `batch` and one `context`; else none.
    serving: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """`ids[1]=4096 training`; "" for the sizes of the export. What a baseline calls it."""
        parts = [f"{name}={size}" for name, size in self.dims]
        parts += [f"{name}={','.join(map(str, shape))}" for name, shape in self.inputs]
        parts += ["training", *changed(self.training)] if self.training else []
        parts += [f"on {self.device}"] if self.device else []
        parts += [self.execution] if self.execution else []
        return " ".join([*parts, *(f"{name}={value}" for name, value in self.serving)])


class Budget(Record, frozen=True):
    """One `[[budget]]`."""

    models: tuple[str, ...] = ("**",)  # patterns of the files it is for
    sizes: Sizes = Sizes()
    # By pattern: "" is the whole model; any other is for each module whose path matches, by itself.
    limits: tuple[tuple[str, tuple[Limit, ...]], ...] = ()
    coverage: Fraction | None = None  # the least share of calls whose cost must be known
    forbid: tuple[str, ...] = ()  # patterns of operators that may not occur
    unknown: tuple[str, ...] = ()  # patterns of those whose cost may be unknown

    def applies(self, path: str) -> bool:
        """True if the limits are for the model at this path, which is relative to the budget's folder."""
        return any(matches_file(pattern, path) for pattern in self.models)

    def absolute(self) -> Budget:
        kept = [(of, tuple(one for one in limits if not one.relative)) for of, limits in self.limits]
        return replace(self, limits=tuple(kept))

    @property
    def relative(self) -> bool:
        return any(limit.relative for _, limits in self.limits for limit in limits)


class BudgetFile(Record, frozen=True):
    """A whole budget."""

    path: str
    folder: str  # where it is, which all its paths are relative to
    budgets: tuple[Budget, ...]
    models: tuple[str, ...] = ()  # which files are checked where none is named
    baseline: str | None = None  # the file with what was measured before; None if the budget names none

    def files(self, among: Iterable[str] | None = None) -> list[str]:
        """The models that the budget names (of those in `among`), sorted; FileError for a pattern that matches none."""
        import glob

        found: set[str] = set()
        for pattern in self.models:
            if among is None:
                under = glob.glob(os.path.join(glob.escape(self.folder), pattern), recursive=True)
            else:
                under = [path for path in among if matches_file(pattern, self.name_of(path))]
            matching = [path for path in under if os.path.isfile(path)]
            if not matching:
                raise FileError(f"{shown(self.path)}: models: no file matches {shown(pattern)}")
            found.update(os.path.normpath(self._below("models", path)) for path in matching)
        for index, budget in enumerate(self.budgets):
            if found and not any(budget.applies(self.name_of(path)) for path in found):
                patterns = ", ".join(map(shown, budget.models))
                where = f"{shown(self.path)}: budget[{index}].models"
                raise FileError(f"{where}: none of the models matches {patterns}")
        return sorted(found)

    @property
    def relative(self) -> bool:
        return any(budget.relative for budget in self.budgets)

    @property
    def baseline_path(self) -> str | None:
        if self.baseline is None:
            return None
        return os.path.normpath(self._below("baseline", os.path.join(self.folder, self.baseline)))

    def _below(self, key: str, path: str) -> str:
        """The path; FileError if a link in it leads out of the budget's folder."""
        folder = os.path.realpath(self.folder)
        if os.path.commonpath([folder, os.path.realpath(path)]) != folder:
            _wrong(self.path, key, f"{shown(path)} leads out of the folder of the budget")
        return path

    def name_of(self, path: str) -> str:
        """A model's path as patterns and baselines have it: relative to the budget's folder, with `/`."""
        return os.path.relpath(os.path.abspath(path), os.path.abspath(self.folder)).replace(os.sep, "/")


# The limits of one module, and of a whole model: amounts by the name of the quantity.
_Quantities, _OfModels = (
    msgspec.defstruct(
        name, [(quantity, Union[_Amounts, None], None) for quantity in quantities], forbid_unknown_fields=True
    )
    for name, quantities in (("_Quantities", OF_MODULES), ("_OfModels", UNITS))
)


class _Serving(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """At what a decoder serves, and what runs it: options of `graphflops serve`."""

    batch: int
    context: int
    output_tokens: int | None = None
    engine: str = "none"
    devices: int = 1
    network: str | None = None
    kv_dtype: str | None = None
    shared_prefix: float = 0.0
    prefill_tokens: int | None = None


class _Entry(_OfModels, forbid_unknown_fields=True):  # type: ignore[misc, valid-type, call-arg]
    device: str = ""
    execution: str = ""
    models: str | list[str] = "**"
    dims: dict[str, int] = msgspec.field(default_factory=dict)
    inputs: dict[str, list[int]] = msgspec.field(default_factory=dict)
    names: dict[str, str] = msgspec.field(default_factory=dict)
    training: bool | dict[str, Any] = False
    serving: _Serving | None = None
    coverage: str | None = None
    forbid: str | list[str] = msgspec.field(default_factory=list)
    unknown: str | list[str] = msgspec.field(default_factory=list)
    modules: dict[str, _Quantities] = msgspec.field(default_factory=dict)  # type: ignore[valid-type]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    budget: list[_Entry] = []
    models: str | list[str] = []
    baseline: str | None = None
    audit: dict[str, Any] = {}  # of `graphflops audit`


def read(path: str) -> BudgetFile:
    """The budget in a file; FileError, in one line, says at which key it is wrong."""
    return parse(content(path, "budget", _LARGEST_FILE), path)


def parse(data: bytes, path: str) -> BudgetFile:
    """The budget written in `data`; FileError as `read` raises it."""
    table = _toml(data, path)
    try:
        wire = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        _wrong(path, *_said(str(error)))
    if not wire.budget:
        _wrong(path, "budget", "holds no limits: write them under [[budget]]")
    for key, written in (("models", _listed(wire.models)), ("baseline", _listed(wire.baseline or []))):
        for name in written:
            if os.path.isabs(name) or name[1:2] == ":" or ".." in name.replace("\\", "/").split("/"):
                _wrong(path, key, f"{shown(name)} is not below the folder of the budget")
    entries = [_budget(path, f"budget[{index}]", entry) for index, entry in enumerate(wire.budget)]
    folder, models = os.path.dirname(path) or ".", tuple(_listed(wire.models))
    return BudgetFile(path, folder, tuple(entries), models, wire.baseline)


def _toml(data: bytes, path: str) -> dict[str, Any]:
    try:
        text = data.decode()
        # At least the dots of the longest dotted key: Python's TOML parser needs memory quadratic in them.
        if max(part.count(".") for part in _BETWEEN_KEYS.split(_STRINGS.sub("", text))) >= _MOST_PARTS:
            raise FileError(f"{shown(path)}: no TOML: a key of more than {_MOST_PARTS} parts")
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{shown(path)}: no TOML: {shown(str(error), 300)}") from None
    return table


def given(limits: Mapping[str, Any], folder: str = ".") -> BudgetFile:
    """A budget of one `[[budget]]` given as Python values by the names of its keys; FileError if they are invalid."""
    try:
        entry = msgspec.convert(dict(limits), _Entry)
    except msgspec.ValidationError as error:
        _wrong("limits", *_said(str(error), _Entry))
    return BudgetFile("limits", folder, (_budget("limits", "", entry),))


def _step(path: str, at: str, given: bool | dict[str, Any]) -> bool | Training:
    if isinstance(given, bool):
        return given
    fields = Training.__dataclass_fields__
    unknown = next((key for key in given if key not in fields), None)
    if unknown is not None:
        _wrong(path, f"{at}.{unknown}", f"no option of a training step: {', '.join(fields)}")
    try:
        step = Training(**given)
    except OptionError as error:
        _wrong(path, at, str(error))
    return True if step == Training() else step


def _budget(path: str, at: str, entry: _Entry) -> Budget:
    inside = f"{at}." if at else ""
    if entry.execution not in ("", "eager", "graph", "compiled"):
        what = f"{shown(repr(entry.execution), 40)} is no execution: write eager, graph or compiled"
        _wrong(path, f"{inside}execution", what)
    sizes = Sizes(
        tuple(sorted(entry.dims.items())),
        tuple(sorted((name, tuple(shape)) for name, shape in entry.inputs.items())),
        _step(path, f"{inside}training", entry.training),
        tuple(sorted(entry.names.items())),
        entry.device,
        entry.execution,  # type: ignore[arg-type]  # as was checked
        () if entry.serving is None else tuple(msgspec.to_builtins(entry.serving).items()),
    )
    _refuse_mixed(path, inside, entry)
    for quantity in OF_DEVICES:
        if getattr(entry, quantity) is not None and not entry.device:
            _wrong(path, f"{inside}{quantity}", 'needs a device: add device = "h200"')
    asked, limits = entry.coverage, [("", tuple(_limits(path, inside, entry, tuple(UNITS))))]
    for pattern, quantities in entry.modules.items():
        place = f'{inside}modules."{pattern}".'
        limits.append((pattern, tuple(_limits(path, place, quantities, OF_MODULES))))
    return Budget(
        models=tuple(_listed(entry.models)),
        sizes=sizes,
        limits=tuple(limits),
        coverage=None if asked is None else _checked(path, f"{inside}coverage", percent, asked),
        forbid=tuple(_listed(entry.forbid)),
        unknown=tuple(_listed(entry.unknown)),
    )


def _refuse_mixed(path: str, inside: str, entry: _Entry) -> None:
    """Refuse quantities of serving without a load, and other quantities beside a load: these belong to another entry."""
    named = [quantity for quantity in UNITS if getattr(entry, quantity) is not None]
    wrong = [quantity for quantity in named if (quantity in SERVED) != (entry.serving is not None)]
    if entry.serving is None and wrong:
        _wrong(path, f"{inside}{wrong[0]}", "needs a load: add serving = {batch = 16, context = 8192}")
    if entry.serving is not None and (wrong or entry.modules or entry.training):
        what = (wrong or ["modules" if entry.modules else "training"])[0]
        _wrong(path, f"{inside}{what}", "is no quantity of serving: write it under another [[budget]]")


def _limits(path: str, inside: str, entry: msgspec.Struct, names: Sequence[str]) -> Iterator[Limit]:
    for quantity in names:
        given: _Amounts | None = getattr(entry, quantity)
        for text in [] if given is None else given if isinstance(given, list) else [given]:
            is_least = quantity in SERVED and SERVED[quantity].is_more_better
            is_growth = isinstance(text, str) and text.lstrip().startswith("+") and not is_least
            reader = partial(growth if is_growth else amount, unit=UNITS[quantity])
            yield Limit(quantity, _checked(path, f"{inside}{quantity}", reader, text), str(text))


def _checked(path: str, at: str, reader: Callable[[Any], Any], text: object) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        _wrong(path, at, str(error))


def _wrong(path: str, at: str, what: str) -> NoReturn:
    place = f"{at}: " if at else ""
    raise FileError(f"{shown(path)}: {shown(place, 300)}{shown(what, 500)}") from None


def _said(message: str, whole: type[msgspec.Struct] = _File) -> tuple[str, str]:
    """The place and the defect in what msgspec says: "... - at `$.budget[0].dims`"."""
    what, _, at = message.partition(" - at `$")
    if "unknown field" in what:
        known = _Quantities if "modules" in at else _Entry if "budget" in at else whole
        names = ", ".join(field.name for field in msgspec.structs.fields(known))
        what = f"{what}; known are {names}"
    return at.rstrip("`").lstrip("."), what


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


class Ignore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[audit.ignore]]`: a finding that meets all stated conditions is ignored."""

    codes: str | list[str] = []  # codes or how they begin
    files: str | list[str] = []  # patterns of models, relative to the folder of graphflops.toml
    modules: str | list[str] = []  # patterns

    def ignores(self, finding: Finding, file: str) -> bool:
        codes, files, modules = map(_listed, (self.codes, self.files, self.modules))
        return (
            (not codes or finding.code.startswith(tuple(codes)))
            and (not files or any(matches_file(pattern, file) for pattern in files))
            and (not modules or any(matches_module(pattern, finding.module) for pattern in modules))
        )


class _Audit(msgspec.Struct, forbid_unknown_fields=True):
    ignore: list[Ignore] = []


def read_ignores(path: str | None) -> Callable[[Iterable[Finding], str], list[Finding]]:
    """A function that removes what a file ignores from the findings of the model at a path. FileError for a wrong table."""
    if path is None:
        return lambda findings, model: [*findings]
    try:
        audit = msgspec.convert(_toml(content(path, "budget", _LARGEST_FILE), path).get("audit", {}), _Audit)
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
