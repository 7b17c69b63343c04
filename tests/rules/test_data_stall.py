"""HST003: waiting for the next batch."""

from __future__ import annotations

import pytest
from measure_builder import MS, measured, outcome, unmeasurable

from analyzer.model import Severity, Verdict


@pytest.mark.parametrize(
    ("lost", "severity"), [(15, Severity.ERROR), (3, Severity.WARNING), (0.5, Severity.INFO)]
)
def test_fires_by_the_share_lost(lost: float, severity: Severity) -> None:
    (finding,) = outcome("HST003", measured(idle={"data": lost}, steps=3)).findings
    assert (finding.severity, finding.savings_ns) == (severity, round(lost * MS))
    assert finding.steps == (0, 1, 2)
    assert "num_workers" in finding.advice


def test_fires_on_host_side_traces_too() -> None:
    assert len(outcome("HST003", measured(idle={"data": 5}, host_side=True)).findings) == 1


def test_quiet_when_batches_are_there_in_time() -> None:
    assert outcome("HST003", measured(idle={"host_bound": 20})).verdict is Verdict.PASS
    assert outcome("HST003", measured(idle={"data": 0.099})).findings == ()


def test_not_applicable_without_a_step() -> None:
    result = outcome("HST003", unmeasurable("no step"))
    assert (result.verdict, result.reason) == (Verdict.NOT_APPLICABLE, "no step")
