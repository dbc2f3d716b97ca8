"""The table of rules and how an operator's name finds its rule."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from graphflops.errors import RuleError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphflops.cost import Estimate

    RuleFunction = Callable[..., Estimate]

Function = TypeVar("Function", bound="Callable[..., Any]")

FAMILIES = (
    *("matmul", "contraction", "conv", "recurrent", "quantized", "attention", "norm", "loss"),
    *("pointwise", "foreach", "random", "movement", "indexing", "creation", "scalar"),
    *("reduce", "sort", "pool", "resample", "fourier", "linalg", "signal", "control", "collective"),
)


_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect.CO_*, without the 8 ms of importing inspect


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    product: parameters multiplied with one another, each of whose gradients costs the forward's product once more.
    """

    key: str
    function: RuleFunction
    product: tuple[str, ...] = ()

    @property
    def positional(self) -> int:
        """How many parameters can be given by position."""
        return self.function.__code__.co_argcount

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, positional ones first."""
        code = self.function.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @property
    def variadic(self) -> bool:
        """Whether the rule takes any number of operands."""
        return bool(self.function.__code__.co_flags & _VARARGS)

    @property
    def open_ended(self) -> bool:
        """Whether the rule takes keywords it does not name."""
        return bool(self.function.__code__.co_flags & _VARKEYWORDS)

    def call(self, arguments: Mapping[str, Any]) -> Estimate:
        """Run the rule on arguments by parameter name; those of a variadic rule stand under `*`."""
        if "*" not in arguments:
            return self.function(**arguments)
        keywords = dict(arguments)
        spare = keywords.pop("*")
        leading = [keywords.pop(name) for name in self.parameters[: self.positional]]
        return self.function(*leading, *spare, **keywords)


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """What a backward rule receives: the forward call whose gradient is wanted.

    estimate: what the forward rule returned.
    arguments: the forward's arguments by parameter name.
    wants: the parameters (tensors, or lists with a tensor) that want a gradient.
    """

    estimate: Estimate
    arguments: dict[str, Any]
    wants: frozenset[str]


_rules: dict[str, Rule] = {}
_backwards: dict[str, RuleFunction] = {}
_loaded = False


def rule(*keys: str, product: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Register the decorated function as the rule of each operator named; raises RuleError if one has a rule already."""

    def register(function: Function) -> Function:
        for key in keys:
            if key in _rules:
                raise RuleError(f"operator {key} has a rule already: {_rules[key].function.__qualname__}")
            _rules[key] = Rule(key, function, product)
        return function

    return register


def backward(*keys: str) -> Callable[[Function], Function]:
    """Register how each operator's backward is priced; the function takes a ForwardCall and returns an Estimate."""

    def register(function: Function) -> Function:
        for key in keys:
            if key in _backwards:
                raise RuleError(f"operator {key} has a backward rule already")
            _backwards[key] = function
        return function

    return register


def find(op: str) -> Rule | None:
    """The rule that prices an operator, or None: `aten.add.Tensor`, then `aten.add`, then the same without in-place `_`."""
    _load()
    found: Rule | None = _lookup(_rules, op)
    return found


def find_backward(op: str) -> RuleFunction | None:
    """The operator's own backward rule, or None where the family's default applies."""
    _load()
    found: RuleFunction | None = _lookup(_backwards, op)
    return found


def known() -> Iterator[Rule]:
    """Every registered rule, sorted by key."""
    _load()
    return iter(sorted(_rules.values(), key=lambda rule: rule.key))


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with the message unless the condition holds."""
    if not condition:
        raise ShapeError(message)


def functional_name(op: str) -> str | None:
    """`aten.add` for `aten.add_`, else None; `__or__` and the like are names of their own."""
    return op[:-1] if op.endswith("_") and not op.endswith("__") else None


def _lookup(table: dict[str, Any], op: str) -> Any:
    if op in table:
        return table[op]
    base, _, overload = op.rpartition(".")
    if base in table:
        return table[base]
    functional = functional_name(base)
    if functional is None:
        return None
    return table.get(f"{functional}.{overload}") or table.get(functional)


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in FAMILIES:
            if importlib.util.find_spec(f"graphflops.rules.{family}"):  # TEMPORARY while families are being written
                importlib.import_module(f"graphflops.rules.{family}")
