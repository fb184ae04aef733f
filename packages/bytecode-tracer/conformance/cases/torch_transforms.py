"""`torch.func`: gradients, Jacobians, `vmap`, functional calls; nested and around side effects."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


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
