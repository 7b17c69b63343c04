"""FSDP all-gathers that begin only when the computation before them has ended: no prefetch.

## What it measures
Parameter all-gathers of a sharded axis that run almost without computation beside them, although
computation ran between the previous all-gather and this one. That computation could have hidden
this one, had it been issued then. Per group of consecutive all-gathers the smaller of the two
(their exposed time, the computation before them) is what prefetching would save.

## Roofline
Unit u+1 is gathered while unit u computes. Only the first all-gather of the step has nothing
before it to hide behind; it is never counted.

## Why it matters
Without prefetch every unit pays its all-gather in full, in the forward and again in the backward
pass: with L units that is up to 2L-1 collectives of waiting per micro-batch.

## How to fix
- FSDP2: `block.set_modules_to_forward_prefetch([next_block])` and
  `block.set_modules_to_backward_prefetch([previous_block])`; apply `fully_shard` to each block.
- FSDP1: `forward_prefetch=True`, `backward_prefetch=BackwardPrefetch.BACKWARD_PRE`,
  `limit_all_gathers=False` only with memory to spare.
- DeepSpeed ZeRO-3: `overlap_comm: true`, a larger `stage3_prefetch_bucket_size`.
- Megatron-LM: `--overlap-param-gather`.
- The implicit prefetch needs the host to run ahead of the device: clear `host-bound-step` and
  `synchronisation-in-step` first when they fire too.

## Example
Eight units, each computing 4 ms and gathered in 1 ms right after its predecessor has finished:
seven all-gathers of the forward pass cost 7 ms that prefetching hides completely.

## When it is silent
When the all-gathers follow each other without a pause on a link that is simply too slow (see
`exposed-communication`), on the first one, on those of the optimizer phase, on axes without
parameter sharding and on traces without device activity.

## References
- PyTorch documentation, `torch.distributed.fsdp.fully_shard`.
- Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, VLDB 2023, 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import comm_evidence, ranks_of, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import DEVICE_SIDE, KEPT_STEP, collectives
from rules.reading import WINDOW, comm_events, compute_since_previous, per_step, windows
from rules.spec import Rule, option
from rules.wording import ms

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

AXES = ("dp_shard", "edp")
PAUSE = 0.2
"""Computation of at least this part of an all-gather's duration separates it from the previous
one. The copies that put gathered parameters in place are shorter than that, and prefetching under
less would win little."""


@dataclass(frozen=True, slots=True)
class Options(ShareOptions):
    """Limits of the rule."""

    min_exposed_pct: float = option(
        75.0, "An all-gather counts as serialized from this exposed share on.", unit="% of duration"
    )


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding an axis on which prefetching would save enough."""
    gathers = comm_events(m, AXES, ["all_gather"]).filter(pl.col("phase") != "optimizer")
    for (axis,), of_axis in gathers.group_by("axis", maintain_order=True):
        serialized = _serialized(of_axis, o.min_exposed_pct)
        saved_ns = per_step(m, _savings_ns(serialized))
        count, total = serialized.height / windows(m), of_axis.height / windows(m)
        finding = cost_finding(
            RULE,
            m,
            o,
            Cost(saved_ns),
            axis=str(axis),
            title=f"{count:.0f} of {total:.0f} all-gathers a step on {axis} start only after the "
            "computation before them has ended",
            ranks=ranks_of(serialized),
            steps=steps_of(serialized),
            evidence=comm_evidence(m, serialized, "exposed_ns"),
            advice="Prefetch the next unit's parameters while this one computes: FSDP2 "
            "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch on each "
            "fully_shard-ed block, FSDP1 forward_prefetch=True with "
            "backward_prefetch=BackwardPrefetch.BACKWARD_PRE, DeepSpeed "
            "stage3_prefetch_bucket_size, Megatron --overlap-param-gather. Under the computation "
            f"before them these all-gathers cost up to {ms(saved_ns)} a step less.",
        )
        if finding is not None:
            yield finding


def _serialized(gathers: pl.DataFrame, min_exposed_pct: float) -> pl.DataFrame:
    """The nearly fully exposed all-gathers that had computation before them to hide behind.

    Adds ``available_ns`` (computation since the previous all-gather, null for the first) and
    ``burst``, the number of the run of all-gathers with no computation worth the name between
    them. Burst 0 holds the first all-gather of the step.
    """
    paused = pl.col("available_ns").fill_null(0) > PAUSE * pl.col("dur_ns")
    exposed = pl.col("exposed_ns") * 100 >= min_exposed_pct * pl.col("dur_ns")
    return (
        gathers.with_columns(available_ns=compute_since_previous())
        .with_columns(burst=paused.cast(pl.Int64).cum_sum().over(WINDOW))
        .filter((pl.col("burst") > 0) & exposed & (pl.col("dur_ns") > 0))
    )


def _savings_ns(serialized: pl.DataFrame) -> int:
    """Per burst the smaller of its exposed time and the computation before it, summed."""
    bursts = serialized.group_by(*WINDOW, "burst").agg(pl.col("exposed_ns", "available_ns").sum())
    return int(bursts.select(pl.min_horizontal("exposed_ns", "available_ns").sum()).item())


RULE = Rule(
    code="COM002",
    name="serialized-all-gather",
    title="Parameter all-gathers that are not prefetched",
    axes=AXES,
    needs=(KEPT_STEP, DEVICE_SIDE, collectives("all_gather", on=AXES)),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
