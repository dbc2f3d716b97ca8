"""Symbolic sizes: exact integer polynomials over named sizes and opaque atoms.

A `Dim` is a plain ``int`` or an `Expr`. An `Expr` is a sum of integer multiples of products of atoms, where
an atom is a named size or something no polynomial can express: floor division, modulo, min, max, a comparison
(worth 0 or 1), a choice, or a named function. Every `Expr` is interned, so two equal polynomials are the same
object: equality and hashing are by identity and cost nothing.

A named size stands for an integer that is at least zero. A size used as a divisor is taken to be nonzero,
since the division would otherwise have no value; that is what lets ``(64*a*b)//(a*b)`` be 64.

An `Expr` is always true as a condition and has no order of its own: use `compare`, `at_least` and `same`.

The interning tables live as long as the process: an entry can never be dropped while its identity matters.

Each module imports only those before it: `atoms` (polynomials as data, named functions), `terms` (arithmetic on
terms), `evaluation` (values and bounds), `expr` (the operators), `division`, `relations`, and for
reading text `ratios`, `parser` and `reading`.
"""

from graphflops.dims.division import ceil_div, floor_div, mod
from graphflops.dims.evaluation import Sums, evaluate, evaluate_all
from graphflops.dims.expr import Dim, Expr, arguments, at_least, parse_dim, prod, symbol, total
from graphflops.dims.ratios import floored_product
from graphflops.dims.relations import (
    Meeting,
    broadcast,
    call,
    compare,
    differ,
    dim_max,
    dim_min,
    meet,
    meetings,
    not_exceeded,
    same,
    where,
)
from graphflops.errors import DimError

__all__ = [
    "Dim",
    "DimError",
    "Expr",
    "Meeting",
    "Sums",
    "arguments",
    "at_least",
    "broadcast",
    "call",
    "ceil_div",
    "compare",
    "differ",
    "dim_max",
    "dim_min",
    "evaluate",
    "evaluate_all",
    "floor_div",
    "floored_product",
    "meet",
    "meetings",
    "mod",
    "not_exceeded",
    "parse_dim",
    "prod",
    "same",
    "symbol",
    "total",
    "where",
]
