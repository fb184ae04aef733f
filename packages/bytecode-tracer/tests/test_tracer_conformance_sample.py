"""One in twelve of the conformance cases, and the suite tested with compilers that are wrong.

`python -m conformance` runs all cases; this sample only asserts that behaviour is kept.
"""

from __future__ import annotations

import copy
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from conformance.discover import cases_of, missing_requirement, topics
from conformance.execute import Order, run_case

EVERY = 12
LEFT_TO_THE_FULL_RUN = frozenset[str]()
"""Cases of the sample that the tracer is known to get wrong; the full run reports them."""


def sample(topic):
    """Every twelfth case of a topic, from a place that differs between topics."""
    cases = cases_of(topic)
    start = sum(map(ord, topic)) % min(EVERY, len(cases))
    return [case for case in cases[start::EVERY] if case.id not in LEFT_TO_THE_FULL_RUN]


def case_named(identity):
    topic, _, name = identity.partition("/")
    return next(case for case in cases_of(topic) if case.name == name)


@pytest.mark.parametrize("topic", topics())
@pytest.mark.sampled(3)
def test_sampled_programs_behave_as_in_eager(topic):
    missing = missing_requirement(topic)
    if missing:
        pytest.skip(f"{missing} is not installed")
    verdicts = [run_case(case, limit=60) for case in sample(topic)]
    assert [f"{v.case.id}: {v.difference}" for v in verdicts if not v.right] == []


def test_the_suite_is_large_and_names_are_unique():
    installed = [topic for topic in topics() if not missing_requirement(topic)]
    ids = [case.id for topic in installed for case in cases_of(topic)]
    assert len(ids) == len(set(ids)) >= 500


def unchanged(program, options):
    return program


def remembers_first_result(program, options):
    results = []

    def call(*args, **kwargs):
        if not results:
            results.append(program(*args, **kwargs))
        return results[0]

    return call


def loses_mutations(program, options):
    return lambda *args, **kwargs: program(*copy.deepcopy(args), **kwargs)


def copies_results(program, options):
    return lambda *args, **kwargs: copy.deepcopy(program(*args, **kwargs))


def chains_exceptions(program, options):
    def call(*args, **kwargs):
        try:
            raise LookupError("inside of the compiler")
        except LookupError:
            return program(*args, **kwargs)

    return call


def prints_more(program, options):
    def call(*args, **kwargs):
        print("compiled")
        return program(*args, **kwargs)

    return call


def runs_twice(program, options):
    def call(*args, **kwargs):
        program(*args, **kwargs)
        return program(*args, **kwargs)

    return call


WRONG_COMPILERS = [
    (remembers_first_result, "guards/many_integers"),
    (remembers_first_result, "globals_/number_rebound"),
    (remembers_first_result, "closures/cell_changed_from_outside"),
    (loses_mutations, "side_effects/append_to_argument"),
    (loses_mutations, "side_effects/argument_is_view_of_other"),
    (copies_results, "functions/argument_returned"),
    (copies_results, "side_effects/results_that_are_views"),
    (chains_exceptions, "exceptions/raise_if"),
    (prints_more, "functions/scale"),
    (runs_twice, "closures/counter"),
    (runs_twice, "random_/torch_random"),
]


@pytest.mark.parametrize(("compiler", "identity"), WRONG_COMPILERS)
def test_a_wrong_compiler_is_found_out(compiler, identity):
    case = case_named(identity)
    assert run_case(case, compile_with=unchanged).right
    assert not run_case(case, compile_with=compiler).right


def test_a_program_that_does_not_end_counts_as_wrong():
    def endless(program, options):
        def call(*args, **kwargs):
            while True:
                pass

        return call

    verdict = run_case(case_named("functions/scale"), limit=0.2, compile_with=endless)
    assert verdict.difference == "not done after 0.2 s"


def keeps_its_code(program, options):
    made = types.FunctionType(
        program.__code__, program.__globals__, program.__name__, program.__defaults__
    )
    made.__kwdefaults__ = program.__kwdefaults__
    return made


def test_a_compiler_that_does_not_see_changed_surroundings_is_found_out():
    order = Order(surroundings=8)
    for identity in ("functions/keyword_only", "functions/positional_only"):
        case = case_named(identity)
        assert run_case(case, order=order, options={"recompile_limit": 100}).right
    case = case_named("functions/default_argument")
    assert run_case(case, compile_with=keeps_its_code).right
    assert not run_case(case, compile_with=keeps_its_code, order=order).right
