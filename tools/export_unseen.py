#!/usr/bin/env python
"""Export networks that resperf was never developed on, to judge predictions by once.

Each list was committed before the first of its networks was predicted. None but DistilBERT and two
of the fourth list (torchvision's) is in export_networks.py, and of most families there are no more
than two in a list. They come with random weights, from four exporters: PyTorch's (by TorchScript,
and by torch.export), tf2onnx, and converters of their files: to float16 (onnxconverter-common,
onnxruntime.transformers) and to int8 (onnxruntime.quantization: static with QuantizeLinear and
DequantizeLinear, static with QLinear operators, dynamic).

    pip install torch==2.13.0 torchvision timm transformers diffusers onnxscript
    pip install onnxconverter-common
    python tools/export_unseen.py build/judged
    pip install tensorflow tf2onnx                    # in an environment of its own
    python tools/export_unseen.py build/judged --keras
    python tools/export_unseen.py build/judged2 --list second

Nothing is downloaded. What cannot be exported is named at the end, with the reason.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from export_networks import (
    Export,
    declare_operators,
    timm_module,
    torchvision_module,
    without_weights,
    write_each,
)

Made = tuple[Any, tuple[Any, ...]]
"""Module and example inputs, of a batch of two."""
Maker = Callable[[], Made]
BATCH = 2
SCRIPT_OPSET, KERAS_OPSET = 17, 15
PAST, PROMPT = 128, 64


class Listed(NamedTuple):
    """Networks that are judged together, once."""

    script: tuple[str, ...]
    """Of timm, by TorchScript."""
    dynamo: tuple[str, ...]
    """Of timm, by torch.export."""
    torchvision: tuple[str, ...]
    keras: tuple[str, ...]
    converted: Mapping[str, str]
    """Of timm, by TorchScript -> what its file is converted to."""
    others: tuple[str, ...]
    """Of `others`."""
    converted_others: Mapping[str, str]
    """Of `others`: also converted."""


LISTS: Mapping[str, Listed] = {
    "first": Listed(
        script=(
            "cait_xxs24_224", "crossvit_9_240", "convit_tiny", "coatnet_nano_rw_224",
            "eca_nfnet_l0", "efficientformer_l1", "efficientvit_m0", "gcvit_xxtiny", "hgnetv2_b0",
            "inception_resnet_v2", "mobilenetv4_conv_small", "mvitv2_tiny", "repvit_m0_9",
            "resnetv2_50", "skresnet18", "sequencer2d_s", "visformer_tiny", "ese_vovnet19b_dw",
            "gernet_s", "botnet26t_256",
        ),
        dynamo=(
            "convnextv2_atto", "davit_tiny", "focalnet_tiny_srf", "inception_next_tiny",
            "mambaout_femto", "mobilevitv2_050", "nextvit_small", "pvt_v2_b0", "rdnet_tiny",
            "repghostnet_050", "starnet_s1", "swiftformer_xs", "tiny_vit_5m_224",
            "twins_svt_small", "volo_d1_224", "eva02_tiny_patch14_224", "lambda_resnet26t",
            "shvit_s1",
        ),
        torchvision=("maxvit_t", "mc3_18"),
        keras=("NASNetMobile", "Xception", "ResNet50V2", "DenseNet169", "EfficientNetV2B3"),
        converted={
            "regnetz_b16": "fp16", "cs3darknet_s": "fp16",
            "beit_base_patch16_224": "fp16-transformers", "gmixer_24_224": "fp16",
            "fbnetv3_b": "fp16-transformers", "swinv2_cr_tiny_ns_224": "fp16",
            "mobilenetv4_conv_medium": "int8-qdq", "efficientnet_es": "int8-qdq",
            "hgnet_tiny": "int8-qdq", "resnet26t": "int8-qoperator",
            "tf_mobilenetv3_small_minimal_100": "int8-qoperator",
            "deit3_small_patch16_224": "int8-dynamic", "mixer_b16_224": "int8-dynamic",
        },
        others=(
            "albert_128", "electra_128", "roberta_128", "mobilebert_128", "t5_encoder_128",
            "clip_text_77", "wav2vec2_1s", "whisper_encoder", "segformer_b0", "yolos_tiny",
            "llama_prompt", "llama_token", "neox_token", "opt_token", "qwen2_prompt",
            "unet_diffusion", "unet_conditioned", "vae_decoder",
        ),
        converted_others={
            "electra_128": "fp16-transformers", "unet_diffusion": "fp16",
            "roberta_128": "int8-dynamic", "wav2vec2_1s": "int8-dynamic",
            "opt_token": "int8-dynamic",
        },
    ),
    "second": Listed(
        script=(
            "tresnet_m", "inception_v4", "mobileone_s1", "tnt_s_patch16_224", "nest_tiny",
            "halonet26t", "vgg13_bn", "gcresnet33ts", "regnetv_040", "convformer_s18",
            "levit_conv_128s", "dla60x", "poolformerv2_s24", "coat_lite_mini", "rexnet_150",
            "seresnext26d_32x4d", "convmixer_1024_20_ks9_p14", "regnetz_c16",
        ),
        dynamo=(
            "fastvit_t8", "fasternet_t0", "efficientvit_b0", "ghostnetv2_100",
            "swinv2_tiny_window8_256", "maxxvit_rmlp_nano_rw_256", "caformer_s18",
            "hiera_tiny_224", "vitamin_small_224", "vit_relpos_small_patch16_224",
            "edgenext_xx_small", "resnext26ts", "dm_nfnet_f0", "mobilenet_edgetpu_v2_s",
            "efficientformerv2_s0", "xcit_small_12_p16_224", "res2next50", "cspresnext50",
            "hrnet_w18_ssld", "selecsls60",
        ),
        torchvision=("efficientnet_v2_s", "regnet_x_3_2gf"),
        keras=(),
        converted={
            "ecaresnet26t": "fp16", "tf_efficientnet_lite2": "fp16",
            "deit3_medium_patch16_224": "fp16-transformers", "mobilevitv2_075": "fp16",
            "cs3sedarknet_l": "fp16-transformers", "mobilenetv3_rw": "int8-qdq",
            "mnasnet_small": "int8-qdq", "regnety_006": "int8-qdq", "resnet50d": "int8-qoperator",
            "visformer_small": "int8-qdq", "vit_tiny_r_s16_p8_224": "int8-dynamic",
        },
        others=(
            "distilbert_128", "mpnet_128", "bart_encoder_128", "gpt2_token",
            "phi_token", "hubert_1s", "dinov2_small", "dit_small",
        ),
        converted_others={
            "mpnet_128": "fp16-transformers", "distilbert_128": "int8-dynamic",
            "bart_encoder_128": "int8-dynamic",
        },
    ),
    "third": Listed(
        script=(
            "cspnext_tiny", "lcnetv2_small", "densenetblur121d", "darknet53", "dla102x",
            "ese_vovnet39b", "legacy_seresnext26_32x4d", "resnetblur18", "res2net50d",
            "legacy_xception", "repvgg_b0", "resnest26d", "skresnext50_32x4d", "nf_regnet_b1",
            "hardcorenas_d", "twins_pcpvt_small", "crossvit_tiny_240",
        ),
        dynamo=(
            "cpubone_nano", "efficientvim_m1", "iformer_t", "lowformer_b0", "sam2_hiera_tiny",
            "qwen3_vit_88m", "ghostnetv3_050", "mobilenetv4_conv_aa_medium", "fastvit_s12",
            "fasternet_t1", "starnet_s150", "vit_small_patch16_dinov3", "pvt_v2_b1",
            "efficientnet_b0_gn", "focalnet_tiny_lrf", "edgenext_small_rw", "maxvit_pico_rw_256",
            "inception_next_atto", "tiny_vit_11m_224", "convnextv2_femto", "csatv2",
        ),
        torchvision=("shufflenet_v2_x1_5", "mnasnet1_3"),
        keras=(),
        converted={
            "resnetaa50d": "fp16", "xception65p": "fp16", "repvit_m1_1": "fp16",
            "vit_wee_patch16_reg1_gap_256": "fp16-transformers",
            "shvit_s2": "int8-qdq", "selecsls84": "int8-qdq", "efficientnet_em": "int8-qdq",
            "cs3sedarknet_x": "int8-qdq", "gernet_m": "int8-qoperator",
            "resmlp_36_224": "int8-dynamic", "pit_s_224": "int8-dynamic",
        },
        others=(
            "deberta_128", "modernbert_128", "squeezebert_128", "convbert_128", "qwen3_prompt",
            "stablelm_prompt", "olmo_prompt", "granite_token", "audio_transformer", "sew_1s",
            "siglip_vision", "swin2sr", "pixart", "autoencoder_tiny",
        ),
        converted_others={
            "siglip_vision": "fp16-transformers", "squeezebert_128": "int8-dynamic",
            "deberta_128": "int8-dynamic",
        },
    ),
    "fourth": Listed(
        script=(
            "dpn68b", "bat_resnext26ts", "sebotnet33ts_256", "eca_botnext26ts_256",
            "resnetv2_50d_gn", "resnetv2_50x1_bit", "vit_small_resnet26d_224",
            "vit_srelpos_small_patch16_224", "regnetx_032", "regnetz_005", "repvgg_a1",
            "legacy_seresnet50", "ecaresnet50d", "dla60_res2net", "hrnet_w30", "vovnet57a",
            "xception41p", "coat_mini", "mixer_s16_224", "poolformer_s24", "nf_resnet26",
            "skresnet34", "rexnetr_130", "cs3edgenet_x",
        ),
        dynamo=(
            "samvit_base_patch16_224", "hieradet_small", "mambaout_kobe", "efficientvit_b1",
            "efficientvit_l1", "efficientformerv2_s1", "swiftformer_s", "hgnetv2_b2",
            "mobilenetv4_hybrid_medium", "convnext_zepto_rms", "eva02_small_patch14_224",
            "vit_medium_patch16_rope_reg1_gap_256", "levit_256", "coatnext_nano_rw_224",
            "mobilevitv2_100", "regnety_008", "fbnetv3_d", "lcnet_150", "efficientnet_b2",
            "fastvit_sa12", "repvit_m1", "maxvit_nano_rw_256", "xcit_nano_12_p8_224",
            "naflexvit_base_patch16_gap", "gcvit_xtiny",
        ),
        torchvision=("resnext50_32x4d", "convnext_tiny"),
        keras=(),
        converted={
            "convnext_nano": "fp16", "regnetx_008": "fp16", "efficientnet_b3": "fp16-transformers",
            "mobilenetv2_140": "int8-qdq", "resnet14t": "int8-qdq", "ese_vovnet57b": "int8-qdq",
            "repvgg_a2": "int8-qdq", "tf_efficientnet_lite2": "int8-qoperator",
            "vit_small_patch16_224": "int8-dynamic", "gmixer_12_224": "int8-dynamic",
        },
        others=(
            "ernie_128", "roformer_128", "nystromformer_128", "gemma_prompt", "mistral_token",
            "starcoder_prompt", "wavlm_1s", "unispeech_1s", "glpn", "vq_decoder",
            "data2vec_vision", "detr_encoder",
        ),
        converted_others={"ernie_128": "fp16-transformers", "unispeech_1s": "int8-dynamic"},
    ),
    "fifth": Listed(
        script=(
            "dpn48b", "resnet33ts", "gcresnext26ts", "resnetv2_34d",
            "vit_relpos_medium_patch16_224", "regnetx_040", "regnetz_040", "repvgg_b1g4",
            "legacy_seresnext50_32x4d", "ecaresnetlight", "dla60", "hrnet_w32", "eca_vovnet39b",
            "xception65", "coat_lite_small", "poolformer_s36", "nf_ecaresnet26", "skresnet50",
            "rexnet_130", "resnest50d_1s4x24d", "res2net50_26w_6s", "densenet161", "selecsls42",
        ),
        dynamo=(
            "hiera_small_224", "mambaout_tiny", "efficientvit_b2", "efficientvit_m4",
            "efficientformerv2_s2", "swiftformer_l1", "hgnetv2_b3", "convnext_pico_ols",
            "vit_small_patch16_rope_224", "levit_192", "coatnet_rmlp_nano_rw_224",
            "mobilevitv2_125", "regnety_032", "mixnet_m", "lcnet_075", "efficientnet_b3_gn",
            "fastvit_mci0", "repvit_m2", "maxvit_tiny_rw_256", "xcit_tiny_24_p16_224",
            "gcvit_tiny", "starnet_s2", "lowformer_b1", "efficientvim_m2", "repghostnet_100",
            "inception_next_small", "pvt_v2_b2_li",
        ),
        torchvision=(),
        keras=(),
        converted={
            "convnext_femto": "fp16", "resnet34d": "fp16", "resmlp_big_24_224": "fp16",
            "tinynet_b": "fp16-transformers", "mobilenetv1_125": "int8-qdq",
            "resnet18d": "int8-qdq", "hardcorenas_b": "int8-qdq", "dla60x_c": "int8-qdq",
            "semnasnet_100": "int8-qoperator", "vit_medium_patch32_clip_224": "int8-dynamic",
            "mixer_b32_224": "int8-dynamic",
        },
        others=(
            "megatron_128", "rembert_128", "cohere_prompt", "olmo2_token", "data2vec_audio_1s",
            "mobilevit_segmenter", "unet_wide",
        ),
        converted_others={"megatron_128": "int8-dynamic", "data2vec_audio_1s": "fp16-transformers"},
    ),
    "sixth": Listed(
        script=(
            "resnet32ts", "eca_resnext26ts", "nf_seresnet26", "vit_small_r26_s32_224",
            "vit_relpos_small_patch16_rpn_224", "regnetx_006", "regnetz_d8", "repvgg_b1",
            "legacy_seresnet34", "resnext50d_32x4d", "dla102", "hrnet_w18", "ese_vovnet19b_slim",
            "xception71", "coat_lite_tiny", "poolformerv2_s36", "skresnet50d", "rexnetr_100",
            "resnest50d", "res2net50_48w_2s", "densenet169", "selecsls60b", "cs3darknet_focus_m",
            "gcresnet50t", "cspresnet50d",
        ),
        dynamo=(
            "hiera_small_abswin_256", "mambaout_small", "efficientvit_m2", "efficientformer_l3",
            "hgnetv2_b1", "convnextv2_pico", "vit_pe_core_tiny_patch16_384", "levit_128",
            "coatnet_pico_rw_224", "mobilevitv2_150", "regnety_002", "mixnet_l", "lcnet_035",
            "efficientnet_blur_b0", "fastvit_t12", "repvit_m1_5", "maxvit_tiny_tf_224",
            "xcit_tiny_12_p8_224", "gcvit_small", "starnet_s3", "lowformer_b15", "efficientvim_m3",
            "repghostnet_130", "pvt_v2_b2", "cpubone_b0_bfrobust", "iformer_s", "shvit_s3",
            "edgenext_base", "davit_small", "lcnetv2_base",
        ),
        torchvision=(),
        keras=(),
        converted={
            "resnet26d": "fp16", "mobilenetv2_120d": "fp16", "convnext_pico": "fp16",
            "deit_small_distilled_patch16_224": "fp16-transformers",
            "mobilenetv2_075": "int8-qdq", "seresnet18": "int8-qdq", "darknet21": "int8-qdq",
            "hardcorenas_e": "int8-qdq", "mnasnet_075": "int8-qoperator",
            "vit_base_patch32_224": "int8-dynamic", "pit_ti_distilled_224": "int8-dynamic",
        },
        others=(
            "layoutlm_128", "splinter_128", "phi3_prompt", "smollm3_token", "unispeech_sat_1s",
            "unet_slim",
        ),
        converted_others={"splinter_128": "int8-dynamic", "unispeech_sat_1s": "fp16-transformers"},
    ),
    "seventh": Listed(
        script=(
            "resnetblur50", "legacy_seresnet18", "res2net50_26w_8s", "dla60_res2next",
            "cs3darknet_m", "cspresnet50w", "darknet17", "ecaresnet50t", "nf_regnet_b0",
            "resnest50d_4s2x40d", "rexnetr_150", "regnetx_004_tv", "repvgg_d2se", "resnet51q",
            "seresnext26t_32x4d", "levit_256d", "crossvit_15_240",
            "vit_relpos_medium_patch16_cls_224", "convit_small", "resnetv2_18", "densenet201",
            "tf_mixnet_m", "gcresnext50ts", "dpn92", "vgg13",
        ),
        dynamo=(
            "convnext_atto_ols", "convnextv2_nano", "cpubone_b1_bfrobust", "coatnet_0_rw_224",
            "efficientvit_m3", "efficientvim_m2_dist", "fasternet_t2", "fastvit_sa24",
            "ghostnetv3_100", "hgnetv2_b4", "iformer_m", "lowformer_e1", "maxvit_tiny_rw_224",
            "mobilenetv4_hybrid_medium_075", "mobileone_s2", "mvitv2_small", "nest_small",
            "pvt_v2_b3", "regnety_008_tv", "repghostnet_111", "repvit_m1_0", "starnet_s4",
            "swin_s3_small_224", "tiny_vit_21m_224", "vit_little_patch16_reg1_gap_256",
        ),
        torchvision=(),
        keras=(),
        converted={
            "resnet50c": "fp16", "mobilenetv2_110d": "fp16", "convnext_nano_ols": "fp16",
            "semnasnet_140": "fp16-transformers",
            "deit_tiny_distilled_patch16_224": "fp16-transformers",
            "mnasnet_140": "int8-qdq", "mobilenetv1_100": "int8-qdq", "seresnet34": "int8-qdq",
            "hardcorenas_f": "int8-qdq", "tf_efficientnet_lite0": "int8-qoperator",
            "vit_medium_patch16_gap_240": "int8-dynamic", "pit_xs_distilled_224": "int8-dynamic",
        },
        others=(
            "camembert_128", "xlm_roberta_128", "helium_prompt", "persimmon_token",
            "wav2vec2_conformer_1s", "unet_tall",
        ),
        converted_others={"camembert_128": "int8-dynamic", "unet_tall": "fp16"},
    ),
    "eighth": Listed(
        script=(
            "resnet10t", "resnetaa34d", "resnetv2_34", "resnetrs50", "res2net50_14w_8s",
            "seresnext26ts", "eca_resnet33ts", "ecaresnext26t_32x4d", "gc_efficientnetv2_rw_t",
            "efficientnet_b1_pruned", "tinynet_d", "mnasnet_050", "mobilenetv3_small_075",
            "tf_mixnet_s", "rexnet_200", "regnetx_002", "dla46x_c", "vgg16_bn", "nf_seresnet50",
            "cs3darknet_l", "sedarknet21", "ese_vovnet19b_slim_dw", "levit_384",
            "tnt_s_legacy_patch16_224", "crossvit_9_dagger_240", "vit_relpos_base_patch16_224",
        ),
        dynamo=(
            "convnext_femto_ols", "convnextv2_tiny", "cpubone_s0", "coatnet_bn_0_rw_224",
            "coat_lite_medium", "efficientvit_m5", "efficientvit_b3", "efficientvim_m4",
            "fasternet_s", "fastvit_ma36", "focalnet_small_srf", "ghostnet_050", "ghostnetv2_130",
            "hgnet_small", "iformer_l", "lowformer_b2", "mambaout_small_rw",
            "mobilenetv4_conv_small_050", "mobileone_s3", "nest_tiny_jx", "poolformer_m36",
            "repghostnet_080", "repvit_m2_3", "shvit_s4", "starnet_s100", "swiftformer_l3",
            "swinv2_cr_tiny_224", "twins_pcpvt_base", "vit_small_patch16_rope_mixed_224",
        ),
        torchvision=(),
        keras=(),
        converted={
            "resnet50s": "fp16", "mobilenetv3_large_075": "fp16", "tf_efficientnet_b1": "fp16",
            "tf_mobilenetv3_small_100": "fp16-transformers",
            "vit_xsmall_patch16_clip_224": "fp16-transformers",
            "hardcorenas_c": "int8-qdq", "tf_efficientnet_lite1": "int8-qdq",
            "regnetx_064": "int8-qdq", "mobilenetv1_100h": "int8-qdq",
            "semnasnet_050": "int8-qoperator", "crossvit_small_240": "int8-dynamic",
            "vit_little_patch16_reg4_gap_256": "int8-dynamic",
        },
        others=(
            "data2vec_text_128", "roberta_prelayernorm_128", "gemma2_prompt", "glm_token",
            "ijepa_vision", "unet_flat",
        ),
        converted_others={"data2vec_text_128": "int8-dynamic", "unet_flat": "fp16"},
    ),
    "ninth": Listed(
        script=(
            "resnet50t", "resnetv2_18d", "resnetblur50d", "seresnext50_32x4d", "seresnet33ts",
            "ecaresnet50d_pruned", "efficientnet_b2_pruned", "efficientnet_es_pruned",
            "mobilenetv2_035", "mobilenetv3_small_050", "tinynet_e", "mobilenet_edgetpu_100",
            "efficientnet_lite2", "regnety_040", "regnetx_080", "nf_ecaresnet50", "nf_regnet_b2",
            "darknetaa53", "cs3darknet_focus_s", "cspnext_s", "vgg19", "pit_s_distilled_224",
            "cait_xxs36_224", "crossvit_15_dagger_240", "rexnetr_200", "gernet_l",
        ),
        dynamo=(
            "convnext_tiny_hnf", "convnextv2_small", "coat_small", "coatnet_nano_cc_224",
            "convformer_s36", "caformer_s36", "cpubone_t0", "csatv2_21m", "efficientformerv2_l",
            "efficientvit_m1", "efficientvim_m3_dist", "fastvit_sa36", "flexivit_small",
            "focalnet_small_lrf", "hgnetv2_b5", "iformer_m_distilled", "levit_conv_192",
            "lowformer_e2", "maxvit_rmlp_pico_rw_256", "mobilenetv4_conv_small_035",
            "mobileone_s0", "mobilevit_xxs", "mobilevitv2_175", "poolformerv2_m36",
            "repghostnet_058", "repvit_m3", "starnet_s050", "swinv2_cr_small_ns_224",
            "xcit_tiny_24_p8_224", "vit_pwee_patch16_reg1_gap_256",
        ),
        torchvision=(),
        keras=(),
        converted={
            "seresnetaa50d": "fp16", "efficientnet_lite3": "fp16", "tf_efficientnet_b2": "fp16",
            "mobilenet_edgetpu_v2_m": "fp16", "repghostnet_150": "fp16",
            "tf_mobilenetv3_small_075": "fp16-transformers",
            "regnety_064": "fp16-transformers", "vit_medium_patch16_gap_256": "fp16-transformers",
            "resnetaa50": "int8-qdq", "tf_efficientnet_lite3": "int8-qdq",
            "efficientnet_el": "int8-qdq", "hgnet_base": "int8-qdq",
            "mobilenet_edgetpu_v2_xs": "int8-qoperator", "resnetv2_50d": "int8-qoperator",
            "vit_dwee_patch16_reg1_gap_256": "int8-dynamic", "crossvit_18_240": "int8-dynamic",
        },
        others=(
            "megatron_wide_128", "vit_msn", "stablelm_token", "gemma_token", "sew_d_1s",
            "unet_short",
        ),
        converted_others={"megatron_wide_128": "int8-dynamic", "unet_short": "fp16"},
    ),
}  # fmt: skip
"""Name of a list -> its networks. Once judged, a list is for development."""


_SMALL: Mapping[str, int] = {
    "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536,
}  # fmt: skip
_MEDIUM: Mapping[str, int] = {
    "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048,
}  # fmt: skip
_VISION: Mapping[str, int] = {**_SMALL, "num_hidden_layers": 8, "image_size": 224}
"""Sizes of encoders."""


def others() -> dict[str, Maker]:
    """Name -> maker of what is no classifier: language, speech, diffusion, detection."""
    return {
        "albert_128": lambda: _text("AlbertConfig", "AlbertModel", hidden_size=312,
                                    num_attention_heads=12, intermediate_size=1248),
        "electra_128": lambda: _text("ElectraConfig", "ElectraModel"),
        "roberta_128": lambda: _text("RobertaConfig", "RobertaModel", num_hidden_layers=6),
        "mobilebert_128": lambda: _text("MobileBertConfig", "MobileBertModel"),
        "t5_encoder_128": lambda: _text("T5Config", "T5EncoderModel"),
        "clip_text_77": lambda: _text("CLIPTextConfig", "CLIPTextModel", length=77),
        "wav2vec2_1s": lambda: _speech("Wav2Vec2Config", "Wav2Vec2Model"),
        "whisper_encoder": _whisper_encoder,
        "segformer_b0": lambda: _image_model("SegformerConfig", "SegformerForSemanticSegmentation"),
        "yolos_tiny": lambda: _image_model("YolosConfig", "YolosForObjectDetection",
                                           hidden_size=192, num_attention_heads=3,
                                           intermediate_size=768, image_size=[320, 320]),
        "llama_prompt": lambda: _decoder("llama", PROMPT, 0),
        "llama_token": lambda: _decoder("llama", 1, PAST),
        "neox_token": lambda: _decoder("gpt_neox", 1, PAST),
        "opt_token": lambda: _decoder("opt", 1, PAST),
        "qwen2_prompt": lambda: _decoder("qwen2", PROMPT, 0),
        "unet_diffusion": lambda: _unet(
            64, layers_per_block=1, block_out_channels=(64, 128, 256),
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        ),
        "unet_conditioned": _unet_conditioned,
        "vae_decoder": _vae_decoder,
        "distilbert_128": lambda: _text("DistilBertConfig", "DistilBertModel"),
        "mpnet_128": lambda: _text("MPNetConfig", "MPNetModel", num_hidden_layers=6),
        "bart_encoder_128": _bart_encoder,
        "gpt2_token": lambda: _decoder("gpt2", 1, PAST),
        "phi_token": lambda: _decoder("phi", 1, PAST),
        "hubert_1s": lambda: _speech("HubertConfig", "HubertModel"),
        "dinov2_small": lambda: _image_model("Dinov2Config", "Dinov2Model", hidden_size=384,
                                             num_attention_heads=6, num_hidden_layers=8,
                                             image_size=224),
        "dit_small": _dit,
        "deberta_128": lambda: _text("DebertaV2Config", "DebertaV2Model", **_SMALL,
                                     vocab_size=32000),
        "modernbert_128": lambda: _text("ModernBertConfig", "ModernBertModel", hidden_size=512,
                                        num_hidden_layers=8, num_attention_heads=8,
                                        intermediate_size=768, vocab_size=32000,
                                        pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        cls_token_id=1, sep_token_id=2),
        "squeezebert_128": lambda: _text("SqueezeBertConfig", "SqueezeBertModel",
                                         num_hidden_layers=6),
        "convbert_128": lambda: _text("ConvBertConfig", "ConvBertModel", **_SMALL,
                                      embedding_size=128),
        "qwen3_prompt": lambda: _decoder("qwen3", PROMPT, 0),
        "granite_token": lambda: _decoder("granite", 1, PAST),
        "stablelm_prompt": lambda: _decoder("stablelm", PROMPT, 0),
        "olmo_prompt": lambda: _decoder("olmo", PROMPT, 0),
        "audio_transformer": _audio_transformer,
        "sew_1s": lambda: _speech("SEWConfig", "SEWModel"),
        "siglip_vision": lambda: _image_model("SiglipVisionConfig", "SiglipVisionModel", **_VISION),
        "swin2sr": lambda: _image_model("Swin2SRConfig", "Swin2SRForImageSuperResolution",
                                        image_size=64, embed_dim=60, depths=[4, 4],
                                        num_heads=[6, 6], upscale=2),
        "pixart": _pixart,
        "autoencoder_tiny": _autoencoder_tiny,
        "ernie_128": lambda: _text("ErnieConfig", "ErnieModel", **_MEDIUM),
        "roformer_128": lambda: _text("RoFormerConfig", "RoFormerModel", **_SMALL,
                                      embedding_size=384),
        "nystromformer_128": lambda: _text("NystromformerConfig", "NystromformerModel", **_SMALL),
        "gemma_prompt": lambda: _decoder("gemma", PROMPT, 0),
        "mistral_token": lambda: _decoder("mistral", 1, PAST),
        "starcoder_prompt": lambda: _decoder("starcoder2", PROMPT, 0),
        "wavlm_1s": lambda: _speech("WavLMConfig", "WavLMModel"),
        "unispeech_1s": lambda: _speech("UniSpeechConfig", "UniSpeechModel"),
        "glpn": lambda: _image_model("GLPNConfig", "GLPNForDepthEstimation"),
        "vq_decoder": _vq_decoder,
        "data2vec_vision": lambda: _image_model("Data2VecVisionConfig", "Data2VecVisionModel",
                                                hidden_size=384, num_hidden_layers=8,
                                                num_attention_heads=6, intermediate_size=1536),
        "detr_encoder": _detr_encoder,
        "megatron_128": lambda: _text("MegatronBertConfig", "MegatronBertModel", **_MEDIUM),
        "rembert_128": lambda: _text("RemBertConfig", "RemBertModel", **_SMALL, vocab_size=32000),
        "cohere_prompt": lambda: _decoder("cohere", PROMPT, 0),
        "olmo2_token": lambda: _decoder("olmo2", 1, PAST),
        "data2vec_audio_1s": lambda: _speech("Data2VecAudioConfig", "Data2VecAudioModel"),
        "mobilevit_segmenter": lambda: _image_model("MobileViTConfig",
                                                    "MobileViTForSemanticSegmentation",
                                                    image_size=256),
        "layoutlm_128": lambda: _text("LayoutLMConfig", "LayoutLMModel", **_SMALL),
        "splinter_128": lambda: _text("SplinterConfig", "SplinterModel", **_MEDIUM),
        "phi3_prompt": lambda: _decoder("phi3", PROMPT, 0),
        "smollm3_token": lambda: _decoder("smollm3", 1, PAST),
        "unispeech_sat_1s": lambda: _speech("UniSpeechSatConfig", "UniSpeechSatModel"),
        "unet_slim": lambda: _unet(
            48, layers_per_block=1, block_out_channels=(48, 96, 192), norm_num_groups=12,
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        ),
        "camembert_128": lambda: _text("CamembertConfig", "CamembertModel", **_SMALL),
        "xlm_roberta_128": lambda: _text("XLMRobertaConfig", "XLMRobertaModel", **_MEDIUM),
        "helium_prompt": lambda: _decoder("helium", PROMPT, 0),
        "persimmon_token": lambda: _decoder("persimmon", 1, PAST),
        "wav2vec2_conformer_1s": lambda: _speech("Wav2Vec2ConformerConfig",
                                                 "Wav2Vec2ConformerModel"),
        "unet_tall": lambda: _unet(
            32, layers_per_block=1, block_out_channels=(64, 128, 128, 192), norm_num_groups=16,
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        ),
        "data2vec_text_128": lambda: _text("Data2VecTextConfig", "Data2VecTextModel", **_SMALL),
        "roberta_prelayernorm_128": lambda: _text("RobertaPreLayerNormConfig",
                                                  "RobertaPreLayerNormModel", **_MEDIUM),
        "gemma2_prompt": lambda: _decoder("gemma2", PROMPT, 0),
        "glm_token": lambda: _decoder("glm", 1, PAST),
        "ijepa_vision": lambda: _image_model("IJepaConfig", "IJepaModel", **_VISION),
        "unet_flat": lambda: _unet(
            48, layers_per_block=1, block_out_channels=(64, 128, 192), norm_num_groups=16,
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        ),
        "megatron_wide_128": lambda: _text("MegatronBertConfig", "MegatronBertModel",
                                           hidden_size=640, num_hidden_layers=6,
                                           num_attention_heads=10, intermediate_size=2560),
        "vit_msn": lambda: _image_model("ViTMSNConfig", "ViTMSNModel", **_VISION),
        "stablelm_token": lambda: _decoder("stablelm", 1, PAST),
        "gemma_token": lambda: _decoder("gemma", 1, PAST),
        "sew_d_1s": lambda: _speech("SEWDConfig", "SEWDModel"),
        "unet_short": lambda: _unet(
            64, layers_per_block=1, block_out_channels=(48, 144), norm_num_groups=12,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        ),
        "unet_wide": lambda: _unet(
            32, layers_per_block=2, block_out_channels=(96, 192, 192), norm_num_groups=16,
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        ),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keras", action="store_true", help="those of Keras, by tf2onnx")
    parser.add_argument("--list", choices=LISTS, default="first")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some by name")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    listed = LISTS[arguments.list]
    exports = _keras(listed) if arguments.keras else _torch(listed)
    chosen = arguments.only
    return write_each(
        arguments.folder, (each for each in exports if not chosen or each[0] in chosen)
    )


def _keras(listed: Listed) -> Iterator[tuple[str, Export]]:
    for name in listed.keras:
        yield f"keras_{name.casefold()}", lambda folder, name=name: _by_tf2onnx(name, folder)


def _torch(listed: Listed) -> Iterator[tuple[str, Export]]:
    _kept = declare_operators()
    made = others()
    for name in listed.script:
        yield name, _plain(lambda name=name: _timm(name), dynamo=False)
    for name in listed.dynamo:
        yield name, _plain(lambda name=name: _timm(name), dynamo=True)
    for name in listed.torchvision:
        yield f"tv_{name}", _plain(lambda name=name: _torchvision(name), dynamo=True)
    for name in listed.others:
        yield name, _plain(made[name], dynamo=name not in listed.converted_others)
    for name, form in listed.converted.items():
        yield f"{name}-{form}", _converted(lambda name=name: _timm(name), form)
    for name, form in listed.converted_others.items():
        yield f"{name}-{form}", _converted(made[name], form)


def _plain(make: Maker, *, dynamo: bool) -> Export:
    def export(folder: Path) -> bytes:
        path = folder / "whole.onnx"
        (_by_dynamo if dynamo else _by_script)(*make(), path)
        return without_weights(path)

    return export


def _converted(make: Maker, form: str) -> Export:
    """Export by TorchScript and convert; weights stay, since their values decide the conversion."""

    def export(folder: Path) -> bytes:
        whole, target = folder / "whole.onnx", folder / "converted.onnx"
        module, inputs = make()
        _by_script(module, inputs, whole)
        if form.startswith("fp16"):
            _to_float16(whole, target, form)
        else:
            _to_int8(whole, target, form, inputs)
        return target.read_bytes()

    return export


def _by_script(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    import torch

    names = [f"x{place}" for place, _ in enumerate(inputs)]
    with torch.no_grad():
        torch.onnx.export(
            module.eval(), inputs, str(path), opset_version=SCRIPT_OPSET, dynamo=False,
            input_names=names, dynamic_axes={name: {0: "batch"} for name in names},
        )  # fmt: skip


def _by_dynamo(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    import torch

    auto: list[Any] = [{0: torch.export.Dim.AUTO} for _ in inputs]
    given = inspect.signature(module.forward).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in given):
        named = len(given) - 1
        auto = [*auto[:named], *([tuple(auto[named:])] if auto[named:] else [])]
    with torch.no_grad():
        torch.onnx.export(
            module.eval(), inputs, str(path), dynamo=True, dynamic_shapes=tuple(auto),
            verbose=False, external_data=False,
        )  # fmt: skip


def _by_tf2onnx(name: str, folder: Path) -> bytes:
    import tensorflow as tf
    import tf2onnx

    network = getattr(tf.keras.applications, name)(weights=None)
    size = network.input_shape[1:]
    function = tf.function(lambda image: network(image, training=False))
    path = folder / "whole.onnx"
    tf2onnx.convert.from_function(
        function, input_signature=[tf.TensorSpec((None, *size), tf.float32, name="x")],
        opset=KERAS_OPSET, output_path=str(path),
    )  # fmt: skip
    return without_weights(path)


def _to_float16(whole: Path, target: Path, form: str) -> None:
    import onnx

    model = onnx.load(whole)
    if form == "fp16":
        from onnxconverter_common import float16

        onnx.save(float16.convert_float_to_float16(model), target)
    else:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(model, keep_io_types=True), target)


def _to_int8(whole: Path, target: Path, form: str, inputs: tuple[Any, ...]) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = whole.with_name("ready.onnx")
    quant_pre_process(str(whole), str(ready), skip_symbolic_shape=True)
    if form == "int8-dynamic":
        quantize_dynamic(str(ready), str(target), weight_type=QuantType.QInt8)
        return

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{f"x{place}": each.numpy() for place, each in enumerate(inputs)}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantize_static(
        str(ready), str(target), Images(), per_channel=form == "int8-qdq",
        quant_format=QuantFormat.QDQ if form == "int8-qdq" else QuantFormat.QOperator,
        weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
    )  # fmt: skip


def _timm(name: str) -> Made:
    import torch

    module = timm_module(name)
    return module, (torch.randn(BATCH, *module.default_cfg.get("input_size", (3, 224, 224))),)


def _torchvision(name: str) -> Made:
    import torch

    if name == "mc3_18":
        from torchvision.models.video import mc3_18

        return mc3_18(weights=None), (torch.randn(BATCH, 3, 8, 112, 112),)
    return torchvision_module(name), (torch.randn(BATCH, 3, 224, 224),)


def _first_answer(model: Any, *names: str) -> Any:
    """Let a model answer its first tensor alone; inputs come by position, the first have names."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            named = dict(zip(names, inputs, strict=False))
            return self.model(*inputs[len(names) :], **named, return_dict=False)[0]

    return First()


def _of_transformers(config: str, kind: str, **sizes: Any) -> Any:
    import transformers

    made = getattr(transformers, config)(**sizes)
    made._attn_implementation = "eager"
    return getattr(transformers, kind)(made)


def _text(config: str, kind: str, length: int = 128, **sizes: Any) -> Made:
    import torch

    model = _of_transformers(config, kind, **sizes)
    return _first_answer(model, "input_ids"), (torch.ones(BATCH, length, dtype=torch.int64),)


def _image_model(config: str, kind: str, **sizes: Any) -> Made:
    import torch

    model = _of_transformers(config, kind, **sizes)
    size = sizes.get("image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    return _first_answer(model, "pixel_values"), (torch.randn(BATCH, 3, height, width),)


def _bart_encoder() -> Made:
    import torch

    model = _of_transformers("BartConfig", "BartModel", encoder_layers=6, decoder_layers=1,
                             d_model=512, encoder_ffn_dim=2048, encoder_attention_heads=8,
                             decoder_attention_heads=8)  # fmt: skip
    return _first_answer(model.encoder, "input_ids"), (torch.ones(BATCH, 128, dtype=torch.int64),)


def _dit() -> Made:
    import torch
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=6, attention_head_dim=64, in_channels=4, num_layers=8, sample_size=32,
    )  # fmt: skip
    images, times = torch.randn(BATCH, 4, 32, 32), torch.ones(BATCH, dtype=torch.int64)
    labels = torch.ones(BATCH, dtype=torch.int64)
    return _first_answer(model, "hidden_states", "timestep", "class_labels"), (
        images, times, labels,
    )  # fmt: skip


def _vq_decoder() -> Made:
    """Return the decoder of latents of a quantised autoencoder."""
    import torch
    from diffusers import VQModel

    model = VQModel(
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(64, 128, 128), layers_per_block=1, latent_channels=3,
        norm_num_groups=16,
    ).decoder  # fmt: skip
    return model, (torch.randn(BATCH, 3, 32, 32),)


def _detr_encoder() -> Made:
    """Return a transformer encoder of PyTorch over the 400 places of a detector's image."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (
        torch.randn(BATCH, 400, 256),
    )  # fmt: skip


def _speech(config: str, kind: str) -> Made:
    import torch

    model = _of_transformers(config, kind, num_hidden_layers=6)
    return _first_answer(model, "input_values"), (torch.randn(BATCH, 16000),)


def _audio_transformer() -> Made:
    import torch

    model = _of_transformers("ASTConfig", "ASTModel", **_SMALL, max_length=512)  # fmt: skip
    return _first_answer(model, "input_values"), (torch.randn(BATCH, 512, 128),)


def _whisper_encoder() -> Made:
    import torch

    model = _of_transformers("WhisperConfig", "WhisperModel", encoder_layers=4, decoder_layers=4)
    return _first_answer(model.encoder, "input_features"), (torch.randn(BATCH, 80, 3000),)


_USUAL: Mapping[str, int] = {
    "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 32000,
}  # fmt: skip
_DECODERS: Mapping[str, tuple[str, str, Mapping[str, int]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
        "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
        "num_attention_heads": 8}),
    "opt": ("OPTConfig", "OPTForCausalLM", {
        "hidden_size": 512, "ffn_dim": 2048, "num_hidden_layers": 6, "num_attention_heads": 8,
        "word_embed_proj_dim": 512}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {
        "hidden_size": 896, "intermediate_size": 2432, "num_hidden_layers": 6,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 50000}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {
        "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}),
    "phi": ("PhiConfig", "PhiForCausalLM", {
        **_USUAL, "intermediate_size": 2048}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {
        **_USUAL, "intermediate_size": 1536, "num_key_value_heads": 2, "head_dim": 64}),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {
        **_USUAL, "intermediate_size": 1408, "num_key_value_heads": 8}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {
        **_USUAL, "intermediate_size": 1408, "num_key_value_heads": 4}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {
        **_USUAL, "intermediate_size": 2048, "num_key_value_heads": 1, "head_dim": 64}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 2}),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {
        **_USUAL, "intermediate_size": 2048, "num_key_value_heads": 2}),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", {
        **_USUAL, "intermediate_size": 2048}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 8}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 8}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 4, "pad_token_id": 0}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 4, "pad_token_id": 0}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 4, "head_dim": 64}),
    "glm": ("GlmConfig", "GlmForCausalLM", {
        **_USUAL, "intermediate_size": 1792, "num_key_value_heads": 4, "head_dim": 64,
        "pad_token_id": 0}),
}  # fmt: skip
"""Decoder -> its configuration, its class, and sizes that fit a small machine."""


def _decoder(name: str, tokens: int, past: int) -> Made:
    """Make a decoder for a number of tokens behind a cache of others, which it returns extended."""
    import torch
    from transformers import DynamicCache

    config, kind, sizes = _DECODERS[name]
    model = _of_transformers(config, kind, **sizes)
    heads = sizes.get("num_key_value_heads", sizes["num_attention_heads"])
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    layers = sizes["num_hidden_layers"]

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *cache: Any) -> Any:
            if not cache:
                return self.model(input_ids=ids, use_cache=False, return_dict=False)[0]
            pairs = [(cache[2 * i], cache[2 * i + 1]) for i in range(layers)]
            kept = DynamicCache(pairs)
            mask = torch.ones(ids.shape[0], past + tokens, dtype=torch.int64)
            found = self.model(
                input_ids=ids, attention_mask=mask, past_key_values=kept, use_cache=True
            )
            extended = found.past_key_values.layers
            return (found.logits, *(x for each in extended for x in (each.keys, each.values)))

    ids = torch.ones(BATCH, tokens, dtype=torch.int64)
    cache = [torch.zeros(BATCH, heads, past, width) for _ in range(2 * layers)] if past else []
    return Decoder(), (ids, *cache)


def _unet(sample_size: int, **sizes: Any) -> Made:
    import torch
    from diffusers import UNet2DModel

    model = UNet2DModel(sample_size=sample_size, in_channels=3, out_channels=3, **sizes)
    return _first_answer(model), (torch.randn(BATCH, 3, *(sample_size,) * 2), torch.ones(BATCH))


def _unet_conditioned() -> Made:
    import torch
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32, block_out_channels=(128, 256, 512), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
    )  # fmt: skip
    images, times = torch.randn(BATCH, 4, 32, 32), torch.ones(BATCH)
    return _first_answer(model), (images, times, torch.randn(BATCH, 77, 256))


def _pixart() -> Made:
    import torch
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=6, attention_head_dim=64, in_channels=4, out_channels=8, num_layers=6,
        sample_size=32, cross_attention_dim=384, caption_channels=512,
        use_additional_conditions=False,
    )  # fmt: skip
    images, times = torch.randn(BATCH, 4, 32, 32), torch.ones(BATCH, dtype=torch.int64)
    return _first_answer(model, "hidden_states", "timestep", "encoder_hidden_states"), (
        images, times, torch.randn(BATCH, 77, 512),
    )  # fmt: skip


def _autoencoder_tiny() -> Made:
    import torch
    from diffusers import AutoencoderTiny

    model = AutoencoderTiny(encoder_block_out_channels=(48, 48, 48, 48),
                            decoder_block_out_channels=(48, 48, 48, 48))  # fmt: skip
    return _first_answer(model), (torch.randn(BATCH, 3, 128, 128),)


def _vae_decoder() -> Made:
    import torch
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(64, 128, 128), layers_per_block=1, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
    )  # fmt: skip
    model.forward = model.decode
    return _first_answer(model), (torch.randn(BATCH, 4, 32, 32),)


if __name__ == "__main__":
    sys.exit(main())
