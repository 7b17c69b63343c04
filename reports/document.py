"""The result document: everything a run found out, as plain JSON types.

Keys and units are those of ``reports/schema/analysis-1.json``. Within one version of the schema
keys are only ever added. A figure that was not or could not be measured is ``None``, and
``null_reasons`` says why; no number stands in for a missing one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analyzer._version import __version__
from analyzer.model import (
    SEVERITY_RANK,
    EvidenceRow,
    Finding,
    GateResult,
    IdleCause,
    Outcome,
    Severity,
    axis_sort_key,
)
from reports import compared, compute

if TYPE_CHECKING:
    import polars as pl

    from analyzer.measure.results import AxisSummary, Budget, Measurements
    from reports.timeline import Timeline

Document = Mapping[str, Any]
"""A result document as renderers read it."""

SCHEMA_ID = "meshscope.analysis/1"

NOT_MEASURED: Mapping[str, str] = {
    "pipeline": "the pipeline schedule is not analysed by this version",
    "moe": "expert load is not analysed by this version",
    "memory": "memory is not analysed by this version",
}
"""Why figures of the schema are null in every document of this version."""


def build_document(
    m: Measurements,
    outcomes: Sequence[Outcome],
    gates: Sequence[GateResult],
    *,
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    """Assemble the result document.

    Args:
        m: what was measured.
        outcomes: what the rules said, one each.
        gates: evaluated gates, in the order they were asked for.
        timeline: the slices the HTML report will show; only a summary of it enters the document.

    Returns:
        A document that satisfies ``reports/schema/analysis-1.json``, made of dict, list, str, int,
        float, bool and None only. Equal measurements give equal documents, key order included.

    Raises:
        ValueError: a figure is NaN or infinite (a programming error, not a user's).
    """
    worst = m.worst_rank
    document: dict[str, Any] = {
        "schema": SCHEMA_ID,
        "tool_version": __version__,
        "inputs": m.inputs,
        "warnings": m.warnings,
        "job": _job(m),
        "step": _budget(m.mean),
        "exposed_comm_pct": m.exposed_comm_pct,
        "exposed_comm_pct_worst": worst
        and {"rank": worst.rank, "lane": worst.lane, "pct": worst.exposed_comm_pct},
        "bubble_pct": m.bubble_pct,
        "mfu_pct": m.compute and m.compute.mfu_pct,
        "axes": _axes(m),
        "clock": compared.clock(m),
        "compute": compute.document_part(m),
        "pipeline": None,
        "moe": None,
        "memory": None,
        "findings": [_finding(f) for f in _by_worth(outcomes)],
        "per_rank": _per_rank(m),
        "waits": compared.waits(m),
        "busbw": compared.busbw(m),
        "gates": _gates(gates),
        "coverage": _coverage(m),
        "rules": _rules(outcomes),
        "steps": _steps(m),
        "conflicts": m.conflicts,
        "null_reasons": _sorted({**NOT_MEASURED, **compared.reasons(m), **m.null_reasons}),
        "timeline": timeline and timeline.summary(),
    }
    plain: dict[str, Any] = _plain(document, "document")
    return plain


def with_gates(document: Document, gates: Sequence[GateResult]) -> dict[str, Any]:
    """The document with these gate results, which are evaluated on the document itself."""
    return {**document, "gates": _plain(_gates(gates), "gates")}


def _gates(gates: Sequence[GateResult]) -> list[dict[str, Any]]:
    return [
        {
            "gate": g.gate,
            "limit": g.limit,
            "value": g.value,
            "unit": g.unit,
            "passed": g.passed,
            "reason": g.reason,
        }
        for g in gates
    ]


def _rules(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {"rule": o.rule, "name": o.name, "verdict": o.verdict, "reason": o.reason}
        for o in sorted(outcomes, key=lambda o: o.rule)
    ]


def _per_rank(m: Measurements) -> list[dict[str, Any]]:
    return [
        {
            "rank": r.rank,
            "lane": r.lane,
            "steps_kept": r.steps_kept,
            "exposed_comm_pct": r.exposed_comm_pct,
            "step": _budget(r.budget),
        }
        for r in sorted(m.per_rank, key=lambda r: (r.rank, r.lane))
    ]


def _job(m: Measurements) -> dict[str, Any]:
    return {
        "world_size": m.world_size,
        "ranks_seen": m.ranks,
        "device": m.device,
        "framework": m.framework,
        "backend": m.backend,
        "mesh": m.mesh,  # outermost axis first
        "mesh_source": m.mesh_source,
        "strategy": m.strategy.text or None,
        "strategy_why": m.strategy_why,
        "expect": m.expect and m.expect.text,
        "expect_axes": [
            axis for axis, row in (m.expect.axes if m.expect else {}).items() if row.degree != 1
        ],
        "host_side": m.host_side,
        "step_source": m.step_source,
        "steps_kept": _step_groups(m.steps, kept=True),
        "steps_dropped": _step_groups(m.steps, kept=False),
    }


def _step_groups(steps: pl.DataFrame, *, kept: bool) -> list[dict[str, Any]]:
    """Steps that share index, label and reason, with the ranks they were seen on."""
    import polars as pl

    keys = ["step", "label", "reason"] if not kept else ["step", "label"]
    groups = (
        steps.filter(pl.col("kept") == kept)
        .select(pl.col("index").alias("step"), pl.col("label", "reason").cast(pl.String), "rank")
        .group_by(keys)
        .agg(pl.col("rank").unique().sort().alias("ranks"))
        .sort(keys)
    )
    return groups.to_dicts()


def _budget(budget: Budget | None) -> dict[str, Any] | None:
    if budget is None:
        return None
    causes = [str(cause) for cause in IdleCause]
    return {
        "time_ns": budget.time_ns,
        "compute_ns": budget.compute_ns,
        "exposed_comm_ns": {
            axis: budget.exposed_comm_ns[axis]
            for axis in sorted(budget.exposed_comm_ns, key=axis_sort_key)
        },
        "bubble_ns": budget.bubble_ns,
        "memcpy_ns": budget.memcpy_ns,
        "idle_ns": {
            cause: budget.idle_ns[cause]
            for cause in sorted(
                budget.idle_ns, key=lambda c: (causes.index(c) if c in causes else len(causes), c)
            )
        },
    }


def _axes(m: Measurements) -> dict[str, Any]:
    names = sorted({a.axis for a in m.axes}, key=axis_sort_key)
    document: dict[str, Any] = {}
    for axis in names:
        rows = {a.op: a for a in m.axes if a.axis == axis}
        label = m.axis_labels.get(axis)
        degree = m.mesh.get(axis)
        document[axis] = {
            "degree": label.degree if degree is None and label else degree,
            **_axis_figures(rows.get("")),
            "evidence": label and label.evidence,
            "confidence": label and label.confidence,
            "evidence_why": label.why if label else "",
            "ops": {op: _axis_figures(rows[op]) for op in sorted(rows) if op},
        }
    return document


def _axis_figures(row: AxisSummary | None) -> dict[str, Any]:
    return {
        "count": row and row.count,
        "bytes": row and row.bytes,
        "comm_ns": row and row.comm_ns,
        "exposed_ns": row and row.exposed_ns,
        "overlap_pct": row and row.overlap_pct,
        "wait_ns": row and row.wait_ns,
        "transfer_ns": row and row.transfer_ns,
        "unexplained_ns": row and row.unexplained_ns,
        "busbw_gbps": row and row.busbw_gbps,
        "spec_gbps": row and row.spec_gbps,
        "link_efficiency": row and row.link_efficiency,
        "split_pct": row and row.split_pct,
        "expected_exposed_ns": row and row.expected_exposed_ns,
        "expected_why": row.expected_why if row else "",
    }


def _by_worth(outcomes: Sequence[Outcome]) -> list[Finding]:
    """Findings in reading order: what must be acted on, by worth, then what is only stated.

    An error without a time worth comes first: it says that the job or the figures are not what
    they are taken for, which outranks any saving computed from them.
    """
    findings = [f for outcome in outcomes for f in outcome.findings]

    def key(finding: Finding) -> tuple[bool, bool, int, int, str]:
        unvalued_error = finding.severity is Severity.ERROR and finding.savings_ns is None
        return (
            finding.severity is Severity.INFO,
            not unvalued_error,
            -_rank_worth(finding, findings),
            -SEVERITY_RANK[finding.severity],
            finding.rule,
        )

    return sorted(findings, key=key)


def _rank_worth(finding: Finding, findings: Sequence[Finding]) -> int:
    """What a finding is worth for the order: a symptom stands behind the causes of most of it."""
    worth = finding.savings_ns or 0
    of_causes = [
        f.savings_ns or 0
        for f in findings
        if f.axis == finding.axis and f.rule in finding.explained_by
    ]
    cause = max(of_causes, default=0)
    return min(worth, cause - 1) if 2 * cause >= worth else worth


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "title": finding.title,
        "severity": finding.severity,
        "axis": finding.axis,
        "ranks": finding.ranks,
        "steps": finding.steps,
        "measured": finding.measured.value,
        "roofline": finding.roofline,
        "threshold": finding.threshold,
        "unit": finding.measured.unit,
        "savings_ns": finding.savings_ns,
        "savings_kind": finding.savings_kind,
        "evidence": [_evidence(row) for row in finding.evidence],
        "advice": finding.advice,
        "doc": finding.doc,
        "explained_by": finding.explained_by,
    }


def _evidence(row: EvidenceRow) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "step": row.step,
        "name": row.name,
        "start_ns": row.start_ns,
        "dur_ns": row.dur_ns,
        "note": row.note,
    }


def _coverage(m: Measurements) -> dict[str, Any]:
    coverage = m.coverage
    return {
        "ranks_expected": coverage.ranks_expected,
        "ranks_seen": coverage.ranks_seen,
        "steps_total": coverage.steps_total,
        "steps_with_device_events": coverage.steps_with_device_events,
        "device_figures_ok": coverage.device_figures_ok,
        "unclassified_pct": coverage.unclassified_pct,
        "dropped_events": _sorted(coverage.dropped_events),
        "repaired_events": _sorted(coverage.repaired_events),
        "truncated_inputs": coverage.truncated_inputs,
        "left_out": [{"path": o.path, "reason": o.reason} for o in coverage.left_out],
        **compared.unmatched(m),
    }


def _steps(m: Measurements) -> dict[str, Any]:
    """The budget of every (rank, lane, step) as columns; null where a step has no budget."""
    import polars as pl

    keys = ["rank", "lane", "step"]
    rows = m.steps.select(
        "rank",
        "lane",
        pl.col("index").alias("step"),
        pl.col("label").cast(pl.String),
        "kept",
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
    ).sort(keys)
    budget = m.budget.with_columns(pl.col("state", "detail").cast(pl.String))
    measured = budget.select(keys).unique().with_columns(pl.lit(value=True).alias("measured"))
    frame = rows.join(measured, on=keys, how="left", maintain_order="left")

    def column(state: str, detail: str | None = None) -> list[int | None]:
        wanted = pl.col("state") == state
        if detail is not None:
            wanted &= pl.col("detail") == detail
        part = budget.filter(wanted).group_by(keys).agg(pl.col("ns").sum())
        ns = pl.when(pl.col("measured")).then(pl.col("ns").fill_null(0))
        joined = frame.join(part, on=keys, how="left", maintain_order="left")
        values: list[int | None] = joined.select(ns)["ns"].to_list()
        return values

    def details(state: str) -> list[str]:
        found: list[str] = budget.filter(pl.col("state") == state)["detail"].unique().to_list()
        return found

    bubble_unknown = m.mean is not None and m.mean.bubble_ns is None
    return {
        **{name: rows[name].to_list() for name in rows.columns},
        "compute_ns": column("compute"),
        "exposed_comm_ns": {
            axis: column("exposed_comm", axis)
            for axis in sorted(details("exposed_comm"), key=axis_sort_key)
        },
        "bubble_ns": [None] * rows.height if bubble_unknown else column("bubble"),
        "memcpy_ns": column("memcpy"),
        "idle_ns": {cause: column("idle", cause) for cause in sorted(details("idle"))},
    }


def _sorted(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: counts[key] for key in sorted(counts)}


def _plain(value: Any, where: str) -> Any:
    """``value`` as JSON types: enums as their text, tuples as lists, text as valid UTF-8.

    File names may hold undecodable bytes (surrogates), which no JSON file can carry.
    """
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain(str(k), where): _plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        message = f"{where} is {value}: a figure that is not measured must be None"
        raise ValueError(message)
    return value
