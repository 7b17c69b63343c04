"""Where the time of a matched collective went: waiting for the last member, or transferring.

For a member r: ``wait_r`` = latest aligned start over members minus own start; ``transfer`` = end
minus latest start, the least over members (definitions, collectives). The least duration over
members is no substitute: it is too long when all wait for a late event, and it hides nothing of a
link that is slow for everybody only because aligned clocks say when the last one came.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analyzer import schema
from analyzer.crossrank.bandwidth import Network, busbw_table, priced
from analyzer.crossrank.clock import MAX_RESIDUAL_NS, Clock
from analyzer.groups import P2P_OPS
from analyzer.model import LabeledRank

TIE_NS = 5_000
"""A member that starts less than this after the last but one is not called late."""
ALL_OPS = ""
PP_AXIS = "pp"
ENOUGH = 0.95  # share of a pipeline's transfers that must be split to tell its bubble


def split(instances: pl.DataFrame, clock: Clock, network: Network) -> pl.DataFrame:
    """schema.SPLITS of the instances that can be split, with their price beside (unchecked).

    An instance is split when every member recorded it and the clocks of its group agree: an unseen
    member may have been the last one.
    """
    whole = instances.filter((pl.col("seen") == pl.col("expected")) & _comparable(clock))
    aligned = clock.aligned(
        whole.with_columns(own_start=pl.col("start_ns"), own_end=pl.col("end_ns"))
    )
    error = pl.col("group").replace_strict(
        dict(clock.residual_ns), default=0, return_dtype=pl.Int64
    )
    late = pl.col("latest_ns") - pl.col("second_ns")
    rows = (
        aligned.join(_of_instances(aligned), on="instance", how="left", maintain_order="left")
        .with_columns(error.alias("error_ns"))
        .with_columns(
            (pl.col("latest_ns") - pl.col("start_ns")).alias("wait_ns"),
            pl.col("transfer_ns").clip(lower_bound=0),
            pl.when(late > pl.max_horizontal("error_ns", pl.lit(TIE_NS)))
            .then("last_rank")
            .alias("late_rank"),
        )
        .with_columns(
            pl.when(pl.col("late_rank").is_not_null()).then(late).otherwise(0).alias("late_ns"),
            pl.col("own_start").alias("start_ns"),
            pl.col("own_end").alias("end_ns"),
            pl.col("worst_bytes").alias("bytes"),
        )
    )
    made = priced(rows, network)
    return made.with_columns((pl.col("factor") * pl.col("bytes")).alias("bus_bytes"))


def _comparable(clock: Clock) -> pl.Expr:
    """Collectives by their group's residual, transfers by how well both ends know their clock."""
    trusted = [g for g, ns in clock.residual_ns.items() if ns <= MAX_RESIDUAL_NS]
    sure = [rank for rank, ns in clock.spread_ns.items() if ns <= MAX_RESIDUAL_NS]
    transfer = pl.col("op").is_in(sorted(P2P_OPS))
    joined = pl.col("rank").replace_strict(dict(clock.reference), default=-1, return_dtype=pl.Int32)
    one_clock = (joined.n_unique() == 1) & (joined.min() >= 0)
    both = pl.col("rank").is_in(sure).all() & one_clock
    return (transfer & both.over("instance")) | (~transfer & pl.col("group").is_in(trusted))


def _of_instances(aligned: pl.DataFrame) -> pl.DataFrame:
    start = pl.col("start_ns")
    return aligned.group_by("instance").agg(
        start.max().alias("latest_ns"),
        start.top_k(2).min().alias("second_ns"),
        pl.col("rank").get(start.arg_max()).alias("last_rank"),
        (pl.col("end_ns").min() - start.max()).alias("transfer_ns"),
        pl.col("bytes").max().alias("worst_bytes"),
    )


def once(splits: pl.DataFrame) -> pl.DataFrame:
    """One row an event: a kernel that sends and receives waits for the later of its two peers."""
    return splits.sort("wait_ns", descending=True).unique(
        ["rank", "lane", "event"], keep="first", maintain_order=True
    )


def stage_waits(
    splits: pl.DataFrame, ranks: Sequence[LabeledRank]
) -> dict[int, pl.DataFrame] | None:
    """Per rank, how long each point-to-point event of the pipeline waits: event, wait_ns.

    None where fewer than :data:`ENOUGH` of them could be split, or there are none.
    """
    pp2p = (pl.col("axis").cast(pl.String) == PP_AXIS) & pl.col("op").cast(pl.String).is_in(
        sorted(P2P_OPS)
    )
    inside = pl.col("step") >= 0
    total = sum(r.activity.select((pp2p & inside).sum()).item() or 0 for r in ranks)
    own = once(splits.filter(pp2p))
    if not total or own.filter(inside).height < ENOUGH * total:
        return None
    return {
        rank.trace.rank: own.filter(rank=rank.trace.rank).select("event", "wait_ns")
        for rank in ranks
    }


def in_kept_steps(rows: pl.DataFrame, ranks: Sequence[LabeledRank]) -> pl.DataFrame:
    """Rows of steps that count in averages."""
    kept = pl.concat(
        rank.steps.filter("kept").select(
            pl.lit(rank.trace.rank, dtype=pl.Int32).alias("rank"), "lane",
            pl.col("index").alias("step"),
        )
        for rank in ranks
    )  # fmt: skip
    return rows.join(kept, on=["rank", "lane", "step"], how="semi", maintain_order="left")


def axis_figures(kept: pl.DataFrame) -> pl.DataFrame:
    """Sums over kept steps and ranks per (axis, op) and, as op "", per axis.

    Columns axis, op, events, wait_ns, transfer_ns, busbw_gbps, spec_gbps, link_efficiency. Bus
    bandwidth and efficiency weigh instances by their transfer; they are null where the size, the
    device or the level of any is not known or differs.
    """
    events = once(kept)
    instances = kept.unique("instance", keep="first", maintain_order=True)
    parts = []
    for op in ("op", pl.lit(ALL_OPS).alias("op")):
        times = events.group_by("axis", op).agg(
            pl.len().alias("events"), pl.col("wait_ns").sum(), pl.col("transfer_ns").sum()
        )
        sized = instances.filter(pl.col("factor").is_not_null())
        rates = sized.group_by("axis", op).agg(
            _over("bus_bytes").alias("busbw_gbps"),
            pl.when(pl.col("spec_gbps").n_unique() == 1)
            .then(pl.col("spec_gbps").first())
            .alias("spec_gbps"),
            _over("spec_ns").alias("link_efficiency"),
        )
        parts.append(times.join(rates, on=["axis", "op"], how="left"))
    return pl.concat(parts).sort("axis", "op")


def _over(part: str) -> pl.Expr:
    known = (pl.col(part).null_count() == 0) & (pl.col("transfer_ns").sum() > 0)
    return pl.when(known).then(pl.col(part).sum() / pl.col("transfer_ns").sum())


def waits(kept: pl.DataFrame, ranks: Sequence[LabeledRank]) -> pl.DataFrame:
    """schema.WAITS: per rank and axis, means per kept step."""
    steps = pl.DataFrame(
        [(r.trace.rank, int(r.steps["kept"].sum())) for r in ranks],
        schema={"rank": pl.Int32, "steps": pl.Int64}, orient="row",
    )  # fmt: skip
    late = pl.col("late_rank") == pl.col("rank")
    rows = (
        once(kept)
        .group_by("rank", "axis")
        .agg(
            pl.col("wait_ns").sum(),
            pl.col("transfer_ns").sum(),
            pl.col("late_ns").filter(late).sum().alias("caused_ns"),
            pl.len().alias("instances"),
            late.sum().cast(pl.Int64).alias("late"),
        )
        .join(steps, on="rank")
        .with_columns(
            (pl.col(name) / pl.col("steps")).round()
            for name in ("wait_ns", "transfer_ns", "caused_ns")
        )
        .sort("rank", "axis")
    )
    return schema.conform(rows, schema.WAITS)


def busbw(kept: pl.DataFrame) -> pl.DataFrame:
    """schema.BUSBW of the instances of kept steps."""
    return busbw_table(kept.unique("instance", keep="first", maintain_order=True))
