"""Modules and parameters made and changed in traced code, and torch's tools on modules."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from conformance.declare import case, scenario, t, with_x


def seeded(cls, *args, **kwargs):
    torch.manual_seed(1)
    return cls(*args, **kwargs)


class Block(nn.Module):
    def __init__(self, size, *, depth=1):
        super().__init__()
        self.size = size
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.scale = nn.Parameter(torch.full((size,), 0.5))
        self.register_buffer("shift", torch.ones(size))
        self.register_buffer("unsaved", torch.zeros(size), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x * self.scale + self.shift


# Made in the traced code.


@case(with_x(1, 2, 1))
def linear_made_inside(x, n):
    return nn.Linear(3, n)(x)


@case(with_x(1, 2, 1), then=lambda r: (r, [p.requires_grad for p in r[1].parameters()]))
def own_module_made_inside(x, depth):
    made = Block(3, depth=depth)
    return made(x), made


@case(with_x(0.0, 0.5))
def sequential_made_inside(x, p):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(p), nn.LayerNorm(4))
    net.append(nn.Linear(4, 2))
    return net(x), len(net), [type(m).__name__ for m in net]


@case(with_x(1, 2))
def random_stream_is_that_of_eager(x, n):
    before = torch.rand(2)
    layers = [nn.Linear(3, 2) for _ in range(n)]
    between = torch.randn(2)
    table = nn.Embedding(4, 3)
    return before, between, [layer(x) for layer in layers], table.weight, torch.rand(1)


@case(with_x("relu", "tanh", "relu"))
def initialised_by_hand(x, name):
    layer = nn.Linear(3, 3)
    nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain(name))
    nn.init.zeros_(layer.bias)
    return layer(x)


def _weights(module):
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)


@case(with_x(1, 2))
def initialised_by_apply(x, n):
    return Block(3, depth=n).apply(_weights)(x)


@case(with_x(1, 2))
def parameter_made_inside(x, n):
    weight = nn.Parameter(torch.full((3,), float(n)))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    kinds = isinstance(weight, nn.Parameter), isinstance(frozen, torch.Tensor)
    return x * weight + frozen, weight.requires_grad, frozen.requires_grad, kinds, weight.is_leaf


@case(with_x(1, 2), then=lambda r: (r.sum().backward(), r)[1])
def parameters_made_inside_and_backward(x, n):
    return (nn.Linear(3, 2)(x) * nn.Parameter(torch.ones(2))).relu() * n


@case(with_x(1, 2))
def kept_module_of_first_call(x, n):
    if "layer" not in CACHE:
        CACHE["layer"] = nn.Linear(3, 2)
    return CACHE["layer"](x) * n


CACHE = {}


@case(with_x(True, False))
def trained_or_not(x, training):
    made = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train(training)
    result = made(x)
    return result, made[0].running_mean, made[0].num_batches_tracked, made.training


@case(with_x(1, 2))
def containers_made_inside(x, n):
    table = nn.ModuleDict({"a": nn.Linear(3, 3)})
    table["b"] = nn.Identity()
    table.update({"c": nn.Tanh()})
    removed = table.pop("b")
    listed = nn.ModuleList([nn.ReLU()])
    listed.extend([nn.Tanh(), nn.Sigmoid()])
    listed.insert(0, nn.Identity())
    del listed[1]
    values = nn.ParameterList([torch.ones(3)])
    values.append(torch.zeros(3))
    named = nn.ParameterDict({"k": torch.full((3,), 2.0)})
    for key in table:
        x = table[key](x)
    for layer in listed[:n]:
        x = layer(x)
    return x * values[0] + values[1] * named["k"], list(table), len(listed), removed, "a" in table


@case(with_x(2, 3))
def module_state_made_inside(x, n):
    made = nn.Linear(3, n)
    state = {k: v + 1 for k, v in made.state_dict().items()}
    made.load_state_dict(state)
    return made(x), list(state)


@case(with_x(1, 2))
def half_and_double_inside(x, n):
    made = nn.Linear(3, n).double()
    return made(x.double()), made.weight.dtype


@case(with_x(1, 2))
def hook_on_module_made_inside(x, n):
    made, seen = nn.Linear(3, n), []
    made.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    made.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return made(x), seen


@case(with_x(1, 2))
def frozen_inside(x, n):
    made = nn.Linear(3, n).requires_grad_(False)
    return made(x), [p.requires_grad for p in made.parameters()]


@case(with_x(1, 2))
def module_with_wrong_arguments(x, n):
    try:
        return nn.Linear(3)
    except TypeError as error:
        return str(error), x * n


@case(with_x(1, 2))
def attribute_before_init(x, n):
    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(3, 3)

    try:
        Early()
    except AttributeError as error:
        return str(error), x * n


# Changed in the traced code.


@scenario(lambda m: [(t(2, 3), 1), (t(2, 3), 2), (t(2, 3), 3)])
def registered_in_forward():
    class Growing(nn.Module):
        def forward(self, x, n):
            self.register_buffer(f"buffer{n}", x.detach() * n)
            self.register_parameter(f"empty{n}", None)
            self.register_module(f"layer{n}", nn.Identity())
            self.weight = nn.Parameter(torch.full((3,), float(n)))
            return x * self.weight, [name for name, _ in self.named_buffers()]

    made = Growing()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),), (t(4, 3),)])
def replaced_in_forward():
    class Swapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = seeded(nn.Linear, 3, 3)
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("kept", None)

        def forward(self, x):
            y = self.layer(x) * self.weight
            self.kept = y.detach()
            self.layer, self.spare = nn.Identity(), self.layer
            self.weight = None
            again = self.layer(x)
            self.layer = self.spare
            del self.spare
            self.weight = nn.Parameter(torch.full((3,), 2.0))
            return y + again, sorted(n for n, _ in self.named_modules()), list(self.state_dict())

    made = Swapping()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def deleted_in_forward():
    class Shrinking(nn.Module):
        def __init__(self):
            super().__init__()
            self.names = ["a", "b", "c", "d"]
            for name in self.names:
                setattr(self, name, seeded(nn.Linear, 3, 3))
            self.plain = 1

        def forward(self, x):
            delattr(self, self.names.pop())
            if hasattr(self, "plain"):
                del self.plain
            return self.a(x), [n for n, _ in self.named_children()], hasattr(self, "d")

    made = Shrinking()
    return made, made


@scenario(lambda m: [(t(2, 3), m), (t(2, 3), True), (t(2, 3), 3)])
def wrong_value_for_registered_name():
    made = seeded(nn.Linear, 3, 3)

    def program(x, value):
        try:
            made.weight = value
        except TypeError as error:
            return str(error).split(" ")[:2], made(x)
        return made(x)

    return program, made


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3, depth=2), t(2, 3))])
def walks_with_names(module, x):
    names = [n for n, _ in module.named_modules()] + [n for n, _ in module.named_parameters()]
    names += [n for n, _ in module.named_buffers()] + [n for n, _ in module.named_children()]
    total = sum(p.sum() for p in module.parameters())
    count = sum(p.numel() for p in module.parameters() if p.requires_grad)
    state = module.state_dict()
    found = module.get_submodule("layers.0"), module.get_parameter("scale")
    return (
        names,
        total * x,
        count,
        list(state),
        found[0] is module.layers[0],
        found[1] is module.scale,
    )


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3), t(2, 3))])
def state_dict_loaded_inside(module, x):
    state = {name: value * 2 for name, value in module.state_dict().items()}
    report = module.load_state_dict(state)
    return module(x), list(report.missing_keys)


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3), t(2, 3))])
def missing_keys_inside(module, x):
    report = module.load_state_dict({"scale": torch.ones(3)}, strict=False)
    try:
        module.load_state_dict({"scale": torch.ones(3)})
    except RuntimeError as error:
        return module(x), report.missing_keys, "Missing key(s)" in str(error)


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3), t(2, 3))])
def converted_inside(module, x):
    doubled = module.double()
    y = doubled(x.double())
    module.float()
    return y, module(x), module.scale.dtype, doubled is module


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3, depth=2), t(2, 3))])
def copied_inside(module, x):
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.scale.mul_(2)
    return module(x), other(x), other.scale is module.scale


@case(lambda: [(seeded(Block, 3), t(2, 3), 2.0), (seeded(Block, 3), t(2, 3), 3.0)])
def called_with_other_parameters(module, x, factor):
    changed = {name: value * factor for name, value in module.named_parameters()}
    return torch.func.functional_call(module, changed, (x,)), module(x)


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3), t(4, 3))])
def modes_switched_inside(module, x):
    flags = [module.training]
    module.eval()
    flags += [m.training for m in module.modules()]
    module.layers.train()
    flags += [m.training for m in module.modules()]
    module.scale.requires_grad_(False)
    return module(x), flags, module.scale.requires_grad


@case(lambda: [(seeded(nn.Linear, 3, 3), t(2, 3)), (seeded(nn.Linear, 3, 3), t(2, 3))])
def gradients_cleared_inside(module, x):
    before = [p.grad is None for p in module.parameters()]
    module.zero_grad()
    y = module(x)
    module.weight.grad = torch.ones_like(module.weight)
    return y, before, module.weight.grad.sum(), module.bias.grad


# torch's tools.


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T

    def right_inverse(self, w):
        return w.triu()


@scenario(lambda m: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def parametrized():
    made = seeded(nn.Linear, 3, 3)
    parametrize.register_parametrization(made, "weight", Symmetric())
    return made, made


def _parametrized_sets(module):
    yield (t(2, 3),)
    parametrize.register_parametrization(module, "weight", Symmetric())
    yield (t(2, 3),)
    parametrize.register_parametrization(module, "bias", nn.Tanh())
    yield (t(2, 3),)
    with torch.no_grad():
        module.weight = torch.ones(3, 3)
    yield (t(2, 3),)
    parametrize.remove_parametrizations(module, "weight")
    yield (t(2, 3),)
    parametrize.remove_parametrizations(module, "bias")


@scenario(_parametrized_sets)
def parametrizations_change():
    made = seeded(nn.Linear, 3, 3)
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def parametrized_and_cached():
    made = seeded(nn.Linear, 3, 3)
    parametrize.register_parametrization(made, "weight", Symmetric())

    def program(x):
        with parametrize.cached():
            first, second = made.weight, made.weight
            return made(x) + made(x), first is second

    return program, made


def _weight_norm_sets(module):
    module.train()
    yield (t(2, 3),)
    module.eval()
    yield (t(2, 3),)
    with torch.no_grad():
        yield (t(4, 3),)


for _name, _wrap in {
    "weight_norm_old": torch.nn.utils.weight_norm,
    "weight_norm_new": parametrizations.weight_norm,
    "spectral_norm_old": torch.nn.utils.spectral_norm,
    "spectral_norm_new": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}.items():

    def _normed(_wrap=_wrap):
        made = _wrap(seeded(nn.Linear, 3, 3))
        return made, made

    _normed.__name__ = _normed.__qualname__ = _name
    scenario(_weight_norm_sets)(_normed)


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def pruned(x):
    from torch.nn.utils import prune

    made = nn.Linear(3, 3)
    prune.l1_unstructured(made, "weight", amount=0.5)
    return made(x), made.weight_mask


@scenario(lambda m: [(t(2, 3),), (t(2, 5),), (t(2, 3),)])
def lazy_inside_sequential():
    made = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def lazy_called_by_function():
    made = nn.LazyBatchNorm1d()

    def program(x):
        return made(x), type(made).__name__

    return program, made


@scenario(lambda m: [([t(3, 2), t(2, 2)],), ([t(4, 2), t(1, 2), t(1, 2)],)])
def packed_inside():
    made = seeded(nn.GRU, 2, 3)

    def program(sequences):
        packed = nn.utils.rnn.pack_sequence(sequences)
        output, hidden = made(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(output)
        return padded, lengths, hidden

    return program, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def data_parallel_without_devices():
    made = nn.DataParallel(seeded(nn.Linear, 3, 3))
    return made, made


@scenario()
def quantized_dynamically():
    from torch.ao.quantization import quantize_dynamic

    made = quantize_dynamic(nn.Sequential(seeded(nn.Linear, 3, 3), nn.ReLU()), {nn.Linear})
    return made, None


@case(lambda: [(seeded(Block, 3), t(2, 3)), (seeded(Block, 3), t(2, 3))])
def pickled_inside(module, x):
    other = pickle.loads(pickle.dumps(module.scale.detach()))
    return module(x), other


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def fused_for_eval():
    made = nn.Sequential(seeded(nn.Conv1d, 2, 2, 1), nn.BatchNorm1d(2)).eval()

    def program(x):
        fused = nn.utils.fuse_conv_bn_eval(made[0], made[1])
        return fused(x.reshape(1, 2, -1))

    return program, made
