"""Wrong arguments to plait.compile and plait.report name the right ones."""

import pytest
import torch

import plait


def twice(x):
    return x * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "max-autotun"}, "Did you mean 'max-autotune'"),
        ({"backend": "plat"}, "Did you mean 'plait'"),
        ({"backend": "inductor"}, "'plait', 'python', 'triton', 'eager'"),
        ({"backend": 3}, "a name or a function"),
        ({"fullgraph": 1}, "fullgraph takes True or False, not 1"),
        ({"dynamic": "yes"}, "dynamic takes True, False or None"),
        ({"options": {"verfy": True}}, "Did you mean 'verify'"),
        ({"options": {"verify": "yes"}}, "takes bool, not 'yes'"),
        ({"options": ["verify"]}, "options takes a dictionary"),
        ({"options": {"scheduler": True}}, "takes a dictionary"),
        ({"options": {"scheduler.fuse_pointwize": False}}, "'scheduler.fuse_pointwise'"),
        ({"options": {"scheduler.fuse_pointwise": 3}}, "takes bool, not 3"),
        ({"options": {"cpp.compilr": "g++"}}, "'cpp.compiler'"),
        ({"options": {"disabled_passes": "no-op"}}, "Did you mean 'no-ops'"),
    ],
)
def test_wrong_arguments_are_named_with_the_right_ones(arguments, expected):
    with pytest.raises(plait.OptionError) as caught:
        plait.compile(twice, **arguments)
    assert expected in str(caught.value)


def test_what_cannot_be_called_cannot_be_compiled():
    with pytest.raises(plait.OptionError, match="takes a function"):
        plait.compile(torch.ones(3))


def test_errors_come_when_decorating_not_when_calling():
    with pytest.raises(plait.OptionError):
        plait.compile(mode="fast")


def test_a_report_takes_compiled_things_only():
    with pytest.raises(plait.OptionError, match="returned, not <function twice"):
        plait.report(twice)


def test_torch_compile_modes_are_taken():
    for mode in (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        fast = plait.compile(twice, mode=mode)
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))


def test_dynamic_shapes_are_said_to_be_static(caplog):
    fast = plait.compile(twice, dynamic=True)
    assert "each new shape compiles anew" in caplog.text
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(fast(torch.ones(4)), torch.full((4,), 2.0))


def test_options_reach_the_stages():
    def program(x):
        return torch.exp(x).sum(-1) + torch.sin(x).amax(-1)

    x = torch.randn(8, 64)
    kernels = []
    for options in ({}, {"fusion": False}, {"scheduler.fuse_reductions": False}):
        fast = plait.compile(program, options=options)
        torch.testing.assert_close(fast(x), program(x))
        kernels.append(plait.report(fast).kernels)
    assert kernels[0] < kernels[1]
    assert kernels[0] < kernels[2]
