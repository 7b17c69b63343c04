"""HST002: synchronisations that drain the device."""

from __future__ import annotations

from measure_builder import MS, measured, outcome, unmeasurable

from analyzer.model import Severity, Verdict


def test_fires_on_the_idle_time_in_and_after_the_calls() -> None:
    host = {"sync_calls": 32, "sync": 20, "drain": 6.4}
    result = outcome("HST002", measured(idle={"sync": 2, "host_bound": 4.4}, host=host))
    (finding,) = result.findings
    # The drain contains the idle time inside the calls: not 8.4.
    assert finding.savings_ns == round(6.4 * MS)
    assert finding.severity is Severity.ERROR
    assert finding.title.startswith("32 host-device synchronisations a step")
    assert "blocked 20.0 ms a step in 32 calls" in finding.advice
    assert [row.step for row in finding.evidence] == [0, 1]
    assert "6.40 ms idle in and after synchronisations, 6.4 % of this step" in (
        finding.evidence[0].note
    )


def test_fires_on_idle_time_inside_the_calls_alone() -> None:
    (finding,) = outcome("HST002", measured(idle={"sync": 2}, host={"sync_calls": 1})).findings
    assert (finding.severity, finding.savings_ns) == (Severity.WARNING, 2 * MS)


def test_quiet_when_the_device_stays_busy() -> None:
    # The host waits for 40 ms, but the device has work all the time.
    result = outcome("HST002", measured(host={"sync_calls": 8, "sync": 40}))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert outcome("HST002", measured(host={"sync_calls": 8, "drain": 0.099})).findings == ()


def test_not_applicable_on_host_side_traces_and_without_steps() -> None:
    assert outcome("HST002", measured(host_side=True)).verdict is Verdict.NOT_APPLICABLE
    assert outcome("HST002", unmeasurable("no step")).reason == "no step"
