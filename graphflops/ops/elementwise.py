"""Operators that compute each element of the result from the elements at the same place of the operands."""

from __future__ import annotations

from graphflops.ops.table import Row

_NOT_OF_SIZES = ("asinh", "acosh", "atanh")  # torch has no symbolic form of these


def _same(
    names: str, arguments: str, kind: str = "elementwise", *, aten: str = "{}", prims: str = ""
) -> tuple[Row, ...]:
    """Operators that ATen and prims spell by their canonical names. aten, prims: the spellings, `{}` for the name."""
    return tuple(
        Row(name, kind, arguments, aten=aten.replace("{}", name), prims=prims.replace("{}", name))  # type: ignore[arg-type]
        for name in names.split()
    )


def _unary(names: str) -> tuple[Row, ...]:
    """Operators of one operand; an ONNX operator of the same name but for its capital letter is the same."""
    return tuple(
        Row(
            *(name, "elementwise", "x"),
            aten=f"{name} arc{name[1:]}" if name[0] == "a" else name,
            prims=name,
            onnx=name.title(),
            other="" if name in _NOT_OF_SIZES else f"math.{name} torch.sym_{name} torch._sym_{name}",
        )
        for name in names.split()
    )


# fmt: off
ELEMENTWISE: tuple[Row, ...] = (
    # Arithmetic
    Row(
        "add", "elementwise", "a b alpha", "add", "add", "add iadd", "Add", neutral=0,
        facts=("arithmetic", "commutative"),
    ),
    Row("sub", "elementwise", "a b alpha", "sub subtract", "sub", "sub isub", "Sub", neutral=0, facts=("arithmetic",)),
    Row("rsub", "elementwise", "a b alpha", "rsub", facts=("arithmetic",)),
    Row(
        "mul", "elementwise", "a b", "mul multiply", "mul", "mul imul", "Mul", neutral=1,
        facts=("arithmetic", "commutative"),
    ),
    Row(
        "div", "elementwise", "a b rounding_mode", "div divide true_divide", "div", "truediv", "Div", neutral=1,
        facts=("arithmetic",),
    ),
    Row("floor_divide", "elementwise", "a b", "floor_divide", python="floordiv"),
    Row("remainder", "elementwise", "a b fmod", "remainder", "remainder", "mod", "Mod"),
    Row("fmod", "elementwise", "a b", "fmod", "fmod", other="math.fmod"),
    Row("pow", "elementwise", "a b", "pow", "pow", "pow", "Pow", other="math.pow", neutral=1),
    Row("float_power", "elementwise", "a b", "float_power"),
    Row("neg", "elementwise", "x", "neg negative _neg_view_copy", "neg", "neg", "Neg", facts=("arithmetic",)),
    Row("abs", "elementwise", "x", "abs absolute", "abs", "abs", "Abs", other="builtins.abs math.fabs"),
    Row("reciprocal", "elementwise", "x", "reciprocal", "reciprocal", onnx="Reciprocal"),
    Row("square", "elementwise", "x", "square"),
    Row("sign", "elementwise", "x", "sign", "sign", onnx="Sign"),
    Row("floor", "elementwise", "x", "floor", "floor", onnx="Floor", other="math.floor"),
    Row("ceil", "elementwise", "x", "ceil", "ceil", onnx="Ceil", other="math.ceil"),
    Row("trunc", "elementwise", "x", "trunc fix", "trunc", other="math.trunc"),
    Row("round", "elementwise", "x", "round special_round", "round", onnx="Round", other="builtins.round"),
    Row(
        "maximum", "elementwise", "a b", "maximum max.other", "maximum", onnx="Max", other="torch.sym_max builtins.max",
        facts=("commutative",),
    ),
    Row(
        "minimum", "elementwise", "a b", "minimum min.other", "minimum", onnx="Min", other="torch.sym_min builtins.min",
        facts=("commutative",),
    ),
    Row("fmax", "elementwise", "a b", "fmax", "fmax", facts=("commutative",)),
    Row("fmin", "elementwise", "a b", "fmin", "fmin", facts=("commutative",)),
    Row("clamp", "elementwise", "x low high", "clamp clip", onnx="Clip", facts=("selects", "threshold")),
    Row("clamp_min", "elementwise", "x low", "clamp_min", facts=("selects", "threshold")),
    Row("clamp_max", "elementwise", "x high", "clamp_max", facts=("selects", "threshold")),
    Row("qlinear_add", "elementwise", "a a_scale a_zero b b_scale b_zero", microsoft="QLinearAdd"),
    Row("qlinear_mul", "elementwise", "a a_scale a_zero b b_scale b_zero", microsoft="QLinearMul"),
    Row("bias_add", "elementwise", "x bias skip", microsoft="BiasAdd"),
    Row("add_n", "elementwise", "*xs", onnx="Sum"),
    Row("mean_n", "elementwise", "*xs", onnx="Mean"),
    Row("add_relu", "elementwise", "a b alpha", "_add_relu"),
    Row("addcmul", "elementwise", "x a b value", "addcmul"),
    Row("addcdiv", "elementwise", "x a b value", "addcdiv"),
    Row("lerp", "elementwise", "a b weight", "lerp"),
    *_same("frac sgn", "x"),
    *_same("hypot nextafter gcd", "a b", prims="{}"),
    *_same("copysign heaviside lcm logaddexp logaddexp2 ldexp polar", "a b"),
    Row("atan2", "elementwise", "a b", "atan2 arctan2", "atan2"),
    Row("frexp", "elementwise", "x", "frexp", "frexp"),
    Row("conj_physical", "elementwise", "x", "conj_physical _conj_physical _conj_copy", "conj_physical"),
    # Exponentials, roots, trigonometry
    Row("exp", "elementwise", "x", "exp", "exp", onnx="Exp", other="math.exp torch.sym_exp torch._sym_exp"),
    Row("log", "elementwise", "x", "log", "log", onnx="Log", other="math.log torch.sym_log torch._sym_log"),
    Row("log2", "elementwise", "x", "log2", "log2", other="math.log2 torch.sym_log2 torch._sym_log2"),
    Row("sqrt", "elementwise", "x", "sqrt", "sqrt", onnx="Sqrt", other="math.sqrt torch.sym_sqrt torch._sym_sqrt"),
    *_same("log10 rsqrt", "x", prims="{}"),
    *_same("exp2 expm1 log1p erfc", "x", aten="{} special_{}", prims="{}"),
    Row("cbrt", "elementwise", "x", prims="cbrt"),
    Row("erf", "elementwise", "x", "erf special_erf", "erf", onnx="Erf"),
    Row("erfinv", "elementwise", "x", "erfinv special_erfinv", "erf_inv"),
    Row("tanh", "elementwise", "x", "tanh", "tanh", onnx="Tanh", other="math.tanh torch.sym_tanh torch._sym_tanh"),
    *_unary("sin cos tan sinh cosh asin acos atan asinh acosh atanh"),
    *_same("angle deg2rad rad2deg nan_to_num", "x"),
    *_same("sinc logit", "x", aten="{} special_{}"),
    # Functions of torch.special
    Row("lgamma", "elementwise", "x", "lgamma special_gammaln", "lgamma"),
    Row("digamma", "elementwise", "x", "digamma special_psi special_digamma", "digamma"),
    Row("polygamma", "elementwise", "n x", "polygamma special_polygamma"),
    Row("mvlgamma", "elementwise", "x p", "mvlgamma special_multigammaln"),
    Row("igamma", "elementwise", "a b", "igamma special_gammainc", "igamma"),
    Row("igammac", "elementwise", "a b", "igammac special_gammaincc", "igammac"),
    Row("i0", "elementwise", "x", "i0 special_i0", "bessel_i0"),
    *_same("i0e i1 i1e", "x", aten="special_{}", prims="bessel_{}"),
    *_same("bessel_j0 bessel_j1 spherical_bessel_j0 erfcx ndtri", "x", aten="special_{}", prims="{}"),
    *_same("airy_ai bessel_y0 bessel_y1 entr log_ndtr ndtr modified_bessel_i0 modified_bessel_i1", "x", aten="special_{}"),
    *_same("modified_bessel_k0 modified_bessel_k1", "x", aten="special_{}"),
    *_same("scaled_modified_bessel_k0 scaled_modified_bessel_k1", "x", aten="special_{}"),
    *_same("xlogy", "a b", aten="{} special_{}"),
    *_same("zeta", "a b", aten="special_{}", prims="{}"),
    *_same("xlog1py hermite_polynomial_h hermite_polynomial_he", "a b", aten="special_{}"),
    *_same("laguerre_polynomial_l legendre_polynomial_p", "a b", aten="special_{}"),
    *_same(" ".join(f"chebyshev_polynomial_{one}" for one in "tuvw"), "a b", aten="special_{}"),
    *_same(" ".join(f"shifted_chebyshev_polynomial_{one}" for one in "tuvw"), "a b", aten="special_{}"),
    # Activations
    Row("relu", "elementwise", "x", "relu", onnx="Relu", facts=("threshold",)),
    Row("relu6", "elementwise", "x", "relu6", facts=("gradient_reads_input", "threshold")),
    Row("leaky_relu", "elementwise", "x slope", "leaky_relu", onnx="LeakyRelu", facts=("gate", "threshold")),
    Row("prelu", "elementwise", "x weight", "prelu _prelu_kernel", onnx="PRelu"),
    Row("elu", "elementwise", "x alpha", "elu", onnx="Elu", facts=("gate",)),
    Row("selu", "elementwise", "x", "selu", onnx="Selu"),
    Row("celu", "elementwise", "x alpha", "celu", onnx="Celu"),
    Row("gelu", "elementwise", "x approximate", "gelu", onnx="Gelu", microsoft="Gelu", facts=("gate",)),
    Row("fast_gelu", "elementwise", "x bias", microsoft="FastGelu"),
    Row("bias_gelu", "elementwise", "x bias", microsoft="BiasGelu"),
    Row("quick_gelu", "elementwise", "x alpha", microsoft="QuickGelu"),
    Row("sigmoid", "elementwise", "x", "sigmoid special_expit", onnx="Sigmoid"),
    Row("qlinear_sigmoid", "elementwise", "x x_scale x_zero", microsoft="QLinearSigmoid"),
    Row("qlinear_leaky_relu", "elementwise", "x x_scale x_zero", microsoft="QLinearLeakyRelu"),
    Row("log_sigmoid", "elementwise", "x", "log_sigmoid"),
    Row("silu", "elementwise", "x", "silu", onnx="Swish", facts=("gradient_reads_input", "gate")),
    Row("mish", "elementwise", "x", "mish", onnx="Mish", facts=("gradient_reads_input", "gate")),
    Row("softplus", "elementwise", "x beta threshold", "softplus", onnx="Softplus"),
    Row("softsign", "elementwise", "x", onnx="Softsign"),
    Row("hardtanh", "elementwise", "x low high", "hardtanh", facts=("gradient_reads_input", "threshold")),
    Row("hardsigmoid", "elementwise", "x", "hardsigmoid", onnx="HardSigmoid", facts=("gradient_reads_input",)),
    Row("hardswish", "elementwise", "x", "hardswish", onnx="HardSwish", facts=("gradient_reads_input", "gate")),
    Row("hardshrink", "elementwise", "x threshold", "hardshrink"),
    Row("softshrink", "elementwise", "x threshold", "softshrink", onnx="Shrink"),
    Row("threshold", "elementwise", "x threshold value", "threshold", onnx="ThresholdedRelu", facts=("threshold",)),
    Row("glu", "elementwise", "x axis", "glu"),
    *_same("rrelu", "x"),
    Row("rrelu_with_noise", "elementwise", "x noise lower upper training", "rrelu_with_noise rrelu_with_noise_functional"),
    *_same("hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward", "grad x"),
    *_same("mish_backward sigmoid_backward silu_backward softplus_backward softshrink_backward tanh_backward", "grad x"),
    *_same("threshold_backward log_sigmoid_backward logit_backward", "grad x"),
    Row("gelu_backward", "elementwise", "grad x", "gelu_backward infinitely_differentiable_gelu_backward"),
    *_same("rrelu_with_noise_backward", "grad x noise"),
    Row("elu_backward", "elementwise", "grad", "elu_backward"),
    # Choices
    Row(
        "where", "elementwise", "condition a b", "where", "where", onnx="Where", other="torch.sym_ite",
        facts=("selects",),
    ),
    Row("masked_fill", "elementwise", "x mask value", "masked_fill", facts=("selects",)),
    # Comparisons
    Row("eq", "comparison", "a b", "eq", "eq", "eq", "Equal", facts=("commutative",)),
    Row("ne", "comparison", "a b", "ne not_equal", "ne", "ne", facts=("commutative",)),
    Row("lt", "comparison", "a b", "lt less", "lt", "lt", "Less"),
    Row("le", "comparison", "a b", "le less_equal", "le", "le", "LessOrEqual"),
    Row("gt", "comparison", "a b", "gt greater", "gt", "gt", "Greater"),
    Row("ge", "comparison", "a b", "ge greater_equal", "ge", "ge", "GreaterOrEqual"),
    Row("isnan", "comparison", "x", "isnan", onnx="IsNaN"),
    Row("isinf", "comparison", "x", "isinf", onnx="IsInf"),
    Row("isfinite", "comparison", "x", "isfinite", "isfinite"),
    Row("signbit", "comparison", "x", "signbit", "signbit"),
    *_same("isposinf isneginf isreal", "x", "comparison"),
    *_same("isclose", "a b", "comparison"),
    # Logic and bits
    Row("logical_and", "logic", "a b", "logical_and", onnx="And", facts=("commutative",)),
    Row("logical_or", "logic", "a b", "logical_or", onnx="Or", facts=("commutative",)),
    Row("logical_xor", "logic", "a b", "logical_xor", onnx="Xor", facts=("commutative",)),
    Row("logical_not", "logic", "x", "logical_not", python="not_", onnx="Not", other="torch.sym_not"),
    Row(
        "bitwise_and", "logic", "a b", "bitwise_and __and__", "bitwise_and", "and_", "BitwiseAnd", facts=("commutative",),
    ),
    Row("bitwise_or", "logic", "a b", "bitwise_or __or__", "bitwise_or", "or_", "BitwiseOr", facts=("commutative",)),
    Row("bitwise_xor", "logic", "a b", "bitwise_xor __xor__", "bitwise_xor", "xor", "BitwiseXor", facts=("commutative",)),
    Row("bitwise_not", "logic", "x", "bitwise_not", "bitwise_not", "invert", "BitwiseNot"),
    Row("bitwise_left_shift", "logic", "a b", "bitwise_left_shift __lshift__", "shift_left", "lshift"),
    Row("bitwise_right_shift", "logic", "a b", "bitwise_right_shift __rshift__", "shift_right_arithmetic", "rshift"),
    Row("bit_shift", "logic", "a b direction", onnx="BitShift"),
    # Element types
    Row(
        "cast", "cast", "x dtype",
        "to _to_copy to.device(x,device,dtype) to.other(x,other) to.prim_Device(x,device,dtype) type_as(x,other)"
        " _cast_Byte(x) _cast_Char(x) _cast_Double(x) _cast_Float(x) _cast_Half(x) _cast_Int(x) _cast_Long(x)"
        " _cast_Short(x)",
        "convert_element_type", onnx="Cast(x,to) CastLike(x,other)",
        other="quantized_decomposed.convert_element_type builtins.float builtins.int builtins.bool torch.sym_float"
        " torch.sym_int",
        facts=("keeps_values",),
    ),
    # The same values
    Row(
        "identity", "identity", "x",
        "clone contiguous positive alias alias_copy lift lift_fresh lift_fresh_copy data _lazy_clone resolve_conj"
        " resolve_neg pin_memory _pin_memory",
        "clone device_put view_of copy_strided", onnx="Identity",
    ),
    Row("detach", "identity", "x", "detach detach_copy"),
)
# fmt: on
