"""CPU traces: operators are compute, gloo events communication; axes against the truth inside."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builders import HOST_PID, MAIN_TID, Group, TraceBuilder

from analyzer import intervals as iv
from analyzer.label import LabeledJob, label_job
from analyzer.model import LabeledRank
from collectors import open_job

REPO = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("MESHSCOPE_TRACES", REPO.parent / "shared" / "traces")) / "torch_cpu"
needs_corpus = pytest.mark.skipif(
    not CORPUS.exists(), reason="needs the public traces (MESHSCOPE_TRACES)"
)
WORKER = 5000

TRUTH = {
    "fsdp_tp": {"dp_shard", "tp"},
    "hsdp": {"dp_replicate", "dp_shard"},
    "tp_sp": {"tp"},
    "ddp": {"dp_replicate"},
    "fsdp2": {"dp_shard"},
    "fsdp_async": {"dp_shard"},
    "zero2": {"dp_shard"},
    "pp_1f1b": {"pp"},
    "pp_interleaved": {"pp"},
    "pp_izb": {"pp"},
    "pp_fsdp_tp": {"pp", "dp_shard", "tp"},
    "cp_ring_p2p": {"cp"},
    "cp_ulysses": {"cp"},
    "ep_skew": {"ep"},
}


def axes(job: LabeledJob) -> set[str]:
    frames = [rank.activity["axis"].drop_nulls().cast(pl.String) for rank in job.ranks]
    return set(pl.concat(frames).unique().to_list())


@pytest.mark.corpus
@needs_corpus
@pytest.mark.parametrize(("folder", "truth"), TRUTH.items())
def test_axes_of_real_runs(folder: str, truth: set[str]) -> None:
    files = sorted((CORPUS / folder).glob("rank*.json.gz"))
    with gzip.open(files[0]) as file:
        lab: dict[str, Any] = json.load(file)["lab"]
    if "mesh" in lab:
        assert set(lab["mesh"]["dim_names"]) == truth
    job = label_job(open_job(files))
    assert axes(job) - {"world"} == truth
    if "mesh" in lab:
        named = dict(zip(lab["mesh"]["dim_names"], lab["mesh"]["shape"], strict=True))
        assert {
            axis: degree for axis, degree in job.topology.mesh.items() if axis in named
        } == named
    assert job.conflicts == ()
    assert all(rank.host_side for rank in job.ranks)


@pytest.mark.corpus
@needs_corpus
def test_gloo_counts_and_sizes_of_fsdp() -> None:
    job = label_job(open_job([CORPUS / "fsdp2"]))
    events = job.ranks[0].activity.filter(pl.col("work") == "comm")
    assert events.height == 42  # 3 steps of 9 all-gathers and 5 reduce-scatters
    by_op = events.group_by(pl.col("op").cast(pl.String)).len().rows()
    assert dict(by_op) == {"all_gather": 27, "reduce_scatter": 15}
    with gzip.open(CORPUS / "fsdp2" / "rank0.json.gz") as file:
        raw = json.load(file)["traceEvents"]
    shards = [e["args"]["Input Dims"][0][0] for e in raw if e["name"] == "gloo:all_gather"]
    gathered = events.filter(pl.col("op") == "all_gather")["message_bytes"].sum()
    assert gathered == sum(shards) * 4 * 4  # four ranks, float


@pytest.mark.corpus
@needs_corpus
def test_host_compute_is_aten_minus_communication() -> None:
    job = label_job(open_job([CORPUS / "fsdp_tp" / "rank0.json.gz"]))
    (rank,) = job.ranks
    with gzip.open(CORPUS / "fsdp_tp" / "rank0.json.gz") as file:
        document = json.load(file)
    base = document["baseTimeNanoseconds"]
    spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    workers = {e["tid"] for e in document["traceEvents"] if e["name"].startswith("gloo:")}
    for event in document["traceEvents"]:
        names = ("aten::", "c10d::", "_c10d_functional::")
        if (
            event.get("cat") == "cpu_op"
            and event["name"].startswith(names)
            and event["tid"] not in workers
        ):
            start = base + round(event["ts"] * 1000)
            spans[event["name"].startswith("aten::")].append(
                (start, start + round(event["dur"] * 1000))
            )
    expected = iv.subtract(
        iv.merge(*zip(*spans[True], strict=True)), iv.merge(*zip(*spans[False], strict=True))
    )
    compute = rank.activity.filter(pl.col("work") == "compute")
    found = iv.merge(compute["start_ns"], compute["end_ns"])
    assert abs(iv.total(found) - iv.total(expected)) <= 2 * len(
        spans[True]
    )  # rounding of microseconds


# ---- small traces -------------------------------------------------------------------------------


def gloo_trace(groups: list[Group]) -> TraceBuilder:
    return TraceBuilder(rank=0, world_size=4, groups=groups, device_name="", backend="gloo")


def issue(
    trace: TraceBuilder,
    op: str,
    ts: float,
    dims: list[Any],
    *,
    values: list[str] | None = None,
    dur: float = 5,
) -> None:
    types = ["TensorList" if dim and isinstance(dim[0], list) else "float" for dim in dims]
    extra = {"Concrete Inputs": values} if values else {}
    trace.op(f"c10d::{op}", ts, dur, **{"Input Dims": dims, "Input type": types}, **extra)


def run(
    trace: TraceBuilder, kind: str, ts: float, dur: float, shape: list[int], worker: int = WORKER
) -> None:
    args = {"Input Dims": [shape], "Input type": ["float"]}
    trace.range(f"gloo:{kind}", ts, dur, tid=worker, **args)


def activity(trace: TraceBuilder, tmp_path: Path) -> LabeledRank:
    (rank,) = label_job(open_job([trace.write(tmp_path / "rank0.json")])).ranks
    return rank


def test_reduce_scatter_runs_as_all_reduce(tmp_path: Path) -> None:
    trace = gloo_trace([Group("1", "mesh_dp_shard", (0, 2))]).step(0, 0, 1000)
    trace.op("aten::mm", 10, 50)
    issue(trace, "_reduce_scatter_base_", 100, [[64], [128]])
    run(trace, "all_reduce", 110, 200, [128])
    rank = activity(trace, tmp_path)
    row = rank.activity.filter(pl.col("work") == "comm").row(0, named=True)
    assert rank.host_side
    assert (row["op"], row["axis"], row["message_bytes"], row["group"]) == (
        "reduce_scatter",
        "dp_shard",
        512,
        "0,2",
    )
    assert row["launch_ns"] == trace.base_ns + 100_000
    assert row["launch_tid"] == MAIN_TID
    assert row["stream"] == WORKER


def test_groups_of_equal_size_are_told_apart_by_their_surroundings(tmp_path: Path) -> None:
    trace = gloo_trace([Group("1", "mesh_dp_shard", (0, 2)), Group("3", "mesh_tp", (0, 1))]).step(
        0, 0, 2000
    )
    for n in range(3):
        at = 500 * n
        trace.range("FSDP::all_gather (layers.0)", at + 10, 100)
        issue(trace, "_allgather_base_", at + 20, [[200], [100]])
        run(trace, "all_gather", at + 30, 60, [100], WORKER)
        trace.op("Redistribute", at + 200, 100)
        issue(trace, "allgather_into_tensor_coalesced_", at + 210, [[[80]], [[40]]])
        run(trace, "all_gather", at + 220, 60, [40], WORKER + 9)
    rank = activity(trace, tmp_path)
    comm = rank.activity.filter(pl.col("work") == "comm").sort("start_ns")
    assert comm["axis"].to_list() == ["dp_shard", "tp"] * 3
    assert comm["group"].to_list() == ["0,2", "0,1"] * 3


def test_compute_excludes_collectives_inside_an_operator(tmp_path: Path) -> None:
    trace = gloo_trace([]).step(0, 0, 1000)
    trace.op("aten::add", 0, 100)
    trace.op("aten::mul", 10, 20)  # nested: not counted twice
    trace.op("_c10d_functional::wait_tensor", 40, 30)
    rank = activity(trace, tmp_path)
    compute = rank.activity.filter(pl.col("work") == "compute").sort("start_ns")
    start = trace.base_ns
    assert compute.select("start_ns", "end_ns").rows() == [
        (start, start + 40_000),
        (start + 70_000, start + 100_000),
    ]


@pytest.mark.parametrize(
    ("splits", "axis", "op"),
    [
        ("[0, 64, 0, 0]", "cp", "all_to_allv"),
        ("[10, 20, 30, 4]", "ep", "all_to_allv"),
        ("[]", "ep", "all_to_all"),
    ],
)
def test_all_to_all_by_its_splits(tmp_path: Path, splits: str, axis: str, op: str) -> None:
    trace = gloo_trace([]).step(0, 0, 1000)
    trace.op("aten::mm", 0, 10)
    for n in range(4):
        issue(
            trace,
            "alltoall_base_",
            100 * n + 20,
            [[64], [64], [], [], []],
            values=["", "", "", splits, splits, "False", "-1"],
        )
        run(trace, "all_to_all", 100 * n + 30, 50, [64])
    comm = activity(trace, tmp_path).activity.filter(pl.col("work") == "comm")
    assert comm["axis"].to_list() == [axis] * 4
    assert comm["op"].to_list() == [op] * 4


def test_events_issued_before_the_capture_keep_gloos_kind(tmp_path: Path) -> None:
    trace = gloo_trace([]).step(0, 0, 1000)
    run(trace, "all_reduce", 5, 50, [128])
    trace.op("aten::mm", 60, 10)
    issue(trace, "_reduce_scatter_base_", 100, [[32], [128]])
    run(trace, "all_reduce", 110, 50, [128])
    comm = activity(trace, tmp_path).activity.filter(pl.col("work") == "comm").sort("start_ns")
    assert comm["op"].to_list() == ["all_reduce", "reduce_scatter"]


def test_operators_without_any_communication(tmp_path: Path) -> None:
    trace = gloo_trace([]).step(0, 0, 100)
    trace.op("aten::mm", 10, 20)
    rank = activity(trace, tmp_path)
    assert rank.activity["work"].to_list() == ["compute"]
    assert rank.activity["family"].to_list() == ["gemm"]


def test_no_events_at_all(tmp_path: Path) -> None:
    trace = gloo_trace([]).step(0, 0, 100)
    trace.runtime("cudaDeviceSynchronize", 1, 2)
    assert activity(trace, tmp_path).activity.is_empty()
    assert HOST_PID
