"""Models of more than one modality, and of time series."""

from __future__ import annotations

from typing import Any

import torch

from suites.zoo.entry import GROUPED, TINY, Entry, Inputs, boxes, ids, random, tokens
from suites.zoo.pairs import BART, T5
from suites.zoo.vision import PATCHES

IMAGE_TOKEN = 98


def captioned(size: int) -> dict[str, Any]:
    """Token ids and images."""
    return {**ids(size), "pixel_values": random(size, 2 + size, 3, 32, 32)}


def interleaved(size: int) -> dict[str, Any]:
    """Images, and token ids with a place for each of their 16 patches."""
    made = tokens(size, 2 + size, 20 + size)
    made[:, 2:18] = IMAGE_TOKEN
    return {"input_ids": made, "pixel_values": random(size, 2 + size, 3, 32, 32)}


def drawn(size: int) -> dict[str, Any]:
    return {"decoder_input_ids": ids(size)["input_ids"], **captioned(size)}


def without_ids(size: int) -> dict[str, Any]:
    made = drawn(size)
    del made["input_ids"]
    return made


def seen(size: int) -> dict[str, Any]:
    """Token ids, and features of five regions."""
    batch = 2 + size
    return {
        **ids(size),
        "visual_feats": random(size, batch, 5, 16),
        "visual_pos": random(size, batch, 5, 4).sigmoid(),
    }


def embedded(size: int) -> dict[str, Any]:
    return {**ids(size), "visual_embeds": random(size, 2 + size, 5, 16)}


def pages(size: int) -> dict[str, Any]:
    return {**boxes(size), "pixel_values": random(size, 2 + size, 3, 32, 32)}


def page_pairs(size: int) -> dict[str, Any]:
    made = boxes(size)
    return {**made, "bbox": made["bbox"] / 32, "decoder_input_ids": ids(size)["input_ids"]}


def episodes(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "states": random(size, batch, 4, 5),
        "actions": random(size, batch, 4, 3),
        "rewards": random(size, batch, 4, 1),
        "returns_to_go": random(size, batch, 4, 1),
        "timesteps": torch.arange(4)[None].repeat(batch, 1),
        "attention_mask": torch.ones(batch, 4),
    }


def series(length: int, channels: int) -> Inputs:
    return lambda size: {"past_values": random(size, 2 + size, length, channels)}


def forecast(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "past_values": random(size, batch, 10),
        "past_time_features": random(size, batch, 10, 1),
        "past_observed_mask": torch.ones(batch, 10),
        "future_values": random(size, batch, 4),
        "future_time_features": random(size, batch, 4, 1),
    }


def joint(
    name: str,
    config: str,
    settings: dict[str, Any],
    inputs: Inputs = captioned,
    model: str = "Model",
    family: str = "joint",
) -> Entry:
    return Entry(name, family, f"{config}Config", config + model, inputs, settings)


TWO_TOWERS: dict[str, Any] = {"text_config": TINY, "vision_config": PATCHES}
WRITES = "ForConditionalGeneration"

JOINT = (
    joint("clip", "CLIP", {**TWO_TOWERS, "projection_dim": 16}),
    joint("siglip", "Siglip", TWO_TOWERS),
    joint("chinese_clip", "ChineseCLIP", {**TWO_TOWERS, "projection_dim": 16}),
    joint("owlvit", "OwlViT", {**TWO_TOWERS, "projection_dim": 16}),
    joint(
        "altclip",
        "AltCLIP",
        {**TWO_TOWERS, "text_config": {**TINY, "project_dim": 16}, "projection_dim": 16},
    ),
    joint(
        "blip",
        "Blip",
        {
            "text_config": {**TINY, "encoder_hidden_size": 32},
            "vision_config": PATCHES,
            "projection_dim": 16,
        },
    ),
    joint(
        "llava",
        "Llava",
        {
            "text_config": {**TINY, "model_type": "llama"},
            "vision_config": {**PATCHES, "model_type": "clip_vision_model"},
            "image_token_index": IMAGE_TOKEN,
            "vision_feature_layer": -1,
        },
        interleaved,
        WRITES,
    ),
    joint(
        "paligemma",
        "PaliGemma",
        {
            "text_config": {**GROUPED, "model_type": "gemma"},
            "vision_config": {**PATCHES, "model_type": "siglip_vision_model"},
            "image_token_index": IMAGE_TOKEN,
            "projection_dim": 32,
        },
        interleaved,
        WRITES,
    ),
    joint("git", "Git", {**TINY, "vision_config": PATCHES}),
    joint("vilt", "Vilt", {**TINY, **PATCHES}),
    joint(
        "lxmert",
        "Lxmert",
        {
            **{key: value for key, value in TINY.items() if key != "num_hidden_layers"},
            "l_layers": 1,
            "x_layers": 1,
            "r_layers": 1,
            "visual_feat_dim": 16,
        },
        seen,
    ),
    joint("visual_bert", "VisualBert", {**TINY, "visual_embedding_dim": 16}, embedded),
    joint(
        "layoutlmv3",
        "LayoutLMv3",
        {**TINY, "input_size": 32, "patch_size": 8, "coordinate_size": 4, "shape_size": 8},
        pages,
    ),
    joint(
        "udop",
        "Udop",
        {**T5, "image_size": 32, "patch_size": 8, "relative_attention_num_buckets": 8},
        page_pairs,
    ),
    joint(
        "vit2gpt",
        "VisionEncoderDecoder",
        {
            "encoder": {**PATCHES, "model_type": "vit"},
            "decoder": {**TINY, "model_type": "gpt2", "add_cross_attention": True},
        },
        without_ids,
    ),
    joint(
        "perceiver",
        "Perceiver",
        {
            "num_latents": 8,
            "d_latents": 16,
            "d_model": 16,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "vocab_size": 99,
        },
        lambda size: {"inputs": random(size, 2 + size, 6, 16)},
    ),
    joint(
        "decision_transformer",
        "DecisionTransformer",
        {
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "state_dim": 5,
            "act_dim": 3,
            "max_ep_len": 20,
        },
        episodes,
        family="series",
    ),
    joint(
        "patchtst",
        "PatchTST",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
        },
        series(16, 2),
        family="series",
    ),
    joint(
        "patchtsmixer",
        "PatchTSMixer",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 8,
            "num_layers": 2,
        },
        series(16, 2),
        family="series",
    ),
    joint(
        "time_series_transformer",
        "TimeSeriesTransformer",
        {
            **{key: value for key, value in BART.items() if key != "vocab_size"},
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
        },
        forecast,
        family="series",
    ),
)
