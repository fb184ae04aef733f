"""Layers and functions that draw: their streams, under seeds, in vmap and in checkpoints."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from conformance.declare import case, scenario, t, with_x


def _then(result):
    """Gradients of what needs some, and where the stream is."""
    parts = result if isinstance(result, tuple) else (result,)
    found = [r for r in parts if isinstance(r, torch.Tensor) and r.requires_grad]
    if found:
        sum(each.sum() for each in found).backward()
    return torch.rand(2)


def _grads():
    return [
        (t(*shape, grad=grad),) for shape, grad in (((2, 4, 6), 0), ((2, 4, 6), 1), ((3, 4, 6), 1))
    ]


def drawing(program):
    """A case of one tensor, with gradients and without."""
    return case(_grads, then=_then)(program)


@drawing
def dropouts(x):
    return (
        *(F.dropout(x, 0.3), F.alpha_dropout(x, 0.3, True), F.feature_alpha_dropout(x, 0.3, True)),
        *(F.dropout1d(x, 0.4), F.dropout2d(x.unsqueeze(1), 0.4), F.dropout3d(x[None, :, None])),
        *(F.dropout(x, 0.0), F.dropout(x, 1.0), F.dropout(x, 0.5, training=False)),
    )


@drawing
def dropout_in_place(x):
    y = x * 2
    F.dropout(y, 0.3, inplace=True)
    return y, F.alpha_dropout(y + 1, 0.3, True, inplace=True)


@drawing
def leaky_noise(x):
    return F.rrelu(x, training=True), F.rrelu(x), F.rrelu(x * 1, training=True, inplace=True)


@drawing
def gumbel(x):
    return F.gumbel_softmax(x), F.gumbel_softmax(x, tau=0.5, hard=True), F.gumbel_softmax(x, dim=1)


@drawing
def in_place(x):
    y = torch.zeros_like(x)
    return (
        *(y.clone().normal_(), y.clone().uniform_(1, 2), y.clone().bernoulli_(0.3)),
        *(y.clone().exponential_(), y.clone().cauchy_(), y.clone().log_normal_()),
        *(y.clone().geometric_(0.4), y.long().random_(), y.long().random_(2, 9)),
        y.t_().bernoulli_(0.5) if y.dim() == 2 else y.transpose(0, 2).bernoulli_(0.5),
    )


@drawing
def likenesses(x):
    return (
        *(torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)),
        *(torch.randn_like(x, dtype=torch.float64), torch.randint_like(x, 2, 9)),
        *(torch.normal(x.detach(), 1.0), torch.normal(0.0, x.detach().abs() + 1)),
        torch.normal(x.detach(), x.detach().abs() + 1),
    )


@drawing
def of_probabilities(x):
    p = torch.sigmoid(x.detach())
    return (
        *(torch.bernoulli(p), torch.bernoulli(p, 0.5), p.clone().bernoulli_(p)),
        *(torch.multinomial(p[0], 2), torch.multinomial(p[0], 9, replacement=True)),
        *(torch.poisson(p * 3), torch.binomial(torch.full_like(p, 5.0), p), torch.randperm(6)),
    )


@drawing
def attention_with_dropout(x):
    return F.scaled_dot_product_attention(x, x * 2, x + 1, dropout_p=0.3)


@drawing
def pooling_by_chance(x):
    return F.fractional_max_pool2d(x, 2, output_ratio=(0.6, 0.7))


@case(with_x(1, 2, 1), then=_then)
def under_seeds(x, n):
    torch.manual_seed(n)
    a = F.gumbel_softmax(x, hard=True)
    torch.manual_seed(n)
    b = F.gumbel_softmax(x, hard=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n + 1)
        noise = torch.randn_like(x)
    return a, b, F.rrelu(x + noise, training=True), torch.randperm(5)


@case(lambda: [(t(3, 4), kind) for kind in ("different", "same", "error", "different")], then=_then)
def mapped(x, randomness):
    def row(values):
        return F.dropout(values, 0.5) + torch.rand(4), torch.randn_like(values)

    try:
        return torch.vmap(row, randomness=randomness)(x)
    except RuntimeError as error:
        return type(error), x


@case(lambda: [(t(3, 4), n) for n in (1, 2, 1)], then=_then)
def mapped_under_seeds(x, n):
    torch.manual_seed(n)
    a = torch.vmap(lambda values: values + torch.rand(4), randomness="same")(x)
    torch.manual_seed(n)
    return a, torch.vmap(lambda values: values + torch.rand(4), randomness="same")(x)


class Noisy(nn.Module):
    """Layers that draw in training."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(4, 6), nn.Dropout(0.4), nn.RReLU(), nn.Linear(6, 4), nn.AlphaDropout(0.2))
        )

    def forward(self, x):
        return self.layers(x)


class Checkpointed(Noisy):
    """The same, run again in the backward."""

    def __init__(self, preserve, reentrant=False):
        super().__init__()
        self.preserve, self.reentrant = preserve, reentrant

    def forward(self, x):
        again = {"preserve_rng_state": self.preserve, "use_reentrant": self.reentrant}
        y = checkpoint(self.layers, x, **again)
        return F.dropout(y, 0.5) + torch.rand_like(y)


def _module(make):
    torch.manual_seed(0)
    return make()


def _inputs():
    return [(t(*shape, grad=True),) for shape in ((2, 4), (3, 4), (2, 4))]


@scenario(_inputs, then=_then)
def noisy_module():
    return _module(Noisy)


@scenario(_inputs, then=_then)
def checkpointed_module():
    return _module(lambda: Checkpointed(True))


@scenario(_inputs, then=_then)
def checkpointed_and_drawn_again():
    return _module(lambda: Checkpointed(False))


@scenario(_inputs, then=_then)
def checkpointed_reentrant():
    return _module(lambda: Checkpointed(True, True))


@scenario(_inputs, then=_then)
def checkpointed_between_seeds():
    model = _module(lambda: Checkpointed(True))

    def program(x):
        torch.manual_seed(3)
        y = model(x)
        torch.manual_seed(4)
        return y + model(x)

    return program


class Switched(Noisy):
    """In training and not, in turns."""

    def forward(self, x):
        y = self.layers(x)
        self.train(not self.training)
        return y


@scenario(lambda: [(t(2, 4),), (t(2, 4),), (t(3, 4),), (t(3, 4),)], then=_then)
def switched_off_in_turns():
    return _module(Switched)


@scenario(lambda: [(t(2, 3, 4, grad=True),), (t(3, 3, 4, grad=True),)], then=_then)
def transformer_layer():
    return _module(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True))


@scenario(lambda: [(t(2, 3, 4, grad=True),), (t(2, 3, 4),)], then=_then)
def recurrent_with_dropout():
    model = _module(lambda: nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True))

    def program(x):
        return model(x)[0]

    return program


@scenario(lambda: [(t(2, 4),), (t(3, 4),), (t(2, 4),)], then=lambda result: torch.rand(2))
def training_step_with_noise():
    model = _module(Noisy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = (model(x + 0.1 * torch.randn_like(x)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
