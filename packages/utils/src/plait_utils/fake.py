"""Fake tensors that do not load torch's own compiler.

`FakeTensorMode` imports `torch._dynamo` when it is constructed and again, through a
wrapper, when it first dispatches; that costs about a second at every cold start.
`FakeMode` is the same mode without either import.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_impls import (
    _is_tensor_constructor,
    _like_tensor_constructors,
    has_meta,
    op_implementations_checks,
)
from torch._subclasses.fake_tensor import (
    _DISPATCH_HANDLE_DIRECTLY,
    _DISPATCH_META_HANDLERS,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    in_kernel_invocation_manager,
    torch_decomp_decompositions,
)
from torch._subclasses.meta_utils import MetaConverter
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from plait_utils.fake_bare import BareArguments, takes_bare
from plait_utils.fake_cache import (
    call_key,
    is_known_write,
    recall,
    remember,
    remember_write,
    write_key,
)
from plait_utils.fake_cache import (
    described as described,
)
from plait_utils.fake_elementwise import laid_out_as_iterated
from plait_utils.fake_empty import laid_out_as_real
from plait_utils.fake_kernels import OF_THE_SAME_SHAPE, OWN_KERNELS, number_as_tensor
from plait_utils.fake_open_sizes import OPEN_KERNELS
from plait_utils.fake_registered import registered_fake
from plait_utils.lazy_symbols import symbols_when_needed
from plait_utils.meta_kernels import call_meta_kernels_directly
from plait_utils.promotion import promote_without_sympy

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_UNUSUAL_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)

_DECOMPOSED = frozenset({torch.ops.aten.constant_pad_nd.default})
"""Operators whose meta kernels take no symbolic numbers, and whose decompositions do."""

_NEEDS_NUMBERS = re.compile(
    "expected to contain only concrete integers|on tensor with symbolic sizes/strides"
)
"""What kernels in C++ say that take no symbolic numbers."""

_OF_TORCH = frozenset({"aten", "prims"})
"""The namespaces of operators whose meta kernels torch has."""
_CAST = torch.ops.aten._to_copy.default
_BARE = frozenset(
    {
        *_like_tensor_constructors,
        torch.ops.aten.copy_.default,
        *(torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default),
        *(torch.ops.aten.slice.Tensor, torch.ops.aten.select.int),
    }
)
"""Operators whose meta kernels do, for bare meta tensors, what torch's rules do for fake ones."""


class _Silence(logging.Filter):
    """While it is entered, torch logs no error for an operator that fails on fakes."""

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()
        logging.getLogger("torch._subclasses.fake_tensor").addFilter(self)

    def __enter__(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def __exit__(self, *exception: object) -> None:
        self._local.depth -= 1

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self._local, "depth", 0)


_SILENCE = _Silence()
_META = torch.device("meta")
_OPTIONAL = frozenset({"_dispatch_key"})
"""Attributes that modes are asked for and need not have."""


_MODES: weakref.WeakSet[FakeMode] = weakref.WeakSet()


def _leave_kernels() -> None:
    """In a forked child: no thread of the parent is in a meta kernel here any more."""
    if not torch._C._meta_in_tls_dispatch_include():
        for mode in [*_MODES]:
            mode.in_kernel_invocation = False


os.register_at_fork(after_in_child=_leave_kernels)


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """A `FakeTensorMode` that never imports `torch._dynamo` by itself.

    Args:
        shape_env: where symbolic sizes live; sizes are static without one.
        allow_non_fake_inputs: whether ops may mix real tensors with fake ones.
    """

    def __init__(
        self, shape_env: ShapeEnv | None = None, *, allow_non_fake_inputs: bool = False
    ) -> None:
        call_meta_kernels_directly()
        promote_without_sympy()
        symbols_when_needed()
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
        self._storages: dict[int, torch.UntypedStorage] = {}
        _MODES.add(self)

    supports_higher_order_operators = True
    """Their rules for fake tensors are found by the class of the mode, which this is not."""

    __torch_dispatch__ = getattr(
        FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__
    )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def from_tensor(self, tensor: torch.Tensor, **options: Any) -> FakeTensor:
        """A fake tensor with the properties of `tensor`; the same one for the same tensor.

        Views of one storage stay views of one fake storage. Options are FakeTensorMode's;
        giving any, or a tensor that is not plain and strided, takes torch's slower way.
        """
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self:
            return tensor
        if options or self.shape_env is not None or not is_plain_tensor(tensor):
            return super().from_tensor(tensor, **options)
        return self.with_sizes(tensor)

    def forget_tensors(self) -> None:
        """Keep no reference to a real tensor: one more fake of it would be another.

        Weak references would be seen: torch.utils.swap_tensors refuses tensors that have any.
        """
        self.fake_tensor_converter.meta_converter = MetaConverter(copy_data=False)
        self._storages.clear()

    def use_symbols(self, shape_env: ShapeEnv) -> None:
        """Let sizes be symbolic from now on; the fakes that exist keep theirs."""
        self.shape_env = shape_env
        self.static_shapes = False

    def with_sizes(
        self,
        tensor: torch.Tensor,
        sizes: Sequence[int | torch.SymInt] | None = None,
        strides: Sequence[int | torch.SymInt] | None = None,
    ) -> FakeTensor:
        """A fake of a plain tensor with these sizes and strides; its own without any.

        With sizes given it has a storage of its own.
        """
        converter = self.fake_tensor_converter
        known = converter._get_memo(tensor)
        if known is not None:
            return known
        with torch.inference_mode(tensor.is_inference()), no_dispatch():
            if sizes is not None and strides is not None:
                meta = _strided(sizes, strides, tensor.storage_offset(), tensor.dtype)
            else:
                meta = torch.empty(0, dtype=tensor.dtype, device="meta")
                meta.set_(
                    self._fake_storage(tensor),
                    tensor.storage_offset(),
                    tensor.size(),
                    tensor.stride(),
                )
        if isinstance(tensor, torch.nn.Parameter):
            meta._is_param = True
        meta.requires_grad_(tensor.requires_grad)
        fake = FakeTensor(self, meta, tensor.device)
        converter.set_tensor_memo(tensor, fake)
        return fake

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.from_tensor(tensor) if is_plain_tensor(tensor) else tensor

    def _fake_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        key = tensor.untyped_storage()._cdata
        if key not in self._storages:
            nbytes = tensor.untyped_storage().nbytes()
            self._storages[key] = torch.UntypedStorage(  # type: ignore[no-untyped-call]  # torch's
                nbytes, device="meta"
            )
        return self._storages[key]

    def dispatch(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run what is plain without torch's cache, whose keys cost more than our own."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._by_rule(func, args, kwargs)
        if func is _CAST and isinstance(args[0], int | float):
            with self:  # of a number that torch.vmap has unwrapped
                return number_as_tensor(*args, **kwargs)
        if (
            func in _DISPATCH_META_HANDLERS
            or func in _DISPATCH_HANDLE_DIRECTLY
            or self.allow_non_fake_inputs
        ):
            return super().dispatch(func, types, args, kwargs)
        key = call_key(self, func, args, kwargs)
        if key is not None:
            known = recall(self, key, args)
            if known is not None:
                return known
        written = None if key is not None else write_key(self, func, args, kwargs)
        if written is not None and is_known_write(written):
            return args[0]
        is_plain = key is not None or written is not None
        bare = is_plain and (func in _BARE or takes_bare(func))
        made = self._dispatch_anew(func, types, args, kwargs, bare=bare)
        made = laid_out_as_iterated(self, func, args, kwargs, made)
        result = laid_out_as_real(self, func, args, kwargs, made)
        if key is not None:
            remember(key, args, result)
        if written is not None and bare:  # else a kernel may do more to fakes than write
            remember_write(written, args, result)
        return result

    def _by_rule(
        self, func: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a higher-order operator by its rule for fake tensors."""
        from torch._higher_order_ops.utils import registered_hop_fake_fns

        rules: Mapping[Any, Any] = registered_hop_fake_fns
        if func in rules:
            with self:
                return rules[func](*args, **kwargs)
        rule: Any = func.python_key_table.get(FakeTensorMode)
        if rule is None:
            raise NotImplementedError(f"{func} has no rule for fake tensors")
        return rule(self, *args, **kwargs)

    def _by_own_kernel(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], flat: Sequence[Any]
    ) -> Any:
        """What plait's own kernel of an operator makes; NotImplemented where there is none."""
        own = OWN_KERNELS.get(func)
        if own is None or _is_known(func, flat):
            return NotImplemented
        with self:
            return own(*args, **kwargs)

    def _dispatch_anew(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        bare: bool,
    ) -> Any:
        flat = pytree.arg_tree_leaves(*args, **kwargs)
        made = self._by_own_kernel(func, args, kwargs, flat)
        if made is not NotImplemented:
            return made
        if self._is_plain(func, flat):
            return self._run_plain(func, types, args, kwargs, flat, bare=bare)
        if func.namespace not in _OF_TORCH:  # torch's cache takes none, once it has loaded sympy
            return self._dispatch_impl(func, types, args, kwargs)
        return super().dispatch(func, types, args, kwargs)

    def _dispatch_impl(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the meta kernel of a builtin op directly; all else goes torch's way."""
        if self.allow_non_fake_inputs and self.shape_env is None:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._faked, (args, kwargs))
        flat = pytree.arg_tree_leaves(*args, **kwargs)
        made = self._by_own_kernel(func, args, kwargs, flat)
        if made is not NotImplemented:
            return made
        registered = registered_fake(self, func, flat)
        if registered is not None:
            return registered(*args, **kwargs)
        if not self._is_plain(func, flat):
            if self.shape_env is None:
                return super()._dispatch_impl(func, types, args, kwargs)
            if func in OF_THE_SAME_SHAPE:
                with self:
                    return OF_THE_SAME_SHAPE[func](*args, **kwargs)
            if func in OPEN_KERNELS:
                with self:
                    made = OPEN_KERNELS[func](*args, **kwargs)
                if made is not NotImplemented:
                    return made
            if func in _DECOMPOSED and func in decomposition_table:
                with self:
                    return decomposition_table[func](*args, **kwargs)
            try:
                with _SILENCE:
                    return super()._dispatch_impl(func, types, args, kwargs)
            except RuntimeError as error:
                if _NEEDS_NUMBERS.search(str(error)) is None or func not in decomposition_table:
                    raise
            with self:
                return decomposition_table[func](*args, **kwargs)
        return self._run_plain(func, types, args, kwargs, flat)

    def _run_plain(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        flat: list[Any],
        *,
        bare: bool = False,
    ) -> Any:
        """Run the meta kernel of a builtin op on the fake tensors, or on bare meta tensors."""
        for implementation in () if bare and func in _BARE else _implementations(func):
            result = implementation(self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if not has_meta(func):
            decomposed = self._decompose(func, args, kwargs)
            if decomposed is not NotImplemented:
                return decomposed
            return super()._dispatch_impl(func, types, args, kwargs)
        on_meta = {**kwargs, "device": _META} if kwargs.get("device") is not None else kwargs
        try:
            with in_kernel_invocation_manager(self):
                if bare:
                    plain = BareArguments(args, on_meta)
                    outputs = plain.restore(func(*plain.args, **plain.kwargs))
                else:
                    outputs = func(*args, **on_meta)
        except NotImplementedError:
            return super()._dispatch_impl(func, types, args, kwargs)
        return self.wrap_meta_outputs_with_default_device_logic(
            outputs,
            func,
            flat,
            device=kwargs.get("device"),  # type: ignore[arg-type]  # None is right
        )

    def _is_plain(self, func: OpOverload, flat_args: Sequence[object]) -> bool:
        """Static shapes, only fake tensors without known values, nothing data-dependent."""
        if func.namespace not in _OF_TORCH:
            return False
        if self.shape_env is not None and any(map(_is_symbolic, flat_args)):
            return False
        tensors = [a for a in flat_args if isinstance(a, torch.Tensor)]
        by_position = func is torch.ops.aten.index.Tensor and all(
            t.dtype not in (torch.bool, torch.uint8) for t in tensors[1:]
        )
        unusual = any(tag in func.tags for tag in _UNUSUAL_TAGS) and not by_position
        if func in self.lift_fns or unusual or _takes_storage(flat_args):
            return False
        if not tensors:
            return _is_tensor_constructor(func)
        return all(
            isinstance(t, FakeTensor) and t.fake_mode is self and t.constant is None
            for t in tensors
        )

    def _decompose(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self:
            if func in decomposition_table and torch_decomp_decompositions(func):
                return decomposition_table[func](*args, **kwargs)
            return func.decompose(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """An attribute that this torch sets and `__init__` does not know of."""
        if name.startswith("__") or name in _OPTIONAL:
            raise AttributeError(name)
        template = vars(FakeTensorMode(shape_env=self.__dict__.get("shape_env")))
        if name not in template:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__[name] = template[name]
        return template[name]


def _is_known(func: OpOverload, flat_args: Sequence[object]) -> bool:
    """Whether torch knows the result's value, as it does those of all that it is given."""
    return func.namespace == "aten" and not any(
        isinstance(each, FakeTensor) and each.constant is None for each in flat_args
    )


@cache
def _implementations(func: OpOverload) -> tuple[Callable[..., Any], ...]:
    """What torch does for an operator in place of its meta kernel."""
    return tuple(made for applies, made in op_implementations_checks if applies(func))


def _takes_storage(flat_args: Sequence[object]) -> bool:
    return any(isinstance(each, torch.UntypedStorage) for each in flat_args)


def _strided(
    sizes: Sequence[int | torch.SymInt],
    strides: Sequence[int | torch.SymInt],
    offset: int | torch.SymInt,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor on the meta device; what is before it in its storage is as long as `offset`."""
    if offset == 0:
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    storage = torch.empty(offset + 1 + last, dtype=dtype, device="meta").untyped_storage()
    return torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, sizes, strides)


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of torch's own class, strided, and reads its memory as it is."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
        and not torch._is_functional_tensor(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _is_symbolic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value._has_symbolic_sizes_strides
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def is_fake(value: object) -> bool:
    """Whether `value` is a fake tensor."""
    return isinstance(value, FakeTensor)
