"""What the simulator injects for comparing ranks: clocks that drift, lost collectives, truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.errors import UsageError
from collectors.simulate import SimSpec, simulate
from collectors.simulate.engine import DeviceEvent, RankRecord
from collectors.simulate.kineto_writer import ClockError
from collectors.simulate.spec import Group
from collectors.simulate.tape import Collective, Stream, Thread, Work
from collectors.simulate.truth import instance_truth

TINY = {"layers": 2, "hidden": 256, "vocab": 256, "sequence": 256}


def spec(**options: object) -> SimSpec:
    return SimSpec({"dp_shard": 2}, "fsdp", **{**TINY, **options})


def kernels(trace: bytes) -> list[dict]:
    events = json.loads(trace)["traceEvents"]
    return [event for event in events if event.get("cat") == "kernel"]


def test_a_drifting_clock_shows_offset_plus_rate_times_time() -> None:
    clock = ClockError(5_000, 50.0)
    assert clock.shown(0) == 5_000
    assert clock.shown(1_000_000_000) == 1_000_055_000


def test_drift_changes_what_is_written_and_nothing_else() -> None:
    plain, drifting = simulate(spec()), simulate(spec(clock_drift_ppm=50.0, seed=0))
    assert drifting.clock_drift_ppm[0] == 0
    assert 0 < abs(drifting.clock_drift_ppm[1]) <= 50
    assert plain.trace(0) == drifting.trace(0)
    assert plain.trace(1) != drifting.trace(1)
    assert drifting.truth["ranks"] == plain.truth["ranks"]
    last = [float(kernels(job.trace(1))[-1]["ts"]) for job in (plain, drifting)]
    end_us = drifting.records[1].device[-1].start_ns / 1_000
    assert last[1] - last[0] == pytest.approx(drifting.clock_drift_ppm[1] * end_us / 1e6, abs=0.01)


def test_lost_collectives_are_only_missing_from_the_files() -> None:
    whole, lossy = simulate(spec(steps=6)), simulate(spec(steps=6, drop_collectives=0.3))
    assert lossy.truth["mean"] == whole.truth["mean"]
    for rank in (0, 1):
        counts = [len(kernels(job.trace(rank))) for job in (whole, lossy)]
        comm = sum(e.work.collective is not None for e in whole.records[rank].device)
        assert counts[0] - counts[1] == pytest.approx(0.3 * comm, rel=0.5)
    assert lossy.trace(0) == simulate(spec(steps=6, drop_collectives=0.3)).trace(0)
    with pytest.raises(UsageError):
        spec(drop_collectives=1.0)


def test_wait_and_transfer_of_a_hand_made_collective() -> None:
    """Members start at 10, 40 and 25 and end at 100: waits 30, 0, 15 and a transfer of 60."""
    group = Group("1", "", (0, 1, 2), "tp")
    work = Work("w", 0, collective=Collective("all_reduce", "tp", group, 8, "Float", 60))
    records = []
    for rank, start in enumerate((10, 40, 25)):
        event = DeviceEvent(work, Stream.TENSOR, 0, 0, 1, Thread.MAIN, 0, 0, 0, seq=1)
        event.start_ns, event.end_ns = start, 100
        records.append(RankRecord(rank, [], [event], []))
    (entry,) = instance_truth(records)
    assert entry["wait_ns"] == {0: 30, 1: 0, 2: 15}
    assert entry["transfer_ns"] == 60
    assert (entry["axis"], entry["op"], entry["group"], entry["seq"]) == (
        "tp", "all_reduce", (0, 1, 2), 1,
    )  # fmt: skip


def test_samples_say_nothing_of_clocks_that_are_right() -> None:
    samples = Path(__file__).resolve().parents[2] / "sample_traces"
    for truth in samples.glob("*/truth.json"):
        assert "clock_drift_ppm" not in json.loads(truth.read_text())
