"""Modules that torch spreads over processes, as they are and compiled: each must agree with itself.

They run on the CPU, or on the GPU of each process.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import plait
from processes.programs import agree

DEVICE = os.environ.get("PLAIT_PROCESSES_ON", "cpu")
WIDTH, HEADS = 16, 4
CLOSE = 1e-11
"""What several steps in float64 may be apart."""


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )

    def forward(self, x):
        rows, length, _ = x.shape
        heads = [
            part(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, -1))


class Feed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed = Attention(), Feed()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


class Net(torch.nn.Module):
    def __init__(self, blocks=2, has_buffers=False, has_more=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.norm = torch.nn.BatchNorm1d(6) if has_buffers else torch.nn.Identity()
        self.head = torch.nn.Linear(WIDTH, 8)
        if has_more:
            self.unused = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(dtype=torch.float64, **options):
    return Net(**options).to(DEVICE, dtype)


def batch(n, dtype=torch.float64, seed=None):
    generator = torch.Generator().manual_seed((dist.get_rank() if seed is None else seed) + 100 * n)
    return torch.randn(2, 6, WIDTH, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trained(model, net, steps=4, alone=(), **kind):
    """Losses, gradients, parameters and buffers of some steps; those in ``alone`` stay alone."""
    # What torch chooses on GPUs, kernels for many tensors, takes no DTensors beside others.
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=False)
    found = []
    for n in range(steps):
        if n in alone:
            with model.no_sync():
                whole(model(batch(n, **kind))).square().mean().backward()
            continue
        loss = whole(model(batch(n, **kind))).double().square().mean()
        loss.backward()
        found.append(loss.detach())
        found += [whole(p.grad).clone() for p in net.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    found += [whole(p.detach()).clone() for p in net.parameters()]
    return [each.double() for each in (*found, *net.buffers())]


def all_compiled(compiled, name):
    """Its report, where all graphs were compiled."""
    report = plait.report(compiled)
    eager = [graph.reason for graph in report.graphs if graph.outcome != "compiled"]
    assert report.graphs, name
    assert not eager, (name, eager)
    return report


# DistributedDataParallel.

WRAPPED = (
    ({}, {}, ()),
    ({}, {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}, (1, 2)),
    ({"has_buffers": True}, {"static_graph": True, "bucket_cap_mb": 0.01}, ()),
    ({"has_more": True}, {"find_unused_parameters": True}, ()),
)
"""Of the net, of the wrapper, and the steps without synchronization."""


def data_parallel_agrees():
    for of_net, options, alone in WRAPPED:

        def ran(compile_net, compile_model, of_net=of_net, options=options, alone=alone):
            net = made(**of_net)
            inner = compile_net(net)
            model = compile_model(DistributedDataParallel(inner, **options))
            return trained(model, net, alone=alone), inner, model

        expected, *_ = ran(_as_it_is, _as_it_is)
        found, compiled, _ = ran(plait.compile, _as_it_is)
        agree(found, expected, ("within", options), CLOSE)
        all_compiled(compiled, options)
        found, _, compiled = ran(_as_it_is, plait.compile)
        agree(found, expected, ("around", options), CLOSE)
        all_compiled(compiled, options)


def _as_it_is(model):
    return model


def data_parallel_steps_agree():
    """Whole steps are compiled, with the wrapper in them."""

    def ran(compile_net, compile_step):
        net = made()
        model = DistributedDataParallel(compile_net(net))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        def gathering(x):
            with model.no_sync():
                loss = model(x).square().mean()
                loss.backward()
            return loss

        calls = [compile_step(gathering), compile_step(step)]
        losses = [calls[n % 2](batch(n)).detach().clone() for n in range(6)]
        return [*losses, *(each.detach() for each in net.parameters())]

    expected = ran(_as_it_is, _as_it_is)
    agree(ran(_as_it_is, plait.compile), expected, "steps", CLOSE)
    agree(ran(plait.compile, plait.compile), expected, "steps of a compiled net", CLOSE)


def buckets_are_sent_early():
    """A net is compiled in parts, and the reducer sends gradients of the last before the first is
    through; nets of which all gradients make one bucket stay whole."""

    def ran(options, **of_wrapper):
        net = made()
        compiled = plait.compile(net, options=options)
        model = DistributedDataParallel(compiled, **of_wrapper)
        sent = []

        def send(_, bucket):
            sent.append(bucket.is_last())
            return allreduce_hook(dist.group.WORLD, bucket)

        model.register_comm_hook(None, send)
        x = batch(0).requires_grad_()
        x.register_hook(lambda _: sent.append("through"))
        for _ in range(3):  # the reducer has its last buckets from the second one on
            sent.clear()
            model(x).sum().backward()
        names = [each.name for each in all_compiled(compiled, options).graphs]
        return sent, [name for name in names if "backward" not in name]

    sent, forwards = ran({}, bucket_cap_mb=0.01)
    assert sent.index("through") > 1, sent
    assert len(forwards) > 2, forwards
    assert len(ran({})[1]) == 1
    off = {"disabled_passes": "gradient-buckets"}
    assert len(ran(off, bucket_cap_mb=0.01)[1]) == 1


# fully_shard.


def shard(net, mesh, **options):
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)


def _blocks_first(net, *args, **options):
    for n, block in enumerate(net.blocks):
        net.blocks[n] = plait.compile(block)
    shard(net, *args, **options)
    return net, list(net.blocks)


def _blocks_last(net, *args, **options):
    shard(net, *args, **options)
    for n, block in enumerate(net.blocks):
        net.blocks[n] = plait.compile(block)
    return net, list(net.blocks)


def _model_first(net, *args, **options):
    compiled = plait.compile(net)
    shard(net, *args, **options)
    return compiled, [compiled]


def _model_last(net, *args, **options):
    shard(net, *args, **options)
    compiled = plait.compile(net)
    return compiled, [compiled]


def _fully_sharded(tolerance, dtype=torch.float64, **options):
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    net = made(dtype)
    shard(net, mesh, **options)
    expected = trained(net, net, dtype=dtype)
    for order in (_blocks_first, _blocks_last, _model_first, _model_last):
        net = made(dtype)
        model, compiled = order(net, mesh, **options)
        found = trained(model, net, dtype=dtype)
        agree(found, expected, (order.__name__, options), tolerance)
        assert all(isinstance(each, DTensor) for each in net.parameters()), "resharded"
        for each in compiled:
            all_compiled(each, order.__name__)


def fully_sharded_agrees():
    for reshards in (True, False):
        _fully_sharded(CLOSE, reshard_after_forward=reshards)


def half_precision_agrees():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _fully_sharded(3e-2, torch.float32, mp_policy=policy)


# Tensor parallelism.

_LOCAL = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    **{f"feed.{name}": ColwiseParallel() for name in ("gate", "up")},
}


def by_tensors(net, mesh):
    for block in net.blocks:
        plan = {**_LOCAL, "attention.out": RowwiseParallel(), "feed.down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)


def _by_sequences(net, mesh):
    rows = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    last = {"output_layouts": Shard(1), "use_local_output": False}
    for block in net.blocks:
        plan = {
            **_LOCAL,
            "before": SequenceParallel(),
            "between": SequenceParallel(),
            "attention": PrepareModuleInput(**rows),
            "feed": PrepareModuleInput(**rows),
            "attention.out": RowwiseParallel(**last),
            "feed.down": RowwiseParallel(**last),
        }
        parallelize_module(block, mesh, plan)
    first = {"input_layouts": Replicate(), "desired_input_layouts": Shard(1)}
    plan = {
        "blocks.0": PrepareModuleInput(**first),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(net, mesh, plan)


def _parallel(plan):
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))

    def ran(compile_model):
        net = made(blocks=1 if plan is by_tensors else 2)
        plan(net, mesh)
        model = compile_model(net)
        with torch.no_grad():
            inferred = whole(model(batch(9, seed=1))).clone()
        return [inferred, *trained(model, net, seed=1)], model

    expected, _ = ran(_as_it_is)
    found, compiled = ran(lambda net: plait.compile(net, fullgraph=True))
    agree(found, expected, plan.__name__, CLOSE)
    all_compiled(compiled, plan.__name__)


def tensor_parallel_agrees():
    _parallel(by_tensors)


def sequence_parallel_agrees():
    _parallel(_by_sequences)


def two_dimensional_agrees():
    """Rows of a mesh have parts of the tensors, columns shard what is left of them."""
    count = dist.get_world_size()
    for shape in {(1, count), (count, 1), (count // 2, 2)}:
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("data", "tensor"))
        row = mesh.get_local_rank("data")

        def ran(compile_block, mesh=mesh, row=row):
            net = made()
            by_tensors(net, mesh["tensor"])
            for n, block in enumerate(net.blocks):
                net.blocks[n] = compile_block(block)
            shard(net, mesh["data"])
            return trained(net, net, seed=row), list(net.blocks)

        expected, _ = ran(_as_it_is)
        found, compiled = ran(plait.compile)
        agree(found, expected, shape, CLOSE)
        for each in compiled:
            all_compiled(each, shape)
