"""Small traces written directly as tables, for tests of steps, phases and measurements.

Times are plain nanoseconds. Every row is a dict of what matters; the rest has defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import polars as pl

from analyzer import schema
from analyzer.label.phase import assign_phases
from analyzer.label.steps import assign_steps
from analyzer.measure import measure_job
from analyzer.measure.results import Measurements
from analyzer.model import IngestReport, Job, LabeledRank, RankTrace, TraceMeta
from analyzer.strategy import Strategy

MAIN, AUTOGRAD = 1, 2


def table(spec: schema.Table, rows: Iterable[Mapping[str, Any]], **defaults: Any) -> pl.DataFrame:
    """Rows as a conforming frame; columns neither given nor defaulted are null."""
    filled = [{name: row.get(name, defaults.get(name)) for name in spec.names} for row in rows]
    return schema.check(pl.DataFrame(filled, schema=spec.empty().schema), spec)


def event(start: int, end: int, work: str = "compute", **more: Any) -> dict[str, Any]:
    """An activity row launched 10 ns before it starts, unless told otherwise."""
    row = {"start_ns": start, "end_ns": end, "work": work, "launch_ns": start - 10, **more}
    if work in ("comm", "fused"):
        row = {"axis": "tp", "op": "all_reduce", "stream": 20, **row}
    return row


def span(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """A range, operator or host call on the main thread."""
    return {"name": name, "start_ns": start, "end_ns": end, "tid": MAIN, "pid": 1, **more}


def activity_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    numbered = [{"event": number, **row} for number, row in enumerate(rows)]
    frame = table(
        schema.ACTIVITY, numbered,
        lane=0, stream=7, name="kernel", phase="unknown", step=-1, launch_tid=MAIN,
    )  # fmt: skip
    return frame.sort("lane", "start_ns", "end_ns")


def rank_trace(
    events: pl.DataFrame,
    *,
    rank: int = 0,
    host_side: bool = False,
    launches: Iterable[Mapping[str, Any]] = (),
    ops: Iterable[Mapping[str, Any]] = (),
    ranges: Iterable[Mapping[str, Any]] = (),
    report: IngestReport | None = None,
    **meta: Any,
) -> RankTrace:
    """The trace behind an activity frame; its device rows correlate by their row number."""
    device = events.select(
        "start_ns", "end_ns", "name", "stream", "graph_id", "event"
    ).with_columns(
        pl.lit("kernel").alias("kind"),
        events["lane"].alias("device"),
        pl.col("event").alias("correlation"),
    )
    return RankTrace(
        meta=TraceMeta(path=f"rank{rank}.json", rank=rank, device_names=("GPU",), **meta),
        report=report or IngestReport(),
        device=schema.DEVICE.empty() if host_side else schema.conform(device, schema.DEVICE),
        comm_args=schema.COMM_ARGS.empty(),
        launches=table(schema.LAUNCHES, launches),
        ops=table(schema.OPS, [{"event": n, **op} for n, op in enumerate(ops)]),
        ranges=table(schema.RANGES, ranges, side="host"),
        syncs=schema.SYNCS.empty(),
        memory=schema.MEMORY.empty(),
    )


def labeled(rows: Iterable[Mapping[str, Any]], **trace: Any) -> LabeledRank:
    """One rank with its steps and phases found; keywords as :func:`rank_trace`."""
    events = activity_frame(rows)
    made = rank_trace(events, **trace)
    found = assign_steps(made, events)
    return LabeledRank(
        trace=made,
        activity=schema.check(assign_phases(made, found.activity), schema.ACTIVITY),
        steps=schema.check(found.steps, schema.STEPS),
        step_source=found.source,
        host_side=made.device.is_empty(),
        notes=found.notes,
    )


def measure(*ranks: LabeledRank, strategy: Strategy | None = None) -> Measurements:
    """Measurements of ranks, as :func:`analyzer.measure.measure_job` makes them of a job."""
    job = SimpleNamespace(
        ranks=ranks,
        topology=SimpleNamespace(mesh={}, source="none"),
        strategy=strategy or Strategy(""),
        strategy_why="",
        axis_labels={},
        conflicts=(),
        warnings=(),
    )
    return measure_job(job, Job(ranks=tuple(rank.trace for rank in ranks)))


def budget_of(measurements: Measurements, **where: int) -> dict[str, int]:
    """One window's (or all windows') budget without zeros: ``{"exposed_comm.tp": 100, ...}``."""
    rows = measurements.budget.filter(**where) if where else measurements.budget
    rows = rows.group_by("state", "detail").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
    return {f"{state}.{detail}" if detail else state: ns for state, detail, ns in rows.iter_rows()}
