"""Text models without a second half: encoders and decoders."""

from __future__ import annotations

from typing import Any

from suites.zoo.entry import (
    GROUPED,
    SPECIAL,
    TINY,
    Entry,
    Inputs,
    boxes,
    eight_ids,
    even_ids,
    ids,
    masked,
)

SMALL_GPT = {**SPECIAL, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


def encoder(
    name: str, config: str, model: str = "Model", inputs: Inputs = ids, **settings: Any
) -> Entry:
    together = {**TINY, **settings}
    return Entry(name, "encoder", f"{config}Config", config + model, inputs, together)


def decoder(
    name: str, config: str, model: str = "ForCausalLM", inputs: Inputs = ids, **settings: Any
) -> Entry:
    together = {**GROUPED, **settings}
    return Entry(name, "decoder", f"{config}Config", config + model, inputs, together)


def own(name: str, family: str, config: str, model: str, **settings: Any) -> Entry:
    """A model whose configuration names nothing as the others do."""
    return Entry(name, family, f"{config}Config", config + model, ids, settings)


ENCODERS = (
    encoder("bert", "Bert"),
    encoder("bert-masked", "Bert", "ForMaskedLM", masked),
    encoder("roberta", "Roberta", "ForSequenceClassification", masked),
    encoder("roberta-prelayernorm", "RobertaPreLayerNorm"),
    encoder("camembert", "Camembert"),
    encoder("xlm-roberta", "XLMRoberta", "ForTokenClassification"),
    encoder("xlm-roberta-xl", "XLMRobertaXL"),
    encoder("electra", "Electra"),
    encoder("ernie", "Ernie"),
    encoder("megatron-bert", "MegatronBert"),
    encoder("data2vec-text", "Data2VecText"),
    encoder("rembert", "RemBert"),
    encoder("roformer", "RoFormer"),
    encoder("big_bird", "BigBird"),
    encoder("albert", "Albert", embedding_size=16),
    encoder("mpnet", "MPNet"),
    encoder("mobilebert", "MobileBert", embedding_size=32, intra_bottleneck_size=16),
    encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder(
        "deberta-v2",
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
    ),
    encoder("convbert", "ConvBert", embedding_size=32, conv_kernel_size=3),
    encoder("fnet", "FNet"),
    encoder("ibert", "IBert"),
    encoder("longformer", "Longformer", inputs=even_ids, attention_window=4),
    encoder(
        "nystromformer",
        "Nystromformer",
        inputs=eight_ids,
        num_landmarks=4,
        segment_means_seq_len=8,
    ),
    encoder("yoso", "Yoso", use_expectation=True),
    encoder("modernbert", "ModernBert", "ForMaskedLM"),
    encoder(
        "canine",
        "Canine",
        inputs=even_ids,
        downsampling_rate=2,
        num_hash_buckets=50,
        num_hash_functions=4,
        local_transformer_stride=4,
    ),
    encoder("esm", "Esm", position_embedding_type="rotary", mask_token_id=4),
    encoder("luke", "Luke", entity_vocab_size=20, entity_emb_size=16),
    encoder("nomic_bert", "NomicBert"),
    encoder("eurobert", "EuroBert", num_key_value_heads=2),
    encoder("tapas", "Tapas", type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4]),
    encoder("splinter", "Splinter"),
    encoder("xmod", "Xmod", languages=["en_XX"], default_language="en_XX"),
    encoder("mra", "Mra"),
    encoder("layoutlm", "LayoutLM", inputs=boxes, max_2d_position_embeddings=64),
    encoder("lilt", "Lilt", inputs=boxes, max_2d_position_embeddings=64, hidden_size=48),
    encoder("dpr", "DPR", "QuestionEncoder"),
    own(
        "distilbert",
        "encoder",
        "DistilBert",
        "Model",
        vocab_size=99,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=64,
    ),
    own(
        "funnel",
        "encoder",
        "Funnel",
        "Model",
        vocab_size=99,
        block_sizes=[1, 1],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
    ),
    own(
        "xlnet",
        "encoder",
        "XLNet",
        "Model",
        vocab_size=99,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=64,
    ),
)

DECODERS = (
    Entry("gpt2", "decoder", "GPT2Config", "GPT2LMHeadModel", ids, SMALL_GPT),
    Entry("gptj", "decoder", "GPTJConfig", "GPTJForCausalLM", ids, {**SMALL_GPT, "rotary_dim": 4}),
    Entry(
        "codegen",
        "decoder",
        "CodeGenConfig",
        "CodeGenForCausalLM",
        ids,
        {**SMALL_GPT, "rotary_dim": 4},
    ),
    Entry("gpt_bigcode", "decoder", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", ids, SMALL_GPT),
    Entry("openai-gpt", "decoder", "OpenAIGPTConfig", "OpenAIGPTModel", ids, SMALL_GPT),
    Entry("ctrl", "decoder", "CTRLConfig", "CTRLModel", ids, {**SMALL_GPT, "dff": 64}),
    own(
        "gpt_neo",
        "decoder",
        "GPTNeo",
        "ForCausalLM",
        vocab_size=99,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
    ),
    own("falcon", "decoder", "Falcon", "ForCausalLM", **TINY),
    own("bloom", "decoder", "Bloom", "ForCausalLM", **TINY),
    own("mpt", "decoder", "Mpt", "ForCausalLM", vocab_size=99, d_model=32, n_heads=4, n_layers=2),
    own(
        "opt",
        "decoder",
        "OPT",
        "ForCausalLM",
        **{**TINY, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    decoder("llama", "Llama"),
    decoder("llama-masked", "Llama", inputs=masked),
    decoder("mistral", "Mistral", sliding_window=4),
    decoder("qwen2", "Qwen2"),
    decoder("qwen3", "Qwen3"),
    decoder("gemma", "Gemma"),
    decoder("gemma2", "Gemma2", sliding_window=4),
    Entry(
        "gemma3",
        "decoder",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        ids,
        {**GROUPED, "sliding_window": 4},
    ),
    decoder("phi", "Phi"),
    decoder("phi3", "Phi3", sliding_window=4),
    decoder("gpt_neox", "GPTNeoX"),
    decoder("gpt_neox_japanese", "GPTNeoXJapanese"),
    decoder("cohere", "Cohere"),
    decoder("cohere2", "Cohere2", sliding_window=4),
    decoder("olmo", "Olmo"),
    decoder("olmo2", "Olmo2"),
    decoder("olmo3", "Olmo3", sliding_window=4),
    decoder("granite", "Granite"),
    decoder("stablelm", "StableLm"),
    decoder("starcoder2", "Starcoder2"),
    decoder("smollm3", "SmolLM3"),
    decoder("nemotron", "Nemotron"),
    decoder("persimmon", "Persimmon"),
    decoder("glm", "Glm"),
    decoder("glm4", "Glm4"),
    decoder("helium", "Helium"),
    decoder("exaone4", "Exaone4", sliding_window=4),
    decoder("diffllama", "DiffLlama"),
    decoder("biogpt", "BioGpt"),
    decoder("xglm", "XGLM", d_model=32, ffn_dim=64, attention_heads=4, num_layers=2),
    decoder("bitnet", "BitNet"),
    decoder("apertus", "Apertus"),
    decoder("seed_oss", "SeedOss"),
    decoder("nanochat", "NanoChat"),
    decoder("modernbert-decoder", "ModernBertDecoder"),
    decoder(
        "minicpm3",
        "MiniCPM3",
        num_key_value_heads=4,
        head_dim=None,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    ),
)

TEXT = (*ENCODERS, *DECODERS)
