"""The language of the random programs, as tables of templates.

A placeholder in a template names a type, and says how it is filled:

`<T>`      an expression of the type
`<T!>`     a variable of the type that is in scope
`<T@>`     the same, one that may be assigned
`<T=>`     a variable to assign: one of the type that is in scope, or a new one
`<T+>`     a new variable, in scope in the blocks of this statement
`<I#>`     the same, one for all of the statement, that nothing else may assign
`<block>`  statements, indented as the placeholder is
`<body>`   the same in a function of its own, which may name outer variables `nonlocal`

Types: T tensor, I int, F float, B bool, S str, P list of tensors, L list of ints, D dict of
tensors by str, O object, C function of a tensor and an int to a tensor, G generator of tensors.
`further.py` has more.
"""

from __future__ import annotations

from programs import further

PRELUDE = """\
import contextlib
import functools
import itertools

import torch

COUNT = 3
TABLE = {"a": 1, "b": 2}
SEEN = []


def count(n):
    global COUNT
    COUNT = (COUNT + n) % 9
    return COUNT


class Refused(Exception):
    pass


class Box:
    shared = 2

    def __init__(self, value, size):
        self.value = value
        self.size = size
        self._kept = None

    def __call__(self, t, n):
        self.size += n
        return t * self.size + self.value

    def __eq__(self, other):
        return isinstance(other, Box) and self.size == other.size

    __hash__ = object.__hash__

    def __len__(self):
        return abs(self.size) % 4

    def __getitem__(self, place):
        if place >= len(self):
            raise IndexError(place)
        return self.value + place

    def __enter__(self):
        self.size += 1
        return self

    def __exit__(self, kind, error, trace):
        self.size -= 2
        return kind is Refused

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, value):
        self.value = value / 2

    @functools.wraps(torch.add)
    def add(self, t, *rest, **named):
        return t + self.value + sum(rest) + len(named)

    @classmethod
    def of(cls, value):
        return cls(value, cls.shared)


class Small(Box):
    shared = 1

    def __call__(self, t, n=1):
        return super().__call__(t, n) - 1


def rows(t, n):
    for k in range(n):
        got = yield t + k
        if got is not None:
            t = t * got


def chained(t, n):
    yield t
    yield from rows(t * 2, n)


def refuse(n):
    if n % 3 == 0:
        raise Refused(n)
    return n


@contextlib.contextmanager
def noted(name):
    SEEN.append(name)
    try:
        yield len(SEEN)
    finally:
        SEEN.append(-1)


"""
PRELUDE += further.PRELUDE
"""What every program begins with."""

PARAMETERS = {"x": "T", "y": "T", "n": "I", "flag": "B", "items": "P", "sizes": "L", "named": "D"}
PARAMETERS |= {"box": "O", "scale": "F", "word": "S", "net": "M", "codes": "E", "marks": "Z"}
PARAMETERS |= {"rich": "R"}
"""Parameters of the program, with their types."""

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "T": (
        *("<T!>", "<T!>", "<T!>", "<T!>"),
        *("<T> + <T>", "<T> - <T>", "<T> * <I>", "<I> - <T>", "<T> * <F>", "-<T>", "<T> / 2"),
        *("torch.relu(<T>)", "<T>.sigmoid()", "torch.tanh(<T>)", "<T>.abs().clamp(max=<I>)"),
        *("<T>.sum(0)", "<T>.mean()", "<T>.sum(-1, keepdim=True)", "<T>.amax()", "<T>.clone()"),
        *("torch.where(<T> > <I>, <T>, <T>)", "torch.maximum(<T>, <T>)", "<T>.detach()"),
        *("(<T> if <B> else <T>)", "(<T> + <T>)[..., :2].sum()", "<T>.reshape(-1)[0]"),
        *(
            "torch.zeros(<T!>.shape) + <T>",
            "torch.full((3,), <F>)",
            "torch.cat([<T!>.reshape(-1), <T!>.reshape(-1)]).sum()",
        ),
        *(
            "<P!>[<I> % 2]",
            "(<P> or [<T>])[-1]",
            "sum(<P>, <T>)",
            "<D!>.get('a', <T>)",
            "<D!>.get(<S>, <T>)",
        ),
        *(
            "<O!>.value",
            "<O!>.double",
            "<O!>(<T>, <I>)",
            "<O!>.add(<T>, <I>, key=<I>)",
            "<O!>[<I> % 2]",
        ),
        *("<C!>(<T>, <I>)", "(lambda t, k=2: t * k + <I>)(<T>)", "<T>.to(<T!>.dtype)"),
        *("functools.reduce(torch.add, <P>, <T>)", "next(<G!>, <T>)", "sum(<G>, <T>)"),
        *(
            "max(<P>, key=lambda t: t.dim())",
            "[t + <I> for t in <P>][0]",
            "torch.broadcast_tensors(<T>, <T!>)[0]",
        ),
        "next(iter(<D!>.values()), <T>)",
        "[*<P>, <T>].pop()",
    ),
    "I": (
        *("<I!>", "<I!>", "0", "1", "2", "-1", "3", "7"),
        *(
            "<I> + <I>",
            "<I> * 2 % 11",
            "<I> - <I>",
            "<I> // 2",
            "<I> % 3",
            "-<I>",
            "<I> // (<I> or 1)",
        ),
        *(
            "len(<P>)",
            "len(<L>)",
            "len(<D!>)",
            "len(<S>)",
            "len(<O!>)",
            "sum(<L>)",
            "(<L> or [<I>])[<I> % 1]",
        ),
        *("<T>.dim()", "<T!>.shape[0]", "<T!>.size(-1)", "<T>.numel()", "int(<F>)", "int(<B>)"),
        *("<O!>.size", "<O!>.shared", "max(<I>, <I>)", "min(<L>, default=<I>)", "refuse(<I>)"),
        *(
            "[*<L>, 2].index(2)",
            "<L>.count(<I>)",
            "sorted([<I>, *<L>])[0]",
            "TABLE['a']",
            "COUNT",
            "count(<I>)",
        ),
        *("sum(k for k in <L> if k > <I>)", "abs(<I>)", "hash(<S>) * 0", "(<I> if <B> else <I>)"),
        "ord(<S!>[0])",
        "functools.reduce(lambda a, b: a * 2 + b, <L>, <I>) % 13",
    ),
    "F": ("<F!>", "0.5", "2.0", "<F> * <F>", "<I> / 3", "float(<I>)", "round(<F>, 1)", "<F> + <I>"),
    "B": (
        *("<B!>", "not <B>", "<B> and <B>", "<B> or <B>", "<I> > <I>", "<I> == <I>", "<I> in <L>"),
        *("<S> in <D!>", "<T!> is <T!>", "<T!>.dim() > 1", "<T!>.shape == <T!>.shape", "<P!>"),
        *("<T!>.is_floating_point()", "isinstance(<O!>, Small)", "<O!> == <O!>", "<S> < <S>"),
        *("any(k > 1 for k in <L>)", "all(<L>)", "<I> < <I> <= <I>", "callable(<C!>)", "<L!>"),
        *("<T!>.requires_grad", "hasattr(<O!>, <S>)", "torch.is_grad_enabled()", "<D!> is <D!>"),
        *("bool(<O!>)", "<O!> is not <O!>", "isinstance(<I>, bool)", "<P!> is <P!>"),
    ),
    "S": (
        *("<S!>", "'a'", "'b'", "'size'", "f'{<I!>}'", "(<S> + <S>)[:5]", "<S>[:2]", "<S>.upper()"),
        *("str(<I>)", "', '.join(str(k) for k in <L>)", "type(<O!>).__name__", "f'{<I!>:>3}'"),
        *("'%s' % <I>", "str(<T!>.dtype)", "repr(<S>)", "min(<D!>, default=<S>)"),
    ),
    "P": (
        *(
            "<P!>",
            "<P!>",
            "[<T>, <T>]",
            "[<T>]",
            "[t * <I> for t in <P>]",
            "<P>[1:]",
            "<P> + [<T>]",
        ),
        *(
            "list(<G>)",
            "[t for t in <P> if t.dim() > <I>]",
            "list(<D!>.values())",
            "[*<P>, <T>][-5:]",
        ),
        *("list(map(<C!>, <P>, <L>))", "[a + b for a, b in zip(<P>, <P>)]", "<P>[::-1]"),
        *("sorted(<P>, key=lambda t: t.numel())", "list(itertools.islice(<G>, <I> % 3))"),
        *("list(reversed(<P>))", "list(torch.unbind(<T>))", "[<P!>[k] for k in range(len(<P!>))]"),
        "list(itertools.chain(<P>, <G>))[:5]",
    ),
    "L": (
        *("<L!>", "<L!>", "[<I>, <I>]", "list(range(<I> % 4))", "[k * 2 for k in <L>]", "<L>[:2]"),
        *("sorted(<L>)", "[*<L>, <I>]", "list(TABLE.values())", "[len(<S>), <I>]", "(<L> * 2)[:5]"),
        *("[k for k in <L> if k != <I>]", "list(<T!>.shape)", "[i + k for i, k in enumerate(<L>)]"),
        *("sorted(<L>, key=lambda k: -k)", "list(dict.fromkeys(<L>))", "[*{*<L>}][:1]"),
        "list(itertools.accumulate(<L>))",
    ),
    "D": (
        *("<D!>", "<D!>", "{'a': <T>, 'b': <T>}", "{**<D!>, <S>: <T>}", "dict(<D!>)"),
        *("{k: v + <I> for k, v in <D!>.items()}", "dict(zip(['a', 'b'], <P>))", "<D> | <D>"),
        "{'a': <T>, <S>: <T>}",
    ),
    "O": ("<O!>", "<O!>", "Box(<T>, <I>)", "Small(<T>, <I>)", "Box.of(<T>)", "Small.of(<T>)"),
    "C": (
        *("<C!>", "(lambda t, k: t * <I> + k)", "(lambda t, k: t + <T>)", "<O!>", "torch.add"),
        *("functools.partial(lambda a, t, k: t - a * k, <I>)", "(<C!> if <B> else <C!>)"),
    ),
    "G": ("rows(<T>, <I> % 4)", "chained(<T>, <I> % 3)", "(t * <I> for t in <P>)", "iter(<P>)"),
}
for _kind, _more in further.EXPRESSIONS.items():
    EXPRESSIONS[_kind] = (*EXPRESSIONS.get(_kind, ()), *_more)
"""Expressions of each type. Those without a placeholder, or with variables only, end a tree."""

GROWING = (".append", ".extend", ".insert", "+= [", "[1:] =")
"""Marks of statements that make a list longer: there are none in loops, which end therefore."""

STATEMENTS: tuple[str, ...] = (
    *("<T=> = <T>", "<T=> = <T>", "<T=> = <T>", "<I=> = <I>", "<F=> = <F>", "<B=> = <B>"),
    *("<S=> = <S>", "<P=> = <P>", "<L=> = <L>", "<D=> = <D>", "<O=> = <O>", "<C=> = <C>"),
    *("<G=> = <G>", "<T@> += <I>", "<T@> *= <T!>.mean()", "<T!>.add_(<T>.sum())", "<T!>.mul_(<I>)"),
    *("<T!>[0] = <I>", "<T!>.clamp_(min=<I>)", "<T!>.copy_(<T>.mean())", "<T!>[..., 0] += <I>"),
    *(
        "<P!>.append(<T>)",
        "<P!>[:1] = [<T>]",
        "<P!> and <P!>.pop()",
        "<P!>.insert(0, <T>)",
        "del <P!>[:1]",
    ),
    *("<P!>.extend(<P>[:2])", "<P@> += [<T>]", "<P!>.reverse()", "<L!>.append(<I>)", "<L!>.sort()"),
    *(
        "<L!>[-1:] = [<I>]",
        "<L!>.remove(<L!>[0])",
        "<L!>[1:] = <L>[:3]",
        "<D!>[<S>] = <T>",
        "<D!>.pop(<S>, None)",
    ),
    *(
        "<D!>.update(<D>)",
        "<D!>.setdefault(<S>, <T>)",
        "del <D!>[<S>]",
        "<D!>['a'] = <D!>.get('a', 0) + <T>",
    ),
    *("<O!>.value = <T>", "<O!>.size = <I>", "<O!>.size += <I>", "<O!>.double = <T>"),
    *(
        "<O!>.note = <S>",
        "setattr(<O!>, 'size', <I>)",
        "<O!>.value += <T>.sum()",
        "vars(<O!>).pop('note', 0)",
    ),
    *("SEEN.append(<I>)", "TABLE[<S>] = <I>", "SEEN.clear()", "Box.shared = <I> % 5"),
    *(
        "count(<I>)",
        "print('at', <I>, <S>)",
        "assert <B> or <I>, <S>",
        "raise Refused(<I>)",
        "return <T>",
    ),
    *("<T=>, <I=> = <T>, <I>", "<T=>, *<P=> = <P>", "<I=>, <I=> = <I!>, <I!>", "<T=> = <T=> = <T>"),
    "if <B>:\n    <block>",
    "if <B>:\n    <block>\nelse:\n    <block>",
    "if (<I+> := <I>) > 1:\n    <block>",
    "if <B>:\n    <block>\nelif <B>:\n    <block>\nelse:\n    <block>",
    "if <T>.sum() > <I>:\n    <block>",
    "for <I+> in range(<I> % 4):\n    <block>",
    "for <T+> in <P>:\n    <block>",
    "for <T+> in <G>:\n    <block>",
    "for <I+>, <T+> in enumerate(<P>):\n    <block>",
    "for <S+>, <T+> in <D>.items():\n    <block>",
    "for <I+>, <T+> in zip(<L>, <P>):\n    <block>\nelse:\n    <block>",
    "for <T+> in <O!>:\n    <block>",
    "for <I+> in <L>:\n    <block>\n    if <B>:\n        break\nelse:\n    <block>",
    "for <I+> in <L>:\n    if <B>:\n        continue\n    <block>",
    "<I#> = 0\nwhile <I#> < <I> % 4:\n    <I#> += 1\n    <block>",
    "try:\n    <block>\nexcept Refused as error:\n    SEEN.append(error.args)\n    <block>",
    "try:\n    <block>\nexcept (IndexError, KeyError, TypeError, ValueError):\n    <block>",
    "try:\n    <block>\nexcept ZeroDivisionError as error:\n    raise Refused(<I>) from error",
    "try:\n    <block>\nfinally:\n    <block>",
    "with <O!> as <O+>:\n    <block>",
    "with noted(<I>) as <I+>:\n    <block>",
    "with <O!>, noted(<S>):\n    <block>",
    "with torch.no_grad():\n    <block>",
    "with contextlib.suppress(Exception):\n    <block>",
    "def <C+>(<T+>, <I+>):\n    <body>\n    return <T>",
    "def <C+>(<T+>, <I+>=2, *rest, **others):\n    <body>\n    return <T> + len(rest)",
    "match <I>:\n    case 0:\n        <block>\n    case 1 | 2:\n        <block>\n"
    "    case _:\n        <block>",
    "match <L>:\n    case [<I+>, *_]:\n        <block>\n    case []:\n        <block>",
    "class Local(Box):\n    shared = <I>\n\n    def __call__(self, t, k):\n"
    "        return t * k + <I>\n\n"
    "<O=> = Local(<T>, <I>)",
    *further.STATEMENTS,
)
"""Statements. A variable bound with `+` is in scope in the blocks after it; `<C+>` of a `def`
stays in scope."""
