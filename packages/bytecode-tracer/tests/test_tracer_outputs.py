"""What is printed, logged and warned of after a graph: where it comes from, and who sees it."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings

import pytest
import torch
from tracer_oracle import compiled

X = torch.ones(2)


@pytest.fixture
def logger():
    """A logger that nobody else listens to."""
    made = logging.getLogger("plait.tests.outputs")
    made.setLevel(logging.INFO)
    made.propagate = False
    yield made
    made.handlers.clear()
    made.filters.clear()


class Keeping(logging.Handler):
    """A handler of the program's, which keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Failing(logging.Handler):
    def emit(self, record):
        raise ValueError(record.getMessage())


def helper(logger, x):
    logger.log(logging.ERROR, "helped")
    return x * 2


def test_records_tell_the_line_that_logs(logger):
    def program(x):
        logger.info("size %d", x.shape[0])
        adapter.warning("next")
        return helper(logger, x)

    adapter = logging.LoggerAdapter(logger)
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(pathname)s:%(lineno)d %(funcName)s: %(message)s"))
    logger.addHandler(handler)
    told = []
    made = compiled(program, fullgraph=True)
    for function in (program, made, made):
        function(X)
        told.append(handler.setStream(io.StringIO()).getvalue())
    assert told[0].count("\n") == 3
    assert told == [told[0]] * 3


def test_what_is_not_enabled_is_not_logged(logger):
    def program(x):
        logger.debug("data %s", x)
        return x + 1

    made = compiled(program, fullgraph=True)
    made(X)
    handler = Keeping()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    followed = compiled(program)
    followed(X)
    assert handler.texts == [f"data {X}"]


def test_a_handler_of_the_program_is_called_where_the_code_logs(logger):
    def program(x):
        logger.info("first")
        count = len(kept.texts)
        logger.info("then %d", count)
        return x * len(kept.texts)

    kept = Keeping()
    made = compiled(program)
    assert torch.equal(made(X), X * 0)
    for handler in (kept, logging.NullHandler()):
        logger.addHandler(handler)
        before = len(kept.texts)
        assert torch.equal(made(X), X * (before + 2))
    assert kept.texts == ["first", "then 1", "first", "then 3"]


def test_an_error_of_a_handler_is_raised_where_the_code_logs(logger):
    def program(x, done):
        done.append(1)
        try:
            logger.info("text")
        except ValueError as error:
            return x, str(error)
        done.append(2)
        return x, ""

    logger.addHandler(Failing())
    made = compiled(program)
    for _ in range(2):
        done = []
        assert made(X, done)[1] == "text"
        assert done == [1]


@pytest.mark.parametrize("kind", ["formatter", "filter", "method", "stream"])
def test_other_code_of_the_program_sees_each_record(logger, kind):
    seen = []

    class Noting(logging.Formatter, io.StringIO):
        def format(self, record):
            seen.append(record.getMessage())
            return super().format(record)

        def filter(self, record):
            seen.append(record.getMessage())
            return True

        def write(self, text):
            seen.append(text.strip())
            return len(text)

    def program(x):
        logger.info("text")
        return x * len(seen)

    handler = logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    made = compiled(program)
    made(X)
    if kind == "formatter":
        handler.setFormatter(Noting())
    elif kind == "filter":
        logger.addFilter(Noting().filter)
    elif kind == "method":
        handler.emit = lambda record: seen.append(record.getMessage())
    else:
        handler.setStream(Noting())
    found = made(X)
    assert seen[0] == "text"
    assert torch.equal(found, X * len(seen))


class Pieces(io.StringIO):
    """A stream of the program's."""

    def __init__(self):
        super().__init__()
        self.pieces = []

    def write(self, text):
        self.pieces.append(text)
        return len(text)


def test_a_stream_of_the_program_is_written_to_where_the_code_prints():
    def program(x, done):
        done.append(1)
        print("text")
        return x * len(getattr(sys.stdout, "pieces", ()))

    made = compiled(program)
    with contextlib.redirect_stdout(io.StringIO()):
        assert torch.equal(made(X, []), X * 0)
    with contextlib.redirect_stdout(Pieces()):
        assert torch.equal(made(X, []), X * 2)
    closed = io.StringIO()
    closed.close()
    done = []
    with contextlib.redirect_stdout(closed), pytest.raises(ValueError, match="closed"):
        made(X, done)
    assert done == [1]


def test_a_function_of_the_program_shows_warnings_where_the_code_warns(monkeypatch):
    def program(x):
        warnings.warn("text", stacklevel=1)
        return x * len(shown)

    shown = []
    made = compiled(program)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(UserWarning, match="text"):
            assert torch.equal(made(X), X * 0)
        monkeypatch.setattr(warnings, "showwarning", lambda *args, **kwargs: shown.append(args))
        assert torch.equal(made(X), X)
