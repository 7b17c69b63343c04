"""Public cases about several ranks: matching, clocks, waits, bandwidth. Times in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builders import TraceBuilder

from analyzer.api import Analysis

Analyse = Callable[..., Analysis]
TP = "1"


def traces(
    ranks: Sequence[int] = (0, 1), group: Sequence[int] | None = None, world: int | None = None
) -> list[TraceBuilder]:
    """One builder a rank, all in one tensor-parallel group unless told otherwise."""
    world = world or max(ranks) + 1
    members = tuple(group or range(world))
    return [TraceBuilder(r, world, groups=[(TP, "mesh_tp", members)]) for r in ranks]


def all_reduces(
    trace: TraceBuilder,
    at: Sequence[float],
    dur: float = 100,
    nelems: int = 4096,
    shift: float = 0,
    **options: Any,
) -> None:
    """A step of 10 ms each around every four of the all-reduces, and the all-reduces."""
    for step, times in enumerate(at[k : k + 4] for k in range(0, len(at), 4)):
        trace.step(step, times[0] - 100 + shift, 9_000)
        for ts in times:
            trace.collective(
                "all_reduce", ts + shift, dur, group=TP, nelems=nelems,
                seq=round(ts), **options,
            )  # fmt: skip


def unnumbered(trace: TraceBuilder) -> TraceBuilder:
    """As written before sequence numbers existed."""
    for event in trace.events:
        for key in ("Seq", "Comms Id"):
            event.get("args", {}).pop(key, None)
    return trace


TIMES = [step * 10_000 + 1_000 + k * 2_000 for step in range(3) for k in range(4)]


def unmatched(result: Analysis) -> int:
    return int(result.document["coverage"]["unmatched_total"])


def tp(result: Analysis) -> dict[str, Any]:
    axis: dict[str, Any] = result.document["axes"]["tp"]
    return axis


def skew_and_late(result: Analysis) -> tuple[int, int]:
    """Longest wait of any instance, and instances with a late rank."""
    assert result.measurements.crossrank is not None
    splits = result.measurements.crossrank.splits
    return int(splits["wait_ns"].max() or 0), splits["late_rank"].drop_nulls().len()


def test_m02_stragglers_with_current_kernel_names(analyse: Analyse) -> None:
    """Rank 1 comes 400 us after rank 0 to each of twenty ``ncclDevKernel_*`` all-reduces."""
    slow = traces()
    times = [step * 10_000 + 1_000 + k * 2_000 for step in range(5) for k in range(4)]
    all_reduces(slow[0], times, dur=500)
    for ts in times:
        slow[1].collective("all_reduce", ts + 400, 100, group=TP, nelems=4096, seq=ts)
    for step in range(5):
        slow[1].step(step, step * 10_000 + 900, 9_000)
    result = analyse(*slow)
    assert tp(result)["transfer_ns"] == 4 * 100_000
    assert tp(result)["wait_ns"] == 4 * 400_000 / 2
    waits = result.document["waits"]
    columns = [waits[name] for name in ("rank", "wait_ns", "caused_ns", "late")]
    assert list(zip(*columns, strict=True)) == [(0, 1_600_000, 0, 0), (1, 0, 1_600_000, 20)]
    (late,) = [f for f in result.findings if f.rule == "SKW001"]
    assert late.ranks == (1,)
    assert late.savings_ns == 4 * 400_000 / 2


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("lost", [0, 5, 11])
def test_m10_one_collective_fewer_is_resynchronised(
    analyse: Analyse, numbered: bool, lost: int
) -> None:
    pair = traces()
    all_reduces(pair[0], TIMES)
    all_reduces(pair[1], TIMES)
    gone = [e for e in pair[1].events if e["cat"] == "kernel"][lost]
    pair[1].events.remove(gone)
    result = analyse(*(pair if numbered else map(unnumbered, pair)))
    assert unmatched(result) == 1
    (row,) = result.document["coverage"]["unmatched"]
    assert (row["rank"], row["axis"], row["op"]) == (0, "tp", "all_reduce")
    assert "rank 1" in row["reason"]
    assert skew_and_late(result) == (0, 0)
    assert "SKW001" not in {f.rule for f in result.findings}
    # rank 1's step that lacks a device event is not averaged: 12 + 8 events, one without partner
    assert tp(result)["split_pct"] == 95


@pytest.mark.parametrize("numbered", [True, False])
def test_m11_a_clock_5_ms_off_is_no_straggler(analyse: Analyse, numbered: bool) -> None:
    pair = traces()
    all_reduces(pair[0], TIMES)
    all_reduces(pair[1], TIMES, shift=5_000)
    result = analyse(*(pair if numbered else map(unnumbered, pair)))
    assert result.document["clock"]["offset_ns"]["1"] == pytest.approx(5_000_000, abs=20_000)
    assert result.document["clock"]["residual_ns"] < 1_000
    assert skew_and_late(result)[1] == 0
    assert unmatched(result) == 0


def test_m12_equal_names_of_disjoint_groups(analyse: Analyse) -> None:
    """Ranks 0, 1 and ranks 2, 3 both call their group "1"; sizes differ to tell them apart."""
    jobs = [
        *traces((0, 1), (0, 1), 4),
        *traces((2, 3), (2, 3), 4),
    ]
    for trace, nelems in zip(jobs, (4096, 4096, 8192, 8192), strict=True):
        all_reduces(trace, TIMES, nelems=nelems)
    result = analyse(*jobs)
    crossrank = result.measurements.crossrank
    assert crossrank is not None
    assert unmatched(result) == 0
    assert result.document["coverage"]["desynchronised"] == 0
    groups = crossrank.instances.group_by("instance").agg(g="group", r="rank")
    assert {tuple(sorted(ranks)) for ranks in groups["r"].to_list()} == {(0, 1), (2, 3)}
    assert groups.height == 24


def test_m13_half_of_the_ranks(analyse: Analyse) -> None:
    """Four of eight files: what concerns the missing ranks is not given, and it says so."""
    seen = traces((0, 1, 2, 3), world=8)
    for trace in seen:
        all_reduces(trace, TIMES)
    result = analyse(*seen)
    assert len(result.document["coverage"]["ranks_seen"]) == 4
    assert tp(result)["wait_ns"] is None
    assert tp(result)["busbw_gbps"] is None
    assert (
        "only 4 of 8 members of its groups have a trace"
        in result.document["null_reasons"]["axes.wait_ns"]
    )
    assert set(result.document["clock"]["offset_ns"].values()) == {0}
    assert tp(result)["exposed_ns"] == 4 * 100_000


def test_m14_decimal_gigabytes(analyse: Analyse) -> None:
    """2^29 bf16 elements, all-reduced by 8 ranks in 10 ms: 1.75 x 2^30 B / 10 ms."""
    eight = traces(range(8))
    for trace in eight:
        trace.step(0, 0, 20_000)
        trace.collective("all_reduce", 1_000, 10_000, group=TP, nelems=2**29)
    result = analyse(*eight)
    assert tp(result)["busbw_gbps"] == pytest.approx(187.9, abs=0.05)
    assert tp(result)["spec_gbps"] == 450
    # floor of an all-reduce on a switch: 2 hops and 2(n-1)/n S / 450 GB/s = 4.18 ms of the 10
    assert tp(result)["link_efficiency"] == pytest.approx(0.418, abs=0.001)
    (row,) = result.document["busbw"]
    assert (row["size_bytes"], row["count"], row["level"]) == (2**30, 1, "node")
    assert row["busbw_gbps"] == pytest.approx(187.9, abs=0.05)


def test_m15_fp8_and_ties(analyse: Analyse) -> None:
    """One byte an element, and of eight identical ranks none is late."""
    eight = traces(range(8))
    for trace in eight:
        for step in range(3):
            trace.step(step, step * 10_000, 9_000)
            for k in range(4):
                ts = step * 10_000 + 1_000 + k * 2_000
                trace.collective(
                    "all_gather", ts, 500, group=TP, nelems=1 << 20, dtype="Float8_e4m3fn"
                )
    result = analyse(*eight)
    assert skew_and_late(result) == (0, 0)
    assert tp(result)["bytes"] == 4 * (1 << 20)
    assert tp(result)["busbw_gbps"] == pytest.approx(7 / 8 * 2**20 / 500e3)
    assert "SKW001" not in {f.rule for f in result.findings}


def test_m21_split_sizes_are_of_the_groups_ranks(analyse: Analyse) -> None:
    """The expert-parallel group 4-7: what is for its member 0 goes to rank 4."""
    members = (4, 5, 6, 7)
    ranks = [TraceBuilder(r, 8, groups=[("9", "mesh_ep", members)]) for r in members]
    for trace in ranks:
        trace.step(0, 0, 1_000)
        split = [100 * trace.rank + k for k in range(4)]
        trace.collective(
            "all_to_allv", 100, 200, group="9", nelems=4096,
            comm={"In split size": str(split), "Out split size": str(split)},
        )  # fmt: skip
    crossrank = analyse(*ranks).measurements.crossrank
    assert crossrank is not None
    sent = {(row["src_rank"], row["dst_rank"]): row["rows"] for row in crossrank.traffic.to_dicts()}
    assert sent == {(s, 4 + k): 100 * s + k for s in members for k in range(4)}
    assert crossrank.instances["seen"].to_list() == [4] * 4


def test_m22_the_factor_is_of_the_group_not_of_the_world(analyse: Analyse) -> None:
    """TP = 2 in a world of 8: 2 (2-1)/2 = 1, not 2 (8-1)/8."""
    pair = traces((0, 1), (0, 1), 8)
    for trace in pair:
        trace.step(0, 0, 20_000)
        trace.collective("all_reduce", 1_000, 1_000, group=TP, nelems=2**29)
    assert tp(analyse(*pair))["busbw_gbps"] == pytest.approx(2**30 / 1e6)


def test_b24_external_ids_that_differ_match_by_group_and_number(analyse: Analyse) -> None:
    pair = traces()
    for k in range(50):
        pair[1].op("aten::add", 10 + k, 1)  # shifts all external ids of rank 1
    for trace in pair:
        all_reduces(trace, TIMES)
    result = analyse(*pair)
    assert unmatched(result) == 0
    assert tp(result)["split_pct"] == 100


@pytest.mark.parametrize("numbered", [True, False])
def test_b33_counts_that_differ_are_listed(analyse: Analyse, numbered: bool) -> None:
    """Rank 0 runs one broadcast that rank 1 never recorded: one row says so, all others match."""
    pair = traces()
    for trace in pair:
        all_reduces(trace, TIMES)
    pair[0].collective("broadcast", 4_000, 50, group=TP, nelems=64, seq=4_000)
    result = analyse(*(pair if numbered else map(unnumbered, pair)))
    rows = result.document["coverage"]["unmatched"]
    assert [(r["op"], r["rank"], r["reason"], r["count"]) for r in rows] == [
        ("broadcast", 0, "not recorded on rank 1", 1)
    ]
    assert result.document["axes"]["tp"]["ops"]["all_reduce"]["split_pct"] == 100


def test_b40_numbers_that_start_anywhere(analyse: Analyse) -> None:
    """Captures that begin at number 500 on one rank and 504 on the other."""
    pair = traces()
    for trace, first in zip(pair, (0, 4), strict=True):
        for k in range(first, 12):
            trace.collective("all_reduce", TIMES[k], 100, group=TP, nelems=4096, seq=500 + k)
        for step in range(first // 4, 3):
            trace.step(step, step * 10_000 + 900, 9_000)
    result = analyse(*pair)
    assert skew_and_late(result) == (0, 0)
    (row,) = result.document["coverage"]["unmatched"]
    assert (row["count"], row["reason"]) == (4, "outside the capture of rank 1")


def test_kinds_that_disagree_are_never_paired(analyse: Analyse) -> None:
    pair = traces()
    for trace in pair:
        all_reduces(trace, TIMES)
    pair[0].collective("all_reduce", 8_500, 50, group=TP, nelems=64, seq=8_500)
    pair[1].collective("all_gather", 8_500, 50, group=TP, nelems=64, seq=8_500)
    result = analyse(*pair)
    assert result.document["coverage"]["desynchronised"] == 1
    (found,) = [f for f in result.findings if f.rule == "COM006"]
    assert found.ranks == (0, 1)
    assert "rank 0: all_reduce of 128 B; rank 1: all_gather of 128 B" in found.advice
    assert {r["reason"] for r in result.document["coverage"]["unmatched"]} == {
        "members disagree on what was called"
    }


def test_a_clock_that_jumps_gives_no_waits(analyse: Analyse) -> None:
    """Rank 1's clock is stepped by 300 us to and fro: ends scatter, so nothing is compared."""
    pair = traces()
    all_reduces(pair[0], TIMES)
    for step in range(3):
        pair[1].step(step, step * 10_000 + 900, 9_000)
    for k, ts in enumerate(TIMES):
        pair[1].collective("all_reduce", ts + 300 * (k % 2), 100, group=TP, nelems=4096, seq=ts)
    result = analyse(*pair)
    assert tp(result)["wait_ns"] is None
    assert "clocks disagree" in result.document["null_reasons"]["axes.wait_ns"]
    (found,) = [f for f in result.findings if f.rule == "TRC002"]
    assert found.measured.value == pytest.approx(150, abs=1)
    assert result.document["clock"]["refused_groups"] == ["0,1"]


def test_pipeline_waits_are_bubble_and_transfers_exposed(analyse: Analyse) -> None:
    """Stage 1 asks for its input 600 us before stage 0 sends: 600 us bubble, 100 us transfer.

    A world all-reduce joins the clocks; rank 1's is 2 ms ahead.
    """
    ranks = [TraceBuilder(r, 2, groups=[("7", "mesh_pp", (0, 1))]) for r in (0, 1)]
    for trace, ahead in zip(ranks, (0, 2_000), strict=True):
        trace.step(0, ahead, 2_000)
        for ts in (1_500, 1_600, 1_700):
            trace.collective(
                "all_reduce", ts + ahead, 50, group="0", nelems=1, stream=40, seq=int(ts)
            )
    ranks[0].kernel("nvjet_gemm", 0, 700)
    ranks[0].collective("send", 700, 100, group="7", nelems=4096, comm={"Dst Rank": 1})
    ranks[1].collective("recv", 2_100, 700, group="7", nelems=4096, comm={"Src Rank": 0})
    ranks[1].kernel("nvjet_gemm", 2_800, 300)
    result = analyse(*ranks)
    by_rank = {row["rank"]: row["step"] for row in result.document["per_rank"]}
    assert by_rank[0]["bubble_ns"] == 0
    assert by_rank[0]["exposed_comm_ns"]["pp"] == 100_000
    assert by_rank[1]["bubble_ns"] == 600_000
    assert by_rank[1]["exposed_comm_ns"]["pp"] == 100_000
    assert result.document["bubble_pct"] == pytest.approx(100 * 600 / 2_000 / 2, rel=0.05)
    pp = result.document["axes"]["pp"]
    assert (pp["wait_ns"], pp["transfer_ns"]) == (300_000, 100_000)
    assert "bubble_pct" not in result.document["null_reasons"]
