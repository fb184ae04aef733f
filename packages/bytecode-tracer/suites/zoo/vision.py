"""Models of images and videos."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import LAYERS, Entry, Inputs, random

PATCHES: dict[str, Any] = {**LAYERS, "image_size": 32, "patch_size": 8, "num_channels": 3}
STAGES: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
}
WINDOWS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": 4,
}
RESIDUAL: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}


def images(size: int) -> dict[str, Any]:
    """Square images of 32 pixels; sizes differ in batch."""
    return {"pixel_values": random(size, 2 + size, 3, 32, 32)}


def large_images(size: int) -> dict[str, Any]:
    """Square images of 64 pixels."""
    return {"pixel_values": random(size, 2 + size, 3, 64, 64)}


def video(frames: int, name: str = "pixel_values") -> Inputs:
    """Frames of 32 pixels."""
    return lambda size: {name: random(size, 2 + size, frames, 3, 32, 32)}


def vision(
    name: str,
    config: str,
    base: dict[str, Any] = PATCHES,
    model: str = "Model",
    inputs: Inputs = images,
    **settings: Any,
) -> Entry:
    together = {**base, **settings}
    return Entry(name, "vision", f"{config}Config", config + model, inputs, together)


VISION = (
    vision("vit", "ViT"),
    vision("vit-classify", "ViT", model="ForImageClassification"),
    vision("vit_msn", "ViTMSN"),
    vision("vitdet", "VitDet"),
    vision("deit", "DeiT"),
    vision("beit", "Beit"),
    vision("data2vec-vision", "Data2VecVision"),
    vision("dinov2", "Dinov2"),
    vision("dinov2_with_registers", "Dinov2WithRegisters"),
    vision("dinov3_vit", "DINOv3ViT"),
    vision("clip-vision", "CLIPVision"),
    vision("siglip-vision", "SiglipVision"),
    vision("aimv2-vision", "Aimv2Vision"),
    vision("mlcd-vision", "MLCDVision"),
    vision("ijepa", "IJepa"),
    vision("pixio", "Pixio"),
    vision("internvl-vision", "InternVLVision"),
    vision("sam-vision", "SamVision", output_channels=16, window_size=2, global_attn_indexes=[1]),
    vision("yolos", "Yolos", image_size=[32, 32], num_detection_tokens=4),
    vision(
        "dpt",
        "DPT",
        model="ForDepthEstimation",
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_in_index=-1,
    ),
    vision("videomae", "VideoMAE", inputs=video(2), num_frames=2, tubelet_size=2),
    vision("timesformer", "Timesformer", inputs=video(2), num_frames=2),
    vision("vivit", "Vivit", inputs=video(4), num_frames=4, tubelet_size=[2, 8, 8]),
    vision("convnext", "ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    vision(
        "convnextv2", "ConvNextV2", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
    ),
    vision(
        "dinov3_convnext",
        "DINOv3ConvNext",
        {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
        inputs=large_images,
    ),
    vision("resnet", "ResNet", RESIDUAL, "ForImageClassification"),
    vision("bit", "Bit", RESIDUAL, num_groups=4),
    vision("regnet", "RegNet", RESIDUAL, groups_width=4),
    vision("mobilenet_v1", "MobileNetV1", {"depth_multiplier": 0.25}),
    vision("mobilenet_v2", "MobileNetV2", {"depth_multiplier": 0.25}),
    vision(
        "mobilevit",
        "MobileViT",
        {
            "image_size": 64,
            "patch_size": 2,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
        },
        inputs=large_images,
    ),
    vision("swin", "Swin", WINDOWS),
    vision("swinv2", "Swinv2", WINDOWS),
    vision("donut-swin", "DonutSwin", WINDOWS),
    vision("segformer", "Segformer", STAGES),
    vision("glpn", "GLPN", STAGES),
    vision("pvt_v2", "PvtV2", {**STAGES}),
    vision(
        "pvt",
        "Pvt",
        {**STAGES, "image_size": 32, "patch_sizes": [4, 2], "sequence_reduction_ratios": [2, 1]},
    ),
    vision(
        "levit",
        "Levit",
        {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "mlp_ratio": [2, 2, 2],
            "attention_ratio": [2, 2, 2],
        },
        inputs=large_images,
    ),
    vision(
        "poolformer",
        "PoolFormer",
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
        inputs=large_images,
    ),
    vision(
        "focalnet",
        "FocalNet",
        {
            "image_size": 32,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
    ),
    vision(
        "hiera",
        "Hiera",
        {
            "image_size": [32, 32],
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "patch_size": [7, 7],
            "patch_stride": [4, 4],
            "patch_padding": [3, 3],
            "query_stride": [2, 2],
            "num_query_pool": 1,
            "masked_unit_size": [4, 4],
        },
    ),
    vision(
        "upernet",
        "UperNet",
        {
            "backbone_config": {
                "model_type": "convnext",
                "hidden_sizes": [8, 8, 16, 16],
                "depths": [1, 1, 1, 1],
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "hidden_size": 16,
            "auxiliary_in_channels": 16,
            "auxiliary_channels": 8,
        },
        "ForSemanticSegmentation",
        large_images,
    ),
    vision(
        "detr",
        "Detr",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_queries": 5,
            "use_timm_backbone": False,
            "backbone": None,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 8],
                "depths": [1, 1],
                "out_features": ["stage2"],
            },
        },
    ),
)
