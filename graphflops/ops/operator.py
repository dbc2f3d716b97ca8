"""The canonical operator behind a spelling, and the names of its arguments."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from graphflops.base.record import Record
from graphflops.ops.table import ARGUMENT_NAMES, NAMESPACES, ROWS, RULES, STATED, Fact, Kind, Row

# Namespaces of plain functions: what follows the last dot is the function's name, not an overload or a version.
_FUNCTIONS = ("_operator", "builtins", "higher_order", "math", "torch")
_IN_PLACE = {f"__i{word}__": f"__{word}__" for word in ("and", "or", "xor", "lshift", "rshift")} | {
    "copy_to": "copy"
}
_BROADCASTING = frozenset({"elementwise", "comparison", "logic"})
_POINTWISE = _BROADCASTING | {"cast", "identity", "dropout", "quantisation"}
_MOVING = frozenset({"view", "identity", "cast", "movement"})
_SEVERAL = frozenset({"b", "weight", "mask", "*xs"})  # parameters of operators that take several tensors
_COPIED_FOR = {
    "fsdp.all_gather_copy_in": "all_gather",
    "fsdp.chunk_cat": "reduce_scatter",
    "fsdp.chunk_cat_mixed_dtype": "reduce_scatter",
}
_KEYWORD_ONLY = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator", "out"})
Entry = TypeVar("Entry")
_MEMOISED = 2**14  # distinct spellings; a file may make up any number of them


class Op(Record, frozen=True, eq=False):
    """One operator under one of its spellings."""

    spelling: str  # the name in the file, `aten.add_.Tensor` or `onnx.Softmax.13`
    dialect: str  # the namespace or domain, `aten` or `com.microsoft`; "" if the spelling has none
    base: str  # the spelling without overload or version, the key under which most rules are registered
    word: str  # the operator's own name in its dialect: `add_`, `Softmax`
    variant: str  # the overload or the ONNX version, `Tensor` or `13`; "" if the dialect has neither
    name: str  # canonical, `add`; for an operator outside the table, its functional base
    kind: Kind  # the class that it belongs to: as the table says, else as its rule states, else `other`
    parameters: tuple[str, ...]  # canonical names of its arguments by position; () outside the table
    keywords: Mapping[str, str]
    neutral: int | None  # the number that changes nothing as its last operand; None if there is none
    facts: tuple[Fact, ...]  # further properties in the table
    mutates: bool  # it writes its first operand in place
    functional: str | None  # base of the one with the same result that does not write; None if this does not

    @property
    def version(self) -> int:
        """The ONNX version in force; 0 if the variant is not a number."""
        return int(self.variant) if self.variant.isdecimal() else 0

    @property
    def writes_operands(self) -> bool:
        """True if it writes its first operand, or operands that are given for its results."""
        return self.mutates or ("out" in self.variant and self.dialect not in _FUNCTIONS)

    @property
    def is_python(self) -> bool:
        """True for a function of Python's own numbers."""
        return self.dialect in _FUNCTIONS and self.dialect != "higher_order"

    @property
    def shares_memory(self) -> bool:
        """True if the result may be a view of the first operand, or that operand itself."""
        copies = "copy" in self.word or "clone" in self.word
        return self.kind in ("view", "identity", "cast", "sequence") and not copies

    @property
    def reads_sizes(self) -> bool:
        """True if it uses the size of its first operand and not the contents."""
        is_like = self.kind == "creation" and "x" in self.parameters and self.name not in ("fill", "copy")
        return is_like or self.name in ("size", "numel", "check")

    def has(self, fact: Fact) -> bool:
        """Whether the table says this of it."""
        return fact in self.facts

    def arguments(self, args: Sequence[Any], kwargs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """Arguments by canonical name; one without a canonical name keeps its own, or `#3` for its position.

        Programs saved by torch before 2.7 name every argument in the operator's order, so a name that means nothing here
        stands for its position.
        """
        names = self.parameters
        if names and names[-1].startswith("*"):  # all operands that are left
            rest = len(names) - 1
            args, names = (*args[:rest], tuple(args[rest:])), (*names[:rest], names[rest][1:])
        found = dict(zip(names, args, strict=False))
        found |= {f"#{place}": args[place] for place in range(len(names), len(args))}
        for place, (key, value) in enumerate(kwargs, start=len(args)):
            name = self.keywords.get(key, key)
            by_place = not args and name not in names and key not in _KEYWORD_ONLY and not self.is_onnx
            if by_place and place < len(names) and names[place] not in found:
                name = names[place]
            found[name] = value
        return found

    def turned(self, arguments: Mapping[str, Any], rank: int) -> list[int] | None:
        """The axes of what it reads, in the order in which its result has them; None of one that keeps their order."""
        axes = list(range(rank))
        match self.name:
            case "permute":
                return [axis % rank for axis in arguments.get("order") or axes[::-1]]
            case "movedim":
                ends = [arguments.get(name) for name in ("source", "destination")]
                source, target = (
                    [x % max(rank, 1) for x in (end if isinstance(end, tuple) else (end,))] for end in ends
                )
                moved = dict(zip(target, source, strict=True))
                rest = (axis for axis in axes if axis not in source)
                return [moved[place] if place in moved else next(rest) for place in axes]
            case "transpose" | "t":
                a, b = arguments.get("axis0", -1), arguments.get("axis1", -2)
                if rank > 1:
                    axes[a], axes[b] = axes[b], axes[a]
                return axes
        return None

    @property
    def is_pointwise(self) -> bool:
        """True if each element of the result depends on the elements of the operands at the same index only."""
        return self.kind in _POINTWISE

    @property
    def is_random(self) -> bool:
        """True if two calls on the same operands may give different results."""
        return self.kind in ("random", "dropout")

    @property
    def stops_gradients(self) -> bool:
        """True if no gradient passes from its results to its operands: they are cut off, or only their sizes are used.

        Zeros written in place have one, which is zeros.
        """
        is_size = self.reads_sizes and self.word.rstrip("_") != "zero"
        return self.name == "detach" or is_size or self.word in ("rand_like", "randn_like")

    @property
    def broadcasts(self) -> bool:
        """True if it takes several tensors and broadcasts them to one shape."""
        return self.kind in _BROADCASTING and any(name in _SEVERAL for name in self.parameters)

    @property
    def moves_elements(self) -> bool:
        """True if each element of the result is an element of an operand, or a constant."""
        return self.kind in _MOVING or "selects" in self.facts

    @property
    def is_exchange(self) -> bool:
        """True if the devices of a group exchange data; a wait does not."""
        return "group_name" in self.parameters

    @property
    def copies_for(self) -> str:
        """The collective whose operand it copies for PyTorch's `fully_shard`, "" where it is for none."""
        return _COPIED_FOR.get(self.name, "")

    @property
    def is_backward(self) -> bool:
        """True if it computes the gradients of a forward operator."""
        return any(name in ("grad", "grad_out") for name in self.parameters)

    @property
    def has_score_function(self) -> bool:
        """True if it is attention with a score function and a mask function of the program."""
        return self.kind == "attention" and "score_mod" in self.parameters

    @property
    def indexes_one_axis(self) -> bool:
        """True if its argument `index` holds indices along one axis of the first operand."""
        return self.is_embedding or {"index", "axis"} <= {*self.parameters}

    @property
    def is_embedding(self) -> bool:
        """True if it gathers rows of a weight."""
        return self.kind == "gather" and self.parameters[:1] == ("weight",)

    @property
    def short_name(self) -> str:
        """Word and variant as one identifier: `add_Tensor`."""
        return f"{self.word}_{self.variant}" if self.variant else self.word

    @property
    def is_onnx(self) -> bool:
        """True for ONNX and the domains that extend it, where keywords are attributes, never operands."""
        return self.dialect == "onnx" or self.dialect.startswith(("ai.onnx", "com."))

    def __str__(self) -> str:
        return self.spelling


@lru_cache(maxsize=_MEMOISED)
def operator(spelling: str) -> Op:
    """The operator behind a spelling; never fails: an operator outside the table has the kind `other`."""
    dialect, word, variant = _taken_apart(spelling)
    base = f"{dialect}.{word}" if dialect else word
    # The base of the functional operator of one that writes in place: `aten.add` of `add_`, `aten.__or__` of `__ior__`.
    plain = None
    if dialect not in _FUNCTIONS and word in _IN_PLACE:
        plain = f"{dialect}.{_IN_PLACE[word]}"
    elif dialect not in _FUNCTIONS and word.endswith("_") and not word.endswith("__"):
        plain = f"{dialect}.{word[:-1]}"
    table = spellings()
    keys = (f"{base}.{variant}", base, *(() if plain is None else (f"{plain}.{variant}", plain)))
    row, arguments = next((table[key] for key in keys if key in table), (None, ""))
    if row is None:
        homes = (RULES[key].kind for key in keys if key in RULES)
        stated = next((STATED[key] for key in keys if key in STATED), next(homes, ""))
        row = Row(plain or base, stated or "other")  # type: ignore[arg-type]
    parameters, keywords = _parameters(arguments)
    spelled = spelling, dialect, base, word, variant, row.name, row.kind, parameters, keywords
    return Op(*spelled, row.neutral, row.facts, mutates=plain is not None, functional=plain)


def _taken_apart(spelling: str) -> tuple[str, str, str]:
    """Dialect, word and variant of a spelling."""
    if spelling.startswith(_FUNCTIONS) and spelling.partition(".")[0] in _FUNCTIONS:
        dialect, _, word = spelling.rpartition(".")
        return dialect, word, ""
    base, _, variant = spelling.rpartition(".")
    if not base:
        return "", spelling, ""
    dialect, _, word = base.rpartition(".")
    return (dialect, word, variant) if dialect else (base, variant, "")


@lru_cache(maxsize=1)
def spellings() -> Mapping[str, tuple[Row, str]]:
    """Row and arguments, separated by commas or blanks, of every spelling; raises ValueError if two rows have one."""
    found: dict[str, tuple[Row, str]] = {}
    for row in ROWS:
        for column, namespace in NAMESPACES.items():
            for spelled in getattr(row, column).split():
                word, opened, own = spelled.partition("(")
                spelling = namespace + word
                if spelling in found:
                    names = f"{found[spelling][0].name} and {row.name}"
                    raise ValueError(f"graphflops/ops: {spelling} is a spelling of two operators, {names}")
                found[spelling] = row, own[:-1] if opened else row.arguments
    return found


@lru_cache(maxsize=256)
def _parameters(arguments: str) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Canonical names in order, and the canonical name of each other name that dialects use."""
    parameters = tuple(arguments.replace(",", " ").split())
    names = [name.lstrip("*") for name in parameters]
    keywords = {own: name for name in names[::-1] for own in ARGUMENT_NAMES.get(name, ()) if own not in names}
    return parameters, keywords


# Arguments of torch's operators in the order of their schemas: the name, `!` without a default and `?` with one, and what it
# may be, by `NEVER` in `onnx_operands.py`. Written by `python -m tests.oracle.operator_arguments`. An operator whose
# arguments a release of torch renamed is there twice.
ARGUMENTS = Path(__file__).with_name("arguments.txt")


@lru_cache(maxsize=1)
def _text() -> str:
    return ARGUMENTS.read_text(encoding="utf-8")


@lru_cache(maxsize=2**12)
def orders(spelling: str) -> tuple[tuple[str, ...], ...]:
    """The argument names of an operator, by release; () for one that the table does not have."""
    return tuple([tuple([re.split("[!?]", entry)[0] for entry in entries]) for entries in marked(spelling)])


@lru_cache(maxsize=2**12)
def marked(spelling: str) -> tuple[tuple[str, ...], ...]:
    """The entries of the table for an operator's arguments, by release."""
    text, wanted = _text(), f" {spelling.removeprefix('aten.')} "
    found = []
    at = text.find(wanted)
    while at >= 0:
        names, _, _ = text[text.rfind("\n", 0, at) + 1 : at].partition(":")
        found.append(tuple(names.split()))
        at = text.find(wanted, text.find("\n", at))
    return tuple(found)


def by_name(table: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """A table by canonical names; raises ValueError for a name that no operator has, whose entry would never be found."""
    unknown = table.keys() - {row.name for row in ROWS} - RULES.keys()
    if unknown:
        raise ValueError(f"no operator has the canonical name {', '.join(sorted(unknown))}")
    return table


def means(canonical: str, name: str) -> bool:
    """Whether a dialect calls the argument of that canonical name so."""
    return name == canonical or name in ARGUMENT_NAMES.get(canonical, ())


def placed(spelling: str, args: Sequence[Any], kwargs: Iterable[tuple[str, Any]]) -> list[Any]:
    """The operands of a call in the order of the schema; `...` for one that is left out."""
    named = dict(kwargs)
    order = max(orders(spelling), key=lambda order: len({*named} & {*order}), default=())
    found = dict(enumerate(args)) | {order.index(name): x for name, x in named.items() if name in order}
    return [found.get(place, ...) for place in range(max(found, default=-1) + 1)]


def lacking(spelling: str, operands: Sequence[Any]) -> str:
    """An operand that a call leaves out, although no release has a default for it; "" if there is none."""
    given = {place for place, operand in enumerate(operands) if operand is not ...}
    needed = (
        [x.partition("!")[0] if "!" in x and place not in given else "" for place, x in enumerate(entries)]
        for entries in marked(spelling)
    )
    return min((next(filter(None, names), "") for names in needed), default="", key=len)


@lru_cache(maxsize=2**12)
def arranged(spelling: str, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """The places of operands, in the order of the schema, without those whose names it does not have, as torch binds them.

    None where the operands are listed so, and for an operator that the table does not have.
    """
    known = orders(spelling)
    if not known:
        return None
    order = max(known, key=lambda order: len({*names} & {*order}))
    kept = sorted((order.index(name), place) for place, name in enumerate(names) if name in order)
    found = tuple([place for _, place in kept])
    return None if found == tuple(range(len(names))) else found
