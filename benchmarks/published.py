"""FLOPs of a token and utilisation that training frameworks publish, with the configurations that they publish them for.

Addresses are those of the figures. Every number here is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.decoders import Decoder, Experts, Latent

# What a framework counts; see `benchmarks.mfu`.
Convention = Literal["products", "palm", "torchtitan", "torchtitan windowless", "megatron", "megatron 2 of 3"]

TITAN = "https://github.com/pytorch/torchtitan/pull/4300"
TITAN_TABLE = "https://github.com/pytorch/torchtitan/blob/041336434916/docs/performance.md"
NANOGPT = "https://github.com/karpathy/nanoGPT/blob/0bb96d3fff31/transformer_sizing.ipynb"
PALM = "https://arxiv.org/abs/2204.02311, section 4.1"
MPT = "https://github.com/mosaicml/llm-foundry/blob/061f2c7ce64e/scripts/train/benchmarking/README.md"
BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/00b7660be025/docs/performance-summary.md"

GPT2 = Decoder(12, 768, 12, 12, 64, 50257, mlp=3072, gated=False, tied=True, positions=1024)
PALM_540B = Decoder(118, 18432, 48, 1, 256, 256000, mlp=73728, tied=True, norms=1)
LLAMA2_13B = Decoder(40, 5120, 40, 40, 128, 32000, mlp=13824)
LLAMA2_70B = Decoder(80, 8192, 64, 8, 128, 32000, mlp=28672)
LLAMA3_8B = Decoder(32, 4096, 32, 8, 128, 128256, mlp=14336)
LLAMA3_70B = Decoder(80, 8192, 64, 8, 128, 128256, mlp=28672)
LLAMA3_405B = Decoder(126, 16384, 128, 8, 128, 128256, mlp=53248)
QWEN3_30B = Decoder(48, 2048, 32, 4, 128, 151936, norm_heads=True, experts=Experts(128, 8, 768))
QWEN3_235B = Decoder(94, 4096, 64, 4, 128, 151936, norm_heads=True, experts=Experts(128, 8, 1536))
GPT_OSS_20B = Decoder(
    24, 2880, 64, 8, 64, 201088, bias=True, sinks=True, window=128, experts=Experts(32, 4, 2880)
)
GPT_OSS_120B = Decoder(
    36, 2880, 64, 8, 64, 201088, bias=True, sinks=True, window=128, experts=Experts(128, 4, 2880)
)


def _mpt(layers: int, hidden: int, heads: int, length: int) -> Decoder:
    """An MPT: biases everywhere, a learned position for each token of the sequence."""
    shape = (layers, hidden, heads, heads, hidden // heads, 50368)
    return Decoder(*shape, mlp=4 * hidden, gated=False, bias=True, tied=True, positions=length, centred=True)


DEEPSEEK_V3 = Decoder(
    *(61, 7168, 128, 128, 128, 129280),
    experts=Experts(256, 8, 2048, shared=2048, dense_layers=3, dense_width=18432),
    latent=Latent(1536, 512, 128, 64),
)


@dataclass(frozen=True)
class Flops:
    """A number of FLOPs of a training step for `tokens` tokens, published to the last digit."""

    model: str
    decoder: Decoder
    length: int
    convention: Convention
    flops: int
    source: str
    tokens: int = 1


@dataclass(frozen=True)
class Rate:
    """A throughput in tokens a second of one device, and what is published with it: FLOP/s, or its share of `peak`.

    digits: of the published figure behind the point.
    """

    model: str
    decoder: Decoder
    length: int
    convention: Convention
    tokens: float
    figure: float
    source: str
    peak: float = 1e12
    digits: int = 0


EXACT = (
    Flops("GPT-2 124M", GPT2, 1024, "products", 874_944_921_600, NANOGPT, tokens=1024),
    Flops("GPT-2 124M", GPT2, 1024, "palm", 879_894_724_608, NANOGPT, tokens=1024),
    Flops("Qwen3 30B-A3B", QWEN3_30B, 8192, "torchtitan", 37_578_559_488, TITAN),
    Flops("gpt-oss-20b", GPT_OSS_20B, 4096, "torchtitan windowless", 26_481_681_792, TITAN),
    Flops("gpt-oss-20b", GPT_OSS_20B, 4096, "torchtitan", 24_141_260_160, TITAN),
    Flops("gpt-oss-120b", GPT_OSS_120B, 4096, "torchtitan windowless", 38_044_854_144, TITAN),
    Flops("gpt-oss-120b", GPT_OSS_120B, 4096, "torchtitan", 34_534_221_696, TITAN),
)

_A100 = 312e12 / 100  # the utilisation is published in percent
_H100 = 989.5e12 / 100
_TPU_V4 = 6144 * 275e12 / 100

UTILISATION = (
    Rate("GPT-2 124M", GPT2, 1024, "products", 100 * 1024 / 0.755, 37.14, NANOGPT, _A100, 2),
    Rate("PaLM 540B", PALM_540B, 2048, "palm", 238_300, 46.2, PALM, _TPU_V4, 1),
    Rate("Llama 3 8B", LLAMA3_8B, 8192, "palm", 2904, 56.8, TITAN_TABLE, _A100, 1),
    Rate("Llama 3 8B", LLAMA3_8B, 8192, "palm", 2973, 58.2, TITAN_TABLE, _A100, 1),
    Rate("Llama 3 70B", LLAMA3_70B, 8192, "palm", 331, 51.7, TITAN_TABLE, _A100, 1),
    Rate("Llama 2 13B", LLAMA2_13B, 4096, "palm", 2162, 61.1, TITAN_TABLE, _A100, 1),
    Rate("Llama 2 13B", LLAMA2_13B, 4096, "palm", 1914, 54.1, TITAN_TABLE, _A100, 1),
    Rate("Llama 2 13B", LLAMA2_13B, 4096, "palm", 1904, 53.8, TITAN_TABLE, _A100, 1),
    Rate("Llama 2 70B", LLAMA2_70B, 4096, "palm", 355, 50.8, TITAN_TABLE, _A100, 1),
    Rate("Llama 2 70B", LLAMA2_70B, 4096, "palm", 353, 50.5, TITAN_TABLE, _A100, 1),
    Rate("MPT 1B", _mpt(24, 2048, 16, 2048), 2048, "palm", 363645 / 8, 41.82, MPT, _H100, 2),
    Rate("MPT 3B", _mpt(32, 2560, 20, 8192), 8192, "palm", 132626 / 8, 40.31, MPT, _H100, 2),
    Rate("MPT 7B", _mpt(32, 4096, 32, 2048), 2048, "palm", 85144 / 8, 46.44, MPT, _H100, 2),
    Rate("MPT 13B", _mpt(40, 5120, 40, 4096), 4096, "palm", 37740 / 8, 41.60, MPT, _H100, 2),
    Rate("MPT 30B", _mpt(48, 7168, 56, 2048), 2048, "palm", 73860 / 32, 43.92, MPT, _H100, 2),
    Rate("MPT 70B", _mpt(80, 8192, 64, 2048), 2048, "palm", 66523 / 64, 42.57, MPT, _H100, 2),
    Rate("MPT 125M", _mpt(12, 768, 12, 2048), 2048, "palm", 1142641 / 8, 44.79, MPT, _A100, 2),
    Rate("MPT 350M", _mpt(24, 1024, 16, 65536), 65536, "palm", 60195 / 8, 52.70, MPT, _A100, 2),
    Rate("MPT 7B", _mpt(32, 4096, 32, 2048), 2048, "palm", 37130 / 8, 64.23, MPT, _A100, 2),
)

TERAFLOPS = (  # the tables of DGX-GB300 and DGX-H100, whole but for one row of the second that lacks a column
    Rate("Llama 3 8B", LLAMA3_8B, 8192, "megatron", 37556, 1933, BRIDGE),
    Rate("Llama 3 8B", LLAMA3_8B, 8192, "megatron", 36108, 1858, BRIDGE),
    Rate("Llama 3 70B", LLAMA3_70B, 8192, "megatron", 4520, 2030, BRIDGE),
    Rate("Llama 3.1 405B", LLAMA3_405B, 8192, "megatron", 999, 2522, BRIDGE),
    Rate("DeepSeek-V3", DEEPSEEK_V3, 4096, "megatron", 3848, 961, BRIDGE),
    Rate("DeepSeek-V3", DEEPSEEK_V3, 4096, "megatron", 4357, 1088, BRIDGE),
    Rate("gpt-oss-120b", GPT_OSS_120B, 8192, "megatron 2 of 3", 18347, 565, BRIDGE),
    Rate("Qwen3 30B-A3B", QWEN3_30B, 4096, "megatron", 28934, 666, BRIDGE),
    Rate("Qwen3 235B-A22B", QWEN3_235B, 4096, "megatron", 6131, 907, BRIDGE),
    Rate("Llama 3 8B", LLAMA3_8B, 8192, "megatron", 14451, 744, BRIDGE),
    Rate("Llama 3 70B", LLAMA3_70B, 8192, "megatron", 1602, 719, BRIDGE),
    Rate("Llama 3.1 405B", LLAMA3_405B, 8192, "megatron", 292, 737, BRIDGE),
    Rate("gpt-oss-120b", GPT_OSS_120B, 4096, "megatron 2 of 3", 5630, 153, BRIDGE),
    Rate("Qwen3 30B-A3B", QWEN3_30B, 4096, "megatron", 5275, 121, BRIDGE),
)
