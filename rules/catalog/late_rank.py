"""A rank that starts an axis' collectives last, again and again, and makes the others wait.

## What it measures
Of every collective that all members recorded, on aligned clocks, who started clearly last: by more
than the clocks' residual and 5 us. A rank is reported when it is last in at least `min_share` % of
its collectives on the axis and far more often than chance (`min_sigma` standard deviations above
one in n, n being the size of the group).

## Roofline
No rank is last more often than the others. What is counted as savings is the time from the last but
one member's start to the late one's, for every member that waited: making this rank faster than the
next slowest wins nothing more.

## Why it matters
A collective ends for all when its last member has come. One slow rank therefore costs every rank of
its group, and shows up on the others as slow communication.

## How to fix
- Look at the late rank's step: fewer computing milliseconds than the others and more idle time
  point at its host (data loading, garbage collection, synchronisations, a busy CPU); more computing
  milliseconds point at the device (clocks, thermal or power limits) or at more work (longer
  sequences, more tokens for its experts).
- `nvidia-smi -q -d PERFORMANCE,CLOCK` on that device; pin processes to the device's NUMA node;
  `gc.disable()` with collections at fixed steps on all ranks.
- Balance sequence lengths and experts where the work differs.
- A rank that is late in its tensor-parallel group makes its partners late in their data-parallel
  groups: fix the innermost axis first.

## Example
Rank 2 of 4 starts 23 of 23 collectives last; the others wait 34.7 ms of a 77 ms step.

## When it is silent
On ties, on noise (every rank is last now and then), with fewer than `min_instances` collectives,
on point-to-point transfers (a stage has to wait for the one before it), where clocks disagree too
much, and when less than `info_pct` of the step is lost.

## References
- Wu et al., FALCON: Pinpointing and Mitigating Stragglers for Large-Scale Hybrid-Parallel Training,
  2024.
- NCCL documentation, Collective Operations: all ranks must call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analyzer.groups import P2P_OPS
from analyzer.model import Finding, Severity
from rules.evidence import comm_evidence, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import COMPARED, KEPT_STEP
from rules.reading import comm_events, per_step
from rules.spec import ALL_AXES, Rule, option
from rules.wording import listed_ranks, ms

if TYPE_CHECKING:
    from analyzer.measure.results import AxisSummary, Measurements

WINDOW = ["rank", "lane", "step"]


@dataclass(frozen=True, slots=True)
class Options(ShareOptions):
    """Limits of the rule."""

    min_share: float = option(
        50.0, "Least share of collectives a rank is last in.", unit="% of its collectives"
    )
    min_sigma: float = option(4.0, "Standard deviations above chance.")
    min_instances: int = option(8, "Fewer collectives of a rank are not judged.")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding an axis that has late ranks."""
    instances = _instances(m)
    for axis in (a for a in m.axes if not a.op):
        own = instances.filter(pl.col("axis") == axis.axis)
        late = _late_ranks(own, o)
        if late:
            finding = _finding(m, o, axis, own, late)
            if finding is not None:
                yield finding


def _instances(m: Measurements) -> pl.DataFrame:
    """Members of the split collectives of kept steps, with ``members`` of each."""
    if m.crossrank is None:
        message = "ranks were not compared"
        raise ValueError(message)
    kept = m.steps.filter("kept").select("rank", "lane", pl.col("index").alias("step"))
    splits = m.crossrank.splits.join(kept, on=WINDOW, how="semi")
    collective = ~pl.col("op").is_in(sorted(P2P_OPS))
    return splits.filter(collective).with_columns(members=pl.len().over("instance"))


def _late_ranks(instances: pl.DataFrame, o: Options) -> list[int]:
    chance = 1 / pl.col("members")
    is_late = (pl.col("late_rank") == pl.col("rank")).fill_null(value=False)
    counted = instances.group_by("rank").agg(
        pl.len().alias("calls"),
        is_late.sum().alias("late"),
        chance.sum().alias("usual"),
        (chance * (1 - chance)).sum().sqrt().alias("deviation"),
    )
    often = 100 * pl.col("late") >= o.min_share * pl.col("calls")
    surprising = pl.col("late") - pl.col("usual") >= o.min_sigma * pl.col("deviation")
    enough = pl.col("calls") >= o.min_instances
    return sorted(counted.filter(often & surprising & enough)["rank"].to_list())


def _finding(
    m: Measurements, o: Options, axis: AxisSummary, instances: pl.DataFrame, late: list[int]
) -> Finding | None:
    waiting = instances.filter(
        pl.col("late_rank").is_in(late) & (pl.col("late_rank") != pl.col("rank"))
    )
    caused_ns = per_step(m, float(waiting["late_ns"].sum()))
    own = instances.filter(pl.col("rank").is_in(late))
    times = own.filter(pl.col("late_rank") == pl.col("rank")).height
    events = comm_events(m, axis.axis.split("+")).join(
        waiting.select(*WINDOW, "start_ns", "end_ns", "wait_ns", "late_rank"),
        on=[*WINDOW, "start_ns", "end_ns"],
    )
    who = listed_ranks(late)
    last = "starts" if len(late) == 1 else "start"
    return cost_finding(
        RULE,
        m,
        o,
        Cost(min(caused_ns, axis.exposed_ns), measured_ns=caused_ns),
        axis=axis.axis,
        title=f"{who} {last} {times} of {own.height} {axis.axis} collectives last; "
        f"the others wait {ms(caused_ns)} a step for it",
        ranks=tuple(late),
        steps=steps_of(own),
        evidence=comm_evidence(m, events, "wait_ns"),
        advice=f"Compare the step of {who.lower()} with that of another rank: more computation "
        "(slow device, more tokens) or more idle time (data loading, garbage collection, busy "
        "host). The wait shows on the other ranks as communication; hiding or speeding that up "
        f"does not help. Saves up to {ms(min(caused_ns, axis.exposed_ns))} a step.",
    )


RULE = Rule(
    code="SKW001",
    name="late-rank",
    title="A rank that the others wait for again and again",
    axes=ALL_AXES,
    needs=(KEPT_STEP, COMPARED),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
