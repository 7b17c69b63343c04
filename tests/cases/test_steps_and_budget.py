"""Public cases about steps, where their time goes, and what cannot be said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from builders import Group, TraceBuilder
from case_helpers import Cli, check, idle, share

from analyzer.api import Analysis
from reports.view import job_facts

Analyse = Callable[..., Analysis]
US = 1_000

# ---- idle time -----------------------------------------------------------------------------------


def synchronising(kind: str, *, event: bool = True) -> TraceBuilder:
    """Three steps of 10 ms; the host waits 8 ms for the first kernel before it launches another."""
    trace = TraceBuilder()
    for n in range(3):
        at = 10_000 * n
        trace.step(n, at, 10_000)
        trace.kernel("nvjet_gemm", at + 100, 1000, op="aten::mm")
        trace.sync(kind, at + 1200, 8000, event=event)
        trace.kernel("nvjet_gemm", at + 9300, 500, op="aten::mm")
    return trace


@pytest.mark.parametrize("kind", ["Stream Sync", "Event Sync", "Device Sync", "Context Sync"])
@pytest.mark.parametrize("event", [True, False], ids=["cuda_sync", "runtime call only"])
def test_m_04_cuda_sync_is_not_gpu_work(analyse: Analyse, kind: str, event: bool) -> None:
    document = analyse(synchronising(kind, event=event)).document
    step = document["step"]
    assert step["compute_ns"] == 1500 * US
    # 85.0 % of the steps; 84.8 % of the time between the first and the last device event
    assert share(document, idle(document)) == pytest.approx(85.0)
    first_to_last = 29_800 - 100
    assert round(100 * (1 - 3 * 1500 / first_to_last), 1) == 84.8
    assert step["idle_ns"]["sync"] == 8000 * US


def test_m_04_a_wait_between_streams_blocks_no_host(analyse: Analyse) -> None:
    document = analyse(synchronising("Stream Wait Event")).document
    assert document["step"]["compute_ns"] == 1500 * US
    assert document["step"]["idle_ns"]["sync"] == 0


def test_m_07_idle_at_a_steps_head_and_tail_counts(analyse: Analyse) -> None:
    trace = TraceBuilder(world_size=2).step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 200, op="aten::mm")
    trace.collective("all_reduce", 250, 150, group="0", nelems=1 << 20)
    trace.memcpy(500, 50)
    trace.kernel("nvjet_gemm", 600, 100, op="aten::mm")
    document = analyse(trace).document
    assert document["step"]["time_ns"] == 1000 * US
    assert document["exposed_comm_pct"] == pytest.approx(10.0)
    assert share(document, idle(document)) == pytest.approx(55.0)
    assert share(document, document["step"]["memcpy_ns"]) == pytest.approx(5.0)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_m_07_windows_tile_several_steps(analyse: Analyse, count: int) -> None:
    trace = TraceBuilder()
    for n in range(count):
        trace.step(n, 1000 * n, 1000)
        trace.kernel("nvjet_gemm", 1000 * n + 100, 300, op="aten::mm")
    analysis = analyse(trace)
    steps = analysis.measurements.steps
    assert (steps["end_ns"] - steps["start_ns"]).sum() == count * 1000 * US
    assert (steps["start_ns"][1:] == steps["end_ns"][:-1]).all()
    assert analysis.document["step"]["compute_ns"] == 300 * US
    assert share(analysis.document, idle(analysis.document)) == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("launch_lead", "cause"), [(500, "other"), (0, "host_bound")], ids=["queued", "late"]
)
def test_m_09_short_and_long_gaps_are_both_reported(
    analyse: Analyse, launch_lead: int, cause: str
) -> None:
    trace = TraceBuilder().step(0, 0, 1420)
    trace.kernel("nvjet_gemm", 1000, 100, launch_ts=0)
    for ts in (1120, 1320):  # gaps of 20 and 100 us: no threshold in whatever unit hides one
        trace.kernel("nvjet_gemm", ts, 100, launch_ts=ts - launch_lead)
    trace.sync("Device Sync", 1390, 30)
    document = analyse(trace).document
    between = {"host_bound": 0, "sync": 0, "data": 0, "other": 1000 * US}  # before the first
    between[cause] += 120 * US
    assert document["step"]["idle_ns"] == between


# ---- which steps count ---------------------------------------------------------------------------


def step_of(trace: TraceBuilder, n: int, *, kernels: int = 5, base: int = 0) -> None:
    at = base + 1000 * n
    trace.step(n, at, 1000)
    for k in range(kernels):
        trace.kernel("nvjet_gemm", at + 100 + 150 * k, 100, op="aten::mm")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_m_08_the_last_step_is_kept(analyse: Analyse, count: int) -> None:
    trace = TraceBuilder()
    for n in range(count):
        step_of(trace, n)
    job = analyse(trace).document["job"]
    assert [s["step"] for s in job["steps_kept"]] == list(range(count))
    assert job["steps_dropped"] == []


@pytest.mark.parametrize("partial", ["first", "last"])
def test_m_08_partial_steps_are_listed_and_left_out(analyse: Analyse, partial: str) -> None:
    trace = TraceBuilder()
    short = 0 if partial == "first" else 4
    for n in range(5):
        step_of(trace, n, kernels=1 if n == short else 5)
    document = analyse(trace).document
    (dropped,) = document["job"]["steps_dropped"]
    assert (dropped["step"], dropped["label"]) == (short, f"ProfilerStep#{short}")
    assert dropped["reason"].startswith("incomplete: 1 of about 5 events")
    assert [s["step"] for s in document["job"]["steps_kept"]] == [n for n in range(5) if n != short]
    assert document["step"]["compute_ns"] == 500 * US


def unmarked(rank: int, *, optimizer: bool = False, collectives: bool = False) -> TraceBuilder:
    trace = TraceBuilder(rank=rank, world_size=2, groups=[Group("1", "mesh_tp", (0, 1))])
    for n in range(4):
        at = 1000 * n
        trace.kernel("nvjet_gemm", at + 100, 300, op="aten::mm")
        if collectives:
            trace.collective("all_gather", at + 400, 100, group="1", nelems=1 << 20)
            trace.collective("reduce_scatter", at + 500, 100, group="1", nelems=1 << 20)
        trace.kernel("nvjet_gemm", at + 600, 200, op="aten::mm")
        if optimizer:
            trace.range("Optimizer.step#AdamW.step", at + 800, 100)
    return trace


def test_m_20_without_markers_the_whole_trace_is_one_step(analyse: Analyse) -> None:
    document = analyse(unmarked(0), unmarked(1)).document
    assert document["job"]["step_source"] == "whole trace"
    assert any("whole trace counts as one step" in w for w in document["warnings"])
    assert document["step"]["time_ns"] == 3700 * US  # from the first to the last device event
    assert document["step"]["compute_ns"] == 2000 * US


def test_m_20_optimizer_ranges_are_anchors(analyse: Analyse) -> None:
    document = analyse(*[unmarked(rank, optimizer=True) for rank in (0, 1)]).document
    assert document["job"]["step_source"] == "optimizer"
    assert len(document["job"]["steps_kept"]) == 4
    assert document["step"]["compute_ns"] == 500 * US


def test_m_20_repeating_collectives_are_anchors(analyse: Analyse) -> None:
    analysis = analyse(*[unmarked(rank, collectives=True) for rank in (0, 1)])
    document = analysis.document
    assert document["job"]["step_source"] == "collective"
    assert any("repeating collectives" in w for w in document["warnings"])
    assert document["axes"]["tp"]["count"] == 2
    assert analysis.measurements.steps.filter(pl.col("rank") == 0)["kept"].sum() >= 2


def test_b_04_step_called_once_after_the_loop(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 5000)
    for n in range(5):
        at = 1000 * n
        trace.kernel("nvjet_gemm", at + 100, 300, op="aten::mm")
        trace.range("Optimizer.step#SGD.step", at + 500, 100)
    document = analyse(trace).document
    assert len(document["job"]["steps_kept"]) == 1
    assert share(document, document["step"]["compute_ns"]) == pytest.approx(30.0)
    assert any("one ProfilerStep holds 5 optimizer steps" in w for w in document["warnings"])


def test_b_04_many_steps_the_host_is_busy_in(analyse: Analyse) -> None:
    trace = TraceBuilder()
    for n in range(45):
        at = 10_000 * n
        trace.step(n, at, 10_000)
        for k in range(90):
            trace.op("aten::add", at + 100 * k, 95)
        trace.kernel("nvjet_gemm", at + 9500, 300, launch_ts=at + 9400)
    document = analyse(trace).document
    assert len(document["job"]["steps_kept"]) == 45
    step = document["step"]
    assert step["compute_ns"] == 300 * US
    # it is the host's time, less the 100 us between each launch and its kernel
    assert step["idle_ns"]["host_bound"] == 9600 * US
    assert step["idle_ns"]["other"] == 100 * US


@pytest.mark.parametrize("name", ["ProfilerStep", "ProfilerStep*", "ProfilerStep#-1", "step 3"])
def test_b_04_odd_step_names(analyse: Analyse, name: str) -> None:
    trace = TraceBuilder().range(name, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 300, op="aten::mm")
    document = analyse(trace).document
    assert document["job"]["step_source"] in {"ProfilerStep", "whole trace"}
    assert document["step"]["compute_ns"] == 300 * US


# ---- what cannot be said -------------------------------------------------------------------------


def test_b_21_mostly_empty_steps_get_no_figures(
    analyse: Analyse, run_cli: Cli, tmp_path: Path
) -> None:
    trace = TraceBuilder(world_size=2)
    for n in range(32):
        step_of(trace, n, kernels=0)
    trace.kernel("nvjet_gemm", 5100, 10, op="aten::mm")
    trace.kernel("nvjet_gemm", 7100, 20_000, op="aten::mm")  # nearly all of the time
    document = analyse(trace).document
    assert document["step"] is None
    assert document["exposed_comm_pct"] is None
    assert document["bubble_pct"] is None
    assert document["null_reasons"]["step"] == "only 2 of 32 steps have device events"
    coverage = document["coverage"]
    assert (coverage["steps_with_device_events"], coverage["steps_total"]) == (2, 32)
    assert len(document["job"]["steps_dropped"]) + len(document["job"]["steps_kept"]) == 32
    reasons = {s["reason"] for s in document["job"]["steps_dropped"]}
    assert "no device events" in reasons
    gates = ("--max-exposed-comm", "99%", "--gate", "step.idle_ns.other >= 0", "--json", "-")
    run = run_cli(tmp_path, *gates)
    assert run.code == 3
    assert [g["passed"] for g in run.document["gates"]] == [None, None]
    shown = run_cli(tmp_path).out
    assert "2 of 32" in shown


@pytest.mark.parametrize("empty", [1, 5, 15])
def test_b_21_a_few_empty_steps_are_listed(analyse: Analyse, empty: int) -> None:
    trace = TraceBuilder()
    for n in range(32):
        step_of(trace, n, kernels=0 if n < empty else 5)
    document = analyse(trace).document
    assert document["coverage"]["steps_with_device_events"] == 32 - empty
    dropped = [s["step"] for s in document["job"]["steps_dropped"]]
    assert set(range(empty)) <= set(dropped)
    assert document["step"]["compute_ns"] == 500 * US


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch"])
@pytest.mark.parametrize("ids", [True, False], ids=["graph ids", "launch call only"])
def test_b_22_graph_replay_is_named(analyse: Analyse, call: str, ids: bool) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    launch = trace.runtime(call, 50, 10)
    for n in range(10):
        trace.kernel(
            "nvjet_gemm", 100 + 60 * n, 50, launch=False, correlation=launch,
            graph_id=7 if ids else None,
        )  # fmt: skip
    document = analyse(trace).document
    assert any("graph replay" in w and "not trustworthy" in w for w in document["warnings"])
    assert document["step"]["compute_ns"] == 500 * US


def test_b_22_no_graph_no_warning(analyse: Analyse) -> None:
    trace = TraceBuilder()
    step_of(trace, 0)
    document = analyse(trace).document
    check(document)
    assert not any("graph" in w for w in document["warnings"])


def test_b_42_a_stray_event_on_a_second_device_changes_no_figure(analyse: Analyse) -> None:
    """A memset on device 0 and a copied batch of a later step leave 30 % at 30 %."""
    trace = TraceBuilder(world_size=2)
    for n in range(5):
        trace.step(n, 200 * n, 200)
        at = 200 + 1000 * n
        trace.kernel("nvjet_gemm", at, 700, op="aten::mm", device=3, launch_ts=200 * n + 10)
        trace.collective(
            "all_reduce", at + 700, 300, group="0", nelems=1 << 20, device=3,
            launch_ts=200 * n + 20,
        )  # fmt: skip
        trace.memset(at + 5, 2, device=0, launch_ts=200 * n + 30)
    trace.memcpy(950, 20, device=3, stream=30, launch_ts=640)  # step 3's batch during step 0
    analysis = analyse(trace)
    steps = analysis.measurements.steps
    assert steps.filter(lane=3)["start_ns"].diff().drop_nulls()[1:].to_list() == [1000 * US] * 3
    # the first step has 200 us of idle time at its head: 300 of 1200 us, then 300 of 1000
    assert analysis.document["exposed_comm_pct"] == pytest.approx((25 + 4 * 30) / 5)
    kept = [step["step"] for step in analysis.document["job"]["steps_kept"]]
    assert kept == list(range(5))
    assert "5 steps kept" in job_facts(analysis.document)
    assert any("device 0 runs no kernel" in warning for warning in analysis.document["warnings"])
    check(analysis.document)
