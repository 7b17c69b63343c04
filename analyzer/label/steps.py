"""Steps: which event belongs to which, and the time window of each on each device.

A device event belongs to the step in which the host launched it, whatever thread did; without a
launch in the trace to the device-side step annotation around it, else by time. The window of a step
runs from its first device event to the first device event of the next step, so windows neither
overlap nor leave gaps. The first window begins at the host's step start if that is earlier, the
last one ends at the host's step end if that is later: idle time at the capture's head and tail is
part of a step. A step without device events gets an empty window at the start of the next one; the
step before it then covers its time, so it is not kept either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer import schema
from analyzer.intervals import IntArray, locate
from analyzer.label.markers import (
    AFTER_ALL,
    BEFORE_ALL,
    OPTIMIZER_STEP,
    PROFILER_STEP,
    WHOLE_TRACE,
    Markers,
    find_markers,
)
from analyzer.label.naming import device_ranges, host_ranges, named
from analyzer.model import RankTrace

LAUNCH_CALL = r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch"  # copies may leave no event
MAX_UNSEEN_LAUNCHES = 0.2
MAX_ORPHANS = 0.2
MIN_SHARE_OF_MEDIAN = 0.5
HELD_OPTIMIZERS = 3


@dataclass(frozen=True, slots=True)
class StepResult:
    """Steps of one rank: ``steps`` is schema.STEPS, ``activity`` has its ``step`` filled."""

    steps: pl.DataFrame
    activity: pl.DataFrame
    source: str
    notes: tuple[str, ...] = ()


def assign_steps(trace: RankTrace, activity: pl.DataFrame) -> StepResult:
    """Find the steps of one rank and give every event its step.

    Args:
        trace: the rank's trace; one without device events is a host-side trace, whose windows are
            the host's step ranges themselves.
        activity: schema.ACTIVITY, sorted by (lane, start_ns, end_ns); ``step`` is overwritten.
    """
    markers = find_markers(trace, activity)
    notes = tuple(note for note in (markers.note, _held_optimizers(trace, markers)) if note)
    if activity.is_empty() and not markers.is_window:
        return StepResult(schema.STEPS.empty(), activity, markers.source)
    host_side = trace.device.is_empty()
    member = _membership(trace, activity, markers, host_side=host_side)
    activity = activity.with_columns(pl.Series("step", member, dtype=pl.Int32))
    unseen = _unseen_launches(trace, markers)
    lanes = activity["lane"].unique().sort().to_list() or [0]
    tables = []
    for lane in lanes:
        events = _Events.of(activity.filter(pl.col("lane") == lane), len(markers))
        starts, ends = (_host_windows if host_side else _device_windows)(markers, events)
        reasons = _reasons(markers, events, unseen, truncated=trace.report.truncated)
        tables.append(_table(markers, lane, starts, ends, events.counts, reasons))
    return StepResult(pl.concat(tables), activity, markers.source, notes)


@dataclass(frozen=True, slots=True)
class _Events:
    """Per step of one lane: first start, last end, number of events and of those not launched."""

    first: IntArray
    last: IntArray
    counts: IntArray
    orphans: IntArray

    @classmethod
    def of(cls, activity: pl.DataFrame, steps: int) -> _Events:
        found = (
            activity.filter(pl.col("step") >= 0)
            .group_by("step")
            .agg(
                pl.col("start_ns").min(),
                pl.col("end_ns").max(),
                pl.len().alias("count"),
                pl.col("launch_ns").null_count().alias("orphans"),
            )
        )
        at = found["step"].to_numpy()
        columns = []
        for name in ("start_ns", "end_ns", "count", "orphans"):
            columns.append(np.zeros(steps, dtype=np.int64))
            columns[-1][at] = found[name].to_numpy()
        return cls(*columns)


def _membership(
    trace: RankTrace, activity: pl.DataFrame, markers: Markers, *, host_side: bool
) -> IntArray:
    """Step of every event, -1 for none (module docstring)."""
    starts = activity["start_ns"].to_numpy().astype(np.int64)
    if markers.on_device:
        return markers.locate(starts)
    launched = activity["launch_ns"].is_not_null().to_numpy()
    launches = activity["launch_ns"].fill_null(0).to_numpy()
    if host_side:
        return markers.locate(np.where(launched, launches, starts))
    member = np.where(launched, markers.locate(launches), -1)
    if launched.all():
        return member
    annotated = _annotated(trace, activity, markers)
    lane = activity["lane"].to_numpy()
    for number in np.unique(lane[~launched]):
        orphans = np.flatnonzero(~launched & (lane == number))
        by_time = _by_time(
            activity.filter(pl.col("lane") == number), member, lane == number, markers
        )
        member[orphans] = by_time.locate(starts[orphans])
    return np.where(annotated >= 0, annotated, member)


def _annotated(trace: RankTrace, activity: pl.DataFrame, markers: Markers) -> IntArray:
    """Step by the device-side annotation around an event that has no launch, else -1."""
    ranges = device_ranges(trace, PROFILER_STEP).sort("start_ns")
    step = np.full(activity.height, -1, dtype=np.int64)
    index = {label: k for k, label in enumerate(markers.labels)}
    starts = activity["start_ns"].to_numpy()
    orphan = activity["launch_ns"].is_null().to_numpy()
    lane, stream = activity["lane"].to_numpy(), activity["stream"].to_numpy()
    for (device, tid), track in ranges.group_by("device", "tid"):
        here = np.flatnonzero(orphan & (lane == device) & (stream == tid))
        steps = np.array([index.get(label, -1) for label in track["name"]])
        at = locate(starts[here], track["start_ns"].to_numpy(), track["end_ns"].to_numpy())
        step[here] = np.where(at >= 0, steps[at], -1)
    return step


def _by_time(
    activity: pl.DataFrame, member: IntArray, on_lane: np.ndarray, markers: Markers
) -> Markers:
    """The markers on this device's own time: each step from its first launched event on.

    Where a step has no launched event the host's start stands in.
    """
    known = activity.with_columns(pl.Series("step", member[on_lane], dtype=pl.Int32))
    events = _Events.of(known, len(markers))
    busy = events.counts > 0
    starts = np.where(busy, events.first, markers.starts)
    starts[0] = min(starts[0], markers.starts[0])
    ends = np.append(starts[1:], events.last[busy].max(initial=markers.ends[-1]))
    return Markers(_rising(starts), ends, markers.labels, markers.source)


def _rising(starts: IntArray) -> IntArray:
    """Starts in order: one that lies behind a later one gives way to it."""
    return np.minimum.accumulate(starts[::-1])[::-1]


def _device_windows(markers: Markers, events: _Events) -> tuple[IntArray, IntArray]:
    """Windows of one device, tiled from the first event of one step to that of the next."""
    busy = np.flatnonzero(events.counts)
    if busy.size == 0:
        return _nowhere(markers)
    head, tail = busy[0], busy[-1]
    close = int(events.last[tail])
    starts = np.full(len(markers), close, dtype=np.int64)
    starts[busy] = events.first[busy]
    if markers.is_window:
        starts[head] = min(starts[head], markers.starts[head])
        close = max(close, int(markers.ends[tail]))
        starts[tail + 1 :] = close
    starts = _rising(starts)
    return starts, np.append(starts[1:], close)


def _nowhere(markers: Markers) -> tuple[IntArray, IntArray]:
    """Windows of steps none of which has an event: empty."""
    point = np.full(len(markers), markers.starts[0])
    return point, point


def _host_windows(markers: Markers, events: _Events) -> tuple[IntArray, IntArray]:
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


def _unseen_launches(trace: RankTrace, markers: Markers) -> np.ndarray:
    """Per step, the share of kernel launches whose device event is not in the trace."""
    unknown = np.zeros(len(markers))
    if markers.on_device or trace.launches.is_empty() or trace.device.is_empty():
        return unknown
    calls = named(trace.launches, LAUNCH_CALL).filter(pl.col("correlation") > 0)
    seen = trace.device.select("correlation").drop_nulls().unique()
    if calls.is_empty() or seen.is_empty():
        return unknown
    lost = calls.join(seen, on="correlation", how="anti")
    return _per_step(lost, markers) / np.maximum(_per_step(calls, markers), 1)


def _per_step(calls: pl.DataFrame, markers: Markers) -> IntArray:
    at = markers.locate(calls["start_ns"].to_numpy().astype(np.int64))
    return np.bincount(at[at >= 0], minlength=len(markers))


def _reasons(
    markers: Markers, events: _Events, unseen: np.ndarray, *, truncated: bool
) -> list[str]:
    """Why each step is left out of averages; empty for those that are kept."""
    counts = events.counts
    busy = np.flatnonzero(counts)
    reasons = ["" if count else "no device events" for count in counts]
    if busy.size == 0:
        return reasons
    tail = int(busy[-1])
    for k in busy[:-1]:
        if counts[k + 1] == 0:
            reasons[k] = "its window reaches over a step without device events"
    if markers.cut_off and tail == len(markers) - 1:
        reasons[tail] = "the capture ends inside it"
    if truncated:
        reasons[tail] = "the trace file is cut off"
    for k in busy[unseen[busy] > MAX_UNSEEN_LAUNCHES]:
        reasons[k] = reasons[k] or f"{100 * unseen[k]:.0f} % of its launches have no device event"
    if busy.size >= 3:
        if _has_left_overs(events.orphans[busy] / counts[busy]):
            reasons[busy[0]] = "begins with work launched before the capture"
        for k in (int(busy[0]), tail):
            typical = float(np.median(counts[busy[busy != k]]))
            if counts[k] < MIN_SHARE_OF_MEDIAN * typical:
                reasons[k] = reasons[k] or f"incomplete: {counts[k]} of about {typical:.0f} events"
    return reasons


def _has_left_overs(orphans: np.ndarray) -> bool:
    """Whether the first step, unlike the others, holds much work that nothing in it launched."""
    share = float(orphans[0])
    return share > MAX_ORPHANS and share > 2 * float(np.median(orphans[1:]))


def _table(
    markers: Markers,
    lane: int,
    starts: IntArray,
    ends: IntArray,
    counts: IntArray,
    reasons: list[str],
) -> pl.DataFrame:
    """One lane's rows of schema.STEPS."""
    has_host = not markers.on_device and markers.source != WHOLE_TRACE
    frame = pl.DataFrame(
        {
            "index": np.arange(len(markers)),
            "label": markers.labels,
            "lane": np.full(len(markers), lane),
            "start_ns": starts,
            "end_ns": ends,
            "host_start_ns": markers.starts,
            "host_end_ns": markers.ends,
            "device_events": counts,
            "kept": [not reason for reason in reasons],
            "reason": reasons,
        },
        schema_overrides={"label": pl.String, "reason": pl.String, "kept": pl.Boolean},
    ).with_columns(
        pl.when(has_host & (pl.col("host_start_ns") > BEFORE_ALL)).then("host_start_ns"),
        pl.when(has_host & (pl.col("host_end_ns") < AFTER_ALL)).then("host_end_ns"),
    )
    return schema.conform(frame, schema.STEPS)


def _held_optimizers(trace: RankTrace, markers: Markers) -> str:
    """Say so when one step marker holds a whole training loop."""
    if markers.source != "ProfilerStep":
        return ""
    optimizers = host_ranges(trace, OPTIMIZER_STEP)
    at = markers.locate(optimizers["start_ns"].to_numpy().astype(np.int64))
    most = int(np.bincount(at[at >= 0]).max(initial=0))
    if most < HELD_OPTIMIZERS:
        return ""
    return (
        f"one ProfilerStep holds {most} optimizer steps: "
        "was the profiler's step() called once per training step?"
    )
