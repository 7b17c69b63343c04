"""Compared ranks from a compact description, for tests of rules and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from measure_builder import MS, ORIGIN_NS

from analyzer import schema
from analyzer.crossrank.bandwidth import Network
from analyzer.crossrank.clock import Clock
from analyzer.crossrank.results import CrossRank


def frame(table: schema.Table, rows: Sequence[Mapping[str, Any]], **defaults: Any) -> pl.DataFrame:
    filled = [{name: row.get(name, defaults.get(name)) for name in table.names} for row in rows]
    return schema.check(pl.DataFrame(filled, schema=table.empty().schema), table)


def late_calls(
    starts: Sequence[Mapping[int, float]],
    *,
    axis: str = "dp_shard",
    op: str = "all_gather",
    steps: int = 2,
    step_ms: float = 100.0,
    transfer: float = 1.0,
) -> pl.DataFrame:
    """schema.SPLITS of collectives given as rank -> start in ms of a step; all steps repeat them.

    Waits, transfers and late ranks are worked out here by plain arithmetic (5 us are a tie).
    """
    rows = []
    for step in range(steps):
        for number, by_rank in enumerate(starts):
            ordered = sorted(by_rank.items(), key=lambda item: item[1])
            latest = ordered[-1][1]
            lead = latest - ordered[-2][1]
            for rank, start in by_rank.items():
                zero = ORIGIN_NS + step * step_ms * MS
                rows.append(
                    {
                        "instance": step * len(starts) + number, "rank": rank, "step": step,
                        "start_ns": round(zero + start * MS),
                        "end_ns": round(zero + (latest + transfer) * MS),
                        "wait_ns": round((latest - start) * MS),
                        "transfer_ns": round(transfer * MS),
                        "late_rank": ordered[-1][0] if lead > 0.005 else None,
                        "late_ns": round(lead * MS) if lead > 0.005 else 0,
                        "event": number,
                    }
                )  # fmt: skip
    group = ",".join(map(str, sorted(starts[0]))) if starts else "0,1"
    return frame(schema.SPLITS, rows, axis=axis, op=op, group=group, lane=0)


def compared(
    splits: pl.DataFrame | None = None, clock: Clock | None = None, **tables: pl.DataFrame
) -> CrossRank:
    """Compared ranks with the tables given, everything else empty."""
    empty = {
        name: getattr(schema, name.upper()).empty()
        for name in ("instances", "waits", "busbw", "unmatched", "desynchronised", "traffic")
    }
    return CrossRank(
        clock=clock or Clock(),
        network=Network(8, "assumed", None, "no device"),
        splits=schema.SPLITS.empty() if splits is None else splits,
        figures=pl.DataFrame(),
        **{**empty, **tables},
    )
