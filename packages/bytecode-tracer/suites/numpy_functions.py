"""Each captured function of NumPy against NumPy itself: `python -m suites.numpy_functions`.

Small expressions of arrays run compiled and plain, over element types and orders in memory.
Classes, types, shapes, strides and flags must be NumPy's, and values within rounding.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer import CompiledFunction

_BINARY = (
    *("x + y", "x - y", "x * y", "x / y", "x // y", "x % y", "x & y", "x | y", "x ^ y"),
    *("x < y", "x <= y", "x == y", "x != y", "x > y", "x >= y", "x << 2", "x >> 1", "divmod(x, y)"),
    *("x + 1", "x + 1.5", "x * True", "2 - x", "x / 2", "2.5 / x", "x ** 2", "x ** 0.5", "x // 2"),
    *("x % 3", "x > 0", "x == 1.5", "x + np.float32(2)", "x * np.int8(2)", "x - np.float64(0.1)"),
    *("np.maximum(x, y)", "np.minimum(x, 1)", "np.fmax(x, y)", "np.fmin(x, y)", "np.hypot(x, y)"),
    *("np.arctan2(x, y)", "np.copysign(x, y)", "np.logaddexp(x, y)", "np.logaddexp2(x, y)"),
    *("np.fmod(x, y)", "np.power(x, 3)", "np.power(x, y)", "np.logical_and(x, y)", "x[0] + y"),
    *(
        "np.logical_or(x, y)",
        "np.logical_xor(x, y)",
        "np.add(x, y, dtype=np.float64)",
        "x + [1, 2]",
    ),
)
_UNARY = (
    *("-x", "+x", "~x", "abs(x)", "np.fabs(x)", "np.sign(x)", "np.rint(x)", "np.floor(x)"),
    *("np.ceil(x)", "np.trunc(x)", "np.sqrt(x)", "np.square(x)", "np.reciprocal(x)", "np.exp(x)"),
    *("np.exp2(x)", "np.expm1(x)", "np.log(x)", "np.log2(x)", "np.log10(x)", "np.log1p(x)"),
    *("np.sin(x)", "np.cos(x)", "np.tan(x)", "np.arcsin(x)", "np.arccos(x)", "np.arctan(x)"),
    *("np.sinh(x)", "np.cosh(x)", "np.tanh(x)", "np.arcsinh(x)", "np.arccosh(x)", "np.arctanh(x)"),
    *("np.deg2rad(x)", "np.rad2deg(x)", "np.isnan(x)", "np.isinf(x)", "np.isfinite(x)"),
    *("np.signbit(x)", "np.logical_not(x)", "np.invert(x)", "np.conjugate(x)", "np.radians(x)"),
    *("np.degrees(x)", "np.positive(x)", "np.bitwise_and(x, 3)", "np.left_shift(x, 70)"),
)
_REDUCTIONS = ("sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "argmax", "argmin")
_REDUCED = (
    *(
        f"np.{n}(x{a})"
        for n in _REDUCTIONS
        for a in ("", ", 0", ", axis=-1", ", axis=1, keepdims=True")
    ),
    *("x.sum(axis=(0, 1))", "x.mean(0)", "x.max()", "x.argmax(1)", "x.any()", "x.std(ddof=1)"),
    *(
        "np.sum(x, dtype=np.float64)",
        "x.sum(keepdims=True)",
        "np.cumsum(x)",
        "np.cumsum(x, axis=1)",
    ),
    *("x.cumprod(0)", "np.count_nonzero(x, axis=0)", "np.diff(x)", "np.diff(x, 2)", "np.sort(x)"),
    *("np.diff(x, axis=0)", "np.sort(x, axis=0)", "np.sort(x, axis=None)", "x.trace()"),
    *("np.argsort(x, axis=0, kind='stable')", "np.searchsorted(np.sort(x[0]), y)", "np.median(x)"),
    *("np.searchsorted(np.sort(x[0]), 1, side='right')", "np.median(x, axis=0)", "np.nansum(x)"),
    *("np.nanprod(x, axis=1)", "x.mean(axis=(0,), keepdims=True)", "np.mean(x, dtype=np.float64)"),
)
_SHAPED = (
    *("x.reshape(-1)", "x.reshape(3, 2)", "np.reshape(x, (1, 6))", "x.ravel()", "x.flatten()"),
    *("x.T", "x.transpose(1, 0)", "np.transpose(x)", "x.swapaxes(0, 1)", "np.moveaxis(x, 0, 1)"),
    *("np.expand_dims(x, 1)", "np.squeeze(x[None])", "x[None].squeeze(0)", "np.atleast_1d(x)"),
    *("np.concatenate([x, y])", "np.concatenate((x, y), axis=1)", "np.stack([x, y])", "x.T.T"),
    *("np.stack((x, y), axis=-1)", "np.vstack([x, y])", "np.hstack([x, y])", "np.dstack([x, y])"),
    *("np.column_stack([x, y])", "np.where(x > 0, x, y)", "np.where(x > 0, x, 0)", "np.tile(x, 2)"),
    *("np.where(x > 0, 1.0, 0)", "np.roll(x, 1)", "np.roll(x, 1, axis=1)", "np.tile(x, (2, 1))"),
    *("np.repeat(x, 2)", "np.repeat(x, 2, axis=0)", "np.split(x, 2)", "np.split(x, [1], axis=1)"),
    *(
        "np.tril(x)",
        "np.triu(x, 1)",
        "np.take(x, [1, 0])",
        "np.take(x, [1, 0], axis=1)",
        "x.copy()",
    ),
    *("np.take_along_axis(x, np.argmax(x, axis=1, keepdims=True), axis=1)", "x.reshape(2, -1).T"),
    *("np.array([x, y])", "np.array([x[0, 0], x[1, 1]])", "np.copy(x)", "np.array(x)", "x.real"),
    *("np.asarray(x)", "np.ascontiguousarray(x)", "np.array(x, dtype=np.float64)", "x.conj()"),
    *("x.astype(np.float32)", "x.astype(bool)", "x.astype(int)", "x.astype(x.dtype, copy=False)"),
    *("np.zeros_like(x)", "np.ones_like(x, dtype=np.int64)", "np.full_like(x, 1)", "np.round(x)"),
    *(
        "np.clip(x, 0, 1)",
        "x.clip(0)",
        "np.clip(x, None, y)",
        "x.round()",
        "np.imag(x) if 0 else x",
    ),
    *(
        "x.shape",
        "x.ndim",
        "x.size",
        "x.dtype",
        "x.itemsize",
        "np.ndim(x)",
        "np.shape(x)",
        "len(x)",
    ),
)
_INDEXED = (
    *("x[0]", "x[-1]", "x[0, 1]", "x[:, 1]", "x[1:, ::2]", "x[...]", "x[..., 0]", "x[None, :, 1]"),
    *("x[0][1:]", "x[[1, 0]]", "x[:, [0, 2]]", "x[[0, 1], [1, 2]]", "x[0, 1] * 2", "list(x)"),
    *("[row.sum() for row in x]", "x[x.argmax(0)[:1]]", "list(x[0])", "[*x.T]", "x[0, 1].dtype"),
    *("x[np.array([True, False])]", "x[x[:, 0] > 0]", "x[x > 0]", "x[0, 1].astype(np.float64)"),
)
_LINEAR = (
    *(
        "x @ y.T",
        "np.dot(x, y.T)",
        "x.dot(y[0])",
        "np.dot(x[0], y[0])",
        "np.inner(x, y)",
        "x @ y[0]",
    ),
    *("np.outer(x, y)", "np.vdot(x, y)", "np.tensordot(x, y, axes=2)", "np.matmul(x, y.T)"),
    *("np.tensordot(x, y, axes=([1], [1]))", "np.einsum('ij,ij->i', x, y)", "np.dot(x[0, 0], y)"),
    *("np.einsum('ij,kj', x, y)", "np.linalg.norm(x)", "np.linalg.norm(x, axis=1)"),
    *("np.linalg.norm(x, 1, axis=0)", "np.linalg.det(x @ x.T)", "np.einsum('ij,ij->', x, y)"),
    *(
        "np.linalg.inv(x[:, :2] + 9 * np.eye(2))",
        "np.linalg.solve(x[:, :2] + 9 * np.eye(2), y[:, 0])",
    ),
    *("np.linalg.solve(x[:, :2] + 9 * np.eye(2), y)", "np.fft.fft(x)", "np.fft.ifft(x, axis=0)"),
    *("np.fft.rfft(x)", "np.fft.irfft(x)", "np.fft.fft(x, 4)", "np.fft.fft2(x)", "np.fft.ifft2(x)"),
    *("np.abs(np.fft.rfft2(x))", "np.fft.rfft(x, norm='ortho')", "np.fft.fft(x).real"),
)
_MADE = (
    *("np.zeros(3)", "np.zeros((2, 3), dtype=np.int32)", "np.ones((2, 1))", "np.full((2,), 7)"),
    *("np.full(2, 1.5, dtype=np.float32)", "np.arange(4)", "np.arange(1, 3, 0.5)", "np.eye(2)"),
    *("np.linspace(0, 1, 5)", "np.identity(3)", "np.array([1, 2])", "np.array([[1.0], [2]])"),
    *("np.array(3)", "np.array([True])", "np.arange(3, dtype=np.float32)", "np.float32(x[0, 0])"),
)
_SCALARS = (
    *(
        "s + 1",
        "s * 2.5",
        "s + s",
        "-s",
        "s > 0",
        "s == s",
        "abs(s)",
        "s ** 2",
        "s / 2",
        "np.sqrt(s)",
    ),
    *("s + x", "x * s", "s.astype(np.float64)", "s.dtype", "s.ndim", "s.shape", "np.maximum(s, 1)"),
    *(
        "s // 2",
        "s % 2",
        "s.item()",
        "x[0].tolist()",
        "float(s) + 1",
        "np.array(s)",
        "np.asarray(s)",
    ),
)
_WRITTEN = (
    *("x.__iadd__(1)", "x.__imul__(y)", "x.__setitem__(0, 1)", "x.__setitem__((0, 1), y[0, 0])"),
    *("x.__setitem__(slice(1, None), y[1:])", "x.__setitem__(x > 0, 0)", "x.fill(1)", "x.sort()"),
    *("x.__setitem__([1, 0], y)", "np.add(x, y, out=x)", "np.sin(x, out=x)", "x.__itruediv__(2)"),
    *("x.__setitem__((slice(None), slice(1, 3)), x[:, :2])", "np.sum(x, axis=0, out=x[0])"),
    *("x.T.__setitem__(0, 5)", "x[0].__iadd__(y[1])", "x.reshape(-1).__setitem__(2, 1)"),
)
_MORE = (
    *("np.ptp(x)", "np.ptp(x, axis=0)", "np.average(x)", "np.average(x, axis=1)", "np.amax(x)"),
    *("np.nanmean(x)", "np.nanmean(x, axis=0)", "np.broadcast_to(x, (2, 2, 3))", "np.vsplit(x, 2)"),
    *("np.hsplit(x, [1])", "np.meshgrid(x[0], y[0])", "np.meshgrid(x[0], y[0], indexing='ij')"),
    *("np.nonzero(x)", "np.flatnonzero(x)", "np.real(x)", "np.imag(x * 1j)", "np.isclose(x, y)"),
    *("np.isclose(x, x[0], equal_nan=True)", "np.empty((2, 3)).shape", "np.empty_like(x).dtype"),
    *(
        "np.round(x, 1)",
        "x.round(2)",
        "np.round(x, -1)",
        "np.around(x, 1)",
        "np.nonzero(x[0] > 0)[0]",
    ),
    *("np.broadcast_to(x, (2, 2, 3)) + 1", "np.broadcast_to(x, (2, 2, 3)).__setitem__(0, 1)"),
)
EXPRESSIONS = (
    *(*_BINARY, *_UNARY, *_REDUCED, *_SHAPED, *_INDEXED, *_LINEAR, *_MADE, *_SCALARS),
    *(*_WRITTEN, *_MORE),
)
DTYPES = ("?", "u1", "i1", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
_TOLERANCE = {"e": 4e-3, "f": 1e-5, "F": 2e-5, "d": 1e-12, "D": 1e-12}


def arrays(dtype: str, order: str, seed: int) -> tuple[Any, Any]:
    """Two arrays of two rows and three columns."""
    random = np.random.default_rng(seed)

    def make() -> Any:
        values: Any = random.integers(-3, 4, (2, 6)) + random.integers(0, 4, (2, 6)) / 4
        if seed == 0 and np.dtype(dtype).kind == "f":
            values[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
        made = (values if dtype != "u1" else abs(values)).astype(dtype)
        if order == "strided":
            return made[:, ::2]
        return np.asarray(made[:, :3], order=order)  # type: ignore[call-overload]  # a str

    return make(), make()


def program(expression: str) -> Callable[[Any, Any], Any]:
    """A function of `x`, `y`, and a scalar `s` in it, that gives the value of an expression."""
    space: dict[str, Any] = {"np": np}
    lines = (
        f"def program(x, y):\n    s = x[1, 1]\n    found = {expression}\n    return found, x, y\n"
    )
    exec(lines, space)
    made: Callable[[Any, Any], Any] = space["program"]
    return made


def difference(actual: Any, expected: Any) -> str | None:
    """How a result differs from NumPy's in what a program can see; None if it does not."""
    if type(actual) is not type(expected):
        return f"a {type(actual).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, list | tuple):
        if len(actual) != len(expected):
            return f"{len(actual)} elements, not {len(expected)}"
        found = map(difference, actual, expected)
        return next((text for text in found if text is not None), None)
    if not isinstance(expected, np.ndarray | np.generic):
        same = actual == expected or (actual != actual and expected != expected)
        return None if same or _close(actual, expected, 1e-5) else f"{actual!r}, not {expected!r}"
    for read in (_dtype, _shape, _strides):
        if read(actual) != read(expected):
            return f"{read.__name__} {read(actual)}, not {read(expected)}"
    if isinstance(expected, np.ndarray):
        for flag in ("OWNDATA", "WRITEABLE", "C_CONTIGUOUS", "F_CONTIGUOUS"):
            if actual.flags[flag] != expected.flags[flag]:
                return f"{flag} {actual.flags[flag]}"
        if type(actual.base) is not type(expected.base):
            return f"a base of {type(actual.base).__name__}"
    return (
        None
        if _close(actual, expected, _TOLERANCE.get(expected.dtype.char, 0))
        else (f"values {actual!r}, not {expected!r}")
    )


def _dtype(value: Any) -> Any:
    return value.dtype


def _shape(value: Any) -> Any:
    return value.shape


def _strides(value: Any) -> Any:
    """The strides, where a program can tell: of axes with more than one element."""
    if value.size == 0:
        return ()
    return [stride for stride, size in zip(value.strides, value.shape, strict=True) if size > 1]


def _close(actual: Any, expected: Any, tolerance: float) -> bool:
    if tolerance == 0 or isinstance(expected, str | type | np.dtype):
        return bool(np.array_equal(actual, expected))
    return bool(np.allclose(actual, expected, tolerance, tolerance, equal_nan=True))


def outcome(function: Callable[[Any, Any], Any], given: tuple[Any, Any]) -> Any:
    """What a call gives, or the class of what it raises; and what became of the arguments."""
    x, y = given
    try:
        result = function(x, y)
    except Exception as error:
        return (type(error).__name__, str(error)), x, y
    same = [value is argument for value, argument in zip(result[1:], given, strict=True)]
    return result[0], same, x, y


class Run:
    """One expression with one kind of arrays, compiled and plain."""

    def __init__(self, expression: str, dtype: str, order: str) -> None:
        self.expression, self.dtype, self.order = expression, dtype, order
        self.graphs = 0
        self.breaks: list[str] = []

    def wrong(self) -> str | None:
        """What is not as NumPy has it, over several calls; None if nothing."""
        function = program(self.expression)
        compiled = CompiledFunction(program(self.expression), self._backend)
        seeds = (1, 2) if "linalg" in self.expression else (1, 2, 0)  # LAPACKs differ on NaN
        for seed in seeds:
            mine = outcome(compiled, arrays(self.dtype, self.order, seed))
            theirs = outcome(function, arrays(self.dtype, self.order, seed))
            found = difference(mine, theirs)
            if found is not None:
                return f"call {seed}: {found}"
        for member in compiled.family():
            self.breaks += [f"{each.code} {each.reason}" for each in member.breaks]
            if member.eager_reason is not None:
                self.breaks.append(f"{member.eager_reason.code} {member.eager_reason.reason}")
        return None

    def _backend(self, module: Any, inputs: Any, capture: Any = None) -> Any:
        self.graphs += 1
        return module


def runs(only: str | None, dtypes: tuple[str, ...]) -> Iterator[Run]:
    for expression, dtype, order in itertools.product(EXPRESSIONS, dtypes, ("C", "F", "strided")):
        if only is None or only in expression:
            yield Run(expression, dtype, order)


def main() -> int:
    """Run all, and print the score; the exit status is 0 if all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="expressions with this in them")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--breaks", action="store_true", help="say where the graph breaks")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count: collections.Counter[str] = collections.Counter()
    for run in runs(options.only, tuple(options.dtype or DTYPES)):
        wrong = run.wrong()
        count["all"] += 1
        count["right"] += wrong is None
        count["whole"] += wrong is None and not run.breaks
        where = f"{run.expression:40} {run.dtype:4} {run.order:8}"
        if wrong is not None:
            print(f"WRONG {where} {wrong}", flush=True)
        elif run.breaks and options.breaks:
            print(f"break {where} {run.breaks[0]}", flush=True)
    whole = f"captured whole {count['whole']}/{count['all']}"
    print(f"correct {count['right']}/{count['all']}, {whole} ({len(EXPRESSIONS)} expressions)")
    return int(count["right"] < count["all"])


if __name__ == "__main__":
    sys.exit(main())
