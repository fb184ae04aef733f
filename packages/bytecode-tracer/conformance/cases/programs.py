"""Longer programs that mix what the other topics test one by one."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re

import torch
from torch import nn

from conformance.declare import case, scenario, t, with_x


@dataclasses.dataclass
class Hypothesis:
    tokens: list
    score: float

    def extended(self, token, gain):
        return Hypothesis([*self.tokens, token], self.score + gain)


@case(with_x(1, 2, 3))
def beam_search(x, width):
    beams = [Hypothesis([], 0.0)]
    for row in range(x.shape[0]):
        options = []
        for beam in beams:
            for token in range(x.shape[1]):
                options.append(beam.extended(token, (row + 1) * token))
        beams = sorted(options, key=lambda b: -b.score)[:width]
    return [(beam.tokens, beam.score) for beam in beams], x[:, beams[0].tokens[-1]]


@case(with_x("a b a c", "b b", ""))
def vocabulary(x, text):
    counts = collections.Counter(re.findall(r"\w+", text))
    index = {word: i for i, (word, _) in enumerate(sorted(counts.items()))}
    ids = [index[word] for word in text.split()]
    return ids, counts.most_common(1), x[:, : len(index)]


@case(with_x(("add", 1), ("mul", 2), ("seq", [("add", 1), ("mul", 3)]), ("bad", 0)))
def expression_tree(x, tree):
    handlers = {}

    def handler(name):
        def register(function):
            handlers[name] = function
            return function

        return register

    @handler("add")
    def _(value, n):
        return value + n

    @handler("mul")
    def _(value, n):
        return value * n

    @handler("seq")
    def _(value, steps):
        return functools.reduce(lambda v, s: run(v, s), steps, value)

    def run(value, step):
        name, argument = step
        if name not in handlers:
            raise KeyError(f"no handler {name}")
        return handlers[name](value, argument)

    return run(x, tree)


@case(lambda: [([t(2), t(3), t(1)],), ([t(1)],), ([t(4), t(4)],)])
def padded_batch(items):
    longest = max(item.shape[0] for item in items)
    batch = torch.zeros(len(items), longest)
    mask = torch.zeros(len(items), longest, dtype=torch.bool)
    for i, item in enumerate(items):
        batch[i, : item.shape[0]] = item
        mask[i, : item.shape[0]] = True
    return batch, mask, batch.sum(1) / mask.sum(1)


@scenario(lambda s: [(t(1, 3),), (t(1, 3),), (t(2, 3),)])
def recurrent_cell_by_hand():
    torch.manual_seed(1)
    gates = nn.Linear(6, 12)

    def cell(x, h, c):
        i, f, g, o = gates(torch.cat([x, h], -1)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def program(x):
        h = c = x.new_zeros(x.shape[0], 3)
        outputs = []
        for step in range(3):
            h, c = cell(x + step, h, c)
            outputs.append(h)
        return torch.stack(outputs, 1), (h, c)

    return program, gates


@scenario(lambda: [(torch.tensor([[1, 2]]), 2), (torch.tensor([[3]]), 3), (torch.tensor([[1]]), 1)])
def greedy_decoding():
    torch.manual_seed(1)
    embed, head = nn.Embedding(5, 4), nn.Linear(4, 5)

    def program(tokens, steps):
        for _ in range(steps):
            logits = head(embed(tokens).mean(1))
            following = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)
            if following.item() == 0:
                break
        return tokens

    return program


@case(lambda: [({"a": {"b": t(2)}, "c": [t(3), 1]},), ({"a": t(2)},), ([t(1), {"x": (t(2),)}],)])
def tree_map(tree):
    def mapped(node):
        match node:
            case torch.Tensor():
                return node * 2
            case dict():
                return {key: mapped(value) for key, value in node.items()}
            case list() | tuple():
                return type(node)(mapped(value) for value in node)
            case _:
                return node

    def leaves(node):
        if isinstance(node, dict):
            for value in node.values():
                yield from leaves(value)
        elif isinstance(node, (list, tuple)):
            for value in node:
                yield from leaves(value)
        else:
            yield node

    return mapped(tree), list(leaves(tree))


class Emitter:
    def __init__(self):
        self.handlers = collections.defaultdict(list)

    def on(self, event):
        def register(function):
            self.handlers[event].append(function)
            return function

        return register

    def emit(self, event, *args):
        return [handler(*args) for handler in self.handlers[event]]


@case(with_x(1, 2))
def event_handlers(x, n):
    emitter, log = Emitter(), []

    @emitter.on("step")
    def record(value):
        log.append(value)

    @emitter.on("step")
    def scale(value):
        return value * n

    results = [emitter.emit("step", x + i) for i in range(2)]
    return results, log, emitter.emit("none")


@case(with_x(3, 5))
def sliding_windows(x, n):
    values = list(range(n))
    windows = zip(*(itertools.islice(values, i, None) for i in range(2)))
    return [x * a + b for a, b in windows]


@case(with_x({"a": ["b", "c"], "b": ["c"], "c": []}, {"a": []}, {"a": ["b"], "b": ["a"]}))
def topological_order(x, graph):
    order, state = [], {}

    def visit(node):
        if state.get(node) == "open":
            raise ValueError(f"cycle at {node}")
        if node in state:
            return
        state[node] = "open"
        for other in graph[node]:
            visit(other)
        state[node] = "done"
        order.append(node)

    for node in graph:
        visit(node)
    return order, x * len(order)


class Registry(dict):
    def register(self, name):
        def add(cls):
            self[name] = cls
            cls.registered = name
            return cls

        return add


LAYERS = Registry()


@LAYERS.register("scale")
class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x * self.n


@LAYERS.register("shift")
class Shift(Scale):
    def forward(self, x):
        return super().forward(x) + self.n


@case(with_x([("scale", 2)], [("shift", 3), ("scale", 2)], [("gone", 1)]))
def modules_from_configuration(x, config):
    model = nn.Sequential(*(LAYERS[name](n) for name, n in config))
    return model(x), [layer.registered for layer in model]


@scenario(lambda s: [(t(4, 3), 0.1), (t(4, 3), 0.1), (t(4, 3), 0.5)])
def training_loop_by_hand():
    torch.manual_seed(1)
    weight = torch.randn(3, 1, requires_grad=True)
    losses = []

    def program(x, rate):
        for _ in range(2):
            loss = ((x @ weight) - 1).pow(2).mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(rate * gradient)
            losses.append(loss.item())
        return len(losses)

    return program, (weight, losses)


@case(with_x(0, 1, 5))
def matrix_power(x, n):
    def power(m, k):
        if k == 0:
            return torch.eye(m.shape[0])
        half = power(m, k // 2)
        return half @ half if k % 2 == 0 else half @ half @ m

    return power(x[:, :2], n)


@case(with_x([3, 1, 2], [5], []))
def merge_sort(x, items):
    def merge(a, b):
        while a and b:
            yield (a if a[0] <= b[0] else b).pop(0)
        yield from a or b

    def sort(values):
        if len(values) <= 1:
            return values
        middle = len(values) // 2
        return list(merge(sort(values[:middle]), sort(values[middle:])))

    return sort(items), x


class Schedule:
    def __init__(self, *milestones):
        self.milestones = milestones
        self.step_number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.step_number += 1
        if self.step_number > 4:
            raise StopIteration
        return 0.5 ** sum(self.step_number > m for m in self.milestones)


@case(lambda: [(t(2), Schedule(1, 3)), (t(2), Schedule()), (t(3), Schedule(2))])
def schedule(x, rates):
    for rate in rates:
        x = x - rate * x.sign()
    return x


@case(lambda: [(t(2, 4), 2), (t(3, 4), 2), (t(2, 4), 4)])
def attention_by_hand(x, heads):
    n, width = x.shape
    q = x.view(n, heads, width // heads).transpose(0, 1)
    scores = q @ q.transpose(-1, -2) / (width // heads) ** 0.5
    mask = torch.ones(n, n).tril().bool()
    out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ q
    return out.transpose(0, 1).reshape(n, width)


@case(lambda: [(t(2, 4), 2), (t(3, 4), 1)])
def routed_experts(x, top):
    torch.manual_seed(1)
    experts = [torch.randn(4, 4) for _ in range(3)]
    weights, chosen = (x @ torch.randn(4, 3)).softmax(-1).topk(top, -1)
    out = torch.zeros_like(x)
    for index, expert in enumerate(experts):
        rows, slots = (chosen == index).nonzero(as_tuple=True)
        if rows.numel() == 0:
            continue
        out.index_add_(0, rows, (x[rows] @ expert) * weights[rows, slots, None])
    return out


@case(with_x("1 + 2 * 3", "2 * (3 + 4)", "8 - 5", "2 *"))
def calculator(x, text):
    tokens = collections.deque(re.findall(r"\d+|[-+*()]", text))

    def atom():
        token = tokens.popleft()
        if token == "(":
            value = total()
            tokens.popleft()
            return value
        return int(token)

    def product():
        value = atom()
        while tokens and tokens[0] == "*":
            tokens.popleft()
            value *= atom()
        return value

    def total():
        value = product()
        while tokens and tokens[0] in "+-":
            sign = 1 if tokens.popleft() == "+" else -1
            value += sign * product()
        return value

    try:
        return x * total()
    except IndexError as error:
        return str(error)
