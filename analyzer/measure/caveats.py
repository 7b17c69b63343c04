"""Plain sentences about what limits the figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from analyzer.label.naming import named
from analyzer.measure.results import Coverage
from analyzer.model import FILE_ORDER, LabeledRank, Work

MAX_UNCLASSIFIED_PCT = 5.0
JITTER_NS = 100  # overlaps up to this are the recorder's, longer ones the hardware's


def compact(numbers: Iterable[int]) -> str:
    """Numbers as ranges: ``0-3, 6``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def coverage_caveats(coverage: Coverage) -> list[str]:
    """What is missing from, or was repaired in, the input."""
    found = []
    world_size = coverage.ranks_expected
    if world_size is not None and (missing := set(range(world_size)) - set(coverage.ranks_seen)):
        found.append(f"{len(missing)} of {world_size} ranks have no trace: {compact(missing)}")
    found += [f"{path} is cut off; complete events were kept" for path in coverage.truncated_inputs]
    found += [f"{left.path} was left out: {left.reason}" for left in coverage.missed_inputs]
    for what, counts in (
        ("dropped", coverage.dropped_events),
        ("repaired", coverage.repaired_events),
    ):
        if counts:
            listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
            found.append(f"events {what} on reading: {listed}")
    if (coverage.unclassified_pct or 0) > MAX_UNCLASSIFIED_PCT:
        found.append(
            f"{coverage.unclassified_pct:.1f} % of device time could not be classified "
            "and counts as compute"
        )
    if coverage.steps_total and not coverage.device_figures_ok:
        found.append(
            f"only {coverage.steps_with_device_events} of {coverage.steps_total} steps have device "
            "events: no device figures are given"
        )
    return found


def rank_caveats(ranks: Sequence[LabeledRank]) -> list[str]:
    """What is particular about how some ranks were recorded."""
    noted: dict[str, list[int]] = {}
    for rank in ranks:
        for note in (*rank.notes, *_recording(rank)):
            noted.setdefault(note, []).append(rank.trace.rank)
    everywhere = len(ranks)
    return [
        note if len(where) == everywhere else f"{note} (ranks {compact(where)})"
        for note, where in noted.items()
    ]


def _recording(rank: LabeledRank) -> list[str]:
    found = []
    if rank.trace.meta.rank_source == FILE_ORDER:
        found.append(
            "nothing tells the traces' ranks: they were numbered in the order of the files"
        )
    if rank.host_side:
        found.append("no device events: figures are host-side")
    if (
        rank.activity["graph_id"].drop_nulls().len()
        or named(rank.trace.launches, "GraphLaunch").height
    ):
        found.append("graph replay: gaps inside are not trustworthy")
    if not rank.host_side and _overlap_on_a_stream(rank.activity):
        found.append(
            "kernels overlap on one stream (programmatic dependent launch); their time counts once"
        )
    return found


def _overlap_on_a_stream(activity: pl.DataFrame) -> bool:
    """Whether a kernel starts well before its predecessor on the stream ends."""
    kernels = activity.filter(
        ~pl.col("work").cast(pl.String).is_in([Work.MEMCPY.value, Work.MEMSET.value])
    )
    reach = pl.col("end_ns").cum_max().shift(1).over("lane", "stream")
    early = reach - pl.col("start_ns") > JITTER_NS
    return bool(kernels.sort("start_ns").select(early.any()).item())
