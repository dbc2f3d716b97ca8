"""Generated functions: each operator against torch's, what has no translation, and the functions of an exported program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.nn.attention.flex_attention import create_block_mask, flex_attention as torch_flex

from graphflops.errors import ModelError
from graphflops.exporters.live import from_exported_program
from graphflops.graph import Graph
from graphflops.runtime.execute import Execution, Weights
from graphflops.runtime.flex import prepare
from graphflops.runtime.flex.trace import functions, written

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
F = torch.nn.functional
TABLE = torch.linspace(-1, 1, 4 * 6, device=DEVICE).view(4, 6)
LEARNED = torch.ones(4, device=DEVICE, requires_grad=True)
FLAGS = torch.arange(6, device=DEVICE) % 2 == 0


@triton.jit
def apply(score, out, buffers, FUNCTION: tl.constexpr):
    """Scores one by one; their query is 0 to 3 and their key 0 to 5."""
    place = tl.arange(0, 16)
    one = tl.program_id(0) + 1
    found = FUNCTION(tl.load(score + place), one, one + 1, place % 4, place % 6, buffers)
    tl.store(out + place, tl.broadcast_to(found, (16,)))


FUNCTIONS = {
    "exp": lambda s, b, h, q, k: torch.exp(s) + torch.exp2(s),
    "logarithms": lambda s, b, h, q, k: torch.log(s.abs()) + torch.log2(s.abs() + 1) + torch.log1p(s * s),
    "roots": lambda s, b, h, q, k: torch.sqrt(s.abs()) + torch.rsqrt(s * s + 1),
    "trigonometry": lambda s, b, h, q, k: torch.sin(s) * torch.cos(s) + torch.tan(s / 4),
    "hyperbolic": lambda s, b, h, q, k: torch.tanh(s) + torch.sinh(s / 2) + torch.cosh(s / 2),
    "near zero": lambda s, b, h, q, k: torch.tanh(s / 1000) + torch.expm1(s / 1000) + torch.log1p(s / 1000),
    "sigmoid, erf": lambda s, b, h, q, k: torch.sigmoid(s) + torch.erf(s),
    "activations": lambda s, b, h, q, k: F.gelu(s) + F.silu(s) + F.softplus(s) + F.relu(s) + F.elu(s),
    "tanh gelu": lambda s, b, h, q, k: F.gelu(s, approximate="tanh"),
    "leaky": lambda s, b, h, q, k: F.leaky_relu(s, 0.1) + F.hardtanh(s),
    "rounding": lambda s, b, h, q, k: torch.floor(s) + 10 * torch.ceil(s) + 100 * torch.trunc(s),
    "half to even": lambda s, b, h, q, k: torch.round(q - 1.5) + 10 * torch.round(s),
    "powers": lambda s, b, h, q, k: s**2 + s**3 + s.abs() ** 0.5 + s.abs() ** 1.7 + (s - 5) ** 9,
    "reciprocal, sign": lambda s, b, h, q, k: 1 / s + torch.sign(s) + s.square(),
    "clamp": lambda s, b, h, q, k: s.clamp(-1, 1) + s.clamp(min=0.5) + s.clamp(max=(q - k) * 0.1),
    "minimum": lambda s, b, h, q, k: torch.minimum(s, q.to(s.dtype)) + torch.maximum(s, s * 2),
    "floor division": lambda s, b, h, q, k: s + (q - k) // 2 + 10 * ((k - q) // -3),
    "remainder": lambda s, b, h, q, k: s + (q - k) % 3 + 10 * ((k - 4) % -3) + (s % 0.7),
    "fmod": lambda s, b, h, q, k: torch.fmod(s, 0.7) + torch.div(s, 0.3, rounding_mode="floor"),
    "truncating": lambda s, b, h, q, k: s + torch.div(q - k, 2, rounding_mode="trunc"),
    "bits": lambda s, b, h, q, k: s + ((q << 1) | 1) + (k & 3) + (q ^ k) + (k >> 1) + ~q,
    "logic": lambda s, b, h, q, k: torch.where((q > k) & ~(k == 2) | (q != 3) ^ (k <= 1), s, -s),
    "comparison with a fraction": lambda s, b, h, q, k: torch.where(q > 1.5, s, 0.0),
    "not a number": lambda s, b, h, q, k: torch.where(torch.isnan(s / 0 * 0), 1.0, s),
    "alpha": lambda s, b, h, q, k: torch.add(s, q, alpha=3) - torch.sub(s, k, alpha=2),
    "scalars": lambda s, b, h, q, k: 3 - s + b * 0.5 + h,
    "table": lambda s, b, h, q, k: s + TABLE[q, k],
    "table from its end": lambda s, b, h, q, k: s + TABLE[q - 4, k - 6],
    "table in steps": lambda s, b, h, q, k: s + TABLE[q][k] + TABLE[-1, k] + TABLE.t()[k, 2],
    "flags": lambda s, b, h, q, k: torch.where(FLAGS[k], s, 0.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str) -> None:
    function: Any = FUNCTIONS[name]
    score = torch.linspace(-3.3, 3.1, 16, device=DEVICE)
    out = torch.empty(16, device=DEVICE)
    key, buffers = written(function, None, torch.float32, DEVICE)
    apply[(1,)](score, out, buffers or (score,), FUNCTION=functions(key).score)
    place = torch.arange(16, dtype=torch.int32, device=DEVICE)
    b, h = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (1, 2))
    wanted = torch.stack([function(score[i].double(), b, h, place[i] % 4, place[i] % 6) for i in range(16)])
    assert torch.allclose(out.double(), wanted.double(), rtol=3e-6, atol=3e-6, equal_nan=True)


def test_the_source_is_readable() -> None:
    slopes = torch.ones(8)
    found = prepare(
        torch.empty(1, 8, 32, 16), torch.empty(1, 8, 32, 16), lambda s, b, h, q, k: s - (q - k) * slopes[h]
    )
    assert "def score_mod(score, b, h, q, kv, buffers):" in found.source
    assert "tl.load(buffer0 + h)" in found.source
    assert "def score_grad(score, b, h, q, kv, grad, buffers):\n    return grad" in found.source


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda s, b, h, q, k: torch.lgamma(s), r"score_mod: no translation of aten\.lgamma\.default"),
        (lambda s, b, h, q, k: s + TABLE.sum(), r"a captured tensor of shape \[4, 6\] is used whole"),
        (lambda s, b, h, q, k: s + TABLE[q], r"returns a tensor of shape \[6\], not a number"),
        (lambda s, b, h, q, k: s + LEARNED[q], "gradients of tensors that a score function captures"),
    ],
)
def test_what_has_no_translation(function: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        written(function, None, torch.float32, DEVICE)


def test_functions_of_an_exported_program() -> None:
    """The graphs nested in a program that torch exported give what its functions give."""
    bias = torch.linspace(-1, 1, 2 * 20 * 20, device=DEVICE).view(2, 20, 20)
    mask = create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < 9), None, None, 20, 20, device=DEVICE.type, BLOCK_SIZE=16
    )

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                return s + self.bias[h, q, k] - (q - k).abs() / 2

            return torch_flex(x, x, x, score_mod=score, block_mask=mask)

    x = torch.randn(1, 2, 20, 16, device=DEVICE)
    torch._dynamo.reset()
    program = from_exported_program(torch.export.export(Model(), (x,)))
    (node,) = [node for node in program.nodes if node.op == "higher_order.flex_attention"]
    score, given = node.args[3], node.args[4]
    assert isinstance(score, Graph)
    assert isinstance(given, tuple)
    from graphflops.runtime.flex.blocks import from_block_mask

    execution = Execution(program, Weights(program, DEVICE), trusted=True)
    scored, seen = (execution.argument(nested, {}, "").alone() for nested in (score, given[-1]))
    attention = prepare(x, x, scored, (seen, from_block_mask(mask)), score_tensors=(bias,))
    out, _ = attention(x, x, x)
    place = torch.arange(20, device=DEVICE)
    apart = place[:, None] - place
    wanted = x.double() @ x.double().mT / 4 + bias - apart.abs() / 2
    wanted = wanted.masked_fill((apart < 0) | (apart >= 9), float("-inf")).softmax(-1) @ x.double()
    assert torch.allclose(out.double(), wanted, atol=1e-5)
