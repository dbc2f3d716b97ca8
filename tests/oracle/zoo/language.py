"""Architectures of transformers, from small random configurations: text, pictures, sound, series, and pairs of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tests.oracle.zoo.case import Case
from tests.oracle.zoo.vision import torchvision_operators

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = ({"n": 2, "t": 12}, {"n": 3, "t": 20}, {"n": 5, "t": 33})
BATCHES = ({"n": 2}, {"n": 3}, {"n": 5})
SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    **SMALL, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
}  # fmt: skip
DELTA = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
STATES = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_n_groups": 1,
}  # fmt: skip
PAIRED = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "scale_embedding": True,
}  # fmt: skip
PICTURE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
SOUND = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 16],
    "depths": [1, 1, 1, 1],
}

# Decoders: by model type, what differs from GROUPED.
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "num_hidden_layers": 3},
    "phi": {},
    "phi3": {},
    "falcon": {"new_decoder_architecture": False},
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4},
    "gpt_bigcode": {},
    "codegen": {"rotary_dim": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_head": 4, "n_layer": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "stablelm": {},
    "starcoder2": {},
    "olmo": {},
    "olmo2": {},
    "cohere": {},
    "granite": {},
    "nemotron": {},
    "smollm3": {},
    "glm4": {},
    "exaone4": {"sliding_window": 8},
    "ministral": {"sliding_window": 8},
    "biogpt": {},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "persimmon": {},
    "openai-gpt": {},
    "ctrl": {"n_embd": 32, "dff": 48, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "mixtral": EXPERTS,
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "granitemoe": EXPERTS,
    "phimoe": EXPERTS,
    "gpt_oss": {**EXPERTS, "sliding_window": 8},
    "deepseek_v2": {**LATENT, "num_key_value_heads": 4, "head_dim": 4},
    "deepseek_v3": {**LATENT, "num_key_value_heads": 4, "head_dim": 4},
    "qwen3_next": {**EXPERTS, "shared_expert_intermediate_size": 24, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "mamba": {"state_size": 4, "time_step_rank": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "falcon_mamba": {"state_size": 4, "time_step_rank": 4},
    "rwkv": {"context_length": 64, "attention_hidden_size": 32},
    "jamba": {**EXPERTS, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_n_groups": 1, "attn_layer_indices": [1]},
    "zamba2": {"mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8, "chunk_size": 8, "num_mem_blocks": 1, "layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 4, "use_mem_rope": True},
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
    "lfm2": {"full_attn_idxs": [1], "block_multiple_of": 8},
    "minimax": {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 64, "layer_types": ["linear_attention", "full_attention"]},
    "olmo_hybrid": {**DELTA, "linear_num_value_heads": 2, "num_key_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {**DELTA, "layer_types": ["linear_attention", "full_attention"]},
    "kimi_linear": {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 24, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "linear_head_dim": 8, "linear_num_heads": 4, "layer_types": ["linear_attention", "full_attention"]},
    "granitemoehybrid": {**STATES, "num_local_experts": 4, "shared_intermediate_size": 24, "layer_types": ["mamba", "attention"]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24, "use_mamba_kernels": False},
    "falcon_h1": {**STATES, "mamba_d_ssm": 64},
    "zamba": {"num_key_value_heads": 4, "attention_hidden_size": 64, "attention_head_dim": 16, "head_dim": 16, "n_mamba_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"]},
    "lfm2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "lfm3": {"sliding_window": 8},
    "zaya": {"num_experts": 4, "moe_intermediate_size": 24, "router_hidden_size": 16},
    "doge": {"keep_window_size": 8},
    "diffllama": {},
    "xlstm": {"embedding_dim": 32, "num_heads": 4, "num_blocks": 2, "chunk_size": 8, "chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native", "step_kernel": "native"},
}  # fmt: skip

# Decoders whose chunks torch takes minutes to decompose where the length is open: once more at the length that they have.
IN_CHUNKS = ("qwen3_next", "olmo_hybrid", "qwen3_5_text", "kimi_linear", "granitemoehybrid", "minimax")

# Encoders: by model type, what differs from SMALL.
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "longformer": {"attention_window": 4},
    "big_bird": {"attention_type": "original_full"},
    "mpnet": {},
    "squeezebert": {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2},
    "mobilebert": {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    "funnel": {"block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "num_decoder_layers": 1},
    "convbert": {"embedding_size": 16},
    "fnet": {},
    "nystromformer": {"segment_means_seq_len": 64, "num_landmarks": 64},
    "yoso": {"use_expectation": True},
    "mra": {"block_per_row": 1, "approx_mode": "full"},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "roformer": {},
    "megatron-bert": {},
    "ibert": {},
    "camembert": {},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "tapas": {},
    "canine": {"local_transformer_stride": 4, "num_hash_buckets": 64, "downsampling_rate": 2},
    "perceiver": {"d_latents": 32, "num_latents": 8, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 5, "token_dropout": False},
}  # fmt: skip
# Pairs: by model type, what differs from PAIRED.
PAIRS: dict[str, dict[str, Any]] = {
    "t5": {"num_layers": 2, "d_kv": 8, "d_ff": 48, "num_heads": 4},
    "mt5": {"num_layers": 2, "d_kv": 8, "d_ff": 48, "num_heads": 4, "feed_forward_proj": "gated-gelu"},
    "longt5": {"num_layers": 2, "d_kv": 8, "d_ff": 48, "num_heads": 4, "local_radius": 4, "encoder_attention_type": "local"},
    "switch_transformers": {"num_layers": 2, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_experts": 4, "expert_capacity": 8},
    "umt5": {"num_layers": 2, "d_kv": 8, "d_ff": 48, "num_heads": 4},
    "bart": {},
    "mbart": {},
    "marian": {},
    "pegasus": {},
    "m2m_100": {},
    "blenderbot": {},
    "led": {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    "fsmt": {"langs": ["en", "de"], "src_vocab_size": 96, "tgt_vocab_size": 96},
    "prophetnet": {"hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4},
    "bigbird_pegasus": {"attention_type": "original_full"},
}  # fmt: skip


# Pictures: by model type and head, what differs from PICTURE.
PICTURES: dict[tuple[str, str], dict[str, Any]] = {
    ("vit", "ImageClassification"): {},
    ("deit", "DeiTForImageClassification"): {},
    ("beit", "ImageClassification"): {},
    ("data2vec-vision", "ImageClassification"): {},
    ("swin", "ImageClassification"): {"embed_dim": 8, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 2, "patch_size": 4},
    ("swinv2", "ImageClassification"): {"embed_dim": 8, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 2, "patch_size": 4},
    ("convnext", "ImageClassification"): {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 4},
    ("convnextv2", "ImageClassification"): {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 4},
    ("segformer", "SemanticSegmentation"): {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16, "patch_sizes": [7, 3, 3, 3]},
    ("upernet", "SemanticSegmentation"): {"image_size": 64, "hidden_size": 16, "auxiliary_channels": 8, "auxiliary_in_channels": 16, "backbone_config": {**RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    ("dinov2", "ImageClassification"): {},
    ("dinov2_with_registers", "ImageClassification"): {},
    ("pvt", "ImageClassification"): {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "patch_sizes": [4, 2, 2, 2]},
    ("poolformer", "ImageClassification"): {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    ("efficientnet", "ImageClassification"): {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    ("mobilevit", "ImageClassification"): {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16], "image_size": 64, "patch_size": 2},
    ("mobilenet_v1", "ImageClassification"): {"depth_multiplier": 0.25},
    ("levit", "LevitForImageClassification"): {"hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "image_size": 64, "patch_size": 16},
    ("cvt", "ImageClassification"): {"embed_dim": [8, 16, 16], "depth": [1, 2, 3], "num_heads": [1, 2, 2], "image_size": 64},
    ("focalnet", "ImageClassification"): {"embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16], "focal_levels": [2, 2], "focal_windows": [3, 3], "patch_size": 4},
    ("resnet", "ImageClassification"): {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    ("regnet", "ImageClassification"): {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8},
    ("bit", "ImageClassification"): {"embedding_size": 32, "hidden_sizes": [32, 32, 32, 32], "depths": [1, 1, 1, 1], "num_groups": 4},
    ("vit_mae", "PreTraining"): {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 24},
    ("hiera", "ImageClassification"): {"embed_dim": 8, "image_size": [64, 64], "patch_size": [7, 7]},
    ("glpn", "DepthEstimation"): {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16, "patch_sizes": [7, 3, 3, 3]},
    ("dpt", "DepthEstimation"): {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False},
    ("yolos", "ObjectDetection"): {"num_detection_tokens": 5, "image_size": [32, 32]},
    ("swin2sr", "ImageToImage"): {"embed_dim": 8, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 4, "patch_size": 1},
    ("superpoint", "KeypointDetection"): {},
    ("videomae", "VideoClassification"): {"num_frames": 4},
    ("timesformer", "VideoClassification"): {"num_frames": 4},
    ("vivit", "VideoClassification"): {"num_frames": 4, "video_size": [4, 32, 32], "tubelet_size": [2, 8, 8]},
    ("siglip_vision_model", ""): {},
    ("clip_vision_model", ""): {},
}  # fmt: skip
_OTHER_HEADS = {"canine": "AutoModel", "xlnet": "AutoModelForCausalLM"}


def cases() -> Iterator[Case]:
    """All of them; text models of each way of writing attention with both."""
    import transformers  # noqa: F401 skipped where it is missing

    with suppress(ModuleNotFoundError):  # transformers needs none, but trips over one that does not load
        torchvision_operators()
    both = {"llama", "gpt2", "gemma2", "gpt_neox", "bloom", "falcon", "bert", "deberta-v2", "t5", "bart"}
    tables = (
        (DECODERS, GROUPED, "AutoModelForCausalLM"),
        (ENCODERS, SMALL, "AutoModelForMaskedLM"),
        (PAIRS, PAIRED, "AutoModelForSeq2SeqLM"),
    )
    for table, base, head in tables:
        for kind, changes in table.items():
            yield text(kind, _OTHER_HEADS.get(kind, head), {**base, **changes}, paired=table is PAIRS)
            if kind in both:
                yield text(kind, head, {**base, **changes}, paired=table is PAIRS, attention="eager")
    for (kind, head), changes in PICTURES.items():
        yield picture(
            kind,
            head if "For" in head else f"AutoModelFor{head}" if head else "AutoModel",
            {**PICTURE, **changes},
        )
    for kind in IN_CHUNKS:
        options = {**GROUPED, **DECODERS[kind], "block_size": 8}
        case = text(kind, "AutoModelForCausalLM", options)
        yield replace(case, name=f"{case.name}_in_chunks", sizes=TEXTS[1:2])
    for kind in ("llama", "gemma3_text", "gpt2", "bloom"):
        yield decoding(kind, {**GROUPED, **DECODERS[kind]})
    yield from sounds()
    yield from pairs_with_pictures()
    yield from series()


def text(
    kind: str, head: str, options: dict[str, Any], paired: bool = False, attention: str | None = None
) -> Case:
    """A model from token numbers, of an encoder and of a decoder where it is a pair."""

    def inputs(n: int, t: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 90, (n, t))
        if kind == "perceiver":
            return {"inputs": ids}
        given = {"input_ids": ids}
        if paired:
            given["decoder_input_ids"] = torch.randint(3, 90, (n, t // 2))
        if kind in ("longt5", "switch_transformers"):
            given["attention_mask"] = torch.ones(n, t, dtype=torch.int64)
        return given

    name = f"transformers/{kind}" + (f"_{attention}" if attention else "")
    return Case(name, lambda: made(kind, head, options, attention), inputs, TEXTS)


def decoding(kind: str, options: dict[str, Any]) -> Case:
    """One more token after `t` whose keys and values are kept."""

    def build() -> torch.nn.Module:
        from transformers.integrations.executorch import register_dynamic_cache_export_support

        register_dynamic_cache_export_support()
        model = made(kind, "AutoModelForCausalLM", options).eval()
        model.config.use_cache = True
        return model

    def inputs(n: int, t: int) -> dict[str, Any]:
        from transformers import DynamicCache

        heads = options["num_attention_heads" if kind in ("gpt2", "bloom") else "num_key_value_heads"]
        cache = DynamicCache()
        for layer in range(options["num_hidden_layers"]):
            cache.update(torch.rand(n, heads, t, 8), torch.rand(n, heads, t, 8), layer)
        return {"input_ids": torch.randint(3, 90, (n, 1)), "past_key_values": cache}

    return Case(
        f"transformers/{kind}_decoding",
        build,
        inputs,
        ({"n": 2, "t": 7}, {"n": 3, "t": 20}, {"n": 5, "t": 33}),
    )


def picture(kind: str, head: str, options: dict[str, Any]) -> Case:
    """A model from pictures, or from a few frames of a film."""
    size = options["image_size"]
    sides = tuple(size) if isinstance(size, list) else (size, size)
    frames = (options["num_frames"],) if "num_frames" in options else ()
    return Case(
        f"transformers/{kind}",
        lambda: made(kind, head, options),
        lambda n: {"pixel_values": torch.rand(n, *frames, 1 if kind == "none" else 3, *sides)},
        BATCHES,
    )


def sounds() -> Iterator[Case]:
    """Models from waves and from spectra."""
    lengths = ({"n": 2, "t": 400}, {"n": 3, "t": 800}, {"n": 5, "t": 1230})
    waves = lambda n, t: {"input_values": torch.rand(n, t)}  # noqa: E731
    for kind in ("wav2vec2", "hubert", "unispeech-sat", "wavlm", "sew", "wav2vec2-conformer"):
        yield Case(
            f"transformers/{kind}",
            lambda kind=kind: made(kind, "AutoModelForCTC", {**SOUND, "squeeze_factor": 1}),
            waves,
            lengths,
        )
    yield Case(
        "transformers/whisper",
        lambda: made(
            "whisper",
            "AutoModelForSpeechSeq2Seq",
            {**PAIRED, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64},
        ),
        lambda n, t: {
            "input_features": torch.rand(n, 8, 32),
            "decoder_input_ids": torch.randint(3, 90, (n, t)),
        },
        TEXTS,
    )
    yield Case(
        "transformers/speech_to_text",
        lambda: made(
            "speech_to_text",
            "AutoModelForSpeechSeq2Seq",
            {
                **PAIRED,
                "input_feat_per_channel": 8,
                "conv_channels": 16,
                "max_source_positions": 64,
                "max_target_positions": 64,
            },
        ),
        lambda n, t: {
            "input_features": torch.rand(n, 32, 8),
            "decoder_input_ids": torch.randint(3, 90, (n, t)),
        },
        TEXTS,
    )
    yield Case(
        "transformers/audio-spectrogram-transformer",
        lambda: made(
            "audio-spectrogram-transformer",
            "AutoModelForAudioClassification",
            {**PICTURE, "max_length": 32, "num_mel_bins": 16},
        ),
        lambda n: {"input_values": torch.rand(n, 32, 16)},
        BATCHES,
    )
    yield Case(
        "transformers/clap_audio_model",
        lambda: made(
            "clap_audio_model",
            "ClapAudioModel",
            {
                "patch_embeds_hidden_size": 8,
                "depths": [1, 1],
                "num_attention_heads": [2, 2],
                "hidden_size": 16,
                "window_size": 4,
                "spec_size": 64,
                "num_mel_bins": 16,
                "patch_stride": [4, 4],
            },
        ),
        lambda n: {"input_features": torch.rand(n, 1, 64, 16)},
        BATCHES,
    )
    yield Case(
        "transformers/encodec",
        lambda: made(
            "encodec",
            "AutoModel",
            {
                "num_filters": 4,
                "hidden_size": 16,
                "num_lstm_layers": 1,
                "codebook_size": 16,
                "codebook_dim": 16,
                "upsampling_ratios": [4, 2],
            },
        ),
        lambda n: {"input_values": torch.rand(n, 1, 320)},
        BATCHES,
    )


def pairs_with_pictures() -> Iterator[Case]:
    """Models from text and pictures, and detectors."""
    tower = {"projection_dim": 16, "text_config": SMALL, "vision_config": PICTURE}
    for kind, _width in (
        ("clip", 16),
        ("siglip", 32),
        ("owlvit", 16),
        ("blip", 16),
        ("groupvit", 16),
        ("altclip", 16),
    ):
        yield Case(
            f"transformers/{kind}",
            lambda kind=kind: made(kind, "AutoModel", tower),
            lambda n: {"input_ids": torch.randint(3, 90, (n, 16)), "pixel_values": torch.rand(n, 3, 32, 32)},
            BATCHES,
        )
    detector = {
        **PAIRED,
        "num_queries": 5,
        "use_timm_backbone": False,
        "backbone": None,
        "use_pretrained_backbone": False,
    }
    for kind in ("detr", "conditional_detr", "deformable_detr", "table-transformer"):
        yield Case(
            f"transformers/{kind}",
            lambda kind=kind: made(
                kind,
                "AutoModelForObjectDetection",
                {
                    **detector,
                    "backbone_config": {**RESNET, "out_features": ["stage2", "stage3", "stage4"]},
                    "num_feature_levels": 3,
                },
            ),
            lambda n: {"pixel_values": torch.rand(n, 3, 64, 64)},
            BATCHES,
        )


def series() -> Iterator[Case]:
    """Models from time series."""
    yield Case(
        "transformers/patchtst",
        lambda: made(
            "patchtst",
            "AutoModelForTimeSeriesPrediction" if False else "PatchTSTForPrediction",
            {
                "d_model": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "ffn_dim": 24,
                "context_length": 32,
                "patch_length": 4,
                "patch_stride": 4,
                "prediction_length": 8,
                "num_input_channels": 3,
            },
        ),
        lambda n: {"past_values": torch.rand(n, 32, 3)},
        BATCHES,
    )
    yield Case(
        "transformers/patchtsmixer",
        lambda: made(
            "patchtsmixer",
            "PatchTSMixerForPrediction",
            {
                "d_model": 16,
                "num_layers": 2,
                "context_length": 32,
                "patch_length": 4,
                "patch_stride": 4,
                "prediction_length": 8,
                "num_input_channels": 3,
            },
        ),
        lambda n: {"past_values": torch.rand(n, 32, 3)},
        BATCHES,
    )


def made(kind: str, head: str, options: dict[str, Any], attention: str | None = None) -> torch.nn.Module:
    """The model of a type and a head, random."""
    import transformers

    known = transformers.CONFIG_MAPPING[kind]
    accepted = {key: value for key, value in options.items() if _knows(known, key)}
    config = transformers.AutoConfig.for_model(kind, **accepted)
    for part in (
        config,
        *(value for value in vars(config).values() if isinstance(value, transformers.PretrainedConfig)),
    ):
        part.use_cache = False
        part._experts_implementation = "batched_mm"  # `_grouped_mm` is counted as 0
    model = getattr(transformers, head)
    make = model.from_config if head.startswith("Auto") else model._from_config
    return make(config, **({"attn_implementation": attention} if attention else {}))


def _knows(configuration: Any, key: str) -> bool:
    default = configuration()
    return key in default.to_dict() or key in default.attribute_map or key.endswith(("_token_id", "_config"))
