"""Modes of torch that traced code switches: what they are in the trace, and how they end.

A switch is a call in the graph, so that whoever runs the graph runs it under the same
modes. While tracing nothing of the process changes: operations on fake tensors run under
the modes of the trace, each by itself. What a call leaves switched is set again after the
graph, as a backend may have compiled the graph's own switches away.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from plait_bytecode_tracer.values.variables import ContextVariable, Variable
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A switch of torch: the function that sets it, and those that read each of its values."""

    setter: Callable[..., Any]
    getters: tuple[Callable[..., Any], ...]
    kinds: tuple[type, ...] = (bool,)
    """The classes of its values."""
    keys: int = 0
    """How many arguments before the values choose what is set: a device type."""
    changes_results: bool = False
    """Whether dtypes or shapes depend on it, so that it must hold while tracing."""


_ATTENTION = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
_attention = [
    Setting(
        getattr(torch._C, f"_set_sdp_use_{name}"), (getattr(torch._C, f"_get_{name}_sdp_enabled"),)
    )
    for name in _ATTENTION
    if hasattr(torch._C, f"_set_sdp_use_{name}")
]
SETTINGS: dict[Callable[..., Any], Setting] = {
    setting.setter: setting
    for setting in (
        Setting(torch.set_autocast_enabled, (torch.is_autocast_enabled,), (bool,), 1, True),
        Setting(torch.set_autocast_dtype, (torch.get_autocast_dtype,), (torch.dtype,), 1, True),
        Setting(torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled,)),
        Setting(torch.set_default_dtype, (torch.get_default_dtype,), (torch.dtype,), 0, True),
        Setting(
            torch.set_anomaly_enabled,
            (torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled),
            (bool, bool),
        ),
        *_attention,
    )
}
"""By the function that sets it."""
AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu")
"""The device types whose autocast can be on."""

Key = tuple[Callable[..., Any], tuple[Any, ...]]


@functools.cache
def bound(getter: Callable[..., Any], keys: tuple[Any, ...]) -> Callable[[], Any]:
    """A reading function without arguments; the same object each time, as guards need."""
    return functools.partial(getter, *keys) if keys else getter


def makes_on_device(target: Any) -> bool:
    """Whether contexts of devices tell a function where to make its tensor."""
    from torch.utils._device import _device_constructors

    try:
        return target in _device_constructors()
    except TypeError:  # it has no hash
        return False


def entered_modes() -> int:
    """How many torch function modes are active, but for the context of the default device."""
    count = torch._C._len_torch_function_stack()
    if count == 0:
        return 0
    default = getattr(_GLOBAL, "device_context", None)
    return count - (default is not None and torch._C._get_function_stack_at(0) is default)


_GLOBAL: Any = vars(torch)["_GLOBAL_DEVICE_CONTEXT"]
"""Where torch keeps the context of the default device, for each thread."""


def autocast_nesting() -> int:
    """How many autocast blocks are open."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@dataclass(frozen=True, slots=True)
class DeviceMode:
    """`with torch.device(...)`, as an entry of the stack of modes."""

    device: torch.device
    mode: Variable | None = None
    """Torch's own mode, where it was entered before a break, or around the call."""


@dataclass(frozen=True, slots=True)
class DefaultDevice:
    """What `torch.set_default_device` was called with."""

    device: torch.device | None


@dataclass(slots=True)
class Ambient:
    """The modes in which the traced code runs, where it has switched them."""

    values: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    before: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    """What the settings of `values` were at the call."""
    nesting: int = 0
    """How many autocast blocks the trace has opened and not closed."""
    cache: bool = field(default_factory=torch.is_autocast_cache_enabled)
    """Whether autocast keeps the weights that it has cast, at the call."""
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    open: list[ContextVariable] = field(default_factory=list)
    """The guard objects that the trace has entered and not left."""
    plain: int = 0
    """How many times `__torch_function__` of tensor subclasses has been switched off."""
    modes: list[Variable | DeviceMode] = field(default_factory=list)
    """The torch function modes that the trace has entered and not left, innermost last."""
    modes_off: int = 0
    """How many times torch function modes have been switched off."""
    default_device: DefaultDevice | None = None
    """What the trace has made the default device; None where it has not."""
    is_undecided: bool = False
    """Whether the code that is traced runs with gradients at one time and without at another."""
    is_switched: bool = False
    """Whether any mode has been switched, perhaps back."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Run fake tensors under the modes of the trace."""
        changed = [
            (key, value)
            for key, value in self.values.items()
            if SETTINGS[key[0]].changes_results and value != self.before[key]
        ]
        cache = torch.is_autocast_cache_enabled()
        with contextlib.ExitStack() as stack:
            if self.inference is not torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(self.inference))
            try:
                for (setter, keys), value in changed:
                    setter(*keys, *value)
                torch.set_autocast_cache_enabled(False)  # it would keep fake tensors
                yield
            finally:
                torch.set_autocast_cache_enabled(cache)
                for (setter, keys), _ in changed:
                    setter(*keys, *self.before[setter, keys])

    @property
    def intercepts(self) -> bool:
        """Whether Python that the trace has entered as a mode sees what torch is called for."""
        return not self.modes_off and self.has_entered

    @property
    def has_entered(self) -> bool:
        """Whether the trace has entered such Python and not left it."""
        return any(type(mode) is not DeviceMode for mode in self.modes)

    @property
    def device(self) -> torch.device | None:
        """The device on which tensors are made, where the trace has chosen it."""
        if self.modes_off:
            return None
        for mode in reversed(self.modes):
            if isinstance(mode, DeviceMode):
                return mode.device
        chosen = self.default_device
        return None if chosen is None else chosen.device or torch.device("cpu")

    def device_for(self, target: Any, kwargs: Mapping[str, Any]) -> torch.device | None:
        """The device that a context of the trace gives to what `target` makes."""
        if kwargs.get("device") is not None or (device := self.device) is None:
            return None
        return device if makes_on_device(target) else None

    def left(self) -> list[tuple[Key, tuple[Any, ...]]]:
        """What the call leaves set to something else than it found."""
        return [(key, value) for key, value in self.values.items() if value != self.before[key]]

    def close(self, graph: fx.Graph) -> None:
        """Leave, at the graph's end, the inference modes that stay open: Python enters anew."""
        for mode in reversed([context for context in self.open if context.node is not None]):
            left = graph.call_function(leave_inference_mode, (mode.node,))
            left.meta[GRADIENTS_AFTER] = mode.before[0]


_OF_A_VIEW = "Cannot set version_counter for inference tensor"
"""What torch says of a fake view in inference mode of a tensor that was made outside of it."""


def outside_inference(run: Callable[[], Any]) -> Any:
    """What a function of fake tensors gives: outside of inference mode where it makes views there,
    which are such tensors as what they are of. What it computes is of inference mode all the same.
    """
    try:
        return run()
    except RuntimeError as error:
        if not torch.is_inference_mode_enabled() or _OF_A_VIEW not in str(error):
            raise
    with torch.inference_mode(False), torch.no_grad():
        made = run()
    return tree_map_only(torch.Tensor, _of_inference, made)


def _of_inference(made: torch.Tensor) -> torch.Tensor:
    """A tensor that is no view as one of inference mode."""
    return made if made._is_view() else torch.empty_like(made)


# What graphs call.

GRADIENTS_AFTER = "gradients_after"
"""In the meta of a node that enters or leaves inference mode: whether gradients are on after it."""
_entered = threading.local()


def enter_inference_mode(enabled: bool) -> Any:
    """Enter inference mode, or leave it for a while; what this returns leaves again."""
    mode: Any = torch._C._InferenceMode(enabled)
    mode.__enter__()
    _open_modes().append(mode)
    return mode


def leave_inference_mode(mode: Any) -> None:
    """Leave what `enter_inference_mode` has entered."""
    _open_modes().remove(mode)
    mode.__exit__(None, None, None)


def _open_modes() -> list[Any]:
    found: list[Any] | None = getattr(_entered, "modes", None)
    if found is None:
        found = _entered.modes = []
    return found


INFERENCE_SWITCHES = (enter_inference_mode, leave_inference_mode)
"""What graphs call for inference mode; what one that fails leaves entered is left behind it."""
_SWITCHES: tuple[Any, ...] = (*SETTINGS, torch.clear_autocast_cache, *INFERENCE_SWITCHES)
for _switch in _SWITCHES:
    fx.node.has_side_effect(_switch)


@dataclass(frozen=True, slots=True)
class Before:
    """What modes were before a call, where it has switched them and breaks."""

    settings: tuple[tuple[Key, tuple[Any, ...]], ...]
    gradients: bool | None
    """None where they are as they were."""
    nesting: int
    """How many autocast blocks were open."""
    functions: int
    """How many function modes were active beside the default device."""

    def restore(self) -> None:
        """Set the modes as the ends of the program's `with` blocks would."""
        while entered_modes() > self.functions:
            torch._C._pop_torch_function_stack()
        for (setter, keys), values in self.settings:
            setter(*keys, *values)
        while autocast_nesting() > self.nesting:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        if self.gradients is not None:
            torch._C._set_grad_enabled(self.gradients)


def left_switched(gradients_before: bool, gradients: bool, ambient: Ambient) -> Before | None:
    """What to restore where the rest of a call fails; None if the modes are as they were."""
    settings = tuple((key, ambient.before[key]) for key, _ in ambient.left())
    changed = None if gradients_before is gradients else gradients_before
    entered = ambient.nesting > 0 or ambient.modes
    if not settings and not entered and changed is None:
        return None
    return Before(settings, changed, autocast_nesting(), entered_modes())


def marking(run: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a continuation's graph that tells its errors from those of the program."""

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except BaseException as error:
            _entered.failed = error
            raise

    return call


def has_failed(error: BaseException) -> bool:
    """Whether a graph raised an error, so that no `with` block of the program has seen it."""
    failed, _entered.failed = getattr(_entered, "failed", None), None
    return failed is error


def restoring(run: Callable[..., Any], before: Mapping[Key, tuple[Any, ...]]) -> Any:
    """A graph's call that leaves no mode switched where it raises: eager's `with` blocks end."""

    def call(*args: Any) -> Any:
        open_count = len(_open_modes())
        gradients = torch.is_grad_enabled()
        try:
            return run(*args)
        except BaseException:
            _put_back(open_count, gradients, before)
            raise

    return call


@contextlib.contextmanager
def as_they_were(before: Mapping[Key, tuple[Any, ...]]) -> Iterator[None]:
    """Run parts of a graph, after which no mode stays switched; `before` are the settings' values
    that parts may switch."""
    open_count = len(_open_modes())
    gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        _put_back(open_count, gradients, before)


def _put_back(open_count: int, gradients: bool, before: Mapping[Key, tuple[Any, ...]]) -> None:
    while len(_open_modes()) > open_count:
        leave_inference_mode(_open_modes()[-1])
    torch._C._set_grad_enabled(gradients)
    for (setter, keys), values in before.items():
        setter(*keys, *values)
