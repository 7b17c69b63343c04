"""HTA's conventions on small traces whose figures follow by hand, and against a plain sweep."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_helpers import labeled, read

from analyzer.interop.hta_rules import OURS, Answers, Rules, figures, prepare
from analyzer.label import label_job
from collectors import open_job


def measured(builder, tmp_path, windows, rules, *, answers=None, **kwargs):
    rank = labeled(read(builder, tmp_path), windows, **kwargs)
    return figures(prepare(rank, answers or Answers()), rules)


def three_kinds() -> TraceBuilder:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.kernel("gemm", 100, 200)
    trace.kernel("ncclDevKernel_AllReduce", 250, 150, stream=20)
    trace.memcpy(500, 50)
    trace.kernel("gemm", 600, 100)
    return trace


def test_m07_window_of_the_kernels_against_the_step(tmp_path):
    """M-07: HTA sees 600 us of which 25 % idle, the step has 1000 of which 55 %."""
    windows = [(0, 1000)]
    hta = measured(three_kinds(), tmp_path, windows, Rules())
    assert (hta["window_us"], hta["compute_us"], hta["idle_us"]) == (600, 300, 150)
    assert (hta["compute_pct"], hta["idle_pct"]) == (50, 25)
    assert hta["non_compute_us"] == 150
    assert hta["overlap_pct"] == pytest.approx(100 * 50 / 150)
    ours = measured(three_kinds(), tmp_path, windows, OURS)
    assert (ours["window_us"], ours["compute_us"], ours["idle_us"]) == (1000, 300, 550)
    assert ours["idle_pct"] == 55
    assert ours["overlap_pct"] == hta["overlap_pct"]
    counts = ("compute_events", "comm_events", "memory_events")
    assert [ours[key] for key in counts] == [hta[key] for key in counts] == [2, 1, 1]


def synchronising() -> TraceBuilder:
    trace = TraceBuilder()
    for n in range(3):
        at = 10_000 * n
        trace.step(n, at, 10_000)
        trace.kernel("gemm", at + 100, 1000)
        trace.sync("Stream Sync", at + 1200, 8000)
        trace.kernel("gemm", at + 9300, 500)
    return trace


def test_m04_waits_count_as_busy(tmp_path):
    """M-04, on the two steps that HTA keeps (0.1 to 19.8 ms)."""
    windows = [(0, 30_000)]
    hta = measured(synchronising(), tmp_path, windows, Rules())
    span, gaps = 19_700, 4 * 100 + 300  # around each sync, and between the steps
    assert (hta["window_us"], hta["compute_us"], hta["idle_us"]) == (span, 3000, gaps)
    right = measured(synchronising(), tmp_path, windows, Rules(syncs_busy=False))
    assert right["idle_us"] == span - 3000
    assert right["idle_pct"] == pytest.approx(84.77, abs=0.01)


def test_m08_the_last_step_is_dropped(tmp_path):
    windows = [(0, 30_000)]
    assert measured(synchronising(), tmp_path, windows, Rules())["steps"] == 2
    kept = measured(synchronising(), tmp_path, windows, Rules(drop_last_step=False))
    assert (kept["steps"], kept["window_us"], kept["compute_us"]) == (3, 29_700, 4500)


def test_one_step_is_not_dropped(tmp_path):
    trace = TraceBuilder()
    trace.step(7, 0, 1000)
    trace.kernel("gemm", 100, 200)
    hta = measured(trace, tmp_path, [(0, 1000)], Rules())
    assert (hta["steps"], hta["compute_us"]) == (1, 200)


def test_device_side_annotations_move_the_cut(tmp_path):
    """HTA takes the latest start of any ProfilerStep event, on the host or the device."""
    trace = TraceBuilder()
    for n in range(2):
        trace.step(n, 1000 * n, 1000)
        trace.kernel("gemm", 1000 * n + 500, 100, launch_ts=1000 * n + 10)
    early = measured(trace, tmp_path, [(0, 2000)], Rules())
    assert (early["steps"], early["compute_us"]) == (1, 100)
    trace.step(1, 1500, 100, device_side=True)
    late = measured(trace, tmp_path, [(0, 2000)], Rules())
    assert (late["steps"], late["compute_us"]) == (2, 200)


def test_events_without_a_launch_are_dropped(tmp_path):
    trace = synchronising()
    trace.kernel("gemm", 1100, 50, launch=False)
    windows = [(0, 30_000)]
    dropped = measured(trace, tmp_path, windows, Rules())
    counted = measured(trace, tmp_path, windows, Rules(linked_only=False))
    assert (dropped["compute_events"], counted["compute_events"]) == (4, 5)
    assert counted["compute_us"] - dropped["compute_us"] == 50


def test_two_launches_of_one_correlation_count_twice(tmp_path):
    trace = synchronising()
    first = trace.kernel("gemm", 1100, 50)
    trace.runtime("cudaLaunchKernel", 1080, 2, correlation=first)
    windows = [(0, 30_000)]
    hta = measured(trace, tmp_path, windows, Rules())
    assert hta["compute_events"] == 4 + 2
    assert hta["compute_us"] == 3000 + 50


def test_names_decide_the_class(tmp_path):
    """M-01: a communication kernel that is not NCCL's is compute to HTA."""
    trace = TraceBuilder()
    trace.kernel("gemm", 0, 100)
    trace.kernel("deep_ep::internode::dispatch", 50, 100, stream=20)
    works = {"deep_ep::internode::dispatch": "comm"}
    answers = Answers({"gemm": "COMPUTATION", "deep_ep::internode::dispatch": "COMPUTATION"})
    hta = measured(trace, tmp_path, [(0, 150)], Rules(), answers=answers, works=works)
    assert (hta["compute_us"], hta["overlap_pct"], hta["comm_events"]) == (150, None, 0)
    ours = measured(trace, tmp_path, [(0, 150)], OURS, answers=answers, works=works)
    assert (ours["compute_us"], ours["overlap_pct"], ours["comm_events"]) == (100, 50, 1)


def test_host_operators_with_a_stream_count(tmp_path):
    trace = TraceBuilder()
    trace.kernel("gemm", 100, 100)
    answers = Answers({"triton_add": "COMPUTATION"}, ((300.0, 50.5, "triton_add"),))
    hta = measured(trace, tmp_path, [(0, 400)], Rules(), answers=answers)
    assert (hta["compute_events"], hta["compute_us"], hta["window_us"]) == (2, 150.5, 250.5)
    without = measured(trace, tmp_path, [(0, 400)], Rules(host_ops=False), answers=answers)
    assert (without["compute_events"], without["compute_us"]) == (1, 100)


def test_m05_rounding_leaves_negative_durations(tmp_path):
    """M-05: 0.9-us kernels from xx.05 to xx.95 become [xx + 1, xx): minus 1 us each."""
    trace = TraceBuilder()
    for i in range(50):
        trace.kernel("elementwise", f"{20 + i}.05", 0.9)
    exact = measured(trace, tmp_path, [(0, 100)], Rules())
    assert exact["compute_us"] == pytest.approx(45)
    assert exact["compute_pct"] == pytest.approx(100 * 45 / 49.9)
    rounded = measured(trace, tmp_path, [(0, 100)], Rules(whole_us=True))
    assert rounded["compute_us"] == -50
    assert rounded["idle_us"] > rounded["window_us"]  # what HTA's assertion stumbles on


def test_communication_time_is_cut_to_whole_us(tmp_path):
    trace = TraceBuilder()
    trace.kernel("ncclDevKernel_AllReduce", 0, "10.6", stream=20)
    trace.kernel("gemm", "3.5", "2.6")  # cuts it into 3.5 + 2.6 + 4.5
    hta = measured(trace, tmp_path, [(0, 100)], Rules())
    assert hta["comm_us"] == 3 + 2 + 4
    assert measured(trace, tmp_path, [(0, 100)], Rules(whole_us_segments=False))["comm_us"] == 10.6


def test_m09_gaps_below_30_us_are_kernel_wait(tmp_path):
    """M-09: launches queued early; gaps of 20 and 100 us; then one launched too late."""
    trace = TraceBuilder()
    for start in (1000, 1120, 1320):
        trace.kernel("gemm", start, 100, launch_ts=start / 100)
    trace.kernel("gemm", 1500, 100, launch_ts=1490)
    hta = measured(trace, tmp_path, [(0, 2000)], Rules())
    causes = ("kernel_wait_us", "other_us", "host_wait_us")
    assert [hta[cause] for cause in causes] == [20, 100, 80]
    assert measured(trace, tmp_path, [(0, 2000)], OURS)["other_us"] is None


def test_devices_of_one_file_are_pooled(tmp_path):
    trace = TraceBuilder()
    trace.kernel("gemm", 0, 100, device=0)
    trace.kernel("gemm", 50, 100, device=1)
    pooled = measured(trace, tmp_path, [(0, 150)], Rules())
    assert (pooled["window_us"], pooled["compute_us"]) == (150, 150)
    apart = measured(trace, tmp_path, [(0, 150)], Rules(pooled_devices=False))
    assert (apart["window_us"], apart["compute_us"]) == (200, 200)


events = st.lists(
    st.tuples(st.sampled_from(["gemm", "nccl", "copy"]), st.integers(0, 60), st.integers(0, 25)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(events=events, window=st.tuples(st.integers(0, 30), st.integers(31, 90)))
def test_figures_equal_a_sweep_over_microseconds(tmp_path_factory, events, window):
    trace = TraceBuilder()
    for i, (what, start, duration) in enumerate(events):
        if what == "copy":
            trace.memcpy(start, duration, stream=i)
        else:
            trace.kernel(what, start, duration, stream=i)
    subject = prepare(labeled(read(trace, tmp_path_factory.mktemp("t")), [window]), Answers())
    for rules in (Rules(), replace(Rules(), kernel_window=False)):
        first, last = window
        if rules.kernel_window:
            first, last = min(s for _, s, _ in events), max(s + d for _, s, d in events)
        busy = {what: set() for what in ("gemm", "nccl", "copy")}
        for what, start, duration in events:
            busy[what] |= set(range(max(start, first), min(start + duration, last)))
        found = figures(subject, rules)
        assert found["window_us"] == last - first
        assert found["compute_us"] == len(busy["gemm"])
        assert found["comm_us"] == len(busy["nccl"])
        assert found["idle_us"] == last - first - len(set().union(*busy.values()))
        comm = len(busy["nccl"])
        overlap = 100 * len(busy["nccl"] & busy["gemm"]) / comm if comm else None
        assert found["overlap_pct"] == (None if overlap is None else pytest.approx(overlap))


def test_ours_switches_every_convention_off():
    assert not any(getattr(OURS, field.name) for field in fields(Rules))


def test_our_figures_are_the_simulators_truth():
    """With every convention off: the simulator's own account of each rank's steps, to the ns."""
    samples = Path(__file__).parent.parent.parent / "sample_traces" / "fsdp_tp_healthy"
    truth = json.loads((samples / "truth.json").read_text())
    labels = label_job(open_job([samples])).ranks
    assert len(labels) == len(truth["ranks"]) == 4
    for rank, true in zip(labels, truth["ranks"], strict=True):
        found = figures(prepare(rank, Answers()), OURS)
        steps = true["steps"]
        time, compute = (sum(step[key] for step in steps) for key in ("time_ns", "compute_ns"))
        assert found["steps"] == len(steps)
        assert found["window_us"] == time / 1000
        assert found["compute_us"] == compute / 1000
        assert found["idle_us"] == sum(sum(step["idle_ns"].values()) for step in steps) / 1000
        collectives = [axis["count"] for step in steps for axis in step["axes"].values()]
        assert found["comm_events"] == sum(collectives)
        exposed = sum(sum(step["exposed_comm_ns"].values()) for step in steps)
        hidden = 1 - exposed / (found["comm_us"] * 1000)
        assert found["overlap_pct"] == pytest.approx(100 * hidden)
