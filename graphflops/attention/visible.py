"""Which pairs of a query and a key masks let through, counted: in closed form, or one by one where all sizes are numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from graphflops.attention.predicates import (
    HIDING,
    TRUE,
    UNKNOWN,
    Truth,
    negative,
    number_of,
    visible_where,
)
from graphflops.attention.regions import doubled_visible
from graphflops.attention.roles import base_of, role_of
from graphflops.dims import dim_max, floor_div
from graphflops.errors import DimError, GraphflopsError
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.attention.alike import Alike
    from graphflops.attention.grids import Grids
    from graphflops.attention.group import Masking as Kind
    from graphflops.attention.masks import Masks
    from graphflops.attention.match import Masking, Spelled
    from graphflops.attention.predicates import Cases
    from graphflops.attention.stated import Stated
    from graphflops.attention.stored import Contents
    from graphflops.attention.writes import Writes
    from graphflops.dims import Dim
    from graphflops.view import Call, View

_MOST_ANCESTORS = 400
_NO_MASKS = ("product", "softmax")
_SIZES_ALONE = frozenset({"sym_size", "size", "sym_numel", "numel", "Shape", "Size", "EyeLike"})


@dataclass(frozen=True, slots=True)
class Restriction:
    """A value that hides scores from a call.

    sense: it is added to the scores, or taken from them, or a truth where they are kept, or dropped.
    shape: of the scores that it broadcasts to; only the last two are always known.
    """

    call: Call
    name: str
    sense: Literal["added", "taken", "kept", "dropped"]
    shape: tuple[Dim, ...]


class Hidden(NamedTuple):
    """What masks hide.

    doubled: twice the hidden pairs of `problems` attentions together, which all others are like.
    inputs: names of the program's inputs that mask, where what they hide is not told.
    """

    doubled: Dim = 0
    problems: int = 1
    mask: Kind = "none"
    inputs: tuple[str, ...] = ()


@dataclass
class Hiding:
    """The masks of a program. stated: what the user says of inputs that are masks, by their name."""

    view: View
    stated: Mapping[str, Stated] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    asked: dict[object, tuple[tuple[int, int, bool] | None, frozenset[str]]] = field(default_factory=dict)

    @cached_property
    def writes(self) -> Writes:
        """What is written in place."""
        from graphflops.attention.writes import Writes

        return Writes(self.view)

    @cached_property
    def contents(self) -> Contents:
        """What is stored."""
        from graphflops.attention.stored import Contents

        return Contents(self.view, self.writes)

    @cached_property
    def formulas(self) -> Masks:
        """Masks as formulas."""
        from graphflops.attention.masks import Masks

        return Masks(self.view, self.writes, self.contents)

    @cached_property
    def alike(self) -> Alike:
        """Which masks are made alike."""
        from graphflops.attention.alike import Alike

        return Alike(self.view)

    @cached_property
    def grids(self) -> Grids:
        """Masks as numbers."""
        from graphflops.attention.grids import Grids

        return Grids(self.view, self.writes, self.contents)

    def of_spelled(self, group: Spelled) -> Hidden:
        """What the masks of an attention hide that is spelled out."""
        queries, keys = self.view.types[group.first.result].shape[-2:]
        found = []
        for masking in group.masks:
            typed = self.view.types.get(masking.scores)
            if typed is not None and typed.shape[-2:] == (queries, keys):
                found += self.restrictions(masking, typed.shape)
        hidden = self.hidden(found, queries, keys)
        return hidden._replace(mask="tensor") if group.masks and hidden.mask == "none" else hidden

    def of_operator(self, call: Call, name: str, queries: Dim, keys: Dim) -> Hidden:
        """What a mask hides that an operator takes: a truth, or a number added to each score."""
        typed = self.view.types.get(name)
        if typed is None:
            return Hidden(mask="tensor")
        if any(
            size not in (1, whole) for size, whole in zip(typed.shape[::-1], (keys, queries), strict=False)
        ):
            return Hidden(mask="tensor")
        shape = (*typed.shape[:-2], queries, keys)
        sense: Literal["added", "kept"] = "kept" if typed.dtype.kind == "bool" else "added"
        return self.hidden([Restriction(call, name, sense, shape)], queries, keys)

    def restrictions(self, masking: Masking, shape: tuple[Dim, ...]) -> list[Restriction]:
        """What in a call may hide scores."""
        call, base = masking.call, base_of(masking.call)
        if base in ("add", "Add") and call.attribute("alpha", 1) == 1:
            return [Restriction(call, masking.others[0], "added", shape)]
        is_first = call.operand(0) == masking.scores
        if base in ("sub", "Sub") and is_first and call.attribute("alpha", 1) == 1:
            return [Restriction(call, masking.others[0], "taken", shape)]
        if base in ("where", "Where", "masked_fill") and len(call.given) >= 3:
            fill = base == "masked_fill"
            first, second, third = call.given[:3]
            condition = second if fill else first
            keeps = not fill and isinstance(second, Ref) and second.name == masking.scores
            number = self.number(third if keeps or fill else second, call)
            if number is not None and number <= HIDING and isinstance(condition, Ref):
                return [Restriction(call, condition.name, "kept" if keeps else "dropped", shape)]
        return []

    def number(self, argument: object, call: Call) -> float | None:
        """The number that an argument is for every pair."""
        if isinstance(argument, Ref):
            return number_of(self.formulas.at_pair(argument.name, call).value)
        return argument if isinstance(argument, (int, float)) else None

    def hidden(self, restrictions: Sequence[Restriction], queries: Dim, keys: Dim) -> Hidden:
        """What several masks hide together."""
        if not restrictions:
            return Hidden()
        self.contents.met.clear()
        truth = TRUE
        for each in restrictions:
            truth = truth & self.seen(each)
        names = tuple([each.name for each in restrictions])
        inputs = self.inputs(names) if self.stated else ()
        stated = {name: self.stated[name] for name in inputs if name in self.stated}
        for name, statement in stated.items():
            statement.refuse(name, self.view.types.get(name), queries, keys)
            truth = truth & statement.truth(queries, keys)
        self.used.update(stated)
        pairs = 2 * queries * keys
        visible, told, problems = pairs, False, 1
        with suppress(DimError):
            visible, told = doubled_visible(truth.upper, queries, keys)
        doubled, exact = pairs - visible, told and truth.exact
        if not exact and self.are_numbers_needed(restrictions, told):
            counted = self.of_numbers(restrictions, truth.upper, queries, keys)
            doubled, problems, exact = (doubled, 1, False) if counted is None else counted
        for statement in stated.values():
            doubled = dim_max(doubled, statement.doubled_hidden(queries, keys) * problems)
        kind: Kind = "constant" if self.contents.met else "structure"
        if stated:
            kind = "stated"
        elif not exact and doubled == 0:
            kind = "tensor"
        return Hidden(doubled, problems, kind, () if exact or stated else self.inputs(names))

    def seen(self, each: Restriction) -> Truth:
        """Where a mask lets scores through, as a formula."""
        value = self.formulas.at_pair(each.name, each.call).value
        if each.sense in ("added", "taken"):
            return visible_where(negative(value) if each.sense == "taken" else value)
        found = value if isinstance(value, Truth) else UNKNOWN
        return found if each.sense == "kept" else ~found

    def of_numbers(
        self, restrictions: Sequence[Restriction], upper: Cases, queries: Dim, keys: Dim
    ) -> tuple[int, int, bool] | None:
        """Twice the pairs that are hidden in so many problems, and whether no more are; None where sizes are open.

        Masks that are made alike are asked about once.
        """
        if not isinstance(queries, int) or not isinstance(keys, int):
            return None
        masks = [(self.alike.number(r.name), r.sense, r.shape) for r in restrictions]
        key = (*masks, upper, queries, keys) if not self.writes.by_owner else object()
        if key not in self.asked:
            from graphflops.attention.asked import doubled_hidden

            found = None
            # Whatever a file holds, not to follow a mask is never wrong.
            with suppress(GraphflopsError, ArithmeticError, LookupError, TypeError, ValueError):
                found = doubled_hidden(self.grids, restrictions, upper, queries, keys)
            self.asked[key] = found, frozenset(self.contents.met)
        found, met = self.asked[key]
        self.contents.met |= met
        return found

    def are_numbers_needed(self, restrictions: Sequence[Restriction], told: bool) -> bool:
        """Whether numbers tell more of masks than formulas do."""
        found = [self.formulas.at_pair(each.name, each.call) for each in restrictions]
        return not told or any(each.lost for each in found) or not any(each.open for each in found)

    def reads_sizes(self, call: Call) -> bool:
        """Whether a call asks of a tensor how large it is, not what is in it."""
        base = base_of(call)
        return base in _SIZES_ALONE or base.endswith("_like") or base.startswith("new_")

    def inputs(self, names: Sequence[str]) -> tuple[str, ...]:
        """The program's inputs whose contents values are made of; what comes out of a product or a softmax is no mask."""
        users = {entry.name for entry in self.view.graph.inputs if entry.role == "user"}
        found: dict[str, None] = {}
        waiting, seen = list(names), set(names)
        while waiting and len(seen) < _MOST_ANCESTORS:
            name = waiting.pop()
            maker = self.view.makers.get(name)
            if name in users:
                found[name] = None
            elif maker is not None and not self.reads_sizes(maker) and role_of(maker) not in _NO_MASKS:
                new = [other for other in maker.uses if other not in seen]
                seen.update(new)
                waiting += new
        return tuple(name for name in found if name in self.view.types)


def masked_part(flops: Dim, hidden: Hidden, queries: Dim, keys: Dim) -> Dim:
    """The part of products over all pairs that is over hidden ones."""
    if hidden.doubled == 0:
        return 0
    return floor_div(floor_div(flops, 2 * queries * keys) * hidden.doubled, hidden.problems)
