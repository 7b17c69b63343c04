"""The trace builder writes what a test asked for, in Kineto's form."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal

from builders import Group, TraceBuilder, cut_list


def events(trace: TraceBuilder, cat: str) -> list[dict]:
    return [e for e in json.loads(trace.json())["traceEvents"] if e.get("cat") == cat]


def test_kernel_is_joined_to_its_launch_and_op():
    trace = TraceBuilder()
    correlation = trace.kernel("gemm", 100, 50, op="aten::mm")
    (kernel,), (launch,), (op,) = (events(trace, c) for c in ("kernel", "cuda_runtime", "cpu_op"))
    assert kernel["args"]["correlation"] == launch["args"]["correlation"] == correlation
    assert (
        kernel["args"]["External id"] == launch["args"]["External id"] == op["args"]["External id"]
    )
    assert (kernel["ts"], launch["ts"], kernel["tid"]) == (100, 90, 7)
    assert op["ts"] <= launch["ts"] <= launch["ts"] + launch["dur"] <= op["ts"] + op["dur"]


def test_kernel_without_launch():
    trace = TraceBuilder()
    trace.kernel("gemm", 100, 50, launch=False)
    assert events(trace, "cuda_runtime") == []


def test_collective_carries_the_arguments_of_both_sides():
    trace = TraceBuilder(rank=3, world_size=4, groups=[Group("2", "mesh_tp", (1, 3))])
    trace.collective("all_gather", 100, 50, group="2", nelems=1024)
    trace.collective("reduce_scatter", 200, 50, group="2", nelems=1024, dtype="Float")
    gather, scatter = (k["args"] for k in events(trace, "kernel"))
    assert (gather["In msg nelems"], gather["Out msg nelems"]) == (512, 1024)
    assert (scatter["In msg nelems"], scatter["Out msg nelems"]) == (1024, 512)
    assert (gather["Seq"], scatter["Seq"]) == (1, 2)
    assert gather["Process Group Ranks"] == "[1, 3]"
    record = next(e["args"] for e in events(trace, "cpu_op") if e["name"] == "record_param_comms")
    assert (record["Rank"], record["Global rank start"], record["Global rank stride"]) == (1, 1, 2)
    assert record["External id"] == gather["External id"]
    assert events(trace, "kernel")[1]["name"].startswith(
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL("
    )
    assert len(events(trace, "cuda_driver")) == 2


def test_collective_ids_agree_between_ranks():
    ids = []
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        trace.collective("all_reduce", 100 + rank, 50, group="0", nelems=8)
        ids.append(events(trace, "kernel")[0]["args"]["Comms Id"])
    assert ids[0] == ids[1]


def test_exact_decimals_reach_the_file():
    trace = TraceBuilder()
    trace.kernel("gemm", "1789035343287912.456", "0.001")
    text = trace.json().decode()
    assert '"ts": 1789035343287912.456' in text
    launch = json.loads(text, parse_float=Decimal)["traceEvents"][0]
    assert launch["ts"] == Decimal("1789035343287902.456")
    assert json.loads(json.dumps(trace.document()))["traceEvents"]


def test_sync_is_an_event_and_a_call():
    trace = TraceBuilder()
    trace.sync("Stream Sync", 1200, 8000, 7)
    (event,), (call,) = events(trace, "cuda_sync"), events(trace, "cuda_runtime")
    assert call["name"] == "cudaStreamSynchronize"
    assert call["args"]["correlation"] == event["args"]["correlation"]


def test_compact_and_distributed_info():
    trace = TraceBuilder(rank=1, world_size=2, compact=True)
    assert b'"distributedInfo":{"backend":"nccl","rank":1,' in trace.json()
    assert b"distributedInfo" not in TraceBuilder(distributed_info=False).json()
    assert b"baseTimeNanoseconds" not in TraceBuilder(base_ns=None).json()
    assert json.loads(TraceBuilder().json())["traceEvents"] == []


def test_write_compresses_by_suffix(tmp_path):
    trace = TraceBuilder()
    trace.step(3, 0, 10).range("a", 1, 2).memory(4, 512).thread_name("python")
    trace.memcpy(5, 1)
    trace.memset(6, 1)
    trace.step(3, 1, 9, device_side=True)
    packed = trace.write(tmp_path / "a" / "rank0.json.gz")
    plain = trace.write(tmp_path / "rank0.json")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    categories = {e.get("cat") for e in json.loads(plain.read_bytes())["traceEvents"]}
    assert {"user_annotation", "gpu_user_annotation", "gpu_memcpy", "gpu_memset"} <= categories


def test_long_rank_lists_are_cut_as_torch_does():
    assert cut_list(range(3)) == "[0, 1, 2]"
    assert cut_list(range(40)).endswith("28, 29, ...]")
