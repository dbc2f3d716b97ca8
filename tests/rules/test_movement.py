"""Views, copies, joins, borders and rearrangements: shapes, traffic, gradients."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Cost, Estimate
from graphflops.dims import dim_min, evaluate, symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find, find_backward
from graphflops.rules.shapes import kept_by_slice
from graphflops.tensor import DTYPES, TensorType
from tests.support import price, shapes, t

s, b = symbol("s"), symbol("b")
LAST = 2**63 - 1  # how exporters write "to the end"
ONE = pytest.mark.parametrize


def gradient(op: str, wants: str, **arguments: Any) -> Estimate:
    """The backward of a call in which some operands want a gradient."""
    rule = find(op)
    assert rule is not None
    back = find_backward(rule.key)
    assert back is not None
    return back(ForwardCall(rule.function(**arguments), arguments, frozenset(wants.split())))


VIEWS: list[tuple[Any, ...]] = [
    # other sizes
    ("view", (t(4, 6), (2, 12)), [(2, 12)]),
    ("view", (t(4, 6), (-1,)), [(24,)]),
    ("view", (t(0, 4), (2, 0)), [(2, 0)]),
    ("_unsafe_view", (t(4, 6), (3, -1)), [(3, 8)]),
    ("view", (t("b", "s", 64), (b, s, 8, 8)), [(b, s, 8, 8)]),
    ("view", (t("b", "s", 64), (b, -1)), [(b, 64 * s)]),
    ("view", (t("b", "s", 64), (-1, 64)), [(b * s, 64)]),
    ("reshape", (t("b", "s", 64), (b * s, -1)), [(b * s, 64)]),
    ("view.dtype", (t(3, 4), DTYPES["int16"]), [(3, 8)]),
    ("view.dtype", (t(3, 4), DTYPES["float64"]), [(3, 2)]),
    ("view.dtype", (t(3, "s"), DTYPES["uint8"]), [(3, 4 * s)]),
    ("_reshape_alias", (t(4, 6), (24,), (1,)), [(24,)]),
    ("view_as", (t(4, 6), t(6, 4)), [(6, 4)]),
    ("flatten.using_ints", (t("b", 3, 4, 5), 1), [(b, 60)]),
    ("flatten.using_ints", (t(2, 3, 4, 5), -3, -2), [(2, 12, 5)]),
    ("flatten.using_ints", (t(),), [(1,)]),
    ("ravel", (t(2, "s"),), [(2 * s,)]),
    ("unflatten.int", (t(2, 12), -1, (3, -1)), [(2, 3, 4)]),
    ("squeeze", (t(1, "s", 1, 3),), [(s, 3)]),
    ("squeeze.dim", (t(1, 2, 1), 0), [(2, 1)]),
    ("squeeze.dim", (t(1, 2, 1), 1), [(1, 2, 1)]),
    ("squeeze.dims", (t(1, 2, 1), (0, -1)), [(2,)]),
    ("squeeze_.dim", (t(1, 2), 0), [(2,)]),
    ("unsqueeze", (t(2, 3), -1), [(2, 3, 1)]),
    ("unsqueeze_", (t(2, 3), 0), [(1, 2, 3)]),
    ("atleast_3d", (t(2, 3),), [(2, 3, 1)]),
    ("atleast_3d", (t(3),), [(1, 3, 1)]),
    ("atleast_2d.Sequence", ((t(3), t()),), [(1, 3), (1, 1)]),
    ("view_as_real", (t(3, dtype="complex64"),), [(3, 2)]),
    ("view_as_complex", (t(3, 2),), [(3,)]),
    ("unflatten_dense_tensors", (t(10), (t(2, 3), t(4))), [(2, 3), (4,)]),
    # other orders
    ("permute", (t(2, 3, 4), (2, 0, -2)), [(4, 2, 3)]),
    ("transpose.int", (t(2, 3, 4), 0, -1), [(4, 3, 2)]),
    ("swapdims", (t(2, 3, 4), 0, 1), [(3, 2, 4)]),
    ("t", (t(3),), [(3,)]),
    ("mT", (t(2, 3, 4),), [(2, 4, 3)]),
    ("numpy_T", (t(2, 3, 4),), [(4, 3, 2)]),
    ("movedim.int", (t(2, 3, 4), 0, -1), [(3, 4, 2)]),
    ("moveaxis.intlist", (t(2, 3, 4, 5), (0, 1), (2, 0)), [(3, 4, 2, 5)]),
    # repeats without storage
    ("expand", (t(1, 3), (4, -1)), [(4, 3)]),
    ("expand", (t(3), (b, s, 3)), [(b, s, 3)]),
    ("expand_as", (t(1, 3), t(7, 3)), [(7, 3)]),
    ("broadcast_to", (t(1, "s"), (5, s)), [(5, s)]),
    ("broadcast_tensors", ((t(3, 1), t(1, 4), t(4)),), [(3, 4)] * 3),
    ("meshgrid", ((t(3), t(4)),), [(3, 4)] * 2),
    # parts
    ("select.int", (t(4, "s", 6), 1, -1), [(4, 6)]),
    ("slice.Tensor", (t(4, "s"), 1, 0, LAST), [(4, s)]),
    ("slice.Tensor", (t(4, "s"), 1, 1, LAST), [(4, s - 1)]),
    ("slice.Tensor", (t(4, "s"), 1, 0, -1), [(4, s - 1)]),
    ("slice.Tensor", (t(4, "s"), 1, -3, LAST), [(4, dim_min(3, symbol("s")))]),
    ("slice.Tensor", (t(4, "s"), -1, 0, 1), [(4, 1)]),
    ("slice.Tensor", (t(4, 512), 1, 0, s), [(4, dim_min(512, symbol("s")))]),
    ("slice.Tensor", (t(4, "s"), 1, None, s), [(4, s)]),
    ("slice.Tensor", (t("b", "s"), 1, b), [(b, s - b)]),
    ("slice.Tensor", (t("b", "s"), 1, -b), [(b, b)]),
    ("slice.Tensor", (t("s"), 0, 0, LAST, 2), [((s + 1) // 2,)]),
    ("narrow", (t(4, "s"), 1, 2, 5), [(4, 5)]),
    ("split.Tensor", (t(9, 2), 4), [(4, 2), (4, 2), (1, 2)]),
    ("split.Tensor", (t("s", 6), 2, -1), [(s, 2)] * 3),
    ("split.Tensor", (t(2, 3 * s), s, 1), [(2, s)] * 3),
    ("split.sizes", (t(9, 2), (4, 5)), [(4, 2), (5, 2)]),
    ("split_with_sizes", (t("s", 2), (1, s - 1)), [(1, 2), (s - 1, 2)]),
    ("chunk", (t(9, 2), 4), [(3, 2)] * 3),
    ("chunk", (t(2, 2 * s), 2, 1), [(2, s)] * 2),
    ("chunk", (t("s"), 2), [((s + 1) // 2,), (s - (s + 1) // 2,)]),
    ("tensor_split.sections", (t(7), 3), [(3,), (2,), (2,)]),
    ("tensor_split.indices", (t(7, 2), (2, 5)), [(2, 2), (3, 2), (2, 2)]),
    ("tensor_split.tensor_indices_or_sections", (t(7), t(dtype="int64", value=2)), [(4,), (3,)]),
    ("hsplit.int", (t(4, 6), 3), [(4, 2)] * 3),
    ("dsplit.array", (t(1, 1, 5), (2,)), [(1, 1, 2), (1, 1, 3)]),
    ("unbind.int", (t(3, "s"),), [(s,)] * 3),
    ("diagonal", (t(2, 5, 3), 0, 1, 2), [(2, 3)]),
    ("diagonal", (t(5, 3), -3), [(2,)]),
    ("diagonal", (t("s", "s"),), [(s,)]),
    ("linalg_diagonal", (t(2, 5, 3),), [(2, 3)]),
    ("unfold", (t(2, 10), 1, 4, 3), [(2, 3, 4)]),
    ("unfold", (t("s"), 0, 4, 2), [((s - 4) // 2 + 1, 4)]),
    ("as_strided", (t(10), (3, 4), (2, 1)), [(3, 4)]),
    ("detach", (t("s"),), [(s,)]),
]


@ONE(("op", "operands", "expected"), VIEWS)
def test_views_have_these_shapes_and_are_free(
    op: str, operands: tuple[Any, ...], expected: list[Any]
) -> None:
    estimate = price(f"aten.{op}", *operands)
    assert shapes(estimate) == expected
    assert estimate.alias
    assert estimate.cost == Cost()


COPYING = {"view.dtype": "view_copy.dtype", "detach": "detach_copy"}
COPIES = {
    "view",
    "expand",
    "permute",
    "select.int",
    "slice.Tensor",
    "split.Tensor",
    "squeeze.dims",
    "unbind.int",
    "unfold",
}


@ONE(("op", "operands", "expected"), [case for case in VIEWS if case[0] in COPIES | COPYING.keys()])
def test_the_copying_spelling_of_a_view_writes_every_element(
    op: str, operands: tuple[Any, ...], expected: list[Any]
) -> None:
    base, dot, overload = op.partition(".")
    estimate = price(f"aten.{COPYING.get(op, f'{base}_copy{dot}{overload}')}", *operands)
    assert shapes(estimate) == expected
    assert not estimate.alias
    results = [out for out in estimate.out if isinstance(out, TensorType)]
    assert estimate.cost.written_bytes == sum((out.numel * out.dtype.bits // 8 for out in results), 0)
    assert estimate.cost.vector_flops == 0


@ONE("size", range(6))
@ONE("step", [1, 2, 3])
def test_slices_keep_what_python_keeps(size: int, step: int) -> None:
    bounds = [None, *range(-7, 8), LAST]
    for start in bounds:
        for end in bounds:
            assert kept_by_slice(size, start, end, step) == len(range(size)[start:end:step])


def test_a_literal_end_may_lie_behind_a_size_that_is_not_known() -> None:
    (out,) = price("aten.slice.Tensor", t("s"), 0, 0, 512).out
    assert isinstance(out, TensorType)
    assert [size.substitute({"s": n}) for size in out.shape for n in (7, 1024)] == [7, 512]  # type: ignore[union-attr]


def test_a_literal_start_may_lie_before_a_size_that_is_not_known() -> None:
    """The last keys of a cache, which may be shorter."""
    (out,) = price("aten.slice.Tensor", t("s"), 0, -512, LAST).out
    assert [evaluate(out.shape[0], {"s": n}) for n in (7, 512, 1024)] == [7, 512, 512]  # type: ignore[union-attr]


@pytest.mark.parametrize("length", [3, 8, 9, 30])
def test_a_start_whose_sign_only_sizes_tell(length: int) -> None:
    """`x[8 - s :]` of s places: from the end where 8 - s is negative, as Python slices."""
    s = symbol("s")
    (out,) = price("aten.slice.Tensor", t("s"), 0, 8 - s, LAST).out
    assert evaluate(out.shape[0], {"s": length}) == len(range(length)[8 - length :])


def test_an_expanded_operand_is_read_once_and_a_copy_pays() -> None:
    expanded = price("aten.expand", t(1, 64), (32, 64)).out[0]
    assert isinstance(expanded, TensorType)
    assert (expanded.numel, expanded.nbytes) == (32 * 64, 64 * 4)
    transposed = price("aten.t", expanded).out[0]
    copy = price("aten.contiguous", transposed)
    assert (copy.cost.read_bytes, copy.cost.written_bytes) == (64 * 4, 32 * 64 * 4)
    assert price("aten.unfold", t(100), 0, 10, 1).out[0].nbytes == 100 * 4  # type: ignore[union-attr]
    assert price("aten.expand", t(4, 5), (4, 5)).out[0].stored is None  # type: ignore[union-attr]


def test_known_contents_go_along_with_views() -> None:
    sizes = t(2, 2, dtype="int64", value=((1, 2), (3, s)))
    assert price("aten.view", sizes, (4,)).out[0].value == (1, 2, 3, s)  # type: ignore[union-attr]
    assert price("aten.select.int", sizes, 0, 1).out[0].value == (3, s)  # type: ignore[union-attr]
    assert price("aten.slice.Tensor", sizes, 0, 1, LAST).out[0].value == ((3, s),)  # type: ignore[union-attr]
    pair = [t(1, dtype="int64", value=(n,)) for n in (5, s)]
    assert price("aten.cat", pair).out[0].value == (5, s)  # type: ignore[union-attr]
    assert price("aten._to_copy", t(dtype="int64", value=s), dtype=DTYPES["int32"]).out[0].value == s  # type: ignore[union-attr]
    assert price("aten._to_copy", t(dtype="int64", value=s), dtype=DTYPES["float32"]).out[0].value is None  # type: ignore[union-attr]


@ONE(
    ("op", "operands", "message"),
    [
        ("view", (t(4, 6), (5, -1)), r"\[4, 6\] holds 24 elements, which do not fit \[5, -1\]"),
        ("view", (t(4, 6), (5, 5)), r"24 elements.*\[5, 5\]"),
        ("view", (t("s", 6), (6 * s + 1,)), r"6\*s elements"),
        ("view", (t(4), (-1, -1)), "only one size can be -1"),
        ("view", (t(0), (0, -1)), "do not fit"),
        ("view.dtype", (t(3), DTYPES["float64"]), "no whole float64"),
        ("expand", (t(3), (4,)), r"\[3\] does not expand to \[4\]"),
        ("permute", (t(2, 3), (0, 0)), "names an axis twice"),
        ("transpose.int", (t(2, 3), 0, 2), "axis 2 does not exist in a tensor of 2 axes"),
        ("select.int", (t(4), 0, 4), "index 4 is outside axis 0 of length 4"),
        ("narrow", (t(4), 0, 0, 5), "5 positions do not fit"),
        ("split_with_sizes", (t(9), (4, 4)), r"\[4, 4\] do not add up to 9"),
        ("cat", ((t(2, 3), t(2, 4)),), "sizes 3 and 4 differ"),
        ("cat", ((t(), t()),), "no axis to be joined along"),
        ("stack", ((t(2), t(3)),), "sizes 2 and 3 differ"),
        ("pad", (t(4), (-3, -2)), "crops more than"),
        ("pixel_shuffle", (t(3, 2, 2), 2), "3 channels"),
        ("slice_scatter", (t(4, 4), t(3, 4), 0, 0, 2), r"\[3, 4\] does not fit a part of shape \[2, 4\]"),
        ("copy_.default", (t(4), t(3)), r"\[3\] does not expand to \[4\]"),
    ],
)
def test_what_is_provably_wrong_is_refused_with_both_values(
    op: str, operands: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        price(f"aten.{op}", *operands)


def test_a_split_of_unknown_length_has_no_derived_results() -> None:
    assert price("aten.split.Tensor", t("s"), 4).out == ()
    assert price("aten.unbind.int", t("s")).out == ()


COPIED: list[tuple[Any, ...]] = [
    ("clone", (t(4, 6),), (4, 6), "float32", 0, 96, 96),
    ("contiguous", (t(4, 6),), (4, 6), "float32", 0, 96, 96),
    ("to.dtype", (t(4, 6), DTYPES["float32"]), (4, 6), "float32", 0, 0, 0),
    ("to.dtype", (t(4, 6), DTYPES["float32"], False, True), (4, 6), "float32", 0, 96, 96),
    ("to.dtype", (t(4, 6), DTYPES["float16"]), (4, 6), "float16", 24, 96, 48),
    ("to.device", (t(4, 6), "cuda", DTYPES["float32"]), (4, 6), "float32", 0, 0, 0),
    ("to.other", (t("s"), t(2, dtype="float64")), (s,), "float64", s, 4 * s, 8 * s),
    ("_cast_Half", (t(4),), (4,), "float16", 4, 16, 8),
    ("type_as", (t(4), t(1, dtype="int8")), (4,), "int8", 4, 16, 4),
    ("copy_.default", (t(4, 6), t(6)), (4, 6), "float32", 0, 24, 96),
    ("copy_.default", (t(4), t(4, dtype="float16")), (4,), "float32", 4, 8, 16),
    ("cat", ((t(2, 3), t(4, 3)),), (6, 3), "float32", 0, 72, 72),
    ("cat", ((t("s", 3), t(1, 3)),), (s + 1, 3), "float32", 0, 12 * s + 12, 12 * s + 12),
    ("cat", ((t(0), t(4, 3)), 1), (4, 3), "float32", 0, 48, 48),
    ("cat", ((t(3), t(2, dtype="float64")),), (5,), "float64", 3, 28, 40),
    ("stack", ((t(2, 3), t(2, 3)), -1), (2, 3, 2), "float32", 0, 48, 48),
    ("stack", ((t("s"), t(8)),), (2, 8), "float32", 0, 4 * s + 32, 64),
    ("hstack", ((t(2), t(3)),), (5,), "float32", 0, 20, 20),
    ("vstack", ((t(3), t(2, 3)),), (3, 3), "float32", 0, 36, 36),
    ("dstack", ((t(3), t(1, 3, 2)),), (1, 3, 3), "float32", 0, 36, 36),
    ("column_stack", ((t(3), t(3, 2)),), (3, 3), "float32", 0, 36, 36),
    ("block_diag", ((t(2, 3), t(4), t()),), (4, 8), "float32", 0, 44, 128),
    ("_chunk_cat", ((t(5, 3), t(7, 2)), 0, 2), (2, 3 * 3 + 4 * 2), "float32", 0, 116, 136),
    ("pad_sequence", ((t(3, 2), t(5, 2)), True), (2, 5, 2), "float32", 0, 64, 80),
    ("cartesian_prod", ((t(3), t(4)),), (12, 2), "float32", 0, 28, 96),
    ("combinations", (t(5), 2), (10, 2), "float32", 0, 20, 80),
    ("combinations", (t(5), 2, True), (15, 2), "float32", 0, 20, 120),
    ("repeat", (t(3), (2, 4)), (2, 12), "float32", 0, 12, 96),
    ("tile", (t(2, 3), (2,)), (2, 6), "float32", 0, 24, 48),
    ("repeat_interleave.self_int", (t(2, 3), 4, 1), (2, 12), "float32", 0, 24, 96),
    ("repeat_interleave.self_int", (t("s", 3), 2), (6 * s,), "float32", 0, 12 * s, 24 * s),
    ("roll", (t(2, 3), (1,), (0,)), (2, 3), "float32", 0, 24, 24),
    ("rot90", (t(2, 3),), (3, 2), "float32", 0, 24, 24),
    ("rot90", (t(2, 3), 2), (2, 3), "float32", 0, 24, 24),
    ("pixel_shuffle", (t(1, 12, 4, 5), 2), (1, 3, 8, 10), "float32", 0, 960, 960),
    ("pixel_unshuffle", (t(1, 3, 8, "s"), 2), (1, 12, 4, s // 2), "float32", 0, 96 * s, 192 * (s // 2)),
    ("channel_shuffle", (t(1, 6, 4), 3), (1, 6, 4), "float32", 0, 96, 96),
    ("tril", (t(3, 3),), (3, 3), "float32", 0, 36, 36),
    ("diag_embed", (t(2, 3), 1), (2, 4, 4), "float32", 0, 24, 128),
    ("diag_embed", (t(2, 3), 0, 0, 2), (3, 2, 3), "float32", 0, 24, 72),
    ("diag", (t(3), -1), (4, 4), "float32", 0, 12, 64),
    ("diag", (t(3, 5),), (3,), "float32", 0, 12, 12),
    ("diagflat", (t(2, 2),), (4, 4), "float32", 0, 16, 64),
    ("constant_pad_nd", (t(2, 3), (1, 2)), (2, 6), "float32", 0, 24, 48),
    ("constant_pad_nd", (t(2, "s"), (-1, 0, 0, 1)), (3, s - 1), "float32", 0, 8 * s, 12 * s - 12),
    ("pad", (t(2, 3), (1, 1), "reflect"), (2, 5), "float32", 0, 24, 40),
    ("reflection_pad2d", (t(1, 4, 4), (1, 1, 2, 0)), (1, 6, 6), "float32", 0, 64, 144),
    ("reflection_pad1d_backward", (t(1, 6), t(1, 4), (1, 1)), (1, 4), "float32", 6, 24, 16),
    ("replication_pad1d_backward", (t(1, 6), t(1, 4), (1, 1)), (1, 4), "float32", 6, 24, 16),
    ("im2col", (t(2, 3, 8, 8), (3, 3), (1, 1), (0, 0), (1, 1)), (2, 27, 36), "float32", 0, 1536, 7776),
    (
        "im2col",
        (t(3, 8, "s"), (3, 3), (1, 1), (1, 1), (2, 1)),
        (27, 4 * s),
        "float32",
        0,
        96 * s,
        432 * s,
    ),
    (
        "col2im",
        (t(2, 27, 36), (8, 8), (3, 3), (1, 1), (0, 0), (1, 1)),
        (2, 3, 8, 8),
        "float32",
        1944,
        7776,
        1536,
    ),
    ("slice_scatter", (t(4, 4), t(2, 4), 0, 0, 2), (4, 4), "float32", 0, 96, 64),
    ("select_scatter", (t(4, 4), t(4), 0, -1), (4, 4), "float32", 0, 80, 64),
    ("diagonal_scatter", (t(4, 4), t(4)), (4, 4), "float32", 0, 80, 64),
    ("slice_backward", (t(2, 4), (8, 4), 0, 0, 2, 1), (8, 4), "float32", 0, 32, 128),
    ("unfold_backward", (t(8, 3), (10,), 0, 3, 1), (10,), "float32", 24, 96, 40),
    ("masked_scatter", (t(4), t(4, dtype="bool"), t(9)), (4,), "float32", 0, 20, 16),
    ("masked_scatter_backward", (t(4), t(4, dtype="bool"), (9,)), (9,), "float32", 0, 20, 36),
    ("fill_diagonal_", (t(4, 4), 1.0), (4, 4), "float32", 0, 0, 16),
    ("resize", (t(4, 4), (2, 2)), (2, 2), "float32", 0, 16, 16),
    ("resize_", (t(4, 4), (2, 2)), (2, 2), "float32", 0, 0, 0),
    ("set_.source_Tensor", (t(4, 4), t(3)), (3,), "float32", 0, 0, 0),
]


@ONE(("op", "operands", "shape", "dtype", "flops", "read", "written"), COPIED)
def test_copies_read_once_and_write_once(
    op: str, operands: tuple[Any, ...], shape: Any, dtype: str, flops: Any, read: Any, written: Any
) -> None:
    estimate = price(f"aten.{op}", *operands)
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name) == (shape, dtype)
    cost = estimate.cost
    assert (cost.vector_flops, cost.read_bytes, cost.written_bytes) == (flops, read, written)
    assert cost.matrix_flops == cost.transcendentals == 0


def test_lengths_that_only_data_tells_are_named() -> None:
    assert str(shapes(price("aten.masked_select", t(4), t(4, dtype="bool")))[0][0]) == str(
        symbol("masked_select?")
    )
    repeats = t(3, dtype="int64")
    ((length,),) = shapes(price("aten.repeat_interleave.self_Tensor", t(3), repeats))
    assert length == symbol("repeat_interleave?")
    assert shapes(price("aten.repeat_interleave.self_Tensor", t(3), repeats, 0, output_size=9)) == [(9,)]
    with pytest.raises(ShapeError, match="3 repeats of 4 elements"):
        price("aten.repeat_interleave.self_Tensor", t(4), repeats, 0)
    assert shapes(price("aten.repeat_interleave.Tensor", t(3, dtype="int64", value=(1, 2, 3)))) == [(6,)]


@ONE(
    ("op", "wants", "arguments", "flops", "read", "written"),
    [
        # a part's gradient lies in zeros of the whole's size
        ("aten.slice.Tensor", "x", {"x": t(8, 4), "start": 0, "end": 2}, 0, 32, 128),
        ("aten.split.Tensor", "x", {"x": t(8, 4), "split_size": 4}, 0, 128, 128),
        ("aten.select_copy.int", "x", {"x": t(8, 4), "dim": 0, "index": 0}, 0, 16, 128),
        # repeats are summed
        ("aten.expand", "x", {"x": t(1, 4), "size": (8, 4)}, 32, 128, 16),
        ("aten.expand", "x", {"x": t(8, 4), "size": (8, 4)}, 0, 0, 0),
        ("aten.repeat", "x", {"x": t(4), "repeats": (8,)}, 32, 128, 16),
        ("aten.unfold", "x", {"x": t(10), "dim": 0, "size": 3, "step": 1}, 24, 96, 40),
        (
            "aten.im2col",
            "x",
            {"x": t(3, 8, 8), **dict.fromkeys(("kernel_size", "dilation", "stride"), (1,)), "padding": (0,)},
            192,
            768,
            768,
        ),
        # what was moved moves back, what was converted is converted back, a clone's passes
        ("aten.flip", "x", {"x": t(8), "dims": (0,)}, 0, 32, 32),
        ("aten.permute_copy", "x", {"x": t(2, 4), "dims": (1, 0)}, 0, 32, 32),
        ("aten._to_copy", "x", {"x": t(8), "dtype": DTYPES["float16"]}, 8, 16, 32),
        ("aten.clone", "x", {"x": t(8)}, 0, 0, 0),
        ("aten.cat", "tensors", {"tensors": (t(2, requires_grad=True), t(3, requires_grad=True))}, 0, 0, 0),
        ("aten.pad", "x", {"x": t(8), "pad": (1, 1)}, 0, 32, 32),
        ("aten.pad", "x", {"x": t(8), "pad": (1, 1), "mode": "circular"}, 10, 40, 32),
        ("aten.select_scatter", "x src", {"x": t(4, 4), "src": t(4), "dim": 0, "index": 0}, 0, 64, 64),
    ],
)
def test_gradients(
    op: str, wants: str, arguments: dict[str, Any], flops: int, read: int, written: int
) -> None:
    estimate = gradient(op, wants, **arguments)
    cost = estimate.cost
    assert (cost.vector_flops, cost.read_bytes, cost.written_bytes) == (flops, read, written)
    wanted = [
        x for name in wants.split() for x in (arguments[name] if name == "tensors" else (arguments[name],))
    ]
    assert shapes(estimate) == [x.shape for x in wanted]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [("unbind", (0,)), ("split", (1,)), ("tensor_split", (10**9,)), ("chunk", (10**9,))],
)
def test_an_absurd_number_of_pieces_is_refused_at_once(op, arguments):
    with pytest.raises(ShapeError, match="1000000000 pieces are too many"):
        price(f"aten.{op}", t(10**9), *arguments)


def test_a_copied_view_reads_no_more_elements_than_it_shows() -> None:
    x = TensorType((s, s), DTYPES["float32"])
    read = price("aten.as_strided_copy.default", x, (2, 2), (2, 1)).cost.read_bytes
    assert evaluate(read, {"s": 64}) == 4 * 4
