"""Symbolic sizes: exact integer polynomials over named sizes and opaque atoms.

A `Dim` is a plain ``int`` or an `Expr`: a sum of integer multiples of products of atoms. An atom is a named size or
something no polynomial can express: floor division, modulo, min, max, a comparison (worth 0 or 1), a choice, or a named
function. Every `Expr` is interned as long as the process lives, so equal polynomials are one object: equality and hashing
are by identity.

A named size stands for an integer that is at least zero. A size used as a divisor is taken to be nonzero; that is what lets
``(64*a*b)//(a*b)`` be 64. An `Expr` is always true as a condition and has no order: use `compare`, `at_least` and `same`.
"""

from graphflops.dims.division import ceil_div as ceil_div
from graphflops.dims.division import floor_div as floor_div
from graphflops.dims.division import mod as mod
from graphflops.dims.evaluation import Sums as Sums
from graphflops.dims.evaluation import evaluate as evaluate
from graphflops.dims.evaluation import evaluate_all as evaluate_all
from graphflops.dims.expr import Dim as Dim
from graphflops.dims.expr import Expr as Expr
from graphflops.dims.expr import arguments as arguments
from graphflops.dims.expr import at_least as at_least
from graphflops.dims.expr import parse_dim as parse_dim
from graphflops.dims.expr import prod as prod
from graphflops.dims.expr import symbol as symbol
from graphflops.dims.expr import total as total
from graphflops.dims.relations import Meeting as Meeting
from graphflops.dims.relations import broadcast as broadcast
from graphflops.dims.relations import call as call
from graphflops.dims.relations import compare as compare
from graphflops.dims.relations import differ as differ
from graphflops.dims.relations import dim_max as dim_max
from graphflops.dims.relations import dim_min as dim_min
from graphflops.dims.relations import meet as meet
from graphflops.dims.relations import meetings as meetings
from graphflops.dims.relations import not_exceeded as not_exceeded
from graphflops.dims.relations import same as same
from graphflops.dims.relations import where as where
