"""Which host interval an instant lies in, on threads whose intervals nest."""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.intervals import IntArray

OUTSIDE = -1


def innermost(intervals: pl.DataFrame, points: pl.DataFrame) -> IntArray:
    """Row of the innermost interval around each point on the point's own thread.

    Args:
        intervals: start_ns, end_ns, pid, tid; any order. Intervals of a thread may nest; where two
            only overlap, the one that began later wins.
        points: at_ns, pid, tid. Rows with a null are outside everything.

    Returns:
        Row numbers into ``intervals``, :data:`OUTSIDE` where no interval holds the point.
    """
    found = np.full(points.height, OUTSIDE, dtype=np.int64)
    asked = points.with_row_index("_point").drop_nulls(["at_ns", "tid"])
    needed = intervals.select("start_ns", "end_ns", "pid", "tid").with_row_index("_row")
    usable = needed.drop_nulls(["start_ns", "end_ns", "tid"])
    if asked.is_empty() or usable.is_empty():
        return found
    usable, asked = _one_clock(usable, asked)
    usable = usable.sort("_start", "_end", descending=[False, True])
    starts, ends = usable["_start"].to_numpy(), usable["_end"].to_numpy()
    at = asked["_at"].to_numpy()
    enclosing = _parents(starts, ends)
    candidate = np.searchsorted(starts, at, side="right") - 1
    while True:
        beside = (candidate >= 0) & (ends[candidate] <= at)
        if not beside.any():
            break
        candidate[beside] = enclosing[candidate[beside]]
    rows = usable["_row"].to_numpy().astype(np.int64)
    found[asked["_point"].to_numpy()] = np.where(candidate >= 0, rows[candidate], OUTSIDE)
    return found


def _parents(starts: IntArray, ends: IntArray) -> IntArray:
    """For intervals sorted by (start, -end): the nearest earlier one still open at each start.

    Pointer jumping: whoever is not open at the start of `j` is not open at any later start either,
    so a chain may skip along pointers that are not final yet.
    """
    parent = np.arange(-1, starts.size - 1, dtype=np.int64)
    while True:
        closed = (parent >= 0) & (ends[parent] <= starts)
        if not closed.any():
            return parent
        parent[closed] = parent[parent[closed]]


def _one_clock(intervals: pl.DataFrame, points: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lay threads one behind the other on one axis, so that one search serves all of them."""
    threads = (
        pl.concat([intervals.select("pid", "tid"), points.select("pid", "tid")])
        .unique()
        .with_row_index("_thread")
    )
    low = min(_least(intervals["start_ns"]), _least(points["at_ns"]))
    high = max(_most(intervals["end_ns"]), _most(points["at_ns"]))
    shift = pl.col("_thread").cast(pl.Int64) * (high - low + 2) - low
    on = ["pid", "tid"]
    moved = intervals.join(threads, on=on, nulls_equal=True).with_columns(
        (pl.col("start_ns") + shift).alias("_start"), (pl.col("end_ns") + shift).alias("_end")
    )
    asked = points.join(threads, on=on, nulls_equal=True, maintain_order="left").with_columns(
        (pl.col("at_ns") + shift).alias("_at")
    )
    return moved, asked


def _least(times: pl.Series) -> int:
    return int(times.to_numpy().min())


def _most(times: pl.Series) -> int:
    return int(times.to_numpy().max())
