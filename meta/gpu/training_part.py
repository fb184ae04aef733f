"""Training on a device: gradients and updates of compiled models, optimizers and whole steps.

Each is run as it is, compiled, and in float64. Nothing is dropped at random, since float64 draws
other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from suites.compare import tensors_in
from suites.training import ARCHITECTURES
from suites.zoo import MODELS, Entry
from torch import Tensor, nn

from gpu.judge import fault
from gpu.models_part import WAYS, how, inputs_of
from gpu.result import Case, Outcome, Result
from gpu.steps import STEPS, Trained

PART = "training"
_UPDATES = 2
_SECONDS = 240.0


def cases(device: str, *, everything: bool) -> list[Case]:
    """Models of many kinds, then optimizers and steps of small networks."""
    models = [f"model {name}" for name in (MODELS if everything else ARCHITECTURES)]
    known = [name for name in models if name.removeprefix("model ") in MODELS]
    return [Case(PART, name, device, _SECONDS) for name in (*known, *STEPS)]


def check(case: Case) -> Result:
    """Some steps as they are, compiled, and where these differ in float64."""
    make = STEPS.get(case.name) or _model(MODELS[case.name.removeprefix("model ")])
    try:
        plain = make(case.device)
        twin, wide = make(case.device), make(case.device)
        expected = [plain.step(number) for number in range(_UPDATES)]
    except Exception as error:  # a fault of the zoo's, or eager has no kernel there
        return Result(case, Outcome.NOT_HERE, f"eager: {type(error).__name__}: {error}"[:200])
    twin.compile()
    exact: list[Any] = []

    def exactly(number: int) -> Any:
        if not exact:
            wide.widen()
            exact.extend(wide.step(each) for each in range(_UPDATES))
        return exact[number]

    for number, wanted in enumerate(expected):
        found = twin.step(number)
        wrong = fault(found, wanted, lambda number=number: exactly(number), f"step {number}")
        if wrong is not None:
            return Result(case, Outcome.WRONG, wrong, wrong)
    return Result(case, Outcome.RIGHT, max(map(how, twin.compiled), key=WAYS.index))


def _model(entry: Entry) -> Callable[[str], Trained]:
    def make(device: str) -> Trained:
        module = entry.build().to(device).train()
        _leave_chance_out(module)
        made = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        return Trained(module, made, lambda _: inputs_of(entry, 0, device), _squares)

    return make


def _squares(run: Callable[..., Any], inputs: dict[str, Any]) -> Tensor:
    """The sum of the mean squares of all that gradients flow to."""
    found = tensors_in(run(**inputs)).values()
    squares = [each.square().mean() for each in found if each.requires_grad]
    return torch.stack(squares).sum()


def _leave_chance_out(module: nn.Module) -> None:
    """Set all that a model drops at random to nothing."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for holder in (part, getattr(part, "config", None)):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                if "drop" in name and isinstance(value, float):
                    setattr(holder, name, 0.0)
