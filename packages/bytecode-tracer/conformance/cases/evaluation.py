"""`compile`, `eval`, `exec`, `locals`, `vars`, `dir`."""

from __future__ import annotations

import torch

from conformance.declare import case, t, with_x

LEVEL = 3


@case(with_x(2, 3))
def eval_of_text(x, n):
    return eval("1 + 1"), eval(" LEVEL * 2"), eval("n + 1"), eval("x * n")


@case(with_x(2, 3))
def eval_with_namespaces(x, n):
    space = {"a": n, "x": x}
    found = eval("a * 2", space), eval("a + b", space, {"b": 5}), eval("x * a", space)
    return found, "__builtins__" in space, sorted(space)


@case(with_x(2, 3))
def exec_of_text(x, n):
    space = {"n": n}
    exec(
        "a = n * 2\ndef double(v):\n    return v * a\nb = [double(i) for i in (1, 2)]\ndel n", space
    )
    return (
        space["a"],
        space["b"],
        space["double"](x),
        sorted(space),
        space["double"].__globals__ is space,
    )


@case(with_x(2, 3))
def exec_with_class(x, n):
    space = {"n": n, "x": x}
    exec("class Made:\n    size = n\n    def scale(self): return x * self.size", space)
    made = space["Made"]()
    return made.scale(), made.size, space["Made"].__name__


@case(with_x(2, 3))
def exec_that_fails(x, n):
    found = []
    for text in ("n = ", "raise KeyError(n)", "missing + 1", "del gone"):
        try:
            exec(text, {"n": n})
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found, x * n


@case(with_x(2, 3))
def compiled_text(x, n):
    code = compile("n * 2", "<text>", "eval")
    try:
        compile("a b", "<text>", "exec")
    except SyntaxError as error:
        said = error.msg, error.lineno, error.offset, error.filename, error.text
    return eval(code, {"n": n}), said, code.co_names, x


@case(with_x(2, 3))
def local_variables(x, n):
    a = n + 1
    before = dict(locals())
    b = a * 2

    def inner():
        return b

    after = locals()
    return sorted(before), after["b"], list(after), dir(), inner(), vars()["a"], x


@case(with_x(2, 3))
def local_variables_after_a_break(x, n):
    a = n + 1
    torch._C._get_tracing_state()
    print(float(x.sum()))
    b = locals()
    return sorted(b), a


class Base:
    size = 1

    def scale(self, x):
        return x * self.size


class Sub(Base):
    def __init__(self, size):
        self.size = size


class Listed:
    def __dir__(self):
        return ["b", "a"]


@case(with_x(2, 3))
def names_of_objects(x, n):
    sub = Sub(n)
    return (
        vars(sub),
        "size" in dir(sub),
        "scale" in dir(Sub),
        dir(Listed()),
        dir(3)[:3],
        sub.scale(x),
    )


def _growing():
    yield (t(2),)
    Base.extra = 1
    yield (t(2),)
    del Base.extra
    yield (t(2),)


@case(_growing)
def names_of_a_class_that_grows(x):
    return "extra" in dir(Sub), x


@case(with_x(2))
def vars_of_what_has_none(x, n):
    try:
        return vars(n)
    except TypeError as error:
        return str(error), x
