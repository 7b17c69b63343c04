"""Per axis and operation: wait, transfer and bandwidth, or what single ranks can say instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from analyzer.crossrank.bandwidth import Network, priced
from analyzer.crossrank.results import CrossRank
from analyzer.measure.axes import ALL_OPS
from analyzer.model import axis_sort_key

ENOUGH_PCT = 50.0
"""Share of an axis' communication events that must be split before a figure is given."""

SINGLE = "needs the traces of at least two ranks of a group"
SPLIT_FIGURES = ("wait_ns", "transfer_ns", "busbw_gbps", "link_efficiency", "split_pct")


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """The figures of :class:`analyzer.measure.results.AxisSummary` that concern links."""

    wait_ns: int | None = None
    transfer_ns: int | None = None
    unexplained_ns: int | None = None
    busbw_gbps: float | None = None
    spec_gbps: float | None = None
    link_efficiency: float | None = None
    split_pct: float | None = None


def link_figures(
    events: pl.DataFrame, crossrank: CrossRank | None, network: Network, windows: int
) -> dict[tuple[str, str], LinkFigures]:
    """Link figures per (axis, op), and over all ops of the axis as (axis, "").

    Times are means over ``windows``, like every figure of an axis. Where less than half of the
    events could be split nothing is, and ``unexplained_ns`` says how much longer the events took
    than such transfers usually do.

    Args:
        events: schema.COMM_EVENTS.
        crossrank: compared ranks, None for a single one.
        network: the job's links.
        windows: kept (rank, lane, step) windows, > 0.
    """
    split = {} if crossrank is None else _split(crossrank)
    alone = _alone(events, network)
    found = {}
    for key, own in alone.items():
        figures = split.get(key, {})
        pct = 100 * figures.get("events", 0) / own["count"]
        known = pct >= ENOUGH_PCT
        unexplained = own["unexplained_ns"]
        found[key] = LinkFigures(
            wait_ns=round(figures["wait_ns"] / windows) if known else None,
            transfer_ns=round(figures["transfer_ns"] / windows) if known else None,
            unexplained_ns=None if known or unexplained is None else round(unexplained / windows),
            busbw_gbps=figures["busbw_gbps"] if known else None,
            spec_gbps=own["spec_gbps"],
            link_efficiency=figures["link_efficiency"] if known else None,
            split_pct=None if crossrank is None else pct,
        )
    return found


def _split(crossrank: CrossRank) -> dict[tuple[str, str], dict[str, float]]:
    rows = crossrank.figures.iter_rows(named=True)
    return {(row["axis"], row["op"]): row for row in rows}


def _alone(events: pl.DataFrame, network: Network) -> dict[tuple[str, str], dict[str, float]]:
    """What needs no other rank: number, level, time above the usual transfer."""
    made = priced(events.rename({"message_bytes": "bytes"}), network).with_columns(
        (pl.col("end_ns") - pl.col("start_ns") - pl.col("typical_ns"))
        .clip(lower_bound=0)
        .alias("above_ns")
    )
    one_rate = (pl.col("spec_gbps").null_count() == 0) & (pl.col("spec_gbps").n_unique() == 1)
    all_priced = pl.col("above_ns").null_count() == 0
    found: dict[tuple[str, str], dict[str, float]] = {}
    for op in ("op", pl.lit(ALL_OPS).alias("op")):
        rows = made.group_by("axis", op).agg(
            pl.len().alias("count"),
            pl.when(one_rate).then(pl.col("spec_gbps").first()).alias("spec_gbps"),
            pl.when(all_priced).then(pl.col("above_ns").sum()).alias("unexplained_ns"),
        )
        found |= {(row["axis"], row["op"]): row for row in rows.iter_rows(named=True)}
    return found


def link_reasons(
    crossrank: CrossRank | None,
    network: Network,
    links: Mapping[tuple[str, str], LinkFigures],
) -> dict[str, str]:
    """Why figures of axes are null, by ``axes.<figure>``; only for those that are somewhere."""
    axes = {axis: row for (axis, op), row in links.items() if op == ALL_OPS}
    unsplit = sorted((a for a, row in axes.items() if row.wait_ns is None), key=axis_sort_key)
    reasons: dict[str, str] = {}
    if unsplit or not axes:
        why = SINGLE if crossrank is None else _why_unsplit(crossrank, unsplit)
        reasons |= {f"axes.{name}": why for name in SPLIT_FIGURES}
    if any(row.unexplained_ns is None for row in axes.values()):
        reasons["axes.unexplained_ns"] = network.why or (
            "given where waits cannot be told from transfers and the size and link of every "
            "operation are known"
        )
    if any(row.spec_gbps is None for row in axes.values()):
        reasons["axes.spec_gbps"] = network.why or (
            "the ranks of its groups are not known, or they span links of different rates"
        )
        reasons.setdefault("axes.link_efficiency", reasons["axes.spec_gbps"])
    return reasons


def clock_reason(crossrank: CrossRank | None) -> str:
    """Why there are no clock offsets."""
    return SINGLE if crossrank is None else "no two ranks share a synchronous collective"


def _why_unsplit(crossrank: CrossRank, axes: list[str]) -> str:
    """For each axis that is not split, the commonest reason."""
    refused = set(crossrank.clock.refused)
    parts = []
    for axis in axes:
        own = crossrank.unmatched.filter(pl.col("axis") == axis)
        counts = own.group_by("reason").agg(pl.col("count").sum()).sort("count", descending=True)
        groups = crossrank.instances.filter(pl.col("axis") == axis)["group"].unique().to_list()
        lacking = crossrank.instances.filter(
            (pl.col("axis") == axis) & (pl.col("traced") < pl.col("expected"))
        )
        if set(groups) & refused:
            why = "its members' clocks disagree too much"
        elif lacking.height:
            seen, size = lacking.select(pl.col("traced").max(), pl.col("expected").max()).row(0)
            why = f"only {seen} of {size} members of its groups have a trace"
        else:
            why = counts["reason"][0] if counts.height else "its clocks could not be compared"
        parts.append(f"{axis}: {why}")
    return "; ".join(parts) or SINGLE
