"""Modules of torch.nn that run as one operator: which do, and the bytes that they make, of calls that a test names."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.execution.fast_path import _ATTENTION, LAYER, _Module, _module, with_fast_paths
from graphflops.tensor import TensorType
from tests.support import t

SEQUENCE = t(2, 16, 8)
X = 4 * 2 * 16 * 8  # bytes of the sequence
SCORES = t(2, 4, 16, 16)
S = 4 * 2 * 4 * 16 * 16  # bytes of the scores
STACK = f"L0,,mine.A;L1,attention,{_ATTENTION}"


def call(
    made: str, name: str, kind: str, uses: str, values: dict[str, Any], *args: Any, module: str = ""
) -> Any:
    op = Space(name=name, kind=kind)
    node = Space(operator=op, outputs=tuple(made.split()), module_stack=STACK, args=args, module=module)
    tensors = [name for name in uses.split() if isinstance(values.get(name), TensorType)]
    return Space(node=node, uses=tuple(uses.split()), tensors=lambda _: tensors)


def module(kind: str = _ATTENTION, *, first: str = "transpose", drops: bool = False, masked: bool = False,
           weights: bool = True, sequences: int = 1, rank: int = 3, dtype: str = "float32", hidden: int = 0,
           norm_first: bool = False, spelled: bool = True, width: int = 8) -> _Module:  # fmt: skip
    """An attention that is spelled out, or is one call, and the linear layers behind it."""
    x = t(*(3, 2, 16, 8)[-rank:], dtype=dtype)
    values: dict[str, Any] = {"x": x, "z": x, "w": t(8, 8), "m": t(16, 16), "a": x, "s": SCORES, "p": SCORES,
                              "v": SCORES, "q": t(2, 4, 16, width), "k": t(2, 4, 24, width), "mean": t(2, 16, 16),
                              "y": SEQUENCE, "h": t(2, 16, hidden or 1), "i": t(4, dtype="int64")}  # fmt: skip
    calls = [call("a", first, "view", "x w", values)]
    if norm_first:
        calls = [call("a", "layer_norm", "normalisation", "x w", values)] + [
            call("a", first, "view", "x w", values)
        ]
    if sequences > 1:
        calls.append(call("a", "matmul", "product", "x z", values))
    if masked:
        calls.append(call("a", "add", "elementwise", "a m", values))
    if spelled:
        calls.append(call("s", "softmax", "softmax", "a", values))
        calls.append(call("v", "view", "view", "s", values))
        if weights:
            calls.append(call("mean", "mean", "reduction", "v", values))
    else:
        calls.append(call("y", "scaled_dot_product_attention", "attention", "q k v", values))
    if drops:
        calls.append(call("y", "dropout", "dropout", "y", values, Space(), 0.1, True))
    if hidden:
        calls.append(call("h", "linear", "product", "a w", values, module="layer.linear1"))
    calls.append(call("y", "linear", "product", "a w", values, module="layer.linear2"))
    return _Module(kind, calls, values, {"w", "q", "k"} if spelled else {"w", "q", "k", "v"})


@pytest.mark.parametrize(
    ("one", "is_fast"),
    [
        (module(), True),
        (module(first="permute"), True),
        (module(first="view"), False),  # the batch is second already
        (module(drops=True), False),
        (module(masked=True), True),
        (module(sequences=2), False),  # attends to another sequence
        (module(rank=2), False),
        (module(rank=4), False),
        (module(dtype="int64"), False),
    ],
)
def test_which_modules_have_a_fast_path(one: _Module, is_fast: bool) -> None:
    assert one.is_fast is is_fast


def test_a_module_without_an_attention_or_scores_has_none() -> None:
    one = module()
    bare = replace(one, calls=[each for each in one.calls if each.node.operator.kind != "softmax"])
    assert bare.score_bytes is None
    assert not bare.is_fast
    for each in one.calls:
        each.node.module_stack = "L0,,mine.A"
    assert not one.is_fast


def test_bytes_of_scores() -> None:
    """As the softmax has them, or of an attention that is one call its queries by its keys."""
    assert module().score_bytes == S
    assert module(spelled=False).score_bytes == 4 * 2 * 4 * 16 * 24


def test_operands_are_what_comes_from_outside() -> None:
    assert module().operands == ["x"]
    assert module(masked=True).operands == ["x", "m"]
    assert module(sequences=2).operands == ["x", "z"]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        # Query, key and value, what attends to them, and the projection; scores where they are spelled out.
        (module(spelled=False), 5 * X),
        # Heads whose width is no multiple of 8 are copied, then multiplied.
        (module(spelled=False, width=100), max(6 * X, 3 * X + 2 * 4 * 8 * 16 * 24)),
        (module(), 5 * X + S),
        (module(weights=False), 5 * X + S),
        (module(masked=True), max(5 * X + S, 3 * X + 2 * S)),
        (module(masked=True, spelled=False), max(5 * X + 4 * 8 * 16 * 24, 3 * X + 2 * 4 * 8 * 16 * 24)),
    ],
)
def test_bytes_of_an_attention(one: _Module, expected: int) -> None:
    assert one.attention_bytes(X) == expected
    assert one.peak(X) == expected


@pytest.mark.parametrize(
    ("hidden", "norm_first", "expected"),
    [
        (8, False, 5 * X + S),
        (1000, False, 2 * X + 4 * 2 * 16 * 1000),
        (1000, True, 3 * X + 4 * 2 * 16 * 1000),
        (0, True, 6 * X + S),
    ],
)
def test_bytes_of_a_layer(hidden: int, norm_first: bool, expected: int) -> None:
    """The attention, or what is between its linear layers; with the norm first the sequence once more."""
    assert module(LAYER, hidden=hidden, norm_first=norm_first).peak(X) == expected


def test_the_mean_of_probabilities_is_returned_beside_a_result() -> None:
    assert module().returned_weights == ["mean"]
    assert module(weights=False).returned_weights == ()
    assert module(LAYER).returned_weights == ()


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        (f"a,{LAYER};b,{_ATTENTION}", (LAYER, f"a,{LAYER}")),
        (f"a,mine.A;b,{_ATTENTION}", (_ATTENTION, f"b,{_ATTENTION}")),
        ("a,mine.A", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_outermost_module_of_a_call(stack: str, found: tuple[str, str]) -> None:
    assert _module(stack, (LAYER, _ATTENTION)) == found
    assert _module(stack, ()) == ("", "")


def test_a_module_whose_results_nobody_reads_stays_as_it_is() -> None:
    """Its one call would have none."""
    one = module()
    kept = with_fast_paths(one.calls, one.values, {"w", "q", "k"}, (), (_ATTENTION,))
    assert [*kept] == [*one.calls]
