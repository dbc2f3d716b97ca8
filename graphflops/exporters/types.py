"""Tensor types, sizes and symbols of a program as torch records them; each distinct one is built once.

Guards are conditions on sizes of inputs, which torch checks before each run. A weight of a tensor subclass, such as
torchao's quantized ones, is stored as the plain tensors inside it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from graphflops.base.record import replace
from graphflops.dims import Dim, Expr, evaluate, parse_dim, prod, symbol
from graphflops.dims.evaluation import Range
from graphflops.dims.solving import affine, solution
from graphflops.errors import DimError, shown
from graphflops.graph import Input, Node, Output, Ref, Scalar, Symbol
from graphflops.open_sizes import axes_of
from graphflops.tensor import TensorType

# torch omits "no upper bound", or writes it as one of several huge numbers.
_UNBOUNDED = 2**62
STORED = "stored elements of"  # begins `where` of the symbol for a sparse input's number of stored elements


class Types:
    """Distinct tensor types and sizes of one program."""

    def __init__(self) -> None:
        # By expression of a size: its example value, if the file has one.
        self.hints: dict[Dim, int] = {}
        self.differing: dict[Dim, int] = {}  # a later example that differs from the first
        self.orders: dict[str, tuple[int, ...]] = {}  # of inputs that are not row-major
        self._tensors: dict[TensorType, TensorType] = {}

    def once(self, tensor: TensorType) -> TensorType:
        return self._tensors.setdefault(tensor, tensor)

    def of_input(
        self, entry: Input, known: TensorType, strides: Sequence[int | None], trained: bool, is_sparse: bool
    ) -> TensorType:
        """The type of an input: whether it requires a gradient, its memory if a stride is 0, sparse storage."""
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
        """The size that a text states; raises DimError if it states none. hint: its example value."""
        dim = parse_dim(text)
        if hint is not None and self.hints.setdefault(dim, hint) != hint:
            self.differing[dim] = hint
        return dim

    def contradictions(self, symbols: Mapping[str, Symbol]) -> Iterator[str]:
        """Says where example values contradict each other or a symbol's range, or belong to sizes of no input."""
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
        self, ranges: Mapping[str, Range], inputs: Iterable[Input], types: Mapping[str, TensorType | Scalar]
    ) -> dict[str, Symbol]:
        """Every symbol in a range or a size, those of the inputs first and in their order.

        ranges: inclusive, by symbol. A range of an expression (`2*s5`) is ignored: it follows from its symbol's.
        """
        bare, within = _axes(inputs, types)
        names = {name: None for axes in (bare, within) for name in axes}
        sizes = (size for tensor in self._tensors for size in tensor.shape)
        exprs = [size for size in (*sizes, *self.hints) if isinstance(size, Expr)]
        names.update({name: None for size in exprs for name in sorted(size.symbols)})
        names.update({name: None for name in ranges if name.isidentifier()})
        # Examples: as recorded if a size is the symbol alone, else solved from `2*s5 = 8`.
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
                hint=examples.get(name) if where else None,  # a symbol that is in no input depends on data
                where=where,
            )
        return symbols


def storage(shape: Sequence[Dim], strides: Sequence[int | None], role: str = "") -> Dim | None:
    """The elements in memory of a tensor with strides of 0; None for others, and for inputs, whose strides may differ."""
    if role == "user" or 0 not in strides:
        return None
    kept = [size for size, stride in zip(shape, strides, strict=False) if stride != 0 or size == 1]
    return None if len(kept) == len(shape) else prod(kept)


def memory_order(shape: Sequence[Dim], strides: Sequence[int | None]) -> tuple[int, ...] | None:
    """The axes of a tensor, outermost in memory first; None if it is row-major, has gaps, or has an open stride."""
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
    """For each symbol, the axes of user inputs whose size is the symbol, and those whose expression contains it."""
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


MOST_GUARDS = 500  # more are not read: a guard only refuses sizes, so no figure needs it
_LONGEST = 500  # characters of a guard, or of the name of a weight with parts
_PATH = r"(?:\['\w+'\]|\[\d+\]|\.(?!size\b)\w+)+"
_SIZE = re.compile(rf"\bL({_PATH})(?:\.size\(\)\[(\d+)\])?")  # `L['past'][0].size()[2]`


def guards_of(codes: Iterable[str], inputs: Iterable[Input]) -> dict[str, Dim]:
    """Conditions on sizes by text, with axes as elsewhere: `x[1] == 12`. codes: guards as torch saves them."""
    users = [entry.name for entry in inputs if entry.role == "user"]

    def place_of(found: re.Match[str]) -> str:
        """The name of an axis, or of a number that is an input. torch derives an input's name from its argument's path;
        strict exports have all arguments in one list, `flat_args`, so the place in it identifies the input.
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
    """The calls and inputs, where a weight that the program only takes apart is replaced by its parts, at any depth."""
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

    def whole(entries: Iterable[Input]) -> Iterator[Input]:
        for entry in entries:
            yield from whole(parts[entry.name]) if entry.name in parts else (entry,)

    return tuple(kept), tuple(whole(inputs))


def with_aliases(
    inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]
) -> tuple[Input, ...]:
    """The inputs, with each weight that shares memory with an earlier one marked.

    torch redirects every use of tied weights to one of them. So two weights of one type are tied if no call uses
    `embedding.weight` and calls of module `embedding` use `head.weight`. A weight of a module without calls is tied to
    the only weight of its type and name in a child of its module (`head.bias` to `head.decoder.bias`), or else to the
    only embedding table of its type that is tied already (`shared.weight`).
    """
    used = _tied(inputs, nodes, types)
    first: dict[str, str] = {}  # by the weight that calls use: the first weight of its tied group
    marked = []
    for entry in inputs:
        earlier = first.setdefault(used[entry.name], entry.target) if entry.name in used else entry.target
        marked.append(entry if earlier == entry.target else replace(entry, alias_of=earlier))
    return tuple(marked)


def _tied(inputs: Sequence[Input], nodes: Sequence[Node], types: Mapping[str, object]) -> dict[str, str]:
    """By weight of a tied group: the one of them that calls use."""
    targets = {entry.name: entry.target for entry in inputs if entry.role in ("parameter", "buffer")}
    owner = {name: target.rpartition(".")[0] for name, target in targets.items()}
    users: dict[str, set[str]] = {}  # by weight, the modules whose calls use it
    tables = set[str]()  # weights that embeddings look up
    for node in nodes:
        for name in filter(targets.__contains__, node.reads()):
            users.setdefault(name, set()).add(node.module)
            tables |= {name} if node.operator.is_embedding else set()
    unused = [name for name in targets if name not in users and owner[name]]
    by_module = {(owner[name], types.get(name)): name for name in reversed(unused)}
    used: dict[str, str] = {}
    for name, modules in users.items():
        for module in modules - {owner[name]}:
            alike = by_module.get((module, types.get(name)))
            if alike is not None:
                used[name] = used[alike] = name
    children = defaultdict[tuple[str, str, object], list[str]](list)
    tied = defaultdict[object, list[str]](list)  # tables by type
    for name in users:
        around, attribute = owner[name].rpartition(".")[0], targets[name].rpartition(".")[2]
        children[around, attribute, types.get(name)].append(name)
        if name in tables and name in used:
            tied[types.get(name)].append(name)
    for name in unused:
        kind, attribute = types.get(name), targets[name].rpartition(".")[2]
        found = children.get((owner[name], attribute, kind)) or tied.get(kind, [])
        if name not in used and len(found) == 1:
            used[found[0]] = used[name] = found[0]
    return used
