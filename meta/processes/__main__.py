"""All cases, in groups of two and of four processes: `python -m processes`, in `meta`."""

from __future__ import annotations

import sys
import tempfile

from processes.running import CASES, run_cases


def main():
    failed = 0
    for count in (2, 4):
        for case in CASES:
            with tempfile.TemporaryDirectory() as folder:
                wrong = run_cases(count, folder, case)
            failed += bool(wrong)
            print(f"{count} processes, {case}: {'right' if not wrong else wrong[0]}", flush=True)
    total = 2 * len(CASES)
    print(f"{total - failed} of {total} cases agree with eager")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
