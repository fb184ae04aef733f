"""Wrong arguments to plait.compile and plait.report name the right ones."""

import pytest
import torch

import plait
from plait import CompileOptions


def twice(x):
    return x * 2


class Hostile:
    """Raises from everything that an error message might ask of it."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __bool__(self):
        raise RuntimeError("no truth value")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "max-autotun"}, "Did you mean 'max-autotune'"),
        ({"backend": "plat"}, "Did you mean 'plait'"),
        ({"backend": "inductor"}, "'plait', 'python', 'triton', 'eager'"),
        ({"backend": 3}, "a name or a function"),
        ({"fullgraph": 1}, "fullgraph takes True or False, not 1"),
        ({"dynamic": "yes"}, "dynamic takes True, False or None"),
        ({"options": {"verfy": True}}, "Did you mean 'verify'"),
        ({"options": {"verify_stages": "yes"}}, "takes bool, not 'yes'"),
        ({"options": {"verify": True}}, "takes int, not True"),
        ({"options": {"verify": -1}}, "takes a number of calls, not -1"),
        ({"options": ["verify"]}, "options takes a dictionary"),
        ({"options": {"scheduler": True}}, "takes a dictionary"),
        ({"options": {"scheduler.fuse_pointwize": False}}, "'scheduler.fuse_pointwise'"),
        ({"options": {"scheduler.fuse_pointwise": 3}}, "takes bool, not 3"),
        ({"options": {"cpp.compilr": "g++"}}, "'cpp.compiler'"),
        ({"options": {"disabled_passes": "no-op"}}, "Did you mean 'no-ops'"),
        ({"fullgraph": None}, "fullgraph takes True or False, not None"),
        ({"fullgraph": torch.tensor(True)}, "not tensor(True)"),
        ({"fullgraph": Hostile()}, "not a Hostile (its repr raises RuntimeError)"),
        ({"dynamic": Hostile()}, "not a Hostile"),
        ({"mode": Hostile()}, "there is no mode a Hostile"),
        ({"mode": ["default"]}, "there is no mode ['default']"),
        ({"mode": torch.arange(200)}, "there is no mode tensor(["),
        ({"mode": "Default"}, "Did you mean 'default'"),
        ({"mode": ""}, "Known: 'default'"),
        ({"backend": Hostile()}, "not a Hostile"),
        ({"backend": ["plait"]}, "Known: 'plait', 'python'"),
        ({"backend": "pyhton"}, "Did you mean 'python'"),
        ({"backend": lambda: None}, "does not take (graph_module, example_inputs)"),
        ({"options": Hostile()}, "not a Hostile"),
        ({"options": {1: 2}}, "string keys"),
        ({"options": {"": 1}}, "Known: 'verify'"),
        ({"options": {"strict": None}}, "takes bool, not None"),
        ({"options": {"recompile_limit": True}}, "takes int, not True"),
        ({"options": {"recompile_limit": 0}}, "takes a number above 0, not 0"),
        ({"options": {"recompile_limit": -3}}, "takes a number above 0, not -3"),
        ({"options": {"scheduler": {1: 2}}}, "there is no option 'scheduler.1'"),
        ({"options": {"scheduler.": 1}}, "there is no option 'scheduler.'"),
        ({"options": {"cpp": {"cpp.compiler": "g++"}}}, "Did you mean 'cpp.compiler'"),
        ({"options": {"cpp.compiler": 3}}, "takes str, not 3"),
    ],
)
def test_wrong_arguments_are_named_with_the_right_ones(arguments, expected):
    with pytest.raises(plait.OptionError) as caught:
        plait.compile(twice, **arguments)
    assert expected in str(caught.value)


@pytest.mark.parametrize("arguments", [{"mode": "x" * 5000}, {"backend": torch.zeros(9, 9)}])
def test_a_long_value_is_cut_short_in_the_message(arguments):
    with pytest.raises(plait.OptionError) as caught:
        plait.compile(twice, **arguments)
    assert len(caught.value.message) < 250
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["PLAIT_VERIFY", "PLAIT_STRICT", "PLAIT_FUSION"])
def test_a_variable_of_the_environment_that_is_no_truth_value(monkeypatch, name):
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(plait.OptionError, match=f"{name}='perhaps' is not a truth value"):
        plait.compile(twice)


def test_a_wrong_number_for_a_stage_in_the_environment(monkeypatch):
    monkeypatch.setenv("PLAIT_VECTOR_BYTES", "wide")
    with pytest.raises(plait.OptionError, match="PLAIT_VECTOR_BYTES='wide' is not a whole number"):
        plait.compile(twice)(torch.ones(2))
    monkeypatch.delenv("PLAIT_VECTOR_BYTES")
    assert torch.equal(plait.compile(twice)(torch.ones(2)), torch.full((2,), 2.0))


def test_only_keywords_after_the_model():
    with pytest.raises(TypeError, match="positional"):
        plait.compile(twice, True)
    with pytest.raises(TypeError, match="fullgrph"):
        plait.compile(twice, fullgrph=True)


def test_errors_come_when_decorating_not_when_calling():
    with pytest.raises(plait.OptionError):
        plait.compile(mode="fast")


def test_a_report_takes_compiled_things_only():
    with pytest.raises(plait.OptionError, match="returned, not <function twice"):
        plait.report(twice)


def test_torch_compile_modes_are_taken():
    for mode in (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        fast = plait.compile(twice, mode=mode)
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_dynamic_captures_and_compiles_once_for_all_sizes(dynamic):
    fast = plait.compile(twice, dynamic=dynamic)
    for rows in (3, 4, 5, 4, 3):
        assert torch.equal(fast(torch.ones(rows)), torch.full((rows,), 2.0))
    assert len(plait.report(fast).graphs) == {None: 2, True: 1, False: 3}[dynamic]
    assert len(fast.entries) == {None: 2, True: 1, False: 3}[dynamic]


def test_sizes_beyond_the_limit_run_as_captured():
    fast = plait.compile(lambda x, n: x * float(1 << n), dynamic=True, options={"shape_limit": 2})
    for rows in (2, 3, 4, 5):
        assert torch.equal(fast(torch.ones(rows), rows), torch.full((rows,), float(1 << rows)))
    graphs = plait.report(fast).graphs
    assert [graph.runs for graph in graphs] == ["compiled", "compiled", "eager"]
    assert "2 programs" in str(plait.report(fast))


def test_marks_reach_the_tracer():
    x = torch.ones(4, 3)
    plait.mark_dynamic(x, 0, max=8)
    fast = plait.compile(twice)
    for rows in (4, 8, 5):
        assert torch.equal(
            fast(torch.ones(rows, 3) if rows != 4 else x), torch.full((rows, 3), 2.0)
        )
    assert len(fast.entries) == 1


def test_options_reach_the_stages():
    def program(x):
        return torch.exp(x).sum(-1) + torch.sin(x).amax(-1)

    x = torch.randn(8, 64)
    kernels = []
    for options in ({}, {"fusion": False}, {"scheduler.fuse_reductions": False}):
        fast = plait.compile(program, options=options)
        torch.testing.assert_close(fast(x), program(x))
        kernels.append(plait.report(fast).kernels)
    assert kernels[0] < kernels[1]
    assert kernels[0] < kernels[2]


def test_limits_of_a_device_lie_under_what_is_asked_for():
    limits = {"split_points": 528, "min_split_elements": 1 << 15}
    chosen = CompileOptions(scheduler=(("split_points", 7),)).scheduler_options(limits=limits)
    assert (chosen.split_points, chosen.min_split_elements) == (7, 1 << 15)
