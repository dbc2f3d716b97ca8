"""Counts the pairs and blocks that flexible attention leaves visible: in closed form, by evaluation, or as a bound.

Its score and mask functions are graphs of scalars, and of the tensors that they capture.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from graphflops.attention.affine import AffineDomain
from graphflops.attention.arrays import MOST_CAPTURED, MOST_STEPS, ArrayDomain, Enumeration, array_of_value
from graphflops.attention.attention_use import Masking
from graphflops.attention.conditions import ALWAYS, COLUMN, HIDING, NEVER, ROW, TRUE, Truth, doubled_visible
from graphflops.attention.hidden_pairs import ValueNumbers, digest, pattern_of
from graphflops.attention.index_propagation import Propagation, is_followed
from graphflops.attention.rectangles import Counted, Grid, Lists, closed_blocks, count_listed, formulas
from graphflops.attention.scopes import FAR, GraphScopes, Restriction, Scope, size_of
from graphflops.base.record import Record, replace
from graphflops.dims import Dim, Expr, dim_min, prod, same
from graphflops.errors import GraphflopsError, ModelError, shown
from graphflops.graph import Graph, Node, Ref
from graphflops.rules.flex import LARGEST_BLOCK, Seen
from graphflops.tensor import TensorType
from graphflops.view import Step

# Inputs of a score function before those that it captures.
SCORE_PLACES = ("score", "batch", "head", "query", "key")
MASK_PLACES = SCORE_PLACES[1:]
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})  # may give minus infinity
_AFTER_ALL = 2**62  # place of the result in its scope
# Places in a block mask of the lists of partial blocks (how many each line has, and which), and of full blocks.
_LISTS = (2, 3), (4, 5)
# What numpy and Python raise for functions that a file makes up.
_FAILURES = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


class Function(Record, frozen=True, eq=False, dict=True):
    """A score or mask function."""

    scope: Scope
    places: tuple[str, ...]  # what its first inputs stand for
    lead: tuple[Dim, ...]  # batch entries and heads
    domain: ArrayDomain

    @cached_property
    def result(self) -> Any:
        return self.scope.graph.outputs[0].value

    @cached_property
    def needed(self) -> tuple[list[Step], set[str]]:
        """The steps that the result depends on, and the names of all values that it depends on."""
        wanted = {self.result.name} if isinstance(self.result, Ref) else set()
        kept = []
        for step in reversed(self.scope.steps):
            if not wanted.isdisjoint(name for name in step.node.outputs if name is not None):
                kept.append(step)
                wanted.update(step.uses)
        return kept[::-1], wanted

    @cached_property
    def captured(self) -> list[str]:
        """Names of the captured inputs that the result depends on."""
        others = self.scope.graph.inputs[len(self.places) :]
        return [entry.name for entry in others if entry.name in self.needed[1]]

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """Contents of the captured tensors, where they are available."""
        found = {name: self.domain.array(self.scope, name, 0, MOST_CAPTURED) for name in self.captured}
        return {name: array for name, array in found.items() if array is not None}

    @cached_property
    def missing(self) -> list[str]:
        """Captured inputs whose contents are not available."""
        others = [name for name in self.captured if name not in self.arrays]
        return [name for name in others if not isinstance(size_of(self.scope, Ref(name)), (int, float))]

    def labels(self) -> list[str]:
        """Names of the missing inputs outside the function; sizes without a value are omitted."""
        handed = [self.scope.bound.get(name) for name in self.missing if self.scope.type_of(name) is not None]
        return [around[1].name for around in handed if around is not None and isinstance(around[1], Ref)]

    @property
    def may_hide(self) -> bool:
        """Whether a score function's result may be minus infinity, or a number that stands for it."""
        return self.truth != TRUE

    @property
    def replaces(self) -> bool:
        """Whether the function contains a number that stands for minus infinity."""
        nodes = [step.node for step in self.needed[0]]
        arguments = (x for node in nodes for x in (*node.args, *(x for _, x in node.kwargs)))
        return any(isinstance(x, (int, float)) and -math.inf < x <= HIDING for x in arguments)

    @cached_property
    def may_hide_by_contents(self) -> bool:
        """Whether it may hide because of what a captured tensor holds, or because of a logarithm."""
        floats = [array for array in self.arrays.values() if array.dtype.kind == "f"]
        names = {step.operator.name for step in self.needed[0]}
        return not names.isdisjoint(_LOGARITHMS) or any(bool((array <= FAR).any()) for array in floats)

    @cached_property
    def restriction(self) -> Restriction:
        return Restriction(
            *(self.scope, self.result, _AFTER_ALL),
            sense="score" if self.places == SCORE_PLACES else "keep",
            lead=self.lead,
            places=tuple(entry.name for entry in self.scope.graph.inputs[: len(self.places)]),
            kept_above=HIDING if self.replaces else FAR,
        )

    @cached_property
    def truth(self) -> Truth:
        """Where the function lets scores through, as a formula."""
        at = (None, None, ROW, COLUMN)
        affine = Propagation(AffineDomain(FAR), MOST_STEPS)
        found = self.restriction.truth(affine.restriction(self.restriction, at))
        may_hide = self.places == SCORE_PLACES and self.may_hide_by_contents
        return Truth(found.upper, NEVER) if may_hide else found


class Problem(Record, frozen=True):
    """One attention with its functions."""

    lead: tuple[Dim, ...]  # batch entries and heads of the queries
    queries: Dim
    keys: Dim
    rows: Any  # of a block of its mask; so are the columns
    columns: Any
    score: Function
    mask: Function
    lists: Lists | None  # the blocks that run, if they are available

    def identity(self, numbers: ValueNumbers) -> Any:
        """Equal for attentions with the same visible pairs."""
        sizes = self.lead, self.queries, self.keys, self.rows, self.columns
        functions = [numbers.of(each.scope, each.result) for each in (self.score, self.mask)]
        return sizes, *functions, self.lists and tuple(map(digest, self.lists.arrays))

    @property
    def slices(self) -> Dim:
        return prod(self.lead)

    @property
    def scores(self) -> Dim:
        return self.slices * self.queries * self.keys

    @property
    def is_whole(self) -> bool:
        """Whether one block contains all pairs, as in the block mask that torch uses by default."""
        return bool(self.rows == LARGEST_BLOCK and self.columns == LARGEST_BLOCK)

    @property
    def has_numbers(self) -> bool:
        sizes = (self.queries, self.keys, self.rows, self.columns)
        return all(isinstance(size, int) and size > 0 for size in sizes)

    def seen(self) -> tuple[Seen | None, str]:
        """The visible pairs and blocks, and the reason if they are only a bound; "" if they are exact."""
        problem = ""
        try:
            found = self.closed() or self.evaluated()
        except GraphflopsError as error:
            found, problem = None, str(error)
        except _FAILURES as error:
            found, problem = None, f"they cannot be computed here: {error!r}"
        if found is not None:
            return found, ""
        doubt = f"which scores its functions let through is not known: {problem or self.reason()}"
        try:
            return self.bounded(), doubt
        except (GraphflopsError, *_FAILURES):
            return None, doubt

    @property
    def functions(self) -> tuple[Function, ...]:
        return (self.mask, self.score) if self.score.may_hide else (self.mask,)

    def reason(self) -> str:
        """Why it is not known for certain what is visible."""
        missing = [label for function in self.functions for label in function.labels()]
        if missing:
            return f"what {', '.join(map(shown, dict.fromkeys(missing)))} holds is not at hand"
        if not self.has_numbers:
            return "lengths have no values: give sizes"
        steps = (step for function in self.functions for step in function.needed[0])
        others = (f"{shown(step.node.op)} is not followed" for step in steps if not is_followed(step))
        return next(others, "an index may be out of its axis")

    def closed(self) -> Seen | None:
        """The count in closed form; None if there is none."""
        both = self.mask.truth & self.score.truth
        if not (self.mask.truth.exact and both.exact) or self.lists is not None:
            return None
        doubled, exact = doubled_visible(both.upper, self.queries, self.keys)
        blocks = self.blocks()
        if not exact or (blocks is None and self.has_numbers):
            return None
        return self.of(doubled * self.slices, blocks or self.any_blocks)

    def blocks(self) -> Counted | None:
        """An upper bound of the blocks that run, in closed form; None if there is none."""
        upper = self.mask.truth.upper
        if self.is_whole:
            return Counted(0, None, None, 0, self.scores) if self.mask.truth == TRUE else self.any_blocks
        if len(upper) > 1:
            return None
        found: Counted | None = None if upper else Counted()
        if upper and self.has_numbers:
            sizes = self.queries, self.keys, self.rows, self.columns
            found = closed_blocks(upper[0], *sizes)  # type: ignore[arg-type]
        elif upper and self.rows == self.columns and same(self.queries, self.keys):
            found = formulas(upper[0], self.queries, self.rows) if isinstance(self.rows, int) else None
        return found and found.times(self.slices)

    @property
    def any_blocks(self) -> Counted:
        """All pairs, in an unknown number of blocks."""
        return Counted(0, None, None, self.scores)

    def of(self, doubled: Dim, blocks: Counted, *, exact: bool = True) -> Seen:
        """The result, given 2 x the visible pairs and the blocks of all heads."""
        hides = doubled != 2 * self.scores
        known: Masking = "constant" if any(function.arrays for function in self.functions) else "structure"
        mask: Masking = "tensor" if not exact else known if hides else "none"
        executed = blocks.partial_pairs + blocks.full_pairs
        visible = (self.mask.truth & self.score.truth).upper
        pattern = pattern_of(visible, self.queries, self.keys) if exact else ""
        ran = blocks.partial_pairs, blocks.partial_blocks, blocks.full_blocks
        return Seen(doubled, executed, *ran, mask, pattern)

    def bounded(self) -> Seen | None:
        """Upper bounds of visible pairs and of blocks that run; None if nothing bounds them."""
        upper = (self.mask.truth & self.score.truth).upper
        doubled = doubled_visible(upper, self.queries, self.keys)[0] * self.slices
        if self.lists is not None and self.has_numbers:
            listed = self.listed(self.lists, self.lists.heads, (None, None))
            return self.of(dim_min(doubled, 2 * listed.pairs), listed, exact=False)
        blocks = self.blocks()
        if upper == ALWAYS and blocks is None:
            return None
        blocks = blocks or self.any_blocks
        unsure = Counted(0, None, None, blocks.partial_pairs + blocks.full_pairs)
        return self.of(doubled, unsure, exact=False)

    def evaluated(self) -> Seen | None:
        """The count by evaluation of the functions; None if the contents of a captured tensor are not available."""
        hides = self.score.may_hide
        missing = self.mask.missing or (hides and self.score.missing and not self.score.truth.exact)
        if not self.has_numbers or missing:
            return None
        masks = self.enumeration(*self.functions)
        times = self.like(masks.sizes)
        if self.lists is not None:
            own = zip(self.mask.lead, masks.sizes, self.lists.heads, strict=True)
            told = [size if max(some) > 1 else 1 for size, *some in own]
            if not all(isinstance(size, int) for size in told):
                return None
            asked = masks.visible, self.enumeration(self.score).visible if hides else None
            found = self.listed(self.lists, told, asked)  # type: ignore[arg-type]
        elif self.is_whole:
            found = (self.blocks() or self.any_blocks)._replace(pairs=masks.pairs() * times)
        else:
            found = masks.blocks(self.rows, self.columns).times(times)
            if hides:
                mask = self.enumeration(self.mask)
                blocks = mask.blocks(self.rows, self.columns).times(self.like(mask.sizes))
                found = blocks._replace(pairs=found.pairs)
        if not masks.exact:
            raise ModelError(self.reason())
        return self.of(2 * found.pairs, found)

    def enumeration(self, *functions: Function) -> Enumeration:
        restrictions = [function.restriction for function in functions]
        # Batch entries and heads differ if a result depends on them.
        pairs = [(each, zip(each.places, each.restriction.places, strict=True)) for each in functions]
        asked = {place for each, names in pairs for place, name in names if name in each.needed[1]}
        named = zip(self.mask.lead, MASK_PLACES, strict=False)
        lead = [size if place in asked else None for size, place in named]
        return Enumeration(self.mask.domain, restrictions, lead, self.queries, self.keys)  # type: ignore[arg-type]

    def like(self, sizes: Sequence[int]) -> Dim:
        """How many slices each evaluated slice stands for; only axes of more than one are told apart."""
        return prod([whole if size == 1 else 1 for whole, size in zip(self.mask.lead, sizes, strict=True)])

    def listed(self, lists: Lists, sizes: Sequence[int], masks: tuple[Any, Any]) -> Counted:
        """The count of listed blocks, where the evaluated batch entries and heads stand for all."""
        grid = Grid(0, self.queries, 0, self.keys, self.rows, self.columns)  # type: ignore[arg-type]
        return count_listed(lists, sizes[0], sizes[1], grid, masks).times(self.like(sizes))


class FlexAttentions:
    """The flexible attentions of a program."""

    def __init__(self, graph: Graph) -> None:
        self.scopes = GraphScopes(graph)
        self.arrays = ArrayDomain(FAR)
        self.numbers = ValueNumbers(by_contents=True)
        self.known: dict[Any, tuple[Seen | None, str]] = {}

    def seen(self, graph: Graph, node: Node, values: Sequence[Any]) -> tuple[Seen | None, str]:
        """The visible pairs and blocks of one call, and the reason if they are only a bound; None if nothing is known.

        graph: the graph that contains the call. values: the call's arguments as the analysis knows them.
        """
        try:
            problem = self.problem(graph, node, values)
        except (GraphflopsError, *_FAILURES):
            problem = None  # not a valid call: its rule reports the error
        if problem is None:
            return None, ""
        identity = problem.identity(self.numbers)
        if identity not in self.known:
            self.known[identity] = problem.seen()
        return self.known[identity]

    def problem(self, graph: Graph, node: Node, values: Sequence[Any]) -> Problem | None:
        """The attention of a call; None if its arguments have another form."""
        given = node.arguments()
        known = dict(zip(node.operator.parameters, values, strict=False))
        query, key, blocks = known["query"], known["key"], given["block_mask"]
        for operand in (query, key):
            if not isinstance(operand, TensorType) or operand.rank != 4:
                return None
        if not isinstance(blocks, tuple):
            return None
        around = self.scopes.of(graph)
        place = next((step.place for step in around.steps if step.node is node), len(around.steps))
        of_call = around, place, given, known
        score = self.function(given["score_mod"], SCORE_PLACES, "score_captures", *of_call)
        mask = self.function(blocks[-1], MASK_PLACES, "mask_captures", *of_call)
        rows, columns = known["block_mask"][-3:-1]
        is_whole = rows == columns == LARGEST_BLOCK
        lists = None if is_whole else self.lists(around, place, blocks, known["block_mask"])
        *lead, queries, _ = query.shape
        return Problem(tuple(lead), queries, key.shape[2], rows, columns, score, mask, lists)

    def function(
        self, function: Any, places: tuple[str, ...], captures: str, around: Scope, place: int,
        given: Mapping[str, Any], known: Mapping[str, Any],
    ) -> Function:  # fmt: skip
        """A function of a call with what it captures: operands as given, and as the analysis knows them."""
        if not isinstance(function, Graph):
            raise TypeError  # its rule reports the error
        names = [entry.name for entry in function.inputs if entry.role == "user"]
        scope = replace(self.scopes.of(function), types=dict(function.types), bound={})
        for name, each in zip(names, places, strict=False):
            scope.bind(around, name, each, place)
        captured = given.get(captures, ()), known.get(captures, ())
        for name, operand, value in zip(names[len(places) :], *captured, strict=True):
            if isinstance(value, (bool, int, float, Expr)):
                operand = value
            elif isinstance(value, TensorType):
                scope.types[name] = value  # type: ignore[index]
            scope.bind(around, name, operand, place)
        return Function(scope, places, known["query"].shape[:2], self.arrays)

    def lists(self, around: Scope, place: int, blocks: Sequence[Any], values: Sequence[Any]) -> Lists | None:
        """The lists of blocks that run, if their contents are available."""
        found: list[tuple[Any, Any] | None] = []
        for places in _LISTS:
            pair = number, which = [self.array(around, place, blocks[at], values[at]) for at in places]
            if any(isinstance(blocks[at], Ref) and x is None for at, x in zip(places, pair, strict=True)):
                return None
            is_list = number is not None and which is not None
            if is_list and (which.ndim != 4 or number.shape != which.shape[:3]):
                return None
            found.append((number, which) if is_list else None)
        return Lists(*found) if isinstance(blocks[_LISTS[0][0]], Ref) else None

    def array(self, around: Scope, place: int, argument: Any, value: Any) -> Any:
        """The contents of an operand; None if they are not available."""
        if not isinstance(argument, Ref) or not isinstance(value, TensorType):
            return None
        found = array_of_value(around, argument.name, value)
        return self.arrays.array(around, argument.name, place, MOST_CAPTURED) if found is None else found
