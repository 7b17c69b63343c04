"""Label a whole job: what each interval is, which axis it serves, which step and phase it is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from analyzer import schema
from analyzer.groups import GroupUse
from analyzer.label.axis import (
    WORLD_CONFIDENCE,
    Members,
    apply_labels,
    find_groups,
    group_uses,
    is_tiny,
)
from analyzer.label.classify import classify
from analyzer.label.gloo import host_activity, is_host_side
from analyzer.label.hints import axis_hints
from analyzer.label.link import link
from analyzer.label.message import fill_coalesced, message_bytes
from analyzer.label.peers import with_global_peers
from analyzer.label.phase import assign_phases
from analyzer.label.steps import StepResult, assign_steps
from analyzer.model import WORLD_AXIS, AxisLabel, Evidence, Job, LabeledRank, Phase, RankTrace
from analyzer.strategy import AxisFacts, Strategy, infer_strategy
from analyzer.topology import Topology, axis_labels, resolve


@dataclass(frozen=True, slots=True)
class LabeledJob:
    """All ranks with every interval labelled, and what the labels say about the job.

    Attributes:
        ranks: one entry a rank, in rank order.
        topology: the mesh and the label of every process group.
        strategy: the strategy the trace shows, inferred without the user's expectation.
        strategy_why: from what evidence, in words.
        axis_labels: per axis, the label with the weakest evidence behind it.
        conflicts: label sources that disagree.
        warnings: what a reader must know about the labels.
    """

    ranks: tuple[LabeledRank, ...]
    topology: Topology
    strategy: Strategy
    strategy_why: str
    axis_labels: Mapping[str, AxisLabel]
    conflicts: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Draft:
    """One rank before its axes are known: schema.ACTIVITY plus key, desc, tiny and by_stream."""

    trace: RankTrace
    steps: StepResult
    frame: pl.DataFrame
    uses: tuple[GroupUse, ...]
    host_side: bool


def label_job(
    job: Job, *, mesh: Mapping[str, int] | None = None, expect: Strategy | None = None
) -> LabeledJob:
    """Label every rank of a job.

    Args:
        job: traces of one job (:func:`collectors.open_job`).
        mesh: the device mesh the user states, outermost axis first. Without it, the one the
            collector wrote into the trace.
        expect: the strategy the user expects. It decides between readings of groups that neither
            mesh nor description explains, and nothing else.
    """
    drafts = [_draft(trace) for trace in job.ranks]
    expected = {axis: row.degree for axis, row in expect.axes.items()} if expect else {}
    topology, conflicts = resolve(
        [use for draft in drafts for use in draft.uses],
        world_size=_world_size(job),
        stated=mesh or _written_mesh(job),
        expected=expected,
    )
    ranks = tuple(_finish(draft, topology) for draft in drafts)
    strategy, why = infer_strategy(*_facts(ranks))
    return LabeledJob(
        ranks=ranks,
        topology=topology,
        strategy=strategy,
        strategy_why=why,
        axis_labels=_axis_labels(topology, ranks),
        conflicts=conflicts,
        warnings=_warnings(job, mesh),
    )


def _draft(trace: RankTrace) -> _Draft:
    host_side = is_host_side(trace)
    frame, members = host_activity(trace) if host_side else _device_activity(trace)
    frame = frame.with_columns(is_tiny())
    steps = assign_steps(trace, frame)
    frame = assign_phases(trace, steps.activity)
    return _Draft(trace, steps, frame, group_uses(frame, members), host_side)


def _device_activity(trace: RankTrace) -> tuple[pl.DataFrame, Members]:
    """Device events in the columns of schema.ACTIVITY; step and phase come later."""
    events = classify(link(trace), trace)
    events = fill_coalesced(events.with_columns(message_bytes(events)), trace)
    frame, members = find_groups(events, trace.meta)
    frame = with_global_peers(frame, members).with_columns(
        pl.col("device").alias("lane"),
        pl.col("launch_ns").alias("host_ns"),
        pl.col("launch_pid").alias("host_pid"),
        pl.col("launch_tid").alias("host_tid"),
        pl.lit(-1, dtype=pl.Int32).alias("step"),
        pl.lit(Phase.UNKNOWN.value).alias("phase"),
    )
    frame = frame.with_columns(*axis_hints(frame, trace.ops))
    return frame.sort("lane", "start_ns", "end_ns", maintain_order=True), members


def _finish(draft: _Draft, topology: Topology) -> LabeledRank:
    activity = schema.conform(apply_labels(draft.frame, topology), schema.ACTIVITY)
    return LabeledRank(
        trace=draft.trace,
        activity=activity,
        steps=draft.steps.steps,
        step_source=draft.steps.source,
        host_side=draft.host_side,
        notes=draft.steps.notes,
    )


def _axis_labels(topology: Topology, ranks: tuple[LabeledRank, ...]) -> Mapping[str, AxisLabel]:
    """The weakest label per axis; `world` also where only some events of a group are it."""
    labels = axis_labels(topology)
    axes = (rank.activity["axis"].cast(pl.String) for rank in ranks)
    if WORLD_AXIS in labels or not any((axis == WORLD_AXIS).any() for axis in axes):
        return labels
    why = "small reductions on a group of all ranks"
    world = AxisLabel(WORLD_AXIS, Evidence.SIGNATURE, WORLD_CONFIDENCE, topology.world_size, why)
    return {**labels, WORLD_AXIS: world}


def _world_size(job: Job) -> int | None:
    """Ranks of the job as the traces tell; None where none does."""
    told = [trace.meta.world_size for trace in job.ranks if trace.meta.world_size]
    return max(told, default=None)


def _written_mesh(job: Job) -> Mapping[str, int] | None:
    return next((trace.meta.mesh for trace in job.ranks if trace.meta.mesh), None)


def _facts(ranks: tuple[LabeledRank, ...]) -> tuple[dict[str, AxisFacts], int]:
    """Per axis, how often each collective occurs and in which phase, and over how many windows.

    Over all ranks' kept steps; over all steps with device events where none is kept.
    """
    counted = [rank.steps.filter("kept") for rank in ranks]
    if not any(steps.height for steps in counted):
        counted = [rank.steps.filter(pl.col("device_events") > 0) for rank in ranks]
    frames = [
        rank.activity.filter(pl.col("axis").is_not_null())
        .join(steps.select("lane", pl.col("index").alias("step")), on=["lane", "step"], how="semi")
        .select(
            pl.col("axis").cast(pl.String),
            pl.col("op").cast(pl.String),
            pl.col("phase").cast(pl.String),
            "group_size",
        )
        for rank, steps in zip(ranks, counted, strict=True)
    ]
    windows = max(1, sum(steps.height for steps in counted))
    if not frames:
        return {}, windows
    counts = (
        pl.concat(frames).group_by("axis", "op", "phase").agg(pl.len(), pl.col("group_size").max())
    )
    facts: dict[str, AxisFacts] = {}
    for axis, op, phase, count, size in counts.sort("axis", "op", "phase").iter_rows():
        facts[axis] = facts.get(axis, AxisFacts()).seen(op, phase, count, size)
    return facts, windows


def _warnings(job: Job, mesh: Mapping[str, int] | None) -> tuple[str, ...]:
    written = _written_mesh(job)
    if mesh and written and dict(mesh) != dict(written):
        spelled = [",".join(f"{a}={d}" for a, d in m.items()) for m in (mesh, written)]
        return (f"the stated mesh {spelled[0]} overrides {spelled[1]} written by the collector",)
    return ()
