"""Fakes of elementwise results are as the real ones: sizes, strides, types and errors."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import torch

from plait_utils.fake import FakeMode
from plait_utils.fake_floats import KERNELS

GEOMETRIES = [
    *(((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (1, 2, 6)), ((2, 1, 4), (4, 1, 1)), ((), ())),
    *(((0, 3), (3, 1)), ((3, 3), (0, 1)), ((2, 3, 4, 5), (60, 1, 15, 3)), ((4,), (2,))),
]
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.bool)
NUMBERS: dict[str, list[tuple[Any, ...]]] = {
    "hardtanh": [(), (-2.0, 3), (0, 6.0)],
    "leaky_relu": [(0.2,)],
    "clamp": [(0,), (None, 1.5), (-1, 2), (None, None), (0, True)],
    "clamp_min": [(1.5,)],
    "clamp_max": [(2,)],
    "pow": [(2,), (0.5,), (-1,), (1j,)],
}


def told(call: Any) -> Any:
    try:
        made = call()
    except Exception as error:
        return type(error)
    return tuple(made.shape), made.stride(), made.dtype


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_as_the_real_ones(name: str) -> None:
    operator = attrgetter(name)(torch.ops)
    for dtype in DTYPES:
        for geometry in GEOMETRIES:
            real = torch.as_strided(torch.ones(400).to(dtype), *geometry)
            mode = FakeMode()
            fake = mode.from_tensor(real)
            for numbers in NUMBERS.get(name.split(".")[1], [()]):
                wanted = told(lambda numbers=numbers, real=real: operator(real, *numbers))
                with mode:
                    found = told(lambda numbers=numbers, fake=fake: operator(fake, *numbers))
                if isinstance(wanted, tuple) or isinstance(found, type):
                    assert found == wanted or isinstance(wanted, type), (dtype, geometry, numbers)
