"""Graphs that run as captured while a thread compiles them, and as compiled from then on.

With the option `background` a call traces, and that is all it waits for: what it has captured runs
as it is, operator by operator, so values, gradients, changes of inputs and errors are eager's own.
One thread of the process compiles what has been called, in order; a call that begins after its
graph is ready runs the program. A call is one or the other as a whole: what has run eagerly has
eager's nodes of autograd, whose backward is eager too.

Compiled at once, as without the option, are: graphs that switch what all threads share (the default
dtype, anomaly mode, kinds of attention), whose recording switches it too; graphs that check data,
or have sizes that depend on it; and whatever is traced under a dispatch mode.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from plait.errors import OptionError, StageError
from plait.record import Runner
from plait.replay import at_user_lines
from plait_utils import get_logger, postponed_collections
from plait_utils.checks import CheckFailedError
from plait_utils.forks import new_lock
from plait_utils.turns import Task

if TYPE_CHECKING:
    from torch import fx

    from plait.budget import Budget

_DEVICES = ("cpu", "cuda")


class Meanwhile:
    """How often a graph has run eagerly while a thread compiled it.

    Args:
        name: the graph's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.state = "waits"
        """ "waits", "compiling", "ready" or "failed"."""
        self._lock = new_lock()

    def count(self) -> None:
        """Note a call that ran eagerly."""
        with self._lock:
            self.calls += 1


class Later:
    """Has graphs compiled by the thread, under the modes in which they were captured.

    Made in the thread that has captured them.

    Args:
        budget: how long calls may wait for the thread, all together.
        note: gets what tells of each graph.
    """

    def __init__(
        self, budget: Budget, note: Callable[[Meanwhile], object] = lambda found: None
    ) -> None:
        self._modes = modes_now()
        self._budget = budget
        self._note = note

    def runner(
        self, name: str, captured: fx.GraphModule, compile_it: Callable[[], Runner]
    ) -> Runner:
        """What runs a graph as captured, until `compile_it` has returned what runs it."""
        return Background(self.work(name, compile_it), at_user_lines(captured))

    def work(self, name: str, compile_it: Callable[[], Any], forked: Any = None) -> Work:
        """Something to compile."""
        meanwhile = Meanwhile(name)
        self._note(meanwhile)
        return Work(compile_it, meanwhile, self._modes, self._budget, forked)


class Work:
    """Something that the thread compiles, when that is first asked for.

    Args:
        compile_it: does so.
        meanwhile: tells of it.
        modes: those of torch under which it is compiled.
        budget: how long who asks may wait.
        forked: called in a forked child while the parent's thread is at it.
    """

    def __init__(
        self,
        compile_it: Callable[[], Any],
        meanwhile: Meanwhile,
        modes: Modes,
        budget: Budget,
        forked: Callable[[], object] | None = None,
    ) -> None:
        self.meanwhile = meanwhile
        self.made: Any = None
        """What was made; None until then, and where that failed."""
        self._compile: Callable[[], Any] | None = compile_it
        self._modes = modes
        self._budget = budget
        self._raises: Exception | None = None
        self._forked = forked
        self._task = Task(self._run, self._begin_anew)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.made is not None or self._compile is None or self._task.has_ended

    def _begin_anew(self) -> None:
        """In a forked child, where the parent's thread was at it."""
        if self._forked is not None:
            self._forked()
        if self._compile is not None:
            self.meanwhile.state = "waits" if self.made is None else "ready"

    def asked(self) -> Any:
        """What was made, if it is there; None: do without. Raises what the user asked to be told of
        by exceptions."""
        if not self.has_ended:
            self._task.start()
            seconds = self._budget.left()
            if seconds > 0:
                begun = time.monotonic()
                self._task.wait(seconds)
                self._budget.spend(time.monotonic() - begun)
        if self._raises is not None:
            raise self._raises
        return self.made

    def _run(self) -> None:
        compile_it = self._compile
        assert compile_it is not None, "it runs once"
        self.meanwhile.state = "compiling"
        try:
            with postponed_collections(), self._modes.again():
                self.made = compile_it()
            self.meanwhile.state = "ready"
        except (StageError, OptionError) as error:
            self.meanwhile.state, self._raises = "failed", error
        except Exception as error:
            self.meanwhile.state = "failed"
            get_logger("compile").warning(
                "%s runs eagerly: compiling it in the background failed: %s: %s",
                *(self.meanwhile.name, type(error).__name__, error),
                exc_info=True,
            )
        self._compile = None  # with what it holds: examples of inputs


class Background:
    """Runs a graph, as captured until it is compiled.

    Args:
        work: compiles it.
        eager: runs it as captured.
    """

    def __init__(self, work: Work, eager: Runner) -> None:
        self._work = work
        self._eager = eager
        self._run: Runner | None = None

    def __call__(self, *inputs: Any) -> Any:
        run = self._run
        return (self._chosen() if run is None else run)(*inputs)

    def unchanged_on_error(self, *inputs: Any) -> Any:
        """The same, but whatever fails does so before an input is changed.

        Raises CheckFailedError, after which the tracer makes the call as plain Python, where that
        cannot be kept: as long as the graph runs as captured.
        """
        run = self._chosen() if self._run is None else self._run
        careful: Runner | None = getattr(run, "unchanged_on_error", None)
        if careful is None:
            raise CheckFailedError
        return careful(*inputs)

    def _chosen(self) -> Runner:
        """What runs a call that begins now."""
        work = self._work
        made: Runner | None = work.asked()
        if made is not None:
            self._run = made
            return made
        work.meanwhile.count()
        return self._eager


class Modes:
    """Modes of torch that are a thread's own.

    Args:
        grad: whether gradients are recorded.
        inference: whether inference mode is on.
        autocast: the devices for which autocast is on, each with its dtype.
        caches: whether autocast keeps what it has cast.
        device: the default device that was set; None: none was.
    """

    def __init__(
        self,
        grad: bool,
        inference: bool,
        autocast: Sequence[tuple[str, Any]],
        caches: bool,
        device: Any,
    ) -> None:
        self._grad = grad
        self._inference = inference
        self._autocast = tuple(autocast)
        self._caches = caches
        self._device = device

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """The same modes, in this thread."""
        import torch

        with contextlib.ExitStack() as stack:
            if self._device is not None:  # in a thread of its own, as the mode itself is
                torch.set_default_device(self._device)
                stack.callback(torch.set_default_device, None)
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=self._caches))
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            yield


def modes_now() -> Modes:
    """The modes of this thread."""
    import torch

    held = vars(torch)["_GLOBAL_DEVICE_CONTEXT"]
    context = getattr(held, "device_context", None)
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [
            (device, torch.get_autocast_dtype(device))
            for device in _DEVICES
            if torch.is_autocast_enabled(device)
        ],
        torch.is_autocast_cache_enabled(),
        None if context is None else context.device,
    )


def can_wait(captured: fx.GraphModule, capture: Any) -> bool:
    """Whether a graph may be compiled in a thread while it runs as captured."""
    import torch

    state = getattr(capture, "state", None)
    if torch._C._len_torch_dispatch_stack() or (state is not None and state.has_checks):
        return False
    inputs = [node.meta.get("val") for node in captured.graph.find_nodes(op="placeholder")]
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if state is not None and state.mutates_tensors and any(each.is_inference() for each in tensors):
        return False  # nothing counts changes of these, so a call could not be made anew
    shared: list[object] = [torch.set_default_dtype, torch.set_anomaly_enabled]
    names = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    shared += [getattr(torch._C, f"_set_sdp_use_{name}", None) for name in names]
    return not any(
        node.op == "call_function" and node.target in shared for node in captured.graph.nodes
    )
