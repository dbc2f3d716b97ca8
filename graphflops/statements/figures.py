"""FLOPs of one run or training step of a program under named conventions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from graphflops.attention.attention_use import AttentionUse, causal_fraction
from graphflops.derived.items import items
from graphflops.derived.per_item import model_flops, per_item, value_of
from graphflops.errors import ModelError
from graphflops.graph import Graph
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import TensorType

_PRODUCTS = 3  # of a linear layer in training: the forward's, and one for each factor's gradient
_OPERANDS = 3  # of an attention without a mask that is passed as a tensor


class Flops(msgspec.Struct, frozen=True):
    """FLOPs by convention.

    model: each visible pair of an attention once, a gradient at most twice its forward. executed: what kernels multiply,
    recomputation and tiles of masked attention included. six_nd: 6 for each parameter that a token uses and each token, 4
    for a frozen one, 2 without training. six_nd_attention: the same and all pairs of attention.
    """

    model: float
    executed: float
    six_nd: float
    six_nd_attention: float


class Figures(msgspec.Struct, frozen=True):
    """FLOPs of one run, or of a micro-step of training, which takes in so many items, in sequences of one length or none.

    model: each visible pair of an attention once, no recomputation; executed: what kernels multiply; both by element type.
    simple: 6N, or 2N without training; attention: of all pairs, three times in training. vector: elementwise, in none of
    these. update: matrix work of one update of the optimizer. used: parameters that an item uses. vocabulary: rows of the
    first table that is looked up, None without one.
    """

    items: int
    length: int | None
    model: Mapping[str, int]
    executed: Mapping[str, int]
    simple: int
    attention: int
    vector: int
    update: int
    used: int
    vocabulary: int | None


def figures(report: Report, axis: str) -> Figures:
    """The figures of a report whose items are the entries of an input axis. Raises ModelError where a size has no value.

    N are the parameters that an item uses: all, embeddings too, but for experts that it is not routed to. A frozen parameter
    has 4 instead of 6: no gradient of its own.
    """
    if any(row.phase == "backward" for row in report.rows):
        raise ModelError("the program holds its gradients already: give the one exported without them")
    per, is_trained = per_item(report, axis), report.training is not None
    executed: Counter[str] = Counter()
    uses = {name: use for use in report.attentions for name in use.calls}
    for row in report.rows:
        costs = [cost for cost in (row.cost, row.backward) if cost is not None and cost.matrix_flops != 0]
        if costs:
            part = _computed_part(report, row, uses.get(row.node))
            flops = [round(value_of(report, cost.matrix_flops) * part) for cost in costs]
            executed[row.matrix_dtype] += sum(flops)
    used = report.parameters - per.parameters + per.active_parameters
    passes = [totals.cost.vector_flops for totals in (report.totals, report.backward) if totals]
    attention = sum(value_of(report, use.flops) for use in report.attentions)
    return Figures(
        items=per.items,
        length=per.length,
        model=model_flops(report, visible=True),
        executed=executed,
        simple=per.items * (4 * used + 2 * min(used, _trained(report)) if is_trained else 2 * used),
        attention=attention * (_PRODUCTS if is_trained else 1),
        vector=sum(value_of(report, flops) for flops in passes),
        update=value_of(report, report.optimizer.cost.matrix_flops) if report.optimizer else 0,
        used=used,
        vocabulary=_vocabulary(report),
    )


def token_axis(program: Graph | Report) -> str:
    """The axis along which tokens stand: the second of the first integers in rows and columns that a caller passes in.

    Raises ModelError where there are none, or where a report says that they look up nothing.
    """
    if isinstance(program, Report):
        entered: list[tuple[str, object]] = [*program.inputs] if "tokens" in items(program) else []
    else:
        entered = [
            (entry.name, program.types.get(entry.name)) for entry in program.inputs if entry.role == "user"
        ]
    for name, typed in entered:
        if isinstance(typed, TensorType) and typed.rank > 1 and typed.dtype.kind in ("int", "uint"):
            return f"{name}[1]"
    raise ModelError("the program looks up no tokens: say what is counted, such as --per x[0] for images")


def _computed_part(report: Report, row: Row, use: AttentionUse | None) -> float:
    """The part of the pairs in tiles that a fused kernel multiplies, where it knows the mask; 1 elsewhere."""
    if use is None or not use.is_fused or use.mask != "structure":
        return 1.0
    # A mask that is passed as a tensor hides nothing.
    if len(row.inputs) > _OPERANDS and use.partial_blocks is None:
        return 1.0
    if use.pattern == "causal":
        return causal_fraction(value_of(report, use.queries), value_of(report, use.keys))
    return 1 - value_of(report, use.masked_flops) / max(value_of(report, use.flops), 1)


def _trained(report: Report) -> int:
    """Parameters that a step trains; ModelError for a saved report of a step that trains a part of them."""
    program, step = report.program, report.training
    if program is None:
        if step is not None and (step.lora_rank or step.freeze):
            raise ModelError("a saved report tells not which parameters are trained: give the model itself")
        return report.parameters
    names = [one.name for one in program.inputs if one.role == "parameter" and not one.alias_of]
    types = (typed for name in names if isinstance(typed := program.types.get(name), TensorType))
    return sum(value_of(report, typed.numel) for typed in types if typed.requires_grad)


def _vocabulary(report: Report) -> int | None:
    """Rows of the first stored table that is looked up."""
    made = {named.name for named in report.inputs}
    for row in report.rows:
        if operator(row.op).kind == "gather" and len(row.inputs) > 1 and row.inputs[0].name not in made:
            return value_of(report, row.inputs[0].type.shape[0])
        made.update([named.name for named in row.outputs])
    return None
