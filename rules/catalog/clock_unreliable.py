"""Clocks of ranks that cannot be compared well enough to tell who waits for whom.

## What it measures
How far the ends of collectives lie apart after the ranks' clocks were aligned: per group, the worst
median over pairs of members. Members of a synchronous collective leave it together, so what is left
is the error of the clock model. Also ranks that share no synchronous collective with the others.

## Roofline
GPUs that run NCCL leave within tens of microseconds; on one host the clock is shared.

## Why it matters
Above 50 us no wait, transfer time or bandwidth is given for the group: a clock error would be shown
as a straggler.

## How to fix
- Record a window with collectives that all ranks take part in: the gradient norm's all-reduce at
  the end of a step is enough.
- Run `chrony` or PTP on the hosts; a clock that is stepped during the capture cannot be modelled.
- On CPU (gloo) ends scatter by milliseconds, because ranks are scheduled when the machine has time:
  that is not the clock, and cannot be repaired.

## Example
Median disagreement of 480 us on the data-parallel groups: their waits are not shown.

## When it is silent
On traces of a single rank, and while all groups agree within `max_residual_us`. Lower the option to
be told earlier; the limit above which nothing is split is fixed.

## References
- NTP and PTP documentation: offsets of milliseconds and of microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model import Finding, Quantity, Severity
from rules.needs import SEVERAL_RANKS
from rules.spec import Rule, option
from rules.wording import listed_ranks

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of the rule."""

    max_residual_us: float = option(50.0, "Largest median disagreement of a group.", unit="us")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding for groups that disagree, one for ranks that nothing joins."""
    if m.crossrank is None:
        return
    clock = m.crossrank.clock
    grave = Severity.INFO if m.host_side else Severity.WARNING
    off = {g: ns / 1e3 for g, ns in clock.residual_ns.items() if ns / 1e3 > o.max_residual_us}
    if off:
        worst = max(off, key=lambda group: off[group])
        ranks = tuple(map(int, worst.split(",")))
        yield RULE.finding(
            f"Clocks disagree in {len(off)} of {len(clock.residual_ns)} groups, "
            f"by up to {off[worst]:,.0f} us",
            grave,
            Quantity(off[worst], "us"),
            threshold=o.max_residual_us,
            roofline=0.0,
            ranks=ranks,
            advice=f"Ends of the collectives of {listed_ranks(ranks).lower()} lie that far apart "
            "in the median, so waits and transfers of these groups are not given. "
            + (
                "On CPU the ends scatter with the scheduling of the ranks."
                if m.host_side
                else "Check time synchronisation of the hosts (chrony, PTP)."
            ),
        )
    lowest = min(m.ranks)
    apart = tuple(r for r in m.ranks if clock.reference.get(r) != lowest)
    if apart and clock.offset_ns:
        yield RULE.finding(
            f"{listed_ranks(apart)} share no synchronous collective with rank {lowest}",
            Severity.INFO,
            Quantity(float(len(apart)), "ranks"),
            threshold=0.0,
            ranks=apart,
            advice="Their clocks cannot be compared with the others'. Record a window with a "
            "collective of all ranks, such as the gradient norm's all-reduce.",
        )


RULE = Rule(
    code="TRC002",
    name="clock-unreliable",
    title="Clocks of ranks that cannot be compared well enough",
    axes=(),
    needs=(SEVERAL_RANKS,),
    severity=Severity.WARNING,
    options=Options,
    check=check,
    since="0.1",
)
