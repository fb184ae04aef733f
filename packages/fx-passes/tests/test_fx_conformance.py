"""Every operator of torch's own database recorded, optimized and run against eager.

A default run takes a sample. Needs ``expecttest``, which torch's test helpers import.
"""

from __future__ import annotations

import copy
import logging
import warnings

import pytest
import torch
from fx_oracle import assert_like_eager
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from plait_fx_passes import AtenTraceError, run_passes, to_aten, verify, wrap_runtime

pytest.importorskip("expecttest")
from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 4
UNINITIALIZED = {
    *("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"),
    *("resize_", "resize_as_"),
}
KNOWN = {
    "addbmm": "its in-place form changes the shape of its input",
    "broadcast_shapes": "returns a torch.Size, not tensors",
    "nn.functional.batch_norm": "one-dimensional input, which torch's fake kernel does not take",
    "tensor_split": "reads the values of a tensor of split points",
    "geqrf": "has no fake kernel",
    "histogram": "has no fake kernel",
    "histogramdd": "has no fake kernel",
    "to_sparse": "makes a tensor without strides",
    "_native_batch_norm_legit": "statistics that inference does not compute differ in size",
}
REFUSALS = ("needs the values", "returns a number", "where its input lies in a storage")


def cases(op):
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    if dtype not in op.dtypes:
        return
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))[:SAMPLES]
    for function in (op.op, op.inplace_variant):
        for sample in samples:
            flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
            tensors = [flat[i].detach().clone() for i in places]
            if function is None or any(t.layout is not torch.strided for t in tensors):
                continue

            def program(*inputs, function=function, flat=flat, spec=spec, places=places):
                values = list(flat)
                for place, tensor in zip(places, inputs, strict=True):
                    values[place] = tensor
                first, args, kwargs = tree_unflatten(values, spec)
                return function(first, *args, **kwargs)

            yield program, tensors


def graph_of(program, tensors):
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(tensors))]
    graph.output(graph.call_function(program, tuple(inputs)))
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("op", op_db, ids=lambda op: f"{op.name}.{op.variant_test_name}")
@pytest.mark.sampled(12)
def test_operator(op):
    if op.name in UNINITIALIZED or op.name in KNOWN:
        pytest.skip(KNOWN.get(op.name, "its values are not defined"))
    warnings.simplefilter("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    for program, tensors in cases(op):
        try:
            with torch.no_grad():
                torch.manual_seed(42)
                program(*copy.deepcopy(tensors))
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
            continue  # a sample that eager refuses
        try:
            recorded = to_aten(graph_of(program, tensors), tensors)
        except AtenTraceError as error:
            assert any(each in str(error) for each in REFUSALS)  # noqa: PT017  # right answers
            continue
        verify(recorded)
        for label, graph in (
            ("recorded", recorded),
            ("optimized", run_passes(recorded, verify_each=True)),
        ):
            run = wrap_runtime(graph, graph.module())
            # Samplers of random operators seed with 42 themselves.
            assert_like_eager(label, run, program, tensors, 2e-5, seed=42)
