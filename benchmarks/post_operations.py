"""What oneDNN's post-operations would gain: packed calls with one, against the call and a pass.

    python -m benchmarks.post_operations

On one thread; a call, the same with a post-operation, and the same with torch's own operator after
it, in turns. Processor milliseconds, medians. Then what each post-operation makes of values that
are no numbers. `results/post_operations.md` is its output.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

Form = tuple[str, str, Callable[[Tensor], Tensor]]
"""A post-operation, its algorithm, and torch's operator."""

FORMS: tuple[Form, ...] = (
    ("relu", "", torch.relu_),
    ("gelu", "none", F.gelu),
    ("swish", "", lambda value: F.silu(value, inplace=True)),
)
PRODUCTS = ((64, 256, 1024), (512, 256, 1024), (128, 768, 3072), (512, 3072, 768))
"""Rows, elements that are multiplied, columns."""
CONVOLUTIONS = ((2, 64, 28, 64, 3), (2, 256, 7, 256, 3), (4, 32, 64, 64, 3), (2, 64, 56, 256, 1))
"""Images, channels, height and width, channels of the result, width of the window."""
_SECONDS = 0.5


def main() -> None:
    torch.set_num_threads(1)
    print("| call | post-operation | call alone, ms | with it | call and a pass | gain |")
    print("|---|---|---:|---:|---:|---:|")
    with torch.no_grad():
        for rows, inner, columns in PRODUCTS:
            print_rows(f"product {rows}x{inner}x{columns}", *product(rows, inner, columns))
        for sizes in CONVOLUTIONS:
            print_rows("convolution " + "x".join(map(str, sizes)), *convolution(*sizes))
        print()
        for name, algorithm, _ in FORMS:
            made = special(name, algorithm)
            print(f"- `{name}` of NaN, inf, -inf: {', '.join(f'{each:g}' for each in made)}")


Call = Callable[[str, str], Tensor]


def product(rows: int, inner: int, columns: int) -> tuple[Call, Callable[[Tensor], Tensor], Tensor]:
    """A packed product, one that adds a tensor, and that tensor."""
    value, weight, bias = (
        torch.randn(rows, inner),
        torch.randn(columns, inner),
        torch.randn(columns),
    )
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    operator = torch.ops.mkldnn._linear_pointwise
    return (
        lambda name, algorithm: operator(value, packed, bias, name, [], algorithm),
        lambda other: operator.binary(value, other, packed, bias, "add"),
        torch.randn(rows, columns),
    )


def convolution(
    images: int, channels: int, size: int, made: int, width: int
) -> tuple[Call, Callable[[Tensor], Tensor], Tensor]:
    """The same of a convolution of images with channels last."""
    layout = torch.channels_last
    image = torch.randn(images, channels, size, size).contiguous(memory_format=layout)
    weight, bias = torch.randn(made, channels, width, width), torch.randn(made)
    how = [width // 2] * 2, [1, 1], [1, 1], 1
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *how, list(image.shape))
    operator = torch.ops.mkldnn._convolution_pointwise
    return (
        lambda name, algorithm: operator(image, packed, bias, *how, name, [], algorithm),
        lambda other: operator.binary(image, other, packed, bias, *how, "add", 1.0, None, [], None),
        torch.randn(images, made, size, size).contiguous(memory_format=layout),
    )


def print_rows(what: str, call: Call, adding: Callable[[Tensor], Tensor], other: Tensor) -> None:
    def alone() -> Tensor:
        return call("none", "")

    cases: list[tuple[str, Callable[[], Tensor], Callable[[], Tensor]]] = [
        (name, lambda n=name, a=algorithm: call(n, a), lambda p=after: p(alone()))  # type: ignore[misc]  # bound early
        for name, algorithm, after in FORMS
    ]
    cases.append(("add", lambda: adding(other), lambda: alone().add_(other)))
    for name, fused, apart in cases:
        bare, one, two = in_turns(alone, fused, apart)
        print(f"| {what} | {name} | {bare:.3g} | {one:.3g} | {two:.3g} | {two / one:.2f}× |")


def in_turns(*calls: Callable[[], object]) -> Iterator[float]:
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, found in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            found.append(time.process_time() - start)
    return (statistics.median(found) * 1e3 for found in times)


def special(name: str, algorithm: str) -> list[float]:
    """What a post-operation makes of a product whose bias has these values."""
    values = torch.tensor([math.nan, math.inf, -math.inf])
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(3, 16), 1)
    made = torch.ops.mkldnn._linear_pointwise(
        *(torch.zeros(1, 16), packed, values, name, [], algorithm)
    )
    found: list[float] = made[0].tolist()
    return found


if __name__ == "__main__":
    main()
