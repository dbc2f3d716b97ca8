"""Kernels that inductor writes, from what a plan says of them: loads, bytes and slow instructions, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.inductor.fusing import Kernel
from graphflops.inductor.lowering import Loop, Reduction
from graphflops.kernels.call import Sizes
from graphflops.kernels.kernel import Rows
from graphflops.time.written import Written
from tests.one_call import g, program_of
from tests.support import t


def op(node: str = "y", reads: str = "", outputs: str = "o", elements: int = 100, **more: Any) -> Any:
    kind = Reduction if "kept" in more else Loop
    return kind(tuple(outputs.split()), tuple(reads.split()), elements, 0, node, **more)


BYTES = {"a": 400, "b": 800, "o": 400, "p": 200, "z": 400}


def written(
    calls: Any = (),
    inputs: dict[str, Any] | None = None,
    layouts: Any = None,
    values: Any = None,
    *,
    channels_last: bool = False,
) -> Written:
    """Of a plan whose buffers have these bytes."""
    forms = Space(of=lambda call: None)
    execution = Space(calls=calls, forms=forms, layouts=layouts, values=values)
    plan = Space(
        execution=execution, joint=Space(sizes=BYTES, inputs=inputs or {}, channels_last=channels_last)
    )
    return Written(plan, Sizes({}))  # type: ignore[arg-type]


def planned(*members: Any, reads: str = "", outputs: str = "o") -> Any:
    return Kernel(members, tuple(outputs.split()), (), tuple(reads.split()))


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
    *found, is_flat = written()._reads(kernel)
    assert found == [loads, read]
    whole = all(not member.parts and member.elements <= 400 for member in kernel.members)
    assert is_flat == whole


def test_what_a_kernel_computes_again() -> None:
    """All that its members compute, each once, and what that computes in turn."""
    u = op(outputs="u")
    v = op(reads="u", outputs="v", computes=(u,))
    w = op(reads="u v x", outputs="w", computes=(u, v))
    inside = written()._inside(planned(op(computes=(w,)), op(computes=(v,), reads="x")))
    assert sorted(each.outputs[0] for each in inside) == ["u", "v", "w"]
    assert written()._inside(planned(op())) == []


def test_inputs_of_a_graph_have_bytes_of_their_own() -> None:
    one = written(inputs={"a": 16, "b": 0})
    assert [one._bytes(name) for name in ("a", "b", "o", "missing")] == [16, 800, 400, 0]


def test_a_loop_stores_what_is_read_elsewhere() -> None:
    """An element takes a quarter of a load's time beside those of its operands."""
    found = written().kernel(
        planned(op(reads="a"), op(reads="b", outputs="p", elements=50), reads="a b", outputs="o p")
    )
    assert found is not None
    assert (found.family, found.variant, found.vector_flops) == ("elementwise", "fused", 100 * (0.25 + 2))
    assert (found.read_bytes, found.written_bytes) == (1200, 600)
    part = written().kernel(planned(op(reads="a", part_bytes=40), reads="a"))
    assert part is not None
    assert part.written_bytes == 40  # a part of a buffer


def test_rows_are_reduced_along_the_axis_that_all_share() -> None:
    """A block keeps a row of 100 elements in 128 places."""
    inner, outer = (op(reads="a", kept=1, is_inner=each) for each in (True, False))
    for members, variant, work in (
        ((inner,), "fused", 128),
        ((outer,), "fused.outer", int(100 * 2.2)),
        ((inner, outer), "fused.outer", int(100 * 2.2)),
        ((op(reads="a"), inner), "fused", 128),
    ):
        found = written().kernel(planned(*members, reads="a"))
        assert found is not None
        assert (found.family, found.variant, found.vector_flops) == ("reduction", variant, work)
        assert found.sizes == Rows(1, 100, variant == "fused")
    for member, variant, work in (  # means and variances; what the steps before leave
        (op(reads="a", kept=1, is_inner=False, role="moments"), "fused.outer", int(100 * (2.2 + 2.2))),
        (op(reads="a", kept=1, role="parts"), "fused.parts", 128),
    ):
        found = written().kernel(planned(member, reads="a"))
        assert found is not None
        assert (found.variant, found.vector_flops) == (variant, work)


def test_what_is_added_to_is_written() -> None:
    """Each element of the sum; a part that is read for what is computed inside is not."""
    known = op(role="adding", outputs="o", parts={"z": {"o": 100}, "a": {"p": 300}})
    assert written()._added(known) == 100
    assert written()._added(op(role="adding", elements=25, parts={"a": {"p": 300}})) == 4 * 25


def test_sizes_that_are_open_leave_no_kernel() -> None:
    assert written(inputs={"a": symbol("n")}).kernel(planned(op(reads="a"), reads="a")) is None


def slow(name: str, *given: Any, **more: Any) -> float:
    """Loads that an operator's slow instructions take for each element."""
    main = program_of(f"aten.{name}", *given).main
    (call,) = main.calls
    layouts = Space(values=main.values, known={})
    fields = {"outputs": "y0", **more}
    return written([call], layouts=layouts, values=main.values)._slow(op(call.node.name, **fields))


def test_slow_instructions_by_call() -> None:
    assert slow("exp.default", t(4, 8)) == 0.1
    assert slow("exp.default", t(4, 8), outputs="other") == 0  # a value on the way to it
    assert slow("exp.default", t(4, 8), kept=4) == 0
    assert slow("erf.default", g(4, 8), is_gradient=True) == 0.1
    assert (
        slow("embedding.default", g(10, 8), t(4, dtype="int64"), is_gradient=True, role="adding", reads="g")
        == 1400
    )
    assert slow("embedding.default", g(10, 8), t(4, dtype="int64"), is_gradient=True) == 0
    assert written()._slow(op("missing")) == 0


@pytest.mark.parametrize(
    ("name", "given", "channels_last", "loads"),
    [
        ("exp.default", (t(4, 8),), False, 0.1),
        ("sin.default", (t(4, 8),), False, 4.75),
        ("cat.default", ((t(2, 8), t(2, 8)),), False, 2 * 0.5),  # of each part
        ("max_pool2d.default", (t(1, 4, 8, 8), (2, 2)), False, 4 * 2.5),
        ("max_pool2d.default", (t(1, 4, 8, 8), (2, 2)), True, 4 * 1.2),
    ],
)
def test_slow_instructions_by_kernel(name: str, given: Any, channels_last: bool, loads: float) -> None:
    main = program_of(f"aten.{name}", *given).main
    layouts = Space(values=main.values, known={})
    of = written(main.calls, layouts=layouts, values=main.values, channels_last=channels_last)
    role = "join" if name == "cat.default" else ""
    assert of._slow(op(main.calls[0].node.name, outputs="y0", role=role)) == loads
