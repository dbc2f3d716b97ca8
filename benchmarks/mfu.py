"""FLOPs of a token as training frameworks publish them, from our count of each model.

    python -m benchmarks.mfu

Needs torch. Decoders are built on the meta device at the published configurations, exported and analyzed. Each published
figure is then taken apart: our count, and what the framework adds to it or leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from benchmarks.decoders import report_of
from benchmarks.published import EXACT, TERAFLOPS, UTILISATION, Rate
from graphflops.base.units import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.decoders import Decoder
    from benchmarks.published import Convention, Flops
    from graphflops.derived.items import PerItem
    from graphflops.report import Report


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
    report, items = analyzed(decoder, length)
    steps = tuple(_steps(decoder, length, convention, report, items))
    return Count(items, items.training.active, tuple(step for step in steps if step[1]))


@cache
def analyzed(decoder: Decoder, length: int) -> tuple[Report, PerItem]:
    """The report of a decoder, and its costs of a token."""
    report = report_of(decoder, length)
    return report, report.per("ids[1]")


def _steps(
    decoder: Decoder, length: int, convention: Convention, report: Report, items: PerItem
) -> Iterator[tuple[str, float]]:
    """What a convention adds to our count and leaves out of it."""
    attention = items.training.active - 6 * items.active_parameters
    if convention == "palm":
        yield "embeddings, norms, biases", 6 * (report.parameters - items.parameters)
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
