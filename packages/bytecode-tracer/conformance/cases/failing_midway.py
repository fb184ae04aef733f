"""Errors that only the run of a graph raises after it changed tensors: what was before counts."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import logging

import torch
import torch.nn.functional as F

from conformance.declare import case, scenario, t

_logger = logging.getLogger("conformance.failing_midway")
_count = 0
_table = {"calls": 0}
_setting = contextvars.ContextVar("setting", default=0)


class Own:
    """What a program notes its state in."""

    shared = 0

    def __init__(self):
        self.n = 0
        self.h = None
        self.log = []
        self.named = {}

    @property
    def twice(self):
        return self.n * 2

    @twice.setter
    def twice(self, value):
        self.n = value // 2


def _world(grad=False):
    """A tensor to change, a place that may be out of range, what is read there, the state."""
    return [(t(3, grad=False), torch.tensor([n]), t(4, grad=grad), Own()) for n in (1, 9, 2, 7, 0)]


def _with_gradients():
    return _world(grad=True)


@case(_world, traceback=True)
def attributes(x, place, table, own):
    own.n += 1
    x.add_(1)
    own.n += 1
    y = table[place]
    own.n += 1
    return y + x


@case(_world, traceback=True)
def what_was_made(x, place, table, own):
    own.h = x.add_(1) * 2
    own.log.append(own.h.sum())
    y = table.index_select(0, place)
    own.log.append(y)
    own.h = None
    return y


@case(_world, traceback=True)
def values_that_are_let_go(x, place, table, own):
    own.h = table * 3
    own.log.append(own.h + 1)
    x.mul_(2)
    own.h = own.h.exp()
    y = own.h[place]
    own.h = own.log.pop() + y.sum()
    return y


@case(_world, traceback=True)
def a_global(x, place, table, own):
    global _count
    _count += 1
    x.sub_(1)
    _table["calls"] += 1
    y = table[place]
    _count += 10
    return y


@case(_world, traceback=True)
def a_class(x, place, table, own):
    Own.shared += 1
    x.mul_(3)
    y = table.take(place)
    Own.shared += 10
    return y


@case(_world, traceback=True)
def a_property(x, place, table, own):
    x.mul_(3)
    own.twice = own.n * 2 + 4
    y = table.gather(0, place)
    own.twice = 0
    return y


@case(_world, traceback=True)
def containers(x, place, table, own):
    own.named["begun"] = x.add_(2)
    own.log.extend([1, 2])
    own.log.insert(0, "first")
    y = F.embedding(place, table[:, None])
    own.named.clear()
    own.log.clear()
    return y


@case(_world, traceback=True)
def a_loop(x, place, table, own):
    total = 0
    for n in range(4):
        own.log.append(n)
        x.add_(n)
        total = total + table[place + n].sum()
    own.n = total
    return total


@case(_world, traceback=True)
def a_loop_over_state(x, place, table, own):
    own.h = torch.zeros(4)
    for n in range(3):
        x.add_(1)
        own.h = own.h + table * n
        own.named[n] = own.h[(place + n).clamp_min(0)]
    return own.h


@case(_world, traceback=True)
def functions_in_functions(x, place, table, own):
    def outer(n):
        own.log.append(n)
        y = inner(n + 1)
        own.log.append("never")
        return y

    def inner(n):
        nonlocal x
        x = x.add_(n) * 1
        own.log.append(n)
        return table[place]

    return outer(1) + x


@case(_world, traceback=True)
def a_nonlocal(x, place, table, own):
    count = 0

    def note():
        nonlocal count
        count += 1
        own.n = count

    own.h = note
    note()
    x.mul_(2)
    note()
    return table[place] + count


@case(_world, traceback=True)
def a_generator(x, place, table, own):
    def made():
        yield x.add_(1)
        own.log.append("going on")
        yield table[place]
        own.log.append("never")

    for each in made():
        own.log.append(each.sum())
    return own.n


@case(_world, traceback=True)
def a_comprehension(x, place, table, own):
    own.log.append(x.mul_(2))
    return [table[place + n] for n in range(3)]


@case(_world, traceback=True)
def sorted_by_a_key(x, place, table, own):
    def key(n):
        own.log.append(n)
        x.add_(n)
        if n == 2:
            own.h = table[place]
        return -n

    return sorted([1, 2, 3], key=key)


class Operand:
    def __init__(self, own, x, table):
        self.own, self.x, self.table = own, x, table

    def __add__(self, place):
        self.own.n += 1
        self.x.add_(1)
        y = self.table[place]
        self.own.n += 1
        return y

    def __enter__(self):
        self.own.log.append("entered")
        return self

    def __exit__(self, kind, error, traceback):
        self.own.log.append(None if kind is None else kind.__name__)


@case(_world, traceback=True)
def an_operator_of_a_class(x, place, table, own):
    y = Operand(own, x, table) + place
    own.n += 100
    return y


@case(_world, traceback=True)
def a_mode_of_torch(x, place, table, own):
    x.add_(1)
    with torch.no_grad():
        own.log.append(torch.is_grad_enabled())
        y = table[place]
    own.log.append(torch.is_grad_enabled())
    return y


@case(_world, traceback=True)
def modes_in_functions(x, place, table, own):
    def read():
        with torch.autocast("cpu"):
            own.log.append(torch.is_autocast_enabled("cpu"))
            return table[place]

    x.add_(1)
    with torch.no_grad():
        return read()


@case(_world, traceback=True, then=lambda result: torch.is_grad_enabled())
def a_mode_that_is_left_set(x, place, table, own):
    x.add_(1)
    torch.set_grad_enabled(False)
    own.n = 1
    y = table[place]
    torch.set_grad_enabled(True)
    return y


@torch.no_grad()
def _read_without_gradients(x, place, table, own):
    own.log.append("inside")
    x.add_(1)
    return table[place]


@case(_with_gradients, traceback=True)
def a_decorated_function(x, place, table, own):
    own.n = 1
    return _read_without_gradients(x, place, table, own)


@case(_world, traceback=True)
def a_manager(x, place, table, own):
    x.add_(1)
    with Operand(own, x, table):
        own.n += 1
        y = table[place]
        own.n += 1
    return y


@case(_world, traceback=True)
def finally_after_a_change(x, place, table, own):
    x.add_(1)
    try:
        own.n += 1
        return table[place]
    finally:
        own.log.append(own.n)


@case(_world, traceback=True)
def handled_around_a_function(x, place, table, own):
    def read():
        own.n += 1
        x.add_(1)
        return torch.linalg.inv(table[place].reshape(1, 1))

    try:
        y = read()
    except (RuntimeError, IndexError) as error:
        own.log.append(type(error).__name__)
        y = x
    return y * own.n


@case(_world, traceback=True)
def within_a_handler(x, place, table, own):
    try:
        raise ValueError("first")
    except ValueError as error:
        x.add_(1)
        own.log.append(str(error))
        return table[place]


@case(_world, traceback=True)
def a_loop_with_a_handler(x, place, table, own):
    for n in range(3):
        try:
            x.add_(1)
            own.n += 1
            own.h = table[place - n]
        except IndexError:
            own.log.append(n)
            continue
    return x


@case(_world, traceback=True)
def the_context(x, place, table, own):
    _setting.set(_setting.get() + 1)
    x.add_(1)
    y = table[place]
    _setting.set(100)
    return y


@case(_world, traceback=True)
def after_a_break(x, place, table, own):
    own.n += 1
    if float(x.sum()) > 100:
        return x
    own.n += 1
    x.add_(1)
    y = table[place]
    own.n += 100
    return y


@case(_world, traceback=True)
def after_a_break_in_a_function(x, place, table, own):
    def inner():
        own.log.append("in")
        float(x.sum())
        x.mul_(2)
        own.log.append("after")
        return table[place]

    with torch.no_grad():
        y = inner()
    own.log.append("never")
    return y


@case(_world, traceback=True)
def before_a_break(x, place, table, own):
    own.n += 1
    x.add_(1)
    y = table[place]
    own.n += 1
    own.log.append(float(y.sum()))
    return y


def _batches(*state):
    return [(t(4, 3, start=n), torch.tensor([0, 1, n, 2]), Own()) for n in (1, 9, 2, -200)]


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.normal = torch.nn.BatchNorm1d(3)
        self.linear = torch.nn.Linear(3, 3)
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.last = self.normal(x)
        return self.linear(self.last)


@scenario(_batches, traceback=True)
def statistics_of_a_model():
    torch.manual_seed(0)
    model = Classifier()

    def loss(x, target, own):
        y = model(x)
        own.n += 1
        found = F.cross_entropy(y, target)
        own.n += 1
        return found

    return loss, model


def _steps(name, first, **options):
    def made():
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

        def step(x, target, own):
            if first:
                optimizer.zero_grad(set_to_none=first == "none")
            loss = F.cross_entropy(model(x), target)
            own.log.append(loss.detach())
            loss.backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()
            own.n += 1
            return loss.detach()

        return step, (model, optimizer)

    made.__name__ = name
    scenario(_batches, traceback=True)(made)


_steps("a_step", None)
_steps("a_step_that_clears_first", "none")
_steps("a_step_that_zeroes_first", "zeros")
_steps("a_step_with_foreach", "none", foreach=True)
_steps("a_step_with_momentum", None, momentum=0.9)


@scenario(_batches, traceback=True)
def two_steps():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x, target, own):
        for shift in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), (target + shift).clamp_max(2 + 9 * shift))
            loss.backward()
            optimizer.step()
            own.n += 1
        return loss.detach()

    return step, (model, optimizer)


@scenario(_batches, traceback=True)
def gradients_that_accumulate():
    torch.manual_seed(0)
    model = Classifier()

    def step(x, target, own):
        for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
            own.n += 1
            F.cross_entropy(model(part), wanted).backward()

    return step, model


@scenario(_batches, traceback=True)
def hooks_of_modules():
    torch.manual_seed(0)
    model, calls = Classifier(), []
    model.register_forward_pre_hook(lambda module, args: calls.append("before"))
    model.normal.register_forward_hook(lambda module, args, y: calls.append(y.shape))
    model.register_forward_hook(lambda module, args, y: calls.append(F.one_hot(args[1], 3)))

    def forward(self, x, target):
        return Classifier.forward(self, x)

    model.forward = forward.__get__(model)
    return lambda x, target, own: model(x, target), (model, calls)


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))
        self.length = 0

    def forward(self, x, place, own):
        self.length += 1
        self.keys.index_copy_(0, place, x)
        own.n = self.length
        return self.keys.sum()


@scenario(
    lambda *state: [(t(2, 3), torch.tensor([0, n]), Own()) for n in (1, 9, 2, 7)], traceback=True
)
def a_cache_that_is_half_written():
    return Cache()


@scenario(
    lambda *state: [(t(2, 3), torch.tensor([0, n]), Own()) for n in (1, 9, 2, 7)], traceback=True
)
def caches_of_layers():
    layers = torch.nn.ModuleList([Cache(), Cache()])

    def run(x, place, own):
        for n, layer in enumerate(layers):
            own.log.append(n)
            layer(x + n, place if n else place.clamp_max(3), own)
        own.log.append("done")
        return own.n

    return run, layers


_calls = collections.Counter()


@torch.library.custom_op("conformance_midway::counted", mutates_args=("x",))
def counted(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    _calls["counted"] += 1
    x.add_(1)
    if int(place[0]) > 3:
        raise KeyError("out of range")
    return x * 2


@counted.register_fake
def _(x, place):
    return torch.empty_like(x)


@case(_world, traceback=True)
def an_operator_that_raises(x, place, table, own):
    own.n += 1
    y = counted(x, place)
    own.n += 1
    return y


@case(_world, traceback=True)
def an_error_after_an_operator(x, place, table, own):
    own.n += 1
    y = counted(x, place.clamp_max(3))
    own.log.append(y)
    return table[place] + y.sum()


@case(_world, traceback=True)
def text_before(x, place, table, own):
    print("begun", own.n)
    x.add_(1)
    own.n += 1
    return table[place]


@case(_world, traceback=True)
def a_log_before(x, place, table, own):
    _logger.error("begun")
    x.add_(1)
    own.n += 1
    return table[place]


def _dtypes():
    kinds = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float32)
    return [(t(3), t(2, 2).to(kind), Own()) for kind in kinds]


@case(_dtypes, traceback=True)
def types_without_a_kernel(x, other, own):
    own.n += 1
    x.add_(1)
    own.log.append(x.sum())
    y = torch.linalg.inv(other)
    own.n += 1
    return y


@case(lambda: [(t(3), torch.eye(2) * n, Own()) for n in (1, 0, 2, 0)], traceback=True)
def singular(x, matrix, own):
    own.n += 1
    x.add_(1)
    y = torch.linalg.cholesky(matrix)
    own.n += 1
    return y


@case(lambda: [(t(3), torch.tensor([n, 1]), Own()) for n in (1, 0, 2, 0)], traceback=True)
def integers_divided(x, by, own):
    own.n += 1
    x.add_(1)
    y = torch.tensor([5, 6]) // by
    own.n += 1
    return y


@case(_world, traceback=True)
def random_numbers_between(x, place, table, own):
    torch.manual_seed(3)
    own.h = x.uniform_()
    own.log.append(torch.rand(2))
    y = table[place]
    own.log.append(torch.rand(2))
    return y


@case(_world, traceback=True)
def numbers_of_a_generator(x, place, table, own):
    generator = torch.Generator().manual_seed(5)
    x.add_(torch.rand(3, generator=generator))
    own.n = 1
    return table[place]


@case(_with_gradients, traceback=True)
def gradients_of_what_was_made(x, place, table, own):
    own.h = table * 2
    x.add_(1)
    (first,) = torch.autograd.grad(own.h.sum(), table)
    own.log.append(first)
    return own.h[place]


@case(_with_gradients, traceback=True)
def an_input_that_gets_a_history(x, place, table, own):
    own.n += 1
    x.add_(table.sum())
    own.n += 1
    y = table[place]
    own.n += 1
    return y


@case(_with_gradients, traceback=True)
def a_hook_of_a_tensor(x, place, table, own):
    x.add_(1)
    table.register_hook(lambda gradient: own.log.append("hook"))
    y = table[place]
    own.n = 1
    return y


@case(_world, traceback=True)
def suppressed(x, place, table, own):
    x.add_(1)
    with contextlib.suppress(IndexError):
        own.h = table[place]
        own.n = 1
    return x * own.n


@case(_world, traceback=True)
def what_the_call_makes(x, place, table, own):
    made = Own()
    made.log.append(x.add_(1))
    own.h = made
    made.n = 5
    y = table[place]
    made.n = 6
    return y


@case(_world, traceback=True)
def a_dict_that_loses_keys(x, place, table, own):
    own.named.update(a=1, b=x)
    x.add_(1)
    del own.named["a"]
    own.named["c"] = own.named.pop("b") * 2
    return table[place]


@case(_world, traceback=True)
def a_deleted_attribute(x, place, table, own):
    x.add_(1)
    del own.h
    own.added = 3
    y = table[place]
    own.h = y
    return y


@case(lambda: [(t(3), torch.tensor([n]), t(4), iter(range(9))) for n in (1, 9, 2)], traceback=True)
def an_iterator_of_the_caller(x, place, table, numbers):
    first = next(numbers)
    x.add_(first)
    second = next(numbers)
    y = table[place] + second
    next(numbers)
    return y, next(numbers)


@case(_world, traceback=True)
def a_set_of_the_caller(x, place, table, own):
    own.named.setdefault("seen", set()).add("begun")
    x.add_(1)
    y = table[place]
    own.named["seen"].add("done")
    return y


@case(_world, traceback=True)
def an_assertion_of_the_graph(x, place, table, own):
    own.n = 1
    x.add_(1)
    torch._assert_async((place < 4).all())
    own.n = 2
    return x


@case(_world, traceback=True)
def a_mapped_function(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = torch.vmap(lambda row: row * table[place])(torch.ones(2, 1))
    own.n = 2
    return y


@case(_with_gradients, traceback=True)
def a_checkpoint(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = torch.utils.checkpoint.checkpoint(lambda v: v[place] * 2, table, use_reentrant=False)
    own.n = 2
    return y


class Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, place):
        return table[place] * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum().expand(4), None


@case(_with_gradients, traceback=True)
def a_function_of_autograd(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = Looked.apply(table, place)
    own.n = 2
    return y
