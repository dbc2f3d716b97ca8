"""Records: frozen dataclasses that msgspec makes, each class forty times and each object ten times as fast.

Making the classes of the standard library took a sixth of an analysis. Its `replace` and `fields` take records too.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import NODEFAULT, Struct


class _Fields:
    """The fields of a class of records as `dataclasses` describes them, found when it asks."""

    def __get__(self, record: object, cls: type[Record]) -> dict[str, Field[Any]]:
        return _described(cls)


class Record(Struct, frozen=True):
    """The base of all records; `class X(Record, frozen=True)` for what `@dataclass(frozen=True, slots=True)` makes."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _Fields()


def defaults_of(cls: type[Record]) -> dict[str, Any]:
    """The fields of a class in order, each with its default, MISSING for none."""
    names, last = cls.__struct_fields__, cls.__struct_defaults__
    none = [NODEFAULT] * (len(names) - len(last))
    return {name: _value(default) for name, default in zip(names, (*none, *last), strict=True)}


def _value(default: Any) -> Any:
    """A default; msgspec wraps one that each record gets for itself."""
    return MISSING if default is NODEFAULT else default.factory() if hasattr(default, "factory") else default


@cache
def _described(cls: type[Record]) -> dict[str, Field[Any]]:
    parts = [(name, Any, _field(default)) for name, default in defaults_of(cls).items()]
    made: Any = make_dataclass(
        cls.__name__, parts, init=False, repr=False, eq=False, namespace={"__doc__": ""}
    )
    found: dict[str, Field[Any]] = made.__dataclass_fields__
    return found


def _field(default: Any) -> Any:
    is_own = isinstance(default, (dict, list, set))
    return field(default_factory=default.copy) if is_own else field(default=default)
