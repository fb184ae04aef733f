"""Operators of `torch.library`: with and without fake kernels, gradients, changed arguments."""

from __future__ import annotations

import torch

from conformance.declare import case, t


def _plain():
    return [(t(3),), (t(2),), (t(3, start=2),)]


def _grads():
    return [(t(3, grad=True),), (t(2, grad=True),), (t(3),)]


def _backward(result):
    if result.requires_grad:
        result.sum().backward()


def _once(name):
    """Operators are registered once in a process; a file of cases is executed several times."""
    return not hasattr(torch.ops.conformance_ops, name)


if _once("scale"):

    @torch.library.custom_op("conformance_ops::scale", mutates_args=())
    def _scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * factor) if x.dim() > 9 else x * factor

    @_scale.register_fake
    def _(x, factor):
        return torch.empty_like(x)

    def _setup(ctx, inputs, output):
        ctx.factor = inputs[1]

    _scale.register_autograd(lambda ctx, grad: (grad * ctx.factor, None), setup_context=_setup)

    @torch.library.custom_op("conformance_ops::opaque", mutates_args=())
    def _opaque(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.tolist()).flip(0)

    @torch.library.custom_op("conformance_ops::add_in_place", mutates_args={"x"})
    def _add_in_place(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    @torch.library.custom_op("conformance_ops::fill", mutates_args={"out"})
    def _fill(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x * 2)
        return x.sum()

    @_fill.register_fake
    def _(x, out):
        return x.new_empty(())

    @torch.library.custom_op("conformance_ops::pair", mutates_args=())
    def _pair(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x + n, x.sum().reshape(1)

    @_pair.register_fake
    def _(x, n):
        return torch.empty_like(x), x.new_empty(1)

    @torch.library.custom_op("conformance_ops::listed", mutates_args=())
    def _listed(xs: list[torch.Tensor], text: str = "a") -> list[torch.Tensor]:
        return [x * len(text) for x in xs]

    @_listed.register_fake
    def _(xs, text="a"):
        return [torch.empty_like(x) for x in xs]

    @torch.library.custom_op("conformance_ops::positive", mutates_args=())
    def _positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].clone()

    @_positive.register_fake
    def _(x):
        size = torch.library.get_ctx().new_dynamic_size()
        return x.new_empty(size)

    @torch.library.custom_op("conformance_ops::number", mutates_args=())
    def _number(x: torch.Tensor) -> int:
        return int(x.sum())

    library = torch.library.Library("conformance_ops", "FRAGMENT")
    library.define("composite(Tensor x, int n=2) -> Tensor")
    library.define("split_kernel(Tensor x) -> Tensor")
    library.define("no_fake(Tensor x) -> Tensor")
    library.define("bump_(Tensor(a!) x) -> Tensor(a!)")

    @torch.library.impl(library, "composite", "CompositeImplicitAutograd")
    def _composite(x, n=2):
        return (x * n).sin()

    @torch.library.impl(library, "split_kernel", "CPU")
    def _split(x):
        return x.clone() * 3

    @torch.library.register_fake("conformance_ops::split_kernel")
    def _(x):
        return torch.empty_like(x)

    @torch.library.impl(library, "no_fake", "CPU")
    def _no_fake(x):
        return x + 7

    @torch.library.impl(library, "bump_", "CompositeExplicitAutograd")
    def _bump(x):
        return x.add_(1)

    torch.ops.conformance_ops.kept = library, _scale

_scale = torch.ops.conformance_ops.kept[1]


@case(_grads, then=_backward)
def with_fake_and_gradient(x):
    return torch.ops.conformance_ops.scale(x * 2, 3.0) + 1


@case(lambda: [(t(3), 2.0), (t(3), 3.0), (t(2), 2.0)])
def factor_changes(x, factor):
    return torch.ops.conformance_ops.scale(x, factor), torch.ops.conformance_ops.scale(x, factor=2)


@case(_plain)
def overload_by_name(x):
    return torch.ops.conformance_ops.scale.default(x, 2.0) * 2


@case(_plain)
def function_itself(x):
    return _scale(x, 2.0) * 2


@case(_plain)
def without_fake(x):
    y = x * 2
    z = torch.ops.conformance_ops.opaque(y)
    return z + y


@case(_plain)
def without_fake_in_called_function(x):
    def inner(v):
        return torch.ops.conformance_ops.opaque(v + 1) * 2

    return [inner(x * n) for n in range(2)]


@case(_plain)
def mutates(x):
    y = x * 2
    torch.ops.conformance_ops.add_in_place(y, x)
    return y + 1, y


@case(_plain)
def mutates_argument(x):
    torch.ops.conformance_ops.add_in_place(x, x + 1)
    return x * 2


@case(_plain)
def mutates_keyword(x):
    out = torch.empty_like(x)
    total = torch.ops.conformance_ops.fill(x, out=out)
    return total, out + 1, out


@case(_plain)
def pair_of_results(x):
    a, b = torch.ops.conformance_ops.pair(x, 2)
    return a * b, b


@case(_plain)
def list_of_tensors(x):
    made = torch.ops.conformance_ops.listed([x, x + 1], text="abc")
    return made, len(made), torch.ops.conformance_ops.listed([x])


@case(lambda: [(t(3),), (t(6, start=0.5),), (t(3, start=2),)])
def size_by_data(x):
    y = torch.ops.conformance_ops.positive(x)
    return y * 2, y.sum()


@case(_plain)
def returns_number(x):
    return torch.ops.conformance_ops.number(x) + 1, x * 2


@case(_grads, then=_backward)
def composite(x):
    return torch.ops.conformance_ops.composite(x) + torch.ops.conformance_ops.composite(x, n=3)


@case(_plain)
def kernel_of_one_device(x):
    return torch.ops.conformance_ops.split_kernel(x) + 1


@case(_plain)
def kernel_without_fake(x):
    return torch.ops.conformance_ops.no_fake(x * 2) + 1


@case(_plain)
def in_place_by_schema(x):
    y = x * 2
    z = torch.ops.conformance_ops.bump_(y)
    return z is y, y, z + 1


@case(_plain)
def aten_operators(x):
    aten = torch.ops.aten
    return aten.add.Tensor(x, x, alpha=2), aten.relu(x), aten.sum.dim_IntList(x, [0])


@case(_plain)
def aten_in_place(x):
    y = x + 1
    torch.ops.aten.add_.Tensor(y, x)
    torch.ops.aten.copy_(y, x)
    return y


@case(lambda: [(t(3), "scale"), (t(3), "split_kernel"), (t(3), "scale")])
def looked_up_by_name(x, name):
    operator = getattr(torch.ops.conformance_ops, name)
    return operator(x, 2.0) if name == "scale" else operator(x)


@case(_plain)
def missing_operator(x):
    try:
        return torch.ops.conformance_ops.not_there(x)
    except AttributeError as error:
        return type(error).__name__, x + 1


@case(_plain)
def schema_read(x):
    schema = torch.ops.conformance_ops.scale.default._schema
    return str(schema), schema.is_mutable, x * 2


@case(_plain)
def wrong_arguments(x):
    try:
        return torch.ops.conformance_ops.scale(x, "no")
    except RuntimeError as error:
        return type(error).__name__, x + 1


@case(_plain)
def custom_op_made_inside(x):
    @torch.library.custom_op("conformance_ops::inner", mutates_args=())
    def inner(v: torch.Tensor) -> torch.Tensor:
        return v * 2

    return inner(x) + 1


@case(_grads, then=_backward)
def under_no_grad(x):
    with torch.no_grad():
        y = torch.ops.conformance_ops.scale(x, 2.0)
    return torch.ops.conformance_ops.scale(x, 2.0) + y * int(not y.requires_grad)


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
