"""Captures architectures of transformers, timm and torchvision by name, at small sizes, and counts them a second way.

Parameters are compared with those of the model that the library builds by itself; bytes of caches with those of the cache
that the same model, with real weights on the CPU, leaves after a prompt. Needs `pip install 'graphflops[capture]'`.

    python benchmarks/capture.py [WORD ...] > benchmarks/results/capture.txt
    python benchmarks/capture.py --large >> benchmarks/results/capture.txt

WORD: only names that hold it. --large: what the command takes to capture a decoder of 8 billion parameters, both phases, by
the axes that stay open.
"""

from __future__ import annotations

import platform
import resource
import sys
import tempfile
import time
import warnings
from typing import Any

from graphflops.capturing.name import Name, parsed
from graphflops.capturing.run import captured
from graphflops.errors import GraphflopsError

HEADS = "hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128, vocab_size=500"
GROUPED = f"{HEADS}, num_key_value_heads=2"
PADDED = f"{HEADS}, pad_token_id=0"
MAMBA = "hidden_size=64, num_hidden_layers=2, vocab_size=500, state_size=8, expand=2"
BART = (
    "d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, "
    "encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=500, pad_token_id=0, bos_token_id=1, eos_token_id=2, "
    "decoder_start_token_id=2, forced_eos_token_id=2"
)
T5 = "d_model=64, d_ff=128, d_kv=16, num_heads=4, num_layers=2, num_decoder_layers=2, vocab_size=500"
VISION = "hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128, image_size=64"
SOUND = (
    "hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128, "
    "num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, vocab_size=50"
)
TEXT, ROPED = f"dict({GROUPED})", f"dict({GROUPED}, rope)"

# By class: the sizes. Decoders are captured in both phases, the cache with 40 tokens.
DECODERS = {
    "LlamaConfig": GROUPED,
    "MistralConfig": f"{GROUPED}, sliding_window=16",
    "MixtralConfig": f"{GROUPED}, num_local_experts=4",
    "Qwen2Config": GROUPED,
    "Qwen2MoeConfig": f"{GROUPED}, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32",
    "Qwen3Config": f"{GROUPED}, head_dim=16",
    "Qwen3MoeConfig": f"{GROUPED}, head_dim=16, num_experts=4, moe_intermediate_size=32, num_experts_per_tok=2",
    "Qwen3NextConfig": f"{GROUPED}, head_dim=16, num_experts=4, moe_intermediate_size=32, num_experts_per_tok=2, "
    "shared_expert_intermediate_size=32, layer_types=['linear_attention', 'full_attention'], "
    "linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16",
    "GemmaConfig": f"{GROUPED}, head_dim=16",
    "Gemma2Config": f"{GROUPED}, head_dim=16, sliding_window=16",
    "Gemma3TextConfig": f"{GROUPED}, head_dim=16, sliding_window=16, layer_types=['sliding_attention', 'full_attention']",
    "PhiConfig": GROUPED,
    "Phi3Config": f"{PADDED}, num_key_value_heads=2",
    "FalconConfig": "hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=500",
    "GPT2Config": "n_embd=64, n_head=4, n_layer=2, vocab_size=500",
    "GPTNeoXConfig": HEADS,
    "GPTNeoConfig": "hidden_size=64, num_layers=2, num_heads=4, attention_types=[[['global', 'local'], 1]], "
    "vocab_size=500, window_size=16",
    "GPTJConfig": "n_embd=64, n_head=4, n_layer=2, vocab_size=500, rotary_dim=8",
    "GPTBigCodeConfig": "n_embd=64, n_head=4, n_layer=2, vocab_size=500",
    "BloomConfig": "hidden_size=64, n_head=4, n_layer=2, vocab_size=500",
    "OPTConfig": "hidden_size=64, num_attention_heads=4, num_hidden_layers=2, ffn_dim=128, vocab_size=500, "
    "word_embed_proj_dim=64",
    "MptConfig": "d_model=64, n_heads=4, n_layers=2, vocab_size=500",
    "StableLmConfig": GROUPED,
    "Starcoder2Config": GROUPED,
    "OlmoConfig": GROUPED,
    "Olmo2Config": GROUPED,
    "OlmoeConfig": f"{GROUPED}, num_experts=4, num_experts_per_tok=2",
    "CohereConfig": GROUPED,
    "Cohere2Config": f"{GROUPED}, sliding_window=16, layer_types=['sliding_attention', 'full_attention']",
    "GraniteConfig": GROUPED,
    "GraniteMoeHybridConfig": f"{GROUPED}, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32, "
    "layer_types=['linear_attention', 'full_attention'], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, "
    "mamba_chunk_size=8, mamba_expand=2",
    "DeepseekV2Config": f"{HEADS}, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, "
    "qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, "
    "moe_intermediate_size=32, first_k_dense_replace=1",
    "DeepseekV3Config": f"{HEADS}, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, "
    "qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, "
    "moe_intermediate_size=32, first_k_dense_replace=1",
    "GptOssConfig": f"{GROUPED}, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16, "
    "layer_types=['sliding_attention', 'full_attention']",
    "Llama4TextConfig": f"{GROUPED}, head_dim=16, num_local_experts=4, intermediate_size_mlp=64, attention_chunk_size=16",
    "Glm4Config": f"{PADDED}, num_key_value_heads=2, head_dim=16",
    "SmolLM3Config": f"{PADDED}, num_key_value_heads=2",
    "MambaConfig": MAMBA,
    "Mamba2Config": f"{MAMBA}, num_heads=8, head_dim=16, n_groups=1, chunk_size=8",
    "FalconH1Config": f"{GROUPED}, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8",
    "JambaConfig": f"{GROUPED}, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=8, "
    "mamba_dt_rank=8, use_mamba_kernels=False",
    "BambaConfig": f"{GROUPED}, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, "
    "mamba_chunk_size=8",
    "Lfm2Config": f"{GROUPED}, layer_types=['conv', 'full_attention']",
    "RecurrentGemmaConfig": f"{GROUPED.replace('layers=2', 'layers=3')}, lru_width=64, attention_window_size=16",
    "T5Config": T5,
    "MT5Config": T5,
    "BartConfig": BART,
    "MarianConfig": BART,
    "PegasusConfig": BART,
    "WhisperConfig": f"{BART}, max_source_positions=50, num_mel_bins=16",
    "LlavaConfig": f"text_config={{'model_type': 'llama', **{TEXT}}}, "
    "vision_config={'model_type': 'clip_vision_model', 'hidden_size': 64, 'num_hidden_layers': 2, "
    "'num_attention_heads': 4, 'intermediate_size': 128, 'image_size': 64, 'patch_size': 16}",
    "Qwen2VLConfig": f"text_config={ROPED}, vision_config={{'depth': 2, 'embed_dim': 64, "
    "'num_heads': 4, 'hidden_size': 64}",
}
OTHERS = {
    "BertConfig": HEADS,
    "RobertaConfig": HEADS,
    "DistilBertConfig": "dim=64, n_heads=4, n_layers=2, hidden_dim=128, vocab_size=500",
    "ElectraConfig": f"{HEADS}, embedding_size=32",
    "AlbertConfig": f"{HEADS}, embedding_size=32",
    "XLMRobertaConfig": HEADS,
    "DebertaV2Config": f"{HEADS}, relative_attention=True, pos_att_type='p2c|c2p'",
    "MPNetConfig": HEADS,
    "ModernBertConfig": f"{PADDED}, eos_token_id=1, bos_token_id=1, cls_token_id=1, sep_token_id=2, local_attention=16",
    "ViTConfig": VISION,
    "Dinov2Config": VISION,
    "CLIPConfig": "text_config={'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 4, "
    "'intermediate_size': 128, 'vocab_size': 500}, vision_config={'hidden_size': 64, 'num_hidden_layers': 2, "
    "'num_attention_heads': 4, 'intermediate_size': 128, 'image_size': 64, 'patch_size': 16}",
    "SiglipVisionConfig": f"{VISION}, patch_size=16",
    "SegformerConfig": "num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], num_attention_heads=[1, 2], "
    "sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=32",
    "ConvNextConfig": "depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 128]",
    "Wav2Vec2Config": SOUND,
    "HubertConfig": SOUND,
    "LayoutLMConfig": HEADS,
}
IMAGES = (
    "timm:resnet50",
    "timm:vit_tiny_patch16_224",
    "timm:swin_tiny_patch4_window7_224",
    "timm:convnext_tiny",
    "timm:efficientnet_b0",
    "timm:mobilenetv3_small_100",
    "timm:deit_tiny_patch16_224",
    "timm:regnety_002",
    "timm:mixer_s32_224",
    "timm:densenet121",
    "timm:eva02_tiny_patch14_224",
    "timm:maxvit_rmlp_pico_rw_256",
    "torchvision:resnet18",
    "torchvision:mobilenet_v3_small",
    "torchvision:efficientnet_v2_s",
    "torchvision:vit_b_32",
    "torchvision:swin_t",
    "torchvision:fcn_resnet50",
    "torchvision:r3d_18",
    "torchvision:raft_small",
    "torchvision:fasterrcnn_resnet50_fpn",
    "torchvision:googlenet",
)

# Sizes of Llama 3 8B, from its published config.json.
LARGE = (
    "hf:LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, "
    "num_key_value_heads=8, vocab_size=128256)"
)
OPENED = ((), ("context",), ("batch", "context", "length"))


def names(words: list[str]) -> list[str]:
    """All names, or those that hold one of the words."""
    found = [f"hf:{c}({literal(s)})@phase=both,length=24,context=40" for c, s in DECODERS.items()]
    found += [f"hf:{c}({literal(s)})@length=24" for c, s in OTHERS.items()] + [*IMAGES]
    return [name for name in found if not words or any(word.lower() in name.lower() for word in words)]


def literal(sizes: str) -> str:
    """Sizes as literals alone: a text configuration within another is a dictionary."""
    pairs = ", ".join(f"'{part.partition('=')[0]}': {part.partition('=')[2]}" for part in GROUPED.split(", "))
    roped = f"{{{pairs}, 'rope_parameters': {{'rope_type': 'default', 'mrope_section': [2, 3, 3]}}}}"
    return sizes.replace(f"**{TEXT}", pairs).replace(ROPED, roped)


def counted(name: Name) -> tuple[int, int]:
    """Elements of parameters, and bytes of the cache after a prompt, of the library's own model with real weights."""
    import torch

    if name.library != "hf":
        return sum(p.numel() for p in built_image_model(name).parameters()), 0
    import transformers

    from graphflops.capturing.configurations import _likeliest_class
    from graphflops.capturing.transformers_models import examples

    torch.manual_seed(0)
    config = getattr(transformers, name.target)(**name.sizes)
    model = _likeliest_class(transformers, config, name)(config).eval()
    total = sum(p.numel() for p in model.parameters())
    if name.choices.phase != "both":
        return total, 0
    prompt = {
        key: torch.zeros(value.shape, dtype=value.dtype)
        for key, value in examples(name, training=False)["prefill"].inputs.items()
    }
    token = "decoder_input_ids" if config.is_encoder_decoder else "input_ids"
    prompt[token] = torch.zeros(1, name.choices.context, dtype=torch.int64)
    with torch.no_grad():
        output = model(**prompt, use_cache=True)
    cache = getattr(output, "past_key_values", None) or output.cache_params
    halves = [
        getattr(cache, half)
        for half in ("self_attention_cache", "cross_attention_cache")
        if hasattr(cache, half)
    ]
    layers = [layer for part in halves or [cache] for layer in part.layers]
    return total, sum(tensor.nbytes for layer in layers for tensor in held(layer))


def held(layer: Any) -> list[Any]:
    """The tensors of one layer of a cache, by the names that transformers gives them."""
    found = [getattr(layer, key, None) for key in ("keys", "values")]
    for kind in ("conv_states", "recurrent_states"):
        states = getattr(layer, kind, None)
        found += states.values() if isinstance(states, dict) else [states]
    return [tensor for tensor in found if tensor is not None]


def built_image_model(name: Name) -> Any:
    if name.library == "timm":
        import timm

        return timm.create_model(name.target)
    import torchvision

    backbone = {"weights_backbone": None} if name.target.startswith("fcn") else {}
    return torchvision.models.get_model(name.target, weights=None, **backbone)


def row(text: str) -> str:
    """One line: the name, calls of each program, parameters and bytes of the cache, both ways, or what was said."""
    name = parsed(text)
    assert name is not None
    title = f"{name.library}:{name.target}"
    start = time.perf_counter()
    try:
        graphs = {phase: one.graph() for phase, one in captured(name).items()}
    except GraphflopsError as error:
        return f"{title:<36} said    {str(error).removeprefix(str(name) + ': ')}"
    seconds = time.perf_counter() - start
    graph = [*graphs.values()][-1]
    cells = {
        e.target: graph.types[e.name].numel for e in graph.inputs if e.role == "parameter" and not e.alias_of
    }
    cache = sum(
        graph.types[e.name].nbytes for e in graph.inputs if e.role == "user" and e.name.startswith("cache_")
    )
    try:
        theirs = counted(name)
    except Exception as error:  # noqa: BLE001 - the library's own model does not run: the line says so
        return f"{title:<36} the library's own model fails: {str(error).strip().splitlines()[0][:200]}"
    calls = " + ".join(str(len(graph.nodes)) for graph in graphs.values())
    verdict = "equal" if (sum(cells.values()), cache) == theirs else f"NOT EQUAL: {theirs}"
    return f"{title:<36} {verdict:<7} {sum(cells.values()):>12,} {cache:>12,} {calls:>12} {seconds:6.1f} s"


def large(axes: tuple[str, ...]) -> str:
    """One line: what the command takes to write both phases of the large decoder with these axes open."""
    from analyze import measured  # beside this script

    options = [word for axis in axes for word in ("--dynamic", axis)]
    with tempfile.TemporaryDirectory() as folder:
        wall, seconds, peak, said = measured(
            [sys.executable, "-m", "graphflops", "capture", LARGE, "--phase", "both", *options]
            + ["--output", f"{folder}/lm.pt2"],
            repeat=1,
        )
    opened = ", ".join(axes) or "none"
    used = f"{seconds:5.1f} s of CPU, {wall:5.1f} s, {peak / 1e3:.2f} GB"
    return f"32 layers, 8 B parameters, open: {opened:<24} {used} {said}".rstrip()


def main() -> None:
    warnings.simplefilter("ignore")
    import torch

    if sys.argv[1:] == ["--large"]:
        import transformers

        print(f"torch {torch.__version__}, transformers {transformers.__version__}")
        for axes in OPENED:
            print(large(axes), flush=True)
        return

    print(f"torch {torch.__version__}, Python {platform.python_version()}")
    print(f"{'model':<36} {'counts':<7} {'parameters':>12} {'cache bytes':>12} {'calls':>12}   time")
    for name in names(sys.argv[1:]):
        print(row(name), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
