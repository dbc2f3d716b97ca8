"""Models of timm drawn at random, one a family, with random batch sizes: nothing was read from them or fitted to them.

Convolutions of other sizes of some families were among those that cuDNN's choices were read from.
"""

from __future__ import annotations

from benchmarks.memory_models import Built, timm

DRAWN: dict[str, Built] = {
    "seresnext26ts": timm("seresnext26ts", 16, 256),
    "resnetv2_50d_frn": timm("resnetv2_50d_frn", 32),
    "levit_192": timm("levit_192", 32),
    "dpn48b": timm("dpn48b", 4),
    "vit_srelpos_small_patch16_224": timm("vit_srelpos_small_patch16_224", 2),
    "legacy_seresnet152": timm("legacy_seresnet152", 8),
    "tf_mobilenetv3_small_100": timm("tf_mobilenetv3_small_100", 1),
    "tiny_vit_21m_512": timm("tiny_vit_21m_512", 1, 512),
    "starnet_s2": timm("starnet_s2", 16),
    "poolformer_s36": timm("poolformer_s36", 32),
    "efficientnet_b4": timm("efficientnet_b4", 8, 320),
    "regnety_008": timm("regnety_008", 1),
    "resnet33ts": timm("resnet33ts", 2, 256),
    "resnest50d": timm("resnest50d", 1),
    "eva02_small_patch14_224": timm("eva02_small_patch14_224", 2),
    "efficientvit_b0": timm("efficientvit_b0", 2),
    "resnetaa50": timm("resnetaa50", 2),
    "lcnet_050": timm("lcnet_050", 16),
    "pvt_v2_b4": timm("pvt_v2_b4", 1),
    "pit_s_distilled_224": timm("pit_s_distilled_224", 4),
    "iformer_s": timm("iformer_s", 2),
    "efficientvim_m3_dist": timm("efficientvim_m3_dist", 16),
    "regnetz_040_h": timm("regnetz_040_h", 4, 256),
    "convnext_atto_ols": timm("convnext_atto_ols", 16),
    "convnextv2_tiny": timm("convnextv2_tiny", 16),
    "gcvit_xtiny": timm("gcvit_xtiny", 32),
    "coatnet_rmlp_1_rw2_224": timm("coatnet_rmlp_1_rw2_224", 32),
    "selecsls60": timm("selecsls60", 8),
    "deit3_small_patch16_384": timm("deit3_small_patch16_384", 2, 384),
    "coat_small": timm("coat_small", 8),
    "cs3darknet_l": timm("cs3darknet_l", 16, 256),
    "cpubone_b2pt5_dwnorm": timm("cpubone_b2pt5_dwnorm", 2, 256),
    "repghostnet_050": timm("repghostnet_050", 2),
    "lowformer_b2": timm("lowformer_b2", 4),
    "xcit_nano_12_p16_384": timm("xcit_nano_12_p16_384", 8, 384),
    "edgenext_base": timm("edgenext_base", 32, 256),
    "regnetv_040": timm("regnetv_040", 32),
    "hrnet_w40": timm("hrnet_w40", 2),
    "lcnetv2_large": timm("lcnetv2_large", 8),
    "rexnetr_200": timm("rexnetr_200", 32),
    "fastvit_mci2": timm("fastvit_mci2", 8, 256),
    "mobilenetv4_conv_large": timm("mobilenetv4_conv_large", 8, 384),
    "hiera_tiny_224": timm("hiera_tiny_224", 32),
}
