"""Models of transformers drawn at random, one a family, with random batches and lengths.

Nothing was read from them or fitted to them when they were measured first.
Sizes are those that a family's configuration has by itself, of four layers where it has more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.memory_models import Built, Field, answers, pixels, sound, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def drawn(
    name: str, inputs: Callable[[], tuple[Any, ...]], more: Any = dict, field: str = "", **config: Any
) -> Built:
    """A model of transformers by the name of its class. field: the output that is kept. config: what is not the default."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import transformers

        module = getattr(transformers, name)
        configuration = module.config_class(**config)
        configuration.use_cache = False
        kept = field or ("logits" if "For" in name else "last_hidden_state")
        return Field(module(configuration), kept), inputs(), more()

    return build


DRAWN_TRANSFORMERS: dict[str, Built] = {
    "gte": drawn("GteModel", text(8, 512), num_hidden_layers=4),
    "mobilenet_v2_hf": drawn("MobileNetV2Model", pixels(8, 224)),
    "gpt_bigcode": drawn("GPTBigCodeForCausalLM", text(2, 1024), num_hidden_layers=4),
    "textnet": drawn("TextNetModel", pixels(2, 640)),
    "blenderbot_small": drawn("BlenderbotSmallForCausalLM", text(16, 512), num_hidden_layers=4),
    "voxtral_encoder": drawn("VoxtralEncoder", sound(2, 128, 3000), num_hidden_layers=4),
    "moonshine": drawn("MoonshineModel", sound(4, 32000), more=answers(4, 64), num_hidden_layers=4),
    "neo_mme": drawn("NeoMMEModel", text(1, 256), num_hidden_layers=4),
    "mobilebert": drawn("MobileBertModel", text(2, 512), num_hidden_layers=4),
    "glm_asr_encoder": drawn("GlmAsrEncoder", sound(8, 128, 3000), num_hidden_layers=4),
    "sew": drawn("SEWModel", sound(1, 32000), num_hidden_layers=4),
    "dinov3_convnext": drawn("DINOv3ConvNextModel", pixels(2, 224)),
    "visual_bert": drawn("VisualBertModel", text(2, 64), num_hidden_layers=4),
    "luke": drawn("LukeModel", text(8, 64), num_hidden_layers=4),
    "tipsv2_text": drawn("Tipsv2TextModel", text(8, 64), num_hidden_layers=4),
    "rocbert": drawn("RoCBertForCausalLM", text(16, 64), num_hidden_layers=4),
    "sam_hq_vision": drawn("SamHQVisionModel", pixels(2, 1024), num_hidden_layers=4),
    "git": drawn("GitForCausalLM", text(2, 128), num_hidden_layers=4),
    "rt_detr": drawn("RTDetrModel", pixels(8, 640), decoder_layers=4),
    "umt5": drawn("UMT5Model", text(8, 256), more=answers(8, 256), num_hidden_layers=4, num_decoder_layers=4),
    "doge": drawn("DogeForCausalLM", text(16, 256), num_hidden_layers=4),
    "gradium_phonon_tts": drawn("GradiumPhononTTSModel", text(8, 128), num_hidden_layers=4),
    "cosmos3_edge_text": drawn("Cosmos3EdgeTextModel", text(2, 256), num_hidden_layers=4),
    "resnet_hf": drawn("ResNetModel", pixels(16, 224)),
    "uni_speech": drawn("UniSpeechModel", sound(4, 32000), num_hidden_layers=4),
    "megatron_bert": drawn("MegatronBertForCausalLM", text(2, 64), num_hidden_layers=4),
    "lfm3": drawn("Lfm3ForCausalLM", text(2, 256), num_hidden_layers=4),
    "wav2vec2_conformer": drawn("Wav2Vec2ConformerModel", sound(4, 32000), num_hidden_layers=4),
    "diff_llama": drawn("DiffLlamaForCausalLM", text(4, 128), num_hidden_layers=4),
    "glm_ocr_text": drawn("GlmOcrTextModel", text(16, 256), num_hidden_layers=4),
    "nano_chat": drawn("NanoChatModel", text(8, 1024), num_hidden_layers=4),
    "sam_hq": drawn("SamHQModel", pixels(4, 1024), field="iou_scores"),
    "sam_vision": drawn("SamVisionModel", pixels(1, 1024), num_hidden_layers=4),
    "plbart": drawn("PLBartForCausalLM", text(16, 64), num_hidden_layers=4),
    "ibert": drawn("IBertModel", text(2, 256), num_hidden_layers=4),
    "rembert": drawn("RemBertModel", text(1, 512), num_hidden_layers=4),
    "mobilenet_v1": drawn("MobileNetV1Model", pixels(4, 224)),
    "markup_lm": drawn("MarkupLMModel", text(4, 128), num_hidden_layers=4),
    "voxtral_realtime_encoder": drawn("VoxtralRealtimeEncoder", sound(16, 128, 3000), num_hidden_layers=4),
    "big_bird_pegasus": drawn(
        "BigBirdPegasusModel", text(1, 128), more=answers(1, 128), num_hidden_layers=4, decoder_layers=4
    ),
    "layout_lm": drawn("LayoutLMModel", text(1, 256), num_hidden_layers=4),
    "ppocr_v5": drawn("PPOCRV5ServerRecModel", pixels(4, 224)),
    "granite_docling": drawn("GraniteDoclingTextModel", text(2, 1024), num_hidden_layers=4),
    "sam3_vit": drawn("Sam3ViTModel", pixels(8, 1008), num_hidden_layers=4),
    "data2vec_text": drawn("Data2VecTextModel", text(8, 128), num_hidden_layers=4),
    "deit_hf": drawn("DeiTModel", pixels(16, 224)),
    "pvt_v2_hf": drawn("PvtV2Model", pixels(4, 224)),
    "dinov3_vit": drawn("DINOv3ViTModel", pixels(8, 224)),
    "hiera": drawn("HieraModel", pixels(1, 224)),
    "convnextv2_hf": drawn("ConvNextV2Model", pixels(1, 224)),
    "cvt": drawn("CvtModel", pixels(8, 224)),
    "ijepa": drawn("IJepaModel", pixels(8, 224)),
    "longformer": drawn("LongformerModel", text(16, 256), num_hidden_layers=4),
    "flaubert": drawn("FlaubertModel", text(1, 256), num_hidden_layers=4),
    "radio": drawn("RadioModel", pixels(8, 224)),
    "tipsv2_vision": drawn("Tipsv2VisionModel", pixels(2, 512)),
    "maskformer": drawn("MaskFormerModel", pixels(2, 512)),
    "lw_detr": drawn("LwDetrModel", pixels(2, 512)),
    "poolformer_hf": drawn("PoolFormerModel", pixels(2, 224)),
}

# Drawn after what the first ones showed was mended: these judge it.
DRAWN_AFTER: dict[str, Built] = {
    "canine": drawn("CanineModel", text(2, 64), num_hidden_layers=4),
    "uni_speech_sat": drawn("UniSpeechSatModel", sound(1, 32000), num_hidden_layers=4),
    "dpr": drawn("DPRQuestionEncoder", text(8, 128), field="pooler_output", num_hidden_layers=4),
    "sam": drawn("SamModel", pixels(1, 1024), field="iou_scores"),
    "pocket_tts": drawn("PocketTTSModel", text(8, 256), num_hidden_layers=4),
    "nomic_bert": drawn("NomicBertModel", text(8, 256), num_hidden_layers=4),
    "mt5": drawn("MT5Model", text(1, 128), more=answers(1, 128), num_hidden_layers=4, num_decoder_layers=4),
    "xlmroberta": drawn("XLMRobertaForCausalLM", text(16, 128), num_hidden_layers=4),
    "ernie4_5": drawn("Ernie4_5ForCausalLM", text(8, 256), num_hidden_layers=4),
    "embedding_gemma2_text": drawn("EmbeddingGemma2TextModel", text(16, 256), num_hidden_layers=4),
    "yoso": drawn("YosoModel", text(1, 512), num_hidden_layers=4),
    "qwen2_audio_encoder": drawn("Qwen2AudioEncoder", sound(4, 128, 3000), num_hidden_layers=4),
    "pp_doc_layout_v3": drawn("PPDocLayoutV3Model", pixels(4, 224), decoder_layers=4),
    "gpt_neox_japanese": drawn("GPTNeoXJapaneseForCausalLM", text(4, 512), num_hidden_layers=4),
    "sam2_hiera_det": drawn("Sam2HieraDetModel", pixels(8, 1024)),
    "ppocr_v6": drawn("PPOCRV6TinyRecModel", pixels(4, 224)),
    "mask2_former": drawn(
        "Mask2FormerModel", pixels(16, 224), field="encoder_last_hidden_state", num_hidden_layers=4
    ),
    "sam3_vision": drawn("Sam3VisionModel", pixels(1, 1008)),
    "pp_doc_layout_v4": drawn("PPDocLayoutV4Model", pixels(8, 224), field="logits", decoder_layers=4),
    "tapas": drawn("TapasModel", text(8, 256), num_hidden_layers=4),
    "levit_hf": drawn("LevitModel", pixels(16, 224)),
    "mobile_vi_tv2": drawn("MobileViTV2Model", pixels(1, 256)),
    "sew_d": drawn("SEWDModel", sound(2, 32000), num_hidden_layers=4),
    "mra": drawn("MraModel", text(1, 256), num_hidden_layers=4),
    "falcon_mamba": drawn("FalconMambaForCausalLM", text(8, 512), num_hidden_layers=4),
    "layout_lm_v3": drawn("LayoutLMv3Model", text(16, 512), num_hidden_layers=4),
    "conv_bert": drawn("ConvBertModel", text(1, 512), num_hidden_layers=4),
    "mlcd_vision": drawn("MLCDVisionModel", pixels(16, 336), num_hidden_layers=4),
    "bert_generation_encoder": drawn("BertGenerationEncoder", text(1, 64), num_hidden_layers=4),
    "xlnet": drawn("XLNetModel", text(8, 256), num_hidden_layers=4),
    "regnet_hf": drawn("RegNetModel", pixels(4, 224)),
    "sam3_tracker": drawn("Sam3TrackerModel", pixels(2, 1008), field="iou_scores"),
    "pixtral_vision": drawn("PixtralVisionModel", pixels(2, 1024), num_hidden_layers=4),
    "mobile_vi_t": drawn("MobileViTModel", pixels(1, 256)),
    "internvl_vision": drawn("InternVLVisionModel", pixels(8, 448), num_hidden_layers=4),
    "embedding_gemma2": drawn("EmbeddingGemma2Model", text(8, 512)),
}
