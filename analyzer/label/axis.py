"""From labelled work to process groups, and from the groups' labels back to every event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import polars as pl
import polars.selectors as cs

from analyzer import catalog
from analyzer.groups import TINY_ELEMENTS, GroupUse, OpUse
from analyzer.label.message import GROUP_ARGS
from analyzer.label.written import written_integers
from analyzer.model import UNKNOWN_AXIS, WORLD_AXIS, Evidence, Phase, TraceMeta, Work
from analyzer.topology import Topology

REDUCTIONS = ("all_reduce", "reduce", "barrier")
STREAM_CONFIDENCE = 0.6
WORLD_CONFIDENCE = 0.7
GROUP = ["key", "desc"]
FAMILY_KEY = "kernel "

Members = Mapping[str, tuple[int, ...]]


def communicates() -> pl.Expr:
    """Work that has an axis."""
    return pl.col("work").is_in([Work.COMM, Work.FUSED])


# ---- groups of one rank -------------------------------------------------------------------------


def find_groups(frame: pl.DataFrame, meta: TraceMeta) -> tuple[pl.DataFrame, Members]:
    """Tell the group of every communication event from its arguments.

    Adds ``group`` (ranks as `0,1,2,3`, else `name:size`, null where unknown), ``desc``,
    ``by_stream`` and ``key`` (see :func:`with_key`), and replaces ``group_size``. Also returns the
    members behind each group.

    Ranks are read from the arguments; a list that Kineto cut is completed from the trace's group
    table by name, or from first rank, stride and size. A kernel without arguments on a stream that
    carries one group's collectives only belongs to that group: a communicator has its own stream.
    """
    told = communicates() & pl.any_horizontal(pl.col("group_size", "group_name").is_not_null())
    distinct = frame.filter(told).select(GROUP_ARGS).unique()
    table = {group.name: group for group in meta.groups}
    members: dict[str, tuple[int, ...]] = {}
    rows = []
    for row in distinct.iter_rows(named=True):
        known = table.get(row["group_name"] or "")
        ranks = _ranks(row, known.ranks if known else ())
        size = len(ranks) or row["group_size"] or (known.size if known else 0)
        desc = row["group_desc"] or (known.desc if known else "")
        key = GroupUse(ranks, size, row["group_name"] or "").key
        members[key] = ranks
        rows.append((key, desc, size))
    schema = {"group": pl.String, "desc": pl.String, "size": pl.Int64}
    keys = pl.DataFrame(rows, schema=schema, orient="row")
    found = pl.concat([distinct, keys], how="horizontal")
    frame = frame.join(found, on=GROUP_ARGS, how="left", nulls_equal=True, maintain_order="left")
    frame = frame.with_columns(pl.when(communicates()).then(pl.col(list(schema))))
    frame = _by_stream(frame).drop("group_size").rename({"size": "group_size"})
    return with_key(frame), members


def _ranks(row: Mapping[str, object], listed: tuple[int, ...]) -> tuple[int, ...]:
    """Members of a group from its written list, the trace's group table or start and stride."""
    text, size = str(row["group_ranks"] or ""), row["group_size"]
    if ranks := tuple(sorted(written_integers(text))):
        return ranks
    if listed and (not isinstance(size, int) or len(listed) == size):
        return tuple(sorted(listed))
    start, stride = row["rank_start"], row["rank_stride"]
    if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int) and stride > 0:
        return tuple(range(start, start + stride * size, stride))
    return ()


def _by_stream(frame: pl.DataFrame) -> pl.DataFrame:
    """Ungrouped collectives take the group of their stream where there is only one."""
    columns = ["group", "desc", "size"]
    owners = (
        frame.filter(pl.col("group").is_not_null())
        .group_by("device", "stream")
        .agg(pl.struct(columns).n_unique().alias("_n"), pl.col(columns).first().name.prefix("_"))
        .filter(pl.col("_n") == 1)
    )
    bare = (
        (pl.col("work") == Work.COMM)
        & pl.col("group").is_null()
        & pl.col("named_axis").is_null()
        & pl.col("_group").is_not_null()
    )
    joined = frame.join(owners, on=["device", "stream"], how="left", maintain_order="left")
    joined = joined.with_columns(bare.alias("by_stream"))
    taken = [pl.when("by_stream").then(f"_{name}").otherwise(name).alias(name) for name in columns]
    return joined.with_columns(taken).drop(cs.starts_with("_"))


def with_key(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``key``: what is labelled as one. The group, else the kernel family, else the stream."""
    implied = pl.format(f"{FAMILY_KEY}{{}}:0", pl.col("named_axis"))
    stream = pl.format("stream {}:{}", pl.col("stream"), pl.col("group_size").fill_null(0))
    key = pl.when(communicates()).then(pl.coalesce("group", implied, stream)).alias("key")
    return frame.with_columns(key)


def is_tiny() -> pl.Expr:
    """Reductions of a few elements and barriers: losses, norms, counts."""
    few = pl.min_horizontal("in_nelems", "out_nelems") <= TINY_ELEMENTS
    tiny = (pl.col("op").is_in(REDUCTIONS) & few) | (pl.col("op") == "barrier")
    return tiny.fill_null(value=False).alias("tiny")


def ranged_hints(frame: pl.DataFrame, column: str) -> pl.Series:
    """Axis that the name in ``column`` implies for each row's collective, null where silent."""
    distinct = frame.select(column, "op").unique().drop_nulls()
    axes = [catalog.ranged_axis(str(name), str(op)) for name, op in distinct.iter_rows()]
    table = distinct.with_columns(pl.Series("hint", axes, dtype=pl.String))
    on = [column, "op"]
    return frame.select(on).join(table, on=on, how="left", maintain_order="left")["hint"]


def group_uses(frame: pl.DataFrame, members: Members) -> tuple[GroupUse, ...]:
    """What was seen on every group of one rank.

    Args:
        frame: columns work, key, desc, group_size, named_axis, op, message_bytes, tiny, hint,
            ranged and phase.
        members: ranks behind each key, where known.
    """
    comm = frame.filter(communicates()).with_columns(pl.col("desc").fill_null(""))
    phases_known = bool((frame["phase"] == Phase.BACKWARD.value).any())
    bulk = comm.filter(~pl.col("tiny"))
    ops = bulk.group_by(*GROUP, "op").agg(
        pl.len(),
        pl.col("message_bytes").sum(),
        (pl.col("phase") == Phase.FORWARD).sum().alias("forward"),
        (pl.col("phase") == Phase.OPTIMIZER).sum().alias("optimizer"),
    )
    hints = (
        bulk.filter(pl.col("hint").is_not_null())
        .group_by(*GROUP, "hint")
        .agg(pl.len(), pl.col("ranged").any())
    )
    ops_of: dict[tuple[str, str], dict[str, OpUse]] = defaultdict(dict)
    for key, desc, op, *counts in ops.iter_rows():
        ops_of[key, desc][op] = OpUse(*counts)
    hints_of: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    ranged_of: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, desc, axis, count, ranged in hints.iter_rows():
        hints_of[key, desc][axis] = count
        if ranged:
            ranged_of[key, desc].add(axis)
    heads = comm.group_by(GROUP).agg(
        pl.col("group_size").max(), pl.col("tiny").sum(), pl.col("named_axis").first()
    )
    return tuple(
        GroupUse(
            ranks=members.get(key, ()),
            size=size or 0,
            name=key.rpartition(":")[0],
            desc=desc,
            ops=ops_of[key, desc],
            tiny=tiny,
            hints=hints_of[key, desc],
            ranged=frozenset(ranged_of[key, desc]),
            phases_known=phases_known,
            implied=implied if key.startswith(FAMILY_KEY) else "",
        )
        for key, desc, size, tiny, implied in heads.sort(GROUP).iter_rows()
    )


# ---- labels back to events ----------------------------------------------------------------------


def apply_labels(frame: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Fill ``axis``, ``evidence`` and ``confidence`` of communication from the groups' labels.

    Small reductions on a group of all ranks that nothing describes are `world`: losses and norms
    run on the default group, also where it is at the same time the job's only axis.
    """
    shared = topology.shared_with_world
    rows = [
        (key, desc, label.axis, label.evidence.value, label.confidence, shared(key, desc))
        for (key, desc), label in topology.labels.items()
    ]
    schema = {"key": pl.String, "desc": pl.String, "axis": pl.String, "evidence": pl.String}
    labels = pl.DataFrame(
        rows, schema=schema | {"confidence": pl.Float64, "_shared": pl.Boolean}, orient="row"
    )
    joined = frame.with_columns(pl.col("desc").fill_null("")).join(
        labels, on=GROUP, how="left", maintain_order="left"
    )
    world = pl.col("tiny") & pl.col("_shared") & communicates()
    weaker = pl.min_horizontal("confidence", pl.lit(STREAM_CONFIDENCE))
    return joined.with_columns(
        pl.when(world)
        .then(pl.lit(WORLD_AXIS))
        .when(communicates())
        .then(pl.col("axis").fill_null(UNKNOWN_AXIS))
        .alias("axis"),
        pl.when(world)
        .then(pl.lit(Evidence.SIGNATURE.value))
        .when(communicates())
        .then(pl.col("evidence").fill_null(Evidence.NONE.value))
        .alias("evidence"),
        pl.when(world)
        .then(WORLD_CONFIDENCE)
        .when("by_stream")
        .then(weaker)
        .when(communicates())
        .then(pl.col("confidence").fill_null(0.0))
        .alias("confidence"),
    ).drop("_shared")
