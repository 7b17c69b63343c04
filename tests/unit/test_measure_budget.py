"""The budget closes: against a sweep of every nanosecond, closed forms, and invariances."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tables import budget_of, event, labeled, measure, span

from analyzer.model import AXES

WORKS = ("compute", "comm", "fused", "memcpy", "memset", "unknown")
STEP_NS = 40


@st.composite
def jobs(draw):
    """Up to three steps of random work; steps are known by launches inside host ranges."""
    steps = draw(st.integers(1, 3))
    rows = []
    for step in range(steps):
        for _ in range(draw(st.integers(1, 6))):
            start = draw(st.integers(0, STEP_NS + 8))
            work = draw(st.sampled_from(WORKS))
            axis = draw(st.sampled_from(["tp", "dp_shard", "cp", "pp"]))
            lead = draw(st.one_of(st.none(), st.integers(0, start)))
            begin = step * STEP_NS + start
            launch = None if lead is None else step * STEP_NS + draw(st.integers(0, STEP_NS - 1))
            launch = None if launch is None else min(launch, begin)
            more = {"launch_ns": launch, "stream": draw(st.integers(0, 2))}
            if work in ("comm", "fused"):
                more["axis"] = axis
            rows.append(event(begin, begin + draw(st.integers(0, 15)), work, **more))
    ranges = [span(f"ProfilerStep#{k}", k * STEP_NS, (k + 1) * STEP_NS) for k in range(steps)]
    waits = draw(st.lists(st.tuples(st.integers(0, 120), st.integers(1, 20)), max_size=3))
    syncs = [span("cudaStreamSynchronize", s, s + d) for s, d in waits]
    loads = draw(st.lists(st.tuples(st.integers(0, 120), st.integers(1, 20)), max_size=2))
    ranges += [span("enumerate(DataLoader)#next", s, s + d) for s, d in loads]
    return rows, ranges, syncs


def sweep(rank) -> dict[tuple[int, str], int]:
    """(step, state) -> ns, asking every nanosecond; axes share by the rule of definitions 3."""
    rows = list(rank.activity.iter_rows(named=True))
    syncs = rank.trace.launches.rows(named=True)
    loads = rank.trace.ranges.filter(pl.col("name").str.contains("DataLoader")).rows(named=True)
    found: Counter[tuple[int, str]] = Counter()
    for window in rank.steps.iter_rows(named=True):
        step, shared = window["index"], Counter()
        for t in range(window["start_ns"], window["end_ns"]):
            on = [r for r in rows if r["start_ns"] <= t < r["end_ns"]]
            axes = {r["axis"] for r in on if r["work"] == "comm"}
            if any(r["work"] in ("compute", "fused", "unknown") for r in on):
                found[step, "compute"] += 1
            elif axes:
                shared[tuple(sorted(axes, key=AXES.index))] += 1
            elif on:
                found[step, "memcpy"] += 1
            else:
                found[step, f"idle.{cause(t, window, rank, rows, syncs, loads)}"] += 1
        for axes, ns in shared.items():
            for place, axis in enumerate(axes):
                found[step, f"exposed_comm.{axis}"] += ns // len(axes) + (place < ns % len(axes))
    return {key: ns for key, ns in found.items() if ns}


def cause(t, window, rank, rows, syncs, loads) -> str:
    """Cause of one idle instant: find what ends its gap, then ask what the host did at t."""
    solid = [r["start_ns"] for r in rows if r["start_ns"] > t and r["end_ns"] > r["start_ns"]]
    end = min([window["end_ns"], *solid])
    launches = [(r["launch_ns"], r["launch_tid"]) for r in rows if r["start_ns"] == end]
    launches = [x for x in launches if x[0] is not None]
    last = window["end_ns"] == rank.steps["end_ns"].max()
    if launches:
        until, thread = min(launches)
    elif last and end == window["end_ns"]:
        until, thread = window["host_end_ns"], None
    else:
        return "other"
    if t >= until:
        return "other"
    if any(r["start_ns"] <= t < r["end_ns"] for r in loads):
        return "data"
    blocked = [r for r in syncs if r["start_ns"] <= t < r["end_ns"]]
    return "sync" if any(thread in (None, r["tid"]) for r in blocked) else "host_bound"


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_budget_equals_a_sweep_of_every_nanosecond(job):
    rows, ranges, syncs = job
    rank = labeled(rows, ranges=ranges, launches=syncs)
    m = measure(rank)
    expected = sweep(rank)
    for window in rank.steps.iter_rows(named=True):
        step, length = window["index"], window["end_ns"] - window["start_ns"]
        got = budget_of(m, step=step)
        assert got == {state: ns for (at, state), ns in expected.items() if at == step}
        assert sum(got.values()) == length


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_standalone_overlap_equals_hta_s_definition(job):
    """Over all axes: |union of comm and compute intersected| / |union of comm|, by instants."""
    rows, ranges, _ = job
    rows = [{**r, "axis": "tp"} if r["work"] in ("comm", "fused") else r for r in rows]
    rank = labeled(rows, ranges=ranges)
    figures = measure(rank).axis_step.filter(op="")
    lo, hi = rank.steps["start_ns"].min(), rank.steps["end_ns"].max()
    inside = lambda r: set(range(max(r["start_ns"], lo), min(r["end_ns"], hi)))  # noqa: E731
    comm = set().union(*(inside(r) for r in rows if r["work"] in ("comm", "fused")))
    comp = set().union(*(inside(r) for r in rows if r["work"] in ("compute", "fused", "unknown")))
    assert figures["comm_ns"].sum() == len(comm)
    assert (figures["comm_ns"] - figures["exposed_ns"]).sum() == len(comm & comp)


@settings(max_examples=40, deadline=None)
@given(jobs(), st.integers(-(10**17), 10**17))
def test_shifting_all_clocks_changes_nothing(job, offset):
    rows, ranges, syncs = job
    moved = [[_moved(r, offset) for r in part] for part in (rows, ranges, syncs)]
    here = measure(labeled(rows, ranges=ranges, launches=syncs))
    there = measure(labeled(moved[0], ranges=moved[1], launches=moved[2]))
    assert here.budget.equals(there.budget)
    assert here.axis_step.equals(there.axis_step)
    assert here.host_step.equals(there.host_step)
    assert here.mean == there.mean


def _moved(row, offset):
    times = ("start_ns", "end_ns", "launch_ns")
    return {k: v + offset if k in times and v is not None else v for k, v in row.items()}


@settings(max_examples=40, deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_row_order_changes_nothing(job, random):
    rows, ranges, syncs = job
    shuffled = random.sample(rows, len(rows))
    here = measure(labeled(rows, ranges=ranges, launches=syncs))
    there = measure(labeled(shuffled, ranges=ranges, launches=syncs))
    assert here.budget.equals(there.budget)
    assert here.axis_step.sort("step", "axis", "op").equals(
        there.axis_step.sort("step", "axis", "op")
    )


@settings(max_examples=40, deadline=None)
@given(jobs(), st.data())
def test_a_kernel_cut_in_two_takes_the_same_time(job, data):
    rows, ranges, syncs = job
    known = [i for i, row in enumerate(rows) if row["launch_ns"] is not None]
    assume(known)  # without a launch, the second half may belong to another step by its time
    index = data.draw(st.sampled_from(known))
    row = rows[index]
    at = data.draw(st.integers(row["start_ns"], row["end_ns"]))
    cut = [*rows[:index], {**row, "end_ns": at}, {**row, "start_ns": at}, *rows[index + 1 :]]
    whole = measure(labeled(rows, ranges=ranges, launches=syncs))
    parts = measure(labeled(cut, ranges=ranges, launches=syncs))
    assert whole.budget.select("step", "state", "detail", "ns").equals(
        parts.budget.select("step", "state", "detail", "ns")
    )


def test_m07_head_and_tail_of_a_step_are_idle_time():
    """Truth by hand: compute 200 + 100, comm 150 of which 100 alone, a copy 50, the rest idle."""
    m = measure(
        labeled(
            [
                event(100, 300), event(250, 400, "comm"), event(500, 550, "memcpy"),
                event(600, 700),
            ],
            ranges=[span("ProfilerStep#0", 0, 1000)],
        )
    )  # fmt: skip
    assert m.mean.time_ns == 1000
    assert m.mean.compute_ns == 300
    assert m.mean.exposed_comm_ns == {"tp": 100}
    assert m.mean.memcpy_ns == 50
    assert sum(m.mean.idle_ns.values()) == 550
    assert m.exposed_comm_pct == 10.0
    assert m.bubble_pct == 0.0


def test_axes_that_communicate_together_share_to_the_nanosecond():
    """[0, 10) compute, [10, 17) tp and cp, [17, 20) tp, cp and dp_shard."""
    rows = [
        event(0, 10),
        event(10, 20, "comm", axis="tp"),
        event(10, 20, "comm", axis="cp"),
        event(17, 20, "comm", axis="dp_shard"),
    ]
    m = measure(labeled(rows))
    assert budget_of(m) == {
        "compute": 10, "exposed_comm.dp_shard": 1, "exposed_comm.cp": 4 + 1,
        "exposed_comm.tp": 3 + 1,
    }  # fmt: skip
    alone = m.axis_step.filter(op="").select("axis", "exposed_ns").rows()
    assert dict(alone) == {"dp_shard": 3, "cp": 10, "tp": 10}


def test_m05_m16_sub_microsecond_kernels_keep_their_nanoseconds():
    rows = [event(20_050 + 1000 * i, 20_950 + 1000 * i) for i in range(20_000)]
    m = measure(labeled(rows))
    busy = 20_000 * 900
    assert budget_of(m)["compute"] == busy == 18_000_000
    assert 100 * busy / m.mean.time_ns == pytest.approx(90, abs=0.01)


def test_b18_overlap_of_27_ns_counts_once_without_a_warning():
    m = measure(labeled([event(100_000, 110_030), event(110_003, 115_003)]))
    assert budget_of(m) == {"compute": 15_003}
    assert not any("overlap" in warning for warning in m.warnings)


def test_b17_kernels_that_overlap_on_one_stream_are_both_kept():
    m = measure(labeled([event(100_000, 150_000), event(140_000, 170_000)]))
    assert budget_of(m) == {"compute": 70_000}
    assert m.steps["device_events"].to_list() == [2]
    assert any("programmatic dependent launch" in w for w in m.warnings)


def test_fused_kernels_compute_and_list_their_axis_as_overlapped():
    m = measure(labeled([event(0, 50, "fused", axis="tp", op="all_reduce"), event(60, 100)]))
    assert budget_of(m) == {"compute": 90, "idle.other": 10}
    figures = m.axis_step.filter(op="").row(0, named=True)
    assert (figures["comm_ns"], figures["exposed_ns"], figures["count"]) == (50, 0, 1)


def test_copies_do_not_hide_communication():
    m = measure(labeled([event(0, 10), event(10, 30, "comm"), event(10, 40, "memcpy")]))
    assert budget_of(m) == {"compute": 10, "exposed_comm.tp": 20, "memcpy": 10}


def test_pipeline_transfers_stay_in_pp_and_the_bubble_is_null_with_a_reason():
    m = measure(labeled([event(0, 10), event(10, 30, "comm", axis="pp", op="recv")]))
    assert m.mean.bubble_ns is None
    assert m.bubble_pct is None
    assert "pipeline" in m.null_reasons["bubble_pct"]
    assert m.mean.exposed_comm_ns == {"pp": 20}
    assert "bubble" not in m.budget["state"].to_list()


def test_work_left_over_from_before_a_step_still_fills_its_window():
    """A kernel of step 0 runs on into step 1: time is time, membership is by launch."""
    rows = [
        event(5, 60, launch_ns=1),
        event(50, 55, launch_ns=41),
        event(58, 70, "comm", launch_ns=42),
    ]
    ranges = [span("ProfilerStep#0", 0, 40), span("ProfilerStep#1", 40, 80)]
    m = measure(labeled(rows, ranges=ranges))
    assert budget_of(m, step=0) == {"idle.host_bound": 1, "idle.other": 4, "compute": 45}
    second = budget_of(m, step=1)
    assert second["compute"] == 10
    assert second["exposed_comm.tp"] == 10


def test_b42_every_device_of_a_process_is_measured():
    rows = [
        event(t, t + 100, "comm", lane=lane, stream=20 + lane)
        for lane, t in enumerate((10, 20, 30, 40))
    ]
    m = measure(labeled(rows, ranges=[span("ProfilerStep#0", 0, 200)]))
    assert [(r.rank, r.lane) for r in m.per_rank] == [(0, lane) for lane in range(4)]
    assert m.comm_events["exposed_ns"].to_list() == [100] * 4
