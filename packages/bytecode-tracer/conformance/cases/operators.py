"""Operators over numbers, containers and tensors; `operator`, `math`, number methods."""

from __future__ import annotations

import math
import operator

import torch

from conformance.declare import case, only, t, with_x


@case(only(7, -7, 7.5, True, 0))
def integer_arithmetic(n):
    return n + 3, n - 3, n * 3, n / 2, n // 2, n % 3, n**2, -n, +n, abs(n), divmod(n, 4)


@case(only(6, -6, True))
def bitwise(n):
    return n & 3, n | 8, n ^ 5, ~n, n << 2, n >> 1, (n).bit_length()


@case(with_x(2, 3.0, True))
def reflected_on_tensor(x, n):
    return n + x, n - x, n * x, n / (x + 9), n**x, n // (x + 9), n % (x + 9)


@case(with_x(2, 3, -1))
def augmented_on_tensor(x, n):
    y = x
    y += n
    y *= 2
    z = y
    z = z - n
    return y is x, y, z


@case(with_x(2, 3))
def augmented_on_list(x, n):
    a = b = [1]
    a += [n]
    b *= 2
    return a is b, a, x


@case(with_x(2, 3))
def augmented_on_tuple(x, n):
    a = b = (1, x)
    a += (n,)
    return a, b


@case(only(1, 2, 3))
def chained_comparisons(n):
    calls = []

    def value(k):
        calls.append(k)
        return k

    return value(1) < value(n) < value(3), calls, 1 <= n != 2


@case(with_x(None, 0, "", [], [0], "a"))
def boolean_operators(x, value):
    return value and x, value or x, not value, bool(value)


@case(only(1, 1.0, True, "1", None, (1,)))
def equality_across_types(value):
    return value == 1, value != 1, value is None, value in (1, "1"), type(value)


@case(only(1, 1.0, True, 0, 0.0, False, -0.0))
def type_matters_in_arithmetic(n):
    return n + 1, n * 2, str(n), [n], f"{n}"


@case(with_x(1, 1.0, True, 1.0, 1))
def equal_numbers_of_other_types(x, n):
    return x.to(torch.int64) * n


@case(with_x(0.0, -0.0, float("inf"), float("-inf"), float("nan")))
def special_floats(x, n):
    return x * n, n, math.copysign(1.0, n), math.isnan(n), n == n


@case(with_x(1 + 2j, 3j, 1 + 0j))
def complex_numbers(x, z):
    return z * 2, z.real, z.imag, z.conjugate(), abs(z), x * z


@case(only(2.5, -2.5, 3.14159, 1e20, 7))
def rounding(n):
    return round(n), round(n, 1), int(n), math.floor(n), math.ceil(n), math.trunc(n)


@case(only(2, 9, 0.5))
def math_functions(n):
    return math.sqrt(n), math.log(n), math.exp(n), math.sin(n), math.pow(n, 2), math.hypot(n, 1)


@case(only(4, 6, 9))
def integer_math(n):
    products = math.prod([1, 2, n]), math.comb(n, 2), math.factorial(n)
    return math.gcd(n, 6), math.lcm(n, 6), products, math.isqrt(n), math.log2(8)


@case(only(-1, "a"))
def math_errors(n):
    try:
        return math.sqrt(n)
    except (ValueError, TypeError) as error:
        return type(error), str(error)


@case(with_x(2, 3))
def operator_functions(x, n):
    return operator.add(x, n), operator.mul(x, n), operator.neg(x), operator.getitem(x, 0)


@case(with_x({"a": [1, 2]}, {"a": [3, 4]}))
def getters(x, table):
    first = operator.itemgetter("a")(table)
    return operator.itemgetter(0, 1)(first), operator.attrgetter("ndim", "dtype")(x)


@case(with_x("upper", "title"))
def method_caller(x, name):
    return operator.methodcaller(name)("some text"), operator.methodcaller("sum", dim=0)(x)


@case(with_x(2, 3))
def operator_in_place(x, n):
    y = operator.iadd(x, n)
    items = [1]
    return y is x, operator.iadd(items, [n]) is items, items


@case(only([1, 2], "ab", (1,)))
def operator_containers(items):
    return operator.contains(items, "a"), operator.countOf([1, 1], 1), operator.concat(items, items)


@case(with_x(3, 2))
def ternaries(x, n):
    return (x if n > 2 else -x) if n else None, "many" if n > 2 else "few"


@case(with_x(1, 2))
def identity_operators(x, n):
    a, b = [n], [n]
    return a is b, a is a, x is x, x is not None, a == b, n is None


@case(lambda: [(t(2, 3), t(3, 2)), (t(1, 3), t(3, 1)), (t(3), t(3))])
def matrix_product(a, b):
    return a @ b, operator.matmul(a, b)


@case(lambda: [(t(3), t(3)), (t(3), t(1)), (t(2, 3), t(3))])
def tensor_comparisons(a, b):
    return a < b, a == b, a != b, (a >= b) & (a <= 1), (a > 0) | ~(b > 0), a.eq(b).all()


@case(lambda: [(t(3, dtype=torch.int64), 2), (t(3, dtype=torch.int32), 3), (t(3) > 0, True)])
def integer_tensors(x, n):
    return x & n, x | n, x ^ n, x + n, x / 2, x * 2.5


@case(lambda: [(t(3),), (t(3, dtype=torch.float16),), (t(3, dtype=torch.int32),), (t(3),)])
def type_promotion(x):
    return x + 1, x + 1.5, x * torch.tensor(2), x * torch.tensor(2.0, dtype=torch.float64)


@case(only("12", "0x1f", "0b11", " 7 ", "1_000"))
def parse_integers(text):
    return int(text, 0), text.strip().isdigit()


@case(only(10, 255, 3))
def number_formats(n):
    return bin(n), oct(n), hex(n), chr(n + 40), (n).to_bytes(2, "big"), n.as_integer_ratio()


@case(only(1.5, 2.0, 0.1))
def float_methods(n):
    return n.is_integer(), n.hex(), n.as_integer_ratio(), float.fromhex("0x1.8p0"), n.conjugate()


@case(with_x(2, 3))
def power_with_modulus(x, n):
    return pow(n, 3, 5), pow(x, n), pow(2.0, n), pow(n, -1)


@case(only(2**40, 2**70, -(2**65)))
def big_integers(n):
    return n * n, n // 3, n % 1000, str(n), n > 2**64


@case(with_x(2**40, 2**62))
def big_integer_with_tensor(x, n):
    return x.to(torch.int64) + n, x * n


class Number:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return ("add", self.value) if isinstance(other, int) else NotImplemented

    def __radd__(self, other):
        return ("radd", self.value)

    def __divmod__(self, other):
        return (self.value, other)

    def __rdivmod__(self, other):
        return (other, self.value)

    def __lt__(self, other):
        return self.value < other.value


class Bigger(Number):
    def __radd__(self, other):
        return ("bigger", self.value)

    def __gt__(self, other):
        return "reflected first"


class Plain(Number):
    pass


class Empty:
    pass


@case(with_x(2, 3))
def operands_in_order(x, n):
    one, bigger, plain = Number(n), Bigger(n + 1), Plain(n + 2)
    return (
        *(one + 1, 1 + one, one + one if False else None, one + bigger, one + plain),
        *(divmod(one, 3), divmod(3, one), one < bigger, one < plain, x * n),
    )


def said(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


@case(with_x(2, 3))
def operands_that_do_not_fit(x, n):
    empty, items = Empty(), [n]
    return (
        *(said(operator.add, empty, n), said(operator.add, n, empty), said(operator.sub, items, 1)),
        *(
            said(operator.lt, empty, empty),
            said(operator.lt, items, (n,)),
            said(operator.neg, empty),
        ),
        *(
            said(operator.add, items, (n,)),
            said(operator.mul, items, "a"),
            said(operator.mul, 1.5, items),
        ),
        *(said(operator.or_, {n}, [n]), said(operator.concat, n, n), said(operator.iadd, items, n)),
        *(said(int, empty), said(float, empty), said(abs, empty), said(round, empty), x),
    )


class Like:
    def __init__(self, **results):
        self.__dict__.update(results)

    def __index__(self):
        return self.index

    def __float__(self):
        return self.float

    def __repr__(self):
        return self.text


@case(with_x(2, 3))
def conversions_of_objects(x, n):
    like = Like(index=n, float=n / 2, text=f"<{n}>")
    wrong = Like(index="a", float=1, text=5)
    return (
        *(int(like), float(like), complex(like), hex(like), operator.index(like), repr(like)),
        *(str(like), f"{like} {like!r:>6}", "%s %r" % (like, [like]), "%5s" % like),
        *(said(operator.index, wrong), said(float, wrong), said(repr, wrong), said(hex, wrong)),
        *([1, 2] * like, "ab" * like, [like, (like,), {n: like}].__repr__(), x * n),
    )


@case(with_x(2, 3))
def comparison_of_containers(x, n):
    a, b = [1, n, Number(1)], [1, n, Number(2)]
    return (
        *(a < b, [1, n] <= [1, n], (1, n) > (1,), [n] == (n,), (1, 2) == (1, 2), [1] != [1, n]),
        *(
            {1: n} == {1: n},
            {1: a} == {1: b},
            {n} < {n, 1},
            {n} == frozenset([n]),
            {1: 2}.keys() == {1},
        ),
        *(sorted([(2, n), (1, n)]), max([n, 2], [n, 3]), x),
    )


@case(with_x(2, 3))
def format_of_containers(x, n):
    holder = [Like(text="h"), {"k": Like(text="i")}, (Like(text="j"),), {n}]
    holder.append(holder)
    return str(holder), f"{holder[1]}", "%s|%d|%5.1f|%%" % (holder[0], n, n), x * n


@case(with_x(2, 3))
def wrong_arguments(x, n):
    def inner(a, b=1, *, c):
        return a

    return (
        *(said(inner), said(inner, 1, 2, 3), said(lambda a: a), said({}.items, None)),
        *(said([].append), said({n: 1}.get), said(len), said(isinstance, 1), x),
    )


@case(with_x(2, 3))
def dict_changed_while_iterated(x, n):
    found = []
    for table in ({0: n}, {0: n, 1: n}):
        try:
            for key in table:
                del table[key]
                table[key] = n
                table[key + 10] = n
        except RuntimeError as error:
            found.append(str(error))
    try:
        for item in (s := {n}):
            s.add(item + 1)
    except RuntimeError as error:
        found.append(str(error))
    return found, x


class Sized:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __length_hint__(self):
        return self.size


class Hinted:
    def __init__(self, hint):
        self.hint = hint

    def __length_hint__(self):
        return self.hint


@case(with_x(2, 3))
def functions_that_are_no_operators(x, n):
    items = [n, 2, 3]
    operator.delitem(items, 1)
    operator.setitem(items, 0, x)
    return (
        *(
            items,
            operator.indexOf([1, n], n),
            operator.countOf((n, n), n),
            operator.call(max, 1, n),
        ),
        *(operator.length_hint(Hinted(n)), operator.length_hint(Hinted(NotImplemented), 7)),
        *(said(operator.length_hint, Hinted("a")), said(operator.add, n), said(operator.not_)),
        *(said(len, Sized("a")), said(len, n), len(Sized(n)), operator.concat([n], [1])),
        *(said(operator.indexOf, [1], n) if n == 1 else (), operator.truth([]), operator.is_(x, x)),
    )


class Table(dict):
    def __missing__(self, key):
        return ("missing", key)


class Letters(frozenset):
    pass


@case(with_x(2, 3))
def subclasses_of_containers(x, n):
    table, letters = Table(a=n), Letters("ab")
    copied = letters.copy()
    return (
        *(table["a"], table["b"], table.get("b"), said(Letters, items=1), copied == letters),
        *(copied is letters, type(letters | {"c"}), letters < Letters("abc"), x * n),
    )


@case(with_x(2, 3))
def tuples_that_stay_the_same(x, n):
    a, empty = (n, x), ()
    return a * 1 is a, a + empty is a, empty + a is a, a[:] is a, tuple(a) is a, (a * 2)[0], [n] * 2


class Picky(type):
    def __instancecheck__(cls, value):
        return value == 3

    def __subclasscheck__(cls, other):
        return other is int


class Three(metaclass=Picky):
    pass


class Proxy:
    def __init__(self, cls):
        self.cls = cls

    @property
    def __class__(self):
        return self.cls


@case(with_x(2, 3))
def checks_of_instances(x, n):
    proxy = Proxy(Sized)
    return (
        *(isinstance(n, Three), isinstance(n, (str, Three)), issubclass(int, Three)),
        *(isinstance(proxy, Sized), isinstance(proxy, Proxy), isinstance(proxy, int)),
        *(isinstance(n, int | str), said(isinstance, n, n), said(issubclass, n, int), x),
    )


@case(with_x(2, 3))
def updates_that_do_not_fit(x, n):
    found = []
    for wrong in ([(1, 2, 3)], [(1,)]):
        try:
            dict(wrong)
        except ValueError as error:
            found.append(str(error))
    try:
        [n][::0]
    except ValueError as error:
        found.append(str(error))
    return found, x * n


class Shift:
    def __init__(self, by):
        self.by = by

    def __add__(self, other):
        return other + self.by

    def __radd__(self, other):
        return other - self.by

    def __iadd__(self, other):
        self.by += 1
        return self

    def __rmul__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return other * 2

    def __eq__(self, other):
        return self.by

    def __rmatmul__(self, other):
        print("matmul", self.by)
        return other

    __hash__ = None


@case(lambda: [(t(2, 3), Shift(n)) for n in (1, 2, 1, 2.5)])
def tensor_and_object(x, shift):
    found = [shift + x, x + shift, x > shift, shift < x, x == shift, shift != x, x @ shift]
    x += Shift(3)
    shift += x
    try:
        x * shift
    except TypeError as error:
        return found, x, shift.by, str(error)
    return None


@case(lambda: [(t(3, 1).expand(3, 2),), (t(3, 2),), (t(2).expand(3, 2),)])
def writes_to_shared_elements(x):
    log = []
    for write in (
        lambda: x.fill_(1),
        lambda: x.__setitem__(0, 2),
        lambda: x[:, 0].add_(1),
        lambda: x.copy_(x + 1),
        lambda: x.relu_(),
        lambda: x.index_fill_(0, torch.tensor([1]), 2),
    ):
        log.append(len(log))
        try:
            write()
        except RuntimeError as error:
            log.append(str(error)[:30])
    return log, x


@case()
def tuples_that_classes_hold(x):
    try:
        (object,) + int.__mro__
    except TypeError:
        return "no tuple"
    return (object,) + int.__mro__, int.__mro__ + (str,), (x,) + bool.__bases__
