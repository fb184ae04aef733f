"""`super()`: what it finds in classes of the caller and of the program, and what it is itself."""

from __future__ import annotations

import torch

from conformance.declare import case, with_x


class Base:
    msg = "base"

    def double(self, x):
        return x * 2


@case(with_x(0, 1))
def super_attributes_that_it_has_itself(x, n):
    class Child(Base):
        def find(self):
            made = super()
            return made.__thisclass__ is Child, made.__self__ is self, made.__class__.__name__

    return x * n, Child().find()


@case(with_x("msg", "missing", "__self_class__"))
def super_attribute_that_may_be_missing(x, name):
    class Child(Base):
        def find(self):
            try:
                return getattr(super(), name)
            except AttributeError as error:
                return str(error)

        def direct(self):
            return super().missing

    try:
        Child().direct()
    except AttributeError as error:
        return x, str(Child().find()).rpartition(".")[2], str(error)


@case(with_x(0, 1, 0))
def super_of_the_programs_own(x, n):
    class Plain:
        msg = "own"

    class Child(Base):
        def find(self):
            return super().msg

    space = globals()
    if n:
        space["super"] = Plain
    try:
        return x, Child().find()
    finally:
        space.pop("super", None)


@case(with_x(0, 1, 2))
def super_that_finds_no_class(x, n):
    def alone():
        super()

    class Odd:
        def deleted(self):
            del self
            super()

        def emptied(self):
            nonlocal __class__
            del __class__
            super()

    call = (alone, lambda: Odd().deleted(), lambda: Odd().emptied())[n]
    try:
        call()
    except RuntimeError as error:
        return x, str(error)


@case(with_x(1, 3))
def super_attribute_after_a_break(x, n):
    class Child(Base):
        def run(self, x):
            torch._dynamo_is_not_here = None  # a write to a module that is not traced through
            return super().double(x) + len(super().msg)

    try:
        return Child().run(x) * n
    finally:
        del torch._dynamo_is_not_here
