"""Device events that cannot be true are clipped and listed; unusual but possible ones are not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from builders import TraceBuilder

from analyzer.model import RankTrace
from collectors.kineto import read_trace


def read(tmp_path: Path, trace: TraceBuilder) -> RankTrace:
    return read_trace(trace.write(tmp_path / "rank0.json"))


def durations(trace: RankTrace, name: str) -> list[int]:
    rows = trace.device.filter(pl.col("name").cast(pl.String) == name)
    return (rows["end_ns"] - rows["start_ns"]).to_list()


def test_m17_absurd_duration_is_clipped(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("gemm", 1200, 2_000_000, 7)
    for ts in range(1400, 20_000, 200):
        trace.kernel("relu", ts, 150, 7)
    found = read(tmp_path, trace)
    assert durations(found, "gemm") == [200_000]
    assert found.report.repaired == {"clipped absurd duration": 1}
    assert any("gemm" in n and "2000000.000 us" in n for n in found.report.notes)


def test_m17_with_a_single_later_kernel(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("relu", 100, 500, 20)
    trace.kernel("gemm", 1200, 2_000_000, 7)
    trace.kernel("relu", 1400, 100, 7)
    found = read(tmp_path, trace)
    assert durations(found, "gemm") == [200_000]


def test_m18_negative_duration_is_dropped(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("gemm", 1200, -5, 7)
    trace.kernel("relu", 1400, 5, 7)
    found = read(tmp_path, trace)
    assert found.device["name"].to_list() == ["relu"]
    assert found.report.dropped == {"negative duration": 1}


def test_b20_two_seconds_among_a_thousand_kernels(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(1000):
        trace.kernel(
            "odd" if i == 500 else "gemm", i * 60_000, 2_000_000 if i == 500 else 30_000, 7
        )
    found = read(tmp_path, trace)
    assert durations(found, "odd") == [60_000_000]
    assert set(durations(found, "gemm")) == {30_000_000}


def test_b20_dense_stream_with_ties_is_left_alone(tmp_path: Path) -> None:
    """Whole microseconds: neighbours share a time stamp and short ones seem to nest."""
    trace = TraceBuilder()
    for i in range(1000):
        trace.kernel("gemm", i, 1 if i % 3 else 2, 7)
        trace.kernel("zero", i, 0, 7)
    found = read(tmp_path, trace)
    assert found.device.height == 2000
    assert found.report.repaired == {}
    assert found.report.dropped == {}


def test_b17_programmatic_dependent_launch_overlaps(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("a", 100, 50, 7)
    trace.kernel("b", 140, 30, 7)
    found = read(tmp_path, trace)
    assert (durations(found, "a"), durations(found, "b")) == ([50_000], [30_000])
    assert found.report.repaired == {}


def test_b17_containment_in_a_tiny_capture_is_left_alone(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("a", 100, 500, 7)
    trace.kernel("b", 140, 3, 7)
    assert durations(read(tmp_path, trace), "a") == [500_000]


def test_b18_overlap_by_time_stamp_granularity(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("a", "100.000", "10.030", 7)
    trace.kernel("b", "110.003", 5, 7)
    found = read(tmp_path, trace)
    assert durations(found, "a") == [10_030]
    assert found.report.repaired == {}


def test_parallel_branches_of_a_graph_are_left_alone(tmp_path: Path) -> None:
    """A replayed graph's kernels all carry its launch's stream and correlation."""
    for how in ({"graph_id": 5}, {"correlation": 777}):
        trace = TraceBuilder()
        trace.kernel("nccl", 100, 900_000, 7, launch=False, **how)
        for i in range(200):
            trace.kernel("gemm", 200 + i * 100, 50, 7, launch=False, **how)
        assert durations(read(tmp_path, trace), "nccl") == [900_000_000]


def test_streams_do_not_clip_each_other(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("nccl", 100, 100_000, 20)
    for i in range(500):
        trace.kernel("gemm", 200 + i * 100, 50, 7)
    assert durations(read(tmp_path, trace), "nccl") == [100_000_000]


def test_a_stream_that_is_not_serial_is_left_as_written(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(20):
        trace.kernel("outer", i * 10_000, 9_000, 7)
        for k in range(10):
            trace.kernel("inner", i * 10_000 + 100 + k * 100, 50, 7)
    found = read(tmp_path, trace)
    assert set(durations(found, "outer")) == {9_000_000}
    assert found.report.repaired == {}


@pytest.mark.parametrize("count", [1, 3])
def test_exact_duplicates_are_kept_and_noted(tmp_path: Path, count: int) -> None:
    trace = TraceBuilder()
    for _ in range(count):
        trace.kernel("gemm", 100, 50, 7, launch=False, correlation=9)
    trace.kernel("gemm", 100, 50, 7, launch=False, correlation=10)
    found = read(tmp_path, trace)
    assert found.device.height == count + 1
    noted = [n for n in found.report.notes if "duplicates" in n]
    assert noted == (
        [f"{count - 1} device events are exact duplicates of others; they are kept"]
        if count > 1
        else []
    )


def test_events_without_duration_are_dropped_and_empty_ones_kept(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("empty", 100, 0, 7, launch=False)
    trace.raw(
        {"ph": "X", "cat": "kernel", "name": "endless", "pid": 0, "tid": 7, "ts": 5, "args": {}}
    )
    found = read(tmp_path, trace)
    assert found.device["name"].to_list() == ["empty"]
    assert found.report.dropped == {"no duration": 1}
