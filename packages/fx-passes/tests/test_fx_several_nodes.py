"""Results that come from different inputs: backwards come to these inputs alone, as in eager."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from fx_oracle import trace
from test_fx_training import compiled, leaf, parts_of, plain

from plait_fx_passes import wrap_training


def heads(x, trunk, actor, critic):
    h = torch.tanh(x @ trunk)
    return (h @ actor).exp().sum(), (h @ critic).square().sum(), h.sin()


def head_inputs():
    return [plain(2, 3), leaf(3, 4), leaf(4, 2), leaf(4, 5)]


def apart(x, y):
    return x.sin() * x, y.exp() + 1


def both(program, make):
    """The program and its compiled form, each with inputs of its own."""
    found = []
    for run in (program, compiled(program, make())):
        torch.manual_seed(0)
        found.append((run, make()))
    return found


def test_each_node_leads_to_what_its_results_come_from():
    _, parts = parts_of(trace(heads), head_inputs())
    assert len(parts.forward.results) > 3
    run = compiled(heads, head_inputs())
    inputs = head_inputs()
    one, other, hidden = run(*inputs)
    assert len({one.grad_fn, other.grad_fn, hidden.grad_fn}) == 3
    counts = [len(each.grad_fn.next_functions) for each in (one, other, hidden)]
    assert counts == [2, 2, 1]


def test_results_from_the_same_inputs_share_a_node():
    def program(x, w):
        logits = x @ w
        return logits.softmax(-1), logits.square().sum()

    first, second = compiled(program, [plain(2, 3), leaf(3, 4)])(plain(2, 3), leaf(3, 4))
    assert first.grad_fn is second.grad_fn


@pytest.mark.parametrize("chosen", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("create_graph", [False, True])
def test_one_backward_from_several_results(chosen, create_graph):
    found = []
    for run, inputs in both(heads, head_inputs):
        outputs = run(*inputs)
        torch.autograd.backward(
            sum(outputs[n].square().sum() for n in chosen), create_graph=create_graph
        )
        grads = [each.grad for each in inputs]
        if create_graph:
            given = [each for each in grads if each is not None]
            grads += torch.autograd.grad(
                sum(each.square().sum() for each in given),
                [each for each in inputs if each.grad is not None],
                allow_unused=True,
            )
        found.append(grads)
        for each in inputs:
            each.grad = None
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0], [0, 0], [2, 2], [1, 2]])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.sampled(3)
def test_backwards_one_by_one_free_what_eager_frees(order, retain):
    found = []
    for run, inputs in both(heads, head_inputs):
        outputs = run(*inputs)
        seen = []
        for n in order:
            try:
                outputs[n].sum().backward(retain_graph=retain)
            except RuntimeError as error:
                seen.append(str(error)[:40])
                break  # what it came to before it raised, nodes decide
            seen.append([None if each.grad is None else each.grad.clone() for each in inputs])
        found.append(seen)
    for theirs, mine in zip(*found, strict=True):
        if isinstance(mine, str) or isinstance(theirs, str):
            assert mine == theirs
            continue
        assert [g is None for g in mine] == [g is None for g in theirs]
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_hooks_of_inputs_that_no_gradient_reaches_are_not_called(chosen):
    for run, inputs in both(heads, head_inputs):
        called = []
        for n, each in enumerate(inputs[1:]):
            each.register_hook(lambda grad, n=n: called.append((n, grad.shape)))
            each.register_post_accumulate_grad_hook(lambda _, n=n: called.append(n))
        outputs = run(*inputs)
        sum(outputs[n] for n in chosen).backward()
        seen = {each for each in called if isinstance(each, int)}
        assert seen == {0, *(n + 1 for n in chosen)}
        assert len(called) == 2 * len(seen), called


def test_what_other_inputs_come_from_is_neither_run_nor_freed():
    for run, (x, y) in both(apart, lambda: [leaf(3), leaf(3)]):
        ran = []
        history = (y * y).exp()
        history.grad_fn.register_hook(lambda *_, ran=ran: ran.append(1))
        one, other = run(x, history)
        one.sum().backward()
        assert not ran
        assert y.grad is None
        other.sum().backward()
        assert ran == [1]
        with pytest.raises(RuntimeError, match="a second time"):
            one.sum().backward()


def test_a_result_asked_for_as_an_input():
    found = []
    for run, inputs in both(heads, head_inputs):
        one, other, hidden = run(*inputs)
        loss = one + other + hidden.sum()
        wanted = [other, hidden, inputs[2]]
        found.append(torch.autograd.grad(loss, wanted, retain_graph=True))
        found[-1] += torch.autograd.grad(loss, [one, inputs[1]])
    torch.testing.assert_close(found[1], found[0])


def test_what_is_shared_is_saved_once():
    packed = []
    run = compiled(heads, head_inputs())
    inputs = head_inputs()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: packed.append(each.data_ptr()) or each.clone(), lambda each: each
    ):
        one, other, _ = run(*inputs)
    assert len(packed) == len(set(packed))
    found = torch.autograd.grad(one + other, inputs[1:])
    wanted = torch.autograd.grad(sum(heads(*inputs)[:2]), inputs[1:])
    torch.testing.assert_close(found, wanted)


def test_saved_tensors_go_with_the_results():
    class Memory:
        def __init__(self, tensor):
            self.tensor = tensor

    held = weakref.WeakSet()

    def pack(tensor):
        made = Memory(tensor.clone())
        held.add(made)
        return made

    run = compiled(heads, head_inputs())
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each.tensor):
            outputs = run(*head_inputs())
        assert held
        del outputs
        assert not held
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each.tensor):
            outputs = run(*head_inputs())
        sum(each.sum() for each in outputs).backward()
        assert not held
    finally:
        gc.enable()


def test_an_input_changed_since_matters_to_the_results_that_come_from_it():
    for run, (x, y) in both(apart, lambda: [leaf(3), leaf(3)]):
        one, other = run(x, y)
        with torch.no_grad():
            x.mul_(2)
        other.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            one.sum().backward()


def test_inputs_written_to_and_gradients_of_gradients():
    def program(x, y, w):
        x.mul_(w)
        return (x * y).sin(), y.exp() * y

    found = []
    for run, leaves in both(program, lambda: [leaf(3), leaf(3), leaf(3)]):
        x, y, w = leaves
        given = x * 1.5
        one, other = run(given, y, w)
        loss = one.sum() + other.sum() + given.square().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))
    torch.testing.assert_close(found[1], found[0])


def test_nothing_is_recorded_where_gradients_are_off():
    run = compiled(heads, head_inputs())
    inputs = head_inputs()
    with torch.no_grad():
        assert not any(each.requires_grad for each in run(*inputs))
    outputs = run(*inputs)
    with torch.inference_mode():
        assert not any(each.requires_grad for each in run(*inputs))
    outputs[0].backward()


def test_an_error_on_the_way_leaves_the_call_as_it_is():
    gm = trace(heads)
    joint, parts = parts_of(gm, head_inputs())
    run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    inputs = head_inputs()
    one, other, _ = run(*inputs)
    handle = inputs[2].register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (one + other).backward(retain_graph=True)
    handle.remove()
    inputs[1].grad = inputs[2].grad = inputs[3].grad = None
    (one + other).backward()
    wanted = torch.autograd.grad(sum(heads(*inputs)[:2]), inputs[1:])
    torch.testing.assert_close([each.grad for each in inputs[1:]], list(wanted))


@pytest.mark.parametrize("program", [apart, lambda x, y: (x * y, y.tanh())])
def test_a_saved_input_that_is_detached_in_place_is_refused(program):
    for run, (x, y) in both(program, lambda: [leaf(3), leaf(3)]):
        history = x * 1.5
        one, other = run(history, y)
        history.detach_()
        other.sum().backward()
        with pytest.raises(RuntimeError, match="detached in-place"):
            one.sum().backward()


def test_a_leaf_that_needs_no_more_gradients_is_not():
    found = []
    for run, (x, y) in both(lambda x, y: (x * y).sin(), lambda: [leaf(3), leaf(3)]):
        out = run(x, y)
        y.requires_grad_(False)
        out.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_only_parts_that_run_are_compiled():
    gm, compiled_results = trace(heads), []
    joint, parts = parts_of(gm, head_inputs())

    def compile_part(graph):
        compiled_results.append(len(graph.results))
        return graph.module()

    run = wrap_training(joint, parts, parts.forward.module(), None, gm, compile_part=compile_part)
    inputs = head_inputs()
    expected = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
    for _ in range(2):
        sum(each.sum() for each in run(*inputs)).backward()
        sum(each.sum() for each in heads(*expected)).backward()
    torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in expected])
    assert sum(compiled_results) == 3  # each gradient is computed by one part
