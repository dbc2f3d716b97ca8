"""Kernels that inductor writes, from what a plan says of them: loads, bytes and slow instructions, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.kernels.call import Sizes
from graphflops.time.compiled import Written, _reads_again
from tests.one_call import g, program_of
from tests.support import t


def op(node: str = "y", reads: str = "", outputs: str = "o", elements: int = 100, **more: Any) -> Any:
    fields = {"parts": {}, "computes": (), "part_bytes": 0, "kind": "pointwise", "kept": 0, "is_inner": True}
    fields["of_moments"] = False
    facts = {"is_gradient": False, "is_random": False, "adds": False, "moved": (), "outer": frozenset()}
    own = {
        "node": node,
        "reads": tuple(reads.split()),
        "outputs": tuple(outputs.split()),
        "elements": elements,
    }
    return Space(**{**fields, **facts, **own, **more})


BYTES = {"a": 400, "b": 800, "o": 400, "p": 200, "z": 400}


def written(
    calls: Any = (),
    inputs: dict[str, Any] | None = None,
    layouts: Any = None,
    values: Any = None,
    channels_last: bool = False,
) -> Written:
    """Of a plan whose buffers have these bytes."""
    forms = Space(of=lambda call: None)
    execution = Space(calls=calls, forms=forms, layouts=layouts, values=values)
    joint = Space(
        sizes=BYTES,
        inputs=inputs or {},
        number=lambda size: size,
        bytes=lambda name: BYTES.get(name, 0),
        turned={"z"},
    )
    plan = Space(execution=execution, joint=joint, channels_last=channels_last)
    return Written(plan, Sizes({}))  # type: ignore[arg-type]


def planned(*members: Any, reads: str = "", outputs: str = "o") -> Any:
    return Space(members=list(members), reads=tuple(reads.split()), outputs=tuple(outputs.split()))


@pytest.mark.parametrize(
    ("kernel", "loads", "read"),
    [
        (planned(op(reads="a b"), reads="a b"), 2, 400 + 800),
        (planned(op(reads="a"), op(reads="a b"), reads="a b"), 2, 400 + 800),  # each buffer once
        (planned(op(reads="a c"), reads="a"), 1, 400),  # what the kernel makes itself is not read
        (planned(op(reads="a", parts={"a": {"first": 100}}), reads="a"), 1, 100),
        (planned(op(reads="a", parts={"a": {"first": 100, "second": 200}}), reads="a"), 2, 300),
        (
            planned(op(reads="a", parts={"a": {"first": 300, "second": 200}}), reads="a"),
            2,
            400,
        ),  # no more than all
        (
            planned(op(reads="a", parts={"a": {"p": 100}}), op(reads="a", parts={"a": {"q": 50}}), reads="a"),
            2,
            150,
        ),
        (
            planned(op(reads="a", parts={"a": {"p": 100}}), op(reads="a"), reads="a"),
            2,
            400,
        ),  # all, and a part again
        (planned(op(), reads=""), 0, 0),
        # a tensor of less than a byte for each element takes three quarters of a load
        (planned(op(reads="a", elements=401), reads="a"), 0.75, 400),
        (planned(op(reads="a b", elements=401), reads="a b"), 1.75, 400 + 800),
    ],
)
def test_loads_and_bytes(kernel: Any, loads: float, read: int) -> None:
    assert written()._reads(kernel, {}) == (loads, read)


def test_what_a_kernel_computes_again() -> None:
    """All that its members compute, each once, and what that computes in turn."""
    again = {name: op(reads=reads, outputs=name) for name, reads in (("u", ""), ("v", "u"), ("w", "u v"))}
    members = op(computes=("w",)), op(computes=("v", "x"), reads="x")
    inside, shares = written()._inside(planned(*members), again)
    assert {name: share for name, (_, share) in inside.items()} == {"u": 1, "v": 1, "w": 1}
    assert shares == {"x": 1}
    assert written()._inside(planned(op()), again) == ({}, {})


def test_what_is_joined_is_computed_for_a_share_of_the_elements() -> None:
    """A quarter of the elements are those of `p`, computed from `a`; a half those of `h`, which is stored."""
    (call,) = program_of("aten.cat.default", (t(2, 8), t(4, 8)), 0).main.calls
    join = op(call.node.name, reads="a h", outputs="b", computes=("p",))
    sizes = {"h": 400}
    inside, shares = written([call], inputs=sizes)._inside(planned(join), {"p": op(reads="a", outputs="p")})
    assert (inside["p"][1], shares) == (1 / 4, {"a": 1 / 4, "h": 1 / 2})
    assert written([call], inputs=sizes)._reads(planned(join, reads="a h"), shares) == (3 / 4, 800)


def test_inputs_of_a_graph_have_bytes_of_their_own() -> None:
    one = written(inputs={"a": 16, "b": 0})
    assert [one._bytes(name) for name in ("a", "b", "o", "missing")] == [16, 800, 400, 0]


def test_a_loop_stores_what_is_read_elsewhere() -> None:
    """An element takes the time of 1.5 loads beside those of its operands."""
    found = written().kernel(
        planned(op(reads="a"), op(reads="b", outputs="p", elements=50), reads="a b", outputs="o p"), {}
    )
    assert found is not None
    assert (found.family, found.variant, found.vector_flops) == ("elementwise", "fused", 100 * (1.5 + 2))
    assert (found.read_bytes, found.written_bytes) == (1200, 600)
    part = written().kernel(planned(op(reads="a", part_bytes=40), reads="a"), {})
    assert part is not None
    assert part.written_bytes == 40  # a part of a buffer


def test_channels_of_an_image_are_loaded_once_for_all_of_it() -> None:
    (call,) = program_of(
        "aten.batch_norm.default", t(2, 4, 8, 8), t(4), t(4), t(4), t(4), False, 0.1, 1e-5, True
    ).main.calls
    kernel = planned(op(call.node.name, reads="a", elements=401), reads="a")
    assert written([call])._reads(kernel, {}) == (0, 400)
    assert written([call], channels_last=True)._reads(kernel, {}) == (0.75, 400)


@pytest.mark.parametrize(
    ("kept", "outputs", "parts", "is_again"),
    [
        (100, "o", {}, False),
        (1, "o", {}, False),  # a thousand elements stay where they are
        (1, "c", {}, False),  # only what is reduced is stored
        (10, "o", {"a": {"row": 1}}, True),  # rows that lie scattered
        (20, "o", {"a": {"row": 1}}, False),  # but for short ones
    ],
)
def test_long_and_scattered_rows_are_read_again(kept: int, outputs: str, parts: Any, is_again: bool) -> None:
    sum_of_rows = op(reads="a", elements=1000, kept=kept, moved=("a",), parts=parts)
    joint: Any = Space(bytes={"o": 1000, "c": 4}.get)
    assert _reads_again([sum_of_rows], planned(outputs=outputs), 1000, joint) is is_again
    assert _reads_again([op(kept=1)], planned(outputs="o"), 1025, Space(bytes=lambda name: 2050)) is True  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "more", "depends"),
    [("sum.dim_IntList", (1,), False), ("amax.default", ((1,),), False), ("softmax.int", (1,), True)],
)
def test_steps_of_plain_sums_and_maxima_wait_for_nothing(name: str, more: Any, depends: bool) -> None:
    (call,) = program_of(f"aten.{name}", t(4, 8), *more).main.calls
    assert written([call])._depends([op(call.node.name, kept=4)]) is depends
    assert written([call])._depends([op(call.node.name, kept=4, is_gradient=True)]) is True


def test_tensors_that_lie_across_take_longer() -> None:
    """Three loads for each element, and eight where rows are reduced."""
    for reads, outer, loads in (("a", "a", 3), ("a", "", 0), ("z", "", 3), ("z", "z", 0)):
        member = op(reads=reads, outer=frozenset(outer.split()))
        found = written().kernel(planned(member, reads=reads), {})
        assert found is not None
        assert found.vector_flops == 100 * (1.5 + 1 + loads)
    rows = op(reads="a", outer=frozenset("a"), kept=1)
    found = written().kernel(planned(rows, reads="a"), {})
    assert found is not None
    assert found.vector_flops == 100 * (4 + 0.75 + 8)
    small = written().kernel(planned(op(reads="a", outer=frozenset("a"), elements=500), reads="a"), {})
    assert small is not None
    assert small.vector_flops == 500 * (1.5 + 0.75)  # 400 bytes are not a large tensor


def test_rows_are_reduced_along_the_axis_that_all_share() -> None:
    inner, outer = (op(reads="a", kept=1, is_inner=each) for each in (True, False))
    for members, variant, work in (
        ((inner,), "fused", 100 * (4 + 0.75)),
        ((outer,), "fused.outer", 100 * 1.5),
        ((op(reads="a", kept=1, is_inner=False, of_moments=True),), "fused.outer", 100 * (1.5 + 2.25)),
        ((inner, outer), "fused.outer", 100 * 1.5),
        ((op(reads="a"), inner), "fused", 100 * (4 + 0.75)),
    ):
        found = written().kernel(planned(*members, reads="a"), {})
        assert found is not None
        assert (found.family, found.variant, found.vector_flops) == ("reduction", variant, work)


def test_random_numbers_take_ten_loads() -> None:
    (call,) = program_of("aten.relu.default", t(4, 8)).main.calls
    drawn = op(node=call.node.name, reads="a", is_random=True)
    found = written([call]).kernel(planned(drawn, reads="a"), {})
    assert found is not None
    assert found.vector_flops == 100 * (1.5 + 1) + 10 * 100
    again = op(node=call.node.name, outputs="r", is_random=True)
    found = written([call]).kernel(planned(op("other", reads="a", computes=("r",)), reads="a"), {"r": again})
    assert found is not None
    assert (
        found.vector_flops == 100 * (1.5 + 1) + 10 * 100
    )  # for each element of the kernel that computes it again


def test_sizes_that_are_open_leave_no_kernel() -> None:
    assert written(inputs={"a": symbol("n")}).kernel(planned(op(reads="a"), reads="a"), {}) is None


def slow(name: str, *given: Any, **more: Any) -> float:
    """Loads that an operator's slow instructions take for each element."""
    main = program_of(f"aten.{name}", *given).main
    (call,) = main.calls
    layouts = Space(values=main.values, known={})
    fields = {"outputs": "y0", **more}
    return written([call], layouts=layouts, values=main.values)._slow(op(call.node.name, **fields))


def test_slow_instructions_by_call() -> None:
    assert slow("exp.default", t(4, 8)) == 2.25
    assert slow("exp.default", t(4, 8), outputs="other") == 0  # a value on the way to it
    assert slow("exp.default", t(4, 8), kind="reduction") == 0
    assert slow("erf.default", g(4, 8), is_gradient=True) == 1.75
    assert (
        slow("embedding.default", g(10, 8), t(4, dtype="int64"), is_gradient=True, adds=True, reads="g")
        == 2800
    )
    assert slow("embedding.default", g(10, 8), t(4, dtype="int64"), is_gradient=True) == 0
    assert written()._slow(op("missing")) == 0


@pytest.mark.parametrize(
    ("channels", "elements", "loads"),
    [
        (3, 2 * 3 * 64, 20),  # few channels are written far apart
        (7, 2 * 7 * 64, 20),
        (8, 2 * 8 * 64, 0),
        (1, 2 * 64, 0),
        (2, 2 * 2 * 64, 20),
        (3, 7, 0),  # another tensor than the image
    ],
)
def test_images_whose_channels_become_innermost(channels: int, elements: int, loads: int) -> None:
    given = t(2, channels, 8, 8), t(16, channels, 3, 3)
    assert slow("conv2d.default", *given, elements=elements, moved=(1,)) == loads
