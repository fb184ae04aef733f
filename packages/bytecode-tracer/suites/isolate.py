"""Runs a function in a process of its own: a crash or a hang there ends nothing here."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class IsolatedError(Exception):
    """The function raised, crashed or took too long; the message says which."""


_FORKING = threading.Lock()
"""Libraries (filelock) refuse forks while another thread forks."""


def isolated(function: Callable[[Item], Result], item: Item, timeout: float) -> Result:
    """`function(item)` in a forked process.

    Raises IsolatedError if it raises, the process dies, or `timeout` seconds pass. The
    result must pickle.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(function, item, sender))
    with _FORKING:
        process.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            raise IsolatedError(f"no result after {timeout:g} s")
        kind, result = receiver.recv()
    except EOFError:
        process.join(10)
        raise IsolatedError(f"the process died with status {process.exitcode}") from None
    finally:
        if process.is_alive() and process.pid is not None:
            process.join(1)
            process.kill()
        process.join()
        receiver.close()
    if kind == "error":
        raise IsolatedError(result)
    returned: Result = result
    return returned


def _run(function: Callable[[Item], Result], item: Item, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sender.send(("result", function(item)))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno} in {last.name}"
        text = " ".join(str(error).split())
        sender.send(("error", f"{type(error).__name__}: {text[:400]} ({where})"))
    sender.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def each_isolated(
    function: Callable[[Item], Result], items: list[Item], timeout: float, jobs: int
) -> Iterator[tuple[Item, Result | IsolatedError]]:
    """Each item with its result or error, in order, `jobs` at a time."""

    def one(item: Item) -> Result | IsolatedError:
        try:
            return isolated(function, item, timeout)
        except IsolatedError as error:
            return error

    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(items, pool.map(one, items), strict=True)
