"""Sizes of an ONNX model's axes, and the ranges of sizes that the file states."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from graphflops.cost import OF_LOOPS, data_dependent
from graphflops.dims import Dim, Expr, parse_dim, symbol
from graphflops.dims.evaluation import Range
from graphflops.errors import DimError, FileError, shown
from graphflops.exporters.onnx_proto import checked, require_holdable, type_of, whole_number
from graphflops.exporters.onnx_scope import unique_of
from graphflops.graph import Symbol, Type
from graphflops.tensor import SequenceType, TensorType, UnknownType

_LARGEST_SIZE = 2**63
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_JOINED = re.compile(r"[A-Za-z_]\w*([-.:][A-Za-z_]\w*)+", re.ASCII)  # `seq-len` is a name, not a difference
_LONGEST_NAME = 60
_UNNAMED = frozenset({"", "?", "-1", "None", "none", "unknown", "Unknown"})

_KEY = "pkg.torch.export.ExportedProgram.range_constraints"
_STATED = re.compile(r": VR\[(-?\w{1,20}), (-?\w{1,20})\]")
_OF_INPUTS = re.compile(r"s\d+")  # other names (`u0`) are sizes that depend on data
_MOST_STATED = 10_000


class Sizes:
    """Reads axis sizes, and collects the symbols in them."""

    def __init__(self) -> None:
        self.symbols: dict[str, list[str]] = {}
        self.read, self.named = cache(self._read), cache(self._named)  # different texts get different names
        self._taken: dict[str, int] = {}  # by name: the next number to append

    def described(self, model: Any) -> dict[str, Symbol]:
        """The symbols of a model's inputs, with the ranges that it states."""
        stated = _ranges(model, self.symbols)
        return {name: Symbol(name, *stated[name], where=tuple(at)) for name, at in self.symbols.items()}

    def of_input(self, dim: Any, name: str, axis: int) -> Dim:
        """A size of a program input; a size that has neither a number nor a name gets a new name."""
        where = f"{name}[{axis}]"
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value != -1:
            return _number(dim.dim_value, where)
        text = checked(dim.dim_param) if kind == "dim_param" else ""
        size = symbol(self.named(f"{name}_{axis}")) if text.strip() in _UNNAMED else self.read(text)
        if isinstance(size, int):
            return _number(size, where)
        for found in sorted(size.symbols):
            self.symbols.setdefault(found, []).append(where)
        return size

    def of_program_input(self, proto: Any, name: str) -> Type:
        typed = type_of(proto, lambda dim, axis: self.of_input(dim, name, axis))
        if isinstance(typed, TensorType):
            sizes = [size for size in typed.shape if isinstance(size, int) and size]
            require_holdable(f"input {shown(name)}", sizes, math.prod(sizes))
        if isinstance(typed, SequenceType):
            length = self.named(f"{name}_length")
            self.symbols[length] = [name]
            return SequenceType(typed.element, symbol(length))
        return typed

    def of_value(self, dim: Any, axis: int) -> Dim:
        """A size in a type that the file declares; a size that is not stated becomes a new symbol."""
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value >= 0:
            return int(dim.dim_value)
        if kind == "dim_param" and checked(dim.dim_param).strip() not in _UNNAMED:
            return self.read(dim.dim_param)
        return data_dependent(f"unknown_axis{axis}")

    def _read(self, text: str) -> Dim:
        """A size from its text: a number, a name, or an expression of names."""
        text = checked(text).strip()
        if (number := whole_number(text)) is not None:
            return number
        size = None if _NAME.fullmatch(text) or _JOINED.fullmatch(text) else _parsed(text)
        if size is None or (isinstance(size, int) and size < 0) or _is_taken(size):
            return symbol(self.named(text))
        return size

    def _named(self, text: str) -> str:
        """An identifier for a size: the file's text if it is an identifier."""
        clean = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:_LONGEST_NAME] or "size"
        if not isinstance(read := _parsed(clean), Expr) or read is not symbol(clean) or _is_taken(read):
            clean = f"size_{clean}"
        return unique_of(clean, self._taken, 2)


def _is_taken(size: Dim) -> bool:
    """Whether a symbol in a size has a name that rules give to sizes inside a loop."""
    return isinstance(size, Expr) and any(map(OF_LOOPS.fullmatch, size.symbols))


class Declared(Mapping[str, object]):
    """Types that the file declares for values, each read when it is first asked for; equal types are one object."""

    def __init__(self, protos: Mapping[str, Any], sizes: Sizes) -> None:
        self._protos, self._sizes = protos, sizes
        self._read: dict[bytes, object] = {}

    def __getitem__(self, name: str) -> object:
        proto = self._protos[name].type
        text = proto.SerializeToString()
        if text not in self._read:
            try:
                self._read[text] = type_of(proto, self._sizes.of_value)
            except FileError:
                self._read[text] = UnknownType()
        return self._read[text]

    def __iter__(self) -> Iterator[str]:
        return iter(self._protos)

    def __len__(self) -> int:
        return len(self._protos)


def _number(size: int, where: str) -> int:
    if not 0 <= size < _LARGEST_SIZE:
        raise FileError(f"{shown(where)} has the size {size}: export the model again")
    return size


def _ranges(model: Any, names: Collection[str]) -> Mapping[str, Range]:
    """Inclusive ranges of the named sizes; (None, None) if the file states none.

    torch states them under its own names (`s17`). If at least as many are left over as there are sizes that the user named,
    each of these sizes gets the smallest range that contains all of those left over.
    """
    stated = _stated(model)
    found = defaultdict[str, Range](lambda: (None, None))
    found.update({name: stated[name] for name in names if name in stated})
    rest = [name for name in names if name not in stated]
    known = [sizes for key, sizes in stated.items() if _OF_INPUTS.fullmatch(key) and key not in names]
    if rest and len(rest) <= len(known):
        lows, highs = zip(*known, strict=True)
        hull = None if None in lows else min(lows), None if None in highs else max(highs)
        found.update(dict.fromkeys(rest, hull))
    return found


def _stated(model: Any) -> dict[str, Range]:
    """The entries of a printed dict of ranges: `{s17: VR[2, 64], 4*s18: VR[16, int_oo]}`."""
    entries = (*model.graph.metadata_props, *model.metadata_props)
    texts = (entry.value for entry in entries if entry.key == _KEY and isinstance(entry.value, str))
    text, begins, found = next(texts, ""), 0, dict[str, Range]()
    for match in islice(_STATED.finditer(text), _MOST_STATED):
        low, high = map(whole_number, match.groups())
        found[text[begins : match.start()].strip("{, ")] = low or None, high  # sizes are never negative
        begins = match.end()
    return found


def _parsed(text: str) -> Dim | None:
    try:
        return parse_dim(text)
    except DimError:
        return None
