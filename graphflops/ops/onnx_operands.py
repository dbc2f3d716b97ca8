"""Operands of ONNX operators: the element types that each version takes, which are the same, and which sizes.

`onnx_operands.txt` is written by `python -m tests.generated`, from the installed onnx and onnxruntime. A line
names operators with the same operands: of each the type parameter, "" if no other operand has it, and the kinds of element
types that it takes, `T=fi`. onnxruntime loads no model whose operands differ from that. Of a kind any width is taken: other
runtimes have kernels for more types than an opset names.

Shapes must go together as the operators' documentation says, and as onnxruntime wants them. A line of `onnx_shapes.txt`
names operators and the shape of each operand: a letter is a size that is the same wherever it stands, `3h` three times h,
`1` one, `_` any size, `...` any axes, which need not be the same in two operands, `*` any axes that are; `-` is an operand
of any shape, `[]` one without axes, `|` stands between other forms. What must hold beside shapes, `_CONDITIONS` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Union

from graphflops.dims import Dim, differ, meet
from graphflops.ops.operator import operator
from graphflops.tensor import DType, TensorType, flat

TABLE = Path(__file__).with_name("onnx_operands.txt")
_SHAPES = Path(__file__).with_name("onnx_shapes.txt")
_KINDS = {"float": "f", "int": "i", "uint": "i", "bool": "b", "complex": "c", "other": "s"}
Form = tuple[tuple[str, ...] | None, ...]


@lru_cache(maxsize=1)
def _table() -> Mapping[str, tuple[tuple[str, str], ...]]:
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        operators, _, operands = line.partition(": ")
        taken = tuple((name, kinds) for name, _, kinds in (each.partition("=") for each in operands.split()))
        found.update(dict.fromkeys(operators.split(), taken))
    return found


def fault(op: str, operands: Iterable[object]) -> str:
    """What is wrong with the element types of a call's operands; "" if nothing is."""
    takes = _table().get(op, ())
    bound: dict[str, DType] = {}
    for place, operand in enumerate(operands if takes else ()):
        name, kinds = takes[min(place, len(takes) - 1)]
        if not isinstance(operand, TensorType):
            continue
        if kinds and _KINDS[operand.dtype.kind] not in kinds:
            return f"operand {place + 1} of {op} cannot be {operand.dtype}"
        first = bound.setdefault(name, operand.dtype) if name else operand.dtype
        if first is not operand.dtype:
            return f"operands of {op} must have one element type, not {first} and {operand.dtype}"
    return ""


@lru_cache(maxsize=1)
def _forms() -> Mapping[str, tuple[Form, ...]]:
    found, special = {}, {"-": None, "[]": ()}
    for line in _SHAPES.read_text(encoding="utf-8").splitlines():
        names, _, text = line.partition(":")
        forms = (form.split() for form in text.split("|"))
        taken = tuple(tuple(special.get(shape, tuple(shape.split(","))) for shape in form) for form in forms)
        found.update(dict.fromkeys((f"onnx.{name}" for name in names.split()), taken))
    return found


def misfit(op: str, operands: Sequence[object]) -> str:
    """What is wrong with the shapes of a call's operands; "" if nothing is."""
    if operator(op).base not in _forms() or next(_agreeing(op, operands), None) is not None:
        return ""
    shapes = (f"[{', '.join(map(str, each.shape))}]" for each in operands if isinstance(each, TensorType))
    return f"operands of {op} do not fit one another: {', '.join(shapes)}"


def meet_sizes(op: str, operands: Sequence[object]) -> None:
    """Note the sizes of a call's operands that must be equal, where only one form of shapes can be theirs."""
    forms = [*_agreeing(op, operands)]
    for one, other in forms[0] if len(forms) == 1 else ():
        meet(one, other)


def _agreeing(op: str, operands: Sequence[object]) -> Iterator[list[tuple[Dim, Dim]]]:
    """Of each form that the operands may have, the sizes that must then be equal."""
    for form in _forms().get(operator(op).base, ()):
        given = zip(form, operands, strict=False)
        pairs = [(own, x.shape) for own, x in given if own is not None and isinstance(x, TensorType)]
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


# Conditions on attributes and stored numbers, one function a kind; onnxruntime 1.32 refuses what does not keep them.

Operands = Sequence[object]
Attributes = Mapping[str, object]
Named = Union[int, str]  # an operand by its place, or an attribute by its name
Condition = Callable[[Operands, Attributes], str]


def _tensor(operands: Operands, place: int) -> TensorType | None:
    found = operands[place] if place < len(operands) else None
    return found if isinstance(found, TensorType) else None


def _integers(operands: Operands, attributes: Attributes, where: Named) -> list[int] | None:
    """The integers of an attribute or a stored operand in row-major order; None where one of them is not known."""
    tensor = _tensor(operands, where) if isinstance(where, int) else None
    given = attributes.get(str(where)) if isinstance(where, str) else tensor and tensor.value
    found = list(flat((given,)))
    return found if found and all(isinstance(number, int) for number in found) else None


def _distinct(where: Named, operands: Operands, attributes: Attributes) -> str:
    """No axis is named twice."""
    axes, x = _integers(operands, attributes, where), _tensor(operands, 0)
    if axes is None or x is None:
        return ""
    rank = x.rank + len(axes) * (where == _OF_RESULT)
    counted = [axis + rank if axis < 0 else axis for axis in axes]
    return "" if len(set(counted)) == len(counted) else f"axes {axes} name an axis twice"


_OF_RESULT = 1  # the operand whose axes are those of the result: Unsqueeze's


def _pads_within_window(operands: Operands, attributes: Attributes) -> str:
    """Padding is smaller than the window, so that no window lies in it altogether."""
    pads, window = (_integers(operands, attributes, name) for name in ("pads", "kernel_shape"))
    if not pads or not window or len(pads) != 2 * len(window):
        return ""
    fits = all(pad < length for pad, length in zip(pads, (*window, *window), strict=True))
    return "" if fits else f"pads {pads} are not smaller than the window {window}"


def _undilated(operands: Operands, attributes: Attributes) -> str:
    """A convolution that is padded to keep its size has no dilations."""
    spread = _integers(operands, attributes, "dilations") or ()
    kept = str(attributes.get("auto_pad", "")).startswith("SAME")
    return f"dilations {spread} beside auto_pad" if kept and any(step != 1 for step in spread) else ""


def _differ_in(first: str, second: str, default: int, operands: Operands, attributes: Attributes) -> str:
    """Two attributes name two axes; `default` is that of the first, 1 less it that of the second."""
    both = attributes.get(first, default), attributes.get(second, 1 - default)
    return f"{first} and {second} are both {both[0]}" if both[0] == both[1] else ""


def _inside(operands: Operands, attributes: Attributes) -> str:
    """Indices lie within the axis that they count along, from either end."""
    x, indices, axis = _tensor(operands, 0), _integers(operands, attributes, 1), attributes.get("axis", 0)
    if x is None or indices is None or not isinstance(axis, int) or not -x.rank <= axis < x.rank:
        return ""
    return _beyond(indices, [x.shape[axis]])


def _inside_each(operands: Operands, attributes: Attributes) -> str:
    """The numbers of each index vector lie within the axes that it names."""
    x, vectors, indices = _tensor(operands, 0), _tensor(operands, 1), _integers(operands, attributes, 1)
    if x is None or vectors is None or indices is None:
        return ""
    batch, deep = attributes.get("batch_dims", 0), vectors.shape[-1] if vectors.rank else 0
    if not isinstance(batch, int) or not isinstance(deep, int) or not 0 <= batch < batch + deep <= x.rank:
        return ""
    return _beyond(indices, x.shape[batch : batch + deep])


def _mask_of_all_keys(operands: Operands, attributes: Attributes) -> str:
    """A mask has a number for each key, the cached ones included, or one for all."""
    mask, (key, past) = _tensor(operands, 3), (_tensor(operands, place) for place in (1, 4))
    if not mask or not mask.rank or not key or key.rank < 2 or (past and past.rank < 2):
        return ""
    keys = key.shape[-2] + (past.shape[-2] if past else 0)
    fits = not (differ(mask.shape[-1], keys) and differ(mask.shape[-1], 1))
    return "" if fits else f"a mask of {mask.shape[-1]} for {keys} keys"


def _beyond(indices: Sequence[int], lengths: Sequence[Dim]) -> str:
    """What is said of an index that is outside its axis; the axes take turns."""
    for place, index in enumerate(indices):
        length = lengths[place % len(lengths)]
        if isinstance(length, int) and not -length <= index < length:
            return f"index {index} is outside an axis of {length}"
    return ""


_CONDITIONS: tuple[tuple[str, tuple[Condition, ...]], ...] = (
    ("Pad Slice", (partial(_distinct, 3),)),
    ("Unsqueeze", (partial(_distinct, _OF_RESULT), partial(_distinct, "axes"))),
    ("CenterCropPad Resize", (partial(_distinct, "axes"),)),
    ("AveragePool LpPool MaxPool", (_pads_within_window,)),
    ("Conv", (_undilated,)),
    ("ReverseSequence", (partial(_differ_in, "batch_axis", "time_axis", 1),)),
    ("Gather GatherElements Scatter ScatterElements", (_inside,)),
    ("GatherND ScatterND", (_inside_each,)),
    ("Attention.23", (_mask_of_all_keys,)),  # from version 24 on a mask may be shorter
)
_BY_WORD = {f"onnx.{word}": conditions for words, conditions in _CONDITIONS for word in words.split()}


def broken(op: str, operands: Operands, attributes: Iterable[tuple[str, object]]) -> str:
    """What is wrong with a call's shapes, or with what it says beside them; "" if nothing is."""
    conditions = _BY_WORD.get(op) or _BY_WORD.get(operator(op).base)
    if not conditions:
        return misfit(op, operands)
    given = dict(attributes)
    found = (keeps(operands, given) for keeps in conditions)
    return misfit(op, operands) or next(filter(None, found), "")
