"""Frozen parameters: what is folded, packed and held, what is not, and when it is computed anew."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from fx_oracle import FlatTracer
from torch import fx, nn

from plait_fx_passes import (
    DEFAULT_PASSES,
    FOLD_BATCH_NORMS,
    FOLDING_PASSES,
    LAYOUT_PASSES,
    MERGE_PRODUCTS,
    PACK_WEIGHTS,
    PACKING_PASSES,
    optimize,
    run_passes,
    split_frozen,
    to_aten,
    verify,
    wrap_runtime,
)
from plait_fx_passes.freezing import with_frozen_attributes
from plait_fx_passes.freezing.packed import packed_count

PASSES = (*DEFAULT_PASSES, *FOLDING_PASSES)
ALL = (*PASSES, *LAYOUT_PASSES, *PACKING_PASSES)


class Tracer(FlatTracer):
    """Traces through batch norms too, whose tensors become attributes of the graph."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, module, name):
        return isinstance(module, nn.modules.batchnorm._BatchNorm)


def traced(module):
    tracer = Tracer()
    graph = tracer.trace(module)
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        norm = tracer.root.get_submodule(node.target)
        with graph.inserting_before(node):
            names = ("running_mean", "running_var", "weight", "bias")
            held = {
                name: None
                if getattr(norm, name) is None
                else graph.get_attr(f"{node.target}.{name}")
                for name in names
            }
            if norm.training:
                held["training"] = True
            made = graph.call_function(nn.functional.batch_norm, tuple(node.args), held)
            node.replace_all_uses_with(made)
        graph.erase_node(node)
    return fx.GraphModule(tracer.root, graph)


def seeded(module):
    """The module in evaluation, with parameters and statistics that are not those of a new one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in module.state_dict().items():
            if each.is_floating_point():
                each.copy_(torch.randn(each.shape, generator=generator) / 3)
                if name.endswith("running_var"):
                    each.abs_().add_(0.5)
    return module.eval()


def ran(module, *inputs, passes=PASSES):
    """What freezing makes of a module, and how often each rule applied; values checked."""
    recorded = with_frozen_attributes(to_aten(traced(module), list(inputs)))
    matches = {}
    graph = run_passes(
        recorded,
        passes,
        verify_each=True,
        observer=lambda record: matches.update(record.matches),
    )
    split = split_frozen(graph)
    if split is None:
        run = wrap_runtime(graph, graph.module())
    else:
        verify(split.program)
        run = wrap_runtime(graph, split.runner(split.program.module()))
    compare(module, run, *inputs)
    return graph, split, matches, run


def compare(module, run, *inputs):
    """Against the module in float64."""
    with torch.no_grad():
        got = run(*inputs)
        wanted = copy.deepcopy(module).double()(*(each.double() for each in inputs))
    got = got if isinstance(got, (tuple, list)) else (got,)
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    for each, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(each.double(), right, rtol=1e-4, atol=1e-4)


def targets(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def held_now():
    """How many packed weights are held, but for those of programs that are gone."""
    gc.collect()
    return packed_count()


def image(*size):
    return torch.randn(size or (2, 3, 9, 9), generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A layer and a batch norm behind it."""

    def __init__(self, layer, norm, between=lambda y: y):
        super().__init__()
        self.layer, self.norm, self.between = layer, norm, between

    def forward(self, x):
        return torch.relu(self.norm(self.between(self.layer(x))))


FOLDED = {
    "convolution": (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), image()),
    "convolution without bias": (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), image()),
    "groups": (nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), image(2, 4, 9, 9)),
    "strides and dilation": (
        nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=2),
        nn.BatchNorm2d(8),
        image(),
    ),
    "one dimension": (nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), image(2, 3, 9)),
    "three dimensions": (nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), image(2, 3, 5, 5, 5)),
    "transposed": (nn.ConvTranspose2d(3, 8, 3), nn.BatchNorm2d(8), image()),
    "without parameters": (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), image()),
    "linear": (nn.Linear(9, 8), nn.BatchNorm1d(8), image(5, 9)),
    "linear without bias": (nn.Linear(9, 8, bias=False), nn.BatchNorm1d(8), image(5, 9)),
    "float64": (nn.Conv2d(3, 8, 3).double(), nn.BatchNorm2d(8).double(), image().double()),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_norm_goes_into_the_layer_before_it(name):
    layer, norm, x = FOLDED[name]
    _, split, matches, _ = ran(seeded(Net(layer, norm)), x)
    assert matches[FOLD_BATCH_NORMS.name] == 2
    left = targets(split.program)
    assert left[-1] == "aten.relu.default"
    assert not {"aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor"} & set(left)
    assert len(split.kept) == 1  # the program reads no parameter


class Shared(nn.Module):
    """One convolution, called twice, with a norm behind each call."""

    def __init__(self):
        super().__init__()
        self.layer, self.one, self.two = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.two(self.layer(self.one(self.layer(x)))), self.layer.weight * x.sum()


def test_a_weight_with_other_users_stays_as_it_is_for_these():
    _, split, matches, _ = ran(seeded(Shared()), image())
    assert matches[FOLD_BATCH_NORMS.name] == 4
    assert len(split.kept) == 2  # the image and the weight


class Sized(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layer, self.norm, self.own_forward = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), forward

    def forward(self, x):
        return self.own_forward(self, x)


def result_used_twice(self, x):
    y = self.layer(x)
    return self.norm(y), y.sum()


def result_returned(self, x):
    y = self.layer(x)
    return self.norm(y), y


def function_between(self, x):
    return self.norm(torch.tanh(self.layer(x)))


def weight_of_the_input(self, x):
    return self.norm(nn.functional.conv2d(x, self.layer.weight * x.mean(), self.layer.bias))


def scale_by_column(self, x):
    return self.layer(x) * self.layer.bias[:7]


@pytest.mark.parametrize(
    "forward",
    [result_used_twice, result_returned, function_between, weight_of_the_input, scale_by_column],
)
def test_near_misses_are_not_folded(forward):
    _, _, matches, _ = ran(seeded(Sized(forward)), image())
    assert FOLD_BATCH_NORMS.name not in matches


def test_a_batch_norm_in_training_is_not_folded_and_its_statistics_are_not_frozen():
    module = seeded(Net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    module.train()
    graph = with_frozen_attributes(to_aten(traced(module), [image()]))
    names = {graph.inputs[place].name for place in graph.frozen}
    assert names == {"layer.weight", "layer.bias", "norm.weight", "norm.bias"}
    matches = {}
    run_passes(graph, PASSES, observer=lambda record: matches.update(record.matches))
    assert FOLD_BATCH_NORMS.name not in matches


def test_half_precision_is_not_folded():
    module = seeded(Net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).bfloat16()
    graph = with_frozen_attributes(to_aten(traced(module), [image().bfloat16()]))
    matches = {}
    run_passes(graph, PASSES, observer=lambda record: matches.update(record.matches))
    assert FOLD_BATCH_NORMS.name not in matches


def test_nothing_is_folded_where_nothing_is_frozen():
    module = traced(seeded(Net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))))
    graph = run_passes(to_aten(module, [image()]), ALL)
    assert split_frozen(graph) is None
    assert "aten.mul.Tensor" in targets(graph)


# What is held.


class Held(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.w = nn.Parameter(torch.empty(4, 4))
        self.register_buffer("b", torch.empty(4))
        self.own_forward = forward

    def forward(self, x):
        return self.own_forward(self, x)


def test_what_follows_from_parameters_is_computed_before_the_program():
    _, split, _, _ = ran(seeded(Held(lambda m, x: x @ (m.w.exp() + m.b).t())), image(3, 4))
    assert targets(split.program) == ["aten.permute.default", "aten.mm.default"]
    assert len(split.kept) == 1


def test_views_of_parameters_are_not_held():
    assert ran(seeded(Held(lambda m, x: x @ m.w.t() + m.b[None])), image(3, 4))[1] is None


def test_what_a_caller_gets_is_not_held():
    def forward(m, x):
        return x * 2, (m.w + 1).t()

    _, split, _, run = ran(seeded(Held(forward)), image(3, 4))
    assert split is None
    module = seeded(Held(forward))
    _, _, _, run = ran(module, image(3, 4))
    run(image(3, 4))[1].zero_()
    compare(module, run, image(3, 4))


def test_random_numbers_are_drawn_in_each_call():
    def forward(m, x):
        return x + torch.bernoulli(m.w.sigmoid())

    graph = with_frozen_attributes(to_aten(traced(seeded(Held(forward))), [image(4, 4)]))
    split = split_frozen(run_passes(graph))
    assert split is not None
    assert "aten.bernoulli.default" in targets(split.program)


def test_values_much_larger_than_their_parameters_are_not_held():
    def forward(m, x):
        return x + (m.w[:, :1].expand(4, 100_000) * 2).mean() + m.b.exp().sum()

    _, split, _, _ = ran(seeded(Held(forward)), image(3, 4))
    assert "aten.mul.Tensor" in targets(split.program)


def test_written_buffers_are_not_frozen():
    def forward(m, x):
        m.b.add_(1)
        return x + m.w.exp() + m.b.exp()

    graph = with_frozen_attributes(to_aten(traced(seeded(Held(forward))), [image(4, 4)]))
    assert [graph.inputs[place].name for place in graph.frozen] == ["w"]


# When it is computed anew.


def of_all_calls(module, x, passes=PASSES):
    _, split, _, run = ran(module, x, passes=passes)
    count = 0
    inner = split.constants.forward

    def counted(*given):
        nonlocal count
        count += 1
        return inner(*given)

    split.constants.forward = counted
    run = wrap_runtime(
        run_passes(with_frozen_attributes(to_aten(traced(module), [x])), passes),
        split.runner(split.program.module()),
    )
    return run, lambda: count


def in_place(m):
    with torch.no_grad():
        m.layer.weight.mul_(2)


def one_element(m):
    with torch.no_grad():
        m.norm.running_var[3] = 7


def loaded(m):
    m.load_state_dict({name: each * 2 for name, each in m.state_dict().items()})


def data_swapped(m):
    m.layer.weight.data = m.layer.weight.data * 3


def through_data(m):
    m.layer.weight.data.mul_(3)


def through_numpy(m):
    m.norm.running_mean.numpy()[:] = 4


CHANGES = [in_place, one_element, loaded, data_swapped, through_data, through_numpy]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.sampled(3)
def test_values_are_computed_anew_once_after_a_change(change, packs):
    module, x = seeded(Net(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))), image(2, 3, 40, 40)
    run, count = of_all_calls(module, x, ALL if packs else PASSES)
    for _ in range(3):
        compare(module, run, x)
    assert count() == 1
    change(module)
    for _ in range(3):
        compare(module, run, x)
    assert count() == 2


def test_parameters_that_are_not_numbers_are_not_changes():
    module, x = seeded(Net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))), image()
    with torch.no_grad():
        module.layer.weight[0, 0] = torch.nan
    run, count = of_all_calls(seeded(module), x)
    with torch.no_grad():
        module.layer.weight.fill_(torch.nan)
    for _ in range(3):
        assert run(x).isnan().any()
    assert count() == 1


def test_values_are_held_for_each_of_several_modules_while_these_live():
    x = image(64, 256)
    modules = [seeded(Products()) for _ in range(3)]
    for number, each in enumerate(modules):
        with torch.no_grad():
            each.up.weight.mul_(number + 1)
    recorded = to_aten(traced(modules[0]), [x])
    split = split_frozen(run_passes(with_frozen_attributes(recorded), ALL))
    run = split.runner(split.program.module())
    names = [getattr(source, "name", None) for source in recorded.inputs]
    held = held_now()

    def call(module):
        given = dict(module.named_parameters())
        return run(*[x if name is None else given[name] for name in names])[0]

    with torch.no_grad():
        for _ in range(2):
            for each in modules:
                torch.testing.assert_close(call(each), each(x), rtol=1e-4, atol=1e-4)
    assert held_now() == held + 6
    del modules[1], each
    assert held_now() == held + 4
    modules.clear()
    assert held_now() == held + 2  # the recorded graph has the first one's parameters


# Packed weights.


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def test_weights_are_packed():
    held = held_now()
    _, split, matches, run = ran(seeded(Products()), image(64, 256), passes=ALL)
    assert matches[PACK_WEIGHTS.name] == 2
    packed = "plait_fx_passes.packed_product.default"
    assert targets(split.program) == [packed, "aten.relu.default", packed]
    assert held_now() == held + 2
    del run, split, _
    assert held_now() == held


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.layer(x))


@pytest.mark.parametrize(
    ("kind", "sizes"), [(Products, (64, 256)), (Images, (2, 32, 16, 16))], ids=["product", "image"]
)
def test_what_is_no_number_stays_none_behind_packed_weights(kind, sizes):
    """oneDNN's own `relu` makes zeros of them."""
    module, x = seeded(kind()), image(*sizes)
    *_, matches, run = ran(module, x, passes=ALL)
    assert matches[PACK_WEIGHTS.name]
    x[0].fill_(torch.nan)
    with torch.no_grad():
        found, wanted = run(x), module(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert wanted.isnan().any()


def test_packed_weights_go_when_parameters_change():
    held = held_now()
    module, x = seeded(Products()), image(64, 256)
    run, count = of_all_calls(module, x, ALL)
    for _ in range(3):
        with torch.no_grad():
            module.up.weight.neg_()
        compare(module, run, x)
    assert held_now() == held + 2
    assert count() == 3


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(16, 32, 3, padding=1), image(2, 16, 24, 24)),
        (nn.Conv2d(16, 64, 1), image(2, 16, 40, 40).to(memory_format=torch.channels_last)),
        (nn.Conv2d(16, 32, 3, stride=2, dilation=2), image(2, 16, 60, 60)),
        (nn.Conv2d(32, 32, 5, groups=4, bias=False), image(2, 32, 24, 24)),
        (nn.Conv2d(512, 512, 3, padding=1), image(1, 512, 7, 7)),
        (nn.Conv2d(16, 32, 3, padding="valid"), image(2, 16, 24, 24)),
        (nn.Conv2d(16, 32, 3, padding="same"), image(2, 16, 24, 24)),
    ],
)
def test_convolutions_are_packed(layer, x):
    _, split, matches, _ = ran(seeded(nn.Sequential(layer, nn.ReLU())), x, passes=ALL)
    assert matches[PACK_WEIGHTS.name] == 1
    assert "plait_fx_passes.packed_convolution.default" in targets(split.program)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(256, 256), image(64, 256)),
        (nn.Conv2d(16, 32, 3, padding=1), image(2, 16, 24, 24)),
    ],
)
def test_weights_in_bfloat16_are_packed(layer, x):
    module, x = seeded(layer).bfloat16(), x.bfloat16()
    recorded = with_frozen_attributes(to_aten(traced(nn.Sequential(module)), [x]))
    split = split_frozen(run_passes(recorded, ALL))
    assert "packed" in " ".join(targets(split.program))
    with torch.no_grad():
        (got,) = split.runner(split.program.module())(*[x, *module.parameters()])
        torch.testing.assert_close(got, module(x), rtol=0.02, atol=0.02)


@pytest.fixture
def one_thread():
    """torch chooses the kernel of a convolution by the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(64, 64), image(8, 64)),  # too little work
        (nn.Linear(1024, 1024), image(1, 1024)),  # one row
        (nn.Linear(256, 256).double(), image(64, 256).double()),
        (nn.Conv2d(3, 4, 3), image()),
        (nn.Conv2d(64, 64, 1), image(1, 64, 40, 40)),  # a product as it is
        (nn.Sequential(nn.ConvTranspose2d(16, 32, 3)), image(2, 16, 24, 24)),
    ],
)
def test_other_calls_are_not_packed(layer, x, one_thread):
    _, _, matches, _ = ran(seeded(layer), x, passes=ALL)
    assert PACK_WEIGHTS.name not in matches


def test_a_weight_that_several_products_use_is_packed_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    held = held_now()
    _, _split, matches, _run = ran(seeded(Tied()), image(64, 256), passes=ALL)
    assert matches[PACK_WEIGHTS.name] == 2
    assert held_now() == held + 1


# Products of one matrix.


class Heads(nn.Module):
    def __init__(self, bias=True, width=256):
        super().__init__()
        self.q, self.k = nn.Linear(width, width, bias), nn.Linear(width, width // 4, bias)
        self.v, self.other = nn.Linear(width, 8, bias), nn.Linear(width // 4, 4)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        return q, self.other(k), torch.exp(self.v(x)).view(-1)


@pytest.mark.parametrize("bias", [True, False])
def test_products_that_share_a_factor_are_one(bias):
    _, split, matches, _ = ran(seeded(Heads(bias)), image(64, 256))
    assert matches[MERGE_PRODUCTS.name] == 1
    left = targets(split.program)
    assert left.count("aten.mm.default") + left.count("aten.addmm.default") == 2
    assert len(split.kept) == 3  # the matrix, and the other layer
    _, split, matches, _ = ran(seeded(Heads(bias)), image(64, 256), passes=ALL)
    assert matches[PACK_WEIGHTS.name] == 1


def test_products_that_are_not_worth_packing_are_not_merged():
    assert MERGE_PRODUCTS.name not in ran(seeded(Heads(width=32)), image(64, 32))[2]
    assert MERGE_PRODUCTS.name not in ran(seeded(Heads()), image(4, 256))[2]


def test_products_of_other_factors_are_not_merged():
    assert MERGE_PRODUCTS.name not in ran(seeded(Products()), image(64, 256))[2]


def test_a_product_with_a_matrix_that_is_not_frozen_stays_out():
    class Mixed(Heads):
        def forward(self, x):
            return self.q(x), self.k(x), x @ x.t()[:, :32]

    _, split, matches, _ = ran(seeded(Mixed()), image(64, 256))
    assert matches[MERGE_PRODUCTS.name] == 1
    assert targets(split.program).count("aten.mm.default") == 1


def test_shared_biases_and_weights_are_stacked_as_often_as_they_occur():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 256)
            self.scaled = nn.Linear(256, 256)

        def forward(self, x):
            first = torch.addmm(self.layer.bias, x, self.layer.weight)
            return first, torch.addmm(self.layer.bias, x, self.scaled.weight.exp().t())

    assert ran(seeded(Twice()), image(64, 256))[1] is not None


# Modules in, modules out.


def test_optimize_holds_what_follows_from_parameters():
    module = seeded(Net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    made = optimize(traced(module), [image()], PASSES, freeze=True)
    names = [str(n.target) for n in made.graph.nodes if n.op == "call_function"]
    assert names[-2:] == ["aten.convolution.default", "aten.relu.default"]
    assert "aten.mul.Tensor" not in names
    compare(module, made, image())
