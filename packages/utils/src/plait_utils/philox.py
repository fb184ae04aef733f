"""The random numbers of torch's generators of GPUs, as a function of the generator's state.

Such a generator is a seed and an offset. ATen's kernels draw by cuRAND's Philox-4x32 with 10 rounds
(J. Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011): its key is the seed, its
counter is made of a thread's number, the *subsequence*, and of the offset and how often that thread
has drawn. Which thread draws an element, and as which of its numbers, follows from the element's
position and from how many threads a GPU runs at once. So loops compute what eager draws where they
need it, in any order, from a seed and an offset that are reserved once: `RESERVE` moves the
generator on as far as eager's operators would. Backends compute the same.

Two ways of sharing positions out are ATen's. Kernels of distributions give the threads neighbouring
positions, and of each round's four numbers (two of float64) each is for a position as many further
as there are threads. A dropout whose memory may be read in vectors gives each thread a vector of
neighbouring positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait_utils.forks import new_lock

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
"""Of a round."""
WEYL = 0x9E3779B9, 0xBB67AE85
"""What the halves of the key grow by from round to round."""
ROUNDS = 10
WORD = 0xFFFFFFFF
"""The bits of a word."""
BLOCK = 256
"""Threads of a block of ATen's kernels."""
STEP = 4
"""What offsets are multiples of: the numbers of a counter."""
UNROLL = {torch.float32: 4, torch.float64: 2}
"""How many numbers of a dtype a counter gives."""
_MOST_NEIGHBOURS, _VECTOR_BYTES = 8, 16

_library: Any
_library = torch.library.Library("plait_philox", "DEF")  # type: ignore[no-untyped-call]  # as torch has it
_library.define(
    "reserve(SymInt count, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define(
    "uniform(Tensor state, SymInt[] size, SymInt start, int threads, int vector, ScalarType dtype)"
    " -> Tensor"
)
_taking = new_lock()


def philox(key: Tensor, counter: Tensor, subsequence: Tensor, lane: Tensor | int) -> Tensor:
    """The word `lane`, of 0 to 3, of Philox-4x32 with 10 rounds; all are int64, and broadcast.

    The key and the counter, whose high half is the subsequence, have 64 bits each.
    """
    first, second = (half & WORD for half in (counter, counter >> 32))
    third, fourth = (half & WORD for half in (subsequence, subsequence >> 32))
    for turn in range(ROUNDS):
        low, high = key + turn * WEYL[0], (key >> 32) + turn * WEYL[1]
        left, right = first * MULTIPLIERS[0], third * MULTIPLIERS[1]
        first, third = ((right >> 32) ^ second ^ low) & WORD, ((left >> 32) ^ fourth ^ high) & WORD
        second, fourth = right & WORD, left & WORD
    found = fourth
    for number, word in enumerate((first, second, third)):
        found = torch.where(torch.as_tensor(lane) == number, word, found)
    return found


class Place(NamedTuple):
    """Which of a generator's numbers a position gets."""

    subsequence: Any
    round: Any
    """How often its thread has drawn before."""
    number: Any
    """Of the numbers that it draws at once."""


def place(position: Any, threads: int, vector: int, unroll: int) -> Place:
    """That of a position, by `//` and `%`: of an int, a tensor, or an expression.

    Args:
        position: of an element among those that are drawn, in the order of memory.
        threads: how many the GPU runs at once, at most.
        vector: how many neighbours a thread draws; 1 where it draws none.
        unroll: how many numbers are drawn at once.
    """
    if vector == 1:
        turn = position // threads
        return Place(position % threads, turn // unroll, turn % unroll)
    group, within = position // vector, position % vector
    rounds = max(vector // unroll, 1)
    turn = group // threads * rounds + within // unroll
    return Place(group % threads, turn, within % unroll)


def advance(count: int, threads: int, unroll: int) -> int:
    """How far an operator that draws so many numbers moves the offset."""
    return ((count - 1) // (threads * unroll) + 1) * STEP


def neighbours(count: int, dtype: torch.dtype) -> int:
    """How many neighbours a thread of a dropout draws, whose operand has so many elements and may
    be read from anywhere: in vectors of up to 16 bytes, of which none is cut off at the end."""
    most = min(_MOST_NEIGHBOURS, _VECTOR_BYTES // dtype.itemsize)
    return math.gcd(count, most) if count else most


def threads_of(device: torch.device) -> int:
    """How many threads of ATen's kernels a GPU runs at once, at most."""
    found = torch.cuda.get_device_properties(device)
    return int(found.multi_processor_count * (found.max_threads_per_multi_processor // BLOCK)) * (
        BLOCK
    )


def take(device: int, count: int) -> tuple[int, int]:
    """The seed and the offset of a GPU's default generator, which is moved on by `count`; both as
    signed numbers of 64 bits.

    Other threads that take wait meanwhile. What an operator of torch draws just then, in another
    thread, is drawn from the same offset, and a thread that seeds just then does not begin anew.
    """
    generators: Sequence[torch.Generator] = torch.cuda.default_generators
    if not generators:  # a program without inputs may be the first to use a GPU
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
        generators = torch.cuda.default_generators
    generator = generators[device]
    with _taking:
        offset = generator.get_offset()
        generator.set_offset(offset + count)
        return _signed(generator.initial_seed()), _signed(offset)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _reserve(count: int, device: torch.device) -> Tensor:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _recorded(count, device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.tensor(take(index, count), device=device)


def _recorded(count: int, device: torch.device) -> Tensor:
    """The state where a user's graph is recorded: its generator is on the device, and tells it to
    kernels alone. An attention with as many weights as numbers are drawn returns it."""
    query = torch.zeros(1, 1, 1, 8, dtype=torch.float16, device=device)
    keys = torch.zeros(1, count, 1, 8, dtype=torch.float16, device=device)
    attention = torch.ops.aten._efficient_attention_forward
    made = attention(query, keys, keys, None, None, None, None, None, 0.5, 0, True)
    return torch.stack([made[2].view(()), made[3].view(())])


def _uniform(
    state: Tensor,
    size: Sequence[int],
    start: int,
    threads: int,
    vector: int,
    dtype: torch.dtype,
) -> Tensor:
    position = torch.arange(math.prod(size), device=state.device)
    return uniform_at(position, state, start, threads, vector, dtype).view(list(size))


def uniform_at(
    position: Tensor, state: Tensor, start: int, threads: int, vector: int, dtype: torch.dtype
) -> Tensor:
    """What `UNIFORM` gives at positions, row by row."""
    at = place(position, threads, vector, UNROLL[dtype])
    seed, counter = state[0], (state[1] >> 2) + (start // STEP + at.round)
    if dtype is torch.float32:
        return above_zero(philox(seed, counter, at.subsequence, at.number), dtype)
    low, high = (philox(seed, counter, at.subsequence, 2 * at.number + n) for n in (0, 1))
    return above_zero(low ^ high << 21, dtype)


def above_zero(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of (0, 1] from a word as float32, from 53 bits as float64."""
    count = 32 if dtype is torch.float32 else 53
    return bits.to(dtype) * 2.0**-count + 2.0 ** -(count + 1)


def _fake_state(count: int, device: torch.device) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device=device)


def _fake_numbers(
    state: Tensor, size: Sequence[int], start: int, threads: int, vector: int, dtype: torch.dtype
) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


_library.impl("reserve", _reserve, "CompositeExplicitAutograd")
torch.library.register_fake("plait_philox::reserve", _fake_state, lib=_library)
_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
_library.impl("uniform", _fake_numbers, "Meta")

RESERVE = torch.ops.plait_philox.reserve.default
"""The seed and the offset of a GPU's default generator, which is moved on by `count`, as a tensor
there of two int64."""
UNIFORM = torch.ops.plait_philox.uniform.default
"""Numbers of (0, 1], float32 or float64, as ATen's kernels draw them from a state, `start` behind
its offset, before they make others of them."""
