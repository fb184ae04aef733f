"""Backwards that compute in the memory of what was saved for them, and when they must not."""

import threading

import pytest
import torch
import torch.nn.functional as F

import plait

ROWS, CLASSES = 64, 8192  # of logits of two megabytes


def loss(x, w, target):
    return F.cross_entropy(x @ w, target)


def made():
    torch.manual_seed(0)
    x = torch.randn(ROWS, 16, requires_grad=True)
    w = torch.randn(16, CLASSES, requires_grad=True)
    return x, w, torch.randint(0, CLASSES, (ROWS,))


def gradients(of, leaves, **options):
    return torch.autograd.grad(of, leaves, **options)


def assert_close(found, wanted):
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module", params=[False, True], ids=["one size", "open sizes"])
def run(request):
    compiled = plait.compile(loss, dynamic=request.param)
    x, w, target = made()
    gradients(compiled(x, w, target), [x, w])
    backward = plait.report(compiled).graphs[-1]
    assert backward.record.schedule.program.overwritten, "the gradient of the logits"
    return compiled


def large(result):
    return next(t for t in result.grad_fn.saved_tensors if t.shape == (ROWS, CLASSES))


def copied(held):
    """What a tensor, an array or a storage holds, in memory of its own."""
    if isinstance(held, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(held).clone()
    return torch.as_tensor(held).clone()


def test_a_program_for_all_sizes_computes_there_too():
    compiled = plait.compile(loss, dynamic=True)
    for rows in (64, 100, 33):
        torch.manual_seed(rows)
        _, w, _ = made()
        more = torch.randn(rows, 16, requires_grad=True)
        target = torch.randint(0, CLASSES, (rows,))
        wanted = gradients(loss(more, w, target), [more, w])
        assert_close(gradients(compiled(more, w, target), [more, w]), wanted)
    _, backward = plait.report(compiled).graphs
    assert backward.record.schedule.program.overwritten


def test_gradients_are_computed_in_what_nobody_else_holds(run):
    x, w, target = made()
    result = run(x, w, target)
    address = large(result).data_ptr()
    wanted = gradients(loss(x, w, target), [x, w])
    with torch.profiler.profile(profile_memory=True) as profile:
        found = gradients(result, [x, w])
    assert_close(found, wanted)
    biggest = max(event.cpu_memory_usage for event in profile.events())
    assert biggest < ROWS * CLASSES * 4
    assert all(each.data_ptr() != address for each in found)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(result, [x, w])


def test_a_graph_that_is_kept_gives_the_same_again(run):
    x, w, target = made()
    wanted = gradients(loss(x, w, target), [x, w])
    result = run(x, w, target)
    before = large(result).clone()
    for _ in range(2):
        assert_close(gradients(result, [x, w], retain_graph=True), wanted)
    assert torch.equal(large(result), before)
    assert_close(gradients(result, [x, w]), wanted)


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t,
        lambda t: t.detach(),
        lambda t: t[1:],
        lambda t: t.untyped_storage(),
        lambda t: t.numpy(),
    ],
    ids=["it", "alias", "view", "storage", "array"],
)
def test_what_somebody_holds_stays_as_it_was(run, hold):
    x, w, target = made()
    result = run(x, w, target)
    held = hold(large(result))
    before = copied(held)
    assert_close(gradients(result, [x, w]), gradients(loss(x, w, target), [x, w]))
    assert torch.equal(copied(held), before)


def test_what_a_hook_has_packed_stays_as_it_was(run):
    x, w, target = made()
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run(x, w, target)
    before = [each.clone() for each in packed]
    assert_close(gradients(result, [x, w]), gradients(loss(x, w, target), [x, w]))
    assert any(each.shape == (ROWS, CLASSES) for each in packed)
    assert all(map(torch.equal, packed, before))


def test_threads_that_go_backward_from_one_result_get_gradients_or_an_error(run):
    x, w, target = made()
    wanted = gradients(loss(x, w, target), [x, w])
    for _ in range(20):
        result = run(x, w, target)
        barrier, found, errors = threading.Barrier(4), [], []

        def go(result=result, barrier=barrier, found=found, errors=errors):
            barrier.wait()
            try:
                found.append(gradients(result, [x, w]))
            except RuntimeError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found
        assert len(found) + len(errors) == 4
        assert all("second time" in error for error in errors)
        for each in found:
            assert_close(each, wanted)


def test_autograd_forgets_what_is_saved_while_the_backward_holds_it(run):
    # Else two threads that go backward at once each make it forget all: freed twice.
    x, w, target = made()
    result, found = run(x, w, target), []

    def look(*_):  # before autograd does it itself
        with pytest.raises(RuntimeError, match="second time"):
            result.grad_fn.saved_tensors
        found.append(True)

    result.grad_fn.register_hook(look)
    gradients(result, [x, w])
    assert found == [True]
    kept = run(x, w, target)
    before = gradients(kept, [x, w], retain_graph=True)
    assert_close(gradients(kept, [x, w]), before)


def test_second_derivatives_and_parts_of_the_gradients_are_those_of_eager(run):
    x, w, target = made()

    def twice(function):
        (first,) = gradients(function(x, w, target), [x], create_graph=True)
        return gradients(first.square().sum(), [x, w])

    assert_close(twice(run), twice(loss))
    assert_close(gradients(run(x, w, target), [w]), gradients(loss(x, w, target), [w]))


def test_a_checked_program_changes_nothing_that_it_compares():
    checked = plait.compile(loss, options={"verify": 2})
    x, w, target = made()
    for _ in range(3):
        wanted = gradients(loss(x, w, target), [x, w])
        assert_close(gradients(checked(x, w, target), [x, w]), wanted)
    assert all(graph.outcome != "eager" for graph in plait.report(checked).graphs)
