"""The calls that stand for an operator or its gradients: word, shape and numbers of each, against what torch dispatches.

Tensors are of the device `meta`, which hold nothing. Calls are compared as sets, for C++ may evaluate the operands of one
in any order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphflops.execution.composed_gradients import gradient_calls
from graphflops.execution.composed_losses import expanded
from graphflops.kernels.buffers import saved_input_bytes
from graphflops.tensor import TensorType
from tests.one_call import g, program_of
from tests.support import t

# Views, and memory that nobody has written yet.
VIEWS = (
    "view reshape unsqueeze squeeze permute transpose expand t detach alias select slice narrow _unsafe_view flatten mT "
    "as_strided movedim new_empty empty_like new_empty_strided empty diagonal view_as_real _conj"
)
ALIKE = {
    **dict.fromkeys(("zeros", "zeros_like"), "new_zeros"),
    **dict.fromkeys(("linear", "matmul"), "mm"),
    "_to_copy": "to",
    "full": "scalar_tensor",
    "contiguous": "clone",
    "norm": "linalg_vector_norm",
    "batch_norm": "native_batch_norm",
    "log_sigmoid_forward": "log_sigmoid",
    "fill": "full_like",
}
# Numbers of these are others in both: shapes, axes counted from the front, infinities, quotients that the device is given.
NUMBERLESS = "new_zeros scalar_tensor linalg_vector_norm div arange sum mean repeat gather"
Seen = tuple[str, tuple[int, ...], tuple[float, ...]]


def seen(op: str, results: Any, given: Any) -> Seen | None:
    """What is compared of a call: its word, the shape of its first result, and numbers but for zero, which is a default."""
    word = op.rstrip("_")
    if word in VIEWS.split():
        return None
    word = ALIKE.get(word, word)
    numbers = (x for x in tree_leaves(given) if type(x) in (int, float) and x)
    kept = () if word in NUMBERLESS.split() else tuple(round(x, 6) for x in numbers)
    if word == "linalg_vector_norm":  # of which order; of 2 where none is given
        kept = (next((x for x in given[0][1:2] if x is not None), 2),)
    return word, tuple(results[0].shape), kept


class Dispatched(TorchDispatchMode):
    """Notes the calls that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Seen] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        results = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        if call := seen(func._schema.name.split("::")[1], results, (args, kwargs)):
            self.calls[call] += 1
        return found


def made(value: Any) -> Any:
    if isinstance(value, TensorType):
        dtype = getattr(torch, value.dtype.name)
        return torch.empty(value.shape, dtype=dtype, device="meta", requires_grad=value.requires_grad)
    return [made(item) for item in value] if isinstance(value, tuple) else value


def by_torch(op: str, given: tuple[Any, ...]) -> tuple[Counter[Seen], Counter[Seen]]:
    """Calls of the forward and of the backward."""
    name, overload = op.split(".")
    with Dispatched() as forward:
        found = getattr(getattr(torch.ops.aten, name), overload)(*map(made, given))
    results = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.requires_grad]
    gradients = [torch.empty_like(x) for x in results]
    with Dispatched() as backward:
        if results:
            torch.autograd.backward(results, gradients)
    return forward.calls, backward.calls


def ours(calls: Any, values: Any = None) -> Counter[Seen]:
    """The calls. values: of a forward, where autograd keeps copies of what they overwrite."""
    found: Counter[Seen] = Counter()
    for call in calls:
        results = [x for x in call.estimate.out if isinstance(x, TensorType)]
        if values is not None and saved_input_bytes(call, values) != 0:
            found["clone", tuple(results[0].shape), ()] += 1
        if one := seen(call.node.op.split(".")[1], results, (call.node.args, dict(call.node.kwargs))):
            found[one] += 1
    return found


def i(*shape: int) -> TensorType:
    return t(*shape, dtype="int64")


X, MASK = g(3, 4), t(3, 4, dtype="bool")
Z = g(4, 5, dtype="complex64")
BY_OTHERS: list[tuple[Any, ...]] = [
    *[("kron.default", g(2, 3), g(4)), ("kron.default", g(4), g(2, 3)), ("kron.default", g(2, 3), g(4, 5))],
    *[("kron.default", g(2), g(3)), ("kron.default", g(2, 3, 4), g(5, 6)), ("kron.default", g(2), g(3, 1, 5))],
    *[("matmul.default", g(2, 3), g(1, 3, 5)), ("matmul.default", g(2, 3), g(1, 1, 3, 5))],
    *[("inner.default", g(), g(3)), ("inner.default", g(3), g()), ("inner.default", g(2, 3), g(3))],
    *[("inner.default", g(3), g(2, 3)), ("inner.default", g(3), g(3)), ("inner.default", g(2, 5, 3), g(4, 3))],
    *[("outer.default", g(3), g(4)), ("ger.default", g(3), g(4))],
    *[("float_power.Scalar", 2.0, X), ("float_power.Tensor_Scalar", X, 2.0)],
    ("float_power.Tensor_Tensor", X, X),
    *[("msort.default", X), ("nanmean.default", X, (1,)), ("nanmean.default", X), ("nanmean.default", X, (0,), True)],
    *[("take_along_dim.default", X, i(3, 2), 1), ("take_along_dim.default", X, i(1, 2), -1)],
    *[("take_along_dim.default", X, i(2, 4), 0), ("take_along_dim.default", X, i(5, 7))],
    ("take_along_dim.default", g(1, 4), i(3, 2), 1),
    *[("repeat_interleave.self_int", X, 5, axis) for axis in (0, 1, -1, -2)],
    ("repeat_interleave.self_int", X, 5),
    *[("tile.default", X, (2,)), ("tile.default", X, (2, 3)), ("tile.default", g(2, 3, 4), (5,))],
    *[("hstack.default", (g(3), g(5))), ("hstack.default", (X, X)), ("hstack.default", (g(2, 3, 4), g(2, 5, 4)))],
    *[("vstack.default", (g(3), g(3))), ("vstack.default", (X, X)), ("vstack.default", (X, g(4)))],
    *[("cosine_similarity.default", X, X), ("cosine_similarity.default", X, X, 0), ("cosine_similarity.default", X, g(4))],
    ("cosine_similarity.default", X, X, 1, 1e-5),
    *[("norm.Scalar", X), ("norm.Scalar", X, 1), ("norm.ScalarOpt_dim", X, None, (1,))],
    *[("norm.ScalarOpt_dim", X, 3, (0,), True), ("norm.ScalarOpt_dim", X, 0, (1,))],
    *[("linalg_norm.default", g(2, 3, 4), 2, (1,)), ("linalg_norm.default", X, None, (0,))],
    *[("frobenius_norm.dim", X, (1,), True), ("linalg_norm.default", X), ("linalg_norm.default", X, 3, (0,), True)],
    *[("pairwise_distance.default", X, X), ("pairwise_distance.default", X, g(4), 1.0, 1e-4, True)],
    *[(f"{name}.default", X, t(3, 4), *rest) for name in ("l1_loss", "kl_div") for rest in ((), (0,), (2,))],
    *[("hinge_embedding_loss.default", X, t(3, 4), 0.5)],
    *[("hinge_embedding_loss.default", X, t(3, 4)), ("poisson_nll_loss.default", X, t(3, 4), True, True, 1e-8, 1)],
    *[("poisson_nll_loss.default", X, t(3, 4), log, False, 1e-3, 2) for log in (True, False)],
    *[("margin_ranking_loss.default", X, X, t(3, 4), *rest) for rest in ((), (0.5,), (0.5, 2))],
    *[("cosine_embedding_loss.default", X, X, t(3), *rest) for rest in ((), (0.5,), (0.5, 0))],
    *[("triplet_margin_loss.default", X, X, X, *rest) for rest in ((), (0.5,), (0.5, 1.0, 1e-3, True, 2))],
    *[("where.ScalarOther", MASK, X, 2.0), ("where.ScalarSelf", MASK, 2.0, X)],
    *[(f"rnn_{name}_cell.default", g(4, 5), g(4, 6), g(6, 5), g(6, 6)) for name in ("tanh", "relu")],
    # Transforms of operands that are cut, filled up, or made complex.
    *[(f"fft_{name}.default", X, *rest) for name in ("rfft", "fft") for rest in ((), (6,), (2,), (None, 0), (7, 0))],
    *[(f"fft_{name}.default", Z, *rest) for name in ("fft", "ifft", "irfft") for rest in ((), (8,), (2, 0, "ortho"))],
    *[(f"fft_{name}.default", X, *rest) for name in ("rfft2", "fft2", "fftn") for rest in ((), ((3, 8), (0, 1)))],
    *[(f"fft_{name}.default", Z, *rest) for name in ("irfft2", "ifftn") for rest in ((), ((4, 4), (0, 1), "forward"))],
]  # fmt: skip
# Products of pairs, from left to right; a label is summed with the last factor that has it.
PRODUCTS: list[tuple[Any, ...]] = [
    *[("ij,kj->ki", (2, 3), (4, 3)), ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4))],
    *[
        ("ij,j->ij", (2, 3), (3,)),
        ("ij,ij->", (2, 3), (2, 3)),
        ("ij->j", (2, 3)),
        ("ij->ji", (2, 3)),
        ("ij->", (2, 3)),
    ],
    *[("i,j->ij", (2,), (3,)), ("i,j->ji", (2,), (3,)), ("bij,bkj->bki", (1, 2, 3), (5, 4, 3))],
    *[("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("bij,bjk->bik", (5, 2, 3), (1, 3, 4))],
    *[("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 6)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5))],
    *[("ij,kl,jk->il", (2, 3), (4, 5), (3, 4))],
    *[
        ("ij,ik,il->jkl", (2, 3), (2, 4), (2, 5)),
        ("abc,cd->abd", (2, 3, 4), (4, 5)),
        ("abc,cd->dba", (2, 3, 4), (4, 5)),
    ],
    *[("ij,jk->ik", (2, 1), (1, 4)), ("ij,jk->ik", (1, 3), (3, 1)), ("ija,ijb->ab", (2, 3, 4), (2, 3, 5))],
    *[("bi,ij,bj->b", (4, 8), (8, 5), (4, 5)), ("ai,bi->ab", (4, 8), (5, 8)), ("ai,bi->ba", (4, 8), (5, 8))],
    *[("ij,jk->ik", (2, 3), (1, 4)), ("ij,jk->ik", (2, 1), (3, 4)), ("ij,ik->", (2, 3), (2, 4))],
]


def bare(calls: Counter[Seen]) -> Counter[Seen]:
    """Shapes without axes of one element, and no copies of what a view cannot merge."""
    found: Counter[Seen] = Counter()
    for (word, shape, numbers), count in calls.items():
        if word != "clone":
            found[word, tuple(size for size in shape if size != 1), numbers] += count
    return found


def name_of(call: tuple[Any, ...]) -> str:
    return f"{call[0]}{[getattr(x, 'shape', x) for x in call[1:]]}"


@pytest.mark.parametrize("call", BY_OTHERS, ids=name_of)
def test_a_function_of_aten_calls_what_torch_dispatches(call: tuple[Any, ...]) -> None:
    op, *given = call
    theirs, _ = by_torch(op, tuple(given))
    main = program_of(f"aten.{op}", *given).main
    run = expanded(main.calls, main.values)
    found = ours(run.calls, run.values)
    if op.startswith("kron") and any(word == "clone" for word, _, _ in theirs):
        found, theirs = bare(found), bare(theirs)
    assert found == theirs


def test_norms_of_matrices_are_no_norms_of_their_elements() -> None:
    """The largest singular value, the largest sum of a column."""
    for order, dim in ((2, None), (1, (0, 1))):
        main = program_of("aten.linalg_norm.default", X, order, dim).main
        assert [*expanded(main.calls, main.values).calls] == [*main.calls]


@pytest.mark.parametrize("call", PRODUCTS, ids=name_of)
def test_an_einsum_calls_what_torch_dispatches(call: tuple[Any, ...]) -> None:
    equation, *shapes = call
    given = equation, tuple(g(*shape) for shape in shapes)
    theirs, _ = by_torch("einsum.default", given)
    main = program_of("aten.einsum.default", *given).main
    assert bare(ours(expanded(main.calls, main.values).calls)) == bare(theirs)


@pytest.mark.parametrize("word", ["alpha_dropout", "feature_alpha_dropout"])
def test_a_mask_of_numbers(word: str) -> None:
    """Its scale and shift are numbers that torch computes; a draw keeps what is not dropped."""
    given = f"{word}.default", (g(2, 3, 4, 5), 0.1, True)
    theirs, _ = by_torch(*given)
    main = program_of(f"aten.{word}.default", *given[1]).main
    found = ours(expanded(main.calls, main.values).calls)
    shape = (2, 3, 4, 5) if word == "alpha_dropout" else (2, 3, 1, 1)
    assert found[("bernoulli", shape, (0.9,))] == theirs[("bernoulli", shape, (0.9,))] == 1
    assert Counter(each[:2] for each in found.elements()) == Counter(each[:2] for each in theirs.elements())
    assert found[("mul", shape, (1.0,))] == 2  # numbers are not followed
    rows = program_of(f"aten.{word}.default", g(2, 3, 5), 0.1, True).main
    one = ("bernoulli", (2, 3, 5) if word == "alpha_dropout" else (2, 3, 1), (0.9,))
    assert ours(expanded(rows.calls, rows.values).calls)[one] == 1
    idle = program_of(f"aten.{word}.default", g(2, 3), 0.1, False).main
    assert [*expanded(idle.calls, idle.values).calls] == [*idle.calls]


def test_an_instance_norm_is_a_batch_norm_of_one_image() -> None:
    running = (t(3), t(3))
    for training, expected in ((True, {"repeat": 4, "mean": 2, "copy": 2}), (False, {"repeat": 4})):
        op, given = "instance_norm.default", (g(2, 3, 4, 5), g(3), g(3), *running, training, 0.1, 1e-5, True)
        theirs, _ = by_torch(op, given)
        main = program_of(f"aten.{op}", *given).main
        found = ours(expanded(main.calls, main.values).calls)
        words: Counter[str] = Counter()
        for (word, shape, _), count in found.items():
            words[word] += count
            if word == "native_batch_norm":
                assert shape == (1, 6, 4, 5)
        del words["native_batch_norm"], words["clone"]
        assert words == expected
        assert {each[:2] for each in theirs} - {each[:2] for each in found} == set()


GRADIENTS: list[tuple[Any, ...]] = [
    *[("addr.default", t(4, 6), g(4), g(6)), ("addr.default", t(4, 6), g(4), t(6)), ("addr.default", t(4, 6), t(4), g(6))],
    *[("dist.default", X, X), ("dist.default", X, t(3, 4), 1), ("dist.default", t(3, 4), X)],
    ("renorm.default", g(4, 6, dtype="float64"), 1, 0, 3.0),
    *[("nan_to_num.default", X), ("sinc.default", X)],
    *[("atan2.default", X, X), ("atan2.default", X, t(3, 4)), ("atan2.default", t(3, 4), X)],
    *[("copysign.Tensor", X, X), ("copysign.Tensor", t(3, 4), X), ("copysign.Tensor", X, t(3, 4))],
    ("copysign.Scalar", X, 2.0),
    *[("logcumsumexp.default", X, 1), ("logcumsumexp.default", X, 0)],
    *[("index_reduce.default", g(4, 6), 0, i(3), g(3, 6), how) for how in ("mean", "amax", "amin", "prod")],
    *[("index_reduce.default", g(4, 6), 1, i(3), g(4, 3), how) for how in ("mean", "amax", "prod")],
    *[("scatter_reduce.two", g(4, 6), 1, i(4, 3), g(4, 3), how) for how in ("mean", "amin", "amax", "prod")],
    ("binary_cross_entropy_with_logits.default", X, X),
    ("binary_cross_entropy_with_logits.default", X, t(3, 4)),
    ("binary_cross_entropy_with_logits.default", t(3, 4), X),
    ("binary_cross_entropy_with_logits.default", X, t(3, 4), t(3, 4)),
    ("binary_cross_entropy_with_logits.default", X, X, None, t(4)),
    ("binary_cross_entropy_with_logits.default", X, X, t(3, 4), t(4), 2),
    *[("cdist.default", g(26, 6), g(5, 6)), ("cdist.default", g(5, 6), g(26, 6))],
    ("cdist.default", g(5, 6), g(7, 6), 2.0, 1),
    *[("_fft_r2c.default", X, (1,), 0, True), ("_fft_r2c.default", X, (0, 1), 1, False)],
    *[("_fft_c2r.default", Z, (1,), 2, 8), ("_fft_c2c.default", Z, (0,), 0, True)],
]  # fmt: skip


@pytest.mark.parametrize("call", GRADIENTS, ids=name_of)
def test_gradients_call_what_torch_dispatches(call: tuple[Any, ...]) -> None:
    op, *given = call
    _, theirs = by_torch(op, tuple(given))
    main = program_of(f"aten.{op}", *given).main
    found = gradient_calls(main.calls[0], main.values)
    assert found is not None
    if op.startswith("cdist"):  # a sum keeps its axis here or has it added by a view
        short = [Counter(word for word, _, _ in each.elements()) for each in (ours(found.calls), theirs)]
        assert short[0] == short[1]
        return
    if op.startswith("_fft"):  # the gradient of a leaf is copied to where the leaf lies
        theirs -= Counter({("copy", given[0].shape, ()): 1})
    assert ours(found.calls) == theirs


@pytest.mark.parametrize(
    ("rows", "others", "p", "mode", "is_product"),
    [
        (25, 25, 2.0, None, False),
        (26, 1, 2.0, None, True),
        (1, 26, 2.0, None, True),
        (26, 26, 2.0, 0, True),
        (26, 26, 2.0, 2, False),
        (2, 2, 2.0, 1, True),
        (26, 26, 1.0, None, False),
        (26, 26, 1.0, 1, False),
    ],
)
def test_distances_of_many_rows_are_a_product(
    rows: int, others: int, p: float, mode: int | None, is_product: bool
) -> None:
    main = program_of("aten.cdist.default", g(rows, 6), g(others, 6), p, mode).main
    found = gradient_calls(main.calls[0], main.values)
    assert found is not None
    assert any(word == "mm" for word, _, _ in ours(found.calls)) is is_product


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_gradients_of_extremes(dim: int | None) -> None:
    """Each element that equals the extreme has its share; PyTorch 2.13 divides before it multiplies, 2.11 after."""
    main = program_of("aten.aminmax.default", X, outputs=2, dim=dim).main
    found = gradient_calls(main.calls[0], main.values)
    assert found is not None
    shape = {None: (1, 1), 0: (1, 4), 1: (3, 1), -1: (3, 1)}[dim]
    both = {("eq", (3, 4), ()): 2, ("mul", (3, 4), ()): 2, ("sum", shape, ()): 2, ("div", (3, 4), ()): 2}
    assert ours(found.calls) == {**both, ("add", (3, 4), ()): 1}
