"""Composition root: paths in, a finished analysis out.

>>> result = analyze("traces/", expect="fsdp_tp")  # doctest: +SKIP
>>> result.exposed_comm_pct, result.findings, result.document  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.model import Finding, GateResult, Outcome, Severity

if TYPE_CHECKING:
    import polars as pl

    from analyzer.gates import Gate
    from analyzer.label.job import LabeledJob
    from analyzer.measure.results import Measurements
    from collectors import Progress
    from collectors.cache import Cache
    from reports.timeline import Timeline
    from rules.settings import RuleSettings

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to do beyond reading its inputs."""

    expect: str | None = None
    mesh: str | None = None
    rank: int | None = None
    rules: RuleSettings | None = None
    gates: tuple[Gate, ...] = ()
    fail_on: Severity | None = None
    model: str | None = None
    """Model whose FLOPs MFU counts: a known name, or the path of its config.json."""
    tokens_per_step: int | None = None
    sequence: int | None = None
    flops_convention: str | None = None
    gpus_per_node: int | None = None
    """Devices that share a node's links; else as host names tell, else the device's usual node."""
    timeline: bool = True
    """Collect the slices an HTML report shows; without one that is time and memory for nothing."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything one run found out. ``document`` is what ``--json`` writes."""

    measurements: Measurements
    outcomes: tuple[Outcome, ...]
    gates: tuple[GateResult, ...]
    document: dict[str, Any]
    timeline: Timeline | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the most valuable first."""
        found = [f for outcome in self.outcomes for f in outcome.findings]
        return tuple(sorted(found, key=lambda f: -(f.savings_ns or 0)))

    @property
    def exposed_comm_pct(self) -> float | None:
        """Mean share of step time in exposed communication, None when not measurable."""
        return self.measurements.exposed_comm_pct

    def frame(self, table: str) -> pl.DataFrame:
        """One of the measurement tables: budget, axis_step, comm_events, host_step, steps."""
        frame: pl.DataFrame = getattr(self.measurements, table)
        return frame

    def to_html(self, path: PathLike) -> None:
        """Write the self-contained HTML report."""
        from reports.html import render_html

        Path(path).write_text(render_html(self.document, self.timeline), encoding="utf-8")


def analyze(
    paths: PathLike | Sequence[PathLike],
    *,
    expect: str | None = None,
    mesh: str | None = None,
    options: Options | None = None,
    cache: Cache | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Analysis:
    """Analyse one job's traces.

    Args:
        paths: a trace file, a directory, a glob, or several of them: one job.
        expect: the strategy, e.g. ``fsdp_tp`` (overrides ``options.expect``).
        mesh: the mesh, outermost first, e.g. ``pp=2,dp_shard=4,tp=2`` (overrides ``options.mesh``).
        options: everything else a run can be asked.
        cache: where parsed traces are kept; None reads the files anew.
        progress: called while files are read.

    Raises:
        MeshscopeError: unusable input or a bad option, as one line naming it.
    """
    from analyzer.gates import evaluate, fail_on_gate
    from analyzer.label import label_job
    from analyzer.measure import measure_job
    from analyzer.measure.model_run import stated_run
    from analyzer.strategy import parse_expect, parse_mesh
    from collectors import open_job
    from reports.document import build_document, with_gates
    from rules import RuleSettings, run

    chosen = options or Options()
    chosen = replace(chosen, expect=expect or chosen.expect, mesh=mesh or chosen.mesh)
    strategy = parse_expect(chosen.expect) if chosen.expect else None
    stated_mesh = parse_mesh(chosen.mesh) if chosen.mesh else None
    stated = stated_run(
        chosen.model, chosen.tokens_per_step, chosen.sequence, chosen.flops_convention
    )
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)

    job = open_job(listed, rank=chosen.rank, cache=cache, progress=progress)
    labeled = label_job(job, mesh=stated_mesh, expect=strategy)
    measurements = measure_job(
        labeled,
        job,
        expect=strategy,
        mesh=stated_mesh,
        gpus_per_node=chosen.gpus_per_node,
        run=stated,
    )
    settings = chosen.rules or RuleSettings()
    outcomes = run(measurements, settings=settings.options, levels=settings.levels)
    timeline = _timeline(labeled, measurements, outcomes) if chosen.timeline else None
    document = build_document(measurements, outcomes, (), timeline=timeline)
    gates = evaluate(chosen.gates, document)
    if chosen.fail_on is not None:
        gates = (*gates, fail_on_gate(chosen.fail_on, document))
    document = with_gates(document, gates)
    return Analysis(measurements, outcomes, gates, document, timeline)


def _timeline(
    labeled: LabeledJob, measurements: Measurements, outcomes: tuple[Outcome, ...]
) -> Timeline:
    from reports.timeline import build_timeline

    evidence = [e for o in outcomes for f in o.findings for e in f.evidence if e.step is not None]
    return build_timeline(
        {rank.trace.rank: rank.activity for rank in labeled.ranks},
        measurements.steps,
        measurements.budget,
        origin_ns=measurements.origin_ns,
        wanted=[(e.rank, e.step) for e in evidence if e.step is not None],
    )
