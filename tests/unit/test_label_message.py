"""Message sizes by the nccl-tests convention, and batches of sends and receives."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from builders import Group, TraceBuilder

from analyzer.label.classify import classify
from analyzer.label.link import link
from analyzer.label.message import fill_coalesced, message_bytes
from collectors.kineto import read_trace

PP = Group("5", "mesh_pp", (0, 4))


def size(
    op: str, dtype: str | None, sent: int | None, received: int | None, n: int | None = 8
) -> int | None:
    row = {"op": op, "dtype": dtype, "in_nelems": sent, "out_nelems": received, "group_size": n}
    schema = {
        "op": pl.String,
        "dtype": pl.String,
        "in_nelems": pl.Int64,
        "out_nelems": pl.Int64,
        "group_size": pl.Int64,
    }
    found = message_bytes(pl.DataFrame([row], schema=schema))
    return found[0]


@pytest.mark.parametrize(
    ("op", "dtype", "sent", "received", "expected"),
    [
        ("all_reduce", "Float", 100, 100, 400),
        ("all_gather", "BFloat16", 100, 800, 1600),  # output bytes
        ("all_gather", "Float8_e4m3fn", 100, None, 800),  # derived: shard times members
        ("reduce_scatter", "Float", 800, 100, 3200),  # input bytes
        ("reduce_scatter", "Float", None, 100, 3200),
        ("all_to_all", "Half", 64, 64, 128),
        ("all_to_allv", "Half", 64, 80, 160),  # the larger direction
        ("broadcast", "Byte", 10, 10, 10),
        ("send", "Long", 10, 0, 80),
        ("recv", "Long", 0, 10, 80),
        ("all_reduce", "Mystery", 100, 100, None),
        ("all_reduce", None, 100, 100, None),
        ("dispatch", "Byte", 100, 100, None),
        ("all_reduce", "Float", None, None, None),
    ],
)
def test_message_bytes(
    op: str, dtype: str | None, sent: int | None, received: int | None, expected: int | None
) -> None:
    assert size(op, dtype, sent, received) == expected


def batch(trace: TraceBuilder, at: float, parts: list[tuple[str, int]]) -> None:
    """``batch_isend_irecv``: operators first, one kernel without arguments when it is closed."""
    for n, (op, nelems) in enumerate(parts):
        name = "c10d::send" if op == "send" else "c10d::recv_"
        args = {
            "Collective name": op, "In msg nelems": nelems, "Out msg nelems": nelems,
            "dtype": "BFloat16", "Group size": 2, "Process Group Name": "5",
            "Process Group Description": "mesh_pp",
            "Process Group Ranks": "[0, 4]", "Seq": int(at) + n,
        }  # fmt: skip
        trace.op(name, at + 10 * n, 8)
        trace.op("record_param_comms", at + 10 * n + 2, 4, **args)
    trace.range("nccl:coalesced", at + 80, 15)
    trace.kernel(
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        at + 200,
        50,
        stream=22,
        launch_ts=at + 85,
    )


def test_batched_p2p_gets_the_arguments_of_its_own_batch(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=0, world_size=8, groups=[PP])
    batch(trace, 1000, [("send", 100), ("recv", 300)])
    batch(trace, 2000, [("recv", 50)])
    batch(trace, 3000, [("send", 70), ("send", 30)])
    trace.collective("send", 4300, 50, group="5", nelems=10, launch_ts=4100)  # not batched
    batch(trace, 5000, [])
    loaded = read_trace(trace.write(tmp_path / "rank0.json"))
    events = classify(link(loaded), loaded)
    events = fill_coalesced(events.with_columns(message_bytes(events)), loaded).sort("start_ns")
    assert events["op"].to_list() == ["send_recv", "recv", "send", "send", "send_recv"]
    assert events["message_bytes"].to_list() == [600, 100, 200, 20, None]
    assert events["group_ranks"].to_list() == ["[0, 4]"] * 4 + [None]
    assert events["seq"].to_list()[:3] == [1000, 2000, 3000]


def test_coalesced_collectives_add_up(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=0, world_size=8, groups=[Group("2", "mesh_dp_shard", (0, 2, 4, 6))])
    for n, shard in enumerate((100, 300)):
        args = {
            "Collective name": "_allgather_base", "In msg nelems": shard, "dtype": "Float",
            "Out msg nelems": 4 * shard, "Group size": 4, "Process Group Name": "2",
            "Process Group Description": "mesh_dp_shard", "Process Group Ranks": "[0, 2, 4, 6]",
        }  # fmt: skip
        trace.op("record_param_comms", 1000 + 10 * n, 4, **args)
    trace.range("nccl:coalesced", 1080, 15)
    trace.kernel("ncclDevKernel_AllGather_RING_LL()", 1200, 50, stream=22, launch_ts=1085)
    loaded = read_trace(trace.write(tmp_path / "rank0.json"))
    events = classify(link(loaded), loaded)
    events = fill_coalesced(events.with_columns(message_bytes(events)), loaded)
    row = events.row(0, named=True)
    assert (row["op"], row["message_bytes"], row["group_ranks"]) == (
        "all_gather",
        6400,
        "[0, 2, 4, 6]",
    )
