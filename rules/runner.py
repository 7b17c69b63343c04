"""Runs the rules: one outcome a rule, whatever the rules do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from analyzer.model import SEVERITY_RANK, Finding, Outcome, Severity, Verdict
from rules.guard import Failure, attempt
from rules.registry import Registry, load
from rules.settings import build_options
from rules.spec import AnyRule

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

NOTHING: Mapping[str, Mapping[str, object]] = MappingProxyType({})
NO_LEVELS: Mapping[str, str] = MappingProxyType({})


def run(
    measurements: Measurements,
    *,
    settings: Mapping[str, Mapping[str, object]] = NOTHING,
    levels: Mapping[str, str] = NO_LEVELS,
    registry: Registry | None = None,
) -> tuple[Outcome, ...]:
    """Run every rule and return its outcome, ordered by code.

    Args:
        measurements: what the rules judge.
        settings: rule code or name -> options that differ from the defaults.
        levels: rule code or name -> ``off``, ``warn`` or ``error`` (:data:`rules.settings.LEVELS`).
        registry: the rules; all installed ones by default.

    A rule that lacks something it needs is ``not_applicable`` with the reason; one that raises is
    ``error`` with the message. Findings of a rule are ordered by severity, then by what they save.
    """
    registry = registry or load()
    outcomes = [
        _run_one(
            rule,
            measurements,
            settings.get(rule.code, settings.get(rule.name, {})),
            levels.get(rule.code, levels.get(rule.name, "")),
        )
        for rule in registry.rules
    ]
    return (*_with_causes(outcomes, registry), *registry.broken)


def _with_causes(outcomes: list[Outcome], registry: Registry) -> list[Outcome]:
    """Tell each finding of a symptom rule which other rules explain its lost time."""
    symptoms = {rule.code for rule in registry.rules if rule.symptom}
    causes = [
        finding
        for outcome in outcomes
        if outcome.rule not in symptoms
        for finding in outcome.findings
        if finding.axis is not None and finding.savings_ns
    ]

    def explained(finding: Finding) -> Finding:
        by = sorted({cause.rule for cause in causes if cause.axis == finding.axis})
        return replace(finding, explained_by=tuple(by))

    return [
        replace(outcome, findings=tuple(map(explained, outcome.findings)))
        if outcome.rule in symptoms
        else outcome
        for outcome in outcomes
    ]


def _run_one(
    rule: AnyRule, measurements: Measurements, options: Mapping[str, object], level: str
) -> Outcome:
    if level == "off":
        return Outcome(rule.code, rule.name, Verdict.NOT_APPLICABLE, "switched off")

    def judge() -> Outcome:
        for need in rule.needs:
            reason = need.missing(measurements)
            if reason is not None:
                return Outcome(rule.code, rule.name, Verdict.NOT_APPLICABLE, reason)
        built = build_options(rule, options, "settings")
        findings = [_leveled(f, level) for f in rule.check(measurements, built)]
        ordered = tuple(sorted(findings, key=_worst_first))
        return Outcome(rule.code, rule.name, _verdict(ordered), findings=ordered)

    outcome = attempt(judge)
    if isinstance(outcome, Failure):
        return Outcome(rule.code, rule.name, Verdict.ERROR, outcome.message)
    return outcome


def _leveled(finding: Finding, level: str) -> Finding:
    if level == "warn" and finding.severity is Severity.ERROR:
        return replace(finding, severity=Severity.WARNING)
    if level == "error" and finding.severity is Severity.WARNING:
        return replace(finding, severity=Severity.ERROR)
    return finding


def _worst_first(finding: Finding) -> tuple[int, int, str, str]:
    savings = finding.savings_ns or 0
    return (-SEVERITY_RANK[finding.severity], -savings, finding.axis or "", finding.title)


def _verdict(findings: tuple[Finding, ...]) -> Verdict:
    severities = {f.severity for f in findings}
    if Severity.ERROR in severities:
        return Verdict.FAIL
    return Verdict.WARN if Severity.WARNING in severities else Verdict.PASS
