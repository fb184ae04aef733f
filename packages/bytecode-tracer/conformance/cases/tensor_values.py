"""Values of tensors in Python: sizes, lengths, messages, attributes set on tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from conformance.declare import case, only, t


def _numbers(*values):
    return lambda: [(t(6, 3), torch.tensor(value)) for value in values]


@case(_numbers(2, 3, 2, 5))
def arange_of_a_tensor(x, n):
    return torch.arange(n) + x[0, 0], torch.arange(0, n, dtype=torch.float32)


@case(_numbers(1, 2, 1, 0))
def padding_by_a_tensor(x, n):
    return torch.nn.functional.pad(x, (0, n)), x[:n], x[n:, 1:]


@case(only(t(6, 3), t(4, 3), t(5, 3), t(6, 3)))
def numbers_of_constants(x):
    sizes = torch.tensor([2, 3])
    last = torch.ceil(torch.tensor(x.shape[0]) / sizes[0]).to(torch.int64)
    return torch.arange(last), x[: last.item()], torch.zeros(sizes[1], 2)


@case(_numbers([1, 2], [2, 2], [3, 1], [1, 2]))
def message_that_nobody_sees(x, n):
    def message():
        return text

    text = f"sum {n.sum()} of {n} and {x.shape} {n.max():>4} {n.min()!r}"
    torch._check(x.shape[0] > 3, message)
    return x * n.sum()


@case(_numbers(3, 4, 3))
def message_that_is_returned(x, n):
    return f"{n} of {x[0, 0]:.3f}, {x[0]!s}, {x.shape[0]}", x + n


@case(_numbers([3], [4], [3]))
def message_of_an_exception(x, n):
    y = x + 1
    torch._check_tensor_all(n < 4, lambda: f"{n} is too much")
    return y


@case(_numbers([3], [4], [3]))
def text_of_a_tensor_that_changes(x, n):
    text = f"{n}"
    n += 1
    return text, f"{n}", x


@case(_numbers([3, 4], [4]))
def text_with_a_wrong_format(x, n):
    try:
        return f"{n:.2f}"
    except TypeError as error:
        return type(error).__name__, x


@case(_numbers(3, 4, 3))
def text_compared(x, n):
    text = f"{n}"
    return x + 1 if text == "3" else x, bool(text), len(text), isinstance(text, str)


@case(_numbers(3, 4, 3))
def attributes_of_tensors(x, n):
    y = x * 2
    y.kind = "double"
    n.seen = [y]
    z = y + 1
    z.kind = "lost"
    first = y, y.kind, n.seen[0] is y, hasattr(x, "kind"), hasattr(x, "seen")
    n.number = (x.sum() + 1).item()
    return *first, y.kind, n.seen[0] is y, getattr(n, "number", None)


@case(lambda: [(_marked(t(3), n),) for n in (1, 2, None, 1)])
def attributes_from_outside(x):
    found = getattr(x, "level", 0)
    x.level = found + 1
    return x * found, x.level


def _marked(x, level):
    if level is not None:
        x.level = level
    return x


@case(only(t(2, 3), t(4, 3), t(2, 3)))
def sums_of_sizes(x):
    size = x.shape[:1] + (1, 1) + x.shape[1:]
    more = (2, *size[:1]) + x.shape
    return x.reshape(size), type(size).__name__, type(more).__name__, x.shape == (2, 3)


def _statistics():
    return [(t(4, 3) + n, torch.zeros(3), torch.ones(3)) for n in (0, 1, 0)]


@case(_statistics)
def statistics_of_unused_results(x, mean, variance):
    F.batch_norm(x, mean, variance, None, None, True)
    torch.batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5, False)
    F.instance_norm(x[None].transpose(1, 2), mean, variance)
    return x + 1


@case(only(t(4, 3) - 4, t(2, 3) - 2, t(4, 3) - 4))
def changes_by_an_argument(x):
    F.hardswish(x, True)
    y = x * 2
    F.relu(y, True)
    z = F.threshold(x.clone(), 0.5, 7.0, inplace=True)
    F.dropout(y, 1.0, True, True)
    return x + 1, y, z


@case(only(t(4, 3), t(2, 3), t(4, 3)))
def rows_that_are_normalized(x):
    F.embedding(torch.tensor([0]), x, max_norm=0.5)
    return x * 1


@case(only(t(4, 3), t(2, 3), t(4, 3)))
def changes_in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        F.hardswish(y, True)
        F.embedding(torch.tensor([0]), y, max_norm=0.5)
        return y.sum().item(), y + 1


@case(only(t(3), torch.nn.Parameter(t(3)), t(2)))
def names_of_classes(x):
    kinds = str(type(x)), repr(torch.nn.Parameter), f"{torch.Tensor}", torch.Tensor == type(x)
    return x + 1, kinds, hash(torch.Tensor) == hash(type(x)), bool(type(x))
