"""Why a device was idle, and what the host waited for."""

from __future__ import annotations

import polars as pl
import pytest
from tables import AUTOGRAD, MAIN, budget_of, event, labeled, measure, rank_trace, span
from tables import activity_frame as frame

from analyzer import schema
from analyzer.measure.host import blocking_calls

STEP = [span("ProfilerStep#0", 0, 1000)]


def idle(rows, *, ranges=(), **trace) -> dict[str, int]:
    m = measure(labeled(rows, ranges=[*STEP, *ranges], **trace))
    parts = budget_of(m).items()
    return {name.removeprefix("idle."): ns for name, ns in parts if name.startswith("idle.")}


def sync(start: int, end: int, **more) -> dict:
    return span("cudaStreamSynchronize", start, end, **more)


@pytest.mark.parametrize(("marked", "pct"), [(True, 85.0), (False, 84.8)])
def test_m04_a_device_waiting_behind_a_host_sync_is_idle_with_cause_sync(marked, pct):
    """Three times 10 ms with kernels of 1 and 0.5 ms around a sync of 8 ms.

    Truth: 3 x 8.5 of 30 ms are idle in the steps; between first and last kernel 25.2 of 29.7 ms.
    """
    us = 1000
    rows, ranges, calls = [], [], []
    for k in range(3):
        t = 10_000 * us * k
        ranges.append(span(f"ProfilerStep#{k}", t, t + 10_000 * us))
        rows += [
            event(t + 100 * us, t + 1100 * us, launch_ns=t + 90 * us),
            event(t + 9300 * us, t + 9800 * us, launch_ns=t + 9290 * us),
        ]
        calls.append(sync(t + 1100 * us, t + 9280 * us))
    m = measure(labeled(rows, ranges=ranges if marked else (), launches=calls))
    assert 100 * sum(m.mean.idle_ns.values()) / m.mean.time_ns == pytest.approx(pct, abs=0.05)
    steps = 3 if marked else 1
    assert m.mean.idle_ns["sync"] == 3 * 8180 * us // steps
    assert m.host_step["sync_calls"].to_list() == [3 // steps] * steps
    assert m.host_step["sync_ns"].to_list() == [3 * 8180 * us // steps] * steps
    assert m.host_step["drain_ns"].to_list() == [3 * 8180 * us // steps] * steps


def drain(rows, calls, **trace) -> int:
    return measure(labeled(rows, ranges=STEP, launches=calls, **trace)).host_step["drain_ns"].sum()


def test_a_sync_that_finds_the_queue_empty_is_not_blamed_for_a_slow_host():
    """Queue empty since 120 us; a sync of 2 us at 1000 us; the next kernel runs at 15 ms."""
    us = 1000
    rows = [event(20 * us, 120 * us), event(15_000 * us, 15_100 * us)]
    ranges = [span("ProfilerStep#0", 0, 16_000 * us)]
    m = measure(labeled(rows, ranges=ranges, launches=[sync(1000 * us, 1002 * us)]))
    assert m.host_step["drain_ns"].to_list() == [2 * us]
    assert m.mean.idle_ns["sync"] == 2 * us


@pytest.mark.parametrize(
    ("begin", "end", "blamed"),
    [
        (50, 110, 60),  # blocked 60 of which 50 while the device ran: 60 less to wait at most
        (0, 110, 100),  # never more than the gap
        (150, 160, 10),
        (80, 90, 0),  # returned before the device ran dry, clocks aside
        (195, 300, 5),  # behind the launch it delays nothing
    ],
)
def test_a_sync_is_blamed_for_at_most_what_it_blocked(monkeypatch, begin, end, blamed):
    """Device busy until 100, next launch at 200."""
    monkeypatch.setattr("analyzer.measure.idle.RETURN_LATENCY_NS", 0)
    rows = [event(-100, 100, launch_ns=-100), event(200, 900, launch_ns=200)]
    assert drain(rows, [sync(begin, end)]) == blamed


def test_a_sync_may_seem_to_return_just_before_the_device_is_done():
    rows = [event(0, 100, launch_ns=0), event(200, 900, launch_ns=180)]
    assert drain(rows, [sync(20, 95)]) == 75


def test_two_syncs_in_one_gap_add_up_and_one_sync_over_two_gaps_counts_once():
    rows = [event(0, 100, launch_ns=0), event(500, 900, launch_ns=490)]
    assert drain(rows, [sync(90, 120), sync(200, 240)]) == 70
    rows = [
        event(0, 100, launch_ns=0),
        event(200, 300, launch_ns=190, launch_tid=None),
        event(500, 900, launch_ns=490, launch_tid=None),
    ]
    assert drain(rows, [sync(90, 420)]) == 100 + 200  # the two gaps, of 330 blocked
    assert drain(rows, [sync(150, 310)]) == 40 + 110  # the first launch came 40 after the call


def test_b02_a_synchronisation_hides_no_communication():
    m = measure(labeled([event(0, 10), event(20, 60, "comm")], launches=[sync(15, 70)]))
    assert m.axes[0].overlap_pct == 0


def test_m09_a_gap_is_the_host_s_until_its_launch_and_other_after():
    """Launched early, gaps of 20 and 100 are not the host's; launched late, they are until then."""
    early = labeled([event(s, s + 100, launch_ns=50) for s in (1000, 1120, 1320)])
    assert budget_of(measure(early)) == {"compute": 300, "idle.other": 20 + 100}
    late = [event(100, 200, launch_ns=0), event(300, 1000, launch_ns=270)]
    assert idle(late) == {"host_bound": 70, "other": 100 + 30}


def test_data_before_sync_before_host_bound():
    """Gap [100, 500), launched at 400: loader [100, 200), sync [150, 300), the rest is late."""
    rows = [event(0, 100, launch_ns=0), event(500, 1000, launch_ns=400)]
    loader = span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 200)
    found = idle(rows, ranges=[loader], launches=[sync(150, 300)])
    assert found == {"data": 100, "sync": 100, "host_bound": 100, "other": 100}


def test_only_the_launching_thread_s_waits_count():
    rows = [event(0, 100, launch_ns=0), event(500, 1000, launch_ns=400, launch_tid=AUTOGRAD)]
    assert idle(rows, launches=[sync(100, 400, tid=MAIN)]) == {"host_bound": 300, "other": 100}
    assert idle(rows, launches=[sync(100, 400, tid=AUTOGRAD)]) == {"sync": 300, "other": 100}


def test_any_thread_counts_where_the_launching_one_is_unknown():
    rows = [event(0, 100, launch_ns=0), event(500, 1000, launch_ns=400, launch_tid=None)]
    assert idle(rows, launches=[sync(100, 400, tid=9)]) == {"sync": 300, "other": 100}


def test_the_earliest_launch_among_events_that_start_together_counts():
    rows = [
        event(0, 100, launch_ns=0),
        event(500, 900, launch_ns=300, stream=8),
        event(500, 1000, launch_ns=400),
    ]
    assert idle(rows) == {"host_bound": 200, "other": 200}


def test_a_gap_that_ends_without_a_known_launch_is_other():
    rows = [event(0, 100, launch_ns=0), event(500, 1000, launch_ns=None)]
    assert idle(rows, launches=[sync(100, 500)]) == {"other": 400}


def test_behind_the_last_event_the_host_is_waited_for_until_its_step_ends():
    rows = [event(0, 300, launch_ns=0)]
    loader = span("dataloader", 900, 1000)
    assert idle(rows, ranges=[loader], launches=[sync(350, 600, tid=7)]) == {
        "data": 100, "sync": 250, "host_bound": 350,
    }  # fmt: skip


def test_b22_gaps_inside_a_replayed_graph_are_other_and_a_warning_says_so():
    rows = [event(100 * k + 100, 100 * k + 150, launch_ns=50, graph_id=3) for k in range(5)]
    m = measure(labeled(rows))
    assert budget_of(m) == {"compute": 250, "idle.other": 200}
    assert "graph replay: gaps inside are not trustworthy" in m.warnings
    assert m.host_step["launches"].to_list() == [1]


def test_host_side_idle_has_no_launch_to_wait_for():
    rows = [event(0, 100, launch_ns=None), event(500, 1000, launch_ns=None)]
    found = idle(rows, host_side=True, ranges=[span("get_batch", 150, 250)])
    assert found == {"data": 100, "other": 300}


def test_launch_lead_is_the_median_over_kernels():
    rows = [
        event(100 * k, 100 * k + 10, launch_ns=100 * k - lead)
        for k, lead in ((1, 5), (2, 70), (3, 20))
    ]
    rows.append(event(400, 410, "memcpy", launch_ns=1))
    host = measure(labeled(rows, ranges=STEP)).host_step.row(0, named=True)
    assert (host["launches"], host["median_lead_ns"]) == (3, 20)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cuCtxSynchronize", True),
        ("hipStreamSynchronize", True),
        ("hipMemcpyWithStream", True),
        ("aclrtSynchronizeStream", True),
        ("AscendCL@aclrtSynchronizeDevice", True),
        ("zeEventHostSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpyAsync", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventRecord", False),
        ("cudaLaunchKernel", False),
        ("cudaMemcpyToSymbolAsync", False),
    ],
)
def test_blocking_calls_by_name(name, blocks):
    trace = rank_trace(frame([event(0, 10)]), launches=[span(name, 0, 5)])
    assert (blocking_calls(trace).height == 1) is blocks


def test_asynchronous_copies_block_for_item_and_into_pageable_memory():
    calls = [
        span("cudaMemcpyAsync", 20, 40, correlation=1),  # inside item()
        span("cudaMemcpyAsync", 50, 60, correlation=2),  # into pageable memory
        span("cudaMemcpyAsync", 70, 80, correlation=3),  # pinned
    ]
    items = [span("aten::item", 10, 45), span("aten::_local_scalar_dense", 11, 44)]
    items.append(span("aten::_local_scalar_dense", 85, 86))  # of a host tensor: no copy
    copies = [
        {"name": "Memcpy DtoH (Device -> Pageable)", "correlation": 2},
        {"name": "Memcpy DtoH (Device -> Pinned)", "correlation": 3},
    ]
    events = frame(
        [event(100 + n, 101 + n, "memcpy", name=c["name"]) for n, c in enumerate(copies)]
    )
    trace = rank_trace(events, launches=calls, ops=items)
    device = trace.device.with_columns(pl.Series("correlation", [2, 3]))
    device = schema.check(device, schema.DEVICE)
    traced = type(trace)(trace.meta, trace.report, device, *_others(trace))
    assert blocking_calls(traced)["start_ns"].to_list() == [20, 50]


def test_without_runtime_calls_item_itself_blocks():
    items = [span("aten::item", 10, 45), span("aten::_local_scalar_dense", 11, 44)]
    trace = rank_trace(frame([event(0, 10)]), ops=items)
    assert blocking_calls(trace).select("start_ns", "end_ns").rows() == [(11, 44)]


def _others(trace):
    return trace.comm_args, trace.launches, trace.ops, trace.ranges, trace.syncs, trace.memory
