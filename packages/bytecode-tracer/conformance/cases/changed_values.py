"""What changes between calls of one program: its inputs, the modes around it, its modules.

Others of this kind are in `changes.py`: classes, functions and the modules of Python.
"""

from __future__ import annotations

import collections
import copy
import math

import torch
from torch import nn

from conformance.declare import scenario, t

# Values.


class Text(str):
    def __len__(self):
        return 99


class Number(int):
    def __mul__(self, other):
        return other * 100

    __rmul__ = __mul__


class Table(dict):
    def __getitem__(self, key):
        return 50


class Items(list):
    def __iter__(self):
        return iter([9])


def _given(*values):
    def sets(state=None):
        made = [copy.deepcopy(value) for value in values]
        for value in (*made, made[0]):
            yield t(2, 3), value

    return sets


@scenario(_given("a", Text("a"), "b"))
def text_or_a_subclass():
    def program(x, value):
        return x * len(value), value == "a", type(value).__name__

    return program


@scenario(_given(2, Number(2), True, 2.0, 2 + 0j))
def number_or_a_subclass():
    def program(x, value):
        return value * x, type(value).__name__

    return program


@scenario(_given(0.0, -0.0, float("nan"), -float("nan"), float("inf"), 0, False))
def zeros_and_nans():
    def program(x, value):
        return x * value, math.copysign(1.0, value), value == value

    return program


@scenario(_given({"a": 1}, Table(a=1), collections.OrderedDict(a=1), {"a": True}, {"a": 1.0}))
def dict_or_a_subclass():
    def program(x, value):
        return x * value["a"], type(value).__name__, list(value.values())

    return program


@scenario(_given({1: 2}, {True: 2}, {1.0: 2}))
def keys_that_are_equal():
    def program(x, value):
        return x * value[1], [type(key).__name__ for key in value]

    return program


@scenario(_given([1, 2], Items([1, 2]), (1, 2), collections.deque([1, 2])))
def list_or_a_subclass():
    def program(x, value):
        return x * sum(value), len(value), type(value).__name__

    return program


@scenario(_given({1, 2}, {2, 1}, frozenset({1, 2}), {8, 0}, {0, 8}))
def order_of_a_set():
    def program(x, value):
        return [x * n for n in value], list(value)

    return program


@scenario(_given((1, (2, 3.0)), (1, (2, 3)), (True, (2, 3.0)), (1, [2, 3.0])))
def nested_tuples():
    def program(x, value):
        return x * value[0] + value[1][1], repr(value)

    return program


@scenario(_given(range(3), range(0, 3, 1), range(0, 4, 2), range(1, 3), slice(0, 2), slice(2)))
def ranges_and_slices():
    def program(x, value):
        return (x[:, value] if isinstance(value, slice) else x * sum(value)), repr(value)

    return program


@scenario(_given(b"ab", bytearray(b"ab"), b"abc", memoryview(b"ab").tobytes()))
def bytes_of_all_kinds():
    def program(x, value):
        return x * len(value), value[0], type(value).__name__

    return program


@scenario(_given(torch.float32, torch.float64, torch.int64, None))
def dtypes():
    def program(x, value):
        return x if value is None else x.to(value)

    return program


# Tensors.


def _tensors():
    x = t(2, 3)
    yield x, x
    yield x, x.clone()
    yield x, x.view(2, 3)
    yield x, x.detach()
    whole = t(4, 3)
    yield whole[:2], whole[2:]
    yield whole[:2], whole[1:3]
    yield whole[1:3], whole[:2]
    yield t(2, 3), t(2, 3)


@scenario(lambda state=None: _tensors())
def aliasing_of_two_inputs():
    def program(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y, x is y

    return program


@scenario(lambda state=None: _tensors())
def aliasing_without_writes():
    def program(x, y):
        return x + y, x is y, x.data_ptr() == y.data_ptr(), y._base is x

    return program


def _kinds():
    number = torch.ones(2, 3, dtype=torch.complex64)
    plain = t(2, 3)
    yield (plain,)
    yield (torch._neg_view(plain),)
    yield (number,)
    yield (number.conj(),)
    yield (number.imag,)
    yield (number.conj().imag,)
    yield (plain.to_sparse(),)
    yield (plain.t().contiguous().t(),)
    yield (plain.requires_grad_(),)
    yield (plain * 1,)
    yield (nn.Parameter(t(2, 3)),)
    yield (nn.Parameter(t(2, 3), requires_grad=False),)
    yield (t(2, 3).to(torch.bfloat16),)
    yield (t(2, 3, 1).squeeze(2),)
    yield (t(2, 1).expand(2, 3),)
    yield (t(13)[1:7].view(2, 3),)
    yield (t(2, 3).as_strided((2, 3), (1, 1)),)
    yield (plain.detach(),)


@scenario(lambda state=None: _kinds())
def kinds_of_tensors():
    def program(x):
        facts = (
            x.layout,
            x.dtype,
            x.requires_grad,
            x.is_leaf,
            type(x).__name__,
            x.is_conj(),
            x.is_neg(),
        )
        return facts, x * 2

    return program


@scenario(lambda state=None: _kinds())
def offsets_and_strides():
    def program(x):
        if x.layout is not torch.strided:
            return x
        return x.storage_offset(), x.stride(), x.is_contiguous(), x._base is None, x + 0

    return program


@scenario(lambda state=None: _kinds())
def kinds_of_tensors_in_a_list():
    made = [None]

    def program(x):
        made[0] = x
        return [y * 2 for y in made]

    return program


def _data_changes():
    x, other = t(2, 3), torch.ones(2, 3)
    yield (x,)
    x.data = other.to(torch.float64)
    yield (x,)
    x.data = other[0]
    yield (x,)
    x.requires_grad_()
    yield (x,)
    x.requires_grad_(False)
    x.data = torch.ones(3, 2).t()
    yield (x,)
    x.data = torch._neg_view(x.data)
    yield (x,)
    x.set_(torch.ones(5).untyped_storage(), 1, (2, 2), (2, 1)) if x.dtype is torch.float32 else None
    yield (x,)
    x.resize_(1, 3)
    yield (x,)
    x.note = 3
    yield (x,)


@scenario(_data_changes)
def one_tensor_that_changes():
    def program(x):
        return x * 2 + x.dim(), x.requires_grad, hasattr(x, "note"), x.storage_offset()

    return program


# Modes.


def _modes(*managers):
    def sets(state=None):
        for manager in (None, *managers, None):
            if manager is None:
                yield (t(2, 3),)
                continue
            with manager():
                yield (t(2, 3),)

    return sets


def _flag(setter, getter, value):
    class Manager:
        def __enter__(self):
            self.before = getter()
            setter(value)

        def __exit__(self, *error):
            setter(self.before)

    return Manager


@scenario(
    _modes(
        torch.no_grad,
        torch.inference_mode,
        torch.enable_grad,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        lambda: torch.device("cpu"),
        _flag(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
        lambda: torch.autograd.set_detect_anomaly(True),
    )
)
def modes_around_a_program():
    weight = torch.ones(3, 3, requires_grad=True)

    def program(x):
        made = torch.ones(2) + 0.5
        return (x + 1) @ weight, made.dtype, made.device.type

    return program


@scenario(
    _modes(
        _flag(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True),
        _flag(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium"),
        _flag(torch.set_num_threads, torch.get_num_threads, 1),
        _flag(torch.set_flush_denormal, lambda: False, True),
    )
)
def settings_that_a_program_reads():
    def program(x):
        found = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
        return x * 2, found, torch.get_num_threads() > 0

    return program


@scenario(
    _modes(
        lambda: torch.backends.mkldnn.flags(enabled=False),
        lambda: torch.backends.cudnn.flags(enabled=False, benchmark=True),
    )
)
def backends_that_a_program_reads():
    def program(x):
        return x * 2, torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark

    return program


# Modules.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))
        self.register_buffer("total", torch.ones(3))
        self.options = {"scale": 2}

    def extra(self, x):
        return x

    def forward(self, x):
        return self.extra(self.body(x)) * self.options["scale"] + self.total * self.training


def _net():
    torch.manual_seed(0)
    return Net()


def _on_net(change, back=None):
    def sets(net):
        yield (t(2, 3),)
        found = change(net)
        yield (t(2, 3),)
        yield (t(2, 3),)
        if back is not None:
            back(net)
            yield (t(2, 3),)
        elif hasattr(found, "remove"):
            found.remove()
            yield (t(2, 3),)

    return sets


def _net_case(change, back=None):
    def program():
        made = _net()
        return made, made

    def declare(name):
        program.__name__ = program.__qualname__ = name
        return scenario(_on_net(change, back))(program)

    return declare


def _pre(module, args):
    return (args[0] + 1,)


_CHANGES = {
    "train_and_eval": (lambda n: n.eval(), lambda n: n.train()),
    "child_in_eval": (lambda n: n.body[1].eval(), None),
    "hook_on_the_module": (lambda n: n.register_forward_hook(lambda m, a, r: r + 1), None),
    "hook_on_a_child": (lambda n: n.body[0].register_forward_pre_hook(_pre), None),
    "hook_with_keywords": (
        lambda n: n.register_forward_hook(lambda m, a, k, r: r - 1, with_kwargs=True),
        None,
    ),
    "hook_on_all_modules": (
        lambda n: nn.modules.module.register_module_forward_hook(lambda m, a, r: r + 2),
        None,
    ),
    "hook_on_all_modules_before": (
        lambda n: nn.modules.module.register_module_forward_pre_hook(_pre),
        None,
    ),
    "forward_of_the_module": (
        lambda n: setattr(n, "forward", lambda x: x - 1),
        lambda n: delattr(n, "forward"),
    ),
    "method_of_the_module": (
        lambda n: setattr(n, "extra", lambda x: x * 5),
        lambda n: delattr(n, "extra"),
    ),
    "method_of_the_class": (
        lambda n: setattr(Net, "extra", lambda self, x: x * 7),
        lambda n: setattr(Net, "extra", lambda self, x: x),
    ),
    "forward_of_a_child": (
        lambda n: setattr(n.body[0], "forward", lambda x: x * 2),
        lambda n: delattr(n.body[0], "forward"),
    ),
    "class_of_a_child": (
        lambda n: setattr(n.body[1], "__class__", nn.Identity),
        lambda n: setattr(n.body[1], "__class__", nn.Dropout),
    ),
    "child_replaced": (lambda n: n.body.__setitem__(1, nn.Tanh()), None),
    "child_appended": (lambda n: n.body.append(nn.Tanh()), lambda n: n.body.pop(2)),
    "children_reordered": (
        lambda n: (
            n.body._modules.move_to_end("0")
            if hasattr(n.body._modules, "move_to_end")
            else n.body._modules.update({"0": n.body._modules.pop("0")})
        ),
        None,
    ),
    "parameter_replaced": (
        lambda n: setattr(n.body[0], "weight", nn.Parameter(torch.ones(3, 3))),
        None,
    ),
    "parameter_removed": (lambda n: setattr(n.body[0], "bias", None), None),
    "parameter_frozen": (lambda n: n.requires_grad_(False), lambda n: n.requires_grad_(True)),
    "parameter_written": (lambda n: n.body[0].weight.data.zero_(), None),
    "parameters_shared": (
        lambda n: setattr(
            n.body[0],
            "bias",
            n.body[0].weight[0].detach() if False else nn.Parameter(n.body[0].weight.data[0]),
        ),
        None,
    ),
    "dtype_of_the_module": (lambda n: n.double(), lambda n: n.float()),
    "buffer_replaced": (lambda n: setattr(n, "total", torch.zeros(1)), None),
    "buffer_written": (lambda n: n.total.fill_(4), None),
    "buffer_of_another_dtype": (lambda n: setattr(n, "total", torch.ones(3).double()), None),
    "options_changed": (
        lambda n: n.options.update(scale=3),
        lambda n: n.options.update(scale=2.0),
    ),
    "options_replaced": (lambda n: setattr(n, "options", collections.Counter(scale=4)), None),
    "parametrized": (
        lambda n: nn.utils.parametrizations.weight_norm(n.body[0]),
        lambda n: nn.utils.parametrize.remove_parametrizations(n.body[0], "weight"),
    ),
    "state_loaded": (
        lambda n: n.load_state_dict({k: v * 2 for k, v in n.state_dict().items()}),
        None,
    ),
    "state_assigned": (
        lambda n: n.load_state_dict(
            {k: v.clone() * 3 for k, v in n.state_dict().items()}, assign=True
        ),
        None,
    ),
    "attribute_over_a_child": (lambda n: n.__dict__.update(body=lambda x: x), None),
    "moved_to_itself": (lambda n: n.to("cpu"), lambda n: n.float()),
}

for _name, (_change, _back) in _CHANGES.items():
    globals()[f"module_{_name}"] = _net_case(_change, _back)(f"module_{_name}")
