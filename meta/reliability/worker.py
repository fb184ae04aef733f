"""A process that compiles and checks programs: `worker.py seed number ...`.

It says how far it has come, a line each, so that who kills it knows where.
"""

from __future__ import annotations

import sys

print("importing", flush=True)

from pathlib import Path  # noqa: E402 - it tells of that first

import torch  # noqa: E402 - it tells of that first

sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability import programs  # noqa: E402 - found beside this file


def main(seed, numbers):
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    restored = 0
    for number in numbers:
        print("in its first program" if number == numbers[0] else "later", flush=True)
        notices = programs.check(number, generator)
        restored += any("was restored" in text for text in notices)
    print(f"right {restored}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(each) for each in sys.argv[2:]])
