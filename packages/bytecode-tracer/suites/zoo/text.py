"""Text models: encoders, decoders, mixtures of experts, state spaces, encoder-decoders."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import TINY, Entry, tokens

TINY_SEQ2SEQ: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def ids(size: int) -> dict[str, Any]:
    """Token ids; sizes 0 and 1 differ in batch and length."""
    return {"input_ids": tokens(size, 2 + size, 7 + 2 * size)}


def masked(size: int) -> dict[str, Any]:
    """Token ids, the last of the first row masked out."""
    made = ids(size)
    mask = made["input_ids"].ne(0).long()
    mask[0, -2:] = 0
    return {**made, "attention_mask": mask}


def pairs(size: int) -> dict[str, Any]:
    """Token ids for an encoder and a decoder."""
    return {**ids(size), "decoder_input_ids": tokens(size + 7, 2 + size, 5 + size)}


def text(
    name: str, config: str, model: str, family: str = "text", inputs: Any = ids, **settings: Any
) -> Entry:
    return Entry(name, family, f"{config}Config", model, inputs, {**TINY, **settings})


def seq2seq(name: str, config: str, model: str, **settings: Any) -> Entry:
    together = {**TINY_SEQ2SEQ, **settings}
    return Entry(name, "encoder-decoder", f"{config}Config", model, pairs, together)


GROUPED = {"num_key_value_heads": 2}

TEXT = (
    text("bert", "Bert", "BertModel"),
    text("bert-masked", "Bert", "BertForMaskedLM", inputs=masked),
    text("roberta", "Roberta", "RobertaForSequenceClassification", inputs=masked),
    text("gpt2", "GPT2", "GPT2LMHeadModel"),
    text("llama", "Llama", "LlamaForCausalLM", **GROUPED),
    text("llama-masked", "Llama", "LlamaModel", inputs=masked, **GROUPED),
    text("mistral", "Mistral", "MistralForCausalLM", **GROUPED, sliding_window=4),
    text("mixtral", "Mixtral", "MixtralForCausalLM", "moe", **GROUPED, num_local_experts=4),
    text("qwen3", "Qwen3", "Qwen3ForCausalLM", **GROUPED, head_dim=8),
    text("mamba", "Mamba", "MambaForCausalLM", "state space", state_size=8),
)

ENCODER_DECODERS = (
    seq2seq("bart", "Bart", "BartModel"),
    Entry(
        "t5",
        "encoder-decoder",
        "T5Config",
        "T5ForConditionalGeneration",
        pairs,
        {
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
)
