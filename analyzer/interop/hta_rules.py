"""HTA's figures by HTA's own conventions, computed from our tables in exact nanoseconds.

Each convention in which HTA differs from our definitions is one field of :class:`Rules`. With all
of them switched off :func:`figures` yields our own figures, with all of them on HTA's; the ones in
between tell which convention a difference comes from. The conventions were read from HTA 0.5.0
(``hta/common/trace.py``, ``trace_parser.py``, ``hta/analyzers/*``) and are stated here as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzer import intervals
from analyzer.intervals import Intervals
from analyzer.model import LabeledRank, RankTrace

Array: TypeAlias = NDArray[Any]

KERNEL_WAIT_US = 30
"""HTA's default ``consecutive_kernel_delay``: documented as 30 ns, compared with microseconds."""

_STEP_NUMBER = r"ProfilerStep\s*#\s*(\d+)"
_OUR_CLASS = {
    "compute": "COMPUTATION",
    "fused": "COMPUTATION",
    "unknown": "COMPUTATION",
    "comm": "COMMUNICATION",
    "memcpy": "MEMORY",
    "memset": "MEMORY",
    "kernel": "COMPUTATION",
}
"""model.Work (or, where nothing was labelled, schema.DEVICE.kind) in HTA's words."""


@dataclass(frozen=True, slots=True)
class Rules:
    """HTA's conventions; True applies one as HTA does, False follows our definitions."""

    drop_last_step: bool = True  # nothing launched at or after the last ProfilerStep's start counts
    linked_only: bool = True  # device events whose launch is not in the trace do not count
    kernel_window: bool = True  # from the first to the last event, instead of the steps
    by_name: bool = True  # compute, communication and copies are told by name patterns
    syncs_busy: bool = True  # cuda_sync waits on a stream are busy time
    host_ops: bool = True  # host operators that carry a ``stream`` argument are device work
    pooled_devices: bool = True  # all devices of one file are one
    whole_us_segments: bool = True  # communication time adds up segments cut to whole us
    whole_us: bool = False  # starts are rounded up and ends down to whole us (HTA's default)


OURS = Rules(*[False] * 9)
"""No convention of HTA's: our definitions."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What HTA says that its conventions depend on: its class of names, its stray host rows."""

    classes: Mapping[str, str] = field(default_factory=dict)
    host_rows: tuple[tuple[float, float, str], ...] = ()  # start us, duration us, name


@dataclass(frozen=True, slots=True)
class Subject:
    """One rank, prepared once and then measured under many :class:`Rules`.

    ``events``: one row a device event, sync or stray host operator, with columns start_ns, end_ns,
    device, stream, source (device, sync, host), ours and hta (class), launch_ns (of the last
    launch), linkable, launches and early_launches (number of launches with its correlation, and
    of those before HTA's cut). ``windows``: kept step windows per device.
    """

    events: pl.DataFrame
    windows: Mapping[int, Intervals]
    steps_kept: int
    steps_marked: int
    steps_before_cut: int
    cut_ns: int | None  # start of the last ProfilerStep; None where HTA does not filter
    base_ns: int


def prepare(rank: LabeledRank, answers: Answers) -> Subject:
    """Collect what the figures of one rank need."""
    trace = rank.trace
    marks = _step_marks(trace)
    # HTA filters only when it knows two or more steps. Device-side annotations are marks too, so
    # that the cut may lie behind the host's start of the last step.
    filters = marks["label"].n_unique() > 1
    cut_ns = int(marks["start_ns"].max()) if filters else None  # type: ignore[arg-type]
    launches = (
        trace.launches.drop_nulls("correlation")
        .group_by("correlation")
        .agg(
            launches=pl.len(),
            early_launches=(pl.col("start_ns") < (cut_ns or 0)).sum(),
            launch_ns=pl.col("start_ns").last(),
        )
    )
    events = (
        pl.concat([_device_rows(rank), _sync_rows(trace), _host_rows(trace, answers)])
        .join(launches, on="correlation", how="left")
        .with_columns(
            pl.col("launches", "early_launches").fill_null(0),
            linkable=pl.col("correlation").is_not_null(),
            hta=pl.col("name").replace_strict(
                dict(answers.classes), default=pl.col("ours"), return_dtype=pl.String
            ),
        )
        .drop("correlation", "name")
    )
    kept = rank.steps.filter("kept")
    windows = {
        lane: intervals.merge(rows["start_ns"], rows["end_ns"])
        for (lane,), rows in kept.group_by("lane")
    }
    early = marks.filter(pl.col("start_ns") < cut_ns) if filters else marks
    return Subject(
        events=events.sort("start_ns", "end_ns"),
        windows=windows,
        steps_kept=kept["index"].n_unique(),
        steps_marked=marks["label"].n_unique(),
        steps_before_cut=early["label"].n_unique(),
        cut_ns=cut_ns,
        base_ns=trace.meta.base_ns,
    )


def figures(subject: Subject, rules: Rules) -> dict[str, float | None]:
    """The rank's figures under the given conventions.

    Keys as in :mod:`analyzer.interop.hta_runner`; ``*_us`` in microseconds, ``*_pct`` in percent.
    A ratio without a denominator is None, and so are the idle causes under our own window: ours
    are of the device, HTA's of each stream, and not comparable.
    """
    events = _counted(subject, rules)
    parts = [_times(part, rules, subject.base_ns) for part in _parts(events, subject, rules)]
    total = {key: sum(part[key] for part in parts) for key in _TIMES}
    window, compute, idle = total["window"], total["compute"], total["idle"]
    times: dict[str, float | None] = {
        "window_us": window / 1000,
        "compute_us": compute / 1000,
        "non_compute_us": (window - compute - idle) / 1000,
        "idle_us": idle / 1000,
        "compute_pct": _percent(compute, window),
        "idle_pct": _percent(idle, window),
        "overlap_pct": _percent(total["overlap"], total["comm"]),
        "comm_us": total["segments"] / 1000,
    }
    steps: dict[str, float | None] = {"steps": _steps(subject, rules)}
    return steps | _counts(events, subject, rules) | times | _idle_causes(events, rules)


_TIMES = ("window", "compute", "idle", "comm", "overlap", "segments")
_COUNTED = {
    "compute_events": "COMPUTATION",
    "comm_events": "COMMUNICATION",
    "memory_events": "MEMORY",
}


def _step_marks(trace: RankTrace) -> pl.DataFrame:
    """ProfilerStep events of either side: label (its number), start_ns. Old traces have ops."""
    return pl.concat(
        table.select("start_ns", label=pl.col("name").cast(pl.String).str.extract(_STEP_NUMBER))
        for table in (trace.ranges, trace.ops)
    ).drop_nulls()


def _device_rows(rank: LabeledRank) -> pl.DataFrame:
    work = rank.activity.select("event", pl.col("work").cast(pl.String))
    return (
        rank.trace.device.join(work, on="event", how="left")
        .with_columns(ours=pl.coalesce("work", pl.col("kind").cast(pl.String)))
        .select(
            "start_ns", "end_ns", "device", "stream",
            source=pl.lit("device"),
            ours=pl.col("ours").replace_strict(_OUR_CLASS),
            name=pl.col("name").cast(pl.String),
            correlation="correlation",
        )
    )  # fmt: skip


def _sync_rows(trace: RankTrace) -> pl.DataFrame:
    return trace.syncs.filter(pl.col("stream") != -1).select(
        "start_ns", "end_ns",
        pl.lit(0, dtype=pl.Int32).alias("device"),
        "stream",
        source=pl.lit("sync"),
        ours=pl.lit("OTHER"),
        name=pl.col("name").cast(pl.String),
        correlation="correlation",
    )  # fmt: skip


def _host_rows(trace: RankTrace, answers: Answers) -> pl.DataFrame:
    start, duration, name = zip(*answers.host_rows, strict=True) if answers.host_rows else ([],) * 3
    ns = (pl.col("start") * 1000).round().cast(pl.Int64) + trace.meta.base_ns
    return pl.DataFrame(
        {"start": start, "duration": duration, "name": name},
        schema={"start": pl.Float64, "duration": pl.Float64, "name": pl.String},
    ).select(
        start_ns=ns,
        end_ns=ns + (pl.col("duration") * 1000).round().cast(pl.Int64),
        device=pl.lit(0, dtype=pl.Int32),
        stream=pl.lit(0, dtype=pl.Int64),
        source=pl.lit("host"),
        ours=pl.lit("OTHER"),
        name="name",
        correlation=pl.lit(None, dtype=pl.Int64),
    )


def _counted(subject: Subject, rules: Rules) -> pl.DataFrame:
    """Events that count under ``rules``, with ``class`` and ``copies``.

    HTA's filter is an inner join of device events with host events by correlation, so an event
    with two launches counts twice (in counts; unions of time do not change).
    """
    told = pl.col("hta" if rules.by_name else "ours")
    events = subject.events.with_columns(
        pl.when(pl.col("source") == "host").then("hta").otherwise(told).alias("class"),
        copies=pl.lit(1, dtype=pl.Int64),
    )
    keep = pl.col("source") == "device"
    if rules.syncs_busy:
        keep |= pl.col("source") == "sync"
    if rules.host_ops:
        keep |= pl.col("source") == "host"
    if subject.cut_ns is not None:
        launches = pl.col("early_launches" if rules.drop_last_step else "launches")
        in_time = pl.col("start_ns") < subject.cut_ns if rules.drop_last_step else pl.lit(True)
        orphan = pl.col("linkable") & (pl.col("launches") == 0)
        unlinked = ~pl.col("linkable") if rules.linked_only else ~pl.col("linkable") | orphan
        keep &= (pl.col("linkable") & (launches > 0)) | (unlinked & in_time)
        if rules.linked_only:
            events = events.with_columns(copies=pl.max_horizontal(launches, 1).cast(pl.Int64))
    events = events.filter(keep)
    if rules.whole_us:
        start = -((subject.base_ns - pl.col("start_ns")) // 1000) * 1000 + subject.base_ns
        end = (pl.col("end_ns") - subject.base_ns) // 1000 * 1000 + subject.base_ns
        events = events.with_columns(start_ns=start, end_ns=end)
    return events


def _counts(events: pl.DataFrame, subject: Subject, rules: Rules) -> dict[str, float | None]:
    """Events by class; under our own window those that start in a kept step."""
    if not rules.kernel_window:
        starts = events["start_ns"].to_numpy()
        inside = intervals.locate(starts, *_all_windows(subject)) >= 0
        events = events.filter(pl.Series(inside))
    copies = dict(events.group_by("class").agg(pl.col("copies").sum()).iter_rows())
    return {key: copies.get(name, 0) for key, name in _COUNTED.items()}


def _all_windows(subject: Subject) -> Intervals:
    windows = list(subject.windows.values())
    if not windows:
        return intervals.empty()
    starts, ends = zip(*windows, strict=True)
    return intervals.merge(np.concatenate(starts), np.concatenate(ends))


def _parts(
    events: pl.DataFrame, subject: Subject, rules: Rules
) -> list[tuple[pl.DataFrame, Intervals]]:
    """What is measured on its own: one part, or one a device, with its step windows."""
    if rules.pooled_devices:
        return [(events, _all_windows(subject))]
    return [
        (events.filter(pl.col("device") == device), subject.windows.get(device, intervals.empty()))
        for device in sorted(set(events["device"]) | set(subject.windows))
    ]


def _times(part: tuple[pl.DataFrame, Intervals], rules: Rules, base_ns: int) -> dict[str, int]:
    """Nanoseconds of one part: window, compute, idle, comm, overlap, segments."""
    events, windows = part
    if not rules.kernel_window:
        events = _clipped(events, windows)
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    if starts.size == 0:
        window = 0 if rules.kernel_window else intervals.total(windows)
        return dict.fromkeys(_TIMES, 0) | {"window": window, "idle": window}
    kinds = events["class"].to_numpy()

    def union(*classes: str) -> Intervals:
        chosen = np.isin(kinds, classes) if classes else np.ones(kinds.size, dtype=bool)
        if rules.whole_us:  # rounding leaves HTA with negative durations
            return Intervals(*_groups(starts[chosen], ends[chosen]))
        return intervals.merge(starts[chosen], ends[chosen])

    compute, comm = union("COMPUTATION"), union("COMMUNICATION")
    window = int(ends.max() - starts.min())
    if not rules.kernel_window:
        window = intervals.total(windows)
    whole = rules.whole_us_segments
    return {
        "window": window,
        "compute": intervals.total(compute),
        "idle": window - intervals.total(union()),
        "comm": intervals.total(comm),
        "overlap": intervals.total(intervals.intersect(comm, compute)),
        "segments": _segments(events, base_ns) if whole else intervals.total(comm),
    }


def _clipped(events: pl.DataFrame, windows: Intervals) -> pl.DataFrame:
    """The parts of events that lie in a window (windows are few: steps in a row are one)."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    parts = [
        events.filter((start < hi) & (end > lo)).with_columns(start.clip(lo), end.clip(None, hi))
        for lo, hi in zip(windows.starts.tolist(), windows.ends.tolist(), strict=True)
    ]
    return pl.concat(parts) if parts else events.clear()


def _segments(events: pl.DataFrame, base_ns: int) -> int:
    """Communication time as ``get_gpu_kernel_breakdown`` adds it up, in ns.

    Time is cut at every boundary of the compute, communication and memory unions, and each piece to
    whole us. The unions are HTA's, in float64 us: an end is start + duration, rounded, so that a
    kernel that touches the next one can leave a gap, which is one cut more.
    """
    first = (int(events["start_ns"].min()) - base_ns) / 1000  # type: ignore[arg-type]
    starts = (events["start_ns"].to_numpy() - base_ns) / 1000 - first
    ends = starts + (events["end_ns"] - events["start_ns"]).to_numpy() / 1000
    kinds = events["class"].to_numpy()
    unions = [_groups(starts[kinds == kind], ends[kinds == kind]) for kind in _COUNTED.values()]
    comm_starts, comm_ends = unions[1]
    bounds = np.sort(np.concatenate([edge for union in unions for edge in union]))
    at = bounds[:-1]
    begun = np.searchsorted(comm_starts, at, side="right")
    active = begun > np.searchsorted(comm_ends, at, side="right")
    return int(np.sum(np.floor(np.diff(bounds)[active]))) * 1000


def _groups(starts: Array, ends: Array) -> tuple[Array, Array]:
    """HTA's ``merge_kernel_intervals``: events of negative length stay, and count as such."""
    if starts.size == 0:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    behind = starts[1:] > np.maximum.accumulate(ends)[:-1]
    opens = np.flatnonzero(np.concatenate(([True], behind)))
    return starts[opens], np.maximum.reduceat(ends, opens)


def _idle_causes(events: pl.DataFrame, rules: Rules) -> dict[str, float | None]:
    """Gaps between neighbours on each stream by HTA's three causes, summed over streams.

    A gap is ``host_wait`` when the call that launched its end began after the gap did, else
    ``kernel_wait`` when shorter than :data:`KERNEL_WAIT_US`, else ``other``. Neighbours that
    overlap make a negative gap, which counts.
    """
    causes = ("host_wait", "kernel_wait", "other")
    if not rules.kernel_window:
        return {f"{cause}_us": None for cause in causes}
    before = pl.col("end_ns").shift(1).over("stream")
    gaps = (
        events.filter(pl.col("source") == "device")
        .with_columns(gap=pl.col("start_ns") - before, late=pl.col("launch_ns") > before)
        .drop_nulls("gap")
        .with_columns(
            cause=pl.when("late")
            .then(pl.lit("host_wait"))
            .when(pl.col("gap") < KERNEL_WAIT_US * 1000)
            .then(pl.lit("kernel_wait"))
            .otherwise(pl.lit("other"))
        )
    )
    sums = dict(gaps.group_by("cause").agg(pl.col("gap").sum()).iter_rows())
    return {f"{cause}_us": sums.get(cause, 0) / 1000 for cause in causes}


def _steps(subject: Subject, rules: Rules) -> int:
    if not rules.kernel_window:
        return subject.steps_kept
    return subject.steps_before_cut if rules.drop_last_step else subject.steps_marked


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
