"""The timeline: which slices of the trace a report shows, and of what class each is.

Choosing happens here so that it is the same whatever draws it. Nothing is thinned silently:
whole (rank, step) windows are shown or left out, and :meth:`Timeline.summary` says which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer import intervals
from analyzer.model import Work

DEFAULT_CAP = 300_000
"""Device events shown at most: about 2 MB of report and a second to draw. Lost-time rows, which are
derived from them, come on top."""

COMPUTE_WORK = (Work.COMPUTE, Work.FUSED, Work.UNKNOWN)
"""Work that hides communication (definitions: where the time goes)."""

SLICES: Mapping[str, str] = {
    "lane": "Index into Timeline.lanes.",
    "start_ns": "Start, from the start of the rank's first step window.",
    "dur_ns": "Duration.",
    "name": "Event name.",
    "work": "model.Work, or exposed or idle on the summary lane of a device.",
    "axis": "Axis of comm, fused and exposed slices; null else.",
    "op": "Canonical collective; null else.",
    "bytes": "Message size; null where unknown or not a collective.",
    "exposed_ns": "Part of a comm slice during which no compute runs; null else.",
    "step": "Step index.",
}
"""Columns of Timeline.slices, sorted by (lane, start_ns)."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: a stream of a device, or the device's summary row (what counts as lost)."""

    rank: int
    device: int
    label: str
    summary: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """A step of one rank and device that is shown."""

    rank: int
    device: int
    step: int
    label: str
    start_ns: int  # from the start of the rank's first step window
    end_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is shown. ``slices`` has the columns of :data:`SLICES`."""

    lanes: tuple[Lane, ...]
    windows: tuple[Window, ...]
    slices: pl.DataFrame
    windows_total: int
    left_out: str  # one sentence; empty when everything is shown
    default: tuple[int, int] | None = None  # (rank, step) to open with

    def summary(self) -> dict[str, Any]:
        """What the result document says about the timeline."""
        return {
            "slices": self.slices.height,
            "ranks": sorted({w.rank for w in self.windows}),
            "windows_shown": len(self.windows),
            "windows_total": self.windows_total,
            "left_out": self.left_out,
        }


def build_timeline(
    activity: Mapping[int, pl.DataFrame],
    steps: pl.DataFrame,
    budget: pl.DataFrame,
    *,
    origin_ns: Mapping[int, int],
    wanted: Collection[tuple[int, int]] = (),
    cap: int = DEFAULT_CAP,
) -> Timeline:
    """Choose windows up to ``cap`` device events and collect their slices.

    Windows are taken in this order while they fit: the median step of the rank with the most
    exposed communication, the median step of the median rank, the ``wanted`` ones, the median step
    of every other rank, then all other kept steps. Without a kept step, steps that have device
    events are shown.

    Args:
        activity: rank -> schema.ACTIVITY.
        steps: schema.STEPS with a leading ``rank`` column.
        budget: schema.BUDGET.
        origin_ns: rank -> time that the rank's slices are relative to.
        wanted: (rank, step) pairs that evidence points at.
        cap: the most device events to show; at least one window is always shown.
    """
    candidates = _candidates(activity, steps, budget)
    order = _priority(candidates, wanted)
    chosen = _fill(candidates, order, cap)
    lanes: list[Lane] = []
    parts = [_no_slices()]
    for rank in sorted({rank for rank, _ in chosen}):
        shown = [step for of, step in chosen if of == rank]
        windows = steps.filter((pl.col("rank") == rank) & pl.col("index").is_in(shown))
        for lane, slices in _rank_lanes(rank, activity[rank], windows):
            index = pl.lit(len(lanes), dtype=pl.Int32).alias("lane")
            parts.append(slices.with_columns(index, pl.col("start_ns") - origin_ns[rank]))
            lanes.append(lane)
    return Timeline(
        lanes=tuple(lanes),
        windows=_windows(steps, chosen, origin_ns),
        slices=pl.concat(parts),
        windows_total=candidates.height,
        left_out=_left_out(candidates, chosen, cap),
        default=order[0] if order else None,
    )


def _candidates(
    activity: Mapping[int, pl.DataFrame], steps: pl.DataFrame, budget: pl.DataFrame
) -> pl.DataFrame:
    """One row per (rank, step) that may be shown: slices, exposed share, distance to median."""
    usable = steps.filter("kept")
    if usable.is_empty():
        usable = steps.filter(pl.col("device_events") > 0)
    counts = [
        frame.filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(pl.len().alias("slices"))
        .select(pl.lit(rank, dtype=pl.Int32).alias("rank"), "step", "slices")
        for rank, frame in activity.items()
    ]
    if not counts or usable.is_empty():
        return pl.DataFrame(
            schema={"rank": pl.Int32, "step": pl.Int32, "slices": pl.UInt32, "exposed": pl.Float64,
                    "off_median": pl.Float64}
        )  # fmt: skip
    exposed = budget.group_by("rank", "step").agg(
        pl.col("ns").filter(pl.col("state").cast(pl.String) == "exposed_comm").sum().alias("lost")
    )
    time = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time")
    rows = (
        usable.group_by("rank", pl.col("index").alias("step"))
        .agg(time)
        .join(pl.concat(counts), on=["rank", "step"])
        .join(exposed, on=["rank", "step"], how="left")
    )
    share = pl.col("lost").fill_null(0) / pl.col("time").clip(lower_bound=1)
    return rows.select(
        "rank",
        "step",
        "slices",
        share.mean().over("rank").alias("exposed"),
        (pl.col("time") - pl.col("time").median().over("rank")).abs().alias("off_median"),
    ).sort("rank", "step")


def _priority(
    candidates: pl.DataFrame, wanted: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    medians = (
        candidates.sort("off_median", "step")
        .group_by("rank", maintain_order=True)
        .first()
        .sort("exposed", "rank", descending=[True, False])
    )
    typical = list(medians.select("rank", "step").iter_rows())
    first = [*typical[:1], *typical[len(typical) // 2 :][:1]]
    everything = list(candidates.select("rank", "step").iter_rows())
    known = set(everything)
    order = [*first, *(pair for pair in sorted(wanted) if pair in known), *typical, *everything]
    return list(dict.fromkeys(order))


def _fill(candidates: pl.DataFrame, order: list[tuple[int, int]], cap: int) -> set[tuple[int, int]]:
    rows = candidates.select("rank", "step", "slices").iter_rows()
    size = {(rank, step): count for rank, step, count in rows}
    chosen: set[tuple[int, int]] = set()
    used = 0
    for pair in order:
        if not chosen or used + size[pair] <= cap:
            chosen.add(pair)
            used += size[pair]
    return chosen


def _left_out(candidates: pl.DataFrame, chosen: set[tuple[int, int]], cap: int) -> str:
    missing = candidates.height - len(chosen)
    if not missing:
        return ""
    ranks = candidates["rank"].n_unique()
    shown = len({rank for rank, _ in chosen})
    return (
        f"{missing} of {candidates.height} steps are not in the timeline, which holds at most "
        f"{cap:,} device events. It shows {shown} of {ranks} ranks: the median step of the rank "
        "with the most exposed communication, of the median rank, then of the others. "
        "All figures and tables cover every kept step and rank."
    )


def _windows(
    steps: pl.DataFrame, chosen: set[tuple[int, int]], origin_ns: Mapping[int, int]
) -> tuple[Window, ...]:
    columns = ["rank", "lane", "index", pl.col("label").cast(pl.String), "start_ns", "end_ns"]
    return tuple(
        Window(rank, device, step, label, start - origin_ns[rank], end - origin_ns[rank])
        for rank, device, step, label, start, end in steps.select(columns)
        .sort("rank", "lane", "index")
        .iter_rows()
        if (rank, step) in chosen
    )


def _no_slices() -> pl.DataFrame:
    numbers = dict.fromkeys(("start_ns", "dur_ns", "bytes", "exposed_ns"), pl.Int64)
    types: dict[str, Any] = dict.fromkeys(SLICES, pl.String)
    return pl.DataFrame(schema=types | numbers | {"lane": pl.Int32, "step": pl.Int32})


def _rank_lanes(
    rank: int, activity: pl.DataFrame, windows: pl.DataFrame
) -> Iterator[tuple[Lane, pl.DataFrame]]:
    """Each lane of a rank with its slices, times still absolute; lost time before the streams."""
    events = activity.with_columns(pl.col("work", "axis", "op", "name").cast(pl.String))
    devices = events["lane"].unique().sort().to_list()
    shown = windows["index"].unique().to_list()
    for device in devices:
        prefix = f"device {device} " if len(devices) > 1 else ""
        # Unions are taken over all events, also those of steps not shown that reach into a window.
        of_device = events.filter(pl.col("lane") == device)
        hiding = _union(of_device.filter(pl.col("work").is_in(COMPUTE_WORK)))
        lost = _lost_time(of_device, hiding, windows.filter(pl.col("lane") == device))
        yield Lane(rank, device, f"{prefix}lost time", summary=True), lost
        for stream, part in _streams(of_device.filter(pl.col("step").is_in(shown))):
            label = f"{prefix}{_stream_label(stream, part)}"
            yield Lane(rank, device, label), _stream_slices(part, hiding)


def _union(events: pl.DataFrame) -> intervals.Intervals:
    return intervals.merge(events["start_ns"].to_numpy(), events["end_ns"].to_numpy())


def _streams(events: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """Streams: those that compute first, then by how long they are busy."""

    def key(item: tuple[int, pl.DataFrame]) -> tuple[int, int, int]:
        stream, frame = item
        busy = frame["end_ns"] - frame["start_ns"]
        computing = int(busy.filter(frame["work"].is_in(COMPUTE_WORK)).sum())
        return (-computing, -int(busy.sum()), stream)

    groups = events.partition_by("stream", as_dict=True, maintain_order=True)
    return sorted(((int(stream), frame) for (stream,), frame in groups.items()), key=key)


def _stream_label(stream: int, events: pl.DataFrame) -> str:
    """What mostly runs on the stream: its communication axes, else compute or copies."""
    busy = (
        events.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
        .group_by("work")
        .agg(pl.col("ns").sum(), pl.col("axis").drop_nulls().unique().sort())
        .sort("ns", "work", descending=[True, False])
    )
    work, _, axes = busy.row(0)
    if work == Work.COMM:
        what = " ".join(axes[:2]) or "comm"
    else:
        what = "copies" if work in (Work.MEMCPY, Work.MEMSET) else "compute"
    return f"{what} · {stream}"


def _stream_slices(events: pl.DataFrame, hiding: intervals.Intervals) -> pl.DataFrame:
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    exposed = pl.Series("exposed", ends - starts - intervals.overlap(starts, ends, hiding))
    return events.select(
        pl.lit(0, dtype=pl.Int32).alias("lane"),
        "start_ns",
        (pl.col("end_ns") - pl.col("start_ns")).alias("dur_ns"),
        "name",
        "work",
        "axis",
        "op",
        pl.col("message_bytes").alias("bytes"),
        pl.when(pl.col("work") == Work.COMM).then(exposed).alias("exposed_ns"),
        "step",
    ).sort("start_ns", "dur_ns", descending=[False, True])


def _lost_time(
    events: pl.DataFrame, hiding: intervals.Intervals, windows: pl.DataFrame
) -> pl.DataFrame:
    """A device's losses: exposed communication per axis, and idle time, as slices of their own."""
    busy = _union(events)
    axes = events.filter(pl.col("work") == Work.COMM).partition_by("axis", as_dict=True)
    exposed = {str(axis): intervals.subtract(_union(e), hiding) for (axis,), e in axes.items()}
    parts = [_no_slices()]
    for step, lo, hi in windows.select("index", "start_ns", "end_ns").iter_rows():
        parts.append(_spans(intervals.gaps(busy, lo, hi), "idle", None, step))
        for axis, spans in exposed.items():
            parts.append(_spans(intervals.clip(spans, lo, hi), "exposed", axis, step))
    return pl.concat(parts).sort("start_ns", "dur_ns", descending=[False, True])


def _spans(union: intervals.Intervals, work: str, axis: str | None, step: int) -> pl.DataFrame:
    constants = {
        "name": work if axis is None else f"{work} {axis}",
        "work": work,
        "axis": axis,
        "step": step,
    }
    columns = {"start_ns": union.starts, "dur_ns": union.ends - union.starts}
    frame = pl.DataFrame(columns).with_columns(pl.lit(v).alias(k) for k, v in constants.items())
    return pl.concat([_no_slices(), frame.cast({"step": pl.Int32})], how="diagonal_relaxed")
