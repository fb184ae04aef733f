"""no_grad, enable_grad, inference_mode, set_grad_enabled, autocast, default dtype and device."""

from __future__ import annotations

import contextlib

import torch

from conformance.declare import case, scenario, t, with_x


def _with_grad():
    return [(t(2, grad=True),), (t(3, grad=True),), (t(2),)]


@case(_with_grad)
def no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 3, torch.is_grad_enabled()


@case(_with_grad)
def enable_grad_in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        return y, z, torch.is_grad_enabled()


@case(lambda: [(t(2, grad=True), True), (t(2, grad=True), False), (t(2), True)])
def set_grad_enabled_block(x, flag):
    with torch.set_grad_enabled(flag):
        y = x * 2
    return y, x * 3


@case(lambda: [(t(2, grad=True), False), (t(2, grad=True), True)])
def set_grad_enabled_call(x, flag):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(flag)
    y = x * 2
    inside = torch.is_grad_enabled()
    torch.set_grad_enabled(before)
    return y, inside


@case(lambda: [(t(2, grad=True), False), (t(2, grad=True), True), (t(2, grad=True), False)])
def grad_mode_left_changed(x, flag):
    torch.set_grad_enabled(flag)
    return x * 2


@torch.no_grad()
def frozen(x):
    return x * 2


@case(_with_grad)
def no_grad_decorator(x):
    return frozen(x), x * 3


@case(_with_grad)
def no_grad_decorator_inside(x):
    @torch.no_grad()
    def inner(y):
        return y + 1

    return inner(x), inner(x).requires_grad


@scenario(lambda: _with_grad())
def decorated_program():
    @torch.no_grad()
    def program(x):
        return x * 2

    return program


@case(_with_grad)
def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), y, torch.is_inference_mode_enabled()


@case(_with_grad)
def no_grad_and_exception(x):
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        return torch.is_grad_enabled(), x * 2


@case(_with_grad)
def no_grad_and_return(x):
    def inner():
        with torch.no_grad():
            return x * 2

    return inner(), x * 3


@case(_with_grad)
def no_grad_in_loop(x):
    out = []
    for i in range(3):
        with torch.no_grad() if i % 2 else torch.enable_grad():
            out.append(x * i)
    return out


@case(_with_grad)
def no_grad_crossed_by_print(x):
    with torch.no_grad():
        y = x * 2
        print("inside")
        z = x * 3
    return y, z, x * 4


@case(_with_grad)
def no_grad_crossed_by_branch(x):
    with torch.no_grad():
        y = x * 2
        if y.sum() > 0:
            y = y + 1
    return y, x * 2


@case(_with_grad)
def detach_and_requires_grad(x):
    y = x.detach().requires_grad_()
    z = y * 2
    return z, y.is_leaf, y.detach(), x.detach().requires_grad


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),)])
def gradient_call(x):
    y = (x**2).sum()
    (g,) = torch.autograd.grad(y, x)
    return g, x.grad


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),)])
def second_gradient(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return g, h


@case(lambda: [(t(2, 2), True), (t(2, 2), False), (t(2, 2, dtype=torch.float64), True)])
def autocast_block(x, enabled):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        y = x @ x
        z = y + x
    return y, z, x @ x


@case(lambda: [(t(2, 2),), (t(3, 3),)])
def autocast_nested(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        with torch.autocast("cpu", enabled=False):
            b = x @ x
        return a, b, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@case(lambda: [(t(2, 2),), (t(3, 3),)])
def autocast_decorator(x):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner(y):
        return y @ y

    return inner(x), x @ x


@case(lambda: [(t(2, 2), torch.bfloat16), (t(2, 2), torch.float16), (t(2, 2), torch.bfloat16)])
def autocast_dtype_argument(x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        return torch.nn.functional.linear(x, x)


@case(with_x(torch.float64, torch.float32))
def default_dtype_inside(x, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    y = torch.ones(2)
    torch.set_default_dtype(before)
    return y, torch.ones(2), x


@case(with_x(1, 2))
def device_context(x, n):
    with torch.device("meta"):
        y = torch.ones(n)
    return y.device, torch.ones(n).device, x


@case(lambda: [(t(2),), (t(3),)])
def default_device(x):
    with torch.device("cpu"):
        return torch.zeros_like(x) + torch.arange(x.shape[0]), torch.get_default_device()


@case(_with_grad)
def anomaly_and_deterministic(x):
    with torch.autograd.set_detect_anomaly(False):
        y = x * 2
    return y, torch.are_deterministic_algorithms_enabled()


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def profiler_block(x):
    with torch.profiler.record_function("block"):
        y = x * 2
    return y


@case(lambda: [(t(2, 3, 4, 4),), (t(1, 2, 4, 4),)])
def attention_backend_block(x):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@case(_with_grad, then=lambda y: y.sum().backward() if y.requires_grad else y)
def checkpoint(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y: (y * 2).sin(), x, use_reentrant=False)


@case(_with_grad)
def saved_tensor_hooks(x):
    packed = []

    def pack(saved):
        packed.append(tuple(saved.shape))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        y = (x * x).sum()
    return y, packed


@case(_with_grad)
def inference_mode_nested_and_off(x):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = torch.ones(2, requires_grad=True) * 2
        inside = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return y, z, inside, torch.is_grad_enabled(), x * 3


@case(_with_grad)
def inference_mode_decorator(x):
    @torch.inference_mode()
    def inner(y):
        return y * 2

    return inner(x).is_inference(), inner(x).requires_grad, (x * 2).is_inference()


@case(_with_grad)
def inference_mode_crossed_by_breaks(x):
    with torch.inference_mode():
        y = x * 2
        print("sum", y.sum())
        z = y + 1
        if z.sum() > 0:
            z = z + 1
    return z.is_inference(), z, x * 2, torch.is_inference_mode_enabled()


@case(_with_grad)
def inference_mode_and_exception(x):
    try:
        with torch.inference_mode():
            raise KeyError("inside")
    except KeyError:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x * 2


@case(lambda: [(t(2, 2), True), (t(2, 2), False), (t(2, 2), None), (t(2, 2), True)])
def inference_mode_argument(x, mode):
    with torch.inference_mode(mode):
        y = x * 2
    return y.is_inference(), y


@case(lambda: [(t(2, 2), 1), (t(2, 2), 5), (t(2, 2), 0)])
def error_while_running_inside_modes(x, index):
    places = torch.tensor([index])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad(), torch.inference_mode():
        y = x @ x
        y = torch.index_select(y, 0, torch.where(y.isnan()[0, :1], 0, places))
    return y


@case(lambda: [(t(2, 2),), (t(3, 3),)])
def autocast_crossed_by_print(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        print("sum", y.sum())
        z = y @ y
    return y, z, x @ x, torch.is_autocast_enabled("cpu")


@case(lambda: [(t(2, 2),), (t(3, 3),)])
def autocast_and_exception(x):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            raise ValueError
    except ValueError:
        return y, x @ x, torch.is_autocast_enabled("cpu")


@case(lambda: [(t(2, 2), 1), (t(2, 2), "cpu"), (t(2, 2), True), (t(2, 2), None)])
def autocast_with_odd_arguments(x, enabled):
    with torch.autocast("cpu", enabled=enabled):
        return x @ x


def _autocast_outside():
    yield (t(2, 2),)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield (t(2, 2),)
    with torch.autocast("cpu", dtype=torch.float16):
        yield (t(2, 2),)
        with torch.autocast("cpu", enabled=False):
            yield (t(2, 2),)
    yield (t(2, 2),)


@case(_autocast_outside)
def autocast_outside(x):
    with torch.autocast("cpu", enabled=not torch.is_autocast_enabled("cpu")):
        y = x @ x
    return x @ x, y, torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")


@case(lambda: [(t(2, 2), torch.nn.Linear(2, 2)) for _ in range(2)])
def autocast_cache_of_weights(x, module):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = module(x)
    with torch.no_grad():
        module.weight.add_(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        second = module(x)
    return first, second


@case(lambda: [(t(2, 2), "bfloat16"), (t(2, 2), "float16"), (t(2, 2), "bfloat16")])
def autocast_set_by_calls(x, name):
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", getattr(torch, name))
    y = x @ x
    torch.set_autocast_enabled("cpu", before[0])
    torch.set_autocast_dtype("cpu", before[1])
    return y, x @ x


@case(with_x("meta", "cpu", None, "meta"))
def device_context_crossed_by_print(x, name):
    with torch.device(name):
        a = torch.ones(2)
        print("sum", x.sum())
        b = torch.zeros(3) + torch.arange(3)
    return a.device, b.device, torch.ones(1).device, torch.get_default_device()


@case(with_x(1, None, 2))
def device_contexts_nested(x, n):
    try:
        with torch.device("meta"):
            a = torch.ones(1)
            with torch.device("cpu"):
                b = torch.ones(n)
            c = torch.empty(2), torch.empty(2, device="cpu"), torch.zeros_like(x), torch.tensor(1)
    except TypeError:
        return torch.ones(1).device
    return a.device, b.device, [made.device for made in c], torch.get_default_device()


def _under_device(program, x, name):
    with torch.device(name) if name else contextlib.nullcontext():
        return program(x, name)


@case(with_x(None, "meta", "cpu", None), drive=_under_device)
def device_context_outside(x, name):
    return torch.ones(2).device, torch.get_default_device(), x * 2


@case(lambda: [(t(2),), (t(3),)])
def device_decorator(x):
    @torch.device("meta")
    def inner(n):
        return torch.ones(n)

    return inner(2).device, torch.ones(1).device, x


@case(with_x(torch.float64, torch.float32, torch.int32, torch.float64))
def default_dtype_crossed_by_print(x, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        a = torch.ones(2)
        print("sum", x.sum())
        b = torch.tensor(1.5), x + 1.5, torch.arange(3) / 2
    finally:
        torch.set_default_dtype(before)
    return a, b, torch.ones(1)


def _default_dtype_kept():
    try:
        for dtype in (torch.float64, torch.float32, torch.float64):
            yield (t(2), dtype)
    finally:
        torch.set_default_dtype(torch.float32)


@case(_default_dtype_kept)
def default_dtype_left_changed(x, dtype):
    torch.set_default_dtype(dtype)
    return torch.ones(2), x


@case(_with_grad)
def anomaly_switched(x):
    before = torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        y = x * 2
        inside = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    return y, before, inside, torch.is_anomaly_enabled()


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def profiler_regions_nested(x):
    with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("b"):
        y = x * 2
        print("sum", y.sum())
        with torch.profiler.record_function("inner"):
            y = y + 1
    return y


def _profiled():
    yield (t(2, 3),)
    with torch.autograd.profiler.profile():
        yield (t(2, 3),)
    yield (t(2, 3),)


@case(_profiled)
def region_while_profiling(x):
    with torch.profiler.record_function("block"):
        return x * 2


@case(lambda: [(t(1, 2, 4, 4),), (t(2, 2, 4, 4),)])
def attention_backends_read(x):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.backends.cuda.flash_sdp_enabled()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        inside = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    return y, before, inside, torch.backends.cuda.flash_sdp_enabled()


@case(with_x(True, False))
def deterministic_algorithms(x, flag):
    torch.use_deterministic_algorithms(flag)
    inside = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return x * 2, inside, torch.are_deterministic_algorithms_enabled()


@case(_with_grad)
def gradients_in_a_generator(x):
    def rows():
        with torch.no_grad():
            yield x * 2
            yield x * 3

    made = rows()
    first = next(made)
    between = x * 4, torch.is_grad_enabled()
    return first, between, list(made), torch.is_grad_enabled()


def _settings():
    for deterministic, seed in ((False, 1), (True, 2), (False, 3), (True, 2)):
        torch.use_deterministic_algorithms(deterministic)
        torch.manual_seed(seed)
        yield (t(2, 3),)
    torch.use_deterministic_algorithms(False)


@case(_settings)
def settings_that_change_between_calls(x):
    return x + 1, torch.are_deterministic_algorithms_enabled(), torch.initial_seed()


@case(lambda: [(t(2),), (t(3),), (t(2),)])
def requires_grad_of_what_no_grad_makes(x):
    with torch.no_grad():
        made = torch.zeros_like(x).requires_grad_()
        twice = made * 2
        made += 1
    return made, twice, made.requires_grad, made.is_leaf


def _places():
    return [(t(3, 3), torch.full((3, 1), place)) for place in (0, 9, 1, 9)]


@case(_places)
def error_after_break_in_autocast(x, places):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        print(y.dtype, y.sum().item() > 0)
        x.add_(1)
        return torch.gather(y, 1, places)


@case(_places)
def error_after_break_without_gradients(x, places):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        print(y.dtype, y.sum().item() > 0)
        with torch.enable_grad():
            print("inner", x.sum().item() > 0)
            x.add_(1)
            return torch.gather(y, 1, places)


@case(_places)
def error_after_breaks_in_a_loop(x, places):
    for n in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=n < 2), torch.device("cpu"):
            y = x @ x
            print(n, y.sum().item() > 0)
            x.add_(1)
            if n == 2:
                y = torch.gather(y, 1, places)
    return y


@case(_places)
def error_after_print(x, places):
    print("before")
    y = torch.gather(x, 1, places)
    x.add_(1)
    print("after")
    return y


@case(_places)
def error_after_change_and_print(x, places):
    x.add_(1)
    print("rows", x.shape[0])
    return x[places[0, 0]] * 2
