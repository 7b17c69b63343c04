"""COM003: gradient reductions at the end of the backward pass."""

from __future__ import annotations

import pytest
from measure_builder import MS, Comm, measured, outcome

from analyzer.model import Severity, Verdict

UNITS = 8


def in_time(reduce: float, axis: str = "dp_shard", op: str = "reduce_scatter"):
    """Forward 0-20, then eight units of backward, 5 ms each, reduced while the next one runs."""
    comm, free = [], 0.0
    for unit in range(UNITS):
        start = max(free, 25.0 + 5 * unit)
        free = start + reduce
        comm.append(Comm(axis, op, start, free, mib=20))
    return measured(comm, compute=[(0, 60), (free, free + 5)], step=free + 5)


def at_the_end(
    reduce: float,
    count: int = UNITS,
    *,
    mib: float | None = 64,
    op: str = "reduce_scatter",
    axis: str = "dp_shard",
    **fields: object,
):
    """Computation 0-60, then all reductions, then 5 ms of optimizer."""
    comm = [Comm(axis, op, 60 + reduce * i, 60 + reduce * (i + 1), mib=mib) for i in range(count)]
    end = 60 + reduce * count
    return measured(comm, compute=[(0, 60), (end, end + 5)], **fields)


def test_fires_when_all_units_are_reduced_at_the_end() -> None:
    result = outcome("COM003", at_the_end(2))
    (finding,) = result.findings
    assert finding.savings_ns == 7 * 2 * MS  # the last unit's is unavoidable
    assert finding.measured.value == pytest.approx(14.0)
    assert result.verdict is Verdict.FAIL
    assert "8 of 8 gradient reductions" in finding.title
    assert finding.evidence[0].start_ns == 60 * MS


def test_fires_on_one_giant_ddp_bucket() -> None:
    m = at_the_end(9, 1, mib=100, op="all_reduce", axis="dp_replicate")
    (finding,) = outcome("COM003", m).findings
    assert finding.savings_ns == round(9 * (1 - 25 / 100) * MS)  # a 25 MiB bucket would remain
    assert "bucket_cap_mb" in finding.advice


def test_fires_when_only_the_last_units_were_late() -> None:
    comm = [Comm("dp_shard", "reduce_scatter", 30, 32), Comm("dp_shard", "reduce_scatter", 40, 42)]
    comm += [Comm("dp_shard", "reduce_scatter", 60 + i, 61 + i) for i in range(4)]
    (finding,) = outcome("COM003", measured(comm, compute=[(0, 60), (64, 70)])).findings
    assert finding.savings_ns == 3 * MS
    assert "4 of 6" in finding.title


def test_fires_when_copies_into_the_buffers_run_between_late_reductions() -> None:
    # As FSDP does it: 0.5 ms of copies before each 2 ms reduce-scatter hide nothing.
    comm = [Comm("dp_shard", "reduce_scatter", 60.5 + 2.5 * i, 62.5 + 2.5 * i) for i in range(8)]
    copies = [(60 + 2.5 * i, 60.5 + 2.5 * i) for i in range(8)]
    m = measured(comm, compute=[(0, 60), *copies, (80, 85)])
    (finding,) = outcome("COM003", m).findings
    assert finding.savings_ns == 7 * 2 * MS
    assert "8 of 8" in finding.title


def test_fires_on_giant_ddp_buckets_though_one_of_them_was_in_time() -> None:
    comm = [Comm("dp_replicate", "all_reduce", 40, 49, mib=100),
            Comm("dp_replicate", "all_reduce", 60, 69, mib=100)]  # fmt: skip
    (finding,) = outcome("COM003", measured(comm, compute=[(0, 60)])).findings
    assert finding.savings_ns == round(9 * 0.75 * MS)


def test_quiet_on_a_last_bucket_that_is_one_large_tensor() -> None:
    comm = [Comm("dp_replicate", "all_reduce", 20 + 5 * i, 22 + 5 * i, mib=25) for i in range(8)]
    comm.append(Comm("dp_replicate", "all_reduce", 60, 72, mib=150))  # the embedding
    assert outcome("COM003", measured(comm, compute=[(0, 60)])).findings == ()
    comm[-1] = Comm("dp_replicate", "all_reduce", 60, 72, mib=37)  # a bucket like the others
    (finding,) = outcome("COM003", measured(comm, compute=[(0, 60)])).findings
    assert finding.savings_ns == 3 * MS  # of 3.9 ms: no more ran since the bucket before


def test_quiet_when_reduced_in_time() -> None:
    result = outcome("COM003", in_time(2))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_quiet_when_a_slow_link_queues_reductions_issued_in_time() -> None:
    # Reductions of 9 ms for units of 5 ms: the exposed rest is the link's, not the schedule's.
    for axis, op in (("dp_shard", "reduce_scatter"), ("dp_replicate", "all_reduce")):
        m = in_time(9, axis, op)
        assert outcome("COM003", m).findings == ()
        assert outcome("COM001", m).verdict is Verdict.WARN  # no minimum is known here


def test_quiet_on_the_last_bucket_alone_and_just_under_the_limit() -> None:
    assert outcome("COM003", at_the_end(9, 1, mib=25, op="all_reduce")).findings == ()
    assert outcome("COM003", at_the_end(9, 1, mib=None, op="all_reduce")).findings == ()
    assert outcome("COM003", at_the_end(0.014)).findings == ()  # 7 x 0.014 of 100 ms < 0.1 %
    (finding,) = outcome("COM003", at_the_end(0.142)).findings
    assert finding.severity is Severity.INFO
    (finding,) = outcome("COM003", at_the_end(0.143)).findings
    assert finding.severity is Severity.WARNING


def test_quiet_on_a_gradient_norm() -> None:
    comm = [Comm("dp_shard", "all_reduce", 60 + i, 61 + i, mib=4 / 2**20) for i in range(8)]
    assert outcome("COM003", measured(comm, compute=[(0, 60)])).findings == ()


def test_not_applicable_without_gradient_reductions_or_device() -> None:
    result = outcome("COM003", measured([Comm("tp", "all_reduce", 40, 50)]))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reason.startswith("no all_reduce or reduce_scatter on dp_shard")
    on_cpu = outcome("COM003", at_the_end(2, host_side=True))
    assert on_cpu.verdict is Verdict.NOT_APPLICABLE
