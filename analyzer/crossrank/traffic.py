"""Who sent how much to whom in uneven all-to-alls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from analyzer import schema
from analyzer.label.written import written_integers
from analyzer.model import LabeledRank


def traffic(ranks: Sequence[LabeledRank], groups: Mapping[str, tuple[int, ...]]) -> pl.DataFrame:
    """schema.TRAFFIC of all calls whose split sizes the traces hold.

    Split sizes count within the group: the i-th is for its i-th rank, whatever rank of the job
    that is. Torch cuts lists beyond 30 members; such calls are left out.

    Args:
        ranks: all ranks.
        groups: group key -> sorted global ranks.
    """
    keys = ["axis", "group", "in_split"]
    rows = []
    for rank in ranks:
        calls = rank.activity.filter(pl.col("in_split").is_not_null())
        counted = calls.group_by(pl.col(keys).cast(pl.String)).len()
        for axis, group, text, count in counted.iter_rows():
            splits, members = written_integers(text), groups.get(group, ())
            if len(splits) != len(members):
                continue
            rows += [
                (axis, group, rank.trace.rank, other, count, sent * count)
                for other, sent in zip(members, splits, strict=True)
            ]
    frame = pl.DataFrame(rows, schema=schema.TRAFFIC.empty().schema, orient="row")
    summed = frame.group_by("axis", "group", "src_rank", "dst_rank").agg(
        pl.col("count", "rows").sum()
    )
    return schema.conform(summed.sort("axis", "group", "src_rank", "dst_rank"), schema.TRAFFIC)
