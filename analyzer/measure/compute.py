"""Matrix multiplies, attention and convolutions as they ran: operators from shapes, with kernels.

Of nested operators (``aten::linear`` > ``aten::addmm``; DTensor logs global around local shapes)
only the innermost counts. On a device an operator counts when it launched kernels, and its time is
theirs; in a CPU trace it is the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from analyzer.label.link import row_of
from analyzer.label.markers import OPTIMIZER_STEP
from analyzer.label.naming import host_ranges
from analyzer.label.nesting import OUTSIDE, innermost
from analyzer.measure.shapes import ATTENTION, CONV, GEMM, GROUPED_GEMM, counted, with_work
from analyzer.model import LabeledRank, RankTrace, Work
from analyzer.table import Column, Table, conform

FORWARD, GRADIENT, RERUN, OPTIMIZER = "forward", "gradient", "rerun", "optimizer"
"""Roles of a call: rerun = a forward operator executed again inside backward."""

MATMUL_KERNELS = (GEMM, GROUPED_GEMM, ATTENTION, CONV, "fused_gemm", "fused_moe")
"""Kernel families (``kernels.toml``) whose time should be explained by operators with FLOPs."""

GROUPED_KERNEL = r"(?i)gemm|grouped|gmm|matmul|_mm|fused_moe|moe_kernel|GroupProblemShape"
"""Of the kernels of mixture-of-experts layers, those that multiply; the others permute."""

TF32_KERNEL = r"tf32|s1688"
"""fp32 operands, but the kernel multiplies in tf32: cuBLAS and cuDNN names say so."""

C = Column
MATMULS = Table(
    "matmuls",
    "Calls of matrix-multiply, attention and convolution operators, equal ones of a step together.",
    (
        C("rank", "i32", "Rank."),
        C("lane", "i32", "Device index; 0 in CPU traces."),
        C("step", "i32", "steps.index, -1 outside every step."),
        C("family", "str", "gemm, grouped_gemm, attention, conv, fused_gemm or fused_moe."),
        C("dtype", "str", "Key of the device's peak: bf16, fp8, tf32, ...", null=True),
        C("role", "str", "forward, gradient, rerun (forward again in backward) or optimizer."),
        C("flops", "f64", "Executed FLOPs of one call; null where shapes do not tell.", null=True),
        C("model_flops", "f64", "Of these, what the model needs.", null=True),
        C("bytes", "f64", "Least memory traffic of one call.", null=True),
        C("assumed_full", "bool", "Attention counted in full for want of its mask."),
        C("calls", "i64", "Equal calls."),
        C("time_ns", "i64", "Their kernels' durations, or the operators' own, added up."),
    ),
)  # fmt: skip


def matmuls(ranks: Iterable[LabeledRank]) -> pl.DataFrame:
    """:data:`MATMULS` of all ranks."""
    return pl.concat([MATMULS.empty(), *(_of_rank(rank) for rank in ranks)])


def _of_rank(rank: LabeledRank) -> pl.DataFrame:
    ops = with_work(innermost_ops(counted(rank.trace.ops)))
    ops = ops.with_columns(roles(rank.trace, ops))
    calls = _host_calls(rank, ops) if rank.host_side else _device_calls(rank, ops)
    what = MATMULS.names[1:-2]
    equal = calls.group_by(what, maintain_order=True).agg(
        pl.len().alias("calls"), pl.col("ns").sum().alias("time_ns")
    )
    return conform(equal.with_columns(pl.lit(rank.trace.rank).alias("rank")), MATMULS)


def innermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators that hold no other one of the same frame on their thread.

    Args:
        ops: schema.OPS rows; operators of one thread nest.
    """
    ordered = ops.sort("pid", "tid", "start_ns", -pl.col("end_ns"), maintain_order=True)
    same_thread = (pl.col("tid").shift(-1).eq_missing(pl.col("tid"))) & (
        pl.col("pid").shift(-1).eq_missing(pl.col("pid"))
    )
    starts, ends = pl.col("start_ns").shift(-1), pl.col("end_ns").shift(-1)
    holds = same_thread & (starts < pl.col("end_ns")) & (ends <= pl.col("end_ns"))
    return ordered.filter(~holds.fill_null(value=False))


def roles(trace: RankTrace, ops: pl.DataFrame) -> pl.Series:
    """What each operator is run for, by the host intervals around it on its thread.

    Autograd numbers forward operators and backward nodes, and only the latter name a forward
    thread. So the nearest numbered interval tells a gradient from a forward operator, and a forward
    operator inside a backward node is one that runs again (activation checkpointing).
    """
    points = _points(ops, "start_ns", "tid")
    numbered = trace.ops.filter(pl.col("sequence").is_not_null())
    nodes = numbered.filter(pl.col("fwd_tid") > 0)
    nearest = innermost(_on_thread(numbered), points)
    is_node = np.append((numbered["fwd_tid"].fill_null(0) > 0).to_numpy(), False)  # OUTSIDE is -1
    inside = innermost(_on_thread(nodes), points) != OUTSIDE
    stepping = innermost(_on_thread(host_ranges(trace, OPTIMIZER_STEP)), points) != OUTSIDE
    role = np.where(inside, np.where(is_node[nearest], GRADIENT, RERUN), FORWARD)
    return pl.Series("role", np.where(stepping, OPTIMIZER, role), dtype=pl.String)


def _host_calls(rank: LabeledRank, ops: pl.DataFrame) -> pl.DataFrame:
    """Operators of a CPU trace, each in the step it begins in."""
    steps = rank.steps.sort("start_ns")
    at = np.searchsorted(steps["start_ns"].to_numpy(), ops["start_ns"].to_numpy(), side="right") - 1
    index = np.append(steps["index"].to_numpy(), -1).astype(np.int32)
    ends = np.append(steps["end_ns"].to_numpy(), np.iinfo(np.int64).min)
    step = np.where(ops["start_ns"].to_numpy() < ends[at], index[at], -1)
    return ops.with_columns(
        pl.Series("step", step),
        pl.lit(0, dtype=pl.Int32).alias("lane"),
        pl.col("family").fill_null(GEMM),
        pl.col("assumed_full").fill_null(value=False),
        (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
    )


def _device_calls(rank: LabeledRank, ops: pl.DataFrame) -> pl.DataFrame:
    """Operators with the time of their kernels, and kernels of these families without one."""
    kernels = _kernels(rank)
    kernels = kernels.with_columns(_operator_of(kernels, rank.trace, ops).alias("_op"))
    by_name = pl.col("kernel_family").filter(pl.col("kernel_family").is_in(MATMUL_KERNELS)).first()
    launched = (
        kernels.filter(pl.col("_op").is_not_null())
        .group_by("_op", maintain_order=True)
        .agg(
            pl.col("lane", "step").first(),
            pl.col("ns").sum(),
            by_name.alias("kernel_family"),
            pl.col("tf32").any(),
        )
    )
    found = ops.with_row_index("_op").with_columns(pl.col("_op").cast(pl.Int64))
    known = launched.join(found, on="_op", how="left", maintain_order="left").with_columns(
        pl.coalesce("family", "kernel_family").alias("family")
    )
    lost = kernels.filter(
        pl.col("_op").is_null() & pl.col("kernel_family").is_in(MATMUL_KERNELS)
    ).with_columns(pl.col("kernel_family").alias("family"), pl.lit(FORWARD).alias("role"))
    both = pl.concat([known.filter(pl.col("family").is_not_null()), lost], how="diagonal")
    narrow = (pl.col("dtype") == "fp32") & pl.col("tf32")
    return both.with_columns(
        pl.when(narrow).then(pl.lit("tf32")).otherwise("dtype").alias("dtype"),
        pl.col("assumed_full").fill_null(value=False),
    )


def _kernels(rank: LabeledRank) -> pl.DataFrame:
    """Kernels that compute: lane, step, ns, kernel_family, tf32, event, launch_ns, launch_tid."""
    computes = pl.col("work").cast(pl.String).is_in([Work.COMPUTE, Work.FUSED, Work.UNKNOWN])
    activity = rank.activity.filter(computes)
    text = pl.col("name").cast(pl.String)
    names = pl.DataFrame({"name": activity["name"].unique()}).with_columns(
        text.str.contains(TF32_KERNEL).alias("tf32"),
        text.str.contains(GROUPED_KERNEL).alias("_multiplies"),
    )
    grouped = (pl.col("family").cast(pl.String) == "moe") & pl.col("_multiplies")
    return activity.join(names, on="name", how="left", maintain_order="left").select(
        "lane",
        "step",
        (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
        pl.when(grouped)
        .then(pl.lit(GROUPED_GEMM))
        .otherwise(pl.col("family").cast(pl.String))
        .alias("kernel_family"),
        "tf32",
        "event",
        "launch_ns",
        "launch_tid",
    )


def _operator_of(kernels: pl.DataFrame, trace: RankTrace, ops: pl.DataFrame) -> pl.Series:
    """Row in ``ops`` of the operator each kernel belongs to, null where none does.

    The launch lies inside the operator on its thread. Where no launch is recorded, the operator
    the kernel's External id names lies inside it, or is it.
    """
    ids = kernels.join(
        trace.device.select("event", "external_id"), on="event", how="left", maintain_order="left"
    )["external_id"]
    row = row_of(trace.ops["external_id"], ids)
    named = pl.DataFrame(
        {"at": trace.ops["start_ns"].gather(row), "tid": trace.ops["tid"].gather(row)}
    )
    intervals = _on_thread(ops)
    by_launch = innermost(intervals, _points(kernels, "launch_ns", "launch_tid"))
    by_id = innermost(intervals, _points(named, "at", "tid"))
    found = pl.Series(np.where(by_launch == OUTSIDE, by_id, by_launch), dtype=pl.Int64)
    return found.set(found == OUTSIDE, None)


def _points(frame: pl.DataFrame, at: str, tid: str) -> pl.DataFrame:
    """Instants to look up. Thread ids are the system's, so the process adds nothing."""
    return frame.select(
        pl.col(at).alias("at_ns"), pl.lit(0, dtype=pl.Int64).alias("pid"), pl.col(tid).alias("tid")
    )


def _on_thread(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("start_ns", "end_ns", pl.lit(0, dtype=pl.Int64).alias("pid"), "tid")
