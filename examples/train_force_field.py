"""A force field: a neural potential fitted to energies and forces, eager and compiled.

Forces are the gradient of the energy by the positions, so the loss on forces needs derivatives of
derivatives through the compiled function. The data are clusters of atoms under a Lennard-Jones
potential, whose forces are known in closed form. Both trainings start from the same weights and run
in float64; exits 1 where their losses differ or where the fit is poor.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import plait

ATOMS = 8
BATCH = 32
TOLERANCE = 1e-9
"""How far losses may be apart, relative to themselves: the trainings differ by roundings only."""
LEAST_EXPLAINED = 0.9
"""The share of the forces' variance that the fit has to explain."""


class Potential(nn.Module):
    """Energies (batch,) of clusters from positions (batch, atoms, 3).

    A sum over pairs of a perceptron of radial basis functions of their distance, so it does not
    change when a cluster is moved, turned or its atoms are exchanged.
    """

    def __init__(self, width: int = 64, functions: int = 24) -> None:
        super().__init__()
        pairs = torch.triu_indices(ATOMS, ATOMS, offset=1)
        self.register_buffer("first", pairs[0])
        self.register_buffer("second", pairs[1])
        self.register_buffer("centres", torch.linspace(0.8, 4.0, functions))
        self.pair = nn.Sequential(
            *(nn.Linear(functions, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, 1),
        )

    def forward(self, positions: Tensor) -> Tensor:
        apart = positions[:, self.first] - positions[:, self.second]
        distance = apart.square().sum(-1, keepdim=True).sqrt()
        basis = torch.exp(-8 * (distance - self.centres).square())
        return self.pair(basis).sum((1, 2))


@dataclass(frozen=True)
class Clusters:
    """Positions (count, atoms, 3), energies (count,) and forces like the positions."""

    positions: Tensor
    energies: Tensor
    forces: Tensor


@dataclass(frozen=True)
class Trained:
    """One training: losses, seconds of each step, share of the forces' variance explained."""

    losses: list[float]
    seconds: list[float]
    explained: float


def clusters(count: int, seed: int) -> Clusters:
    """Atoms near the corners of a cube."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.cartesian_prod(*(torch.tensor([0.0, 1.2], dtype=torch.float64),) * 3)
    noise = torch.randn(count, ATOMS, 3, generator=generator, dtype=torch.float64)
    positions = corners + 0.08 * noise
    apart = positions[:, :, None] - positions[:, None]
    squared = apart.square().sum(-1) + torch.eye(ATOMS, dtype=torch.float64)
    inverse = squared.reciprocal().pow(3) * (1 - torch.eye(ATOMS, dtype=torch.float64))
    energies = 2 * (inverse.square() - inverse).sum((1, 2))
    strengths = 24 * (2 * inverse.square() - inverse) / squared
    return Clusters(positions, energies, (strengths[..., None] * apart).sum(2))


def energies_and_forces(
    potential: Callable[[Tensor], Tensor], positions: Tensor, *, train: bool
) -> tuple[Tensor, Tensor]:
    """The energies, and the forces, which can be differentiated again while training."""
    positions = positions.clone().requires_grad_()
    energies = potential(positions)
    (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=train)
    return energies, -gradient


def train(
    potential: Potential,
    run: Callable[[Tensor], Tensor],
    data: Clusters,
    held: Clusters,
    steps: int,
) -> Trained:
    """Fit by Adam; `run` is the potential, or it compiled."""
    optimizer = torch.optim.Adam(potential.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(3)
    losses, seconds = [], []
    for _ in range(steps):
        chosen = torch.randint(len(data.energies), (BATCH,), generator=generator)
        start = time.perf_counter()
        energies, forces = energies_and_forces(run, data.positions[chosen], train=True)
        loss = F.mse_loss(forces, data.forces[chosen])
        loss = loss + 0.1 * F.mse_loss(energies, data.energies[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    _, forces = energies_and_forces(run, held.positions, train=False)
    left = (forces - held.forces).square().sum() / held.forces.square().sum()
    return Trained(losses, seconds, 1 - left.item())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    data, held = clusters(1024, seed=1), clusters(BATCH, seed=2)
    torch.manual_seed(0)
    potential = Potential().double()
    other = copy.deepcopy(potential)
    compiled = plait.compile(other)
    eager = train(potential, potential, data, held, steps)
    fast = train(other, compiled, data, held, steps)
    table = Table(title=f"Force field, {steps} steps of {BATCH} clusters")
    for heading in ("", "eager", "plait"):
        table.add_column(heading, justify="right")
    table.add_row("forces explained", f"{eager.explained:.2%}", f"{fast.explained:.2%}")
    table.add_row("first loss", f"{eager.losses[0]:.6f}", f"{fast.losses[0]:.6f}")
    table.add_row("last loss", f"{eager.losses[-1]:.6f}", f"{fast.losses[-1]:.6f}")
    medians = [f"{statistics.median(each.seconds) * 1e3:.2f} ms" for each in (eager, fast)]
    table.add_row("a step", *medians)
    console = Console(width=100)
    console.print(table)
    pairs = list(zip(eager.losses, fast.losses, strict=True))
    apart = max(abs(a - b) / a for a, b in pairs)
    console.print(f"largest relative difference of losses: {apart:.1e}")
    for graph in plait.report(compiled).graphs:
        if graph.reason:
            console.print(f"[yellow]{graph.name} runs {graph.outcome}: {graph.reason}[/yellow]")
    agreed = apart <= TOLERANCE and min(eager.explained, fast.explained) >= LEAST_EXPLAINED
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
