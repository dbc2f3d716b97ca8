"""Masks as arrays of numbers: what a value is at many pairs of a query and a key at once, where all sizes are numbers.

numpy is imported when a mask is followed so, and by nothing before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.attention import pointwise
from graphflops.attention.layouts import LAYOUTS
from graphflops.attention.masks import FILLED, SAME, above, filling
from graphflops.attention.predicates import HIDING
from graphflops.attention.roles import base_of
from graphflops.attention.walk import Indices, Walk, arguments
from graphflops.dims import Expr
from graphflops.graph import Ref
from graphflops.tensor import BOOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from graphflops.attention.stored import Contents
    from graphflops.attention.writes import Writes
    from graphflops.dims import Dim
    from graphflops.tensor import TensorType
    from graphflops.view import Call, View

_MOST = 4000  # calls looked at for one block of pairs
_MOST_WHOLE = 2**22  # elements of a tensor that is computed whole: a running sum, a sum along an axis


class Grid(NamedTuple):
    """Numbers, and where they are known: True for everywhere. What is not known is no number that outweighs a hiding one."""

    value: Any
    known: Any = True


NOTHING = Grid(0.0, False)
UNCERTAIN = Grid(False, False)


class Grids(Walk[Grid]):
    """The values of a program at many places at once: an index is an array, None where nothing is known of it."""

    unknown = NOTHING
    uncertain = UNCERTAIN

    def __init__(self, view: View, writes: Writes, contents: Contents) -> None:
        import numpy as np

        super().__init__(view, writes, _HANDLERS)
        self.contents = contents
        self.zero = np.int64(0)
        self.memo: dict[tuple[Any, ...], tuple[Grid, Indices]] = {}
        self.wholes: dict[tuple[str, int], Any] = {}

    def look(self, name: str, at: Indices, before: int) -> Grid:
        """The value of that name, as a call finds it, at places that its axes of size one broadcast to."""
        self.memo.clear()
        self.left, self.before = _MOST, before
        return self.operand(Ref(name), at)

    def of(self, name: str, at: Indices) -> Grid:
        """The value of that name at places; looked at once for the same places."""
        key = (name, self.before if self.writes.by_owner else 0, *map(id, at))
        if key not in self.memo:
            self.memo[key] = super().of(name, at), at  # the places are kept, for their ids to stay theirs
        return self.memo[key][0]

    def literal(self, number: Any) -> Grid:
        """A number; a size that is open is none."""
        return NOTHING if isinstance(number, Expr) else Grid(number)

    def as_index(self, value: Grid) -> Any:
        """Whole numbers that are all known."""
        import numpy as np

        found = np.asarray(value.value)
        return found.astype(np.int64) if value.known is True and found.dtype.kind in "iu" else None

    def between(self, index: Any, begin: Dim, end: Dim | None) -> Grid:
        """Two comparisons."""
        if isinstance(begin, Expr) or isinstance(end, Expr):
            return UNCERTAIN
        return Grid((index >= begin) if end is None else (index >= begin) & (index < end))

    def chosen(self, condition: Grid, yes: Grid, no: Grid) -> Grid:
        """`yes` where the condition holds, else `no`."""
        import numpy as np

        value = np.where(condition.value, yes.value, no.value)
        if condition.known is True and yes.known is True and no.known is True:
            return Grid(value)
        alike = np.asarray(yes.known) & no.known & (np.asarray(yes.value) == no.value)
        return Grid(value, (condition.known & np.where(condition.value, yes.known, no.known)) | alike)

    def held(self, name: str, typed: TensorType, at: Indices) -> Grid | None:
        """Of a tensor whose contents are known, or are stored in the file."""
        import numpy as np

        if typed.uniform is not None:
            return Grid(pointwise.converted(np.asarray(typed.uniform), typed.dtype))
        array = self.array(name, typed)
        return None if array is None else _picked(array, at)

    def array(self, name: str, typed: TensorType) -> Any:
        """All of a tensor whose contents are known, or are stored in the file; None of any other."""
        import numpy as np

        if typed.value is not None:
            array = np.asarray(typed.value)
            if array.dtype.kind in "biuf":
                return pointwise.converted(array, typed.dtype)
        array = self.contents.array(name, typed)
        if array is not None:
            self.contents.use(name, typed)
        return array

    def unflattened(self, at: Indices, shape: Sequence[Dim], inner: Sequence[Dim]) -> Indices | None:
        """Axes that merge or split, group by group, so that an index depends on no more axes than it must."""
        import numpy as np

        found: list[Any] = []
        for given, made in groups(shape, inner):
            if len(given) == len(made) == 1:
                found.append(at[given[0]])
                continue
            flat: Any = np.int64(0)
            for axis in given:
                if shape[axis] != 1:
                    if at[axis] is None:
                        return None
                    flat = flat * shape[axis] + at[axis]
            sizes = [inner[axis] for axis in made]
            found += [flat // math.prod(sizes[place + 1 :]) % size for place, size in enumerate(sizes)]
        return tuple(found)

    def whole_of(self, name: str, before: int) -> Any:
        """All of a tensor, as a call finds it."""
        self.memo.clear()
        self.left, self.before = _MOST, before
        return self.whole(name)

    def whole(self, name: str) -> Any:
        """All of a tensor as an array; None where not all of it is known."""
        import numpy as np

        typed = self.view.types[name]
        size = typed.numel
        if not isinstance(size, int) or size > _MOST_WHOLE:
            return None
        key = name, self.before if self.writes.by_owner else 0
        if key not in self.wholes:
            places = np.ix_(*[np.arange(n) for n in typed.shape])  # type: ignore[arg-type]
            found = self.of(name, self.clipped(places, typed))
            self.wholes[key] = np.broadcast_to(found.value, typed.shape) if np.all(found.known) else None  # type: ignore[arg-type]
        return self.wholes[key]


def groups(shape: Sequence[Dim], inner: Sequence[Dim]) -> Iterator[tuple[range, range]]:
    """The fewest axes of each at a time that hold as many elements. Raises LookupError or ValueError if that is not told."""
    a = b = 0
    while a < len(shape) or b < len(inner):
        first, start = a, b
        left, a = (shape[a], a + 1) if a < len(shape) else (1, a)
        right, b = (inner[b], b + 1) if b < len(inner) else (1, b)
        while left != right:
            if isinstance(left, Expr) or isinstance(right, Expr):
                raise ValueError
            if left < right:
                left, a = left * shape[a], a + 1
            else:
                right, b = right * inner[b], b + 1
        yield range(first, a), range(start, b)


def _picked(array: Any, at: Indices) -> Grid | None:
    """Elements at places; those outside are not known."""
    import numpy as np

    if any(index is None for index in at) or 0 in array.shape:
        return None
    known: Any = True
    places = []
    for index, size in zip(at, array.shape, strict=True):
        clipped = np.clip(index, 0, size - 1)
        if clipped is not index and not np.array_equal(clipped, index):
            known = known & (clipped == index)
        places.append(clipped)
    return Grid(array[tuple(places)], known)


def _same(walk: Grids, call: Call, at: Indices) -> Grid:
    found = walk.operand(call.given[0], at)
    return Grid(pointwise.converted(found.value, walk.view.types[call.result].dtype), found.known)


def stepped(walk: Walk[Any], call: Call) -> tuple[Any, Any]:
    """Where a range starts, and how far its numbers are apart."""
    named = {key: walk.number(value) for key, value in call.node.kwargs}
    args = [walk.number(argument) for argument in call.node.args]
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    return named.get("start", start), named.get("step", step)


def _range(walk: Grids, call: Call, at: Indices) -> Grid | None:
    import numpy as np

    start, step = stepped(walk, call)
    if at[0] is None or not isinstance(start, (int, float)) or not isinstance(step, (int, float)):
        return None
    return Grid(pointwise.converted(np.asarray(at[0] * step + start), walk.view.types[call.result].dtype))


def _filled(walk: Grids, call: Call, at: Indices) -> Grid:
    import numpy as np

    found = walk.operand(filling(call), ())
    return Grid(pointwise.converted(np.asarray(found.value), walk.view.types[call.result].dtype), found.known)


def _second(walk: Grids, call: Call, at: Indices) -> Grid:
    return walk.operand(call.given[1], at)


def _triangle(upper: bool | None) -> Callable[[Grids, Call, Indices], Grid | None]:
    """The value on one side of a diagonal, zero on the other."""

    def handler(walk: Grids, call: Call, at: Indices) -> Grid | None:
        over = above(walk, call, at, upper)
        return (
            None if over is None else walk.chosen(Grid(over >= 0), walk.operand(call.given[0], at), Grid(0))
        )

    return handler


def _choice(walk: Grids, call: Call, at: Indices) -> Grid:
    """Where a condition tells which of two operands counts."""
    first, second, third = walk.operands(call, at, 3)
    chosen = (
        walk.chosen(second, third, first)
        if base_of(call) == "masked_fill"
        else walk.chosen(first, second, third)
    )
    return Grid(pointwise.converted(chosen.value, walk.view.types[call.result].dtype), chosen.known)


def _pointwise(word: str) -> Callable[[Grids, Call, Indices], Grid | None]:
    """Numbers of all operands together."""

    def handler(walk: Grids, call: Call, at: Indices) -> Grid | None:
        import numpy as np

        if base_of(call) in ("Min", "Max") and len(call.given) != 2:
            return None
        arguments_ = clamping(call) if word == "clamp" else call.given[: 1 if word in _OF_ONE else 2]
        grids = [None if argument is None else walk.operand(argument, at) for argument in arguments_]
        dtypes = [
            walk.view.types[argument.name].dtype
            if isinstance(argument, Ref) and argument.name in walk.view.types
            else None
            for argument in arguments_
        ]
        values = [
            None
            if grid is None
            else grid.value
            if dtype is None
            else np.asarray(pointwise.converted(grid.value, dtype))
            for grid, dtype in zip(grids, dtypes, strict=True)
        ]
        own = word
        if word == "remainder" and call.attribute("fmod", 0):
            own = "fmod"
        value = pointwise.computed(call.node, own, values, dtypes, walk.view.types[call.result].dtype)
        given = [grid for grid in grids if grid is not None]
        if all(grid.known is True for grid in given):
            return Grid(value)
        known: Any = np.logical_and.reduce(np.broadcast_arrays(*(grid.known for grid in given)))
        return _outweighed(word, Grid(value, known), given, walk.view.types[call.result].dtype is BOOL)

    return handler


def _outweighed(word: str, found: Grid, given: list[Grid], is_truth: bool) -> Grid:
    """The result where one operand settles it whatever the other is."""
    import numpy as np

    value, known = found
    for grid in given if len(given) == 2 else ():
        other = np.asarray(grid.value)
        if is_truth and word in ("logical_and", "bitwise_and", "mul", "logical_or", "bitwise_or"):
            wins = other.astype(bool) == word.endswith("_or")
        elif word in ("add", "sub") and not is_truth and other.dtype.kind == "f":
            other = -other if word == "sub" and grid is given[1] else other
            wins = other <= HIDING
        else:
            continue
        wins = np.asarray(grid.known) & wins & ~np.asarray(known)
        value, known = np.where(wins, other, value), known | wins
    return Grid(value, known)


def clamping(call: Call) -> tuple[Any, ...]:
    """The number, the least and the greatest it may be."""
    given = (*call.given, None, None)[:3]
    return given[0], call.attribute("min", given[1]), call.attribute("max", given[2])


# Of a tensor as a whole


def _whole(function: Callable[[Any, Grids, Call], Any]) -> Callable[[Grids, Call, Indices], Grid | None]:
    """What is computed along axes: of all of the tensor, then looked up."""

    def handler(walk: Grids, call: Call, at: Indices) -> Grid | None:
        array = walk.whole(call.uses[0])
        if array is None:
            return None
        found = function(array, walk, call)
        return _picked(pointwise.converted(found, walk.view.types[call.result].dtype), at)

    return handler


def _axis(walk: Grids, call: Call) -> Any:
    """The axes that a call goes along; None for all."""
    given = (
        walk.number(call.given[1]) if len(call.given) > 1 else call.attribute("dim", call.attribute("axes"))
    )
    return given if given != () else None


def _running(array: Any, walk: Grids, call: Call) -> Any:
    import numpy as np

    if call.attribute("exclusive", 0) or call.attribute("reverse", 0):
        raise ValueError
    return np.cumsum(array, _axis(walk, call))


def _reduced(name: str) -> Callable[[Any, Grids, Call], Any]:
    def function(array: Any, walk: Grids, call: Call) -> Any:
        import numpy as np

        keeps = call.attribute(
            "keepdims", call.attribute("keepdim", call.given[2] if len(call.given) > 2 else None)
        )
        keeps = base_of(call).startswith("Reduce") if keeps is None else keeps
        return getattr(np, name)(array, axis=_axis(walk, call), keepdims=bool(keeps))

    return function


def _repeated(array: Any, walk: Grids, call: Call) -> Any:
    import numpy as np

    if call.node.op == "aten.repeat_interleave.Tensor":  # the places that are repeated
        return np.repeat(np.arange(len(array)), array)
    args = arguments(call)
    times = args.get("repeats", 1)
    if isinstance(times, Ref):
        times = walk.whole(times.name)
    if times is None:
        raise ValueError
    return np.repeat(array, times, args.get("dim"))


def _flipped(array: Any, walk: Grids, call: Call) -> Any:
    import numpy as np

    return np.flip(array, arguments(call)["dims"])


def _bucket(walk: Grids, call: Call, at: Indices) -> Grid | None:
    """Which stretch between given edges a number is in."""
    import numpy as np

    turned = base_of(call) == "searchsorted"
    number, edges = (1, 0) if turned else (0, 1)
    found = walk.operand(call.given[number], at)
    table = walk.whole(call.operand(edges))
    if table is None or table.ndim != 1 or call.attribute("sorter") is not None:
        return None
    right = bool(call.attribute("right", False)) or call.attribute("side") == "right"
    return Grid(np.searchsorted(table, found.value, side="right" if right else "left"), found.known)


def _tiled(walk: Grids, call: Call, at: Indices) -> Grid | None:
    """Several times one after another along each axis."""
    typed = walk.view.types[call.uses[0]]
    inner = at[len(at) - typed.rank :]
    if any(isinstance(size, Expr) for size in typed.shape):
        return None
    return walk.of(
        call.uses[0],
        tuple(
            [
                walk.zero if size == 1 else None if index is None else index % size
                for size, index in zip(typed.shape, inner, strict=True)
            ]
        ),
    )


def _diagonal(walk: Grids, call: Call, at: Indices) -> Grid | None:
    if at[0] is None or at[1] is None:
        return None
    return Grid(pointwise.converted(at[0] == at[1], walk.view.types[call.result].dtype))


POINTWISE = {
    "add": "add Add",
    "sub": "sub Sub",
    "rsub": "rsub",
    "mul": "mul Mul multiply",
    "div": "div Div true_divide divide",
    "floor_divide": "floor_divide",
    "remainder": "remainder Mod",
    "fmod": "fmod",
    "neg": "neg Neg",
    "abs": "abs Abs",
    "floor": "floor Floor",
    "ceil": "ceil Ceil",
    "trunc": "trunc",
    "sign": "sign Sign",
    "relu": "relu Relu",
    "minimum": "minimum Min",
    "maximum": "maximum Max",
    "clamp": "clamp clip Clip",
    "pow": "pow Pow",
    "exp": "exp Exp",
    "log": "log Log",
    "sqrt": "sqrt Sqrt",
    "eq": "eq Equal",
    "ne": "ne not_equal",
    "lt": "lt less Less",
    "le": "le less_equal LessOrEqual",
    "gt": "gt greater Greater",
    "ge": "ge greater_equal GreaterOrEqual",
    "isinf": "isinf IsInf",
    "isnan": "isnan IsNaN",
    "logical_and": "logical_and And",
    "logical_or": "logical_or Or",
    "logical_xor": "logical_xor Xor",
    "logical_not": "logical_not Not",
    "bitwise_and": "bitwise_and __and__ BitwiseAnd",
    "bitwise_or": "bitwise_or __or__ BitwiseOr",
    "bitwise_xor": "bitwise_xor __xor__ BitwiseXor",
    "bitwise_not": "bitwise_not BitwiseNot",
    "bitwise_right_shift": "bitwise_right_shift __rshift__",
    "bitwise_left_shift": "bitwise_left_shift __lshift__",
}
_OF_ONE = (
    *("neg", "abs", "floor", "ceil", "trunc", "sign", "relu", "isinf", "isnan", "exp", "log", "sqrt"),
    *("logical_not", "bitwise_not"),
)
_TABLE: dict[Callable[[Any, Call, Indices], Any], str] = {
    **LAYOUTS,
    **{_pointwise(word): names for word, names in POINTWISE.items()},
    _same: SAME,
    _range: "arange Range",
    _filled: FILLED,
    _second: "fill copy",
    _choice: "where Where masked_fill",
    _triangle(True): "triu",
    _triangle(False): "tril",
    _triangle(None): "Trilu",
    _whole(_running): "cumsum CumSum",
    **{
        _whole(_reduced(name)): names
        for name, names in {
            "any": "any",
            "all": "all",
            "sum": "sum ReduceSum",
            "max": "amax ReduceMax",
            "min": "amin ReduceMin",
        }.items()
    },
    _whole(_repeated): "repeat_interleave",
    _whole(_flipped): "flip",
    _bucket: "bucketize searchsorted",
    _tiled: "repeat tile Tile",
    _diagonal: "eye",
}
_HANDLERS = {name: handler for handler, names in _TABLE.items() for name in names.split()}
HANDLED = frozenset(_HANDLERS)
