"""All measurements of a job, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from analyzer import schema
from analyzer.crossrank import compare_ranks
from analyzer.crossrank.bandwidth import Network, network_of
from analyzer.crossrank.results import CrossRank
from analyzer.crossrank.split import stage_waits
from analyzer.measure.axes import axis_step, comm_events
from analyzer.measure.budget import BUBBLE, step_budget
from analyzer.measure.caveats import coverage_caveats, rank_caveats
from analyzer.measure.expected import expected_exposure
from analyzer.measure.host import HostWaits, host_step
from analyzer.measure.idle import drain_by_step, find_gaps, idle_by_cause
from analyzer.measure.lane import Lane, lanes_of
from analyzer.measure.links import clock_reason, link_figures, link_reasons
from analyzer.measure.model_run import ModelRun, written_run
from analyzer.measure.results import AxisSummary, Budget, Coverage, Measurements, RankSummary
from analyzer.measure.summary import (
    axis_summaries,
    exposed_pct,
    mean_budget,
    rank_summaries,
    state_pct,
)
from analyzer.measure.utilisation import compute_reasons, measure_compute
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
    gpus_per_node: int | None = None,
    run: ModelRun | None = None,
) -> Measurements:
    """Measure every rank, device and step of a labelled job, and its means.

    Args:
        labeled: the job with every interval labelled and its steps found.
        job: the job as read: what was left out.
        expect: the stated strategy says what is unavoidable; without it the inferred one does.
        mesh: the stated mesh; without it the one found from the traces is reported.
        gpus_per_node: ranks that share a node's links; without it host names or the device tell.
        run: the model and its tokens; without it the one the collector wrote, else shapes tell.

    Returns:
        Tables of every step, and means over kept ones: None where ``null_reasons`` says why.
    """
    metas = [rank.trace.meta for rank in labeled.ranks]
    crossrank, _ = compared = _compared(labeled.ranks, gpus_per_node)
    tables = _measure_ranks(labeled.ranks, crossrank)
    coverage = _coverage(labeled.ranks, job)
    means = _means(tables, coverage, expect or labeled.strategy, compared)
    run = run or next(filter(None, (written_run(meta.embedded) for meta in metas)), None)
    compute = measure_compute(labeled.ranks, means.budget, coverage.ranks_expected, run)
    host_side = any(rank.host_side for rank in labeled.ranks)
    return Measurements(
        inputs=tuple(meta.path for meta in metas),
        world_size=coverage.ranks_expected,
        ranks=coverage.ranks_seen,
        device="CPU" if host_side else _first(m.device_names for m in metas),
        framework=_first((m.producer,) for m in metas),
        backend=_first((m.backend,) for m in metas),
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
        warnings=_warnings(labeled, coverage, compute.warnings if compute else ()),
        conflicts=labeled.conflicts,
        null_reasons=_null_reasons(means, coverage, crossrank)
        | compute_reasons(compute, means.budget),
        crossrank=crossrank,
        compute=compute,
        **tables,
    )


def _compared(
    ranks: Sequence[LabeledRank], gpus_per_node: int | None
) -> tuple[CrossRank | None, Network]:
    network = network_of([rank.trace.meta for rank in ranks], gpus_per_node)
    return compare_ranks(ranks, network), network


def _warnings(labeled: LabeledJob, coverage: Coverage, more: Iterable[str]) -> tuple[str, ...]:
    """What limits the figures, each once."""
    found = (*coverage_caveats(coverage), *rank_caveats(labeled.ranks), *labeled.warnings, *more)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over kept steps and ranks; nothing where no device figure may be given."""

    budget: Budget | None = None
    per_rank: tuple[RankSummary, ...] = ()
    axes: tuple[AxisSummary, ...] = ()
    exposed_comm_pct: float | None = None
    bubble_pct: float | None = None
    link_reasons: Mapping[str, str] = field(default_factory=dict)


def _means(
    tables: Mapping[str, pl.DataFrame],
    coverage: Coverage,
    strategy: Strategy,
    compared: tuple[CrossRank | None, Network],
) -> _Means:
    rows = tables["budget"].filter("kept")
    budget = mean_budget(rows)
    if budget is None or not coverage.device_figures_ok:
        return _Means()
    windows = rows.select(pl.struct("rank", "lane", "step").n_unique()).item()
    expected = expected_exposure(tables["comm_events"], strategy, windows)
    links = link_figures(tables["comm_events"], *compared, windows)
    return _Means(
        budget=budget,
        per_rank=rank_summaries(rows),
        axes=axis_summaries(tables["axis_step"].filter("kept"), windows, expected, links),
        exposed_comm_pct=exposed_pct(rows),
        bubble_pct=None if budget.bubble_ns is None else state_pct(rows, BUBBLE),
        link_reasons=link_reasons(*compared, links),
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


def _measure_ranks(
    ranks: Sequence[LabeledRank], crossrank: CrossRank | None
) -> dict[str, pl.DataFrame]:
    parts: dict[str, list[pl.DataFrame]] = {
        table.name: [table.empty()] for table in schema.MEASURE_TABLES
    }
    steps = [schema.STEPS.empty().select(pl.lit(0, dtype=pl.Int32).alias("rank"), pl.all())]
    stages = (crossrank and stage_waits(crossrank.splits, ranks)) or {}
    for rank in ranks:
        waits = HostWaits.of(rank.trace)
        text = pl.col("label", "reason").cast(pl.String)
        number = pl.lit(rank.trace.rank, dtype=pl.Int32).alias("rank")
        steps.append(rank.steps.with_columns(text).select(number, pl.all()))
        for lane in lanes_of(rank, stages.get(rank.trace.rank)):
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


def _first(names: Iterable[Iterable[str]]) -> str:
    """The first name that is not empty."""
    return next((name for some in names for name in some if name), "")


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


def _null_reasons(means: _Means, coverage: Coverage, crossrank: CrossRank | None) -> dict[str, str]:
    """Why figures are missing, by the name of the figure."""
    clock = {} if crossrank and crossrank.clock.offset_ns else {"clock": clock_reason(crossrank)}
    if means.budget is not None:
        bubble = {"bubble_pct": BUBBLE_REASON} if means.budget.bubble_ns is None else {}
        return {**bubble, **clock, **means.link_reasons}
    if coverage.steps_total == 0:
        why = "the traces hold neither device work nor operators"
    elif not coverage.device_figures_ok:
        seen, total = coverage.steps_with_device_events, coverage.steps_total
        why = f"only {seen} of {total} steps have device events"
    else:
        why = "no step could be kept"
    return {**dict.fromkeys(("step", "exposed_comm_pct", "bubble_pct", "axes"), why), **clock}
