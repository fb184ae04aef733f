"""Attributes and methods of tensors, torch functions, and values read into Python."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, shapes, t, tensors, with_x


@case(tensors)
def metadata(x):
    return x.shape, x.size(), x.size(0), x.dim(), x.numel(), x.dtype, x.device, x.layout, x.ndim


@case(tensors)
def more_metadata(x):
    flags = x.is_floating_point(), x.is_complex(), x.is_cuda, x.is_sparse, x.is_leaf, x.is_meta
    return flags, x.element_size(), x.stride(), x.storage_offset(), x.nbytes, x.itemsize, x.names


@case(shapes((2, 3), (3, 2), (1, 4)))
def shape_arithmetic(x):
    n, m = x.shape
    return x.reshape(m, n), x.shape[-1] * 2, x.shape + (1,), x.shape[:1], n * m == x.numel()


@case(shapes((2, 3), (3, 3), (1, 4)))
def shape_as_value(x):
    size = x.size()
    return len(size), tuple(size), list(size), size.numel(), 3 in size, size == (2, 3), str(size)


@case(tensors)
def transposes(x):
    return x.T, x.mT, x.t(), x.transpose(0, 1), x.permute(1, 0), x.swapaxes(0, 1), x.movedim(0, 1)


@case(tensors)
def conversions(x):
    return x.double(), x.int(), x.bool(), x.half(), x.to(torch.bfloat16), x.type(torch.int8)


@case(lambda: [(t(2), t(2).double()), (t(2), t(2, dtype=torch.int32)), (t(2), t(2))])
def to_other(x, other):
    return x.to(other), x.type_as(other), x.to(other.dtype, copy=True), x.to("cpu", torch.float64)


@case(tensors)
def reductions(x):
    return x.sum(), x.mean(0), x.max(), x.amin(1), x.std(), x.prod(dim=1, keepdim=True), x.norm()


@case(tensors)
def named_results(x):
    top = x.topk(2, dim=1)
    values, indices = x.max(dim=1)
    low = x.min(0)
    return top.values, top.indices, values, indices, low.values, x.sort(descending=True), low


@case(tensors)
def indexing(x):
    return x[0], x[-1], x[:, 1], x[..., None], x[0, 1:], x[::2], x[None], x[1:, :-1], x[[1, 0]]


@case(lambda: [(t(3, 3), torch.tensor([2, 0])), (t(3, 2), torch.tensor([0])), (t(3, 3), [1, 2])])
def advanced_indexing(x, index):
    return x[index], x[index, 0], x[:, 0][index]


@case(lambda: [(t(3, 3),), (t(3, 3, start=5),), (t(2, 2),)])
def boolean_indexing(x):
    mask = x > 0
    return x[mask], x[mask].sum(), torch.where(mask, x, -x), x.masked_select(mask)


@case(tensors)
def joining_and_splitting(x):
    a, b = x.split([1, 2], dim=1)
    return torch.cat([x, x], 1), torch.stack((x, x)), a, b, x.unbind(1), torch.hstack([x, x])


@case(tensors)
def shaping(x):
    flat = x.flatten()
    return flat, x.unsqueeze(1), x.unsqueeze(0).squeeze(), x.repeat(2, 1), x.expand(2, *x.shape)


@case(tensors)
def elementwise_functions(x):
    return torch.sin(x), x.exp(), torch.clamp(x, min=0), x.clamp(-0.5, 0.5), x.sigmoid(), x.sign()


@case(tensors)
def functional(x):
    f = torch.nn.functional
    return f.relu(x), f.softmax(x, dim=-1), f.gelu(x), f.silu(x), f.pad(x, (1, 0)), f.normalize(x)


@case(lambda: [(t(2, 3), t(3, 4)), (t(1, 3), t(3, 1)), (t(5, 3).double(), t(3, 2).double())])
def products(a, b):
    return a @ b, torch.mm(a, b), torch.einsum("ij,jk->ik", a, b), torch.matmul(a, b).T, a.mm(b)


@case(lambda: [(t(2, 2) + torch.eye(2) * 3,), (t(3, 3) + torch.eye(3) * 5,)])
def linear_algebra(x):
    return torch.linalg.inv(x), torch.linalg.norm(x), torch.det(x), torch.trace(x), x.triu()


@case(with_x(2, 3, 5))
def creation(x, n):
    made = torch.zeros(n), torch.ones(n, 2), torch.full((n,), 1.5), torch.arange(n), torch.eye(n)
    return (
        made,
        torch.linspace(0, 1, n),
        torch.empty(0),
        torch.tensor([n, 2.0]),
        torch.zeros_like(x),
    )


@case(with_x(2, 3.5, True, [1, 2], [[1.0], [2.0]], (1, True), 1 + 2j))
def tensor_from_data(x, data):
    return torch.tensor(data), torch.as_tensor(data), x.new_tensor(data)


@case(lambda: [([1, 2], t(2)), ([1, t()], t(2)), ([2.5], t(2))])
def tensor_from_list_of_scalars(data, x):
    return torch.tensor(data) + x


@case(tensors)
def new_like(x):
    made = (
        x.new_zeros(2, 2),
        x.new_ones(3),
        x.new_full((2,), 7),
        torch.ones_like(x, dtype=torch.int),
    )
    return made, torch.full_like(x, 2), x.new_empty(0).dtype


@case(
    lambda: [(torch.tensor(3),), (torch.tensor(2.5),), (torch.tensor(True),), (torch.tensor([4]),)]
)
def item(x):
    return x.item() * 2, type(x.item())


@case(lambda: [(torch.tensor(3), t(8)), (torch.tensor(5), t(8)), (torch.tensor(3), t(8))])
def item_used_as_size(n, x):
    size = int(n)
    return x[:size], torch.ones(size), x * size


@case(lambda: [(t(3),), (t(2, 2),), (t(2, dtype=torch.int64),), (t(),)])
def to_list(x):
    return x.tolist()


@case(lambda: [(t(3),), (t(3, start=5),), (torch.zeros(3),)])
def nonzero(x):
    return x.nonzero(), torch.where(x > 0), (x > 0).nonzero(as_tuple=True), torch.argwhere(x)


@case(lambda: [(torch.tensor([1, 2, 2]),), (torch.tensor([3]),), (torch.tensor([5, 5, 5]),)])
def unique(x):
    values, counts = x.unique(return_counts=True)
    return values, counts, values.shape[0], torch.bincount(x)


@case(lambda: [(torch.tensor(3),), (torch.tensor(0),), (torch.tensor(2.7),)])
def conversions_to_python(x):
    return int(x), float(x), bool(x), range(5)[int(x)], f"{x.item():.1f}", complex(x)


@case(lambda: [(torch.tensor(1),), (torch.tensor(2),)])
def tensor_as_index(x):
    return [10, 20, 30][x], list(range(x)), "abc"[x]


@case(tensors)
def iteration_and_length(x):
    return len(x), [row.sum() for row in x], list(x.unbind()), max(x[0]), sum(x)


@case(lambda: [(t(3),), (t(3, start=1),)])
def membership_and_containment(x):
    return 0.0 in x, bool((x == 1).any()), x.equal(x + 0), torch.allclose(x, x)


@case(tensors)
def in_place_variants(x):
    y = x.clone()
    y.add_(1).relu_().clamp_(max=2)
    y[0] = 0
    return y, torch.relu_(y) is y


@case(lambda: [(t(4, 4), 2), (t(4, 4), 4), (t(4, 4), 1)])
def chunk_sizes(x, n):
    return x.chunk(n), x.split(n), x.view(n, -1), x.unfold(0, n, 1).shape


@case(lambda: [(t(4),), (t(1),), (t(3),)])
def complex_views(x):
    z = torch.complex(x, x)
    return z.real, z.imag, z.abs(), z.conj() * z, torch.view_as_real(z), z.conj().is_conj()


@case(tensors)
def cumulative_and_sorting(x):
    return (
        x.cumsum(1),
        x.argsort(1),
        x.argmax(),
        x.argmin(1),
        torch.diff(x),
        x.flip(0),
        x.roll(1, 0),
    )


@case(lambda: [(t(3),), (t(2),)])
def meshgrid_and_combinations(x):
    a, b = torch.meshgrid(x, x, indexing="ij")
    return a, b, torch.combinations(x), torch.cartesian_prod(x, x), torch.outer(x, x)


@case(lambda: [(t(2, 3), t(3)), (t(2, 3), t(2, 1)), (t(2, 3), 2.0)])
def broadcasting(x, other):
    return x + other, torch.maximum(x, torch.as_tensor(other)), torch.broadcast_shapes((2, 1), (3,))


@case(lambda: [(torch.tensor([1, 0]), 2), (torch.tensor([2, 1]), 3)])
def one_hot_and_gather(index, n):
    one_hot = torch.nn.functional.one_hot(index, n)
    return one_hot, torch.eye(n).gather(1, index[:, None].clamp(max=n - 1)[:2]), one_hot.float()


@case(tensors)
def torch_predicates(x):
    return torch.is_tensor(x), torch.is_floating_point(x), isinstance(x, torch.FloatTensor), type(x)


@case(lambda: [(torch.float32, t(2)), (torch.int8, t(2)), (torch.float64, t(2))])
def dtype_properties(dtype, x):
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.max, dtype.itemsize, str(dtype), torch.promote_types(dtype, x.dtype), x.to(dtype)


@case(lambda: [(t(2, 3).to_sparse(),), (t(3, 3).to_sparse(),)])
def sparse_argument(x):
    return x.to_dense() * 2, x.is_sparse, (x * 2).to_dense()


@case(lambda: [(t(3),), (t(2),)])
def fake_quantization(x):
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def attribute_access_by_name(x):
    return getattr(x, "shape"), getattr(x, "sum")(), hasattr(x, "nothing"), getattr(x, "gone", 3)


@case(lambda: [(t(3),), (t(4),)])
def methods_as_values(x):
    add = x.add
    return add(1), list(map(torch.Tensor.sum, [x, x])), torch.Tensor.mul(x, 2), callable(x.sum)


@case(lambda: [(t(2, 3), "sum"), (t(2, 3), "mean"), (t(2, 3), "gone")])
def method_by_name(x, name):
    return getattr(x, name)()


@case(lambda: [(t(2, 2),), (t(3, 3),)])
def apply_and_python_loops(x):
    total = 0
    for i in range(x.shape[0]):
        for j in range(x.size(1)):
            total = total + x[i, j] * (i + j)
    return total


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda y: y[0].sum().backward())
def retain_grad(x):
    y = x * 2
    y.retain_grad()
    return y * 3, y


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def grad_fn_names(x):
    y = (x * 2).sum()
    return y.grad_fn.name(), x.grad_fn, y.requires_grad, type(y.grad_fn).__name__


@case(tensors)
def data_attribute(x):
    y = x.data
    y.add_(1)
    return x.data.sum(), y is x, x


@case(tensors)
def hash_and_identity(x):
    table = {x: "x"}
    return table[x], hash(x) == id(x), x in table, {x, x + 0} is None


def _memories():
    base = t(4)
    shared = t(4).share_memory_()
    return [(t(4),), (base[1:],), (base.view(2, 2),), (shared,), (shared[2:],), (t(4).clone(),)]


@case(_memories)
def memory_of_a_tensor(x):
    y = x + 1
    return x._is_view(), x.is_shared(), y._is_view(), y[1:]._is_view(), x.view(-1)._is_view()


@case(lambda: [(t(2, 3, 4, 4),), (t(1, 2, 4, 4),)])
def attention_with_score(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@case(lambda: [(t(3, grad=True),), (t(3),), (t(2, grad=True),)])
def attributes_set_on_tensors(x):
    x.tag = 5
    y = x * 2
    y.note = "made"
    return y, x.tag, y.note, getattr(x, "gone", None), hasattr(y, "tag")
