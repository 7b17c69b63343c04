"""A device that waits for the next batch.

## What it measures
Idle time per step during which the host is inside a dataloader range (`idle[data]`).

## Roofline
None of it: workers that prefetch hand over the next batch while the device computes this one.

## Why it matters
The stall repeats every step, and on a rank with slow storage it holds up all others in the next
collective.

## How to fix
- `DataLoader(num_workers=..., prefetch_factor=..., persistent_workers=True, pin_memory=True)`.
- Tokenize and pack beforehand; read through memory maps; cache on local disks.
- Copy the batch with `non_blocking=True` on a side stream, a step ahead.

## Example
A step of 200 ms that begins with 30 ms in `enumerate(DataLoader)#_SingleProcessDataLoaderIter`:
15 %, an error.

## When it is silent
When the batch is loaded while the device is busy, and when the loader leaves no range in the trace
(the idle time then counts as host-bound).

## References
- PyTorch documentation, `torch.utils.data.DataLoader`.
- PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import ranks_of, step_evidence, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import KEPT_STEP
from rules.reading import idle_by_step, per_step
from rules.spec import Rule
from rules.wording import ms

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


def check(m: Measurements, o: ShareOptions) -> Iterator[Finding]:
    """One finding when waiting for data costs enough."""
    costs = idle_by_step(m, "data")
    lost_ns = per_step(m, int(costs["cost_ns"].sum()))
    hit = costs.filter(pl.col("cost_ns") > 0)
    finding = cost_finding(
        RULE,
        m,
        o,
        Cost(lost_ns),
        title=f"Loading data leaves the device idle for {ms(lost_ns)} a step",
        ranks=ranks_of(hit),
        steps=steps_of(hit),
        evidence=step_evidence(m, costs, "waiting for data"),
        advice="Load ahead of the step: more DataLoader workers (num_workers, prefetch_factor, "
        "persistent_workers=True), pin_memory=True with non_blocking copies, tokenized and packed "
        f"input on fast storage. Worth up to {ms(lost_ns)} a step.",
    )
    if finding is not None:
        yield finding


RULE = Rule(
    code="HST003",
    name="data-stall",
    title="Device idle while the host loads data",
    axes=(),
    needs=(KEPT_STEP,),
    severity=Severity.ERROR,
    options=ShareOptions,
    check=check,
    since="0.1",
)
