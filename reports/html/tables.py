"""Small pieces the page's sections are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.html.markup import Child, Markup, el


@dataclass(frozen=True, slots=True)
class Column:
    """A table column; numeric ones are aligned right with digits of one width."""

    name: str
    numeric: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[Child]]) -> Markup:
    """A table that scrolls by itself when the page is too narrow, sortable by its head."""
    head = [
        el("th", column.name, scope="col", class_="num" if column.numeric else None)
        for column in columns
    ]
    body = [
        el(
            "tr",
            [
                el("td", cell, class_="num" if column.numeric else None)
                for column, cell in zip(columns, row, strict=True)
            ],
        )
        for row in rows
    ]
    whole = el("table", el("thead", el("tr", head)), el("tbody", body))
    return el("div", whole, class_="scroll", tabindex=0)


def section(id_: str, title: str, *children: Child, lead: str = "") -> Markup:
    """A titled part of the page."""
    intro = el("p", lead, class_="lead") if lead else None
    return el("section", el("h2", title), intro, children, id=id_, class_="panel")


def figure(name: str, value: str, note: str) -> Markup:
    """One prominent figure with a line under it."""
    return el(
        "div",
        el("dt", name),
        el("dd", value),
        el("dd", note, class_="note") if note else None,
        class_="tile",
    )
