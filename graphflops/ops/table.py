"""The form of the table of operators: one row for each operator, one column for each dialect.

A column lists the spellings in its dialect, separated by blanks, without overload or version; `max.other` is a spelling for
one overload only. `Gather(x,index,axis)` states the order of arguments of that spelling. An argument `*xs` takes all
remaining operands. A new dialect is a new column: an entry in `NAMESPACES` and a field of `Row`.

The rows are the lines of `operators.txt`: `name kind: arguments | column spellings | ...`. A line that begins with
blanks goes on with the row above it; one that begins with `#` names what follows.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from graphflops.base.record import Record

# Kinds that their names do not tell: linear_algebra, matrices are factored or inverted, systems solved; statistics, of the
# values of a tensor, medians, quantiles, histograms, counts; foreach, one operator, applied to each tensor of a list;
# boxes, regions of pictures; query, a fact about a tensor that is known without its elements; classical, trees, linear
# models and encoders of classical machine learning.
Kind = Literal[
    "elementwise", "comparison", "logic", "cast", "identity", "creation", "view", "movement", "gather", "scatter", "size",
    "sequence", "reduction", "scan", "sort", "product", "convolution", "pooling", "resampling", "normalisation", "softmax",
    "attention", "recurrent", "loss", "quantisation", "optimizer", "random", "dropout", "collective", "control",
    "linear_algebra", "fourier", "statistics", "distance", "sparse", "foreach", "boxes", "query", "text", "classical",
    "other",
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)

# Further properties of operators:
Fact = Literal[
    "activation",  # it applies an activation function to its own result
    "arithmetic",  # sums, differences, products or quotients of its operands
    "computed_again",  # inductor may compute it once more where a gradient reads it, beside whole kinds that it may
    "commutative",  # exchanging its first two operands does not change the result
    "adds",  # at the places of an index
    "gate",  # an activation that has its operand more than once in its formula, as a product with a function of it
    "threshold",  # an activation that is linear between thresholds
    "images",  # axis 1 of its operand holds channels, the later axes are the image
    "is_read_by_cpu",  # its result is a number, or has as many elements as only the data tells: the CPU waits for it
    "keeps_values",  # the result equals the operand whenever their types are equal
    "selects",  # each element of the result is an element of one of its operands
    "to_one",  # a collective in which each device sends to one other at most
    "unpacks",  # the result takes several times the memory of the operands
]

# Column of the table -> the namespace of the operators in it.
NAMESPACES = {
    "aten": "aten.",
    "prims": "prims.",
    "python": "_operator.",
    "onnx": "onnx.",
    "microsoft": "com.microsoft.",
    "other": "",
}

# Canonical name of an argument -> what dialects call it.
_CALLED = """
x: self input tensor | a: self input | b: other exponent | xs: tensors inputs | axis: dim dimension | axes: dim dims
axis0: dim0 | axis1: dim1 | axis2: dim2 | bias: self | keep: keepdim keepdims | order: perm dims permutation
shape: size | low: min | mask: attn_mask attn_bias bias | high: max | start: starts | end: ends | step: steps
value: fill_value values | index: indices | source: src | grad: grad_output grad_out grad_out_ | then: then_branch
training: training_mode train train_mode update use_input_stats | saved_mean: save_mean | otherwise: else_branch
saved_var: save_var save_invstd save_var_transform | stride: strides | padding: pads | groups: group
turn_a: transA | turn_b: transB | offsets_q: cum_seq_q cu_seqlens_q cu_seq_q | offsets_k: cum_seq_k cu_seqlens_k cu_seq_k
max_q: max_seqlen_q | max_k: max_seqlen_k | left: window_size_left | right: window_size_right
"""
ARGUMENT_NAMES: dict[str, tuple[str, ...]] = {
    name.strip(): tuple(names.split())
    for name, _, names in (entry.partition(":") for entry in re.split("[|\n]", _CALLED.strip()))
}


class Row(Record, frozen=True):
    """One operator: canonical name, kind, canonical arguments in order, and its spellings by dialect."""

    name: str
    kind: Kind
    arguments: str = ""
    aten: str = ""
    prims: str = ""
    python: str = ""
    onnx: str = ""
    microsoft: str = ""
    other: str = ""  # spellings of further dialects, with their namespace
    # The number that changes nothing as the last operand, or as either operand of a commutative operator.
    neutral: int | None = None
    facts: tuple[Fact, ...] = ()  # further properties


def _rows(text: str) -> Iterator[Row]:
    for line in text.replace("\n  ", " ").splitlines():
        if line.startswith("#"):
            continue
        head, *columns = line.split(" | ")
        named, _, arguments = head.partition(":")
        name, kind = named.split()
        fields: dict[str, Any] = dict(column.split(" ", 1) for column in columns)
        if "neutral" in fields:
            fields["neutral"] = int(fields["neutral"])
        if "facts" in fields:
            fields["facts"] = tuple(fields["facts"].split())
        yield Row(name, kind, arguments.strip(), **fields)  # type: ignore[arg-type]


ROWS = tuple(_rows(Path(__file__).with_name("operators.txt").read_text(encoding="utf-8")))


# Which module of `rules/` prices each operator, and the kind of each operator that the rows do not list: `index.txt`, which
# `python -m tests.generated` writes. A line names a module and a kind; below it stand operators by namespace. What follows
# the first empty line are backward rules.
INDEX = Path(__file__).with_name("index.txt")


class Home(NamedTuple):
    """Where an operator's rule is. kind: "" if a row has it."""

    module: str
    kind: str = ""


def unpacked(text: str) -> dict[str, Home]:
    """The home of each operator."""
    homes: dict[str, Home] = {}
    home = Home("")
    for line in text.splitlines():
        if line[0] != " ":
            home = Home(*line.split(" "))
            continue
        space, _, names = line.partition(": ")
        prefix = f"{space[1:]}."
        for name in names.split(" "):
            homes[prefix + name] = home
    return homes


STATED: dict[str, str] = {}  # kinds that rules outside of this package state
RULES, BACKWARDS = map(unpacked, INDEX.read_text(encoding="utf-8").split("\n\n"))
