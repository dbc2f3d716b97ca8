"""What one call allocates beside its results, and what its gradients read and need: products of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.nn import functional as F

from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.kernels import buffers
from graphflops.tensor import FLOAT32, TensorType
from tests.memory.one_call import eager
from tests.one_call import g, program_of
from tests.support import t

N = 4 * 64
TURNED = {"x0": (1, 4)}


@pytest.mark.parametrize(
    ("op", "operands", "forward", "backward", "saved"),
    [
        # tensors of PyTorch's formulas of gradients (tools/autograd/derivatives.yaml)
        ("softmax.int", (g(4, 64), -1), 0, 4 * N, ["y0"]),
        ("cumsum.default", (g(4, 64), 1), 0, 2 * 4 * N, []),
        # the difference from the mean; a mean and a factor for each of four rows
        ("var.dim", (g(4, 64), (1,)), 0, 4 * N + 2 * 4 * 4, ["x0"]),
        # also twice the deviation, the quotient, where that is zero, in a byte
        ("std.dim", (g(4, 64), (1,)), 0, 4 * N + 4 * 4 * 4 + 4, ["x0"]),
        # the largest of each row, and differences from it, of which the exponentials are taken in place
        ("logsumexp.default", (g(4, 64), (1,)), 4 * 4 + 4 * N, 2 * 4 * N, ["x0", "y0"]),
        # a mask, what it leaves of the gradient, and how often it does in each of four rows
        ("amax.default", (g(4, 64), (1,)), 0, 4 * N + N + 4 * 4, ["x0", "y0"]),
        ("amin.default", (g(4, 64, dtype="bfloat16"), (1,)), 0, 2 * N + N + 2 * 4, ["x0", "y0"]),
        ("div.Tensor", (g(4, 64), g(4, 64)), 0, 3 * 4 * N, ["x0", "x1"]),
        ("mul.Tensor", (g(4, 64), g(64)), 0, 4 * N, ["x0", "x1"]),
        ("mul.Tensor", (g(4, 64), t(64)), 0, 0, ["x1"]),
        ("pow.Tensor_Scalar", (g(4, 64), 3), 0, 2 * 4 * N, ["x0"]),
        ("sigmoid.default", (g(4, 64),), 0, 0, ["y0"]),
        ("silu.default", (g(4, 64),), 0, 0, ["x0"]),
        ("add.Tensor", (g(4, 64), g(4, 64)), 0, 0, []),
        # one axis after another
        ("roll.default", (g(4, 64), (1, 2), (0, 1)), 4 * N, 4 * N, []),
        ("roll.default", (g(4, 64), (1,), (0,)), 0, 0, []),
        # positions of maxima, of 8 bytes
        ("max_pool2d.default", (t(2, 3, 8, 8), (2, 2), (2, 2)), 8 * 96, 0, []),
        # operands that autograd keeps for their shapes
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (2, 2)), 0, 0, ["x0"]),
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (1, 1)), 0, 0, []),
        # both factors, though one gradient alone is wanted; a bias is not needed
        ("conv2d.default", (t(2, 3, 8, 8), g(4, 3, 3, 3), t(4)), 0, 0, ["x0", "x1"]),
        ("constant_pad_nd.default", (g(4, 64), (1, 1)), 0, 0, []),
        ("gather.default", (g(4, 64), 0, t(2, 64, dtype="int64")), 0, 0, ["x2", "x0"]),
        # a softmax in another element type converts its operand, but for float16
        ("softmax.int", (g(4, 64, dtype="float16"), -1, FLOAT32), 0, 4 * N, ["y0"]),
    ],
)  # fmt: skip
def test_buffers_of_calls(op: str, operands: Any, forward: int, backward: int, saved: list[str]) -> None:
    execution, call = eager(f"aten.{op}", *operands)
    assert execution.forward_bytes(call, 0) == forward
    assert execution.backward_bytes(call) == backward
    assert execution.saved_values(call) == saved


@pytest.mark.parametrize(
    ("op", "operands", "strides", "copied"),
    [
        ("softmax.int", (g(4, 64), -1), (1, 4), 4 * N),
        ("layer_norm.default", (g(4, 64), (64,), g(64), g(64)), (1, 4), 4 * N),
        ("group_norm.default", (t(2, 8, 4, 4), 4, t(8), t(8)), (128, 1, 32, 8), 4 * 256),
        ("relu.default", (g(4, 64),), (1, 4), 0),
        ("batch_norm.default", (g(2, 8, 4, 4), g(8), g(8), t(8), t(8), True, 0.1, 1e-5, True), (128, 1, 32, 8), 0),
    ],
)  # fmt: skip
def test_operands_that_are_not_in_order_are_copied(op: str, operands: Any, strides: Any, copied: int) -> None:
    execution, call = eager(f"aten.{op}", *operands, lies={"x0": strides})
    assert execution.forward_bytes(call, 0) == copied
    assert execution.made_first(call) == ([], [copied] if copied else [])


def test_a_group_norm_keeps_the_copy_of_its_operand() -> None:
    moments, copy = 2 * 2 * 4 * 4, 4 * 2 * 8 * 4 * 4
    operands = (g(2, 8, 4, 4), 4, g(8), g(8))
    execution, call = eager("aten.group_norm.default", *operands, lies={"x0": (128, 1, 32, 8)})
    assert execution.saved_bytes(call) == moments + copy
    assert execution.saved_values(call) == ["x2"]
    assert execution.made_first(call) == ([copy], [])
    execution, call = eager("aten.group_norm.default", *operands)
    assert execution.saved_bytes(call) == moments
    assert execution.saved_values(call) == ["x0", "x2"]


def test_a_layer_norm_copies_its_operand_again_for_its_gradient() -> None:
    execution, call = eager("aten.layer_norm.default", g(4, 64), (64,), g(64), g(64), lies=TURNED)
    assert execution.backward_bytes(call) == 4 * N
    assert execution.saved_values(call) == ["x0", "x2"]


@pytest.mark.parametrize(
    ("op", "shapes", "lies", "copies"),
    [
        ("linear", ((8, 4, 64), (32, 64)), {"x0": (64, 512, 1)}, {"x0": 4 * 8 * 4 * 64}),
        ("linear", ((8, 4, 64), (32, 64)), {"x0": (4 * 80, 80, 1)}, {}),  # rows are evenly apart
        ("linear", ((32, 64), (32, 64)), {"x0": (1, 32)}, {}),
        ("matmul", ((2, 8, 4, 64), (2, 8, 64, 6)), {"x0": (2048, 64, 512, 1)}, {"x0": 4 * 16 * 4 * 64}),
        ("matmul", ((2, 8, 4, 64), (2, 8, 64, 6)), {"x1": (3072, 64, 512, 1)}, {"x1": 4 * 16 * 64 * 6}),
        ("matmul", ((2, 8, 4, 64), (64, 6)), {}, {}),
        ("matmul", ((2, 8, 4, 64), (64, 6)), {"x0": (2048, 64, 512, 1)}, {"x0": 4 * 16 * 4 * 64}),
    ],
)  # fmt: skip
def test_products_copy_what_they_cannot_merge(
    op: str, shapes: Any, lies: Any, copies: dict[str, int]
) -> None:
    a, b = shapes
    execution, call = eager(f"aten.{op}.default", g(*a), g(*b), lies=lies)
    size = sum(copies.values())
    assert execution.saved_copies(call) == copies
    assert (execution.forward_bytes(call, 0), execution.forward_bytes(call, size)) == (size, 0)
    assert execution.saved_bytes(call) == size
    assert execution.saved_values(call) == [name for name in ("x0", "x1") if name not in copies]
    assert execution.made_first(call) == ([*copies.values()], [])
    inference, call = eager(f"aten.{op}.default", t(*a), t(*b), lies=lies)
    assert inference.made_first(call) == ([], [*copies.values()])


@pytest.mark.parametrize(
    ("a", "b", "copies"),
    [
        ((2, 8, 4, 64), (1, 8, 64, 6), [2 * 8 * 64 * 6]),  # repeated for two images
        ((1, 8, 4, 64), (2, 8, 64, 6), [2 * 8 * 4 * 64]),
        ((8, 4, 64), (1, 64, 6), []),  # a repeated batch alone is a view
        ((8, 4, 64), (2, 8, 64, 6), [2 * 8 * 4 * 64]),
        ((2, 1, 4, 64), (1, 8, 64, 6), [16 * 4 * 64, 16 * 64 * 6]),
    ],
)
def test_products_of_batches_that_differ_copy_what_they_repeat(
    a: tuple[int, ...], b: tuple[int, ...], copies: list[int]
) -> None:
    run = Runs((), HOPPER, is_eager=True).of(program_of("aten.matmul.default", g(*a), g(*b)).main)
    made = [name for call in run.calls for name in call.node.outputs if name in run.layouts.copies]
    assert [run.layouts.typed(name).numel for name in made] == copies
    assert [call.node.op for call in run.calls if call.node.operator.kind == "product"] == ["aten.bmm"]


def test_biases_add_up_rows_by_many_blocks() -> None:
    """Each block leaves a partial result of float32 for each of 32 columns."""
    execution, call = eager("aten.linear.default", g(4096, 64), g(32, 64), g(32))
    ((partial, semaphores),) = execution.gradient_kernels(call, False).buffers
    assert partial % (4 * 32) == 0
    assert semaphores == 4
    assert execution.backward_bytes(call) == partial + semaphores
    few, call = eager("aten.linear.default", g(8, 64), g(32, 64), g(32))
    assert few.backward_bytes(call) == 0
    frozen, call = eager("aten.linear.default", g(4096, 64), g(32, 64), t(32))
    assert frozen.backward_bytes(call) == 0


def test_gradients_that_repeat_one_number_are_written_out_for_products() -> None:
    execution, call = eager("aten.linear.default", g(8, 64), g(32, 64))
    assert execution.gradient_kernels(call, True)[:2] == ((), ((4 * 8 * 32,), (4 * 8 * 32,)))
    execution, call = eager("aten.relu.default", g(4, 64))
    assert execution.gradient_kernels(call, True)[:2] == ((), ((0,),))


# Against PyTorch: what `saved_tensors_hooks` see of a call besides its operands and its result.
@pytest.mark.parametrize(
    ("call", "op", "given"),
    [
        (lambda x, _: F.silu(x, inplace=True), "silu_.default", ()),
        (lambda x, _: F.hardtanh_(x), "hardtanh_.default", ()),
        (lambda x, _: F.leaky_relu_(x), "leaky_relu_.default", ()),
        (lambda x, _: F.elu_(x), "elu_.default", ()),
        (lambda x, _: torch.celu_(x), "celu_.default", ()),
        (lambda x, _: x.relu_(), "relu_.default", ()),
        (lambda x, _: x.exp_(), "exp_.default", ()),
        (lambda x, _: x.abs_(), "abs_.default", ()),
        (lambda x, _: x.pow_(2), "pow_.Scalar", (2,)),
        (lambda x, _: x.div_(2), "div_.Tensor", (2,)),
        (lambda x, y: x.div_(y), "div_.Tensor", (g(4, 64),)),
        (lambda x, y: x.div_(y.detach()), "div_.Tensor", (t(4, 64),)),
        (lambda x, y: x.mul_(y), "mul_.Tensor", (g(4, 64),)),
        (lambda x, y: x.add_(y), "add_.Tensor", (g(4, 64),)),
    ],
)
def test_an_operand_that_is_overwritten_is_kept_where_its_gradient_reads_it(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], op: str, given: tuple[Any, ...]
) -> None:
    held: list[torch.Tensor] = []
    x, y = (torch.rand(4, 64, requires_grad=True) + 1 for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: held.append(tensor) or tensor, lambda z: z):
        call(x, y)
    known = {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()}
    kept = {z.untyped_storage().data_ptr(): 4 * z.numel() for z in held}
    execution, priced = eager(f"aten.{op}", g(4, 64), *given)
    assert execution.saved_bytes(priced) == sum(size for place, size in kept.items() if place not in known)


@pytest.mark.parametrize(
    ("op", "operands", "without", "with_saved"),
    [
        ("roll.default", (g(4, 64), (1, 2), (0, 1)), 4 * N, 4 * N),
        (
            "max_pool2d.default",
            (g(1, 1, 8, 8), (2, 2)),
            8 * 16,
            0,
        ),  # positions of eight bytes, which are saved
    ],
)
def test_what_is_saved_of_a_pooling_is_what_its_kernel_makes(
    op: str, operands: Any, without: int, with_saved: int
) -> None:
    execution, call = eager(f"aten.{op}", *operands)
    assert [execution.forward_bytes(call, saved) for saved in (0, 8 * 16)] == [without, with_saved]


def weights(gates: int, inputs: int, hidden: int, layers: int, dtype: str) -> tuple[TensorType, ...]:
    """Two matrices and two biases of each layer, or direction."""
    found: list[TensorType] = []
    for place in range(layers):
        width = inputs if place == 0 else hidden
        matrices = (gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)
        found += [g(*shape, dtype=dtype) for shape in matrices]
    return tuple(found)


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_reserve_and_the_workspace_of_an_lstm(layers: int, is_trained: bool) -> None:
    """A layer reserves five tensors of all steps; layers read those before them. Each has 8 MiB.

    Products are five such tensors, and the operand; weights that stay on chip take four for each gate more.
    """
    unit = 4 * (5 * 4 * 8)
    given = weights(4, 16, 8, layers, "float32")
    states = (t(layers, 4, 8), t(layers, 4, 8))
    more: Any = (True, layers, 0.0, is_trained, False, False)
    execution, call = eager("aten.lstm.input", g(5, 4, 16), states, given, *more, outputs=3)
    reserve = unit * (layers * 5 + layers - 1) if is_trained else 0
    assert execution.saved_bytes(call) == reserve
    workspace = unit * (5 + 4 * 4) + 4 * (5 * 4 * 16)
    workspace += sum(x.nbytes for x in given) + layers * 2**23
    assert execution.forward_bytes(call, reserve) == workspace
    assert execution.forward_bytes(call, 0) == workspace + reserve
    assert execution.backward_bytes(call) == workspace
    frozen = replace(call, gradient=None, form=None)
    assert execution.saved_bytes(frozen) == 0


def test_a_gru_in_half_precision_keeps_a_copy_of_its_weights() -> None:
    """Two directions, the batch first: the operand transposed, and six times, and its gradient though it is not wanted."""
    unit = 2 * (4 * 5 * 8)
    one = weights(3, 16, 8, 1, "bfloat16")
    given = one + one
    more: Any = (True, 1, 0.0, True, True, True)
    x = t(4, 5, 16, dtype="bfloat16")
    execution, call = eager("aten.gru.input", x, t(2, 4, 8, dtype="bfloat16"), given, *more, outputs=2)
    copied = sum(weight.nbytes for weight in given)
    assert execution.saved_bytes(call) == unit * 2 * 6 + copied
    workspace = unit * 2 * 3 + x.nbytes * (6 + 1) + copied + 2 * 2**23
    assert execution.forward_bytes(call, 1) == workspace
    assert execution.backward_bytes(call) == workspace + x.nbytes


SDPA = "aten.scaled_dot_product_attention.default"
Q, S, ROWS = 2 * 4 * 256 * 64, 2 * 4 * 256 * 256, 2 * 4 * 256


def test_fused_attention_adds_up_gradients_in_float32() -> None:
    """The query's, and a number for each row; keys and values that heads share get gradients for each query head."""
    query, key = g(2, 4, 256, 64, dtype="bfloat16"), g(2, 2, 256, 64, dtype="bfloat16")
    execution, call = eager(SDPA, query, key, key, enable_gqa=True)
    assert execution.forward_bytes(call, 0) == 0
    assert execution.saved_bytes(call) == 4 * ROWS
    own = 4 * ROWS * (64 + 1)
    assert execution.backward_bytes(call) == own + 2 * 2 * Q
    assert execution.gradient_kernels(call, False)[:2] == ((), ([2 * Q, 2 * Q, own],))
    assert execution.saved_values(call) == ["x0", "x1", "x2", "y0"]
    whole, call = eager(SDPA, query, query, query)
    assert whole.backward_bytes(call) == own


@pytest.mark.parametrize(("dtype", "width", "keys"), [("bfloat16", 2, 250), ("float32", 4, 256)])
def test_masks_become_numbers_with_aligned_rows(dtype: str, width: int, keys: int) -> None:
    query, key = g(2, 4, 256, 64, dtype=dtype), g(2, 4, keys, 64, dtype=dtype)
    execution, call = eager(SDPA, query, key, key, t(256, keys, dtype="bool"))
    copy = 256 * keys * width
    assert execution.forward_bytes(call, 0) == copy
    assert execution.saved_bytes(call) == copy + 4 * ROWS
    assert execution.made_first(call) == ([copy], [])
    query, key = t(2, 4, 256, 64, dtype=dtype), t(2, 4, keys, 64, dtype=dtype)
    untrained, plain = eager(SDPA, query, key, key, t(256, keys, dtype="bool"))
    assert untrained.made_first(plain) == ([], [copy])
    assert execution.saved_values(call) == ["x0", "x1", "x2", "y0"]


def test_a_call_without_a_gradient_makes_no_tensors_of_one() -> None:
    execution, call = eager("aten.sin.default", t(4, 64))
    assert buffers.gradient_buffers(call, execution.layouts) == ((), ((),))
    assert buffers.backward_bytes(call, execution.layouts) == 0
    assert buffers.saved_input_bytes(call, execution.values) == 0
    assert buffers.kept_operands(call, execution.values) == []


def test_one_gradient_is_computed_by_itself() -> None:
    execution, call = eager("aten.div.Tensor", g(4, 64), t(4, 64))
    first, parts = buffers.gradient_buffers(call, execution.layouts)
    assert ([*first], [[*each] for each in parts]) == ([], [[]])
    execution, call = eager("aten.div.Tensor", g(4, 64), g(4, 64))
    _, (of_divisor, of_dividend) = buffers.gradient_buffers(call, execution.layouts)  # the last operand first
    assert ([*of_divisor], [*of_dividend]) == ([4 * N] * 3, [0])
