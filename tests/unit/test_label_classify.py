"""What each device event is, from which evidence; and what surrounds its launch."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from builders import Group, TraceBuilder

from analyzer.label.classify import classify
from analyzer.label.link import link
from analyzer.model import RankTrace
from collectors.kineto import read_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ODD = "some_kernel_of_ours"
TP = Group("1", "mesh_tp", (0, 1))


@pytest.fixture
def trace() -> TraceBuilder:
    return TraceBuilder(rank=0, world_size=4, groups=[TP])


@pytest.fixture
def read(tmp_path: Path, trace: TraceBuilder) -> object:
    def run() -> RankTrace:
        return read_trace(trace.write(tmp_path / "rank0.json"))

    return run


@pytest.fixture
def only(read: object) -> object:
    """Class the trace's single device event."""

    def run() -> dict[str, object]:
        loaded = read()  # type: ignore[operator]
        (row,) = classify(link(loaded), loaded).iter_rows(named=True)
        return row

    return run


# ---- evidence in order --------------------------------------------------------------------------


def test_arguments_on_the_event(trace: TraceBuilder, only: object) -> None:
    trace.collective("all_gather", 100, 50, group="1", nelems=1024, name=ODD)
    row = only()
    assert (row["work"], row["op"], row["group_desc"]) == ("comm", "all_gather", "mesh_tp")


def test_arguments_on_the_linked_operator_only(trace: TraceBuilder, only: object) -> None:
    trace.collective("reduce_scatter", 100, 50, group="1", nelems=1024, kernel_args=False, name=ODD)
    row = only()
    assert (row["work"], row["op"], row["in_nelems"]) == ("comm", "reduce_scatter", 1024)


def test_the_operator_tells_what_a_generic_kernel_does(trace: TraceBuilder, only: object) -> None:
    name = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    trace.kernel(name, 100, 50, op="c10d::alltoall_base_")
    row = only()
    assert (row["work"], row["op"], row["family"]) == ("comm", "all_to_all", "rccl")


@pytest.mark.parametrize(
    "op",
    [
        "c10d::allreduce_",
        "_c10d_functional::all_reduce",
        "symm_mem::one_shot_all_reduce",
        "nccl:all_reduce",
    ],
)
def test_linked_communication_operator(trace: TraceBuilder, only: object, op: str) -> None:
    trace.kernel(ODD, 100, 50, op=op)
    assert (only()["work"], only()["op"]) == ("comm", "all_reduce")


def test_a_local_copy_inside_a_collective_stays_compute(trace: TraceBuilder, only: object) -> None:
    trace.kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
        100,
        50,
        op="c10d::allreduce_",
    )
    assert only()["work"] == "compute"


def test_range_of_the_backend_around_the_launch(trace: TraceBuilder, only: object) -> None:
    trace.range("nccl:all_reduce", 80, 30)
    trace.kernel(ODD, 100, 50)
    assert (only()["work"], only()["op"]) == ("comm", "all_reduce")


def test_range_of_the_backend_on_the_device(trace: TraceBuilder, only: object) -> None:
    trace.device_range("nccl:_all_gather_base", 99, 60, stream=20)
    trace.kernel(ODD, 100, 50, stream=20, launch=False)
    assert (only()["work"], only()["op"]) == ("comm", "all_gather")


def test_range_on_another_stream_says_nothing(trace: TraceBuilder, only: object) -> None:
    trace.device_range("nccl:_all_gather_base", 99, 60, stream=20)
    trace.kernel(ODD, 100, 50, stream=7, launch=False)
    assert only()["work"] == "unknown"


def test_kernel_name_without_anything_else(trace: TraceBuilder, only: object) -> None:
    trace.kernel(NCCL, 100, 50, launch=False)
    assert (only()["work"], only()["op"], only()["family"]) == ("comm", "all_reduce", "nccl")


def test_a_name_proves_nothing_against_a_matmul(trace: TraceBuilder, only: object) -> None:
    trace.kernel("ncclDevKernel_AllReduce_lookalike()", 100, 50, op="aten::mm")
    assert (only()["work"], only()["family"]) == ("compute", "gemm")


def test_pseudo_collectives_are_no_communication(trace: TraceBuilder, only: object) -> None:
    wait = {"Collective name": "wait", "Group size": 1, "dtype": "Byte", "In msg nelems": 0}
    trace.kernel("void at::native::unrolled_elementwise_kernel<at::native::X>", 100, 50, comm=wait)
    assert only()["work"] == "compute"


def test_barrier_and_unknown_names_of_collectives(trace: TraceBuilder, only: object) -> None:
    trace.kernel(ODD, 100, 50, comm={"Collective name": "brand_new_collective", "Group size": 2})
    assert (only()["work"], only()["op"]) == ("comm", "other")


# ---- copies, fused and unknown ------------------------------------------------------------------


def test_peer_copy_of_a_collective_is_communication(trace: TraceBuilder, only: object) -> None:
    trace.memcpy(100, 50, name="Memcpy PtoP (Device -> Device)", op="c10d::_allgather_base_")
    row = only()
    assert (row["work"], row["op"], row["family"]) == ("comm", "all_gather", "copy_engine")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("Memcpy PtoP (Device -> Device)", "aten::copy_"),
        ("Memcpy DtoD (Device -> Device)", "c10d::_allgather_base_"),
        ("Memcpy HtoD (Pinned -> Device)", None),
    ],
)
def test_other_copies_stay_copies(
    trace: TraceBuilder, only: object, name: str, op: str | None
) -> None:
    trace.memcpy(100, 50, name=name, op=op)
    assert only()["work"] == "memcpy"


def test_memset(trace: TraceBuilder, only: object) -> None:
    trace.memset(100, 50)
    assert (only()["work"], only()["op"]) == ("memset", None)


def test_fused_kernel_by_name(trace: TraceBuilder, only: object) -> None:
    """Case B-44."""
    name = "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, 8>"
    trace.kernel(name, 100, 50)
    assert (only()["work"], only()["op"]) == ("fused", "all_reduce")


def test_parts_of_a_fused_operator(trace: TraceBuilder, read: object) -> None:
    op = "symm_mem::fused_all_gather_matmul"
    trace.kernel("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", 100, 50, op=op)
    trace.memcpy(200, 50, name="Memcpy PtoP (Device -> Device)", op=op)
    trace.kernel(ODD, 300, 50, op=op)
    loaded = read()
    rows = classify(link(loaded), loaded).sort("start_ns")
    assert rows["work"].to_list() == ["compute", "comm", "fused"]
    assert rows["op"].to_list() == [None, "all_gather", "all_gather"]


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("aten::mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::add", "elementwise"),
        ("my::custom", None),
    ],
)
def test_unnamed_kernel_takes_the_family_of_its_operator(
    trace: TraceBuilder, only: object, op: str, family: str | None
) -> None:
    trace.kernel(ODD, 100, 50, op=op)
    assert (only()["work"], only()["family"]) == ("compute", family)


def test_nothing_known_is_unknown(trace: TraceBuilder, only: object) -> None:
    trace.kernel(ODD, 100, 50)
    assert only()["work"] == "unknown"


def test_ranges_and_syncs_never_make_work(trace: TraceBuilder, read: object) -> None:
    trace.kernel("nvjet_x", 100, 50)
    trace.sync("Stream Sync", 150, 500)
    trace.device_range("nccl:all_reduce", 100, 900)
    loaded = read()
    assert classify(link(loaded), loaded)["work"].to_list() == ["compute"]


# ---- links --------------------------------------------------------------------------------------


def test_launch_operator_and_innermost_range(trace: TraceBuilder, read: object) -> None:
    trace.step(0, 0, 1000)
    trace.range("FSDP::pre_forward (layers.0)", 50, 200)
    trace.range("FSDP::all_gather (layers.0)", 60, 100)
    trace.range("nccl:_all_gather_base", 80, 40)
    trace.kernel("nvjet_x", 300, 50, launch_ts=90, op="aten::mm")
    loaded = read()
    (row,) = link(loaded).iter_rows(named=True)
    assert row["launch_ns"] == trace.base_ns + 90_000
    assert row["op_name"] == "aten::mm"
    assert row["range_name"] == "FSDP::all_gather (layers.0)"
    assert row["comm_range"] == "nccl:_all_gather_base"


def test_operator_by_containment_where_ids_are_absent(trace: TraceBuilder, read: object) -> None:
    trace.op("aten::linear", 80, 100)
    trace.op("aten::mm", 85, 20)
    trace.op("aten::add", 85, 20, tid=4001)
    trace.kernel(ODD, 300, 50, launch_ts=90)
    (row,) = link(read()).iter_rows(named=True)
    assert row["op_name"] == "aten::mm"


def test_event_without_launch_has_no_host_side(trace: TraceBuilder, read: object) -> None:
    trace.op("aten::mm", 85, 20)
    trace.kernel(ODD, 90, 50, launch=False)
    (row,) = link(read()).iter_rows(named=True)
    assert [row[name] for name in ("launch_ns", "op_name", "range_name", "comm_range")] == [
        None
    ] * 4


def test_no_launches_and_no_operators_at_all(trace: TraceBuilder, read: object) -> None:
    trace.kernel(NCCL, 90, 50, launch=False)
    loaded = read()
    assert loaded.ops.is_empty()
    assert classify(link(loaded), loaded)["work"].to_list() == ["comm"]


def test_order_and_number_of_events_are_kept(trace: TraceBuilder, read: object) -> None:
    for n in range(20):
        trace.kernel("nvjet_x" if n % 2 else ODD, 100 * n, 50, op="aten::mm" if n % 3 else None)
    loaded = read()
    rows = classify(link(loaded), loaded)
    assert rows["event"].to_list() == loaded.device["event"].to_list()
    assert rows.select(pl.col("work").is_null().any()).item() is False
