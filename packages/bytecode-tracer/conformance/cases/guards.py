"""What guards must notice: types, values, identity, metadata and aliasing of arguments."""

from __future__ import annotations

import builtins
import contextlib
import math
import typing

import torch
from torch import nn

from conformance.declare import call, case, only, scenario, t, tensors, with_x


@case(with_x(1, 1.0, True, 2, 1))
def number_type(x, n):
    return x * n, type(n).__name__, str(n)


@case(only(1, True, 1.0, False, 0, 0.0, None, "1"))
def scalar_alone(n):
    return repr(n), t(2) + (n if isinstance(n, int | float) else 0)


@case(with_x(0.1, 0.2, 0.30000000000000004, 0.1 + 0.2))
def float_values(x, n):
    return x * n, n == 0.3


@case(with_x(float("nan"), 1.0, float("nan"), float("inf")))
def nan_values(x, n):
    return x + n, n != n


@case(with_x(0.0, -0.0, 0))
def signed_zero(x, n):
    return x * n, str(n)


@case(with_x(1, 10, 100, 1000, 10**10, -5))
def many_integers(x, n):
    return x + n


@case(with_x("a", "b", "a", "", "a" * 100))
def strings(x, text):
    return x * len(text), text


@case(with_x(None, 1, None, "a", None))
def none_or_value(x, value):
    return (x, "none") if value is None else (x, value)


@case(with_x(b"a", "a", bytearray(b"a")))
def bytes_or_text(x, value):
    return type(value).__name__, len(value), x


@case(tensors)
def shape_and_dtype(x):
    return x * 2, x.shape, x.dtype


@case(lambda: [(t(2, 3),), (t(3, 2).t(),), (t(4, 3)[::2],), (t(2, 3),), (t(2, 6)[:, ::2],)])
def strides(x):
    return x.stride(), x.is_contiguous(), x.reshape(-1), x * 2


@case(lambda: [(t(2, 3),), (t(3).expand(2, 3),), (t(1, 3).expand(2, 3),), (t(2, 3),)])
def expanded(x):
    return x.stride(), x + 1, x.contiguous()


@case(lambda: [(t(4),), (t(6)[2:],), (t(6)[:4],)])
def storage_offset(x):
    return x.storage_offset(), x * 2, x.view(2, 2)


@case(lambda: [(t(2),), (t(2, grad=True),), (t(2, grad=True) * 2,), (t(2),)])
def requires_grad(x):
    return x.requires_grad, x.is_leaf, x * 2, x.grad_fn is None


@case(lambda: [(t(2),), (torch.nn.Parameter(t(2)),), (t(2),)])
def parameter_or_tensor(x):
    return isinstance(x, torch.nn.Parameter), type(x).__name__, x + 1


@case(lambda: [(t(2), 1), (1, t(2)), (2, 3), (t(2), t(2))])
def tensor_or_number(a, b):
    return a + b, a * 2


@case(lambda: [([1, 2],), ((1, 2),), ({1, 2},), ({1: 1, 2: 2},), ("12",), (range(1, 3),)])
def kind_of_container(items):
    return [t(2) * int(item) for item in items], type(items).__name__


@case(lambda: [([1, 2], t(2)), ([1, 2, 3], t(2)), ([], t(2)), ([1], t(2)), ([1, 2], t(2))])
def length_of_list(items, x):
    return x * len(items), items[-1] if items else None


@case(lambda: [([1, 2], t(2)), ([1, 3], t(2)), ([1.0, 2], t(2)), ([True, 2], t(2))])
def items_of_list(items, x):
    return [x * item for item in items]


@case(lambda: [([1, 2, 3], t(2)), ([1, 2, 4], t(2)), ([1, 9, 3], t(2))])
def unused_items(items, x):
    return x * items[0]


@case(lambda: [({"a": 1, "b": 2},), ({"b": 2, "a": 1},), ({"a": 1},), ({"a": 1, "b": 2, "c": 3},)])
def keys_of_dict(table):
    total = t(2)
    for index, key in enumerate(table):
        total = total * (index + 1) + table[key]
    return total, "c" in table


@case(lambda: [({"a": t(2)},), ({"a": t(3)},), ({"a": t(2).double()},), ({"a": 3},)])
def values_of_dict(table):
    return table["a"] * 2


@case(lambda: [({"k": {"n": 1}},), ({"k": {"n": 2}},), ({"k": {"n": 2, "m": 0}},), ({"k": {}},)])
def nested_dict(table):
    return t(2) * table["k"].get("n", 50), len(table["k"])


def _absent_key():
    table = {}
    yield (t(2), table)
    table["bias"] = 3
    yield (t(2), table)
    table["bias"] = None
    yield (t(2), table)


@case(_absent_key)
def key_appears(x, table):
    return x + table["bias"] if table.get("bias") is not None else x


class Options:
    level = 1


def _absent_attribute():
    options = Options()
    yield (t(2), options)
    options.bias = 3
    yield (t(2), options)
    options.level = 5
    yield (t(2), options)
    del options.bias
    yield (t(2), options)


@case(_absent_attribute)
def attribute_appears(x, options):
    return x * options.level + (options.bias if hasattr(options, "bias") else 0)


@case(_absent_attribute)
def attribute_with_default(x, options):
    return x * getattr(options, "level", 0) + getattr(options, "bias", 0)


def _class_attribute():
    options = Options()
    yield (t(2), options)
    Options.level = 7
    yield (t(2), options)
    options.level = 2
    yield (t(2), options)
    Options.level = property(lambda self: 50)
    yield (t(2), options)


@case(_class_attribute)
def class_attribute_behind_instance(x, options):
    return x * options.level


def _instancecheck():
    options = Options()
    yield (t(2), options)
    Options.__len__ = lambda self: 0
    yield (t(2), options)
    Options.__bool__ = lambda self: True
    yield (t(2), options)


@case(_instancecheck)
def special_method_added_to_class(x, options):
    return x + 1 if options else x - 1


def _identity():
    a, b = [1], [1]
    return [(a, a), (a, b), (b, b), (b, a)]


@case(_identity)
def identity_of_lists(a, b):
    return (t(2) if a is b else -t(2)), a == b


def _tensor_identity():
    a, b = t(2), t(2)
    return [(a, b), (a, a), (a, a[:]), (b, a)]


@case(_tensor_identity)
def identity_of_tensors(a, b):
    return a + 1 if a is b else a - 1


def _tensor_in_list():
    x = t(2)
    return [(x, [x, x]), (x, [t(2), x]), (x, [x, t(2)]), (t(2), [x, x])]


@case(_tensor_in_list)
def tensor_also_in_list(x, items):
    x.add_(1)
    return items[0] + items[1], items[0] is x


@case(lambda: [(t(2), int), (t(2), float), (t(2), str), (t(2), int)])
def class_argument(x, kind):
    return kind("3"), x * 2 if kind is int else x


@case(lambda: [(t(2), torch.float32), (t(2), torch.float64), (t(2), torch.int32), (t(2), None)])
def dtype_argument(x, dtype):
    return x.to(dtype) if dtype else x, torch.zeros(2, dtype=dtype)


@case(lambda: [(t(2, 3), 0), (t(2, 3), 1), (t(2, 3), -1), (t(2, 3), (0, 1)), (t(2, 3), None)])
def dim_argument(x, dim):
    return x.sum(dim) if dim is not None else x.sum()


@case(lambda: [(t(6), (2, 3)), (t(6), (3, 2)), (t(6), [6, 1]), (t(6), torch.Size([1, 6]))])
def shape_argument(x, shape):
    return x.reshape(shape), torch.ones(shape)


@case(lambda: [(t(6), slice(0, 2)), (t(6), slice(None)), (t(6), slice(1, None, 2)), (t(6), 3)])
def slice_argument(x, index):
    return x[index] * 2


@case(lambda: [(t(2), "cpu"), (t(2), torch.device("cpu")), (t(2), None), (t(2), "meta")])
def device_argument(x, device):
    return x.to(device).device if device else x.device


def _grad_mode():
    for enabled in (True, False, True):
        torch.set_grad_enabled(enabled)
        yield (t(2, grad=True),)
    torch.set_grad_enabled(True)


@case(_grad_mode)
def grad_mode_outside(x):
    return x * 2, torch.is_grad_enabled()


def _default_dtype():
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        yield (2.5,)
    torch.set_default_dtype(torch.float32)


@case(_default_dtype)
def default_dtype_outside(n):
    return torch.ones(2) * n, torch.tensor(n), torch.get_default_dtype()


def _inference_mode():
    yield (t(2, grad=True), "off")
    with torch.inference_mode():
        yield (t(2), "on")
    yield (t(2, grad=True), "off")


@case(_inference_mode)
def inference_mode_outside(x, name):
    return x * 2, torch.is_inference_mode_enabled()


def _autocast():
    yield (t(2, 2),)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield (t(2, 2),)
    yield (t(2, 2),)


@case(_autocast)
def autocast_outside(x):
    return x @ x


@case(lambda: [call(t(2), a=1), call(t(2), b=1), call(t(2), a=1, b=2), call(t(2), b=2, a=1)])
def keyword_names(x, **named):
    return [x * value for value in named.values()], list(named)


@case(lambda: [(t(2), *range(n)) for n in (0, 1, 3, 1)])
def number_of_arguments(x, *more):
    return x * len(more), sum(more)


@case(lambda: [(torch.tensor(3),), (torch.tensor(4),), (torch.tensor(3.0),)])
def scalar_tensor_value(x):
    return x * 2, x.item() + 1


@case(lambda: [(t(0, 3),), (t(1, 3),), (t(2, 3),), (t(0, 3),)])
def empty_and_single(x):
    return x.sum(), x * 2, len(x)


@case(lambda: [(t(2),), (t(2, 2),), (t(2, 2, 2),), (t(),), (t(2),)])
def rank(x):
    return x.dim(), x + 1, x.sum(-1)


@case(lambda: [(t(n),) for n in range(1, 12)])
def more_shapes_than_specialisations(x):
    return x * x.shape[0]


@case(lambda: [(n, t(2)) for n in range(12)])
def more_numbers_than_specialisations(n, x):
    return x * n, n + 1


@case(lambda: [(t(2), Options()), (t(2), None), (t(2), Options), (t(2), Options())])
def object_class_or_none(x, value):
    return x * value.level if value is not None else x


def _masks():
    x = t(4)
    for values in ((1, 1, 1, 1), (1, 1, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1)):
        yield x, torch.tensor(values, dtype=torch.bool)
        yield x, torch.tensor(values)


@case(_masks)
def branch_on_a_mask(x, mask):
    if mask.all():
        return x + 1
    return x * mask + (2 if 1 in mask else 3)


@case(_masks)
def branch_on_a_mask_changed_before(x, mask):
    mask[0] = 0
    y = x + 1 if mask.any() else x - 1
    mask[1] = 1
    return y + 1 if mask.all() else y - 1


@case(lambda: [(t(8), torch.tensor(n)) for n in (1, 2, 3, 4, 5, 1, 6, 2)])
def length_in_a_tensor(x, n):
    return x[: n.item()] * int(n), [x.sum() + i for i in range(n)]


@case(lambda: [(t(4), torch.tensor(g)) for g in ([[1, 3]], [[2, 2]], [[4, 0]], [[0, 4]])])
def sizes_in_a_tensor(x, grid):
    (one, two), *_ = grid.tolist()
    return torch.split(x, [one, two])


@contextlib.contextmanager
def _patched(owner, name, value):
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _around(owner, name, value):
    """Sets before, while and after an attribute of a module or class is another one."""

    def sets(state=None):
        yield (t(2, 3),)
        with _patched(owner, name, value):
            yield (t(2, 3),)
        yield (t(2, 3),)

    return sets


@scenario(_around(nn.functional, "relu", lambda x, inplace=False: x - 100))
def functional_relu_patched():
    return nn.ReLU()


@case(_around(nn.functional, "linear", lambda x, w, b=None: x * 7))
def functional_linear_patched(x):
    return nn.functional.linear(x, torch.ones(3, 3))


@scenario(_around(nn.ReLU, "forward", lambda self, x: x - 100))
def method_of_torch_class_patched():
    return nn.Sequential(nn.ReLU(), nn.Identity())


@case(_around(torch, "sin", torch.cos))
def torch_function_patched(x):
    return torch.sin(x)


@scenario(_around(nn.Module, "__call__", lambda self, *args: self.forward(*args) * 3))
def module_call_patched():
    module = nn.Sequential(nn.ReLU(), nn.Identity())

    def program(x):
        return module(x) + 1

    return program


@scenario(_around(nn.Module, "__getattr__", lambda self, name: torch.ones(3) * 5))
def module_getattr_patched():
    module = nn.LayerNorm(3)

    def program(x):
        return x * module.weight

    return program


@case(_around(contextlib.nullcontext, "__enter__", lambda self: 42))
def stdlib_class_patched(x):
    with contextlib.nullcontext(3) as found:
        return x * found


@case(_around(math, "sqrt", lambda value: -1.0))
def stdlib_function_patched(x):
    return x * math.sqrt(4.0)


@case(_around(torch.no_grad, "__enter__", lambda self: None))
def grad_mode_class_patched(x):
    with torch.no_grad():
        return torch.is_grad_enabled(), x * 2


@case(_around(builtins, "sorted", lambda values: list(values)))
def builtin_patched(x):
    return [x * n for n in sorted([3, 1])]


@case(_around(torch.Tensor, "backward", lambda self: self - 100))
def tensor_method_patched(x):
    return x.backward() if torch.Tensor.backward.__name__ == "<lambda>" else x


@case(_around(torch.Tensor, "softmax", lambda self, dim: self - dim))
def inherited_tensor_method_patched(x):
    return x.softmax(1)


class _Fields(typing.NamedTuple):
    first: typing.Any
    second: int


class _FieldsOfItsOwn(_Fields):
    @property
    def second(self):
        return tuple.__getitem__(self, 1) + 100


def _with_fields():
    kept = _Fields.second
    for replaced in (kept, _Fields.first, property(lambda self: 7), kept):
        _Fields.second = replaced
        yield (_Fields(t(2), 2), _FieldsOfItsOwn(t(2), 3))
    _Fields.second = kept


@case(lambda: _with_fields())
def fields_that_are_replaced(p, q):
    return p.first * p.second, q.first * q.second, _Fields(p.first, 5).second


def _with_nan():
    nan = float("nan")
    other = float("nan")
    return [
        (t(2), nan, [nan], {nan: 2}, {nan}, 3),
        (t(2), other, [nan], {nan: 2}, {nan}, 3),
        (t(2), nan, [nan, 1.0], {1.0: nan}, {1.0}, 3),
        (t(2), 1.0, [nan, 1.0], {1.0: 4}, {1.0}, 3),
        (t(2), nan, (nan,), {nan: 2}, {nan}, 3),
    ]


@case(_with_nan)
def nan_by_its_identity(x, wanted, found, table, group, other):
    listed = wanted in found, found.count(wanted), found == [wanted]
    return x * table.get(wanted, 7), listed, wanted in group, wanted in table, wanted is found[0]
