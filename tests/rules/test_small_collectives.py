"""COM005: many small collectives."""

from __future__ import annotations

import pytest
from measure_builder import MS, Comm, measured, outcome, strategy

from analyzer.model import Severity, Verdict


def many(
    count: int,
    each: float,
    *,
    mib: float | None = 0.25,
    axis: str = "dp_replicate",
    op: str = "all_reduce",
    exposed: float | None = None,
    **fields: object,
):
    """``count`` collectives of ``each`` ms in a row; the last ``exposed`` ms of them are bare."""
    comm = [Comm(axis, op, 40 + each * i, 40 + each * (i + 1), mib=mib) for i in range(count)]
    end = 40 + each * count
    busy_until = 40.0 if exposed is None else end - exposed
    return measured(comm, compute=[(0, busy_until), (end, end + 10)], **fields)


def test_fires_on_what_buckets_would_save() -> None:
    result = outcome("COM005", many(200, 0.05))
    (finding,) = result.findings
    # 50 MiB in buckets of 25 MiB are two collectives instead of 200.
    assert finding.savings_ns == round((200 - 2) * 0.05 * MS)
    assert finding.severity is Severity.ERROR
    assert finding.title == "200 all_reduce of 256 KiB on average a step on dp_replicate"
    assert "2 buckets" in finding.advice
    assert len(finding.evidence) == 5


def test_fires_for_no_more_than_is_exposed() -> None:
    (finding,) = outcome("COM005", many(200, 0.05, exposed=2.0)).findings
    assert finding.savings_ns == 2 * MS
    unavoidable = many(200, 0.05, exposed=2.0, must_expose={"dp_replicate/all_reduce": 0.5})
    (finding,) = outcome("COM005", unavoidable).findings
    assert finding.savings_ns == round(1.5 * MS)


def test_fires_for_latencies_not_for_transfers() -> None:
    # 20 of 2 KiB take 0.03 ms each: the larger ones' 0.1 ms is mostly transfer.
    comm = [Comm("dp_replicate", "all_reduce", 40 + 0.03 * i, 40.03 + 0.03 * i, mib=2 / 1024)
            for i in range(20)]  # fmt: skip
    comm += [Comm("dp_replicate", "all_reduce", 41 + 0.1 * i, 41.1 + 0.1 * i, mib=1)
             for i in range(20)]  # fmt: skip
    (finding,) = outcome("COM005", measured(comm, compute=[(0, 40)])).findings
    assert finding.savings_ns == round((40 - 1) * 0.03 * MS)


def test_quiet_on_few_large_hidden_or_unsized_ones() -> None:
    assert outcome("COM005", many(15, 0.2)).findings == ()
    assert len(outcome("COM005", many(16, 0.2)).findings) == 1
    assert outcome("COM005", many(200, 0.05, mib=1.01)).findings == ()
    assert len(outcome("COM005", many(200, 0.05, mib=1.0)).findings) == 1
    assert outcome("COM005", many(200, 0.05, mib=None)).findings == ()
    assert outcome("COM005", many(200, 0.05, exposed=0.0)).findings == ()


@pytest.mark.parametrize(("each", "found"), [(0.0022, 0), (0.0023, 1)])
def test_quiet_just_under_the_smallest_share(each: float, found: int) -> None:
    # 46 small ones in one bucket save 45 of them: 0.099 and 0.1035 ms of 100 ms.
    assert len(outcome("COM005", many(46, each, mib=0.01)).findings) == found


def test_quiet_where_the_strategy_needs_each_result_at_once() -> None:
    assert outcome("COM005", many(200, 0.05, axis="tp", inferred=strategy("tp"))).verdict is (
        Verdict.NOT_APPLICABLE
    )
    both = many(200, 0.05, axis="dp_shard+tp", inferred=strategy("tp"))
    assert outcome("COM005", both).findings == ()


def test_not_applicable_without_collectives_that_fit_a_bucket() -> None:
    result = outcome("COM005", many(200, 0.05, axis="pp", op="send_recv"))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reason == "no collectives that fit a bucket"
