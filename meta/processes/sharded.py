"""Whole models that `fully_shard` spreads over processes, compiled: each must agree with itself.

Its hooks are calls of Python's, and all layers that are alike share what is compiled between them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import plait
from processes.modules import (
    CLOSE,
    DEVICE,
    WIDTH,
    Block,
    all_compiled,
    batch,
    by_tensors,
    made,
    shard,
    trained,
    whole,
)
from processes.programs import agree

LAYERS = 10
"""More than a function has specialisations."""


class Dropping(Block):
    """Its layers compute again what they have dropped."""

    def forward(self, x):
        def inner(y):
            return torch.nn.functional.dropout(Block.forward(self, y), 0.1, self.training)

        return checkpoint(inner, x, use_reentrant=False)


class Wider(torch.nn.Module):
    """No two layers have parameters of the same sizes, nor the same scale."""

    def __init__(self, n):
        super().__init__()
        self.scale = 1 / (n + 2)
        self.up = torch.nn.Linear(WIDTH, WIDTH + n)
        self.down = torch.nn.Linear(WIDTH + n, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x))) * self.scale


def hooked(n):
    block = Block()
    block.register_forward_pre_hook(lambda module, args: (args[0] * 1.01,))
    block.register_forward_hook(lambda module, args, result: result * 0.99)
    return block


def of_blocks(make):
    def net():
        found = made(blocks=0)
        for n in range(LAYERS):
            found.blocks.append(make(n).to(DEVICE, torch.float64))
        return found

    return net


def shard_parts(net, mesh):
    """Layers, and their parts."""
    for block in net.blocks:
        fully_shard(block.attention, mesh=mesh)
        fully_shard(block.feed, mesh=mesh)
    shard(net, mesh)


def shard_pairs(net, mesh):
    """Two layers at a time."""
    blocks = list(net.blocks)
    for pair in zip(blocks[::2], blocks[1::2], strict=True):
        fully_shard(list(pair), mesh=mesh)
    fully_shard(net, mesh=mesh)


WHOLE = {
    "alike": (lambda: made(blocks=LAYERS), shard),
    "kept whole": (
        lambda: made(blocks=LAYERS),
        lambda net, mesh: shard(net, mesh, reshard_after_forward=False),
    ),
    "in parts": (lambda: made(blocks=LAYERS), shard_parts),
    "in pairs": (lambda: made(blocks=LAYERS), shard_pairs),
}
OTHERS = {
    "of many sizes": (of_blocks(Wider), shard),
    "with hooks": (of_blocks(hooked), shard),
    "checkpoints inside": (of_blocks(lambda n: Dropping()), shard),
    "checkpoints around": (of_blocks(lambda n: checkpoint_wrapper(Block())), shard),
}


def _trained(make, spread, compile_model, steps=(2, 3), **kind):
    """What two runs give, the model, and how often it was compiled by the end of each."""
    torch.manual_seed(0)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    net = make()
    spread(net, mesh)
    model = compile_model(net)
    torch.manual_seed(dist.get_rank())
    found, counts = [], []
    for count in steps:
        found += trained(model, net, steps=count, **kind)
        if model is not net:
            report = plait.report(model)
            counts.append((len(report.graphs), len(report.breaks)))
    return found, model, counts


def _as_it_is(net):
    return net


def _agrees(name, make, spread, tolerance=CLOSE, **kind):
    """How many graphs a whole model is compiled to, where none is made after the first steps."""
    expected, *_ = _trained(make, spread, _as_it_is, **kind)
    found, model, counts = _trained(make, spread, plait.compile, **kind)
    agree(found, expected, name, tolerance)
    report = all_compiled(model, name)
    assert not report.notices, (name, report.notices)
    assert counts[0] == counts[1], (name, counts)
    return counts[0][0]


def whole_models_agree():
    for name, (make, spread) in WHOLE.items():
        _agrees(name, make, spread)


def other_whole_models_agree():
    for name, (make, spread) in OTHERS.items():
        _agrees(name, make, spread)


def whole_models_share_graphs():
    """Layers that are alike cost nothing more."""
    few = _agrees("few", lambda: made(blocks=3), shard)
    assert _agrees("many", lambda: made(blocks=12), shard) == few


def whole_half_precision_agrees():
    def policy(output):
        kinds = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        return MixedPrecisionPolicy(**kinds, output_dtype=output)

    def spread(net, mesh):
        for block in net.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy(None))
        fully_shard(net, mesh=mesh, mp_policy=policy(torch.float32))

    half = {"dtype": torch.float32}
    _agrees("half precision", lambda: made(torch.float32, blocks=LAYERS), spread, 3e-2, **half)


def whole_two_dimensional_agrees():
    """Tensors in parts along one dimension of a mesh, sharded along the other."""
    half = dist.get_world_size() // 2
    for shape in {(half, 2), (2, half)}:
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("data", "tensor"))

        def spread(net, _, mesh=mesh):
            by_tensors(net, mesh["tensor"])
            shard(net, mesh["data"])

        row = mesh.get_local_rank("data")
        _agrees(shape, lambda: made(blocks=LAYERS), spread, seed=row)


def whole_models_change_together():
    """What is changed after it was compiled: hooks, layers, and how these are spread."""

    def add(net):
        net.blocks[4].register_forward_hook(lambda module, args, result: result * 1.1)
        net.blocks[6].register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))

    def swap(net):
        net.blocks[1], net.blocks[4] = net.blocks[4], net.blocks[1]

    def spread_otherwise(net):
        for block in (net.blocks[2], net.blocks[7]):
            block.set_reshard_after_forward(False)
        net.blocks[3].set_modules_to_forward_prefetch([net.blocks[4]])

    def alone(net):
        net.set_requires_gradient_sync(False)

    def together(net):
        net.set_requires_gradient_sync(True)

    def freeze(net):
        for parameter in net.blocks[5].parameters():
            parameter.requires_grad_(False)

    def evaluate(net):
        net.blocks[8].eval()

    def remove(net):
        for block in net.blocks:
            while len(block._forward_hooks) > 1:
                block._forward_hooks.popitem()

    changes = (add, swap, spread_otherwise, evaluate, remove, freeze, alone, together)

    def ran(compile_model):
        net = made(blocks=LAYERS)
        shard(net, init_device_mesh(DEVICE, (dist.get_world_size(),)))
        model = compile_model(net)
        found = trained(model, net, steps=1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for n, change in enumerate(changes):
            change(net)
            for _ in range(2):
                loss = model(batch(n)).square().mean()
                loss.backward()
                found.append(loss.detach())
            if change is not alone:
                found += [whole(p.grad).clone() for p in net.parameters() if p.grad is not None]
                optimizer.step()
                optimizer.zero_grad()
        return [*found, *(whole(p.detach()) for p in net.parameters())], model

    expected, _ = ran(_as_it_is)
    found, compiled = ran(plait.compile)
    agree(found, expected, "changed", CLOSE)
    report = all_compiled(compiled, "changed")
    assert not report.notices, report.notices


def whole_sharded_steps_agree():
    """Steps are compiled with the model in them, and the optimizer."""

    def ran(compile_step):
        net = made(blocks=LAYERS)
        shard(net, init_device_mesh(DEVICE, (dist.get_world_size(),)))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=False)

        def step(x):
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = compile_step(step)
        losses = [step(batch(n)).detach().clone() for n in range(4)]
        return [*losses, *(whole(each.detach()) for each in net.parameters())]

    agree(ran(plait.compile), ran(_as_it_is), "steps", CLOSE)
