"""Communication by axis and by event: how much, and how much of it nothing hides.

Standalone figures: each axis is looked at as if it were alone, so axes that run at the same time
both count it. The shares of the budget, which add up, are in :mod:`analyzer.measure.budget`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer import schema
from analyzer.intervals import covered_before, merge, overlap, subtract
from analyzer.measure.lane import Lane

ALL_OPS = ""


def axis_step(lane: Lane) -> pl.DataFrame:
    """schema.AXIS_STEP of a lane: per step, axis and op (and over all ops of the axis).

    ``comm_ns`` is the length of the union of the ops, ``exposed_ns`` of the union minus the union
    of compute, both by time within the step's window; copies hide nothing. ``count`` and ``bytes``
    are of the events that belong to the step.
    """
    comm = lane.communication
    parts = [
        (axis, op, rows)
        for (axis, op), rows in (
            *comm.group_by("axis", "op", maintain_order=True),
            *comm.group_by("axis", pl.lit(ALL_OPS), maintain_order=True),
        )
    ]
    if not parts:
        return schema.AXIS_STEP.empty()
    figures = pl.concat(_measure(lane, str(axis), str(op), rows) for axis, op, rows in parts)
    return lane.keyed(figures, schema.AXIS_STEP)


def _measure(lane: Lane, axis: str, op: str, events: pl.DataFrame) -> pl.DataFrame:
    union = merge(events["start_ns"], events["end_ns"])
    exposed = subtract(union, lane.compute)
    size = pl.col("message_bytes")
    counted = events.group_by("step").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.when(size.null_count() == 0).then(size.sum()).alias("bytes"),
    )
    return (
        lane.steps.select(
            pl.col("index").alias("step"), pl.lit(axis).alias("axis"), pl.lit(op).alias("op")
        )
        .with_columns(
            pl.Series("comm_ns", overlap(lane.edges[:-1], lane.edges[1:], union)),
            pl.Series("exposed_ns", overlap(lane.edges[:-1], lane.edges[1:], exposed)),
        )
        .join(counted, on="step", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("count").is_null()).then(0).otherwise("bytes").alias("bytes"),
            pl.col("count").fill_null(0),
        )
    )


def comm_events(lane: Lane) -> pl.DataFrame:
    """schema.COMM_EVENTS of a lane: the communication of its kept steps, by start.

    Start, end and ``exposed_ns`` are of the whole event; the compute before and after it only
    counts inside the window of its step.
    """
    kept = lane.steps.filter("kept")["index"]
    events = lane.communication.filter(pl.col("step").is_in(kept.implode()))
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    step = events["step"].to_numpy()
    lo, hi = lane.edges[:-1][step], lane.edges[1:][step]
    done = covered_before(np.maximum(starts, lo), lane.compute) - covered_before(lo, lane.compute)
    left = covered_before(hi, lane.compute) - covered_before(np.clip(ends, lo, hi), lane.compute)
    rows = events.with_columns(
        pl.Series("exposed_ns", ends - starts - overlap(starts, ends, lane.compute)),
        pl.Series("compute_before_ns", done),
        pl.Series("compute_after_ns", left),
    )
    return lane.keyed(rows.drop("lane"), schema.COMM_EVENTS)
