"""A row of the table of elementwise work (`work.py`): its types, and the functions that write a row in one line."""

from __future__ import annotations

from typing import NamedTuple


class Gradient(NamedTuple):
    """Work per element of one operand's gradient, and what it reads besides the gradient of the result.

    reads: operands by place ("a", "b", "c") and "out" for the result, which the forward pass keeps for it.
    Without any work the gradient is zero, and is only written.
    """

    flops: int = 0
    transcendentals: int = 0
    reads: str = ""


class Formula(NamedTuple):
    """The gradient of one operand as a formula (`formula.py` says how to write it), of which its work is counted.

    launched: what PyTorch computes instead, with what guards against special values (tools/autograd/derivatives.yaml).
    is_fused: one kernel computes all of it. is_like_operand: of a fused one, it lies in memory as the operand, not as `g`.
    """

    text: str
    launched: str = ""
    is_fused: bool = False
    is_like_operand: bool = False


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(NamedTuple):
    """Work of one function per element of its result.

    complex_work: both counts for a complex element; twice those of a real one where it is None.
    formulas: one for each operand's gradient; () where the function has no gradient rule of its own.
    operands: number of operands.
    """

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None
    formulas: tuple[Formula | None, ...] = ()
    operands: int = 1

    def more(self, flops: int = 0, transcendentals: int = 0) -> Work:
        """The same function with more real operations on each element, or on both parts of a complex one."""
        both = self.complex_work and (
            self.complex_work[0] + 2 * flops,
            self.complex_work[1] + 2 * transcendentals,
        )
        return Work(
            *(self.name, self.flops + flops, self.transcendentals + transcendentals, both),
            *(self.formulas, self.operands),
        )

    def times(self, count: int) -> Work:
        """The function applied `count` times to each element."""
        return self._replace(flops=count * self.flops, transcendentals=count * self.transcendentals)


Pair = tuple[int, int] | None
Row = str | Formula | None  # a gradient in the table: a formula, or PASS


def unary(name: str, flops: int, transcendentals: int, *gradient: Row, complex_work: Pair = None) -> Work:
    """A function of one operand, with its gradient."""
    return Work(name, flops, transcendentals, complex_work, _formulas(gradient))


def binary(name: str, flops: int, transcendentals: int, *gradients: Row, complex_work: Pair = None) -> Work:
    """A function of two operands, with the gradient of each."""
    return Work(name, flops, transcendentals, complex_work, _formulas(gradients), operands=2)


def ternary(name: str, flops: int, *gradients: Row) -> Work:
    """A function of three operands, with the gradient of each."""
    return Work(name, flops, 0, None, _formulas(gradients), operands=3)


def _formulas(gradients: tuple[Row, ...]) -> tuple[Formula | None, ...]:
    return tuple(Formula(row) if isinstance(row, str) else row for row in gradients)


def extremes(names: str, chosen: str, other: str) -> list[Work]:
    """The larger or the smaller of two, and the one that passes over what is no number."""
    name, name_of_numbers = names.split()
    gradients = tuple(
        Formula(f"where(a {sign} b, g, 0)", f"masked_fill_(where(a == b, g / 2, g), a {against} b, 0)")
        for sign, against in ((chosen, other), (other, chosen))
    )
    is_first = f"logical_or_(a {chosen}= b, isnan(b))"
    of_numbers = (
        gradients[0]._replace(launched=f"masked_fill(g, logical_not_({is_first}), 0)"),
        gradients[1]._replace(launched=f"masked_fill(g, {is_first}, 0)"),
    )
    return [Work(name, 1, 0, None, gradients, 2), Work(name_of_numbers, 1, 0, None, of_numbers, 2)]


def each(names: str, flops: int, transcendentals: int, operands: int = 1) -> list[Work]:
    """Functions of the same work that have no gradient rule of their own."""
    return [Work(name, flops, transcendentals, operands=operands) for name in names.split()]


def fused(text: str, *, is_like_operand: bool = False) -> Formula:
    """A gradient that one kernel computes."""
    return Formula(text, is_fused=True, is_like_operand=is_like_operand)
