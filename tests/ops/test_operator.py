"""Spellings and the operators behind them."""

from collections import Counter, defaultdict
from typing import get_args

import onnx.defs
import pytest
import torch
import torch._inductor.inductor_prims

from graphflops.graph import Node, Ref
from graphflops.ops import Kind, Op, operator
from graphflops.ops.operator import ROWS, by_name, spellings
from graphflops.ops.table import RULES, Fact
from graphflops.rules import elementwise, registry


@pytest.mark.parametrize(
    "spelling",
    [
        "aten.add.Tensor",
        "aten.add_.Scalar",
        "prims.add.default",
        "_operator.add",
        "_operator.iadd",
        "onnx.Add.14",
        "onnx.Add.1",
    ],
)
def test_one_operator_has_one_name_in_every_dialect(spelling):
    op = operator(spelling)
    assert (op.name, op.kind) == ("add", "elementwise")


@pytest.mark.parametrize(
    ("spelling", "dialect", "base", "word", "variant"),
    [
        ("aten.add_.Tensor", "aten", "aten.add_", "add_", "Tensor"),
        ("onnx.Softmax.13", "onnx", "onnx.Softmax", "Softmax", "13"),
        ("com.microsoft.FusedMatMul.1", "com.microsoft", "com.microsoft.FusedMatMul", "FusedMatMul", "1"),
        ("com.microsoft.nchwc.Conv.1", "com.microsoft.nchwc", "com.microsoft.nchwc.Conv", "Conv", "1"),
        ("higher_order.cond", "higher_order", "higher_order.cond", "cond", ""),
        ("torch._functorch.vmap", "torch._functorch", "torch._functorch.vmap", "vmap", ""),
        ("mylib.scale.default", "mylib", "mylib.scale", "scale", "default"),
        ("mylib.scale", "mylib", "mylib.scale", "scale", ""),
        ("scale", "", "scale", "scale", ""),
    ],
)  # fmt: skip
def test_a_spelling_is_taken_apart(spelling, dialect, base, word, variant):
    op = operator(spelling)
    assert (op.dialect, op.base, op.word, op.variant) == (dialect, base, word, variant)
    assert str(op) == op.spelling == spelling


@pytest.mark.parametrize(
    ("spelling", "functional"),
    [
        ("aten.add_.Tensor", "aten.add"),
        ("aten.__ior__.Tensor", "aten.__or__"),
        ("aten.__or__.Tensor", None),
        ("mylib.scale_.default", "mylib.scale"),
        ("_operator.and_", None),
        ("aten.add.Tensor", None),
    ],
)
def test_what_writes_in_place(spelling, functional):
    op = operator(spelling)
    assert (op.mutates, op.functional) == (functional is not None, functional)


def test_an_operator_outside_the_table_is_of_no_kind_and_keeps_its_name():
    op = operator("mylib.scale_.default")
    assert (op.name, op.kind, op.parameters) == ("mylib.scale", "other", ())
    assert op.arguments((1, 2), (("way", 3),)) == {"#0": 1, "#1": 2, "way": 3}


def test_an_overload_may_be_another_operator():
    assert [operator(f"aten.max.{variant}").name for variant in ("default", "dim", "other")] == [
        "max",
        "max",
        "maximum",
    ]


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"),
    [
        ("aten.softmax.int", (Ref("s"), -1), (), {"x": Ref("s"), "axis": -1}),
        ("onnx.Softmax.13", (Ref("s"),), (("axis", -1),), {"x": Ref("s"), "axis": -1}),
        # Programs saved by torch before 2.7 name every argument.
        ("aten.softmax.int", (), (("self", Ref("s")), ("dim", -1)), {"x": Ref("s"), "axis": -1}),
        ("aten.where.self", (), (("condition", 1), ("self", 2), ("other", 3)), {"condition": 1, "a": 2, "b": 3}),
        ("onnx.Slice.13", (1, 2, 3, 4), (), {"x": 1, "start": 2, "end": 3, "axes": 4}),
        ("aten.slice.Tensor", (1, 0, 2, 3), (), {"x": 1, "axis": 0, "start": 2, "end": 3}),
        ("onnx.Concat.13", (1, 2, 3), (("axis", 0),), {"xs": (1, 2, 3), "axis": 0}),
        ("aten.cat.default", ((1, 2, 3), 0), (), {"xs": (1, 2, 3), "axis": 0}),
        ("aten.arange.default", (8,), (), {"end": 8}),
        ("aten.arange.start", (2, 8), (), {"start": 2, "end": 8}),
        ("onnx.Transpose.13", (1,), (("perm", (1, 0)),), {"x": 1, "order": (1, 0)}),
        ("aten.permute.default", (1, (1, 0)), (), {"x": 1, "order": (1, 0)}),
    ],
)  # fmt: skip
def test_arguments_have_one_name_in_every_dialect(op, args, kwargs, expected):
    assert Node("n", op, args, kwargs).arguments() == expected


def test_operators_of_the_table_have_rules():
    """What an analysis is told about an operator that is never priced would be dead."""
    bases = set(RULES) | {key.rpartition(".")[0] for key in RULES}
    unpriced = {key for key in spellings() if key not in bases and operator(key).base not in bases}
    # Score and mask functions hold these, and are evaluated, not priced.
    evaluated = {"_operator.iadd", "_operator.imul", "_operator.invert", "_operator.isub"}
    assert unpriced <= evaluated, f"no rule in graphflops/rules prices {sorted(unpriced - evaluated)}"
    assert unpriced == evaluated


def test_spellings_of_onnx_are_operators_of_onnx():
    known = {schema.name for schema in defs_of("")}
    known.add("SimplifiedLayerNormalization")  # onnxruntime registers it under ai.onnx
    spelled = {key.removeprefix("onnx.") for key in spellings() if key.startswith("onnx.")}
    assert spelled <= known, f"onnx {onnx.__version__} has no operators {sorted(spelled - known)}"


def test_spellings_of_torch_are_operators_of_torch():
    absent = []
    for key in spellings().keys() - {"aten._cat"}:  # files of old releases hold it
        dialect, name, *overload = key.split(".")
        if dialect in ("aten", "prims"):
            packet = getattr(getattr(torch.ops, dialect), name, None)
            if packet is None or not {*overload} <= {*packet.overloads()}:
                absent.append(key)
    assert not absent, f"torch {torch.__version__} has no operators {absent}"


def test_each_operator_has_one_row():
    names = Counter(row.name for row in ROWS)
    assert [name for name, rows in names.items() if rows > 1] == []


def defs_of(domain):
    return [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == domain]


@pytest.mark.parametrize(
    ("spelling", "facts"),
    [
        ("aten.add_.Tensor", "writes_operands is_pointwise broadcasts arithmetic commutative"),
        ("onnx.Div.14", "is_pointwise broadcasts arithmetic"),
        ("onnx.Sum.13", "is_pointwise broadcasts"),
        ("onnx.PRelu.16", "is_pointwise broadcasts"),
        ("aten.clamp.default", "is_pointwise moves_elements threshold selects"),
        ("onnx.Cast.13", "shares_memory is_pointwise moves_elements keeps_values"),
        ("onnx.Dropout.13", "is_pointwise is_random"),
        ("aten.conv2d.default", "images"),
        ("com.microsoft.NhwcConv.1", ""),
        ("aten.embedding_bag.default", "indexes_one_axis is_embedding"),
        ("onnx.Resize.19", "images keeps_values"),
        ("com.microsoft.DequantizeLinear.1", "is_pointwise unpacks"),
        ("higher_order.flex_attention", "has_score_function"),
        ("onnx.Attention.23", ""),
        ("mylib.scale.default", ""),
    ],
)
def test_facts_of_an_operator(spelling, facts):
    names = [name for name, value in vars(Op).items() if isinstance(value, property)]
    op = operator(spelling)
    found = [name for name in names if getattr(op, name) is True and name != "is_onnx"]
    assert [*found, *(fact for fact in get_args(Fact) if op.has(fact))] == facts.split()


def test_the_number_that_changes_nothing():
    neutral = {
        name: operator(f"onnx.{name}.13").neutral for name in ("Add", "Sub", "Mul", "Div", "Pow", "Max")
    }
    assert neutral == {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "Max": None}


def test_facts_are_known_ones():
    facts, kinds = {fact for row in ROWS for fact in row.facts}, {row.kind for row in ROWS}
    assert not facts - {*get_args(Fact)}, (
        f"not in Fact of graphflops/ops/table.py: {facts - {*get_args(Fact)}}"
    )
    assert not kinds - {*get_args(Kind)}, (
        f"not in Kind of graphflops/ops/table.py: {kinds - {*get_args(Kind)}}"
    )


def test_arguments_given_by_name_or_by_place_are_the_same():
    differ = []
    for base in spellings():
        dialect, name, *variant = base.split(".")
        if dialect not in ("aten", "prims"):
            continue
        packet = getattr(getattr(torch.ops, dialect), name, None)
        for overload in variant or (packet.overloads() if packet is not None else ()):
            schema = getattr(packet, overload)._schema
            given = [argument.name for argument in schema.arguments if not argument.kwarg_only]
            if schema.is_mutable or not isinstance(schema.arguments[0].type, torch.TensorType):
                continue  # results written to arguments, and functions of Python's own numbers and lists
            op = operator(f"{dialect}.{name}.{overload}")
            by_name = op.arguments((), [(name, name) for name in given])
            by_place = op.arguments(given, ())
            named = {key: value for key, value in by_place.items() if not key.startswith("#")}
            if {key: by_name.get(key) for key in named} != named:
                differ.append((op.spelling, op.parameters, by_name, by_place))
    assert differ == []


def test_elementwise_rules_are_of_elementwise_operators():
    """Under another kind it would run as one opaque kernel in every prediction."""
    priced = [rule.key for rule in registry.known() if rule.function.__module__ == elementwise.__name__]
    outside = [key for key in priced if not operator(key).is_pointwise]
    assert not outside, f"graphflops/ops/operators.txt has no row for {outside}"


def test_few_operators_have_no_kind():
    """Their time is that of their traffic, whatever they do."""
    without = [key for key in RULES if operator(key).kind == "other"]
    assert len(without) <= 100, without


def test_a_table_by_name_refuses_names_that_no_operator_has():
    assert by_name({"add": 1}) == {"add": 1}
    with pytest.raises(ValueError, match="no operator has the canonical name cdist"):
        by_name({"add": 1, "cdist": 2})


# They share a rule with an operator of the table, and are another operator.
OTHER_OPERATORS = {
    *(
        "_operator.truth",
        "aten._print",
        "aten._efficientzerotensor",
        "aten._sparse_broadcast_to",
        "prims.xor_sum",
    ),
    *("aten._conj", "aten.conj", "prims.conj", "aten._neg_view", "aten._fw_primal", "aten._make_dual"),
    *(
        "aten._fill_mem_eff_dropout_mask_",
        "aten._philox_randint",
        "aten._philox_uniform",
        "aten._philox_normal",
    ),
    *(
        "aten.random",
        "aten.cauchy",
        "aten.geometric",
        "aten._pad_circular",
        "aten._pad_enum",
        "higher_order.foreach_map",
    ),
    *(
        "aten.norm",
        "aten.native_norm",
        "aten.nonzero_numpy",
        "aten.nonzero_static",
        "aten._scaled_grouped_mm_v2",
    ),
    *("aten.record_stream", "aten.retain_grad", "aten._propagate_xla_data", "profiler._record_function_exit"),
    "com.microsoft.SkipGroupNorm",
    *("onnx.DynamicSlice", "onnx.SkipSimplifiedLayerNormalization"),  # of old files
    *(
        f"com.microsoft.nchwc.{name}"
        for name in ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
    ),
}


def test_operators_that_share_a_rule_are_in_the_table_together():
    by_rule = defaultdict(list)
    for rule in registry.known():
        by_rule[rule.function].append(rule.key)
    names = {row.name for row in ROWS if row.kind != "other"}
    listed = [keys for keys in by_rule.values() if any(operator(key).name in names for key in keys)]
    outside = {key for keys in listed for key in keys if operator(key).name not in names}
    assert outside == OTHER_OPERATORS, (
        f"add {sorted(outside - OTHER_OPERATORS)} to the rows of operators that are priced by the same rule"
    )
