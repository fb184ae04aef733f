"""The threads of ATen's kernels, which draw step by step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from plait_utils.philox import BLOCK

WORD = 0xFFFFFFFF
THREADS = 2 * BLOCK


class Thread:
    """A state of cuRAND's, which draws four words at a time."""

    def __init__(self, seed: int, subsequence: int, offset: int) -> None:
        assert offset % 4 == 0
        self.key = seed & WORD, seed >> 32 & WORD
        self.counter = offset // 4
        self.subsequence = subsequence

    def words(self) -> tuple[int, int, int, int]:
        a, b, c, d = self.counter & WORD, self.counter >> 32, self.subsequence, 0
        low, high = self.key
        for _ in range(10):
            left, right = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = right >> 32 ^ b ^ low, right & WORD, left >> 32 ^ d ^ high, left & WORD
            low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
        self.counter += 1
        return a, b, c, d

    def floats(self) -> list[float]:
        words = torch.tensor(self.words()).to(torch.float32)
        return (words * 2.0**-32 + 2.0**-33).tolist()

    def doubles(self) -> list[float]:
        a, b, c, d = self.words()
        return [(x ^ y << 21) * 2.0**-53 + 2.0**-54 for x, y in ((a, b), (c, d))]


def threads(count: int, seed: int, offset: int) -> Iterator[tuple[int, int, Thread]]:
    """Of the kernels' threads, how many there are, which one it is, and its state."""
    grid = min(THREADS // BLOCK, -(-count // BLOCK))
    for index in range(BLOCK * grid):
        yield BLOCK * grid, index, Thread(seed, index, offset)
