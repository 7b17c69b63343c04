"""Steps: which event belongs to which, and the time window of each on each device.

A device event belongs to the step in which the host launched it, whatever thread did; without a
launch in the trace to the device-side step annotation around it, else by time. The window of a step
runs from its first device event, work that runs ahead of the step aside
(:mod:`analyzer.label.windows`), to that of the next step, so windows neither overlap nor leave
gaps. The first window begins at the host's step start if that is earlier, the last one ends at the
host's step end if that is later: idle time at the capture's head and tail is part of a step. A step
without device events of its own time gets an empty window at the start of the next one; the step
before it then covers its time, so it is not kept either. Devices with a few stray events
(:mod:`analyzer.label.lanes`) have windows, but none that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer import schema
from analyzer.intervals import IntArray, locate
from analyzer.label.lanes import stray_lanes
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
from analyzer.label.windows import StepEvents, device_windows, host_windows, rising
from analyzer.model import RankTrace

LAUNCH_CALL = r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch"  # copies may leave no event
MAX_UNSEEN_LAUNCHES = 0.2
MAX_ORPHANS = 0.2
MIN_SHARE_OF_MEDIAN = 0.5
HELD_OPTIMIZERS = 3
NO_EVENTS = "no device events"
ALL_AHEAD = "all its work ran ahead, in the windows of earlier steps"


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
    notes = [note for note in (*markers.notes, _held_optimizers(trace, markers)) if note]
    if activity.is_empty() and not markers.is_window:
        return StepResult(schema.STEPS.empty(), activity, markers.source)
    host_side = trace.device.is_empty()
    member = _membership(trace, activity, markers, host_side=host_side)
    activity = activity.with_columns(pl.Series("step", member, dtype=pl.Int32))
    unseen = _unseen_launches(trace, markers)
    stray = stray_lanes(activity)
    notes += [f"{reason}: it does not count in averages" for reason in stray.values()]
    by_time = host_side or markers.on_device
    tables = []
    for lane in activity["lane"].unique().sort().to_list() or [0]:
        on_lane = activity.filter(pl.col("lane") == lane)
        events = StepEvents.of(on_lane, len(markers), by_time=by_time)
        starts, ends = (host_windows if host_side else device_windows)(markers, events)
        reasons = _reasons(markers, events, unseen, truncated=trace.report.truncated)
        for k in np.flatnonzero(starts == ends):
            reasons[k] = reasons[k] or "its window is empty: all its work runs in other windows"
        if lane in stray:
            reasons = [stray[lane]] * len(markers)
        tables.append(_table(markers, lane, starts, ends, events.counts, reasons))
    return StepResult(pl.concat(tables), activity, markers.source, tuple(notes))


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
    for (device, tid), track in ranges.drop_nulls("tid").group_by("device", "tid"):
        here = np.flatnonzero(orphan & (lane == device) & (stream == tid))
        steps = np.array([index.get(label, -1) for label in track["name"]])
        at = locate(starts[here], track["start_ns"].to_numpy(), track["end_ns"].to_numpy())
        step[here] = np.where(at >= 0, steps[at], -1)
    return step


def _by_time(
    activity: pl.DataFrame, member: IntArray, on_lane: np.ndarray, markers: Markers
) -> Markers:
    """The markers on this device's own time: each step from the launched event that opens it on.

    Where a step has none the host's start stands in.
    """
    known = activity.with_columns(pl.Series("step", member[on_lane], dtype=pl.Int32))
    events = StepEvents.of(known, len(markers))
    starts = np.where(events.opened, events.first, markers.starts)
    starts[0] = min(starts[0], markers.starts[0])
    last = events.last[events.counts > 0].max(initial=markers.ends[-1])
    return Markers(rising(starts), np.append(starts[1:], last), markers.labels, markers.source)


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
    markers: Markers, events: StepEvents, unseen: np.ndarray, *, truncated: bool
) -> list[str]:
    """Why each step is left out of averages; empty for those that are kept."""
    counts = events.counts
    busy = np.flatnonzero(events.opened)
    reasons = ["" if count else NO_EVENTS for count in counts]
    for ahead in np.flatnonzero((counts > 0) & ~events.opened):
        reasons[ahead] = ALL_AHEAD
    if busy.size == 0:
        return reasons
    tail = int(busy[-1])
    for k in busy[:-1]:
        if not events.opened[k + 1]:
            what = "whose work all ran ahead" if counts[k + 1] else "without device events"
            reasons[k] = f"its window reaches over a step {what}"
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
