"""Functions: parameters of every kind, defaults, recursion, lambdas, decorators."""

from __future__ import annotations

import functools

import torch

from conformance.declare import call, case, only, scenario, t, with_x

OFFSET = 3


def weighted(x, first=1, /, second=2, *, third=3, **rest):
    return x * first + second * third + sum(rest.values())


def gather(*args, **kwargs):
    return args, kwargs


def swapped(a, b):
    return b, a


@case(with_x(1, 2.5, True, -3))
def scale(x, factor):
    return x * factor


@case(lambda: [(t(2),), (t(2), 5), call(t(3), factor=2), call(x=t(2), factor=1.5)])
def default_argument(x, factor=3):
    return x * factor + factor


@case(lambda: [call(t(2), bias=1), call(t(2), bias=2), call(t(2), bias=None)])
def keyword_only(x, *, bias=None):
    return x if bias is None else x + bias


@case(lambda: [(t(2), 1), (t(2), 1, 4), call(t(2), 2, third=7), call(t(2), a=5, b=6)])
def positional_only(x, first=1, second=2, /, *, third=3, **rest):
    return weighted(x, first, second, third=third, **rest)


@case(lambda: [(t(2),), (t(2), 1), (t(2), 1, 2), (t(2), t(2), 3), (t(2), 1)])
def star_args(x, *more):
    for item in more:
        x = x + item
    return x, len(more), more


@case(lambda: [call(t(2), a=1), call(t(2), b=1), call(t(2), b=2, a=1), call(t(2), a=1, b=2)])
def star_kwargs(x, **named):
    return {name: x * value for name, value in named.items()}


@case(lambda: [(t(2), 1), (t(2), "a"), (t(2),), (t(2), 1)])
def wrong_number_of_arguments(x, *rest):
    try:
        return swapped(x, *rest)
    except TypeError as error:
        return str(error)


@case(lambda: [(t(2),), (t(2), 1, 2), call(t(2), y=1), call(t(2), x=3), call(t(2), z=1)])
def call_with_bad_arguments(x, y):
    return x + y


@case(with_x((), (1,), (1, 2)))
def spread_tuple(x, extra):
    return gather(x, *extra, *extra, last=x)


@case(with_x({}, {"a": 1}, {"b": 2, "a": 1}))
def spread_dict(x, extra):
    return gather(x, **extra, own=x)


@case(with_x({"own": 1}, {"other": 1}, {"own": 2}))
def spread_duplicate_keyword(x, extra):
    return gather(x, own=1, **extra)


@case(with_x({1: 2}, {"a": 2}))
def spread_non_string_key(x, extra):
    return gather(**extra)


@case(with_x(0, 1, 2, 5, 3))
def factorial(x, n):
    def product(k):
        return 1 if k <= 1 else k * product(k - 1)

    return x * product(n)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@case(with_x(4, 5, 0))
def mutual_recursion(x, n):
    return x + 1 if is_even(n) else x - 1


@case(with_x(1, 3, 2))
def recursion_of_the_program(x, depth):
    if depth == 0:
        return x
    return recursion_of_the_program(x * 2, depth - 1)


@case(only([1, [2, [3]]], [1], [[[]]], []))
def recursion_over_lists(tree):
    def depth(node):
        return 1 + max(map(depth, node), default=0) if isinstance(node, list) else 0

    return depth(tree)


@case(with_x(1, 2))
def lambdas(x, n):
    functions = [lambda y: y + n, lambda y, k=n: y * k, lambda *ys: sum(ys)]
    return [functions[0](x), functions[1](x), functions[2](x, x, n)]


@case(with_x(2, 3))
def late_binding_in_loop(x, n):
    functions = [lambda: x * i for i in range(n)]
    return [f() for f in functions]


@case(with_x(2, 3))
def default_binding_in_loop(x, n):
    functions = [lambda i=i: x * i for i in range(n)]
    return [f() for f in functions]


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@case()
def decorated_inside(x):
    @doubled
    def plus(y, offset=1):
        """Adds."""
        return y + offset

    return plus(x), plus(x, offset=3), plus.__name__, plus.__doc__, plus.__wrapped__(x)


def repeat(times):
    def decorate(function):
        def wrapper(x):
            for _ in range(times):
                x = function(x)
            return x

        return wrapper

    return decorate


@case(with_x(1, 3, 0))
def parametrized_decorator(x, times):
    return repeat(times)(torch.sin)(x)


@repeat(2)
def plus_offset(x):
    return x + OFFSET


@case()
def decorated_outside(x):
    return plus_offset(x)


@case(with_x(1, 2))
def function_attributes(x, n):
    def counter():
        counter.calls += n
        return counter.calls

    counter.calls = 0
    counter()
    return x * counter(), counter.calls, counter.__name__


@case(with_x(1, 2))
def function_returned(x, n):
    def inner(y, *, k=n):
        return x * y + k

    return inner


@case(with_x(1, 2), then=lambda f: f(3))
def function_returned_and_called(x, n):
    return lambda y: x * y + n


@case(lambda: [(t(2), torch.sin), (t(2), torch.cos), (t(2), abs), (t(2), torch.sin)])
def function_as_argument(x, function):
    return function(x)


@case(lambda: [(t(2), lambda y: y + 1), (t(2), lambda y: y + 2), (t(2), lambda y: y)])
def lambda_as_argument(x, function):
    return function(x)


def make_adder(n):
    return lambda y: y + n


@case(lambda: [(t(2), make_adder(1)), (t(2), make_adder(2)), (t(2), make_adder(1.5))])
def closure_as_argument(x, function):
    return function(x)


@case(lambda: [(t(2), "sin"), (t(2), "cos"), (t(2), "neg")])
def function_by_name(x, name):
    return getattr(torch, name)(x)


@case(with_x(1, 2))
def mutable_default(x, n):
    def collect(item, into=[]):
        into.append(item)
        return into

    collect(n)
    return collect(x)


@scenario(with_x(1, 2, 3))
def mutable_default_of_the_program():
    def program(x, n, seen=[]):
        seen.append(n)
        return x * len(seen), sum(seen)

    return program


@scenario(lambda s: _changing_defaults(s))
def defaults_changed_between_calls():
    def program(x, n=1, *, m=2):
        return x * n + m

    return program, program


def _changing_defaults(program):
    yield (t(2),)
    program.__defaults__ = (5,)
    yield (t(2),)
    program.__kwdefaults__ = {"m": 7}
    yield (t(2),)


def helper(x, n=1):
    return x * n


def _helper_defaults():
    helper.__defaults__ = (1,)
    yield (t(2),)
    helper.__defaults__ = (4,)
    yield (t(2),)


@case(_helper_defaults)
def defaults_of_helper_changed(x):
    return helper(x)


def one(x):
    return x + 1


def two(x):
    return x + 2


def switched(x):
    return x


def _helper_code():
    switched.__code__ = one.__code__
    yield (t(2),)
    switched.__code__ = two.__code__
    yield (t(2),)


@case(_helper_code)
def code_of_helper_changed(x):
    return switched(x)


@case(with_x(1, 0))
def nested_definitions(x, n):
    def outer(a):
        def middle(b):
            def inner(c):
                return a + b + c + n

            return inner

        return middle

    return outer(x)(1)(2)


@case(with_x(0, 1, 2))
def early_returns(x, n):
    if n == 0:
        return None
    if n == 1:
        return x
    return x + n, n


@case(with_x(1, None))
def no_return(x, n):
    x.add_(n or 1)


@case()
def argument_returned(x):
    return x


@case(lambda: [(t(2), t(2)), (t(3), t(3))])
def arguments_swapped(a, b):
    return swapped(a, b)


def _same():
    x, y = t(2), t(2)
    return [(x, x), (x, y), (y, y)]


@case(_same)
def same_argument_twice(a, b):
    return a is b, a + b


@case(_same)
def same_argument_mutated(a, b):
    a.add_(1)
    return b * 2


@case(with_x(1, 2))
def keyword_order_of_evaluation(x, n):
    order = []

    def note(value):
        order.append(value)
        return value

    result = gather(note(1), *[note(2)], k=note(n), z=note(4))
    return result, order


@case(with_x(2, 3))
def parameter_rebound(x, n):
    for x in [x, x + n]:
        n = n + 1
    return x, n


@case(with_x("a", "b", 1))
def annotations(x, value):
    def annotated(a: int, b: str = "c") -> float:
        return a

    return annotated.__annotations__, annotated(x)


@case(with_x(5, 50))
def unbound_local(x, n):
    if n > 10:
        y = x + 1
    try:
        return y
    except UnboundLocalError as error:
        return str(error)


@case(with_x(1, 0))
def deleted_local(x, n):
    y = x + n
    if n:
        del y
    return y


@case(with_x(1))
def undefined_global(x, n):
    return x + undefined_name  # noqa: F821


@case(with_x(3, 4))
def star_after_keywords(x, n):
    values = [n, n + 1]
    return gather(*values, x, k=1, *values)


@case(with_x(1, 2))
def partial_application_by_closure(x, n):
    def bind(function, *first):
        return lambda *rest: function(*first, *rest)

    return bind(bind(gather, n), x)(3)


@case(lambda: [(t(2), t(2)), (t(2), None), (None, t(2)), (t(2), t(2))])
def optional_tensors(a, b):
    if a is None:
        return b
    return a if b is None else a + b


@case(with_x(1, 2))
def inner_function_of_itself(x, n):
    def f(k):
        f.seen = k
        return k if k > 5 else f(k * 2 + 1)

    return x + f(n), f.seen


@case(with_x(1, 2))
def callable_checks(x, n):
    return callable(gather), callable(n), callable(lambda: 0), x
