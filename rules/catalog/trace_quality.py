"""Weaknesses of the trace that make figures less certain, each with what it means.

## What it measures
Device time no evidence could class, communication whose axis is not known, label sources that
disagree, cut off or skipped inputs, events that were dropped or repaired, steps without device
events, collectives without a launch, ranks that are missing.

## Roofline
None: a complete trace shows none of this.

## Why it matters
A figure is worth what it rests on. Everything listed here is also part of the result's `coverage`,
where gates look before they give a verdict.

## How to fix
- Cut off input: let the profiler finish writing; look for a full disk or a killed job.
- No launches: record host activity too (`ProfilerActivity.CPU`).
- Unknown axes: PyTorch 2.3 or newer writes the process groups' descriptions; else state `--mesh`.
- Steps without device events: record fewer steps, with a warm-up step in the profiler's schedule.
- Missing ranks: hand over all ranks' files; figures of one rank stay valid for that rank.

## Example
A trace cut off after 3 of 5 steps: a warning, and no gate passes on it.

## When it is silent
On a complete trace of all ranks. Missing ranks, dropped and repaired events alone are of severity
info.

## References
- PyTorch documentation, `torch.profiler.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model import UNKNOWN_AXIS, Finding, Quantity, Severity
from rules.spec import Rule, option

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of the rule."""

    max_unclassified_pct: float = option(
        5.0, "Most device time that may be unclassified.", unit="% of device busy time"
    )
    max_unknown_axis_pct: float = option(
        5.0, "Most time that may have no axis.", unit="% of communication time"
    )
    max_unlaunched_pct: float = option(
        20.0, "Most collectives that may lack their launch.", unit="% of collectives"
    )


@dataclass(frozen=True, slots=True)
class Weakness:
    """One thing found; ``grave`` makes it a warning."""

    title: str
    value: float
    unit: str
    advice: str
    grave: bool = True
    limit: float = 0.0


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding a weakness."""
    for found in (*_labels(m, o), *_inputs(m), *_steps(m), *_events(m, o)):
        yield RULE.finding(
            found.title,
            Severity.WARNING if found.grave else Severity.INFO,
            Quantity(found.value, found.unit),
            threshold=found.limit,
            advice=found.advice,
        )


def _some(items: Sequence[str], shown: int = 3) -> str:
    more = f"; and {len(items) - shown} more" if len(items) > shown else ""
    return "; ".join(items[:shown]) + more + "."


def _labels(m: Measurements, o: Options) -> Iterator[Weakness]:
    share = m.coverage.unclassified_pct or 0.0
    if share > o.max_unclassified_pct:
        yield Weakness(
            f"{share:.1f} % of device time could not be classed",
            share,
            "% of device busy time",
            "It counts as computation, so exposed communication may be larger than shown. Record "
            "host activity (ProfilerActivity.CPU) so that kernels can be told by their operators.",
            limit=o.max_unclassified_pct,
        )
    comm_ns = {a.axis: a.comm_ns for a in m.axes if not a.op}
    share = 100.0 * comm_ns.get(UNKNOWN_AXIS, 0) / max(1, sum(comm_ns.values()))
    if share > o.max_unknown_axis_pct:
        yield Weakness(
            f"{share:.1f} % of communication time has no known axis",
            share,
            "% of communication time",
            "State the mesh, outermost axis first: --mesh pp=2,dp_shard=4,tp=2.",
            limit=o.max_unknown_axis_pct,
        )
    if m.conflicts:
        title = f"Axis labels with sources that disagree: {len(m.conflicts)}"
        advice = f"State the mesh with --mesh to decide. {_some(m.conflicts)}"
        yield Weakness(title, len(m.conflicts), "labels", advice)


def _inputs(m: Measurements) -> Iterator[Weakness]:
    cut, left_out = m.coverage.truncated_inputs, m.coverage.missed_inputs
    if cut:
        advice = f"Only complete events were read; no gate passes on this. {_some(cut)}"
        yield Weakness(f"Input files cut off: {len(cut)}", len(cut), "files", advice)
    if left_out:
        reasons = _some([f"{item.path}: {item.reason}" for item in left_out])
        title = f"Input files not analysed: {len(left_out)}"
        yield Weakness(title, len(left_out), "files", reasons, grave=False)
    expected = m.coverage.ranks_expected or 0
    missing = expected - len(m.coverage.ranks_seen)
    if missing > 0:
        title = f"Ranks missing: {missing} of {expected}"
        advice = "Figures hold for the ranks seen; hand over all ranks' files to compare them."
        yield Weakness(title, missing, "ranks", advice, grave=False)


def _steps(m: Measurements) -> Iterator[Weakness]:
    total = m.coverage.steps_total
    empty = total - m.coverage.steps_with_device_events
    if empty > 0 and not m.host_side:
        fatal = not m.coverage.device_figures_ok
        advice = "Record fewer steps, with warm-up steps in torch.profiler.schedule."
        yield Weakness(
            f"Steps without device events: {empty} of {total}",
            empty,
            "steps",
            f"No device figure is given. {advice}" if fatal else advice,
            grave=fatal,
        )


def _events(m: Measurements, o: Options) -> Iterator[Weakness]:
    counted = {"dropped": m.coverage.dropped_events, "repaired": m.coverage.repaired_events}
    for what, counts in counted.items():
        total = sum(counts.values())
        if total:
            title = f"Events {what}: {total}"
            yield Weakness(title, total, "events", _by_reason(counts), grave=False)
    launches = m.comm_events["launch_ns"]
    share = 100.0 * launches.null_count() / max(1, launches.len())
    if share > o.max_unlaunched_pct and not m.host_side:
        yield Weakness(
            f"{share:.0f} % of the collectives have no launch on the host",
            share,
            "% of collectives",
            "Idle time cannot be explained and steps are told by time only: record host activity "
            "(ProfilerActivity.CPU).",
            limit=o.max_unlaunched_pct,
        )


def _by_reason(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _some([f"{count} {reason}" for reason, count in ordered if count])


RULE = Rule(
    code="TRC001",
    name="trace-quality",
    title="Weaknesses of the trace that make figures less certain",
    axes=(),
    needs=(),
    severity=Severity.WARNING,
    options=Options,
    check=check,
    since="0.1",
)
