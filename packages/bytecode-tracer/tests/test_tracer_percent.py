"""`text % tensor` gives what eager's tensor says of itself."""

import operator

import pytest
import torch
from tracer_oracle import check

GIVEN = {
    "a tensor": ("loss: %s", lambda x: x * 2),
    "an argument": ("%r", lambda x: x),
    "a tuple": ("%s of %5.2f", lambda x: (x, 1.5)),
    "a dict": ("%(loss)s", lambda x: {"loss": x + 1}),
    "a list": ("%s", lambda x: [x, x + 1]),
    "a number": ("%d", lambda x: x * 3),
    "numbers": ("%d and %.3f", lambda x: (x, x)),
    "too few": ("%s %s", lambda x: x),
    "too many": ("nothing", lambda x: x),
    "for bytes": (b"%s", lambda x: x),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("remainder", [operator.mod, operator.imod, lambda text, x: text % x])
def test_text_is_that_of_eager(name, remainder):
    text, given = GIVEN[name]

    def program(x):
        try:
            return remainder(text, given(x)) + text[:0]
        except TypeError as error:
            return str(error)

    check(program, torch.tensor(3.0))
