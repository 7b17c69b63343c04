"""Timeline data for the page: columns, dictionaries and delta starts, gzipped.

Layout (``assets/report.js`` reads it)::

    lanes    [rank, device, label, summary]      one each lane
    windows  [rank, device, step, label, start_ns, end_ns]
    names    name dictionary
    kinds    [name index, work, axis, op, size, colour, stripe] distinct descriptions of slices
    count    slices of each lane, in lane order
    start    start_ns, the difference to the slice before in the lane
    dur      dur_ns
    kind     index into kinds
    exposed  exposed_ns, only of slices whose work is comm, in order
    default  [rank, step] to open with, or null
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from reports.json_ import compact_json
from reports.text import size, visible
from reports.view import axis_key

if TYPE_CHECKING:
    from reports.timeline import Timeline

KIND = ("name", "work", "axis", "op", "bytes")


def pack(timeline: Timeline) -> str:
    """The timeline as base64 of gzipped JSON; equal timelines give equal text."""
    raw = compact_json(columns(timeline)).encode("utf-8")
    return base64.b64encode(gzip.compress(raw, compresslevel=9, mtime=0)).decode("ascii")


def columns(timeline: Timeline) -> dict[str, Any]:
    """The layout above as plain values."""
    import polars as pl

    slices = timeline.slices.sort("lane", "start_ns", maintain_order=True)
    kinds = slices.select(KIND).unique(maintain_order=True).with_row_index("kind")
    indexed = slices.join(kinds, on=list(KIND), how="left", nulls_equal=True, maintain_order="left")
    names = kinds["name"].unique(maintain_order=True)
    at = {name: index for index, name in enumerate(names)}
    counts = dict(slices.group_by("lane").len().iter_rows())
    before = pl.col("start_ns").shift(1, fill_value=0).over("lane")
    is_comm = pl.col("work") == "comm"
    return {
        "lanes": [[n, d, visible(label), s] for n, d, label, s in map(astuple, timeline.lanes)],
        "windows": [
            [w.rank, w.device, w.step, visible(w.label), w.start_ns, w.end_ns]
            for w in timeline.windows
        ],
        "names": [visible(name) for name in names],
        "kinds": [_kind(at[name], *rest) for _, name, *rest in kinds.iter_rows()],
        "count": [counts.get(lane, 0) for lane in range(len(timeline.lanes))],
        "start": indexed.select(pl.col("start_ns") - before).to_series().to_list(),
        "dur": indexed["dur_ns"].to_list(),
        "kind": indexed["kind"].to_list(),
        "exposed": indexed.filter(is_comm)["exposed_ns"].to_list(),
        "default": timeline.default,
    }


def _kind(
    name: int, work: str, axis: str | None, op: str | None, count: int | None
) -> list[int | str | None]:
    """A kind for display; a fused kernel is compute with a stripe in its axis' colour."""
    of_axis = axis_key(axis) if axis else "unknown"
    plain = {"memcpy": "memcpy", "memset": "memcpy", "idle": "idle", "unknown": "unknown"}
    communicates = work in ("comm", "exposed")
    colour = of_axis if communicates else plain.get(work, "compute")
    stripe = of_axis if work == "fused" else ""
    shown = None if count is None else size(count)
    return [name, work, axis and visible(axis), op and visible(op), shown, colour, stripe]
