"""Where training steps begin and end, from the best anchor a trace holds.

Anchors, best first: ``ProfilerStep#N`` ranges on the host, the same on device tracks, the
collector's step ranges, optimizer ranges, a repeating sequence of collectives, the whole trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from analyzer import intervals
from analyzer.intervals import IntArray
from analyzer.label.naming import device_ranges, host_ranges, named
from analyzer.model import RankTrace

PROFILER_STEP = r"^ProfilerStep(#\d+|\*)?$"
OWN_STEP = r"^(analyzer|meshscope)\.step\b"
OPTIMIZER_STEP = r"^Optimizer\.step#|\boptimizer_step\b"
BACKWARD_NODE = r"^autograd::engine::evaluate_function"

WHOLE_TRACE = "whole trace"
BEFORE_ALL = -(2**62)
AFTER_ALL = 2**62


@dataclass(frozen=True, slots=True)
class Markers:
    """Step ranges of one rank: sorted, not overlapping, on one clock.

    Attributes:
        starts, ends: where each step begins and ends, ns.
        labels: as the trace names them.
        source: which anchor they come from.
        on_device: the times are of device work, not of its launches.
        is_window: the ranges are what the host called a step, so that the time in them in which no
            device works counts; else only device events bound the windows.
        cut_off: the last range has no end of its own: the capture ended inside it.
        notes: what a reader must know about the anchor, none for the regular one.
    """

    starts: IntArray
    ends: IntArray
    labels: tuple[str, ...]
    source: str
    on_device: bool = False
    is_window: bool = False
    cut_off: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.starts.size

    def locate(self, times: IntArray) -> IntArray:
        """Step of each time: the last one begun, -1 before the first and behind the last end.

        Time between two ranges belongs to the earlier step: the loop has not begun the next.
        """
        step: IntArray = np.searchsorted(self.starts, times, side="right").astype(np.int64) - 1
        step[times >= self.ends[-1]] = -1
        return step


def find_markers(trace: RankTrace, activity: pl.DataFrame) -> Markers:
    """The steps of one rank by the best anchor present (module docstring)."""
    attempts: tuple[Callable[[], Markers | None], ...] = (
        partial(_profiler_steps, trace),
        partial(_device_steps, trace),
        partial(_own_steps, trace),
        partial(_optimizer_steps, trace, activity),
        partial(_collective_steps, activity),
    )
    for attempt in attempts:
        markers = attempt()
        if markers is not None:
            return markers
    return Markers(
        np.array([BEFORE_ALL]),
        np.array([AFTER_ALL]),
        (WHOLE_TRACE,),
        WHOLE_TRACE,
        notes=(
            "no step markers, optimizer ranges or repeating collectives: "
            "the whole trace counts as one step",
        ),
    )


def _instances(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges of one name that overlap are one range seen twice (threads, duplicated events)."""
    reach = pl.col("end_ns").cum_max().shift(1).over("name")
    return (
        ranges.sort("name", "start_ns")
        .with_columns(
            (pl.col("start_ns") >= reach).fill_null(value=True).cum_sum().alias("instance")
        )
        .group_by("name", "instance")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns", "end_ns")
    )


def _outermost(found: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Markers that lie inside no other one, and a note where some do.

    A marker inside another would end it early and take what follows for the step between.
    """
    ordered = found.sort("start_ns", "end_ns", descending=[False, True])
    reach = pl.col("end_ns").cum_max().shift(1)
    inner = ((pl.col("start_ns") < reach) & (pl.col("end_ns") <= reach)).fill_null(value=False)
    outer = ordered.filter(~inner)
    lost = ordered.height - outer.height
    if not lost:
        return outer, ()
    what = "1 step marker lies" if lost == 1 else f"{lost} step markers lie"
    return outer, (f"{what} inside another one and {'was' if lost == 1 else 'were'} ignored",)


def _disjoint(starts: IntArray, ends: IntArray) -> IntArray:
    """Ends cut at the next start: with stacks recorded, consecutive ranges may intersect."""
    cut: IntArray = np.minimum(ends, np.append(starts[1:], AFTER_ALL))
    return cut


def _from_ranges(found: pl.DataFrame) -> tuple[IntArray, IntArray]:
    starts = found["start_ns"].to_numpy().astype(np.int64)
    return starts, _disjoint(starts, found["end_ns"].to_numpy().astype(np.int64))


def _profiler_steps(trace: RankTrace) -> Markers | None:
    ranges = host_ranges(trace, PROFILER_STEP)
    if ranges.is_empty():
        return None
    found, notes = _outermost(_instances(ranges))
    starts, ends = _from_ranges(found)
    labels = tuple(found["name"])
    return Markers(starts, ends, labels, "ProfilerStep", is_window=True, notes=notes)


def _device_steps(trace: RankTrace) -> Markers | None:
    """Every stream and device repeats the annotation: one name is one step."""
    found = (
        device_ranges(trace, PROFILER_STEP)
        .group_by("name")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns", "end_ns")
    )
    if found.is_empty():
        return None
    starts, ends = _from_ranges(found)
    note = "no host-side step markers: steps come from the annotations on device tracks"
    labels = tuple(found["name"])
    return Markers(starts, ends, labels, "device annotation", on_device=True, notes=(note,))


def _own_steps(trace: RankTrace) -> Markers | None:
    ranges = host_ranges(trace, OWN_STEP)
    if ranges.is_empty():
        return None
    found, notes = _outermost(_instances(ranges))
    starts, ends = _from_ranges(found)
    labels = _numbered(starts.size)
    return Markers(starts, ends, labels, "step range", is_window=True, notes=notes)


def _optimizer_steps(trace: RankTrace, activity: pl.DataFrame) -> Markers | None:
    """A step ends where its optimizer ends.

    Several optimizers belong to one step unless a backward node ran between them.
    """
    ranges = host_ranges(trace, OPTIMIZER_STEP)
    if ranges.is_empty():
        return None
    runs = intervals.merge(ranges["start_ns"], ranges["end_ns"])
    backward = np.sort(named(trace.ops, BACKWARD_NODE)["start_ns"].to_numpy())
    closes = np.ones(runs.starts.size, dtype=bool)
    if backward.size:
        closes[:-1] = np.diff(np.searchsorted(backward, runs.starts)) > 0
    ends = runs.ends[closes]
    work = activity.select(pl.coalesce("launch_ns", "start_ns")).to_series().to_numpy()
    starts = np.concatenate(([work.min(initial=ends[0])], ends))
    cut_off = bool(work.max(initial=ends[-1]) > ends[-1])
    ends = np.append(ends, AFTER_ALL)
    if not cut_off:
        starts, ends = starts[:-1], ends[:-1]
    note = "no step markers: a step ends where the optimizer ends"
    return Markers(
        starts, ends, _numbered(starts.size), "optimizer", cut_off=cut_off, notes=(note,)
    )


def _collective_steps(activity: pl.DataFrame) -> Markers | None:
    """The period of the sequence of collectives, each known by (op, group, size).

    Needs the period seen twice and more than one kind of collective: a run of equal ones repeats
    with every layer and says nothing about steps.
    """
    comm = activity.filter(pl.col("work").cast(pl.String).is_in(["comm", "fused"]))
    if comm.is_empty():
        return None
    lane = comm["lane"].value_counts(sort=True)["lane"][0]
    time = "start_ns" if comm["launch_ns"].null_count() else "launch_ns"
    comm = comm.filter(pl.col("lane") == lane).sort(time)
    token = pl.struct(pl.col("op", "group").cast(pl.String), "message_bytes").rank("dense")
    period = _period(comm.select(token).to_series().to_numpy().astype(np.int64))
    if period is None:
        return None
    times = comm[time].to_numpy().astype(np.int64)
    starts = times[::period]
    ends = np.append(starts[1:], AFTER_ALL)
    starts[0] = BEFORE_ALL
    return Markers(
        starts, ends, _numbered(starts.size), "collective",
        on_device=time == "start_ns",
        cut_off=bool(times.size % period),
        notes=(
            f"no step markers: steps are one period of {period} repeating collectives; where in "
            "the training step a period begins is not known, and it may be one micro-batch",
        ),
    )  # fmt: skip


def _period(tokens: IntArray) -> int | None:
    """Smallest p with ``tokens[i] == tokens[i + p]`` throughout and seen twice, else None."""
    kinds, counts = np.unique(tokens, return_counts=True)
    if kinds.size < 2:
        return None
    rarest = np.flatnonzero(tokens == kinds[np.argmin(counts)])
    for candidate in (rarest - rarest[0])[1:65]:  # a period maps every occurrence onto another
        p = int(candidate)
        if 2 * p <= tokens.size and np.array_equal(tokens[p:], tokens[:-p]):
            return p
    return None


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"step {k}" for k in range(count))
