"""Why a rule failed on a call: an operand is missing, an argument is of the wrong kind, or else the rule's own exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphflops.dims import Expr
from graphflops.errors import GraphflopsError, ShapeError, shown
from graphflops.rules.registry import Rule
from graphflops.tensor import TensorType, UnknownType

# By annotation of a rule's parameter: what a value of it is, in Python and in words.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "TensorType": ((TensorType,), "a tensor"),
    "int": ((int, Expr), "an integer"),
    "bool": ((int,), "true or false"),
    "float": ((int, float, Expr), "a number"),
    "str": ((str,), "a string"),
    "Ints": ((tuple,), "a list of integers"),
}


def reason(
    rule: Rule, op: str, arguments: Mapping[str, Any], error: Exception, *, traced: bool
) -> tuple[str, bool]:
    """One sentence that says why a rule does not fit a call, and whether the call provably cannot run.

    traced: torch recorded the call; that an argument seems to be missing or of another kind may be the rule's fault.
    """
    found = _missing(rule, op, arguments) or _wrong_kind(rule, op, arguments)
    if found or isinstance(error, GraphflopsError):
        return found or str(error), (bool(found) and not traced) or isinstance(error, ShapeError)
    return f"the rule of {shown(op)} does not fit this call: {error!r}", False


def _missing(rule: Rule, op: str, arguments: Mapping[str, Any]) -> str:
    """An operand or attribute without default that the call does not give."""
    plain = _plain(rule)
    annotations = _annotations(rule)
    defaults = getattr(plain, "__defaults__", None) or ()
    for name in rule.parameters[: rule.positional - len(defaults)]:
        if arguments.get(name) is None and "None" not in str(annotations.get(name, "None")):
            return f"{shown(op)} is called without its operand {name}"
    keywords = getattr(plain, "__kwdefaults__", None) or {}
    for name in rule.parameters[rule.positional :]:
        if name not in arguments and name not in keywords:
            return f"{shown(op)} is called without its attribute {name}"
    return ""


def _wrong_kind(rule: Rule, op: str, arguments: Mapping[str, Any]) -> str:
    """An argument that is not of the kind that the rule's parameter says."""
    annotations = _annotations(rule)
    for name, value in arguments.items():
        kinds, words = _KINDS.get(str(annotations.get(name)), ((object,), ""))
        if not isinstance(value, (*kinds, UnknownType)) and value is not None:
            return f"{name} of {shown(op)} must be {words}, not {shown(repr(value), 60)}"
    return ""


def _annotations(rule: Rule) -> Mapping[str, Any]:
    return getattr(_plain(rule), "__annotations__", {})


def _plain(rule: Rule) -> Any:
    """The function that a rule was made of."""
    function: Any = rule.function
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
