"""Every public module class of torch.nn: in eval and in training, with and without gradients."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn

from conformance.declare import scenario, t

COVERED = set()
"""The names of the classes that this file has a case for."""
ABSTRACT = frozenset({"Container", "Module", "RNNBase", "RNNCellBase", "DataParallel"})
"""Classes without a call of their own; DataParallel has its case in `nn_modules`."""


def _modes(inputs):
    """Argument sets of a module: eval, training, without gradients, eval again."""

    def sets(made):
        made.eval()
        yield inputs()
        made.train()
        yield inputs()
        with torch.no_grad():
            yield inputs()
        made.zero_grad()
        yield inputs()
        made.eval()
        yield inputs()

    return sets


def _first(result):
    """The tensors of a result that a loss may be made of."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [r for item in result for r in _first(item)] if isinstance(result, list | tuple) else []


def _backward(result):
    """Go backward through what a module returns, where there are gradients."""
    losses = [r.double().sum() for r in _first(result) if r.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return result


def covers(cls, build, *inputs, name=None, then=_backward):
    """Declare the case of a module class: how to build it, and one input tuple or several."""

    def program():
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = build()
        assert isinstance(made, cls)
        return made, made

    def given():
        return copy.deepcopy(inputs)

    COVERED.add(cls.__name__)
    program.__name__ = program.__qualname__ = name or cls.__name__
    scenario(_modes(given), then=then)(program)


def _distinct(*shape):
    """Values without ties, for what takes a maximum."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7919 % count) / count - 0.3).reshape(shape)


ROWS = _distinct(4, 6)
CHANNELS = {1: _distinct(2, 4, 8), 2: _distinct(2, 4, 8, 8), 3: _distinct(1, 4, 6, 6, 6)}

# Activations.

for _cls in (
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh),
    *(nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU),
    *(nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink),
    *(nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Identity, nn.GLU),
):
    covers(_cls, _cls, ROWS)
for _cls in (nn.Softmax, nn.Softmin, nn.LogSoftmax):
    covers(_cls, lambda _cls=_cls: _cls(dim=1), ROWS)
covers(nn.Softmax2d, nn.Softmax2d, CHANNELS[2])
covers(nn.Threshold, lambda: nn.Threshold(0.1, 2.0), ROWS)
covers(nn.PReLU, lambda: nn.PReLU(6), ROWS, name="PReLU_channels")
covers(nn.GELU, lambda: nn.GELU(approximate="tanh"), ROWS, name="GELU_tanh")
covers(nn.ReLU, lambda: nn.ReLU(inplace=True), ROWS, name="ReLU_inplace")

# Dense layers and embeddings.

covers(nn.Linear, lambda: nn.Linear(6, 3), ROWS)
covers(nn.Linear, lambda: nn.Linear(6, 3, bias=False), ROWS, name="Linear_without_bias")
covers(nn.LazyLinear, lambda: nn.LazyLinear(3), ROWS)
covers(nn.Bilinear, lambda: nn.Bilinear(6, 6, 3), ROWS, ROWS)
covers(nn.Embedding, lambda: nn.Embedding(12, 4, padding_idx=2), torch.tensor([[1, 2], [8, 0]]))
covers(
    nn.Embedding,
    lambda: nn.Embedding(9, 4, max_norm=0.5),
    torch.tensor([1, 8]),
    name="Embedding_renorm",
)
for _mode in ("sum", "mean", "max"):
    covers(
        nn.EmbeddingBag,
        lambda _mode=_mode: nn.EmbeddingBag(9, 4, mode=_mode),
        *(torch.tensor([1, 2, 4, 5, 8]), torch.tensor([0, 2, 4])),
        name=f"EmbeddingBag_{_mode}",
    )

# Normalisation.

for _n, _x in CHANNELS.items():
    for _kind in ("BatchNorm", "LazyBatchNorm"):
        _cls = getattr(nn, f"{_kind}{_n}d")
        _given = () if _kind.startswith("Lazy") else (4,)
        covers(_cls, lambda _cls=_cls, _given=_given: _cls(*_given), _x)
    for _kind in ("InstanceNorm", "LazyInstanceNorm"):
        _cls = getattr(nn, f"{_kind}{_n}d")
        _given = () if _kind.startswith("Lazy") else (4,)
        covers(
            _cls,
            lambda _cls=_cls, _given=_given: _cls(*_given, affine=True, track_running_stats=True),
            _x,
        )
covers(
    nn.BatchNorm1d, lambda: nn.BatchNorm1d(6, momentum=None), ROWS, name="BatchNorm1d_cumulative"
)
covers(
    nn.BatchNorm1d,
    lambda: nn.BatchNorm1d(6, affine=False, track_running_stats=False),
    ROWS,
    name="BatchNorm1d_plain",
)
covers(nn.SyncBatchNorm, lambda: nn.SyncBatchNorm(4), CHANNELS[2])
covers(nn.LayerNorm, lambda: nn.LayerNorm(6), ROWS)
covers(nn.RMSNorm, lambda: nn.RMSNorm(6), ROWS)
covers(nn.GroupNorm, lambda: nn.GroupNorm(2, 4), CHANNELS[2])
covers(nn.LocalResponseNorm, lambda: nn.LocalResponseNorm(2), CHANNELS[2])
covers(nn.CrossMapLRN2d, lambda: nn.CrossMapLRN2d(2), CHANNELS[2])

# Convolution, pooling, padding, sampling.

for _n, _x in CHANNELS.items():
    for _kind in ("Conv", "ConvTranspose"):
        for _lazy in ("", "Lazy"):
            _cls = getattr(nn, f"{_lazy}{_kind}{_n}d")
            _given = (2, 3) if _lazy else (4, 2, 3)
            covers(_cls, lambda _cls=_cls, _given=_given: _cls(*_given), _x)
    for _kind in ("MaxPool", "AvgPool"):
        _cls = getattr(nn, f"{_kind}{_n}d")
        covers(_cls, lambda _cls=_cls: _cls(2), _x)
    covers(
        getattr(nn, f"LPPool{_n}d"), lambda _n=_n: getattr(nn, f"LPPool{_n}d")(2, 2), _x.abs() + 0.1
    )
    for _kind in ("AdaptiveMaxPool", "AdaptiveAvgPool"):
        _cls = getattr(nn, f"{_kind}{_n}d")
        covers(_cls, lambda _cls=_cls: _cls(3), _x)
    for _kind in ("ReflectionPad", "ReplicationPad", "ZeroPad", "CircularPad"):
        _cls = getattr(nn, f"{_kind}{_n}d")
        covers(_cls, lambda _cls=_cls: _cls(1), _x)
    _cls = getattr(nn, f"ConstantPad{_n}d")
    covers(_cls, lambda _cls=_cls: _cls(1, 2.5), _x)
    _cls = getattr(nn, f"Dropout{_n}d")
    covers(_cls, lambda _cls=_cls: _cls(0.5), _x)
    _pooled, _at = getattr(torch.nn.functional, f"max_pool{_n}d")(_x, 2, return_indices=True)
    _cls = getattr(nn, f"MaxUnpool{_n}d")
    covers(_cls, lambda _cls=_cls: _cls(2), _pooled, _at)
    if _n > 1:
        _cls = getattr(nn, f"FractionalMaxPool{_n}d")
        covers(_cls, lambda _cls=_cls: _cls(2, output_size=3), _x)
covers(
    nn.Conv2d,
    lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular", groups=2),
    CHANNELS[2],
    name="Conv2d_circular",
)
covers(
    nn.MaxPool2d,
    lambda: nn.MaxPool2d(2, return_indices=True),
    CHANNELS[2],
    name="MaxPool2d_indices",
)
covers(nn.ChannelShuffle, lambda: nn.ChannelShuffle(2), CHANNELS[2])
covers(nn.PixelShuffle, lambda: nn.PixelShuffle(2), CHANNELS[2])
covers(nn.PixelUnshuffle, lambda: nn.PixelUnshuffle(2), CHANNELS[2])
covers(nn.Flatten, nn.Flatten, CHANNELS[2])
covers(nn.Unflatten, lambda: nn.Unflatten(1, (2, 3)), ROWS)
covers(nn.Fold, lambda: nn.Fold((5, 5), 2), _distinct(1, 8, 16))
covers(nn.Unfold, lambda: nn.Unfold(2), CHANNELS[2])
covers(nn.Upsample, lambda: nn.Upsample(scale_factor=2, mode="bilinear"), CHANNELS[2])
covers(nn.UpsamplingBilinear2d, lambda: nn.UpsamplingBilinear2d(scale_factor=2), CHANNELS[2])
covers(nn.UpsamplingNearest2d, lambda: nn.UpsamplingNearest2d(scale_factor=2), CHANNELS[2])

# Distances and losses.

LABELS = torch.tensor([1, 0, 5, 2])
POSITIVE = ROWS.sigmoid()
for _cls in (nn.CosineSimilarity, nn.PairwiseDistance):
    covers(_cls, _cls, ROWS, ROWS.flip(0))
for _cls in (nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss):
    covers(_cls, _cls, ROWS.clone().requires_grad_(), ROWS.flip(0))
for _cls in (nn.SoftMarginLoss, nn.HingeEmbeddingLoss):
    covers(_cls, _cls, ROWS.clone().requires_grad_(), ROWS.sign())
covers(nn.BCELoss, nn.BCELoss, POSITIVE.clone().requires_grad_(), POSITIVE.flip(0))
covers(nn.BCEWithLogitsLoss, nn.BCEWithLogitsLoss, ROWS.clone().requires_grad_(), POSITIVE)
covers(
    nn.KLDivLoss,
    lambda: nn.KLDivLoss(reduction="batchmean"),
    *(ROWS.log_softmax(1).clone().requires_grad_(), ROWS.softmax(1)),
)
covers(nn.CrossEntropyLoss, nn.CrossEntropyLoss, ROWS.clone().requires_grad_(), LABELS)
covers(
    nn.CrossEntropyLoss,
    lambda: nn.CrossEntropyLoss(weight=torch.arange(6.0), label_smoothing=0.1, ignore_index=2),
    *(ROWS.clone().requires_grad_(), LABELS),
    name="CrossEntropyLoss_weighted",
)
covers(nn.NLLLoss, nn.NLLLoss, ROWS.log_softmax(1).clone().requires_grad_(), LABELS)
covers(
    nn.NLLLoss2d,
    nn.NLLLoss2d,
    *(CHANNELS[2].log_softmax(1).clone().requires_grad_(), torch.ones(2, 8, 8, dtype=torch.long)),
)
covers(nn.MultiMarginLoss, nn.MultiMarginLoss, ROWS.clone().requires_grad_(), LABELS)
covers(
    nn.MultiLabelMarginLoss,
    nn.MultiLabelMarginLoss,
    *(ROWS.clone().requires_grad_(), torch.tensor([[1, 3, -1, 0, 0, 0]] * 4)),
)
covers(
    nn.MultiLabelSoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    *(ROWS.clone().requires_grad_(), (ROWS > 0).float()),
)
covers(
    nn.GaussianNLLLoss,
    nn.GaussianNLLLoss,
    *(ROWS.clone().requires_grad_(), ROWS.flip(0), POSITIVE),
)
covers(
    nn.CosineEmbeddingLoss,
    nn.CosineEmbeddingLoss,
    *(ROWS.clone().requires_grad_(), ROWS.flip(0), torch.tensor([1, -1, 1, 1])),
)
covers(
    nn.MarginRankingLoss,
    nn.MarginRankingLoss,
    *(ROWS.clone().requires_grad_(), ROWS.flip(0), ROWS.sign()),
)
covers(
    nn.TripletMarginLoss,
    nn.TripletMarginLoss,
    *(ROWS.clone().requires_grad_(), ROWS.flip(0), ROWS.flip(1)),
)
covers(
    nn.TripletMarginWithDistanceLoss,
    lambda: nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance()),
    *(ROWS.clone().requires_grad_(), ROWS.flip(0), ROWS.flip(1)),
)
covers(
    nn.CTCLoss,
    nn.CTCLoss,
    _distinct(5, 2, 4).log_softmax(2).clone().requires_grad_(),
    *(torch.tensor([[1, 2], [3, 1]]), torch.tensor([5, 5]), torch.tensor([2, 2])),
)
covers(
    nn.AdaptiveLogSoftmaxWithLoss,
    lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 6]),
    *(ROWS, torch.tensor([1, 4, 8, 0])),
)
if hasattr(nn, "LinearCrossEntropyLoss"):
    covers(nn.LinearCrossEntropyLoss, lambda: nn.LinearCrossEntropyLoss(6, 6), ROWS, LABELS)

# Recurrent layers.

STEPS = _distinct(5, 2, 6)
for _cls in (nn.RNN, nn.GRU, nn.LSTM):
    covers(_cls, lambda _cls=_cls: _cls(6, 3, num_layers=2, dropout=0.5, bidirectional=True), STEPS)
    _name = _cls.__name__
    covers(_cls, lambda _cls=_cls: _cls(6, 3, batch_first=True), STEPS, name=f"{_name}_first")
    _packed = nn.utils.rnn.pack_padded_sequence(STEPS, torch.tensor([5, 3]))
    covers(_cls, lambda _cls=_cls: _cls(6, 3), _packed, name=f"{_name}_packed")
for _cls in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
    covers(_cls, lambda _cls=_cls: _cls(6, 3), ROWS)

# Attention.

WORDS = _distinct(3, 2, 8)
covers(nn.MultiheadAttention, lambda: nn.MultiheadAttention(8, 2), WORDS, WORDS, WORDS)
covers(
    nn.MultiheadAttention,
    lambda: nn.MultiheadAttention(8, 2, dropout=0.5, kdim=8, vdim=8, add_zero_attn=True),
    *(WORDS, WORDS, WORDS, None, False),
    name="MultiheadAttention_options",
)
covers(nn.TransformerEncoderLayer, lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), WORDS)
covers(nn.TransformerDecoderLayer, lambda: nn.TransformerDecoderLayer(8, 2, 16), *(WORDS, WORDS))
covers(
    nn.TransformerEncoder,
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    WORDS,
)
covers(
    nn.TransformerDecoder,
    lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
    *(WORDS, WORDS),
)
covers(nn.Transformer, lambda: nn.Transformer(8, 2, 1, 1, 16), *(WORDS, WORDS))

# Containers.


class _Holder(nn.Module):
    """A module with one container, which it walks through."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        held = self.held
        keys = held.keys() if hasattr(held, "keys") else range(len(held))
        for key in keys:
            item = held[key]
            x = item(x) if isinstance(item, nn.Module) else x * item
        return x


def holds(cls, build):
    """Declare the case of a container."""
    COVERED.add(cls.__name__)
    covers(_Holder, lambda: _Holder(build()), ROWS, name=cls.__name__)


covers(nn.Sequential, lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), ROWS)
holds(nn.ModuleList, lambda: nn.ModuleList([nn.Linear(6, 6), nn.Tanh()]))
holds(nn.ModuleDict, lambda: nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Tanh()}))
holds(nn.ParameterList, lambda: nn.ParameterList([t(6), t(6, start=2)]))
holds(nn.ParameterDict, lambda: nn.ParameterDict({"a": t(6), "b": t(6, start=2)}))
