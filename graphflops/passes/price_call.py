"""Prices one call: binds arguments to the rule's parameters, calls the rule, and completes its estimate."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from typing import Any, Union

from msgspec.structs import astuple

from graphflops.base.record import Record, replace
from graphflops.cost import QUANTITIES, WORK_QUANTITIES, Cost, Estimate, Value
from graphflops.dims import Dim, Expr, Meeting, differ, meetings
from graphflops.errors import GraphflopsError, NoRuleError, RuleError, ShapeError, shown
from graphflops.ops import Op, onnx_operands, operator
from graphflops.ops.operator import lacking, placed
from graphflops.passes.gradients import backward_of, wants, without_gradient
from graphflops.passes.program import Backward
from graphflops.report import State
from graphflops.rules.control import MARKS, over_hidden_axes
from graphflops.rules.registry import Rule, check_kinds, require
from graphflops.rules.shapes import held
from graphflops.tensor import SequenceType, TensorType, UnknownType, flat, mapped, sizes_in, with_sizes

# Far larger than any real program has, far smaller than what cannot be printed.
_MOST_TERMS, _MOST_DEGREE, _MOST_DEPTH = 24, 8, 12  # of a size; a larger expression gets a name of its own
_LARGEST_NUMBER = 2**64  # coefficient in a size
_BYTE = 8  # bits
_LARGEST_SIZE, _LARGEST_COST, _MOST_AXES = 2**128, 2**512, 256
# Numbers of a kind are written in place to those of the same or of a more general one.
_GENERALITY = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3, "other": 4}
RANKLESS = "an operand has an unknown number of axes, here or in calls that depend on this one"


class Priced(Record, frozen=True, dict=True):
    """The price of one distinct call (operator, operand types, attributes), which may occur many times."""

    state: State
    estimate: Estimate
    gradient: Backward | None = None
    code: str = ""
    met: tuple[Meeting, ...] = ()
    outgrown: bool = False
    form: int | None = None  # its number; None if sizes of its own were substituted

    @cached_property
    def cost(self) -> Cost:
        return self.estimate.cost

    @cached_property
    def gradient_cost(self) -> Cost | None:
        return None if self.gradient is None else self.gradient.estimate.cost

    @cached_property
    def placeholders(self) -> frozenset[str]:
        """Names of the sizes that depend on data and that are not numbered yet."""
        estimate = self.estimate
        sizes = (size for value in estimate.out for size in sizes_in(value))
        return placeholders_in([*astuple(self.cost), *sizes, *(times for _, times in estimate.regions)])


Operands = tuple[Any, ...]
Keywords = tuple[tuple[str, Any], ...]
# Which results are used, if types are derived rather than compared with recorded ones; else None.
Wanted = Union[tuple[bool, ...], None]


def price_call(
    rule: Rule, op: str, args: Operands, kwargs: Keywords, *, wanted: Wanted = None,
    outputs: Wanted = None, training: bool = False, stated: bool = True,
) -> Priced:  # fmt: skip
    """The price of a call by its rule; a rule that fails leaves this one call unknown.

    outputs: which results are used. stated: whether the operands have the file's element types, which must go together.
    """
    if training:
        args, kwargs = distinct(args), distinct(kwargs)
    if wanted is not None:
        code, problem = _fault(op, args, kwargs, stated)
        if problem:
            return unknown_call(code, problem)
    arguments: dict[str, Any] | None = None
    try:
        by_place = wanted is None and not op.startswith("higher_order.")
        arguments = rule.bound(op, args, kwargs, by_place=by_place)
        if outputs is not None and "outputs" in rule.signature.keywords:
            arguments["outputs"] = outputs
        hint = _misfit_of_torch(op, args, kwargs, stated) if wanted is None else ""
        if stated:
            check_kinds(op, arguments)
        training = training and not operator(op).stops_gradients
        if training and operator(op).kind in ("view", "cast"):  # further tensors only give their form
            (first, operand), *others = arguments.items()
            arguments = {first: operand, **{name: mapped(value, without_gradient) for name, value in others}}
        priced = _completed(rule, op, arguments, (args, kwargs), wanted, training)
        return replace(priced, estimate=replace(priced.estimate, hint=("GF103", hint))) if hint else priced
    except NoRuleError as error:
        return unknown_call("GF101", str(error))
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 a rule may get any operands that a file makes up
        if arguments is None:
            return unknown_call("GF104", str(error))
        problem, cannot_run = reason(rule, op, arguments, error, traced=wanted is None)
        return unknown_call("GF118" if cannot_run else "GF104", problem)


def _fault(op: str, args: Operands, kwargs: Keywords, stated: bool) -> tuple[str, str]:
    """The code and message of what is wrong with a call of ONNX, whatever its rule says; the message is "" for nothing."""
    if stated and (problem := onnx_operands.fault(op, args)[0]):
        return "GF118", problem
    if problem := onnx_operands.wrong_attribute(op, kwargs):
        has_all = all(name in (onnx_operands.attributes(op) or ()) for name, _ in kwargs)
        return ("GF118" if has_all else "GF104"), problem
    return "GF118", onnx_operands.broken(op, args, kwargs)


def _misfit_of_torch(op: str, args: Operands, kwargs: Keywords, stated: bool) -> str:
    """That a call mixes widths of numbers, as only autocasting can. Raises ShapeError for operands that torch refuses."""
    operands = placed(op, args, kwargs)
    left = f"{shown(op)} is called without its operand {name}" if (name := lacking(op, operands)) else ""
    mixed, is_width = onnx_operands.fault(op, operands) if stated else ("", False)
    left = left or onnx_operands.misplaced(op, operands)
    if problem := left or onnx_operands.broken(op, operands, ()) or ("" if is_width else mixed):
        raise ShapeError(problem)
    return mixed


def _completed(
    rule: Rule, op: str, arguments: Mapping[str, Any], given: tuple[Operands, Keywords],
    wanted: Wanted, training: bool,
) -> Priced:  # fmt: skip
    """Call the rule and complete its estimate: used results, in-place results, hidden axes, the backward."""
    for name, value in arguments.items():  # the rule may need the rank of each
        if name not in rule.rankless and any(isinstance(x, UnknownType) for x in flat((value,))):
            raise RuleError(RANKLESS)
    tensors = [value for value in flat(given) if isinstance(value, TensorType)]
    with meetings() as met:
        estimate = rule.call(arguments)
        if wanted is not None:
            onnx_operands.meet_sizes(op, given[0])
    out = tuple([held(x) if isinstance(x, TensorType) else x for x in estimate.out])
    estimate = replace(estimate, out=out) if wanted is None else _trimmed(replace(estimate, out=out), wanted)
    _refuse_impossible(estimate)
    if estimate.unknown:
        return unknown_call("GF104", estimate.unknown, estimate.out)
    # The rule may be that of the functional operator, while the call writes its first tensor.
    spelled, key = operator(op), rule.key.removeprefix("sparse.")
    if spelled.mutates and not key.startswith(spelled.base) and tensors:
        estimate = _in_place(op, estimate, arguments)
    back = backward_of(rule, arguments, estimate, tensors) if training else None
    if any(tensor.mapped for tensor in tensors) and not rule.key.startswith(MARKS):
        estimate = over_hidden_axes(estimate, tensors)
        if back is not None:
            wanting = [tensors[place] for place, _ in back.gradients]
            back = replace(back, estimate=over_hidden_axes(back.estimate, tensors, wanting))
    return Priced(
        state="free" if is_free(estimate) else "counted",
        estimate=_marked(estimate, op, arguments) if training else estimate,
        gradient=back,
        met=tuple(met),
        outgrown=wanted is not None and any(map(outgrown, estimate.out)),
    )


def _in_place(op: str, estimate: Estimate, arguments: Mapping[str, Any]) -> Estimate:
    """The estimate of a call that writes its result to its first tensor. Raises ShapeError if it does not fit there."""
    target = next(value for value in flat(arguments.values()) if isinstance(value, TensorType))
    if isinstance(made := estimate.out[0], TensorType) and not is_free(estimate):
        fits = made.rank == target.rank and not any(map(differ, made.shape, target.shape))
        fits = fits and _GENERALITY[made.dtype.kind] <= _GENERALITY[target.dtype.kind]
        require(fits, f"{op} makes {made}, which cannot be written to {target}")
    written: Value = target if is_free(estimate) else target.view(target.shape)
    if operator(op).stops_gradients:
        written = without_gradient(written)
    return replace(estimate, out=(written, *estimate.out[1:]), alias=True)


def unknown_call(code: str, problem: str, out: tuple[Value, ...] = ()) -> Priced:
    """The price of a call without an estimate: the reason, and the results' types if they are known."""
    return Priced("unknown", Estimate(out, writes=(), unknown=problem), code=code)


def _refuse_impossible(estimate: Estimate) -> None:
    """Raise ShapeError for an impossible size or cost, which comes from a senseless attribute or operand."""
    for value in estimate.out:
        if isinstance(value, TensorType) and value.rank > _MOST_AXES:
            raise ShapeError(f"a result would have {value.rank} axes")
        length = value.length if isinstance(value, SequenceType) else None
        for size in value.shape if isinstance(value, TensorType) else (length,):
            if size is not None and not _can_be(size, _LARGEST_SIZE):
                raise ShapeError(f"a result would have the size {_shortened(size)}")
    cost = estimate.cost
    for work in (*(getattr(cost, name) for name in QUANTITIES), *(times for _, times in estimate.regions)):
        if not _can_be(work, _LARGEST_COST):
            raise ShapeError(f"it would need {_shortened(work)} operations, bytes or iterations")


def _can_be(number: object, limit: int) -> bool:
    """True if `number` is a valid count: a non-negative integer below `limit`, or symbolic."""
    return 0 <= number < limit if isinstance(number, int) else isinstance(number, Expr)


def _shortened(number: object) -> str:
    if not isinstance(number, int) or abs(number) < _LARGEST_SIZE:
        return str(number)
    return f"{'-' * (number < 0)}2**{number.bit_length() - 1}"


def key_of(value: Any) -> Any:
    """A key that differs for 2, 2.0 and True."""
    kind = type(value)
    if kind is tuple:
        return tuple([item if type(item) is TensorType else key_of(item) for item in value])
    if kind is float or kind is bool or kind is complex:
        return (kind, value)
    return value


def distinct(value: Any) -> Any:
    """A copy in which every tensor type is a separate object, so that a rule's reads identify their operands."""
    return mapped(value, lambda item: replace(item) if isinstance(item, TensorType) else item)


def _marked(estimate: Estimate, op: str, arguments: Mapping[str, Any]) -> Estimate:
    """Mark floating results as wanting a gradient if an operand does; moved elements only if their own operand does."""
    wanting = [wants(value) for value in flat(arguments.values()) if isinstance(value, TensorType)]
    if not any(wanting):
        return estimate
    runs = [run.out for run, _ in estimate.regions]
    if runs and not any(map(wants, flat(runs))):
        return estimate  # a graph that ran without recording gradients
    if len(runs) == 1 and all(x is y for x, y in zip(estimate.out, runs[0], strict=False)):
        return estimate  # the results of a graph that ran once: some of them may be detached
    if not operator(op).moves_elements or len(wanting) != len(estimate.out):
        wanting = [True] * len(estimate.out)
    marked = [
        replace(x, requires_grad=True) if yes and isinstance(x, TensorType) and x.dtype.is_floating else x
        for x, yes in zip(estimate.out, wanting, strict=True)
    ]
    return replace(estimate, out=tuple(marked))


def is_free(estimate: Estimate) -> bool:
    """True if the rule declares that nothing is computed and no memory is touched."""
    makes = estimate.writes is None and any(isinstance(value, TensorType) for value in estimate.out)
    return not (makes or estimate.reads or estimate.writes or estimate.regions or estimate.cost)


def matrix_dtype(estimate: Estimate) -> str:
    """Name of the element type of the matrix arithmetic; "" where there is none."""
    if estimate.matrix_flops == 0:
        return ""
    if estimate.matrix_dtype is not None:
        return estimate.matrix_dtype.name
    return next((value.dtype.name for value in estimate.reads if isinstance(value, TensorType)), "")


def converts(op: Op, x: Any) -> bool:
    """Whether an operator converts from or to few bits: a cast or product of integers of at most a byte does."""
    if op.kind not in ("cast", "product", "convolution"):
        return op.kind == "quantisation"
    return isinstance(x, TensorType) and x.dtype.bits <= _BYTE and x.dtype.kind in ("int", "uint")


def placeholders_in(dims: Iterable[Any]) -> frozenset[str]:
    """Names of the sizes that depend on data and that are not numbered yet."""
    named = (dim.symbols for dim in dims if isinstance(dim, Expr))
    return frozenset(name for names in named for name in names if name.endswith("?"))


def put_in(value: Any, names: Mapping[str, Dim]) -> Any:
    """The value with sizes substituted by name."""
    return with_sizes(value, lambda dim: dim.substitute(names) if isinstance(dim, Expr) else dim)


def substituted(estimate: Estimate, names: Mapping[str, Dim]) -> Estimate:
    """The estimate with sizes substituted by name."""
    put = partial(put_in, names=names)
    return replace(
        estimate,
        out=tuple(map(put, estimate.out)),
        reads=tuple(map(put, estimate.reads)),
        writes=None if estimate.writes is None else tuple(map(put, estimate.writes)),
        regions=tuple((run, put(times)) for run, times in estimate.regions),
        **{name: put(getattr(estimate, name)) for name in (*WORK_QUANTITIES, "workspace")},
    )


def _trimmed(estimate: Estimate, wanted: Sequence[bool]) -> Estimate:
    pairs = zip_longest(estimate.out, wanted[: len(estimate.out)], fillvalue=False)
    out = tuple([value if is_wanted else None for value, is_wanted in pairs])
    return estimate if out == estimate.out else replace(estimate, out=out)


def outgrown(value: Any) -> list[Expr]:
    """Sizes in the value whose expressions are too large to compute with."""
    return [size for size in sizes_in(value) if isinstance(size, Expr) and _is_outgrown(size)]


@lru_cache(maxsize=65_536)
def _is_outgrown(size: Expr) -> bool:
    degree = max(map(len, size.terms))
    return (
        max(map(abs, size.terms.values())) > _LARGEST_NUMBER
        or len(size.terms) > _MOST_TERMS
        or degree > _MOST_DEGREE
        or max(atom.depth for atom in size.atoms()) > _MOST_DEPTH
    )


# By annotation of a rule's parameter, as spelled: the types that a value may have, and these in words.
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

    traced: whether torch recorded the call. Then a missing or wrong argument may be the rule's fault.
    """
    found = _misfit(rule, op, arguments)
    if found or isinstance(error, GraphflopsError):
        return found or str(error), (bool(found) and not traced) or isinstance(error, ShapeError)
    return f"the rule of {shown(op)} does not fit this call: {error!r}", False


def _misfit(rule: Rule, op: str, arguments: Mapping[str, Any]) -> str:
    """A required operand or attribute that a call lacks, or an argument of the wrong kind; "" if there is none."""
    taken = rule.signature
    for name in taken.positional:
        is_given = arguments.get(name) is not None or name in taken.optional
        if not is_given and "None" not in str(taken.types.get(name, "None")):
            return f"{shown(op)} is called without its operand {name}"
    for name in taken.keywords:
        if name not in arguments and name not in taken.optional:
            return f"{shown(op)} is called without its attribute {name}"
    for name, value in arguments.items():
        kinds, words = _kinds(taken.types.get(name))
        if not isinstance(value, (*kinds, UnknownType)) and value is not None:
            return f"{name} of {shown(op)} must be {words}, not {shown(repr(value), 60)}"
    return ""


def _kinds(annotation: Any) -> tuple[tuple[type, ...], str]:
    """What a parameter of this annotation takes, any object if the table does not say."""
    name = "Ints" if annotation == tuple[int, ...] else getattr(annotation, "__name__", annotation)
    return _KINDS.get(str(name), ((object,), ""))
