"""Arithmetic of ints and floats that change from call to call: exact, and with Python's errors."""

from __future__ import annotations

import math
import operator

import torch

from conformance.declare import case, t

_VALUES = [
    (3, 1.5),
    (4, 2.25),
    (5, 0.75),
    (50, 3.125),
    (-7, 5.0),
    (1000, 800.0),
    (1, 1e-3),
    (0, 0.0),
]


def _sets():
    return [
        *((t(2), n, f) for n, f in _VALUES),
        *((t(2), -2, math.inf), (t(2), True, -0.5), (t(2), 2**40, math.nan)),
    ]


@case(_sets)
def powers(x, n, f):
    if n > 100:
        return x
    return x + 1, n**2, 0.9**n, 2.0**n, (-0.5) ** n, n**3 - n, pow(n, 2), n.__pow__(2), 1**n


@case(_sets)
def negative_powers(x, n, f):
    return x + 1, n**-1, n**-2


@case(_sets)
def powers_of_floats(x, n, f):
    return x + 1, f**2, (-f) ** 2, (-f) ** 3, f * f, f**0


@case(_sets)
def roots(x, n, f):
    return x + 1, n**0.5, math.sqrt(n), f**0.5, math.isqrt(n)


@case(_sets)
def math_pow(x, n, f):
    return x + 1, math.pow(n, 2), math.pow(2, f)


@case(_sets)
def bias_correction(x, n, f):
    first, second = 1 - 0.9**n, 1 - 0.999**n
    return x * (0.01 / first), math.sqrt(second), second**0.5


@case(_sets)
def learning_rates(x, n, f):
    cosine = 0.5 * (1 + math.cos(math.pi * n / 50))
    return x * cosine, 0.1 * 0.5 ** (n // 10), min(1.0, (n + 1) / 10), max(f, 0.1)


@case(_sets)
def logarithms(x, n, f):
    return x + 1, math.log(n), math.log2(n), math.log10(n), math.log(n, 3), math.log1p(n)


@case(_sets)
def exponentials(x, n, f):
    return x + 1, math.exp(f), math.expm1(f), math.exp(-n)


@case(_sets)
def trigonometry(x, n, f):
    return x + 1, math.sin(f), math.cos(n), math.tan(n), math.atan2(n, f), math.hypot(n, f)


@case(_sets)
def functions_without_limits(x, n, f):
    parts = math.tanh(f), math.atan(f), math.asinh(f), math.erf(f), math.degrees(f), math.fabs(f)
    return x + 1, parts, math.copysign(f, n), math.isfinite(f), math.isclose(n, f), hash(n)


@case(_sets)
def limited_functions(x, n, f):
    return x + 1, math.acos(1 / (n * n + 1)), math.gamma(f), math.lgamma(f), math.comb(n, 2)


@case(_sets)
def rounding(x, n, f):
    return x + 1, round(f), math.floor(f), math.ceil(f), math.trunc(f), int(f), round(f, 1)


@case(_sets)
def divisions(x, n, f):
    return x + 1, divmod(n, 3), -n // 3, -n % 3, f % 1.5, divmod(f, 2), n / 7, math.fmod(f, 3)


@case(_sets)
def divisions_by_them(x, n, f):
    return x + 1, 7 / n, 7 // n, 7 % n, n / f


@case(_sets)
def comparison_chains(x, n, f):
    chosen = "small" if 0 < n < 10 else "large" if n >= 10 else "none"
    return x + 1, chosen, 1 < f <= n, n == f, n != 3, not n, n and f, n or 2, max(n, 3), min(f, n)


@case(_sets)
def texts(x, n, f):
    return (
        x + 1,
        f"{n} {f:.2f} {n!r:>5}",
        "%d %s" % (n, f),
        "{:e}".format(f),
        str(n),
        hex(n),
        bin(n),
    )


@case(_sets)
def methods_and_attributes(x, n, f):
    whole = n.real, n.imag, n.numerator, n.denominator, n.conjugate(), n.bit_length()
    return x + 1, whole, f.real, f.imag, f.conjugate(), f.hex(), n.__add__(2), f.__mul__(n)


@case(_sets)
def bits(x, n, f):
    return x + 1, n & 6, n | 8, n ^ 5, operator.inv(int(n)), n << 3, n >> 1, operator.index(n)


@case(_sets)
def ranges_and_slices(x, n, f):
    if not 0 <= n <= 10:
        return x
    letters = "abcdefghijkl"
    return list(range(n)), letters[:n], letters[n], [0] * n, n in range(5), len(range(1, n, 2))


def _scalars():
    for n in (1, 2, 3, 50, -1, 0):
        yield t(2), torch.tensor(float(n)), torch.tensor(n)


@case(_scalars)
def numbers_in_tensors(x, step, count):
    step += 1
    value = step.item()
    if value > 3:
        return x * value, float(step), int(count)
    return x - value, int(step), count.item() ** 2, f"{value:.1f}"


@case(_scalars)
def division_by_a_number_in_a_tensor(x, step, count):
    x.add_(1)
    try:
        return x / (1 - 0.9 ** step.item()), step
    except ZeroDivisionError:
        return "no steps"


@case(lambda: [(t(1)[0] * n, t(3)) for n in (1, 2, 3, 0)])
def changed_through_a_view(step, x):
    view = step.view(1)
    view.mul_(2)
    step += 1
    return x * step.item(), step.item()


@case(lambda: [(s, s, t(3)) for s in (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(5.0))])
def one_tensor_twice(step, same, x):
    step += 1
    same *= 3
    return x * step.item() - same.item()


@case(lambda: [(torch.tensor([v, v + 1]), t(3)) for v in (1.0, 2.0, 7.0)])
def element_of_a_larger_tensor(steps, x):
    one = steps[0]
    one += 1
    steps.mul_(2)
    return x * one.item(), steps


@case(
    lambda: [(torch.tensor(v), torch.tensor(w), t(3)) for v, w in ((1.0, 2.0), (2.0, 5.0), (7, 1))]
)
def changed_by_another_tensor(step, by, x):
    step.add_(by)
    first = step.item()
    step.copy_(by)
    return x * first, step.item()


@case(lambda: [(torch.tensor(v), torch.tensor(2 * v), t(3)) for v in (1.0, 2.0, 7.0)])
def changed_in_lists(one, other, x):
    torch._foreach_add_([one, other], 1)
    torch._foreach_mul_([one, other], [0.5, one.item()])
    return x * one.item(), other.item()
