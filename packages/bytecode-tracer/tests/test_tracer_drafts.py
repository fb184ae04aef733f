"""What is made while a backend waits for a compiler."""

from __future__ import annotations

import torch

import plait_bytecode_tracer as tracer
from plait_bytecode_tracer.guards.native import NATIVE


def program(x, y):
    return torch.relu(x) + y


def compiled_by(backend, monkeypatch):
    monkeypatch.setattr(NATIVE, "module", None)
    monkeypatch.setattr(NATIVE, "request", lambda *args, **kwargs: None)
    return tracer.CompiledFunction(program, backend)


def is_of(entry, code):
    """Whether an entry runs what a draft defines, and not what is equal to that."""
    return any(each is entry.run.__code__ for each in code.co_consts)


def test_the_python_of_an_entry_is_made_while_a_backend_waits(monkeypatch):
    captures = []

    def backend(module, inputs, capture):
        capture.meanwhile()
        capture.meanwhile()  # as where a signal interrupts it
        captures.append(capture)
        return module.forward

    compiled = compiled_by(backend, monkeypatch)
    x, y = torch.randn(2, 3).unbind()
    assert torch.equal(compiled(x, y), program(x, y))
    (capture,) = captures
    assert capture.meanwhile is None
    (entry,) = compiled.entries
    assert is_of(entry, capture.draft[1])
    assert torch.equal(compiled(y, x), program(y, x))
    assert torch.equal(compiled(x.double(), y), program(x.double(), y))
    assert len(compiled.entries) == 2


def test_a_draft_of_other_guards_is_not_used(monkeypatch):
    captures = []

    def backend(module, inputs, capture):
        capture.meanwhile()
        capture.draft = (None, capture.draft[1])
        captures.append(capture)
        return module.forward

    compiled = compiled_by(backend, monkeypatch)
    x, y = torch.randn(2, 3).unbind()
    assert torch.equal(compiled(x, y), program(x, y))
    (entry,) = compiled.entries
    assert not is_of(entry, captures[0].draft[1])
