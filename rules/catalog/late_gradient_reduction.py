"""Gradient reductions issued when the backward pass has nothing left to hide them behind.

## What it measures
Reduce-scatters and all-reduces of gradients from which on less than `max_hidden_pct` of the step's
reductions is hidden. The last of them is unavoidable (see Roofline); the exposed time of the others
counts, as far as computation without any reduction beside it ran just before them.

## Roofline
A reduction starts as soon as its gradients are ready and runs under the rest of the backward pass.
The last one has nothing left to run under: one FSDP unit, or one DDP bucket. A DDP bucket larger
than `bucket_mib` is unavoidable only by that part of its duration, unless it is far larger than the
others: then it is one tensor (an embedding), which no bucket size splits.

## Why it matters
The backward pass is two thirds of the computation, enough to hide all gradient traffic at usual
batch sizes. Reductions left to its end add their whole time to the step.

## How to fix
- DDP: several buckets (`bucket_cap_mb=25`), `static_graph=True`, no `find_unused_parameters`, and
  no manual all-reduce after `backward()`.
- FSDP2: `fully_shard` on each block, not only on the root; with gradient accumulation
  `set_requires_gradient_sync(False)` on all but the last micro-batch.
- DeepSpeed: `overlap_comm: true` and a `reduce_bucket_size` well below the gradient size.
- Megatron-LM: `--overlap-grad-reduce`.

## Example
DDP with one 1.6 GB bucket: its all-reduce starts when the backward pass is over and costs 9 ms;
with 25 MiB buckets 0.15 ms of it would remain.

## When it is silent
When the reductions began in time and queue up on a slow link (see `exposed-communication`), on the
last bucket or unit, on reductions of a few numbers (loss, gradient norm) and on traces without
device activity.

## References
- Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
- PyTorch documentation, `torch.nn.parallel.DistributedDataParallel` (`bucket_cap_mb`).
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
from rules.reading import (
    WINDOW,
    comm_events,
    compute_since_previous,
    per_step,
    windows,
)
from rules.spec import Rule, option
from rules.wording import ms

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

AXES = ("dp_shard", "dp_replicate", "edp")
OPS = ("all_reduce", "reduce_scatter")
OUTGROWN = 1.5
"""A last bucket this much larger than the median of all holds one tensor larger than a bucket."""
MIN_GRADIENT_BYTES = 1024
"""Smaller reductions carry a loss, a norm or a flag, not gradients."""


@dataclass(frozen=True, slots=True)
class Options(ShareOptions):
    """Limits of the rule."""

    max_hidden_pct: float = option(
        10.0, "Late: from here on less than this of the reductions is hidden.", unit="%"
    )
    bucket_mib: float = option(25.0, "Size of a last bucket that is unavoidable.", unit="MiB")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding an axis whose late reductions cost enough."""
    is_gradient = pl.col("message_bytes").fill_null(MIN_GRADIENT_BYTES) >= MIN_GRADIENT_BYTES
    reductions = comm_events(m, AXES, OPS).filter(is_gradient & (pl.col("phase") != "forward"))
    units = "reduce_scatter" in reductions["op"]
    for (axis,), of_axis in reductions.group_by("axis", maintain_order=True):
        late = _late(of_axis, o, units=units)
        saved_ns = per_step(m, _savings_ns(late))
        count, total = late.height / windows(m), of_axis.height / windows(m)
        finding = cost_finding(
            RULE,
            m,
            o,
            Cost(saved_ns),
            axis=str(axis),
            title=f"{count:.0f} of {total:.0f} gradient reductions a step on {axis} start when "
            "nothing is left to hide them",
            ranks=ranks_of(late),
            steps=steps_of(late),
            evidence=comm_evidence(m, late, "exposed_ns"),
            advice="Reduce each gradient as soon as it is ready: DDP with buckets of 25 MiB "
            "(bucket_cap_mb), FSDP2 fully_shard on every block and "
            "set_requires_gradient_sync(False) on all but the last micro-batch, DeepSpeed "
            "overlap_comm, Megatron --overlap-grad-reduce. Under the backward pass these "
            f"reductions cost up to {ms(saved_ns)} a step less.",
        )
        if finding is not None:
            yield finding


def _late(reductions: pl.DataFrame, o: Options, *, units: bool) -> pl.DataFrame:
    """The late reductions, with ``available_ns`` before each and ``allowed_ns`` of the last.

    A reduction is late when it and those after it have almost no computation beside them. (Copies
    that fill the buffers run between reductions: they cannot hide what they prepare.) With
    ``units`` gradients are reduced per wrapped unit (FSDP): among several the last may be of any
    size. A DDP bucket, or a model wrapped as one unit, could have been smaller, unless it outgrew
    the others.
    """
    hidden = (pl.col("dur_ns") - pl.col("exposed_ns")).cum_sum(reverse=True).over(WINDOW)
    left = pl.col("dur_ns").cum_sum(reverse=True).over(WINDOW)
    number, count = pl.int_range(pl.len()).over(WINDOW), pl.len().over(WINDOW)
    bucket = (o.bucket_mib * 2**20 / pl.col("message_bytes")).fill_null(1.0).clip(0.0, 1.0)
    outgrown = pl.col("message_bytes") > OUTGROWN * pl.col("message_bytes").median().over(WINDOW)
    whole = (count > 2) & (outgrown.fill_null(value=True) | pl.lit(units))
    allowed = pl.when(whole).then(1.0).otherwise(bucket) * pl.col("dur_ns")
    return reductions.with_columns(
        available_ns=compute_since_previous().fill_null(pl.col("compute_before_ns")),
        allowed_ns=pl.when(number == count - 1).then(allowed.cast(pl.Int64)).otherwise(0),
    ).filter(hidden * 100 < o.max_hidden_pct * left)


def _savings_ns(late: pl.DataFrame) -> int:
    """Exposed time beyond the allowed, as far as the computation before it could hide it."""
    sums = late.group_by(WINDOW).agg(pl.col("exposed_ns", "available_ns", "allowed_ns").sum())
    excess = (pl.col("exposed_ns") - pl.col("allowed_ns")).clip(lower_bound=0)
    return int(sums.select(pl.min_horizontal(excess, "available_ns").sum()).item())


RULE = Rule(
    code="COM003",
    name="late-gradient-reduction",
    title="Gradient reductions with nothing left to hide them",
    axes=AXES,
    needs=(KEPT_STEP, DEVICE_SIDE, collectives(*OPS, on=AXES)),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
