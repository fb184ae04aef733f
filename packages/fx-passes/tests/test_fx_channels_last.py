"""Images with channels last: what is laid out so, what is not, and that nobody sees it."""

from __future__ import annotations

import copy

import pytest
import torch
from fx_oracle import trace
from torch import nn

from plait_fx_passes import (
    DEFAULT_PASSES,
    LAYOUT_PASSES,
    ImageRole,
    image_layouts,
    partition,
    run_passes,
    summarize_layouts,
    to_aten,
    to_joint,
    verify,
    wrap_runtime,
    wrap_training,
)

aten = torch.ops.aten
PASSES = (*DEFAULT_PASSES, *LAYOUT_PASSES)


class Branches(nn.Module):
    """Results of all kinds: images, parts and permutations of them, sums over them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.across = nn.BatchNorm2d(8), nn.Conv2d(4, 8, 1, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm(self.second(torch.relu(self.first(x)))) + self.across(x))
        parts = y.permute(0, 2, 3, 1).sin(), y[:, ::2, 1:, :3] * 2
        return torch.cat([y, x], 1), y.mean((2, 3)), *parts, y.flatten(2).transpose(1, 2).cos()


def two(*between, out=None):
    """Two convolutions with something between them."""
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *between, out or nn.Conv2d(8, 8, 3))


NETS = {
    "pools": lambda: two(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    "overlapping pools": lambda: two(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)),
    "groups": lambda: two(nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU()),
    "depthwise": lambda: two(nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.SiLU()),
    "dilated and strided": lambda: two(nn.Conv2d(8, 8, 3, dilation=2), nn.Conv2d(8, 8, 2, 2)),
    "transposed": lambda: two(nn.GELU(), out=nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False)),
    "one channel": lambda: two(nn.ReLU(), nn.Conv2d(8, 1, 3), out=nn.Conv2d(1, 4, 3)),
    "resized": lambda: two(nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.ZeroPad2d(1)),
    "shuffled": lambda: two(nn.PixelShuffle(2), nn.PReLU(2), out=nn.Conv2d(2, 8, 3)),
    "norms": lambda: two(nn.GroupNorm(2, 8), nn.ReLU(), nn.BatchNorm2d(8, affine=False)),
    "dropout": lambda: two(nn.Dropout(0.4), nn.ReLU(), nn.Dropout2d(0.3)),
    "flattened": lambda: two(nn.ReLU(), out=nn.Sequential(nn.Flatten(), nn.Linear(8 * 144, 3))),
    "branches": Branches,
}


def observed(run, module, x):
    """Results and gradients, with the same random numbers each time."""
    torch.manual_seed(3)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    results = run(x)
    results = results if isinstance(results, (tuple, list)) else (results,)
    sum(
        (each * torch.arange(each.numel()).view(each.shape).cos()).sum() for each in results
    ).backward()
    return [*results, x.grad, *(each.grad for each in module.parameters()), *module.buffers()]


def laid_out(module, x):
    """The module through its joint graph with ATen's kernels, and the graph."""
    gm = trace(module)
    recorded = to_joint(gm, [x.requires_grad_()])
    flat = run_passes(recorded.flat(), PASSES, verify_each=True)
    joint = recorded.replace_graph(flat.graph)
    parts = partition(joint)
    halves = parts.forward.module(), parts.backward.module()
    return wrap_training(joint, parts, *halves, gm), flat


def copies(graph):
    """How many values are copied so that channels are last."""
    made = graph.graph.find_nodes(op="call_function", target=aten.clone.default)
    return sum(node.kwargs.get("memory_format") is torch.channels_last for node in made)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.sampled(3)
def test_a_net_gives_what_it_gives_in_eager_where_it_lies_in_eager(name, last):
    torch.manual_seed(0)
    module = NETS[name]()
    x = torch.randn(2, 4, 12, 12)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    other = copy.deepcopy(module)
    run, flat = laid_out(other, x)
    got, wanted = observed(run, other, x.detach()), observed(module, module, x.detach())
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, check_stride=not last)
    strides = [
        node.meta["val"]
        for node in flat.graph.find_nodes(op="call_function", target=aten.convolution.default)
    ]
    assert strides[0].is_contiguous(memory_format=torch.channels_last)


def left(module, x):
    """The graph of a module without gradients, after the passes; values and strides checked."""
    graph = to_aten(trace(module), [x])
    result = run_passes(graph, PASSES, verify_each=True)
    got, wanted = wrap_runtime(result, result.module())(x), module(x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, check_stride=True)
    return result


def test_group_norms_take_images_as_they_lie():
    """Groups are parts of the channels, and no dimension joins these with pixels."""
    module = two(nn.GroupNorm(2, 8), nn.SiLU(), nn.GroupNorm(8, 8)).eval()
    with torch.no_grad():
        images = image_layouts(left(module, torch.randn(2, 4, 16, 16)).graph)
    restored = [image for image in images if image.role is ImageRole.RESTORED]
    assert len(restored) == 1, summarize_layouts(images)  # the result


def image(*size, dtype=torch.float32):
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(0))


def test_between_convolutions_nothing_is_copied():
    module = two(nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()).requires_grad_(False)
    graph = left(module, image(2, 4, 12, 12))
    assert copies(graph) == 1
    assert len(graph.graph.find_nodes(op="call_function", target=aten.clone.default)) == 2


def test_a_volume_is_laid_out_too():
    module = nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 8, 3)).requires_grad_(False)
    graph = left(module, image(2, 4, 8, 8, 8))
    formats = [
        n.kwargs.get("memory_format") for n in graph.graph.nodes if n.target is aten.clone.default
    ]
    assert torch.channels_last_3d in formats


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Conv2d(4, 8, 3), image(2, 4, 12, 12)),  # as much would be copied as is spared
        (nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3)), image(2, 4, 12)),
        (two(nn.ReLU()).double(), image(2, 4, 12, 12, dtype=torch.float64)),
        (nn.Sequential(nn.Conv2d(64, 64, 3), nn.Conv2d(64, 64, 3)), image(2, 64, 5, 5)),
        (two(nn.ReLU()), image(0, 4, 12, 12)),
        (nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)), image(2, 4, 12, 12)),
    ],
    ids=["lone", "one dimension", "float64", "large weights", "empty", "few channels"],
)
def test_where_it_does_not_pay_nothing_changes(module, x):
    assert copies(left(module.requires_grad_(False), x)) == 0


def test_places_in_memory_are_those_of_eager():
    first, second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3)

    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            y = torch.relu(self.first(x))
            part = y[1:]
            return (
                self.second(y),
                y.as_strided((3, 5), (7, 2), 4) * 2,
                part.as_strided((4,), (3,)) + 1,
            )

    graph = left(Places().requires_grad_(False), image(2, 4, 12, 12))
    assert copies(graph) == 1


def test_without_fuel_the_graph_stays():
    module = two(nn.ReLU()).requires_grad_(False)
    graph = to_aten(trace(module), [image(2, 4, 12, 12)])
    kept = run_passes(graph, LAYOUT_PASSES, fuel=0)
    verify(kept)
    assert copies(kept) == 0


def roles(graph):
    return [(each.name, each.role) for each in image_layouts(graph.graph)]


def test_it_is_told_which_images_lie_so_and_why():
    module = two(nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(False)
    graph = left(module, image(2, 4, 12, 12))
    told = roles(graph)
    wanted = [name for name, role in told if role is ImageRole.WANTED]
    assert wanted == ["convolution", "convolution_1", "convolution_2"]
    assert [name for name, role in told if role is ImageRole.KEPT] == ["relu"]
    made, restored = (
        [each for each in image_layouts(graph.graph) if each.role is role]
        for role in (ImageRole.MADE, ImageRole.RESTORED)
    )
    assert [each.why for each in made] == ["for convolution"]
    assert made[0].bytes == 4 * 2 * 4 * 12 * 12
    assert len(restored) == 1
    text = summarize_layouts(image_layouts(graph.graph))
    assert "4 values with channels last, for 3 convolutions" in text
    assert "1 value (4,608 bytes) to it, 1 value" in text


def test_it_is_told_what_laying_out_would_have_cost():
    graph = left(nn.Conv2d(4, 8, 3).requires_grad_(False), image(2, 4, 12, 12))
    assert roles(graph) == [("convolution", ImageRole.REFUSED)]
    (told,) = image_layouts(graph.graph)
    assert told.why == "2,752 elements would be rearranged to spare 2,752"
    assert told.why in summarize_layouts([told])


def test_nothing_is_told_of_graphs_without_convolutions():
    graph = left(nn.ReLU(), image(2, 4, 12, 12))
    assert roles(graph) == []
    assert summarize_layouts(image_layouts(graph.graph)) == ""


def test_a_backward_tells_of_what_it_computes_itself():
    module = two(nn.ReLU(), nn.Conv2d(8, 8, 3))
    recorded = to_joint(trace(module), [image(2, 4, 12, 12).requires_grad_()])
    flat = run_passes(recorded.flat(), PASSES)
    parts = partition(recorded.replace_graph(flat.graph))
    told = dict(roles(parts.backward))
    assert {"convolution_backward"} <= told.keys()
    assert {name for name, _ in roles(parts.forward)} >= {"convolution", "convolution_1"}
    assert all(node.name not in told for node in parts.backward.placeholders)
