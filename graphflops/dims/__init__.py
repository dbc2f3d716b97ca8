"""Symbolic sizes: exact integer polynomials over named sizes and opaque atoms.

A `Dim` is a plain ``int`` or an `Expr`: a sum of integer multiples of products of atoms. An atom is a named size or
something no polynomial can express: floor division, modulo, min, max, a comparison (worth 0 or 1), a choice, or a named
function. Every `Expr` is interned as long as the process lives, so equal polynomials are one object: equality and hashing
are by identity.

A named size stands for an integer that is at least zero. A size used as a divisor is taken to be nonzero; that is what lets
``(64*a*b)//(a*b)`` be 64. An `Expr` is always true as a condition and has no order: use `compare`, `at_least` and `same`.
"""

from graphflops.dims.division import ceil_div as ceil_div, floor_div as floor_div, mod as mod
from graphflops.dims.evaluation import Sums as Sums, evaluate as evaluate, evaluate_all as evaluate_all
from graphflops.dims.expr import (
    Dim as Dim,
    Expr as Expr,
    arguments as arguments,
    at_least as at_least,
    parse_dim as parse_dim,
    prod as prod,
    symbol as symbol,
    total as total,
)
from graphflops.dims.relations import (
    Meeting as Meeting,
    broadcast as broadcast,
    call as call,
    compare as compare,
    differ as differ,
    dim_max as dim_max,
    dim_min as dim_min,
    meet as meet,
    meetings as meetings,
    not_exceeded as not_exceeded,
    same as same,
    where as where,
)
