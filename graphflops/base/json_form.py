"""Derives the JSON form of records and named tuples: msgspec types that check what is read, a writer and a reader.

An object has the fields by name, in their order. A field with its default is omitted, unless the class's `Form` says not.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from operator import attrgetter
from typing import Any, Union

import msgspec

from graphflops.base.record import Record, defaults_of
from graphflops.dims import Dim, Expr, evaluate, parse_dim

_NONE: Mapping[str, Any] = {}
# In annotations, though many modules import them for annotations only.
_NAMES = {"Dim": Dim, "Mapping": Mapping}


class Formula(msgspec.Struct, frozen=True):
    """A quantity that depends on a size: its value, null where a size has none, and the formula."""

    value: int | None
    formula: str


class Session:
    """One document being written or read."""

    def __init__(self, values: Mapping[str, int] = _NONE) -> None:
        self.values = values  # known sizes, at which formulas are given as numbers
        self.known: dict[Any, Any] = {}  # what has been converted, by class and key

    def formula(self, quantity: Expr) -> Formula:
        found = self.known.get(quantity)
        if found is None:
            found = self.known[quantity] = Formula(evaluate(quantity, self.values), str(quantity))
        return found


Convert = Callable[[Session, Any], Any]


def unchanged(_: Session, value: Any) -> Any:
    """Writes or reads a value as it is."""
    return value


class Kind(msgspec.Struct, frozen=True):
    """How values of one type are written and read. json: the msgspec type."""

    json: Any
    write: Convert = unchanged
    read: Convert = unchanged


class Form(msgspec.Struct, frozen=True):
    """How the JSON object of a class differs from its fields."""

    first: tuple[str, ...] = ()  # fields that come first, in this order
    names: Mapping[str, str] = {}  # keys of fields that have another name in JSON
    # Properties that are written too, each after the field named, "" for the first place; not read.
    computed: Mapping[str, str] = {}
    arrays: Mapping[str, tuple[str, ...]] = {}  # fields that are one array together, by its key
    written: tuple[str, ...] = ()  # fields that are always written
    always: bool = False  # every key is
    lenient: bool = False  # whether fields with a default may be missing in what is read
    is_shared: bool = False  # many objects hold the same one, which is then converted once


class Key(msgspec.Struct, frozen=True):
    """One key of an object. source: the field or property. fields: those that make up an array, else ()."""

    name: str
    source: str
    kind: Kind
    default: Any = MISSING
    fields: tuple[str, ...] = ()

    @property
    def declared(self) -> tuple[Any, ...]:
        """The key as `msgspec.defstruct` takes it, with its default where it may be missing."""
        if self.default is MISSING:
            return (self.name, self.kind.json)
        if isinstance(self.default, (tuple, dict)):
            empty = list if isinstance(self.default, tuple) else dict
            return (self.name, self.kind.json, msgspec.field(default_factory=empty))
        return (self.name, self.kind.json, self.default)


class JsonForms:
    """The JSON forms of the classes that a document is made of."""

    def __init__(
        self, forms: Mapping[type, Form], special: Mapping[Any, Kind] = _NONE, default: Form | None = None
    ) -> None:
        self._forms = forms  # of classes whose objects differ from their fields
        self._default = default or Form()  # of all others
        self._kinds: dict[Any, Kind] = {Dim: QUANTITY, **special}  # of types that are no such objects too

    def kind(self, annotation: Any) -> Kind:
        known = self._kinds.get(annotation)
        if known is None:
            known = self._kinds[annotation] = self._derived(annotation)
        return known

    def form(self, cls: type) -> Form:
        return self._forms.get(cls, self._default)

    def keys(self, cls: type, *, without: tuple[str, ...] = ()) -> list[Key]:
        form, hints, defaults = self.form(cls), _annotations(cls), _defaults(cls)
        after = {previous: name for name, previous in form.computed.items()}
        arrays = {members[0]: (key, members) for key, members in form.arrays.items()}
        joined = {member for members in form.arrays.values() for member in members}
        order = [*form.first, *(name for name in defaults if name not in form.first)]
        keys: list[Key] = []
        for name in ("", *(name for name in order if name not in without)):
            if name in arrays:
                key, members = arrays[name]
                kinds = [self.kind(hints[member]) for member in members]
                keys.append(Key(key, "", _array(kinds), fields=members))
            elif name and name not in joined:
                default = defaults[name]
                required = (form.always or name in form.written) and not form.lenient
                kind = self.kind(hints[name])
                keys.append(Key(form.names.get(name, name), name, kind, MISSING if required else default))
            if name in after:
                returned = _annotations(getattr(cls, after[name]).fget)["return"]
                default = 0 if form.lenient else MISSING
                keys.append(Key(after[name], after[name], self.kind(returned), default))
        return keys

    def _derived(self, annotation: Any) -> Kind:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return _list(self.kind(args[0]))
        if origin is tuple:
            return _array([self.kind(arg) for arg in args])
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _dict(self.kind(args[1]))
        if origin in (Union, types.UnionType) and type(None) in args:
            return _optional(self.kind(Union[tuple(arg for arg in args if arg is not type(None))]))
        if isinstance(annotation, type) and (
            issubclass(annotation, Record) or hasattr(annotation, "_fields")
        ):
            form, keys = self.form(annotation), self.keys(annotation)
            struct = declared(annotation, keys, is_omitting=not form.always)
            write, read = writer(struct, keys), _reader(annotation, keys)
            if form.is_shared:
                return Kind(struct, remembered(write, id), remembered(read, lambda value: value))
            return Kind(struct, write, read)
        return Kind(annotation)


def declared(
    cls: type, keys: list[Key], *, name: str = "", is_omitting: bool = True, kw_only: bool = False
) -> type[msgspec.Struct]:
    """The msgspec type of objects with these keys, under the name and first sentence of the class."""
    options: Any = {"frozen": True, "omit_defaults": is_omitting, "kw_only": kw_only}
    options["namespace"] = {"__doc__": (cls.__doc__ or "").strip().partition("\n")[0]}
    return msgspec.defstruct(name or cls.__name__, [key.declared for key in keys], **options)


def written(session: Session, value: object, keys: list[Key]) -> dict[str, Any]:
    """The values of keys that stand for one field or property each."""
    return {key.name: key.kind.write(session, getattr(value, key.source)) for key in keys}


def writer(struct: Any, keys: list[Key]) -> Convert:
    """Makes the msgspec object of an object that has these fields and properties."""
    arrays = [(place, attrgetter(*key.fields)) for place, key in enumerate(keys) if key.fields]
    steps = [(place, key.kind.write) for place, key in enumerate(keys) if key.kind.write is not unchanged]
    fetched = attrgetter(*(key.source or key.fields[0] for key in keys))

    def write(session: Session, value: Any) -> Any:
        found = [*fetched(value)]
        for place, array in arrays:
            found[place] = array(value)
        for place, step in steps:
            found[place] = step(session, found[place])
        return struct(*found)

    return write


def _reader(cls: Any, keys: list[Key]) -> Convert:
    names = {*_defaults(cls)}
    single = [key for key in keys if key.source in names]
    arrays = [(attrgetter(key.name), key) for key in keys if key.fields]
    sources, fetched = [key.source for key in single], attrgetter(*(key.name for key in single))
    steps = [(key.source, key.kind.read) for key in single if key.kind.read is not unchanged]

    def read(session: Session, written: Any) -> Any:
        given = dict(zip(sources, fetched(written), strict=True))
        for name, step in steps:
            given[name] = step(session, given[name])
        for array, key in arrays:
            values = key.kind.read(session, array(written))
            given.update(zip(key.fields, values, strict=True))
        return cls(**given)

    return read


def remembered(convert: Convert, key: Callable[[Any], Any]) -> Convert:
    """The conversion, done once in a session for each key of a value that outlives the session."""

    def converted(session: Session, value: Any) -> Any:
        place = (convert, key(value))
        found = session.known.get(place)
        if found is None:
            found = session.known[place] = convert(session, value)
        return found

    return converted


def dim(written: int | str | Formula) -> Dim:
    """The size or quantity that was written as a number, a text or a formula."""
    if isinstance(written, int):
        return written
    return parse_dim(written if isinstance(written, str) else written.formula)


QUANTITY = Kind(
    Union[int, Formula],
    lambda session, quantity: quantity if isinstance(quantity, int) else session.formula(quantity),
    lambda session, written: dim(written),
)


def _annotations(what: Any) -> dict[str, Any]:
    if hasattr(what, "_fields"):  # a NamedTuple, which wraps its annotations
        return typing.get_type_hints(what, localns=_NAMES)
    # Many times faster than get_type_hints.
    return inspect.get_annotations(what, locals=_NAMES, eval_str=True)


def _defaults(cls: Any) -> dict[str, Any]:
    if issubclass(cls, Record):
        return defaults_of(cls)
    return {name: cls._field_defaults.get(name, MISSING) for name in cls._fields}


def _list(each: Kind) -> Kind:
    return Kind(
        list[each.json],  # type: ignore[name-defined]
        lambda session, values: [each.write(session, value) for value in values],
        lambda session, values: tuple([each.read(session, value) for value in values]),
    )


def _dict(each: Kind) -> Kind:
    return Kind(
        dict[str, each.json],  # type: ignore[name-defined]
        lambda session, values: {name: each.write(session, value) for name, value in values.items()},
        lambda session, values: {name: each.read(session, value) for name, value in values.items()},
    )


def _array(each: list[Kind]) -> Kind:
    def through(steps: list[Convert]) -> Convert:
        return lambda session, values: tuple(
            [step(session, value) for step, value in zip(steps, values, strict=True)]
        )

    json: Any = tuple
    write, read = through([kind.write for kind in each]), through([kind.read for kind in each])
    return Kind(json[tuple(kind.json for kind in each)], write, read)


def _optional(kind: Kind) -> Kind:
    return Kind(
        Union[kind.json, None],
        lambda session, value: None if value is None else kind.write(session, value),
        lambda session, value: None if value is None else kind.read(session, value),
    )
