"""What each device event is: compute, communication, both, copy, or nothing could tell.

Evidence, strongest first; a name that mentions a communication library proves nothing by itself:

1. collective arguments on the event, or on the host operator linked to it;
2. the linked host operator (``c10d::*``, ``symm_mem::*``, ...): also for peer copies of copy-engine
   collectives and for kernels of a collective launched as one graph;
3. an enclosing range of the backend (``nccl:all_reduce``), on the host around the launch or on the
   device around the event;
4. the kernel-name taxonomy.

A kernel whose name is in the compute taxonomy stays compute under 2 and 3: collectives launch local
reductions and copies too. Waits are not collectives and never make an event communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import polars.selectors as cs

from analyzer import catalog
from analyzer.intervals import locate
from analyzer.label.naming import named, on_device
from analyzer.model import RankTrace, Work

ARGS = [
    "collective", "in_nelems", "out_nelems", "dtype", "group_size", "group_name", "group_desc",
    "group_ranks", "in_split", "out_split", "seq", "src_rank", "dst_rank", "peer", "rank_start",
    "rank_stride",
]  # fmt: skip
PEER_COPY = r"(?i)PtoP|\bPeer"
COALESCED = "coalesced"
# Operators of torch that launch no collective, whatever their kernels are called. Operators of
# other libraries may do anything inside (a fused MoE layer dispatches and computes).
COMPUTE_FAMILIES = (
    "gemm",
    "attention",
    "conv",
    "norm",
    "softmax",
    "embedding",
    "optimizer",
    "loss",
)
COMPUTE_NAMESPACE = "aten::"


def classify(linked: pl.DataFrame, trace: RankTrace) -> pl.DataFrame:
    """``linked`` (see :func:`analyzer.label.link.link`) with ``work``, ``family`` and ``op``.

    Also joined are the collective's arguments (``ARGS``, null where unknown) and ``named_axis``,
    the axis a kernel family implies (DeepEP: ep).
    """
    frame = _with_arguments(linked, trace.comm_args)
    frame = _with_meaning(frame, "name", _kernel_meaning, KERNEL_MEANING)
    frame = _with_meaning(frame, "op_name", _operator_meaning, OPERATOR_MEANING)
    frame = _with_meaning(frame, "comm_range", _range_meaning, RANGE_MEANING)
    frame = _with_meaning(frame, "collective", _argument_meaning, ARGUMENT_MEANING)
    frame = frame.with_columns(_device_range_op(frame, trace.ranges))
    frame = frame.with_columns(_work().alias("work"))
    communicates = pl.col("work").is_in([Work.COMM, Work.FUSED])
    return frame.with_columns(
        pl.when(communicates).then(_collective()).alias("op"),
        _family(trace.meta.backend).alias("family"),
        pl.when(communicates).then("_name_axis").alias("named_axis"),
    ).drop(cs.starts_with("_"))


# ---- evidence as columns ------------------------------------------------------------------------

KERNEL_MEANING = {
    "_name_work": pl.String,
    "_name_family": pl.String,
    "_name_op": pl.String,
    "_name_axis": pl.String,
}
OPERATOR_MEANING = {"_host_op": pl.String, "_host_fused": pl.Boolean, "_host_family": pl.String}
RANGE_MEANING = {"_range_op": pl.String}
ARGUMENT_MEANING = {"_args_op": pl.String, "_has_args": pl.Boolean}


def _kernel_meaning(name: str) -> tuple[object, ...]:
    match = catalog.match_kernel(name)
    return (match.work, match.family, match.op, match.axis) if match else (None,) * 4


def _operator_meaning(name: str) -> tuple[object, ...]:
    fused = catalog.is_fused_host_op(name)
    return catalog.host_collective(name), fused, catalog.op_family(name)


def _range_meaning(name: str) -> tuple[object, ...]:
    return (catalog.host_collective(name),)


def _argument_meaning(name: str) -> tuple[object, ...]:
    if catalog.is_pseudo_op(name):
        return None, False
    return catalog.canonical_op(name) or "other", True


def _with_meaning(
    frame: pl.DataFrame,
    column: str,
    meaning: Callable[[str], tuple[object, ...]],
    schema: Mapping[str, type[pl.DataType]],
) -> pl.DataFrame:
    """Look each distinct text of a column up once and join what it means."""
    distinct = frame[column].drop_nulls().unique()
    rows = [meaning(text) for text in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame(rows, schema=dict(schema), orient="row").with_columns(
        distinct.alias(column)
    )
    return frame.join(table, on=column, how="left", maintain_order="left")


def _with_arguments(linked: pl.DataFrame, comm_args: pl.DataFrame) -> pl.DataFrame:
    """Arguments of the event itself, field by field completed from its linked operator's."""
    source = pl.col("source").cast(pl.String)
    own = comm_args.filter(source == "device").select("event", *ARGS)
    of_op = comm_args.filter(source == "op").select(
        pl.col("event").alias("op_event"), pl.col(ARGS).name.suffix("_of_op")
    )
    return (
        linked.join(
            own.unique("event", keep="first"), on="event", how="left", maintain_order="left"
        )
        .join(
            of_op.unique("op_event", keep="first"), on="op_event", how="left", maintain_order="left"
        )
        .with_columns(pl.col("collective").is_not_null().alias("_own_args"))
        .with_columns(pl.coalesce(name, f"{name}_of_op").alias(name) for name in ARGS)
        .drop(cs.ends_with("_of_op"))
    )


def _device_range_op(frame: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Collective of the backend's range that covers an event on its own stream of the device."""
    shadows = named(on_device(ranges), r"^(nccl|xccl|hccl|ucc):")
    found = pl.Series("_shadow_op", [None] * frame.height, dtype=pl.String)
    for (device, stream), rows in shadows.drop_nulls(["device", "tid"]).group_by("device", "tid"):
        rows = rows.sort("start_ns")
        here = frame.select(
            ((pl.col("device") == device) & (pl.col("stream") == stream)).arg_true()
        ).to_series()
        at = locate(
            frame["start_ns"].gather(here), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        )
        inside = at >= 0
        ops = rows["name"].cast(pl.String).map_elements(catalog.host_collective, pl.String)
        found = found.scatter(here.filter(pl.Series(inside)), ops.gather(at[inside]))
    return found


# ---- decisions ----------------------------------------------------------------------------------


def _work() -> pl.Expr:
    """The decision of the module docstring, one event a row."""
    kernel = pl.col("kind").cast(pl.String) == "kernel"
    copy = pl.col("kind").cast(pl.String) == "memcpy"
    peer_copy = copy & pl.col("name").cast(pl.String).str.contains(PEER_COPY)
    says = pl.col("_name_work")
    says_compute = (says == Work.COMPUTE).fill_null(value=False)
    has_args = pl.col("_has_args").fill_null(value=False)
    in_collective = (
        has_args
        | pl.col("_host_op").is_not_null()
        | pl.col("_range_op").is_not_null()
        | pl.col("_shadow_op").is_not_null()
    )
    computing_op = (
        pl.col("op_name").cast(pl.String).str.starts_with(COMPUTE_NAMESPACE)
        & pl.col("_host_family").is_in(COMPUTE_FAMILIES)
    ).fill_null(value=False)
    fused_op = pl.col("_host_fused").fill_null(value=False)
    return (
        pl.when(kernel & has_args & (pl.col("_own_args") | ~says_compute))
        .then(pl.lit(Work.COMM.value))
        .when(peer_copy & (in_collective | fused_op))
        .then(pl.lit(Work.COMM.value))
        .when(copy)
        .then(pl.lit(Work.MEMCPY.value))
        .when(~kernel)
        .then(pl.lit(Work.MEMSET.value))
        .when(says == Work.FUSED)
        .then(pl.lit(Work.FUSED.value))
        .when(in_collective & ~says_compute & ~computing_op)
        .then(pl.lit(Work.COMM.value))
        .when((says == Work.COMM) & ~computing_op)
        .then(pl.lit(Work.COMM.value))
        .when(fused_op & ~says_compute)
        .then(pl.lit(Work.FUSED.value))
        .when(says_compute | pl.col("op_name").is_not_null())
        .then(pl.lit(Work.COMPUTE.value))
        .otherwise(pl.lit(Work.UNKNOWN.value))
    )


def _collective() -> pl.Expr:
    """Canonical op by the order of evidence. A coalesced launch does not tell: the kernel does."""
    told = [pl.col(name) for name in ("_args_op", "_host_op", "_range_op", "_shadow_op")]
    fused = pl.col("op_name").cast(pl.String)
    by_fused_op = (
        pl.when(pl.col("_host_fused") & fused.str.contains("all_?gather"))
        .then(pl.lit("all_gather"))
        .when(pl.col("_host_fused") & fused.str.contains("reduce_?scatter"))
        .then(pl.lit("reduce_scatter"))
        .when(pl.col("_host_fused") & fused.str.contains("all_?reduce"))
        .then(pl.lit("all_reduce"))
    )
    definite = [pl.when(column != COALESCED).then(column) for column in told]
    coalesced = pl.any_horizontal((column == COALESCED).fill_null(value=False) for column in told)
    return pl.coalesce(
        *definite,
        "_name_op",
        by_fused_op,
        pl.when(coalesced).then(pl.lit("send_recv")),
        pl.lit("other"),
    )


def _family(backend: str) -> pl.Expr:
    work = pl.col("work")
    by_name = pl.when(pl.col("_name_work") == work).then("_name_family")
    return (
        pl.when((work == Work.COMM) & (pl.col("kind").cast(pl.String) == "memcpy"))
        .then(pl.lit("copy_engine"))
        .when(work.is_in([Work.COMM, Work.FUSED]))
        .then(pl.coalesce(by_name, pl.lit(backend or "collective")))
        .when(work.is_in([Work.COMPUTE, Work.UNKNOWN]))
        .then(pl.coalesce(by_name, "_host_family"))
        .otherwise(work)
    )
