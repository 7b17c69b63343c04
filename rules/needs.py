"""What rules need, and why it may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.reading import axis_parts
from rules.spec import Need

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


def _no_kept_step(m: Measurements) -> str | None:
    if m.mean is not None and m.mean.time_ns > 0:
        return None
    return m.null_reasons.get("exposed_comm_pct") or "no complete step to measure"


def _host_side(m: Measurements) -> str | None:
    return "the trace holds no device activity: its figures are host-side" if m.host_side else None


def _no_communication(m: Measurements) -> str | None:
    return None if any(a.count > 0 for a in m.axes) else "no communication in the kept steps"


def _no_expectation(m: Measurements) -> str | None:
    return "no strategy was stated (--expect)" if m.expect is None else None


def _no_launches(m: Measurements) -> str | None:
    launched = m.host_step.filter(m.host_step["kept"])["launches"].sum()
    return None if launched else "the trace does not say when the host launched the kernels"


def _single_rank(m: Measurements) -> str | None:
    return "the traces of several ranks are needed" if m.crossrank is None else None


def _not_compared(m: Measurements) -> str | None:
    if m.crossrank is None or m.crossrank.splits.height:
        return _single_rank(m)
    return m.null_reasons.get("axes.wait_ns") or "no collective could be compared across ranks"


KEPT_STEP = Need("a complete step", _no_kept_step)
DEVICE_SIDE = Need("device activity", _host_side)
COMMUNICATION = Need("communication", _no_communication)
SEVERAL_RANKS = Need("several ranks", _single_rank)
COMPARED = Need("collectives compared across ranks", _not_compared)
EXPECTATION = Need("a stated strategy", _no_expectation)
LAUNCHES = Need("launch times", _no_launches)


def collectives(*ops: str, on: tuple[str, ...], called: str = "") -> Need:
    """The need for one of ``ops`` on an axis that has one of ``on`` as a part."""
    name = called or f"{' or '.join(ops)} on {' or '.join(on)}"

    def missing(m: Measurements) -> str | None:
        seen = any(a.op in ops and a.count > 0 and axis_parts(a.axis) & set(on) for a in m.axes)
        return None if seen else f"no {name}"

    return Need(name, missing)
