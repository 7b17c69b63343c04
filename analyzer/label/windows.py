"""The time window of every step on one device.

A window runs from the step's opening event to that of the next step, so windows neither overlap nor
leave gaps. The opening event is the step's first device event, unless that one runs ahead: a host
that is steps ahead of the device has copies of the next batch, and whatever else needs nothing from
the step before, executed while that step still runs. Such work says nothing about where a step
begins. What can open a window:

- any event on the main stream, the one with the most compute time: streams are in order, so nothing
  on it runs before the work of the step before;
- a kernel on another stream that starts when the earlier steps have nothing left on the main one;
- a copy or memset on another stream that starts when the earlier steps have no kernel left at all.

Work ahead still belongs to the step that launched it, but its time counts in the window it runs in.
Where nothing runs ahead, the opening event is the first device event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.intervals import IntArray
from analyzer.label.markers import Markers
from analyzer.model import Work

COPIES = (Work.MEMCPY.value, Work.MEMSET.value)
NEVER = 2**62


@dataclass(frozen=True, slots=True)
class StepEvents:
    """Per step of one device, what its events say; zero where there are none.

    Attributes:
        first: start of the opening event, :data:`NEVER` without one.
        last: last end.
        counts: number of events.
        orphans: number of events without a launch.
    """

    first: IntArray
    last: IntArray
    counts: IntArray
    orphans: IntArray

    @classmethod
    def of(cls, activity: pl.DataFrame, steps: int, *, by_time: bool = False) -> StepEvents:
        """Of the events of one device.

        Args:
            activity: schema.ACTIVITY rows with ``step`` filled.
            steps: how many steps there are.
            by_time: events were given their step by the time they run at: none runs ahead.
        """
        rows = activity.filter(pl.col("step") >= 0)
        step = rows["step"].to_numpy().astype(np.int64)
        starts, ends = (rows[side].to_numpy().astype(np.int64) for side in ("start_ns", "end_ns"))
        free = by_time or rows.is_empty()
        opens = np.ones(step.size, dtype=bool) if free else _may_open(rows, step, steps)
        first, last = np.full(steps, NEVER), np.full(steps, -NEVER)
        np.minimum.at(first, step[opens], starts[opens])
        np.maximum.at(last, step, ends)
        counts = np.bincount(step, minlength=steps)
        orphans = np.bincount(step[rows["launch_ns"].is_null().to_numpy()], minlength=steps)
        return cls(first, np.where(counts > 0, last, 0), counts, orphans)

    @property
    def opened(self) -> np.ndarray:
        """Whether each step has an event that opens its window."""
        return self.first < NEVER


def _may_open(rows: pl.DataFrame, step: IntArray, steps: int) -> np.ndarray:
    """Whether each event may open its step's window (module docstring)."""
    work = rows["work"].cast(pl.String)
    copy = work.is_in(COPIES).to_numpy()
    main = rows["stream"].is_in([_main_stream(rows)]).to_numpy()
    starts, ends = (rows[side].to_numpy().astype(np.int64) for side in ("start_ns", "end_ns"))
    main_done = _done_before(step[main], ends[main], steps)
    kernels_done = np.maximum(main_done, _done_before(step[~copy], ends[~copy], steps))
    since = np.where(copy, kernels_done[step], main_done[step])
    ready: np.ndarray = main | (starts >= since)
    return ready


def _done_before(step: IntArray, ends: IntArray, steps: int) -> IntArray:
    """Per step, the last end among events of the steps before it."""
    last = np.full(steps, -NEVER)
    np.maximum.at(last, step, ends)
    return np.concatenate(([-NEVER], np.maximum.accumulate(last)))[:-1]


def _main_stream(rows: pl.DataFrame) -> int:
    """The stream with the most compute time; where nothing computes, with the most work."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    computes = ~pl.col("work").cast(pl.String).is_in((Work.COMM.value, *COPIES))
    busiest = (
        rows.group_by("stream")
        .agg(duration.filter(computes).sum().alias("compute"), duration.sum().alias("all"))
        .sort("compute", "all", "stream", descending=[True, True, False])
    )
    return int(busiest["stream"][0])


def device_windows(markers: Markers, events: StepEvents) -> tuple[IntArray, IntArray]:
    """Windows of one device, tiled from the opening event of one step to that of the next.

    The first begins at the host's step start if that is earlier, the last ends at the host's step
    end if that is later. A step that nothing opens gets an empty window at the start of the next.
    """
    opened = np.flatnonzero(events.opened)
    if opened.size == 0:
        return _nowhere(markers)
    head, tail = opened[0], opened[-1]
    close = int(events.last[tail])
    starts = np.full(len(markers), close, dtype=np.int64)
    starts[opened] = events.first[opened]
    if markers.is_window:
        starts[head] = min(starts[head], markers.starts[head])
        close = max(close, int(markers.ends[tail]))
        starts[tail + 1 :] = close
    starts = rising(starts)
    return starts, np.append(starts[1:], close)


def host_windows(markers: Markers, events: StepEvents) -> tuple[IntArray, IntArray]:
    """Windows of a host-side trace: the host's ranges, each up to the next."""
    busy = np.flatnonzero(events.counts)
    if busy.size == 0:
        return _nowhere(markers)
    starts, close = markers.starts.copy(), int(events.last[busy[-1]])
    if markers.is_window:
        close = max(close, int(markers.ends[-1]))
    elif busy[0] == 0:
        starts[0] = events.first[0]  # nothing but the work itself says when the first one began
    starts = np.minimum(starts, close)
    return starts, np.append(starts[1:], close)


def _nowhere(markers: Markers) -> tuple[IntArray, IntArray]:
    """Windows of steps none of which has an event: empty."""
    point = np.full(len(markers), markers.starts[0])
    return point, point


def rising(starts: IntArray) -> IntArray:
    """Starts in order: one that lies behind a later one gives way to it."""
    return np.minimum.accumulate(starts[::-1])[::-1]
