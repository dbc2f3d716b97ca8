"""The plan of a program of several calls, each as `("y", "relu.default", "x")`: its result, operator and operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops import Training
from graphflops.devices import HOPPER
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.inductor.lowering import Reduction
from graphflops.inductor.plan import Plan, Plans
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.inductor.one_call import _short as short, kept_of, kind_of

if TYPE_CHECKING:
    from graphflops.inductor.plan import CompiledGraph
    from graphflops.passes.program import PricedProgram
    from graphflops.tensor import TensorType

Call = tuple[Any, ...]


def program_of_calls(
    given: dict[str, TensorType],
    *calls: Call,
    results: tuple[str, ...] = (),
    parameters: str = "",
    **more: Any,
) -> PricedProgram:
    """A training step where an operand wants a gradient. results: those of the program, if not that of the last call."""
    names = {*given, *(name for call in calls for name in call[0].split())}

    def referred(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(referred, value))
        return Ref(value) if isinstance(value, str) and value in names else value

    nodes = tuple(
        Node(
            made.split()[0],
            op if op.startswith("_c10d") else f"aten.{op}",
            referred(tuple(operands)),
            outputs=tuple(made.split()),
        )
        for made, op, *operands in calls
    )
    outputs = results or (str(nodes[-1].outputs[0]),)
    inputs = tuple(Input(name, "parameter" if name in parameters.split() else "user", name) for name in given)
    graph = Graph(nodes, given, inputs, tuple(Output(Ref(name)) for name in outputs), **more)
    wanted = tuple(name for name, value in given.items() if value.requires_grad)
    training = Training(grad_inputs=wanted, optimizer="none") if wanted else None
    return price(graph, bind(graph, {}, {}), facts_of, training=training)


def plan_of_calls(given: dict[str, TensorType], *calls: Call, **more: Any) -> Plan:
    program = program_of_calls(given, *calls, **more)
    return Plans(program, HOPPER).plan(program.main, training=program.training is not None)


def lines(plan: Plan, kernels: CompiledGraph | None = None) -> list[str]:
    """Each operator as its results, what it reads, its elements, and for a reduction those that are left.

    kernels: of these, not of the joint graph.
    """
    ops = [op for kernel in kernels.kernels for op in kernel.members] if kernels else plan.joint.ops
    return [
        f"{kind_of(op)} {' '.join(map(short, op.outputs))} <- {' '.join(map(short, op.reads))}: {op.elements}"
        + f" to {kept_of(op)}" * bool(kept_of(op))
        + " outer" * (isinstance(op, Reduction) and not op.is_inner)
        for op in ops
    ]


def ops(plan: Plan) -> dict[str, Any]:
    return {short(op.outputs[0]): op for op in plan.joint.ops}
