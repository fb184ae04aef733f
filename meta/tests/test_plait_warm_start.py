"""What one process has traced another does without tracing, and only where all is as it was."""

import copy
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import plait
from plait.warm import WarmStart, wait_for_stores
from plait_bytecode_tracer import compiled_function_of
from plait_utils import DiskCache

PROGRAMS = Path(__file__).parent / "warm_start"
WARM = {"warm_start": True}
FAST = {"PLAIT_CXX_OPTIMIZATION": "-O0"}


def started(folder, names=(), module="cases", **environment):
    """A process that runs cases in a folder."""
    return subprocess.Popen(
        [sys.executable, "driver.py", module, *names],
        cwd=folder,
        env={**os.environ, "PLAIT_VERIFY": "0", **FAST, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("programs")
    shutil.copytree(PROGRAMS, made, dirs_exist_ok=True)
    return made


def runs(folder):
    """The results of a first process, and of a second one in which much is not as it was."""
    cache = {"PLAIT_CACHE_DIR": str(folder / "cache")}
    first = results(started(folder, PHASE="0", PYTHONHASHSEED="1", **cache))
    helpers = folder / "case_helpers.py"
    helpers.write_text(helpers.read_text().replace("x.sin()", "x.exp()"))
    second = results(started(folder, PHASE="1", PYTHONHASHSEED="2", **cache))
    return first, second


def wrong(found):
    return {name: each for name, each in found.items() if not each.get("same")}


REASONS = {
    "case_edited_helper": "case_helpers.py changed",
    "case_defaults_of_helper": "cases._defaulted changed: its defaults",
    "case_function_of_exec": "cases.made changed: its code",
    "case_base_class": "cases.Inheriting changed",
    "case_compiled_lambda": "no stored entry is for this: the code of the function changed",
    "case_global": "SCALE == 2.0 no longer holds: now 3.0",
}
"""What the report says of stored entries that are of no use."""


def test_a_second_process_traces_what_changed_says_why_and_computes_what_eager_does(folder):
    first, second = runs(folder)
    assert len(first) == len(second) > 40
    assert not wrong(first)
    assert not wrong(second)
    assert_as_it_was(second)
    assert_changed(second)
    for case, words in REASONS.items():
        assert any(words in text for text in second[case]["notices"]), second[case]["notices"]


def assert_as_it_was(second):
    """What is as it was is not traced."""
    stays = [name for name in second if name.endswith(("_stays", "_stay"))]
    assert len(stays) > 4
    if sys.version_info >= (3, 12):  # comprehensions are part of the code, and may show orders
        stays = [name for name in stays if name != "case_members_of_a_set_stay"]
    traced = [name for name in stays if second[name]["traced"] or not second[name]["restored"]]
    assert traced == []


def assert_changed(second):
    """What changed is traced."""
    values = {"case_buffer"}  # the values of tensors are inputs
    changed = [n for n in second if not n.endswith(("_stays", "_stay")) and n not in values]
    assert [name for name in changed if not second[name]["traced"]] == []


def test_gradients_and_changed_inputs_are_those_of_eager_without_tracing(folder, tmp_path):
    names = [
        *("case_loss_stays", "case_several_results_stay", "case_second_backward_stays"),
        *("case_batch_norm_stays", "case_dropout_stays", "case_change_before_backward_stays"),
        *("case_cache_stays", "case_views_of_results_stay", "case_frozen_parameters"),
    ]
    cache = {"PLAIT_CACHE_DIR": str(tmp_path / "cache")}
    for phase in ("0", "1"):
        found = results(started(folder, names, "gradient_cases", PHASE=phase, **cache))
        assert not wrong(found)
    stays = [each for name, each in found.items() if name != "case_frozen_parameters"]
    assert [each["restored"] and not each["traced"] for each in stays] == [True] * len(stays)
    assert found["case_frozen_parameters"]["traced"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", range(3))
def test_what_is_done_around_graphs_is_done_without_tracing(folder, tmp_path, part):
    text = (folder / "around_cases.py").read_text()
    names = re.findall(r"^def (case_\w+)\(", text, re.MULTILINE)[part::3]
    cache = {"PLAIT_CACHE_DIR": str(tmp_path / "cache")}
    for phase in ("0", "1"):
        found = results(started(folder, names, "around_cases", PHASE=phase, **cache))
        assert not wrong(found)
    assert_as_it_was(found)
    assert_changed(found)


def test_gradients_of_restored_gradients_come_from_the_stored_graphs(folder, tmp_path):
    names = ["case_gradients_of_gradients_stay", "case_batches_of_gradients_stay"]
    cache = {"PLAIT_CACHE_DIR": str(tmp_path / "cache"), "PHASE": "0"}
    for is_second in (False, True):
        found = results(started(folder, names, "gradient_cases", **cache))
        assert not wrong(found)
        assert [each["restored"] for each in found.values()] == [is_second] * 2


@pytest.mark.slow
def test_processes_that_store_at_once_or_are_killed_leave_what_can_be_used(folder, tmp_path):
    names = ["case_plain_stays", "case_decorated_stays"]
    cache = {"PLAIT_CACHE_DIR": str(tmp_path / "cache"), "PHASE": "0"}
    several = [started(folder, names, **cache) for _ in range(2)]
    time.sleep(2.5)
    several[0].send_signal(signal.SIGKILL)
    several[0].communicate()
    for process in several[1:]:
        assert not wrong(results(process))
    found = results(started(folder, names, **cache))
    assert not wrong(found)
    assert [each["restored"] for each in found.values()] == [True, True]
    assert not any(each["loaded"] for each in found.values())  # what would have traced them


# In one process: a function that is compiled anew finds what was stored for it before.


def polynomial(x):
    return (x * 2 + 1).sin() * x.abs().sum(-1, keepdim=True)


def entry_file(cache):
    """The files that hold entries: those of JSON with guards."""
    wait_for_stores()
    files = [path for path in Path(cache.root).rglob("*.bin") if b'"guards"' in path.read_bytes()]
    assert files
    return max(files, key=lambda path: path.stat().st_mtime)


@pytest.fixture
def warm(monkeypatch, tmp_path):
    """A cache of its own, and no verifiers, under which nothing is stored."""
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PLAIT_VERIFY", "0")
    return DiskCache()


def is_restored(compiled):
    return "trace" not in compiled_function_of(compiled).profile.seconds()


def test_nothing_is_stored_or_restored_where_that_is_switched_off(warm):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options={"warm_start": False})(x)
    again = plait.compile(polynomial)
    again(x)
    assert not is_restored(again)
    assert is_restored_after(polynomial, x)
    other = plait.compile(polynomial, options={"warm_start": False})
    other(x)
    assert not is_restored(other)


def is_restored_after(function, x, **options):
    """Whether a function that is compiled anew finds what was stored for it."""
    again = plait.compile(function, **options)
    torch.testing.assert_close(again(x), function(x))
    return is_restored(again)


def test_files_that_changed_since_the_process_was_started_are_not_trusted(warm, tmp_path):
    """What was loaded from them may be something else."""
    x = torch.randn(3, 5)
    file = tmp_path / "edited_meanwhile.py"
    file.write_text("def f(x):\n    return x.sin() * 2\n")
    space = {}
    exec(compile(file.read_text(), file, "exec"), space)
    file.write_text("def f(x):\n    return x.sin() * 3\n")
    fast = plait.compile(space["f"])
    fast(x)
    assert any("since the process was started" in text for text in plait.report(fast).notices)
    assert not is_restored_after(space["f"], x)


def test_who_edits_plait_stores_nothing_until_the_next_process(warm, monkeypatch):
    from plait import circumstances

    x = torch.randn(3, 5)
    real = circumstances.changed_since_start
    own = Path(plait.__file__).with_name("parts.py").stat()
    monkeypatch.setattr(
        circumstances, "changed_since_start", lambda s: s.st_ino == own.st_ino or real(s)
    )
    fast = plait.compile(polynomial)
    fast(x)
    wait_for_stores()
    assert any("plait's own files changed" in text for text in plait.report(fast).notices)
    assert not is_restored_after(polynomial, x)


def test_a_function_that_is_compiled_again_is_restored_and_reset_traces(warm):
    x = torch.randn(3, 5)
    torch.testing.assert_close(plait.compile(polynomial, options=WARM)(x), polynomial(x))
    again = plait.compile(polynomial, options=WARM)
    torch.testing.assert_close(again(x), polynomial(x))
    assert is_restored(again)
    report = plait.report(again)
    assert report.graphs[0].cache_hit
    assert "extern" in report.graphs[0].record.code.source
    assert report.guards
    assert "was restored from the cache" in str(report)
    assert "was restored from the cache" in report.html()
    compiled_function_of(again).reset()
    torch.testing.assert_close(again(x), polynomial(x))
    assert not is_restored(again)


def test_other_sizes_become_symbolic_behind_a_restored_entry(warm):
    plait.compile(polynomial, options=WARM)(torch.randn(3, 5))
    again = plait.compile(polynomial, options=WARM)
    again(torch.randn(3, 5))
    for rows in (7, 9, 11):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(again(x), polynomial(x))
    assert len(compiled_function_of(again).entries) == 2


def test_several_specialisations_of_a_function_are_stored(warm):
    given = [torch.randn(3, 5), torch.randn(3, 5, dtype=torch.float64), torch.randn(4)]
    first = plait.compile(polynomial, options=WARM)
    for x in given:
        first(x)
    again = plait.compile(polynomial, options=WARM)
    for x in given:
        torch.testing.assert_close(again(x), polynomial(x))
    assert is_restored(again)


def test_options_are_told_apart(warm):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    other = plait.compile(polynomial, options={**WARM, "fusion": False})
    other(x)
    assert not is_restored(other)


def test_another_version_of_torch_or_processor_is_another_key(warm, monkeypatch):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    monkeypatch.setattr(torch, "__version__", "1.0")
    other = plait.compile(polynomial, options=WARM)
    other(x)
    assert not is_restored(other)
    told = plait.report(other).notices
    assert any("torch: version" in text and "-> 1.0" in text for text in told)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_NUM_THREADS", "3"), ("MKL_CBWR", "x"), ("PLAIT_FUSION", "0")]
)
def test_variables_of_the_environment_are_told_apart(warm, monkeypatch, name, value):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    monkeypatch.setenv(name, value)
    other = plait.compile(polynomial, options=WARM)
    torch.testing.assert_close(other(x), polynomial(x))
    assert not is_restored(other)
    assert any("environment: " in text for text in plait.report(other).notices)


def test_settings_of_torch_are_told_apart(warm):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    torch.use_deterministic_algorithms(True)
    try:
        other = plait.compile(polynomial, options=WARM)
        other(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not is_restored(other)


def test_processors_are_told_apart(warm, monkeypatch):
    from plait_cpp_codegen import toolchain

    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    features = toolchain.instruction_set()
    monkeypatch.setattr(toolchain, "instruction_set", lambda: f"{features} another")
    other = plait.compile(polynomial, options=WARM)
    torch.testing.assert_close(other(x), polynomial(x))
    assert not is_restored(other)
    assert any("compiler and processor" in text for text in plait.report(other).notices)


def test_functions_of_one_name_and_code_in_two_files_are_two(warm, tmp_path):
    """As in `__main__` of two scripts: what they inline may differ."""
    x = torch.randn(3, 5)
    compiled = []
    for name, factor in (("one", 2.0), ("other", 3.0)):
        file = tmp_path / f"{name}.py"
        file.write_text("def f(x):\n    return g(x)\n")
        space = {"__name__": "__main__", "g": lambda x, factor=factor: x.sin() * factor}
        exec(compile(file.read_text(), file, "exec"), space)
        compiled.append(plait.compile(space["f"], options=WARM))
        torch.testing.assert_close(compiled[-1](x), x.sin() * factor)
    assert not is_restored(compiled[1])


def test_threads_that_call_at_once_restore_once(warm):
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    again = plait.compile(polynomial, options=WARM)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: again(x), range(16)):
            torch.testing.assert_close(found, polynomial(x))
    assert is_restored(again)
    assert len(compiled_function_of(again).entries) == 1


def test_copies_and_pickles_of_a_restored_module_are_as_others(warm):
    x = torch.randn(3, 5)
    model = torch.nn.Linear(5, 5).requires_grad_(False)
    plait.compile(model, options=WARM)(x)
    again = plait.compile(model, options=WARM)
    torch.testing.assert_close(again(x), model(x))
    assert is_restored(again)
    torch.testing.assert_close(copy.deepcopy(again)(x), model(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(again))(x), model(x))
    model.weight += 1
    torch.testing.assert_close(again(x), model(x))
    model.register_forward_hook(lambda module, args, output: output * 2)
    torch.testing.assert_close(again(x), model(x))


def test_a_library_that_is_gone_means_a_trace(warm):
    x = torch.randn(3, 5)
    first = plait.compile(polynomial, options=WARM)
    first(x)
    library = plait.report(first).graphs[0].record.code.library
    warm.remove(library, ".so")
    again = plait.compile(polynomial, options=WARM)
    torch.testing.assert_close(again(x), polynomial(x))
    assert not is_restored(again)


def test_entries_that_say_something_else_are_refused_or_right(warm):
    """Whatever stands in a file: a call gives eager's result, or is traced."""
    x = torch.randn(3, 5)
    plait.compile(polynomial, options=WARM)(x)
    path = entry_file(warm)
    sound = json.loads(path.read_bytes())
    key = next(
        f"{each} {slot}"
        for each in _keys(polynomial)
        for slot in range(4)
        if warm.get(f"{each} {slot}")
    )
    choose = random.Random(0)
    values = [
        None,
        -1,
        10**9,
        "x",
        "_c0",
        [],
        [[]],
        {},
        ["at", [["module", "os"], ["name", "abort"]]],
    ]
    for _ in range(20):
        data = json.loads(json.dumps(sound))
        place = data["entry"]
        for _ in range(choose.randrange(1, 6)):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            at = choose.choice(keys)
            if isinstance(place[at], dict | list) and choose.random() < 0.8:
                place = place[at]
            else:
                place[at] = choose.choice(values)
                break
        warm.put(key, json.dumps(data).encode())
        again = plait.compile(polynomial, options={**WARM, "recompile_limit": 8})
        torch.testing.assert_close(again(x), polynomial(x))
    for data in (b"", b"{", b"[]", b"null", b'{"library": 3, "entry": {}}', b"\xff\x00"):
        warm.put(key, data)
        torch.testing.assert_close(plait.compile(polynomial, options=WARM)(x), polynomial(x))


def _keys(function):
    from plait.arguments import check_arguments
    from plait.circumstances import circumstances
    from plait.warm import _key

    request = check_arguments(False, None, "default", None, WARM)
    return [_key(circumstances(request, function))]


def test_a_cache_that_cannot_be_written_or_is_gone_does_no_harm(warm, monkeypatch, tmp_path):
    x = torch.randn(3, 5)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(blocked))
    torch.testing.assert_close(plait.compile(polynomial, options=WARM)(x), polynomial(x))


def test_an_error_of_a_restored_program_is_that_of_eager(warm):
    table = torch.arange(12.0).reshape(4, 3)

    def picked(index):
        return table[index] * 2

    plait.compile(picked, options=WARM)(torch.tensor([0, 3]))
    again = plait.compile(picked, options=WARM)
    assert torch.equal(again(torch.tensor([1, 2])), picked(torch.tensor([1, 2])))
    assert is_restored(again)
    with pytest.raises(IndexError) as expected:
        picked(torch.tensor([0, 4]))
    with pytest.raises(IndexError) as raised:
        again(torch.tensor([0, 4]))
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
    assert torch.equal(again(torch.tensor([1, 3])), picked(torch.tensor([1, 3])))


def test_a_backward_that_fails_runs_eagerly_and_the_report_says_so(warm, monkeypatch):
    from plait import warm_programs

    def program(x, weight):
        return torch.tanh(x @ weight).square().sum()

    def gradients(function):
        torch.manual_seed(0)
        given = [torch.randn(4, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)]
        return torch.autograd.grad(function(*given), given)

    load, loaded = warm_programs.load_library, []

    def load_broken(library, *rest):
        run = load(library, *rest)
        loaded.append(library)
        if len(loaded) == 1:
            return run  # the forward

        def broken(*inputs):
            raise RuntimeError("it is broken")

        return broken

    gradients(plait.compile(program, options=WARM))
    wait_for_stores()
    monkeypatch.setattr(warm_programs, "load_library", load_broken)
    again = plait.compile(program, options=WARM)
    for _ in range(2):
        for found, expected in zip(gradients(again), gradients(program), strict=True):
            torch.testing.assert_close(found, expected)
    assert is_restored(again)
    assert len(loaded) == 2
    forward, backward = plait.report(again).graphs
    assert forward.run_failures is None
    assert "the program failed in 2 calls, which ran eagerly: it is broken" in backward.run_failures


def test_what_reads_the_environment_is_restored(warm, monkeypatch):
    """As transformers' attention with few key heads does."""
    monkeypatch.delenv("CASE_UNSET", raising=False)
    x = torch.arange(6.0)

    def run(x):
        return x.sin() * (3 if os.environ.get("CASE_UNSET") else 2)

    for is_first in (True, False):
        compiled = plait.compile(run, options=WARM)
        assert torch.equal(compiled(x), run(x))
        assert is_restored(compiled) is not is_first, plait.report(compiled).notices
    monkeypatch.setenv("CASE_UNSET", "1")
    assert torch.equal(compiled(x), run(x))
    again = plait.compile(run, options=WARM)
    assert torch.equal(again(x), run(x))
    assert not is_restored(again)


SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="all code that makes sets is traced there")
@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_models_of_transformers_are_restored(warm, monkeypatch, name):
    """In one process, but with another model of the same kind: nothing of the first is kept."""
    transformers = pytest.importorskip("transformers")  # no dependency of the tests
    monkeypatch.setenv("PLAIT_CXX_OPTIMIZATION", "-O0")
    config = getattr(transformers, f"{name}Config")(**SMALL, intermediate_size=64)
    ids = torch.arange(12).reshape(2, 6)
    for is_first in (True, False):
        model = getattr(transformers, f"{name}Model")(config).eval()

        def run(ids, model=model):
            return model(ids, use_cache=False).last_hidden_state

        compiled = plait.compile(run, options=WARM)
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids), run(ids), rtol=1e-4, atol=1e-4)
        assert is_restored(compiled) is not is_first, plait.report(compiled).notices
    config.layer_norm_eps = config.layer_norm_epsilon = config.rms_norm_eps = 0.5
    other = getattr(transformers, f"{name}Model")(config).eval()

    def run_other(ids, model=other):
        return model(ids, use_cache=False).last_hidden_state

    compiled = plait.compile(run_other, options=WARM)
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), run_other(ids), rtol=1e-4, atol=1e-4)


def test_what_is_stored_is_described_while_the_compiler_is_waited_for(warm, monkeypatch):
    monkeypatch.setenv("PLAIT_CXX_OPTIMIZATION", "-O0")
    keep, described = WarmStart.keep, []

    def noted(self):
        described.append(self._begun.entry is not None)
        keep(self)

    monkeypatch.setattr(WarmStart, "keep", noted)
    plait.compile(polynomial, options=WARM)(torch.randn(3, 5))
    assert described == [True]
