"""The gate: passed, failed, or not to be judged."""

from __future__ import annotations

import pytest

from orchestrator.comparing import gate
from orchestrator.comparing.words import Change, Comparison, Side, Unlike, Verdict
from orchestrator.errors import UsageError

SIDE = Side("x", "x", "/x", "2026-09-21T10:13:20Z")


def step(
    ratio: float, low: float, high: float, verdict: Verdict, name: str = "step_s", unit: str | None = "s"
) -> Comparison:
    change = Change("metric", name, 1.0, ratio, unit, verdict, ratio, low, high, high, evidence="5 and 5 runs")
    return Comparison(SIDE, SIDE, "", step=change, changes=(change,))


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict", "result"),
    [
        (1.06, 1.04, 1.08, "slower", "failed"),
        (1.02, 1.01, 1.05, "slower", "unjudged"),  # slower for sure, and perhaps by more than the gate
        (1.02, 1.01, 1.029, "slower", "passed"),
        (1.00, 0.98, 1.02, "same", "passed"),
        (1.01, 0.99, 1.029, "unsure", "passed"),  # whatever it is, it is within the gate
        (1.01, 0.95, 1.07, "unsure", "unjudged"),
        (1.06, 0.99, 1.13, "unsure", "unjudged"),
        (0.90, 0.88, 0.92, "faster", "passed"),
    ],
)
def test_the_gate(ratio: float, low: float, high: float, verdict: Verdict, result: str) -> None:
    judged = gate.gated(step(ratio, low, high, verdict), 3.0).gate
    assert judged is not None and judged.result == result
    assert "3 %" in judged.judged[0].reason


def test_what_nothing_bounds_does_not_pass() -> None:
    unbounded = Change("metric", "step_s", 0.01, 0.008, "s", "unsure", 0.8, n_a=5, n_b=5, evidence="some are 0")
    judged = gate.gated(Comparison(SIDE, SIDE, "", step=unbounded, changes=(unbounded,)), 3.0).gate
    assert judged is not None and judged.result == "unjudged"
    assert judged.judged[0].reason == "-20.0 %, but how far off that may be is unknown, the limit is +3 %: some are 0"


def test_a_bound_of_its_own_is_named() -> None:
    known = Change("metric", "step_s", 1.0, 1.0, "s", "unsure", 1.0, 0.9, 1.12, 1.1, n_a=5, n_b=5)
    judged = gate.gated(Comparison(SIDE, SIDE, "", step=known, changes=(known,)), 3.0).gate
    assert judged is not None and "it may be +10.0 % (95 %, one-sided)" in judged.judged[0].reason


def test_of_several_figures_the_worst_counts() -> None:
    one = step(1.0, 0.99, 1.01, "same")
    bad = Change("metric", "max_rss_bytes", 1.0, 1.2, "bytes", "more", 1.2, 1.19, 1.21)
    both = Comparison(SIDE, SIDE, "", step=one.step, changes=(*one.changes, bad))
    judged = gate.gated(both, 3.0, [gate.Wanted.of("step_s"), gate.Wanted.of("max_rss_bytes")]).gate
    assert judged is not None and judged.result == "failed"
    assert [line.result for line in judged.judged] == ["passed", "failed"]


def test_higher_is_better_where_that_is_said() -> None:
    known = step(0.9, 0.88, 0.92, "less", "accuracy", None)
    as_time = gate.gated(known, 3.0, [gate.Wanted.of("accuracy=lower")]).gate
    as_rate = gate.gated(known, 3.0, [gate.Wanted.of("accuracy=higher")]).gate
    assert as_time is not None and as_time.result == "passed"
    assert as_rate is not None and as_rate.result == "failed"
    assert "the limit is -3 %" in as_rate.judged[0].reason


@pytest.mark.parametrize("unit", [None, "tokens", "%"])
def test_without_a_word_nobody_guesses_which_is_better(unit: str | None) -> None:
    known = step(0.7, 0.69, 0.71, "less", "tokens_per_sec", unit)
    with pytest.raises(UsageError, match="is higher better, or lower") as caught:
        gate.gated(known, 3.0, [gate.Wanted.of("tokens_per_sec")])
    assert "--metric tokens_per_sec=higher" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "unit", "result"),
    [("tokens_per_sec", "tok/s", "failed"), ("tokens_per_s", None, "failed"), ("max_rss_bytes", "bytes", "passed")],
)
def test_units_tell_which_is_better(name: str, unit: str | None, result: str) -> None:
    judged = gate.gated(step(0.7, 0.69, 0.71, "less", name, unit), 3.0, [gate.Wanted.of(name)]).gate
    assert judged is not None and judged.result == result


def test_what_nothing_is_known_of_can_not_pass() -> None:
    judged = gate.gated(Comparison(SIDE, SIDE, ""), 3.0).gate
    assert judged is not None and judged.result == "unjudged"


def test_refused_runs_can_not_pass() -> None:
    refused = Comparison(SIDE, SIDE, "", (Unlike("CPU", "x", "y", "differs", "refuse"),))
    judged = gate.gated(refused, 3.0).gate
    assert judged is not None and judged.result == "unjudged"
    assert "CPU" in judged.judged[0].reason


def test_a_figure_that_nobody_has_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="step_s"):
        gate.gated(step(1.0, 0.99, 1.01, "same"), 3.0, [gate.Wanted.of("step")])


def test_better_is_higher_or_lower() -> None:
    with pytest.raises(ValueError, match="higher or lower"):
        gate.Wanted.of("loss=less")


def test_one_run_a_side_passes_no_gate() -> None:
    """The interval is that of its steps: of how runs differ nobody knows anything."""
    change = Change("metric", "step_s", 1.0, 1.0, "s", "unsure", 1.0, 0.999, 1.001, 1.001, n_a=1, n_b=1)
    judged = gate.gated(Comparison(SIDE, SIDE, "", step=change, changes=(change,)), 3.0).gate
    assert judged is not None and judged.result == "unjudged"


def test_steps_of_one_run_alone_pass_no_gate() -> None:
    """B has left its loop early, say: its wall time is shorter, and it is no faster."""
    known = step(0.5, 0.49, 0.51, "faster", "wall_s")
    lost = Comparison(SIDE, SIDE, "", (Unlike("steady steps", "timed", "none", "differs", "mark"),), known.step)
    judged = gate.gated(lost, 3.0).gate
    assert judged is not None and judged.result == "unjudged"
    assert "--metric wall_s" in judged.judged[0].reason
    named = gate.gated(Comparison(SIDE, SIDE, "", lost.unlike, known.step, known.changes), 3.0, [gate.Wanted("wall_s")])
    assert named.gate is not None and named.gate.result == "passed"
