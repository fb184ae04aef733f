"""More programs whose world differs from one process to the next, in ways that are easily missed.

As in `cases.py`; what is restored must give what eager gives, whatever `PHASE` changes.
"""

import abc
import builtins
import collections
import contextlib
import contextvars
import dataclasses
import datetime
import enum
import functools
import inspect
import logging
import os
import platform
import sys
import threading
import time
import types
import typing
import weakref

import case_helpers as helpers
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

PHASE = int(os.environ.get("PHASE", "0"))
X = torch.linspace(-2, 2, 24).reshape(4, 6)
OPS = (torch.sin, torch.exp)
OP = OPS[PHASE]


def case_environment_variable():
    os.environ["CASE_LEVEL"] = str(2 + PHASE)
    return (lambda x: x.sin() * int(os.environ["CASE_LEVEL"])), (X,)


def case_environment_by_getenv():
    if PHASE:
        os.environ["CASE_OTHER"] = "1"
    return (lambda x: x.sin() * (3 if os.getenv("CASE_OTHER") else 2)), (X,)


def case_process_number():
    return (lambda x: x.sin() * (os.getpid() % 1000)), (X,)


def case_working_folder():
    def f(x):
        return x.sin() * len(os.getcwd())

    @contextlib.contextmanager
    def around():
        before = os.getcwd()
        os.chdir("/" if PHASE else before)
        try:
            yield
        finally:
            os.chdir(before)

    return f, (X,), around


def case_arguments_of_the_program():
    sys.argv[1:] = ["one"] * (PHASE + 1)
    return (lambda x: x.sin() * len(sys.argv)), (X,)


def case_recursion_limit():
    sys.setrecursionlimit(1000 + PHASE)
    return (lambda x: x.sin() * (sys.getrecursionlimit() % 7)), (X,)


def case_platform():
    if PHASE:
        platform.system = lambda: "Other"
    return (lambda x: x.sin() * len(platform.system())), (X,)


def case_seconds():
    return (lambda x: x.sin() * (0 * int(time.time()) + 1)), (X,)


def case_date():
    return (lambda x: x.sin() * (datetime.date.today().year // 1000)), (X,)


def case_threads_of_torch():
    def f(x):
        return x.sin() * torch.get_num_threads()

    @contextlib.contextmanager
    def around():
        before = torch.get_num_threads()
        torch.set_num_threads(1 + PHASE)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return f, (X,), around


@functools.lru_cache
def _remembered(key):
    return 2.0 + PHASE if key else 1.0


def case_cache_that_was_filled():
    _remembered(1)
    return (lambda x: x.sin() * _remembered(1)), (X,)


def case_cache_of_the_trace():
    return (lambda x: x.sin() * _remembered(2)), (X,)


class Cached(nn.Module):
    @functools.cached_property
    def factor(self):
        return 2.0 + PHASE

    def forward(self, x):
        return x.sin() * self.factor


def case_cached_property():
    model = Cached()
    model.factor
    return model, (X,)


def _scaled(x, factor):
    return x.sin() * factor


def case_partial():
    part = functools.partial(_scaled, factor=2.0 + PHASE)
    return (lambda x: part(x) + 1), (X,)


def case_partial_of_function():
    part = functools.partial(lambda op, x: op(x), OP)
    return (lambda x: part(x) + 1), (X,)


def factory(factor):
    def inner(x):
        return x.sin() * factor

    return inner


MADE = factory(2.0 + PHASE)


def case_closure_of_helper():
    return (lambda x: MADE(x) + 1), (X,)


def function_factory(op):
    def inner(x):
        return op(x)

    return inner


OF_FUNCTION = function_factory(OP)


def case_function_in_closure_of_helper():
    return (lambda x: OF_FUNCTION(x) + 1), (X,)


def _with_functions(x, ops=(OP, torch.cos)):
    return ops[0](x)


def case_functions_in_defaults():
    return (lambda x: _with_functions(x) + 1), (X,)


def dynamic(phase):
    def forward(self, x):
        return OPS[phase](x) + phase

    return type("Dynamic", (nn.Module,), {"forward": forward})


Dynamic = dynamic(PHASE)


def case_dynamic_class():
    return Dynamic(), (X,)


def case_function_of_an_instance():
    model = nn.Identity()
    model.op = OP
    return (lambda x: model.op(x) + 1), (X,)


def case_forward_of_an_instance():
    model = nn.Linear(6, 6).requires_grad_(False)
    if PHASE:
        model.forward = lambda x: x.exp()
    return (lambda x: model(x) + 1), (X,)


def case_patched_functional():
    kept = F.relu

    @contextlib.contextmanager
    def around():
        if PHASE:
            F.relu = lambda x, inplace=False: x.exp()
        try:
            yield
        finally:
            F.relu = kept

    return nn.Sequential(nn.Linear(6, 6), nn.ReLU()).requires_grad_(False), (X,), around


def case_patched_builtin_of_torch():
    kept = torch.sin

    @contextlib.contextmanager
    def around():
        if PHASE:
            torch.sin = torch.exp
        try:
            yield
        finally:
            torch.sin = kept

    return (lambda x: torch.sin(x) + 1), (X,), around


def case_patched_method_of_linear():
    kept = nn.Linear.forward

    @contextlib.contextmanager
    def around():
        if PHASE:
            nn.Linear.forward = lambda self, x: kept(self, x) * 2
        try:
            yield
        finally:
            nn.Linear.forward = kept

    return nn.Sequential(nn.Linear(6, 6)).requires_grad_(False), (X,), around


def case_method_of_tensors():
    torch.Tensor.case_scaled = lambda self: self * (2.0 + PHASE)
    return (lambda x: x.sin().case_scaled()), (X,)


def case_hook_of_all_modules():
    @contextlib.contextmanager
    def around():
        hook = None
        if PHASE:
            hook = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    inner = nn.Linear(6, 6).requires_grad_(False)
    return (lambda x: inner(x) + 1), (X,), around


class Doubling(nn.Module):
    def forward(self, weight):
        return weight * 2


def case_parametrization():
    model = nn.Linear(6, 6)
    if PHASE:
        parametrize.register_parametrization(model, "weight", Doubling())
    return model.requires_grad_(False), (X,)


def case_number_of_layers():
    layers = [nn.Linear(6, 6) for _ in range(2 + PHASE)]
    return nn.Sequential(*layers).requires_grad_(False), (X,)


def case_order_of_layers():
    layers = [nn.ReLU(), nn.Linear(6, 6)]
    return nn.Sequential(*layers[:: -1 if PHASE else 1]).requires_grad_(False), (X,)


def case_order_of_a_dict():
    table = {"a": 1.0, "b": 2.0}
    if PHASE:
        table = {"b": 2.0, "a": 1.0}

    def f(x):
        for factor in table.values():
            x = x.sin() * factor
        return x

    return f, (X,)


def case_one_tensor_twice():
    other = X.clone()
    return (lambda x, y: x.sin() + y * 2), ((X, X) if PHASE else (X, other))


def case_overlapping_views():
    base = torch.linspace(0, 1, 48)
    first, second = base[:24], base[12:36] if PHASE else base[24:]
    return (lambda x, y: x.sin() + y * 2), (first, second)


def case_strides():
    return (lambda x: x.sin() + 1), (X.t() if PHASE else X.reshape(6, 4),)


def case_broadcast():
    return (lambda x: x.sin() + 1), (X[:1].expand(4, 6) if PHASE else X,)


def case_list_or_tuple():
    def f(pair):
        return pair[0].sin() * (2 if isinstance(pair, list) else 1)

    return f, ([X, X] if PHASE else (X, X),)


def case_default_device():
    @contextlib.contextmanager
    def around():
        with torch.device("meta" if PHASE else "cpu"):
            yield

    return (lambda x: x.sin() + torch.ones(6, device="cpu")), (X,), around


def case_attention_kernels():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    @contextlib.contextmanager
    def around():
        with sdpa_kernel(kernels):
            yield

    kernels = [SDPBackend.MATH] if PHASE else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    q = torch.linspace(-1, 1, 64).reshape(1, 2, 4, 8)
    return (lambda q: F.scaled_dot_product_attention(q, q, q)), (q,), around


def case_module_in_sys_modules():
    made = types.ModuleType("case_made")
    made.LEVEL = 2.0 + PHASE
    sys.modules["case_made"] = made

    def f(x):
        import case_made

        return x.sin() * case_made.LEVEL

    return f, (X,)


def case_global_that_hides_a_builtin():
    if PHASE:
        globals()["sum"] = max
    return (lambda x: x.sin() * sum((1, 2, 3))), (X,)


def case_new_builtin():
    builtins.case_builtin = 2.0 + PHASE
    return (lambda x: x.sin() * case_builtin), (X,)  # noqa: F821 - made while it runs


class Lazy(types.ModuleType):
    def __getattr__(self, name):
        return 2.0 + PHASE


def case_getattr_of_a_module():
    lazy = Lazy("case_lazy")
    sys.modules["case_lazy"] = lazy
    globals()["lazy_module"] = lazy
    return (lambda x: x.sin() * lazy_module.level), (X,)  # noqa: F821 - made while it runs


class Meta(type):
    level = 2.0 + PHASE


class OfMeta(metaclass=Meta):
    pass


def case_attribute_of_a_metaclass():
    return (lambda x: x.sin() * OfMeta.level), (X,)


class One:
    def op(self, x):
        return x.sin()


class Other:
    def op(self, x):
        return x.exp()


THING = One()
THING.__class__ = Other if PHASE else One


def case_class_of_an_instance():
    return (lambda x: THING.op(x) + 1), (X,)


class Abstract(abc.ABC):
    pass


if PHASE:
    Abstract.register(One)


def case_registered_subclass():
    one = One()
    return (lambda x: x.sin() * (2 if isinstance(one, Abstract) else 1)), (X,)


def case_subclass_of_registered():
    return (lambda x: x.sin() * (2 if issubclass(One, Abstract) else 1)), (X,)


CONTEXT = contextvars.ContextVar("CONTEXT")


def case_context_variable():
    CONTEXT.set(2.0 + PHASE)
    return (lambda x: x.sin() * CONTEXT.get()), (X,)


LOCAL = threading.local()


def case_thread_local():
    LOCAL.level = 2.0 + PHASE
    return (lambda x: x.sin() * LOCAL.level), (X,)


def case_name_of_the_thread():
    threading.current_thread().name = "main" + "x" * PHASE
    return (lambda x: x.sin() * len(threading.current_thread().name)), (X,)


BIG = int("1000000")
SAME = BIG if PHASE else int("1000000")


def case_identity_of_numbers():
    return (lambda x: x.sin() * (2 if BIG is SAME else 1)), (X,)


NAN = float("nan")
OTHER_NAN = NAN if PHASE else float("nan")


def case_identity_of_nans():
    return (lambda x: x.sin() * (2 if OTHER_NAN in (NAN,) else 1)), (X,)


class Listed:
    first = 1
    if PHASE:
        second = 2


def case_names_of_a_class():
    return (lambda x: x.sin() * sum(not n.startswith("_") for n in vars(Listed))), (X,)


class Parent:
    pass


if PHASE:

    class Child(Parent):
        pass


def case_subclasses_of_a_class():
    return (lambda x: x.sin() * (len(Parent.__subclasses__()) + 1)), (X,)


def _documented(x):
    return x


_documented.__doc__ = "x" * (2 + PHASE)
_documented.level = 2.0 + PHASE
_documented.__annotations__ = dict.fromkeys("ab"[: PHASE + 1], int)
_documented.__name__ = "name" * (1 + PHASE)


def case_text_of_a_function():
    return (lambda x: x.sin() * len(_documented.__doc__)), (X,)


def case_attribute_of_a_function():
    return (lambda x: x.sin() * _documented.level), (X,)


def case_annotations_of_a_function():
    return (lambda x: x.sin() * len(_documented.__annotations__)), (X,)


def case_name_of_a_function():
    return (lambda x: x.sin() * len(_documented.__name__)), (X,)


class Documented:
    pass


Documented.__doc__ = "x" * (2 + PHASE)
Documented.__annotations__ = dict.fromkeys("ab"[: PHASE + 1], int)


def case_text_of_a_class():
    return (lambda x: x.sin() * len(Documented.__doc__)), (X,)


def case_annotations_of_a_class():
    return (lambda x: x.sin() * len(Documented.__annotations__)), (X,)


def case_hints_of_a_class():
    return (lambda x: x.sin() * len(typing.get_type_hints(Documented))), (X,)


def case_signature():
    def one(x, y=2):
        return x

    def other(x, y=2, z=3):
        return x

    called = (one, other)[PHASE]
    return (lambda x: x.sin() * len(inspect.signature(called).parameters)), (X,)


LOGGER = logging.getLogger("cases")
LOGGER.setLevel(logging.DEBUG if PHASE else logging.WARNING)


def case_level_of_a_logger():
    return (lambda x: x.sin() * (2 if LOGGER.isEnabledFor(logging.INFO) else 1)), (X,)


@dataclasses.dataclass
class Config:
    level: float = 2.0 + PHASE
    names: list = dataclasses.field(default_factory=lambda: ["a"] * (1 + PHASE))


def case_data_class():
    def f(x):
        config = Config()
        return x.sin() * config.level * len(config.names)

    return f, (X,)


Pair = collections.namedtuple("Pair", "one other", defaults=(2.0 + PHASE,))


def case_named_tuple():
    return (lambda x: x.sin() * Pair(1.0).other), (X,)


class Flags(enum.Flag):
    A = 1
    B = 2
    BOTH = 3 if PHASE else 1


def case_flags():
    return (lambda x: x.sin() * (2 if Flags.B in Flags.BOTH else 1)), (X,)


class Slotted:
    __slots__ = ("level",)


def case_slots():
    slotted = Slotted()
    slotted.level = 2.0 + PHASE
    return (lambda x: x.sin() * slotted.level), (X,)


class Described:
    def __get__(self, instance, owner):
        return 2.0 + PHASE


class WithDescriptor:
    level = Described()


def case_descriptor():
    thing = WithDescriptor()
    return (lambda x: x.sin() * thing.level), (X,)


class Fallback:
    def __getattr__(self, name):
        return 2.0 + PHASE


def case_getattr_of_a_class():
    thing = Fallback()
    return (lambda x: x.sin() * thing.level), (X,)


def case_has_attribute():
    thing = One()
    if PHASE:
        thing.level = 1
    return (lambda x: x.sin() * (2 if hasattr(thing, "level") else 1)), (X,)


def case_dead_reference():
    thing = One()
    reference = weakref.ref(thing)
    globals()["kept_thing"] = None if PHASE else thing
    del thing
    return (lambda x: x.sin() * (2 if reference() is None else 1)), (X,)


def case_text_with_an_address():
    return (lambda x: x.sin() * (len(repr(THING)) + int(repr(THING)[-3], 16))), (X,)


def case_missing_key():
    table = {"a": 1.0} if PHASE else {}

    def f(x):
        try:
            return x.sin() * table["a"]
        except KeyError:
            return x.exp()

    return f, (X,)


def case_counter_of_a_module():
    helpers.COUNT = PHASE

    def f(x):
        return x.sin() if helpers.COUNT == 0 else x.exp()

    return f, (X,)


def case_super():
    class Top(One):
        def op(self, x):
            return super().op(x) * 2

    if PHASE:
        Top.__bases__ = (Other,)
    top = Top()
    return (lambda x: top.op(x)), (X,)


def case_reloaded_constant():
    code = compile(f"def made_now(x):\n    return x.sin() * {2 + PHASE}.0", "<made>", "exec")
    space = {"__name__": __name__}
    exec(code, space)
    globals()["made_now"] = space["made_now"]
    return (lambda x: made_now(x) + 1), (X,)  # noqa: F821 - made while it runs


def case_replaced_code():
    def one(x):
        return x.sin()

    def other(x):
        return x.exp()

    if PHASE:
        one.__code__ = other.__code__
    return (lambda x: one(x) + 1), (X,)


def case_operator_of_a_class():
    class Number:
        def __init__(self):
            self.value = 2.0

        if PHASE:

            def __rmul__(self, x):
                return x * self.value * 2

        else:

            def __rmul__(self, x):
                return x * self.value

    number = Number()
    return (lambda x: x.sin() * number), (X,)


def case_finfo_stays():
    return (lambda x: x.sin() * torch.finfo(x.dtype).eps + sys.maxsize % 7), (X,)


def case_data_class_stays():
    @dataclasses.dataclass(frozen=True)
    class Fixed:
        level: float = 2.0

    fixed = Fixed()
    return (lambda x: x.sin() * fixed.level), (X,)
