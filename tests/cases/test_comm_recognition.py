"""Public cases about what is communication, whose it is and how large."""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl
import pytest
from builders import Group, TraceBuilder
from case_helpers import DEEPSEEK, Cli, share

from analyzer.api import Analysis, analyze
from analyzer.label import label_job
from analyzer.model import LabeledRank
from collectors import open_job

Analyse = Callable[..., Analysis]
US = 1_000

NAMELESS_LIBRARIES = {
    "void deep_ep::internode::dispatch<true, 8>(int4*)": "ep",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(__nv_bfloat16*)": "ep",
    "void dpsk::ep::internode::cached_notify<false>(int)": "ep",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": None,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": None,
    "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)": None,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": None,
    "ncclSymDevKernel_AllReduce_AGxLLMC_R_bf16(ncclSymDevArgs)": None,
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": None,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": None,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": None,
    "hcom_allReduce__721_0_1": None,
}
"""Kernel names a trace without any collective arguments may hold, and the axis they imply."""


def step_of(*, comm: str, comm_at: tuple[int, int] = (300, 400)) -> TraceBuilder:
    """One step of 1000 us: compute 100-400 and 700-800, one communication kernel."""
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 300)
    trace.kernel(comm, *comm_at, stream=20)
    trace.kernel("nvjet_gemm", 700, 100)
    return trace


def labelled(path: object) -> LabeledRank:
    return label_job(open_job([str(path)])).ranks[0]


@pytest.mark.corpus
@pytest.mark.skipif(not DEEPSEEK.exists(), reason="needs the public traces (MESHSCOPE_TRACES)")
def test_m_01_communication_without_nccl_is_seen() -> None:
    analysis = analyze(DEEPSEEK)
    document = analysis.document
    json.dumps(document, allow_nan=False)
    (start,) = analysis.measurements.origin_ns.values()
    # the host's step begins 533 us before the device does: its window is longer than the span
    device = labelled(DEEPSEEK).trace.device
    first, last = device["start_ns"].to_numpy().min(), device["end_ns"].to_numpy().max()
    assert last - first == 129_012 * US
    assert document["step"]["time_ns"] == last - start == 129_545 * US
    assert list(document["axes"]) == ["ep"]
    ep = document["axes"]["ep"]
    assert ep["comm_ns"] == pytest.approx(113.4e6, rel=0.01)
    assert ep["exposed_ns"] == pytest.approx(4.19e6, rel=0.02)
    assert document["exposed_comm_pct"] == pytest.approx(3.2, abs=0.05)
    assert document["coverage"]["unclassified_pct"] < 1


@pytest.mark.parametrize(("name", "axis"), NAMELESS_LIBRARIES.items())
def test_m_01_b_01_comm_is_known_by_kernel_name_alone(
    analyse: Analyse, name: str, axis: str | None
) -> None:
    document = analyse(step_of(comm=name)).document
    (found,) = document["axes"]
    assert axis is None or found == axis
    assert document["axes"][found]["comm_ns"] == 400 * US
    assert document["axes"][found]["exposed_ns"] == 300 * US
    assert document["exposed_comm_pct"] == pytest.approx(30.0)
    assert document["coverage"]["unclassified_pct"] == 0


def test_b_01_only_new_nccl_names_and_nothing_else(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel(
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 400, launch_ts=0
    )
    document = analyse(trace).document
    (axis,) = document["axes"].values()
    assert axis["comm_ns"] == axis["exposed_ns"] == 400 * US
    assert axis["overlap_pct"] == 0
    assert document["exposed_comm_pct"] == pytest.approx(40.0)


def test_m_01_a_library_in_the_name_does_not_make_compute_communication(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel(
        "void at::native::nccl_buffer_fill_kernel<float>(float*)",
        0,
        400,
        launch_ts=0,
        op="aten::fill_",
    )
    trace.kernel("nvjet_gemm", 400, 600, op="aten::mm")
    document = analyse(trace).document
    assert document["axes"] == {}
    assert document["step"]["compute_ns"] == 1000 * US


def test_m_02_ranks_are_ranked_whatever_nccl_calls_its_kernels(analyse: Analyse) -> None:
    ranks = []
    for rank, dur in enumerate((100, 300)):
        trace = TraceBuilder(rank=rank, world_size=2).step(0, 0, 1000)
        trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 500, dur)
        ranks.append(trace)
    document = analyse(*ranks).document
    assert [(r["rank"], r["exposed_comm_pct"]) for r in document["per_rank"]] == [
        (0, pytest.approx(10.0)),
        (1, pytest.approx(30.0)),
    ]
    assert document["exposed_comm_pct_worst"]["rank"] == 1
    assert document["exposed_comm_pct"] == pytest.approx(20.0)


def test_m_02_no_evidence_is_no_error(analyse: Analyse, run_cli: Cli, tmp_path: object) -> None:
    ranks = []
    for rank in range(2):
        trace = TraceBuilder(rank=rank, world_size=2).step(0, 0, 1000)
        trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
        ranks.append(trace)
    assert analyse(*ranks).document["axes"] == {}
    run = run_cli(tmp_path, "--max-exposed-comm", "15%", "--json", "-")
    assert run.code == 3
    assert "no communication was found" in run.document["gates"][0]["reason"]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float8_e4m3fn", 1), ("Float8_e5m2", 1), ("Float8_e4m3fnuz", 1), ("Float8_e8m0fnu", 1),
        ("Byte", 1), ("BFloat16", 2), ("Half", 2), ("Float", 4), ("Long", 8), ("Double", 8),
    ],
)  # fmt: skip
def test_m_15_bytes_of_every_element_type(analyse: Analyse, dtype: str, size: int) -> None:
    group = Group("1", "mesh_dp_shard", (0, 1, 2, 3))
    trace = TraceBuilder(world_size=4, groups=[group]).step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
    trace.collective("all_gather", 500, 100, group="1", nelems=4096, dtype=dtype)
    axis = analyse(trace).document["axes"]["dp_shard"]
    gathered = trace.events[-1]["args"]["Out msg nelems"]
    assert axis["bytes"] == gathered * size


def test_m_15_an_unknown_element_type_has_no_bytes(analyse: Analyse) -> None:
    group = Group("1", "mesh_dp_shard", (0, 1))
    trace = TraceBuilder(world_size=2, groups=[group]).step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
    trace.collective("all_gather", 500, 100, group="1", nelems=4096, dtype="Float3_e1m1")
    axis = analyse(trace).document["axes"]["dp_shard"]
    assert axis["bytes"] is None
    assert axis["comm_ns"] == 100 * US


def test_m_15_equal_ranks_have_no_straggler(
    analyse: Analyse, run_cli: Cli, tmp_path: object
) -> None:
    ranks = []
    for rank in range(8):
        group = Group("1", "mesh_dp_shard", tuple(range(8)))
        trace = TraceBuilder(rank=rank, world_size=8, groups=[group]).step(0, 0, 1000)
        trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
        trace.collective("all_gather", 500, 300, group="1", nelems=4096)
        ranks.append(trace)
    document = analyse(*ranks).document
    assert document["exposed_comm_pct_worst"]["pct"] == document["exposed_comm_pct"]
    assert {r["exposed_comm_pct"] for r in document["per_rank"]} == {30.0}
    text = run_cli(tmp_path).out.lower()
    assert "is worst" not in text
    assert "straggler" not in text


@pytest.mark.parametrize("kind", ["Event Sync", "Stream Sync", "Device Sync", "Context Sync"])
def test_b_02_communication_under_a_sync_span_is_not_overlapped(
    analyse: Analyse, kind: str
) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 0, 200, launch_ts=0)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 200, 600, stream=20)
    trace.sync(kind, 200, 700)
    document = analyse(trace).document
    (axis,) = document["axes"].values()
    assert axis["overlap_pct"] == 0
    assert axis["exposed_ns"] == 600 * US
    assert document["step"]["compute_ns"] == 200 * US


def test_b_24_external_ids_that_differ_per_rank_change_nothing(analyse: Analyse) -> None:
    ranks = []
    for rank in range(2):
        group = Group("1", "mesh_tp", (0, 1))
        trace = TraceBuilder(rank=rank, world_size=2, groups=[group]).step(0, 0, 1000)
        for _ in range(1000 * rank):
            trace.op("aten::empty", 1, 0.01)  # uses up External ids on one rank only
        trace.kernel("nvjet_gemm", 100, 400, op="aten::mm")
        for n in range(3):
            # arguments on the host only: the id is all that links them
            trace.collective(
                "all_reduce", 500 + 100 * n, 50, group="1", nelems=1 << 20, kernel_args=False
            )
        ranks.append(trace)
    events = analyse(*ranks).measurements.comm_events
    facts = ["axis", "op", "group", "group_size", "message_bytes", "exposed_ns"]
    one, two = (events.filter(pl.col("rank") == rank).select(facts) for rank in (0, 1))
    assert one.height == 3
    assert one.equals(two)
    assert one.row(0) == ("tp", "all_reduce", "0,1", 2, 1 << 21, 50 * US)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("fused_moe_kernel", "moe"),
        ("_ZN4vllm3moe17topkGatingSoftmaxIfEEvPKT_", "moe"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "gemm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", "gemm"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
    ],
)
def test_b_25_large_kernels_have_a_named_family(
    analyse: Analyse, tmp_path: object, name: str, family: str
) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel(name, 0, 670, launch_ts=0)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, float>()", 670, 330)
    document = analyse(trace).document
    assert document["coverage"]["unclassified_pct"] == 0
    activity = labelled(tmp_path).activity.with_columns(pl.col("family").cast(pl.String))
    assert activity["family"][0] == family


def test_b_25_point_to_point_only(analyse: Analyse) -> None:
    ranks = []
    for rank in range(2):
        group = Group("1", "mesh_pp", (0, 1))
        trace = TraceBuilder(rank=rank, world_size=2, groups=[group]).step(0, 0, 1000)
        trace.kernel("nvjet_gemm", 0, 500, launch_ts=0)
        op = "send" if rank == 0 else "recv"
        trace.collective(op, 500, 100, group="1", nelems=1 << 20)
        ranks.append(trace)
    document = analyse(*ranks).document
    assert list(document["axes"]) == ["pp"]
    ops = document["axes"]["pp"]["ops"]
    assert set(ops) == {"send", "recv"}
    # means over both ranks: each has one of the two
    assert {op: (f["count"], f["bytes"], f["comm_ns"]) for op, f in ops.items()} == dict.fromkeys(
        ("send", "recv"), (0.5, 1 << 20, 50 * US)
    )
    assert document["step"]["exposed_comm_ns"] == {"pp": 100 * US}
    assert document["bubble_pct"] is None  # waits and transfers cannot be told apart
    assert document["null_reasons"]["bubble_pct"]


def test_b_25_point_to_point_without_any_arguments(analyse: Analyse) -> None:
    document = analyse(step_of(comm="ncclDevKernel_SendRecv(ncclDevKernelArgs)")).document
    (axis,) = document["axes"].values()
    assert set(axis["ops"]) <= {"send_recv", "all_to_all"}
    assert share(document, axis["exposed_ns"]) == pytest.approx(30.0)
