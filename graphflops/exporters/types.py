"""Tensor types, sizes and symbols of a program as torch records them; each distinct one is built once.

Guards of an export are conditions on the sizes of inputs, which torch checks before each run of the program. For weights of
tensor subclasses, such as torchao's quantized ones, the plain tensors inside are stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from graphflops.dims import Dim, Expr, evaluate, parse_dim, prod, symbol
from graphflops.dims.solving import affine, solution
from graphflops.errors import DimError, shown
from graphflops.graph import Input, Node, Output, Ref, Scalar, Symbol
from graphflops.open_sizes import axes_of
from graphflops.tensor import TensorType

# torch omits "no upper bound", or writes it as one of several huge numbers.
_UNBOUNDED = 2**62
STORED = "stored elements of"  # a sparse input: where the symbol of their number stands


class Types:
    """Distinct tensor types and sizes of one program."""

    def __init__(self) -> None:
        # By size that is an expression: its example value, if the file has one.
        self.hints: dict[Dim, int] = {}
        self.differing: dict[Dim, int] = {}  # second, different examples
        self.orders: dict[str, tuple[int, ...]] = {}  # of inputs that are not row-major
        self._tensors: dict[TensorType, TensorType] = {}

    def once(self, tensor: TensorType) -> TensorType:
        return self._tensors.setdefault(tensor, tensor)

    def of_input(
        self, entry: Input, known: TensorType, strides: Sequence[int | None], trained: bool, is_sparse: bool
    ) -> TensorType:
        """The type of an input: whether it wants a gradient, memory of axes with stride 0, sparse storage."""
        if (order := memory_order(known.shape, strides)) is not None:
            self.orders[entry.name] = order
        wanted = trained and entry.role in ("parameter", "user")
        stored = storage(known.shape, strides, entry.role)
        known = self.once(replace(known, requires_grad=wanted, stored=stored))
        if not is_sparse:
            return known
        # The number of stored elements is a symbol named after the input.
        return replace(known, nonzeros=symbol(f"{entry.name}_nnz" if entry.name.isidentifier() else "nnz"))

    def dim(self, text: str, hint: int | None) -> Dim:
        """A size from its text; raises DimError for a text that is not a size."""
        dim = parse_dim(text)
        if hint is not None and self.hints.setdefault(dim, hint) != hint:
            self.differing[dim] = hint
        return dim

    def contradictions(self, symbols: Mapping[str, Symbol]) -> Iterator[str]:
        """Where example values contradict each other or their symbol's range, or are not those of the inputs."""
        examples = {name: entry.hint for name, entry in symbols.items() if entry.hint is not None}
        for size, hint in (*self.hints.items(), *self.differing.items()):
            value = evaluate(size, examples)
            if value is not None and value != hint:
                yield f"the example of {shown(str(size), 80)} is {value:,} and {hint:,}"
            if isinstance(size, Expr) and not all(symbols[name].where for name in size.symbols):
                yield f"{shown(str(size), 80)} has the example {hint:,}, and is the size of no input"
        for name, value in examples.items():
            low, high = symbols[name].minimum, symbols[name].maximum
            if (low is not None and value < low) or (high is not None and value > high):
                yield f"the example of {shown(name, 80)} is {value:,}, outside of its range"

    def symbols(
        self,
        ranges: Mapping[str, tuple[int | None, int | None]],
        inputs: Iterable[Input],
        types: Mapping[str, TensorType | Scalar],
    ) -> dict[str, Symbol]:
        """Every symbol in a range or a size, those of the inputs first and in their order.

        ranges: inclusive ranges by symbol; one for an expression (`2*s5`) says nothing that its symbol's does not.
        """
        bare, within = _axes(inputs, types)
        names = {name: None for axes in (bare, within) for name in axes}
        sizes = (size for tensor in self._tensors for size in tensor.shape)
        exprs = [size for size in (*sizes, *self.hints) if isinstance(size, Expr)]
        names.update({name: None for size in exprs for name in sorted(size.symbols)})
        names.update({name: None for name in ranges if name.isidentifier()})
        # Examples: as recorded where a symbol stands alone, else solved from `2*s5 = 8`.
        single = [(size, hint) for size, hint in self.hints.items() if isinstance(size, Expr)]
        of_one = [(min(size.symbols), size, hint) for size, hint in single if len(size.symbols) == 1]
        examples = {name: hint for name, size, hint in of_one if size is symbol(name)}
        for name, size, hint in of_one:
            if name not in examples and affine(size) and (found := solution(size, hint)) is not None:
                examples[name] = found
        symbols = {}
        for name in names:
            low, high = ranges.get(name, (None, None))
            where = (*bare.get(name, ()), *within.get(name, ()))
            symbols[name] = Symbol(
                name,
                minimum=None if low is None or low <= -_UNBOUNDED else low,
                maximum=None if high is None or high >= _UNBOUNDED else high,
                hint=examples.get(name) if where else None,  # no caller passes a size that is of no input
                where=where,
            )
        return symbols


def storage(shape: Sequence[Dim], strides: Sequence[int | None], role: str = "") -> Dim | None:
    """Elements in memory of a tensor with axes of stride 0; None for other tensors.

    Inputs from the caller have none: a caller passes tensors of any strides, whatever the example's were.
    """
    if role == "user" or 0 not in strides:
        return None
    kept = [size for size, stride in zip(shape, strides, strict=False) if stride != 0 or size == 1]
    return None if len(kept) == len(shape) else prod(kept)


def memory_order(shape: Sequence[Dim], strides: Sequence[int | None]) -> tuple[int, ...] | None:
    """The axes of a tensor without gaps, the outermost in memory first; None in row-major order, or for open strides."""
    if len(shape) < 2 or len(strides) != len(shape) or None in strides:
        return None
    order = tuple(sorted(range(len(shape)), key=lambda axis: -(strides[axis] or 0)))
    step: Dim = 1
    for axis in reversed(order):
        if strides[axis] != step and shape[axis] != 1:
            return None
        step = step * shape[axis]
    return None if order == tuple(range(len(shape))) else order


def _axes(
    inputs: Iterable[Input], types: Mapping[str, TensorType | Scalar]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Axes of user inputs by symbol: where it stands alone, and where it is part of an expression."""
    bare: dict[str, list[str]] = {}
    within: dict[str, list[str]] = {}
    for entry in inputs:
        recorded = types.get(entry.name)
        if isinstance(recorded, TensorType) and isinstance(recorded.nonzeros, Expr):
            bare.setdefault(str(recorded.nonzeros), []).append(f"{STORED} {entry.name}")
        for place, size in axes_of({entry.name: recorded}).items() if entry.role == "user" else ():
            for name in sorted(size.symbols) if isinstance(size, Expr) else ():
                (bare if size == symbol(name) else within).setdefault(name, []).append(place)
    return bare, within


MOST_GUARDS = 500  # the others are not read: guards only refuse
_LONGEST = 500  # characters of a guard, or of the name of a weight with parts
_PATH = r"(?:\['\w+'\]|\[\d+\]|\.(?!size\b)\w+)+"
_SIZE = re.compile(rf"\bL({_PATH})(?:\.size\(\)\[(\d+)\])?")  # `L['past'][0].size()[2]`


def guards_of(codes: Iterable[str], inputs: Iterable[Input]) -> dict[str, Dim]:
    """Conditions, which are 0 or 1, by text; the text names input axes as everywhere, `x[1] == 12`.

    codes: in Python, as torch saves them. Those that do not only say what sizes must be are ignored.
    """
    users = [entry.name for entry in inputs if entry.role == "user"]

    def place_of(found: re.Match[str]) -> str:
        """The axis, or the number that is passed in, from the name that torch derives from an argument's path.

        Strict exports count all arguments in one list, `flat_args`.
        """
        first, *rest = re.findall(r"\w+", found[1])
        counted = "".join(rest)
        name = "_".join((first, *rest)).lower()
        if first == "flat_args" and name not in users and counted.isdecimal() and int(counted) < len(users):
            name = users[int(counted)]
        return name if found[2] is None else f"{name}[{int(found[2])}]"

    guards: dict[str, Dim] = {}
    for code in [*codes][:MOST_GUARDS]:
        places = {place_of(found) for found in _SIZE.finditer(code[:_LONGEST])}
        if len(code) > _LONGEST or not {place.partition("[")[0] for place in places}.issubset(users):
            continue
        plain = code.replace("torch.sym_", "").replace("math.", "")
        try:
            condition = parse_dim(_SIZE.sub(lambda found: f"Symbol({place_of(found)!r})", plain))
        except DimError:
            continue
        if isinstance(condition, Expr) and condition.symbols <= places:
            guards[_SIZE.sub(place_of, plain)] = condition
    return guards


_TAKES_PART = "export.access_subclass_inner_tensor.default"  # a weight, and the name of its part


def with_parts(
    nodes: tuple[Node, ...], inputs: tuple[Input, ...], outputs: Iterable[Output], types: dict[str, object]
) -> tuple[tuple[Node, ...], tuple[Input, ...]]:
    """The calls and inputs, with parts (which may have parts) in place of each weight that the program only takes apart."""
    if not any(node.op == _TAKES_PART for node in nodes):
        return nodes, inputs
    others: list[Output | Node] = [*outputs, *(node for node in nodes if node.op != _TAKES_PART)]
    used = {name for other in others for _, name in other.uses()}
    weights = {entry.name: entry for entry in inputs if entry.target}
    parts: dict[str, list[Input]] = {}
    taken: set[str] = set()
    kept: list[Node] = []
    for node in nodes:
        match node.args, node.outputs:
            case (Ref() as asked, str() as name), (str() as result,) if node.op == _TAKES_PART and result:
                of = weights.get(asked.name)
            case _:
                of = None
        if of is None or of.name in used or len(of.target) > _LONGEST:
            kept.append(node)
            continue
        target = f"{of.target}.{name}"
        shared = next((one for one in (target, f"{of.alias_of}.{name}") if one in taken), "")
        weights[result] = Input(result, of.role, target, shared)
        parts.setdefault(of.name, []).append(weights[result])
        taken.add(target)
        weight, typed = types.get(of.name), types.get(result)
        if isinstance(weight, TensorType) and isinstance(typed, TensorType) and typed.dtype.is_floating:
            types[result] = replace(typed, requires_grad=weight.requires_grad)
    whole_inputs: list[Input] = []
    waiting = [*reversed(inputs)]
    while waiting:
        entry = waiting.pop()
        if entry.name in parts:
            waiting.extend(reversed(parts[entry.name]))
        else:
            whole_inputs.append(entry)
    return tuple(kept), tuple(whole_inputs)
