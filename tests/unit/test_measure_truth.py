"""Measured figures against simulated jobs whose truth was swept independently of the analyzer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from builders import TraceBuilder

from analyzer.label import label_job
from analyzer.measure import measure_job
from collectors import open_job

SAMPLES = Path(__file__).parents[2] / "sample_traces"
JOBS = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))


def measured(*paths):
    job = open_job([str(path) for path in paths])
    return measure_job(label_job(job), job)


@pytest.fixture(scope="module", params=JOBS)
def sample(request):
    folder = SAMPLES / request.param
    truth = json.loads((folder / "truth.json").read_text())
    return measured(*sorted(folder.glob("rank*"))), truth


def steps_of(truth):
    for rank in truth["ranks"]:
        for index, step in enumerate(rank["steps"]):
            yield rank["rank"], index, step


def test_windows_and_budget_are_exact(sample):
    m, truth = sample
    for rank, index, step in steps_of(truth):
        window = m.steps.filter(rank=rank, index=index).row(0, named=True)
        assert (window["start_ns"], window["end_ns"]) == (step["start_ns"], step["end_ns"])
        rows = m.budget.filter(rank=rank, step=index).select("state", "detail", "ns").rows()
        got = {(state, detail): ns for state, detail, ns in rows if ns}
        expected = {("compute", ""): step["compute_ns"], ("memcpy", ""): step["memcpy_ns"]}
        expected |= {("exposed_comm", axis): ns for axis, ns in step["exposed_comm_ns"].items()}
        expected |= {("idle", cause): ns for cause, ns in step["idle_ns"].items()}
        assert got == {key: ns for key, ns in expected.items() if ns}


def test_axis_figures_are_exact(sample):
    m, truth = sample
    columns = ("count", "bytes", "comm_ns", "exposed_ns")
    for rank, index, step in steps_of(truth):
        rows = m.axis_step.filter(rank=rank, step=index)
        got = {(row["axis"], row["op"]): row for row in rows.iter_rows(named=True)}
        for axis, figures in step["axes"].items():
            for op, exact in (("", figures), *figures["ops"].items()):
                assert {c: got[axis, op][c] for c in columns} == {c: exact[c] for c in columns}


def test_means_are_exact(sample):
    m, truth = sample
    mean = truth["mean"]
    assert m.exposed_comm_pct == pytest.approx(mean["exposed_comm_pct"], abs=1e-9)
    assert m.worst_rank.rank == mean["exposed_comm_pct_worst"]["rank"]
    assert abs(m.mean.time_ns - mean["time_ns"]) <= 0.5
    assert abs(m.mean.compute_ns - mean["compute_ns"]) < 1
    for axis, ns in mean["exposed_comm_ns"].items():
        assert abs(m.mean.exposed_comm_ns[axis] - ns) < 1


def test_every_event_s_exposure_adds_up_where_one_stream_serves_an_axis(sample):
    """Collectives of one op on one stream never overlap: event figures sum to the axis' figure."""
    m, _ = sample
    serial = m.comm_events.group_by("rank", "step", "axis", "op").agg(
        pl.col("exposed_ns").sum().alias("events"), pl.col("stream").n_unique().alias("streams")
    )
    both = serial.filter(pl.col("streams") == 1).join(
        m.axis_step, on=["rank", "step", "axis", "op"]
    )
    assert both.height > 0
    assert (both["events"] == both["exposed_ns"]).all()


def test_m07_from_a_written_trace(tmp_path):
    """The step of 1000 us of which only 600 lie between the first and the last kernel."""
    trace = TraceBuilder(world_size=2, groups=[("1", "mesh_tp", (0, 1))])
    trace.step(0, 0, 1000)
    trace.kernel("gemm", 100, 200)
    trace.collective("all_reduce", 250, 150, group="1", nelems=4096)
    trace.memcpy(500, 50)
    trace.kernel("gemm", 600, 100)
    m = measured(trace.write(tmp_path / "rank0.json"))
    assert m.mean.time_ns == 1_000_000
    assert m.exposed_comm_pct == 10.0
    assert sum(m.mean.idle_ns.values()) == 550_000


def test_b47_both_durations_of_a_kernel_that_communication_slows_down_are_kept(tmp_path):
    """A GEMM takes 1.18 ms alone, 2.08 ms beside a collective: 3.26 ms of compute, no exposure."""
    trace = TraceBuilder(world_size=2, groups=[("1", "mesh_tp", (0, 1))])
    trace.kernel("gemm", 0, 1180)
    trace.kernel("gemm", 2000, 2080)
    trace.collective("all_reduce", 2100, 1900, group="1", nelems=1 << 20)
    m = measured(trace.write(tmp_path / "rank0.json"))
    assert m.mean.compute_ns == 3_260_000
    assert m.exposed_comm_pct == 0
    assert m.comm_events["exposed_ns"].to_list() == [0]


# -- real traces, against figures found by hand in them -------------------------------------------


def corpus(*names: str) -> list[Path]:
    root = Path(os.environ.get("MESHSCOPE_TRACES", SAMPLES.parents[1] / "shared" / "traces"))
    paths = [root / name for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip("the public traces are not here")
    return paths


@pytest.mark.corpus
def test_m01_expert_parallel_communication_without_nccl():
    m = measured(*corpus("kineto/deepseek/train.json"))
    axis = next(a for a in m.axes if (a.axis, a.op) == ("ep", ""))
    assert axis.comm_ns == pytest.approx(113.4e6, rel=0.01)
    assert axis.exposed_ns == pytest.approx(4.19e6, rel=0.02)
    assert m.exposed_comm_pct == pytest.approx(3.2, abs=0.1)
    assert list(m.mean.exposed_comm_ns) == ["ep"]


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "comm_pct", "overlapped_pct", "exposed_pct"),
    [
        ("torch_cpu/ddp/rank1.json.gz", 34.3, 26.8, 7.6),
        ("torch_cpu/fsdp_async/rank0.json.gz", 49.0, 19.9, 29.1),
    ],
)
def test_host_side_overlap_of_real_runs(name, comm_pct, overlapped_pct, exposed_pct):
    m = measured(*corpus(name))
    axis = next(a for a in m.axes if a.op == "")
    assert m.host_side
    step = m.mean.time_ns
    assert 100 * axis.comm_ns / step == pytest.approx(comm_pct, abs=0.1)
    assert 100 * (axis.comm_ns - axis.exposed_ns) / step == pytest.approx(overlapped_pct, abs=0.1)
    assert 100 * axis.exposed_ns / step == pytest.approx(exposed_pct, abs=0.1)
    assert m.host_step["launches"].sum() == m.host_step["sync_calls"].sum() == 0


@pytest.mark.corpus
def test_sharding_with_blocking_gathers_overlaps_nothing():
    m = measured(*corpus("torch_cpu/fsdp2/rank0.json.gz"))
    axis = next(a for a in m.axes if a.op == "")
    assert axis.exposed_ns == axis.comm_ns > 0
