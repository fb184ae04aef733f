"""Specialisations as data: what is stored, what is found again, and what is refused."""

import collections
import enum
import functools
import gc
import json
import math
import os
import sys
import types
import typing
import weakref

import pytest
import torch
from torch import fx, nn

from plait_bytecode_tracer import CompiledFunction
from plait_bytecode_tracer.rewinding import draws
from plait_bytecode_tracer.stored import (
    DiffersError,
    Kept,
    NotRepeatedError,
    NotStoredError,
    code_hash,
    restored,
    stored,
)
from plait_bytecode_tracer.stored.contents import Contents
from plait_bytecode_tracer.stored.expressions import require_reading, require_simple_body
from plait_bytecode_tracer.stored.literals import literal, value_of
from plait_bytecode_tracer.stored.numbers import read_reader, read_relation
from plait_bytecode_tracer.stored.orders import require_no_order
from plait_bytecode_tracer.stored.paths import Finder, follow
from plait_bytecode_tracer.stored.storing import draws_repeatedly
from plait_utils.fake import FakeMode


class Memory:
    """Keeps entries as text, with what ran their graphs here."""

    def __init__(self):
        self.texts = []
        self.runs = []
        self.refused = []
        self.misses = []

    def entries(self, function):
        for text, run in zip(self.texts, self.runs, strict=True):
            try:
                yield Kept(restored(function, json.loads(text)), lambda run=run: run)
            except DiffersError as error:
                self.misses.append(str(error))

    def missed(self, reason):
        self.misses.append(reason)

    def begin(self, function, capture):
        self.begun = function, capture

    def keep(self):
        function, capture = self.begun
        try:
            self.texts.append(json.dumps(stored(function, capture)))
            self.runs.append(capture.graph_module.forward)
        except NotStoredError as error:
            self.refused.append(str(error))


def compiled(function, memory, **options):
    def backend(module, inputs, capture):
        return module.forward

    return CompiledFunction(function, backend, keeper=memory, **options)


def traced(function):
    return "trace" in function.profile.seconds()


SCALE = 2.0


def helper(x, factor=3.0):
    return x * factor


def scaled(x):
    return helper(x.sin()) * SCALE


@pytest.mark.parametrize("native", [False, True])
def test_what_was_stored_is_not_traced_again(native):
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)
    assert memory.refused == []
    again = compiled(scaled, memory, native_guards=native)
    for _ in range(3):
        assert torch.equal(again(x), scaled(x))
    assert not traced(again)
    assert len(again.entries) == 1
    assert len(memory.texts) == 1


def test_guards_of_a_stored_entry_are_checked(monkeypatch):
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)
    again = compiled(scaled, memory)
    again(x)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    assert torch.equal(again(x), scaled(x))
    assert traced(again)
    assert str(again.recompiles[0]).startswith("SCALE == 2.0 no longer holds: now 5.0")


def test_a_changed_helper_is_traced(monkeypatch):
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)

    def other(x, factor=3.0):
        return x + factor

    other.__qualname__ = "helper"
    monkeypatch.setattr(sys.modules[__name__], "helper", other)
    again = compiled(scaled, memory)
    assert torch.equal(again(x), scaled(x))
    assert traced(again)
    assert any("helper changed: its code" in text for text in memory.misses)


def test_changed_defaults_are_traced(monkeypatch):
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)
    monkeypatch.setattr(helper, "__defaults__", (7.0,))
    again = compiled(scaled, memory)
    assert torch.equal(again(x), scaled(x))
    assert traced(again)
    assert any("helper changed: its defaults" in text for text in memory.misses)


def test_a_program_that_fails_is_traced_and_the_call_made_again():
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)

    def failing(*inputs):
        raise RuntimeError("the program")

    memory.runs[0] = failing
    again = compiled(scaled, memory)
    assert torch.equal(again(x), scaled(x))
    assert traced(again)
    assert len(again.entries) == 1
    assert torch.equal(again(x), scaled(x))


def test_a_program_that_is_gone_means_a_trace():
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)
    memory.runs[0] = None
    again = compiled(scaled, memory)
    assert torch.equal(again(x), scaled(x))
    assert traced(again)


def breaks(x):
    y = x.sin()
    print("between")
    return y.nonzero() if y.sum() > 0 else y


def draws_numbers(x):
    return x + torch.rand(3)


def changes(x):
    return x.add_(1)


def keeps(x, found=[]):
    found.append(x)
    return x.sin()


def prints(x):
    print("here")
    return x.sin()


def infers(x):
    with torch.inference_mode():
        return x.sin()


@pytest.mark.parametrize("function", [breaks, prints, infers])
def test_what_is_more_than_a_graph_and_its_results_is_not_stored(function, capsys):
    memory = Memory()
    compiled(function, memory)(torch.randn(3))
    assert memory.texts == []
    assert memory.refused


def test_what_a_function_keeps_of_its_calls_is_stored():
    memory = Memory()
    for size in (1, 2):
        keeps.__defaults__[0].clear()
        function = compiled(keeps, memory)
        x = torch.randn(3)
        assert torch.equal(function(x), x.sin())
        assert len(memory.texts) == 1
        assert keeps.__defaults__[0][0] is x
        assert traced(function) is (size == 1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_stored(kind):
    x = torch.randn(2, 5, 3)
    for dropout, training in ((0.0, True), (0.5, False), (0.5, True)):
        layer = kind(3, 4, 2, batch_first=True, dropout=dropout).train(training)
        memory = Memory()
        with torch.no_grad():
            compiled(lambda value, layer=layer: layer(value)[0], memory)(x)
        assert memory.texts, memory.refused


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_packed_sequences_draw_where_sequences_do(name):
    graph = fx.Graph()
    data, sizes, state = (graph.placeholder(each) for each in ("data", "sizes", "state"))
    for dropout, training, is_drawing in (
        (0.0, True, False),
        (0.5, False, False),
        (0.5, True, True),
    ):
        tail = (True, 2, dropout, training, False)
        for arguments in ((data, state, [data], *tail, True), (data, sizes, state, [data], *tail)):
            assert draws(graph.call_function(getattr(torch, name), arguments)) is is_drawing
    assert draws(graph.call_function(getattr(torch, name), (data, state)))


@pytest.mark.parametrize("function", [draws_numbers, changes])
def test_what_changes_tensors_or_draws_numbers_is_stored(function):
    memory = Memory()
    compiled(function, memory)(torch.randn(3))
    assert len(memory.texts) == 1


def test_an_error_after_changes_is_raised_and_the_call_not_made_again():
    memory = Memory()
    x = torch.randn(3)
    compiled(scaled, memory)(x)

    def failing(*inputs):
        raise NotRepeatedError from ValueError("of the program")

    memory.runs[0] = failing
    again = compiled(scaled, memory)
    with pytest.raises(ValueError, match="of the program"):
        again(x)
    assert not traced(again)


VALUES = (
    *(None, True, 0, -1, 1 << 70, 0.1, -0.0, math.inf, 5e-324, 1 + 2j, "a\ud800\n", b"\x00\xff"),
    *((), (1, (2.5, "x")), torch.Size((2, 3)), torch.float32, torch.strided, torch.channels_last),
    *(torch.device("cpu"), torch.device("cuda:1"), slice(1, None, 2), range(3, 9, 2)),
    *(Ellipsis, NotImplemented),
)


@pytest.mark.parametrize("value", VALUES)
def test_constants_come_back_to_the_last_bit(value):
    back = value_of(json.loads(json.dumps(literal(value))))
    assert type(back) is type(value)
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value", [math.nan, frozenset({1}), {1}, [1], {}, 1 << 3000, object(), enum.Enum("E", "A").A]
)
def test_what_is_no_constant_is_refused(value):
    with pytest.raises(NotStoredError):
        literal(value)


@pytest.mark.parametrize(
    "data",
    [
        *([], {}, 1.5, ["float"], ["float", "x"], ["dtype", "nn"], ["dtype", "float32", 1]),
        *(["device", "nowhere"], ["range", 1, 2, "3"], ["eval", "1"], [["float"], "1"]),
        *(["size", ["x"]], ["tuple", 3]),
    ],
)
def test_data_that_is_no_constant_is_refused(data):
    with pytest.raises(DiffersError):
        value_of(data)


def function_of(text, name="f", **held):
    space = {"__name__": __name__, **held}
    exec(text, space)
    return space[name]


def test_code_is_told_apart_by_all_that_it_does():
    texts = [
        "def f(x):\n    return x + 1",
        "def f(x):\n    return x + 2",
        "def f(x):\n    return x + 1.0",
        "def f(x):\n    return x + True",
        "def f(x):\n    return x - 1",
        "def f(y):\n    return y + 1",
        "def f(x, *a):\n    return x + 1",
        "def f(x):\n    return (lambda: x + 1)()",
        "def f(x):\n    return (lambda: x + 2)()",
        "def f(x):\n    return x in {1, 2}",
        "def f(x):\n    return x in {1, 3}",
        "def f(x):\n    return x + -0.0",
        "def f(x):\n    return x + 0.0",
    ]
    hashes = [code_hash(function_of(text).__code__) for text in texts]
    assert len(set(hashes)) == len(texts)
    assert hashes == [code_hash(function_of(text).__code__) for text in texts]


HIDDEN = [
    "def f(x):\n    return x in {'a', 'b'}",
    "def f(x):\n    s = {y.name for y in x}\n    return 'a' in s",
    "def f(x):\n    s = {x, 1}\n    return x in s or 2 in s",
    "def f(x):\n    return x in names",
    "def f(x):\n    names.add(x)",
    "def f(x):\n    return [k for k, v in x.items()]",
    "def f(x):\n    return [k - 1 for k in x.keys()]",
    "def f(x):\n    return x.set(1)",
]
SEEN = [
    "def f(x):\n    return list({'a', 'b'})",
    "def f(x):\n    for y in {'a', 'b'}:\n        x += y",
    "def f(x):\n    s = {y.name for y in x}\n    return list(s)",
    "def f(x):\n    s = {y.name for y in x}\n    return lambda: s",
    "def f(x):\n    s = {x, 1}\n    return 2 in s, s.pop()",
    "def f(x):\n    return {y for y in x}",
    "def f(x):\n    return {*x}",
    "def f(x):\n    return (lambda: list({1, x}))()",
    "def f(x):\n    return list(names)",
    "def f(x):\n    return module.names",
    "def f(x):\n    return set(x)",
    "def f(x):\n    return frozenset(x)",
    "def f(x):\n    return hash(x) + id(x)",
    "def f(x):\n    return x.__hash__()",
    "def f(x):\n    return x.keys() - {}.keys()",
    "def f(x):\n    a = x.items()\n    return a | a",
    "def f(x, y=(frozenset({1}),)):\n    return x in {1} and ({2} or 3)",
]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="elsewhere all sets are refused")
@pytest.mark.parametrize("text", HIDDEN)
def test_code_that_shows_no_order_of_a_set_may_be_stored(text):
    require_no_order(function_of(text).__code__, "m", {"names"})


@pytest.mark.parametrize("text", SEEN)
def test_code_that_may_see_orders_hashes_or_addresses_is_not_stored(text):
    with pytest.raises(NotStoredError):
        require_no_order(function_of(text).__code__, "m", {"names"})


class Held:
    value = 1

    @property
    def shown(self):
        return 1

    @staticmethod
    def made():
        return 1


def around(function):
    def inner(*args):
        return function(*args)

    inner.__wrapped__ = function
    return inner


wrapped = around(Held.made)
TABLE = {"held": Held, ("a", 1): helper}


@pytest.mark.parametrize(
    "value",
    [
        *(
            torch,
            torch.nn.functional,
            os.path,
            Held,
            Held.made,
            torch.relu,
            torch.nn.Linear.forward,
        ),
        *(vars(Held)["shown"].fget, wrapped.__closure__[0], dict.__getitem__, math.sqrt, iter),
        *(vars(torch), sys.modules, globals(), torch._C._functorch.peek_interpreter_stack),
        *(collections.OrderedDict, torch.Tensor.add),
    ],
)
def test_objects_are_found_again(value):
    finder = Finder(scaled, [wrapped], [Held], [__name__])
    path = json.loads(json.dumps(finder.path(value)))
    assert follow(path, scaled) is value


def test_objects_that_are_nowhere_are_not_stored():
    def local():
        return 1

    class Local:
        pass

    for value in (local, Local, object(), [], types.ModuleType("m"), lambda: 1, Held()):
        with pytest.raises(NotStoredError):
            Finder(scaled).path(value)


@pytest.mark.parametrize(
    "path",
    [
        *([], "x", [["module"]], [["module", "no_such_module"]], [["import", "this"]], [[]]),
        *([["function"], ["slot", "gi_frame"]], [["function"], ["call", 1]], [["function"], []]),
        *(
            [["module", "os"], ["own", "abort"]],
            [["module", "os"], ["name", "no"]],
            [["function"], 3],
        ),
        [["function"], ["slot", "__globals__"], ["item", ["eval", "1"]]],
        [["module", "os"], ["name", "environ"], ["item", "HOME"]],
        [["module", "os"], ["name", "environ"], ["slot", "__dict__"]],
    ],
)
def test_paths_that_lead_nowhere_are_refused_and_nothing_runs(path):
    with pytest.raises(DiffersError):
        follow(path, scaled)


def test_no_module_is_imported_for_a_path():
    assert "this" not in sys.modules
    with pytest.raises(DiffersError):
        follow([["module", "this"]], scaled)
    assert "this" not in sys.modules


def test_parts_of_plait_are_loaded_for_a_path(monkeypatch):
    monkeypatch.delitem(sys.modules, "plait_utils.precision", raising=False)
    found = follow([["module", "plait_utils.precision"], ["name", "is_tf32_allowed"]], scaled)
    assert found() in (True, False)


def class_of(**held):
    return type("Made", (held.pop("base", object),), {"__module__": "m", **held})


def test_classes_are_told_apart_by_what_python_defines():
    def one(self):
        return 1

    def other(self):
        return 2

    other.__qualname__ = one.__qualname__
    kinds = [
        class_of(),
        class_of(a=1),
        class_of(a=2),
        class_of(a=1.0),
        class_of(a=one),
        class_of(a=other),
        class_of(a=property(one)),
        class_of(a=staticmethod(one)),
        class_of(base=dict),
        class_of(base=class_of(a=1)),
        class_of(base=class_of(a=2)),
    ]
    contents = [json.dumps(Contents().of(kind)) for kind in kinds]
    assert len(set(contents)) == len(kinds)
    assert contents == [json.dumps(Contents().of(kind)) for kind in kinds]


FORMS = (
    *("Union", "Optional", "List", "Callable", "AnyStr", "Union[int, str]", "Union[int, 'str']"),
    *("Union[int, bytes]", "int | None", "list[int]", "list['int']", "List[int]", "Literal[1]"),
    *("Literal['1']", "Callable[[int], str]", "Callable[[str], str]", "Callable[..., str]"),
    *("Annotated[int, 1]", "Annotated[int, 2]", "Tuple[int, ...]"),
)


def test_forms_of_annotations_are_told_apart_by_names_and_parts():
    forms = [eval(text, dict(vars(typing))) for text in FORMS]
    contents = [json.dumps(Contents().of(form)) for form in forms]
    assert len(set(contents)) == len(forms)
    assert contents == [json.dumps(Contents().of(form)) for form in forms]
    made = typing.TypeVar("made")
    for form in (made, list[made], typing.Annotated[int, weakref.ref(made)]):
        with pytest.raises(NotStoredError):
            Contents().of(form)


CONSTANTS = {
    "_c0": dict.__getitem__,
    "_c1": os.system,
    "_c2": {},
    "_c3": weakref.ref.__call__,
    "_c4": weakref.ref(os.system),
}


@pytest.mark.parametrize(
    "code",
    ["_c0(_c2['a'], 'b')", "type(_a0)", "{} is _c2", "not _a0[1]", "_c3(_a0['r']) is _a1"],
)
def test_expressions_that_read_are_taken(code):
    require_reading(code, CONSTANTS)


@pytest.mark.parametrize(
    "code",
    [
        *(
            "_c1('true')",
            "__import__('os')",
            "_a0.get(1)",
            "_a0.method()",
            "_a0['r']()",
            "_c4()",
            "_c2.clear()",
            "_a0 + 1",
        ),
        *("(lambda: 1)()", "[x for x in _a0]", "_c0(*_a0)", "_a0.__class__", "f'{_a0}'", "x := 1"),
        *("_c0(_a0)(_a0)", "_a0; _a1", "", "(" * 500),
    ],
)
def test_expressions_that_do_more_are_refused(code):
    with pytest.raises(NotStoredError):
        require_reading(code, CONSTANTS)


def test_what_comes_after_a_graph_makes_containers_and_no_more():
    require_simple_body(("_r0 = (_out[0], _a1, _c2,)", "return _r0"))
    require_simple_body(("_r0 = {}", "_r0[_c1] = _out[0]", "return _r0"))
    for line in ("import os", "return _c1()", "_c0.x = 1", "_r0 = _c1(_a0)", "return _out[0]; x()"):
        with pytest.raises(NotStoredError):
            require_simple_body((line,))


def test_only_calls_that_were_traced_come_after_a_graph():
    require_simple_body(("_c1(_b0, level=_c2)", "_b2()", "return _b0"), {"_c1", "_b2"})
    for line in (
        "_c2(_b0)",
        "_b1(_c1)",
        "_c1(_c2())",
        "_c1(_b0.x)",
        "_c1(_b0); _b2()",
        "_r0 = _c1()",
    ):
        with pytest.raises(NotStoredError):
            require_simple_body((line,), {"_c1", "_b2"})


def test_what_a_program_changes_is_written_after_a_graph_and_by_nothing_else():
    constants = {"_c0": dict.__setitem__, "_c1": object.__setattr__, "_c2": setattr, "_c3": exec}
    body = ("_c0(_b0, _c4, _out[1])", "_c1(_a0, 'last', _r0)", "_b1.grad = _out[0]")
    require_simple_body(body, (), constants)
    for line in ("_c2(_a0, 'x', _r0)", "_c3(_b0, _b1)", "_b1.data = _out[0]", "_c0(_b0, f(), _b1)"):
        with pytest.raises(NotStoredError):
            require_simple_body((line,), (), constants)


def learns(x, leaf):
    (x * leaf).sum().backward()
    with torch.no_grad():
        leaf -= 0.5 * leaf.grad


def test_steps_with_gradients_are_stored():
    memory = Memory()
    found = []
    for _ in range(2):
        leaf = torch.ones(3, requires_grad=True)
        step = compiled(learns, memory)
        for _ in range(2):
            step(torch.arange(3.0), leaf)
        found.append((leaf.detach().clone(), leaf.grad, traced(step)))
    assert memory.refused == []
    (value, gradient, _), (again, repeated, is_traced) = found
    assert torch.equal(value, again)
    assert torch.equal(gradient, repeated)
    assert not is_traced
    hooked = torch.ones(3, requires_grad=True)
    hooked.register_hook(lambda gradient: gradient * 10)
    compiled(learns, memory)(torch.arange(3.0), hooked)
    assert torch.equal(hooked.grad, 10 * torch.arange(3.0))


def counts(x, steps):
    steps += 1
    return x * 0.5 ** steps.item()


def test_numbers_that_are_read_of_tensors_are_stored_with_what_is_asked_of_them():
    memory = Memory()
    x = torch.ones(3, dtype=torch.float64)
    for is_stored in (False, True):
        function = compiled(counts, memory)
        for number in (1.0, 5.0, 6.0, float(1 << 24), -3.0):
            steps, expected = torch.tensor(number), torch.tensor(number)
            assert torch.equal(function(x, steps), counts(x, expected))
            assert torch.equal(steps, expected)
        assert traced(function) is not is_stored
    assert memory.refused == []


def halves(x, factor):
    return x / factor if factor > 2 else x * factor


def test_relations_of_numbers_hold_for_stored_entries():
    memory = Memory()
    for _ in range(2):
        function = compiled(halves, memory)
        for factor in (3.0, 4.0, 5.0, 1.0, 1.5, 2.5):
            assert torch.equal(function(torch.ones(3), factor), halves(torch.ones(3), factor))
    assert not traced(function)


@pytest.mark.parametrize(
    "data",
    [
        ["leaf", 0, "", 0],
        ["applied", "__import__('os')", []],
        ["applied", "{0} < {1}", [["constant", 1]]],
        ["applied", "{f}({0})", [["constant", 1]]],
        ["applied", "{0.real}", [["constant", 1]]],
        ["applied", "x", []],
        ["applied", "{0}", [["constant", ["bytes", 3]]]],
        ["applied", "{0}", [["leaf", 0, "data_ptr", 0]]],
        ["applied", "{0}"],
        None,
    ],
)
def test_other_relations_are_refused(data):
    with pytest.raises(DiffersError):
        read_relation(data, lambda number: None)


@pytest.mark.parametrize(
    "data",
    [
        ["eval", [], ["tuple", []]],
        ["count", [["__reduce__", ["tuple", []], []]], ["tuple", [1, 2]]],
        ["read", [["add_", 1, []]], ["tuple", []]],
        ["read", [], ["tuple", ["text"]]],
    ],
)
def test_other_readers_are_refused(data):
    with pytest.raises(DiffersError):
        read_reader(*data)


@functools.lru_cache
def noted(text, *, factor=1):
    return SCALE * factor


def reads_noted(x):
    return x * noted("once", factor=3)


def test_calls_of_functions_with_caches_are_stored_unless_a_cache_holds_something_else(monkeypatch):
    memory = Memory()
    noted.cache_clear()
    compiled(reads_noted, memory)(torch.ones(3))
    assert memory.refused == []
    noted.cache_clear()
    again = compiled(reads_noted, memory)
    assert [float(again(torch.ones(3))[0]) for _ in range(2)] == [6.0, 6.0]
    assert not traced(again)
    assert noted.cache_info()[:2] == (1, 1)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    noted.cache_clear()
    noted("once", factor=3)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    third = compiled(reads_noted, memory)
    assert float(third(torch.ones(3))[0]) == 15.0
    assert traced(third)
    assert "the cache of noted holds another result" in memory.misses


def test_calls_of_functions_with_caches_are_not_stored_where_they_are_given_objects():
    memory = Memory()
    cached = functools.lru_cache(lambda key: 2.0)
    key = Level()

    def f(x):
        return x * cached(key)

    compiled(f, memory)(torch.ones(3))
    assert memory.refused


class Level:
    pass


FIELDS = ["objects", "constants", "sources", "guards", "inputs", "body", "reads", "first_calls"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 3, "x", [3], [[]], [["PYTHON", None, "x"]], {}])
def test_entries_of_another_form_are_refused(field, value):
    memory = Memory()
    compiled(scaled, memory)(torch.randn(3))
    data = json.loads(memory.texts[0])
    data[field] = value
    with pytest.raises((DiffersError, TypeError, ValueError)):
        restored(scaled, data)


def test_numbers_that_a_stored_call_had_become_symbolic_when_they_change():
    memory = Memory()
    compiled(scaled, memory)(torch.randn(3))
    again = compiled(scaled, memory)
    again(torch.randn(3))
    for size in (5, 6, 7):
        x = torch.randn(size)
        assert torch.equal(again(x), scaled(x))
    assert len(again.entries) == 2


def test_objects_are_found_while_other_threads_import(monkeypatch):
    """A list of `sys.modules` allocates, so that collections let other threads run meanwhile."""
    made = (types.ModuleType(f"made_{number}") for number in range(10**6))

    def imported(phase, info):
        module = next(made)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    threshold = gc.get_threshold()
    gc.callbacks.append(imported)
    gc.set_threshold(1)
    try:
        found = Finder(Memory.keep, [], [], []).path(math)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(imported)
    assert found == (["module", "math"],)


def drawing(place, *, reads=True, generator=None):
    """A graph that draws on a device, as it is traced with an input there, or one of the CPU."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device=place if reads else "cpu")
    kwargs = {"device": place, **({"generator": generator} if generator else {})}
    drawn = graph.call_function(torch.rand, (3,), kwargs)
    drawn.meta["val"] = torch.empty(3, device=place)
    graph.output((x, drawn))
    return graph


def test_what_draws_from_generators_that_get_their_states_back_is_stored():
    with FakeMode():
        assert draws_repeatedly(drawing("cpu"))
        assert draws_repeatedly(drawing("cuda:0"))
        assert not draws_repeatedly(drawing("cuda:0", reads=False))
        assert not draws_repeatedly(drawing("cuda:0", generator=torch.Generator()))
        assert not draws_repeatedly(drawing("cpu", generator=torch.Generator()))
