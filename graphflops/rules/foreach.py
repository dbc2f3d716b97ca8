"""Operators on lists of tensors: `_foreach_` operators price each item by the single operator's rule; optimizers."""

from collections.abc import Sequence
from typing import TypeAlias

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value
from graphflops.dims import total
from graphflops.errors import RuleError
from graphflops.rules.elementwise import WORK, Work
from graphflops.rules.operands import Operands
from graphflops.rules.registry import find, require, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import TensorType

KIND = "foreach"

Item: TypeAlias = "Value | Sequence[Value]"  # a list with one entry per item, or one value for all items
Tensors = Sequence[TensorType]

ITEMWISE = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
add sub mul div addcmul addcdiv pow maximum minimum clamp_max clamp_min lerp max clone copy zero mm"""


def together(estimates: Sequence[Estimate]) -> Estimate:
    """Several calls as one: all results, summed work and traffic."""
    return Estimate(
        tuple(x for part in estimates for x in part.out),
        reads=tuple(x for part in estimates for x in part.reads),
        writes=tuple(
            x for part in estimates for x in (tensors_of(part.out) if part.writes is None else part.writes)
        ),
    ).plus(*estimates)


def itemwise(*operands: Item, single: str, **named: Item) -> Estimate:
    """The single operator's rule applied to each item."""
    found = find(single)
    if found is None:
        raise RuleError(f"operator {single} has no rule to apply to each item")
    lengths = {len(x) for x in (*operands, *named.values()) if isinstance(x, (tuple, list))}
    require(len(lengths) == 1, f"lists of different lengths: {sorted(lengths)}")

    def item(operand: Item, place: int) -> Item:
        return operand[place] if isinstance(operand, (tuple, list)) else operand

    def of_item(place: int) -> Estimate:
        keywords = ((name, item(x, place)) for name, x in named.items())
        return found.call(found.bound(single, [item(x, place) for x in operands], keywords))

    return together([of_item(place) for place in range(*lengths)])


for name in ITEMWISE.split():
    rule(f"aten._foreach_{name}").derived(itemwise, single=f"aten.{name}")


def foreach_norm(a: Tensors, ord: Value = 2, dtype: Value = None, *, single: str) -> Estimate:
    """The vector norm, or the sum of powers, of each item."""
    return itemwise(a, ord, single=single, dtype=dtype)


rule("aten._foreach_norm").derived(foreach_norm, single="aten.linalg_vector_norm")
rule("aten._foreach_powsum").derived(foreach_norm, single="aten.linalg__powsum")


@rule("aten._amp_foreach_non_finite_check_and_unscale")
def unscale(grads: Tensors, found_inf: TensorType, inv_scale: TensorType) -> Estimate:
    """A check and a product per element."""
    out = (*(x.like() for x in grads), found_inf.like())
    work = 2 * total(x.numel for x in grads)
    return Estimate(out, vector_flops=work, reads=(*grads, found_inf, inv_scale), writes=out)


STEPPED = "* grad_scale? found_inf?"  # operands of every optimizer after its lists


def update(work: Work, of: Operands, kept: Sequence[TensorType], *shared: Item) -> Estimate:
    """Work per parameter, one division more to unscale gradients (`grad_scale`), which are then written back."""
    parameters, grads, grad_scale = of.named("parameters grads grad_scale")
    return Estimate(
        tuple(x.like() for x in (*parameters, *grads, *kept)),
        reads=(*parameters, *grads, *kept, *tensors_of((*shared, of.found_inf, grad_scale))),
        writes=(*parameters, *(() if grad_scale is None else grads), *kept),
    ).plus(work.more(grad_scale is not None).on(total(x.numel for x in parameters)))


@rule("aten._fused_sgd").takes(
    f"parameters? grads? momentum_buffer_list? {STEPPED}; weight_decay momentum lr dampening nesterov maximize is_first_step"
)
def fused_sgd(of: Operands) -> Estimate:
    """P -= lr * g; momentum is a product and a scaled sum more, and a first step only copies the gradient."""
    work = WORK["sgd"].more(of.maximize + (WORK["l2_penalty"].flops if of.weight_decay != 0 else 0))
    if of.momentum != 0:
        moving = WORK["momentum"].flops
        work = work.more((0 if of.is_first_step else moving + (of.dampening != 0)) + moving * of.nesterov)
    return update(work, of, of.momentum_buffer_list, of.lr)


@rule("aten._fused_adam").takes(
    f"parameters? grads? exp_avgs? exp_avg_sqs? max_exp_avg_sqs? state_steps? {STEPPED}; lr weight_decay amsgrad maximize"
)
def adam(of: Operands, *, decoupled: bool = False) -> Estimate:
    """Both moments and the step; one operation more for a largest moment, a negated gradient, and decay (two if coupled)."""
    work = WORK["adam"]
    if of.weight_decay != 0:
        work = WORK["adamw"] if decoupled else work.more(WORK["l2_penalty"].flops)
    states = (*of.exp_avgs, *of.exp_avg_sqs, *of.max_exp_avg_sqs)
    return update(work.more(of.amsgrad + of.maximize), of, states, *of.state_steps, of.lr)


rule("aten._fused_adamw").derived(adam, decoupled=True)


@rule("aten._fused_adagrad", "aten._fused_adagrad_").takes(
    f"parameters? grads? state_sums? state_steps? {STEPPED}"
)
def fused_adagrad(of: Operands, *, lr: Value, weight_decay: float, maximize: bool) -> Estimate:
    """The sum of squares and the step; the counts of steps are further results unless the rate is a tensor."""
    work = WORK["adagrad"].more(maximize + (WORK["l2_penalty"].flops if weight_decay != 0 else 0))
    found = update(work, of, of.state_sums, *of.state_steps, lr)
    steps = () if isinstance(lr, TensorType) else tuple(x.like() for x in of.state_steps)
    return replace(found, out=(*found.out, *steps))
