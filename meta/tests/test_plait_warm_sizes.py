"""For which inputs stored programs with open sizes are right: conditions as text, and no more."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from plait.numbers import Split
from plait.shapes import Served
from plait.warm_sizes import serving, write_served
from plait_bytecode_tracer.stored import DiffersError, NotStoredError

CONDITIONS = """def fits(inputs):
    n0 = inputs[0].shape[0]
    n1 = inputs[0].stride(0)
    return bool(
        n0 >= 2
        and inputs[0].shape == (n0, 6, )
        and inputs[0].stride() == (n1, 1, )
        and ((n0 * n1) // 2 <= 60)
        and (not (n0 == 7))
    )"""


def add_all(*given):
    return sum(given)


def test_a_program_is_given_inputs_that_it_is_right_for_and_no_others():
    served = serving(add_all, *write_served(Served((0,), (), None, CONDITIONS)))
    for size in (2, 9, 20):
        x = torch.ones(size, 6)
        assert torch.equal(served(x), x)
    for x in (torch.ones(1, 6), torch.ones(21, 6), torch.ones(7, 6), torch.ones(6, 4).T):
        with pytest.raises(DiffersError):
            served(x)


def test_a_program_is_given_what_is_computed_of_floats():
    graph = fx.Graph()
    one, two = graph.placeholder("one"), graph.placeholder("two")
    graph.output((graph.call_function(pow, (one, two)),))
    with pytest.raises(NotStoredError):
        write_served(Served((1,), (0, 2), Split(None, None, graph), None))
    graph = fx.symbolic_trace(lambda one, two: (one / two, 1 - two)).graph
    written = write_served(Served((1,), (0, 2), Split(None, None, graph), None))
    served = serving(lambda *given: given, *written)
    assert served(3.0, "a tensor", 2.0) == ("a tensor", 1.5, -1.0)


@pytest.mark.parametrize(
    "text",
    [
        CONDITIONS.replace("n0 >= 2", "open('x')"),
        CONDITIONS.replace("n0 >= 2", "math.log(n0) > 1"),
        CONDITIONS.replace("n0 >= 2", "inputs[0].data_ptr() > 0"),
        CONDITIONS.replace("n0 >= 2", "inputs[0].stride(n0) > 0"),
        CONDITIONS.replace("n0 >= 2", "other > 0"),
        CONDITIONS.replace("n0 >= 2", "n0 ** n0 ** n0"),
        CONDITIONS.replace("inputs[0].shape[0]", "exec"),
        CONDITIONS.replace("n0 =", "torch ="),
        CONDITIONS.replace("(inputs)", "(inputs, more=print())"),
        CONDITIONS.replace("def fits", "@print\ndef fits"),
        CONDITIONS.replace("return bool", "return print"),
        CONDITIONS + "\nprint()",
        "import os",
        "",
        "(",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(NotStoredError):
        write_served(Served((0,), (), None, text))
    with pytest.raises(DiffersError):
        serving(add_all, [0], [], None, text)
