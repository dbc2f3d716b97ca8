"""Counts the (query, key) pairs that masks hide: in closed form, or by evaluation if all sizes are concrete."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from msgspec import Struct

from graphflops.attention import conditions
from graphflops.attention.affine import AffineDomain
from graphflops.attention.arrays import ArrayDomain, Enumeration, array_of_value
from graphflops.attention.attention_use import Hidden, Masking as Kind, window
from graphflops.attention.conditions import COLUMN, ROW, TRUE, Case, Cases
from graphflops.attention.index_propagation import Propagation, is_followed
from graphflops.attention.match import Masking, Spelled
from graphflops.attention.piecewise import Known
from graphflops.attention.residues import DISTANCE
from graphflops.attention.scopes import Restriction, Scope, Sense, scope_of_view
from graphflops.attention.user_masks import Stated
from graphflops.base.lazy import numpy as np
from graphflops.base.record import field, replace
from graphflops.dims import Dim, dim_max, same
from graphflops.errors import DimError, GraphflopsError
from graphflops.graph import Ref
from graphflops.view import Call, Step, View

_MOST_STEPS = 400  # followed for one mask in the affine domain
_MOST_ANCESTORS = 400
_NO_MASKS = ("product", "softmax")
_KEYS_UP_TO, _KEYS_FROM, _FIRST_KEYS = (1, -1), (-1, 1), (0, -1)  # directions of conditions


class Hiding(Struct, dict=True):
    """The masks of a program. stated: the user masks, by input name."""

    view: View
    stated: Mapping[str, Stated]
    used: set[str] = field(default_factory=set)
    known: dict[object, Hidden] = field(default_factory=dict)
    affine: Propagation[Known] = field(default_factory=lambda: Propagation(AffineDomain(), _MOST_STEPS))
    arrays: ArrayDomain = field(default_factory=ArrayDomain)
    # Equal numbers for masks that are computed alike, as in each layer of a decomposed program.
    numbers: ValueNumbers = field(default_factory=lambda: ValueNumbers(by_contents=False))

    @cached_property
    def scope(self) -> Scope:
        return scope_of_view(self.view)

    @cached_property
    def passed(self) -> set[str]:
        """Names of the inputs that a caller passes in."""
        return {entry.name for entry in self.view.graph.inputs if entry.role == "user"}

    def formula(self, each: Restriction) -> Known:
        """What hides pairs, at a query and a key."""
        return self.affine.restriction(each, (*[None] * len(each.lead), ROW, COLUMN))

    def of_spelled(self, group: Spelled) -> Hidden:
        """The pairs that the masks of a spelled-out attention hide."""
        (queries, keys), found, unknown = group.sizes[3:5], [], dict[str, None]()
        for masking in group.masks:
            call, typed = masking.call, self.view.types.get(masking.call.result)
            if typed is None or tuple([typed.shape[axis] for axis in masking.axes]) != (queries, keys):
                unknown |= {} if masking.is_after else {call.node.op: None}
                continue
            by_scores = group.first.result in self.behind(masking.others)
            each = self.masked(masking, typed.shape, "" if by_scores else masking.scores)
            if masking.is_after:  # what is not known of a factor is no mask
                self.formula(each)
                if by_scores or self.affine.open:
                    continue
            elif by_scores or not (call is group.first or is_followed(call)):
                unknown[call.node.op] = None
            else:
                unknown |= self.unfollowed(masking.others)
            found.append(each)
        return self.hidden(found, queries, keys, unknown)

    def unfollowed(self, names: Sequence[str]) -> dict[str, None]:
        """Operators that choose what masks hide and are not followed; a number that is only added chooses nothing."""
        typed = ((name, self.view.types.get(name)) for name in self.behind(names))
        chosen = [name for name, x in typed if x is not None and x.dtype.kind in ("bool", "int", "uint")]
        makers = filter(None, map(self.view.makers.get, self.behind(chosen)))
        return {x.node.op: None for x in makers if not (x.operator.reads_sizes or is_followed(x))}

    def of_operator(self, call: Call, name: str, queries: Dim, keys: Dim) -> Hidden:
        """The pairs that an operator's mask operand hides: a boolean, or a number added to each score."""
        typed = self.view.types.get(name)
        sizes = zip(() if typed is None else typed.shape[::-1], (keys, queries), strict=False)
        if typed is None or any(size not in (1, whole) for size, whole in sizes):
            maker = self.view.makers.get(name)
            unfollowed = (maker.node.op,) if maker else ()
            return Hidden(mask="tensor", inputs=self.inputs((name,)), unfollowed=unfollowed)
        shape = (*typed.shape[:-2], queries, keys)
        sense: Sense = "keep" if typed.dtype.kind == "bool" else "added"
        mask = Restriction(self.scope, Ref(name), call.place, sense, shape[:-2])
        return self.hidden([mask], queries, keys, self.unfollowed((name,)))

    def masked(self, masking: Masking, shape: tuple[Dim, ...], scores: str) -> Restriction:
        """What a call lets through of scores, or of probabilities."""
        call, ends = masking.call, [axis % len(shape) for axis in masking.axes]
        lead = tuple([size for axis, size in enumerate(shape) if axis not in ends])
        is_bias = masking.scores == call.result and call.argument("beta", 1) == 1  # of a product
        value = Ref(masking.others[0]) if is_bias else call
        sense: Sense = "keep" if masking.is_after else "added"
        return Restriction(self.scope, value, call.place, sense, lead, scores=scores, axes=masking.axes)

    def hidden(
        self, restrictions: Sequence[Restriction], queries: Dim, keys: Dim, unknown: Mapping[str, None]
    ) -> Hidden:
        """The pairs that several masks hide together; masks with equal value numbers are evaluated once.

        unknown: the operators that may hide some, and are not followed.
        """
        values = [self.numbers.of(x.scope, x.value, x.scores) for x in restrictions]
        others = [(x.sense, x.lead, x.axes, x.before if x.scope.writes else 0) for x in restrictions]
        key = (*values, *others, queries, keys)
        if key not in self.known:
            unmasked = Hidden(is_whole=False)
            self.known[key] = self.evaluated(restrictions, queries, keys) if restrictions else unmasked
        found = self.known[key]
        if not unknown or found.is_whole or found.inputs:
            return found
        return replace(found, mask=found.mask if found.doubled != 0 else "tensor", unfollowed=tuple(unknown))

    def evaluated(self, restrictions: Sequence[Restriction], queries: Dim, keys: Dim) -> Hidden:
        """The pairs that several masks hide together, in closed form or by evaluation."""
        self.scope.constants.used.clear()
        # lost: whether evaluation may find more. open: whether part of a mask stays unknown in any evaluation.
        truth, lost, is_open, unsure = TRUE, False, False, False
        for each in restrictions:
            truth = truth & each.truth(self.formula(each))
            lost, is_open = lost or self.affine.lost, is_open or self.affine.open
            unsure = unsure or self.affine.unsure
        used = [(x, x.value.uses if isinstance(x.value, Step) else (x.value.name,)) for x in restrictions]
        names = [name for each, uses in used for name in uses if name != each.scores]
        inputs = self.inputs(names) if self.stated else ()
        stated = {name: self.stated[name] for name in inputs if name in self.stated}
        for name, statement in stated.items():
            statement.refuse(name, self.view.types.get(name), queries, keys)
            truth = truth & statement.truth(queries, keys)
        self.used.update(stated)
        pairs = 2 * queries * keys
        visible, told, problems = pairs, False, 1
        with suppress(DimError):
            visible, told = conditions.doubled_visible(truth.upper, queries, keys)
        doubled, exact = pairs - visible, told and truth.exact
        # Evaluation may find more hidden pairs than the formulas.
        is_short = not exact and (not told or lost or not is_open)
        if is_short:
            counted = self.enumerated(restrictions, truth.upper, queries, keys)
            doubled, problems, exact = (doubled, 1, False) if counted is None else counted
        for statement in stated.values():
            doubled = dim_max(doubled, statement.doubled_hidden(queries, keys) * problems)
        kind: Kind = "constant" if self.scope.constants.used else "structure"
        if stated:
            kind = "stated"
        elif not exact and doubled == 0:
            kind = "tensor"
        is_formula = doubled == (pairs - visible) * problems
        pattern = pattern_of(truth.upper, queries, keys) if is_formula else ""
        inputs = () if exact or stated else self.inputs(names)
        needs_sizes = is_short and unsure and not inputs and {type(queries), type(keys)} != {int}
        return Hidden(doubled, problems, kind, inputs, pattern, is_whole=exact, needs_sizes=needs_sizes)

    def enumerated(
        self, restrictions: Sequence[Restriction], upper: Cases, queries: Dim, keys: Dim
    ) -> tuple[Dim, int, bool] | None:
        """2 x the hidden pairs, summed over distinct (batch, head) slices, the number of slices, and whether it is exact.

        upper: nothing is visible outside of these cases. None if sizes are symbolic or a mask cannot be followed.
        """
        if not isinstance(queries, int) or not isinstance(keys, int):
            return None
        # Whatever a file contains, it is never wrong not to follow a mask.
        with suppress(GraphflopsError, ArithmeticError, LookupError, TypeError, ValueError):
            leads = {each.lead for each in restrictions}
            longest = max(leads, key=len)
            lead = longest if len(leads) == 1 else [None] * len(longest)
            masks = Enumeration(self.arrays, restrictions, lead, queries, keys, upper)
            hidden = queries * keys * masks.problems - masks.pairs()
            return 2 * hidden, masks.problems, masks.exact
        return None

    def inputs(self, names: Sequence[str]) -> tuple[str, ...]:
        """The program's inputs that values are computed from."""
        return tuple(name for name in self.behind(names) if name in self.passed and name in self.view.types)

    def behind(self, names: Sequence[str]) -> dict[str, None]:
        """Values and those that they are computed from; what products and softmaxes are computed from are not masks."""
        waiting, seen = list(names), dict.fromkeys(names)
        while waiting and len(seen) < _MOST_ANCESTORS:
            name = waiting.pop()
            maker = None if name in self.passed else self.view.makers.get(name)
            if maker is None or maker.operator.reads_sizes or maker.operator.kind in _NO_MASKS:
                continue
            reads_one = maker.operator.kind == "cast" or maker.operator.name in ("expand", "reshape")
            new = [x for x in maker.uses[: 1 if reads_one else None] if x not in seen]
            seen.update(dict.fromkeys(new))
            waiting += new
        return seen


# Value numbering: equal numbers for values that equal operators compute from equal operands.

_DEEPEST = 80  # steps of a chain; longer chains get a fresh number


class ValueNumbers:
    """Numbers of values. A value of a scope that writes in place has a number of its own."""

    def __init__(self, *, by_contents: bool) -> None:
        self.by_contents = by_contents  # whether stored tensors of equal contents have equal numbers
        self.numbers: dict[Any, int] = {}
        self.known: dict[tuple[Scope, str], int] = {}

    def of(self, scope: Scope, argument: Any, given: str = "", depth: int = 0) -> Any:
        """The number of a value, or of what an argument is made of, or of a step whatever the value `given` is."""
        if isinstance(argument, Step):
            rest = [each for each in argument.arguments.items() if each[1] != Ref(given)]
            return argument.node.op, self.of(scope, tuple(rest))
        if isinstance(argument, Ref):
            if (scope, argument.name) not in self.known:
                made = self._made(scope, argument.name, depth)
                self.known[scope, argument.name] = self.numbers.setdefault(made, len(self.numbers))
            return Ref, self.known[scope, argument.name]
        if isinstance(argument, tuple):
            return tuple([self.of(scope, item, depth=depth) for item in argument])
        return type(argument), argument

    def _made(self, scope: Scope, name: str, depth: int) -> Any:
        maker, around, typed = scope.makers.get(name), scope.bound.get(name), scope.type_of(name)
        if scope.writes or depth > _DEEPEST:
            return scope, name
        if around is not None:
            return self.of(around[0], around[1], depth=depth + 1)
        if maker is not None and maker.result == name and is_followed(maker):
            return maker.node.op, typed, self.of(scope, (maker.node.args, maker.node.kwargs), depth=depth + 1)
        if typed is None or maker is not None or not self.by_contents:
            return scope, name
        array = array_of_value(scope, name, typed)
        return (scope, name) if array is None else digest(array)


def digest(array: Any) -> Any:
    """A key that is equal for arrays with equal contents."""
    contents = np.ascontiguousarray(array).data
    return array.dtype.str, array.shape, hashlib.blake2b(contents, digest_size=16).digest()


def pattern_of(visible: Cases, queries: Dim, keys: Dim) -> str:
    """The name of the visible pairs' form; "" if it has none."""
    if visible == conditions.ALWAYS:
        return ""
    if len(visible) == 1:
        return _of_case(visible[0], queries, keys)
    names = [_of_case(case, queries, keys) for case in visible]
    if len(names) == 2 and "" not in names and any(name.startswith("prefix ") for name in names):
        return ", ".join(sorted(names))
    return ""


def _of_case(case: Case, queries: Dim, keys: Dim) -> str:
    blocks = [term.constant for term in case if isinstance(term, conditions.SameBlock)]
    steps = [term for term in case if isinstance(term, conditions.Residue)]
    limits = conditions.bounds(case)
    right, left = limits.pop(_KEYS_UP_TO, None), limits.pop(_KEYS_FROM, None)
    first = limits.pop(_FIRST_KEYS, None)
    others = any((step.form, step.constant, step.kept) != (DISTANCE, 0, 1) for step in steps)
    if limits or len(blocks) > 1 or others:
        return ""
    parts = []
    if right is not None:  # a query sees keys from `left` places before it to `right` places after it
        is_causal = same(right, 0) or same(right, keys - queries)
        if left is None:
            parts.append("causal" if is_causal else "")
        else:
            parts.append(f"causal, window {left + right + 1}" if is_causal else window(left, right))
    elif left is not None:
        return ""
    parts += [f"blocks of {blocks[0]}"] if blocks else []
    parts += [f"every {step.modulus} places" for step in steps]
    if first is not None:
        return "" if parts else f"prefix {first + 1}"
    return "" if "" in parts else ", ".join(parts)
