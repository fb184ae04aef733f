"""Models of sound."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import LAYERS, Entry, Inputs, random, tokens
from suites.zoo.pairs import BART

WAVES: dict[str, Any] = {
    **LAYERS,
    "vocab_size": 99,
    "conv_dim": (16, 16, 16),
    "conv_stride": (4, 4, 4),
    "conv_kernel": (8, 8, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def waves(size: int) -> dict[str, Any]:
    """Samples; sizes differ in batch and length."""
    return {"input_values": random(size, 2 + size, 1600 + 640 * size)}


def short_waves(size: int) -> dict[str, Any]:
    """Samples with a channel."""
    return {"input_values": random(size, 2 + size, 1, 320)}


def whisper_inputs(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "input_features": random(size, batch, 8, 40),
        "decoder_input_ids": tokens(size, batch, 6),
    }


def spoken_pairs(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "input_features": random(size, batch, 40, 8),
        "decoder_input_ids": tokens(size, batch, 6),
    }


def moonshine_inputs(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "input_values": random(size, batch, 4000),
        "decoder_input_ids": tokens(size, batch, 6),
    }


def speecht5_inputs(size: int) -> dict[str, Any]:
    batch = 2 + size
    return {
        "input_values": random(size, batch, 6, 32),
        "decoder_input_values": random(size + 3, batch, 5, 32),
    }


def features(*shape: int, name: str = "input_features") -> Inputs:
    return lambda size: {name: random(size, 2 + size, *shape)}


def audio(
    name: str,
    config: str,
    base: dict[str, Any] = WAVES,
    model: str = "Model",
    inputs: Inputs = waves,
    **settings: Any,
) -> Entry:
    together = {**base, **settings}
    return Entry(name, "audio", f"{config}Config", config + model, inputs, together)


AUDIO = (
    audio(
        "whisper",
        "Whisper",
        {
            **BART,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 20,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        inputs=whisper_inputs,
    ),
    audio(
        "speech_to_text",
        "Speech2Text",
        {
            **BART,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "max_source_positions": 40,
            "max_target_positions": 20,
        },
        inputs=spoken_pairs,
    ),
    audio("wav2vec2", "Wav2Vec2"),
    audio("wav2vec2-ctc", "Wav2Vec2", model="ForCTC"),
    audio("hubert", "Hubert"),
    audio("wavlm", "WavLM"),
    audio("unispeech", "UniSpeech"),
    audio("unispeech-sat", "UniSpeechSat"),
    audio("data2vec-audio", "Data2VecAudio", conv_pos_kernel_size=3, num_conv_pos_embeddings=2),
    audio("sew", "SEW", squeeze_factor=2),
    audio("wav2vec2-conformer", "Wav2Vec2Conformer"),
    audio(
        "wav2vec2-bert", "Wav2Vec2Bert", inputs=features(20, 16), feature_projection_input_dim=16
    ),
    audio(
        "audio-spectrogram-transformer",
        "AST",
        {**LAYERS, "max_length": 32, "num_mel_bins": 16, "patch_size": 8},
        inputs=features(32, 16, name="input_values"),
    ),
    audio(
        "encodec",
        "Encodec",
        {
            "num_filters": 4,
            "hidden_size": 16,
            "upsampling_ratios": [4, 2],
            "codebook_size": 32,
            "codebook_dim": 16,
            "num_lstm_layers": 1,
        },
        inputs=short_waves,
    ),
    audio(
        "dac",
        "Dac",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "decoder_hidden_size": 16,
            "n_codebooks": 2,
            "codebook_size": 32,
            "codebook_dim": 4,
            "upsampling_ratios": [4, 2],
            "hidden_size": 32,
        },
        inputs=short_waves,
    ),
    audio(
        "mimi",
        "Mimi",
        {
            **LAYERS,
            "num_filters": 4,
            "num_residual_layers": 1,
            "upsampling_ratios": [4, 2],
            "codebook_size": 32,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "num_quantizers": 3,
            "num_semantic_quantizers": 1,
            "upsample_groups": 32,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sampling_rate": 800,
            "frame_rate": 50,
        },
        inputs=short_waves,
    ),
    audio(
        "clap-audio",
        "ClapAudio",
        {
            "hidden_size": 32,
            "patch_embeds_hidden_size": 16,
            "spec_size": 64,
            "num_mel_bins": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 2],
            "window_size": 4,
            "num_hidden_layers": 2,
            "patch_size": 4,
            "patch_stride": [4, 4],
        },
        inputs=features(1, 64, 16),
    ),
    audio(
        "moonshine",
        "Moonshine",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "encoder_num_key_value_heads": 4,
            "decoder_num_key_value_heads": 4,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        inputs=moonshine_inputs,
    ),
    audio(
        "speecht5",
        "SpeechT5",
        {
            "hidden_size": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
        },
        inputs=speecht5_inputs,
    ),
    audio(
        "univnet",
        "UnivNet",
        {
            "model_in_channels": 8,
            "model_hidden_channels": 8,
            "num_mel_bins": 10,
            "kernel_predictor_hidden_channels": 8,
            "resblock_kernel_sizes": [3, 3],
            "resblock_stride_sizes": [4, 4],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
        },
        inputs=lambda size: {
            "input_features": random(size, 2 + size, 8, 10),
            "noise_sequence": random(size + 1, 2 + size, 8, 8),
        },
    ),
    Entry(
        "parakeet-encoder",
        "audio",
        "ParakeetEncoderConfig",
        "ParakeetEncoder",
        features(40, 16),
        {**LAYERS, "num_mel_bins": 16, "subsampling_conv_channels": 8},
    ),
)
