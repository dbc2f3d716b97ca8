"""Control flow, quantised programs, functional transforms and operators of one's own: what no model library holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.oracle.zoo.case import Case
from tests.oracle.zoo.torch_nn import BATCHES, SEQUENCES, Function, TiedDecoder, UNet, features, mlp, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TURNS = "how often the loop turns, only data can tell"
_library = torch.library.Library("oracle", "FRAGMENT")


def cases() -> Iterator[Case]:
    """All of them."""
    yield from control_flow()
    yield from transforms()
    yield from own_operators()
    yield from quantised()
    yield from joint_graphs()


def control_flow() -> Iterator[Case]:
    """cond, while_loop, scan, associative_scan, map and marked regions, and one in another."""
    parts = lambda: {"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)}  # noqa: E731

    def chosen(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.b(self.a(x)), lambda x: self.a(x), (x,))

    dearer = lambda n, t: 2 * n * t * 2 * 16 * 16  # noqa: E731
    why = "the dearer branch is counted"
    yield Case(
        "programs/cond",
        lambda: Function(chosen, **parts()),
        features,
        SEQUENCES,
        expected=dearer,
        because=why,
    )

    def nested(self: Any, x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 1, lambda x: self.a(x).sin(), lambda x: self.b(self.a(x)), (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x.clone(), (x,))

    yield Case(
        "programs/cond_in_cond",
        lambda: Function(nested, **parts()),
        features,
        SEQUENCES,
        expected=dearer,
        because=why,
    )

    def repeated(self: Any, x: torch.Tensor) -> torch.Tensor:
        turned = torch.while_loop(
            lambda i, x: i < 5,
            lambda i, x: (i + 1, self.a(x).relu()),
            (torch.zeros((), dtype=torch.int64), x),
        )
        return self.b(turned[1])

    yield Case(
        "programs/while_loop",
        lambda: Function(repeated, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * 16 * 16 * (3 + 1),
        because=_TURNS,
        turns={"while_loop_trips_0": 3},
    )

    def scanned(self: Any, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.scan import scan

        def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(self.a(x) + self.b(state))
            return state, state * 2

        return scan(step, x.new_zeros(x.shape[0], 16), x.transpose(0, 1))[1]

    steps = lambda n, t: 2 * t * n * 2 * 16 * 16  # noqa: E731
    yield Case(
        "programs/scan",
        lambda: Function(scanned, **parts()),
        features,
        SEQUENCES,
        expected=steps,
        because="FlopCounterMode does not look into scan",
    )

    def associative(self: Any, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        return associative_scan(lambda a, b: a * 0.5 + b, self.a(x), 1, combine_mode="generic")

    yield Case("programs/associative_scan", lambda: Function(associative, **parts()), features, SEQUENCES)

    def mapped(self: Any, x: torch.Tensor) -> torch.Tensor:
        from functorch.experimental.control_flow import map as each

        return each(lambda row, other: self.a(row) @ other.T, x, x[0] + 1)

    yield Case(
        "programs/map",
        lambda: Function(mapped, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: n * (2 * t * 16 * 16 + 2 * t * 16 * t),
        because="FlopCounterMode does not look into map",
    )

    def looped_choice(self: Any, x: torch.Tensor) -> torch.Tensor:
        def turn(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: x + 1, (x,))

        return torch.while_loop(lambda i, x: i < 5, turn, (torch.zeros((), dtype=torch.int64), x))[1]

    yield Case(
        "programs/cond_in_while_loop",
        lambda: Function(looped_choice, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * 16 * 16 * 3,
        because=_TURNS,
        turns={"while_loop_trips_0": 3},
    )


def transforms() -> Iterator[Case]:
    """vmap, functional derivatives, attention with a score function, random numbers, and lists of tensors."""

    def batched(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: self.a(row).softmax(-1) @ row.T)(x)

    yield Case("programs/vmap", lambda: Function(batched, a=nn.Linear(16, 16)), features, SEQUENCES)

    def sloped(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: self.a(x).tanh().sum())(x)

    yield Case("programs/input_gradient", lambda: Function(sloped, a=nn.Linear(16, 16)), features, SEQUENCES)

    def scored(self: Any, x: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j).abs())

    yield Case(
        "programs/flex_attention",
        lambda: Function(scored, qkv=nn.Linear(16, 48)).requires_grad_(False),
        features,
        ({"n": 2, "t": 16}, {"n": 3, "t": 32}, {"n": 5, "t": 48}),
        expected=lambda n, t: 2 * n * t * 16 * 48 + 2 * 2 * n * 4 * t * t * 4,
        because="FlopCounterMode counts the eager fallback, which also multiplies scores that it masks",
    )

    def drawn(self: Any, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x) * torch.exp(0.5 * x)
        kept = torch.bernoulli(torch.full_like(x, 0.5))
        return self.a(x + noise * kept) + F.gumbel_softmax(x, hard=True)

    yield Case("programs/random_numbers", lambda: Function(drawn, a=nn.Linear(16, 16)), features, SEQUENCES)

    def listed(self: Any, x: torch.Tensor) -> list[torch.Tensor]:
        parts = torch._foreach_add(list(x.unbind(-1)), 1.0)
        return torch._foreach_mul(parts, 2.0)

    yield Case("programs/foreach", lambda: Function(listed), features, SEQUENCES)

    def solved(self: Any, x: torch.Tensor) -> torch.Tensor:
        gram = x.transpose(1, 2) @ x + torch.eye(16)
        factor = torch.linalg.cholesky(gram)
        return torch.cholesky_solve(x.transpose(1, 2), factor) + torch.linalg.solve(gram, x.transpose(1, 2))

    yield Case("programs/linear_algebra", lambda: Function(solved), features, SEQUENCES)

    def losses(self: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = self.head(x)
        return (
            F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1),
            F.mse_loss(x, x.roll(1, 1)),
            F.binary_cross_entropy_with_logits(logits, logits.sigmoid()),
            F.kl_div(logits.log_softmax(-1), logits.softmax(-1), reduction="batchmean"),
            F.triplet_margin_loss(x, x.roll(1, 1), x.roll(2, 1)),
            F.huber_loss(x, x.roll(1, 0)),
        )

    yield Case(
        "programs/losses",
        lambda: Function(losses, head=nn.Linear(16, 8)),
        lambda n, t: (torch.rand(n, t, 16), torch.randint(0, 8, (n, t))),
        SEQUENCES,
    )

    def sampled(self: Any, x: torch.Tensor) -> torch.Tensor:
        row = torch.linspace(-1, 1, 16)
        grid = torch.stack(torch.meshgrid(row, row, indexing="xy"), -1).expand(x.shape[0], 16, 16, 2)
        warped = F.grid_sample(x, grid, align_corners=False)
        patches = F.unfold(warped, 3, padding=1)
        return (
            F.fold(patches, x.shape[-2:], 3, padding=1)
            + F.interpolate(x, scale_factor=2.0, mode="bicubic")[..., ::2, ::2]
        )

    yield Case("programs/warp", lambda: Function(sampled), lambda n: (torch.rand(n, 3, 16, 16),), BATCHES)

    def ordered(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = x.sort(-1)
        cumulative = values.softmax(-1).cumsum(-1)
        cut = torch.where(cumulative > 0.9, float("-inf"), values)
        picked = torch.gather(cut, -1, places.argsort(-1))
        return (
            picked,
            x.topk(3, -1).values,
            torch.multinomial(picked.softmax(-1)[:, 0], 1),
            x.unique(),
            torch.bucketize(x, x[0, 0].sort().values),
        )

    yield Case("programs/sampling", lambda: Function(ordered), features, SEQUENCES)


@torch.library.custom_op("oracle::scaled_shift", mutates_args=())
def scaled_shift(x: torch.Tensor, by: float) -> torch.Tensor:
    """An operator that no rule can know."""
    return x * by + 1


@scaled_shift.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("oracle::noted", mutates_args=("into",))
def noted(x: torch.Tensor, into: torch.Tensor) -> None:
    """An operator that returns nothing and writes an operand."""
    into.copy_(x)


def own_operators() -> Iterator[Case]:
    """Operators of one's own are listed as unknown, and what is around them is counted."""

    def shifted(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.b(scaled_shift(self.a(x), 2.0))

    parts = lambda: {"a": nn.Linear(16, 16), "b": nn.Linear(16, 4)}  # noqa: E731
    yield Case(
        "programs/own_operator",
        lambda: Function(shifted, **parts()),
        features,
        SEQUENCES,
        unknown=frozenset({"oracle.scaled_shift.default"}),
    )

    def kept(self: Any, x: torch.Tensor) -> torch.Tensor:
        noted(x[:, 0], self.into)
        return self.a(x + self.into[:, None])

    def with_buffer() -> nn.Module:
        made = Function(kept, **parts())
        made.register_buffer("into", torch.zeros(2, 16))
        return made

    yield Case(
        "programs/own_operator_in_place",
        with_buffer,
        lambda: (torch.rand(2, 3, 16),),
        unknown=frozenset({"oracle.noted.default", "higher_order.auto_functionalized_v2"}),
    )


def quantised() -> Iterator[Case]:
    """Programs that PT2E quantisation makes, and weights kept as integers."""
    models: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
        "mlp": (mlp, lambda n: (torch.rand(n, 16),)),
        "convolutions": (
            lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(8, 4, 1),
                nn.AdaptiveAvgPool2d(1),
            ),
            lambda n: (torch.rand(n, 3, 16, 16),),
        ),
        "unet": (lambda: UNet("nearest"), lambda n: (torch.rand(n, 3, 16, 16),)),
    }
    for name, (build, inputs) in models.items():
        for backend in ("x86", "xnnpack"):
            yield Case(
                f"programs/quantised_{name}_{backend}",
                lambda build=build, inputs=inputs, backend=backend: pt2e(build(), inputs, backend),
                inputs,
                BATCHES if backend == "x86" else BATCHES[:1],
            )

    for config in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "IntxWeightOnlyConfig"):
        yield Case(
            f"programs/torchao_{config}",
            lambda config=config: with_weights(mlp(64), config),
            lambda n: (torch.rand(n, 64),),
            BATCHES,
            expected=lambda n: 2 * n * (64 * 256 + 256 * 64),
            because="torch has no formula for _int_mm and counts 0",
        )

    def integers(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ops.quantized_decomposed.dequantize_per_channel(
            self.q, self.scale, self.zero, 0, -128, 127, torch.int8
        )
        return F.linear(x, weight)

    def stored() -> nn.Module:
        import torch.ao.quantization.fx._decomposed

        made = Function(integers)
        made.register_buffer("q", torch.randint(-128, 127, (8, 16), dtype=torch.int8))
        made.register_buffer("scale", torch.rand(8))
        made.register_buffer("zero", torch.zeros(8, dtype=torch.int64))
        return made

    yield Case("programs/weights_of_integers", stored, features, SEQUENCES)

    def direct(self: Any, x: torch.Tensor) -> torch.Tensor:
        left = (x.flatten(0, 1) * 10).to(torch.int8)
        right = torch.ones(16, 8, dtype=torch.int8)
        return torch._int_mm(left, right).float()

    yield Case(
        "programs/integer_product",
        lambda: Function(direct),
        lambda n, t: (torch.rand(n, t, 16),),
        ({"n": 4, "t": 8}, {"n": 5, "t": 8}),
        expected=lambda n, t: 2 * n * t * 16 * 8,
        because="torch has no formula for _int_mm and counts 0",
    )


def with_weights(module: nn.Module, config: str) -> nn.Module:
    """The module, its weights of a class that holds integers and scales."""
    from torchao import quantization

    quantization.quantize_(module, getattr(quantization, config)())
    return module


def pt2e(module: nn.Module, inputs: Callable[..., Any], backend: str) -> nn.Module:
    """The module quantised by PT2E, calibrated on one batch."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    if backend == "x86":
        from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
            X86InductorQuantizer as Quantizer,
            get_default_x86_inductor_quantization_config as config,
        )
    else:
        from torchao.testing.pt2e._xnnpack_quantizer import (
            XNNPACKQuantizer as Quantizer,
            get_symmetric_quantization_config as config,
        )
    example = inputs(n=2)
    program = torch.export.export(
        module.eval(), example, dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False
    )
    quantizer = Quantizer()
    quantizer.set_global(config())
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(*example)
    made = convert_pt2e(prepared)
    made.eval = lambda: made  # exported modules know no modes
    return made


def joint_graphs() -> Iterator[Case]:
    """Models that return their loss, to be trained: the graph of the forward alone."""

    def trained(self: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = self.model(ids)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) / math.log(50)

    yield Case(
        "programs/language_model_loss", lambda: Function(trained, model=TiedDecoder()), tokens, SEQUENCES
    )
