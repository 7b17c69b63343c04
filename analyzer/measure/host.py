"""The host side of a step: what it waits for and how far ahead of the device it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from analyzer import intervals, schema
from analyzer.intervals import IntArray, Intervals
from analyzer.label.naming import host_ranges, named
from analyzer.measure.lane import Lane
from analyzer.model import RankTrace

DATA_RANGE = r"(?i)dataloader|\bdata[ _.-]?load(ing|er)?\b|\bget_batch\b|\bnext_batch\b"
BLOCKING_CALL = (
    r"Synchronize"  # cuda, hip, cu, aclrt, ze: Stream, Device, Event, Context
    r"|^(cuda|hip|musa)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|DtoH|HtoD|DtoD)?$"
    r"|^hipMemcpyWithStream$|^(pi|ur)(EventsWait|EventWait|QueueFinish)$"
)
COPY_CALL = r"Memcpy\w*Async"
ITEM_OP = r"^aten::_local_scalar_dense$"  # what Tensor.item() calls
PAGEABLE_READ = r"DtoH.*Pageable|DtoH.*Host\)"
ANY_THREAD = -1


@dataclass(frozen=True)
class HostWaits:
    """When the host of one rank waits.

    Attributes:
        data: time in data-loading ranges, on any thread.
        calls: blocking synchronisations: start_ns, end_ns, tid.
    """

    data: Intervals
    calls: pl.DataFrame

    @classmethod
    def of(cls, trace: RankTrace) -> HostWaits:
        """Collect the waits of a rank's host."""
        loading = host_ranges(trace, DATA_RANGE)
        return cls(intervals.merge(loading["start_ns"], loading["end_ns"]), blocking_calls(trace))

    def sync(self, thread: int) -> Intervals:
        """When ``thread`` is blocked; any thread for :data:`ANY_THREAD`."""
        return self._by_thread.get(thread, intervals.empty())

    @cached_property
    def _by_thread(self) -> dict[int, Intervals]:
        unions = {ANY_THREAD: intervals.merge(self.calls["start_ns"], self.calls["end_ns"])}
        for (thread,), rows in self.calls.drop_nulls("tid").group_by("tid"):
            unions[int(str(thread))] = intervals.merge(rows["start_ns"], rows["end_ns"])
        return unions


def blocking_calls(trace: RankTrace) -> pl.DataFrame:
    """Host calls that wait for the device: columns start_ns, end_ns, tid, by start.

    Synchronisations and blocking copies by name; asynchronous copies that read into pageable memory
    or are made for ``Tensor.item()``, which wait as well; and, in traces without runtime calls,
    the ``item()`` operators themselves (with runtime calls, an ``item()`` that makes none read a
    host tensor and did not wait). Without a device there is nothing to wait for.
    """
    columns = ["start_ns", "end_ns", "tid"]
    items = named(trace.ops, ITEM_OP)
    if trace.device.is_empty():
        return items.clear().select(columns)
    if trace.launches.is_empty():
        return items.select(columns).sort("start_ns")
    named_calls = named(trace.launches, BLOCKING_CALL)
    copies = named(trace.launches, COPY_CALL)
    reads = named(trace.device, PAGEABLE_READ).select("correlation").drop_nulls().unique()
    waiting = copies.filter(_inside(copies, items)).vstack(
        copies.join(reads, on="correlation", how="semi")
    )
    return pl.concat([named_calls, waiting]).select(columns).unique().sort("start_ns")


def _inside(calls: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Whether each call begins inside one of the ops on its own thread."""
    inside = np.zeros(calls.height, dtype=bool)
    threads = calls["tid"].fill_null(ANY_THREAD).to_numpy()
    starts = calls["start_ns"].to_numpy()
    for (thread,), rows in ops.drop_nulls("tid").group_by("tid"):
        union = intervals.merge(rows["start_ns"], rows["end_ns"])
        here = np.flatnonzero(threads == thread)
        inside[here] = intervals.locate(starts[here], union.starts, union.ends) >= 0
    return pl.Series(inside)


def host_step(lane: Lane, waits: HostWaits, drain: IntArray) -> pl.DataFrame:
    """schema.HOST_STEP of a lane.

    A call counts in the step whose host-side range it begins in, or whose window where there are no
    such ranges. ``launches`` are distinct launch calls of kernels: a replayed graph is one.

    Args:
        lane: the device.
        waits: of its rank's host.
        drain: drained idle time a step (:func:`analyzer.measure.idle.drain_by_step`).
    """
    steps = lane.steps.select(
        pl.col("index").alias("step"),
        pl.coalesce("host_start_ns", "start_ns").alias("lo"),
        pl.coalesce("host_end_ns", "end_ns").alias("hi"),
    )
    starts = waits.calls["start_ns"].to_numpy()
    lo, hi = steps["lo"].to_numpy(), steps["hi"].to_numpy()
    calls = np.searchsorted(starts, hi) - np.searchsorted(starts, lo)
    blocked = intervals.overlap(lo, hi, waits.sync(ANY_THREAD))
    kernels = lane.launched_kernels.group_by("step").agg(
        pl.col("launch_ns").n_unique().cast(pl.Int64).alias("launches"),
        (pl.col("start_ns") - pl.col("launch_ns")).median().cast(pl.Int64).alias("lead"),
    )
    rows = (
        steps.with_columns(
            pl.Series("sync_calls", np.maximum(calls, 0)),
            pl.Series("sync_ns", blocked),
            pl.Series("drain_ns", drain),
        )
        .join(kernels, on="step", how="left", maintain_order="left")
        .with_columns(pl.col("launches").fill_null(0), pl.col("lead").alias("median_lead_ns"))
    )
    return lane.keyed(rows, schema.HOST_STEP)
