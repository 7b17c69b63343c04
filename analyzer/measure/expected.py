"""What a strategy must expose: the communication that no schedule can hide (theory of each axis).

Not a bandwidth model: the unavoidable operations (the first all-gather of a sharded step, the last
gradient bucket, every tensor-parallel collective) are taken at their own measured duration, or at
the median of their kind where they took longer, so that a straggling instance is not excused. What
of them was hidden after all is not expected to be exposed: the figure never exceeds the exposure
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from analyzer.measure.axes import ALL_OPS
from analyzer.strategy import AxisExpectation, OpExpectation, Strategy

NOTHING, EVERY, FIRST, LAST = "none", "all", "first", "last"
WORDS = {EVERY: "every", FIRST: "the step's first", LAST: "the step's last"}


@dataclass(frozen=True, slots=True)
class Expected:
    """Mean unavoidable exposure per step and rank; None with the reason where it is not known."""

    ns: int | None
    why: str


def expected_exposure(
    events: pl.DataFrame, strategy: Strategy, steps: int
) -> Mapping[tuple[str, str], Expected]:
    """Unavoidable exposure per (axis, op), and over all ops of the axis as (axis, "").

    Per step and rank an operation adds ``min(own exposed part, median duration of the same op and
    size on that rank)`` when its strategy marks it as unavoidable. On an axis the strategy
    describes, an operation it does not describe cannot be judged: its measured exposure is added
    to the axis' figure, its own figure is None.

    Args:
        events: schema.COMM_EVENTS.
        strategy: stated or inferred.
        steps: kept (rank, lane, step) windows the means are over, > 0.
    """
    needed = _with_need(events)
    found: dict[tuple[str, str], Expected] = {}
    for axis in events["axis"].unique().sort():
        on_axis = needed.filter(pl.col("axis") == axis)
        expectation = strategy.axes.get(axis)
        ops = on_axis["op"].unique().sort().to_list()
        if expectation is None:
            said = f"strategy {strategy.text} says" if strategy.axes else "no strategy known to say"
            reason = Expected(None, f"{said} what must be exposed on {axis}")
            reason = reason if not strategy.axes else Expected(None, f"{said} nothing about {axis}")
            found |= {(axis, op): reason for op in (ALL_OPS, *ops)}
            continue
        total = 0
        for op in ops:
            rows = on_axis.filter(pl.col("op") == op)
            spec = expectation.ops.get(op)
            total += int(rows["exposed_ns"].sum()) if spec is None else _unavoidable(rows, spec)
            found[axis, op] = _of_op(rows, op, expectation, steps)
        found[axis, ALL_OPS] = Expected(_mean(total, steps), _why(expectation, ops))
    return found


def _with_need(events: pl.DataFrame) -> pl.DataFrame:
    """``events`` with ``need_ns`` and the place among equals in the step, from either end."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    typical = duration.median().floor().cast(pl.Int64).over("rank", "axis", "op", "message_bytes")
    turn = pl.col("start_ns").rank("ordinal").over("rank", "lane", "step", "axis", "op")
    return events.with_columns(
        pl.min_horizontal("exposed_ns", typical).alias("need_ns"),
        turn.alias("turn"),
        pl.len().over("rank", "lane", "step", "axis", "op").alias("turns"),
    )


def _unavoidable(rows: pl.DataFrame, spec: OpExpectation) -> int:
    chosen = {
        EVERY: pl.lit(value=True),
        FIRST: pl.col("turn") == 1,
        LAST: pl.col("turn") == pl.col("turns"),
    }.get(spec.exposed_minimum, pl.lit(value=False))
    return int(rows.filter(chosen)["need_ns"].sum())


def _of_op(rows: pl.DataFrame, op: str, expectation: AxisExpectation, steps: int) -> Expected:
    spec = expectation.ops.get(op)
    if spec is None:
        return Expected(None, f"{op} is not part of {expectation.word}")
    return Expected(_mean(_unavoidable(rows, spec), steps), _why(expectation, [op]))


def _why(expectation: AxisExpectation, ops: list[str]) -> str:
    """What of these ops is unavoidable, in words."""
    known = [expectation.ops[op] for op in ops if op in expectation.ops]
    forced = [f"{WORDS[s.exposed_minimum]} {s.op}" for s in known if s.exposed_minimum in WORDS]
    text = f"{_listed(forced)} cannot be hidden" if forced else "all of it can be hidden"
    strangers = [op for op in ops if op not in expectation.ops]
    aside = f"; not judged: {', '.join(strangers)}" if strangers else ""
    return f"{expectation.word}: {text}{aside}"


def _listed(items: list[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def _mean(total: int, steps: int) -> int:
    return (total + steps // 2) // steps
