"""torch.func, autograd.Function, optimizers, custom ops, tensor subclasses and modes."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x * x * n

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.n + 100, None


class SetupStyle(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp(), x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, first, second):
        return first * ctx.saved_tensors[0] + second


class Logged(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    @property
    def doubled(self):
        return self * 2


class Unit:
    """Not a tensor, but torch functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.value if isinstance(a, Unit) else a for a in args]
        return Unit(func(*plain, **(kwargs or {})))


def _grads():
    return [(t(3, grad=True), 2), (t(2, grad=True), 2), (t(3, grad=True), 5)]


@case(_grads, then=lambda y: y.sum().backward())
def autograd_function(x, n):
    return Square.apply(x, n) + 1


@case(lambda: [(t(3),), (t(2),)])
def autograd_function_without_grad(x):
    return Square.apply(x, 3)


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: sum(r).sum().backward())
def autograd_function_with_setup(x):
    return SetupStyle.apply(x)


@case(_grads)
def autograd_function_and_gradient_inside(x, n):
    y = Square.apply(x, n).sum()
    y.backward()
    return x.grad.clone()


@case(lambda: [(t(3),), (t(2),)])
def func_grad(x):
    return torch.func.grad(lambda y: (y**2).sum())(x)


@case(lambda: [(t(3), 2), (t(2), 3), (t(3), 3)])
def func_grad_and_value(x, n):
    return torch.func.grad_and_value(lambda y, k: (y * k).sin().sum(), argnums=0)(x, n)


@case(lambda: [(t(3, 2),), (t(4, 2),)])
def vmap(x):
    return torch.vmap(lambda row: row.sum() * row)(x)


@case(lambda: [(t(3, 2), t(2)), (t(4, 2), t(2))])
def vmap_with_in_dims(x, y):
    return torch.func.vmap(torch.dot, in_dims=(0, None))(x, y), torch.vmap(lambda a: a * 2, 1, 1)(x)


@case(lambda: [(t(3),), (t(2),)])
def jvp_and_vjp(x):
    value, push = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    out, pull = torch.func.vjp(torch.cos, x)
    return value, push, out, pull(torch.ones_like(x))


@case(lambda: [(t(3),), (t(2),)])
def jacobians(x):
    f = lambda y: y**2 + y.sum()  # noqa: E731
    return (
        torch.func.jacrev(f)(x),
        torch.func.jacfwd(f)(x),
        torch.func.hessian(lambda y: f(y).sum())(x),
    )


@case(lambda: [(t(4, 3),), (t(2, 3),)])
def per_sample_gradients(x):
    weight = torch.ones(3)

    def loss(w, row):
        return (w * row).sum() ** 2

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)


@case(lambda: [(t(2, 3), 1), (t(4, 3), 1), (t(2, 3), 2)])
def functional_call(x, n):
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    values = {name: p * n for name, p in module.named_parameters()}
    return torch.func.functional_call(module, values, (x,))


@scenario(lambda s: [(t(4, 3),), (t(4, 3),), (t(2, 3),)])
def sgd_step():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def program(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return program, module


@scenario(lambda s: [(t(4, 3),), (t(4, 3),), (t(2, 3),)])
def adam_step():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def program(x):
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return program, module


def _rates(state):
    module, optimizer = state
    for rate in (0.1, 0.5, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        module.weight.grad = torch.ones(2, 3)
        yield ()


@scenario(_rates)
def step_only_with_changing_rate():
    torch.manual_seed(1)
    module = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def program():
        optimizer.step()

    return program, (module, optimizer)


@scenario(lambda s: [(t(4, 3),), (t(4, 3),)])
def gradient_clipping():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)

    def program(x):
        module.zero_grad()
        (module(x) * 100).sum().backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        return norm, module.weight.grad

    return program, module


@case(lambda: [(t(3),), (t(2),)])
def schedulers_and_losses(x):
    target = torch.zeros_like(x)
    f = nn.functional
    return f.mse_loss(x, target), f.l1_loss(x, target, reduction="sum"), f.huber_loss(x, target)


@case(lambda: [(t(2, 3), torch.tensor([0, 2])), (t(3, 3), torch.tensor([0, 1, 1]))])
def cross_entropy(x, target):
    return nn.functional.cross_entropy(x, target), nn.CrossEntropyLoss(label_smoothing=0.1)(
        x, target
    )


@case(lambda: [(t(3),), (t(3).as_subclass(Logged),), (t(2).as_subclass(Logged),), (t(3),)])
def subclass_with_torch_function(x):
    return x * 2 + 1, type(x).__name__


@case(lambda: [(t(3).as_subclass(Tagged),), (t(2).as_subclass(Tagged),), (t(3),)])
def subclass_with_property(x):
    return x.doubled if isinstance(x, Tagged) else x, x + 1


@case(lambda: [(t(3),), (t(2),)])
def subclass_made_inside(x):
    y = x.as_subclass(Tagged)
    return y.doubled, type(y + 1).__name__, type(y) is Tagged


@case(lambda: [(Unit(t(3)),), (Unit(t(2)),), (t(3),)])
def torch_function_of_other_object(x):
    return torch.add(x, 1)


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.sin else result


@case(lambda: [(t(3),), (t(2),)])
def torch_function_mode_inside(x):
    with Halving():
        y = torch.sin(x)
    return y, torch.sin(x)


def _mode():
    yield (t(3),)
    with Halving():
        yield (t(3),)
    yield (t(3),)


@case(_mode)
def torch_function_mode_outside(x):
    return torch.sin(x)


@case(lambda: [(t(3),), (t(2),)])
def custom_op(x):
    from conformance.ops import shifted

    return shifted(x, 2.0) * 2


@case(lambda: [(t(3),), (t(2),)])
def custom_op_without_fake(x):
    from conformance.ops import counted

    return counted(x) + 1


@case(lambda: [(t(3),), (t(2),)])
def custom_op_that_mutates(x):
    from conformance.ops import doubled_

    doubled_(x)
    return x + 1


@case(lambda: [(t(3),), (t(2),)])
def ops_namespace(x):
    return torch.ops.aten.add(x, x), torch.ops.aten.relu.default(x), torch._foreach_add([x, x], 1)


@case(lambda: [(t(2, 3, 4, 4),), (t(1, 2, 4, 4),)])
def attention_with_score(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@case(lambda: [(t(3), 0.5), (t(2), 0.1)])
def unrolled_descent(x, rate):
    for step in range(3):
        x = x - rate * (x - 1) * (0.9**step)
    return x


WEIGHT = torch.tensor([1.0, 2.0, 3.0])
PER_SAMPLE = torch.vmap(torch.func.grad(lambda w, row: (w * row).sin().sum()), in_dims=(None, 0))


@case(lambda: [(t(4, 3),), (t(2, 3),)])
def transform_made_outside(x):
    return PER_SAMPLE(WEIGHT, x)


def _weights():
    for scale in (1.0, 2.0, 1.0):
        globals()["WEIGHT"] = torch.tensor([1.0, 2.0, 3.0]) * scale
        yield (t(2, 3), scale)


@case(_weights)
def transform_over_changing_globals(x, scale):
    return torch.vmap(lambda row: row * WEIGHT * scale)(x)


@case(lambda: [(t(4, 3), 0), (t(3, 4), 1), (t(4, 3), None)])
def vmap_dims(x, dim):
    return torch.vmap(lambda a, b: (a.sum(), b * 2), in_dims=(dim, 0), out_dims=(0, -1))(x, t(4, 2))


@case(lambda: [({"a": t(3, 2), "b": [t(3), 2]},), ({"a": t(4, 2), "b": [t(4), 3]},)])
def vmap_over_containers(tree):
    dims = ({"a": 0, "b": [0, None]},)
    return torch.vmap(lambda d: {"s": d["a"].sum() * d["b"][1], "t": d["b"][0]}, in_dims=dims)(tree)


@case(lambda: [(t(4, 2), "different"), (t(4, 2), "same"), (t(4, 2), "error"), (t(4, 2), "odd")])
def vmap_randomness(x, mode):
    torch.manual_seed(1)
    return torch.vmap(lambda row: row + torch.rand(2), randomness=mode)(x)


@case(lambda: [(t(5, 3), 2), (t(5, 3), 1), (t(5, 3), None)])
def vmap_in_chunks(x, size):
    return torch.vmap(lambda row: row.cumsum(0), chunk_size=size)(x)


@case(lambda: [(t(3, 2),), (t(4, 2),)])
def vmap_nested(x):
    return torch.vmap(torch.vmap(lambda a: a * 2 + x.sum()))(x), torch.vmap(
        lambda r: r.shape[0] * r
    )(x)


@case(lambda: [(t(3),), (t(2),)])
def gradients_nested(x):
    second = torch.func.grad(torch.func.grad(lambda s: s**3))
    return torch.vmap(second)(x), torch.func.grad(
        lambda y: torch.func.grad(lambda z: (z**3).sum())(y)[0]
    )(x)


@case(lambda: [(t(3), 0), (t(3), 1), (t(3), (0, 1)), (t(3), 5)])
def gradient_by_arguments(x, argnums):
    return torch.func.grad(lambda a, b, k: (a * b).sum() * k, argnums=argnums)(x, x + 1, 2)


@case(lambda: [(t(3), 1), (t(3), "a")])
def gradient_with_aux(x, tag):
    def loss(y):
        return (y**2).sum(), {"y": y * 2, "tag": tag}

    return torch.func.grad(loss, has_aux=True)(x), torch.func.grad_and_value(loss, has_aux=True)(x)


@case(lambda: [(t(3),), (t(2, 2),)])
def gradient_of_no_scalar(x):
    return torch.func.grad(lambda y: y * 2)(x)


@case(lambda: [(t(3), 1), (t(3), 2)])
def transform_with_side_effects(x, n):
    seen = []

    def loss(y):
        seen.append(n)
        print("called")
        return (y * n).sum()

    return torch.func.grad(loss)(x), seen


@case(lambda: [(t(3),), (t(2),)])
def tensor_leaves_transform(x):
    kept = []

    def loss(y):
        kept.append(y * 2)
        return y.sum()

    return torch.func.grad(loss)(x), len(kept)


@case(lambda: [(t(3),), (t(2),)])
def exception_in_transform(x):
    def loss(y):
        if y.shape[0] == 3:
            raise KeyError("three")
        return y.sum()

    try:
        return torch.func.grad(loss)(x)
    except KeyError as error:
        return error.args, x


@case(lambda: [(t(3),), (t(2),)])
def break_in_transform(x):
    def loss(y):
        print("value", y.sum() > 0)
        return (y**2).sum()

    return torch.func.grad(loss)(x) + 1


@case(lambda: [(t(3), t(3)), (t(2), t(2))])
def pullback_used_twice(x, v):
    (out, also), pull = torch.func.vjp(lambda a: (a.sin(), a * 2), x)
    return out, also, pull((v, v)), torch.vmap(pull)((torch.eye(len(x)), torch.eye(len(x))))


@case(lambda: [(t(3), False), (t(3), True)])
def jvp_with_aux(x, aux):
    f = (lambda a: (a.sin(), a)) if aux else torch.sin
    return torch.func.jvp(f, (x,), (x + 1,), has_aux=aux)


@case(lambda: [(t(3), 0, None), (t(3), (0, 1), 2)])
def jacobians_with_options(x, argnums, chunk):
    f = lambda a, b: a * b.sum() + a**2  # noqa: E731
    first = torch.func.jacrev(f, argnums=argnums, chunk_size=chunk)(x, x + 1)
    return first, torch.func.jacfwd(f, argnums=argnums)(x, x + 1)


@case(lambda: [(t(3),), (t(2),)])
def functionalized(x):
    def f(y):
        z = y.clone()
        z.add_(1)
        return z.view(-1)

    return torch.func.functionalize(f)(x)


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def stacked_ensemble(x):
    torch.manual_seed(1)
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)

    def one(p, b, rows):
        return torch.func.functional_call(models[0], (p, b), (rows,))

    return torch.vmap(one, in_dims=(0, 0, None))(params, buffers, x)


def _scaled():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 4)
    return module


@scenario(lambda s: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def per_sample_gradients_of_module():
    module = _scaled()

    def program(x):
        params = {name: p.detach() for name, p in module.named_parameters()}

        def loss(p, row):
            return torch.func.functional_call(module, p, (row,)).square().sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)

    return program, module


def _checkpointed(result):
    result.sum().backward()
    return result


@scenario(lambda s: [(t(2, 3), True), (t(2, 3), False), (t(4, 3), True)], then=_checkpointed)
def checkpointed_module():
    from torch.utils.checkpoint import checkpoint

    module = _scaled()

    def program(x, reentrant):
        return checkpoint(module, x.requires_grad_(), use_reentrant=reentrant) * 2

    return program, module


@scenario(lambda s: [(t(2, 3),), (t(2, 3),)])
def checkpointed_with_dropout():
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(_scaled(), nn.Dropout(0.5))

    def program(x):
        torch.manual_seed(3)
        loss = checkpoint(module, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, list(module.parameters()))

    return program, module


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r[0].sum().backward())
def checkpoint_that_counts(x):
    from torch.utils.checkpoint import checkpoint

    calls = []

    def body(y):
        calls.append(len(calls))
        return y.sin() * 2

    return checkpoint(body, x, use_reentrant=False), calls


class Returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)
        return x, y, x * 2

    @staticmethod
    def backward(ctx, first, second, third):
        return third * 10, None


@case(lambda: [(t(3, grad=True), t(3)), (t(3), t(3)), (t(2, grad=True), t(2))])
def autograd_function_returns_arguments(x, y):
    a, b, c = Returned.apply(x, y)
    return a is x, b is y, a, b, c, a.requires_grad, b.requires_grad


class Doubled_(torch.autograd.Function):  # noqa: N801
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@case(lambda: [(t(3, grad=True),), (t(3),), (t(2, grad=True),)])
def autograd_function_marks_dirty(x):
    y = x + 0
    z = Doubled_.apply(y)
    return z is y, z, y


class Flags(torch.autograd.Function):
    seen = []

    @staticmethod
    def forward(ctx, x, y, n):
        Flags.seen.append(ctx.needs_input_grad)
        return x * y * n

    @staticmethod
    def backward(ctx, grad):
        return grad, grad, None


@case(lambda: [(t(2, grad=True), t(2)), (t(2), t(2)), (t(2), t(2, grad=True))])
def autograd_function_flags(x, y):
    with torch.no_grad():
        first = Flags.apply(x, y, 2)
    return first, Flags.apply(x, y, 3), Flags.seen


@case(lambda: [(t(3, grad=True), 2), (t(3, grad=True), 3)])
def gradient_of_own_function(x, n):
    y = Square.apply(x, n).sum()
    return torch.autograd.grad(y, x), torch.autograd.grad((x**n).sum(), [x], create_graph=True)


def _with_gradients():
    for held in (False, True, False):
        x = t(3, grad=True)
        if held:
            x.grad = torch.ones(3)
        yield (x,)


@case(_with_gradients)
def gradient_attribute_read(x):
    return x * 2 if x.grad is None else x.grad + 1


@case(_with_gradients)
def gradient_attribute_written(x):
    before = x.grad
    x.grad = torch.full((3,), 7.0)
    same = x.grad is before
    x.grad = x.grad * 2
    return same, x.grad


@case(_with_gradients)
def gradient_attribute_cleared(x):
    x.grad = None
    y = (x**2).sum()
    y.backward()
    return x.grad, y


@case(lambda: [(t(3, grad=True), 0), (t(3, grad=True), t(2)), (t(3, grad=True), t(3))])
def gradient_attribute_odd(x, value):
    x.grad = value
    return x.grad


@case(lambda: [(t(3, grad=True),), (t(3),), (t(2, grad=True),)])
def attributes_set_on_tensors(x):
    x.tag = 5
    y = x * 2
    y.note = "made"
    return y, x.tag, y.note, getattr(x, "gone", None), hasattr(y, "tag")


@case(lambda: [(t(3),), (t(2),)], then=lambda r: r[0].sum().backward())
def leaf_made_inside(x):
    leaf = x.detach().requires_grad_()
    return leaf * 2, leaf, leaf.is_leaf, leaf.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r.sum().backward())
def hook_on_intermediate(x):
    seen = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.shape) or grad * 3)
    return y.sin()


@scenario(lambda s: [(t(2, 3),), (t(2, 3),), (t(4, 3),)])
def training_step_by_hand():
    module = _scaled()

    def program(x):
        for p in module.parameters():
            p.grad = None
        loss = module(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
        return loss.detach()

    return program, module


@case(lambda: [(t(3),), (t(2),)])
def disabled_by_user(x):
    from conformance.ops import left_out

    return left_out(x) + 1


@case(lambda: [(t(3), 3), (t(2), 2), (t(2), 3)])
def torch_checks(x, n):
    torch._check(x.shape[0] == n, lambda: f"not {n}")
    torch._assert(x.dim() == 1, "one dimension")
    return x * n, torch.compiler.is_compiling(), torch.compiler.is_exporting()


class Units(torch.Tensor):
    """A tensor with a unit, which its own `__torch_function__` carries along."""

    @staticmethod
    def of(data, unit):
        made = data.as_subclass(Units)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = [a.unit for a in args if isinstance(a, Units) and hasattr(a, "unit")]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and units:
            result = Units.of(result.as_subclass(torch.Tensor), "*".join(units))
        return result

    def described(self):
        return f"{self.unit}: {tuple(self.shape)}"


def _units():
    return [(Units.of(t(3), "m"),), (Units.of(t(2), "m"),), (Units.of(t(3), "s"),)]


@case(lambda: [(t(3).as_subclass(Logged),), (t(2).as_subclass(Logged),), (t(3),)])
def operations_of_logged_tensors(x):
    Logged.calls.clear()
    y = torch.cat([x, x + 1]) ** 2
    z = nn.functional.relu(2 - y) + y[0] + nn.functional.mse_loss(x, x)
    return z, x.shape, x.dtype, y.max(0), list(Logged.calls), z.dim(), x.view(-1).T.device


@case(_units)
def tensors_with_units(x):
    y = x * x
    return y.unit, y.described(), y, (x + 1).unit, torch.sin(x).unit


@case(lambda: [(t(3).as_subclass(Logged), t(3)), (t(3), t(3).as_subclass(Logged)), (t(3), t(3))])
def plain_and_logged_mixed(x, y):
    return x + y, torch.add(y, x), type(x * y).__name__, x.add_(1) is x, x


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r.sum().backward())
def subclass_and_gradients(x):
    y = x.as_subclass(Tagged)
    return (y * 2).sin()


def _shared_tagged():
    x = t(3)
    return [(x.as_subclass(Tagged), x), (t(3).as_subclass(Tagged), t(3))]


@case(_shared_tagged)
def subclass_changed_in_place(x, base):
    x.mul_(3)
    x[0] = 7
    return base + 1, x.doubled, isinstance(x, Tagged), x.clone()


@case(
    lambda: [
        (t(3).as_subclass(Tagged),),
        (t(3).as_subclass(Logged),),
        (t(3),),
        (nn.Parameter(t(3)),),
    ]
)
def classes_of_tensors(x):
    return type(x).__name__, isinstance(x, Tagged), isinstance(x, nn.Parameter), x * 2, x.numel()


@case(lambda: [(t(3).as_subclass(Tagged),), (t(1).as_subclass(Tagged),)])
def subclass_with_breaks(x):
    y = x + 1
    print("sum", y.sum().item())
    if y.sum() > 1:
        y = y * 2
    return y, len(y), y.tolist(), [row for row in y]


class Patched(torch.Tensor):
    pass


def _handlers():
    yield (t(3).as_subclass(Patched),)
    Patched.__torch_function__ = classmethod(
        lambda cls, func, types, args=(), kwargs=None: "patched"
    )
    yield (t(3).as_subclass(Patched),)
    del Patched.__torch_function__
    yield (t(3).as_subclass(Patched),)


@case(_handlers)
def torch_function_patched_later(x):
    return x + 1


class Wrapped(torch.Tensor):
    """A wrapper subclass, which sees operations at the dispatcher."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return Wrapped(func(*plain, **(kwargs or {})))


@case(lambda: [(t(3),), (t(2),), (t(3),)], drive=lambda program, x: program(Wrapped(x)))
def wrapper_subclass(x):
    y = torch.sin(x * 2)
    return y.inner if isinstance(y, Wrapped) else y, type(y).__name__


@case(lambda: [(t(3),), (t(2),)])
def wrapper_subclass_made_inside(x):
    y = Wrapped(x) + 1
    return y.inner, type(y).__name__
