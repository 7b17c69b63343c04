"""All measurements of a job, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analyzer import schema
from analyzer.measure.axes import axis_step, comm_events
from analyzer.measure.budget import step_budget
from analyzer.measure.caveats import coverage_caveats, rank_caveats
from analyzer.measure.expected import expected_exposure
from analyzer.measure.host import HostWaits, host_step
from analyzer.measure.idle import drain_by_step, find_gaps, idle_by_cause
from analyzer.measure.lane import Lane, lanes_of
from analyzer.measure.results import AxisSummary, Budget, Coverage, Measurements, RankSummary
from analyzer.measure.summary import axis_summaries, exposed_pct, mean_budget, rank_summaries
from analyzer.model import IngestReport, Job, LabeledRank, Work
from analyzer.strategy import Strategy

if TYPE_CHECKING:
    from analyzer.label.job import LabeledJob

BUBBLE_REASON = (
    "a pipeline communicates, and its waits cannot be told from its transfers without matching "
    "both ends of each transfer; they are in exposed_comm of pp"
)


def measure_job(
    labeled: LabeledJob,
    job: Job,
    *,
    expect: Strategy | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Measurements:
    """Measure every rank, device and step of a labelled job, and its means.

    Args:
        labeled: the job with every interval labelled and its steps found.
        job: the job as read: what was left out.
        expect: the stated strategy; it decides what communication is unavoidable. Without it the
            inferred one does.
        mesh: the stated mesh; without it the one found from the traces is reported.

    Returns:
        Measurements whose tables hold every step and whose means are over kept steps. Means are
        None, with the reason in ``null_reasons``, when no step could be kept or most steps hold no
        device event.
    """
    tables = _measure_ranks(labeled.ranks)
    coverage = _coverage(labeled.ranks, job)
    means = _means(tables, coverage, expect or labeled.strategy)
    metas = [rank.trace.meta for rank in labeled.ranks]
    host_side = any(rank.host_side for rank in labeled.ranks)
    warnings = (
        *coverage_caveats(coverage),
        *rank_caveats(labeled.ranks),
        *labeled.warnings,
    )
    return Measurements(
        inputs=tuple(meta.path for meta in metas),
        world_size=coverage.ranks_expected,
        ranks=coverage.ranks_seen,
        device="CPU" if host_side else next((n for m in metas for n in m.device_names), ""),
        framework=next((m.producer for m in metas), ""),
        backend=next((m.backend for m in metas if m.backend), ""),
        mesh=mesh or labeled.topology.mesh,
        mesh_source="stated" if mesh else labeled.topology.source,
        axis_labels=labeled.axis_labels,
        strategy=labeled.strategy,
        strategy_why=labeled.strategy_why,
        expect=expect,
        host_side=host_side,
        step_source=", ".join(dict.fromkeys(rank.step_source for rank in labeled.ranks)),
        mean=means.budget,
        per_rank=means.per_rank,
        axes=means.axes,
        exposed_comm_pct=means.exposed_comm_pct,
        bubble_pct=means.bubble_pct,
        coverage=coverage,
        origin_ns=_origins(labeled.ranks),
        warnings=tuple(dict.fromkeys(warnings)),
        conflicts=labeled.conflicts,
        null_reasons=_null_reasons(means.budget, coverage),
        **tables,
    )


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over kept steps and ranks; nothing where no device figure may be given."""

    budget: Budget | None = None
    per_rank: tuple[RankSummary, ...] = ()
    axes: tuple[AxisSummary, ...] = ()
    exposed_comm_pct: float | None = None
    bubble_pct: float | None = None


def _means(tables: Mapping[str, pl.DataFrame], coverage: Coverage, strategy: Strategy) -> _Means:
    rows = tables["budget"].filter("kept")
    budget = mean_budget(rows)
    if budget is None or not coverage.device_figures_ok:
        return _Means()
    windows = rows.select(pl.struct("rank", "lane", "step").n_unique()).item()
    expected = expected_exposure(tables["comm_events"], strategy, windows)
    return _Means(
        budget=budget,
        per_rank=rank_summaries(rows),
        axes=axis_summaries(tables["axis_step"].filter("kept"), windows, expected),
        exposed_comm_pct=exposed_pct(rows),
        bubble_pct=None if budget.bubble_ns is None else 0.0,
    )


def measure_lane(lane: Lane, waits: HostWaits) -> dict[str, pl.DataFrame]:
    """The measured tables of one device, by the name they have in Measurements."""
    gaps = find_gaps(lane)
    return {
        "budget": step_budget(lane, idle_by_cause(lane, gaps, waits)),
        "axis_step": axis_step(lane),
        "comm_events": comm_events(lane),
        "host_step": host_step(lane, waits, drain_by_step(lane, gaps, waits)),
    }


def _measure_ranks(ranks: Iterable[LabeledRank]) -> dict[str, pl.DataFrame]:
    parts: dict[str, list[pl.DataFrame]] = {
        table.name: [table.empty()] for table in schema.MEASURE_TABLES
    }
    steps = [schema.STEPS.empty().select(pl.lit(0, dtype=pl.Int32).alias("rank"), pl.all())]
    for rank in ranks:
        waits = HostWaits.of(rank.trace)
        text = pl.col("label", "reason").cast(pl.String)
        number = pl.lit(rank.trace.rank, dtype=pl.Int32).alias("rank")
        steps.append(rank.steps.with_columns(text).select(number, pl.all()))
        for lane in lanes_of(rank):
            for name, frame in measure_lane(lane, waits).items():
                parts[name].append(frame)
    return {name: pl.concat(frames) for name, frames in parts.items()} | {"steps": pl.concat(steps)}


def _coverage(ranks: Iterable[LabeledRank], job: Job) -> Coverage:
    ranks = list(ranks)
    reports = [rank.trace.report for rank in ranks]
    per_step = [
        rank.steps.group_by("index").agg(pl.col("device_events").sum() > 0) for rank in ranks
    ]
    world = next((r.trace.meta.world_size for r in ranks if r.trace.meta.world_size), None)
    return Coverage(
        ranks_expected=world,
        ranks_seen=tuple(rank.trace.rank for rank in ranks),
        steps_total=sum(steps.height for steps in per_step),
        steps_with_device_events=sum(int(steps["device_events"].sum()) for steps in per_step),
        unclassified_pct=_unclassified_pct(ranks),
        dropped_events=_totals(reports, lambda report: report.dropped),
        repaired_events=_totals(reports, lambda report: report.repaired),
        truncated_inputs=tuple(r.trace.meta.path for r in ranks if r.trace.report.truncated),
        left_out=job.left_out,
    )


def _totals(
    reports: Iterable[IngestReport], of: Callable[[IngestReport], Mapping[str, int]]
) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for report in reports:
        totals.update(of(report))
    return dict(totals)


def _unclassified_pct(ranks: Iterable[LabeledRank]) -> float | None:
    """Share of all device event time that no evidence could class, in percent."""
    unknown = total = 0
    for rank in ranks:
        length = rank.activity["end_ns"] - rank.activity["start_ns"]
        unclassed = rank.activity["work"].cast(pl.String) == Work.UNKNOWN.value
        total += int(length.sum())
        unknown += int(length.filter(unclassed).sum())
    return 100 * unknown / total if total else None


def _origins(ranks: Iterable[LabeledRank]) -> dict[int, int]:
    """Start of every rank's first window, the zero of the times shown for it."""
    origins = {}
    for rank in ranks:
        first = rank.steps["start_ns"].min()
        origins[rank.trace.rank] = int(first) if isinstance(first, int) else rank.trace.meta.base_ns
    return origins


def _null_reasons(mean: Budget | None, coverage: Coverage) -> dict[str, str]:
    """Why figures are missing, by the name of the figure."""
    if mean is not None:
        return {"bubble_pct": BUBBLE_REASON} if mean.bubble_ns is None else {}
    if coverage.steps_total == 0:
        why = "the traces hold neither device work nor operators"
    elif not coverage.device_figures_ok:
        seen, total = coverage.steps_with_device_events, coverage.steps_total
        why = f"only {seen} of {total} steps have device events"
    else:
        why = "no step could be kept"
    return dict.fromkeys(("step", "exposed_comm_pct", "bubble_pct", "axes"), why)
