"""How rules read measurements: windows, communication events, what the strategy expects.

Every mean is over the kept windows, one window a (rank, lane, step), as in
:class:`analyzer.measure.results.AxisSummary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

if TYPE_CHECKING:
    from analyzer.measure.results import Budget, Measurements
    from analyzer.strategy import AxisExpectation, OpExpectation

WINDOW = ("rank", "lane", "step")
"""Columns that name one window."""


def mean_budget(m: Measurements) -> Budget:
    """The mean step; rules that ask for it need :data:`rules.needs.KEPT_STEP`."""
    if m.mean is None:
        message = "no step was kept"
        raise ValueError(message)
    return m.mean


def share_pct(m: Measurements, ns: float) -> float:
    """``ns`` per step as a share (%) of the mean step."""
    return 100.0 * ns / mean_budget(m).time_ns


def windows(m: Measurements) -> int:
    """Kept windows, the number every mean divides by; at least 1."""
    return max(1, m.steps.filter(pl.col("kept")).height)


def per_step(m: Measurements, total_ns: float) -> int:
    """A total over all kept windows as a mean per step."""
    return round(total_ns / windows(m))


def axis_parts(axis: str) -> frozenset[str]:
    """The axes a flattened axis such as ``dp_shard+cp`` is made of."""
    return frozenset(axis.split("+"))


def ops_on(m: Measurements, axis: str) -> frozenset[str]:
    """The kinds of collectives seen on ``axis`` in the kept steps."""
    return frozenset(a.op for a in m.axes if a.axis == axis and a.op and a.count > 0)


def counts_by_part(m: Measurements) -> dict[str, dict[str, float]]:
    """Collectives a step by axis and kind; a flattened axis counts for each of its parts."""
    counts: dict[str, dict[str, float]] = {}
    for a in m.axes:
        for part in axis_parts(a.axis) if a.op and a.count > 0 else ():
            ops = counts.setdefault(part, {})
            ops[a.op] = ops.get(a.op, 0.0) + a.count
    return counts


def expectation(m: Measurements, axis: str) -> AxisExpectation | None:
    """What the stated, else the inferred strategy does on ``axis`` or on one of its parts."""
    for strategy in (m.expect, m.strategy):
        expected = {} if strategy is None else strategy.axes
        for name in (axis, *sorted(axis_parts(axis))):
            if name in expected:
                return expected[name]
    return None


def expected_ops(m: Measurements, axis: str) -> Mapping[str, OpExpectation]:
    """What the strategy says about each kind of collective on ``axis``; empty when not known."""
    expected = expectation(m, axis)
    return {} if expected is None else expected.ops


def comm_events(
    m: Measurements, axes: Iterable[str], ops: Iterable[str] | None = None
) -> pl.DataFrame:
    """Communication events, of ``ops`` when given, on axes that have one of ``axes`` as a part.

    Adds ``dur_ns``; sorted by axis, window and start.
    """
    events = m.comm_events.with_columns((cs.categorical() | cs.enum()).cast(pl.String))
    wanted = [a for a in events["axis"].unique().to_list() if axis_parts(a) & set(axes)]
    chosen = events.filter(pl.col("axis").is_in(wanted))
    if ops is not None:
        chosen = chosen.filter(pl.col("op").is_in(list(ops)))
    return chosen.with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns")).sort(
        "axis", *WINDOW, "start_ns", "end_ns"
    )


def compute_done_at_end() -> pl.Expr:
    """Computation of the step that was done when an event of :func:`comm_events` ended."""
    return pl.col("compute_before_ns") + pl.col("dur_ns") - pl.col("exposed_ns")


def compute_since_previous() -> pl.Expr:
    """Computation between the end of the events before and this one's start.

    For frames of :func:`comm_events` of one axis. Null for the first event of a window, zero
    where events overlap.
    """
    done_before = compute_done_at_end().cum_max().shift(1).over(WINDOW)
    return (pl.col("compute_before_ns") - done_before).clip(lower_bound=0)


def idle_by_step(m: Measurements, cause: str) -> pl.DataFrame:
    """Idle time with one cause of each kept window: rank, lane, step, ``cost_ns``."""
    state, detail = pl.col("state").cast(pl.String), pl.col("detail").cast(pl.String)
    return (
        m.budget.filter(pl.col("kept") & (state == "idle") & (detail == cause))
        .group_by(*WINDOW, maintain_order=True)
        .agg(cost_ns=pl.col("ns").sum())
    )
