"""The operators of `quantized_decomposed` as loops compute them, against torch's own kernels."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from fx_oracle import trace

from plait_fx_passes import run_passes, to_aten, wrap_runtime

q = torch.ops.quantized_decomposed
I8, U8 = torch.int8, torch.uint8


def draw(*sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(sizes))
    values = torch.randn(*sizes, generator=generator) * 3
    # Ties, the bounds, and what lies beyond them.
    places = torch.tensor([0.5, 1.5, -0.5, -2.5, 1e4, -1e4, 0.0])
    values.view(-1)[: len(places)] = places
    return values.to(dtype)


def integers(*sizes, dtype=I8):
    generator = torch.Generator().manual_seed(sum(sizes))
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, sizes, generator=generator).to(dtype)


SCALES, ZEROS = torch.rand(6) / 10 + 0.01, torch.tensor([0, 3, -4, 7, 0, 1])
TOKENS = torch.rand(5, 1, dtype=torch.float64) / 10 + 0.01
ONE = torch.tensor([0.05], dtype=torch.float64), torch.tensor([3])
BOUNDS = torch.tensor(-128), torch.tensor(127)
GROUPS = torch.rand(5, 2) / 10 + 0.01
GROUP_ZEROS = torch.zeros(5, 2, dtype=torch.int32) + 2

CASES = {
    "tensor": lambda x, i: q.quantize_per_tensor(x, 0.1, 3, -128, 127, I8),
    "tensor-halves": lambda x, i: q.quantize_per_tensor(x, 1.0, 0, -128, 127, I8),
    "tensor-unsigned": lambda x, i: q.quantize_per_tensor(x, 0.07, 128, 0, 255, U8),
    "tensor-int16": lambda x, i: q.quantize_per_tensor(x, 0.07, 0, -30000, 30000, torch.int16),
    "by-tensors": lambda x, i: q.quantize_per_tensor(x, *ONE, -128, 127, I8),
    "between": lambda x, i: q.quantize_per_tensor(x, *ONE, *BOUNDS, I8),
    "de-tensor": lambda x, i: q.dequantize_per_tensor(i, 0.1, 3, -128, 127, I8),
    "de-half": lambda x, i: q.dequantize_per_tensor(
        i, 0.1, 3, -128, 127, I8, out_dtype=torch.bfloat16
    ),
    "de-by-tensors": lambda x, i: q.dequantize_per_tensor(i, *ONE, -128, 127, I8),
    "de-by-tensors-half": lambda x, i: q.dequantize_per_tensor(
        i, *ONE, -128, 127, I8, out_dtype=torch.bfloat16
    ),
    "de-between": lambda x, i: q.dequantize_per_tensor(i, *ONE, *BOUNDS, I8),
    "channels": lambda x, i: q.quantize_per_channel(x, SCALES, ZEROS, 1, -128, 127, I8),
    "channels-first": lambda x, i: q.quantize_per_channel(x.t(), SCALES, ZEROS, 0, -128, 127, I8),
    "de-channels": lambda x, i: q.dequantize_per_channel(i, SCALES, ZEROS, 1, -128, 127, I8),
    "de-channels-plain": lambda x, i: q.dequantize_per_channel(i, SCALES, None, 1, -128, 127, I8),
    "tokens": lambda x, i: q.quantize_per_token(x, TOKENS, TOKENS.long(), -128, 127, I8),
    "de-tokens": lambda x, i: q.dequantize_per_token(
        i, TOKENS, TOKENS.long() + 2, -128, 127, I8, torch.float32
    ),
    "groups": lambda x, i: q.quantize_per_channel_group(x, GROUPS, GROUP_ZEROS, -8, 7, I8, 3),
    "de-groups": lambda x, i: q.dequantize_per_channel_group(
        i, GROUPS, GROUP_ZEROS, -8, 7, I8, 3, torch.float32
    ),
    "de-groups-plain": lambda x, i: q.dequantize_per_channel_group(
        i, GROUPS, None, -8, 7, I8, 3, torch.bfloat16
    ),
    "choose": lambda x, i: q.choose_qparams(x, -128, 127, 1e-6, I8),
    "choose-symmetric": lambda x, i: q.choose_qparams_symmetric(x, -127, 127, 1e-6, U8),
    "choose-token": lambda x, i: q.choose_qparams_per_token_asymmetric(x, I8),
    "fake": lambda x, i: q.fake_quant_per_channel(x, SCALES, ZEROS, 1, -128, 127),
    "convert": lambda x, i: q.convert_element_type.no_fuse(x, torch.float16),
}

TAKE_FLOAT32 = ("fake", "groups")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_taken_apart_and_computes_what_eager_does(name, dtype):
    if dtype is not torch.float32 and name in TAKE_FLOAT32:
        pytest.skip("torch's kernel takes float32")
    inputs = draw(5, 6, dtype=dtype), integers(5, 6)
    gm = trace(CASES[name])
    left = run_passes(to_aten(gm, inputs), verify_each=True)
    assert not [node for node in left.graph.nodes if "quantized_decomposed" in str(node.target)]
    found, wanted = wrap_runtime(left, left.module())(*inputs), gm(*inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_scales_of_tokens_have_the_values_of_eager_in_the_types_of_the_fake_kernel():
    inputs = (draw(5, 6),)
    gm = trace(lambda x: q.choose_qparams_per_token(x, I8))
    left = to_aten(gm, inputs)
    found, wanted = wrap_runtime(left, left.module())(*inputs), gm(*inputs)
    assert [each.dtype for each in found] == [torch.float64, torch.int64]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, check_dtype=False)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: q.quantize_per_tensor(x, 0.1, 0, -300, 127, I8),
        lambda x: q.quantize_per_tensor(x.double(), 0.1, 0, -128, 127, I8),
    ],
    ids=["bounds", "float64"],
)
def test_what_torch_refuses_is_refused(program):
    def run():
        left = to_aten(trace(program), [draw(5, 6)])
        wrap_runtime(left, left.module())(draw(5, 6))

    with pytest.raises(Exception, match=r"out of bounds?|Expecting input"):
        run()
