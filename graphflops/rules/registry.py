"""The table of rules and how an operator's name finds its rule."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from graphflops.base.record import Record
from graphflops.cost import Estimate
from graphflops.errors import RuleError, ShapeError, shown
from graphflops.ops import Kind, operator
from graphflops.ops.onnx_operands import attributes
from graphflops.ops.operator import means, orders
from graphflops.ops.table import BACKWARDS, KINDS, RULES, STATED, Home
from graphflops.rules.operands import Derived, Signature, Taking
from graphflops.tensor import TensorType

RuleFunction = Callable[..., Estimate]
Function = TypeVar("Function", bound="Callable[..., Any]")

_PACKAGE = "graphflops.rules."


class Rule(Record, frozen=True):
    """A registered rule."""

    key: str
    function: RuleFunction
    # Parameters that are multiplied with each other; the gradient of each costs another product like the forward's.
    product: tuple[str, ...] = ()
    rankless: tuple[str, ...] = ()  # parameters that may get a value of unknown rank; `*` for variadic ones
    home: str = ""  # module that registered it
    kind: Kind = "other"  # of the operator, where `ops/` does not list it

    @property
    def signature(self) -> Signature:
        """The arguments that the function takes."""
        return Signature.of(self.function)

    def bound(
        self, op: str, args: Sequence[Any], kwargs: Iterable[tuple[str, Any]], *, by_place: bool = True
    ) -> dict[str, Any]:
        """The arguments of a call of `op` by parameter name; what is left for a variadic rule is under `*`.

        The rule's keywords are found among the operands by the names of the operator's schema, or by their canonical names;
        arguments of the schema that the rule does not name are ignored.
        by_place: whether a keyword that neither has may be found by place. Files of torch before 2.7 name every argument
        without saying which are positional, and rules name leading operands as they like.
        Raises RuleError for an argument that neither the rule nor the operator has.
        """
        names, leading = self.signature.names, self.signature.positional
        taken = dict(zip(leading, args, strict=False))
        spare = tuple(args[len(leading) :])
        if spare and self.signature.is_variadic:
            taken["*"] = spare
        elif spare:
            taken.update(self._named(op, spare))
        for at, (name, value) in enumerate(kwargs, start=len(args)):
            if name in names and name not in taken:
                taken[name] = value
                continue
            places = [order.index(name) for order in orders(op) if name in order]
            place = places[0] if places else at
            if (places or by_place) and place < len(leading) and leading[place] not in taken:
                taken[leading[place]] = value
            elif self.signature.is_open:
                taken[name] = value
            elif name in taken or not (places or name in (attributes(op) or ())):
                raise RuleError(f"the rule of {self.key} has no parameter {shown(name)}")
            else:
                taken.update((keyword, value) for keyword in self.signature.keywords if means(keyword, name))
        return taken

    def _named(self, op: str, operands: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """The operands after the positional ones, each by the rule's keyword for it."""
        known, first = orders(op), len(self.signature.positional)
        for place, value in enumerate(operands, start=first):
            names = {order[place] for order in known if place < len(order)}
            if not names:
                raise RuleError(f"{self.key} takes {first} operands, the call has {first + len(operands)}")
            for keyword in self.signature.keywords:
                if any(means(keyword, name) for name in names):
                    yield keyword, value

    def price(self, op: str, /, *args: Any, **kwargs: Any) -> Estimate:
        """The estimate of a call of `op` with these arguments."""
        return self.call(self.bound(op, args, kwargs.items(), by_place=False))

    def call(self, arguments: Mapping[str, Any]) -> Estimate:
        """Run the rule on arguments by parameter name; the variadic ones are under `*`."""
        if "*" not in arguments:
            return self.function(**arguments)
        keywords = dict(arguments)
        spare = keywords.pop("*")
        leading = [keywords.pop(name) for name in self.signature.positional]
        return self.function(*leading, *spare, **keywords)


class ForwardCall(Record, frozen=True):
    """The argument of a backward rule: the forward call whose gradient is wanted."""

    estimate: Estimate  # what the forward rule returned
    arguments: dict[str, Any]  # by parameter name, without those that have their default
    wants: frozenset[str]  # the parameters (tensors, or lists with a tensor) that want a gradient

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where the call leaves it out."""
        return self.arguments.get(name, default)

    @property
    def out(self) -> TensorType:
        """The first result; its gradient has the same type."""
        out = self.estimate.out[0]
        assert isinstance(out, TensorType)
        return out

    def gradients(self, *names: str) -> tuple[TensorType, ...]:
        """A new gradient for each operand that wants one, among those named, or among all."""
        return tuple(self[name].like() for name in names or self.arguments if name in self.wants)


Backward = Callable[[ForwardCall], Estimate]
_rules: dict[str, Rule] = {}
_backwards: dict[str, Rule] = {}
_installed_loaded = False


class Registration(Record, frozen=True):
    """Operators without a rule yet; a function that this is called with becomes their rule."""

    keys: tuple[str, ...]
    product: tuple[str, ...]
    rankless: tuple[str, ...]
    home: str
    kind: Kind

    def __call__(self, function: Function) -> Function:
        for key in _each(self.keys):
            rule = Rule(key, function, self.product, self.rankless, self.home, self.kind)
            _add(rule, _rules, RULES, "rule")
            if key not in RULES and self.kind != STATED.get(key, "other"):
                STATED[key] = self.kind
                operator.cache_clear()
        return function

    def takes(self, names: str) -> Callable[[Callable[..., Estimate]], Taking]:
        """Register a rule of many operands, which are named here as `takes` describes."""
        return lambda function: self(Taking(names, function))

    def derived(self, *base: Any, **given: Any) -> Derived:
        """Register a rule made from another, as `Derived` describes."""
        return self(Derived(*base, **given))


def rule(
    *keys: str, product: tuple[str, ...] = (), rankless: tuple[str, ...] = (), kind: Kind | None = None
) -> Registration:
    """Register the decorated function as the rule of each operator: `aten.mm bmm` names two.

    kind: of operators that `ops/` does not list; by default the module's `KIND` above the function, else `other`.
    Raises RuleError if an operator has a rule already, or for an unknown kind.
    """
    home, family = _registering_module()
    stated = kind or family
    if stated not in KINDS:
        raise RuleError(f"there is no kind of operators {shown(stated)}; there are {', '.join(KINDS)}")
    return Registration(keys, product, rankless, home, stated)


def backward(*keys: str) -> Callable[[Backward], Backward]:
    """Register the rule of each operator's backward; the function takes a ForwardCall and returns an Estimate."""
    home, _ = _registering_module()

    def register(function: Backward) -> Backward:
        for key in _each(keys):
            _add(Rule(key, function, home=home), _backwards, BACKWARDS, "backward rule")
        return function

    return register


def _each(keys: Iterable[str]) -> Iterator[str]:
    """Every operator in keys, each of which names one operator or several of a namespace."""
    for first, *others in map(str.split, keys):
        yield from (first, *(f"{first.partition('.')[0]}.{name}" for name in others))


def find(op: str) -> Rule | None:
    """The rule that prices an operator, or None: `aten.add.Tensor`, then `aten.add`, then the same without in-place `_`.

    Rules of installed packages (entry points of the group `graphflops.rules`, each naming a module that registers rules
    when imported) are loaded at the first operator that is not found: searching for them takes longer than most analyses.
    """
    found = _lookup(_rules, RULES, op)
    if found is None and _load_installed():
        found = _lookup(_rules, RULES, op)
    return found


def find_backward(op: str) -> RuleFunction | None:
    """The operator's own backward rule; None if the default applies."""
    return found.function if (found := _lookup(_backwards, BACKWARDS, op)) else None


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


def _registering_module() -> tuple[str, Kind]:
    """The module that registers a rule, and the kind of its operators; helper functions in between are skipped."""
    frame = sys._getframe(2)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    home = str(frame.f_globals.get("__name__", ""))
    return home, frame.f_globals.get("KIND", "other") if home.startswith(_PACKAGE) else "other"


def _add(rule: Rule, table: dict[str, Rule], homes: Mapping[str, Home], what: str) -> None:
    """Put a rule into a table. Raises RuleError if its operator has one already, or if the index names another module."""
    key, listed = rule.key, homes.get(rule.key)
    there = table[key].home if key in table else listed.module if listed else rule.home
    if key in table or there != rule.home:
        raise RuleError(f"operator {key} has a {what} already, in {there}")
    table[key] = rule


def check_kinds(op: str, arguments: Mapping[str, object]) -> None:
    """Raises ShapeError for kinds of numbers (floating-point, integer, complex) that an operator of torch does not take."""
    called = operator(op)
    base = called.functional or called.base
    if not base.startswith("aten.") or base.startswith("aten._"):  # packed and quantized operands
        return
    tensors = (x for name, x in arguments.items() if isinstance(x, TensorType) and name != "mask")
    kinds = list(dict.fromkeys([x.dtype.kind for x in tensors]))
    if called.kind in ("product", "convolution", "attention"):
        require(len(kinds) < 2, f"{op} does not multiply numbers of the kinds {' and '.join(kinds)}")
    if called.kind in ("normalisation", "linear_algebra") and not base.endswith("cross"):
        require(kinds[:1] in (["float"], ["complex"], []), f"{op} does not take {''.join(kinds[:1])}")


def _lookup(table: dict[str, Rule], homes: Mapping[str, Home], op: str) -> Rule | None:
    called = operator(op)
    names = [op, called.base]
    if called.functional is not None:
        names += [f"{called.functional}.{called.variant}", called.functional]
    for name in names:
        if name not in table and name in homes:
            importlib.import_module(homes[name].module)
        if name in table:
            return table[name]
    return None


def _load_installed() -> bool:
    """Import the rules of installed packages, the first time only; True if this was the first time."""
    global _installed_loaded
    if _installed_loaded:
        return False
    _installed_loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group="graphflops.rules"):
        try:
            entry.load()
        except Exception as error:  # another package's fault is reported as such, whatever it is
            said = f"rules of the installed package {entry.value} cannot be imported: {error}"
            raise RuleError(said) from error
    return True
