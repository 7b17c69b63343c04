"""TRC002: clocks that cannot be compared."""

from __future__ import annotations

from crossrank_builder import compared
from measure_builder import measured, outcome

from analyzer.crossrank.clock import Clock
from analyzer.model import Severity, Verdict


def clock(us: dict[str, float], apart: tuple[int, ...] = ()) -> Clock:
    return Clock(
        reference={r: (r if r in apart else 0) for r in range(4)},
        offset_ns=dict.fromkeys(range(4), 0),
        drift_ppm=dict.fromkeys(range(4), 0.0),
        residual_ns={group: round(1_000 * value) for group, value in us.items()},
    )


def judged(model: Clock, **options: object):
    m = measured(ranks=(0, 1, 2, 3), crossrank=compared(clock=model), **options)
    return outcome("TRC002", m)


def test_fires_with_the_worst_group() -> None:
    (finding,) = judged(clock({"0,1": 51.0, "2,3": 480.0, "0,2": 3.0})).findings
    assert finding.title == "Clocks disagree in 2 of 3 groups, by up to 480 us"
    assert finding.severity is Severity.WARNING
    assert (finding.measured.value, finding.threshold, finding.ranks) == (480.0, 50.0, (2, 3))
    assert "chrony" in finding.advice


def test_fires_as_information_on_host_side_traces() -> None:
    (finding,) = judged(clock({"0,1": 2_000.0}), host_side=True).findings
    assert finding.severity is Severity.INFO
    assert "scheduling" in finding.advice


def test_fires_for_ranks_that_nothing_joins() -> None:
    (finding,) = judged(clock({"0,1": 1.0}, apart=(2, 3))).findings
    assert finding.title == "Ranks 2 and 3 share no synchronous collective with rank 0"
    assert (finding.severity, finding.ranks) == (Severity.INFO, (2, 3))


def test_quiet_at_the_limit() -> None:
    assert judged(clock({"0,1": 50.0, "2,3": 0.0})).findings == ()


def test_not_applicable_to_one_rank() -> None:
    result = outcome("TRC002", measured())
    assert (result.verdict, result.reason) == (
        Verdict.NOT_APPLICABLE, "the traces of several ranks are needed",
    )  # fmt: skip
