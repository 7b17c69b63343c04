"""Means over kept steps and ranks, as integers that still add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from analyzer.measure.axes import ALL_OPS
from analyzer.measure.budget import BUBBLE, COMPUTE, EXPOSED, IDLE, MEMCPY
from analyzer.measure.expected import Expected
from analyzer.measure.lane import PP_AXIS
from analyzer.measure.links import LinkFigures
from analyzer.measure.results import AxisSummary, Budget, RankSummary
from analyzer.model import axis_sort_key

WINDOW = ["rank", "lane", "step"]


def shares(sums: Sequence[int], count: int) -> list[int]:
    """``sum / count`` for each sum, rounded so that the results add up to the rounded total.

    Largest remainder: all are rounded down, and what is missing goes to the largest fractions, the
    earlier one first among equals.
    """
    floors = [value // count for value in sums]
    missing = (sum(sums) + count // 2) // count - sum(floors)
    by_fraction = sorted(range(len(sums)), key=lambda i: -(sums[i] % count))
    for i in by_fraction[:missing]:
        floors[i] += 1
    return floors


def mean_budget(kept: pl.DataFrame) -> Budget | None:
    """Mean of schema.BUDGET rows over their (rank, lane, step) windows; None without rows."""
    windows = kept.select(pl.struct(WINDOW).n_unique()).item() if kept.height else 0
    if windows == 0:
        return None
    sums = kept.group_by("state", "detail", maintain_order=True).agg(pl.col("ns").sum())
    keys = list(sums.select("state", "detail").iter_rows())
    means = dict(zip(keys, shares(sums["ns"].to_list(), windows), strict=True))
    axes = sorted({detail for state, detail in means if state == EXPOSED}, key=axis_sort_key)
    return Budget(
        time_ns=sum(means.values()),
        compute_ns=means.get((COMPUTE, ""), 0),
        exposed_comm_ns={axis: means[EXPOSED, axis] for axis in axes},
        bubble_ns=means.get((BUBBLE, ""), 0) if _bubble_known(kept) else None,
        memcpy_ns=means.get((MEMCPY, ""), 0),
        idle_ns={detail: ns for (state, detail), ns in means.items() if state == IDLE},
    )


def _bubble_known(kept: pl.DataFrame) -> bool:
    """Whether every window in which a pipeline communicates tells its waits."""
    pipeline = kept.filter(state=EXPOSED, detail=PP_AXIS).select(WINDOW)
    return pipeline.join(kept.filter(state=BUBBLE), on=WINDOW, how="anti").is_empty()


def state_pct(kept: pl.DataFrame, state: str) -> float | None:
    """Mean over windows of 100 x time in a state / window; None without a window."""
    per_window = (
        kept.group_by(WINDOW)
        .agg(
            pl.col("ns").filter(pl.col("state") == state).sum().alias("part"),
            pl.col("ns").sum().alias("window"),
        )
        .filter(pl.col("window") > 0)
        .sort(WINDOW)  # a fixed order of summation: equal inputs give equal bits
    )
    share = per_window.select(100 * pl.col("part") / pl.col("window")).to_series()
    return None if share.is_empty() else float(share.sum()) / share.len()


def exposed_pct(kept: pl.DataFrame) -> float | None:
    """Share of exposed communication."""
    return state_pct(kept, EXPOSED)


def rank_summaries(kept: pl.DataFrame) -> tuple[RankSummary, ...]:
    """Mean step of every rank and lane, in order."""
    summaries = []
    for (rank, lane), rows in kept.sort("rank", "lane").group_by(
        "rank", "lane", maintain_order=True
    ):
        budget, pct = mean_budget(rows), exposed_pct(rows)
        if budget is not None and pct is not None:
            steps = rows["step"].n_unique()
            summaries.append(RankSummary(int(str(rank)), int(str(lane)), steps, budget, pct))
    return tuple(summaries)


def axis_summaries(
    kept: pl.DataFrame,
    windows: int,
    expected: Mapping[tuple[str, str], Expected],
    links: Mapping[tuple[str, str], LinkFigures],
) -> tuple[AxisSummary, ...]:
    """Per step means of every axis and op, in canonical order; the whole axis before its ops.

    Args:
        kept: schema.AXIS_STEP rows of kept steps.
        windows: kept (rank, lane, step) windows of the job, also those without the axis: the means
            are over all of them, so that they can be compared with the budget.
        expected: unavoidable exposure.
        links: wait, transfer and bandwidth.
    """
    sums = kept.group_by("axis", "op").agg(
        pl.col("count", "comm_ns", "exposed_ns").sum(),
        pl.when(pl.col("bytes").null_count() == 0).then(pl.col("bytes").sum()),
    )
    rows = sorted(sums.iter_rows(named=True), key=lambda r: (axis_sort_key(r["axis"]), r["op"]))
    summaries = []
    for row in rows:
        comm, exposed = row["comm_ns"], row["exposed_ns"]
        exposed_ns = round(exposed / windows)  # events that overlap are exposed once
        judged = expected.get((row["axis"], row["op"]), Expected(None, ""))
        link = links.get((row["axis"], row["op"]), LinkFigures())
        summaries.append(
            AxisSummary(
                axis=row["axis"],
                op=row["op"],
                count=row["count"] / windows,
                bytes=None if row["bytes"] is None else row["bytes"] / windows,
                comm_ns=round(comm / windows),
                exposed_ns=exposed_ns,
                overlap_pct=100 * (1 - exposed / comm) if comm else None,
                expected_exposed_ns=None if judged.ns is None else min(judged.ns, exposed_ns),
                expected_why=judged.why,
                wait_ns=link.wait_ns,
                transfer_ns=link.transfer_ns,
                unexplained_ns=link.unexplained_ns,
                busbw_gbps=link.busbw_gbps,
                spec_gbps=link.spec_gbps,
                link_efficiency=link.link_efficiency,
                split_pct=link.split_pct,
            )
        )
    return tuple(summaries)


__all__ = [
    "ALL_OPS",
    "axis_summaries",
    "exposed_pct",
    "mean_budget",
    "rank_summaries",
    "shares",
    "state_pct",
]
