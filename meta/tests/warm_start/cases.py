"""Programs whose world may differ from one process to the next, by `PHASE` or by edited files.

Each case is a function that gives what to compile and its arguments, and perhaps a context. Those
whose name ends in `_stays` are the same in each process.
"""

import enum
import functools
import os

import case_helpers as helpers
import hard_cases
import torch
from case_others import shifted
from torch import nn

PHASE = int(os.environ.get("PHASE", "0"))
SCALE = 2.0 + PHASE
ORDER = {"first", "second", "third", "fourth", "fifth"}
TABLE = {"scale": 3.0 + PHASE, "bias": 1.0}
X = torch.linspace(-2, 2, 24).reshape(4, 6)


def case_plain_stays():
    def f(x):
        return torch.sin(x) * 2 + x.cos()

    return f, (X,)


def case_module_stays():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False), (X,)


class Block(nn.Module):
    width = 6

    def __init__(self, scale=1.5):
        super().__init__()
        self.linear = nn.Linear(self.width, self.width)
        self.norm = nn.LayerNorm(self.width)
        self.scale = scale

    def forward(self, x, *, shift=0.5):
        return self.norm(self.linear(x) * self.scale + shifted(x)) + shift


def case_block_stays():
    return Block().requires_grad_(False), (X,)


def recurrent(kind, **settings):
    """Weights lie in a list, and weak references to them in another."""
    layer = kind(6, 5, num_layers=2, batch_first=True, **settings).requires_grad_(False)
    return layer, (X.reshape(2, 2, 6),), torch.no_grad


def case_lstm_stays():
    return recurrent(nn.LSTM)


def case_gru_of_both_directions_stays():
    return recurrent(nn.GRU, bidirectional=True, dropout=0.0)


def case_lstm_with_another_weight_stays():
    layer, arguments, around = recurrent(nn.LSTM)
    if PHASE:
        layer.weight_hh_l1 = nn.Parameter(layer.weight_hh_l1 + 1, requires_grad=False)
    return layer, arguments, around


def decorated(factor):
    def wrap(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs) * factor

        return inner

    return wrap


@decorated(3.0)
def tripled(x):
    return x.tanh() + 1


def case_decorated_stays():
    return tripled, (X,)


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


def case_enum_stays():
    def f(x, mode):
        return x.exp() * (2 if mode is Mode.DOUBLE else 1)

    return f, (X, Mode.DOUBLE)


def case_members_of_a_set_stay():
    def f(x):
        return x.exp() if "third" in ORDER else x.sin()

    return f, (X,)


def case_pair_of_results_stays():
    def f(x):
        return x.sin(), x.sum(0)

    return f, (X,)


def case_dict_of_results_stays():
    def f(x):
        return {"first": x.sin(), "rest": [x.sum(0), x]}.values()

    return (lambda x: list(f(x))), (X,)


def case_no_grad_stays():
    return Block(), (X,), torch.no_grad


# What differs by the phase.


def case_global():
    def f(x):
        return x.sin() * SCALE

    return f, (X,)


def case_item_of_global():
    def f(x):
        return x.sin() * TABLE["scale"] + TABLE["bias"]

    return f, (X,)


def case_closure():
    factor = 1.5 + PHASE

    def f(x):
        return x.sin() * factor

    return f, (X,)


def case_function_in_closure():
    inner = torch.exp if PHASE else torch.sin

    def f(x):
        return inner(x) + 1

    return f, (X,)


def case_lambdas_of_one_line():
    inner = (lambda x: x.sin(), lambda x: x.exp())[PHASE]

    def f(x):
        return inner(x) + 1

    return f, (X,)


def case_compiled_lambda():
    return (lambda x: x.sin() + 1, lambda x: x.exp() + 1)[PHASE], (X,)


class Attributed(nn.Module):
    factor = 1.0 + PHASE
    function = staticmethod(torch.exp if PHASE else torch.sin)

    @property
    def extra(self):
        return 5.0 + PHASE

    def forward(self, x):
        return self.function(x * self.factor) + self.extra


def case_class_attribute():
    return Attributed(), (X,)


class Base:
    if PHASE:

        def made(self, x):
            return x.exp()

    else:

        def made(self, x):
            return x.sin()


class Derived(Base):
    pass


def case_method_of_base():
    derived = Derived()

    def f(x):
        return derived.made(x) + 1

    return f, (X,)


class OtherBase(nn.Module):
    def made(self, x):
        return x.exp()


class FirstBase(nn.Module):
    def made(self, x):
        return x.sin()


class Inheriting(OtherBase if PHASE else FirstBase):
    def forward(self, x):
        return self.made(x) + 1


def case_base_class():
    return Inheriting(), (X,)


def _defaulted(x, factor=2.0 + PHASE, *, shift=1.0 + PHASE):
    return x.sin() * factor + shift


def case_defaults_of_helper():
    def f(x):
        return _defaulted(x)

    return f, (X,)


def case_own_defaults():
    def f(x, factor=2.0 + PHASE):
        return x.sin() * factor

    return f, (X,)


class Level(enum.IntEnum):
    LOW = 1 + PHASE


def case_value_of_member():
    def f(x):
        return x.sin() * Level.LOW.value

    return f, (X,)


def case_function_of_exec():
    text = "def made(x):\n    return x.exp()" if PHASE else "def made(x):\n    return x.sin()"
    exec(text, globals())

    def f(x):
        return made(x) + 1  # noqa: F821

    return f, (X,)


def case_compiled_function_of_exec():
    space = {"torch": torch, "__name__": __name__}
    exec(f"def f(x):\n    return x.sin() + {PHASE}", space)
    return space["f"], (X,)


def case_replaced_method():
    class_ = Replaced
    if PHASE:
        class_.forward_part = lambda self, x: x.exp()
    return class_(), (X,)


class Replaced(nn.Module):
    def forward_part(self, x):
        return x.sin()

    def forward(self, x):
        return self.forward_part(x) + 1


def case_config():
    class Config:
        factor = 2

    config = Config()
    config.factor = 2.0 + PHASE

    def f(x):
        return x.sin() * config.factor

    return f, (X,)


def case_shape():
    return Block().requires_grad_(False), (X[: 4 - PHASE],)


def case_dtype():
    return Block().to(torch.float64 if PHASE else torch.float32).requires_grad_(False), (
        X.to(torch.float64 if PHASE else torch.float32),
    )


def case_training_flag():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.BatchNorm1d(6))
    return model.requires_grad_(False).train(bool(PHASE)), (X,)


def case_hook():
    model = Block().requires_grad_(False)
    if PHASE:
        model.linear.register_forward_hook(lambda module, args, output: output * 2)
    return model, (X,)


def case_requires_grad():
    return Block().requires_grad_(bool(PHASE)), (X,)


def case_autocast():
    def around():
        return torch.autocast("cpu", torch.bfloat16, enabled=bool(PHASE))

    return nn.Linear(6, 6).requires_grad_(False), (X,), around


def case_grad_mode():
    return Block(), (X,), torch.enable_grad if PHASE else torch.no_grad


def case_default_dtype():
    def around():
        return _default_dtype(torch.float64 if PHASE else torch.float32)

    def f(x):
        return x.sin() + torch.ones(6)

    return f, (X,), around


class _default_dtype:
    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *raised):
        torch.set_default_dtype(self.before)


def case_edited_helper():
    def f(x):
        return helpers.edited(x) + 1

    return f, (X,)


def case_order_of_set():
    def f(x):
        for number, word in enumerate({"one", "two", "three", "four", "five", "six"}):
            x = x * len(word) + number
        return x

    return f, (X,)


def case_order_of_global_set():
    def f(x):
        for number, word in enumerate(ORDER):
            x = x * len(word) + number
        return x

    return f, (X,)


def case_hash():
    def f(x):
        return x * (hash("a text") % 7)

    return f, (X,)


def case_address():
    anchor = object()

    def f(x):
        return x * (id(anchor) % 7)

    return f, (X,)


def case_index_out_of_range():
    table = torch.arange(12.0).reshape(4, 3)

    def f(index):
        return table[index] * 2

    return f, (torch.tensor([0, 3 + PHASE]),)


def case_size_of_tuple_default():
    def f(x):
        return sized(x)

    return f, (X,)


def sized(x, sizes=(1, 2 + PHASE)):
    return x.sin() * sizes[1]


def case_attribute_of_module():
    helpers.LEVEL = 2.0 + PHASE

    def f(x):
        return x.sin() * helpers.LEVEL

    return f, (X,)


def case_drawn_numbers_stay():
    def f(x):
        return x * torch.rand(()).mul(0)

    return f, (X,)


def case_views_of_dicts():
    def f(x):
        for number, name in enumerate(sorted(WORDS.keys() - TABLE.keys())):
            x = x * len(name) + number
        return x

    return f, (X,)


WORDS = dict.fromkeys(("one", "three", "fifteen", "two"))


def case_buffer():
    model = nn.BatchNorm1d(6).requires_grad_(False).eval()
    model.running_mean += PHASE
    return model, (X,)


# A sample of those that are easily missed.


def case_sampled_finfo_stays():
    return hard_cases.case_finfo_stays()


for _name in (
    *("cache_that_was_filled", "class_of_an_instance", "identity_of_numbers"),
    *("order_of_a_dict", "patched_functional", "patched_method_of_linear", "replaced_code"),
    *("registered_subclass", "text_of_a_class", "annotations_of_a_class"),
):
    globals()[f"case_{_name}"] = getattr(hard_cases, f"case_{_name}")
