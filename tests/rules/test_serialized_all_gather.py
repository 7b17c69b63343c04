"""COM002: parameter all-gathers without prefetch."""

from __future__ import annotations

import pytest
from measure_builder import MS, Comm, measured, outcome, strategy

from analyzer.model import Severity, Verdict

FSDP = strategy("fsdp")
UNITS = 8


def serialized(gather: float, work: float, *, tail: float = 10.0, **fields: object):
    """Each unit gathered, then computed, one after the other; ``tail`` ms follow."""
    comm, compute, now = [], [], 0.0
    for _ in range(UNITS):
        comm.append(Comm("dp_shard", "all_gather", now, now + gather, phase="forward"))
        compute.append((now + gather, now + gather + work))
        now += gather + work
    compute.append((now, now + tail))
    return measured(comm, compute=compute, step=now + tail, inferred=FSDP, **fields)


def prefetched(gather: float, work: float):
    """Unit u+1 is gathered from the moment unit u computes; a slow gather delays its unit."""
    comm, compute, now = [Comm("dp_shard", "all_gather", 0, gather, phase="forward")], [], gather
    for unit in range(UNITS):
        compute.append((now, now + work))
        if unit < UNITS - 1:
            comm.append(Comm("dp_shard", "all_gather", now, now + gather, phase="forward"))
        now += max(gather, work) if unit < UNITS - 1 else work
    return measured(comm, compute=compute, step=now, inferred=FSDP)


def test_fires_on_what_prefetching_would_hide() -> None:
    result = outcome("COM002", serialized(1, 4))
    (finding,) = result.findings
    # All but the first of eight gathers of 1 ms; the step has 8 (1 + 4) + 10 = 50 ms.
    assert finding.savings_ns == 7 * MS
    assert finding.measured.value == pytest.approx(14.0)
    assert finding.severity is Severity.ERROR
    assert result.verdict is Verdict.FAIL
    assert "7 of 8 all-gathers" in finding.title
    assert finding.evidence[0].start_ns == 5 * MS
    assert "set_modules_to_forward_prefetch" in finding.advice
    assert "7.00 ms" in finding.advice


def test_fires_for_no_more_than_the_computation_before_can_hide() -> None:
    # 3 ms of all-gather cannot disappear under 2 ms of computation.
    (finding,) = outcome("COM002", serialized(3, 2)).findings
    assert finding.savings_ns == 7 * 2 * MS


def test_fires_for_each_gather_of_a_unit_that_has_two() -> None:
    comm = [Comm("dp_shard", "all_gather", 0, 1), Comm("dp_shard", "all_gather", 10, 11),
            Comm("dp_shard", "all_gather", 11, 12)]  # fmt: skip
    m = measured(comm, compute=[(1, 10), (12, 40)], step=40)
    (finding,) = outcome("COM002", m).findings
    assert finding.savings_ns == 2 * MS


def test_fires_on_a_flattened_sharding_axis_and_per_rank() -> None:
    comm = [Comm("dp_shard+cp", "all_gather", t, t + 2) for t in (0, 10, 20)]
    m = measured(comm, compute=[(2, 10), (12, 20), (22, 60)], step=60, ranks=(2, 5))
    (finding,) = outcome("COM002", m).findings
    assert (finding.axis, finding.savings_ns, finding.ranks) == ("dp_shard+cp", 4 * MS, (2, 5))


def test_quiet_when_prefetched() -> None:
    result = outcome("COM002", prefetched(1, 4))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_quiet_when_the_link_is_too_slow_for_prefetch_to_help() -> None:
    # Gathers take twice as long as the units: exposed, but the link never pauses.
    m = prefetched(8, 4)
    assert outcome("COM002", m, min_exposed_pct=0.0).findings == ()
    assert outcome("COM001", m).verdict is Verdict.WARN  # no minimum is known here


def test_quiet_just_under_the_limit() -> None:
    assert outcome("COM002", serialized(0.01, 4, tail=40)).findings == ()  # 0.07 of 72 ms
    (finding,) = outcome("COM002", serialized(0.1, 4, tail=37.9)).findings  # 0.7 of 70.7 ms
    assert finding.severity is Severity.INFO
    (finding,) = outcome("COM002", serialized(0.1, 4, tail=37.2)).findings  # 0.7 of 70 ms
    assert finding.severity is Severity.WARNING


def test_quiet_on_gathers_of_the_optimizer() -> None:
    comm = [Comm("dp_shard", "all_gather", t, t + 2, phase="optimizer") for t in (0, 10, 20)]
    m = measured(comm, compute=[(2, 10), (12, 20), (22, 60)], step=60)
    assert outcome("COM002", m).findings == ()


def test_not_applicable_without_sharding_or_device() -> None:
    ddp = measured([Comm("dp_replicate", "all_reduce", 40, 50)])
    result = outcome("COM002", ddp)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reason == "no all_gather on dp_shard or edp"
    on_cpu = outcome("COM002", serialized(1, 4, host_side=True))
    assert on_cpu.verdict is Verdict.NOT_APPLICABLE
    assert "host-side" in on_cpu.reason
