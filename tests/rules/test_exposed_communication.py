"""COM001: exposure beyond the strategy's minimum."""

from __future__ import annotations

import dataclasses

import pytest
from measure_builder import MS, Comm, measured, outcome, strategy, unmeasurable

from analyzer.model import Severity, Verdict

FSDP = strategy("fsdp")


def gather_exposed_for(ms: float, **fields: object):
    """One all-gather, hidden for 10 ms and then exposed; computation before and after."""
    comm = [Comm("dp_shard", "all_gather", 10, 20 + ms, phase="forward")]
    fields.setdefault("must_expose", {"dp_shard": 2})
    return measured(comm, compute=[(0, 20), (20 + ms, 60 + ms)], inferred=FSDP, **fields)


@pytest.mark.parametrize(
    ("exposed_ms", "severity", "verdict"),
    [
        (7.0, Severity.ERROR, Verdict.FAIL),
        (6.999, Severity.WARNING, Verdict.WARN),
        (3.0, Severity.WARNING, Verdict.WARN),
        (2.999, Severity.INFO, Verdict.PASS),
        (2.1, Severity.INFO, Verdict.PASS),
    ],
)
def test_fires_by_the_excess_over_the_minimum(exposed_ms, severity, verdict) -> None:
    result = outcome("COM001", gather_exposed_for(exposed_ms))
    (finding,) = result.findings
    assert (finding.severity, result.verdict) == (severity, verdict)
    assert finding.savings_ns == round((exposed_ms - 2) * MS)
    assert finding.savings_kind == "upper bound"
    assert finding.measured.value == pytest.approx(exposed_ms)
    assert finding.measured.unit == "% of step"
    assert finding.roofline == pytest.approx(2.0)
    assert finding.axis == "dp_shard"


def test_fires_with_evidence_that_a_viewer_can_jump_to() -> None:
    result = outcome("COM001", gather_exposed_for(10, ranks=(0, 3), steps=2))
    (finding,) = result.findings
    assert finding.ranks == (0, 3)
    assert finding.steps == (0, 1)
    first = finding.evidence[0]
    assert (first.rank, first.step, first.start_ns, first.dur_ns) == (0, 0, 10 * MS, 20 * MS)
    assert finding.evidence[1].start_ns == 110 * MS  # the second step begins after 100 ms
    assert "exposed 10.0 ms" in first.note
    assert "8.00 ms a step" in finding.advice
    assert finding.doc == "docs/rules/exposed-communication.md"


def test_fires_at_a_balanced_overlap_b42() -> None:
    # 40 % hidden on every one of four devices: neither good nor hopeless, and reported.
    m = measured(
        [Comm("dp_replicate", "all_reduce", 20, 40)],
        compute=[(0, 28), (40, 80)],
        ranks=(0, 1, 2, 3),
        inferred=strategy("ddp"),
        must_expose={"dp_replicate": 1},
    )
    (finding,) = outcome("COM001", m).findings
    assert finding.severity is Severity.ERROR
    assert finding.savings_ns == 11 * MS
    assert finding.ranks == (0, 1, 2, 3)
    assert "40.0 % of it hidden" in finding.advice


def test_fires_without_a_roofline_and_says_so() -> None:
    (finding,) = outcome("COM001", gather_exposed_for(6, must_expose={})).findings
    assert finding.roofline is None
    assert finding.savings_ns == 6 * MS
    assert "no roofline is known" in finding.title


def test_without_a_roofline_it_is_a_warning_at_most() -> None:
    """40 % of the step exposed by tiny all-reduces over all ranks: they wait for a late one."""
    comm = [Comm("world", "all_reduce", 50, 90, mib=4 / 2**20)]
    (finding,) = outcome("COM001", measured(comm)).findings
    assert finding.severity is Severity.WARNING
    assert finding.threshold == 1.0
    assert "mostly wait for the slowest rank" in finding.advice
    (known,) = outcome("COM001", measured(comm, must_expose={"world": 0})).findings
    assert known.severity is Severity.ERROR


def test_fires_only_for_an_axis_own_part_of_a_shared_instant() -> None:
    comm = [Comm("dp_shard", "all_gather", 20, 30), Comm("ep", "all_to_all", 20, 30)]
    m = measured(comm, compute=[(0, 20), (30, 80)], must_expose={"dp_shard": 0, "ep": 0})
    findings = outcome("COM001", m).findings
    assert {f.axis: f.savings_ns for f in findings} == {"dp_shard": 5 * MS, "ep": 5 * MS}


def test_quiet_at_the_minimum_and_just_above_it() -> None:
    assert outcome("COM001", gather_exposed_for(2.0)).findings == ()
    assert outcome("COM001", gather_exposed_for(2.099)).findings == ()
    hidden = measured([Comm("dp_shard", "all_gather", 0, 40)], inferred=FSDP)
    assert outcome("COM001", hidden).verdict is Verdict.PASS


def test_quiet_on_axes_the_strategy_cannot_hide() -> None:
    comm = [Comm("tp", "all_reduce", 50, 70), Comm("pp", "send_recv", 70, 80)]
    m = measured(comm, compute=[(0, 50), (80, 100)], inferred=strategy("tp", "pp"))
    assert outcome("COM001", m).findings == ()


def test_quiet_when_raised_limits_say_so() -> None:
    m = gather_exposed_for(12)
    assert outcome("COM001", m, info_pct=10.5, warning_pct=11.0, error_pct=12.0).findings == ()


def test_not_applicable_without_steps_or_communication() -> None:
    result = outcome("COM001", unmeasurable("no step holds device events"))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reason == "no step holds device events"
    alone = outcome("COM001", measured())
    assert alone.verdict is Verdict.NOT_APPLICABLE
    assert alone.reason == "no communication in the kept steps"
    empty = dataclasses.replace(measured(), mean=None)
    assert outcome("COM001", empty).reason == "no complete step to measure"
