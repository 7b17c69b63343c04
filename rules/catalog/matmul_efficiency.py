"""Matrix multiplies far below the device's roofline, and compute figures that cannot be.

## What it measures
Per family and dtype, the time of the kernels of matrix multiplies, attention and convolutions,
against the time their FLOPs and bytes need at `target_pct` of the roofline. Where a figure is above
the device's peak, that is an error of its own: the shapes, the time or the peak is wrong.

## Roofline
min(dense peak, intensity × memory bandwidth), call by call; well-shaped kernels reach 60 to 80 %.

## Why it matters
Time in slow matrix multiplies cannot be won back by overlapping communication better.

## How to fix
- Dimensions in multiples of 64 or 128 (vocabulary, feed-forward, heads); a head of 64 or 128.
- More rows a call: larger micro-batch, less tensor parallelism, grouped products for experts.
- The intended dtype: bf16 instead of fp32, tf32 where fp32 must stay
  (`torch.set_float32_matmul_precision("high")`).
- A fused attention kernel (`scaled_dot_product_attention`, FlashAttention).
- Kernels on the device's other streams share its processors: see what runs beside them.

## Example
GEMMs in bf16 take 40 % of the step at 25 % of the roofline: at 60 % they would take 17 %.

## When it is silent
On traces without operator shapes, on host-side traces, and on devices whose peak is not known.

## References
- Williams et al., Roofline, CACM 2009.
- NVIDIA, Matrix Multiplication Background User's Guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model import Finding, Quantity, Severity
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import DEVICE_SIDE, KEPT_STEP
from rules.spec import Need, Rule, option
from rules.wording import ms, pct

if TYPE_CHECKING:
    from analyzer.measure.results import ComputeFamily, Measurements


@dataclass(frozen=True, slots=True)
class Options(ShareOptions):
    """Limits of the rule."""

    info_pct: float = option(1.0, "Below this share nothing is reported.", unit="% of step")
    warning_pct: float = option(5.0, "Share from which it is a warning.", unit="% of step")
    target_pct: float = option(60.0, "Share of the roofline that good kernels reach.", unit="%")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding a family that is slow, and one for each impossible figure."""
    if m.compute is None:
        return
    for text in m.compute.warnings:
        yield RULE.finding(
            text,
            Severity.ERROR,
            Quantity(None, "%"),
            advice="Trust no compute figure of this run before the cause is found: a device that "
            "is taken for another, tokens counted twice, or shapes that are not those of the call.",
        )
    for family in m.compute.families:
        finding = _slow(m, o, family)
        if finding is not None:
            yield finding


def _slow(m: Measurements, o: Options, family: ComputeFamily) -> Finding | None:
    if family.efficiency_pct is None or family.efficiency_pct >= o.target_pct:
        return None
    best_ns = round(family.time_ns * family.efficiency_pct / o.target_pct)
    achieved, possible = family.achieved_flops_per_s or 0.0, family.roofline_flops_per_s or 0.0
    return cost_finding(
        RULE,
        m,
        o,
        Cost(
            family.time_ns - best_ns,
            measured_ns=family.time_ns,
            roofline_ns=best_ns,
            kind="estimate",
            worst=Severity.WARNING,
        ),
        title=f"{family.family} in {family.dtype} reaches {pct(family.efficiency_pct)} of the "
        f"roofline ({achieved / 1e12:.3g} of {possible / 1e12:.3g} TFLOP/s)",
        advice=f"Its {family.calls:.0f} calls take {ms(family.time_ns)} a step. Check dimensions "
        "(multiples of 64), rows a call (micro-batch, tensor-parallel degree), dtype, and what "
        f"runs beside them. At {o.target_pct:.0f} % of the roofline this saves about "
        f"{ms(family.time_ns - best_ns)} a step.",
    )


def _unknown(m: Measurements) -> str | None:
    if m.compute is None:
        return m.null_reasons.get("compute", "no matrix multiply was found")
    if m.compute.warnings or any(f.efficiency_pct is not None for f in m.compute.families):
        return None
    reasons = m.compute.reasons
    return reasons.get("peak_flops_per_s") or reasons.get("executed_flops_per_step", "no roofline")


RULE = Rule(
    code="CMP001",
    name="matmul-efficiency",
    title="Matrix multiplies far below the roofline",
    axes=(),
    needs=(KEPT_STEP, DEVICE_SIDE, Need("a compute roofline", _unknown)),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
