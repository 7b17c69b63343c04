"""Who waits for whom, and how fast the links were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports import text, view
from reports.html import svg
from reports.html.markup import Child, Markup, el
from reports.html.tables import Column, section, table

MAX_RANKS = 64
"""Ranks in the table of waits; beyond, those that made others wait longest are shown."""

SHADES = 5  # report.css has one class each


def waits(document: Mapping[str, Any]) -> Markup | None:
    """Wait and transfer per axis, a heat table of rank by axis, bandwidth by message size."""
    axes = {name: axis for name, axis in document["axes"].items() if axis["wait_ns"] is not None}
    if not axes:
        return None
    return section(
        "waits",
        "Who waits for whom",
        _by_axis(axes),
        el("h3", "Wait by rank, ms a step"),
        _by_rank(document, list(axes)),
        el("h3", "Bus bandwidth by message size"),
        _by_size(document),
        lead="Each collective of all its ranks, on clocks aligned by the ends of collectives. "
        "Waiting is the time from a rank's own start to the last member's; the rest is transfer.",
    )


def _by_axis(axes: Mapping[str, Any]) -> Markup:
    ms = text.Milliseconds([a[key] for a in axes.values() for key in ("wait_ns", "transfer_ns")])
    columns = (
        Column("Axis"),
        Column("Wait ms", numeric=True),
        Column("Transfer ms", numeric=True),
        Column("Bus bandwidth GB/s", numeric=True),
        Column("Link GB/s", numeric=True),
        Column("Of the link", numeric=True),
        Column("Events compared", numeric=True),
    )
    rows: list[list[Child]] = []
    for name, axis in axes.items():
        rows.append([[svg.swatch(view.axis_key(name)), " ", el("bdi", name)], *_figures(axis, ms)])
        rows += [
            [el("span", text.words(op), class_="op"), *_figures(row, ms)]
            for op, row in axis["ops"].items()
        ]
    return table(columns, rows)


def _figures(row: Mapping[str, Any], ms: text.Milliseconds) -> list[Child]:
    return [
        ms(row["wait_ns"]),
        ms(row["transfer_ns"]),
        text.rate(row["busbw_gbps"]),
        text.rate(row["spec_gbps"]),
        _of_link(row),
        text.percent(row.get("split_pct")),
    ]


def _by_rank(document: Mapping[str, Any], axes: list[str]) -> Markup:
    columns = document.get("waits") or {}
    cells: dict[int, dict[str, dict[str, Any]]] = {}
    for row in zip(*columns.values(), strict=True):
        named = dict(zip(columns, row, strict=True))
        cells.setdefault(named["rank"], {})[named["axis"]] = named
    cost = {r: sum(c["caused_ns"] for c in own.values()) for r, own in cells.items()}
    shown = sorted(sorted(cells, key=lambda rank: -cost[rank])[:MAX_RANKS])
    longest = max((c["wait_ns"] for own in cells.values() for c in own.values()), default=0)
    ms = text.Milliseconds([longest, *cost.values()])
    head = [Column("Rank", numeric=True)]
    head += [Column(axis, numeric=True) for axis in axes]
    head += [Column("Made others wait", numeric=True), Column("Late in", numeric=True)]
    rows: list[list[Child]] = [
        [
            str(rank),
            *(_shaded(cells[rank].get(axis), longest, ms) for axis in axes),
            ms(cost[rank]),
            _share_late(cells[rank]),
        ]
        for rank in shown
    ]
    note = f"{len(shown)} of {len(cells)} ranks: those that made others wait longest."
    return el(
        "div", table(head, rows), el("p", note, class_="lead") if len(cells) > len(shown) else None
    )


def _shaded(cell: Mapping[str, Any] | None, longest: int, ms: text.Milliseconds) -> Child:
    if cell is None:
        return text.NONE
    shade = round(SHADES * cell["wait_ns"] / longest) if longest else 0
    return el("span", ms(cell["wait_ns"]), class_=f"heat heat-{shade}")


def _share_late(own: Mapping[str, Mapping[str, Any]]) -> str:
    late, all_ = (sum(c[key] for c in own.values()) for key in ("late", "instances"))
    return f"{late} of {all_}"


def _by_size(document: Mapping[str, Any]) -> Markup:
    rows = document.get("busbw")
    if not rows:
        return el("p", "No message sizes are known.")
    columns = (
        Column("Axis"),
        Column("Operation"),
        Column("Link level"),
        Column("Ranks", numeric=True),
        Column("Size", numeric=True),
        Column("Count", numeric=True),
        Column("Transfer", numeric=True),
        Column("Expected at datasheet rate", numeric=True),
        Column("Usual", numeric=True),
        Column("Bus bandwidth GB/s", numeric=True),
        Column("Link GB/s", numeric=True),
        Column("Of the link", numeric=True),
    )
    body: list[list[Child]] = [
        [
            el("bdi", row["axis"]),
            text.words(row["op"]),
            row["level"] or text.NONE,
            str(row["group_size"]),
            text.size(row["mean_bytes"]),
            text.number(row["count"]),
            text.duration(row["transfer_ns"]),
            text.duration(row["spec_ns"]),
            text.duration(row["typical_ns"]),
            text.rate(row["busbw_gbps"]),
            text.rate(row["spec_gbps"]),
            _of_link(row),
        ]
        for row in rows
    ]
    return table(columns, body)


def _of_link(row: Mapping[str, Any]) -> str:
    efficiency = row["link_efficiency"]
    return text.percent(None if efficiency is None else 100 * efficiency)
