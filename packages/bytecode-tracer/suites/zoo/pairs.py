"""Encoder-decoder text models."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import GROUPED, SPECIAL, TINY, Entry, Inputs, even_pairs, pairs

BART: dict[str, Any] = {
    **SPECIAL,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def seq2seq(
    name: str,
    config: str,
    base: dict[str, Any],
    model: str = "Model",
    inputs: Inputs = pairs,
    **settings: Any,
) -> Entry:
    together = {**base, **settings}
    return Entry(name, "encoder-decoder", f"{config}Config", config + model, inputs, together)


ENCODER_DECODERS = (
    seq2seq("bart", "Bart", BART),
    seq2seq("mbart", "MBart", BART, "ForConditionalGeneration"),
    seq2seq("mvp", "Mvp", BART),
    seq2seq("marian", "Marian", BART),
    seq2seq("blenderbot", "Blenderbot", BART),
    seq2seq("blenderbot-small", "BlenderbotSmall", BART),
    seq2seq("pegasus", "Pegasus", BART),
    seq2seq("pegasus_x", "PegasusX", BART, inputs=even_pairs, block_size=4, num_global_tokens=2),
    seq2seq("plbart", "PLBart", BART),
    seq2seq("m2m_100", "M2M100", BART),
    seq2seq("bigbird_pegasus", "BigBirdPegasus", BART, attention_type="original_full"),
    seq2seq(
        "nllb-moe",
        "NllbMoe",
        BART,
        num_experts=4,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
    ),
    seq2seq(
        "led",
        "LED",
        {k: v for k, v in BART.items() if k != "max_position_embeddings"},
        inputs=even_pairs,
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    seq2seq(
        "fsmt",
        "FSMT",
        {k: v for k, v in BART.items() if k != "vocab_size"},
        src_vocab_size=99,
        tgt_vocab_size=99,
        langs=["en", "de"],
    ),
    seq2seq("t5", "T5", T5, "ForConditionalGeneration"),
    seq2seq("mt5", "MT5", T5),
    seq2seq("umt5", "UMT5", T5),
    seq2seq(
        "longt5", "LongT5", T5, local_radius=3, global_block_size=4, encoder_attention_type="local"
    ),
    seq2seq("switch_transformers", "SwitchTransformers", T5, num_experts=4, expert_capacity=8),
    seq2seq(
        "t5gemma",
        "T5Gemma",
        {"encoder": {**GROUPED}, "decoder": {**GROUPED, "cross_attention_hidden_size": 32}},
    ),
    seq2seq(
        "prophetnet",
        "ProphetNet",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 64,
            "ngram": 2,
            "num_buckets": 8,
            "relative_max_distance": 16,
        },
    ),
    seq2seq(
        "bert2bert",
        "EncoderDecoder",
        {
            "encoder": {**TINY, "model_type": "bert"},
            "decoder": {
                **TINY,
                "model_type": "bert",
                "is_decoder": True,
                "add_cross_attention": True,
            },
        },
    ),
)
