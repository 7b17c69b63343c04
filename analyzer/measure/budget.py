"""Where the time of each step went: exactly one state at each instant, summing to the window.

The state at an instant is the first that holds (definitions 3): compute, exposed communication,
copies, idle. The unions of all classes are cut into elementary segments at every boundary; what is
active in a segment is one bit a class, so one pass over sorted boundaries decides everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzer import schema
from analyzer.intervals import IntArray, Intervals, clip, distinct, empty
from analyzer.measure.lane import PP_AXIS, Lane
from analyzer.model import IdleCause

COMPUTE, EXPOSED, BUBBLE, MEMCPY, IDLE = "compute", "exposed_comm", "bubble", "memcpy", "idle"


def step_budget(lane: Lane, idle: pl.DataFrame) -> pl.DataFrame:
    """The budget of every step of a lane.

    Axes that communicate together while nothing computes share the time equally: per step and
    combination of k axes, the total T gives each ``T // k`` and the remainder goes to the first
    ones in canonical order. Instants at which nothing but pipeline transfers run and all of them
    wait for their peer are ``bubble``. Where those waits are not known (one rank's trace alone does
    not tell) there is no ``bubble`` row and they stay in ``exposed_comm[pp]``.

    Args:
        lane: the device.
        idle: columns step, cause, ns: the idle time by cause
            (:func:`analyzer.measure.idle.idle_by_cause`).

    Returns:
        schema.BUDGET, one row a state, also where it is zero.
    """
    axes = list(lane.comm)
    waiting = lane.stage_waiting
    unions = [lane.compute, lane.copies, *lane.comm.values(), waiting or empty()]
    table = _combinations(unions, lane.edges)
    rows: dict[tuple[int, str, str], int] = {
        (step, state, detail): 0
        for step in range(lane.steps.height)
        for state, detail in _states(axes, bubble=waiting is not None)
    }
    shared: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for step, code, ns in table.iter_rows():
        active = tuple(axis for bit, axis in enumerate(axes) if code >> (bit + 2) & 1)
        if code & 1:
            rows[step, COMPUTE, ""] += ns
        elif active == (PP_AXIS,) and code >> (len(axes) + 2) & 1:
            rows[step, BUBBLE, ""] += ns
        elif active:
            shared[step, active] += ns
        elif code & 2:
            rows[step, MEMCPY, ""] += ns
    for (step, active), ns in shared.items():
        share, rest = divmod(ns, len(active))
        for place, axis in enumerate(active):
            rows[step, EXPOSED, axis] += share + (place < rest)
    for step, cause, ns in idle.select("step", "cause", "ns").iter_rows():
        rows[step, IDLE, cause] += ns
    frame = pl.DataFrame(
        [(*key, ns) for key, ns in rows.items()],
        schema={"step": pl.Int32, "state": pl.String, "detail": pl.String, "ns": pl.Int64},
        orient="row",
    )
    return lane.keyed(frame, schema.BUDGET)


def _states(axes: Sequence[str], *, bubble: bool) -> list[tuple[str, str]]:
    """All (state, detail) pairs of a lane, in the order reports show them."""
    causes = [cause for cause in IdleCause if cause is not IdleCause.BUBBLE]
    return [
        (COMPUTE, ""),
        *((EXPOSED, axis) for axis in axes),
        *([(BUBBLE, "")] if bubble or PP_AXIS not in axes else []),
        (MEMCPY, ""),
        *((IDLE, cause.value) for cause in causes),
    ]


def _combinations(unions: Sequence[Intervals], edges: IntArray) -> pl.DataFrame:
    """Time per window and combination of active unions: columns step, code (a bit a union), ns."""
    inside = [clip(union, int(edges[0]), int(edges[-1])) for union in unions]
    bounds = distinct(edges, *(side for union in inside for side in union))
    code = np.zeros(max(bounds.size - 1, 0), dtype=np.int64)
    for bit, union in enumerate(inside):
        change = np.zeros(bounds.size, dtype=np.int64)
        change[np.searchsorted(bounds, union.starts)] += 1  # a union never touches itself:
        change[np.searchsorted(bounds, union.ends)] -= 1  # every boundary occurs once
        code |= np.cumsum(change)[:-1] << bit
    step = np.searchsorted(edges, bounds[:-1], side="right") - 1
    segments = pl.DataFrame({"step": step, "code": code, "ns": np.diff(bounds)})
    return segments.group_by("step", "code").agg(pl.col("ns").sum()).sort("step", "code")
