"""The benchmark's trace generator: what it repeats stays a valid trace of known content."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from benchmarks.generate import generate
from collectors import open_job


def source(directory: Path) -> Path:
    trace = TraceBuilder()
    for n in (4, 5):
        trace.step(n, 1000 * n, 1000)
        trace.op("aten::mm 100%", 1000 * n + 10, 20)  # a percent sign must survive
        trace.kernel("gemm", f"{1000 * n + 50}.125", "200.750", op="aten::mm")
    return trace.write(directory / "rank0.json.gz")


@pytest.mark.parametrize("flavour", ["stacks", "plain"])
def test_repetitions_shift_and_stay_distinct(tmp_path, flavour):
    made = generate(tmp_path / "big.json.gz", 0.1, flavour=flavour, source=source(tmp_path))
    text = gzip.decompress(made.path.read_bytes())
    assert made.json_bytes == len(text) == pytest.approx(1e5, rel=0.1)
    events = json.loads(text)["traceEvents"]
    assert len(events) == made.events
    kernels = [e for e in events if e.get("cat") == "kernel"]
    repeats = len(kernels) // 2
    assert repeats > 3
    correlations = [e["args"]["correlation"] for e in kernels]
    assert len(set(correlations)) == len(correlations)
    starts = [e["ts"] for e in kernels]
    assert starts == sorted(starts)
    frames = sum(e.get("cat") == "python_function" for e in events)
    operators = sum(e.get("cat") == "cpu_op" for e in events)
    assert frames == (3 * operators if flavour == "stacks" else 0)
    shaped = sum("Input Dims" in e["args"] for e in events if e.get("cat") == "cpu_op")
    assert shaped == (operators if flavour == "stacks" else 0)
    assert sum(e["name"] == "aten::mm 100%" for e in events if e.get("cat") == "cpu_op") > 0


def test_the_reader_finds_the_source_again(tmp_path):
    path = source(tmp_path)
    made = generate(tmp_path / "big.json", 0.05, flavour="plain", source=path)
    (small,), (big,) = open_job([path]).ranks, open_job([made.path]).ranks
    repeats = big.device.height // small.device.height
    assert big.device.height == repeats * small.device.height
    durations = (big.device["end_ns"] - big.device["start_ns"]).unique().to_list()
    assert durations == [200_750]
    assert sorted(set(big.device["start_ns"] % 1000)) == [125]
    linked = big.device.join(big.launches, on="correlation")
    assert linked.height == big.device.height
    assert ((linked["start_ns"] - linked["start_ns_right"]) == 10_000).all()
    steps = big.ranges.sort("start_ns")
    assert steps["name"].to_list() == ["ProfilerStep#4", "ProfilerStep#5"]
    first, second = steps["start_ns"].to_list()
    inside = ((big.device["start_ns"] >= first) & (big.device["start_ns"] < second)).sum()
    assert inside == pytest.approx(big.device.height / 2, abs=2)
