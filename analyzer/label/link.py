"""Join every device event with the host call that launched it and what surrounded that call."""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.intervals import IntArray
from analyzer.label.nesting import OUTSIDE, innermost
from analyzer.model import RankTrace

STEP_RANGE = r"^(ProfilerStep(#\d+|\*)?$|(analyzer|meshscope)\.step\b)"
BACKEND_RANGE = r"^(nccl|gloo|xccl|hccl|mpi|ucc):"


def link(trace: RankTrace) -> pl.DataFrame:
    """The device table with its host side beside it.

    Added columns (null where the trace does not say):

    * ``launch_ns``, ``launch_pid``, ``launch_tid``: the call with the event's correlation id;
    * ``op_event``, ``op_name``: the host operator, by External id, else the innermost one around
      the launch on its thread;
    * ``range_name``: innermost user range around the launch, without step markers and the ranges
      backends put around their collectives; ``comm_range``: innermost of those.
    """
    linked = _with_launch(trace)
    linked = _with_operator(linked, trace.ops)
    return linked.with_columns(*around(trace.ranges, linked, at="launch_ns", prefix="launch_"))


def around(
    ranges: pl.DataFrame, events: pl.DataFrame, *, at: str, prefix: str
) -> tuple[pl.Series, pl.Series]:
    """``range_name`` and ``comm_range`` of each event (see :func:`link`).

    Args:
        ranges: schema.RANGES.
        events: rows with the time column ``at`` and ``<prefix>pid``, ``<prefix>tid``.
        at: time column to look up.
        prefix: prefix of the thread's columns.
    """
    host = ranges.filter(pl.col("side").cast(pl.String) == "host")
    points = events.select(
        pl.col(at).alias("at_ns"),
        pl.col(f"{prefix}pid").alias("pid"),
        pl.col(f"{prefix}tid").alias("tid"),
    )
    kinds = host.join(_range_kinds(host["name"]), on="name", how="left")
    user = kinds.filter(pl.col("_kind") == "user")
    comm = kinds.filter(pl.col("_kind") == "comm")
    return (
        _names_at(user, points).alias("range_name"),
        _names_at(comm, points).alias("comm_range"),
    )


def _with_launch(trace: RankTrace) -> pl.DataFrame:
    launches = trace.launches
    row = row_of(launches["correlation"], trace.device["correlation"])
    return trace.device.with_columns(
        launches["start_ns"].gather(row).alias("launch_ns"),
        launches["pid"].gather(row).alias("launch_pid"),
        launches["tid"].gather(row).alias("launch_tid"),
        launches["external_id"].gather(row).alias("_launch_external_id"),
    )


def _with_operator(linked: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    ids = linked.select(pl.coalesce("external_id", "_launch_external_id")).to_series()
    by_id = row_of(ops["external_id"], ids)
    lost = by_id.is_null() & linked["launch_ns"].is_not_null()
    points = linked.select(
        pl.when(lost).then("launch_ns").alias("at_ns"),
        pl.col("launch_pid").alias("pid"),
        pl.col("launch_tid").alias("tid"),
    )
    row = by_id.fill_null(_rows(innermost(ops, points)))
    return linked.with_columns(
        ops["event"].gather(row).alias("op_event"), ops["name"].gather(row).alias("op_name")
    ).drop("_launch_external_id")


def row_of(ids: pl.Series, wanted: pl.Series) -> pl.Series:
    """First row with each wanted id, null where there is none; null and 0 are no ids.

    Ids are written in nearly ascending order, which a stable sort finds in linear time; a hash
    join of millions of operators to count a few of them costs several times that.
    """
    known, asked = ids.fill_null(0).to_numpy(), wanted.fill_null(0).to_numpy()
    if known.size == 0:
        return pl.repeat(None, asked.size, dtype=pl.Int64, eager=True)
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    at = np.minimum(np.searchsorted(ordered, asked), known.size - 1)
    found = (ordered[at] == asked) & (asked != 0)
    return _rows(np.where(found, order[at], OUTSIDE))


def _names_at(ranges: pl.DataFrame, points: pl.DataFrame) -> pl.Series:
    return ranges["name"].gather(_rows(innermost(ranges, points)))


def _rows(found: IntArray) -> pl.Series:
    rows = pl.Series(found, dtype=pl.Int64)
    return rows.set(rows == OUTSIDE, None)


def _range_kinds(names: pl.Series) -> pl.DataFrame:
    """Kind of each distinct range name: step (marker), comm (a backend's own range) or user."""
    text = pl.col("name").cast(pl.String)
    kind = (
        pl.when(text.str.contains(STEP_RANGE))
        .then(pl.lit("step"))
        .when(text.str.contains(BACKEND_RANGE))
        .then(pl.lit("comm"))
        .otherwise(pl.lit("user"))
    )
    return pl.DataFrame({"name": names.unique()}).with_columns(kind.alias("_kind"))
