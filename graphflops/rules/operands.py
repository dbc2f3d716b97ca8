"""Operands of a call by name: for rules of operators that take many, most of which are only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from graphflops.cost import Estimate
from graphflops.errors import ShapeError


class Operands:
    """The operands of one call, in the operator's order; None where one is left out."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def __getattr__(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        raise AttributeError(f"there is no operand {name}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given.values())

    def but(self, names: str) -> tuple[Any, ...]:
        """All operands but these."""
        return tuple(value for name, value in self.given.items() if name not in names.split())

    def named(self, names: str) -> tuple[Any, ...]:
        """These operands, in this order."""
        return tuple(self.given[name] for name in names.split())


class Taking:
    """A rule whose operands have their names here: it takes them as one argument `of`, and attributes by their names."""

    def __init__(self, names: str, function: Callable[..., Estimate]) -> None:
        self.__wrapped__ = function  # where its attributes are found, and its description
        kinds = {"?": "TensorType | None", "=": "object"}
        self.takes = {
            name.rstrip("?="): kinds.get(name[-1], "TensorType") for name in names.replace("*", "").split()
        }
        placed = names.partition("*")[0].split()  # the others are found by name
        self.order = tuple(name.rstrip("?=") for name in placed)

    @property
    def __code__(self) -> CodeType:
        """Where the table of rules finds the attributes' names."""
        return self.__wrapped__.__code__

    def __call__(self, *operands: Any, **named: Any) -> Estimate:
        given = dict.fromkeys(self.takes) | dict(zip(self.takes, operands, strict=False))
        given |= {name: named.pop(name) for name in self.takes if name in named}
        for name, value in given.items():
            if value is None and "None" not in self.takes[name]:
                raise ShapeError(f"the operand {name} is missing")
        return self.__wrapped__(Operands(given), **named)


def takes(names: str) -> Callable[[Callable[..., Estimate]], Taking]:
    """Make a rule of a function of `Operands`.

    names: in the operator's order, `bias?` for one that may be left out, `sizes=` for one that need not be a tensor; those
    after a `*` are found by name, as keywords.
    """
    return lambda function: Taking(names, function)
