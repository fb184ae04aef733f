"""Model blocks recorded as ATen: values, the vocabulary, provenance, determinism."""

from __future__ import annotations

import copy
import operator
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import check_program, trace
from torch import nn

from plait_fx_passes import (
    AttributeInput,
    Mutation,
    UserInput,
    default_decompositions,
    print_aten,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)

aten = torch.ops.aten


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    def __init__(self, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(12, width)
        self.register_buffer("positions", torch.arange(12))
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(self.positions[:7])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        weights = mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return F.normalize(pooled, dim=-1), x


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x)), inplace=True), 2)
        x = F.silu(self.norm2(self.conv2(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)).log_softmax(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x, state):
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state


def norm_softmax(x, weight, bias):
    return torch.softmax(F.layer_norm(x, (12,), weight, bias), -1)


def encoder_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    ids = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 7, dtype=dtype)
    mask[1, 4:] = 0
    return [ids, mask]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["f32", "f64"])
def dtype(request):
    torch.manual_seed(3)
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def tolerance_of(dtype):
    return 2e-5 if dtype is torch.float32 else 1e-12


def test_transformer_encoder(dtype):
    graph = check_program(Encoder().eval(), encoder_inputs(dtype), tolerance=tolerance_of(dtype))
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert aten.addmm.default in targets
    assert aten.native_layer_norm.default in targets
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in targets
    assert aten.gelu.default in targets


@pytest.mark.sampled(2)
def test_transformer_encoder_in_training_draws_the_same_dropout(dtype):
    check_program(Encoder().train(), encoder_inputs(dtype), tolerance=tolerance_of(dtype))


def test_dropout_of_a_transposed_tensor_draws_in_the_order_of_memory(dtype):
    def program(x):
        return F.dropout(x.permute(1, 2, 0), 0.4), F.dropout(x.t() if x.dim() == 2 else x, 0.4)

    gm = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    x = gm.graph.placeholder("x")
    gm.graph.output(gm.graph.call_function(program, (x,)))
    check_program(gm, [torch.randn(3, 50, 4)], tolerance=tolerance_of(dtype))


@pytest.mark.parametrize(
    "module",
    [
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).train(),
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(),
        nn.LSTM(16, 6, 2),
        nn.GRU(16, 6, bidirectional=True),
        nn.RMSNorm(16),
    ],
    ids=lambda module: type(module).__name__,
)
def test_whole_modules_of_torch(module):
    root = nn.Module()
    root.inner = module
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    gm = torch.fx.GraphModule(root, graph)
    check_program(gm, [torch.randn(2, 5, 16)], tolerance=2e-5)


def test_convolutional_network(dtype):
    check_program(ConvNet().eval(), [torch.randn(2, 3, 16, 16)], tolerance=tolerance_of(dtype))


def test_convolutional_network_channels_last(dtype):
    net = ConvNet().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    check_program(net, [x], tolerance=tolerance_of(dtype))


def test_batch_norm_in_training_writes_its_statistics(dtype):
    net = ConvNet().train()
    gm = trace(net)
    x = torch.randn(4, 3, 16, 16)
    graph = to_aten(gm, [x])
    verify(graph)
    written = {graph.inputs[mutation.input].name for mutation in graph.mutations}
    assert written == {"norm1.running_mean", "norm1.running_var", "norm1.num_batches_tracked"}
    for each in (graph, run_passes(graph, verify_each=True)):
        reference = copy.deepcopy(net)
        expected = reference(x).detach()
        before = {key: value.clone() for key, value in net.state_dict().items()}
        with torch.no_grad():
            actual = wrap_runtime(each, each.module())(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=tolerance_of(dtype))
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        net.load_state_dict(before)


def test_layer_norm_and_softmax(dtype):
    check_program(
        norm_softmax,
        [torch.randn(5, 12), torch.randn(12), torch.randn(12)],
        tolerance=tolerance_of(dtype),
    )


def test_recurrent_cell(dtype):
    check_program(
        Recurrent(), [torch.randn(2, 3, 4), torch.randn(2, 6)], tolerance=tolerance_of(dtype)
    )


def test_hand_written_attention_stays_what_it_is(dtype):
    def program(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1) @ v

    inputs = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    check_program(program, inputs, tolerance=tolerance_of(dtype))


def test_a_vector_through_linear(dtype):
    check_program(nn.Linear(4, 3), [torch.randn(4)], tolerance=tolerance_of(dtype))
    check_program(nn.Linear(4, 3, bias=False), [torch.randn(2, 1, 4)], tolerance=1e-5)


def test_half_precision_composites_are_left_whole():
    def program(x):
        return F.silu(x) + F.hardswish(x)

    graph = check_program(program, [torch.randn(4).bfloat16()], tolerance=0)
    assert aten.silu.default in {node.target for node in graph.graph.nodes}


def test_autocast_regions_cast_as_in_eager():
    gm = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    graph = gm.graph
    x, y = graph.placeholder("x"), graph.placeholder("y")
    region = graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None)
    )
    product = graph.call_function(torch.mm, (x, y))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (region,))
    graph.output((graph.call_function(torch.add, (product, 1)),))
    gm.recompile()
    check_program(gm, [torch.randn(3, 3), torch.randn(3, 3)], tolerance=0)
    assert not torch.is_autocast_enabled("cpu")


def test_grad_mode_calls_leave_the_caller_alone():
    gm = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    x = gm.graph.placeholder("x")
    gm.graph.call_function(torch._C._set_grad_enabled, (False,))
    gm.graph.output((gm.graph.call_function(torch.sin, (x,)),))
    gm.recompile()
    assert torch.is_grad_enabled()
    graph = to_aten(gm, [torch.ones(2)])
    assert torch.is_grad_enabled()
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        aten.sin.default
    ]


def test_submodules_may_be_called_whole():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    gm = torch.fx.symbolic_trace(net)
    assert any(node.op == "call_module" for node in gm.graph.nodes)
    graph = check_program(gm, [torch.randn(3, 4)])
    names = [source.name for source in graph.inputs if isinstance(source, AttributeInput)]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_parameters_are_read_when_called_not_when_traced():
    layer = nn.Linear(2, 2)
    graph = to_aten(trace(layer), [torch.ones(1, 2)])
    run = wrap_runtime(graph, graph.module())
    with torch.no_grad():
        layer.weight.zero_()
        assert torch.equal(run(torch.ones(1, 2))[0], layer.bias)


def test_tensors_made_from_python_data_become_constants():
    def program(x):
        return x + torch.tensor([1.0, 2.0]), x * torch.tensor(3.0)

    check_program(program, [torch.randn(2)])


def test_only_overloads_and_getitem_remain():
    graph = to_aten(trace(Encoder().eval()), encoder_inputs(torch.float32))
    for node in graph.graph.nodes:
        if node.op == "call_function":
            assert isinstance(node.target, torch._ops.OpOverload) or (
                node.target is operator.getitem
            )


def test_source_lines_reach_every_node():
    gm = trace(Encoder().eval())
    for number, node in enumerate(gm.graph.nodes):
        node.meta["source_line"] = f"encoder.py:{number}"
    graph = run_passes(to_aten(gm, encoder_inputs(torch.float32)))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert all(node.meta["source_line"].startswith("encoder.py:") for node in calls)
    text = print_aten(graph)
    assert "# encoder.py:" in text


def test_recording_is_deterministic():
    gm = trace(Encoder().eval())
    inputs = encoder_inputs(torch.float32)
    assert print_aten(to_aten(gm, inputs)) == print_aten(to_aten(gm, inputs))


def test_fake_and_real_example_inputs_record_alike():
    gm = trace(norm_softmax)
    real = [torch.randn(5, 12), torch.randn(12), torch.randn(12)]
    graph = to_aten(gm, real)
    again = to_aten(gm, graph.example_inputs)
    assert print_aten(again) == print_aten(graph)
    assert again.fake_mode is graph.fake_mode


def test_inputs_name_their_sources():
    graph = to_aten(trace(nn.Linear(2, 2)), [torch.ones(1, 2)])
    assert graph.inputs[0] == UserInput(0)
    assert [getattr(source, "name", None) for source in graph.inputs[1:]] == ["weight", "bias"]
    assert graph.mutations == ()
    assert not isinstance(graph.outputs[0], Mutation)


def test_decompositions_can_be_chosen():
    def program(x):
        return F.silu(x)

    gm, x = trace(program), torch.randn(3)
    whole = to_aten(gm, [x], decompositions={})
    assert aten.silu.default in {node.target for node in whole.graph.nodes}
    kept = to_aten(gm, [x], decompositions=default_decompositions(keep={aten.silu.default}))
    assert print_aten(kept) == print_aten(whole)
    parts = to_aten(gm, [x])
    assert aten.silu.default not in {node.target for node in parts.graph.nodes}


def test_recording_does_not_import_torchs_compiler():
    script = textwrap.dedent(
        """
        import sys, torch, torch.fx
        import plait_fx_passes as passes
        from torch import nn
        import torch.nn.functional as F

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 4)
            def forward(self, x):
                y = self.c(F.relu(self.b(self.a(x))).flatten(2))
                y = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])
                x.add_(1)
                return F.layer_norm(y, (4,)).std(), torch.einsum("bhij,bhkj->bik", y, y)

        net = Net().eval()
        graph = passes.to_aten(torch.fx.symbolic_trace(net), [torch.randn(2, 1, 4, 4)])
        graph = passes.run_passes(graph, passes.NUMERIC_PASSES, verify_each=True)
        passes.wrap_runtime(graph, graph.module())(torch.randn(2, 1, 4, 4))
        passes.core_decompositions()
        loaded = [name for name in ("torch._dynamo", "torch._inductor",
                                    "torch._functorch.aot_autograd") if name in sys.modules]
        assert not loaded, loaded
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
