"""Calls that only an export has: masks made from sizes, what reads them, heads that are repeated for them."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops import Training
from graphflops.execution.export_only import as_run, placed, with_shared_heads
from graphflops.graph import EagerRun, Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.passes.program import Backward
from graphflops.tensor import TensorType
from tests.one_call import g, program_of
from tests.support import t

LIBRARY = "/usr/lib/site-packages/transformers/models/llama/modeling_llama.py"
BUILDS = "mask = create_causal_mask(x)"
NOTHING = "mask = create_bidirectional_mask(x)"
SDPA = "aten.scaled_dot_product_attention.default"
MADE = {"m": t(16, 16, dtype="bool"), "n": t(16, 16, dtype="bool")}


def node(name: str, op: str, *args: Any, line: str = "", **named: Any) -> Node:
    refs = tuple(Ref(each) if isinstance(each, str) and each.isalnum() else each for each in args)
    stack = f'File "{LIBRARY}", line 7, in forward\n    {line}\n' if line else ""
    kwargs = tuple((key, Ref(value) if isinstance(value, str) else value) for key, value in named.items())
    return Node(name, op, refs, kwargs, outputs=(name,), python_stack=stack)


def program(*nodes: Node, returned: str = "", **given: TensorType) -> Any:
    inputs = tuple(Input(name, "user") for name in given)
    graph = Graph(nodes, {**given}, inputs, (Output(Ref(returned or nodes[-1].name)),))
    wanted = tuple(name for name, x in given.items() if x.requires_grad)
    training = Training(grad_inputs=wanted, optimizer="none", loss="given") if wanted else None
    return price(graph, bind(graph, {}, {}), facts_of, training=training)


Q = t(2, 4, 16, 8)


def masked(line: str, *between: Node, mask: str = "m", trained: bool = False, **named: Any) -> Any:
    """An attention with a mask of truth values that a line makes, of all pairs or of those up to the diagonal."""
    ones = node("m", "aten.ones.default", (16, 16), line=line, dtype=MADE["m"].dtype)
    attention = node("y", SDPA, "q", "k", "v", mask, **named)
    x = g(*Q.shape) if trained else Q
    return program(ones, *between, attention, q=x, k=x, v=x)


TRIL = node("n", "aten.tril.default", "m", line=BUILDS)


def use(
    mask: str = "structure", queries: int = 16, keys: int = 16, masked: int = 1500, flops: int = 3200
) -> Any:
    """What is known of the attention: under a causal mask 15 of 32 pairs are hidden, of 16 queries and as many keys."""
    return Space(calls=("y",), mask=mask, queries=queries, keys=keys, masked_flops=masked, flops=flops)


def ran(priced: Any, eager: EagerRun | None = None, found: Any = None) -> Any:
    return as_run(priced.main.calls, [found or use()], priced.main.values, eager)


@pytest.mark.parametrize(
    ("found", "is_flag"),
    [
        (use(), True),
        (use("none"), True),
        (use("constant"), True),
        (use("data"), False),
        (use(masked=1499), False),
        (use(masked=0), True),
        (use(masked=0, keys=8), True),
        (use(keys=8), False),
        (use(queries=1, keys=1, masked=0), True),
        (use(queries=4, keys=4, masked=1200), True),  # 6 of 16 pairs: 3 / 8
        (use(queries=4, keys=4), False),
    ],
)
def test_masks_that_a_flag_stands_for(found: Any, is_flag: bool) -> None:
    """Nothing is hidden, or what lies above the diagonal of as many queries as keys."""
    calls, _ = ran(masked(BUILDS, TRIL, mask="n"), None, found)
    assert names(calls) == (["y"] if is_flag else ["m", "n", "y"])


def names(calls: Any) -> list[str]:
    return [call.node.name for call in calls]


@pytest.mark.parametrize(
    ("priced", "left", "causal"),
    [
        (masked(NOTHING), ["y"], False),
        (masked(BUILDS, TRIL, mask="n"), ["y"], True),
        (masked(NOTHING, node("n", "aten.view.default", "m", (1, 16, 16)), mask="n"), ["y"], False),
    ],
)
def test_masks_that_are_not_built(priced: Any, left: list[str], causal: bool) -> None:
    """What they hide is nothing, or a flag of the attention."""
    calls, values = ran(priced)
    assert names(calls) == left
    arguments = calls[-1].node.arguments()
    assert (arguments["mask"], arguments["is_causal"]) == (None, causal)
    assert calls[-1].uses == ("q", "k", "v")
    assert values is priced.main.values


@pytest.mark.parametrize(
    "priced",
    [
        masked("mask = self.mask(x)"),  # a line of another function
        masked(""),
        program(node("y", SDPA, "q", "k", "v"), q=Q, k=Q, v=Q),
    ],
)
def test_other_calls_run(priced: Any) -> None:
    calls, values = ran(priced)
    assert calls is priced.main.calls
    assert values is priced.main.values


def test_a_mask_of_data_is_built() -> None:
    """Also by a line of the library: what is padded hides something that sizes do not tell."""
    padded = node("n", "aten.mul.Tensor", "m", "p", line=BUILDS)
    ones = node("m", "aten.ones.default", (16, 16), line=BUILDS)
    priced = program(ones, padded, node("y", SDPA, "q", "k", "v", "n"), q=Q, k=Q, v=Q, p=t(16, 16))
    calls, _ = ran(priced)
    assert names(calls) == ["m", "n", "y"]
    assert calls[-1].node.arguments().get("is_causal") is not True


def test_masks_that_another_call_reads_are_built_for_it() -> None:
    other = node("z", "aten.mul.Tensor", "w", "m")
    ones = node("m", "aten.ones.default", (16, 16), line=NOTHING, dtype=MADE["m"].dtype)
    priced = program(ones, other, node("y", SDPA, "q", "k", "v", "m"), q=Q, k=Q, v=Q, w=t(16, 16))
    calls, _ = ran(priced)
    assert names(calls) == ["m", "z", "y"]
    assert calls[-1].uses == ("q", "k", "v")


def test_a_mask_of_nothing_is_not_added() -> None:
    """Attention that is spelled out: the softmax reads the scores themselves."""
    zeros = node("m", "aten.zeros.default", (16, 16), line=NOTHING)
    added = node("a", "aten.add.Tensor", "s", "m")
    priced = program(zeros, added, node("y", "aten.softmax.int", "a", -1), s=t(2, 4, 16, 16))
    calls, _ = ran(priced)
    assert names(calls) == ["y"]
    assert calls[0].uses == ("s",)
    built = program(
        node("m", "aten.zeros.default", (16, 16), line=BUILDS),
        added,
        node("y", "aten.softmax.int", "a", -1),
        s=t(2, 4, 16, 16),
    )
    assert names(ran(built)[0]) == ["m", "a", "y"]
    seen = use()
    seen.calls = ("a",)  # an attention of which pairs are hidden adds its mask
    assert names(ran(priced, found=seen)[0]) == ["m", "a", "y"]
    seen.masked_flops = 0
    assert names(ran(priced, found=seen)[0]) == ["y"]
    assert names(ran(priced, record("m a"))[0]) == ["y"]  # a run has not added it either
    assert names(ran(priced, record("m"))[0]) == ["m", "a", "y"]


def record(left_out: str, hides: str = "") -> EagerRun:
    names = tuple(left_out.split())
    return EagerRun(1, "", names, (-1,) * len(names), {"y": hides} if hides else {})


@pytest.mark.parametrize(
    ("priced", "eager", "left", "causal"),
    [
        # Without lines: a run has not made `m`, and tells what its attention hides.
        (masked(""), record("m", "none"), ["y"], False),
        (masked("", node("n", "aten.tril.default", "m"), mask="n"), record("m n", "causal"), ["y"], True),
        (
            masked("", node("n", "aten.tril.default", "m"), mask="n"),
            record("", "causal"),
            ["m", "n", "y"],
            None,
        ),
        (
            masked("", node("n", "aten.tril.default", "m"), mask="n"),
            record("m", "causal"),
            ["m", "n", "y"],
            None,
        ),
        (
            masked(BUILDS, TRIL, mask="n"),
            record("", ""),
            ["m", "n", "y"],
            None,
        ),  # a run has made what lines name
    ],
)
def test_a_record_of_a_run_tells_what_it_made(
    priced: Any, eager: EagerRun, left: list[str], causal: bool | None
) -> None:
    calls, _ = ran(priced, eager)
    assert names(calls) == left
    if causal is not None:
        assert calls[-1].node.arguments()["is_causal"] is causal
    else:
        assert calls[-1].uses[-1] in ("m", "n")


def test_an_attention_that_wants_gradients_keeps_those_of_its_operands() -> None:
    calls, _ = ran(masked(NOTHING, trained=True))
    gradient = calls[-1].gradient
    assert gradient is not None
    assert [place for place, _ in gradient.gradients] == [0, 1, 2]
    assert calls[-1].form is None


def test_places_of_gradients() -> None:
    """Of the first operands by their new places; those of others are lost."""
    (call,) = program_of("aten.addmm.default", g(6), g(4, 8), g(8, 6)).main.calls
    own = call.gradient
    assert isinstance(own, Backward)
    assert [place for place, _ in own.gradients] == [0, 1, 2]
    moved = placed(own, (3, 5))
    assert moved is not None
    assert [place for place, _ in moved.gradients] == [3, 5]
    assert moved.operands == {(3, 5)[place] for place in own.operands if place < 2}
    assert placed(None, (1, 2)) is None
    whole = placed(own, range(3))
    assert whole == own


def shared(
    *, cast: bool = False, other_line: bool = False, trained: bool = False, masked: bool = False
) -> Any:
    """Keys and values of two heads, repeated for four: an axis more, repeated, and merged, in the line of the attention."""
    nodes, last = [], {}
    line = "y = attend(q, k, v)"
    make = g if trained else t
    few = {"k": make(2, 2, 16, 8), "v": make(2, 2, 16, 6)}
    for name, x in few.items():
        width = x.shape[-1]
        nodes += [
            node(f"{name}1", "aten.unsqueeze.default", name, 2, line=line),
            node(f"{name}2", "aten.expand.default", f"{name}1", (2, 2, 2, 16, width), line=line),
            node(
                f"{name}3",
                "aten.reshape.default",
                f"{name}2",
                (2, 4, 16, width),
                line="z = k" if other_line else line,
            ),
        ]
        last[name] = f"{name}3"
        if cast:
            nodes.append(
                node(f"{name}4", "aten.to.dtype", f"{name}3", t(1, dtype="bfloat16").dtype, line=line)
            )
            last[name] = f"{name}4"
    given = {"q": make(*Q.shape, dtype="bfloat16" if cast else "float32"), **few}
    if masked:
        given["m"] = MADE["m"]
    attention = node("y", SDPA, "q", last["k"], last["v"], *(["m"] if masked else ()), line=line)
    return program(*nodes, attention, **given)


def test_heads_that_are_shared_are_not_repeated() -> None:
    """The calls that repeat them stay for other readers, but the attention reads what was there before."""
    main = shared().main
    calls, values = with_shared_heads(main.calls, ["y"], main.values)
    attention = calls[-1]
    assert attention.uses == ("q", "k", "v")
    arguments = attention.node.arguments()
    assert (arguments["key"], arguments["value"], arguments["enable_gqa"]) == (Ref("k"), Ref("v"), True)
    assert {"k3", "v3"}.isdisjoint(names(calls))
    assert values is main.values
    same, _ = with_shared_heads(main.calls, [], main.values)
    assert same is main.calls
    main = shared(masked=True).main
    calls, _ = with_shared_heads(main.calls, ["y"], main.values)
    assert calls[-1].uses == ("q", "k", "v", "m")
    assert calls[-1].node.arguments()["mask"] == Ref("m")
    main = shared(other_line=True).main
    assert with_shared_heads(main.calls, ["y"], main.values)[0] is main.calls


def test_shared_heads_are_converted_before_they_are_repeated() -> None:
    """As autocast does after: the conversion reads two heads, and its result has two."""
    main = shared(cast=True).main
    calls, values = with_shared_heads(main.calls, ["y"], main.values)
    attention, casts = calls[-1], [call for call in calls if call.node.operator.kind == "cast"]
    assert attention.uses == ("q", "k4", "v4")
    assert [call.uses for call in casts] == [("k",), ("v",)]
    assert [values[name].shape for name in ("k4", "v4")] == [(2, 2, 16, 8), (2, 2, 16, 6)]
    assert {"k3", "v3"}.isdisjoint(names(calls))


def test_gradients_of_shared_heads_are_as_large_as_they() -> None:
    main = shared(trained=True).main
    calls, _ = with_shared_heads(main.calls, ["y"], main.values)
    gradient = calls[-1].gradient
    assert gradient is not None
    sizes = {
        place: out.shape for (place, _), out in zip(gradient.gradients, gradient.estimate.out, strict=True)
    }
    assert sizes == {0: (2, 4, 16, 8), 1: (2, 2, 16, 8), 2: (2, 2, 16, 6)}
