"""Phases: forward, backward or optimizer, from where on the host an event was launched.

Explicit evidence first, by what the launching thread was inside of at the launch:

1. an optimizer range: optimizer;
2. an autograd node, a ``...Backward`` operator, an FSDP backward hook or a range that names a
   backward pass (pipeline actions B, I, W): backward; so is everything on the autograd thread;
3. a range that names a forward pass: forward.

What is left is placed by its step: launched before the step's last backward launch it is forward
(the thread that called ``backward()`` launches nothing while it runs), between that and the
optimizer it is the optimizer's (gradient clipping and its norm), else unknown.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer import intervals
from analyzer.intervals import Intervals
from analyzer.label.markers import BACKWARD_NODE, OPTIMIZER_STEP, OWN_STEP, PROFILER_STEP
from analyzer.label.naming import host_ranges, named
from analyzer.model import Phase, RankTrace

OPTIMIZER_RANGE = rf"{OPTIMIZER_STEP}|^Optimizer\.zero_grad#"
BACKWARD_OP = rf"{BACKWARD_NODE}|Backwards?\d*$"
BACKWARD_RANGE = (
    r"^FSDP::(root_)?(pre_backward|post_backward|backward_prefetch)"
    r"|^FullyShardedDataParallel\._(pre|post)_backward"
    r"|\((B|W)\)$|^Backward \d+$|^PP:\d+(B|I|W)\d*$"
)
FORWARD_RANGE = r"\(F\)$|^Forward \d+$|^PP:\d+F\d*$|^DistributedDataParallel\.forward$"


def assign_phases(trace: RankTrace, activity: pl.DataFrame) -> pl.DataFrame:
    """``activity`` with its ``phase`` filled (module docstring).

    Args:
        trace: the rank's trace: its ops and host ranges are the evidence.
        activity: schema.ACTIVITY with ``step`` filled. Rows without a launch time keep "unknown",
            except in host-side traces, where an operator is its own launch.
    """
    at_ns, tid = "launch_ns", "launch_tid"
    if trace.device.is_empty():
        activity = activity.with_columns(
            pl.coalesce("launch_ns", "start_ns").alias("_at"),
            pl.coalesce("launch_tid", "stream").alias("_tid"),
        )
        at_ns, tid = "_at", "_tid"
    explicit = _explicit(trace, activity[at_ns], activity[tid])
    placed = activity.with_columns(explicit).with_columns(_by_place(pl.col(at_ns)))
    return placed.select(activity.columns).drop("_at", "_tid", strict=False)


def _by_place(at: pl.Expr) -> pl.Expr:
    """Explicit phases stay; the others go by their place in the step."""
    phase = pl.col("phase")
    last_backward = at.filter(phase == Phase.BACKWARD).max().over("step")
    last_optimizer = at.filter(phase == Phase.OPTIMIZER).max().over("step")
    return (
        pl.when((phase != Phase.UNKNOWN) | (pl.col("step") < 0))
        .then(phase)
        .when(at < last_backward)
        .then(pl.lit(Phase.FORWARD.value))
        .when((at > last_backward) & (at < last_optimizer))
        .then(pl.lit(Phase.OPTIMIZER.value))
        .otherwise(phase)
        .alias("phase")
    )


def _explicit(trace: RankTrace, at: pl.Series, tid: pl.Series) -> pl.Series:
    """Phase of every launch by the host interval around it."""
    backward_ops = trace.ops.filter(pl.col("fwd_tid") > 0).select("start_ns", "end_ns", "tid")
    evidence = (  # weakest first: later ones overwrite
        (Phase.FORWARD, host_ranges(trace, FORWARD_RANGE)),
        (Phase.BACKWARD, host_ranges(trace, BACKWARD_RANGE)),
        (Phase.BACKWARD, named(trace.ops, BACKWARD_OP)),
        (Phase.BACKWARD, backward_ops),
        (Phase.OPTIMIZER, host_ranges(trace, OPTIMIZER_RANGE)),
    )
    phases = list(Phase)
    code = np.full(at.len(), phases.index(Phase.UNKNOWN), dtype=np.int8)
    launched = (at.is_not_null() & tid.is_not_null()).to_numpy()
    times = at.fill_null(0).to_numpy()
    threads = tid.fill_null(-1).to_numpy()
    own_thread = _autograd_threads(trace)
    for thread in np.unique(threads[launched]):
        here = np.flatnonzero(launched & (threads == thread))
        if int(thread) in own_thread:
            code[here] = phases.index(Phase.BACKWARD)
        for phase, intervals_of in evidence:
            union = _union(intervals_of, int(thread))
            inside = intervals.locate(times[here], union.starts, union.ends) >= 0
            code[here[inside]] = phases.index(phase)
    return pl.Series("phase", [phase.value for phase in phases]).gather(code)


def _union(frame: pl.DataFrame, thread: int) -> Intervals:
    rows = frame.filter(pl.col("tid") == thread)
    return intervals.merge(rows["start_ns"], rows["end_ns"])


def _autograd_threads(trace: RankTrace) -> set[int]:
    """Threads that run autograd nodes and hold neither step markers nor the optimizer.

    On the CPU backward runs on the calling thread, on a GPU on a thread of its own.
    """
    driver = host_ranges(trace, rf"{PROFILER_STEP}|{OWN_STEP}|{OPTIMIZER_STEP}")["tid"].drop_nulls()
    nodes = named(trace.ops, BACKWARD_OP)["tid"].drop_nulls()
    return set(nodes.unique().to_list()) - set(driver.to_list()) if driver.len() else set()
