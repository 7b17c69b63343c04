"""What lands in which table, for every era and producer."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from builders import TraceBuilder

from analyzer import schema
from analyzer.model import ProcessGroup, RankTrace
from collectors.kineto import read_trace
from collectors.kineto.categories import CATEGORIES, Kind, category_kind, task_kind, track_kind
from collectors.kineto.events import Args
from collectors.kineto.rows import COMM_INTS, COMM_TEXTS


def read(tmp_path: Path, trace: TraceBuilder | bytes | list[Any] | dict[str, Any]) -> RankTrace:
    path = tmp_path / "t.json"
    if isinstance(trace, TraceBuilder):
        trace.write(path)
    else:
        path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    return read_trace(path)


def complete(cat: str | None, name: str, ts: float, dur: float, **rest: Any) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}
    return {**event, **({} if cat is None else {"cat": cat}), **rest}


def test_every_table_conforms_and_is_sorted(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=1, world_size=4, groups=[("1", "mesh_tp", (0, 1))])
    trace.step(0, 0, 1000)
    trace.device_range("ProfilerStep#0", 10, 900)
    trace.collective("all_gather", 250, 150, group="1", nelems=4096)
    trace.kernel("gemm", 100, 100, op="aten::mm")
    trace.memcpy(300, 10, 8, nbytes=77)
    trace.memset(320, 10, 8)
    trace.sync("Stream Sync", 400, 100, wait_on_stream=20)
    trace.memory(50, 512, total_allocated=1024)
    found = read(tmp_path, trace)
    for table in schema.TRACE_TABLES:
        frame = getattr(found, table.name)
        schema.check(frame, table)
        assert frame.height > 0, table.name
    assert found.device.equals(found.device.sort("device", "start_ns", "end_ns"))
    assert found.device["event"].to_list() == list(range(found.device.height))
    assert found.ops["start_ns"].is_sorted()
    assert found.device["kind"].to_list() == ["kernel", "kernel", "memcpy", "memset"]
    assert found.device["bytes"].to_list() == [None, None, 77, 4096]


def test_joins_lead_from_kernel_to_launch_and_operator(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("gemm", 100, 100, op="aten::mm")
    found = read(tmp_path, trace)
    kernel = found.device.row(0, named=True)
    launch = found.launches.filter(pl.col("correlation") == kernel["correlation"]).row(
        0, named=True
    )
    op = found.ops.filter(pl.col("external_id") == kernel["external_id"]).row(0, named=True)
    assert (launch["name"], op["name"]) == ("cudaLaunchKernel", "aten::mm")
    assert launch["external_id"] == op["external_id"]


def test_collective_arguments_follow_their_event_through_sorting(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=0, world_size=2, groups=[("1", "mesh_tp", (0, 1))])
    trace.kernel("late", 5000, 10)
    trace.collective("all_reduce", 900, 50, group="1", nelems=300)
    trace.collective("all_gather", 100, 50, group="1", nelems=100)
    found = read(tmp_path, trace)
    on_device = found.comm_args.filter(pl.col("source").cast(pl.String) == "device")
    joined = on_device.join(found.device, on="event").sort("start_ns")
    assert [n.split("_")[1] for n in joined["name"].cast(pl.String)] == ["AllGather", "AllReduce"]
    assert joined["seq"].to_list() == [2, 1]
    on_host = found.comm_args.filter(pl.col("source").cast(pl.String) == "op")
    names = on_host.join(found.ops, on="event")["name"].cast(pl.String).unique().to_list()
    assert names == ["record_param_comms"]
    row = joined.row(1, named=True)
    assert (row["group_name"], row["group_desc"], row["group_size"]) == ("1", "mesh_tp", 2)
    assert json.loads(row["group_ranks"]) == [0, 1]


def test_comms_id_keeps_its_64_bits(tmp_path: Path) -> None:
    value = 2**64 - 5
    args = {"Collective name": "allreduce", "Comms Id": value, "Group size": 2}
    found = read(tmp_path, [complete("kernel", "nccl", 1, 1, args=args)])
    assert found.comm_args["comms_id"].to_list() == [value - 2**64]
    assert found.report.repaired == {}


def test_long_rank_lists_stay_text(tmp_path: Path) -> None:
    ranks = "[" + ", ".join(map(str, range(30))) + ", ...]"
    args = {"Collective name": "allreduce", "Process Group Ranks": ranks, "Group size": 64}
    found = read(tmp_path, [complete("kernel", "nccl", 1, 1, args=args)])
    assert found.comm_args["group_ranks"].to_list() == [ranks]


@pytest.mark.parametrize("category", ["kernel", "Kernel"])
def test_b11_renamed_category_gives_the_same_tables(tmp_path: Path, category: str) -> None:
    trace = TraceBuilder()
    for i in range(5):
        trace.kernel(f"k{i}", i * 100, 50, cat=category)
    found = read(tmp_path, trace)
    assert found.device["name"].to_list() == [f"k{i}" for i in range(5)]
    assert found.launches.height == 5


def test_torch_1_8(tmp_path: Path) -> None:
    """``Operator``, ``Kernel``, ``Runtime``, thread ids in words, ``external id`` in lower case."""
    events = [
        complete(
            "Operator",
            "aten::mm",
            10,
            20,
            pid=9,
            tid="4093687616",
            args={"External id": 2, "Input dims": [[2]]},
        ),
        complete(
            "Runtime",
            "cudaLaunchKernel",
            12,
            3,
            pid=9,
            tid="4093687616",
            args={"correlation": 5, "external id": 2},
        ),
        complete(
            "Kernel",
            "gemm",
            20,
            30,
            tid="stream 7",
            args={"correlation": 5, "external id": 2, "device": 0, "stream": 7},
        ),
        complete(
            "Memcpy", "Memcpy HtoD", 60, 3, tid="stream 7", args={"correlation": 6, "bytes": 64}
        ),
        complete(
            "Memset", "Memset (Device)", 70, 3, tid="stream 7", args={"correlation": 7, "bytes": 64}
        ),
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": "stream 7",
            "args": {"name": "stream 7"},
        },
    ]
    found = read(tmp_path, {"schemaVersion": 1, "traceEvents": events})
    assert found.device["kind"].to_list() == ["kernel", "memcpy", "memset"]
    assert found.device["stream"].to_list() == [7, 7, 7]
    assert found.device["external_id"].to_list() == [2, None, None]
    assert found.ops.select("external_id", "tid", "input_dims").row(0) == (2, 4093687616, "[[2]]")
    assert found.launches["external_id"].to_list() == [2]
    assert found.meta.thread_names == {("0", "7"): "stream 7"}


def test_mtia(tmp_path: Path) -> None:
    args = {"correlation": 1, "stream": 108, "wait_on_stream": 102}
    events = [
        complete("mtia_ccp_events", "remote", 10, 50, pid=17, tid=3774, args=args),
        complete("mtia_ccp_events", "event_wait", 70, 5, pid=17, tid=3774, args=args),
        complete(
            "mtia_ccp_events",
            "dma_request",
            80,
            5,
            pid=17,
            tid=3774,
            args={"stream": 108, "size": 1024},
        ),
        complete("mtia_runtime", "runFunction", 1, 5, pid=865, tid=1, args={"correlation": 1}),
    ]
    found = read(tmp_path, events)
    assert found.meta.device_kind == "mtia"
    assert found.device.select("name", "kind", "device", "stream", "bytes").rows() == [
        ("remote", "kernel", 17, 108, None),
        ("dma_request", "memcpy", 17, 108, 1024),
    ]
    assert found.syncs.select("name", "stream", "wait_on_stream").rows() == [
        ("event_wait", 108, 102)
    ]
    assert found.launches["correlation"].to_list() == [1]


def test_ascend_tracks(tmp_path: Path) -> None:
    """msprof: no categories on the device, text times, kernels told by process and thread."""

    def named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}

    def at(ts: str, name: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
        return {
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": 1.35,
            "args": args,
            "ph": "X",
        }

    events = [
        at("1704161511422904.204\t", "MatMul", 800, 3, connection_id=8),
        at("1704161511422804.001", "AscendCL@aclnnMatmul", 900, 11, connection_id=8),
        at("1704161511422906.204", "MEMCPY_ASYNC", 800, 3),
        at("1704161511422908.204", "NOTIFY_WAIT", 800, 4),
        at("1704161511422909.204", "hcom_allReduce__0_1", 850, 2),
        at("1704161511422909.204", "Notify_Wait", 850, 5),
        at("1704161511422904.204", "Computing", 901, 0),
        at("1704161511422700.000", "loss", 902, 1),
        named("process_name", 800, 0, "Ascend Hardware"),
        named("process_name", 900, 0, "CANN"),
        named("process_name", 901, 0, "Overlap Analysis"),
        named("process_name", 850, 0, "HCCL"),
        named("process_name", 902, 0, "Python"),
        named("thread_name", 800, 3, "Stream 3"),
        named("thread_name", 850, 2, "Group 0 Communication"),
        named("thread_name", 850, 5, "Plane 0"),
    ]
    found = read(tmp_path, events)
    assert (found.meta.device_kind, found.meta.producer) == ("npu", "msprof")
    assert found.device.select("name", "kind", "stream", "start_ns").rows() == [
        ("MatMul", "kernel", 3, 1_704_161_511_422_904_204),
        ("MEMCPY_ASYNC", "memcpy", 3, 1_704_161_511_422_906_204),
        ("hcom_allReduce__0_1", "kernel", 2, 1_704_161_511_422_909_204),
    ]
    assert found.device["correlation"].to_list() == [8, None, None]
    assert found.launches.select("name", "correlation").rows() == [("AscendCL@aclnnMatmul", 8)]
    assert found.syncs["name"].to_list() == ["NOTIFY_WAIT"]
    assert found.ops["name"].to_list() == ["loss"]
    assert any("2 derived or counter track" in n for n in found.report.notes)


def test_unknown_category_is_read_and_noted(tmp_path: Path) -> None:
    found = read(tmp_path, [complete("brand_new", "x", 1, 2), complete("cpu_op", "y", 2, 3)])
    assert found.ops["name"].to_list() == ["x", "y"]
    assert any("1 brand_new" in n for n in found.report.notes)


def test_categories_of_unusable_types_do_no_harm(tmp_path: Path) -> None:
    events = [
        complete("cpu_op", "a", 1, 2),
        {**complete("", "b", 2, 3), "cat": [1]},
        {**complete("", "c", 3, 4), "cat": 7},
    ]
    assert read(tmp_path, events).ops["name"].to_list() == ["a", "b", "c"]


def test_python_functions_and_flows_are_counted_not_kept(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 1, 2)
    trace.raw(complete("python_function", "train.py(3): f", 1, 2))
    trace.raw({"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"})
    found = read(tmp_path, trace)
    assert found.report.events == 3
    assert found.ops.height == 1
    (note,) = [n for n in found.report.notes if n.startswith("counted, not kept")]
    assert "1 python_function" in note
    assert "1 ac2g" in note
    assert found.report.dropped == {}


def test_concrete_inputs_only_of_c10d_operators(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 1, 2, **{"Concrete Inputs": ["", "1"]})
    trace.op("c10d::send", 4, 2, **{"Concrete Inputs": ["", "", "2", "0"]})
    found = read(tmp_path, trace)
    rows = dict(found.ops.select("name", "concrete_inputs").rows())
    assert rows["aten::mm"] is None
    assert json.loads(rows["c10d::send"]) == ["", "", "2", "0"]


def test_graph_id_zero_means_no_graph(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.kernel("a", 1, 1, graph_id=0)
    trace.kernel("b", 3, 1, graph_id=4)
    assert read(tmp_path, trace).device["graph_id"].to_list() == [None, 4]


def test_missing_device_and_stream_fall_back(tmp_path: Path) -> None:
    events = [
        complete("kernel", "a", 1, 1, pid=3, tid=9),
        complete("kernel", "b", 3, 1, pid="?", tid="?"),
        complete("kernel", "c", 5, 1, pid=4_000_000, tid=9),
    ]
    rows = {
        n: (d, s)
        for n, d, s in read(tmp_path, events).device.select("name", "device", "stream").rows()
    }
    assert rows == {"a": (3, 9), "b": (0, -1), "c": (0, 9)}


@pytest.mark.parametrize("compact", [False, True])
def test_m03_compact_json_keeps_its_rank(tmp_path: Path, compact: bool) -> None:
    trace = TraceBuilder(rank=1, world_size=2, compact=compact)
    trace.kernel("gemm", 1, 1)
    meta = read(tmp_path, trace).meta
    assert (meta.rank, meta.rank_source, meta.world_size, meta.backend) == (
        1,
        "distributedInfo",
        2,
        "nccl",
    )
    assert meta.groups == (ProcessGroup("0", "default_pg", (0, 1), 2, "cuda:nccl"),)
    assert meta.device_names == ("NVIDIA H100 80GB HBM3",)
    assert meta.device_kind == "gpu"


def test_group_dialects(tmp_path: Path) -> None:
    trace = TraceBuilder(distributed_info=False)
    trace.op("aten::mm", 1, 2)
    trace.metadata["distributedInfo"] = {
        "rank": "3",
        "pg_config": [
            {"uid": "a", "ranks": "[0, 1, 2]"},  # 2024-04, on-demand
            {"pg_name": "b", "pg_desc": "mesh_dp", "ranks": "[0, 1, ...]", "pg_size": 64},
            {"pg_name": 7, "ranks": {"0": 0, "4": 1}, "pg_size": 2},
            "nonsense",
        ],
    }
    meta = read(tmp_path, trace).meta
    assert meta.rank == 3
    assert meta.groups == (
        ProcessGroup("a", "", (0, 1, 2), 3),
        ProcessGroup("b", "mesh_dp", (), 64),
        ProcessGroup("7", "", (0, 4), 2),
    )


def test_embedded_metadata_and_mesh(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 1, 2)
    trace.metadata["meshscope"] = {"mesh": {"dp_shard": 2, "tp": 4}, "extra": [1]}
    trace.metadata["host_name"] = "node7"
    meta = read(tmp_path, trace).meta
    assert list(meta.mesh.items()) == [("dp_shard", 2), ("tp", 4)]
    assert meta.embedded["extra"] == [1]
    assert meta.host == "node7"


def test_garbage_collection_is_on_again(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.op("aten::mm", 1, 2)
    assert gc.isenabled()
    read(tmp_path, trace)
    assert gc.isenabled()


def test_every_collective_argument_has_a_column() -> None:
    names = {"source", "event", *COMM_INTS, *COMM_TEXTS}
    assert names == set(schema.COMM_ARGS.names)
    fields = {f.name for f in msgspec.structs.fields(Args)}
    used = {a for aliases in (*COMM_INTS.values(), *COMM_TEXTS.values()) for a in aliases}
    assert used <= fields


def test_category_table_is_lower_case_and_case_blind() -> None:
    assert all(name == name.lower() for name in CATEGORIES)
    assert category_kind("Kernel") is category_kind("kernel") is Kind.KERNEL
    assert category_kind("never seen") is None
    assert category_kind(None) is Kind.TRACK


@pytest.mark.parametrize(
    ("process", "thread", "kind"),
    [
        ("Ascend Hardware", "Stream 3", Kind.KERNEL),
        ("Ascend Hardware", "Step Trace(Model ID:2)", Kind.DEVICE_RANGE),
        ("HCCL", "Communication Kernel", Kind.KERNEL),
        ("/device:TPU:0", "XLA Ops", Kind.KERNEL),
        ("/device:TPU:0", "XLA Modules", Kind.DEVICE_RANGE),
        ("/device:TPU:0", "_counters_", Kind.SKIP),
        ("/host:CPU", "python", Kind.OP),
        ("", "", Kind.OP),
    ],
)
def test_tracks(process: str, thread: str, kind: Kind) -> None:
    assert track_kind(process, thread) is kind


def test_tasks() -> None:
    kinds = {n: task_kind(n) for n in ("EVENT_WAIT", "NOTIFY_RECORD", "MEMCPY_ASYNC", "MatMul")}
    assert list(kinds.values()) == [Kind.SYNC, Kind.SYNC, Kind.MEMCPY, Kind.KERNEL]


def test_importing_collectors_loads_no_polars() -> None:
    import subprocess
    import sys

    code = (
        "import sys, collectors, collectors.cache; "
        "print('polars' in sys.modules, 'numpy' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert out.stdout.split() == ["False", "False"]
