"""Measurements from a compact description: compute intervals and collectives of one step.

Everything is given in milliseconds of one step, which every rank and step repeats. The figures are
worked out here by plain interval arithmetic, independent of the packages under test.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer import schema
from analyzer.measure.results import AxisSummary, Budget, Coverage, Measurements, RankSummary
from analyzer.model import Outcome, axis_sort_key
from analyzer.strategy import AxisExpectation, OpExpectation, Strategy
from rules import run

MS = 1_000_000
ORIGIN_NS = 1_700_000_000_000_000_000
Span = tuple[float, float]


@dataclass(frozen=True)
class Comm:
    """One collective of the step: ``start`` and ``end`` in ms."""

    axis: str
    op: str
    start: float
    end: float
    mib: float | None = 64.0
    phase: str = "backward"
    launched: bool = True

    @property
    def span(self) -> tuple[int, int]:
        return ns(self.start), ns(self.end)


def ns(ms: float) -> int:
    return round(ms * MS)


def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def within(spans: Iterable[tuple[int, int]], lo: int, hi: int) -> int:
    """Length of the union of spans inside [lo, hi)."""
    return sum(max(0, min(end, hi) - max(start, lo)) for start, end in union(spans))


def exposed(spans: Iterable[tuple[int, int]], compute: Sequence[tuple[int, int]]) -> int:
    return sum(end - start - within(compute, start, end) for start, end in union(spans))


def ops_of(axis: str, word: str, degree: int | None, **minimum: str) -> AxisExpectation:
    """An expectation that requires each op; ``minimum`` maps it to its exposed minimum."""
    ops = {op: OpExpectation(op, how == "all", exposed_minimum=how) for op, how in minimum.items()}
    return AxisExpectation(axis, degree, word, tuple(frozenset({op}) for op in ops), ops)


def strategy(*words: str, **degrees: int) -> Strategy:
    """ddp, zero2, fsdp, tp, cp and pp, with degrees by axis."""
    known = {
        "ddp": ("dp_replicate", {"all_reduce": "last"}),
        "zero2": ("dp_shard", {"all_gather": "first", "reduce_scatter": "last"}),
        "fsdp": ("dp_shard", {"all_gather": "first", "reduce_scatter": "last"}),
        "ep": ("ep", {"all_to_all": "none"}),
        "pp": ("pp", {"send_recv": "none"}),
    }
    axes = {known[w][0]: ops_of(known[w][0], w, degrees.get(known[w][0]), **known[w][1])
            for w in words if w in known}  # fmt: skip
    if "tp" in words:  # either all-reduces or, with sequence parallelism, reduce-scatters
        ops = {op: OpExpectation(op, True, exposed_minimum="all")
               for op in ("all_reduce", "all_gather", "reduce_scatter")}  # fmt: skip
        required = (frozenset({"all_reduce", "reduce_scatter"}),)
        axes["tp"] = AxisExpectation("tp", degrees.get("tp"), "tp", required, ops)
    return Strategy("_".join(words), words, axes)


def measured(
    comm: Sequence[Comm] = (),
    *,
    compute: Sequence[Span] = ((0, 50),),
    step: float = 100.0,
    ranks: Sequence[int] = (0,),
    steps: int = 2,
    must_expose: Mapping[str, float] | None = None,
    idle: Mapping[str, float] | None = None,
    host: Mapping[str, float] | None = None,
    inferred: Strategy | None = None,
    **fields: Any,
) -> Measurements:
    """Measurements of a job in which every rank repeats the described step.

    Args:
        comm: the collectives.
        compute: when compute kernels run, ms.
        step: length of the window, ms.
        ranks, steps: which ranks and how many kept steps.
        must_expose: axis or ``axis/op`` -> exposed minimum, ms; not known where absent.
        idle: cause -> ms; the rest of the idle time is ``other``.
        host: columns of host_step, times in ms (``drain``, ``sync``, ``lead``).
        inferred: the strategy inferred from the trace.
        fields: any field of Measurements, instead of what is worked out.
    """
    busy = [(ns(a), ns(b)) for a, b in compute]
    time_ns = ns(step)
    budget = _budget(comm, busy, time_ns, idle or {})
    axes = _axes(comm, busy, must_expose or {})
    windows = [(rank, number) for rank in ranks for number in range(steps)]
    pct = 100.0 * budget.exposed_total_ns / time_ns
    values: dict[str, Any] = {
        "inputs": ("trace.json",),
        "world_size": len(ranks),
        "ranks": tuple(ranks),
        "device": "NVIDIA H100 80GB HBM3",
        "framework": "pytorch",
        "backend": "nccl",
        "mesh": {a.axis: 2 for a in axes if not a.op},
        "mesh_source": "group_desc",
        "axis_labels": {},
        "strategy": inferred or Strategy(""),
        "strategy_why": "",
        "expect": None,
        "host_side": False,
        "step_source": "ProfilerStep",
        "steps": _steps_table(windows, time_ns),
        "budget": _budget_table(windows, budget),
        "axis_step": schema.AXIS_STEP.empty(),
        "comm_events": _events_table(windows, comm, busy, time_ns),
        "host_step": _host_table(windows, {"launches": 500, **(host or {})}),
        "mean": budget,
        "per_rank": tuple(RankSummary(rank, 0, steps, budget, pct) for rank in ranks),
        "axes": axes,
        "exposed_comm_pct": pct,
        "bubble_pct": 0.0,
        "coverage": Coverage(len(ranks), tuple(ranks), len(windows), len(windows), 0.0),
        "origin_ns": dict.fromkeys(ranks, ORIGIN_NS),
    }
    return Measurements(**{**values, **fields})


def outcome(code: str, m: Measurements, **options: object) -> Outcome:
    """What one rule says."""
    return next(o for o in run(m, settings={code: options}) if o.rule == code)


def unmeasurable(reason: str) -> Measurements:
    """A job of which no step could be kept."""
    whole = measured()
    nothing = {
        name: getattr(whole, name).clear() for name in ("budget", "comm_events", "host_step")
    }
    return dataclasses.replace(
        whole,
        **nothing,
        steps=whole.steps.with_columns(kept=pl.lit(value=False)),
        mean=None,
        per_rank=(),
        axes=(),
        exposed_comm_pct=None,
        bubble_pct=None,
        null_reasons={"exposed_comm_pct": reason},
    )


def _budget(
    comm: Sequence[Comm], busy: list[tuple[int, int]], time_ns: int, idle: Mapping[str, float]
) -> Budget:
    """Axes that are exposed together share the instant; what is left over is idle."""
    points = sorted({t for span in (*busy, *(c.span for c in comm)) for t in span})
    shares: dict[str, float] = {c.axis: 0.0 for c in comm}
    for lo, hi in itertools.pairwise(points):
        together = {c.axis for c in comm if c.span[0] <= lo and c.span[1] >= hi}
        for axis in together if within(busy, lo, hi) == 0 else ():
            shares[axis] += (hi - lo) / len(together)
    exposed_ns = {axis: round(value) for axis, value in shares.items()}
    compute_ns = within(busy, 0, time_ns)
    causes = {cause: ns(ms) for cause, ms in idle.items()}
    causes["other"] = time_ns - compute_ns - sum(exposed_ns.values()) - sum(causes.values())
    assert causes["other"] >= 0, "more idle time described than there is"
    return Budget(time_ns, compute_ns, exposed_ns, 0, 0, causes)


def _axes(
    comm: Sequence[Comm], busy: list[tuple[int, int]], must_expose: Mapping[str, float]
) -> tuple[AxisSummary, ...]:
    summaries = []
    keys = {(c.axis, op) for c in comm for op in ("", c.op)}
    for axis, op in sorted(keys, key=lambda k: (axis_sort_key(k[0]), k[1])):
        mine = [c for c in comm if c.axis == axis and op in ("", c.op)]
        comm_ns = sum(b - a for a, b in union(c.span for c in mine))
        exposed_ns = exposed([c.span for c in mine], busy)
        minimum = must_expose.get(f"{axis}/{op}" if op else axis)
        sizes = [c.mib for c in mine]
        total = None if None in sizes else sum(s * 2**20 for s in sizes if s is not None)
        summaries.append(
            AxisSummary(
                axis, op, float(len(mine)), total, comm_ns, exposed_ns,
                100.0 * (1 - exposed_ns / comm_ns), None if minimum is None else ns(minimum),
            )
        )  # fmt: skip
    return tuple(summaries)


def _keys(rank: int, number: int) -> dict[str, Any]:
    return {"rank": rank, "lane": 0, "step": number, "kept": True}


def _frame(rows: list[dict[str, Any]], table: schema.Table) -> pl.DataFrame:
    full = [{name: row.get(name) for name in table.names} for row in rows]
    return schema.conform(pl.DataFrame(full, schema=table.empty().schema), table)


def _steps_table(windows: list[tuple[int, int]], time_ns: int) -> pl.DataFrame:
    rows = [
        {
            "index": number, "label": f"ProfilerStep#{number}", "lane": 0,
            "start_ns": ORIGIN_NS + number * time_ns, "end_ns": ORIGIN_NS + (number + 1) * time_ns,
            "device_events": 100, "kept": True, "reason": "",
        }
        for _, number in windows
    ]  # fmt: skip
    ranks = pl.Series("rank", [rank for rank, _ in windows], dtype=pl.Int32)
    return _frame(rows, schema.STEPS).insert_column(0, ranks)


def _budget_table(windows: list[tuple[int, int]], budget: Budget) -> pl.DataFrame:
    states = [("compute", "", budget.compute_ns)]
    states += [("exposed_comm", axis, value) for axis, value in budget.exposed_comm_ns.items()]
    states += [("idle", cause, value) for cause, value in budget.idle_ns.items()]
    rows = [
        {**_keys(rank, number), "state": state, "detail": detail, "ns": value}
        for rank, number in windows
        for state, detail, value in states
    ]
    return _frame(rows, schema.BUDGET)


def _events_table(
    windows: list[tuple[int, int]], comm: Sequence[Comm], busy: list[tuple[int, int]], time_ns: int
) -> pl.DataFrame:
    rows = []
    for rank, number in windows:
        zero = ORIGIN_NS + number * time_ns
        for c in comm:
            start, end = c.span
            rows.append(
                {
                    **_keys(rank, number), "start_ns": zero + start, "end_ns": zero + end,
                    "name": f"ncclDevKernel_{c.op}", "axis": c.axis, "op": c.op, "group": "0,1",
                    "group_size": 2, "phase": c.phase, "stream": 20,
                    "message_bytes": None if c.mib is None else round(c.mib * 2**20),
                    "exposed_ns": exposed([c.span], busy),
                    "launch_ns": zero + start - 1000 if c.launched else None,
                    "compute_before_ns": within(busy, 0, start),
                    "compute_after_ns": within(busy, end, time_ns),
                }
            )  # fmt: skip
    return _frame(rows, schema.COMM_EVENTS)


def _host_table(windows: list[tuple[int, int]], host: Mapping[str, float]) -> pl.DataFrame:
    values = {
        "sync_calls": round(host.get("sync_calls", 0)), "sync_ns": ns(host.get("sync", 0)),
        "drain_ns": ns(host.get("drain", 0)), "launches": round(host["launches"]),
        "median_lead_ns": ns(host.get("lead", 1)),
    }  # fmt: skip
    return _frame([{**_keys(*window), **values} for window in windows], schema.HOST_STEP)
