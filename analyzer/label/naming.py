"""Picking rows of a trace by name without looking at every row's text."""

from __future__ import annotations

import polars as pl

from analyzer.model import RankTrace


def named(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Rows whose ``name`` matches the regular expression (tried on distinct names only)."""
    distinct = frame.get_column("name").unique()
    matching = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
    return frame.filter(pl.col("name").is_in(matching.implode()))


def on_host(ranges: pl.DataFrame) -> pl.DataFrame:
    """Host-side user ranges."""
    return ranges.filter(pl.col("side").cast(pl.String) == "host")


def on_device(ranges: pl.DataFrame) -> pl.DataFrame:
    """Shadows of user ranges on device tracks."""
    return ranges.filter(pl.col("side").cast(pl.String) == "device")


def host_ranges(trace: RankTrace, pattern: str) -> pl.DataFrame:
    """Host-side user ranges whose name matches: name, start_ns, end_ns, tid.

    PyTorch before 1.13 wrote ranges as operators, so both tables are asked.
    """
    return pl.concat(
        named(frame, pattern).select(pl.col("name").cast(pl.String), "start_ns", "end_ns", "tid")
        for frame in (on_host(trace.ranges), trace.ops)
    )


def device_ranges(trace: RankTrace, pattern: str) -> pl.DataFrame:
    """Shadows of user ranges on device tracks: name, start_ns, end_ns, tid (stream), device."""
    return named(on_device(trace.ranges), pattern).select(
        pl.col("name").cast(pl.String), "start_ns", "end_ns", "tid", pl.col("device").fill_null(0)
    )
