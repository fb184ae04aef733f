"""Graphs that fail after they changed tensors, in blocks, handlers and around breaks."""

from __future__ import annotations

import contextlib
import contextvars

import torch

from conformance.declare import case
from conformance.midway import Operand
from conformance.midway import needing_gradients as _with_gradients
from conformance.midway import world as _world

_setting = contextvars.ContextVar("setting", default=0)


@case(_world, traceback=True)
def a_mode_of_torch(x, place, table, own):
    x.add_(1)
    with torch.no_grad():
        own.log.append(torch.is_grad_enabled())
        y = table[place]
    own.log.append(torch.is_grad_enabled())
    return y


@case(_world, traceback=True)
def modes_in_functions(x, place, table, own):
    def read():
        with torch.autocast("cpu"):
            own.log.append(torch.is_autocast_enabled("cpu"))
            return table[place]

    x.add_(1)
    with torch.no_grad():
        return read()


@case(_world, traceback=True, then=lambda result: torch.is_grad_enabled())
def a_mode_that_is_left_set(x, place, table, own):
    x.add_(1)
    torch.set_grad_enabled(False)
    own.n = 1
    y = table[place]
    torch.set_grad_enabled(True)
    return y


@torch.no_grad()
def _read_without_gradients(x, place, table, own):
    own.log.append("inside")
    x.add_(1)
    return table[place]


@case(_with_gradients, traceback=True)
def a_decorated_function(x, place, table, own):
    own.n = 1
    return _read_without_gradients(x, place, table, own)


@case(_world, traceback=True)
def a_manager(x, place, table, own):
    x.add_(1)
    with Operand(own, x, table):
        own.n += 1
        y = table[place]
        own.n += 1
    return y


@case(_world, traceback=True)
def finally_after_a_change(x, place, table, own):
    x.add_(1)
    try:
        own.n += 1
        return table[place]
    finally:
        own.log.append(own.n)


@case(_world, traceback=True)
def handled_around_a_function(x, place, table, own):
    def read():
        own.n += 1
        x.add_(1)
        return torch.linalg.inv(table[place].reshape(1, 1))

    try:
        y = read()
    except (RuntimeError, IndexError) as error:
        own.log.append(type(error).__name__)
        y = x
    return y * own.n


@case(_world, traceback=True)
def within_a_handler(x, place, table, own):
    try:
        raise ValueError("first")
    except ValueError as error:
        x.add_(1)
        own.log.append(str(error))
        return table[place]


@case(_world, traceback=True)
def a_loop_with_a_handler(x, place, table, own):
    for n in range(3):
        try:
            x.add_(1)
            own.n += 1
            own.h = table[place - n]
        except IndexError:
            own.log.append(n)
            continue
    return x


@case(_world, traceback=True)
def the_context(x, place, table, own):
    _setting.set(_setting.get() + 1)
    x.add_(1)
    y = table[place]
    _setting.set(100)
    return y


@case(_world, traceback=True)
def after_a_break(x, place, table, own):
    own.n += 1
    if float(x.sum()) > 100:
        return x
    own.n += 1
    x.add_(1)
    y = table[place]
    own.n += 100
    return y


@case(_world, traceback=True)
def after_a_break_in_a_function(x, place, table, own):
    def inner():
        own.log.append("in")
        float(x.sum())
        x.mul_(2)
        own.log.append("after")
        return table[place]

    with torch.no_grad():
        y = inner()
    own.log.append("never")
    return y


@case(_world, traceback=True)
def before_a_break(x, place, table, own):
    own.n += 1
    x.add_(1)
    y = table[place]
    own.n += 1
    own.log.append(float(y.sum()))
    return y


@case(_world, traceback=True)
def suppressed(x, place, table, own):
    x.add_(1)
    with contextlib.suppress(IndexError):
        own.h = table[place]
        own.n = 1
    return x * own.n
