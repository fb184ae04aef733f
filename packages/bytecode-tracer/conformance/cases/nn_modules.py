"""nn.Module: parameters, buffers, containers, modes, attributes, modules made while tracing."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.nn import functional

from conformance.declare import case, scenario, t, with_x


class Small(nn.Module):
    def __init__(self, scale=2):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(3, 3)
        self.scale = scale
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, *, extra=None):
        y = self.linear(x) * self.scale
        return y if extra is None else y + extra


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(3))
        self.steps = 0
        self.history = []

    def forward(self, x):
        self.running.mul_(0.5).add_(x.mean(0))
        self.steps += 1
        self.history.append(self.steps)
        return x - self.running


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Identity()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.table = nn.ParameterDict({"bias": nn.Parameter(torch.full((3,), 0.5))})
        self.body = nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x, head="a"):
        for block, scale in zip(self.blocks, self.scales):
            x = self.body(block(x)) * scale + self.table["bias"]
        return self.heads[head](x)


@scenario(lambda m: [(t(2, 3),), (t(4, 3),), (t(3),), (t(2, 3),)])
def linear():
    torch.manual_seed(1)
    made = nn.Linear(3, 2)
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def whole_module():
    made = Small()
    return made, made


def _attributes(module):
    yield (t(2, 3),)
    module.scale = 5
    yield (t(2, 3),)
    module.scale = t(3)
    yield (t(2, 3),)
    module.linear.bias = None
    yield (t(2, 3),)
    module.linear = nn.Identity()
    yield (t(2, 3),)


@scenario(_attributes)
def attributes_change():
    made = Small()
    return made, made


def _parameters(module):
    yield (t(2, 3),)
    with torch.no_grad():
        module.linear.weight.mul_(2)
    yield (t(2, 3),)
    module.linear.weight = nn.Parameter(torch.eye(3))
    yield (t(2, 3),)
    module.load_state_dict({k: torch.ones_like(v) for k, v in module.state_dict().items()})
    yield (t(2, 3),)
    module.linear.weight.requires_grad_(False)
    yield (t(2, 3),)
    module.linear.weight.data = torch.zeros(3, 3)
    yield (t(2, 3),)


@scenario(_parameters)
def parameters_change():
    made = Small()
    return made, made


def _double(module):
    yield (t(2, 3),)
    module.double()
    yield (t(2, 3).double(),)
    module.float()
    yield (t(2, 3),)


@scenario(_double)
def module_converted():
    made = Small()
    return made, made


def _modes(module):
    for training in (True, False, True):
        module.train(training)
        yield (t(4, 3),)


@scenario(_modes)
def dropout_and_modes():
    made = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    return made, made


@scenario(_modes)
def mode_in_forward():
    class Local(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x + 1

    made = nn.Sequential(Local())
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),), (t(4, 3),)])
def buffers_and_attributes_written():
    made = Stateful()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3), "b"), (t(4, 3), "a"), (t(2, 3), "c")])
def containers():
    made = Nested()
    return made, made


def _appended(module):
    yield (t(2, 3),)
    module.blocks.append(nn.ReLU())
    module.scales.append(nn.Parameter(torch.full((3,), 3.0)))
    yield (t(2, 3),)
    module.heads["a"] = nn.Identity()
    yield (t(2, 3),)
    del module.blocks[0]
    yield (t(2, 3),)
    module.body[1] = nn.Sigmoid()
    yield (t(2, 3),)


@scenario(_appended)
def containers_change():
    made = Nested()
    return made, made


@case(lambda: [(Small(), t(2, 3)), (Small(3), t(2, 3)), (nn.ReLU(), t(2, 3)), (Small(), t(4, 3))])
def module_as_argument(module, x):
    return module(x) + 1


def _shared_module():
    module = Small()
    yield (module, t(2, 3))
    module.eval()
    yield (module, t(2, 3))
    module.scale = 7
    yield (module, t(2, 3))
    module.forward = lambda x: x * 100
    yield (module, t(2, 3))
    del module.forward
    Small.forward = lambda self, x: x - 1
    yield (module, t(2, 3))


@case(_shared_module)
def forward_replaced(module, x):
    return module(x), module.training


@case(lambda: [(Small(), Small(3), t(2, 3)), (Small(1), nn.Identity(), t(2, 3))])
def two_modules(a, b, x):
    return b(a(x))


def _twice():
    a, b = Small(), Small()
    return [(a, a), (a, b), (b, b)]


@case(_twice)
def same_module_twice(a, b):
    return a(t(2, 3)) + b(t(2, 3)), a is b, a.linear.weight is b.linear.weight


@case(with_x(1, 2))
def module_made_inside(x, n):
    torch.manual_seed(3)
    made = nn.Linear(3, n)
    return made(x), made.weight.shape


@case(with_x(1, 2))
def module_class_defined_inside(x, n):
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3) * n)

        def forward(self, y):
            return y * self.weight

    made = Local()
    return made(x), len(list(made.parameters()))


@case(lambda: [(Small(), t(2, 3)), (Nested(), t(2, 3)), (Stateful(), t(2, 3))])
def walks_over_modules(module, x):
    names = [name for name, _ in module.named_parameters()]
    kinds = [type(child).__name__ for child in module.modules()]
    children = [name for name, _ in module.named_children()]
    return names, kinds, children, [b.shape for b in module.buffers()], len(module.state_dict()), x


@case(lambda: [(Small(), t(2, 3)), (Small(), t(2, 3))])
def modes_changed_inside(module, x):
    was = module.training
    module.eval()
    y = module(x)
    module.train(not was)
    return y, was, module.training, module.linear.training


@case(lambda: [(Small(), t(2, 3)), (Small(), t(2, 3))])
def keyword_and_method_calls(module, x):
    return module(x, extra=1), module.forward(x, extra=x), module.linear.forward(x)


@case(lambda: [(Small(), t(2, 3)), (Small(2.5), t(2, 3))])
def attributes_of_modules(module, x):
    module.new = x
    module.register_buffer("late", x + 1)
    found = hasattr(module, "late"), hasattr(module, "gone"), isinstance(module.linear, nn.Linear)
    return found, module.linear.in_features * module.scale, module.late


@case(lambda: [(Small(), t(2, 3)), (Small(), t(2, 3))])
def parameter_assigned(module, x):
    module.linear.weight = nn.Parameter(torch.eye(3))
    module.extra = nn.ReLU()
    return module(x), "extra" in dict(module.named_modules())


@case(lambda: [(Small(), t(2, 3))] * 2)
def wrong_assignment(module, x):
    try:
        module.linear.weight = x
    except TypeError as error:
        return str(error)


@case(lambda: [(Small(), t(2, 3)), (Small(), t(2, 5))])
def missing_attribute_and_wrong_shape(module, x):
    try:
        return module.gone
    except AttributeError as error:
        return str(error), module(x)


@case(
    lambda: [(nn.LayerNorm(3), t(2, 3)), (nn.LayerNorm(3), t(4, 3)), (nn.GroupNorm(1, 3), t(2, 3))]
)
def normalisation(module, x):
    return module(x)


@case(lambda: [(t(1, 2, 4, 4),), (t(2, 2, 5, 5),)])
def convolution(x):
    torch.manual_seed(1)
    weight = torch.randn(3, 2, 3, 3)
    y = functional.conv2d(x, weight, padding=1, stride=2)
    return functional.max_pool2d(y, 2), functional.avg_pool2d(x, 2)


@scenario(lambda m: [(torch.tensor([0, 2]),), (torch.tensor([[1], [1]]),), (torch.tensor([9]),)])
def embedding():
    torch.manual_seed(1)
    made = nn.Embedding(4, 3, padding_idx=0)
    return made, made


@scenario(lambda m: [(t(2, 3, 4),), (t(1, 5, 4),)])
def attention_module():
    torch.manual_seed(1)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()

    def program(x):
        return attention(x, x, x, need_weights=False)[0]

    return program, attention


@scenario(lambda m: [(t(2, 3, 4),), (t(1, 5, 4),)])
def recurrent_module():
    torch.manual_seed(1)
    made = nn.GRU(4, 3, batch_first=True)
    return made, made


@scenario(lambda m: [(t(2, 3, 4),), (t(1, 3, 4),)])
def lstm_module():
    torch.manual_seed(1)
    made = nn.LSTM(4, 3)
    return made, made


@scenario(lambda m: [(t(2, 3, 4),), (t(1, 5, 4),)])
def transformer_layer():
    torch.manual_seed(1)
    made = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def lazy_module():
    torch.manual_seed(1)
    made = nn.LazyLinear(2)
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def parametrized_module():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    torch.manual_seed(1)
    made = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(made, "weight", Symmetric())
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def weight_norm():
    torch.manual_seed(1)
    made = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def shared_parameters():
    torch.manual_seed(1)
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    made = nn.Sequential(a, nn.ReLU(), b, a)
    return made, made


def _clear_grads(module):
    for x in (t(2, 3), t(4, 3), t(2, 3)):
        module.zero_grad()
        yield (x,)


@scenario(_clear_grads, then=lambda y: y.sum().backward())
def gradients_of_parameters():
    made = Small()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def loss_and_backward_inside():
    made = Small()

    def program(x):
        made.zero_grad()
        loss = functional.mse_loss(made(x), torch.zeros(2, 3))
        loss.backward()
        return loss.detach(), [p.grad for p in made.parameters()]

    return program, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def callable_property_of_module():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.sin
            self.acts = [torch.cos, nn.ReLU()]

        @property
        def width(self):
            return 3

        def forward(self, x):
            for act in self.acts:
                x = act(self.act(x))
            return x * self.width

    made = Local()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def module_with_getattr():
    class Local(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.scale

    made = Local(Small())
    return made, made


@scenario(lambda m: [(t(2, 3), 0), (t(2, 3), 1), (t(2, 3), 2), (t(2, 3), 5)])
def indexed_modules():
    torch.manual_seed(1)
    made = nn.ModuleList([nn.Linear(3, 3), nn.ReLU(), nn.Identity()])

    def program(x, n):
        return made[n](x), len(made), [type(m).__name__ for m in made[:n]]

    return program, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def module_copied_inside():
    made = Small()

    def program(x):
        other = copy.deepcopy(made)
        other.scale = 10
        return other(x), made(x), other.linear.weight is made.linear.weight

    return program, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),), (t(3, 3),)])
def module_keeps_result():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = None

        def forward(self, x):
            previous, self.last = self.last, x * 2
            return previous

    made = Local()
    return made, made


@scenario(lambda m: [(t(2, 3),), (t(2, 3),)])
def apply_and_requires_grad():
    made = Small()

    def program(x):
        made.apply(lambda m: setattr(m, "seen", getattr(m, "seen", 0) + 1))
        made.requires_grad_(False)
        return made(x)

    return program, made


def _places(caught):
    return [
        (w.category.__name__, str(w.message), w.filename.rpartition("/")[2], w.lineno)
        for w in caught
    ]


def _warned(program, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = program(*args)
    return result, _places(caught)


@case(lambda: [(t(2, 3), t(1, 2, 3)), (t(2, 3), t(2, 3)), (t(2, 3), t(3))], drive=_warned)
def loss_that_warns(x, y):
    first = nn.functional.mse_loss(x, y)
    second = nn.functional.l1_loss(x, y) + nn.MSELoss()(x, y)
    return first, second


@case(lambda: [(t(2, 3), None), (t(2, 3), 1)], drive=_warned)
def softmax_that_warns(x, dim):
    def inner(rows):
        return nn.functional.softmax(rows, dim) * 2

    return inner(x) + nn.functional.log_softmax(x, dim)


@case(lambda: [(t(2, 3), 1), (t(2, 3), 2), (t(2, 3), 3)], drive=_warned)
def warnings_by_level(x, level):
    def outer(rows):
        return inner(rows) + 1

    def inner(rows):
        warnings.warn(f"level {level}", stacklevel=level)
        return rows * 2

    return outer(x)
