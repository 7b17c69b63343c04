"""One device of one rank, ready to be measured: its windows and the unions of what runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from analyzer.intervals import IntArray, Intervals, clip, merge, subtract
from analyzer.model import UNKNOWN_AXIS, LabeledRank, RankTrace, Work, axis_sort_key
from analyzer.schema import Table, conform

COMM = (Work.COMM.value, Work.FUSED.value)
UNKNOWN_OP = "other"
PP_AXIS = "pp"
COPIES = (Work.MEMCPY.value, Work.MEMSET.value)


@dataclass(frozen=True)
class Lane:
    """The work and the step windows of one device.

    Attributes:
        trace: the rank's trace, for its host side.
        number: device index.
        host_side: the rank has no device events; its operators are the work.
        steps: schema.STEPS rows of this lane, by index.
        events: schema.ACTIVITY rows of this lane that touch its windows, by start.
        edges: window boundaries: step k is ``[edges[k], edges[k + 1])``.
        stage_waits: columns event, wait_ns: how long pipeline transfers wait for their peer; None
            where that is not known.
    """

    trace: RankTrace
    number: int
    host_side: bool
    steps: pl.DataFrame
    events: pl.DataFrame
    edges: IntArray
    stage_waits: pl.DataFrame | None = None

    @cached_property
    def compute(self) -> Intervals:
        """Instants at which anything but plain communication and copies runs.

        Kernels that fuse computing with communicating compute; a kernel that nothing could class
        is taken for compute too, so that it never inflates exposed communication.
        """
        return self._union(~pl.col("work").is_in([Work.COMM.value, *COPIES]))

    @cached_property
    def copies(self) -> Intervals:
        """Instants at which a copy or memset runs."""
        return self._union(pl.col("work").is_in(COPIES))

    @cached_property
    def comm(self) -> Mapping[str, Intervals]:
        """Per axis, in canonical order, the instants at which it communicates."""
        parts = self.communication.select("axis", "start_ns", "end_ns").partition_by(
            "axis", as_dict=True
        )
        unions = {str(axis): merge(p["start_ns"], p["end_ns"]) for (axis,), p in parts.items()}
        return {axis: unions[axis] for axis in sorted(unions, key=axis_sort_key)}

    @cached_property
    def stage_waiting(self) -> Intervals | None:
        """Instants at which pipeline transfers run and all of them wait for their peer."""
        if self.stage_waits is None or PP_AXIS not in self.comm:
            return None
        events = self.communication.filter(pl.col("axis") == PP_AXIS).join(
            self.stage_waits, on="event", how="left", maintain_order="left"
        )
        moving = events["start_ns"] + events["wait_ns"].fill_null(0)
        return subtract(self.comm[PP_AXIS], merge(moving, events["end_ns"]))

    @cached_property
    def communication(self) -> pl.DataFrame:
        """Communication events, the fused ones included; ``axis`` and ``op`` are never null."""
        return self.events.filter(pl.col("work").is_in(COMM)).with_columns(
            pl.col("name", "group", "phase", "range_name").cast(pl.String),
            pl.col("axis").cast(pl.String).fill_null(UNKNOWN_AXIS),
            pl.col("op").cast(pl.String).fill_null(UNKNOWN_OP),
        )

    @property
    def launched_kernels(self) -> pl.DataFrame:
        """Kernels whose launch the trace holds; none in host-side traces."""
        kernel = ~pl.col("work").is_in(COPIES) & pl.col("launch_ns").is_not_null()
        return self.events.clear() if self.host_side else self.events.filter(kernel)

    @cached_property
    def busy(self) -> Intervals:
        """Instants at which anything runs, inside the windows."""
        return clip(self._union(pl.lit(value=True)), int(self.edges[0]), int(self.edges[-1]))

    def window_of(self, times: IntArray) -> IntArray:
        """Step index of each time inside the windows; a boundary opens the later window."""
        return np.searchsorted(self.edges, times, side="right").astype(np.int64) - 1

    def keyed(self, rows: pl.DataFrame, table: Table) -> pl.DataFrame:
        """``rows`` with their ``step``, completed by rank, lane and kept to rows of ``table``."""
        kept = self.steps.select(pl.col("index").alias("step"), "kept")
        completed = rows.with_columns(
            pl.lit(self.trace.rank).alias("rank"),
            pl.lit(self.number).alias("lane"),
            pl.col("step").cast(pl.Int32),
        ).join(kept, on="step", how="left", maintain_order="left")
        return conform(completed, table)

    def _union(self, where: pl.Expr) -> Intervals:
        chosen = self.events.filter(where)
        return merge(chosen["start_ns"], chosen["end_ns"])


def lanes_of(rank: LabeledRank, stage_waits: pl.DataFrame | None = None) -> Iterator[Lane]:
    """The lanes of a rank that have step windows, by device index."""
    activity = rank.activity.with_columns(pl.col("work").cast(pl.String))
    for (number,), steps in rank.steps.sort("lane", "index").group_by("lane", maintain_order=True):
        starts = steps["start_ns"].to_numpy()
        edges = np.append(starts, steps["end_ns"][-1]).astype(np.int64)
        inside = (pl.col("start_ns") <= int(edges[-1])) & (pl.col("end_ns") >= int(edges[0]))
        events = activity.filter((pl.col("lane") == number) & inside).sort("start_ns")
        yield Lane(rank.trace, int(str(number)), rank.host_side, steps, events, edges, stage_waits)
