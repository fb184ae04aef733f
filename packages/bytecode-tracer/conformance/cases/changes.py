"""What changes between calls of one program: everything that a guard is about, one at a time.

Each case is called, changed, called, changed back, and called again.
"""

from __future__ import annotations

import abc
import builtins
import collections
import copy
import functools
import math
import sys
import types

import torch
from torch import nn

from conformance.declare import scenario, t


class Bag:
    """Attributes of an object of the program."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Base(Bag):
    level = 1

    def run(self, x):
        return x + self.level


class First(Base):
    def run(self, x):
        return super().run(x) * 2


class Second(Base):
    level = 5

    def run(self, x):
        return super().run(x) * 3


class Both(First, Second):
    pass


class Plain(Bag):
    pass


class Shown(abc.ABC):
    pass


class Descriptor:
    def __get__(self, instance, owner=None):
        return 7


def _changing(owner_of, name, value, delete=False):
    """Sets around a change of an attribute of what `owner_of(state)` gives."""

    def sets(state=None):
        owner = owner_of(state)
        missing = object()
        own = owner.__dict__.get(name, missing) if hasattr(owner, "__dict__") else missing
        before = own if own is not missing or delete else getattr(owner, name, missing)
        yield (t(2, 3),)
        if value is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, value(owner) if isinstance(value, _Computed) else value)
        try:
            yield (t(2, 3),)
            yield (t(2, 3),)
        finally:
            if before is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        yield (t(2, 3),)

    return sets


class _Computed:
    def __init__(self, function):
        self.function = function

    def __call__(self, owner):
        return self.function(owner)


def _state(state):
    return state


# Classes.


@scenario(_changing(lambda state=None: Both, "__bases__", (Second, First)))
def order_of_bases():
    made = Both()

    def program(x):
        return made.run(x), isinstance(made, First), made.level

    return program, made


@scenario(_changing(lambda state=None: Second, "level", 9))
def attribute_of_a_base():
    made = Both()

    def program(x):
        return made.run(x)

    return program, made


@scenario(_changing(_state, "__class__", Second))
def class_of_an_object():
    made = First()

    def program(x):
        return made.run(x), type(made) is First, isinstance(made, Second)

    return program, made


@scenario(_changing(lambda state=None: Plain, "__bases__", (Base,)))
def base_appears():
    class Inner(Plain):
        pass

    made = Inner()

    def program(x):
        return isinstance(made, Base), issubclass(Inner, Base), x + getattr(made, "level", 0)

    return program, made


@scenario(_changing(lambda state=None: Descriptor, "__set__", lambda self, instance, value: None))
def descriptor_becomes_one_of_data():
    class Holder:
        value = Descriptor()

    made = Holder()
    made.__dict__["value"] = 2

    def program(x):
        return x * made.value

    return program, made


@scenario(_changing(lambda state=None: type(state), "double", property(lambda self: 3)))
def property_for_a_method():
    class Holder:
        @property
        def double(self):
            return 2

    made = Holder()

    def program(x):
        return x * made.double

    return program, made


@scenario(
    _changing(lambda state=None: type(state), "value", property(lambda s: 1, lambda s, v: None))
)
def property_before_a_write():
    class Holder:
        pass

    made = Holder()

    def program(x):
        made.value = x.shape[0]
        return x * made.value, sorted(made.__dict__)

    return program, made


@scenario(
    _changing(lambda state=None: type(state).double.fget, "__code__", (lambda self: 5).__code__)
)
def code_of_a_property():
    class Holder:
        @property
        def double(self):
            return 2

    made = Holder()

    def program(x):
        return x * made.double

    return program, made


@scenario(_changing(lambda state=None: type(state).made.__func__, "__defaults__", (4,)))
def defaults_of_a_class_method():
    class Holder:
        @classmethod
        def made(cls, n=2):
            return n

        @staticmethod
        def other(n=1):
            return n

    made = Holder()

    def program(x):
        return x * made.made() + made.other()

    return program, made


def _special(name, function):
    return _changing(lambda state=None: type(state), name, function)


def _holder():
    class Holder:
        def __init__(self):
            self.items = [1, 2]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, n):
            return self.items[n]

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, x):
            return x + 1

        def __enter__(self):
            return 1

        def __exit__(self, *error):
            return None

    return Holder()


def _use(made):
    def program(x):
        with made as entered:
            total = sum(made) + len(made) + bool(made)
        total += (made == 1) + (1 in made) + {made: 2}[made] + entered
        try:
            total += made.missing
        except AttributeError:
            total += 100
        return made(x) * total

    return program, made


@scenario(_special("__len__", lambda self: 1))
def length_of_a_class():
    return _use(_holder())


@scenario(_special("__bool__", lambda self: False))
def truth_appears():
    return _use(_holder())


@scenario(_special("__getitem__", lambda self, n: [4][n]))
def subscript_of_a_class():
    return _use(_holder())


@scenario(_special("__iter__", lambda self: iter([7])))
def iteration_appears():
    return _use(_holder())


@scenario(_special("__contains__", lambda self, item: False))
def membership_appears():
    return _use(_holder())


@scenario(_special("__eq__", lambda self, other: self is other))
def equality_of_a_class():
    return _use(_holder())


@scenario(_special("__call__", lambda self, x: x - 1))
def call_of_a_class():
    return _use(_holder())


@scenario(_special("__enter__", lambda self: 3))
def entering_of_a_class():
    return _use(_holder())


@scenario(_special("__getattr__", lambda self, name: len(name)))
def missing_attribute_appears():
    return _use(_holder())


@scenario(_special("__getattribute__", lambda self, name: object.__getattribute__(self, name)))
def reading_of_attributes_appears():
    return _use(_holder())


@scenario(_special("__setattr__", lambda self, name, value: None))
def writing_of_attributes_appears():
    made = _holder()

    def program(x):
        made.size = x.shape[0]
        return x, "size" in made.__dict__

    return program, made


@scenario(_special("__radd__", lambda self, other: other - 1))
def operator_appears():
    made = _holder()

    def program(x):
        try:
            return x + made
        except TypeError:
            return x

    return program, made


@scenario(lambda state=None: _registered(state))
def class_is_registered():
    class Registered(abc.ABC):  # noqa: B024  # only registered classes are of it
        pass

    class Holder:
        pass

    made = Holder()

    def program(x):
        return x + isinstance(made, Registered), issubclass(Holder, Registered)

    return program, (Registered, Holder)


def _registered(state):
    registry, cls = state
    yield (t(2, 3),)
    registry.register(cls)
    yield (t(2, 3),)


# Functions.


def helper(x, n=2, *, k=3):
    return x * n + k


@scenario(_changing(lambda state=None: helper, "__code__", (lambda x, n=0, *, k=0: x - n).__code__))
def code_of_a_helper():
    def program(x):
        return helper(x), list(map(helper, [x]))

    return program


@scenario(_changing(lambda state=None: helper, "__defaults__", (5,)))
def defaults_of_a_helper():
    def program(x):
        return functools.partial(helper, x)()

    return program


@scenario(_changing(lambda state=None: helper, "__kwdefaults__", {"k": 9}))
def keyword_defaults_of_a_helper():
    def program(x):
        return helper(x, **{})

    return program


@scenario(lambda state=None: _in_place_defaults())
def keyword_defaults_changed_in_place():
    def program(x):
        return helper(x)

    return program


def _in_place_defaults():
    yield (t(2, 3),)
    helper.__kwdefaults__["k"] = 8
    yield (t(2, 3),)
    helper.__kwdefaults__["k"] = 3
    yield (t(2, 3),)


def with_list(x, found=[1]):  # noqa: B006  # what is tested
    return x + sum(found)


@scenario(lambda state=None: _default_list())
def mutable_default_changed_from_outside():
    def program(x):
        return with_list(x)

    return program


def _default_list():
    yield (t(2, 3),)
    with_list.__defaults__[0].append(2)
    yield (t(2, 3),)
    with_list.__defaults__[0].pop()
    yield (t(2, 3),)


@scenario(_changing(_state, "__defaults__", (7,)))
def defaults_of_the_program():
    def program(x, n=2):
        return x * n

    return program, program


@scenario(_changing(_state, "__kwdefaults__", {"n": 7}))
def keyword_defaults_of_the_program():
    def program(x, *, n=2):
        return x * n

    return program, program


@scenario(_changing(_state, "__code__", (lambda x: x - 5).__code__))
def code_of_the_program():
    def program(x):
        return x * 2

    return program, program


@scenario(_changing(lambda state=None: state[0], "cell_contents", 5))
def cell_of_the_program():
    n = 2

    def program(x):
        return x * n

    return program, program.__closure__


@scenario(_changing(lambda state=None: state[0], "cell_contents", 2.0))
def type_in_a_cell():
    n = 2

    def program(x):
        return str(n), x

    return program, program.__closure__


# Modules of Python and builtins.


@scenario(_changing(lambda state=None: builtins, "len", lambda value: 77))
def builtin_replaced():
    def program(x):
        return x * len([1, 2])

    return program


@scenario(_changing(lambda state=None: sys.modules[__name__], "abs", lambda value: 50, delete=True))
def builtin_hidden_by_a_global():
    def program(x):
        return x * abs(-2)

    return program


@scenario(lambda state=None: _replaced_module())
def module_replaced_in_sys_modules():
    def program(x):
        import conformance_changes_made as made

        return x * made.FACTOR

    return program


def _replaced_module():
    name = "conformance_changes_made"
    modules = [types.ModuleType(name), types.ModuleType(name)]
    for n, module in enumerate(modules):
        module.FACTOR = n + 2
    try:
        for module in (*modules, modules[0]):
            sys.modules[name] = module
            yield (t(2, 3),)
        modules[0].FACTOR = 9
        yield (t(2, 3),)
    finally:
        del sys.modules[name]


@scenario(lambda state=None: _missing_module())
def module_appears():
    def program(x):
        try:
            import conformance_changes_absent as made
        except ImportError as error:
            return x, str(error)
        return x * made.FACTOR

    return program


def _missing_module():
    name = "conformance_changes_absent"
    yield (t(2, 3),)
    module = types.ModuleType(name)
    module.FACTOR = 5
    sys.modules[name] = module
    try:
        yield (t(2, 3),)
    finally:
        del sys.modules[name]
    yield (t(2, 3),)


@scenario(_changing(lambda state=None: math, "pi", 3))
def constant_of_a_module():
    def program(x):
        return x * math.pi

    return program


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
