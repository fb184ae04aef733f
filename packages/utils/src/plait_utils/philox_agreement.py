"""Whether a GPU's operators draw the numbers that `plait_utils.philox` says.

Which numbers ATen's kernels draw is not promised: another version of torch, or a GPU of another
vendor, may draw others. So they are compared once for a GPU, on private generators and few numbers,
before the first program relies on it; the disk cache keeps what was found. What follows from words
by arithmetic is compared with torch's; what a GPU's own logarithms and sines make of them with that
of kernels (`plait_utils.philox_functions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from plait_utils._version import __version__
from plait_utils.cache import DiskCache
from plait_utils.hashing import stable_hash
from plait_utils.log import get_logger, warn_once
from plait_utils.philox import UNROLL, advance, neighbours, threads_of, uniform_at
from plait_utils.philox_numbers import integers_at, integers_between, integers_unbounded


class Kind(Enum):
    """What draws alike; the value says it in words."""

    DROPOUT = "dropout"
    UNIFORM = "uniform numbers"
    BERNOULLI = "zeros and ones of one probability"
    INTEGERS = "random integers"
    NORMAL = "normal numbers"
    DOUBLE_NORMAL = "normal numbers of float64"
    LOG_NORMAL = "log-normal numbers"
    DOUBLE_LOG_NORMAL = "log-normal numbers of float64"
    EXPONENTIAL = "exponential numbers"
    DOUBLE_EXPONENTIAL = "exponential numbers of float64"


DOUBLES = {
    Kind.NORMAL: Kind.DOUBLE_NORMAL,
    Kind.LOG_NORMAL: Kind.DOUBLE_LOG_NORMAL,
    Kind.EXPONENTIAL: Kind.DOUBLE_EXPONENTIAL,
}
"""Of what is made by a GPU's own functions, what draws float64."""
BY_FUNCTIONS = frozenset((*DOUBLES, *DOUBLES.values()))
"""What only kernels of GPUs compute to the last bit."""
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 40
FEW = 1000
_KEPT = 0.75
"""The probability of the comparison's dropouts and ones."""
_SAMPLES = 509
"""Of long tensors so many elements are compared."""
Draw = Callable[[torch.Generator], Tensor]
Compute = Callable[[Callable[[Tensor], "tuple[Tensor, ...]"], Tensor], Sequence[Tensor]]
"""Gives the results of a function of a generator's state, as kernels compute them."""


def agrees(kind: Kind, device: torch.device, compute: Compute | None = None) -> bool:
    """Whether what draws on a device draws as plait says: on a CPU nothing, nor while a graph is
    being recorded.

    Args:
        kind: what draws.
        device: where it does.
        compute: gives what kernels compute for the device; without it nothing agrees that is made
            by its own functions.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    if kind in BY_FUNCTIONS:
        return compute is not None and kind in _known(index, frozenset({kind}), compute)
    return kind in _known(index, frozenset(Kind) - BY_FUNCTIONS, None)


_answers: dict[tuple[int, frozenset[Kind]], frozenset[Kind]] = {}
"""By GPU, and by what was compared at once; `forget` empties it."""


def forget() -> None:
    """Let this process ask the disk cache, or the GPU, again."""
    _answers.clear()


def _known(index: int, kinds: frozenset[Kind], compute: Compute | None) -> frozenset[Kind]:
    """Of the kinds those that agree."""
    asked = index, kinds
    if asked in _answers:
        return _answers[asked]
    store, key = DiskCache(), _key(index, kinds)
    data = store.get(key)
    if data is not None:
        found = frozenset(map(Kind, json.loads(data)))
        return _answers.setdefault(asked, found)
    device = torch.device("cuda", index)
    try:
        with torch.no_grad(), _disable_current_modes():
            found = frozenset(kind for kind in kinds if differing(kind, device, compute) is None)
    except RuntimeError as error:  # such as a lack of memory, which passes
        get_logger("draws").info("what %s draws could not be compared: %s", device, error)
        return frozenset()
    _answers[asked] = found
    store.put(key, json.dumps(sorted(kind.value for kind in found)).encode())
    for kind in kinds - found:
        message = "%s on %s are drawn by torch's kernels: this torch draws others than plait knows"
        warn_once("draws", f"{kind.value} {index}", message, kind.value, device)
    return found


def _key(index: int, kinds: frozenset[Kind]) -> str:
    from importlib import metadata

    found = torch.cuda.get_device_properties(index)
    versions = [__version__]
    if kinds & BY_FUNCTIONS:  # Triton brings what it calls
        versions += [each.version for each in metadata.distributions(name="triton")]
    torchs = (torch.__version__, torch.version.git_version, torch.version.cuda, torch.version.hip)
    gpu = found.name, found.major, found.minor, found.multi_processor_count
    names = sorted(kind.value for kind in kinds)
    return stable_hash("philox agreement", *names, *versions, *torchs, *gpu)


def differing(kind: Kind, device: torch.device, compute: Compute | None = None) -> str | None:
    """Where what operators of a kind draw is first found to differ, in words; None: nowhere.

    Raises RuntimeError where they could not be compared.
    """
    try:
        if kind not in BY_FUNCTIONS:
            with torch._C.DisableTorchFunction():
                return next((found for found in _CASES[kind](device) if found is not None), None)
        if compute is None:
            return f"{kind.value} are made by functions of kernels, which are not given"
        from plait_utils.philox_functions import differing_by_functions

        return differing_by_functions(kind, device, compute)
    except (NotImplementedError, AttributeError) as error:  # another torch lacks it
        return str(error)


def drawn(draw: Draw, device: torch.device) -> tuple[Tensor, int]:
    """What is drawn from a private generator, and how far that moves on."""
    generator = torch.Generator(device).manual_seed(SEED)
    generator.set_offset(OFFSET)
    return draw(generator), generator.get_offset() - OFFSET


def _positions(count: int, threads: int) -> Tensor:
    """Some of so many."""
    if count <= 2 * FEW:
        return torch.arange(count)
    ends = [0, 1, threads - 1, threads, 2 * threads, 4 * threads - 1, 4 * threads, count - 1]
    spread = torch.linspace(0, count - 1, _SAMPLES, dtype=torch.float64).to(torch.int64)
    return torch.cat([torch.tensor([n for n in ends if n < count]), spread])


@cache
def _expected(count: int, threads: int, vector: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Some positions of so many, and the numbers there."""
    position = _positions(count, threads)
    return position, uniform_at(position, _state(), 0, threads, vector, dtype)


def _state() -> Tensor:
    return torch.tensor([SEED, OFFSET])


def _compared(
    what: str, found: Tensor, moved: int, position: Tensor, expected: Tensor, step: int
) -> str | None:
    if moved != step:
        return f"{what} moves the generator on by {moved}, not {step}"
    given = found.flatten()[position.to(found.device)].cpu()
    wrong = (given != expected).nonzero().flatten()
    if not len(wrong):
        return None
    first = int(wrong[0])
    values = f"{given[first].item()!r}, not {expected[first].item()!r}"
    return f"{what} has {values} at {int(position[first])}; {len(wrong)} differ"


def dropout_scale(kept: float, dtype: torch.dtype) -> tuple[float, float]:
    """With which probability ATen keeps elements of a dtype, and by what it multiplies them, as
    float64 of numbers that its kernel has."""
    if dtype is torch.float64:
        return kept, 1.0 / kept
    probability = _single(kept)
    return probability, _single(1.0 / probability)


def _single(number: float) -> float:
    """Rounded to float32."""
    return float(torch.tensor(number, dtype=torch.float32, device="cpu"))


def _dropouts(device: torch.device) -> Iterator[str | None]:
    threads = threads_of(device)
    short = (FEW + rest for rest in (0, 1, 2, 4))
    for count in (*short, 17 * threads + 24, 5 * threads + 1):
        for dtype in FLOATS:
            vector = neighbours(count, dtype)
            position, numbers = _expected(count, threads, vector, torch.float32)
            kept, scale = dropout_scale(_KEPT, dtype)
            x = torch.ones(count, dtype=dtype, device=device)

            def draw(generator: torch.Generator, x: Tensor = x) -> Tensor:
                return torch._fused_dropout(x, _KEPT, generator)[0]

            expected = ((numbers.double() < kept).double() * scale).to(dtype)
            what = f"a dropout of {count} {dtype}"
            step = advance(count, threads, UNROLL[torch.float32])
            yield _compared(what, *drawn(draw, device), position, expected, step)


def _uniforms(device: torch.device) -> Iterator[str | None]:
    threads = threads_of(device)
    for count in (FEW, 5 * threads + 17):
        for dtype in FLOATS:
            wide = torch.float64 if dtype is torch.float64 else torch.float32
            position, numbers = _expected(count, threads, 1, wide)
            expected = torch.where(numbers.to(dtype) == 1, 0.0, numbers.to(dtype))

            def draw(
                generator: torch.Generator, count: int = count, of: torch.dtype = dtype
            ) -> Tensor:
                return torch.empty(count, dtype=of, device=device).uniform_(generator=generator)

            step = advance(count, threads, UNROLL[wide])
            what = f"{count} uniform {dtype}"
            yield _compared(what, *drawn(draw, device), position, expected, step)


def _bernoullis(device: torch.device) -> Iterator[str | None]:
    threads = threads_of(device)
    for count in (FEW, 5 * threads + 17):
        for dtype in (*FLOATS, torch.int64, torch.bool):
            wide = torch.float64 if dtype is torch.float64 else torch.float32
            position, numbers = _expected(count, threads, 1, wide)
            expected = (numbers < _KEPT).to(dtype)

            def draw(
                generator: torch.Generator, count: int = count, of: torch.dtype = dtype
            ) -> Tensor:
                made = torch.empty(count, dtype=of, device=device)
                return made.bernoulli_(_KEPT, generator=generator)

            step = advance(count, threads, UNROLL[wide])
            what = f"{count} zeros and ones of {dtype}"
            yield _compared(what, *drawn(draw, device), position, expected, step)


_RANGES = ((0, 10), (-3, 5), (0, 2**28 - 1), (-5, 2**28 - 5), (-(2**40), 2**41 + 1), (0, 2**56))
"""Integers are compared from and to these, where a dtype has them."""


def _integers(device: torch.device) -> Iterator[str | None]:
    threads = threads_of(device)
    dtypes = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
    for count, dtype in product((FEW, 5 * threads + 17), dtypes):
        position = _positions(count, threads)
        for bounds in ((), *_RANGES, (0, 2)):
            made = integers_between(*bounds, dtype) if bounds else integers_unbounded(dtype)
            if made is None:
                continue
            numbers = integers_at(position, _state(), 0, threads, *made)

            def draw(
                generator: torch.Generator,
                count: int = count,
                of: torch.dtype = dtype,
                bounds: tuple[int, ...] = bounds,
            ) -> Tensor:
                empty = torch.empty(count, dtype=of, device=device)
                return empty.random_(*bounds, generator=generator)

            what = f"{count} integers {bounds} as {dtype}"
            step = advance(count, threads, 4 // made.words)
            found = *drawn(draw, device), position, numbers.to(dtype), step
            yield _compared(what, *found)


_CASES: dict[Kind, Callable[[torch.device], Iterator[str | None]]] = {
    Kind.DROPOUT: _dropouts,
    Kind.UNIFORM: _uniforms,
    Kind.BERNOULLI: _bernoullis,
    Kind.INTEGERS: _integers,
}
