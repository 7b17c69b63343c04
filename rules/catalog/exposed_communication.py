"""Communication that no computation hides, beyond what the strategy makes unavoidable.

## What it measures
Per parallel axis: the time per step in which its collectives run and no compute kernel does
(`exposed_ns`), minus the part that no schedule of the strategy could hide (`expected_exposed_ns`).
The difference, as a share of the step, decides the severity. Where two axes are exposed at the same
instant each answers for its part of that instant only, so that the findings of all axes together
never claim more than the step lost.

## Roofline
The exposed minimum of the strategy: FSDP must expose the first all-gather of the forward pass and
the last reduce-scatter of the backward pass, DDP its last bucket. Each is taken at the typical
duration of a collective of its kind and size, so waiting for a late peer counts as excess. Where
the strategy of an axis is not known there is no minimum; the raw exposure is then judged, as a
warning at most, and the finding says so.

## Why it matters
While communication is exposed the compute units do nothing. The share that is in excess is what the
same hardware could win back without moving a byte less.

## How to fix
Find the collectives in the evidence rows and what runs beside them. `serialized-all-gather` and
`late-gradient-reduction` name the two usual causes. When neither fires, the collectives are issued
in time and are simply longer than the computation that could hide them: more tokens per rank and
step, fewer bytes (bf16 or fp8 communication), a smaller group on the slow link (HSDP), or a faster
link.

## Example
A step of 100 ms exposes 14 ms on `dp_shard`, of which 2 ms must be exposed: the excess is 12 % of
the step and the finding an error.

## When it is silent
On axes whose strategy can hide none of its collectives (tensor parallelism: see
`tensor-parallel-critical-path`), on pipeline transfers, and when the excess is below `info_pct`.

## References
- Scaling book, "How to parallelize a transformer for training" (data parallel and FSDP sections).
- PyTorch FSDP2 tutorial, "Prefetching".
- Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import comm_evidence, ranks_of, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import COMMUNICATION, KEPT_STEP
from rules.reading import axis_parts, comm_events, expected_ops, mean_budget, ops_on
from rules.spec import ALL_AXES, Rule
from rules.wording import ms, pct

if TYPE_CHECKING:
    from analyzer.measure.results import AxisSummary, Measurements

REMEDIES = {
    "dp_shard": (
        "Issue it earlier (FSDP2 set_modules_to_forward_prefetch and "
        "set_modules_to_backward_prefetch, Megatron --overlap-param-gather and "
        "--overlap-grad-reduce), give it more to hide behind (more tokens per micro-batch) or "
        "send less (bf16 reductions, HSDP)."
    ),
    "dp_replicate": (
        "Reduce earlier (DDP bucket_cap_mb, Megatron --overlap-grad-reduce), less often "
        "(gradient accumulation under no_sync) or less (a bf16 communication hook)."
    ),
    "ep": (
        "Run the all-to-all of one micro-batch beside the computation of another (Megatron "
        "--overlap-moe-expert-parallel-comm) or beside the shared experts "
        "(--moe-shared-expert-overlap)."
    ),
    "cp": (
        "Exchange the next key-value block under the attention of this one (ring attention), or "
        "lower the context-parallel degree."
    ),
    "world": (
        "These are losses, gradient norms and barriers over all ranks. Collectives this small "
        "mostly wait for the slowest rank: find what makes it late first. Then reduce every N "
        "steps, several values in one tensor, and read the result a step later."
    ),
}
ELSE = "The evidence rows show where it is exposed; see what it waits for."


def check(m: Measurements, o: ShareOptions) -> Iterator[Finding]:
    """One finding an axis whose exposure exceeds its exposed minimum by enough."""
    for axis in m.axes:
        if axis.op or axis.count <= 0 or "pp" in axis_parts(axis.axis) or _by_design(m, axis.axis):
            continue
        events = comm_events(m, axis_parts(axis.axis)).filter(pl.col("axis") == axis.axis)
        shown = events.filter(pl.col("exposed_ns") > 0)
        minimum_ns, excess_ns = axis.expected_exposed_ns, _excess_ns(m, axis)
        finding = cost_finding(
            RULE,
            m,
            o,
            Cost(
                excess_ns,
                measured_ns=axis.exposed_ns,
                roofline_ns=minimum_ns,
                worst=Severity.WARNING if minimum_ns is None else Severity.ERROR,
            ),
            axis=axis.axis,
            title=f"{axis.axis} exposes {ms(axis.exposed_ns)} of communication a step "
            f"({_minimum(minimum_ns)})",
            ranks=ranks_of(shown),
            steps=steps_of(shown),
            evidence=comm_evidence(m, events, "exposed_ns"),
            advice=_advice(m, axis, excess_ns),
        )
        if finding is not None:
            yield finding


def _minimum(minimum_ns: int | None) -> str:
    if minimum_ns is None:
        return "no roofline is known for this axis"
    return f"{ms(minimum_ns)} must be" if minimum_ns else "none of it must be"


def _by_design(m: Measurements, axis: str) -> bool:
    """Whether the strategy can hide none of the kinds of collectives seen on the axis."""
    expected, seen = expected_ops(m, axis), ops_on(m, axis)
    return bool(seen) and all(
        op in expected and expected[op].exposed_minimum == "all" for op in seen
    )


def _excess_ns(m: Measurements, axis: AxisSummary) -> int:
    """Exposure beyond the minimum, at most the axis' own part of the step budget."""
    own_part_ns = mean_budget(m).exposed_comm_ns.get(axis.axis, 0)
    return min(max(0, axis.exposed_ns - (axis.expected_exposed_ns or 0)), own_part_ns)


def _advice(m: Measurements, axis: AxisSummary, excess_ns: int) -> str:
    by_op = [a for a in m.axes if a.axis == axis.axis and a.op]
    worst = max(by_op, key=lambda a: a.exposed_ns, default=axis)
    hidden = "" if axis.overlap_pct is None else f", {pct(axis.overlap_pct)} of it hidden"
    parts = axis_parts(axis.axis)
    remedy = next((text for part, text in REMEDIES.items() if part in parts), ELSE)
    return (
        f"{axis.axis} communicates {ms(axis.comm_ns)} a step{hidden}; {worst.op or 'it'} exposes "
        f"most ({ms(worst.exposed_ns)}). {remedy} Hiding the excess saves up to {ms(excess_ns)} "
        "a step."
    )


RULE = Rule(
    code="COM001",
    name="exposed-communication",
    title="Communication exposed beyond what the strategy must expose",
    axes=ALL_AXES,
    needs=(KEPT_STEP, COMMUNICATION),
    severity=Severity.ERROR,
    options=ShareOptions,
    check=check,
    since="0.1",
    symptom=True,
)
