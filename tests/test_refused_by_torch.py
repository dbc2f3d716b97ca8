"""Calls of `.pt2` files that torch refuses are said to be impossible (GF118); the ones that it runs are priced."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from graphflops import cli
from graphflops.passes.price_call import price_call
from graphflops.rules import find
from graphflops.tensor import TensorType, dtype_named
from tests.exporters.build import call, program, save, tensor

# What a type of index or mask is given as.
DTYPES = [
    torch.float32,
    torch.float16,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
]
X, SAME = torch.ones(4, 6), torch.ones(4, 6)
# With each type of the argument None; the argument has a size that every type can have.
INDEXED: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "index.Tensor": ((4,), (X, [None])),
    "_unsafe_index.Tensor": ((4,), (X, [None])),
    "index_select.default": ((4,), (X, 0, None)),
    "index_add.default": ((4,), (X, 0, None, SAME)),
    "index_copy.default": ((4,), (X, 0, None, SAME)),
    "index_fill.int_Scalar": ((4,), (X, 0, None, 1.0)),
    "index_fill_.int_Scalar": ((4,), (X.clone(), 0, None, 1.0)),
    "index_reduce.default": ((4,), (X, 0, None, SAME, "amax")),
    "gather.default": ((4, 6), (X, 0, None)),
    "take.default": ((4,), (X, None)),
    "take_along_dim.default": ((4, 6), (X, None, 0)),
    "put.default": ((4,), (X, None, torch.ones(4))),
    "scatter.src": ((4, 6), (X, 0, None, SAME)),
    "scatter.value": ((4, 6), (X, 0, None, 1.0)),
    "scatter_add.default": ((4, 6), (X, 0, None, SAME)),
    "scatter_reduce.two": ((4, 6), (X, 0, None, SAME, "sum")),
    "embedding.default": ((3,), (X, None)),
    "embedding_dense_backward.default": ((3,), (torch.ones(3, 6), None, 4, -1, False)),
    "_embedding_bag.default": ((3,), (X, None, torch.zeros(1, dtype=torch.int64))),
    "masked_fill.Scalar": ((4, 6), (X, None, 1.0)),
    "masked_fill_.Scalar": ((4, 6), (X.clone(), None, 1.0)),
    "masked_select.default": ((4, 6), (X, None)),
    "masked_scatter.default": ((4, 6), (X, None, SAME)),
    "where.self": ((4, 6), (None, X, SAME)),
    "max_unpool2d.default": ((1, 1, 2, 2), (torch.ones(1, 1, 2, 2), None, [4, 4])),
}


def typed(value: Any) -> Any:
    """Tensors as their types."""
    if isinstance(value, torch.Tensor):
        return TensorType(tuple(value.shape), dtype_named(str(value.dtype).removeprefix("torch.")))
    return tuple(map(typed, value)) if isinstance(value, list) else value


def refusals(op: str, arguments: tuple[Any, ...]) -> tuple[bool, str]:
    """Whether torch refuses a call, and what is said of it: the code, "" where it is priced."""
    name, overload = op.split(".")
    try:
        getattr(getattr(torch.ops.aten, name), overload)(*arguments)
        refused = False
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        refused = True
    rule = find(f"aten.{op}")
    assert rule is not None
    return refused, price_call(rule, f"aten.{op}", tuple(map(typed, arguments)), ()).code


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", INDEXED)
def test_types_of_indices_and_masks(op: str, dtype: torch.dtype) -> None:
    sizes, arguments = INDEXED[op]
    given = torch.zeros(sizes).to(dtype)
    refused, said = refusals(
        op, tuple([given] if x == [None] else given if x is None else x for x in arguments)
    )
    assert said == ("GF118" if refused else "")


ONES = torch.ones
IMAGE, FLOAT8 = ONES(2, 3, 8, 8), ONES(256, 256).to(torch.float8_e4m3fn)
HEAD, POSITIONS = ONES(1, 2, 4, 8), partial(torch.zeros, dtype=torch.int64)
STATISTICS = [
    (3, 3, 3, 3),
    (5, 3, 3, 3),
    (3, 2, 3, 3),
    (3, 3, 4, 3),
    (3, 3, 3, 1),
]  # weight, bias, mean, variance
SHAPED: list[tuple[str, tuple[Any, ...]]] = [
    *(
        ("batch_norm.default", (IMAGE, *map(ONES, sizes), training, 0.1, 1e-5, False))
        for sizes in STATISTICS
        for training in (False, True)
    ),
    *(
        ("instance_norm.default", (IMAGE, *map(ONES, sizes), own, 0.1, 1e-5, False))
        for sizes in STATISTICS
        for own in (False, True)
    ),
    *(  # a CPU reads past the end of too few statistics
        ("_native_batch_norm_legit_no_training.default", (*(x.to("meta") for x in (IMAGE, *map(ONES, sizes))), 0.1, 1e-5))
        for sizes in STATISTICS[:-1]
    ),
    *(("linear.default", (ONES(2, 4), ONES(5, 4), ONES(bias))) for bias in ((5,), (1,), (4,), (), (3, 5))),
    *(
        ("linear.default", (ONES(x), ONES(5, 4), ONES(bias)))
        for x in ((4,), (2, 3, 4))
        for bias in ((1, 5), (2, 5), (6, 5), (7, 5))
    ),
    *(
        (f"{op}.default", (ONES(a), ONES(b)))
        for op in ("linalg_cross", "cross")
        for a in ((3,), (4, 3), (1, 3))
        for b in ((3,), (4, 3), (1,))
    ),
    *(
        ("linalg_lstsq.default", (torch.eye(4, 3).expand(*batch, 4, 3), ONES(b)))
        for batch in ((), (2,), (1,))
        for b in ((4,), (3,), (4, 2), (3, 2), (2, 4), (2, 4, 1), (5, 4, 2))
    ),
    *(
        ("ctc_loss.IntList", (ONES(log_probs), POSITIONS(targets), [5] * count, [3] * count))
        for log_probs in ((5, 2, 4), (5, 4), (5, 1, 4))
        for targets in ((2, 3), (6,), (3,), (1, 3), ())
        for count in (1, 2)
    ),
    *(("mm.default", (ONES(a), ONES(4, 2))) for a in ((3, 4), (1, 3, 4), (4,))),
    *(("bmm.default", (ONES(2, 3, 4), ONES(b))) for b in ((2, 4, 5), (4, 5), (1, 4, 5))),
    *(("dot.default", (ONES(4), ONES(b))) for b in ((4,), (4, 1))),
    *(("view.default", (ONES(4, 3), list(sizes))) for sizes in ((-4, -3), (-4, 1, -1), (6, -1), (-2, -1))),
    *(("layer_norm.default", (ONES(2, 6), [6], ONES(w), ONES(b))) for w, b in (((6,), (6,)), ((1,), (6,)), ((6,), (6, 1)))),
    *(("group_norm.default", (IMAGE, 3, ONES(w), ONES(b))) for w, b in (((3,), (3,)), ((1,), (3,)), ((3,), (2,)))),
    *(("addmm.default", (ONES(base), ONES(2, 4), ONES(4, 5))) for base in ((5,), (2, 5), (1,), (4,), (3, 5))),
    *(("prelu.default", (IMAGE, ONES(weight))) for weight in ((1,), (3,), (2,), (8,))),
    *(("prelu.default", (ONES(4), ONES(weight))) for weight in ((1,), (4,))),
    *(("bilinear.default", (ONES(2, 4), ONES(b), ONES(6, 4, 5))) for b in ((2, 5), (3, 5), (2, 4), (1, 5), (2, 1, 5))),
    *(
        (f"max_pool{axes}d.default", (ONES(2, 3, *(8,) * axes), *([each] for each in window)))
        for axes in (1, 2, 3)
        for window in ((3, 2, 1, 1), (3, 0, 1, 1), (3, 2, 1, 0), (0, 2, 0, 1), (3,))
    ),
    *(("avg_pool2d.default", (IMAGE, [3, 3], [stride, 1])) for stride in (1, 0)),
    *(("avg_pool2d.default", (IMAGE, [3, 3], [1, 1], [pad, 1])) for pad in (1, 2, -1)),
    *(("max_pool2d.default", (IMAGE, [3, 3], [1, 1], [pad, 1], [2, 1])) for pad in (1, 2)),
    *(
        (op, (X, list(axes)))
        for op in ("sum.dim_IntList", "amax.default", "logsumexp.default")
        for axes in ((0, 1), (0, 0), (1, -1))
    ),
    *(("roll.default", (X, [1, 1], list(axes))) for axes in ((0, 0), (0, 2))),
    *((f"{op}.default", (ONES(sizes),)) for op in ("t", "mT", "adjoint", "matrix_H") for sizes in ((2, 3), (2, 3, 4))),
    *(("gather.default", (X, 0, POSITIONS(sizes))) for sizes in ((4, 6), (9, 6), (4, 7), (4,), (4, 6, 1), (0,))),
    *(
        ("scatter.src", (X, 0, POSITIONS(index), ONES(source)))
        for index in ((4, 6), (9, 6), (4, 7), (4,))
        for source in ((4, 6), (9, 7), (4, 6, 1))
    ),
    *(
        (op, (X, 1, POSITIONS(3), ONES(source)))
        for op in ("index_add.default", "index_copy.default")
        for source in ((4, 3), (4, 6), (3, 3), (4, 3, 1))
    ),
    *(
        ("max_unpool2d.default", (ONES(1, 1, 2, 2), POSITIONS(sizes), [4, 4]))
        for sizes in ((1, 1, 2, 2), (1, 1, 2, 3), (1, 2, 2))
    ),
    ("index_fill.int_Tensor", (X, 1, POSITIONS(3), torch.tensor(1.0))),
    *(("slice.Tensor", (X, 0, 0, 4, step)) for step in (2, 0, -1)),
    *(("chunk.default", (X, count)) for count in (3, 0, -1)),
    *(("as_strided.default", (X, [2, 2], [6, step])) for step in (1, 0, -1)),
    *(
        (op, (ONES(3, 4), ONES(b).to(dtype)))
        for op, b in (("mm.default", (4, 2)), ("linear.default", (2, 4)), ("mv.default", (4,)))
        for dtype in (torch.int64, torch.complex64, torch.float32)
    ),
    *(
        ("scaled_dot_product_attention.default", (HEAD, HEAD, HEAD.to(dtype), mask))
        for dtype in (torch.int64, torch.float32)
        for mask in (None, ONES(4, 4).to(torch.bool))
    ),
    ("mv.default", (ONES(2, 3, 4), ONES(4))),
    ("addr.default", (POSITIONS((2, 3)), ONES(2), ONES(3))),
    ("addr.default", (ONES(2, 3), ONES(2, 1), ONES(3))),
    ("linear.default", (ONES(3, 4), ONES(1, 2, 4))),
    *(
        (f"{op}.default", (ONES(3, 3).to(dtype), *others))
        for op, others in (("linalg_qr", ()), ("linalg_det", ()), ("layer_norm", ([3],)))
        for dtype in (torch.int64, torch.float32)
    ),
    *(
        ("cross_entropy_loss.default", (ONES(4, 3), target, weight))
        for target in (POSITIONS(4), POSITIONS(3), ONES(4, 3), ONES(3, 3))
        for weight in (None, ONES(3), ONES(4), ONES(1, 3))
    ),
    *(  # what is written in place: no larger, and of no more general a kind
        (op, (torch.ones(sizes, dtype=dtype), ONES(2, 3)))
        for op in ("add_.Tensor", "mul_.Tensor", "eq_.Tensor", "atan2_.default")
        for sizes in ((2, 3), (1, 3), (3,))
        for dtype in (torch.float32, torch.int64, torch.bool)
    ),
    *(("sigmoid_.default", (torch.ones(2, dtype=dtype),)) for dtype in (torch.float32, torch.int64)),
    *((f"{op}.default", (torch.ones(2, dtype=torch.bool), 0)) for op in ("cumsum_", "cumprod_")),
    *(("copy_.default", (torch.ones(2, dtype=dtype), ONES(2))) for dtype in (torch.float64, torch.int64)),
    *((op, (ONES(sizes),)) for op in ("item.default", "is_nonzero.default") for sizes in ((), (1, 1), (2,))),
    *(  # element types: each operand of a call otherwise
        (op, tuple([x.to(dtype) if place == changed else x for place, x in enumerate(arguments)]))
        for op, arguments in (
            ("lerp.Tensor", (X, SAME, SAME)),
            ("masked_scatter.default", (X, SAME.bool(), SAME)),
            ("scatter.src", (X, 0, POSITIONS((4, 6)), SAME)),
            ("quantile.default", (ONES(4), ONES(2))),
            ("linalg_solve.default", (torch.eye(3), ONES(3, 2))),
            ("view_as_complex.default", (ONES(3, 2),)),
            ("std_mean.default", (X,)),
            ("neg.default", (X,)),
            ("isin.Tensor_Tensor", (X, ONES(3))),
        )
        for changed, x in enumerate(arguments)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        for dtype in (torch.float32, torch.int64, torch.bool)
    ),
    *((op, (torch.tensor(1.0), ONES(end), 5)) for op in ("linspace.Tensor_Tensor",) for end in ((), (1,))),
    *(
        (f"{op}.default", (ONES(sizes),))
        for op in ("diag", "corrcoef", "combinations")
        for sizes in ((3,), (3, 3), (2, 3, 3))
    ),
    *(
        (f"{op}.default", (ONES(sizes),))
        for op in ("diff", "trace", "triu")
        for sizes in ((), (3,), (3, 3), (2, 3, 3))
    ),
    *(("select.int", (ONES(sizes), 0, 0)) for sizes in ((), (3,))),
    *(("embedding.default", (ONES(table), POSITIONS(2))) for table in ((3,), (3, 4), (3, 4, 5))),
    *(("im2col.default", (ONES(1, 3, 8, 8)[place], [2, 2], [1, 1], [0, 0], [1, 1])) for place in (..., 0, (0, 0))),
    *(("fill.Tensor", (ONES(2), ONES(value))) for value in ((), (1,), (2,))),
    ("flip.default", (X,)),
    ("avg_pool3d.default", (ONES(1, 2, 4, 4, 4),)),
    ("permute.default", (X,)),
    *(("index_fill.int_Scalar", (X, axis, torch.tensor([0]), 1.0)) for axis in (-3, -2, 1, 2)),
    *(("index_copy.default", (X, axis, torch.tensor([0]), ONES(1, 6))) for axis in (-3, -2, 2)),
    *(
        ("_scaled_mm.default", (FLOAT8.to("meta"), FLOAT8.t().to("meta"), ONES(a), ONES(b)))
        for a, b in (
            ((), (1,)), ((256, 1), (1, 256)), ((256, 2), (2, 2)), ((256, 2), (2, 256)), ((2, 2), (2, 256)),
            ((256, 1), (256, 1)), ((3,), ()), ((256, 3), (3, 2)), ((1, 1), (1, 256)), ((2, 2), (2, 2)),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments"), SHAPED)
def test_shapes_and_settings(op: str, arguments: tuple[Any, ...]) -> None:
    refused, said = refusals(op, arguments)
    assert said == ("GF118" if refused else "")


@pytest.mark.parametrize("op", ["mm", "bmm", "linear", "matmul", "conv2d", "lerp.Scalar"])
def test_widths_that_only_autocasting_mixes_are_said(op: str) -> None:
    spelled = f"aten.{op}" if "." in op else f"aten.{op}.default"
    sizes = {"bmm": (2, 4, 4), "conv2d": (1, 1, 4, 4)}.get(op, (4, 4))
    (x, same), other = (
        (TensorType(sizes, dtype_named("float32")) for _ in "ab"),
        TensorType(sizes, dtype_named("float64")),
    )
    rule, further = find(spelled), (0.5,) if op == "lerp.Scalar" else ()
    assert rule is not None
    assert price_call(rule, spelled, (x, same, *further), ()).estimate.hint is None
    said = f"operands of {spelled} must have one element type, not float32 and float64"
    assert price_call(rule, spelled, (x, other, *further), ()).estimate.hint == ("GF103", said)


def test_a_file_with_such_a_call_is_an_error_behind_the_report(tmp_path):
    nodes = [call("torch.ops.aten.gather.default", tensor("x"), {"as_int": 0}, tensor("x"))]
    path = save(tmp_path / "m.pt2", program(nodes))
    done = CliRunner().invoke(cli.main, ["analyze", str(path)])
    assert done.exit_code == 1
    assert "y cannot run: index of aten.gather.default cannot be float32" in done.stderr
