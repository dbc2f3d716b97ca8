"""What torch.compile makes of one call: the operators of its joint graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.devices import HOPPER
from graphflops.inductor.plan import Plan, Plans
from tests.one_call import program_of

if TYPE_CHECKING:
    from graphflops.inductor.lowering import Op

Made = tuple[
    Any, ...
]  # kind, bytes of the results, elements, elements that a reduction keeps, what it reads, marks


def plan_of(op: str, *args: Any, **more: Any) -> Plan:
    """The plan of a program of one call."""
    program = program_of(op, *args, **more)
    return Plans(program, HOPPER).plan(program.main, training=program.training is not None)


def made(plan: Plan) -> list[Made]:
    """What each operator of forward and backward is and makes.

    Tensors that it reads are named by their value, gradients `g1` by their number. marks: in what an operator is unlike a
    pointwise one whose result may be computed again.
    """
    return [
        (
            op.kind,
            *map(plan.joint.bytes, op.outputs),
            op.elements,
            op.kept,
            " ".join(_short(name) for name in op.reads),
            _marks(op),
        )
        for op in plan.joint.ops
    ]


def _short(name: str) -> str:
    words = name.split()
    return f"g{words[1]}" if words[0] == "gradient" else words[-1]


def _marks(op: Op) -> str:
    marks = {
        "outer": not op.is_inner,
        "unordered": not op.in_order,
        "stored": not op.recomputable,
        "allocated": op.allocates,
        "alone": op.is_alone,
        "adds": op.role == "adding",
        "moments": op.role == "moments",
        "padded": op.is_padded,
        "random": op.role == "random",
        f"window {op.window}": op.window > 1,
    }
    return ", ".join(word for word, holds in marks.items() if holds)
