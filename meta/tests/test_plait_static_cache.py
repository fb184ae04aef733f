"""Decoding with a cache of fixed size, as of `transformers`, which is written in a `try` block."""

import copy
import inspect

import pytest
import torch
from torch import nn

import plait


class StaticLayer:
    """Keys and values of up to `length` tokens; how many there are is a tensor."""

    def __init__(self, length, heads=2, width=8):
        self.keys = torch.zeros(1, heads, length, width)
        self.values = torch.zeros(1, heads, length, width)
        self.count = torch.tensor(0)

    def update(self, keys, values):
        places = torch.arange(keys.shape[-2]) + self.count
        self.count.add_(keys.shape[-2])
        try:
            self.keys.index_copy_(2, places, keys)
            self.values.index_copy_(2, places, values)
        except NotImplementedError:
            self.keys[:, :, places] = keys
            self.values[:, :, places] = values
        return self.keys, self.values


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.join, self.out = nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, token, cache):
        x = self.words(token)
        parts = [
            each.view(*token.shape, 2, 8).transpose(1, 2) for each in self.join(x).chunk(3, -1)
        ]
        mask = torch.arange(cache.keys.shape[-2])[None] <= cache.count
        keys, values = cache.update(*parts[1:])
        mixed = nn.functional.scaled_dot_product_attention(parts[0], keys, values, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def state(cache):
    return cache.keys, cache.values, cache.count


def decoded(step, token, cache):
    try:
        return step(token, cache)
    except (IndexError, RuntimeError) as error:
        return type(error)


@torch.no_grad()
def test_a_step_is_one_graph_and_errors_leave_what_eager_leaves():
    torch.manual_seed(0)
    model = Decoder().eval()
    fast = plait.compile(model, fullgraph=True)
    ours = StaticLayer(5)
    theirs = copy.deepcopy(ours)
    for number in (1, 7, 20, 3, 0, 4, 5, 6):  # no such word; in the end there is no room
        token = torch.tensor([[number]])
        found, wanted = decoded(fast, token, ours), decoded(model, token, theirs)
        if isinstance(wanted, type):
            assert found is wanted
        else:
            torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(state(ours), state(theirs))
    assert isinstance(wanted, type)
    assert len(plait.report(fast).graphs) == 1


@torch.no_grad()
def test_a_step_of_a_model_of_transformers_is_one_graph():
    transformers = pytest.importorskip("transformers")  # no dependency of the tests
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=2, **heads, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    fast = plait.compile(model, fullgraph=True)
    ours = transformers.StaticCache(config=config, max_cache_len=16)
    theirs = transformers.StaticCache(config=config, max_cache_len=16)
    takes = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in takes else "past_key_values"  # as it was called before
    for cache in (ours, theirs):
        model(input_ids=torch.arange(8)[None], **{name: cache})
    for word in (3, 9, 1, 40):
        token = torch.tensor([[word]])
        found = fast(input_ids=token, **{name: ours}).logits
        torch.testing.assert_close(found, model(input_ids=token, **{name: theirs}).logits)
        for mine, other in zip(ours.layers, theirs.layers, strict=True):
            torch.testing.assert_close(mine.keys, other.keys)
            torch.testing.assert_close(mine.values, other.values)
    assert len(plait.report(fast).graphs) == 1
