"""Device events that cannot be true.

A device stream runs one thing after another. Small overlaps are real (programmatic dependent
launch, time-stamp granularity) and so are large ones inside a replayed graph, whose parallel
branches all carry the stream it was launched on. A kernel that contains several complete later
events of its stream, though, has an overflown or corrupt duration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

_LONG = 10
"""An absurd event lasts this many times the 99th percentile of its stream."""

_CONTAINED = 2
"""It contains at least this many complete later events of its stream."""

_OUTLASTS = 10
"""Or it overlaps the next event and lasts this many times the capture of all other events."""

_SHORTEST_CAPTURE_NS = 1_000_000
"""A handful of kernels say nothing about what is long."""

_NOT_SERIAL = 0.05
"""A stream with more than this share of such events is not serial; it is left as written."""


@dataclass(frozen=True, slots=True)
class Hygiene:
    """What was found: counts for the report, and notes to read."""

    clipped: int = 0
    notes: tuple[str, ...] = ()


def clip_absurd(device: pl.DataFrame) -> tuple[pl.DataFrame, Hygiene]:
    """End events of absurd duration where the next event on their stream starts.

    An event is absurd if it is no part of a graph (it has no graph id and its correlation id is its
    own) and either contains :data:`_CONTAINED` complete later events of its stream and lasts
    :data:`_LONG` times the stream's 99th percentile, or overlaps the next one and lasts
    :data:`_OUTLASTS` times the whole capture of all other events.

    Args:
        device: schema.DEVICE sorted as declared.

    Returns:
        The table, and what was clipped and noted (duplicates are noted, too, and kept).
    """
    notes = _duplicates(device)
    if device.height < 2:
        return device, Hygiene(notes=notes)
    order, absurd, next_start, uneven = _find_absurd(device)
    if uneven:
        notes += (f"{uneven} streams run events in parallel; their durations are left as written",)
    rows = order[absurd]
    if not len(rows):
        return device, Hygiene(notes=notes)
    end = device["end_ns"].to_numpy(writable=True)
    start = device["start_ns"].to_numpy()
    for row, clip in list(zip(rows, next_start[absurd], strict=True))[:3]:
        name = str(device["name"][int(row)])[:80]
        was, now = (end[row] - start[row]) / 1e3, (clip - start[row]) / 1e3
        notes += (f"absurd duration of {name}: {was:.3f} us, clipped to {now:.3f} us",)
    end[rows] = next_start[absurd]
    device = device.with_columns(pl.Series("end_ns", end)).sort(
        "device", "start_ns", "end_ns", maintain_order=True
    )
    return device, Hygiene(len(rows), notes)


def _find_absurd(device: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Row order by (device, stream, start), the absurd among them, and the start that follows."""
    start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
    lane, stream = device["device"].to_numpy(), device["stream"].to_numpy()
    order = np.lexsort((start, stream, lane))
    s, e = start[order], end[order]
    new = np.r_[
        True, (lane[order][1:] != lane[order][:-1]) | (stream[order][1:] != stream[order][:-1])
    ]
    group = np.cumsum(new) - 1
    alone = _outside_graphs(device)[order]
    follows = np.r_[~new[1:], False]  # the next row is on the same stream
    next_start = np.where(follows, np.r_[s[1:], s[-1]], np.iinfo(np.int64).max)

    contains = np.ones(len(s), dtype=bool)
    for ahead in range(1, _CONTAINED + 1):
        same = np.zeros(len(s), dtype=bool)
        same[:-ahead] = group[ahead:] == group[:-ahead]
        later_end = np.roll(e, -ahead)
        contains &= same & (later_end <= e) & (np.roll(s, -ahead) > s)
    duration = e - s
    absurd = alone & contains & (duration > _LONG * _p99(duration, group)[group])

    latest = np.argmax(e)
    others = np.arange(len(s)) != latest
    window = max(e[others].max() - s[others].min(), _SHORTEST_CAPTURE_NS)
    if alone[latest] and next_start[latest] < e[latest] and duration[latest] > _OUTLASTS * window:
        absurd[latest] = True

    sizes, found = np.bincount(group), np.bincount(group, weights=absurd)
    uneven = found > np.maximum(_CONTAINED, _NOT_SERIAL * sizes)
    absurd &= ~uneven[group] & (next_start > s)
    return order, absurd, next_start, int(uneven.sum())


def _outside_graphs(device: pl.DataFrame) -> np.ndarray:
    """Events that no graph replayed: those share the correlation id of its one launch."""
    correlation = pl.col("correlation")
    shared = correlation.is_not_null() & (correlation != 0) & correlation.is_duplicated()
    alone = device.select(pl.col("graph_id").is_null() & ~shared).to_series()
    return alone.to_numpy()


def _p99(duration: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The 99th percentile of durations per group; never the maximum of fewer than 100 events."""
    order = np.lexsort((duration, group))
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    picked: np.ndarray = duration[order][first + ((sizes - 1) * 0.99).astype(np.int64)]
    return picked


def _duplicates(device: pl.DataFrame) -> tuple[str, ...]:
    keys = ["device", "start_ns", "end_ns"]
    near = pl.all_horizontal(pl.col(k) == pl.col(k).shift(-1) for k in keys)
    candidates = device.filter(near | near.shift(1))
    if candidates.is_empty():
        return ()
    repeated = candidates.select(
        pl.struct(*keys, "name", "stream", "correlation").is_first_distinct().not_().sum()
    ).item()
    return (
        (f"{repeated} device events are exact duplicates of others; they are kept",)
        if repeated
        else ()
    )
