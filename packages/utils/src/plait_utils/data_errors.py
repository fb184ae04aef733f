"""Operators that raise for what their operands hold, as an index out of range.

A program that does not use the result of one raises all the same, so such a call is no dead code.
Nor is one of an operator that is not torch's own, of which nobody knows what it does.
"""

from __future__ import annotations

_ALWAYS = frozenset(
    {
        # Indices into a dimension.
        *("index", "_unsafe_index", "index_select", "index_add", "index_copy", "index_fill"),
        *("index_put", "_unsafe_index_put", "index_reduce", "_index_put_impl"),
        *("gather", "take", "put", "scatter", "scatter_add", "scatter_reduce", "masked_scatter"),
        *("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"),
        *("max_unpool2d", "max_unpool3d"),
        # Classes.
        *("nll_loss", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward", "one_hot"),
        *("multi_margin_loss", "multilabel_margin_loss", "multilabel_margin_loss_forward"),
        *("_ctc_loss",),
        # Counts and ranges.
        *("bincount", "repeat_interleave", "histc", "binary_cross_entropy"),
        *("segment_reduce", "multinomial"),
        # Matrices.
        *("cholesky", "cholesky_inverse", "linalg_cholesky", "linalg_eig", "_linalg_eigh"),
        *("_linalg_eigvals", "linalg_eigvals", "_linalg_svd", "linalg_lstsq", "lu_unpack"),
        *("inverse", "linalg_inv", "linalg_solve", "linalg_lu_factor", "linalg_ldl_factor"),
        *("linalg_lu", "linalg_pinv", "linalg_matrix_power", "linalg_tensorinv"),
        # Places, which are checked to be some.
        *("searchsorted",),
    }
)
_WHERE_ASKED = frozenset(
    {
        *("linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex"),
        "linalg_ldl_factor_ex",
    }
)
"""Those that raise where their last argument, `check_errors`, says so."""
_OF_INTEGERS = frozenset({"div", "floor_divide", "remainder", "fmod"})
"""Divisions, which raise where an integer is divided by 0."""


_OF_TORCH = frozenset(
    {
        *("aten", "prim", "prims", "mkl", "mkldnn", "onednn", "quantized", "_quantized"),
        *("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"),
    }
)
_OURS = frozenset(
    {"plait_utils", "plait_fx_passes", "plait_random", "plait_philox", "plait_counters"}
)
"""Not those that call a program's own: `plait_written` and `plait_control`."""


def is_foreign(operator: str) -> bool:
    """Whether an operator, such as `user::op`, is neither torch's own nor plait's."""
    return operator.partition("::")[0] not in _OF_TORCH | _OURS


def may_raise_for_data(
    operator: str, *, divides_integers: bool = False, checks_errors: bool = False
) -> bool:
    """Whether an operator may raise for what its operands hold, or do what nobody knows.

    Args:
        operator: as in its schema, such as `aten::index`.
        divides_integers: whether it divides such, if it divides, by what may be 0.
        checks_errors: whether it is asked to raise, if it only raises where it is asked to.
    """
    namespace, _, name = operator.partition("::")
    if namespace == "aten":
        asked = (divides_integers and name in _OF_INTEGERS) or (
            checks_errors and name in _WHERE_ASKED
        )
        return name in _ALWAYS or asked
    return is_foreign(operator)
