"""Why a device was idle, from what the host did meanwhile.

An idle gap ``[a, b)`` ends with device work starting at b, launched at l. Until l the host had not
asked for it, so ``[a, min(l, b))`` is the host's time: waiting for data, blocked in a
synchronisation, or simply late. From l on the device had the work and something else held it
(a stream, an event, the launch's own latency): ``other``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer import intervals
from analyzer.intervals import IntArray, covered_before
from analyzer.measure.host import HostWaits
from analyzer.measure.lane import Lane
from analyzer.model import IdleCause

UNKNOWN_TIME = 2**62
ANY_THREAD = -1
RETURN_LATENCY_NS = 10_000
"""A synchronisation may seem to return this long before the device's last work ends: host and
device clocks are aligned to a few microseconds only."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle gaps of a lane, cut at window boundaries.

    Attributes:
        starts, ends: the gap.
        asked: until when the host had not launched what ends the gap; ``starts`` where not known.
        thread: thread that launched it, :data:`ANY_THREAD` where not known.
    """

    starts: IntArray
    ends: IntArray
    asked: IntArray
    thread: IntArray


def find_gaps(lane: Lane) -> Gaps:
    """The idle gaps of a lane's windows, each with the launch that ended it.

    Of several events that start together the earliest launch counts. Idle time behind the last
    event of the last window has no launch: it is the host's until its step ends.
    """
    lo, hi = int(lane.edges[0]), int(lane.edges[-1])
    idle = intervals.gaps(lane.busy, lo, hi)
    edges = intervals.distinct(lane.edges)
    inner = edges[intervals.locate(edges, idle.starts + 1, idle.ends) >= 0]
    starts = np.sort(np.append(idle.starts, inner))
    ends = np.sort(np.append(idle.ends, inner))
    launch, thread = _launch_at(lane, ends)
    if ends.size and ends[-1] == hi and launch[-1] == UNKNOWN_TIME:
        last_window = np.flatnonzero(np.diff(lane.edges))[-1]
        host_end = lane.steps["host_end_ns"][int(last_window)]
        launch[-1] = UNKNOWN_TIME if host_end is None else host_end
    known = launch != UNKNOWN_TIME
    asked = np.where(known, np.clip(launch, starts, ends), starts)
    return Gaps(starts, ends, asked, thread)


def _launch_at(lane: Lane, points: IntArray) -> tuple[IntArray, IntArray]:
    """Earliest launch, and its thread, among the events that start at each of the sorted points."""
    launch = np.full(points.size, UNKNOWN_TIME)
    thread = np.full(points.size, ANY_THREAD)
    launched = lane.events.filter(pl.col("launch_ns").is_not_null())
    begins = launched["start_ns"].to_numpy()
    at = np.searchsorted(points, begins)
    ends_gap = at < points.size
    ends_gap[ends_gap] = points[at[ends_gap]] == begins[ends_gap]
    at = at[ends_gap]
    when = launched["launch_ns"].to_numpy()[ends_gap]
    who = launched["launch_tid"].fill_null(ANY_THREAD).to_numpy()[ends_gap]
    latest_first = np.argsort(-when, kind="stable")  # so that the earliest is written last
    launch[at[latest_first]] = when[latest_first]
    thread[at[latest_first]] = who[latest_first]
    return launch, thread


def idle_by_cause(lane: Lane, gaps: Gaps, waits: HostWaits) -> pl.DataFrame:
    """Idle time of every step by cause: columns step, cause, ns; zero rows included.

    The host's part of a gap goes to ``data`` inside a data-loading range, else to ``sync`` while
    the launching thread (any thread where it is not known) is blocked in a synchronisation, else
    to ``host_bound``. In host-side traces there is no launch to wait for: ``data`` or ``other``.
    """
    step = lane.window_of(gaps.starts)
    if lane.host_side:
        data = intervals.overlap(gaps.starts, gaps.ends, waits.data)
        sync = bound = np.zeros_like(data)
        other = gaps.ends - gaps.starts - data
    else:
        data = intervals.overlap(gaps.starts, gaps.asked, waits.data)
        sync = _blocked(gaps, waits)
        bound = gaps.asked - gaps.starts - data - sync
        other = gaps.ends - gaps.asked
    per_cause = {
        IdleCause.DATA: data,
        IdleCause.SYNC: sync,
        IdleCause.HOST_BOUND: bound,
        IdleCause.OTHER: other,
    }
    return pl.concat(
        pl.DataFrame(
            {
                "step": np.arange(lane.steps.height, dtype=np.int32),
                "cause": [cause.value] * lane.steps.height,
                "ns": _sum_by_step(step, ns, lane.steps.height),
            }
        )
        for cause, ns in per_cause.items()
    )


def _blocked(gaps: Gaps, waits: HostWaits) -> IntArray:
    """Host's part of each gap spent in a synchronisation and not in data loading."""
    blocked = np.zeros_like(gaps.starts)
    for thread in np.unique(gaps.thread):
        here = gaps.thread == thread
        sync = intervals.subtract(waits.sync(int(thread)), waits.data)
        blocked[here] = intervals.overlap(gaps.starts[here], gaps.asked[here], sync)
    return blocked


def drain_by_step(lane: Lane, gaps: Gaps, waits: HostWaits) -> IntArray:
    """Idle time of every step that its synchronisations can be blamed for.

    A gap counts from its start, or from the call's start if that is later, until its end when the
    launching thread was blocked in a synchronisation in the part of the gap before the launch. But
    without the call the launch would have come earlier by the time the host was blocked, and not
    more: a gap is blamed for at most that time, and no blocked instant counts for two gaps. What is
    left of the gap the host was slow by itself, as it was before a call that found the queue empty.
    """
    drained = np.zeros_like(gaps.starts)
    called = np.full_like(gaps.starts, UNKNOWN_TIME)  # first call that blocks the launching thread
    for thread in np.unique(gaps.thread):
        sync = waits.sync(int(thread))
        here = np.flatnonzero(gaps.thread == thread)
        first = np.searchsorted(sync.ends, gaps.starts[here] - RETURN_LATENCY_NS, side="right")
        found = first < sync.starts.size
        called[here[found]] = sync.starts[first[found]]
    hit = np.flatnonzero(np.maximum(called, gaps.starts) < gaps.asked)
    counted = np.full(gaps.starts.size, -UNKNOWN_TIME)  # until when blocked time is used up
    counted[hit[1:]] = gaps.ends[hit[:-1]]
    since = np.maximum(called, counted)
    for thread in np.unique(gaps.thread[hit]):
        sync = waits.sync(int(thread))
        here = hit[gaps.thread[hit] == thread]
        blocked = covered_before(gaps.asked[here], sync) - covered_before(since[here], sync)
        idle = gaps.ends[here] - np.maximum(called[here], gaps.starts[here])
        drained[here] = np.minimum(idle, np.maximum(blocked, 0))
    return _sum_by_step(lane.window_of(gaps.starts), drained, lane.steps.height)


def _sum_by_step(step: IntArray, ns: IntArray, steps: int) -> IntArray:
    sums = np.zeros(steps, dtype=np.int64)
    np.add.at(sums, step, ns)
    return sums
