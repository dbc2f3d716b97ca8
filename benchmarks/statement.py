"""FLOPs of a token that published training tables imply, beside those of `graphflops statement`.

    python -m benchmarks.statement

Needs torch. A table's TFLOP/s over its tokens a second are the FLOPs of a token by its publisher's formula. Decoders of the
published sizes are built on the meta device with a few of their layers, exported and stated; layers are alike, so that two
more of them tell what all cost, exactly. What a publisher counts in another way is said by name.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.decoders import Decoder, Experts, Latent, report_of
from benchmarks.mfu import latent_norms, routers
from benchmarks.published import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    QWEN3_30B,
    QWEN3_235B,
)
from graphflops import statement

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = Path(__file__).parent / "measured" / "training"
KIMI_K2 = Decoder(
    *(61, 7168, 64, 64, 128, 163840),
    experts=Experts(384, 8, 2048, shared=2048, dense_layers=1, dense_width=18432),
    latent=Latent(1536, 512, 128, 64),
)
QWEN25_7B = Decoder(28, 3584, 28, 4, 128, 152064, mlp=18944)
QWEN25_32B = Decoder(64, 5120, 40, 8, 128, 152064, mlp=27648)
MPT = {  # layers, width, heads: scripts/train/yamls/pretrain of llm-foundry
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
_TOKENS = 10**9  # of the statement
_WITHIN = 0.005


@cache
def of_token(decoder: Decoder, length: int) -> Counter[str]:
    """FLOPs of a token by convention, with the parameters that multiply it (`matrices`) and those of one layer (`layer`).

    Counted for a decoder of few layers and one of two more, which have the same pattern, and added up for the rest.
    """
    first = decoder.experts.dense_layers if decoder.experts else 0
    few = first + 2 + (decoder.layers - first) % 2
    small, larger = (_few(replace(decoder, layers=layers), length) for layers in (few, few + 2))
    more = (decoder.layers - few) // 2
    found = Counter({name: small[name] + more * (larger[name] - small[name]) for name in small})
    found["layer"] = (larger["model"] - small["model"]) // 2
    return found


def _few(decoder: Decoder, length: int) -> Counter[str]:
    report = report_of(decoder, length, training=True)
    flops = statement(report, _TOKENS).flops
    found = {name: round(getattr(flops, name) / _TOKENS) for name in type(flops).__struct_fields__}
    return Counter({**found, "matrices": report.per("ids[1]").active_parameters})


def megatron(decoder: Decoder, length: int) -> float:
    """Model FLOPs; routers are left out, and norms of latent attention count as products."""
    return of_token(decoder, length)["model"] - 6 * routers(decoder) + 6 * latent_norms(decoder)


def with_prediction(decoder: Decoder, length: int) -> float:
    """The same, and a second token that is predicted: a layer, a projection of twice the width, the output again."""
    more = 6 * decoder.hidden * (2 * decoder.hidden + decoder.vocabulary)
    return megatron(decoder, length) + of_token(decoder, length)["layer"] + more


def two_of_three(decoder: Decoder, length: int) -> float:
    """Two of the three matrices of each expert, and half of all pairs, as without windows."""
    found, experts = of_token(decoder, length), decoder.experts
    assert experts is not None
    left_out = decoder.layers * experts.chosen * decoder.hidden * experts.width
    half = (found["six_nd_attention"] - found["six_nd"]) / 2
    return 6 * (found["matrices"] - left_out - routers(decoder)) + half


def adapters(decoder: Decoder, length: int) -> float:
    """Two thirds of model FLOPs: frozen weights have no gradient; nor are the adapters counted, or half of attention's."""
    return of_token(decoder, length)["model"] * 2 / 3


def adapters_without_attention(decoder: Decoder, length: int) -> float:
    """4N: short documents are packed, whose attention is a share of a percent."""
    return 4.0 * of_token(decoder, length)["matrices"]


def palm(decoder: Decoder, length: int) -> float:
    """6ND and attention, of all pairs; N is all parameters."""
    return float(of_token(decoder, length)["six_nd_attention"])


@dataclass(frozen=True)
class Case:
    """One model of a table at one length: its names there, and the convention that gives its figure."""

    table: str
    models: tuple[str, ...]
    length: int
    decoder: Decoder
    convention: Callable[[Decoder, int], float]
    kind: str = "pretrain"
    chosen: Callable[[dict[str, str]], bool] = lambda row: True

    @property
    def implied(self) -> list[float]:
        """FLOPs of a token in each of the table's rows."""
        with (TABLES / f"{self.table}.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["model"] in self.models and self.chosen(row)]
        return [
            float(row["model_tflops_per_gpu"]) * 1e12 / float(row["tokens_per_s_per_gpu"])
            for row in rows
            if int(row["seq_len"]) == self.length and row.get("kind", self.kind) == self.kind
        ]

    @property
    def counted(self) -> float:
        """FLOPs of a token from our count."""
        return self.convention(self.decoder, self.length)


def _in(*containers: str) -> Callable[[dict[str, str]], bool]:
    return lambda row: row["source"] == "megatron-bridge" and row["container"] in containers


def _of(source: str) -> Callable[[dict[str, str]], bool]:
    return lambda row: row["source"] == source


def _without_prediction(row: dict[str, str]) -> bool:
    return row["container"] == "25.11" or row["source"] == "automodel"


def _mpt(name: str, length: int) -> Decoder:
    layers, width, heads = MPT[name]
    shape = (layers, width, heads, heads, width // heads, 50368)
    return Decoder(*shape, mlp=4 * width, gated=False, bias=True, tied=True, positions=length, centred=True)


_OLD_OSS = ("25.11", "26.02", "26.02.01", "26.04", "26.04.01")
CASES = (
    Case("nemo", ("LLAMA3_8B",), 8192, LLAMA3_8B, megatron),
    Case("nemo", ("LLAMA3_70B", "Llama3 70B"), 8192, LLAMA3_70B, megatron),
    Case("nemo", ("LLAMA3.1_405B",), 8192, LLAMA3_405B, megatron),
    Case("nemo", ("LLAMA3_70B",), 4096, LLAMA3_70B, megatron, "sft"),
    Case("nemo", ("Qwen3_30B_a3B",), 4096, QWEN3_30B, megatron),
    Case("nemo", ("Qwen3_235B_a22B",), 4096, QWEN3_235B, megatron),
    Case("nemo", ("Kimi_K2", "Kimi K2"), 4096, KIMI_K2, megatron),
    Case("nemo", ("DeepSeekV3", "DeepSeek V3 671B"), 4096, DEEPSEEK_V3, megatron, chosen=_without_prediction),
    Case("nemo", ("DeepSeekV3",), 4096, DEEPSEEK_V3, with_prediction, chosen=lambda row: not _without_prediction(row)),
    Case("nemo", ("GPT OSS 120B",), 4096, GPT_OSS_120B, two_of_three, chosen=_in(*_OLD_OSS)),
    Case("nemo", ("GPT OSS 120B",), 8192, GPT_OSS_120B, two_of_three),
    Case("nemo", ("GPT OSS 120B",), 4096, GPT_OSS_120B, megatron, chosen=_in("26.06", "26.08")),
    Case("nemo", ("Llama3 8B",), 4096, LLAMA3_8B, adapters, "lora"),
    Case("nemo", ("Llama3 70B",), 4096, LLAMA3_70B, adapters, "lora"),
    Case("nemo", ("LLAMA3_70B",), 4096, LLAMA3_70B, adapters_without_attention, "lora"),
    Case("nemo", ("Qwen2.5 7B",), 4096, QWEN25_7B, adapters, "lora"),
    Case("nemo", ("Qwen2.5 32B",), 4096, QWEN25_32B, adapters, "lora"),
    *(Case("mpt", (name,), 2048, _mpt(name, 2048), palm) for name in MPT),
    *(Case("mpt", (name,), 8192, _mpt(name, 8192), palm) for name in ("125m", "3b", "13b")),
)  # fmt: skip
# Rows that are not here: architectures that were not built. Of gpt-oss-120b, Automodel's formula gives 30.29.
NOT_BUILT = (
    "DeepSeekV4 Flash",
    "Nemotron_3_Nano",
    "Nemotron_3_Super",
    "Nemotron_3_Ultra",
    "Nemotron V3 Ultra 550B",
)


def main() -> None:
    """Print a line for each model and length."""
    print(
        f"{'GFLOPs of a token':26}{'length':>7}{'rows':>5}{'implied':>10}{'counted':>10}{'error':>8}  convention"
    )
    near, used = 0, 0
    for case in CASES:
        implied = median(case.implied)
        error, used = case.counted / implied - 1, used + len(case.implied)
        near += abs(error) < _WITHIN
        name = f"{'MPT ' if case.table == 'mpt' else ''}{case.models[0]} {'' if case.kind == 'pretrain' else case.kind}"
        figures = f"{case.length:7,}{len(case.implied):5}{implied / 1e9:10.2f}{case.counted / 1e9:10.2f}{error:+8.2%}"
        print(f"{name:26}{figures}  {case.convention.__name__.replace('_', ' ')}")
    predicts = {case.convention is with_prediction and case.decoder for case in CASES} - {False}
    shapes = len({replace(case.decoder, positions=0) for case in CASES}) + len(predicts)
    print(f"{near} of {len(CASES)} within {_WITHIN:.1%}, {shapes} architectures, {used} rows")
    for case in {one.convention: one for one in CASES}.values():
        words = " ".join((case.convention.__doc__ or "").split())
        print(f"  {case.convention.__name__.replace('_', ' ')}: {words}")
    print(f"not built: {', '.join(NOT_BUILT)}; gpt-oss-120b by Automodel's formula, 30.29")


if __name__ == "__main__":
    main()
