"""A job end to end through labelling: groups, axes, evidence, coverage."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from builders import Group, TraceBuilder

from analyzer import schema
from analyzer.api import analyze
from analyzer.label import LabeledJob, label_job
from analyzer.label.coverage import unclassified_pct, unknown_axis_pct
from analyzer.model import Evidence
from analyzer.strategy import parse_expect
from collectors import open_job

REPO = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("MESHSCOPE_TRACES", REPO.parent / "shared" / "traces")) / "kineto"
needs_corpus = pytest.mark.skipif(
    not CORPUS.exists(), reason="needs the public traces (MESHSCOPE_TRACES)"
)
MB = 1 << 20
BACKWARD_TID = 4001

Label = Callable[..., LabeledJob]


@pytest.fixture
def label(tmp_path: Path) -> Label:
    def run(*traces: TraceBuilder, **options: Any) -> LabeledJob:
        paths = [trace.write(tmp_path / f"rank{trace.rank}.json") for trace in traces]
        return label_job(open_job(paths), **options)

    return run


def comm(job: LabeledJob, rank: int = 0) -> pl.DataFrame:
    rows = job.ranks[rank].activity.filter(pl.col("work").is_in(["comm", "fused"])).sort("start_ns")
    return rows.with_columns(pl.col("axis", "op", "evidence", "group").cast(pl.String))


def training(rank: int = 0, world: int = 4, groups: Sequence[Group] = ()) -> TraceBuilder:
    """A step of 3000 us: forward matmuls to 1000, backward ones on the autograd thread to 2000,
    the optimizer after it."""
    trace = TraceBuilder(rank=rank, world_size=world, groups=groups).step(0, 0, 3000)
    for n in range(4):
        trace.kernel("nvjet_forward", 100 + 200 * n, 150, op="aten::mm")
        at = 1100 + 200 * n
        trace.op("autograd::engine::evaluate_function: MmBackward0", at - 15, 150, tid=BACKWARD_TID)
        trace.kernel("nvjet_backward", at, 150, op="aten::mm", tid=BACKWARD_TID)
    trace.range("Optimizer.step#AdamW.step", 2200, 300)
    trace.kernel("multi_tensor_apply_kernel", 2300, 100, op="aten::_fused_adamw_")
    return trace


def add_fsdp(trace: TraceBuilder, group: str, *, ranges: bool = True) -> TraceBuilder:
    for n in range(4):
        for op, at, tid in (
            ("all_gather", 80 + 200 * n, 4000),
            ("all_gather", 1110 + 200 * n, BACKWARD_TID),
            ("reduce_scatter", 1130 + 200 * n, BACKWARD_TID),
        ):
            if ranges:
                trace.range(f"FSDP::{op} (layers.{n})", at - 20, 15, tid=tid)
            trace.collective(op, at, 40, group=group, nelems=MB, launch_ts=at - 12, tid=tid)
    return trace


def add_tp(trace: TraceBuilder, group: str, stream: int = 24) -> TraceBuilder:
    for n in range(4):
        for at, tid in ((150 + 200 * n, 4000), (1150 + 200 * n, BACKWARD_TID)):
            trace.collective(
                "all_reduce",
                at,
                20,
                group=group,
                nelems=MB,
                launch_ts=at - 12,
                tid=tid,
                stream=stream,
            )
    return trace


# ---- from description to table ------------------------------------------------------------------


def test_described_groups(label: Label) -> None:
    groups = [Group("1", "mesh_dp_shard", (0, 2)), Group("3", "mesh_tp", (0, 1))]
    job = label(add_tp(add_fsdp(training(groups=groups), "1"), "3"))
    schema.check(job.ranks[0].activity, schema.ACTIVITY)
    rows = comm(job)
    assert set(rows.select("axis", "group", "group_size", "evidence").unique().rows()) == {
        ("dp_shard", "0,2", 2, "group_desc"),
        ("tp", "0,1", 2, "group_desc"),
    }
    assert set(rows.select("op", "message_bytes").unique().rows()) == {
        ("all_gather", 2 * MB), ("reduce_scatter", 2 * MB), ("all_reduce", 2 * MB),
    }  # fmt: skip
    assert dict(job.topology.mesh) == {"dp_shard": 2, "tp": 2}
    assert job.strategy.text == "fsdp_tp"
    assert job.axis_labels["tp"].evidence is Evidence.GROUP_DESC
    assert job.conflicts == ()


def test_group_size_is_the_groups_not_the_jobs(label: Label) -> None:
    """Case M-22: a tensor-parallel all-reduce of 2 in a job of 8."""
    job = label(add_tp(training(world=8, groups=[Group("3", "mesh_tp", (0, 1))]), "3"))
    assert comm(job)["group_size"].unique().to_list() == [2]
    assert job.topology.world_size == 8


def test_equal_group_names_on_disjoint_ranks(label: Label) -> None:
    """Case M-12."""
    traces = [
        add_tp(training(rank=rank, groups=[Group("3", "mesh_tp", ranks)]), "3")
        for rank, ranks in ((0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3)))
    ]
    job = label(*traces)
    assert [comm(job, rank)["group"].unique().to_list() for rank in range(4)] == [["0,1"]] * 2 + [
        ["2,3"]
    ] * 2
    assert {key for key, _ in job.topology.labels} == {"0,1", "2,3"}


def test_one_broadcast_is_counted(label: Label) -> None:
    """Case B-31."""
    trace = training(groups=[Group("5", "mesh_pp", (0, 2))])
    trace.range("nccl:broadcast", 2600, 30)
    trace.kernel(
        "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 2620, 50, stream=20
    )
    assert comm(label(trace))["op"].to_list() == ["broadcast"]


# ---- members of large groups --------------------------------------------------------------------


def test_cut_rank_list_is_completed_from_the_group_table(label: Label) -> None:
    ranks = tuple(range(0, 128, 2))
    job = label(add_tp(training(world=128, groups=[Group("3", "", ranks)]), "3"))
    assert comm(job)["group"].unique().to_list() == [",".join(map(str, ranks))]


def test_cut_rank_list_is_completed_from_start_and_stride(label: Label) -> None:
    trace = training(world=128, groups=[Group("3", "", tuple(range(1, 128, 3)))])
    trace.distributed_info = False
    job = label(add_tp(trace, "3"))
    assert comm(job)["group"].unique().to_list() == [",".join(map(str, range(1, 128, 3)))]


def test_group_without_ranks_is_known_by_name_and_size(label: Label) -> None:
    trace = training(world=8)
    trace.distributed_info = False
    args = {
        "Collective name": "allreduce",
        "Group size": 4,
        "Process Group Name": "7",
        "Process Group Description": "mesh_tp",
    }
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 100, 50, comm=args)
    row = comm(label(trace)).row(0, named=True)
    assert (row["group"], row["group_size"], row["axis"]) == ("7:4", 4, "tp")


# ---- without descriptions -----------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_fsdp_on_the_default_group(label: Label, ranges: bool) -> None:
    trace = add_fsdp(training(), "0", ranges=ranges)
    trace.collective("all_reduce", 2100, 10, group="0", nelems=1, dtype="Float", launch_ts=2090)
    job = label(trace)
    rows = comm(job)
    assert set(rows.select("op", "axis").unique().rows()) == {
        ("all_gather", "dp_shard"), ("reduce_scatter", "dp_shard"), ("all_reduce", "world"),
    }  # fmt: skip
    assert list(job.axis_labels) == ["dp_shard", "world"]
    evidence = rows.filter(pl.col("op") == "all_gather")["evidence"].unique().to_list()
    assert evidence == ["range" if ranges else "signature"]


def test_ddp_by_signature(label: Label) -> None:
    trace = training()
    for n in range(3):
        at = 1150 + 200 * n
        trace.collective(
            "all_reduce", at, 30, group="0", nelems=MB, launch_ts=at - 10, tid=BACKWARD_TID
        )
    job = label(trace)
    assert comm(job)["axis"].unique().to_list() == ["dp_replicate"]
    assert job.strategy.text == "ddp"


@pytest.mark.parametrize("returned", ["all_gather", "broadcast"])
@pytest.mark.parametrize("desc", ["default_pg", "mesh_dp"])
def test_zero1_with_gradient_all_reduces(
    tmp_path: Path, label: Label, returned: str, desc: str
) -> None:
    trace = training(groups=[Group("0", desc, (0, 1, 2, 3))])
    for n in range(3):
        at = 1150 + 200 * n
        trace.collective(
            "all_reduce", at, 30, group="0", nelems=MB, launch_ts=at - 10, tid=BACKWARD_TID
        )
    for n in range(4):
        at = 2320 + 40 * n
        trace.collective(returned, at, 30, group="0", nelems=MB, launch_ts=at - 10)
    job = label(trace)
    assert comm(job)["axis"].unique().to_list() == ["dp_shard"]
    assert job.strategy.text == "zero1"
    assert "gradients all-reduced over dp_shard" in job.strategy_why
    result = analyze(trace.write(tmp_path / "zero1.json"), expect="zero1")
    assert [f.title for f in result.findings if f.rule == "STR001"] == []


def test_tensor_parallel_by_signature(label: Label) -> None:
    job = label(add_tp(training(), "0"))
    assert comm(job)["axis"].unique().to_list() == ["tp"]


def test_two_axes_by_rank_sets_and_signature(label: Label) -> None:
    traces = [
        add_tp(
            add_fsdp(
                training(
                    rank=rank, groups=[Group("a", "undefined", shard), Group("b", "undefined", tp)]
                ),
                "a",
                ranges=False,
            ),
            "b",
        )
        for rank, shard, tp in (
            (0, (0, 2), (0, 1)),
            (1, (1, 3), (0, 1)),
            (2, (0, 2), (2, 3)),
            (3, (1, 3), (2, 3)),
        )
    ]
    job = label(*traces)
    assert dict(job.topology.mesh) == {"dp_shard": 2, "tp": 2}
    assert job.strategy.text == "fsdp_tp"
    for rank in range(4):
        assert set(comm(job, rank).select("op", "axis").unique().rows()) == {
            ("all_gather", "dp_shard"), ("reduce_scatter", "dp_shard"), ("all_reduce", "tp"),
        }  # fmt: skip


def test_a_small_reduction_on_a_described_group_keeps_its_axis(label: Label) -> None:
    trace = training(groups=[Group("3", "mesh_tp", (0, 1, 2, 3))])
    trace.collective("all_reduce", 500, 10, group="3", nelems=1)
    assert comm(label(trace))["axis"].to_list() == ["tp"]


def test_barriers_on_the_default_group_are_world(label: Label) -> None:
    trace = add_tp(training(groups=[Group("3", "mesh_tp", (0, 1))]), "3")
    trace.collective("barrier", 2600, 10, group="0", nelems=1)
    rows = comm(label(trace))
    assert rows.filter(pl.col("op") == "barrier")["axis"].to_list() == ["world"]


# ---- kernels without arguments ------------------------------------------------------------------

BARE = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_bare_kernel_belongs_to_the_group_of_its_stream(label: Label) -> None:
    groups = [Group("1", "mesh_dp_shard", (0, 2)), Group("3", "mesh_tp", (0, 1))]
    trace = add_tp(add_fsdp(training(groups=groups), "1"), "3")
    trace.kernel(BARE, 2700, 50, stream=20, launch=False)
    row = comm(label(trace)).row(-1, named=True)
    assert (row["axis"], row["group"], row["op"]) == ("dp_shard", "0,2", "all_gather")
    assert row["confidence"] == 0.6  # weaker than the description's


def test_bare_kernel_on_a_shared_stream_stays_unknown(label: Label) -> None:
    groups = [Group("1", "mesh_dp_shard", (0, 2)), Group("3", "mesh_tp", (0, 1))]
    trace = add_tp(add_fsdp(training(groups=groups), "1"), "3", stream=20)
    trace.kernel(BARE, 2700, 50, stream=20, launch=False)
    row = comm(label(trace)).row(-1, named=True)
    assert (row["axis"], row["group"], row["evidence"], row["confidence"]) == (
        "unknown",
        None,
        "none",
        0.0,
    )


def test_kernel_families_that_serve_one_axis(label: Label) -> None:
    trace = training()
    trace.kernel("void deep_ep::internode::dispatch<false, 8>(int4*)", 2600, 50, stream=30)
    trace.kernel(
        "void deep_ep::internode::combine<8>(int4*)", 2700, 50, op="vllm::moe_forward", stream=30
    )
    rows = comm(label(trace))
    assert rows["axis"].to_list() == ["ep", "ep"]
    assert rows["evidence"].to_list() == ["kernel_name"] * 2
    assert rows["op"].to_list() == ["dispatch", "combine"]
    assert rows["group"].to_list() == [None, None]


def test_a_group_told_by_arguments_beats_the_kernel_family(label: Label) -> None:
    trace = training(groups=[Group("3", "mesh_dp_replicate", (0, 1))])
    name = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
    trace.collective("all_reduce", 2600, 50, group="3", nelems=MB, name=name)
    trace.kernel(name, 2700, 50, op="_C_custom_ar::all_reduce")
    assert comm(label(trace))["axis"].to_list() == ["dp_replicate", "tp"]


# ---- what the user states -----------------------------------------------------------------------


def test_stated_mesh(label: Label) -> None:
    groups = [Group("1", "undefined", (0, 2)), Group("3", "undefined", (0, 1))]
    job = label(add_tp(add_fsdp(training(groups=groups), "1"), "3"), mesh={"dp_shard": 2, "tp": 2})
    rows = comm(job)
    assert set(rows.select("group", "axis", "evidence").unique().rows()) == {
        ("0,2", "dp_shard", "mesh"), ("0,1", "tp", "mesh"),
    }  # fmt: skip
    assert rows["confidence"].unique().to_list() == [1.0]
    assert job.conflicts == ()


def test_stated_mesh_against_descriptions(label: Label) -> None:
    groups = [Group("1", "mesh_dp_shard", (0, 2)), Group("3", "mesh_tp", (0, 1))]
    job = label(add_tp(add_fsdp(training(groups=groups), "1"), "3"), mesh={"tp": 2, "dp_shard": 2})
    assert comm(job).filter(pl.col("group") == "0,2")["axis"].unique().to_list() == ["tp"]
    assert [conflict.split(":")[0] for conflict in job.conflicts] == ["group 0,1", "group 0,2"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_swapped_mesh_is_contradicted_by_the_collectives(label: Label, ranges: bool) -> None:
    groups = [Group("1", "undefined", (0, 2)), Group("3", "undefined", (0, 1))]
    trace = add_tp(add_fsdp(training(groups=groups), "1", ranges=ranges), "3")
    job = label(trace, mesh={"tp": 2, "dp_shard": 2})
    rows = comm(job)
    assert rows.filter(pl.col("group") == "0,2")["axis"].unique().to_list() == ["tp"]
    assert rows["confidence"].unique().to_list() == [0.5]
    assert [conflict.split(":")[0] for conflict in job.conflicts] == ["group 0,1", "group 0,2"]
    assert ("the ranges around" in job.conflicts[1]) == ranges
    assert label(trace, mesh={"dp_shard": 2, "tp": 2}).conflicts == ()


def test_experts_over_the_ranks_of_a_stated_axis(label: Label) -> None:
    everyone = (0, 1, 2, 3)
    groups = [Group("1", "mesh_dp_shard", everyone), Group("2", "mesh_ep", everyone)]
    trace = add_fsdp(training(groups=groups), "1")
    for n in range(4):
        trace.collective("all_to_allv", 130 + 200 * n, 20, group="2", nelems=MB, stream=30)
    for mesh in ({"dp_shard": 4}, {"dp_shard": 4, "ep": 4}):
        job = label(trace, mesh=mesh)
        assert set(comm(job).select("axis", "op").unique().rows()) == {
            ("dp_shard", "all_gather"), ("dp_shard", "reduce_scatter"), ("ep", "all_to_allv"),
        }  # fmt: skip
        assert job.conflicts == ()


def test_mesh_written_by_the_collector(label: Label) -> None:
    trace = add_tp(
        add_fsdp(training(groups=[Group("1", "", (0, 2)), Group("3", "", (0, 1))]), "1"), "3"
    )
    trace.metadata["meshscope"] = {"mesh": {"dp_shard": 2, "tp": 2}}
    job = label(trace)
    assert job.topology.source == "stated mesh"
    assert comm(job)["evidence"].unique().to_list() == ["mesh"]
    other = label(trace, mesh={"dp_replicate": 2, "tp": 2})
    assert "overrides dp_shard=2,tp=2" in other.warnings[0]


def test_expectation_settles_an_ambiguous_group_only(label: Label) -> None:
    trace = TraceBuilder(world_size=4, groups=[Group("1", "", (0, 1))])  # no phases: kernels only
    trace.collective("all_reduce", 100, 50, group="1", nelems=MB, record=False)
    assert comm(label(trace))["axis"].to_list() == ["unknown"]
    assert comm(label(trace, expect=parse_expect("tp")))["axis"].to_list() == ["tp"]
    described = TraceBuilder(world_size=4, groups=[Group("1", "mesh_dp_shard", (0, 1))])
    described.collective("all_reduce", 100, 50, group="1", nelems=MB)
    assert comm(label(described, expect=parse_expect("tp")))["axis"].to_list() == ["dp_shard"]


# ---- coverage and the rest ----------------------------------------------------------------------


def test_coverage(label: Label) -> None:
    trace = TraceBuilder(world_size=4).step(0, 0, 1000)
    trace.kernel("nvjet_x", 0, 300, launch_ts=0)
    trace.kernel("mystery", 300, 100)
    trace.kernel(BARE, 400, 60, stream=20)
    trace.kernel("void deep_ep::intranode::combine<8>()", 500, 40, stream=30)
    ranks = label(trace).ranks
    assert unclassified_pct(ranks) == pytest.approx(100 * 100 / 500)
    assert unknown_axis_pct(ranks) == pytest.approx(60.0)


def test_coverage_of_nothing(label: Label) -> None:
    trace = TraceBuilder(world_size=1).step(0, 0, 1000)
    trace.op("aten::mm", 0, 10)
    job = label(trace)
    assert unclassified_pct(job.ranks) == 0
    assert unknown_axis_pct(job.ranks) is None
    assert job.strategy.text == "none"
    assert job.axis_labels == {}


def test_several_devices_in_one_file(label: Label) -> None:
    trace = add_tp(training(groups=[Group("3", "mesh_tp", (0, 1))]), "3")
    trace.kernel("nvjet_x", 100, 50, device=1)
    activity = label(trace).ranks[0].activity
    assert activity["lane"].unique().sort().to_list() == [0, 1]
    keys = activity.select("lane", "start_ns", "end_ns").rows()
    assert keys == sorted(keys)


def test_every_device_event_stays_one_row(label: Label) -> None:
    job = label(add_fsdp(training(), "0"))
    (rank,) = job.ranks
    assert sorted(rank.activity["event"].to_list()) == sorted(rank.trace.device["event"].to_list())


@pytest.mark.corpus
@needs_corpus
def test_deepseek_v3_is_one_expert_axis() -> None:
    job = label_job(open_job([CORPUS / "deepseek" / "train.json"]))
    rows = comm(job)
    assert rows["axis"].unique().to_list() == ["ep"]
    total = (rows["end_ns"] - rows["start_ns"]).sum()
    assert total == pytest.approx(113.4e6, rel=0.01)
    unclassified = unclassified_pct(job.ranks)
    assert unclassified is not None
    assert unclassified <= 1.0
    assert job.strategy.text == "ep"


@pytest.mark.corpus
@needs_corpus
@pytest.mark.parametrize(
    ("pattern", "axes", "strategy"),
    [
        ("torchtitan_fsdp4/profiling/traces/*/*rank*.json.gz", {"dp_shard", "world"}, "fsdp"),
        ("tracelens/tests/traces/mi300/resnet_act_checkpoint.json.gz", {"dp_replicate"}, "ddp"),
        ("hta/tests/data/nccl_parser_config/nccl_data.json.gz", {"dp_replicate"}, "ddp"),
        ("modded_nanogpt/records/track_1_short/2025-10*/*3608dcfe*.json.gz", {"dp_shard"}, "zero1"),
    ],
)
def test_public_traces(pattern: str, axes: set[str], strategy: str) -> None:
    job = label_job(open_job(sorted(CORPUS.glob(pattern))))
    found = {axis for rank in range(len(job.ranks)) for axis in comm(job, rank)["axis"].to_list()}
    assert found == axes
    assert job.strategy.text == strategy
    assert job.conflicts == ()
