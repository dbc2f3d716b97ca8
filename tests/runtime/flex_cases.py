"""The score and mask functions of torch's own tests of flexible attention, and a dense reference in float64.

Functions are written in pointwise operators, so that the reference can call them on whole broadcast tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """What `make` returns for sizes and a device: a score function or None, and a mask function or None."""

    name: str
    make: Callable[[Sizes, torch.device], tuple[Any, Any]]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def _score(function: Any) -> Any:
    return lambda sizes, device: (function, None)


def _mask(function: Any) -> Any:
    return lambda sizes, device: (None, function)


def _random(seed: int, *shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _documents(sizes: Sizes, device: torch.device) -> torch.Tensor:
    """Each place's document: thirds of the longer length, the first as long as the other two."""
    length = max(sizes.queries, sizes.keys)
    return (torch.arange(length, device=device) * 3 // (2 * length)) + (
        torch.arange(length, device=device) >= length * 5 // 6
    )


def _alibi(sizes: Sizes, device: torch.device) -> Any:
    slopes = torch.exp2(-8.0 * torch.arange(1, sizes.heads + 1, device=device) / sizes.heads)
    return lambda s, b, h, q, k: s + (k - q) * slopes[h], None


def _sequences(sizes: Sizes, device: torch.device) -> Any:
    place = _documents(sizes, device)
    return lambda s, b, h, q, k: torch.where(place[q] == place[k], s, float("-inf")), None


def _bias_by_sequence(sizes: Sizes, device: torch.device) -> Any:
    bias = _random(1, sizes.queries, sizes.keys, device=device)
    return lambda s, b, h, q, k: s + bias[q, k], None


def _bias_by_batch(sizes: Sizes, device: torch.device) -> Any:
    bias = _random(2, sizes.batch, sizes.queries, sizes.keys, device=device)
    return lambda s, b, h, q, k: s + bias[b, q, k], None


def _bias_by_head(sizes: Sizes, device: torch.device) -> Any:
    bias = _random(3, sizes.batch, sizes.heads, sizes.queries, sizes.keys, device=device)
    return lambda s, b, h, q, k: s + bias[b, h, q, k], None


def _bias_by_distance(sizes: Sizes, device: torch.device) -> Any:
    bias = _random(4, sizes.queries + sizes.keys, device=device)
    return lambda s, b, h, q, k: s + bias[q - k + sizes.keys], None


def _scale_by_all(sizes: Sizes, device: torch.device) -> Any:
    batch, head, row = (_random(5, size, device=device) for size in (sizes.batch, sizes.heads, sizes.queries))
    return lambda s, b, h, q, k: s + row[q] + batch[b] + head[h], None


def _bidirectional(sizes: Sizes, device: torch.device) -> Any:
    prefix = torch.arange(sizes.batch, device=device) * 3 + sizes.queries // 3

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) | ((q <= prefix[b]) & (k <= prefix[b]))

    return None, mask


def _natten(sizes: Sizes, device: torch.device) -> Any:
    side, reach = 8, 2

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        near_x = ((q // side).clamp(reach, side - 1 - reach) - k // side).abs() <= reach
        near_y = ((q % side).clamp(reach, side - 1 - reach) - k % side).abs() <= reach
        return near_x & near_y

    return None, mask


def _padded_causal(sizes: Sizes, device: torch.device) -> Any:
    real = torch.full((sizes.batch,), max(sizes.keys - 5, 1), device=device)
    return None, lambda b, h, q, k: (q >= k) & (q < real[b]) & (k < real[b])


def _captured_scale(sizes: Sizes, device: torch.device) -> Any:
    factor = torch.tensor(0.75, device=device)
    return lambda s, b, h, q, k: s * factor, None


def _jagged_causal(sizes: Sizes, device: torch.device) -> Any:
    place = _documents(sizes, device)
    return None, lambda b, h, q, k: (place[q] == place[k]) & (q >= k)


def _document(sizes: Sizes, device: torch.device) -> Any:
    place = _documents(sizes, device)
    return None, lambda b, h, q, k: place[q] == place[k]


def _window(sizes: Sizes, device: torch.device) -> Any:
    reach = max(sizes.keys // 4, 2)
    return None, lambda b, h, q, k: (q >= k) & (q - k <= reach)


CASES = (
    Case("identity", _score(lambda s, b, h, q, k: s)),
    Case("causal", _score(lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")))),
    Case("inverse causal", _score(lambda s, b, h, q, k: torch.where(q <= k, s, float("-inf")))),
    Case("times two", _score(lambda s, b, h, q, k: s * 2)),
    Case("squared", _score(lambda s, b, h, q, k: s * s)),
    Case("relative bias", _score(lambda s, b, h, q, k: s + (q - k))),
    Case("relative causal", _score(lambda s, b, h, q, k: torch.where(q >= k, s + (q - k), float("-inf")))),
    Case("alibi", _alibi),
    Case("head offset", _score(lambda s, b, h, q, k: s * h)),
    Case("trig", _score(lambda s, b, h, q, k: torch.sin(torch.cos(s)) + torch.tan(b))),
    Case("trig 2", _score(lambda s, b, h, q, k: torch.cos(s) * torch.sin(s) + torch.tan(b))),
    Case("sequence masking", _sequences),
    Case("bias by sequence", _bias_by_sequence),
    Case("bias by batch", _bias_by_batch),
    Case("bias by head", _bias_by_head),
    Case("bias by distance", _bias_by_distance),
    Case("captured buffers of all axes", _scale_by_all),
    Case("odd keys skipped", _score(lambda s, b, h, q, k: torch.where(k % 2 == 0, s, float("-inf")))),
    Case("causal mask", _mask(lambda b, h, q, k: q >= k)),
    Case("dependent causal-bidirectional", _bidirectional),
    Case("natten 2d", _natten),
    Case("silu", _score(lambda s, b, h, q, k: torch.nn.functional.silu(s))),
    Case("soft cap", _score(lambda s, b, h, q, k: 2 * torch.tanh(s / 2))),
    Case("padded dense causal", _padded_causal),
    Case("captured scale", _captured_scale),
    Case("jagged causal", _jagged_causal),
    Case("document", _document),
    Case("sliding window", _window),
    Case(
        "alibi and causal mask", lambda sizes, device: (_alibi(sizes, device)[0], lambda b, h, q, k: q >= k)
    ),
)


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def operands(sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int = 0) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the output."""
    shapes = (
        (sizes.heads, sizes.queries, sizes.width),
        (sizes.key_heads, sizes.keys, sizes.width),
        (sizes.key_heads, sizes.keys, sizes.value_width),
        (sizes.heads, sizes.queries, sizes.value_width),
    )
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sizes.batch, *shape, generator=generator).to(dtype).to(device) for shape in shapes]


def places(sizes: Sizes, device: torch.device) -> list[torch.Tensor]:
    """Batch, head, query and key of every score, broadcast."""
    lengths = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    return [
        torch.arange(length, dtype=torch.int32, device=device).view(
            [-1 if i == axis else 1 for i in range(4)]
        )
        for axis, length in enumerate(lengths)
    ]


def seen(mask_mod: Any, sizes: Sizes, device: torch.device) -> torch.Tensor:
    """The mask's truth values [batch, heads, queries, keys]."""
    shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    if mask_mod is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    found: torch.Tensor = mask_mod(*places(sizes, device)).expand(shape)
    return found


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    scale: float,
    sizes: Sizes,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, dense, in the operands' own precision."""
    sharing = sizes.heads // sizes.key_heads
    k, v = (x.repeat_interleave(sharing, 1) for x in (k, v))
    score = q @ k.transpose(-2, -1) * scale
    if score_mod is not None:
        score = score_mod(score, *places(sizes, q.device)).expand(score.shape)
    score = score.masked_fill(~seen(mask_mod, sizes, q.device), float("-inf"))
    lse = torch.logsumexp(score, -1)
    weight = torch.exp(score - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    return weight @ v, lse


def reference_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    scale: float,
    sizes: Sizes,
) -> list[torch.Tensor]:
    """Output, log-sum-exp and the three gradients, in float64."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, lse = reference(*wide, score_mod, mask_mod, scale, sizes)
    gradients = torch.autograd.grad(out, wide, grad.double())
    return [x.detach() for x in (out, lse, *gradients)]
