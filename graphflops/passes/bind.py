"""Binds the sizes that the user gives to symbols, or to inputs of a program without symbols.

Sizes at which torch refuses the program, because they break its guards on input axes, are refused.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from graphflops.base.record import Record, field, replace
from graphflops.cost import Cost, Value
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.dims.solving import LARGEST_SIZE, affine
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, Symbol, tensor_type
from graphflops.open_sizes import OpenSizes, Range, axes_of, is_computed
from graphflops.report import Diagnostic, SymbolInfo
from graphflops.report.contradictions import diagnostic
from graphflops.report.size_names import collapsed, matching, span
from graphflops.tensor import TensorType, UnknownType, grouped, with_sizes


def refuse_broken(
    guards: Mapping[str, Dim],
    before: Mapping[str, int],
    after: Mapping[str, int],
    names: Mapping[str, str] | None = None,
) -> None:
    """Raise ModelError for a guard that does not hold at the sizes `after`.

    before, after: symbols and input axes whose sizes are known. A guard that the export's own sizes (`before`) break is not
    torch's and is ignored. names: how people read symbols.
    """
    for text, condition in guards.items():
        if not isinstance(condition, Expr) or evaluate(condition, after) != 0:
            continue
        if evaluate(condition, before) == 0:
            continue
        moved = sorted(name for name in condition.symbols if after[name] != before.get(name))
        given = ", ".join(f"{shown((names or {}).get(name, name))} = {after[name]}" for name in moved)
        told = f"the program requires {shown(text)}"
        raise ModelError(f"{given}: {told}: give a size that it takes, or export it anew")


def known_sizes(axes: Mapping[str, Dim], values: Mapping[str, int]) -> dict[str, int]:
    """The axes of known size. values: of symbols, or of the axes themselves."""
    found = {axis: values.get(axis, evaluate(size, values)) for axis, size in axes.items()}
    return {axis: size for axis, size in found.items() if size is not None}


_NUMBERED = re.compile(r"[A-Za-z]\w*_\d{1,6}")  # how the analysis names data-dependent sizes: `nonzero_0`


class Binding(Struct):
    """The sizes of this analysis: given, assumed and recorded."""

    given: dict[str, int] = field(default_factory=dict)  # value of each bound symbol
    # Sizes given under names that the analysis may create later, each with the error if it does not.
    awaited: dict[str, tuple[int, str]] = field(default_factory=dict)
    # Data-dependent sizes of the file that the program computes from other sizes.
    learned: dict[str, Dim] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)  # the export's examples
    assumed: dict[str, int] = field(default_factory=dict)  # sizes with neither example nor given value
    inputs: dict[str, TensorType] = field(default_factory=dict)  # whose recorded shapes the user replaced
    contents: dict[str, TensorType] = field(default_factory=dict)  # inputs of one integer that the user gave
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _settled: dict[int, Value] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        return bool(self.inputs)

    def value(self, graph: Graph, name: str) -> Value:
        """What the file records of a value, at the sizes given; None where it records nothing."""
        told = self.inputs.get(name) or self.contents.get(name)
        if told is not None and any(entry.name == name for entry in graph.inputs):
            return told
        recorded = graph.types.get(name)
        if not (self.given or self.learned) or recorded is None:
            return recorded  # type: ignore[return-value]
        known = self._settled.get(id(recorded))
        if known is None:
            known = self._settled[id(recorded)] = with_sizes(recorded, self.bound)
        return known

    def bound(self, dim: Dim) -> Dim:
        """A size, with what is known of its symbols substituted."""
        if not (self.given or self.learned) or not isinstance(dim, Expr):
            return dim
        known: Mapping[str, Dim] = self.given
        if self.learned:
            names = dim.symbols & self.learned.keys()
            known = {**{name: self.learned[name] for name in names}, **self.given} if names else known
        return dim.substitute(known)

    def learn(self, symbol: str, size: Dim) -> None:
        self.learned[symbol] = size
        self._settled.clear()

    def told(self, size: Dim) -> Dim:
        """A size that the analysis has just named, or the value that the user gives for it."""
        value, _ = self.awaited.pop(str(size), (None, ""))
        if value is None:
            return size
        self.given[str(size)] = value
        return value

    @property
    def examples(self) -> dict[str, int]:
        """Values of the symbols that the user does not give: the export's, or else the assumed ones."""
        return {**self.assumed, **self.hints}

    def _info(self, name: str, entry: Symbol, computed: Mapping[str, Dim]) -> SymbolInfo:
        """A symbol of the program with its value, and who gave the value. computed: axes whose sizes are expressions."""
        within = {axis: computed[axis] for axis in entry.where if axis in computed}
        info = SymbolInfo(None, None, entry.minimum, entry.maximum, entry.where, computed=within)
        if name in self.given:
            return replace(info, value=self.given[name], given_by="user")
        size = self.learned.get(name, symbol(name))
        for source, known in (("hint", self.hints), ("assumption", self.examples)):
            value = evaluate(size, {**known, **self.given})
            if value is not None:
                return replace(info, value=value, given_by=source)
        return info

    def describe(self, graph: Graph, costs: Sequence[Cost]) -> dict[str, SymbolInfo]:
        """All symbols of the program and of the costs; those that the analysis named come last."""
        computed = open_sizes(graph).computed
        infos = {name: self._info(name, entry, computed) for name, entry in graph.symbols.items()}
        infos |= {name: SymbolInfo(value, "user") for name, value in self.given.items() if name not in infos}
        for cost in costs:
            for quantity in (cost.matrix_flops, cost.vector_flops, cost.read_bytes, cost.written_bytes):
                for name in sorted(quantity.symbols) if isinstance(quantity, Expr) else ():
                    infos.setdefault(name, SymbolInfo(None, None))
        return infos


def bind(
    graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]], *, assume: bool = True
) -> Binding:
    """Solve the sizes given for the program's symbols, and assume those that have no example, unless `assume` is False.

    dims: by symbol, scalar input, input axis `ids[1]`, or a pattern of these. inputs: whole shapes. A size that differs from
    a number that the program fixes replaces the input's shape, and everything after it is derived again. If the types of a
    program are derived, dims may also give the number that an input of one integer holds.
    Raises ModelError for names the program lacks, for sizes that contradict one another, and for wrong ranks.
    """
    binding = Binding(hints={name: s.hint for name, s in graph.symbols.items() if s.hint is not None})
    assumed = assumed_sizes(graph, binding.hints) if assume else {}
    recorded = {entry.name: graph.types.get(entry.name) for entry in graph.inputs if entry.role == "user"}
    sizes = open_sizes(graph, {**assumed, **binding.hints})
    if graph.declared is not None:
        binding.contents = _numbers(recorded, dims, sizes)
    named = {name: value for name, value in dims.items() if name not in binding.contents}
    given = {name: value for name, value in named.items() if not _is_awaited(binding, sizes, name, value)}
    axes, binding.inputs = axes_of_inputs(recorded, inputs)
    binding.given, fixed = sizes.solved({**given, **axes})
    if graph.guards:  # check now what is known; other sizes may follow from the given ones
        known = known_sizes(sizes.axes, binding.hints)
        refuse_broken(graph.guards, known, known_sizes(sizes.axes, {**binding.given, **fixed}))
    binding.diagnostics += _exported_otherwise(graph, sizes.axes, fixed)
    for axis, value in fixed.items():
        name, _, place = axis[:-1].rpartition("[")
        tensor = binding.inputs.get(name) or recorded[name]
        assert isinstance(tensor, TensorType)
        changed = (*tensor.shape[: int(place)], value, *tensor.shape[int(place) + 1 :])
        binding.inputs[name] = replace(tensor, shape=changed)
    binding.inputs = {name: with_sizes(tensor, binding.bound) for name, tensor in binding.inputs.items()}
    binding.given.update({name: dims[name] for name in binding.contents})
    binding.assumed = {name: size for name, size in assumed.items() if name not in binding.given}
    binding.diagnostics += outside(binding.given, graph.symbols)
    return binding


def _exported_otherwise(graph: Graph, axes: Mapping[str, Dim], fixed: Mapping[str, int]) -> list[Diagnostic]:
    """Diagnostics of axes that a program with recorded types fixes and the user changes."""
    if not fixed or graph.declared is not None:
        return []
    text = ", ".join(f"{shown(axis)} = {size}, not {axes[axis]}" for axis, size in fixed.items())
    kept = "loops that Python unrolled, branches that it took and constants that it made stay those of the export"
    return [diagnostic("GF134", "", f"{text}: {kept}; export the program at these sizes to be sure")]


def open_sizes(graph: Graph, examples: Mapping[str, int] | None = None) -> OpenSizes:
    """The sizes that a program leaves open, and those of its inputs. examples: values of symbols."""
    users = [entry.name for entry in graph.inputs if entry.role == "user"]
    axes = axes_of({name: graph.types.get(name) for name in users})
    computed = {axis: size for axis, size in axes.items() if is_computed(size)}
    return OpenSizes(graph.symbols, axes, computed=computed, examples=examples or {})


def _is_awaited(binding: Binding, sizes: OpenSizes, name: str, value: int) -> bool:
    """Whether a size is given under a name that the analysis may create later."""
    if sizes.places(name) or not _NUMBERED.fullmatch(name) or not 0 <= value <= LARGEST_SIZE:
        return False
    try:
        sizes.sizes_of(name)
    except ModelError as error:
        binding.awaited[name] = (value, str(error))
    return True


def _numbers(types: Mapping[str, object], dims: Mapping[str, int], sizes: OpenSizes) -> dict[str, TensorType]:
    """The inputs of one integer that `dims` gives, with their values; a name that a size has means the size."""
    found = {}
    for name, value in dims.items():
        typed = types.get(name)
        if not isinstance(typed, TensorType) or typed.dtype.kind not in ("int", "uint") or sizes.places(name):
            continue
        if typed.shape in ((), (1,)):
            found[name] = replace(typed, value=(value,) if typed.shape else value)
    return found


def axes_of_inputs(
    types: Mapping[str, object], inputs: Mapping[str, Sequence[int]]
) -> tuple[dict[str, int], dict[str, TensorType]]:
    """The axes of the inputs whose shapes are given, and the types of inputs that have no rank unless a shape is given.

    types: of all inputs. inputs: shapes by name or pattern. Raises ModelError for an unknown name, and for a wrong rank.
    """
    axes: dict[str, int] = {}
    shaped: dict[str, TensorType] = {}
    for pattern, shape in inputs.items():
        for name in [pattern] if pattern in types else matching(pattern, types) or [pattern]:
            typed = types.get(name)
            if isinstance(typed, UnknownType) and typed.dtype is not None:
                shaped[name] = TensorType(tuple(shape), typed.dtype)
            elif not isinstance(typed, TensorType):
                known = collapsed(name for name, value in types.items() if isinstance(value, TensorType))
                has = ", ".join(map(shown, known)) or "none"
                raise ModelError(f"--input {shown(name)}: no such input; the program has {has}")
            elif len(shape) != typed.rank:
                text = f"{len(shape)} sizes given for {typed}, which has {typed.rank}"
                raise ModelError(f"--input {shown(name)}: {text}")
            else:
                axes.update({f"{name}[{index}]": size for index, size in enumerate(shape)})
    return axes, shaped


def outside(given: Mapping[str, int], symbols: Mapping[str, Range]) -> list[Diagnostic]:
    """Diagnostics of symbols with given values outside their ranges."""
    found = []
    for name, value in given.items():
        low, high = (symbols[name].minimum, symbols[name].maximum) if name in symbols else (None, None)
        if value < (value if low is None else low) or value > (value if high is None else high):
            text = f"{name} = {value:,}, but the program was exported for {span(low, high)}"
            found.append(diagnostic("GF106", "", text))
    return found


BATCH = 1
IMAGE = 224  # height and width of an image
OTHER = 64  # sequences, features, lists, and anything that the table does not name

_BATCH_WORDS = frozenset({"b", "bs", "nbatch"})
_LENGTH_WORDS = frozenset({"seq", "sequence", "len", "length", "token", "tokens", "past", "time", "frames"})
_IMAGE_WORDS = frozenset({"h", "w", "height", "width"})
# Axes of height and width and of the channels, counted from the end: channels first, channels last.
_LAYOUTS = (((-2, -1), -3), ((-3, -2), -1))
_COLOURS = 3


def assumed_sizes(graph: Graph, known: Collection[str]) -> dict[str, int]:
    """The assumed value of each symbol of the program that is not known.

    A size of an input axis follows the table, within its range. A data-dependent size is at its upper bound, or has no
    value if its range has none.
    """
    users = [tensor_type(entry.name, graph.types) for entry in graph.inputs if entry.role == "user"]
    shaped = [(x, place, size) for x in users if x is not None for place, size in enumerate(x.shape)]
    axes = grouped(
        (size.symbols, _Axis(size, x, place)) for x, place, size in shaped if isinstance(size, Expr)
    )
    return {
        name: value
        for name, symbol in graph.symbols.items()
        if name not in known and (value := _assumed(symbol, axes.get(frozenset((name,)), ()))) is not None
    }


class _Axis(Record, frozen=True):
    size: Expr
    tensor: TensorType
    place: int

    def value(self, words: Collection[str]) -> int:
        """The assumed length of the axis. words: those in its size's name."""
        if self._is_of_image(words):
            return IMAGE
        is_named = any(word in _BATCH_WORDS or word.startswith("batch") for word in words)
        is_first = self.place == 0 and self.tensor.rank > 1 and _LENGTH_WORDS.isdisjoint(words)
        return BATCH if is_named or is_first else OTHER

    def _is_of_image(self, words: Collection[str]) -> bool:
        """Whether it is an axis of an image: two open axes beside 3 channels, or one named like an image's axis."""
        shape, rank = self.tensor.shape, self.tensor.rank
        for pair, channel in _LAYOUTS:
            if rank < (3 if channel == -3 else 4) or self.place - rank not in pair:
                continue
            channels = shape[channel]
            if channels == _COLOURS and all(isinstance(shape[axis], Expr) for axis in pair):
                return True
            is_open = isinstance(channels, Expr) and _IMAGE_WORDS.isdisjoint(_words(str(channels)))
            if (is_open or channels in (1, _COLOURS)) and not _IMAGE_WORDS.isdisjoint(words):
                return True
        return False


def _assumed(entry: Symbol, axes: Collection[_Axis]) -> int | None:
    """The assumed value of a symbol. axes: those whose size depends on this symbol alone."""
    if entry.assumed is not None:
        return entry.assumed
    if not entry.where:
        return entry.maximum if entry.maximum is not None and entry.maximum <= LARGEST_SIZE else None
    words = _words(entry.name)
    axis = min(axes, key=lambda axis: len(axis.size.terms), default=None)  # `h` says more than `h + 1`
    value = OTHER if axis is None else axis.value(words)
    linear = None if axis is None else affine(axis.size)
    if linear is not None and linear[1] > 0:  # 56 for an axis of `4*h` and 224
        value = max((value - linear[2]) // linear[1], 1)
    lowest = 1 if entry.minimum is None else entry.minimum
    return max(lowest, value if entry.maximum is None else min(value, entry.maximum))


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+", name.lower()))
