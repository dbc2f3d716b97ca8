"""The arguments of rules, and rules made from functions: of many operands, got by name, or derived from another rule."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from graphflops.cost import Estimate
from graphflops.errors import ShapeError

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect.CO_*, without the 8 ms of importing inspect


class Signature(NamedTuple):
    """The arguments that a rule takes."""

    positional: tuple[str, ...]  # those that can be given by position, in order
    keywords: tuple[str, ...] = ()  # those that are given by name only
    optional: frozenset[str] = frozenset()  # those that a call may leave out
    types: Mapping[str, Any] = {}  # annotations, or how they are spelled
    is_variadic: bool = False  # whether it takes any number of operands
    is_open: bool = False  # whether it takes keywords that it does not name

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, positional ones first."""
        return self.positional + self.keywords

    @staticmethod
    @cache
    def of(function: Callable[..., Any]) -> Signature:
        """The arguments of a function, or of a rule made from one."""
        if isinstance(function, Derived):
            return function.signature
        code, count = function.__code__, function.__code__.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        first = count - len(function.__defaults__ or ())  # that has a default
        return Signature(
            names[:count],
            names[count:],
            frozenset((*names[first:count], *(function.__kwdefaults__ or ()))),
            function.__annotations__,
            bool(code.co_flags & _VARARGS),
            bool(code.co_flags & _VARKEYWORDS),
        )


class Operands:
    """The operands of one call in the operator's order, None if omitted, and its attributes, all by name."""

    def __init__(self, given: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        self.given, self.attributes = given, attributes

    def __getattr__(self, name: str) -> Any:
        for values in (self.given, self.attributes):
            if name in values:
                return values[name]
        raise AttributeError(f"there is no operand {name}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given.values())

    def but(self, names: str) -> tuple[Any, ...]:
        """All operands but these."""
        return tuple(value for name, value in self.given.items() if name not in names.split())

    def named(self, names: str) -> tuple[Any, ...]:
        """These operands, in this order."""
        return tuple(self.given[name] for name in names.split())


class Derived:
    """A rule made from another: `base` with some parameters given, and `change` applied to its estimate."""

    def __init__(
        self,
        base: Callable[..., Any],
        change: Callable[[Any], Estimate] | None = None,
        says: str = "",  # one sentence on what is counted; by default that of `base`
        # Operands by names of parameters, `_` for one that is ignored; "": as in `base`.
        order: str = "",
        *,
        usually: Mapping[str, object] | None = None,  # defaults that differ from those of the function
        **given: object,
    ) -> None:
        self.__wrapped__ = base  # where the description is read if `says` is empty
        self.change, self.given, self.says = change, given, says or getattr(base, "says", "")
        self.usually = usually or {}
        self.order = tuple(order.split())

    @property
    def signature(self) -> Signature:
        """That of the function without what is given."""
        own = Signature.of(self.__wrapped__)
        first = self.order or tuple(name for name in own.positional if name not in self.given)
        return own._replace(
            positional=first,
            keywords=tuple(name for name in own.names if name not in first and name not in self.given),
            optional=own.optional.union(self.usually, "_"),
        )

    def __call__(self, /, *args: object, _: object = None, **kwargs: object) -> Estimate:
        estimate: Estimate = self.__wrapped__(*args, **{**self.usually, **kwargs}, **self.given)
        return estimate if self.change is None else self.change(estimate)


class Taking(Derived):
    """A rule whose operands are named here; its function takes them and the attributes as one argument `of`."""

    def __init__(self, names: str, function: Callable[..., Estimate]) -> None:
        super().__init__(function)
        operands, _, attributes = names.partition(";")
        kinds = {"?": "TensorType | None", "=": "object"}
        self.operands = {
            name.rstrip("?="): kinds.get(name[-1], "TensorType") for name in operands.replace("*", "").split()
        }
        placed = operands.partition("*")[0].split()  # the others are found by name
        self.placed = tuple(name.rstrip("?=") for name in placed)
        stated = [attribute.partition("=") for attribute in attributes.split()]
        self.defaults = {name: literal_eval(default) if default else None for name, _, default in stated}
        self.takes = self.operands | {
            name: "object | None" if default else "object" for name, _, default in stated
        }

    @property
    def signature(self) -> Signature:
        """The operands and attributes, then what the function takes beside them."""
        own = super().signature
        return own._replace(
            positional=self.placed,
            keywords=(*(name for name in self.takes if name not in self.placed), *own.keywords),
            optional=own.optional.union(name for name, kind in self.takes.items() if "None" in kind),
            types={**own.types, **self.takes},
        )

    def __call__(self, /, *operands: Any, **named: Any) -> Estimate:
        given = dict.fromkeys(self.operands) | dict(zip(self.operands, operands, strict=False))
        given |= {name: named.pop(name) for name in self.operands if name in named}
        for name, value in given.items():
            if value is None and "None" not in self.operands[name]:
                raise ShapeError(f"the operand {name} is missing")
        attributes = {name: named.pop(name, default) for name, default in self.defaults.items()}
        estimate: Estimate = self.__wrapped__(Operands(given, attributes), **named)
        return estimate


def takes(names: str) -> Callable[[Callable[..., Estimate]], Taking]:
    """Make a rule of a function of `Operands`.

    names: in the operator's order, `bias?` for one that may be omitted, `sizes=` for one that need not be a tensor; those
    after a `*` are found by name, as keywords. Attributes, which are no operands, come after a `;`: `heads` is required,
    `causal=0` has a default.
    """
    return lambda function: Taking(names, function)
