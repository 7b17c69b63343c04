"""HST001: the host launches too late."""

from __future__ import annotations

import pytest
from measure_builder import MS, measured, outcome, unmeasurable

from analyzer.model import Severity, Verdict


@pytest.mark.parametrize(
    ("lost", "severity"),
    [
        (5.0, Severity.ERROR),
        (4.99, Severity.WARNING),
        (1.0, Severity.WARNING),
        (0.99, Severity.INFO),
    ],
)
def test_fires_by_the_share_lost(lost: float, severity: Severity) -> None:
    m = measured(idle={"host_bound": lost}, host={"lead": 0.012, "launches": 900}, ranks=(0, 1))
    (finding,) = outcome("HST001", m).findings
    assert finding.severity is severity
    assert finding.savings_ns == round(lost * MS)
    assert finding.measured.value == pytest.approx(lost)
    assert finding.ranks == (0, 1)
    assert "launches 900 kernels a step, 0.012 ms ahead" in finding.advice
    assert finding.evidence[0].name == "ProfilerStep#0"
    assert finding.evidence[0].dur_ns == 100 * MS
    assert finding.evidence[0].start_ns == 0


def test_fires_without_what_follows_a_synchronisation() -> None:
    # Of 10 ms host-bound, gaps opened by synchronisations hold at most 7 - 3 = 4.
    m = measured(idle={"host_bound": 10, "sync": 3}, host={"drain": 7})
    (finding,) = outcome("HST001", m).findings
    assert finding.savings_ns == 6 * MS


def test_quiet_when_the_host_is_ahead_or_only_synchronised() -> None:
    assert outcome("HST001", measured(idle={"other": 20})).verdict is Verdict.PASS
    assert outcome("HST001", measured(idle={"host_bound": 0.099})).findings == ()
    drained = measured(idle={"host_bound": 4, "sync": 3}, host={"drain": 7})
    assert outcome("HST001", drained).findings == ()


def test_not_applicable_without_launches_device_or_steps() -> None:
    blind = outcome("HST001", measured(host={"launches": 0}))
    assert blind.verdict is Verdict.NOT_APPLICABLE
    assert "launched" in blind.reason
    assert outcome("HST001", measured(host_side=True)).verdict is Verdict.NOT_APPLICABLE
    assert outcome("HST001", unmeasurable("no step")).reason == "no step"
