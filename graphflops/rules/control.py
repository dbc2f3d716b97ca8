"""Higher-order operators: nested graphs that run once, once per loop iteration, or as one of several branches; and vmap.

Programs record vmap as two marks; between them, operators see tensors without the mapped batch axis. Such a tensor carries
the size of each hidden axis in `TensorType.mapped`. The loop applies the rule to what the operator sees, then
`over_hidden_axes` scales the estimate: work and memory are multiplied by the hidden axes, but an operand without hidden axes
(a weight) counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Cost, Estimate, Region, RegionRun, Value, data_dependent, free
from graphflops.dims import Dim, Expr, differ, evaluate, prod
from graphflops.errors import NoRuleError
from graphflops.graph import Opaque
from graphflops.rules.parts import require_few
from graphflops.rules.registry import find, require, rule
from graphflops.rules.shapes import Tensors, axis_of, tensors_of
from graphflops.tensor import DType, TensorType

KIND = "control"

Values = tuple[Value, ...]

_PLAUSIBLE_SIZE = 1024  # decides only which branch's rows are shown if neither is provably more expensive


@rule("higher_order.cond")
def cond(predicate: Value, true: Region, false: Region, operands: Values = ()) -> Estimate:
    """The branch that a known condition selects, else the more expensive one, and any excess of the other."""
    if isinstance(predicate, int):
        return once(true(*operands) if predicate else false(*operands))
    return _alike(true(*operands), false(*operands))


@rule("higher_order.switch")
def switch(index: Value, branches: tuple[Region, ...], operands: Values = ()) -> Estimate:
    """Upper bound: the most expensive branch, plus, per quantity, any excess of the other branches."""
    require(bool(branches), "switch needs branches to choose from")
    return _alike(*(branch(*operands) for branch in branches))


def _alike(*runs: RegionRun) -> Estimate:
    """One of several graphs whose results have the same numbers of axes."""
    for values in zip(*(run.out for run in runs), strict=True):
        ranks = {value.rank if isinstance(value, TensorType) else None for value in values}
        require(len(ranks) == 1, "the branches give results of different numbers of axes")
    return either(*runs)


def either(*runs: RegionRun) -> Estimate:
    """One of several graphs runs: the most expensive one counts, by matrix FLOPs, then vector FLOPs, then bytes."""
    taken = max(runs, key=lambda run: _weight(run.cost))
    others = [run for run in runs if run is not taken]
    more = taken.cost.exceeded_by([other.cost for other in others])
    out = tuple(reduce(_either_type, values) for values in zip(*(run.out for run in runs), strict=True))
    return more.estimate(out, regions=((taken, 1), *((other, 0) for other in others)))


@rule("higher_order.while_loop", "higher_order.while_loop_stack_output")
def while_loop(condition: Region, body: Region, carried: Values, additional_inputs: Values = ()) -> Estimate:
    """The body once per iteration, a data-dependent number; the condition once more than the body."""
    trips = data_dependent("while_loop_trips")
    carried = _of_any_turn(carried)
    turn = _later_turn(body, carried, additional_inputs)
    _require_kept(carried, turn.out)
    asked = condition(*carried, *additional_inputs)
    return Estimate(_of_any_turn(turn.out), writes=(), regions=((turn, trips), (asked, trips + 1)))


def _of_any_turn(carried: Sequence[Value]) -> Values:
    """The carried values without numbers and contents of tensors, which differ from iteration to iteration."""
    return tuple(
        replace(x, value=None)
        if isinstance(x, TensorType)
        else data_dependent(f"while_loop_number{place}")
        if isinstance(x, (int, Expr))
        else x
        for place, x in enumerate(carried)
    )


@rule("higher_order.scan")
def scan(combine: Region, init: Values, xs: Tensors, additional_inputs: Values = ()) -> Estimate:
    """The body once per slice of the first axis; the results of all iterations are stacked."""
    require(bool(xs) and xs[0].rank > 0, "there is nothing to scan over")
    length = xs[0].shape[0]
    turn = _later_turn(combine, init, (*(_first(x) for x in xs), *additional_inputs))
    carried, stacked = turn.out[: len(init)], turn.out[len(init) :]
    _require_kept(init, carried)
    turns = [x.like((length, *x.shape)) if isinstance(x, TensorType) else x for x in stacked]
    out = (*carried, *turns)
    return Estimate(out, writes=(), regions=((turn, length),))


def _later_turn(body: Region, carried: Values, others: Values) -> RegionRun:
    """Run an iteration after the first: a carried value wants a gradient if the previous iteration's result does."""
    turn = body(*carried, *others)
    later = {
        place: replace(before, requires_grad=True)
        for place, (before, after) in enumerate(zip(carried, turn.out, strict=False))
        if isinstance(before, TensorType) and isinstance(after, TensorType)
        if before.requires_grad < after.requires_grad
    }
    if not later:
        return turn
    return _later_turn(body, tuple(later.get(place, x) for place, x in enumerate(carried)), others)


def _require_kept(before: Sequence[Value], after: Sequence[Value]) -> None:
    """Raise ShapeError if a loop passes on a tensor of another shape than it received: later iterations would differ."""
    for ours, theirs in zip(before, after, strict=False):
        if isinstance(ours, TensorType) and isinstance(theirs, TensorType):
            changes = ours.rank != theirs.rank or any(map(differ, ours.shape, theirs.shape))
            require(not changes, f"a turn of the loop takes {ours} and hands on {theirs}")


@rule("higher_order.associative_scan")
def associative_scan(combine: Region, xs: Tensors, additional_inputs: Values = ()) -> Estimate:
    """One combination for every slice except the first: the work of a sequential scan, whatever tree a device runs."""
    require(bool(xs) and xs[0].rank > 0, "there is nothing to scan over")
    slices = tuple(_first(x) for x in xs)
    turn = combine(*slices, *slices, *additional_inputs)
    return Estimate(tuple(x.like() for x in xs), writes=(), regions=((turn, xs[0].shape[0] - 1),))


rule("higher_order.map_impl", "higher_order.map").derived(
    scan, says="The body once per slice of the first axis.", order="combine xs additional_inputs", init=()
)


@rule("higher_order.wrap_with_set_grad_enabled")
def wrap_with_set_grad_enabled(enabled: bool, region: Region, *operands: Value) -> Estimate:
    """The graph once; nothing in it has a gradient if gradients are switched off."""
    return once(region(*operands, gradients=bool(enabled)))


@rule("higher_order.wrap_with_autocast")
def wrap_with_autocast(
    device_type: str, dtype: Value, enabled: bool, cache_enabled: Value, region: Region, *operands: Value
) -> Estimate:
    """The graph once; its calls already have the element types that autocasting chose, if it is switched on."""
    return once(region(*operands, autocast=bool(enabled)))


@rule("higher_order.wrap wrap_activation_checkpoint tag_activation_checkpoint local_map_hop invoke_subgraph")
def wrap(region: Region, *operands: Value, **keywords: Value) -> Estimate:
    """The graph once; the recomputation of a checkpoint belongs to the backward pass. A text only names the graph."""
    return once(region(*(x for x in operands if not isinstance(x, str))))


@rule("higher_order.hints_wrapper", "higher_order.strict_mode", "higher_order.foreach_map")
def hints_wrapper(region: Region, operands: Values, kwargs: Value = None, hints: Value = None) -> Estimate:
    """The graph once."""
    return once(region(*operands))


@rule("higher_order.with_effects")
def with_effects(token: Value, operator: Opaque, *operands: Any, **keywords: Any) -> Estimate:
    """The cost of the wrapped operator; the token is the first result."""
    return _with_results(_inner(operator, *operands, **keywords), lambda own: (None, *own))


@rule("higher_order.auto_functionalized_v2")
def auto_functionalized_v2(operator: Opaque, **keywords: Any) -> Estimate:
    """The cost of the wrapped operator; the tensors that it mutates are further results."""
    bases = keywords["_all_bases"]
    # arguments of a mutating operator: `_x_base_index` names the base of x, `_x_length` the number of its views
    arguments = {name: value for name, value in keywords.items() if not name.startswith("_")}
    single = [name[1 : -len("_base_index")] for name in keywords if name.endswith("_base_index")]
    for name in [name[1 : -len("_length")] for name in keywords if name.endswith("_length")]:
        length = keywords[f"_{name}_length"] or 0
        require_few(length, "tensors")
        members = [f"{name}_{index}" for index in range(length)]
        arguments[name] = tuple(_written(member, keywords, bases) for member in members)
        single = [other for other in single if other not in members]
    inner = _inner(operator, **arguments | {name: _written(name, keywords, bases) for name in single})
    return _with_results(inner, lambda own: (*own, *(base.like() for base in bases)))


@rule("higher_order.out_dtype")
def out_dtype(operator: Opaque, dtype: DType, *operands: Any) -> Estimate:
    """The cost of the wrapped operator, with results of another element type."""
    inner = _inner(operator, *operands)
    out = tuple(x.like(dtype=dtype) if isinstance(x, TensorType) else x for x in inner.out)
    return replace(inner, out=out)


@rule("higher_order.print", "higher_order._export_tracepoint")
def effect_only(*operands: Value, **keywords: Value) -> Estimate:
    """No work."""
    return Estimate(tuple(operands), writes=())


def once(run: RegionRun) -> Estimate:
    """A graph that runs exactly once; its results are the results of the call."""
    return Estimate(run.out, writes=(), regions=((run, 1),))


def _with_results(inner: Estimate, results: Callable[[Values], Values]) -> Estimate:
    """The cost of a wrapped operator with the results of the wrapper; an operator without results returns one None."""
    writes = tensors_of(inner.out) if inner.writes is None else inner.writes
    return replace(inner, out=results(inner.out or (None,)), writes=writes, alias=False)


def _inner(operator: Opaque, *operands: Any, **keywords: Any) -> Estimate:
    name = operator.what.removeprefix("torch.ops.")
    found = find(name)
    if found is None:
        raise NoRuleError(name)
    return found.price(name, *operands, **keywords)


def _written(name: str, keywords: Mapping[str, Any], bases: Sequence[TensorType]) -> TensorType | None:
    """The view of a base that an operator mutates; None if it is given no tensor."""
    index: int | None = keywords[f"_{name}_base_index"]
    if index is None:
        return None
    base = bases[index]
    shape = list(keywords.get(f"_{name}_size", base.shape))
    if f"_{name}_slice_dim" in keywords:
        place, start, end = (keywords[f"_{name}_slice_{what}"] for what in ("dim", "start", "end"))
        shape[place] = end - start
    return base.view(shape)


def _weight(cost: Cost) -> tuple[int, ...]:
    work, traffic = cost.vector_flops + cost.transcendentals, cost.moved_bytes
    quantities = (cost.matrix_flops, work, traffic)
    return tuple(
        x if isinstance(x, int) else evaluate(x, dict.fromkeys(x.symbols, _PLAUSIBLE_SIZE)) or 0
        for x in quantities
    )


def _either_type(a: Value, b: Value) -> Value:
    """The type of a result of several branches; a size on which the branches differ is data-dependent."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank == b.rank:
        sizes = zip(a.shape, b.shape, strict=True)
        return a.like(x if x == y else data_dependent("branch") for x, y in sizes)
    return data_dependent("branch") if isinstance(a, int) and isinstance(b, int) and a != b else a


def _first(x: TensorType) -> TensorType:
    return replace(x.view(x.shape[1:]), requires_grad=x.requires_grad)


MARKS = "torch._functorch.predispatch."


@rule(f"{MARKS}_add_batch_dim", kind="other")
def add_batch_dim(x: TensorType, batch_dim: int, level: int) -> Estimate:
    """Hides a batch axis from the operators that follow: a view."""
    at = axis_of(batch_dim, x.rank)
    seen = x.view((*x.shape[:at], *x.shape[at + 1 :]))
    return free(replace(seen, mapped=(*x.mapped, (level, x.shape[at]))))


@rule(f"{MARKS}_remove_batch_dim", kind="other")
def remove_batch_dim(x: TensorType, level: int, batch_size: Dim, out_dim: int) -> Estimate:
    """Shows a hidden batch axis again: a view; a value without that axis is expanded without a copy."""
    at = axis_of(out_dim, x.rank + 1)
    shape = (*x.shape[:at], batch_size, *x.shape[at:])
    left = tuple(entry for entry in x.mapped if entry[0] != level)
    stored = (x.numel if x.stored is None else x.stored) if left == x.mapped else None
    return free(replace(x.view(shape), stored=stored, mapped=left))


def over_hidden_axes(
    estimate: Estimate, operands: Sequence[TensorType], gradients_of: Sequence[TensorType] = ()
) -> Estimate:
    """Scales a vmapped call's estimate by the product of its hidden batch axes.

    gradients_of: for a backward, the operand of each result: the gradient of a weight is summed over hidden axes.
    """
    entries = {entry for operand in operands for entry in operand.mapped}
    axes = tuple(sorted(entries, key=lambda entry: entry[0]))
    times = prod(size for _, size in axes)
    whole = {id(operand) for operand in operands}

    def spread(value: Any) -> Any:
        if isinstance(value, TensorType):
            return value if id(value) in whole else replace(value, mapped=axes)
        return None if value is None else value * times

    out = [spread(value) if isinstance(value, TensorType) else value for value in estimate.out]
    for place, operand in enumerate(gradients_of):
        if isinstance(gradient := out[place], TensorType):
            out[place] = replace(gradient, mapped=operand.mapped)
    return replace(
        estimate,
        out=tuple(out),
        **{name: amount * times for name, amount in estimate.work.items()},
        reads=tuple(map(spread, estimate.reads)),
        writes=None if estimate.writes is None else tuple(map(spread, estimate.writes)),
    )
