"""Work of elementwise functions: FLOPs and function evaluations per element, and those of the gradient.

Every dialect counts an elementwise function from its row here: ATen, prims, ONNX, recurrent cells, experts, activations
fused into other operators, quantization and optimizers. A function is keyed by its canonical name; what an attribute
adds (a scale that is not one, a bound that is given) is added where the operator's rule reads the attribute.

Work is that of the function's defining formula; guards against special values (nan, infinity, a zero argument) are not
counted, and a choice between two values by one comparison is one operation. Rows are named tuples because every
analysis imports them: a class of two costs 0.1 ms, a frozen dataclass five times as much.

The rows are the lines of `work.txt`; after an empty line those of activations, and after another the gradients of reductions
and scans. A row has names, how many operands, FLOPs and function evaluations, and both for a complex element where they are
not twice those of a real one; then the gradient of each operand as a formula, where the function has a gradient rule of its
own: `g` passes the result's on, `fused` is computed by one kernel; after `=>`, the formula that PyTorch computes instead,
with its guards against special values (tools/autograd/derivatives.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.cost import Estimate
from graphflops.dims import Dim
from graphflops.errors import RuleError

if TYPE_CHECKING:
    from graphflops.rules.formula import Launch, Numbers


class Gradient(NamedTuple):
    """Work per element of one operand's gradient; without any, the gradient is zero, and is only written."""

    flops: int = 0
    transcendentals: int = 0
    # Read beside the result's gradient: operands by place ("a", "b", "c"), "out": the result, which the forward keeps.
    reads: str = ""


class Formula(Record, frozen=True):
    """The gradient of one operand as a formula, from which its work is counted (`formula.py` says how to write one)."""

    text: str
    launched: str = ""  # what PyTorch computes instead
    is_fused: bool = False  # `fused` of the table


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(Record, frozen=True):
    """Work of one function per element of its result."""

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None  # both for a complex element; None: twice those of a real one
    formulas: tuple[Formula | None, ...] = ()  # of each operand's gradient; () without a gradient rule
    operands: int = 1  # number of operands

    def more(self, flops: int = 0, transcendentals: int = 0) -> Work:
        """The same function with more real operations on each element, or on both parts of a complex one."""
        both = self.complex_work
        both = both and (both[0] + 2 * flops, both[1] + 2 * transcendentals)
        work = self.flops + flops, self.transcendentals + transcendentals
        return Work(self.name, *work, both, self.formulas, self.operands)

    def on(self, elements: Dim) -> Estimate:
        """The arithmetic, without traffic, on a number of elements."""
        return Estimate(vector_flops=self.flops * elements, transcendentals=self.transcendentals * elements)

    def times(self, count: int) -> Work:
        """The function applied `count` times to each element."""
        return replace(self, flops=count * self.flops, transcendentals=count * self.transcendentals)


def _cells(table: str) -> Iterator[list[str]]:
    """The cells of each row of a table; a line that is indented goes on with the row above it."""
    lines = [line.partition("#")[0].rstrip() for line in table.splitlines()]
    return (row.split(" | ") for row in "\n".join(lines).replace("\n    ", " ").splitlines() if row)


def _rows(table: str) -> Iterator[Work]:
    for head, *gradients in _cells(table):
        names, _, counts = head.partition(":")
        operands, flops, transcendentals, *both = map(int, counts.split())
        formulas: list[Formula | None] = []
        for text, _, launched in (each.partition(" => ") for each in gradients):
            formula = text.removeprefix("fused ")
            found = Formula(formula, launched, formula != text)
            formulas.append(PASS if text == "g" else found)
        for name in names.split():
            pair = (both[0], both[1]) if both else None
            yield Work(name, flops, transcendentals, pair, tuple(formulas), operands)


_TEXT = Path(__file__).with_name("work.txt").read_text(encoding="utf-8")
_FUNCTIONS, _ACTIVATIONS, _REDUCTIONS = _TEXT.split("\n\n")
_ACTIVATED = list(_rows(_ACTIVATIONS))
WORK: Mapping[str, Work] = {row.name: row for row in (*_rows(_FUNCTIONS), *_ACTIVATED)}
REDUCTIONS: Mapping[str, Formula] = {
    name: Formula(text) for names, text in _cells(_REDUCTIONS) for name in names.split()
}


@lru_cache(maxsize=1024)
def gradient_of(formula: Formula, numbers: Numbers = ()) -> Gradient | None:
    """The work and the reads of a formula; PASS where it is `g`. numbers: operands other than tensors, by name."""
    from graphflops.rules.formula import is_part_of_choice, launches  # only training reads formulas

    flops = transcendentals = 0
    found = launches(formula.text, numbers)
    if not found:
        return PASS
    for launch in found:
        if not is_part_of_choice(launch, found):
            work = work_of_launch(launch)
            flops, transcendentals = flops + work.flops, transcendentals + work.transcendentals
    read = found if not formula.launched else launches(formula.launched, numbers)
    names = {name for launch in read for name in launch.operands if isinstance(name, str)} - {"g"}
    return Gradient(flops, transcendentals, " ".join(sorted(names)))


def work_of_launch(launch: Launch) -> Work:
    """Work per element of one kernel of a formula."""
    if launch.function == "fill":
        return Work("fill")
    return power(launch.numbers[0]) if launch.function == "pow" and launch.numbers else WORK[launch.function]


def first_gradient(work: Work) -> Work:
    """Work of the first operand's gradient."""
    formula = work.formulas[0] if work.formulas else None
    flops, transcendentals, _ = (formula and gradient_of(formula)) or ZERO
    return Work(work.name, flops, transcendentals)


# An exponent that is a small constant stands for products or a root.
_POWERS = {
    exponent: Work("pow", flops, roots, (6 * flops, 2 * roots))
    for flops, roots, exponents in ((0, 0, (0, 1)), (1, 0, (2, -1)), (2, 0, (3, -2)), (0, 1, (0.5, -0.5)))
    for exponent in exponents
}


def power(exponent: object) -> Work:
    """Work of x ** exponent: one evaluation, or the products or the root that a constant exponent stands for."""
    return _POWERS.get(exponent, WORK["pow"]) if isinstance(exponent, (int, float)) else WORK["pow"]


# Activations as attributes of other operators name them, in lower case and without underscores.
_NAMED = {row.name.replace("_", ""): row for row in _ACTIVATED}
_ALSO = {
    "": "identity",
    "none": "identity",
    "clip": "hardtanh",
    "swish": "silu",
    "thresholdedrelu": "threshold",
}


def activation(name: str) -> Work:
    """Work of the activation that an attribute names, in any spelling: `LeakyRelu`, `hard_sigmoid`, `NONE`."""
    key = name.lower().replace("_", "")
    found = _NAMED.get(_ALSO.get(key, key))
    if found is None:
        raise RuleError(f"unknown activation {name!r}")
    return found


def gelu(approximate: str) -> Work:
    """Work of gelu by erf, or by tanh."""
    return WORK["gelu" if approximate == "none" else "gelu_tanh"]
