"""Communication that stands alone, counted with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analyzer import schema
from analyzer.crossrank.calls import Calls
from analyzer.crossrank.clock import Clock
from analyzer.model import LabeledRank

NO_MEMBER = "no other member has a trace"
DESYNCHRONISED = "members disagree on what was called"
KEY = ["axis", "op", "rank", "reason"]


def unmatched(
    calls: Calls,
    instances: pl.DataFrame,
    desynchronised: pl.DataFrame,
    clock: Clock,
    ranks: Sequence[LabeledRank],
) -> pl.DataFrame:
    """schema.UNMATCHED: events that are in no instance which all traced members recorded."""
    lacking = instances.filter((pl.col("seen") < pl.col("traced")) & (pl.col("traced") > 1))
    alone = instances.filter(pl.col("traced") == 1)
    parts = [
        calls.lone.select(KEY),
        alone.with_columns(pl.lit(NO_MEMBER).alias("reason")).select(KEY),
        desynchronised.with_columns(pl.lit(DESYNCHRONISED).alias("reason")).select(KEY),
        _lacking(calls, lacking, clock, ranks).select(KEY),
    ]
    counted = pl.concat(parts).group_by(KEY).agg(pl.len().cast(pl.Int64).alias("count"))
    return schema.conform(counted.sort(KEY), schema.UNMATCHED)


def _lacking(
    calls: Calls, lacking: pl.DataFrame, clock: Clock, ranks: Sequence[LabeledRank]
) -> pl.DataFrame:
    """Which member did not record it, and whether its capture covered that time."""
    if lacking.is_empty():
        return lacking.with_columns(pl.lit("").alias("reason"))
    traced = set(calls.traced)
    members = pl.DataFrame(
        [(key, rank) for key, group in calls.groups.items() for rank in group if rank in traced],
        schema={"group": pl.String, "missing": pl.Int32}, orient="row",
    )  # fmt: skip
    windows = _captures(ranks, clock)
    one = lacking.unique("instance", keep="first", maintain_order=True)
    ends = one.select("instance", "group", "rank", "start_ns", "end_ns")
    placed = clock.aligned(ends) if clock.offset_ns else ends
    seats = placed.join(members, on="group").join(
        lacking.select("instance", pl.col("rank").alias("missing")),
        on=["instance", "missing"], how="anti",
    ).join(windows, on="missing", how="left")  # fmt: skip
    outside = (pl.col("end_ns") <= pl.col("from_ns")) | (pl.col("start_ns") >= pl.col("to_ns"))
    reasons = (
        seats.with_columns(
            pl.when(outside)
            .then(pl.lit("outside the capture of rank "))
            .otherwise(pl.lit("not recorded on rank "))
            .alias("why")
        )
        .sort("instance", "missing")
        .group_by("instance", maintain_order=True)
        .agg(pl.col("why").first(), pl.col("missing").first(), pl.len().alias("more"))
        .select(
            "instance",
            (
                pl.col("why")
                + pl.col("missing").cast(pl.String)
                + pl.when(pl.col("more") > 1).then(pl.lit(" and others")).otherwise(pl.lit(""))
            ).alias("reason"),
        )
    )
    return lacking.join(reasons, on="instance", how="left").with_columns(
        pl.col("reason").fill_null("not recorded by its peer")
    )


def _captures(ranks: Sequence[LabeledRank], clock: Clock) -> pl.DataFrame:
    """First start and last end of every rank's activity, on the reference's clock."""
    rows = [
        (r.trace.rank, r.activity["start_ns"].min(), r.activity["end_ns"].max())
        for r in ranks
        if r.activity.height
    ]
    schema_ = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    captures = pl.DataFrame(rows, schema=schema_, orient="row")
    placed = clock.aligned(captures) if clock.offset_ns else captures
    return placed.rename({"rank": "missing", "start_ns": "from_ns", "end_ns": "to_ns"})
