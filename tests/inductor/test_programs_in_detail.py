"""Operators of programs of a few calls: what each makes, reads and runs over, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.devices import HOPPER
from graphflops.inductor.plan import Plans
from tests.inductor.one_call import each
from tests.inductor.several_calls import lines, ops, plan_of_calls
from tests.one_call import g, program_of
from tests.support import t

LONG: dict[str, Any] = {"dtype": "int64"}
HALF: dict[str, Any] = {"dtype": "bfloat16"}


def test_a_gather_reads_the_rows_that_it_returns() -> None:
    plan = plan_of_calls({"x": t(100, 8), "i": t(5, **LONG)}, ("y", "index_select.default", "x", 0, "i"))
    assert lines(plan) == ["pointwise y <- x i: 40"]
    assert ops(plan)["y"].parts == {"x": {"y": 4 * 40}}
    assert ops(plan)["y"].moved == {"x", "i"}


@pytest.mark.parametrize(
    ("between", "row"),
    [
        ((), 1100),
        ((("z", "relu.default", "y"),), 1100),
        (
            (("z", "sum.dim_IntList", "y", (3,), True),),
            1120,
        ),  # a multiple of the 32 elements of a line of memory
    ],
)
def test_rows_that_a_convolution_reads_are_not_lined_up(between: tuple[Any, ...], row: int) -> None:
    """Nor those that it reads by way of elementwise calls; of 7 channels of 5 rows the last one is not padded."""
    calls = (("y", "softmax.int", "x", -1), *between)
    last = ("out", "conv2d.default", calls[-1][0], "w")
    plan = plan_of_calls({"x": t(1, 7, 5, 1100), "w": t(8, 7, 1, 1)}, *calls, last)
    assert plan.joint.bytes("y") == 4 * (34 * row + 1100)


def test_a_tensor_that_is_also_read_as_a_whole_is_no_part() -> None:
    part = ("s", "slice.Tensor", "x", 0, 0, 1)
    plan = plan_of_calls({"x": t(10, 8)}, part, ("y", "mul.Tensor", "s", "x"))
    assert ops(plan)["y"].parts == {}
    plan = plan_of_calls({"x": t(10, 8), "u": t(10, 8)}, part, ("y", "mul.Tensor", "s", "u"))
    assert ops(plan)["y"].parts == {"x": {"s": 4 * 8}}


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("way", ["index", "slice"])
def test_writing_a_part(way: str, is_given: bool) -> None:
    """Of what the program is given only the part is written; of its own tensor a new one is made."""
    given = {"k": t(2, 4, 256, 32), "i": t(1, **LONG), "n": t(2, 4, 1, 32)}
    k, whole, part = "k" if is_given else "m", 2 * 4 * 256 * 32, 2 * 4 * 32
    before = [] if is_given else [("m", "relu.default", "k")]
    write: list[tuple[Any, ...]] = [("y", "index_copy_.default", k, 2, "i", "n")]
    if way == "slice":
        write = [("s", "slice.Tensor", k, 2, 0, 1), ("y", "copy_.default", "s", "n")]
    plan = plan_of_calls(given, *before, *write, ("z", "neg.default", k))
    index = "i " if way == "index" else ""
    if is_given:
        assert lines(plan) == [f"pointwise part <- {index}n: {part}", f"pointwise z <- k: {whole}"]
        assert (ops(plan)["part"].part_bytes, plan.joint.sizes["y part"]) == (4 * part, 0)
        return
    written = part if way == "slice" else whole
    assert lines(plan)[1:] == [f"pointwise y <- m {index}n: {written}", f"pointwise z <- y: {whole}"]
    assert plan.joint.bytes("y") == 4 * whole
    assert ops(plan)["y"].part_bytes == 0


def test_writing_a_whole_tensor_makes_a_new_one() -> None:
    given = {"k": t(4, 256), "n": t(4, 256)}
    plan = plan_of_calls(given, ("y", "add_.Tensor", "k", "n"), ("z", "silu_.default", "k"))
    wanted = ["pointwise y <- k n: 1024", "pointwise z <- y: 1024", "pointwise written <- z: 1024"]
    assert lines(plan) == wanted
    assert each(plan, "reads_twice") == [False, True, False]
    assert each(plan, "part_bytes") == [0, 0, 4 * 1024]
    assert each(plan, "is_alone") == [False, False, False]


def test_an_elementwise_call_of_two_results_is_of_a_library() -> None:
    plan = plan_of_calls({"k": t(4, 256)}, ("y e", "frexp.Tensor", "k"))
    assert lines(plan) == ["extern y e <- k: 1024"]


@pytest.mark.parametrize(
    ("dtype", "capability", "adds"),
    [
        ("float32", (8, 0), True),
        ("float16", (8, 0), True),
        ("bfloat16", (8, 0), False),
        ("bfloat16", (9, 0), True),
        ("int32", (9, 0), False),
    ],
)
def test_types_that_are_added_in_memory(dtype: str, capability: tuple[int, int], adds: bool) -> None:
    operands = t(100, 64, dtype=dtype), 0, t(20, 64, **LONG), t(20, 64, dtype=dtype)
    program = program_of("aten.scatter_add.default", *operands)
    plan = Plans(program, replace(HOPPER, capability=capability)).plan(program.main, training=False)
    assert [op.role == "adding" for op in plan.joint.ops] == ([False, True] if adds else [False])
    assert each(plan, "instructions")[0] == adds


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("mean.dim", (t(4, 9, 16), (-1,), False), "reduction y0 <- x0: 576 to 36"),
        ("mean.dim", (t(4, 9, 16), (-3,), False), "pointwise y0 <- x0: 144"),  # four numbers each
        ("sum.default", (t(),), "pointwise y0 <- x0: 1"),
        ("avg_pool2d.default", (t(2, 3, 2, 2), (2, 2)), "pointwise y0 <- x0: 6"),
        ("max_pool2d.default", (t(2, 3, 2, 2), (2, 2)), "pointwise y0 <- x0: 6"),
        ("adaptive_avg_pool2d.default", (t(2, 3, 4, 4), (1, 1)), "reduction y0 <- x0: 96 to 6"),
    ],
)
def test_one_operator(op: str, operands: Any, expected: str) -> None:
    program = program_of(f"aten.{op}", *operands)
    assert lines(Plans(program, HOPPER).plan(program.main, training=False)) == [expected]


SIN, ADD = ("b", "sin.default", "x"), ("c", "add.Tensor", "a", "b")


@pytest.mark.parametrize("calls", [("mm", "sin"), ("sin", "mm")])
def test_a_product_adds_the_other_gradient_of_a_matrix(calls: tuple[str, str]) -> None:
    product = ("a", "mm.default", "x", "w")
    order = [product if call == "mm" else SIN for call in calls]
    plan = plan_of_calls({"x": g(8, 16), "w": t(16, 16)}, *order, ADD)
    sine = "g2" if calls[0] == "mm" else "g3"  # the last call comes first
    found = [f"pointwise {sine} <- g1 x: 128", f"extern g4 <- g1 w {sine}: 256"]
    assert lines(plan, plan.backward) == found
    assert [*plan.joint.gradients] == ["gradient 4 of x"]


@pytest.mark.parametrize(
    ("given", "product"),
    [
        ({"x": g(2, 8, 16), "w": t(2, 16, 16)}, ("a", "bmm.default", "x", "w")),  # no matrix
        ({"x": g(8, 16), "w": t(8, 16)}, ("a", "mul.Tensor", "x", "w")),  # no product
    ],
)
def test_other_gradients_are_added_by_themselves(given: Any, product: Any) -> None:
    plan = plan_of_calls(given, product, SIN, ADD)
    count = int(given["x"].numel)
    assert lines(plan)[-1] == f"pointwise g4 <- g2 g3: {count}"
    assert len(plan.joint.ops) == 3 + 3


def test_a_gradient_of_a_value_inside_is_added_by_itself() -> None:
    """A product adds only where something other than an elementwise operator reads the sum."""
    before, product = ("x", "relu.default", "v"), ("a", "mm.default", "x", "w")
    plan = plan_of_calls({"v": g(8, 16), "w": t(16, 16)}, before, product, SIN, ADD)
    assert lines(plan)[4:] == [
        "pointwise g2 <- g1 x: 128",
        "extern g3 <- g1 w: 256",
        "pointwise g4 <- g2 g3: 128",
        "pointwise mask <- x: 128",
        "pointwise g5 <- g4 mask: 128",
    ]
    assert ops(plan)["mask"].is_gradient is False
    assert plan.joint.bytes("x mask") == 128


def test_a_gradient_from_outside_is_added_to_that_of_a_product() -> None:
    """What is added to a product has the gradient of the result as its own."""
    given = {"x": g(8, 16), "v": t(8, 16), "w": t(16, 16)}
    plan = plan_of_calls(given, ("a", "addmm.default", "x", "v", "w"), ("b", "mm.default", "x", "w"), ADD)
    assert lines(plan, plan.backward)[-1] == "extern g3 <- g1 w g1: 256"
    assert len(plan.joint.gradients) == 1


def test_gradients_come_from_results_that_depend_on_what_wants_one() -> None:
    given = {"x": g(8, 16), "u": t(8, 16)}
    calls = ("a", "sin.default", "x"), ("b", "sin.default", "u")
    plan = plan_of_calls(given, *calls, results=("a", "b", "a"))
    assert [*plan.joint.tangents] == ["gradient 1 of a"]
    assert lines(plan)[2:] == ["pointwise g2 <- g1 x: 128"]
    assert plan.joint.labels["gradient 2 of x"] == ("x", "gradient")


def test_the_gradient_of_a_pooling_that_leaves_two_positions_is_of_a_library() -> None:
    plan = plan_of_calls({"x": g(4, 8, 8, 8)}, ("a", "adaptive_avg_pool2d.default", "x", (2, 1)))
    assert lines(plan)[1:] == ["extern g2 <- g1 x: 2048"]
    assert ops(plan)["g2"].into == "own"


@pytest.mark.parametrize(
    "call", [("a", "expand.default", "x", (40, 64)), ("a", "repeat.default", "x", (40, 1))]
)
def test_the_gradient_of_what_is_repeated_is_summed(call: Any) -> None:
    plan = plan_of_calls({"x": g(1, 64)}, call, ("b", "sin.default", "a"))
    assert lines(plan)[-1] == "reduction g3 <- g2: 2560 to 64 outer"


IMAGES = {"x": t(2, 96, 8, 8), "w": t(96, 96, 3, 3)}
CONV = ("a", "conv2d.default", "x", "w")
COPIES = [
    f"pointwise input <- x: {2 * 96 * 64}",
    f"pointwise weight <- w: {96 * 96 * 9}",
    f"extern a <- input weight: {2 * 96 * 36}",
]


def test_sums_over_images_whose_channels_are_last() -> None:
    mean, other = ("b", "mean.dim", "a", (2, 3), True), ("c", "mean.dim", "s", (2,))
    plan = plan_of_calls(IMAGES | {"s": t(2, 3, 50)}, CONV, mean, other, results=("b", "c"))
    assert plan.joint.channels_last
    assert lines(plan) == [*COPIES, "reduction b <- a: 6912 to 192 outer", "reduction c <- s: 300 to 6"]
    assert ops(plan)["input"].moved == {"x"}
    assert plan.joint.bytes("a input") == 4 * 2 * 96 * 64


def test_norms_of_images_whose_channels_are_last() -> None:
    """Groups of channels do not lie side by side; the last axis of a norm of rows counts as if it did."""
    groups, rows = ("b", "group_norm.default", "a", 2, "g", "g"), ("c", "layer_norm.default", "b", (6, 6))
    plan = plan_of_calls(IMAGES | {"g": t(96)}, CONV, groups, rows)
    assert lines(plan)[3:] == [
        "reduction statistics <- a: 6912 to 4 outer",
        "pointwise b <- a g statistics: 6912",
        "reduction statistics <- b: 6912 to 192",
        "pointwise c <- b statistics: 6912",
    ]


def test_gradients_of_groups_whose_channels_are_last() -> None:
    given = {"x": t(2, 96, 8, 8), "w": g(128, 96, 3, 3), "g": g(128), "h": g(128)}
    plan = plan_of_calls(given, CONV, ("b", "group_norm.default", "a", 2, "g", "h"))
    count = 2 * 128 * 36
    assert lines(plan)[5:] == [
        f"reduction g5 <- g1 a: {count} to 256 outer",
        f"reduction g6 <- g1: {count} to 256 outer",
        "pointwise g3 <- g5 g6 statistics: 128",
        "pointwise g4 <- g5 g6 statistics: 128",
        "reduction g7 <- g5 g6 g: 256 to 4",
        f"pointwise g8 <- g1 a statistics g g7: {count}",
        f"pointwise g2 <- g8 statistics g7: {count}",
        f"extern g9 <- g2 input weight: {128 * 96 * 9}",
    ]
    assert [ops(plan)[name].instructions for name in ("g5", "g8")] == [20, 26]


def test_gradients_of_a_batch_norm_whose_channels_are_last() -> None:
    given = {"x": t(2, 96, 8, 8), "w": g(128, 96, 3, 3), "v": g(128), "g": g(128), "b": g(128), "h": t(128)}
    conv = (*CONV, "v")
    norm = ("y", "batch_norm.default", "a", "g", "b", "h", "h", True, 0.1, 1e-5, True)
    plan, count = plan_of_calls(given, conv, norm), 2 * 128 * 36
    assert lines(plan)[2:] == [
        f"extern bias <- input weight: {count}",
        f"pointwise a <- bias v: {count}",
        f"reduction statistics <- a: {count} to 128 outer",
        f"pointwise y <- a g b h statistics: {count}",
        f"reduction g3 <- g1 a statistics: {count} to 128 outer",
        f"reduction g4 <- g1: {count} to 128 outer",
        f"pointwise g2 <- g1 a statistics g g3 g4: {count}",
        f"extern g5 <- g2 input weight: {128 * 96 * 9}",
        f"reduction g6 <- g2: {count} to 128 outer",
    ]
    assert not ops(plan)["a"].moved


def test_a_sequence_beside_images_lies_as_it_does() -> None:
    given = IMAGES | {"s": t(2, 8, 50), "v": t(4, 8, 3), "b": t(4)}
    plan = plan_of_calls(given, CONV, ("c", "conv1d.default", "s", "v", "b"), results=("a", "c"))
    assert lines(plan)[3:] == [f"extern bias <- s v: {2 * 4 * 48}", f"pointwise c <- bias b: {2 * 4 * 48}"]
    assert not ops(plan)["c"].moved


def test_the_bias_of_an_image_of_one_channel_turns_its_result() -> None:
    given = IMAGES | {"s": t(2, 1, 8, 8), "v": t(4, 1, 3, 3), "b": t(4)}
    plan = plan_of_calls(given, CONV, ("c", "conv2d.default", "s", "v", "b"), results=("a", "c"))
    assert lines(plan)[3:] == [f"extern bias <- s v: {2 * 4 * 36}", f"pointwise c <- bias b: {2 * 4 * 36}"]
    assert ops(plan)["c"].moved == {"c without bias"}


def test_only_the_partitioner_computes_common_subexpressions_once() -> None:
    calls = ("a", "sin.default", "x"), ("b", "sin.default", "x"), ("c", "mul.Tensor", "a", "b")
    assert lines(plan_of_calls({"x": g(8, 8)}, *calls))[:2] == [
        "pointwise a <- x: 64",
        "pointwise c <- a: 64",
    ]
    assert lines(plan_of_calls({"x": t(8, 8)}, *calls))[1:] == [
        "pointwise b <- x: 64",
        "pointwise c <- a b: 64",
    ]


def test_operators_run_just_before_the_first_that_reads_them() -> None:
    """Without gradients: the first product after the second, whose result is read sooner."""
    calls = ("a", "bmm.default", "x", "x"), ("b", "bmm.default", "u", "u"), ("c", "bmm.default", "b", "u")
    plan = plan_of_calls({"x": t(2, 8, 8), "u": t(2, 8, 8)}, *calls, ("d", "add.Tensor", "c", "a"))
    assert [kernel.last.node for kernel in plan.forward.kernels] == ["b", "c", "a", "d"]


@pytest.mark.parametrize(("reader", "joined"), [("mm.default", {"a": "c", "y": "c"}), ("mul.Tensor", {})])
def test_parts_that_are_summed_are_written_where_they_go(reader: str, joined: dict[str, str]) -> None:
    """Unless all that reads the whole is elementwise: then they are joined there."""
    given = {"x": t(64, 64), "u": t(64, 63), "w": t(64, 64)}
    total, other = ("a", "sum.dim_IntList", "x", (1,), True), ("y", "exp.default", "u")
    plan = plan_of_calls(given, total, other, ("c", "cat.default", ("a", "y"), 1), ("d", reader, "c", "w"))
    assert plan.forward.lies_in == joined


def test_places_in_a_view_of_what_is_given_are_written_in_a_copy_of_it() -> None:
    """Inductor writes no view of an input where it lies: the view is copied, and the whole is written back in the end."""
    given = {"k": t(3, 4, 32), "i": t(1, **LONG), "n": t(1, 32)}
    place = ("s", "select.int", "k", 0, 1)
    write = ("y", "index_copy_.default", "s", 0, "i", "n")
    plan = plan_of_calls(given, place, write, ("z", "neg.default", "n"))
    assert lines(plan) == [
        f"pointwise operand <- k: {4 * 32}",
        "pointwise y <- i n operand: 32",
        f"pointwise whole <- k y: {3 * 4 * 32}",
        "pointwise z <- n: 32",
        f"pointwise written <- whole: {3 * 4 * 32}",
    ]
    assert plan.joint.bytes("y") == 4 * 4 * 32
    (last,) = [kernel for kernel in plan.forward.kernels if "k written" in kernel.outputs]
    assert (last.outputs, last.reads) == (("k written",), ("k", "y"))


def test_a_projection_whose_rows_are_written_into_a_cache_runs() -> None:
    given = {"k": t(8, 32), "i": t(1, **LONG), "x": t(1, 16), "w": t(16, 32)}
    write = ("p", "mm.default", "x", "w"), ("y", "index_copy_.default", "k", 0, "i", "p")
    plan = plan_of_calls(given, *write, ("z", "neg.default", "k"))
    assert [kernel.outputs for kernel in plan.forward.kernels] == [("p",), ("y part",), ("z",)]
