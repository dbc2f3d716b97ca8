"""The decoders of `benchmarks.steps`: name, what it is for, element type, sizes, steps and prompts."""

from __future__ import annotations

from benchmarks.steps import Sizes

LLAMA_1B = Sizes(8, 2048, 32, 8, 64, 8192, 128256)
LLAMA_8B = Sizes(8, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Sizes(2, 8192, 64, 8, 128, 28672, 128256)
QWEN_HALF_B = Sizes(8, 896, 14, 2, 64, 4864, 151936)
QWEN_1_5B = Sizes(8, 1536, 12, 2, 128, 8960, 151936)
QWEN_4B = Sizes(8, 2560, 32, 8, 128, 9728, 151936, head_norms=True, norm="spelled")
QWEN_7B = Sizes(8, 3584, 28, 4, 128, 18944, 152064, bias=True)
QWEN_32B = Sizes(4, 5120, 40, 8, 128, 27648, 152064)
PHI = Sizes(8, 3072, 32, 32, 96, 8192, 32064, merged=True)
OWN_7B = Sizes(8, 4096, 32, 32, 128, 11008, 32000)
GPT_XL = Sizes(8, 1600, 25, 25, 64, 6400, 50257, gelu=True, norm="layer", bias=True)
GEMMA_9B = Sizes(4, 3584, 16, 8, 256, 14336, 256000, cache="put", norm="spelled")
WHISPER = Sizes(8, 1024, 16, 16, 64, 4096, 51865, gelu=True, norm="layer", bias=True, cross=1500)
QWEN_A3B = Sizes(4, 2048, 32, 4, 128, 768, 151936, head_norms=True, experts=128, top=8)
MIXTRAL = Sizes(2, 4096, 32, 8, 128, 14336, 32000, experts=8, top=2)
JUDGE, FIT = "judge", "fit"
BFLOAT, HALF, FLOAT = "bfloat16", "float16", "float32"
CELLS: dict[str, tuple[str, str, Sizes]] = {
    "8B joined": (JUDGE, BFLOAT, LLAMA_8B._replace(layers=32)),
    "8B indexed, masked, spelled": (
        FIT,
        BFLOAT,
        LLAMA_8B._replace(cache="index", mask="bool", norm="spelled"),
    ),
    "8B float32": (JUDGE, FLOAT, LLAMA_8B._replace(layers=2)),
    "8B sliced": (JUDGE, BFLOAT, LLAMA_8B._replace(cache="slice")),
    "8B interleaved": (JUDGE, BFLOAT, LLAMA_8B._replace(share="interleave")),
    "8B expanded, spelled": (FIT, BFLOAT, LLAMA_8B._replace(share="expand", norm="spelled")),
    "7B biased": (FIT, BFLOAT, QWEN_7B),
    "4B head norms, spelled": (JUDGE, BFLOAT, QWEN_4B),
    "1.5B": (FIT, BFLOAT, QWEN_1_5B),
    "32B": (JUDGE, BFLOAT, QWEN_32B),
    "70B": (FIT, BFLOAT, LLAMA_70B),
    "1B indexed, float mask": (JUDGE, BFLOAT, LLAMA_1B._replace(cache="index", mask="float")),
    "3.8B merged, wide": (JUDGE, BFLOAT, PHI),
    "7B own heads": (JUDGE, HALF, OWN_7B),
    "GPT XL": (FIT, HALF, GPT_XL),
    "9B wide heads": (FIT, BFLOAT, GEMMA_9B),
    "8B windowed": (JUDGE, BFLOAT, LLAMA_8B._replace(window=1024)),
    "encoder-decoder": (JUDGE, HALF, WHISPER),
    "8B hybrid": (FIT, BFLOAT, LLAMA_8B._replace(mixed=4, kv=32)),
    "30B-A3B experts": (FIT, BFLOAT, QWEN_A3B),
    "8x7B experts": (JUDGE, BFLOAT, MIXTRAL),
    "1B expanded float32": (FIT, FLOAT, LLAMA_1B._replace(layers=4, share="expand", norm="spelled")),
    "0.5B float32": (FIT, FLOAT, QWEN_HALF_B._replace(layers=4)),
    "0.5B": (JUDGE, BFLOAT, QWEN_HALF_B._replace(share="expand")),
    "1.5B own float32": (JUDGE, FLOAT, QWEN_1_5B._replace(layers=4, kv=12)),
}
