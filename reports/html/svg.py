"""The charts: stacked bars as SVG, drawn on the server so that they need no script.

Widths are percentages, so a bar follows the page's width while its height and text keep their
size. Labels stand beside the drawing as HTML for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.html.markup import Attribute, Markup, el, join
from reports.view import GLYPHS, Part

LETTER_FROM_PCT = 2.0
"""Segments at least this wide carry their letter, the channel besides colour."""

HATCHED = ("idle", "bubble", "unknown")
BAR, PITCH = 13, 17  # px; report.css has the same pitch for labels
THICK = 36  # px


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a stack chart, with what stands before and behind it."""

    parts: Sequence[Part]
    label: str = ""
    note: str = ""


def hatches() -> Markup:
    """Definitions of the hatches of idle, bubble and unknown parts; once a page."""
    lines = {"idle": "M0 6L6 0", "bubble": "M0 0L6 6M0 6L6 0", "unknown": "M3 0V6"}
    shapes = [
        el(
            "pattern",
            el("path", d=line, class_="hatch"),
            id=f"hatch-{name}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        for name, line in lines.items()
    ]
    return el("svg", el("defs", shapes), width=0, height=0, aria_hidden="true", class_="defs")


def swatch(key: str) -> Markup:
    """The legend sample of a colour name, with its letter."""
    shapes = _segment(key, 0, 100, 0, 14)
    return el("svg", shapes, width=18, height=14, class_="swatch", aria_hidden="true")


def stack(bars: Sequence[Bar], *, title: str, desc: str, thick: bool = False) -> Markup:
    """Horizontal stacked bars on one time scale; the longest bar has the full width.

    Args:
        bars: from top to bottom.
        title: accessible name.
        desc: accessible description: what the chart shows, in words.
        thick: one prominent bar instead of dense rows.
    """
    height, pitch = (THICK, THICK + 4) if thick else (BAR, PITCH)
    longest = max((sum(p.ns for p in bar.parts) for bar in bars), default=0) or 1
    shapes = [
        segment
        for row, bar in enumerate(bars)
        for segment in _bar(bar, 100 / longest, row * pitch, height)
    ]
    total = max(len(bars) * pitch - (pitch - height), 1)
    drawing = el(
        "svg",
        el("title", title),
        el("desc", desc),
        shapes,
        width="100%",
        height=total,
        role="img",
    )
    labels = el("div", [el("span", bar.label) for bar in bars], aria_hidden="true", class_="labels")
    notes = el("div", [el("span", bar.note) for bar in bars], aria_hidden="true", class_="notes")
    if thick:
        return el("div", drawing, class_="stack thick")
    return el("div", labels, drawing, notes, class_="stack")


def _bar(bar: Bar, scale: float, y: int, height: int) -> list[Markup]:
    segments: list[Markup] = []
    x = 0.0
    for part in bar.parts:
        width = part.ns * scale
        title = f"{bar.label}, {part.label}" if bar.label else part.label
        segments.append(_segment(part.key, x, width, y, height, title))
        x += width
    return segments


def _segment(key: str, x: float, width: float, y: int, height: int, title: str = "") -> Markup:
    box: dict[str, Attribute] = {
        "x": f"{x:.2f}%",
        "y": y,
        "width": f"{width:.2f}%",
        "height": height,
    }
    shapes = [el("rect", el("title", title) if title else None, class_=f"k-{key}", **box)]
    if key in HATCHED:
        shapes.append(el("rect", class_="over", fill=f"url(#hatch-{key})", **box))
    elif width >= LETTER_FROM_PCT and key != "compute":
        middle, base = f"{x + width / 2:.2f}%", y + height / 2 + 3.6
        shapes.append(el("text", GLYPHS[key], x=middle, y=base, class_=f"letter on-{key}"))
    return join(shapes)


def range_bar(comm: float, exposed: float, expected: float | None, longest: float) -> Markup:
    """An axis' communication (pale), its exposed part (solid) and what must be exposed (tick)."""
    scale = 100 / (longest or 1)
    shapes = [
        el("rect", x=0, y=2, width=f"{comm * scale:.2f}%", height=10, class_="bar-all"),
        el("rect", x=0, y=2, width=f"{exposed * scale:.2f}%", height=10, class_="bar-part"),
    ]
    if expected is not None:
        at = f"{min(expected * scale, 99.5):.2f}%"
        shapes.append(el("line", x1=at, x2=at, y1=0, y2=14, class_="bar-tick"))
    return el("svg", shapes, width=140, height=14, class_="range", aria_hidden="true")
