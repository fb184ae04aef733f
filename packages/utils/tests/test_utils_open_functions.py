"""Functions of torch that are written in Python for symbolic sizes: values, strides, open sizes."""

import itertools

import pytest
import torch
from torch.nn import functional

from plait_utils.fake import FakeMode
from plait_utils.open_differences import gradient
from plait_utils.open_functions import open_call, take_along_dim
from plait_utils.open_images import interpolate, smooth_bicubic, smooth_bilinear
from plait_utils.open_joins import block_diag
from plait_utils.open_pools import (
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
)
from plait_utils.open_products import bilinear, kron, multi_dot
from plait_utils.open_recurrent import lstm
from plait_utils.open_scans import cumprod, vander
from plait_utils.open_windows import stft
from plait_utils.shape_environment import Place, make_environment


def assert_same(got, wanted):
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple | list) else [(got, wanted)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride()


IMAGES = [
    *(
        ({"scale_factor": scale, "mode": mode}, dims)
        for scale in (2, 2.0, 1.7, 0.5)
        for mode, dims in (
            ("nearest", 1),
            ("nearest", 2),
            ("nearest", 3),
            ("nearest-exact", 2),
            ("linear", 1),
            ("bilinear", 2),
            ("bicubic", 2),
            ("trilinear", 3),
            ("area", 1),
            ("area", 2),
            ("area", 3),
        )
    ),
    ({"size": 5}, 2),
    ({"size": (5, 6), "mode": "bilinear", "align_corners": True}, 2),
    ({"scale_factor": (1.5, 0.7), "mode": "bicubic", "recompute_scale_factor": True}, 2),
    ({"scale_factor": 0.6, "mode": "bilinear", "antialias": True}, 2),
    ({"size": 4, "mode": "bicubic", "antialias": True}, 2),
]


@pytest.mark.parametrize(("options", "dims"), IMAGES, ids=str)
def test_images_are_as_torch_makes_them(options, dims):
    image = torch.randn(2, 3, *(7, 8, 6)[:dims])
    assert_same(interpolate(image, **options), functional.interpolate(image, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": 3, "scale_factor": 2},
        {"size": (3, 4, 5)},
        {"size": 3, "align_corners": True},
        {"size": 3, "mode": "trilinear"},
        {"size": 3, "antialias": True},
        {"size": 3, "recompute_scale_factor": True},
        {"size": "3"},
    ],
    ids=str,
)
def test_what_torch_refuses_of_images_is_left_to_it(options):
    image = torch.randn(2, 3, 7, 8)
    assert interpolate(image, **options) is NotImplemented
    with pytest.raises(Exception):  # whatever torch raises
        functional.interpolate(image, **options)


def test_products_are_as_torch_makes_them():
    torch.manual_seed(0)
    for one, other in itertools.product([(), (2,), (2, 3), (2, 1, 3)], repeat=2):
        x, y = torch.randn(one), torch.randn(other)
        assert_same(kron(x, y), torch.kron(x, y))
    x, y, weight, bias = (torch.randn(s) for s in [(2, 3, 4), (2, 3, 5), (6, 4, 5), (6,)])
    torch.testing.assert_close(bilinear(x, y, weight, bias), torch.bilinear(x, y, weight, bias))
    torch.testing.assert_close(bilinear(x, y, weight), torch.bilinear(x, y, weight, None))
    assert bilinear(x, y[:1], weight) is NotImplemented
    assert bilinear(x, y, weight[0]) is NotImplemented


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_chains_of_products_are_in_the_order_of_torch(count):
    generator = torch.Generator().manual_seed(count)
    for _ in range(20):
        sizes = torch.randint(1, 9, (count + 1,), generator=generator).tolist()
        chain = [torch.randn(m, n, generator=generator) for m, n in itertools.pairwise(sizes)]
        assert_same(multi_dot(chain), torch.linalg.multi_dot(chain))
        ends = [chain[0][0], *chain[1:-1], chain[-1][:, 0]]
        assert_same(multi_dot(ends), torch.linalg.multi_dot(ends))
    assert multi_dot([torch.ones(2, 3), torch.ones(2, 3)]) is NotImplemented


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spacing": 0.5},
        {"dim": 1},
        {"dim": (2, -3), "spacing": (0.25, 3.0)},
        {"spacing": (torch.tensor([0.0, 1, 3, 4]), torch.arange(5) ** 2, torch.arange(6) / 7)},
        {"dim": -1, "spacing": (torch.arange(6) / 7,)},
    ],
    ids=str,
)
def test_gradients_are_as_torch_makes_them(options, edge_order):
    x = torch.randn(4, 5, 6)
    for each in (x, x.transpose(0, 2).contiguous().transpose(0, 2), (x * 9).long()):
        wanted = torch.gradient(each, edge_order=edge_order, **options)
        assert_same(gradient(each, edge_order=edge_order, **options), wanted)


def test_what_torch_refuses_of_gradients_is_left_to_it():
    x = torch.randn(4, 5)
    refused = [{"dim": 2}, {"dim": (0, 0)}, {"spacing": (1, 2, 3)}]
    for options in refused:
        assert gradient(x, **options) is NotImplemented
        with pytest.raises(Exception):  # whatever torch raises
            torch.gradient(x, **options)
    assert gradient(x, spacing=(torch.arange(3), torch.arange(5))) is NotImplemented
    assert gradient(x[:1]) is NotImplemented


def test_elements_along_a_dimension_are_as_torch_takes_them():
    x = torch.randn(4, 5, 6)
    for shape, dim in (((4, 2, 6), 1), ((1, 3, 6), 1), ((4, 5, 9), -1), ((7, 1, 1), 0)):
        places = torch.randint(0, x.shape[dim], shape)
        assert_same(take_along_dim(x, places, dim), torch.take_along_dim(x, places, dim))
    narrow = x[:, :1]
    places = torch.randint(0, 4, (2, 5, 6))
    assert_same(take_along_dim(narrow, places, 0), torch.take_along_dim(narrow, places, 0))
    places = torch.randint(0, 120, (3, 2))
    assert_same(take_along_dim(x, places), torch.take_along_dim(x, places))
    for wrong in ((x, places, 1), (x, places.int(), None), (x, x.long(), 3)):
        assert take_along_dim(*wrong) is NotImplemented


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_smooth_images_are_as_torch_makes_them(kind):
    image = torch.randn(2, 3, 7, 8)
    ours = smooth_bilinear if kind == "bilinear" else smooth_bicubic
    theirs = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa")
    for sizes, scales in (([3, 4], None), (None, [1.7, 0.9])):
        assert_same(ours(image, sizes, False, scales), theirs(image, sizes, False, scales))
    assert ours(image, [3, 4], False, 0.5) is NotImplemented
    assert ours(image, None, False, None) is NotImplemented


POOLS = {
    "a plane": (2, (3, 4, 5), [None, 3]),
    "planes": (2, (2, 3, 6, 5), [4, None]),
    "all of planes": (2, (2, 3, 6, 5), [None, None]),
    "a volume": (3, (3, 4, 5, 6), [None, 3, 2]),
    "volumes": (3, (2, 3, 4, 5, 6), [3, None, 4]),
    "rows of volumes": (3, (2, 3, 4, 5, 6), [None, None, 4]),
    "columns of volumes": (3, (2, 3, 4, 5, 6), [2, None, None]),
    "all of volumes": (3, (2, 3, 4, 5, 6), [None] * 3),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_are_as_torch_makes_them(name):
    rank, shape, sizes = POOLS[name]
    image = torch.randn(shape)
    both = {2: adaptive_max_pool2d_with_indices, 3: adaptive_max_pool3d_with_indices}[rank]
    one = {2: adaptive_max_pool2d, 3: adaptive_max_pool3d}[rank]
    theirs = getattr(functional, f"adaptive_max_pool{rank}d")
    assert_same(both(image, sizes), theirs(image, sizes, return_indices=True))
    assert_same([one(image, sizes)], [theirs(image, sizes)])


def test_other_pools_are_left_to_torch():
    image = torch.randn(2, 3, 6, 5)
    last = image.to(memory_format=torch.channels_last)
    for x, sizes in ((image, [2, 3]), (image, 2), (image, [None]), (last, [None, 2])):
        assert adaptive_max_pool2d(x, sizes) is NotImplemented
    assert adaptive_max_pool2d(image[0, 0], [None, 2]) is NotImplemented


@pytest.mark.filterwarnings("ignore:A window was not provided", "ignore:stft with return_complex")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": False, "hop_length": 3},
        {"normalized": True, "onesided": False},
        {"pad_mode": "constant", "win_length": 7},
        {"win_length": 6, "window": torch.linspace(0, 1, 6), "hop_length": 1},
        {"window": torch.hann_window(9), "return_complex": False},
        {"window": torch.hann_window(9).to(torch.complex64), "onesided": False},
    ],
    ids=str,
)
def test_transforms_of_windows_are_as_torch_makes_them(options):
    options = {"return_complex": True, **options}
    for signal in (torch.randn(40), torch.randn(3, 41)):
        assert_same([stft(signal, 9, **options)], [torch.stft(signal, 9, **options)])


def test_what_torch_refuses_of_windows_is_left_to_it():
    signal = torch.randn(40)
    refused = [
        {"hop_length": 0},
        {"win_length": 10},
        {"window": torch.ones(4)},
        {"window": torch.ones(9).to(torch.complex64), "onesided": True},
        {"return_complex": None},
    ]
    for options in refused:
        given = {"return_complex": True, **options}
        assert stft(signal, 9, **given) is NotImplemented
        with pytest.raises(RuntimeError):
            torch.stft(signal, 9, **given)
    assert stft(signal, 50, center=False, return_complex=True) is NotImplemented


def test_blocks_are_as_torch_joins_them():
    blocks = [torch.randn(2, 3), torch.randn(4), torch.tensor(5.0), torch.randn(1, 2)]
    for given in (blocks, blocks[:1], blocks[1:3]):
        assert_same([block_diag(*given)], [torch.block_diag(*given)])
        assert_same([block_diag(given)], [torch.block_diag(*given)])
    assert block_diag() is NotImplemented
    assert block_diag(blocks[0], blocks[0].double()) is NotImplemented
    assert block_diag(torch.ones(1, 1, 1)) is NotImplemented


@pytest.mark.parametrize("places", [[], [2], [0, 3], [4, 1, 2]], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_gradients_of_running_products_are_those_of_torch(places, dim):
    x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, places] = 0
    x[2, 3] = 0
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    made, wanted = cumprod(ours, dim), theirs.cumprod(dim)
    assert torch.equal(made, wanted)
    seed = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(made, ours, seed), torch.autograd.grad(wanted, theirs, seed)
    )
    assert torch.autograd.gradcheck(lambda each: cumprod(each, dim), ours)


def test_running_products_without_gradients_are_left_to_torch():
    x = torch.randn(3, 4)
    assert cumprod(x, 0) is NotImplemented
    assert cumprod(x.requires_grad_(), 2) is NotImplemented
    assert cumprod(torch.randn(3, dtype=torch.complex64, requires_grad=True), 0) is NotImplemented
    with torch.no_grad():
        assert cumprod(x, 0) is NotImplemented
    assert cumprod(x, 0, dtype=torch.float64).dtype is torch.float64


def test_powers_are_as_torch_makes_them():
    for x in (torch.randn(5), torch.randn(2, 3, requires_grad=True)):
        assert_same(
            [vander(x), vander(x, N=7)], [torch.linalg.vander(x), torch.linalg.vander(x, N=7)]
        )
    assert vander(torch.arange(3)) is NotImplemented
    assert vander(torch.ones(3), N=1) is NotImplemented
    assert vander(torch.tensor(1.0)) is NotImplemented


def open_tensor(mode, name, sizes):
    """A fake row-major tensor all of whose sizes are symbols."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    environment, made = mode.shape_env, []
    for number, size in enumerate(sizes):
        symbol = environment.create_symbol(
            size,
            Place(f"{name}{number}"),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=True,
        )
        made.append(environment.create_symintnode(symbol, hint=size, source=Place(str(symbol))))
    strides, step = [], 1
    for size in reversed(made):
        strides.insert(0, step)
        step = size * step
    return mode.with_sizes(torch.empty(sizes), made, strides)


CALLS = {
    "images": (functional.interpolate, [(2, 3, 5, 7)], {"scale_factor": 1.7}),
    "smooth images": (functional.interpolate, [(2, 3, 5)], {"scale_factor": 2, "mode": "linear"}),
    "products": (torch.kron, [(2, 3), (4, 5)], {}),
    "matrices": (functional.bilinear, [(4, 5), (4, 6), (3, 5, 6)], {}),
    "differences": (torch.gradient, [(4, 5)], {"edge_order": 2}),
    "blocks": (torch.block_diag, [(4, 5), (3, 2)], {}),
    "powers": (torch.linalg.vander, [(4, 5)], {}),
    "taken": (torch.take_along_dim, [(4, 5), (3, 5)], {"dim": 0}),
    "smooth": (
        torch.ops.aten._upsample_bilinear2d_aa,
        [(2, 3, 5, 7)],
        {"output_size": None, "align_corners": False, "scale_factors": [1.7, 0.5]},
    ),
    "pools": (functional.adaptive_max_pool3d, [(2, 3, 5, 7, 6)], {"output_size": [None] * 3}),
    "scattered": (torch.masked_scatter, [(4, 5), (5,), (4, 5)], {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_sizes_stay_open(name):
    function, shapes, options = CALLS[name]
    mode = FakeMode(make_environment(lambda guard: None))
    with mode:
        tensors = [open_tensor(mode, f"x{n}_", shape) for n, shape in enumerate(shapes)]
        if function is torch.masked_scatter:
            tensors[1] = tensors[1] > 0
        if function is torch.take_along_dim:
            tensors[1] = tensors[1].long()
        found = open_call("call_function", function, tensors, options)
    first = found[0] if isinstance(found, tuple) else found
    assert_open(mode, first)


@pytest.mark.parametrize("shapes", [[(2, 4, 5), (2, 5, 3)], [(2, 7, 4, 5), (7, 5, 3)]])
def test_sizes_of_products_stay_open(shapes):
    """By torch's own product where that leaves sizes open."""
    mode = FakeMode(make_environment(lambda guard: None))
    with mode:
        tensors = [open_tensor(mode, f"x{n}_", shape) for n, shape in enumerate(shapes)]
        found = open_call("call_function", torch.matmul, tensors, {})
        assert_open(mode, torch.matmul(*tensors) if found is NotImplemented else found)


def test_sizes_of_linear_layers_stay_open():
    mode = FakeMode(make_environment(lambda guard: None))
    with mode:
        x = open_tensor(mode, "x", (2, 7, 5))
        weight = torch.empty(3, 5)
        found = open_call("call_function", torch.nn.functional.linear, [x, weight], {})
        found = torch.nn.functional.linear(x, weight) if found is NotImplemented else found
    assert all(isinstance(size, torch.SymInt) for size in found.shape[:2])
    assert found.shape[2] == 3


def assert_open(mode, found):
    assert all(isinstance(size, torch.SymInt) for size in found.shape)
    fixed = [g for g in mode.shape_env.guards if g.expr.is_Relational and g.expr.rhs.is_number]
    assert not [g for g in fixed if g.expr.func.__name__ == "Equality"]


def test_known_sizes_and_unknown_arguments_are_left_to_torch():
    x = torch.randn(2, 3)
    assert open_call("call_function", torch.kron, [x, x], {}) is NotImplemented
    mode = FakeMode(make_environment(lambda guard: None))
    with mode:
        fake = open_tensor(mode, "x", (2, 3))
        assert open_call("call_function", torch.add, [fake, fake], {}) is NotImplemented
        assert open_call("call_method", "add", [fake, fake], {}) is NotImplemented
        assert open_call("call_function", torch.kron, [fake, fake], {"out": x}) is NotImplemented
        assert open_call("call_method", "kron", [fake, fake], {}) is not NotImplemented


NETWORKS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "bias": False, "bidirectional": True, "batch_first": True},
]


def _given_to_lstm(layer, x):
    width = layer.num_layers * (2 if layer.bidirectional else 1)
    batch = x.shape[0] if layer.batch_first else x.shape[1]
    states = [torch.randn(width, batch, layer.hidden_size, dtype=x.dtype) for _ in range(2)]
    flags = layer.bias, layer.num_layers, layer.dropout, layer.training
    return x, states, layer._flat_weights, *flags, layer.bidirectional, layer.batch_first


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a kernel of oneDNN's")
@pytest.mark.parametrize("options", NETWORKS, ids=str)
@pytest.mark.parametrize("trains", [False, True])
def test_lstms_have_the_bits_of_torchs(options, trains):
    layer = torch.nn.LSTM(6, 5, **options).train(trains).requires_grad_(trains)
    given = _given_to_lstm(layer, torch.randn(7, 4, 6))
    found, wanted = lstm(*given), torch.lstm(*given)
    assert_same(found, wanted)
    if trains:
        weights = [*layer.parameters()]
        one, other = (torch.autograd.grad(sum(map(torch.sum, f)), weights) for f in (found, wanted))
        assert_same(one, other)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, states, *rest: (x[..., :3], states, *rest),
        lambda x, states, *rest: (x[0], states, *rest),
        lambda x, states, *rest: (x, [each[:, :2] for each in states], *rest),
        lambda x, states, *rest: (x, [states[0], states[1][:0]], *rest),
        lambda x, states, weights, *rest: (x, states, weights[:3], *rest),
        lambda x, states, weights, *rest: (x, states, [each[1:] for each in weights], *rest),
        lambda x, states, *rest: (x[:0], states, *rest),
        lambda x, states, *rest: (x.double(), states, *rest),
    ],
)
def test_what_is_no_lstm_is_left_to_torch(wrong):
    """Which is not called here: of sizes that do not fit it reads beyond their memory."""
    layer = torch.nn.LSTM(6, 5).requires_grad_(False)
    assert lstm(*wrong(*_given_to_lstm(layer, torch.randn(7, 4, 6)))) is NotImplemented


def test_what_other_kernels_than_onednns_compute_is_left_to_torch():
    layer = torch.nn.LSTM(6, 5, 2, dropout=0.5)
    given = _given_to_lstm(layer, torch.randn(7, 4, 6))
    assert lstm(*given) is NotImplemented
    assert lstm(*_given_to_lstm(torch.nn.LSTM(6, 5).double(), torch.randn(7, 4, 6).double())) is (
        NotImplemented
    )
    given = _given_to_lstm(torch.nn.LSTM(6, 5), torch.randn(7, 4, 6))
    with torch.autocast("cpu", torch.bfloat16):
        assert lstm(*given) is NotImplemented
    with torch.backends.mkldnn.flags(enabled=False):
        assert lstm(*given) is NotImplemented
