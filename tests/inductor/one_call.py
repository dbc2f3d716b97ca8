"""What torch.compile makes of one call: the operators of its joint graph."""

from __future__ import annotations

from typing import Any

from graphflops.devices import HOPPER
from graphflops.inductor.lowering import Extern, Loop, Op, Reduction
from graphflops.inductor.plan import Plan, Plans
from tests.one_call import program_of

Made = tuple[
    Any, ...
]  # kind, bytes of the results, elements, elements that a reduction keeps, what it reads, marks


CLASSES: dict[str, type[Op]] = {"pointwise": Loop, "reduction": Reduction, "extern": Extern}


def op(kind: str, out: str, *reads: str, elements: int = 100, **more: Any) -> Any:
    """An operator of this kind; its call has the name of its result."""
    return CLASSES[kind]((out,), reads, elements, 0, out, **more)


def kind_of(op: Op) -> str:
    return next(kind for kind, each in CLASSES.items() if type(op) is each)


def kept_of(op: Op) -> int:
    """Elements that a reduction leaves, 0 for others."""
    return op.kept if isinstance(op, Reduction) else 0


def each(plan: Plan, field: str) -> list[Any]:
    """A field of all operators in order; False for those that have no such field."""
    return [getattr(op, field, False) for op in plan.joint.ops]


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
            kind_of(op),
            *map(plan.joint.bytes, op.outputs),
            op.elements,
            kept_of(op),
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
        "outer": isinstance(op, Reduction) and not op.is_inner,
        "unordered": isinstance(op, Reduction) and not op.in_order,
        "stored": not op.recomputable,
        "allocated": isinstance(op, Extern) and op.into == "own",
        "alone": isinstance(op, Loop) and op.is_alone,
        "adds": op.role == "adding",
        "moments": op.role == "moments",
        "padded": isinstance(op, Extern) and op.is_padded,
        "random": op.role == "random",
    }
    if isinstance(op, Loop):
        marks[f"window {op.window}"] = op.window > 1
    return ", ".join(word for word, holds in marks.items() if holds)
