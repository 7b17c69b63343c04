"""The parts of the result document that compare ranks: clocks, waits, bandwidth, leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

MAX_UNMATCHED = 200
"""Rows of ``coverage.unmatched`` that are listed; ``unmatched_total`` counts all events."""

SINGLE = "needs the traces of at least two ranks of a group"
FIGURES = (
    "wait_ns", "transfer_ns", "unexplained_ns", "busbw_gbps", "spec_gbps", "link_efficiency",
    "split_pct",
)  # fmt: skip


def clock(m: Measurements) -> dict[str, Any]:
    """Offsets against the lowest rank read; null for ranks that nothing joins to it."""
    if m.crossrank is None:
        return {"offset_ns": {}, "residual_ns": None}
    model = m.crossrank.clock
    lowest = min(m.ranks)
    joined = {rank: model.reference.get(rank) == lowest for rank in sorted(m.ranks)}
    return {
        "offset_ns": {r: model.offset_ns[r] if ok else None for r, ok in joined.items()}
        if model.offset_ns
        else {},
        "residual_ns": model.worst_residual_ns,
        "drift_ppm": {r: model.drift_ppm[r] for r, ok in joined.items() if ok},
        "bound_ns": {r: model.bound_ns[r] for r, ok in joined.items() if ok},
        "reference_rank": lowest if any(joined.values()) else None,
        "at_ns": model.at_ns if model.offset_ns else None,
        "refused_groups": model.refused,
    }


def waits(m: Measurements) -> dict[str, list[Any]]:
    """Wait and transfer of each rank and axis, as columns."""
    return {} if m.crossrank is None else m.crossrank.waits.to_dict(as_series=False)


def busbw(m: Measurements) -> list[dict[str, Any]]:
    """Bus bandwidth by size of message."""
    return [] if m.crossrank is None else m.crossrank.busbw.to_dicts()


def unmatched(m: Measurements) -> dict[str, Any]:
    """What matching left over, the most frequent first."""
    if m.crossrank is None:
        return {"unmatched": [], "unmatched_total": None, "desynchronised": None}
    rows = m.crossrank.unmatched
    listed = rows.sort("count", *(n for n in rows.columns if n != "count"),
                       descending=[True] + [False] * (rows.width - 1))  # fmt: skip
    return {
        "unmatched": listed.head(MAX_UNMATCHED).to_dicts(),
        "unmatched_total": int(rows["count"].sum()),
        "desynchronised": m.crossrank.desynchronised["position"].n_unique(),
    }


def reasons(m: Measurements) -> dict[str, str]:
    """Why figures that compare ranks are null, where the measurements do not say."""
    if m.crossrank is not None:
        return {}
    whole = [axis for axis in m.axes if not axis.op]
    missing = [name for name in FIGURES if any(getattr(a, name) is None for a in whole)]
    return {"clock": SINGLE, **{f"axes.{name}": SINGLE for name in missing}}
