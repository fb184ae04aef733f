"""Function modes and dispatch modes of torch, and subclasses that intercept operations."""

from __future__ import annotations

import torch
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from conformance.declare import case, scenario, t


def _plain():
    return [(t(3),), (t(2),), (t(3, start=2),)]


class Doubling(TorchFunctionMode):
    """Adds are products with two."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.add, torch.Tensor.add):
            return args[0] * 2
        return func(*args, **(kwargs or {}))


class Recording(TorchFunctionMode):
    def __init__(self, seen, name="a"):
        super().__init__()
        self.seen, self.name = seen, name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((self.name, getattr(func, "__name__", "")))
        return func(*args, **(kwargs or {}))


class Scaled(TorchFunctionMode):
    def __init__(self, factor):
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.sin:
            return result * self.factor
        return result


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Negating(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.sin.default:
            return -result
        return result


@case(_plain)
def mode_inside(x):
    with Doubling():
        y = torch.add(x, 1)
        z = y.add(1)
    return y, z, torch.add(x, 1)


@case(_plain)
def mode_that_records(x):
    seen = []
    with Recording(seen):
        y = torch.sin(x) + 1
        z = y.sum().item() > 0
    return y, seen, z


@case(lambda: [(t(3), 2), (t(3), 3), (t(2), 2)])
def mode_with_state(x, factor):
    with Scaled(factor) as mode:
        mode.factor += 1
        y = torch.sin(x)
    return y, mode.factor


@case(_plain)
def modes_nested(x):
    seen = []
    with Recording(seen, "a"), Recording(seen, "b"), Doubling():
        y = torch.add(torch.sin(x), 1)
    return y, seen


def _argument():
    mode = Scaled(4)
    return [(t(3), mode), (t(2), Doubling()), (t(3), Scaled(2))]


@case(_argument)
def mode_given(x, mode):
    with mode:
        return torch.sin(torch.add(x, 1))


@case(_plain)
def mode_in_function_called(x):
    def inner(v):
        with Doubling():
            return torch.add(v, 3)

    return inner(x) + inner(x + 1)


@case(_plain)
def mode_in_loop(x):
    for n in range(3):
        with Scaled(n + 1):
            x = torch.sin(x)
    return x


@case(_plain)
def mode_sees_operators(x):
    seen = []
    with Recording(seen):
        y = x + 1
        y += x
        y[0] = 2
        w = -y @ y
        n = y.shape[0]
    return y, w, n, seen


@case(_plain)
def mode_sees_functional(x):
    seen = []
    with Recording(seen):
        y = torch.nn.functional.relu(x)
        y = torch.nn.functional.softmax(y, dim=0)
        y = torch.stack([y, x])
    return y, seen


@case(_plain)
def mode_sees_creation(x):
    seen = []
    with Recording(seen):
        y = torch.zeros(x.shape[0]) + torch.ones_like(x)
    return y, seen


@case(_plain)
def mode_crossed_by_print(x):
    with Doubling():
        y = torch.add(x, 1)
        print(y.sum().item())
        z = torch.add(y, 1)
    return z


@case(_plain)
def mode_and_exception(x):
    try:
        with Doubling():
            y = torch.add(x, 1)
            raise ValueError("out")
    except ValueError:
        return torch.add(y, 1)


@case(_plain)
def mode_that_refuses(x):
    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.sin:
                raise TypeError("no sines")
            return func(*args, **(kwargs or {}))

    try:
        with Refusing():
            return torch.sin(x)
    except TypeError as error:
        return str(error), torch.sin(x)


@case(_plain)
def mode_defined_inside(x):
    class Local(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Local():
        return torch.cos(x) * 2


@case(_plain)
def functions_switched_off(x):
    seen = []
    with Recording(seen), torch._C.DisableTorchFunction():
        y = torch.sin(x)
    return y, seen


@case(_plain)
def base_mode(x):
    with BaseTorchFunctionMode():
        return x + 1


def _around():
    for mode in (Doubling(), Scaled(3), None):
        if mode is None:
            yield (t(3),)
        else:
            with mode:
                yield (t(3),)


@case(_around)
def mode_around(x):
    return torch.sin(torch.add(x, 1))


def _on_device(program, n, name):
    with torch.device(name):
        return program(n, name)


@case(lambda: [(3, "cpu"), (3, "meta"), (3, "cpu")], drive=_on_device)
def device_mode_around(n, name):
    return torch.zeros(n).device.type, (torch.arange(n) + 1).device.type


@case(lambda: [(3, "cpu"), (2, "meta"), (3, "cpu")])
def device_mode_inside(n, name):
    with torch.device(name):
        a = torch.zeros(n)
        with torch.device("cpu"):
            b = torch.ones(n)
    return a.device.type, b, torch.empty(n).device.type


@case(lambda: [(3, "cpu"), (2, "meta"), (3, "cpu")])
def default_device_set_inside(n, name):
    torch.set_default_device(name)
    try:
        a = torch.zeros(n)
    finally:
        torch.set_default_device(None)
    return a.device.type, torch.ones(n), torch.get_default_device()


@case(lambda: [(3, torch.float64), (2, torch.float32), (3, torch.float16)])
def default_dtype_set_inside(n, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    a = torch.ones(n) * 2.5
    torch.set_default_dtype(before)
    return a, torch.ones(n), torch.tensor(1.5)


# Dispatch modes.


@case(_plain)
def dispatch_mode_inside(x):
    with Negating():
        y = torch.sin(x)
    return y, torch.sin(x)


@case(_plain)
def dispatch_mode_that_counts(x):
    with Counting() as mode:
        y = torch.nn.functional.gelu(x) * 2
    return y, mode.names


@case(_plain)
def dispatch_mode_crossed_by_print(x):
    with Negating():
        y = torch.sin(x)
        print(y.sum().item())
        y = torch.sin(y)
    return y + 1


def _dispatch_around():
    for on in (True, False, True):
        if on:
            with Negating():
                yield (t(3),)
        else:
            yield (t(3),)


@case(_dispatch_around)
def dispatch_mode_around(x):
    return torch.sin(x) + 1


@case(_plain)
def flops_counted(x):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        y = x.unsqueeze(0) @ x.unsqueeze(1)
    return y, counter.get_total_flops()


# Subclasses.


class Wrapped(torch.Tensor):
    """A tensor that holds another and says so."""

    @staticmethod
    def __new__(cls, inner, tag="a"):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, tag="a"):
        self.inner, self.tag = inner, tag

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        tags = []

        def inner(value):
            if isinstance(value, Wrapped):
                tags.append(value.tag)
                return value.inner
            return value

        result = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        wrap = lambda value: cls(value, tags[0]) if isinstance(value, torch.Tensor) else value
        return tree_map(wrap, result)


class Named(torch.Tensor):
    """A subclass without any methods of its own."""


class Quantity(torch.Tensor):
    """Keeps a unit through `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, cls):
            units = [a.unit for a in args if isinstance(a, cls) and hasattr(a, "unit")]
            result.unit = units[0] if units else "1"
        return result


def _quantity(unit, *shape):
    made = t(*shape).as_subclass(Quantity)
    made.unit = unit
    return made


def _wrapped(program, x, tag):
    return program(Wrapped(x, tag) if tag else x)


@case(lambda: [(t(3), "a"), (t(2), "b"), (t(3), "a")], drive=_wrapped)
def wrapper_given(x):
    y = x * 2 + 1
    return type(y).__name__, y.tag, y.inner, y.shape


@case(_plain)
def wrapper_inside(x):
    y = Wrapped(x, "c").sin()
    return y.inner, y.tag, isinstance(y, Wrapped)


@case(lambda: [(t(3), None), (t(3), "a"), (t(3), None)], drive=_wrapped)
def wrapper_or_plain(x):
    y = x + 1
    return y.inner if isinstance(y, Wrapped) else y


@case(lambda: [(t(3).as_subclass(Named),), (t(2).as_subclass(Named),), (t(3),)])
def plain_subclass_given(x):
    y = torch.sin(x) * 2
    return type(y).__name__, y.as_subclass(torch.Tensor)


@case(lambda: [(_quantity("m", 3),), (_quantity("s", 3),), (_quantity("m", 2),)])
def quantity_given(x):
    y = x * 2 + 1
    return y.unit, y.sum().unit, y.as_subclass(torch.Tensor)


@case(_plain)
def quantity_inside(x):
    q = x.as_subclass(Quantity)
    q.unit = "kg"
    z = q.exp()
    return z.unit, z.as_subclass(torch.Tensor)


@case(lambda: [(_quantity("m", 3), t(3)), (_quantity("m", 3), _quantity("s", 3))])
def quantities_mixed(x, y):
    return (x + y).unit, torch.stack([x, y]).shape, (y * x).as_subclass(torch.Tensor)


@case(lambda: [(_quantity("m", 3).requires_grad_(),), (_quantity("m", 2).requires_grad_(),)])
def quantity_with_gradient(x):
    y = (x * 3).sum()
    return y.unit, y.requires_grad, torch.autograd.grad(y, x)[0].as_subclass(torch.Tensor)


@case(lambda: [(t(3).as_subclass(Named), Doubling()), (t(3), Doubling())])
def mode_and_subclass(x, mode):
    with mode:
        y = torch.add(x, 1)
    return type(y).__name__, y.as_subclass(torch.Tensor)


@scenario(lambda state: [(t(2, 3),), (t(4, 3),)])
def parameter_of_subclass():
    class Held(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(t(3).as_subclass(Named))

        def forward(self, x):
            return (x * self.weight).as_subclass(torch.Tensor)

    made = Held()
    return made, made


@case(_plain)
def masked(x):
    from torch.masked import masked_tensor

    return masked_tensor(x, x > 0).sum().get_data()


@case(_plain)
def names_of_functions(x):
    return resolve_name(torch.add), torch.overrides.is_tensor_like(x), x + 1


@case(_plain)
def other_object_that_intercepts(x):
    class Lazy:
        def __init__(self, value):
            self.value = value

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            given = [a.value if isinstance(a, Lazy) else a for a in args]
            return Lazy(func(*given, **(kwargs or {})))

    return torch.sin(Lazy(x)).value, torch.add(x, Lazy(x)).value


@case(_plain)
def mode_sees_conversions(x):
    seen = []
    n = torch.arange(3)
    with Recording(seen):
        y = len(x), bool(n[1] > 0), int(n[2]), float(n[2])
        if n[0] == 0:
            x = x + 1
    return x, y, seen


@case(_plain)
def mode_sees_iteration(x):
    seen = []
    with Recording(seen):
        parts = [part * 2 for part in x]
        first, *rest = x
    return parts, first, rest, seen


@case(_plain)
def mode_sees_text(x):
    seen = []
    with Recording(seen):
        text = f"{x.sum()} {x!r}"
    return text, seen


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x) * 3

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(lambda: [(t(3, grad=True),), (t(2),), (t(2, grad=True),)])
def mode_sees_own_functions(x):
    with Scaled(5):
        return Tripled.apply(x)


@case(_plain)
def mode_sees_transforms(x):
    with Scaled(5):
        return torch.vmap(torch.sin)(x), torch.func.grad(lambda v: torch.sin(v).sum())(x)


@case(lambda: [(t(3, grad=True),), (t(2),), (t(2, grad=True),)])
def mode_sees_gradient_modes(x):
    seen = []
    with Recording(seen), torch.no_grad():
        y = torch.sin(x)
    with Recording(seen):
        x.grad = None
        grad = x.grad
    return y, grad, seen


@case(_plain)
def mode_that_breaks(x):
    class Printing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            print(func.__name__, result.sum().item())
            return result

    with Printing():
        y = torch.sin(x)
        z = torch.cos(y)
    return y + z


@case(_plain)
def mode_left_entered(x):
    mode = Scaled(2)
    mode.__enter__()
    try:
        y = torch.sin(x)
        print(y.sum().item())
        return torch.sin(y)
    finally:
        mode.__exit__(None, None, None)


@scenario(lambda state: [(t(2, 3),), (t(4, 3),)])
def mode_over_a_module():
    torch.manual_seed(0)
    made, seen = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), []

    def program(x):
        with Recording(seen):
            return made(x)

    return program, (made, seen)


def _under(make):
    """Drive a case under the mode that `make` gives for each set, which must see all."""

    def drive(function, x, seen, *rest):
        with make(seen):
            result = function(x, *rest)
            after = torch.overrides._get_current_function_mode_stack()
        return result, list(seen), len(after)

    return drive


def _recorded():
    return [(t(3), []), (t(2), []), (t(3, start=2), [])]


@case(_recorded, drive=_under(Recording))
def called_under_a_mode(x):
    return torch.sin(x) + x.sum()


@case(_recorded, drive=_under(lambda seen: Recording(seen, "b")))
def called_under_a_mode_that_has_state(x):
    y = x * 2
    with Scaled(3.0):
        return torch.sin(y) + 1


@case(_recorded, drive=_under(Recording))
def break_under_a_mode(x):
    y = torch.sin(x) + 1
    print(y.sum() > 1e6)
    return y.cos()


@case(_recorded, drive=_under(Recording))
def error_under_a_mode(x):
    try:
        return torch.sin(x).view(7)
    except RuntimeError:
        raise ValueError("wrong") from None


@case(_recorded, drive=_under(lambda seen: Scaled(len(seen) + 2.0)))
def scaled_around(x):
    return torch.sin(x) * 2


@case(_recorded, drive=_under(Recording))
def mode_around_is_asked_for(x):
    inside = torch.overrides._get_current_function_mode()
    return type(inside).__name__, x + 1


@case(_recorded, drive=_under(Recording))
def modes_around_are_switched_off(x):
    with torch._C.DisableTorchFunction():
        y = torch.sin(x)
    with torch._C.DisableTorchFunctionSubclass():
        return y + torch.cos(x)


@case(_recorded, drive=_under(Recording))
def runs_out_of_bounds_under_a_mode(x):
    try:
        return x[torch.tensor([len(x) + 1])]
    except IndexError:
        return x * 2


@case(lambda: [(torch.tensor([n, 2]), t(2, 2)) for n in (1, 4, 1, 3)])
def values_read_after_a_mode(places, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    first = places[0].item()
    return y * first, first


@case(lambda: [(torch.tensor([n, 2]), t(2, 2)) for n in (1, 4, 1, 3)])
def values_read_in_a_mode(places, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = (places * 2)[0].item()
        y = (x @ x) * first
    return y, first


@case(lambda: [(t(2, 2),)] * 3)
def value_of_a_product_made_in_a_mode(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        table = torch.arange(4.0).reshape(2, 2) / 3
        y = (table @ table).sum().item()
    return x + y, y
