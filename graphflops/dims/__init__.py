"""Symbolic sizes: exact integer polynomials over named sizes and opaque atoms.

A `Dim` is a plain ``int`` or an `Expr`. An `Expr` is a sum of integer multiples of products of atoms, where
an atom is a named size or something no polynomial can express: floor division, modulo, min, max, a comparison
(worth 0 or 1), a choice, or a named function. Every `Expr` is interned, so two equal polynomials are the same
object: equality and hashing are by identity and cost nothing.

A named size stands for an integer that is at least zero. A size used as a divisor is taken to be nonzero,
since the division would otherwise have no value; that is what lets ``(64*a*b)//(a*b)`` be 64.

An `Expr` is always true as a condition and has no order of its own: use `compare`, `at_least` and `same`.

The interning tables live as long as the process: an entry can never be dropped while its identity matters.

The modules build on each other in this order: `functions`, `terms`, `text`, `atoms` and `intervals` hold what
needs no new expression, `expr` makes expressions and divides them, and `sums`, `proofs`, `choices`,
`substitution`, `values`, `broadcasting` and `reading` are made of those.
"""

from graphflops.dims.broadcasting import broadcast, meet, meetings
from graphflops.dims.choices import call, compare, dim_max, dim_min, where
from graphflops.dims.expr import Dim, Expr, at_least, ceil_div, floor_div, mod
from graphflops.dims.proofs import differ, same
from graphflops.dims.reading import parse_dim
from graphflops.dims.sums import prod, symbol, total
from graphflops.dims.values import evaluate
from graphflops.errors import DimError

__all__ = [
    "Dim",
    "DimError",
    "Expr",
    "at_least",
    "broadcast",
    "call",
    "ceil_div",
    "compare",
    "differ",
    "dim_max",
    "dim_min",
    "evaluate",
    "floor_div",
    "meet",
    "meetings",
    "mod",
    "parse_dim",
    "prod",
    "same",
    "symbol",
    "total",
    "where",
]
