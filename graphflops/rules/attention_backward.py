"""Gradients of attention: the operators of a joint graph, and what a forward call's backward would cost.

Fused kernels recompute the scores: five products for the forward's two, 2.5 times its matrix work where keys
and values are equally wide. Attention that stores its scores needs four, twice the forward's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim
from graphflops.rules.attention import Attention, attend, result_of
from graphflops.rules.attention_packed import cudnn_problem, efficient_problem, flash_problem
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Backward, Derived, ForwardCall, backward, rule
from graphflops.rules.shapes import Shape
from graphflops.tensor import FLOAT32, TensorType

KIND = "attention"

OPERANDS = ("query", "key", "value")
MASKS = ("attn_mask", "attn_bias", "bias")


def operand_gradients(problem: Attention) -> Estimate:
    """All three operands' gradients, for operators that return these alone: five products, the scores being recomputed."""
    estimate = problem.backward(OPERANDS, result_of(problem.query, problem.value))
    return replace(estimate, out=estimate.out[:3])


def with_gradients(problem: Callable[..., Attention]) -> Derived:
    """The rule of the gradients of a problem, whose operands are found by their names behind the result's gradient."""
    return Derived(problem, operand_gradients, says="Five products, the scores being recomputed.", order="_")


# Of forward calls: the gradients of the wanted operands, in the order of the parameters. Five products: the scores again,
# and one for each of the probabilities' and the operands' gradients; where the probabilities are stored, four.


def of_call(problem: Callable[[ForwardCall], Attention], *, fused: bool = True) -> Backward:
    """The backward rule of a problem that a forward call poses."""

    def priced(call: ForwardCall) -> Estimate:
        wants = {"mask" if name in MASKS else name for name in call.wants}
        estimate = problem(call).backward(wants, call.out, fused=fused)
        return replace(estimate, out=tuple(gradient for gradient in estimate.out if gradient is not None))

    return priced


def dense(call: ForwardCall) -> Attention:
    """The problem of a dense forward call, whatever it calls the mask that is added to the scores."""
    query, key, value = (call[name] for name in OPERANDS)
    mask = next((call[name] for name in MASKS if isinstance(call.get(name), TensorType)), None)
    options = {name: call[name] for name in ("dropout_p", "is_causal") if name in call.arguments}
    return attend(query, key, value, mask, **options, grouped=call.get("enable_gqa", True))


def varlen(call: ForwardCall) -> Attention:
    """The problem of packed sequences."""
    query, key, value = (call[name] for name in OPERANDS)
    packed = (query, key, value, call["cu_seq_q"], call["cu_seq_k"], call["max_k"])
    return flash_problem(*packed, 0.0, call.get("is_causal", False), *(call.get("window_size") or (-1, -1)))


backward(
    "aten.scaled_dot_product_attention _scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable",
)(of_call(dense))
backward("aten._scaled_dot_product_attention_math", "aten._scaled_dot_product_attention_math_for_mps")(
    of_call(dense, fused=False)
)
backward("aten._flash_attention_forward")(of_call(lambda call: flash_problem(**call.arguments)))
backward("aten._efficient_attention_forward")(of_call(lambda call: efficient_problem(**call.arguments)))
backward("aten._cudnn_attention_forward")(of_call(lambda call: cudnn_problem(**call.arguments)))
backward("torch_attn._varlen_attn")(of_call(varlen))


for _kernel in ("flash_attention", "cudnn_attention", "flash_attention_for_cpu"):
    rule(f"aten._scaled_dot_product_{_kernel}_backward")(with_gradients(attend))
rule("aten._flash_attention_backward")(with_gradients(flash_problem))
rule("aten._cudnn_attention_backward")(with_gradients(cudnn_problem))


@rule(
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
)
@takes("* query key value mask? out")
def dense_backward_with_mask(
    of: Operands, *, dropout_p: float, grad_input_mask: tuple[bool, ...], is_causal: bool = False
) -> Estimate:
    """Five products, the scores being recomputed; the mask's gradient is found on demand."""
    problem = attend(*of.but("out"), dropout_p=dropout_p, is_causal=is_causal)
    return problem.backward({*OPERANDS, *(("mask",) if grad_input_mask[3] else ())}, of.out)


@rule("torch_attn._varlen_attn_backward")
@takes("* query key value cu_seq_q cu_seq_k")
def varlen_backward(
    of: Operands, *, max_k: Dim, is_causal: bool, window_size: Shape | None = None
) -> Estimate:
    """Five products, the scores being recomputed."""
    packed = (*of, max_k, 0.0, is_causal, *(window_size or (-1, -1)))
    return operand_gradients(flash_problem(*packed))


@rule("aten._efficient_attention_backward")
@takes("* query key value mask? cu_seqlens_q? cu_seqlens_k? max_seqlen_k= out window_size?")
def packed_efficient_backward(
    of: Operands, *, dropout_p: float, custom_mask_type: int, bias_requires_grad: bool
) -> Estimate:
    """Five products, the scores being recomputed; without a bias its gradient is a placeholder."""
    query, key, value, mask, *offsets, out, window_size = of
    packed = (query, key, value, mask, *offsets, dropout_p, custom_mask_type, window_size)
    problem = efficient_problem(*packed)
    estimate = problem.backward({*OPERANDS, *(("mask",) if bias_requires_grad else ())}, out)
    placeholder = query.like((), FLOAT32) if mask is None else mask.like()
    return replace(estimate, out=(*estimate.out[:3], placeholder))
