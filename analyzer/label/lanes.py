"""Which devices of a rank carry its work, and which only a few stray events."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzer.intervals import merge, total
from analyzer.model import Work

COPIES = (Work.MEMCPY.value, Work.MEMSET.value)
MIN_SHARE_OF_BUSIEST = 0.05


def stray_lanes(activity: pl.DataFrame) -> Mapping[int, str]:
    """Devices that must not weigh in averages as much as the one that trains, with the reason.

    A process that leaves a context, a memset or a peer copy on a device other than its own has work
    there, but no step. A device counts when it runs a kernel (or no device of the rank does) and is
    busy for at least :data:`MIN_SHARE_OF_BUSIEST` of the time of the rank's busiest one.

    Args:
        activity: schema.ACTIVITY of one rank with ``step`` filled; events outside steps are left
            out.
    """
    inside = activity.filter(pl.col("step") >= 0)
    busy, kernels = {}, {}
    for (number,), rows in inside.group_by("lane"):
        lane = int(str(number))
        busy[lane] = total(merge(rows["start_ns"], rows["end_ns"]))
        kernels[lane] = not rows["work"].cast(pl.String).is_in(COPIES).all()
    busiest = max(busy, key=lambda lane: (kernels[lane], busy[lane], -lane), default=0)
    reasons = {}
    for lane in sorted(set(busy) - {busiest}):
        share = busy[lane] / busy[busiest] if busy[busiest] else 1.0
        if kernels[busiest] and not kernels[lane]:
            reasons[lane] = f"device {lane} runs no kernel, device {busiest} does"
        elif share < MIN_SHARE_OF_BUSIEST:
            reasons[lane] = f"device {lane} is busy for {_pct(share)} of device {busiest}'s time"
    return reasons


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "less than 0.1 %"
