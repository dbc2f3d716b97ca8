"""The pointwise operators of score and mask functions, in Triton's words.

Operands arrive as text, cast as the table that names the operator says; `{0}` is the first.
"""

from __future__ import annotations

from types import MappingProxyType

# Operands cast to the result's type.
ARITHMETIC = MappingProxyType(
    {
        "mul": "{0} * {1}",
        "maximum": "tl.maximum({0}, {1})",
        "minimum": "tl.minimum({0}, {1})",
        "fmod": "{0} - {1} * trunc({0} / {1})",
        "neg": "-{0}",
        "abs": "tl.abs({0})",
        "relu": "tl.maximum({0}, 0)",
        "sign": "sign({0})",
        "sgn": "sign({0})",
        "square": "{0} * {0}",
        "clamp_min": "tl.maximum({0}, {1})",
        "clamp_max": "tl.minimum({0}, {1})",
        "bitwise_and": "{0} & {1}",
        "bitwise_or": "{0} | {1}",
        "bitwise_xor": "{0} ^ {1}",
        "bitwise_left_shift": "{0} << {1}",
        "bitwise_right_shift": "{0} >> {1}",
        "__and__": "{0} & {1}",
        "__or__": "{0} | {1}",
        "__xor__": "{0} ^ {1}",
        "__lshift__": "{0} << {1}",
        "__rshift__": "{0} >> {1}",
    }
)

# Of floating results only; operands cast to the result's type.
FLOATING = MappingProxyType(
    {
        "reciprocal": "1 / {0}",
        "exp": "tl.exp({0})",
        "exp2": "tl.exp2({0})",
        "expm1": "expm1({0})",
        "log": "tl.log({0})",
        "log2": "tl.log2({0})",
        "log10": "tl.log({0}) * 0.4342944819032518",
        "log1p": "log1p({0})",
        "sqrt": "tl.sqrt({0})",
        "rsqrt": "tl.rsqrt({0})",
        "sin": "tl.sin({0})",
        "cos": "tl.cos({0})",
        "tan": "tl.sin({0}) / tl.cos({0})",
        "sinh": "(tl.exp({0}) - tl.exp(-{0})) / 2",
        "cosh": "(tl.exp({0}) + tl.exp(-{0})) / 2",
        "tanh": "tanh({0})",
        "sigmoid": "tl.sigmoid({0})",
        "erf": "tl.erf({0})",
    }
)

# Nothing to do for integers.
ROUNDING = MappingProxyType(
    {
        "floor": "tl.floor({0})",
        "ceil": "tl.ceil({0})",
        "trunc": "trunc({0})",
        "round": "round_half_even({0})",
    }
)

# Operands cast to their common type; the result is a truth value.
COMPARISON = MappingProxyType(
    {
        "eq": "{0} == {1}",
        "ne": "{0} != {1}",
        "lt": "{0} < {1}",
        "le": "{0} <= {1}",
        "gt": "{0} > {1}",
        "ge": "{0} >= {1}",
        "isnan": "{0} != {0}",
        "isinf": 'tl.abs({0}) == float("inf")',
    }
)

# Operands made truth values.
LOGICAL = MappingProxyType(
    {
        "logical_and": "{0} & {1}",
        "logical_or": "{0} | {1}",
        "logical_xor": "{0} ^ {1}",
        "logical_not": "{0} == 0",
    }
)

# The operand itself, cast to the result's type.
SAME = frozenset(
    {
        *("alias", "detach", "clone", "view", "expand", "reshape", "squeeze", "positive", "lift_fresh_copy"),
        *("_to_copy", "to", "convert_element_type", "contiguous", "lift_fresh", "view_of", "_unsafe_view"),
    }
)

# A number: by the place of the argument that holds it, or the number itself.
FILLED = MappingProxyType({"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1})
ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
ONES = frozenset({"ones", "ones_like", "new_ones"})
