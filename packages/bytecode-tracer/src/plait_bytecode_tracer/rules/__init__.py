"""Rules for functions that the trace carries out itself; importing this registers them all."""

from plait_bytecode_tracer.rules import (
    ambient,
    autograd,
    containers,
    copying,
    definitions,
    environment,
    exceptions,
    iterators,
    itertools_,
    logs,
    making,
    modes,
    objects,
    optimizers,
    sorting,
    weak,
)

__all__ = [
    "ambient",
    "autograd",
    "containers",
    "copying",
    "definitions",
    "environment",
    "exceptions",
    "iterators",
    "itertools_",
    "logs",
    "making",
    "modes",
    "objects",
    "optimizers",
    "sorting",
    "weak",
]
