"""A product is the same number wherever a program computes it: it rounds before it is added."""

from __future__ import annotations

import pytest
import torch

import plait

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PROGRAMS = {
    "least": lambda x, y: (x * y - (x * y).amin(-1, keepdim=True),),
    "largest": lambda x, y: ((x * y).amax() - x * y,),
    "across kernels": lambda x, y: (x * y - (x * y).flatten().sort().values[0], (x * y).amin()),
    "one class": lambda x, y: (torch.log_softmax((x * y)[..., None], -1),),
    "under a root": lambda x, y: (x * y - torch.minimum(x * y, y * 0.5 * x),),
    "square": lambda x, y: (x.square() - x.square().amin(-1, keepdim=True),),
    "axpy": lambda x, y: (x * 0.3 + y - (x * 0.3 + y).amin(-1, keepdim=True),),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_bit_is_that_of_eager(name, dtype, device):
    torch.manual_seed(0)
    x, y = (torch.randn(37, 205, dtype=dtype).to(device) for _ in range(2))
    run = plait.compile(PROGRAMS[name], fullgraph=True)
    for got, wanted in zip(run(x, y), PROGRAMS[name](x, y), strict=True):
        assert torch.equal(got, wanted)
        assert name == "across kernels" or (got >= 0).all()
