"""The card every report opens with: what dominates the step, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.text import duration, percent, quantity, share, visible, words
from reports.view import IDLE_MEANS, Part, parts, worth

NEGLIGIBLE_PCT = 2.0
"""Losses below this share of the step are not worth a sentence."""

UNAVOIDABLE_SHARE = 0.9
"""From this part on, exposure is said to come with the strategy."""

MUCH_WORSE = 1.1
"""A worst rank above the mean by this factor is worth a sentence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict, why, next."""

    headline: str  # one sentence: what dominates
    why: tuple[str, ...]  # the numbers behind it
    action: str  # the best thing to do
    worth: str  # what that is worth; empty when not known
    tone: str  # good, attention, bad or unknown


def verdict(document: Mapping[str, Any]) -> Verdict:
    """The verdict on a result document. All its text is safe to show as plain text."""
    action, value = _next(document)
    step = document["step"]
    if not step or not step["time_ns"]:
        reasons = document["null_reasons"]
        why = reasons.get("step") or reasons.get("exposed_comm_pct") or "no step could be kept"
        return Verdict(
            "No verdict: no step could be measured.", (visible(why),), action, value, "unknown"
        )
    losses = sorted((p for p in parts(step) if p.kind != "compute"), key=lambda p: -p.ns)
    headline = _headline(document, losses)
    return Verdict(headline, tuple(_why(document, losses)), action, value, _tone(document))


def _headline(document: Mapping[str, Any], losses: list[Part]) -> str:
    step = document["step"]
    compute = percent(share(step["compute_ns"], step["time_ns"]))
    largest = losses[0] if losses else None
    cost = share(largest.ns, step["time_ns"]) if largest else None
    if largest is None or cost is None or cost < NEGLIGIBLE_PCT:
        return (
            f"Compute-bound: the device computes {compute} of the step, "
            f"and no single loss reaches {NEGLIGIBLE_PCT:g} %."
        )
    what = _what(document, largest, f"{percent(cost)} of the step")
    if largest.ns > step["compute_ns"]:
        return f"Dominated by {what}; only {compute} computes."
    return f"The largest cost besides compute is {what}; {compute} computes."


def _what(document: Mapping[str, Any], part: Part, cost: str) -> str:
    if part.kind == "exposed_comm":
        with_strategy = _unavoidable(document, part)
        note = ", which the strategy puts on the critical path" if with_strategy else ""
        return f"exposed {visible(part.detail)} communication, {cost}{note}"
    if part.kind == "idle":
        means = IDLE_MEANS.get(part.detail, words(visible(part.detail)))
        return f"an idle device, {cost}: {means}"
    return (
        f"{'the pipeline bubble' if part.kind == 'bubble' else 'copies that nothing hides'}, {cost}"
    )


def _unavoidable(document: Mapping[str, Any], part: Part) -> bool:
    axis = document["axes"].get(part.detail) or {}
    expected = axis.get("expected_exposed_ns")
    return expected is not None and expected >= UNAVOIDABLE_SHARE * part.ns


def _why(document: Mapping[str, Any], losses: list[Part]) -> list[str]:
    step = document["step"]
    first = f"step {duration(step['time_ns'])}: compute {duration(step['compute_ns'])}"
    if document["axes"]:
        exposed = sum(step["exposed_comm_ns"].values())
        pct = percent(document["exposed_comm_pct"])
        first += f", exposed communication {duration(exposed)} ({pct})"
    lines = [*_failed_gates(document), first]
    for part in losses[:3]:
        pct_of_step = share(part.ns, step["time_ns"])
        if pct_of_step is not None and pct_of_step >= NEGLIGIBLE_PCT:
            amount = f"{part.label} {duration(part.ns)} ({percent(pct_of_step)})"
            lines.append(amount + _note(document, part))
    worst, mean = document["exposed_comm_pct_worst"], document["exposed_comm_pct"]
    several = len(document["per_rank"]) > 1
    if several and worst and mean is not None and worst["pct"] > MUCH_WORSE * mean:
        lines.append(
            f"rank {worst['rank']} is worst: {percent(worst['pct'])} exposed, "
            f"against {percent(mean)} on average"
        )
    return lines


def _failed_gates(document: Mapping[str, Any]) -> list[str]:
    failed = [gate for gate in document["gates"] if gate["passed"] is False]
    return [
        f"gate {visible(g['gate'])} fails with {quantity(g['value'], g['unit'])}" for g in failed
    ]


def _note(document: Mapping[str, Any], part: Part) -> str:
    if part.kind == "idle":
        return f": {IDLE_MEANS[part.detail]}" if part.detail in IDLE_MEANS else ""
    axis = document["axes"].get(part.detail) if part.kind == "exposed_comm" else None
    if not axis or axis["overlap_pct"] is None:
        return ""
    hidden = axis["overlap_pct"]
    amount = percent(hidden) if hidden else "none"
    note = f": {amount} of {visible(part.detail)} communication is hidden"
    expected = axis["expected_exposed_ns"]
    return f"{note}, {duration(expected)} cannot be" if expected else note


def _next(document: Mapping[str, Any]) -> tuple[str, str]:
    """The best action and what it is worth."""
    findings = document["findings"]
    if not findings:
        if not document["step"]:
            return "See warnings and coverage for what the trace lacks.", ""
        return "Nothing to fix: no rule found a defect.", ""
    best = findings[0]
    advice = visible(best["advice"] or best["title"])
    if best["severity"] == "info":
        advice = f"No defect found. The most there is to gain: {visible(best['title'])}. {advice}"
    return advice, worth(best, document)


def _tone(document: Mapping[str, Any]) -> str:
    severities = {finding["severity"] for finding in document["findings"]}
    verdicts = {gate["passed"] for gate in document["gates"]}
    if False in verdicts or "error" in severities:
        return "bad"
    return "attention" if None in verdicts or "warning" in severities else "good"
