"""What `torch.compiler` offers to users' code; modules with parts and hooks of every kind."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward as _backward


def _plain(state=None):
    return [(t(2, 3),), (t(4, 3),), (t(2, 3, start=2),)]


# torch.compiler.


@torch.compiler.disable
def _left_out(x):
    return x * 3


@torch.compiler.disable(recursive=False)
def _left_out_alone(x):
    return _inner(x) * 3


def _inner(x):
    return x + 1


@torch.compiler.disable(reason="too slow")
def _left_out_for_a_reason(x):
    return x.sum().item()


@case(_plain)
def disabled_function(x):
    return _left_out(x + 1) * 2


@case(_plain)
def disabled_alone(x):
    return _left_out_alone(x + 1) * 2


@case(_plain)
def disabled_with_reason(x):
    return _left_out_for_a_reason(x) + 1, x * 2


@case(_plain)
def disabled_by_lambda(x):
    return torch.compiler.disable(lambda v: v * 5)(x) + 1


@scenario(_plain)
def disabled_method_of_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        @torch.compiler.disable
        def statistics(self, x):
            self.count += 1
            return x.mean().item()

        def forward(self, x):
            return x * self.statistics(x) + self.count

    made = Model()
    return made, made


@scenario(_plain)
def disabled_module():
    inner = torch.compiler.disable(nn.Linear(3, 3))
    torch.manual_seed(0)
    nn.init.uniform_(inner.weight), nn.init.zeros_(inner.bias)
    return lambda x: inner(x) * 2


@torch.compiler.allow_in_graph
def _allowed(x):
    return torch.sin(x) + 1


@case(_plain)
def allowed_in_graph(x):
    return _allowed(x) * 2


@torch.compiler.assume_constant_result
def _constant():
    return 3


@case(_plain)
def constant_result(x):
    return x * _constant()


@case(_plain)
def asks_if_compiling(x):
    found = torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()
    return x + 1 if found[0] else x - 1, found


@case(_plain)
def marks_that_do_nothing(x):
    torch.compiler.cudagraph_mark_step_begin()
    return x * 2


@case(_plain)
def graph_break_asked_for(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


# Modules with parts of their own.


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


@scenario(_plain, then=_backward)
def parametrized_twice():
    torch.manual_seed(0)
    made = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(made, "weight", Doubled())
    nn.utils.parametrize.register_parametrization(made, "weight", nn.Tanh())
    return made, made


@scenario(lambda state: [(t(2, 3), False), (t(2, 3), True), (t(2, 3), False)])
def parametrization_cached():
    torch.manual_seed(0)
    made = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(made, "weight", Doubled())

    def program(x, cached):
        if cached:
            with nn.utils.parametrize.cached():
                return made(x) + made(x)
        return made(x)

    return program, made


@scenario(_plain)
def parametrization_assigned():
    made = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(made, "weight", Doubled())

    def program(x):
        made.weight = torch.eye(3) * x.shape[0]
        return made(x).sum(1), nn.utils.parametrize.is_parametrized(made)

    return program, made


@scenario(_plain, then=_backward)
def spectral_norm_in_training():
    torch.manual_seed(0)
    made = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
    return made, made


@scenario(_plain)
def spectral_norm_in_eval():
    torch.manual_seed(0)
    made = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)).eval()
    return made, made


@scenario(_plain, then=_backward)
def old_spectral_norm():
    torch.manual_seed(0)
    made = nn.utils.spectral_norm(nn.Linear(3, 4))
    return made, made


@scenario(_plain, then=_backward)
def old_weight_norm():
    torch.manual_seed(0)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = nn.utils.weight_norm(nn.Linear(3, 4))
    return made, made


@scenario(_plain, then=_backward)
def weight_norm():
    torch.manual_seed(0)
    made = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4), dim=0)
    return made, made


@scenario(_plain)
def orthogonal():
    torch.manual_seed(0)
    made = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    return made, made


@scenario(_plain)
def weight_norm_removed_between():
    torch.manual_seed(0)
    made = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))

    def program(x):
        y = made(x)
        if x.shape[0] == 4 and nn.utils.parametrize.is_parametrized(made):
            nn.utils.parametrize.remove_parametrizations(made, "weight")
        return y

    return program, made


@scenario(_plain)
def lazy_layers():
    torch.manual_seed(0)
    made = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2), nn.LazyBatchNorm1d())
    return made, made


@scenario(_plain)
def parameter_containers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.many = nn.ParameterList([nn.Parameter(t(3) * n) for n in (1, 2)])
            self.named = nn.ParameterDict({"a": nn.Parameter(t(3)), "b": t(3)})

        def forward(self, x):
            for value in self.many:
                x = x + value
            for name, value in self.named.items():
                x = x * value + len(name)
            return x, len(self.many), list(self.named), self.many[-1], "a" in self.named

    made = Model()
    return made, made


@scenario(_plain)
def parameter_containers_change():
    made = nn.ParameterList([nn.Parameter(t(3))])

    def program(x):
        made.append(nn.Parameter(torch.ones(3) * len(made)))
        return sum(p.sum() for p in made) + x, len(made)

    return program, made


@scenario(_plain)
def vectors_of_parameters():
    torch.manual_seed(0)
    made = nn.Linear(3, 2)

    def program(x):
        flat = nn.utils.parameters_to_vector(made.parameters())
        nn.utils.vector_to_parameters(flat * 2, made.parameters())
        return flat, made(x)

    return program, made


@scenario(_plain)
def stateless_call():
    torch.manual_seed(0)
    made = nn.Linear(3, 2)

    def program(x):
        given = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
        return torch.func.functional_call(made, given, (x,)), made(x)

    return program, made


@scenario(_plain)
def modules_skipped_at_init():
    def program(x):
        made = nn.utils.skip_init(nn.Linear, 3, 2)
        return made.weight.shape, x + 1

    return program


@case(lambda: [([t(2, 3), t(1, 3)],), ([t(1, 3), t(4, 3), t(2, 3)],)])
def padded_sequences(parts):
    padded = nn.utils.rnn.pad_sequence(parts, batch_first=True)
    return padded, nn.utils.rnn.unpad_sequence(padded, torch.tensor([len(p) for p in parts]), True)


@scenario(_plain)
def hooks_of_all_kinds():
    torch.manual_seed(0)
    made, seen = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), []
    made.register_forward_pre_hook(lambda m, a: seen.append("pre"))
    made.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True, prepend=True)
    made[0].register_forward_hook(lambda m, a, k, r: r + 1, with_kwargs=True)
    made[1].register_forward_hook(lambda m, a, r: seen.append("always"), always_call=True)
    made.register_state_dict_pre_hook(lambda *a: seen.append("state"))
    return made, (made, seen)


@scenario(_plain)
def always_called_although_it_fails():
    seen = []

    class Failing(nn.Module):
        def forward(self, x):
            if x.shape[0] == 4:
                raise ValueError("four rows")
            return x

    made = Failing()
    made.register_forward_hook(lambda m, a, r: seen.append(r is None), always_call=True)

    def program(x):
        try:
            return made(x)
        except ValueError as error:
            return str(error), list(seen)

    return program, seen


def _global_hooks(state):
    module = nn.modules.module
    handle = module.register_module_forward_pre_hook(lambda m, a: (a[0] + 1,))
    yield (t(2, 3),)
    other = module.register_module_forward_hook(lambda m, a, r: r * 2)
    yield (t(2, 3),)
    handle.remove()
    yield (t(2, 3),)
    other.remove()
    yield (t(2, 3),)


@scenario(_global_hooks)
def global_hooks_come_and_go():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    return made, made


@scenario(lambda state: [(t(2, 3, grad=True),), (t(4, 3, grad=True),)], then=_backward)
def global_backward_hook():
    torch.manual_seed(0)
    made, seen = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), []

    def program(x):
        handle = nn.modules.module.register_module_full_backward_hook(
            lambda m, gi, go: seen.append(type(m).__name__)
        )
        try:
            return made(x)
        finally:
            handle.remove()

    return program, (made, seen)


@scenario(_plain)
def registration_hooks():
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            self.kept = nn.Linear(3, 3)
            return x * 2

    made = Model()

    def program(x):
        handle = nn.modules.module.register_module_module_registration_hook(
            lambda m, name, sub: seen.append(name)
        )
        torch.manual_seed(0)
        y = made(x)
        handle.remove()
        return y

    return program, seen


@case(lambda: [(t(3),), (t(2),)])
def disabled_by_user(x):
    from conformance.ops import left_out

    return left_out(x) + 1


@case(lambda: [(t(3), 3), (t(2), 2), (t(2), 3)])
def torch_checks(x, n):
    torch._check(x.shape[0] == n, lambda: f"not {n}")
    torch._assert(x.dim() == 1, "one dimension")
    return x * n, torch.compiler.is_compiling(), torch.compiler.is_exporting()
