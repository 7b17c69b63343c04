"""Who a point-to-point operation talks to, as a rank of the job.

Traces name the peer in two ways: ``Src Rank`` and ``Dst Rank`` are global, the operator's ``Rank``
(and gloo's argument) counts within the group.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzer.label.message import PEERS

SIDES = {"src_rank": "recv", "dst_rank": "send"}


def with_global_peers(frame: pl.DataFrame, members: Mapping[str, tuple[int, ...]]) -> pl.DataFrame:
    """Complete ``src_rank`` of receives and ``dst_rank`` of sends from the rank within the group.

    Args:
        frame: columns op, group, peer (rank within the group) and both ranks, null where the trace
            does not tell the global one.
        members: sorted global ranks behind each group.
    """
    asked = frame.select("group", "peer").unique().drop_nulls()
    rows = [
        (group, peer, ranks[peer])
        for group, peer in asked.iter_rows()
        if 0 <= peer < len(ranks := members.get(group, ()))
    ]
    schema = {"group": pl.String, "peer": pl.Int64, "_global": pl.Int64}
    known = pl.DataFrame(rows, schema=schema, orient="row")
    joined = frame.join(known, on=["group", "peer"], how="left", maintain_order="left")
    return joined.with_columns(
        pl.when(pl.col("op") == SIDES[name]).then(pl.coalesce(name, "_global")).otherwise(name)
        for name in PEERS
    ).drop("_global")
