"""CPU traces: operators are the compute, gloo events the communication.

A gloo event says little: its kind (a reduce-scatter runs as ``gloo:all_reduce``), the shape of the
first tensor and the worker thread. The rest comes from the ``c10d`` operator that issued it, and
its group from the worker: every process group owns two worker threads and runs in order, so all
events of a worker are of one group, which the majority of its operators tells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzer import catalog
from analyzer import intervals as iv
from analyzer.groups import P2P_OPS, GroupUse
from analyzer.label.axis import Members, with_key
from analyzer.label.hints import axis_hints
from analyzer.label.link import around
from analyzer.label.message import MAX_ELEMENTS, PEERS, message_bytes
from analyzer.label.naming import named, on_host
from analyzer.label.peers import with_global_peers
from analyzer.label.written import written_list
from analyzer.model import Phase, ProcessGroup, RankTrace, TraceMeta, Work

GLOO_EVENT = r"^gloo:"
ISSUING_OP = r"^c10d::"
COMM_OP = r"^_?c10d(_functional)?(_autograd)?::"
COMPUTE_OP = r"^aten::"
RUNS_AS = {"reduce_scatter": "all_reduce", "all_to_allv": "all_to_all"}
TWO_SIDED = ("all_gather", "reduce_scatter", "all_to_all", "all_to_allv")
NO_THREAD = -1  # of an event whose thread id is damaged
PEER_ARGUMENT = 2  # c10d::send(tensors, group, dst, tag), c10d::recv_(tensors, group, src, tag)
SPLIT_ARGUMENTS = (3, 4)  # c10d::alltoall_base_(out, in, group, out splits, in splits, ...)


def is_host_side(trace: RankTrace) -> bool:
    """The trace holds no device work: operators on the host are the work."""
    return trace.device.is_empty()


def host_activity(trace: RankTrace) -> tuple[pl.DataFrame, Members]:
    """Compute and communication of a CPU trace in the columns of schema.ACTIVITY.

    Compute is, per thread, the union of ``aten`` operators minus the communication operators in
    them (DTensor runs its collectives inside an ``aten`` operator). Also returns the members of
    every group.
    """
    comm = _issued(_executed(trace), _issues(trace))
    comm = comm.with_columns(*_labels_from_host(comm, trace))
    comm, members = _with_groups(comm, trace.meta)
    compute = _compute(trace, _workers(comm))
    compute = compute.with_columns(around(trace.ranges, compute, at="host_ns", prefix="host_")[0])
    frame = pl.concat([compute, comm], how="diagonal_relaxed").with_columns(
        pl.lit(0, dtype=pl.Int32).alias("lane"),
        pl.col("host_ns").alias("launch_ns"),
        pl.col("host_tid").alias("launch_tid"),
        pl.lit(-1, dtype=pl.Int32).alias("step"),
        pl.lit(Phase.UNKNOWN.value).alias("phase"),
        pl.lit(None, dtype=pl.String).alias("named_axis"),
        pl.lit(value=False).alias("by_stream"),
        *(pl.lit(None, dtype=pl.Int64).alias(name) for name in PEERS),
    )
    return with_key(with_global_peers(frame, members)).sort(
        "lane", "start_ns", "end_ns", maintain_order=True
    ), members


# ---- communication ------------------------------------------------------------------------------


def _executed(trace: RankTrace) -> pl.DataFrame:
    """Gloo events: when and where each ran, its kind and the elements of its first tensor."""
    events = named(on_host(trace.ranges), GLOO_EVENT).sort("start_ns")
    names = events["name"].cast(pl.String)
    shapes = [
        _elements(dims, types)
        for dims, types in events.select("input_dims", "input_types").iter_rows()
    ]
    return events.select(
        "start_ns",
        "end_ns",
        pl.col("name").cast(pl.String),
        pl.col("tid").fill_null(NO_THREAD).alias("stream"),
        pl.col("pid").alias("host_pid"),
    ).with_columns(
        pl.Series("runs_as", [catalog.canonical_op(name) for name in names], dtype=pl.String),
        pl.Series(
            "first_nelems", [shape[0] if shape else None for shape in shapes], dtype=pl.Int64
        ),
        pl.Series("dtype", [_first_type(text) for text in events["input_types"]], dtype=pl.String),
    )


def _issues(trace: RankTrace) -> pl.DataFrame:
    """``c10d`` operators that issue a collective, with what their arguments tell."""
    ops = named(trace.ops, ISSUING_OP).sort("start_ns")
    rows = [
        _issue(name, dims, types, values)
        for name, dims, types, values in ops.select(
            pl.col("name").cast(pl.String), "input_dims", "input_types", "concrete_inputs"
        ).iter_rows()
    ]
    facts = pl.DataFrame(
        rows,
        schema={
            "op": pl.String, "runs_as": pl.String, "first_nelems": pl.Int64, "in_nelems": pl.Int64,
            "out_nelems": pl.Int64, "in_split": pl.String, "peer": pl.Int64, "told_size": pl.Int64,
        },
        orient="row",
    )  # fmt: skip
    issued = ops.select(
        "event",
        pl.col("start_ns").alias("host_ns"),
        pl.col("tid").alias("host_tid"),
        pl.col("name").cast(pl.String).alias("op_name"),
    )
    return pl.concat([issued, facts], how="horizontal").drop_nulls("op")


def _issue(
    name: str, dims: str | None, types: str | None, values: str | None
) -> tuple[object, ...]:
    op = catalog.host_collective(name)
    sizes = _elements(dims, types)
    concrete = [str(value) for value in written_list(values)]
    if op in TWO_SIDED and len(sizes) > 1:
        received, sent = sizes[0], sizes[1]
    else:
        received = sent = sizes[0] if sizes else None
    in_split = None
    told = _ratio(op, sent, received)
    if op == "all_to_all" and len(concrete) > max(SPLIT_ARGUMENTS):
        in_split = concrete[SPLIT_ARGUMENTS[1]]
        parts = written_list(in_split)
        op, told = ("all_to_allv", len(parts)) if parts else (op, told)
    peer = concrete[PEER_ARGUMENT] if len(concrete) > PEER_ARGUMENT and op in P2P_OPS else ""
    return (
        op,
        RUNS_AS.get(op or "", op),
        sent,
        sent,
        received,
        in_split,
        int(peer) if peer.isdecimal() else None,
        told,
    )


def _ratio(op: str | None, sent: int | None, received: int | None) -> int | None:
    """Members of the group, from how much larger one side of the collective is."""
    if not sent or not received:
        return None
    return {"all_gather": received // sent, "reduce_scatter": sent // received}.get(op or "")


def _issued(executed: pl.DataFrame, issues: pl.DataFrame) -> pl.DataFrame:
    """Executed events with the operator that issued each: the k-th of its kind and size.

    Events that began before the first such operator were issued before the capture and stay
    without one. Their kind is then what gloo ran.
    """
    kind = ["runs_as", "first_nelems"]
    first = issues.group_by(kind).agg(pl.col("host_ns").min().alias("_first"))
    order = pl.int_range(pl.len()).over(kind).alias("_k")
    late = executed.join(first, on=kind, how="left", nulls_equal=True, maintain_order="left")
    late = late.with_columns(
        (pl.col("start_ns") >= pl.col("_first")).fill_null(value=False).alias("_late")
    )
    ranked = pl.concat(
        [
            late.filter("_late").with_columns(order),
            late.filter(~pl.col("_late")).with_columns(pl.lit(None, dtype=pl.Int64).alias("_k")),
        ]
    )
    # without recorded shapes all sizes are null, and equal; a null `_k` finds nothing
    joined = ranked.join(issues.with_columns(order), on=[*kind, "_k"], how="left", nulls_equal=True)
    return joined.with_columns(
        pl.lit(Work.COMM.value).alias("work"),
        pl.lit("gloo").alias("family"),
        pl.col("op").fill_null(pl.col("runs_as").fill_null("other")),
        pl.col("event").fill_null(-1),
        pl.col("in_nelems").fill_null(pl.col("first_nelems")),
        pl.col("host_ns").fill_null(pl.col("start_ns")),
    ).drop("_first", "_late", "_k", "runs_as", "first_nelems")


def _labels_from_host(comm: pl.DataFrame, trace: RankTrace) -> list[pl.Series]:
    """Range and axis hints of every communication event, from where it was issued."""
    range_name, _ = around(trace.ranges, comm, at="host_ns", prefix="host_")
    comm = comm.with_columns(range_name)
    return [range_name, *axis_hints(comm, trace.ops)]


# ---- groups -------------------------------------------------------------------------------------


def _with_groups(comm: pl.DataFrame, meta: TraceMeta) -> tuple[pl.DataFrame, Members]:
    """``group``, ``desc`` and ``group_size`` of every event, by its worker thread.

    Point-to-point runs on the calling thread; it is one pool of its own.
    """
    comm = comm.with_columns(
        pl.when(pl.col("op").is_in(list(P2P_OPS))).then(-1).otherwise("stream").alias("_worker")
    )
    rows: list[tuple[object, str | None, str, int | None, str | None]] = []
    members: dict[str, tuple[int, ...]] = {}
    for (worker,), events in comm.group_by("_worker"):
        group = _group_of(events, meta.groups)
        sizes = events["told_size"].drop_nulls()
        size = int(sizes.mode().sort()[0]) if sizes.len() else None
        if group is None:
            rows.append((worker, None, "", size, None))
            continue
        key = GroupUse(tuple(sorted(group.ranks)), group.size, group.name).key
        members[key] = tuple(sorted(group.ranks))
        rows.append((worker, key, group.desc, group.size, group.name))
    schema = {
        "_worker": pl.Int64, "group": pl.String, "desc": pl.String, "group_size": pl.Int64,
        "group_name": pl.String,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema=schema, orient="row")
    comm = comm.join(table, on="_worker", how="left", maintain_order="left").drop("_worker")
    return comm.with_columns(message_bytes(comm)), members


def _group_of(events: pl.DataFrame, groups: Sequence[ProcessGroup]) -> ProcessGroup | None:
    """The one process group that fits the sizes and the surroundings of a worker's operators."""
    sizes = Counter(events["told_size"].drop_nulls().to_list())
    hints = Counter(events["hint"].drop_nulls().to_list())
    p2p = events["op"].is_in(list(P2P_OPS)).all()
    candidates = [group for group in groups if group.size > 1]
    if sizes:
        size = sizes.most_common(1)[0][0]
        candidates = [group for group in candidates if group.size == size]
    wanted = hints.most_common(1)[0][0] if hints else "pp" if p2p else ""
    described = [group for group in candidates if _serves(group, wanted)]
    silent = [group for group in candidates if catalog.described_axis(group.desc) is None]
    fitting = described or silent or candidates
    return fitting[0] if len(fitting) == 1 else None


def _serves(group: ProcessGroup, axis: str) -> bool:
    described = catalog.described_axis(group.desc)
    return described == axis or (described == "dp" and axis in ("dp_shard", "dp_replicate"))


def _workers(comm: pl.DataFrame) -> set[int]:
    return set(comm.filter(~pl.col("op").is_in(list(P2P_OPS)))["stream"].drop_nulls().to_list())


# ---- compute ------------------------------------------------------------------------------------


def _compute(trace: RankTrace, workers: set[int]) -> pl.DataFrame:
    """Union of compute operators minus communication operators, on every thread but gloo's."""
    compute = named(trace.ops, COMPUTE_OP)
    comm = named(trace.ops, COMM_OP)
    parts = []
    for thread in sorted(set(compute["tid"].drop_nulls().unique().to_list()) - workers):
        here = compute.filter(pl.col("tid") == thread)
        beside = comm.filter(pl.col("tid") == thread)
        work = iv.subtract(
            iv.merge(here["start_ns"], here["end_ns"]),
            iv.merge(beside["start_ns"], beside["end_ns"]),
        )
        owner = _owners(work.starts, here)
        parts.append(
            here.select("event", pl.col("name").cast(pl.String), pl.col("pid").alias("host_pid"))[
                owner
            ].with_columns(
                pl.Series("start_ns", work.starts),
                pl.Series("end_ns", work.ends),
                pl.lit(thread, dtype=pl.Int64).alias("stream"),
                pl.lit(thread, dtype=pl.Int64).alias("host_tid"),
                pl.lit(Work.COMPUTE.value).alias("work"),
            )
        )
    if not parts:
        return _NO_COMPUTE
    rows = pl.concat(parts)
    names = rows["name"].unique()
    families = pl.DataFrame(
        {"name": names, "family": pl.Series([catalog.op_family(n) for n in names], dtype=pl.String)}
    )
    return rows.join(families, on="name", how="left").with_columns(
        pl.col("start_ns").alias("host_ns")
    )


_NO_COMPUTE = pl.DataFrame(
    schema={
        "event": pl.Int64, "name": pl.String, "host_pid": pl.Int64, "start_ns": pl.Int64,
        "end_ns": pl.Int64, "stream": pl.Int64, "host_tid": pl.Int64, "work": pl.String,
        "family": pl.String, "host_ns": pl.Int64,
    }
)  # fmt: skip


def _owners(starts: iv.IntArray, ops: pl.DataFrame) -> iv.IntArray:
    """For the start of each piece of work: the row of the last operator begun by then."""
    began = ops["start_ns"].to_numpy()
    order = np.argsort(began, kind="stable")
    found = np.searchsorted(began[order], starts, side="right") - 1
    return np.asarray(order[np.maximum(found, 0)], dtype=np.int64)


# ---- arguments ----------------------------------------------------------------------------------


def _elements(dims: str | None, types: str | None) -> list[int | None]:
    """Elements of every argument: a tensor's, the sum of a tensor list's, None for others."""
    shapes = written_list(dims)
    kinds = map(str, written_list(types) or [""] * len(shapes))
    return [_count(shape, kind) for shape, kind in zip(shapes, kinds, strict=False)]


def _count(shape: object, kind: str) -> int | None:
    if not isinstance(shape, list) or not kind or kind.startswith("Scalar"):
        return None
    if kind in ("TensorList", "GenericList") or any(isinstance(part, list) for part in shape):
        parts = [_count(part, "tensor") for part in shape]
        return sum(part for part in parts if part is not None) if parts else None
    if any(type(part) is not int for part in shape):
        return None
    count = math.prod(shape)
    return count if 0 <= count < MAX_ELEMENTS else None


def _first_type(types: str | None) -> str | None:
    kinds = written_list(types)
    return str(kinds[0]) if kinds and kinds[0] else None
