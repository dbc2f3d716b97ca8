"""What the calls of small programs launch, and what the CPU does for each: sums of costs that a reader can work out."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops import Training
from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.ops import operator
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.exchanges import Launches
from graphflops.time.launches import Launcher
from graphflops.time.schedule import phase_seconds, recorded_seconds
from tests.one_call import g, program_of
from tests.support import t

COSTS = {
    "forward.start": 1000.0,
    "backward.start": 2000.0,
    "forward.call": 100.0,
    "forward.further_kernel": 7.0,
    "forward.without_kernel": 3.0,
    "forward.skipped": 2.0,
    "forward.recording": 50.0,
    "forward.inside": 11.0,
    "forward.module": 0.25,
    "forward.module.timm": 0.5,
    "forward.plain_collective": 13.0,
    "recorded.subclass": 17.0,
    "recorded.hook": 19.0,
    "backward.call": 200.0,
    "backward.further_kernel": 23.0,
    "backward.without_kernel": 5.0,
    "backward.inside": 29.0,
    "backward.parameter": 0.125,
}


def node(name: str, op: str, *args: Any, stack: str = "", **named: Any) -> Node:
    refs = tuple(Ref(each) if isinstance(each, str) else each for each in args)
    return Node(name, f"aten.{op}", refs, tuple(named.items()), outputs=(name,), module_stack=stack)


def program(
    *nodes: Node,
    given: dict[str, Any],
    parameters: tuple[str, ...] = (),
    loss: Any = "given",
    outputs: Any = (),
) -> Any:
    roles = {name: "parameter" if name in parameters else "user" for name in given}
    inputs = tuple(Input(name, role, target=name) for name, role in roles.items())  # type: ignore[arg-type]
    results = tuple(Output(Ref(name)) for name in outputs or (nodes[-1].name,))
    graph = Graph(nodes, given, inputs, results)
    wanted = tuple(name for name, x in given.items() if x.requires_grad and name not in parameters)
    is_trained = any(x.requires_grad for x in given.values())
    training = Training(grad_inputs=wanted, optimizer="none", loss=loss) if is_trained else None
    return price(graph, bind(graph, {}, {}), facts_of, training=training)


def launcher(priced: Any, **more: float) -> Launcher:
    return Launcher(priced, {}, Runs((), HOPPER, is_eager=True), {**COSTS, **more})


def hosts(launches: list[Launches]) -> list[float]:
    return [launch.host_seconds for launch in launches]


X, W = t(4, 8), t(8, 8)


def test_calls_in_order_with_their_rows() -> None:
    found = launcher(
        program(node("a", "relu.default", "x"), node("b", "view.default", "a", (32,)), given={"x": X})
    ).forward(records=False)
    assert hosts(found) == [1000, 100, 3]
    assert [(each.row, each.times, len(each.kernels or ())) for each in found] == [
        (-1, 1, 0),
        (0, 1, 1),
        (1, 1, 0),
    ]
    assert not any(each.waits for each in found)


def test_modules_are_entered_once() -> None:
    """The first call enters two, the next is in the same ones; a call without a stack leaves them as they are."""
    outer, inner = "a,mine.A", "a,mine.A;b,timm.B"
    calls = [
        node("y0", "relu.default", "x", stack=inner),
        node("y1", "relu.default", "y0", stack=inner),
        node("y2", "relu.default", "y1"),
        node("y3", "relu.default", "y2", stack=inner),
        node("y4", "relu.default", "y3", stack=outer),
        node("y5", "relu.default", "y4", stack="a,mine.A;c,timm.C"),
        node("y6", "relu.default", "y5", stack="z,other.Z"),
    ]
    found = launcher(program(*calls, given={"x": X})).forward(records=False)
    assert hosts(found)[1:] == [100 + 0.25 + 0.5, 100, 100, 100, 100, 100 + 0.5, 100 + 0.25]


def test_calls_that_have_a_gradient_are_recorded() -> None:
    calls = node("a", "relu.default", "x"), node("b", "relu.default", "z"), node("c", "add.Tensor", "a", "b")
    one = launcher(program(*calls, given={"x": g(4, 8), "z": X}))
    assert hosts(one.forward(records=True))[1:] == [150, 100, 150]
    assert hosts(one.forward(records=False))[1:] == [100, 100, 100]


def test_what_a_gradient_reads_is_copied_before_it_is_overwritten() -> None:
    """A hardswish needs its operand, a ReLU its result."""
    for op, kinds in (("hardswish_", ["copy", "elementwise"]), ("relu_", ["elementwise"])):
        calls = node("a", "mul.Tensor", "x", "x"), node("b", f"{op}.default", "a")
        one = launcher(program(*calls, given={"x": g(4, 8)}))
        assert [kernel.family for kernel in one.forward(records=True)[2].kernels or ()] == kinds
        assert [kernel.family for kernel in one.forward(records=False)[2].kernels or ()] == ["elementwise"]


def test_calls_without_a_rule_are_unknown() -> None:
    calls = node("a", "relu.default", "x"), Node("b", "mine.op.default", (Ref("a"),), (), outputs=("b",))
    _, first, second = launcher(program(*calls, given={"x": X})).forward(records=False)
    assert (second.row, second.kernels, second.host_seconds) == (1, None, 0)
    assert first.kernels


def test_arithmetic_of_numbers_is_pythons() -> None:
    calls = (
        Node("n", "aten.sym_size.int", (Ref("x"), 0), (), outputs=("n",)),
        node("a", "relu.default", "x"),
    )
    found = launcher(program(*calls, given={"x": X})).forward(records=False)
    assert hosts(found)[1:] == [0, 100]


def test_a_composite_has_its_cost_once() -> None:
    """Of three calls, the last of which gives the result: one kernel each, and the rest of the cost with the last."""
    priced = program(node("y", "l1_loss.default", "x", "z"), given={"x": X, "z": X})
    found = launcher(priced, **{"forward.l1_loss": 500.0}).forward(records=False)
    assert hosts(found)[1:] == [7, 7, 7 + 500 - 7]
    without = launcher(priced).forward(records=False)
    assert hosts(without)[1:] == [11, 11, 100]
    entering = program(node("y", "l1_loss.default", "x", "z", stack="a,timm.A"), given={"x": X, "z": X})
    assert sum(hosts(launcher(entering).forward(records=False))[1:]) == 11 + 11 + 100 + 0.5
    backward = program(node("y", "l1_loss.default", "x", "z"), given={"x": g(4, 8), "z": X})
    own = launcher(backward, **{"backward.l1_loss": 700.0}).backward()
    kernels = [len(each.kernels or ()) for each in own[1:]]
    assert hosts(own)[1:] == [23 * kernels[0] + 700 - 23, 23 * kernels[1], 23 * kernels[2]]
    plain = launcher(backward).backward()
    assert hosts(plain)[1:] == [200 + 23 * (count - 1) if count else 5 for count in kernels]


def test_gradients_go_back_from_the_last_call() -> None:
    """Of a parameter each gradient is noted; a value that two calls read has two, which are added."""
    calls = (
        node("a", "linear.default", "x", "w"),
        node("b", "relu.default", "a"),
        node("c", "mul.Tensor", "a", "b"),
    )
    given = {"x": g(4, 8), "w": g(8, 8)}
    start, third, second, first = launcher(program(*calls, given=given, parameters=("w",))).backward()
    assert (start.row, start.host_seconds, start.kernels) == (-1, 2000, ())
    assert [each.row for each in (third, second, first)] == [2, 1, 0]
    assert third.kernels is not None
    assert second.kernels is not None
    assert first.kernels is not None
    assert len(third.kernels) == 2  # a product for each factor
    assert [kernel.family for kernel in second.kernels] == ["elementwise", "elementwise"]
    size = 4 * 4 * 8
    added = second.kernels[-1]
    assert (added.read_bytes, added.written_bytes, added.vector_flops) == (2 * size, size, 4 * 8)
    assert [kernel.family for kernel in first.kernels] == ["matmul", "matmul"]
    assert hosts([third, second, first]) == [200 + 23, 200 + 23, 200 + 23 + 0.125]


def test_gradients_of_results_are_given_once_more() -> None:
    """A result that another call reads as well has the gradient that is given, and that of the call."""
    calls = node("a", "relu.default", "x"), node("b", "exp.default", "a")
    priced = program(*calls, given={"x": g(4, 8)}, outputs=("a", "b"))
    _, second, _ = launcher(priced).backward()
    assert [kernel.read_bytes for kernel in second.kernels or ()] == [2 * 128, 2 * 128]
    alone = program(*calls, given={"x": g(4, 8)}, outputs=("b",))
    _, second, _ = launcher(alone).backward()
    assert len(second.kernels or ()) == 1


def test_other_sizes_are_lowered_anew() -> None:
    priced = program(node("a", "relu.default", "x"), given={"x": t("n", 8)})
    one = Launcher(priced, {"n": 4}, Runs((), HOPPER, is_eager=True), COSTS)
    first = one.forward(records=False)[-1]
    assert [kernel.read_bytes for kernel in first.kernels or ()] == [4 * 4 * 8]
    one.at({"n": 10})
    second = one.forward(records=False)[-1]
    assert [kernel.read_bytes for kernel in second.kernels or ()] == [4 * 10 * 8]
    one.at({})
    assert one.forward(records=False)[-1].kernels is None  # an open size


def test_equal_calls_are_lowered_once() -> None:
    calls = node("a", "relu.default", "x"), node("b", "relu.default", "a"), node("c", "exp.default", "b")
    inside = node("d", "relu.default", "c", stack="L0,part,mine.M")  # which is entered first
    _, first, second, third, fourth = launcher(program(*calls, inside, given={"x": X})).forward(records=False)
    assert first.kernels is second.kernels is fourth.kernels
    assert first.kernels is not third.kernels


@pytest.mark.parametrize(
    ("op", "width", "dtype", "kernel"),
    [
        ("scaled_dot_product_attention", 64, "bfloat16", "cudnn"),  # comes first since cuDNN 9.15
        ("scaled_dot_product_attention", 64, "float32", "efficient"),
        ("scaled_dot_product_attention", 64, "float64", "math"),
        ("_scaled_dot_product_flash_attention", 64, "bfloat16", "flash"),
        ("_scaled_dot_product_efficient_attention", 64, "bfloat16", "efficient"),
        ("_scaled_dot_product_cudnn_attention", 64, "bfloat16", "cudnn"),
        ("relu", 64, "bfloat16", None),
        ("matmul", 64, "bfloat16", None),
    ],
)
def test_the_kernel_of_an_attention(op: str, width: int, dtype: str, kernel: str | None) -> None:
    """That which its operator names, or which is chosen; none of other calls."""
    x = t(2, 4, width, width, dtype=dtype)
    more: tuple[Any, ...] = {"relu": (x,), "matmul": (x, x)}.get(op, (x, x, x))
    if "efficient" in op or "cudnn" in op:
        more = (*more, None, False)
    priced = program_of(f"aten.{op}.default", *more, outputs=1)
    one = launcher(priced)
    layouts = one.runs.of(priced.main).layouts
    found = one._attention_kernel(priced.main.calls[0], layouts)
    assert found == kernel
    recorded: Any = Space(program=Space(graph=Space(step=object())), records=False)
    chosen = kernel and {"float32": "efficient", "float64": "math"}.get(dtype, "cudnn")  # whatever its name
    assert Launcher._attention_kernel(recorded, priced.main.calls[0], layouts) == chosen


def test_waits_of_calls_that_read_a_number() -> None:
    calls = node("a", "relu.default", "x"), node("n", "item.default", "a")
    _, first, second = launcher(program(*calls, given={"x": t()})).forward(records=False)
    assert (first.waits, second.waits) == (False, True)


@pytest.mark.parametrize(
    ("shape", "accumulates", "expected"), [((3,), (), True), ((), (), False), ((), (True,), True)]
)
def test_a_number_is_written_where_a_mask_tells_without_a_wait(
    shape: tuple[int, ...], accumulates: tuple[bool, ...], expected: bool
) -> None:
    """One that is added is looked up, as several are."""
    call = node("y", "index_put.default", "x", (Ref("m"),), "v", *accumulates)
    given = {"x": t(8), "m": t(8, dtype="bool"), "v": t(*shape)}
    graph = program(call, given=given)
    site = launcher(graph)
    ((_, one),) = site._sites(graph.main, graph.main.calls)
    assert site._called(one).waits is expected


class Group:
    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks


@pytest.mark.parametrize(
    ("ranks", "stride"), [((0, 1), 1), ((0, 4, 8), 4), ((8, 2), 6), ((3,), 1), (None, 1), ((5, 5), 1)]
)
def test_how_far_apart_the_ranks_of_a_collective_are(ranks: Any, stride: int) -> None:
    groups = {} if ranks is None else {"7": Group(*ranks)}
    call: Any = Space(node=Space(group="7"))
    one: Any = Space(program=Space(graph=Space(step=Space(mesh=Space(groups=groups)))))
    kernels = (Kernel("copy", "float32"), Kernel("collective", "float32", sizes=Exchange(100, 4)))
    first, last = Launcher._placed(one, call, kernels)
    assert (first, last.sizes) == (kernels[0], Exchange(100, 4, stride))
    assert Launcher._placed(one, call, kernels[:1]) == kernels[:1]
    for step in (None, Space(mesh=None)):
        one = Space(program=Space(graph=Space(step=step)))
        assert Launcher._placed(one, call, kernels) == kernels
    other = (Kernel("copy", "float32"),)
    assert Launcher._placed(one, call, other) == other


def test_calls_of_a_recorded_step() -> None:
    """They are below what Python calls: of one kind they cost the same in all phases."""
    costs = {
        "recorded.call": 100.0,
        "recorded.product": 60.0,
        "recorded.further_kernel": 7.0,
        "recorded.without_kernel": 3.0,
        "recorded.detach": 1.0,
        "recorded.foreach": 40.0,
        "recorded.sharding": 1000.0,
        "recorded.sharding.tensor": 20.0,
        "forward.collective": 500.0,
        "forward.further_kernel": 9.0,
        "optimizer.tensor": 0.5,
    }
    one = Kernel("elementwise", "float32", 0, 0, 4, 4)
    sizes: dict[str, tuple[int, int, float]] = {  # kernels and tensors of a call
        "aten.mm.default": (1, 2, 60),
        "aten.relu.default": (1, 1, 100),
        "aten.native_layer_norm.default": (3, 3, 100 + 2 * 7),
        "aten.t.default": (0, 1, 3),
        "aten.detach.default": (0, 1, 1),
        "aten._foreach_add_.List": (2, 12, 40 + 12 * 0.5),
        "fsdp.chunk_cat.default": (1, 4, 1000 + 4 * 20),
        "c10d._allgather_base_.default": (2, 2, 500 + 9),
    }
    for name, (kernels, tensors, seconds) in sizes.items():
        assert recorded_seconds(costs, operator(name), (one,) * kernels, tensors) == seconds, name


def test_phases_of_a_recorded_step() -> None:
    costs = {"recorded.backward.start": 200.0, "recorded.backward.parameter": 5.0}
    assert phase_seconds(costs, "backward", 3) == 200 + 3 * 5
    assert phase_seconds(costs, "forward", 3) == 0  # the start of the program holds it


def test_what_python_dispatches_around_a_recorded_call() -> None:
    one: Any = Space(costs=COSTS)
    step: Any = Space(wrapped=(9, 2), hooked=(9, 3))
    assert Launcher._dispatched(one, step, 1) == 2 * 17 + 3 * 19
    assert Launcher._dispatched(one, Space(wrapped=(), hooked=()), 1) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "product"},
        {"kind": "attention", "parameters": ()},
        {"kind": "attention", "is_onnx": True},
        {"kind": "attention", "has_score_function": True},
    ],
)
@pytest.mark.parametrize("step", [None, object()])
def test_calls_that_choose_no_kernel_of_attention(facts: dict[str, Any], step: Any) -> None:
    """Only an attention of PyTorch's own, which `ops/` lists, and whose scores no function changes."""
    usual = {"word": "attend", "parameters": ("q", "k", "v"), "is_onnx": False, "has_score_function": False}
    one: Any = Space(program=Space(graph=Space(step=step)))
    call: Any = Space(node=Space(operator=Space(**usual | facts)))
    assert Launcher._attention_kernel(one, call, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["", "_backward"])
def test_an_attention_may_name_its_kernel(phase: str) -> None:
    one: Any = Space(program=Space(graph=Space(step=None)))
    for word, kernel in (("flash", "flash"), ("efficient", "efficient"), ("cudnn", "cudnn")):
        operator = Space(word=f"_scaled_dot_product_{word}_attention{phase}")
        assert Launcher._attention_kernel(one, Space(node=Space(operator=operator)), None) == kernel  # type: ignore[arg-type]
