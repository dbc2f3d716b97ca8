"""The table of rules and how an operator's name finds its rule."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from graphflops.errors import RuleError, ShapeError
from graphflops.ops import operator
from graphflops.rules import index
from graphflops.rules.packed import packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphflops.cost import Estimate

    RuleFunction = Callable[..., Estimate]

Function = TypeVar("Function", bound="Callable[..., Any]")

_PACKAGE = "graphflops.rules."
_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect.CO_*, without the 8 ms of importing inspect


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    product: parameters that are multiplied with one another; the gradient of each costs the forward's product once more.
    rankless: parameters that may be given a value of unknown rank; `*` for variadic ones.
    home: module that registered it.
    """

    key: str
    function: RuleFunction
    product: tuple[str, ...] = ()
    rankless: tuple[str, ...] = ()
    home: str = ""

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
        """Run the rule on arguments by parameter name; the variadic ones are under `*`."""
        if "*" not in arguments:
            return self.function(**arguments)
        keywords = dict(arguments)
        spare = keywords.pop("*")
        leading = [keywords.pop(name) for name in self.parameters[: self.positional]]
        return self.function(*leading, *spare, **keywords)


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """The argument of a backward rule: the forward call whose gradient is wanted.

    estimate: what the forward rule returned.
    arguments: the arguments of the forward call by parameter name; those left at their default are not in it.
    wants: the parameters (tensors, or lists with a tensor) that want a gradient.
    """

    estimate: Estimate
    arguments: dict[str, Any]
    wants: frozenset[str]


_rules: dict[str, Rule] = {}
_backwards: dict[str, Rule] = {}
_installed_loaded = False


def rule(
    *keys: str, product: tuple[str, ...] = (), rankless: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Register the decorated function as the rule of each operator; raises RuleError if an operator has a rule already."""
    home = _registering_module()

    def register(function: Function) -> Function:
        for key in keys:
            if key in _rules or index.RULES.get(key, home) != home:
                raise RuleError(f"operator {key} has a rule already, in {_home(_rules, index.RULES, key)}")
            _rules[key] = Rule(key, function, product, rankless, home)
        return function

    return register


def backward(*keys: str) -> Callable[[Function], Function]:
    """Register the rule of each operator's backward; the function takes a ForwardCall and returns an Estimate."""
    home = _registering_module()

    def register(function: Function) -> Function:
        for key in keys:
            if key in _backwards or index.BACKWARDS.get(key, home) != home:
                there = _home(_backwards, index.BACKWARDS, key)
                raise RuleError(f"operator {key} has a backward rule already, in {there}")
            _backwards[key] = Rule(key, function, home=home)
        return function

    return register


def find(op: str) -> Rule | None:
    """The rule that prices an operator, or None: `aten.add.Tensor`, then `aten.add`, then the same without in-place `_`.

    Rules of installed packages (entry points of the group `graphflops.rules`, each naming a module that registers rules
    when imported) are loaded at the first operator that is not found: searching for them takes longer than most analyses.
    """
    found = _lookup(_rules, index.RULES, op)
    if found is None and _load_installed():
        found = _lookup(_rules, index.RULES, op)
    return found


def find_backward(op: str) -> RuleFunction | None:
    """The operator's own backward rule, or None where the default applies."""
    found = _lookup(_backwards, index.BACKWARDS, op)
    return None if found is None else found.function


def known() -> Iterator[Rule]:
    """Every registered rule, sorted by key."""
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if not path.stem.startswith("__"):
            importlib.import_module(_PACKAGE + ".".join(path.relative_to(folder).with_suffix("").parts))
    return iter(sorted(_rules.values(), key=lambda rule: rule.key))


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with the message unless the condition holds: the call provably cannot run."""
    if not condition:
        raise ShapeError(message)


def require_known(condition: bool, message: str) -> None:
    """Raise RuleError with the message unless the condition holds: the call may run, but the rule cannot know how."""
    if not condition:
        raise RuleError(message)


def index_text() -> str:
    """The text of index.py: the module that registers each rule."""
    rules = {rule.key: rule.home for rule in known() if rule.home.startswith(_PACKAGE)}
    backwards = {key: rule.home for key, rule in _backwards.items()}
    return (
        '"""Which module holds the rule of each operator. Written by `python -m graphflops.rules`; a test compares."""\n\n'
        "from graphflops.rules.packed import unpacked\n\n"
        f'RULES = unpacked("""\\\n{packed(rules)}""")\n\n'
        f'BACKWARDS = unpacked("""\\\n{packed(backwards)}""")\n'
    )


def _registering_module() -> str:
    """The module that registers a rule; helper functions in between are skipped."""
    frame = sys._getframe(2)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _home(table: dict[str, Rule], homes: dict[str, str], key: str) -> str:
    return table[key].home if key in table else homes[key]


def _lookup(table: dict[str, Rule], homes: dict[str, str], op: str) -> Rule | None:
    called = operator(op)
    names = [op, called.base]
    if called.functional is not None:
        names += [f"{called.functional}.{called.variant}", called.functional]
    for name in names:
        if name not in table and name in homes:
            importlib.import_module(homes[name])
        if name in table:
            return table[name]
    return None


def _load_installed() -> bool:
    """Import the rules of installed packages, the first time only; True if this was it."""
    global _installed_loaded
    if _installed_loaded:
        return False
    _installed_loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group="graphflops.rules"):
        try:
            entry.load()
        except Exception as error:  # another package's fault is reported as such, whatever it is
            raise RuleError(
                f"rules of the installed package {entry.value} cannot be imported: {error}"
            ) from error
    return True
