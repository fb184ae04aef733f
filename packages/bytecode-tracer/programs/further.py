"""More of the language of the random programs: objects, generators, modules, breaks.

Types beside those of `grammar.py`: R object of class Rich, M module, E dict of ints by str or
int, Z set of ints.
"""

from __future__ import annotations

PRELUDE = """\
import collections
import threading


def see(value, *rest):
    print("see", *[v.tolist() if isinstance(v, torch.Tensor) else v for v in (value, *rest)])
    return value


def kept(t, store=[], *, table={"n": 0}):
    store.append(len(store))
    table["n"] += 1
    return t + len(store) + table["n"]


def extra(t):
    global EXTRA
    EXTRA = t


def in_thread(function, *args):
    found = []

    def run():
        try:
            found.append(function(*args))
        except Exception as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if isinstance(found[0], torch.Tensor) else args[0]


class Scaled:
    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__.get("scaled", 1) * instance.size

    def __set__(self, instance, value):
        instance.__dict__["scaled"] = value


class Rich(Box):
    scaled = Scaled()
    __slots__ = ("slot",)

    def __init__(self, value, size):
        super().__init__(value, size)
        self.slot = size

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return len(name)

    def __setattr__(self, name, value):
        if name == "size":
            value = value % 7
        super().__setattr__(name, value)

    def __add__(self, other):
        return other + self.value if isinstance(other, torch.Tensor) else NotImplemented

    def __radd__(self, other):
        return other - self.size

    def __mul__(self, n):
        return Rich(self.value, self.size * n)

    def __imul__(self, n):
        self.size *= n
        return self

    def __matmul__(self, t):
        return see(t * 2)

    def __neg__(self):
        return Rich(-self.value, self.size)

    def __lt__(self, other):
        return self.size < other.size

    def __eq__(self, other):
        return isinstance(other, Rich) and self.slot == other.slot

    def __hash__(self):
        return 5

    def __bool__(self):
        return self.size != 2

    def __contains__(self, item):
        return item == self.size

    def __iter__(self):
        for k in range(self.size % 3):
            yield self.value + k

    def __call__(self, t, n=0):
        return super().__call__(t, n) + self.scaled

    @classmethod
    def of(cls, value):
        made = super().of(value)
        made.slot = 9
        return made

    @staticmethod
    def plus(t, n=1):
        return t + n

    @functools.cached_property
    def cached(self):
        SEEN.append("cached")
        return self.value + 1

    def __enter__(self):
        SEEN.append("in")
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        SEEN.append(("out", kind and kind.__name__, error and error.args))
        return super().__exit__(kind, error, trace) or kind is ZeroDivisionError


class Deep(Rich, Small):
    def __call__(self, t, n=0):
        return super().__call__(t * 2, n)


class Wrong(ValueError):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


def deeper(t, n):
    try:
        return refuse(n) + t
    except Refused as error:
        raise Wrong("deep", n) from (error if n else None)
    finally:
        SEEN.append(n)


def deepest(t, n, breaks):
    with noted("deepest"):
        if breaks:
            see(t)
        return deeper(t, n) * 2


def careful(t, n):
    total = t
    while True:
        try:
            got = yield total
            if got is None:
                n -= 1
            else:
                total = total + got
            if n <= 0:
                return total * 2
        except ValueError as error:
            SEEN.append(str(error))
            total = total - 1
        finally:
            SEEN.append("step")


def outer(t, n):
    result = yield from careful(t, n)
    yield result
    try:
        yield from rows(result, n)
    except GeneratorExit:
        SEEN.append("closed")
        raise


def send(generator, value, default):
    try:
        return generator.send(value) if hasattr(generator, "send") else default
    except (StopIteration, TypeError) as error:
        return default


def throw(generator, error, default):
    try:
        return generator.throw(error) if hasattr(generator, "throw") else default
    except StopIteration:
        return default


class Net(torch.nn.Module):
    factor = 2

    def __init__(self, size=3):
        super().__init__()
        self.layer = torch.nn.Linear(size, size)
        self.rest = torch.nn.ModuleList([torch.nn.Tanh(), torch.nn.Dropout(0.0)])
        self.register_buffer("total", torch.zeros(size))
        self.calls = 0
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(size) * 2)
            self.layer.bias.fill_(0.5)

    def forward(self, t, n=1):
        self.calls += 1
        t = self.layer(t.to(self.layer.weight.dtype)) * self.factor
        if self.training:
            self.total.add_(t.detach().sum().abs().clamp(max=1))
            self.total = self.total * 0.5
        for module in self.rest:
            t = module(t)
        return t + n * self.total


class Other(Net):
    factor = 1

    def forward(self, t, n=1):
        return see(super().forward(t, n))


class Text(str):
    def __add__(self, other):
        return "text"


def other_count(n):
    return n - 1


NET = Net()


def doubled(module, args, result):
    return result * 2


def noting(module, args):
    SEEN.append(type(module).__name__)


"""

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "T": (
        *("<M!>(<T>)", "<M!>(<T>, n=<I>)", "<M!>.layer(<T>)", "<M!>.total", "<M!>.layer.weight"),
        *("see(<T>)", "see(<T!>, <I>)", "kept(<T>)", "deepest(<T>, <I>, <B>)", "deeper(<T>, <I>)"),
        *(
            "in_thread(<C!>, <T>, <I>)",
            "<R!> + <T>",
            "<T> + <R!>",
            "(<R!> @ <T>)",
            "<R!>(<T>)",
            "<R!>.cached",
        ),
        *("send(<G!>, <T>, <T>)", "throw(<G!>, ValueError(<S>), <T>)", "send(<G!>, None, <T>)"),
        *(
            "<T!>.view(-1)",
            "<T!>.transpose(0, -1)",
            "<T!>[0]",
            "<T!>[..., :1]",
            "<T!>.data",
            "<T!>.unsqueeze(0)",
        ),
        *("<T!>.expand(2, *<T!>.shape)", "<T!>.requires_grad_(<B>)", "<T>.to(torch.float64)"),
        *("torch.no_grad()(lambda t: t * 2)(<T>)", "<T>.long()", "<T!>.contiguous()"),
        *("getattr(<R!>, <S>, <T>)", "Rich.plus(<T>, <I>)", "[see(t) for t in [<T>, <T>]][-1]"),
        *("torch.arange(<I> % 5)", "torch.zeros(<T!>.shape[0], 2)", "<T>.repeat(2, 1)"),
        *("sum((see(t) for t in <P>), <T>)", "{k: see(v) for k, v in <D>.items()}.get('a', <T>)"),
    ),
    "I": (
        *("<M!>.calls", "<M!>.factor", "len(<E!>)", "<E!>.get(<S>, <I>)", "<E!>.get(<I>, 1)"),
        *("len(<Z!>)", "max(<Z>, default=<I>)", "<R!>.scaled", "<R!>.slot", "<R!>.missing"),
        *("see(<I>)", "len(list(<R!>))", "next(iter(<E!>.values()), <I>)", "hash(<R!>) % 1"),
        *("<T!>.stride(0)", "<T!>.storage_offset()", "int(<T!>.sum().item() > 0)", "-<I> // 2"),
        *("kept.__kwdefaults__['table']['n']", "len(kept.__defaults__[0])", "<I> ** 2 % 7"),
        *("divmod(<I>, 3)[1]", "<I> ^ <I>", "<I> & 3", "int(<S> or '1', 36) % 5", "len(SEEN)"),
    ),
    "F": ("float(<T!>.sum())", "<F> ** 2", "-<F>", "<F> % 3", "abs(<F>)", "min(<F>, <F>)"),
    "B": (
        *(
            "<M!>.training",
            "<I> in <Z!>",
            "<S> in <E!>",
            "<I> in <R!>",
            "<R!> < <R!>",
            "<R!> == <O!>",
            "bool(<R!>)",
            "<Z> <= <Z>",
        ),
        *("bool(<T!>.sum() > 0)", "isinstance(<O!>, Rich)", "<T!>.is_contiguous()", "<T!>.is_leaf"),
        *(
            "<F> == <F>",
            "<E!> == <E!>",
            "list(<E!>) == list(<E!>)",
            "<T!> is <T!>.data",
            "<Z> == <Z>",
        ),
        *("<T!>._base is None", "<T!>.dtype == torch.float32", "issubclass(type(<O!>), Small)"),
    ),
    "S": ("'-'.join(map(str, <E!>))", "f'{<F!>:.2f}'", "<S>.replace('a', 'b')", "str(<Z>)[:9]"),
    "P": (
        *("[see(t) for t in <P>]", "list(<R!>)[:4]", "list(<M!>.parameters())", "list(<T!>)[:3]"),
        *("[t for t in <P> if see(<I>) > 1]", "list(torch.split(<T!>, 1))", "[*<R!>][:3]"),
    ),
    "L": (
        "list(<E!>.values())",
        "sorted(<Z>)",
        "[*<E!>.values()][::-1]",
        "[len(str(k)) for k in <E>]",
    ),
    "O": (
        *("Rich(<T>, <I>)", "Deep(<T>, <I>)", "Rich.of(<T>)", "Deep.of(<T>)", "<R!>", "<R!>"),
        *("<R> * <I>", "-<R!>"),
    ),
    "C": (
        "kept",
        "<M!>",
        "deeper",
        "functools.partial(deepest, breaks=<B>)",
        "in_thread",
        "Rich.plus",
    ),
    "G": ("careful(<T>, <I> % 4)", "outer(<T>, <I> % 3)", "iter(<R!>)", "map(see, <P>)"),
    "R": ("<R!>", "<R!>", "Rich(<T>, <I>)", "Deep(<T>, <I>)", "Rich.of(<T>)", "Deep.of(<T>)"),
    "M": ("<M!>", "<M!>", "NET", "Net()"),
    "E": (
        *("<E!>", "<E!>", "{<S>: <I>, <S>: <I>}", "{**<E!>, <I>: <I>}", "dict.fromkeys(<Z>, <I>)"),
        *("dict(sorted(<E>.items(), key=str))", "{str(k): k for k in <L>}", "<E> | <E>"),
        *("dict(collections.Counter(<S>))", "collections.OrderedDict(a=<I>, b=<I>)"),
    ),
    "Z": (
        "<Z!>",
        "{<I>, <I>}",
        "set(<L>)",
        "<Z> | <Z>",
        "<Z> - <Z>",
        "{k % 3 for k in <L>}",
        "set()",
    ),
}

STATEMENTS: tuple[str, ...] = (
    *("see(<T>)", "see(<I>, <S>)", "<T!>[...] = <I>", "<T!>.view(-1)[:1] += <I>", "<M=> = <M>"),
    *(
        "<T!>.transpose(0, -1).mul_(2)",
        "<T!>[0].add_(1)",
        "<T!>.data = <T>.detach().clone()",
        "<E=> = <E>",
    ),
    *("<T@> -= <T>", "<T@> /= 2", "<T!>.zero_()", "<T!>.unsqueeze_(0)", "<Z=> = <Z>"),
    *("<T=>, *<P=> = [*<P>, <T>]", "torch.set_grad_enabled(<B>)"),
    *(
        "<E!>[<S>] = <I>",
        "<E!>[<I>] = <I>",
        "<E!>.pop(<S>, 0)",
        "<E!>.update(<E>)",
        "<E!>.popitem()",
    ),
    *("<E!>.clear()", "<Z!>.add(<I>)", "<Z!>.discard(<I>)", "<Z!>.update(<L>)", "<Z@> |= <Z>"),
    *(
        "<R!>.scaled = <I>",
        "<R!>.slot = <I>",
        "<R@> *= <I>",
        "<R=> = <R>",
        "<R!>.__class__ = Deep",
        "<R!>.size = <I>",
    ),
    *("Rich.shared = <I>", "Small.note = <S>", "<M!>.train(<B>)", "<M!>.factor = <I>"),
    *(
        "<M!>.total = <T>",
        "<M!>.total.fill_(<I>)",
        "<M!>.rest.append(torch.nn.ReLU())",
        "<M!>.calls = 0",
    ),
    *("<M!>.layer.weight.requires_grad_(<B>)", "<M!>.layer.bias.data.add_(1)", "<M!>.note = <T>"),
    *("<M!>.register_forward_hook(doubled)", "<M!>.layer.register_forward_pre_hook(noting)"),
    *("<M!>._forward_hooks.clear()", "Net.factor = <I>", "kept.__defaults__ = ([],)"),
    *("kept.__kwdefaults__['table']['n'] = <I>", "extra(<T>)"),
    *("<G!>.close() if hasattr(<G!>, 'close') else None", "raise Wrong(<S>, <I>)"),
    *("raise Wrong(<S>) from Refused(<I>)", "return see(<T>)", "<C=> = <C>"),
    "with <R!>:\n    see(<T>)\n    <block>",
    "with noted(<I>), <R!> as <R+>:\n    <block>\n    see(<I>)\n    <block>",
    "with torch.set_grad_enabled(<B>):\n    <block>",
    "with torch.enable_grad(), noted(<S>):\n    <block>\n    see(<T>)",
    "for <I+> in range(<I> % 3):\n    see(<I>)\n    <block>",
    "for <T+> in map(see, <P>):\n    <block>",
    "for <I+> in sorted(<Z>):\n    <block>",
    "for <S+> in [str(k) for k in <E>]:\n    <block>",
    "try:\n    see(<T>)\n    <block>\n"
    "except Refused:\n    see(<I>)\n    <block>\nfinally:\n    see(<S>)",
    "try:\n    <block>\n"
    "except Wrong as error:\n    SEEN.append((error.code, repr(error.__cause__)))\n"
    "    <block>\nelse:\n    <block>",
    "try:\n    <T=> = deepest(<T>, <I>, <B>)\nexcept Wrong as error:\n"
    "    raise Refused(<I>) from error.__context__",
    "try:\n    try:\n        <block>\n    finally:\n        <block>\nexcept Exception as error:\n"
    "    see(type(error).__name__)\n    <block>",
    "try:\n    raise ExceptionGroup('g', [Refused(<I>), Wrong(<S>)])\nexcept* Refused as group:\n"
    "    SEEN.append(group.exceptions[0].args)\n    see(<T>)\nexcept* ValueError:\n    see(<I>)",
    "match <E>:\n    case {'a': <I+>, **rest}:\n        <block>\n    case {}:\n        <block>",
    "match <R!>:\n    case Rich(size=<I+>) if <I> > 1:\n        <block>\n"
    "    case Box(value=<T+>):\n        <block>",
    "match (<I>, <S>):\n    case (0 | 1, str() as <S+>):\n        <block>\n"
    "    case (int(), 'a' | 'b'):\n        see(<I>)\n    case _:\n        <block>",
    "def <C+>(<T+>, <I+>):\n    <body>\n    see(<I>)\n    return <T>",
    "def <C+>(<T+>, <I+>=<I>, *, k=<I>):\n"
    "    def inner(<I+>):\n        <body>\n        return <T>\n"
    "    see(k)\n    return inner(<I>)",
    "@torch.no_grad()\ndef <C+>(<T+>, <I+>):\n    <body>\n    return <T>",
    "class Own(Deep):\n    shared = <I>\n\n    def __call__(self, t, n=0):\n        see(n)\n"
    "        return super().__call__(t, n) + <I>\n\n    @property\n    def double(self):\n"
    "        return self.value + super().double\n\n<R=> = Own(<T>, <I>)",
    "<B=> = all(see(k) > 1 for k in <L>)",
    "<L=> = [see(k) for k in <L> if k]",
    "<P=> = [t + see(<I>) for t in <P>][:4]",
)
