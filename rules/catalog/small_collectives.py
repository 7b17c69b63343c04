"""Many small collectives whose latency, not their bytes, costs time.

## What it measures
Per axis and kind, collectives of at most `max_mib` in a step when there are at least `min_count` of
them. Each pays the latency that the smallest of them show; what buckets would save of it counts, as
far as these collectives are exposed at all.

## Roofline
The same bytes in buckets of `bucket_mib`: one latency a bucket. The latency is the median duration
of the smallest messages of the axis and kind. Where all have one size it includes their transfer,
so the savings are an upper bound.

## Why it matters
Each collective costs a launch, a handshake of all members and a pass around the ring: tens of
microseconds within a node, more across nodes. A bucket per tensor turns hundreds of these into the
tail of the backward pass.

## How to fix
- DDP: `bucket_cap_mb=25` or more, `gradient_as_bucket_view=True`; no all-reduce per parameter in
  hooks.
- FSDP2: `fully_shard` per transformer block, not per linear layer.
- DeepSpeed: `reduce_bucket_size`, `allgather_bucket_size`. Megatron-LM: `--ddp-bucket-size`.
- Metrics: stack the values and reduce one tensor, every N steps (`_coalescing_manager` where they
  cannot be stacked).

## Example
292 all-reduces of 0.3 MiB, the smallest of which take 40 us: in four buckets of 25 MiB they pay
288 latencies less, 11.5 ms.

## When it is silent
On collectives that the strategy puts on the critical path (they cannot be put into one bucket), on
point-to-point transfers and all-to-alls, when the axis is hidden anyway, and when sizes are not
known.

## References
- Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
- Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005 (alpha-beta).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import comm_evidence, ranks_of, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import KEPT_STEP, collectives
from rules.reading import axis_parts, comm_events, expected_ops, windows
from rules.spec import Rule, option
from rules.wording import ms, size

if TYPE_CHECKING:
    from analyzer.measure.results import AxisSummary, Measurements

AXES = ("dp_replicate", "dp_shard", "cp", "ep", "edp", "world", "unknown")
OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Options(ShareOptions):
    """Limits of the rule."""

    max_mib: float = option(1.0, "Largest message that counts as small.", unit="MiB")
    min_count: int = option(16, "Fewer small collectives a step are not reported.")
    bucket_mib: float = option(25.0, "Bucket size that they are compared with.", unit="MiB")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding an axis and kind whose latency costs enough."""
    for axis in m.axes:
        if axis.op not in OPS or not axis_parts(axis.axis) & set(AXES):
            continue
        expected = expected_ops(m, axis.axis).get(axis.op)
        if expected is not None and expected.critical:
            continue
        small = comm_events(m, [*axis_parts(axis.axis)], [axis.op]).filter(
            (pl.col("axis") == axis.axis) & (pl.col("message_bytes") <= o.max_mib * 2**20)
        )
        count = small.height / windows(m)
        if count >= max(1, o.min_count):
            finding = _finding(m, o, axis, small)
            if finding is not None:
                yield finding


def _finding(m: Measurements, o: Options, axis: AxisSummary, small: pl.DataFrame) -> Finding | None:
    count = small.height / windows(m)
    bytes_ = float(small["message_bytes"].sum()) / windows(m)
    buckets = max(1, math.ceil(bytes_ / (o.bucket_mib * 2**20)))
    smallest = small.filter(pl.col("message_bytes") == pl.col("message_bytes").min())
    latency_ns = float(smallest.select(pl.col("dur_ns").median()).item())
    excess_ns = axis.exposed_ns - (axis.expected_exposed_ns or 0)
    saved_ns = round(max(0.0, min((count - buckets) * latency_ns, excess_ns)))
    return cost_finding(
        RULE,
        m,
        o,
        Cost(saved_ns),
        axis=axis.axis,
        title=f"{count:.0f} {axis.op} of {size(bytes_ / count)} on average a step on {axis.axis}",
        ranks=ranks_of(small),
        steps=steps_of(small),
        evidence=comm_evidence(m, small, "dur_ns"),
        advice=f"They carry {size(bytes_)} a step and pay a latency of {ms(latency_ns)} each. Put "
        f"them into {buckets} bucket{'s' if buckets > 1 else ''}: DDP bucket_cap_mb, FSDP2 "
        "fully_shard per block instead of per layer, DeepSpeed reduce_bucket_size and "
        "allgather_bucket_size, Megatron --ddp-bucket-size; stack metrics before reducing them. "
        f"Saves up to {ms(saved_ns)} a step.",
    )


RULE = Rule(
    code="COM005",
    name="small-collectives",
    title="Many small collectives where buckets would do",
    axes=AXES,
    needs=(KEPT_STEP, collectives(*OPS, on=AXES, called="collectives that fit a bucket")),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
