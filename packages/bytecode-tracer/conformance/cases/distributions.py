"""torch.distributions: samples, densities, entropies, divergences, and gradients through them."""

from __future__ import annotations

import torch
import torch.distributions as D
from torch import nn
from torch.distributions import constraints
from torch.distributions.kl import register_kl
from torch.distributions.utils import lazy_property

from conformance.declare import case, scenario, t


def _two():
    """Pairs of tensors: of two shapes, then with gradients, then of float64."""
    return [
        (t(2, 3, start=-1.0), t(2, 3, start=0.5)),
        (t(4, 3, start=0.25), t(4, 3, start=-0.5)),
        (t(2, 3, start=0.5).requires_grad_(), t(2, 3, start=-1.0).requires_grad_()),
        (t(2, 3, start=-0.25).double(), t(2, 3, start=0.75).double()),
    ]


def _few():
    """Of one shape alone, for programs of many operators."""
    return [_two()[0], _two()[2]]


def _grads(result):
    """The sum of what needs gradients is differentiated."""
    found = [r for r in result if isinstance(r, torch.Tensor) and r.requires_grad]
    if found:
        sum(r.sum() for r in found).backward()


def distribution(program):
    """A case that asks for two parameters, and differentiates what it returns."""
    return case(_two, then=_grads)(program)


def large(program):
    """The same for a program of many operators."""
    return case(_few, then=_grads)(program)


@distribution
def normal(a, b):
    made = D.Normal(a, b.exp(), validate_args=False)
    z = made.rsample((2,))
    return z, made.log_prob(z), made.entropy(), made.cdf(a), made.mean, made.variance, made.stddev


@distribution
def normal_sampled(a, b):
    made = D.Normal(a, b.exp(), validate_args=False)
    return made.sample(), made.icdf(torch.sigmoid(b)), made.mode, made.batch_shape, repr(made)


@distribution
def bernoulli(a, b):
    made = D.Bernoulli(logits=a, validate_args=False)
    drawn = made.sample()
    return drawn, made.log_prob(drawn), made.entropy(), made.probs, made.mean, made.variance


@distribution
def bernoulli_of_probabilities(a, b):
    made = D.Bernoulli(torch.sigmoid(a), validate_args=False)
    return made.sample((3,)), made.logits, made.log_prob(torch.ones_like(a)), made.param_shape


@distribution
def categorical(a, b):
    made = D.Categorical(logits=a, validate_args=False)
    drawn = made.sample()
    return drawn, made.log_prob(drawn), made.entropy(), made.probs, made.enumerate_support()


@distribution
def categorical_of_probabilities(a, b):
    made = D.Categorical(torch.softmax(a, -1), validate_args=False)
    return made.sample((2,)), made.logits, made.log_prob(torch.zeros(a.shape[0])), made.mode


@distribution
def beta(a, b):
    made = D.Beta(a.exp(), b.exp(), validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.mean, made.concentration1


@distribution
def gamma(a, b):
    made = D.Gamma(a.exp(), b.exp(), validate_args=False)
    z = made.rsample((2,))
    return z, made.log_prob(z), made.entropy(), made.variance


@distribution
def dirichlet(a, b):
    made = D.Dirichlet(a.exp(), validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.mean, made.variance


@large
def multivariate_normal(a, b):
    scale = torch.eye(a.shape[1], dtype=a.dtype) * 2 + b.t().mm(b)
    made = D.MultivariateNormal(a[0], scale_tril=torch.tril(scale), validate_args=False)
    z = made.rsample((2,))
    return z, made.log_prob(z), made.entropy(), made.covariance_matrix, made.precision_matrix


@large
def multivariate_normal_of_covariance(a, b):
    scale = torch.eye(a.shape[1], dtype=a.dtype) * 2 + b.t().mm(b)
    made = D.MultivariateNormal(a, scale, validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.scale_tril, made.batch_shape


@large
def low_rank(a, b):
    made = D.LowRankMultivariateNormal(a[0], b.t().exp(), b[0].exp(), validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.covariance_matrix


@distribution
def divergence(a, b):
    p = D.Normal(a, b.exp(), validate_args=False)
    q = D.Normal(torch.zeros_like(a), torch.ones_like(b), validate_args=False)
    return D.kl_divergence(p, q), D.kl_divergence(q, p)


@large
def divergences(a, b):
    def kl(kind, *one):
        half = len(one) // 2
        p, q = kind(*one[:half], validate_args=False), kind(*one[half:], validate_args=False)
        return D.kl_divergence(p, q)

    a, b = a.exp(), b.exp()
    return (
        *(kl(D.Gamma, a, b, b, a), kl(D.Beta, a, b, b, a), kl(D.Dirichlet, a, b)),
        *(kl(D.Exponential, a, b), kl(D.Laplace, a, b, b, a), kl(D.Poisson, a, b)),
        *(kl(D.Bernoulli, a / (1 + a), b / (1 + b)), kl(D.Categorical, a, b)),
        *(kl(D.Gumbel, a, b, b, a), kl(D.Geometric, a / (1 + a), b / (1 + b))),
    )


@distribution
def independent(a, b):
    p = D.Independent(D.Normal(a, b.exp(), validate_args=False), 1, validate_args=False)
    q = D.Independent(D.Normal(a * 0, b.exp() + 1, validate_args=False), 1, validate_args=False)
    return D.kl_divergence(p, q), p.log_prob(a), p.rsample(), p.entropy(), p.event_shape


@distribution
def squashed(a, b):
    base = D.Normal(a, b.exp(), validate_args=False)
    made = D.TransformedDistribution(base, [D.TanhTransform(cache_size=1)], validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z)


@large
def transformed(a, b):
    base = D.Normal(torch.zeros_like(a), torch.ones_like(a), validate_args=False)
    parts = [D.AffineTransform(a, b.exp()), D.SigmoidTransform(), D.ExpTransform()]
    made = D.TransformedDistribution(base, parts, validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.cdf(z)


@distribution
def uniform(a, b):
    made = D.Uniform(a - 1, a + b.exp(), validate_args=False)
    return made.rsample(), made.log_prob(a), made.entropy(), made.cdf(a)


@distribution
def exponential(a, b):
    made = D.Exponential(a.exp(), validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.mean


@large
def heavy_tails(a, b):
    laplace = D.Laplace(a, b.exp(), validate_args=False)
    gumbel = D.Gumbel(a, b.exp(), validate_args=False)
    cauchy = D.Cauchy(a, b.exp(), validate_args=False)
    half = D.HalfNormal(b.exp(), validate_args=False)
    return tuple(
        part
        for made in (laplace, gumbel, cauchy, half)
        for part in (made.rsample(), made.log_prob(a.abs()), made.entropy())
    )


@large
def counts(a, b):
    made = [
        D.Poisson(a.exp(), validate_args=False),
        D.Geometric(logits=a, validate_args=False),
        D.Binomial(5, logits=a, validate_args=False),
        D.NegativeBinomial(5, logits=a, validate_args=False),
    ]
    return tuple(part for each in made for part in (each.log_prob(each.sample()), each.mean))


@distribution
def straight_through(a, b):
    made = D.OneHotCategorical(logits=a, validate_args=False)
    return made.sample(), made.entropy(), made.mean


@large
def mixture(a, b):
    mixing = D.Categorical(logits=a, validate_args=False)
    parts = D.Normal(a, b.exp(), validate_args=False)
    made = D.MixtureSameFamily(mixing, parts, validate_args=False)
    z = made.sample()
    return z, made.log_prob(z), made.mean, made.variance


@distribution
def log_normal(a, b):
    made = D.LogNormal(a, b.exp(), validate_args=False)
    z = made.rsample()
    return z, made.log_prob(z), made.entropy(), made.mode


@distribution
def expanded(a, b):
    made = D.Normal(a[0], b[0].exp(), validate_args=False).expand((4, 3))
    return made.sample(), made.log_prob(a[0]), made.batch_shape


@distribution
def of_numbers(a, b):
    made = D.Normal(0.0, 2.0, validate_args=False)
    return made.sample(), made.sample((3,)), made.log_prob(a), D.Uniform(0, 1).sample((2,))


@distribution
def validated(a, b):
    made = D.Normal(a, b.exp())
    return made.rsample(), made.log_prob(a)


@case(lambda: [(t(2, start=0.5), 1.0), (t(2, start=0.5), -1.0), (t(3, start=-2.0), 1.0)])
def refused_arguments(a, factor):
    try:
        return D.Exponential(a * factor).log_prob(a), None
    except ValueError as error:
        return type(error), str(error)[:60]


@distribution
def returned(a, b):
    made = D.Normal(a, b.exp(), validate_args=False)
    return made.rsample(), made


def _made():
    return [
        (D.Normal(t(2), t(2).exp()), t(2)),
        (D.Normal(t(3), t(3).exp()), t(3)),
        (D.Laplace(t(2), t(2).exp()), t(2)),
        (D.Bernoulli(logits=t(2)), torch.ones(2)),
        (D.Bernoulli(torch.sigmoid(t(2))), torch.ones(2)),
    ]


@case(lambda: [(made, x) for made, x in _made() if not setattr(made, "_validate_args", False)])
def from_outside(made, x):
    return made.log_prob(x), made.entropy(), made.sample(), made.mean


class Shifted(D.Distribution):
    """A user's own distribution, with what torch's define."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.greater_than_eq(0)
    has_rsample = True

    def __init__(self, loc, validate_args=None):
        self.loc = loc
        super().__init__(loc.shape, validate_args=validate_args)

    @lazy_property
    def squared(self):
        return self.loc**2

    @property
    def mean(self):
        return self.loc + 0.5

    def rsample(self, sample_shape=()):
        return self.loc + torch.rand(self._extended_shape(sample_shape))

    def log_prob(self, value):
        return torch.where((value >= self.loc) & (value < self.loc + 1), 0.0, -torch.inf)


@register_kl(Shifted, D.Normal)
def _kl_shifted_normal(p, q):
    return (p.mean - q.mean) ** 2


@distribution
def own_class(a, b):
    made = Shifted(a, validate_args=False)
    first = made.squared
    kl = D.kl_divergence(made, D.Normal(b, 1.0, validate_args=False))
    return made.rsample(), made.rsample((2,)), made.mean, first, made.squared is first, kl


@distribution
def lazily_once(a, b):
    made = D.Bernoulli(logits=a, validate_args=False)
    before = "probs" in vars(made)
    first = made.probs
    return before, "probs" in vars(made), made.probs is first, sorted(vars(made))


@distribution
def no_divergence(a, b):
    try:
        D.kl_divergence(Shifted(a, validate_args=False), Shifted(b, validate_args=False))
    except NotImplementedError as error:
        return str(error)
    return None


class Coder(nn.Module):
    """A variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.out = nn.Linear(2, 3)

    def forward(self, x):
        mean, log_scale = self.into(x).chunk(2, -1)
        posterior = D.Normal(mean, log_scale.exp(), validate_args=False)
        z = posterior.rsample()
        likelihood = D.Bernoulli(logits=self.out(z), validate_args=False)
        prior = D.Normal(torch.zeros_like(mean), torch.ones_like(mean), validate_args=False)
        divergence = D.kl_divergence(posterior, prior).sum(-1)
        return (divergence - likelihood.log_prob(torch.sigmoid(x)).sum(-1)).mean()


@scenario(
    lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3, start=1.0),)],
    then=lambda loss: loss.backward() if loss.requires_grad else None,
)
def autoencoder():
    torch.manual_seed(0)
    return Coder()


@scenario(lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3, start=1.0),)])
def policy_gradient():
    torch.manual_seed(0)
    policy = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def step(observed):
        chosen = D.Categorical(logits=policy(observed), validate_args=False)
        action = chosen.sample()
        reward = torch.where(action == 0, 1.0, -1.0)
        loss = -(chosen.log_prob(action) * reward).mean() - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return action, loss.detach()

    return step


# With arguments and values that are validated, as they are by default.


@large
def validated_samples(a, b):
    found = []
    for made in (
        D.Normal(a, b.exp()),
        D.Gamma(a.exp(), b.exp()),
        D.Beta(a.exp(), b.exp()),
        D.Dirichlet(a.exp()),
        D.Exponential(a.exp()),
        D.StudentT(b.exp() + 2, a, b.exp()),
        D.HalfCauchy(b.exp()),
        D.Weibull(a.exp(), b.exp()),
        D.Kumaraswamy(a.exp(), b.exp()),
    ):
        z = made.rsample()
        found += [z, made.log_prob(z)]
    return tuple(found)


@large
def validated_choices(a, b):
    found = []
    for made in (
        D.Bernoulli(logits=a),
        D.Categorical(logits=a),
        D.OneHotCategoricalStraightThrough(logits=a),
        D.Multinomial(5, logits=a),
        D.Geometric(torch.sigmoid(a)),
        D.Poisson(a.exp()),
    ):
        drawn = made.sample()
        found += [drawn, made.log_prob(drawn)]
    return tuple(found)


@distribution
def validated_relaxed(a, b):
    heat = torch.tensor(0.5, dtype=a.dtype)
    one = D.RelaxedOneHotCategorical(heat, logits=a).rsample()
    made = D.RelaxedBernoulli(heat, logits=b)
    drawn = made.rsample()
    return one, drawn, made.log_prob(drawn)


@large
def validated_matrices(a, b):
    covariance = torch.eye(a.shape[1], dtype=a.dtype) * 2 + b.t().mm(b)
    normal = D.MultivariateNormal(a[0], covariance)
    low = D.LowRankMultivariateNormal(a[0], b.t().exp(), b[0].exp())
    mixed = D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(a, b.exp()))
    drawn = [made.sample() for made in (normal, low, mixed)]
    densities = [m.log_prob(z) for m, z in zip((normal, low, mixed), drawn, strict=True)]
    return (*drawn, *densities, D.kl_divergence(normal, normal))


@case(
    lambda: (
        [(t(2, start=0.5), t(2, start=s), v) for s, v in ((0.5, 1.0), (-1, 1.0), (0.5, -1.0))]
        + [(t(2, start=0.5), t(2, start=0.5), 2.0)]
    ),
    then=lambda result: torch.rand(2),
)
def refused_values(x, scale, value):
    drawn = torch.rand(2)
    try:
        made = D.Gamma(x, scale)
        return drawn, made.sample(), made.log_prob(x * value)
    except ValueError as error:
        return drawn, str(error)


@case(lambda: [(t(2, start=0.5), n) for n in (1.0, -1.0, 2.0)])
def refused_without_a_handler(x, scale):
    made = D.Normal(x, torch.full((2,), scale))
    return made.sample(), made.entropy()
