"""Programs of several processes, as they are and compiled: each must agree with itself.

What is computed, what is written, and in how many collectives each process takes part.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

import plait

ops = torch.ops._c10d_functional
# What torch 2.13 calls them, and torch before.
gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
gather_autograd = getattr(
    functional, "all_gather_single_autograd", functional.all_gather_tensor_autograd
)
WIDTH = 8


def numbers(*sizes, seed=0):
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + seed)
    return torch.randn(sizes, generator=generator, dtype=torch.float64) / 2


def calls_made():
    return dist.group.WORLD._get_sequence_number_for_group()


def counted(run, *args):
    """What a function gives, and in how many collectives of all processes it takes part."""
    before = calls_made()
    found = run(*args)
    return found, calls_made() - before


def agree(found, expected, name, tolerance=1e-12):
    assert len(found) == len(expected), (name, len(found), len(expected))
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.shape == other.shape, (name, n)
        off = float((one - other).abs().max() / (1 + other.abs().max()))
        assert off < tolerance, (name, n, off)


def is_compiled(compiled, name):
    """Whether all ran as graphs that were compiled, in parts where they call collectives."""
    report = plait.report(compiled)
    eager = [graph.reason for graph in report.graphs if graph.outcome != "compiled"]
    assert not [*eager, *report.breaks], (name, eager, report.breaks)
    assert any(".part-" in graph.name for graph in report.graphs), name


class Gradients:
    """Programs that gradients flow through, of a block of rows and two weights."""

    def tensor_parallel(self, x, a, b):
        rows = functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        hidden = torch.relu(rows @ a) @ b
        return functional.reduce_scatter_tensor_autograd(hidden, "sum", 0, dist.group.WORLD)

    def exchanged(self, x, a, b):
        n = dist.get_world_size()
        parts = [x.shape[0] // n] * n
        y = functional.all_to_all_single_autograd(x @ a, parts, parts, dist.group.WORLD)
        return torch.tanh(y) @ b

    def reduced(self, x, a, b):
        y = functional.all_reduce(torch.tanh(x @ a), "sum", dist.group.WORLD)
        z = functional.all_reduce(x @ b, "sum", dist.group.WORLD)
        return torch.tanh(y) * z

    def with_two_results(self, x, a, b):
        y = functional.all_reduce(torch.tanh(x @ a), "sum", dist.group.WORLD)
        z = functional.all_reduce(torch.tanh(x @ b), "sum", dist.group.WORLD)
        return (y * 2).sum() + (y @ z).sum(), (z * 3).sum()


def gradients_agree():
    given = [
        numbers(8, WIDTH, seed=1),
        numbers(WIDTH, WIDTH, seed=2),
        numbers(WIDTH, WIDTH, seed=3),
    ]
    kinds = Gradients()

    def ran(program, of=None, results=(0,)):
        inputs = [each.clone().requires_grad_() for each in given]
        made = program(*inputs)
        made = made if isinstance(made, tuple) else (made,)
        wanted = inputs if of is None else [inputs[n] for n in of]
        loss = sum((made[n] * 1.5).square().sum() for n in results)
        found = torch.autograd.grad(loss, wanted)
        return [*(each.detach() for each in made), *found]

    for name in ("tensor_parallel", "exchanged", "reduced"):
        program = getattr(kinds, name)
        expected, count = counted(ran, program)
        for joins in (False, True) if name == "tensor_parallel" else (False,):
            options = {"join_collectives": joins}
            compiled = plait.compile(program, fullgraph=True, options=options)
            for _ in range(2):
                found, made = counted(ran, compiled)
                agree(found, expected, name)
                assert made == count or joins, (name, made, count)
            is_compiled(compiled, name)

    # Autograd calls what leads to gradients that are asked for, and so must what is compiled.
    program = kinds.with_two_results
    compiled = plait.compile(program, fullgraph=True)
    for of, results in ((None, (0, 1)), ((1,), (0,)), ((2,), (1,)), ((0, 2), (1,)), ((2,), (0, 1))):
        expected, count = counted(ran, program, of, results)
        found, made = counted(ran, compiled, of, results)
        agree(found, expected, (of, results))
        assert made == count, (of, results, made, count)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)
        self.unused = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.last = torch.nn.Linear(2 * WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

    def used(self):
        return [*self.first.parameters(), *self.last.parameters()]


def data_parallel_step(kind, net):
    """A whole step by hand: each gradient is reduced when all are there, then used."""
    optimizer = kind(net.used())
    n = dist.get_world_size()

    def step(x, y):
        loss = (net(x) - y).square().mean()
        loss.backward()
        for each in reversed(net.used()):
            each.grad = functional.all_reduce(each.grad, "sum", dist.group.WORLD) / n
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def steps_agree():
    kinds = (
        (False, lambda given: torch.optim.AdamW(given, 0.01)),
        (True, lambda given: torch.optim.SGD(given, 0.1, momentum=0.9)),
    )
    batches = [(numbers(4, WIDTH, seed=n), numbers(4, WIDTH, seed=50 + n)) for n in range(4)]

    def ran(kind, compile_step):
        net = Net()
        step = compile_step(data_parallel_step(kind, net))
        losses = [step(*batch).detach().clone() for batch in batches]
        return [*losses, *(each.detach() for each in net.used())], step

    for joins, kind in kinds:
        (expected, _), count = counted(ran, kind, lambda step: step)
        chosen = {"fullgraph": True, "options": {"join_collectives": joins}}
        (found, compiled), made = counted(ran, kind, partial(plait.compile, **chosen))
        agree(found, expected, kind)
        assert made == count or joins
        is_compiled(compiled, kind)


def sharded_step(shards, rate=0.1):
    """Weights by rows: gathered, used, gradients scattered, and what the process has updated."""
    n = dist.get_world_size()

    def step(x):
        whole = [gather_autograd(each, 0, dist.group.WORLD) for each in shards]
        y = x
        for weight in whole:
            y = torch.tanh(y @ weight)
        loss = y.square().sum()
        loss.backward()
        with torch.no_grad():
            for each in shards:
                each -= rate * each.grad / n
                each.grad = None
        return loss

    return step


def sharded_agrees():
    batches = [numbers(4, WIDTH, seed=n) for n in range(3)]

    def ran(compile_step):
        rows = WIDTH // dist.get_world_size()
        shards = [numbers(rows, WIDTH, seed=20 + n).requires_grad_() for n in range(3)]
        step = compile_step(sharded_step(shards))
        losses = [step(batch).detach().clone() for batch in batches]
        return [*losses, *(each.detach() for each in shards)], step

    (expected, _), count = counted(ran, lambda step: step)
    for joins in (False, True):
        compile_step = partial(plait.compile, options={"join_collectives": joins})
        (found, compiled), made = counted(ran, compile_step)
        agree(found, expected, "sharded")
        assert made == count or joins
        is_compiled(compiled, "sharded")


def written_inputs_agree():
    def decoded(cache, new, at):
        gathered = gather(cache[:2], 0, dist.group.WORLD)  # as it was
        cache.index_copy_(0, at, functional.all_reduce(new, "sum", dist.group.WORLD))
        return torch.tanh(cache).sum(0), gathered * 2

    def ran(program):
        cache, found = numbers(6, WIDTH), []
        with torch.no_grad():
            for n in range(3):
                made = program(cache, numbers(1, WIDTH, seed=n), torch.tensor([n]))
                found += [each + 0 for each in made] + [cache.clone()]
        return found

    compiled = plait.compile(decoded, fullgraph=True)
    agree(ran(compiled), ran(decoded), "written")
    is_compiled(compiled, "written")


def meshes_agree():
    n = dist.get_world_size()
    shapes = [(2, 2), (1, 4), (4, 1)] if n == 4 else [(1, 2), (2, 1)]
    meshes = [
        init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns")) for shape in shapes
    ]

    def program(mesh, x):
        one = functional.all_reduce(x * 2, "sum", (mesh, 1))
        two = gather(one + x, 0, mesh.get_group("rows"))
        return functional.all_reduce(two, "sum", mesh["columns"]) / mesh.size(1), one + 1

    compiled = plait.compile(program, fullgraph=True)
    x = numbers(2, 3)
    with torch.no_grad():
        for mesh in (*meshes, meshes[0]):
            agree(compiled(mesh, x), [each + 0 for each in program(mesh, x)], "mesh")
        is_compiled(compiled, "mesh")

    # The name of a group is read anew: another group may stand in its place.
    groups = [dist.new_group([rank]) for rank in range(n)]
    own, world = groups[dist.get_rank()], dist.group.WORLD
    reduced = plait.compile(lambda x, group: functional.all_reduce(x, "sum", group) + 1)
    with torch.no_grad():
        for group in (world, own, world):
            expected = functional.all_reduce(x, "sum", group) + 1
            agree([reduced(x, group)], [expected], "group")


def distributed_tensors_agree():
    """One graph serves all that lie alike over one mesh."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    shape = (dist.get_world_size(),)
    generator = torch.Generator().manual_seed(5)
    whole = [torch.randn(8, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)]

    def program(x, weight):
        return torch.relu(torch.nn.functional.linear(x, weight)).sum(0)

    compiled = plait.compile(program, fullgraph=True)

    def check(mesh, placement):
        x = distribute_tensor(whole[0], mesh, [Replicate()])
        weight = distribute_tensor(whole[1], mesh, [placement]).requires_grad_()
        found = []
        for each in (compiled, program):
            made = each(x, weight)
            (grad,) = torch.autograd.grad(made.square().sum(), weight)
            assert grad.placements == weight.placements
            found.append([made.full_tensor().detach(), grad.full_tensor()])
        agree(*found, placement)

    mesh = init_device_mesh("cpu", shape)
    for _ in range(3):
        check(mesh, Shard(0))
    report = plait.report(compiled)
    assert all(graph.outcome == "compiled" for graph in report.graphs)
    again = [each.reason for each in report.recompiles]
    assert not again, again
    check(mesh, Replicate())
    check(init_device_mesh("cpu", shape), Shard(0))
