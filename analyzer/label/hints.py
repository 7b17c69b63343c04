"""What surrounds a collective on the host, as a hint of its axis (groups without description)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzer import catalog
from analyzer.intervals import IntArray
from analyzer.label.axis import communicates, ranged_hints
from analyzer.label.naming import named
from analyzer.label.nesting import OUTSIDE, innermost
from analyzer.label.written import written_integers

ATTENTION_OP = (
    r"(?i)scaled_dot_product|flash_?attn|flash_?attention|fmha|attention_(forward|backward)"
)
RING_OP = rf"{ATTENTION_OP}|^aten::(exp|_softmax|_softmax_backward_data|logsumexp)$"
PROJECTION_OP = r"^aten::(mm|addmm|linear|_scaled_mm|_grouped_mm)$|(?i:gemm)"
PRODUCT_OP = rf"{PROJECTION_OP}|^aten::(bmm|baddbmm|matmul)$"
COLLECTIVE_EXCHANGES = ("all_to_all", "all_to_allv", "all_gather", "reduce_scatter")
P2P_EXCHANGES = ("send", "recv", "send_recv")


def axis_hints(frame: pl.DataFrame, ops: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Columns ``hint`` and ``ranged``: the axis that a collective's surroundings imply.

    ``hint`` is null where they are silent; ``ranged`` where a range or operator says it by name.

    In order: the user range around it (``FSDP::all_gather``), the operator around it (DTensor's
    ``Redistribute``), an all-to-all whose splits are one single peer (a ring permute), attention
    next to it with no matrix product in between (ring attention, Ulysses).

    Args:
        frame: columns work, op, range_name, in_split and the host time and thread of the launch:
            host_ns, host_pid, host_tid.
        ops: schema.OPS.
    """
    rows = frame.with_row_index("_row").filter(communicates())
    around = rows.with_columns(_marker(rows, ops))
    hints = pl.DataFrame(
        {
            "_row": rows["_row"],
            "by_range": ranged_hints(around, "range_name"),
            "by_op": ranged_hints(around, "_marker"),
            "by_split": _split_hints(rows["in_split"]),
            "by_attention": _attention_hints(rows, ops),
        }
    ).select(
        "_row",
        pl.coalesce("by_range", "by_op", "by_split", "by_attention").alias("hint"),
        pl.any_horizontal(pl.col("by_range", "by_op").is_not_null()).alias("ranged"),
    )
    indexed = frame.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("_row"))
    found = indexed.join(hints, on="_row", how="left", maintain_order="left")
    return found["hint"], found["ranged"].fill_null(value=False)


def _marker(rows: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Innermost operator around each row whose name any range pattern knows."""
    known = "|".join(f"({_inline(row.pattern)})" for row in catalog.range_rows())
    distinct = ops["name"].unique()
    matching = [bool(re.search(known, text)) for text in distinct.cast(pl.String).to_list()]
    known_names = pl.Series(matching, dtype=pl.Boolean)  # no names give no dtype to infer
    markers = ops.filter(pl.col("name").is_in(distinct.filter(known_names).implode()))
    return markers["name"].gather(_found(markers, rows)).alias("_marker")


def _inline(pattern: re.Pattern[str]) -> str:
    """A pattern that can stand inside another: global flags become local ones."""
    return re.sub(r"^\(\?i\)(.*)$", r"(?i:\1)", pattern.pattern)


def _found(intervals: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    at = innermost(intervals, _points(rows))
    found = pl.Series(at, dtype=pl.Int64)
    return found.set(found == OUTSIDE, None)


def _points(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.col("host_ns").alias("at_ns"),
        pl.col("host_pid").alias("pid"),
        pl.col("host_tid").alias("tid"),
    )


def _split_hints(splits: pl.Series) -> pl.Series:
    """Axis of an all-to-all by its splits: one peer is a ring (cp), unequal parts tokens (ep)."""
    texts = splits.cast(pl.String)
    table = {text: _split_hint(text) for text in texts.drop_nulls().unique().to_list()}
    return pl.Series(
        [table.get(text) if text else None for text in texts.to_list()], dtype=pl.String
    )


def _split_hint(text: str) -> str | None:
    parts = written_integers(text)
    if len(parts) < 2:
        return None
    busy = [part for part in parts if part]
    if len(busy) == 1:
        return "cp"
    return "ep" if len(set(parts)) > 1 else None


def _attention_hints(rows: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Axis cp where attention precedes or follows on the thread with no projection between.

    Ulysses and all-gathered keys and values sit beside the attention operator. A ring written by
    hand has none: its exchanges sit beside the exponentials of its partial softmax.
    """
    near = _near(rows, ops, COLLECTIVE_EXCHANGES, ATTENTION_OP, PRODUCT_OP)
    near |= _near(rows, ops, P2P_EXCHANGES, RING_OP, PROJECTION_OP)
    return pl.Series(np.where(near, "cp", ""), dtype=pl.String).replace("", None)


def _near(
    rows: pl.DataFrame, ops: pl.DataFrame, kinds: Sequence[str], marker: str, barrier: str
) -> NDArray[np.bool_]:
    """Rows of these collectives with a marker operator beside them and no barrier between."""
    near = np.zeros(rows.height, dtype=np.bool_)
    markers, barriers = named(ops, marker), named(ops, barrier)
    if markers.is_empty() or barriers.is_empty():
        return near
    at = rows["host_ns"].fill_null(-1).to_numpy()
    asked = rows["op"].is_in(kinds).to_numpy() & (at >= 0)
    threads = rows["host_tid"].fill_null(-1).to_numpy()
    for thread in np.unique(threads[asked]):
        here = np.flatnonzero(asked & (threads == thread))
        own = pl.col("tid") == int(thread)
        near[here] = _beside(at[here], markers.filter(own), barriers.filter(own))
    near |= asked & _found(markers, rows).is_not_null().to_numpy()
    return near


def _beside(at: IntArray, attention: pl.DataFrame, matmul: pl.DataFrame) -> NDArray[np.bool_]:
    before: NDArray[np.bool_] = _last(at, attention["end_ns"]) >= np.maximum(
        _last(at, matmul["end_ns"]), 0
    )
    after = _next(at, attention["start_ns"]) < _next(at, matmul["start_ns"])
    return np.asarray(before | after, dtype=np.bool_)


def _last(at: IntArray, ends: pl.Series) -> IntArray:
    """Latest end at or before each instant, -1 where there is none."""
    ordered = np.concatenate(([-1], np.sort(ends.to_numpy())))
    return np.asarray(ordered[np.searchsorted(ordered, at, side="right") - 1], dtype=np.int64)


def _next(at: IntArray, starts: pl.Series) -> IntArray:
    """Earliest start at or after each instant, the largest integer where there is none."""
    ordered = np.concatenate((np.sort(starts.to_numpy()), [np.iinfo(np.int64).max]))
    return np.asarray(ordered[np.searchsorted(ordered, at, side="left")], dtype=np.int64)
