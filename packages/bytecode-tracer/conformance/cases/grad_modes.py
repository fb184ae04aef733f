"""no_grad, enable_grad, inference_mode, set_grad_enabled, autocast, default dtype and device."""

from __future__ import annotations

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
