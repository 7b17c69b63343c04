"""A device that waits because the host has not launched its next kernel yet.

## What it measures
Idle time per step that ends with a kernel whose launch call began only after the device had run
dry (`idle[host_bound]`). Idle time after a host-device synchronisation is not counted here: it
belongs to `synchronisation-in-step`. The median lead (kernel start minus launch) shows how far the
host runs ahead.

## Roofline
None of it: a host that stays ahead of the device costs no device time.

## Why it matters
A host-bound step does not get faster with a faster device, better kernels or less communication.

## How to fix
- Fewer, larger kernels: `torch.compile`, fused optimizers (`AdamW(..., fused=True)`), fused norm
  and loss kernels.
- One launch for many kernels: CUDA graphs (`torch.compile(mode="reduce-overhead")`,
  `torch.cuda.make_graphed_callables`).
- More work per launch: a larger micro-batch, fewer accumulation steps.
- A quieter host: `gc.disable()` with collections at fixed steps (torchtitan `gc_freq`), processes
  pinned to the device's NUMA node, no Python hooks per layer.
- Profiling itself slows the host: look again without `with_stack` and `record_shapes`.

## Example
A step of 40 ms with 9 ms host-bound idle (22 %) and a median lead of 12 us: an error.

## When it is silent
When the trace holds no launch times, on host-side traces, and when idle time has other causes.

## References
- PyTorch, "Accelerating PyTorch with CUDA Graphs", 2021.
- PyTorch performance tuning guide, "Use CUDA graphs".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import ranks_of, step_evidence, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import DEVICE_SIDE, KEPT_STEP, LAUNCHES
from rules.reading import WINDOW, idle_by_step, per_step, windows
from rules.spec import Rule
from rules.wording import ms

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


def check(m: Measurements, o: ShareOptions) -> Iterator[Finding]:
    """One finding when host-bound idle time costs enough."""
    costs = _host_bound(m)
    lost_ns = per_step(m, int(costs["cost_ns"].sum()))
    hit = costs.filter(pl.col("cost_ns") > 0)
    host = m.host_step.filter("kept")
    launches = int(host["launches"].sum()) / windows(m)
    lead_ns = host["median_lead_ns"].drop_nulls().median()
    lead = "" if not isinstance(lead_ns, (int, float)) else f", {ms(lead_ns)} ahead in the median"
    finding = cost_finding(
        RULE,
        m,
        o,
        Cost(lost_ns),
        title=f"The device waits {ms(lost_ns)} a step for the host to launch kernels",
        ranks=ranks_of(hit),
        steps=steps_of(hit),
        evidence=step_evidence(m, costs, "host-bound"),
        advice=f"The host launches {launches:.0f} kernels a step{lead}. Launch less "
        "(torch.compile, fused optimizer), launch many at once (CUDA graphs: "
        'mode="reduce-overhead", torch.cuda.make_graphed_callables), give each launch more work '
        "(larger micro-batch), and keep the host undisturbed (gc.disable() with collections at "
        f"fixed steps, NUMA pinning). Worth up to {ms(lost_ns)} a step; profiling with stacks or "
        "shapes inflates it.",
    )
    if finding is not None:
        yield finding


def _host_bound(m: Measurements) -> pl.DataFrame:
    """Host-bound idle time of each kept window, without what follows a synchronisation.

    ``drain_ns`` holds all idle time of the gaps a synchronisation opened: the time in the call and
    what came after it, which is at most as much host-bound time as must not be counted here.
    """
    synced = idle_by_step(m, "sync").rename({"cost_ns": "sync_ns"})
    after = (
        m.host_step.filter("kept")
        .select(*WINDOW, "drain_ns")
        .join(synced, on=list(WINDOW), how="left")
        .select(*WINDOW, after_ns=pl.col("drain_ns") - pl.col("sync_ns").fill_null(0))
    )
    return (
        idle_by_step(m, "host_bound")
        .join(after, on=list(WINDOW), how="left")
        .with_columns(
            cost_ns=(pl.col("cost_ns") - pl.col("after_ns").fill_null(0)).clip(
                lower_bound=0, upper_bound=pl.col("cost_ns")
            )
        )
    )


RULE = Rule(
    code="HST001",
    name="host-bound-step",
    title="Device idle because kernels are launched too late",
    axes=(),
    needs=(KEPT_STEP, DEVICE_SIDE, LAUNCHES),
    severity=Severity.ERROR,
    options=ShareOptions,
    check=check,
    since="0.1",
)
