"""Fake tensors that do not load torch's own compiler.

`FakeTensorMode` imports `torch._dynamo` when it is constructed and again, through a
wrapper, when it first dispatches; that costs about a second at every cold start.
`FakeMode` is the same mode without either import.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_OPTIONAL = frozenset({"_dispatch_key"})
"""Attributes that modes are asked for and need not have."""


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """A `FakeTensorMode` that never imports `torch._dynamo` by itself.

    Args:
        shape_env: where symbolic sizes live; sizes are static without one.
        allow_non_fake_inputs: whether ops may mix real tensors with fake ones.
    """

    def __init__(
        self, shape_env: ShapeEnv | None = None, *, allow_non_fake_inputs: bool = False
    ) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]  # torch's
        self.allow_fallback_kernels = True
        self.propagate_real_tensors = False
        self.fake_tensor_converter = FakeTensorConverter(copy_data=False, export=False)
        self.static_shapes = shape_env is None
        self.allow_scalar_outputs = False
        self._allow_unsafe_data_ptr_access = True
        self.allow_meta = True
        self.cache_enabled = True
        self.cache_crosscheck_enabled = False
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self.in_kernel_invocation = False
        self.enter_stack = []
        self.shape_env = shape_env
        self._stack_trace = traceback.StackSummary()
        self._stack = None
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        import torch.nested._internal.nested_tensor as nested

        self.nt_tensor_id_initial_count = nested._tensor_id_counter
        self.nt_tensor_id_counter = self.nt_tensor_id_initial_count

    __torch_dispatch__ = getattr(
        FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__
    )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        """An attribute that this torch sets and `__init__` does not know of."""
        if name.startswith("__") or name in _OPTIONAL:
            raise AttributeError(name)
        template = vars(FakeTensorMode(shape_env=self.__dict__.get("shape_env")))
        if name not in template:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__[name] = template[name]
        return template[name]


def is_fake(value: object) -> bool:
    """Whether `value` is a fake tensor."""
    return isinstance(value, fake_tensor.FakeTensor)
