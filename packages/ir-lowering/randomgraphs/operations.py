"""The operations that random programs are made of: tables of text, by what they do.

`{a}` is any value, `{f}` one of floats, `{i}` one of integers or booleans, `{b}` one that `{a}`
broadcasts with, `{c}` one of `{a}`'s own shape, `{s}` a safe divisor, `{m}` a mask that it
broadcasts with; `{d}` a dimension of the first of them, `{e}` another, `{n}` that one's size,
`{k}` a place in it, `{L}` the size of its last one, `{M}` how many elements
there are, `{g}` a number and `{t}` an element type.

Some are told as they are for what eager leaves open: `softshrink` gives zeros of either sign, by
the place in a row, and `median` reads beyond tensors whose elements share memory.
"""

from __future__ import annotations

UNARY = (
    *("{f}.sin()", "{f}.cos()", "{f}.tanh()", "{f}.sigmoid()", "{f}.clamp(-8, 8).exp()"),
    *("({f}.abs() + 1).log()", "{f}.abs().sqrt()", "({f}.abs() + 0.5).rsqrt()", "{f}.erf()"),
    *("({f}.abs() + 0.5).reciprocal()", "{f}.floor()", "{f}.ceil()", "{f}.round()", "{f}.trunc()"),
    *("{f}.frac()", "-{a_}", "{a_}.abs()", "{a_}.sign()", "torch.relu({a_})", "F.gelu({f})"),
    *("F.gelu({f}, approximate='tanh')", "F.silu({f})", "F.softplus({f})", "F.elu({f})"),
    *("{f}.clamp(-4, 4).exp2()", "{f}.clamp(-4, 4).expm1()", "{f}.abs().log1p()", "{a_}.square()"),
    *("{f}.isnan()", "{f}.isfinite()", "{f}.isinf()", "torch.nan_to_num({f})", "{f}.atan()"),
    *("{f}.asinh()", "torch.sinc({f})", "F.hardtanh({f})", "F.leaky_relu({f}, 0.1)"),
    *("F.hardswish({f})", "F.mish({f})", "F.logsigmoid({f})", "F.relu6({f})", "F.selu({f})"),
    *("{f}.cosh().log()", "{f}.clamp(-0.9, 0.9).atanh()", "{f}.clamp(-1, 1).asin()", "{f}.erfc()"),
    *("torch.signbit({a_})", "torch.sgn({a_})", "{f}.deg2rad()", "F.softsign({f})", "{f}.lgamma()"),
    *("torch.round({f}, decimals=1)", "F.softshrink({f}) + 0.0", "F.hardsigmoid({f})"),
    "F.celu({f})",
    *("~{i}", "{i}.logical_not()", "{a}.logical_not()", "{i}.bitwise_not()", "{a_}.clamp(min=0)"),
    *("{a_}.clamp(-2, 3)", "{a_} + {g}", "{a_} * {g}", "{g} - {a_}", "{a_} / 2", "{a_} // 3"),
    *("{a_} % 3", "{a_} ** 2", "2 ** {f}.clamp(-4, 4)", "{a_} > {g}", "{a_} == 1", "{a_} <= 0"),
    *("torch.fmod({a_}, 3)", "torch.rsub({a_}, 1.5)", "{a_}.pow(3)", "{f}.abs().pow(0.5)"),
    *(
        "{i}.long() << 2",
        "{i}.long() >> 1",
        "{i} & 3",
        "{i} | 1",
        "{i} ^ 5",
        "F.threshold({f}, 0.1, 2)",
    ),
    *("{f}.logit(eps=0.1)", "torch.exp({f}.clamp(-8, 8)).log()", "torch.xlogy({f}.abs(), 2)"),
)
BINARY = (
    *("{a} + {b}", "{a} * {b}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})"),
    *("{a_} - {b_}", "{a} / {s}", "{a_} // {s}", "{a_} % {s}", "torch.fmod({a_}, {s})"),
    *("torch.div({a_}, {s}, rounding_mode='trunc')", "torch.div({a_}, {s}, rounding_mode='floor')"),
    *(
        "torch.add({a_}, {b_}, alpha=2)",
        "torch.sub({a_}, {b_}, alpha=3)",
        "torch.where({m}, {a}, {b})",
    ),
    *("{a} == {b}", "{a} < {b}", "{a} >= {b}", "{a} != {b}", "{a}.logical_and({b})"),
    *(
        "{a}.logical_xor({b})",
        "{a}.logical_or({b})",
        "torch.atan2({f}, {b_}.abs() + 0.1)",
        "torch.hypot({f}, {b_}.to({f}.dtype))",
    ),
    *(
        "torch.copysign({f}, {b_})",
        "torch.lerp({f}, {c}.to({f}.dtype), 0.3)",
        "{f}.masked_fill({m}, 0.5)",
    ),
    *(
        "{a_}.masked_fill({m}, 1)",
        "torch.where({m}, {a_}, 1)",
        "torch.addcmul({f}, {c}.to({f}.dtype), {c}.to({f}.dtype), value=0.5)",
    ),
    *("torch.fmax({f}, {b_})", "torch.fmin({f}, {b_})", "torch.logaddexp({f}, {b_}.to({f}.dtype))"),
    *(
        "{i} & ({m})",
        "{i} ^ ({m})",
        "torch.clamp({a_}, max={b_})",
        "torch.where({m}, {f}, float('-inf')).nan_to_num(neginf=-3.)",
    ),
    *(
        "F.mse_loss({f}, {c}.to({f}.dtype), reduction='none')",
        "F.smooth_l1_loss({f}, {c}.to({f}.dtype))",
    ),
    *(
        "torch.isclose({f}, {c}.to({f}.dtype))",
        "({f}.abs() + 0.5) ** {b_}.clamp(-3, 3)",
        "torch.gcd({i}.long(), {c}.clamp(-9, 9).long())",
    ),
    *(
        "{a_}.add({b_}).mul({g})",
        "torch.heaviside({f}, {b_}.to({f}.dtype))",
        "torch.nextafter({f}, {b_}.to({f}.dtype))",
    ),
)
CASTS = ("{a_}.nan_to_num().clamp(0, 100).to({t})",) * 3 + (
    "{i}.to({t})",
    "{f}.to({u})",
    "{f}.to({u})",
)
VIEWS = (
    *("{a}.transpose({d}, {e})", "{a}.unsqueeze({d})", "{a}.flatten()", "{a}.reshape(-1)"),
    *("{a}.movedim({d}, {e})", "{a}.select({d}, {k})", "{a}.narrow({d}, {k}, {n} - {k})"),
    *("{a}.narrow({d}, 0, {k})", "{a}.unbind({d})[-1]", "{a}.split(2, {d})[-1]", "{a}.squeeze()"),
    *(
        "{a}.chunk(2, {d})[0]",
        "{a}.swapaxes({d}, {e})",
        "{a}.mT",
        "{a}.contiguous()",
        "{a}[..., None]",
    ),
    *("{a}[::2]", "{a}[..., 1:]", "{a}[..., ::3]", "{a}[1:-1]", "{a}[None]", "{a}[:, -1:]"),
    *(
        "{a}.diagonal()",
        "{a}.diagonal(1, {d}, {e})",
        "{a}.unfold({d}, 2, 1)",
        "{a}.unfold({d}, 3, 2)",
    ),
    *("{a}.expand(2, *{A})", "{a}.unsqueeze({d}).expand_as(torch.stack([{a}, {a}, {a}], {d}))"),
    *("{a}.reshape({R})", "{a}.reshape({R})", "{a}.contiguous().view({R})", "{a}.permute({P})"),
    *("{a}.permute({P})", "{a}.flatten(0, 1)", "{a}.unflatten({d}, (1, {n}))", "{a}.t()"),
    *("{a}.clone(memory_format=torch.channels_last)", "{a}.clone()", "{a}.broadcast_to((3, *{A}))"),
)
ARRANGING = (
    *(
        "{a}.flip({d})",
        "{a}.flip({d}, {e})",
        "{a}.roll({k}, {d})",
        "{a}.roll((1, {k}), ({d}, {e}))",
    ),
    *(
        "{a}.tril()",
        "{a}.triu(1)",
        "{a}.tril(-1)",
        "torch.cat([{a}, {a}], {d})",
        "torch.cat([{a}, {c}], {d})",
    ),
    *(
        "torch.stack([{a}, {c}], {d})",
        "torch.cat([{a}, {a}.narrow({d}, 0, {k})], {d})",
        "{a}.roll({k})",
    ),
    *("{a}.repeat(2, {O})", "{a}.repeat_interleave(2, {d})", "torch.tile({a}, (2,))"),
    *(
        "F.pad({a}, (1, 2))",
        "F.pad({a}, (1, 0), value=3)",
        "F.pad({a}, (0, 1, 2, 0))",
        "F.pad({a}, (-1, 1))",
    ),
    *("F.pad({f}[None], (1, 1), mode='reflect')", "F.pad({f}[None], (2, 1), mode='replicate')"),
    *("F.pad({f}[None], (1, 1), mode='circular')", "torch.rot90({a})", "torch.diag_embed({a})"),
    *(
        "torch.cat([{a}.flatten(), {b}.flatten().to({a}.dtype)])",
        "torch.hstack([{a}, {a}])",
        "{a}.diff()",
    ),
    *(
        "torch.diff({a_}, dim={d})",
        "torch.block_diag({a}[0], {a}[-1])",
        "torch.kron({a_}[:2], {b_}[:2])",
    ),
    *(
        "torch.zeros_like({a})",
        "torch.ones_like({a}) * 2",
        "torch.full_like({f}, 1.5)",
        "{a}.new_full((3,), 2)",
    ),
    *(
        "torch.arange({N})",
        "torch.arange(1, 9, 2, dtype={t})",
        "torch.linspace(-1, 1, {N})",
        "torch.eye({N})",
    ),
    *(
        "torch.full(({N}, 2), 3)",
        "torch.diagflat({a}.flatten()[:5])",
        "torch.vander({f}.flatten()[:4], 3)",
    ),
    *(
        "F.one_hot({i}.abs().long() % 5, 5)",
        "F.pixel_shuffle({f}.reshape(1, 4, -1, 1), 2)",
        "torch.trace({f})",
    ),
)
REDUCTIONS = (
    *(
        "{a}.sum()",
        "{a}.sum({d})",
        "{a}.sum({d}, keepdim=True)",
        "{a}.sum(({d}, {e}))",
        "{f}.mean()",
    ),
    *(
        "{f}.mean({d})",
        "{f}.mean({d}, keepdim=True)",
        "{f}.mean((0, -1), keepdim=True)",
        "{a}.amax({d})",
    ),
    *("{a}.amin({d}, keepdim=True)", "{a}.amax()", "{a}.max()", "{a}.min()", "{a}.max({d})[0]"),
    *("{a}.max({d})[1]", "{a}.min({d}, keepdim=True)[0]", "{a}.min({d})[1]", "{a_}.argmax({d})"),
    *(
        "{a_}.argmin()",
        "{a_}.argmax({d}, keepdim=True)",
        "{a}.any()",
        "{a}.all({d})",
        "{a}.any({d}, keepdim=True)",
    ),
    *(
        "{f}.var({d})",
        "{f}.std({d}, keepdim=True)",
        "{f}.var()",
        "{f}.var({d}, correction=0)",
        "{f}.norm()",
    ),
    *(
        "{f}.norm(dim={d})",
        "{f}.norm(1, {d})",
        "{f}.logsumexp({d})",
        "{f}.softmax({d})",
        "{f}.softmax({d})",
    ),
    *(
        "{f}.log_softmax({d})",
        "{a}.cumsum({d})",
        "{a_}.clamp(-1, 1).prod({d})",
        "{a_}.clamp(-1, 1).prod()",
    ),
    *(
        "{a}.count_nonzero({d})",
        "{f}.nansum({d})",
        "torch.var_mean({f}, {d})[1]",
        "torch.var_mean({f}, {d})[0]",
    ),
    *("F.normalize({f}, dim={d})", "F.layer_norm({f}, ({L},))", "F.rms_norm({f}, ({L},))"),
    *(
        "{a}.sum({d}, dtype=torch.float64)",
        "{a_}.clamp(-1, 1).cumprod({d})",
        "{f}.amax(({d}, {e}))",
    ),
    *(
        "{a_}.sort({d}, stable=True)[0]",
        "{a_}.cummax({d})[0]",
        "{a_}.cummin({d})[0]",
        "{f}.logcumsumexp({d})",
    ),
    *("{a_}.topk(1, {d})[0]", "{a_}.kthvalue(1, {d})[0]", "{f}.contiguous().median({d})[0]"),
    "{f}.nanmean({d})",
    *(
        "torch.aminmax({a}, dim={d})[1]",
        "F.softmin({f}, {d})",
        "F.cosine_similarity({f}, {f} + 1, {d})",
    ),
    *(
        "F.group_norm({f}[None], 1)",
        "torch.linalg.vector_norm({f}, 3, {d})",
        "{f}.dist({f} * 2)",
        "{a_}.argsort({d}, stable=True)",
    ),
)
INDEXING = (
    *(
        "{a}[{X0}]",
        "{a}[..., {X1}]",
        "{a}[{X0}, {Y0}]",
        "{a}[:, {X1}]",
        "{a}.index_select({d}, {Xd})",
    ),
    *(
        "{a}.gather({d}, {G})",
        "torch.take_along_dim({a}, {G}, {d})",
        "{a}.index_fill({d}, {Xd}, 1)",
    ),
    *("{a_}.index_add({d}, {Xd}, {a_}.narrow({d}, 0, 1).expand({E}))", "{a_}.scatter({d}, {G}, 1)"),
    *(
        "{a_}.index_copy({d}, torch.arange({n}).flip(0), {a_} * 2)",
        "{a_}.scatter_add({d}, {G}, {a_})",
    ),
    *(
        "{a_}.scatter_reduce({d}, {G}, {a_}, 'amax')",
        "{a_}.scatter_reduce({d}, {G}, {a_}, 'sum', include_self=False)",
    ),
    *("{a_}.index_put(({X0},), {a_}[0], accumulate=True)", "{a_}.index_put(({X0},), {a_}[0])"),
    *(
        "torch.slice_scatter({a}, {a}.narrow({d}, 0, 1), {d}, {k}, {k} + 1)",
        "torch.select_scatter({a}, {a}.select({d}, 0), {d}, {k})",
    ),
    *(
        "torch.diagonal_scatter({a}, {a}.diagonal() , 0)",
        "F.embedding({X0}, {f})",
        "{a}.take({G} % {M})",
    ),
    *(
        "torch.bucketize({f}, torch.arange(-2, 3) * 0.7)",
        "torch.searchsorted({f}.flatten().sort()[0], {f})",
    ),
    *(
        "{a}.masked_scatter({m}, {c}.to({a}.dtype).contiguous())",
        "{a}[{m_}.long()]",
        "{a_}.scatter({d}, torch.zeros_like({a_}, dtype=torch.int64).narrow({d}, 0, 1), {a_})",
    ),
    *(
        "{a}.masked_fill({a} == {a}.flatten()[0], 2)",
        "{a}[torch.arange({N}) % {n0}]",
        "{a}[{X0} - {n0}]",
    ),
)
PRODUCTS = (
    *(
        "{f} @ {f}.mT",
        "{f}.flatten(0, -2) @ {f}.flatten(0, -2).t()",
        "F.linear({f}, {f}[..., :3, :].reshape(-1, {L})[:3])",
    ),
    *(
        "torch.einsum('...i,...j->...ij', {f}, {c}.to({f}.dtype))",
        "torch.outer({f}.flatten()[:6], {f}.flatten()[-4:])",
    ),
    *(
        "torch.baddbmm({f}.sum(), {f}.reshape(1, -1, 1), {f}.reshape(1, 1, -1)[..., :3])",
        "{f}.flatten().dot({f}.flatten())",
    ),
    *(
        "{i}.long().flatten()[:12].reshape(-1, 1) @ {i}.long().flatten()[None, :5]",
        "torch.addmm({f}.flatten()[:1], {f}.reshape(-1, 1)[:5], {f}.reshape(1, -1)[:, :3])",
    ),
    *(
        "F.max_pool2d({f}.reshape(1, 1, -1, {N}), 2)",
        "F.avg_pool2d({f}.reshape(1, 1, {N}, -1), 2, 1)",
        "F.adaptive_avg_pool2d({f}.reshape(1, 1, -1, {N}), 2)",
    ),
    *(
        "F.conv1d({f}.reshape(1, 1, -1), {f}.reshape(1, 1, -1)[..., :3])",
        "F.interpolate({f}.reshape(1, 1, -1), scale_factor=2)",
    ),
    *(
        "F.interpolate({f}.reshape(1, 1, -1, {N}), size=(4, 3), mode='bilinear')",
        "F.max_pool1d({f}.reshape(1, 1, -1), 3, 2, 1)",
    ),
    *(
        "F.conv2d({f}.reshape(1, 1, -1, {N}), {f}.flatten()[:4].reshape(1, 1, 2, 2), padding=1)",
        "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None])",
    ),
    *(
        "F.grid_sample({f}.reshape(1, 1, -1, {N}), "
        "{f}.flatten()[:8].reshape(1, 2, 2, 2).tanh(), align_corners=False)",
        "F.unfold({f}.reshape(1, 1, -1, {N}), 2)",
    ),
    *(
        "F.adaptive_max_pool1d({f}.reshape(1, 1, -1), 3)",
        "F.cross_entropy({f}.reshape(-1, {N}), "
        "{i}.long().flatten()[:1].abs().expand({M} // {N}) % {N})",
        "F.batch_norm({f}.reshape(-1, {N}), None, None, training=True)",
    ),
)
FAMILIES = (
    (UNARY, 6),
    (BINARY, 7),
    (CASTS, 2),
    (VIEWS, 5),
    (ARRANGING, 3),
    (REDUCTIONS, 5),
    (INDEXING, 3),
    (PRODUCTS, 1),
)
"""The tables, and how often each is chosen."""
