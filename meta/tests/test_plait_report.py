"""Reports as values, text and one HTML page."""

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import plait


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x):
        y = self.linear(x)
        return torch.softmax(y, -1)


@pytest.fixture
def report():
    fast = plait.compile(Net().eval())
    with torch.no_grad():
        fast(torch.randn(4, 8))
        fast(torch.randn(5, 8))
    return plait.report(fast)


def test_the_values(report):
    assert len(report.graphs) == 2
    assert report.kernels >= 2
    assert not report.breaks
    assert not report.eager_graphs
    assert len(report.recompiles) == 1
    assert "shape" in report.recompiles[0].reason or "[4, 8]" in report.recompiles[0].reason
    assert any("x" in guard.text for guard in report.guards)
    assert any("test_plait_report.py" in guard.line for guard in report.guards)
    for stage in ("trace", "aten", "passes", "lower", "schedule", "codegen", "build"):
        assert report.seconds[stage] > 0
    graph = report.graphs[0]
    assert graph.launches >= 1
    assert all(call.startswith("aten::") for call in graph.external_calls)


def test_a_report_before_the_first_call_says_so():
    report = plait.report(plait.compile(Net()))
    assert not report.graphs
    assert "call it first" in str(report)
    assert "not compiled yet: call it first" in report.html()


def test_the_text_names_everything(report):
    text = str(report)
    for words in ("2 graphs", "guards (", "recompiles:", "seconds by stage:", "compiled"):
        assert words in text


def test_rich_shows_tables(report):
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(report)
    assert "Seconds by stage" in console.export_text()


class Page(HTMLParser):
    """Collects what the page refers to, and the rows of each pane."""

    def __init__(self):
        super().__init__()
        self.references, self.open, self.keys, self.panes = [], [], {}, []
        self.in_title = False

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.references += [found[name] for name in ("src", "href") if name in found]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag == "article":
            self.panes.append([])
        if self.panes and "data-k" in found:
            self.panes[-1] += found["data-k"].split()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_links_the_panes(report, tmp_path):
    path = report.save_html(tmp_path / "report.html")
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert not page.open
    assert all(link.startswith("#graph") for link in page.references)
    assert not re.search(r"url\(|@import|https?://", text)
    for title in ("Python", "FX", "ATen", "LoopIR", "Program", "C++"):
        assert f"<h3>{title}" in text
    per_graph = len(page.panes) // 2
    assert per_graph == 6
    for graph in (page.panes[:per_graph], page.panes[per_graph:]):
        shared = set.intersection(*(set(keys) for keys in graph))
        assert shared, "some user line is linked through all panes"


def test_the_python_pane_shows_the_users_code(report):
    assert "return torch.softmax(y, -1)" in re.sub(r"<[^>]+>", "", report.html())


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() < -1e9:
            return y
        return torch.tanh(y)


@pytest.fixture
def mixed(monkeypatch):
    """Of a model with a break, recompiles and eager graphs."""
    import plait_fx_passes

    def refuse(*arguments, **keywords):
        raise plait_fx_passes.AtenTraceError("no joint graph of this")

    monkeypatch.setattr(plait_fx_passes, "to_joint", refuse)
    fast = plait.compile(Breaking(), backend="python")
    with torch.no_grad():
        fast(torch.randn(4, 8))
        fast(torch.randn(5, 8))
    fast(torch.randn(4, 8))
    return plait.report(fast)


def test_the_runs_say_what_a_call_does(mixed):
    first, second, third = mixed.runs
    assert first.inputs == ("x: float32[4, 8]",)
    assert re.fullmatch(r"x: float32\[s\d+, 8\]", *second.inputs)
    assert not first.made_for
    assert "x: torch.float32 [4, 8]" in second.made_for
    assert "now torch.float32 [5, 8]" in second.made_for
    assert "gradients" in third.made_for
    names = {graph.name: graph.outcome for graph in mixed.graphs}
    for run, outcome in zip(mixed.runs, ("compiled", "compiled", "eager"), strict=True):
        # All of them go on in one function, which has a specialisation for each.
        assert [names[rest.graph] for rest in run.then] == ["compiled", "compiled", "eager"]
        assert names[run.graph] == outcome
        assert run.ends_at.code == "GB0003"
        assert [rest.ends_at for rest in run.then] == [None] * 3
        assert run.lines.startswith("test_plait_report.py:")
    assert mixed.outcomes == {"compiled": 4, "eager": 2}


def test_the_text_of_a_mixed_report_reads_from_what_matters(mixed):
    text = str(mixed)
    order = ["6 graphs (4 compiled, 2 eager)", "what a call runs:", "1. for x: float32[4, 8]"]
    order += ["Python, because of [GB0003]", "graph Breaking-5.0: eager", "3 times: [GB0003]"]
    order += ["recompiles:", "guards (", "seconds by stage:"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.count("[GB0003] ") == 4  # a line in each of the runs, and the break itself
    assert len(text.splitlines()) < 150


def test_the_page_of_a_mixed_report_links_runs_to_graphs(mixed):
    text = mixed.html()
    page = Page()
    page.feed(text)
    assert not page.open
    assert set(page.references) == {f"#graph{number}" for number in range(6)}
    for number in range(6):
        assert f'id="graph{number}"' in text
    assert "3 times" in text
    assert "no joint graph of this" in text


def test_a_report_says_what_runs_as_python_for_want_of_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    fast = plait.compile(lambda x: torch.softmax(x, -1))
    fast(torch.ones(2, 3))
    report = plait.report(fast)
    assert report.outcomes == {"compiled as Python": 1}
    assert "1 graph (1 compiled as Python)" in str(report)
    assert '<span class="badge eager">compiled as Python</span>' in report.html()
    assert "no working C++ compiler" in report.html()


def test_a_report_of_a_function_without_tensor_operations():
    from rich.console import Console

    fast = plait.compile(lambda x: 3)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(plait.report(fast))
    assert "call it first" in console.export_text()
    assert fast(torch.ones(1)) == 3
    for text in (str(plait.report(fast)), plait.report(fast).html()):
        assert "there are no tensor operations" in text


def test_a_report_says_that_the_limit_is_reached():
    fast = plait.compile(lambda x: x + 1, options={"recompile_limit": 2}, backend="eager")
    fast(torch.ones(1, 2))
    assert not plait.report(fast).notices
    for size in (3, 4, 5):
        assert torch.equal(fast(torch.ones(1, size)), torch.full((1, size), 2.0))
    report = plait.report(fast)
    assert len(report.graphs) == 2
    assert "2 specialisations, the most allowed" in str(report)
    assert "2 specialisations, the most allowed" in report.html()


def test_names_are_escaped():
    def odd(x):
        return x + 1

    odd.__name__ = "<script>alert(1)</script>"
    fast = plait.compile(odd)
    fast(torch.ones(2))
    assert "<script>alert" not in plait.report(fast).html()


def test_a_report_without_graphs_says_why():
    def program(x):
        return list(x.tolist())

    fast = plait.compile(program)
    assert fast(torch.ones(2)) == [1.0, 1.0]
    report = plait.report(fast)
    if not report.graphs:
        assert "calls run as Python" in str(report)
        assert "calls run as Python" in report.html()


def test_a_report_says_which_images_lie_with_channels_last():
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), Net())
    net[-1].linear = nn.Linear(512, 16)
    fast = plait.compile(net)
    fast(torch.randn(2, 4, 12, 12)).sum().backward()
    report = plait.report(fast)
    for graph in report.graphs:
        assert "with channels last, for 2 convolutions" in graph.images_total
        for line in graph.images_total.splitlines():
            assert line in str(report)
    assert "oneDNN takes images as they are" in report.html()
    assert "Layouts" not in plait.report(plait.compile(net)).html()


def test_a_report_says_which_products_are_kernels():
    net = nn.Linear(96, 300).eval()
    x = torch.randn(4, 96)
    with torch.no_grad():
        fast = plait.compile(net)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        report = plait.report(fast)
        (told,) = report.graphs[0].products
        assert told.endswith("skinny product, 4x96x300")
        assert f"own kernel {told}" in str(report)
        assert told in report.html()
        called = plait.compile(net, options={"own_products": False})
        called(x)
        graph = plait.report(called).graphs[0]
    assert not graph.products
    assert graph.external_calls == ("aten::addmm",)


def test_a_report_says_which_products_have_room_behind_their_rows():
    fast = plait.compile(lambda a, b: torch.relu(a @ b).sum(-1))
    a, b = torch.randn(70, 40), torch.randn(40, 1001)
    torch.testing.assert_close(fast(a, b), torch.relu(a @ b).sum(-1), rtol=1e-4, atol=1e-3)
    report = plait.report(fast)
    (told,) = report.graphs[0].padded
    assert "rows of 1001" in told
    assert f"room behind the rows of {told}" in str(report)
    assert f"room behind the rows of {told}" in report.html()
    fast = plait.compile(lambda a, b: a @ b)
    fast(a, b)
    assert not plait.report(fast).graphs[0].padded


def test_a_report_explains_fusion_and_memory():
    def function(x, w):
        y = torch.relu(x @ w)
        z = torch.relu(torch.softmax(y, -1) @ w)
        return torch.softmax(z, -1), x.amax()

    fast = plait.compile(function, options={"own_products": False})
    x, w = torch.randn(256, 256), torch.randn(256, 256)
    fast(x, w)
    report = plait.report(fast)
    graph = report.graphs[0]
    fusion, memory = graph.planned
    saved = sum(each.bytes_saved for each in graph.decisions if each.accepted)
    assert f"save {saved:,} bytes of traffic" in fusion
    assert "outputs 262,148, temporaries 262,144" in memory
    assert "without reuse" in memory
    best = graph.decisions[0]
    assert best.accepted
    assert best.bytes_saved == max(e.bytes_saved for e in graph.decisions if e.accepted)
    for told in (fusion, memory, best.reason):
        assert told in str(report)
        assert told.replace("'", "&#x27;") in report.html()


def test_a_report_says_which_launches_are_merged():
    def update(parameters, gradients):
        return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]

    fast = plait.compile(update)
    fast(*[[torch.randn(n) for n in (5, 70, 9)] for _ in range(2)])
    assert "3 launches are merged into one parallel loop" in plait.report(fast).graphs[0].planned


def test_memory_by_open_sizes_is_told_as_a_formula():
    fast = plait.compile(lambda x: torch.softmax(x * 2, -1), dynamic=True)
    fast(torch.randn(5, 33))
    (told,) = [e for e in plait.report(fast).graphs[0].planned if e.startswith("memory")]
    assert "by the sizes of its inputs" in told


def test_temporaries_of_open_sizes_are_told_where_the_most_memory_is_known():
    def added(x):
        x.add_(x.shape[0])
        return x.sum(0)

    compiled = plait.compile(added)
    for size in (4, 5, 9):
        compiled(torch.ones(size, 6))
    assert "bytes for a call" in str(plait.report(compiled))
