"""How much of the device's busy time could be told what it is."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analyzer.model import UNKNOWN_AXIS, LabeledRank, Work


def unclassified_pct(ranks: Sequence[LabeledRank]) -> float | None:
    """Device time of events no evidence could class, in percent of all events' time.

    Sums of durations over all ranks, lanes and streams; None where nothing ran.
    """
    return _share(ranks, pl.col("work") == Work.UNKNOWN, pl.lit(value=True))


def unknown_axis_pct(ranks: Sequence[LabeledRank]) -> float | None:
    """Communication whose axis no evidence tells, in percent of all communication time.

    None where nothing communicates.
    """
    communicates = pl.col("work").is_in([Work.COMM, Work.FUSED])
    return _share(ranks, communicates & (pl.col("axis") == UNKNOWN_AXIS), communicates)


def _share(ranks: Sequence[LabeledRank], part: pl.Expr, whole: pl.Expr) -> float | None:
    duration = pl.col("end_ns") - pl.col("start_ns")
    part_ns = whole_ns = 0
    for rank in ranks:
        sums = rank.activity.select(
            duration.filter(part).sum().alias("part"), duration.filter(whole).sum().alias("whole")
        )
        part_ns += int(sums["part"][0])
        whole_ns += int(sums["whole"][0])
    return 100.0 * part_ns / whole_ns if whole_ns else None
