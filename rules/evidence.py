"""Rows that show a finding, with times a viewer can jump to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from analyzer.model import EvidenceRow
from rules.reading import WINDOW
from rules.wording import ms, pct, size

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

ROWS = 5
"""Rows shown with a finding: enough to recognise the pattern, few enough to read."""


def ranks_of(frame: pl.DataFrame) -> tuple[int, ...]:
    """The ranks that occur in ``frame``, sorted."""
    return tuple(int(rank) for rank in frame["rank"].unique().sort())


def steps_of(frame: pl.DataFrame) -> tuple[int, ...]:
    """The steps that occur in ``frame``, sorted."""
    return tuple(int(step) for step in frame["step"].unique().sort())


def comm_evidence(m: Measurements, events: pl.DataFrame, by: str) -> tuple[EvidenceRow, ...]:
    """The communication events that cost most by column ``by``."""
    worst = _worst(events, by, "start_ns")
    return tuple(_row(m, row, row["name"], _comm_note(row)) for row in worst)


def step_evidence(m: Measurements, costs: pl.DataFrame, what: str) -> tuple[EvidenceRow, ...]:
    """The steps that lose most. ``costs`` holds rank, lane, step and ``cost_ns``."""
    keys = [pl.col(name).cast(pl.Int64) for name in WINDOW]
    bounds = m.steps.rename({"index": "step"}).select(
        *keys, pl.col("label").cast(pl.String), "start_ns", "end_ns"
    )
    worst = _worst(costs.with_columns(keys).join(bounds, on=list(WINDOW)), "cost_ns")
    return tuple(_row(m, row, row["label"], _step_note(row, what)) for row in worst)


def _worst(frame: pl.DataFrame, by: str, *ties: str) -> list[dict[str, Any]]:
    keys = [by, *WINDOW, *ties]
    ordered = frame.filter(pl.col(by) > 0).sort(keys, descending=[True] + [False] * (len(keys) - 1))
    return ordered.head(ROWS).to_dicts()


def _row(m: Measurements, row: Mapping[str, Any], name: str, note: str) -> EvidenceRow:
    origin_ns = m.origin_ns.get(row["rank"], 0)
    return EvidenceRow(
        rank=row["rank"],
        name=name,
        start_ns=row["start_ns"] - origin_ns,
        dur_ns=row["end_ns"] - row["start_ns"],
        step=row["step"],
        note=note,
    )


def _comm_note(row: Mapping[str, Any]) -> str:
    parts = [f"{row['axis']} {row['op']}"]
    if row["message_bytes"] is not None:
        parts.append(size(row["message_bytes"]))
    parts.append(f"exposed {ms(row['exposed_ns'])}")
    return ", ".join([*parts, row["phase"]])


def _step_note(row: Mapping[str, Any], what: str) -> str:
    share = 100 * row["cost_ns"] / max(1, row["end_ns"] - row["start_ns"])
    return f"{ms(row['cost_ns'])} {what}, {pct(share)} of this step"
