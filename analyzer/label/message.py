"""How large a collective's message is, and what a batch of sends and receives carried."""

from __future__ import annotations

import polars as pl

from analyzer import catalog
from analyzer.model import RankTrace, Work

GROUP_ARGS = ["group_name", "group_desc", "group_ranks", "group_size", "rank_start", "rank_stride"]
PEERS = ["src_rank", "dst_rank"]
MAX_ELEMENTS = 2**40  # no message has more; above, the argument is damaged
RULES = {"op": pl.String, "dtype": pl.String, "_rule": pl.String, "_element": pl.Int64}


def message_bytes(frame: pl.DataFrame) -> pl.Series:
    """Size S of each row by the convention of nccl-tests (doc/PERFORMANCE.md), null if unknown.

    All-gather counts the output, reduce-scatter and all-reduce the input, uneven all-to-all the
    larger of both; a missing side is derived from the other and the group size where it can be.

    Args:
        frame: columns op, dtype, in_nelems, out_nelems, group_size.
    """
    kinds = frame.select("op", "dtype").unique().drop_nulls()
    facts = [
        (op, dtype, catalog.size_rule(str(op)), catalog.dtype_bytes(str(dtype)))
        for op, dtype in kinds.cast(pl.String).iter_rows()
    ]
    rules = pl.DataFrame(facts, schema=RULES, orient="row").with_columns(
        pl.col(name).cast(frame.schema[name]) for name in ("op", "dtype")
    )
    ruled = frame.select("op", "dtype", "in_nelems", "out_nelems", "group_size").join(
        rules, on=["op", "dtype"], how="left", maintain_order="left"
    )
    received, sent, size = (
        pl.when(pl.col(name).is_between(0, MAX_ELEMENTS)).then(name)
        for name in ("out_nelems", "in_nelems", "group_size")
    )
    elements = (
        pl.when(pl.col("_rule") == "out")
        .then(pl.coalesce(received, sent * size))
        .when((pl.col("_rule") == "in") & (pl.col("op") == "reduce_scatter"))
        .then(pl.coalesce(sent, received * size))
        .when(pl.col("_rule") == "in")
        .then(pl.coalesce(sent, received))
        .when(pl.col("_rule") == "max")
        .then(pl.max_horizontal(sent, received))
    )
    possible = pl.when(elements <= MAX_ELEMENTS).then(elements)
    return ruled.select((possible * pl.col("_element")).alias("message_bytes")).to_series()


def fill_coalesced(frame: pl.DataFrame, trace: RankTrace) -> pl.DataFrame:
    """Give the kernels of coalesced collectives the arguments Kineto could not attach.

    ``batch_isend_irecv`` and coalesced collectives launch their one kernel when the batch is
    closed, outside the scopes of its parts; the parts' ``record_param_comms`` operators were
    recorded on the same thread since the previous such launch. Parts add up; a kernel that sends
    and receives is ``send_recv`` and as large as its larger direction.

    Args:
        frame: rows of :func:`analyzer.label.classify.classify` with ``message_bytes``.
        trace: the rank's trace.
    """
    bare = (pl.col("work") == Work.COMM) & pl.col("collective").is_null()
    closing = (
        pl.col("comm_range").cast(pl.String).str.ends_with(":coalesced").fill_null(value=False)
    )
    batched = bare & ((pl.col("op") == "send_recv") | closing) & pl.col("launch_ns").is_not_null()
    launches = (
        frame.filter(batched)
        .select("launch_ns", pl.col("launch_pid").alias("pid"), pl.col("launch_tid").alias("tid"))
        .unique()
        .sort("launch_ns")
    )
    parts = _unlaunched(frame, trace)
    if launches.is_empty() or parts.is_empty():
        return frame
    matched = parts.sort("start_ns").join_asof(
        launches.with_columns(pl.col("launch_ns").alias("_launch")),
        left_on="start_ns",
        right_on="launch_ns",
        by=["pid", "tid"],
        strategy="forward",
        check_sortedness=False,
    )
    both_ways = _per_launch(matched.filter(pl.col("_launch").is_not_null()))
    joined = frame.join(
        both_ways,
        left_on=["launch_ns", "launch_pid", "launch_tid"],
        right_on=["_launch", "pid", "tid"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    filled = [
        pl.when(batched & pl.col("_parts").is_not_null())
        .then(f"_{name}")
        .otherwise(name)
        .alias(name)
        for name in ["op", "message_bytes", "dtype", "seq", *PEERS, *GROUP_ARGS]
    ]
    return joined.with_columns(filled).select(frame.columns)


def _unlaunched(frame: pl.DataFrame, trace: RankTrace) -> pl.DataFrame:
    """Collectives recorded on the host that no device event is linked to."""
    own = frame.filter(pl.col("collective").is_not_null())["op_event"].drop_nulls().unique()
    args = trace.comm_args.filter(
        (pl.col("source").cast(pl.String) == "op") & ~pl.col("event").is_in(own.implode())
    )
    names = args["collective"].drop_nulls().unique()
    kinds = pl.DataFrame(
        {
            "collective": names,
            "op": pl.Series(
                [catalog.canonical_op(name) for name in names.cast(pl.String).to_list()],
                dtype=pl.String,
            ),
        }
    ).drop_nulls("op")
    args = args.join(kinds, on="collective", how="inner", maintain_order="left")
    args = args.with_columns(message_bytes(args))
    return args.join(trace.ops.select("event", "start_ns", "pid", "tid"), on="event", how="inner")


def _per_launch(parts: pl.DataFrame) -> pl.DataFrame:
    sent = pl.col("message_bytes").filter(pl.col("op") == "send").sum()
    received = pl.col("message_bytes").filter(pl.col("op") == "recv").sum()
    sends, receives = (pl.col("op") == "send").any(), (pl.col("op") == "recv").any()
    return parts.group_by("_launch", "pid", "tid").agg(
        pl.len().alias("_parts"),
        pl.when(sends & receives)
        .then(pl.lit("send_recv"))
        .otherwise(pl.col("op").first())
        .alias("_op"),
        pl.when(pl.col("message_bytes").null_count() == 0)
        .then(
            pl.when(sends & receives)
            .then(pl.max_horizontal(sent, received))
            .otherwise(pl.col("message_bytes").sum())
        )
        .alias("_message_bytes"),
        pl.col("dtype").first().alias("_dtype"),
        pl.col("seq").first().alias("_seq"),
        *(pl.col(name).drop_nulls().first().alias(f"_{name}") for name in GROUP_ARGS),
        *(pl.col(name).drop_nulls().first().alias(f"_{name}") for name in PEERS),
    )
