"""Severity by effect: what share of the step a defect costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model import EvidenceRow, Finding, Quantity, Severity
from rules.reading import share_pct
from rules.spec import AnyRule, option

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

PCT_OF_STEP = "% of step"


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """Limits of a rule judged by the share of the step that could be won back."""

    info_pct: float = option(0.1, "Below this share nothing is reported.", unit=PCT_OF_STEP)
    warning_pct: float = option(1.0, "Share from which it is a warning.", unit=PCT_OF_STEP)
    error_pct: float = option(5.0, "Share from which it is an error.", unit=PCT_OF_STEP)


def judge(
    share: float, options: ShareOptions, worst: Severity = Severity.ERROR
) -> tuple[Severity, float] | None:
    """Severity of losing ``share`` % of the step and the limit passed; None below ``info_pct``."""
    if share >= options.error_pct and worst is Severity.ERROR:
        return Severity.ERROR, options.error_pct
    if share >= options.warning_pct:
        return Severity.WARNING, options.warning_pct
    return (Severity.INFO, options.info_pct) if share >= options.info_pct else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a defect costs per step.

    Attributes:
        savings_ns: what could be won back: decides the severity.
        measured_ns: the figure shown; the savings themselves when None.
        roofline_ns: the part of the figure that cannot be avoided, None when not known.
        kind: how the savings are known: ``upper bound`` or ``estimate``.
        worst: the severity is never above this one.
    """

    savings_ns: int
    measured_ns: int | None = None
    roofline_ns: int | None = 0
    kind: str = "upper bound"
    worst: Severity = Severity.ERROR


def cost_finding(  # noqa: PLR0913 - mirrors the fields of Finding
    rule: AnyRule,
    m: Measurements,
    options: ShareOptions,
    cost: Cost,
    *,
    title: str,
    advice: str,
    axis: str | None = None,
    ranks: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
    evidence: tuple[EvidenceRow, ...] = (),
) -> Finding | None:
    """The finding for ``cost``, or None when it is too small to report.

    ``measured``, ``threshold`` and ``roofline`` are shares (%) of the mean step; the threshold is
    the limit passed on top of the roofline.
    """
    judged = judge(share_pct(m, cost.savings_ns), options, cost.worst)
    if judged is None:
        return None
    severity, limit = judged
    roofline = None if cost.roofline_ns is None else share_pct(m, cost.roofline_ns)
    measured_ns = cost.savings_ns if cost.measured_ns is None else cost.measured_ns
    return rule.finding(
        title,
        severity,
        Quantity(share_pct(m, measured_ns), PCT_OF_STEP),
        axis=axis,
        threshold=limit + (roofline or 0.0),
        roofline=roofline,
        savings_ns=cost.savings_ns,
        savings_kind=cost.kind,
        ranks=ranks,
        steps=steps,
        evidence=evidence,
        advice=advice,
    )
