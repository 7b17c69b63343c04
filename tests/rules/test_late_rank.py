"""SKW001: a rank the others wait for."""

from __future__ import annotations

import pytest
from crossrank_builder import compared, late_calls
from measure_builder import Comm, measured, outcome, unmeasurable

from analyzer.measure.results import Measurements
from analyzer.model import Severity, Verdict

CALLS = 12  # collectives a step


def job(starts: list[dict[int, float]], **options: object) -> Measurements:
    """Four ranks, two steps of 100 ms; the communication is exposed for as long as it runs."""
    comm = [Comm("dp_shard", "all_gather", min(s.values()), max(s.values()) + 1.0) for s in starts]
    return measured(
        comm, compute=[(90, 95)], ranks=(0, 1, 2, 3), crossrank=compared(late_calls(starts)),
        **options,
    )  # fmt: skip


def one_late(by: float, rank: int = 2, count: int = CALLS) -> list[dict[int, float]]:
    return [{r: 7.0 * k + (by if r == rank else 0.0) for r in range(4)} for k in range(count)]


def test_fires_with_the_rank_its_cost_and_the_waiting_events() -> None:
    """12 calls a step, 0.5 ms late, three of four ranks wait: 12 x 0.5 x 3/4 = 4.5 ms a step."""
    (finding,) = outcome("SKW001", job(one_late(0.5))).findings
    assert finding.ranks == (2,)
    assert finding.axis == "dp_shard"
    assert finding.savings_ns == 4_500_000
    assert finding.severity is Severity.WARNING  # 4.5 % of the step
    assert finding.title.startswith("Rank 2 starts 24 of 24 dp_shard collectives last")
    assert {row.rank for row in finding.evidence} <= {0, 1, 3}
    assert all(row.dur_ns == 1_500_000 for row in finding.evidence)


@pytest.mark.parametrize(
    ("by", "severity"), [(0.05, Severity.INFO), (0.2, Severity.WARNING), (1.0, Severity.ERROR)]
)
def test_fires_by_the_wait_it_causes(by: float, severity: Severity) -> None:
    (finding,) = outcome("SKW001", job(one_late(by))).findings
    assert finding.severity is severity


def test_fires_for_no_more_than_the_second_slowest_leaves() -> None:
    """Ranks 1 and 2 are both late, 2 by 0.1 ms more: making it faster wins 0.1 ms a call."""
    starts = [{0: 7.0 * k, 1: 7.0 * k + 0.9, 2: 7.0 * k + 1.0, 3: 7.0 * k} for k in range(CALLS)]
    (finding,) = outcome("SKW001", job(starts)).findings
    assert finding.ranks == (2,)
    assert finding.savings_ns == 900_000


def test_quiet_on_ties_noise_and_few_collectives() -> None:
    assert outcome("SKW001", job(one_late(0.0))).findings == ()
    turns = [{r: 7.0 * k + (0.5 if r == k % 4 else 0.0) for r in range(4)} for k in range(CALLS)]
    assert outcome("SKW001", job(turns)).findings == ()
    assert outcome("SKW001", job(one_late(0.5, count=3))).findings == ()


def test_quiet_just_under_the_limits() -> None:
    starts = one_late(0.5)
    for k in range(7):  # late in 10 of 24: less than half; one in four is usual, deviation 2.1
        starts[k] = {r: 7.0 * k + (0.5 if r == k % 2 else 0.0) for r in range(4)}
    assert outcome("SKW001", job(starts)).findings == ()
    (found,) = outcome("SKW001", job(starts), min_share=40.0, min_sigma=1.8).findings
    assert found.ranks == (2,)
    assert outcome("SKW001", job(one_late(0.01))).findings == ()  # 0.09 ms of 100 ms


def test_quiet_on_pipeline_transfers() -> None:
    sends = late_calls([{0: 7.0 * k, 1: 7.0 * k + 1} for k in range(12)], axis="pp", op="recv")
    comm = [Comm("pp", "recv", 7.0 * k, 7.0 * k + 2) for k in range(12)]
    m = measured(comm, compute=[(90, 95)], ranks=(0, 1), crossrank=compared(sends))
    assert outcome("SKW001", m).findings == ()


def test_not_applicable_to_one_rank_without_splits_or_steps() -> None:
    single = outcome("SKW001", measured([Comm("dp_shard", "all_gather", 1, 2)]))
    assert (single.verdict, single.reason) == (
        Verdict.NOT_APPLICABLE, "the traces of several ranks are needed",
    )  # fmt: skip
    reasons = {"axes.wait_ns": "dp_shard: its members' clocks disagree too much"}
    unsplit = measured([Comm("dp_shard", "all_gather", 1, 2)], crossrank=compared(),
                       null_reasons=reasons)  # fmt: skip
    assert outcome("SKW001", unsplit).reason == reasons["axes.wait_ns"]
    assert outcome("SKW001", unmeasurable("no step")).verdict is Verdict.NOT_APPLICABLE
