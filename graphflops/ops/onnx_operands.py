"""What ONNX operators take: the element types and sizes of their operands, and their attributes, by version.

`onnx_operands.txt` and `onnx_attributes.txt` are written by `python -m tests.generated`, from the installed onnx and
onnxruntime. A line of the first names operators with the same operands: of each the type parameter, "" if no other operand
has it, and the kinds of element types that it takes, `T=fi`, with `?` if it may be left out. onnxruntime loads no model
whose operands differ. Of a kind any width is taken, since other runtimes have kernels for more types than an opset
names; but `l` is int64 alone, the type of sizes and axes. `torch_operands.txt` and `torch_shapes.txt` say the same of torch:
what its kernels refuse both on the device meta and on the CPU.

Shapes must go together as the operators' documentation says, and as onnxruntime wants them. A line of `onnx_shapes.txt`
names operators, those of another domain with it, and the shape of each operand: a letter is a size that is the same wherever
it stands, `3h` three times h, `1` one, `_` any size, `...` any axes, which need not be the same in two operands, `*` any
axes that are; `-` is an operand of any shape, `[]` one without axes, `#` one number, with an axis or without, `|` stands
between other forms. What must hold beside shapes, `_faults` says.

A line of `onnx_attributes.txt` names operators that have the same attributes: onnx's own with their versions and, after an
empty line, those that onnxruntime adds. `axis=int!` is required. A file may give an attribute that the version does not
have, or of another type, or lack a required one: onnxruntime does not load such a model. The versions at which each operator
changed come from this file too, so that `onnx.defs` need not be imported.

`arguments.txt` has a letter for each argument of a torch operator, which `NEVER` explains. A line of `torch_values.txt` has
a condition and its arguments, then the operators of ATen for which both the device meta and the CPU refuse anything else: an
interval, `[0,1)`, in which each number lies; `#2`, so many numbers; `axis`, one of the first operand's; `distinct`, no axis
twice; or the texts or element types that there are. Types are omitted that only some releases or devices refuse.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import ge
from pathlib import Path
from typing import Any

from graphflops.dims import Dim, Expr, differ, meet
from graphflops.errors import shown
from graphflops.ops.operator import marked, operator
from graphflops.tensor import INT64, DType, TensorType, flat

OPERANDS = Path(__file__).with_name("onnx_operands.txt")
_TYPES = OPERANDS, OPERANDS.with_name("torch_operands.txt")
_SHAPES = OPERANDS.with_name("onnx_shapes.txt"), OPERANDS.with_name("torch_shapes.txt")
_KINDS = {"float": "f", "int": "i", "uint": "i", "bool": "b", "complex": "c", "other": "s"}
Form = tuple[tuple[str, ...] | None, ...]


@lru_cache(maxsize=1)
def _operands() -> Mapping[str, tuple[tuple[str, str], ...]]:
    found = {}
    for line in "".join(path.read_text(encoding="utf-8") for path in _TYPES).splitlines():
        operators, _, operands = line.partition(": ")
        taken = tuple((name, kinds) for name, _, kinds in (each.partition("=") for each in operands.split()))
        found.update(dict.fromkeys(operators.split(), taken))
    return found


def fault(op: str, operands: Sequence[object]) -> tuple[str, bool]:
    """What is wrong with the element types of a call's operands, or with their number; "" if nothing is.

    Also whether it is only that floating-point operands have several widths, of which autocasting makes one.
    """
    called = operator(op)
    spelled = f"{called.functional or called.base}.{called.variant}"
    takes = _operands().get(spelled, _operands().get(called.base, ()))
    bound: dict[str, DType] = {}
    for place in range(max(len(operands), len(takes)) if takes else 0):
        name, kinds = takes[min(place, len(takes) - 1)]
        operand = operands[place] if place < len(operands) else None
        if operand is None and not kinds.endswith("?"):
            return f"{op} is called without operand {place + 1}", False
        if operand is not None and place >= len(takes) and not kinds.endswith("?"):
            return f"{op} is called with more operands than {len(takes)}", False
        if not isinstance(operand, TensorType):
            continue
        is_long = operand.dtype is INT64 and "l" in kinds
        if kinds not in ("", "?") and _KINDS[operand.dtype.kind] not in kinds and not is_long:
            return f"operand {place + 1} of {op} cannot be {operand.dtype}", False
        first = bound.setdefault(name, operand.dtype) if name else operand.dtype
        if first is not operand.dtype:
            text = f"operands of {op} must have one element type, not {first} and {operand.dtype}"
            return text, first.kind == operand.dtype.kind == "float"
    return "", False


@lru_cache(maxsize=1)
def _forms() -> Mapping[str, tuple[Form, ...]]:
    found, special = {}, {"-": None, "[]": ()}
    for line in "".join(path.read_text(encoding="utf-8") for path in _SHAPES).splitlines():
        names, _, text = line.partition(":")
        forms = (form.split() for form in text.split("|"))
        taken = tuple(tuple(special.get(shape, tuple(shape.split(","))) for shape in form) for form in forms)
        operators = (name if "." in name else f"onnx.{name}" for name in names.split())
        found.update(dict.fromkeys(operators, taken))
    return found


def _forms_of(op: str) -> tuple[Form, ...]:
    """The forms that operands may have; a version of an operator that differs from the others has a line of its own."""
    called = operator(op)
    return _forms().get(op) or _forms().get(called.functional or called.base, ())


def meet_sizes(op: str, operands: Sequence[object]) -> None:
    """Note the sizes of a call's operands that must be equal, where only one form of shapes can be theirs."""
    forms = [*_agreeing(op, operands)]
    for one, other in forms[0] if len(forms) == 1 else ():
        meet(one, other)


def _agreeing(op: str, operands: Sequence[object]) -> Iterator[list[tuple[Dim, Dim]]]:
    """Of each form that the operands may have, the sizes that must then be equal."""
    for form in _forms_of(op):
        given = ((own, x) for own, x in zip(form, operands, strict=False) if own is not None)
        known = ((own, x) for own, x in given if isinstance(x, TensorType))
        pairs = [(("1",)[: x.rank] if own == ("#",) else own, x.shape) for own, x in known]
        same = {len(there) for shape, there in pairs if shape == ("*",)}
        fits = len(same) < 2 and all(
            len(there) >= len(shape) - 1 if "..." in shape else len(there) == len(shape)
            for shape, there in pairs
            if shape != ("*",)
        )
        equal = [*_equal(pairs)] if fits else []
        if fits and not any(differ(one, other) for one, other in equal):
            yield equal


def _equal(pairs: Iterable[tuple[tuple[str, ...], tuple[Dim, ...]]]) -> Iterator[tuple[Dim, Dim]]:
    sizes: dict[str, list[tuple[int, Dim]]] = defaultdict(list)  # by letter: how many times it a size is
    for shape, there in pairs:
        for size, dim in _named(shape, there):
            letter = size.lstrip("0123456789")
            sizes[letter].append((int(size.removesuffix(letter) or 1), dim))
    sizes[""].append((1, 1))  # what is no letter is a number
    sizes.pop("_", None)
    for told in sizes.values():
        unit, first = min(told, key=lambda each: each[0])
        yield from ((dim * unit, first * times) for times, dim in told)


def _named(shape: tuple[str, ...], there: tuple[Dim, ...]) -> Iterator[tuple[str, Dim]]:
    """The sizes that a form names, each with its name; those of `*` are named by their place."""
    if shape == ("*",):
        yield from ((f"*{chr(97 + place)}", dim) for place, dim in enumerate(there))
    else:
        ahead = shape.index("...") if "..." in shape else len(shape)
        behind = len(shape) - ahead - 1
        yield from zip(shape[:ahead], there, strict=False)
        if behind > 0:
            yield from zip(shape[-behind:], there[-behind:], strict=True)


def broken(op: str, operands: Sequence[object], attributes: Iterable[tuple[str, object]]) -> str:
    """What is wrong with a call's shapes, or with what it says beside them; "" if nothing is."""
    if _forms_of(op) and next(_agreeing(op, operands), None) is None:
        shapes = (f"[{', '.join(map(str, each.shape))}]" for each in operands if isinstance(each, TensorType))
        return f"operands of {op} do not fit one another: {', '.join(shapes)}"
    return next(filter(None, _faults(op, operands, dict(attributes))), "")


_PAST = {"com.microsoft.GroupQueryAttention": 3, "com.microsoft.MultiHeadAttention": 6}  # place of past keys


def _faults(op: str, operands: Sequence[object], attributes: Mapping[str, object]) -> Iterator[str]:
    """What onnxruntime 1.32 refuses in attributes and stored numbers; "" where a condition is kept."""
    x, integers, base = _tensor(operands, 0), partial(_integers, operands, attributes), operator(op).base
    past = [_tensor(operands, _PAST[base] + each) for each in (0, 1)] if base in _PAST else []
    if None in past and any(past):
        yield "past keys and past values are not given together"
    match base.removeprefix("onnx."):
        case "Pad" | "Slice":
            yield _twice(integers(3), x)
        case "Unsqueeze":
            yield _twice(integers(1), x, len(integers(1)))  # axes of the result
            yield _twice(integers("axes"), x)
        case "CenterCropPad" | "Resize":
            yield _twice(integers("axes"), x)
        case "AveragePool" | "LpPool" | "MaxPool":  # else a window might lie in the padding altogether
            pads, window = integers("pads"), integers("kernel_shape")
            is_wide = len(pads) == 2 * len(window) and any(map(ge, pads, (*window, *window)))
            yield f"pads {pads} are not smaller than the window {window}" if is_wide else ""
        case "Conv":  # one that is padded to keep its size has no dilations
            spread, kept = integers("dilations"), str(attributes.get("auto_pad", "")).startswith("SAME")
            yield f"dilations {spread} beside auto_pad" if kept and any(step != 1 for step in spread) else ""
        case "ReverseSequence":
            axis, steps = attributes.get("batch_axis", 1), attributes.get("time_axis", 0)
            yield f"batch_axis and time_axis are both {axis}" if axis == steps else ""
        case "Gather" | "GatherElements" | "Scatter" | "ScatterElements":
            axis = attributes.get("axis", 0)
            if x is not None and isinstance(axis, int) and -x.rank <= axis < x.rank:
                yield _beyond(integers(1), [x.shape[axis]])
        case "GatherND" | "ScatterND":  # the numbers of each index vector lie within the axes that it names
            vectors, batch = _tensor(operands, 1), attributes.get("batch_dims", 0)
            deep = vectors.shape[-1] if vectors is not None and vectors.rank else 0
            if x and isinstance(batch, int) and isinstance(deep, int) and 0 <= batch < batch + deep <= x.rank:
                yield _beyond(integers(1), x.shape[batch : batch + deep])
        case "Attention" if op == "onnx.Attention.23":  # from version 24 on a mask may be shorter
            yield _mask_of_all_keys(operands)


def _tensor(operands: Sequence[object], place: int) -> TensorType | None:
    found = operands[place] if place < len(operands) else None
    return found if isinstance(found, TensorType) else None


def _integers(operands: Sequence[object], attributes: Mapping[str, object], where: int | str) -> list[int]:
    """Those of an attribute, or of a stored operand by its place, in row-major order; [] where one is not known."""
    tensor = _tensor(operands, where) if isinstance(where, int) else None
    given = attributes.get(str(where)) if isinstance(where, str) else tensor and tensor.value
    found = list(flat((given,)))
    return found if all(isinstance(number, int) for number in found) else []


def _twice(axes: list[int], x: TensorType | None, more: int = 0) -> str:
    """What is said of axes of which one is named twice. more: axes that the tensor does not have yet."""
    if x is None:
        return ""
    counted = {axis + x.rank + more if axis < 0 else axis for axis in axes}
    return "" if len(counted) == len(axes) else f"axes {axes} name an axis twice"


def _mask_of_all_keys(operands: Sequence[object]) -> str:
    """A mask has a number for each key, the cached ones included, or one for all."""
    mask, (key, past) = _tensor(operands, 3), (_tensor(operands, place) for place in (1, 4))
    if not mask or not mask.rank or not key or key.rank < 2 or (past and past.rank < 2):
        return ""
    keys = key.shape[-2] + (past.shape[-2] if past else 0)
    fits = not (differ(mask.shape[-1], keys) and differ(mask.shape[-1], 1))
    return "" if fits else f"a mask of {mask.shape[-1]} for {keys} keys"


def _beyond(indices: Sequence[int], lengths: Sequence[Dim]) -> str:
    """What is said of an index that is outside its axis, counted from either end; the axes take turns."""
    for place, index in enumerate(indices):
        length = lengths[place % len(lengths)]
        if isinstance(length, int) and not -length <= index < length:
            return f"index {index} is outside an axis of {length}"
    return ""


ATTRIBUTES = Path(__file__).with_name("onnx_attributes.txt")
NEWEST_IR = 14
NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "com.microsoft": 1}


@lru_cache(maxsize=1)
def versions() -> Mapping[str, tuple[int, ...]]:
    """The versions of each operator of ONNX's own domains, the oldest first."""
    found: dict[str, list[int]] = {}
    for line in ATTRIBUTES.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
        for spelling in line.partition(":")[0].split():
            name, _, version = spelling.rpartition(".")
            if version.isdecimal():  # onnxruntime's own have none
                found.setdefault(name.removeprefix("onnx."), []).append(int(version))
    return {name: tuple(sorted(each)) for name, each in found.items()}


_DOMAINS = ("onnx.", "ai.onnx.", "com.")
_IN_WORDS = {"int": "an integer", "float": "a number", "string": "a string", "ints": "a list of integers"}
_IN_PYTHON = {"int": int, "float": float, "string": str, "ints": tuple}


def onnx_spelling(domain: str, word: str, opset: int) -> str:
    """The spelling of an ONNX operator with the version in force at an opset: `onnx.Softmax.13`.

    domain: "" for ONNX's own. An operator that no table lists has version 1; in another domain, the opset's version.
    """
    known = versions().get(f"{domain}.{word}" if domain else word, (opset if domain else 1,))
    return f"{domain or 'onnx'}.{word}.{known[max(bisect_right(known, opset) - 1, 0)]}"


@lru_cache(maxsize=1)
def _attributes() -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in ATTRIBUTES.read_text(encoding="utf-8").splitlines():
        operators, _, attributes = line.partition(": ")
        types = dict(entry.split("=") for entry in attributes.split())
        for op in operators.split():
            found[op] = types
            if not op.startswith("com."):  # with a version
                base = op.rpartition(".")[0]
                found[base] = found.get(base, {}) | types
    return found


@lru_cache(maxsize=1)
def _choices() -> Mapping[str, tuple[str | int, ...]]:
    """The values that an attribute may have, by its name alone or with the operator's: the lines of `onnx_choices.txt`."""
    found = {}
    text = ATTRIBUTES.with_name("onnx_choices.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    for names, _, choices in (line.partition(": ") for line in text.splitlines()[1:]):
        said = tuple(int(each) if each.isdecimal() else each.strip('"') for each in choices.split())
        found.update(dict.fromkeys(names.split(), said))
    return found


def attributes(op: str) -> Mapping[str, str] | None:
    """The types of an operator's attributes by name, of all versions where none is named; None for an unknown operator."""
    if not op.startswith(_DOMAINS):
        return None
    return _attributes().get(op, _attributes().get(operator(op).base))


def wrong_attribute(op: str, given: Iterable[tuple[str, Any]]) -> str:
    """What is wrong with the attributes of a call; "" if nothing is."""
    known = attributes(op)
    if known is None:
        return ""
    wanting = {name for name, kind in known.items() if kind.endswith("!")}
    for name, value in given:
        kind = known.get(name, "").rstrip("!")
        if not kind:
            return f"{op} has no attribute {shown(name)}"
        wanting.discard(name)
        if not isinstance(value, _IN_PYTHON.get(kind, object)):
            return f"{shown(name)} of {op} must be {_IN_WORDS[kind]}, not {shown(repr(value), 60)}"
        choices = _choices().get(f"{operator(op).word}.{name}", _choices().get(name, ()))
        if choices and value not in choices:
            return f"{shown(name)} of {op} is one of {', '.join(map(str, choices))}, not {shown(repr(value), 60)}"
    return f"{op} is called without its attribute {min(wanting)}" if wanting else ""


VALUES = OPERANDS.with_name("torch_values.txt")
# By letter of an argument: what it never is. A list of integers that one number may stand for is `J`, not `I`; a tensor that
# a number may stand for is `t`, not `T`. None is never refused: kernels get it for gradients that are not there.
NEVER: Mapping[str, tuple[type, ...]] = {
    "T": (int, float, complex, Expr, str, tuple, DType),
    "t": (str, tuple, DType),
    "i": (float, complex, str, tuple),
    "f": (complex, str, tuple),
    "n": (TensorType, str, tuple),
    "b": (str, tuple),
    "s": (TensorType, int, float, complex, Expr, tuple),
    "I": (int, float, complex, Expr, str),
    "J": (float, complex, str),
    "L": (TensorType, int, float, complex, Expr, str),
}
_MEMBERS = {"I": NEVER["i"], "J": NEVER["i"], "L": NEVER["T"]}


def misplaced(op: str, operands: Sequence[Any]) -> str:
    """What is wrong with the values of a call's operands, listed as the schema does; "" if a release takes them."""
    return min((next(_wrong(op, entries, operands), "") for entries in marked(op)), default="", key=bool)


def _wrong(op: str, entries: Sequence[str], operands: Sequence[Any]) -> Iterator[str]:
    for entry, operand in zip(entries, operands, strict=False):
        name, kind = re.split("[!?]", entry)
        members = operand if isinstance(operand, tuple) else ()
        held = ((x, _MEMBERS.get(kind, ())) for x in members)
        wrong = [x for x, never in ((operand, NEVER.get(kind, ())), *held) if isinstance(x, never)]
        wrong += _refused(op, name, operand, operands[0])
        if wrong:
            yield f"{name} of {op} cannot be {shown(str(wrong[0]), 60)}"


@lru_cache(maxsize=1)
def _conditions() -> Mapping[tuple[str, str], list[str]]:
    """By operator and argument: a condition, or the texts that it may be."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        told, _, operators = line.partition(": ")
        conditions, _, names = told.partition(" of ")
        for op in operators.split():
            found.update({(op, name): conditions.split() for name in names.split()})
    return found


def _refused(op: str, name: str, operand: Any, first: Any) -> list[Any]:
    """What of an operand does not keep its condition."""
    called = operator(op)
    base = (called.functional or called.base).removeprefix("aten.")
    allowed = _conditions().get((base, name), [])
    if not allowed or operand is ...:
        return []
    condition, given = allowed[0], [*flat((operand,))]
    numbers = [x for x in given if isinstance(x, (int, float)) and x == x]  # NaN: not known
    if condition[0] == "#":
        return [operand] * (isinstance(operand, tuple) and len(operand) != int(condition[1:]))
    if condition in ("axis", "distinct"):
        rank = max(first.rank, 1) if isinstance(first, TensorType) else 2**31
        is_once = condition == "axis" or len({x % rank for x in numbers}) == len(numbers)
        return [x for x in numbers if not -rank <= x < rank] or [operand] * (not is_once)
    if condition[0] in "[(":
        low, high = (float(x or "inf") for x in condition[1:-1].split(","))
        ends = [low] * (condition[0] == "(") + [high] * (condition[-1] == ")")
        return [x for x in numbers if not low <= x <= high or x in ends]
    texts = [x.dtype if isinstance(x, TensorType) else x for x in given if isinstance(x, (TensorType, str))]
    return [x for x in texts if str(x) not in allowed]
