"""Host-device synchronisations inside the step that let the device run dry.

## What it measures
Idle time per step from where the host is blocked in a synchronising call and the device has run dry
until the next kernel starts, but at most the time the host was blocked (`drain_ns`, of which
`idle[sync]` is the part inside the call): without the call the next launch would have come earlier
by that time, and not more.

## Roofline
None of it: a step needs no synchronisation. Reading a value back costs nothing when it is copied
asynchronously and looked at a step later.

## Why it matters
A synchronisation stops the host until the device has finished everything, so the device has nothing
queued when the host goes on. In every layer it turns a step that was device-bound into a
host-bound one, and makes all ranks of a collective wait for the slowest host.

## How to fix
- Find them: `torch.cuda.set_sync_debug_mode("warn")`, or the evidence steps in the timeline.
- `loss.item()`, `float(x)`, `print(x)`, `.cpu()`, `if tensor:` only every N steps; keep running
  sums on the device.
- Shapes that depend on data (`nonzero`, boolean masks, `unique`) replaced by fixed ones.
- Copies from pinned memory with `non_blocking=True`.
- Megatron-LM: `--no-check-for-nan-in-loss-and-grad`, a larger `--log-interval`; torchtitan: a
  larger `log_freq`.

## Example
A `.item()` in each of 32 layers: 32 synchronisations, 0.2 ms of idle device each, 6.4 ms a step.

## When it is silent
When the device stays busy through the synchronisations (it had enough queued on other streams),
when they return at once because the queue had long run dry (the host is slow by itself: see
`host-bound-step`), at the end of the capture, and on host-side traces.

## References
- PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
- PyTorch documentation, `torch.cuda.set_sync_debug_mode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Severity
from rules.evidence import ranks_of, step_evidence, steps_of
from rules.judge import Cost, ShareOptions, cost_finding
from rules.needs import DEVICE_SIDE, KEPT_STEP
from rules.reading import WINDOW, idle_by_step, per_step, windows
from rules.spec import Rule
from rules.wording import ms

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


def check(m: Measurements, o: ShareOptions) -> Iterator[Finding]:
    """One finding when synchronisations cost enough."""
    costs = _costs(m)
    lost_ns = per_step(m, int(costs["cost_ns"].sum()))
    hit = costs.filter(pl.col("cost_ns") > 0)
    calls = int(costs["sync_calls"].sum()) / windows(m)
    blocked_ns = int(costs["sync_ns"].sum()) / windows(m)
    finding = cost_finding(
        RULE,
        m,
        o,
        Cost(lost_ns),
        title=f"{calls:.0f} host-device synchronisations a step leave the device idle for up to "
        f"{ms(lost_ns)}",
        ranks=ranks_of(hit),
        steps=steps_of(hit),
        evidence=step_evidence(m, costs, "idle in and after synchronisations"),
        advice=f"The host is blocked {ms(blocked_ns)} a step in {calls:.0f} calls. Find them with "
        'torch.cuda.set_sync_debug_mode("warn"); read losses and metrics back every N steps '
        "(.item(), .cpu(), print), replace data-dependent shapes (nonzero, boolean masks), copy "
        "from pinned memory with non_blocking=True, and turn off per-step checks (Megatron "
        f"--no-check-for-nan-in-loss-and-grad). Worth up to {ms(lost_ns)} a step.",
    )
    if finding is not None:
        yield finding


def _costs(m: Measurements) -> pl.DataFrame:
    """Idle time in and after synchronisations of each kept window, with the calls' figures.

    ``drain_ns`` contains ``idle[sync]``, so the two must not be added.
    """
    waiting = idle_by_step(m, "sync").rename({"cost_ns": "waiting_ns"})
    return (
        m.host_step.filter("kept")
        .join(waiting, on=list(WINDOW), how="left")
        .with_columns(cost_ns=pl.max_horizontal(pl.col("waiting_ns").fill_null(0), "drain_ns"))
    )


RULE = Rule(
    code="HST002",
    name="synchronisation-in-step",
    title="Host-device synchronisations that drain the device",
    axes=(),
    needs=(KEPT_STEP, DEVICE_SIDE),
    severity=Severity.ERROR,
    options=ShareOptions,
    check=check,
    since="0.1",
)
