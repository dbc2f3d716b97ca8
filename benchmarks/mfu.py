"""FLOPs of a token as training frameworks publish them, from our count of each model.

    python -m benchmarks.mfu

Needs torch. Decoders are built on the meta device at the published configurations, exported and analyzed,
deep ones in part. Each published figure is then taken apart: our count, and what the framework adds to it or leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import structs

from benchmarks.decoders import report_of
from benchmarks.published import EXACT, TERAFLOPS, UTILISATION, Rate
from graphflops.base.units import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.decoders import Decoder
    from benchmarks.published import Convention, Flops
    from graphflops.derived.items import PerItem


@dataclass(frozen=True)
class Count:
    """FLOPs of a token in one step, from the report of a decoder.

    ours: the product of each token with the parameters that it is multiplied by, and all of its attention, three times.
    steps: what a framework adds or leaves out, in words, and its FLOPs.
    """

    items: PerItem
    ours: float
    steps: tuple[tuple[str, float], ...]

    @property
    def flops(self) -> float:
        """As the framework counts."""
        return self.ours + sum(flops for _, flops in self.steps)


def count(decoder: Decoder, length: int, convention: Convention) -> Count:
    """Our count of a decoder, and the way from it to a convention."""
    parameters, items = analyzed(decoder, length)
    steps = tuple(_steps(decoder, length, convention, parameters, items))
    return Count(items, items.training.active, tuple(step for step in steps if step[1]))


_IN_FULL = 24  # layers
_FEW, _MORE = 4, 6  # or one more of each: they end in layers of all kinds that come again


@cache
def analyzed(decoder: Decoder, length: int) -> tuple[int, PerItem]:
    """The parameters of a decoder, and its costs of a token.

    Layers are alike, but for the first ones and every other one: figures of a deep decoder follow from two shorter ones.
    """
    if decoder.layers <= _IN_FULL:
        report = report_of(decoder, length)
        return report.parameters, report.per("ids[1]")
    depths = _FEW + decoder.layers % 2, _MORE + decoder.layers % 2
    (few, one), (more, other) = (analyzed(replace(decoder, layers=depth), length) for depth in depths)
    turns = (decoder.layers - depths[0]) // (_MORE - _FEW)

    def deep(one: Any, other: Any) -> Any:
        return one + (other - one) * turns

    found: dict[str, Any] = {
        name: deep(getattr(one, name), getattr(other, name)) for name in ("active_parameters", "parameters")
    }
    for phase in ("forward", "training"):
        figures = [getattr(items, phase) for items in (one, other)]
        found[phase] = type(figures[0])(*map(deep, *map(structs.astuple, figures)))
    return deep(few, more), structs.replace(one, **found)


def _steps(
    decoder: Decoder, length: int, convention: Convention, parameters: int, items: PerItem
) -> Iterator[tuple[str, float]]:
    """What a convention adds to our count and leaves out of it."""
    attention = items.training.active - 6 * items.active_parameters
    if convention == "palm":
        yield "embeddings, norms, biases", 6 * (parameters - items.parameters)
    if convention.startswith("torchtitan"):
        yield "norms, biases, sinks", 6 * _never_multiplied(decoder)
    if convention == "torchtitan" and decoder.window:
        keys = min(decoder.window, length)
        yield "windows", -attention / 2 * (1 - keys / length)  # every other layer has one
    if convention.startswith("megatron"):
        yield "half of the attention, as causal", -attention / 2
        yield "router", -6 * routers(decoder)
        yield "norms of latent attention", 6 * latent_norms(decoder)
    if convention == "megatron 2 of 3" and decoder.experts:
        one = decoder.experts.chosen * decoder.hidden * decoder.experts.width
        yield "one of three matrices of each expert", -6 * decoder.layers * one


def _never_multiplied(decoder: Decoder) -> int:
    """Parameters of norms, biases and sinks that a token uses; of an expert's those of the chosen ones."""
    heads = decoder.heads * decoder.head
    layer = decoder.norms * decoder.hidden + 2 * decoder.head * decoder.norm_heads
    if decoder.bias and decoder.experts:
        layer += heads + 2 * decoder.kv_heads * decoder.head + decoder.hidden + decoder.experts.number
        layer += decoder.experts.chosen * (2 * decoder.experts.width + decoder.hidden)
    return decoder.layers * (layer + decoder.heads * decoder.sinks) + decoder.hidden


def routers(decoder: Decoder) -> int:
    experts = decoder.experts
    return (decoder.layers - experts.dense_layers) * decoder.hidden * experts.number if experts else 0


def latent_norms(decoder: Decoder) -> int:
    latent = decoder.latent
    return decoder.layers * (latent.query_rank + latent.key_rank) if latent else 0


def reproduced(published: Flops | Rate) -> float:
    """A published figure from our count."""
    found = count(published.decoder, published.length, published.convention).flops
    return found * published.tokens / (published.peak if isinstance(published, Rate) else 1)


def _line(published: Flops | Rate) -> str:
    found = count(published.decoder, published.length, published.convention)
    if isinstance(published, Rate):
        digits = published.digits
        theirs = f"{published.figure:.{digits}f}"
        again = f"{reproduced(published):.{digits + 1}f}"
    else:
        theirs, again = f"{published.flops:,}", f"{round(reproduced(published)):,}"
    steps = "".join(f"\n    {sign(flops)} {words}" for words, flops in found.steps)
    name = f"{published.model} at {published.length:,}, {published.convention}"
    return f"{name:46} {theirs:>16} {again:>16}   {number(round(found.ours))} a token{steps}"


def sign(flops: float) -> str:
    """FLOPs of a token with their sign."""
    return f"{'+' if flops > 0 else '-'} {number(round(abs(flops))):>8}"


def _conventions(decoder: Decoder, length: int) -> list[str]:
    """Ours side by side, of a training step."""
    _, items = analyzed(decoder, length)
    step = items.training
    figures = (step.dense, step.visible, step.active, step.total)
    return [*(number(round(figure)) for figure in figures), number(items.active_parameters).replace("G", "B")]


def main() -> None:
    """Print the published figures beside ours."""
    for title, figures in (
        ("FLOPs to the last digit", EXACT),
        ("utilisation, %", UTILISATION),
        ("TFLOP/s of one GPU", TERAFLOPS),
    ):
        print(f"{title:46} {'published':>16} {'from our count':>16}   our count: 6N + attention")
        sources = dict.fromkeys(one.source for one in figures)
        for source in sources:
            print(f"  {source}")
            for one in figures:
                if one.source == source:
                    print(_line(one))
        print()
    print(
        f"{'a token in training, our conventions':36}{'dense':>10}{'visible':>10}{'active':>10}{'total':>10}{'N':>10}"
    )
    models = {(one.model, one.length): one.decoder for one in (*EXACT, *UTILISATION, *TERAFLOPS)}
    for (model, length), decoder in models.items():
        cells = "".join(f"{cell:>10}" for cell in _conventions(decoder, length))
        print(f"{f'{model} at {length:,}':36}{cells}")


if __name__ == "__main__":
    main()
