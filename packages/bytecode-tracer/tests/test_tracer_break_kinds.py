"""The table of causes of graph breaks: each example breaks with its code, and runs right."""

from __future__ import annotations

import contextlib
import textwrap

import pytest
import torch
from tracer_oracle import compiled

from plait_bytecode_tracer import BREAKS

EXAMPLES = [kind for kind in BREAKS.values() if kind.example]


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.code)
def test_example_breaks_with_its_code(kind):
    namespace = {}
    exec(textwrap.dedent(kind.example), namespace)
    made = compiled(namespace["function"])
    raises = pytest.raises(ValueError) if kind.code == "GB0006" else contextlib.nullcontext()
    with raises:
        for _ in range(9 if kind.code == "GB0020" else 1):  # what changes is seen in many calls
            made(torch.tensor([1.0, 2.0]))
    assert next(b.code for member in made.family() for b in member.breaks) == kind.code


def test_every_cause_says_what_it_means_and_what_to_do():
    for code, kind in BREAKS.items():
        assert kind.code == code
        assert kind.title
        assert kind.hint.endswith(".")
        assert kind.meaning.endswith(".")
        assert kind.example or code == "GB0012"
