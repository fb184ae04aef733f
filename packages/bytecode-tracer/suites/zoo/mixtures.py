"""Mixtures of experts, state spaces, and what joins them with attention."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import GROUPED, TINY, Entry, ids

LATENT: dict[str, Any] = {
    **TINY,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
SCAN: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
}


def causal(family: str, name: str, config: str, settings: dict[str, Any]) -> Entry:
    return Entry(name, family, f"{config}Config", f"{config}ForCausalLM", ids, settings)


MIXTURES = (
    causal("moe", "mixtral", "Mixtral", {**GROUPED, "num_local_experts": 4}),
    causal("moe", "qwen2_moe", "Qwen2Moe", {**GROUPED, **EXPERTS}),
    causal("moe", "qwen3_moe", "Qwen3Moe", {**GROUPED, **EXPERTS}),
    causal("moe", "olmoe", "Olmoe", {**TINY, **EXPERTS}),
    causal("moe", "gpt_oss", "GptOss", {**GROUPED, "num_local_experts": 4, "sliding_window": 4}),
    causal("moe", "deepseek_v2", "DeepseekV2", {**LATENT, **ROUTED}),
    causal("moe", "deepseek_v3", "DeepseekV3", {**LATENT, **ROUTED}),
    causal("moe", "glm4_moe", "Glm4Moe", {**GROUPED, **ROUTED}),
    causal("moe", "phimoe", "Phimoe", {**GROUPED, "num_local_experts": 4}),
    causal("moe", "granitemoe", "GraniteMoe", {**GROUPED, "num_local_experts": 4}),
    causal("moe", "granitemoeshared", "GraniteMoeShared", {**GROUPED, "num_local_experts": 4}),
    causal("moe", "jetmoe", "JetMoe", {**TINY, "num_key_value_heads": 2, "kv_channels": 8}),
    causal(
        "moe",
        "ernie4_5_moe",
        "Ernie4_5_Moe",
        {
            **GROUPED,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 16,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
    ),
    causal(
        "moe",
        "longcat_flash",
        "LongcatFlash",
        {
            **LATENT,
            "num_layers": 1,
            "num_hidden_layers": 2,
            "head_dim": 8,
            "ffn_hidden_size": 64,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 16,
            "moe_topk": 2,
        },
    ),
)

STATE_SPACES = (
    causal("state space", "mamba", "Mamba", {**TINY, "state_size": 8}),
    causal("state space", "falcon_mamba", "FalconMamba", {**TINY, "state_size": 8}),
    causal(
        "state space",
        "mamba2",
        "Mamba2",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "expand": 2,
        },
    ),
    causal("state space", "rwkv", "Rwkv", {**TINY, "attention_hidden_size": 32}),
    causal(
        "state space",
        "jamba",
        "Jamba",
        {
            **GROUPED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    causal("state space", "bamba", "Bamba", {**GROUPED, **SCAN, "attn_layer_indices": [1]}),
    causal("state space", "falcon_h1", "FalconH1", {**GROUPED, **SCAN, "mamba_d_ssm": 64}),
    causal(
        "state space",
        "granitemoehybrid",
        "GraniteMoeHybrid",
        {
            **GROUPED,
            **SCAN,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 16,
        },
    ),
    causal(
        "state space",
        "recurrent_gemma",
        "RecurrentGemma",
        {
            **GROUPED,
            "lru_width": 32,
            "attention_window_size": 4,
            "block_types": ["recurrent", "attention"],
        },
    ),
    causal(
        "state space",
        "qwen3_next",
        "Qwen3Next",
        {
            **GROUPED,
            **EXPERTS,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    causal(
        "state space",
        "zamba2",
        "Zamba2",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "layers_block_type": ["mamba", "hybrid"],
            "mamba_headdim": 8,
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "chunk_size": 4,
            "use_mamba_kernels": False,
            "mamba_ngroups": 1,
        },
    ),
    causal("state space", "lfm2", "Lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
)
