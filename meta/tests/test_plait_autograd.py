"""What autograd lets a caller see and do around a compiled program, against eager."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from training_oracle import assert_as_eager, leaf

import plait

CASES = {}


def case(program):
    def register(code):
        CASES[code.__name__] = program, code
        return code

    return register


def ones():
    return torch.ones(3)


@case(lambda x: (x + 1, x * 3))
def two_backwards_through_what_saves_nothing(run):
    x = leaf(3)
    y, z = run(x)
    y.backward(ones())
    y.backward(ones())
    z.backward(ones())
    return x.grad


@case(lambda x: (x.sin(), x.exp()))
def two_backwards_through_different_results(run):
    x = leaf(3)
    y, z = run(x)
    y.backward(ones())
    first = x.grad.clone()
    z.backward(ones())
    return first, x.grad


@case(lambda x, w: (x.sin() + w.cos(), w * 2))
def two_backwards_to_different_inputs(run):
    x, w = leaf(3), leaf(3)
    y, _ = run(x, w)
    return torch.autograd.grad(y.sum(), x), torch.autograd.grad(y, w, ones())


@case(lambda x, w: (x.sin(), w.cos(), x * w))
def inputs_that_no_given_gradient_reaches_get_none(run):
    x, w = leaf(3), leaf(3)
    y, z, _ = run(x, w)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone(), w.grad
    z.sum().backward()
    return first, x.grad, w.grad


@case(lambda x: (x * 2, x.sqrt(), 1 / x))
def infinite_derivatives_of_what_gets_no_gradient(run):
    x = torch.zeros(3, requires_grad=True)
    run(x)[0].sum().backward()
    return x.grad


@case(lambda x, w: ((x @ w).softmax(-1), (x @ w).t(), (x @ w).sum()))
def gradients_for_each_choice_of_the_results(run):
    x, w = leaf(3, 4), leaf(4, 3)
    found = []
    for chosen in ([0], [1], [2], [0, 2], [1, 2], [0, 1, 2]):
        results = run(x, w)
        loss = sum((results[n] * (n + 2)).sin().sum() for n in chosen)
        found.append(torch.autograd.grad(loss, (x, w)))
    return found


@case(lambda x, w: (x.sin(), w))
def part_of_the_inputs(run):
    x, w = leaf(3), leaf(3)
    y, _ = run(x, w)
    return torch.autograd.grad(y.sum(), (x, w), allow_unused=True)


@case(lambda x, w: (x * w).sin())
def backward_with_inputs(run):
    x, w = leaf(3), leaf(3)
    run(x, w).sum().backward(inputs=[w])
    return x.grad, w.grad


@case(lambda x: x.exp())
def retained_graphs(run):
    x = leaf(3)
    y = run(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@case(lambda x: x.sin().cos())
def hooks_of_inputs_and_outputs(run):
    seen = []
    x = leaf(3)
    x.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    h = x * 1
    h.register_hook(lambda grad: seen.append(grad.clone()) or grad * 3)
    h.retain_grad()
    y = run(h)
    y.retain_grad()
    y.register_hook(lambda grad: grad * 5)
    y.sum().backward()
    return x.grad, h.grad, y.grad, seen


@case(lambda x, w: (x * w).sum())
def post_accumulate_hooks_that_step_and_free(run):
    x, w = leaf(3), leaf(3)

    def step(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad)
        parameter.grad = None

    for each in (x, w):
        each.register_post_accumulate_grad_hook(step)
    run(x, w).backward()
    run(x, w).backward()
    return x, w, x.grad, w.grad


@case(lambda x: x * x)
def hooks_of_several_gradients_and_of_nodes(run):
    seen = []
    x, z = leaf(3), leaf(3)
    torch.autograd.graph.register_multi_grad_hook([x, z], lambda grads: seen.append(list(grads)))
    y = run(x)
    y.grad_fn.register_prehook(lambda grads: seen.append(len(grads)))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(len(outputs)))
    (y + z).sum().backward()
    return seen


@case(lambda x, w: (x * w).exp().sum())
def saved_tensors_hooks(run):
    x, w = leaf(3), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        y = run(x, w)
    y.backward()
    with torch.autograd.graph.save_on_cpu():
        y = run(x, w)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    grad.sum().backward()
    return x.grad, w.grad


@case(lambda x, w: (x * w).exp().sum())
def saved_tensors_that_may_change(run):
    x, w = leaf(3), leaf(3)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = run(x, w)
        with torch.no_grad():
            w.add_(1)
        y.backward()
    return x.grad, w.grad


@case(lambda x, w: F.linear(x, w).relu().sum())
def autocast_around_the_call(run):
    x, w = leaf(3, 4), leaf(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(x, w)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    grad.float().square().sum().backward()
    return y, x.grad, w.grad


def autocast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = F.linear(x, w)
    return h.float().sum()


@case(autocast_inside)
def autocast_in_the_program(run):
    x, w = leaf(3, 4), leaf(5, 4)
    y = run(x, w)
    y.backward()
    return y, x.grad, w.grad


@case(lambda x, w: F.linear(x, w).relu().sum())
def scaled_gradients_skip_steps_that_overflow(run):
    x, w = torch.randn(3, 4), leaf(5, 4)
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(x * (float("inf") if step == 2 else 1), w)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return w, scales


@case(lambda x: x.sin() * x)
def several_gradients_at_once(run):
    x = leaf(3)
    y = run(x)
    return torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


@case(lambda x: x.sin() * x)
def gradients_of_any_order(run):
    x = leaf(3, dtype=torch.float64)
    checked = torch.autograd.gradcheck(run, x), torch.autograd.gradgradcheck(run, x)
    third = run(x).sum()
    for _ in range(3):
        (third,) = torch.autograd.grad(third.sum(), x, create_graph=True)
    return checked, third


@case(lambda x: x.sin() * x)
def derivatives_in_forward_mode(run):
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(run(forward_ad.make_dual(ones(), ones() * 2)))
    return found.primal, found.tangent


@case(lambda x: x.sin() * x)
def transforms_around_the_call(run):
    x = torch.randn(2, 3)
    gradient = torch.func.grad(lambda x: run(x).sum())(x)
    return gradient, torch.func.vmap(run)(x), torch.autograd.functional.jacobian(run, x[0])


@case(lambda x, w: F.dropout(x * w, 0.5).exp().sum())
def checkpoints_around_the_call(run):
    x, w = leaf(30), leaf(30)
    checkpoint(run, x, w, use_reentrant=True).backward()
    first = x.grad.clone()
    checkpoint(run, x, w, use_reentrant=False).backward()
    return first, x.grad, w.grad


@case(lambda x, w: (x * w).sum())
def gradients_off_and_inference_tensors(run):
    x, w = leaf(3), leaf(3)
    with torch.no_grad():
        without = run(x, w)
    with torch.inference_mode():
        fixed = torch.ones(3)
    run(fixed, w).backward()
    return without.requires_grad, w.grad


@case(lambda x: (x.sin(), x.detach() * 2, x + 3))
def frees_what_a_backward_has_used(run):
    h = leaf(100) * 1
    kept = weakref.ref(h)
    y, z, _ = run(h)
    del h
    gc.collect()
    before = kept() is None
    y.sum().backward()
    gc.collect()
    return before, kept() is None, z.requires_grad


@case(lambda x, w: (x * w).exp())
def frees_inputs_when_results_go(run):
    h, w = leaf(100) * 1, leaf(100)
    kept = weakref.ref(h)
    y = run(h, w)
    del h
    gc.collect()
    first = kept() is None
    del y
    gc.collect()
    return first, kept() is None


@case(lambda x: x + 1)
def keeps_no_input_that_no_gradient_reads(run):
    h = leaf(100) * 1
    kept = weakref.ref(h)
    y = run(h)
    del h
    gc.collect()
    return kept() is None, torch.autograd.grad(y.sum(), y, create_graph=True)


@pytest.mark.parametrize("name", CASES)
def test_autograd_is_that_of_eager(name):
    assert_as_eager(*CASES[name])


def test_a_backward_is_compiled_for_the_gradients_that_are_given():
    weight = torch.randn(4, 4, requires_grad=True)

    def program(x):
        h = torch.tanh(x @ weight)
        return h.square().sum(), h, h.exp()

    fast = plait.compile(program, options={"strict": True}, backend="python")
    x = torch.randn(2, 4)
    with torch.no_grad():
        fast(x)
    loss, *_ = fast(x)
    assert not [graph.name for graph in plait.report(fast).graphs if "backward" in graph.name]
    for _ in range(2):
        fast(x)[0].backward()
    loss, h, _ = fast(x)
    (loss + h.sum()).backward()
    names = [graph.name for graph in plait.report(fast).graphs]
    assert [name.split("-", 1)[1] for name in names] == ["0", "1", "1.backward", "1.backward-2"]
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def test_a_backward_that_no_stage_takes_runs_by_atens_kernels(monkeypatch, caplog):
    import plait_ir_lowering

    lower = plait_ir_lowering.lower

    def refuse(graph, *, name, **options):
        if "backward" in name:
            raise plait_ir_lowering.LoweringError("not this one")
        return lower(graph, name=name, **options)

    monkeypatch.setattr(plait_ir_lowering, "lower", refuse)
    x = torch.randn(4, requires_grad=True)
    fast = plait.compile(lambda x: torch.sin(x) * 2)
    fast(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    reasons = [graph.reason for graph in plait.report(fast).graphs]
    assert reasons == [None, "the stage 'lower' does not support this graph yet: not this one"]
    strict = plait.compile(lambda x: torch.sin(x) * 2, options={"strict": True})
    with pytest.raises(plait.StageError, match="not this one"):
        strict(x).sum().backward()


@pytest.mark.parametrize(
    "view", [lambda x: x.view_as(x), lambda x: x[1:], lambda x: x.t()], ids=["whole", "part", "t"]
)
@pytest.mark.parametrize(
    "alias", [lambda x: x[:1].expand(3, 4), lambda x: x[:, :1].expand(3, 4), lambda x: x.t()]
)
def test_hooks_on_what_a_view_looks_at_see_what_comes_through_it(view, alias):
    def outcome_of(run):
        leaf = torch.ones(3, 4, requires_grad=True)
        x = alias(leaf)
        seen, came = run(x), []
        seen.register_hook(lambda given: came.append(given.clone()) or given * 2)
        x.register_hook(lambda given: came.append(given.clone()) or given * 3)
        weights = torch.arange(12.0)[: seen.numel()].view(seen.shape)
        loss = (seen * weights).sum() + (x * 2).sum()
        return came, torch.autograd.grad(loss, leaf)

    for one, other in zip(outcome_of(plait.compile(view)), outcome_of(view), strict=True):
        torch.testing.assert_close(one, other)


def transposed(x):
    whole = (x * 2).t()
    return whole, whole[1:]


def views_of_views(x):
    rows = (x * 2).view(4, 3)
    part = rows[1:]
    return part[:, 0], rows, part


def views_of_the_input(x):
    whole = x.t()
    return whole[1:], whole


def transposed_in_place(x):
    made = x * 2
    made.t_()
    return made, made[1:]


def parts_of_several(x):
    first, second = (x * 2).split(2, dim=1)
    return first, first[1:], second


@pytest.mark.parametrize(
    "program",
    [transposed, views_of_views, views_of_the_input, transposed_in_place, parts_of_several],
)
def test_an_output_that_is_a_view_lies_on_the_way_to_views_of_it(program):
    def outcome_of(run):
        torch.manual_seed(0)
        x = (leaf(3, 4) * 1).requires_grad_()
        outputs = run(x)
        came = []
        for output in outputs:
            output.register_hook(lambda given: came.append(given.clone()) or given * 2)
        loss = sum((n + 1) * (each * each).sum() for n, each in enumerate(outputs))
        asked = torch.autograd.grad(loss, [*outputs, x], allow_unused=True)
        return sorted(came, key=torch.Tensor.sum), asked

    for one, other in zip(outcome_of(plait.compile(program)), outcome_of(program), strict=True):
        torch.testing.assert_close(one, other)
