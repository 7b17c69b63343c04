"""Compute against the device's roofline: the plot and its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports import compute
from reports.html.markup import Child, Markup, el
from reports.html.tables import Column, section, table

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 92, 24, 40


def roofline(document: Mapping[str, Any]) -> Markup | None:
    """Achieved FLOP/s of every family over its intensity, under the device's roofs."""
    if not compute.is_shown(document):
        return None
    families = document["compute"]["families"]
    drawn = [row for row in families if row["intensity"] and row["achieved_flops_per_s"]]
    memory = document["compute"]["memory_bytes_per_s"]
    peaks = {row["dtype"]: row["peak_flops_per_s"] for row in drawn if row["peak_flops_per_s"]}
    plot = _plot(drawn, peaks, memory) if drawn and peaks and memory else None
    return section(
        "compute",
        "Matrix multiplies against the roofline",
        el("p", compute.headline(document)),
        plot,
        _table(document, drawn),
        lead="Kernels of operators whose shapes are recorded: FLOPs over their time, against the "
        "lesser of the dense peak and intensity times memory bandwidth, operator by operator.",
    )


def _table(document: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> Markup:
    families = document["compute"]["families"]
    numbers = {id(row): str(index) for index, row in enumerate(drawn, 1)}
    columns = [Column("Point"), Column("Family"), Column("dtype")]
    columns += [Column(name, numeric=True) for name in ("ms a step", "Share", "TFLOP")]
    columns += [Column(n, numeric=True) for n in ("TFLOP/s", "Roofline TFLOP/s", "Reached")]
    body: list[list[Child]] = [
        [numbers.get(id(row), ""), *cells]
        for row, cells in zip(families, compute.rows(document), strict=True)
    ]
    return table(columns, body)


class _Scale:
    """A logarithmic axis from whole powers of ten to pixels."""

    def __init__(self, values: Sequence[float], low: int, high: int) -> None:
        self.first = math.floor(math.log10(min(values)))
        self.last = max(math.ceil(math.log10(max(values))), self.first + 1)
        self._low, self._high = low, high

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return round(self._low + share * (self._high - self._low), 1)

    @property
    def ticks(self) -> list[int]:
        """Exponents of the grid lines."""
        return list(range(self.first, self.last + 1))


def _plot(drawn: Sequence[Mapping[str, Any]], peaks: Mapping[str, float], memory: float) -> Markup:
    ridges = [peak / memory for peak in peaks.values()]
    xs = [row["intensity"] for row in drawn]
    x = _Scale([*xs, *ridges, min(ridges) / 10, max(ridges) * 4], LEFT, WIDTH - RIGHT)
    slope_start = 10.0**x.first * memory
    ys = [row["achieved_flops_per_s"] for row in drawn]
    y = _Scale([*ys, *peaks.values(), slope_start], HEIGHT - BOTTOM, TOP)
    says = ", ".join(
        f"{row['family']} {row['dtype']}: {row['intensity']:.3g} FLOP/byte, "
        f"{compute.tera(row['achieved_flops_per_s'])} TFLOP/s"
        for row in drawn
    )
    return el(
        "svg",
        el("title", "Roofline"),
        el("desc", f"Achieved FLOP/s over arithmetic intensity. {says}"),
        _grid(x, y),
        _roofs(x, y, peaks, memory),
        [_point(number, row, x, y) for number, row in enumerate(drawn, 1)],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="roofline",
    )


def _grid(x: _Scale, y: _Scale) -> list[Markup]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    shapes: list[Markup] = []
    for power in x.ticks:
        at = x(10.0**power)
        shapes.append(el("line", x1=at, x2=at, y1=TOP, y2=bottom, class_="grid"))
        shapes.append(el("text", _number(power), x=at, y=bottom + 15, class_="tick mid"))
    for power in y.ticks:
        at = y(10.0**power)
        shapes.append(el("line", x1=LEFT, x2=right, y1=at, y2=at, class_="grid"))
        label = f"{_number(power - 12)} T" if power >= 12 else f"{_number(power - 9)} G"
        shapes.append(el("text", label, x=LEFT - 6, y=at + 4, class_="tick end"))
    middle = (LEFT + right) / 2
    shapes.append(el("text", "FLOP per byte", x=middle, y=HEIGHT - 6, class_="tick mid"))
    shapes.append(el("text", "FLOP/s", x=LEFT - 6, y=11, class_="tick end"))
    return shapes


def _number(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _roofs(x: _Scale, y: _Scale, peaks: Mapping[str, float], memory: float) -> list[Markup]:
    """The memory slope up to the highest peak, and one flat roof for each dtype."""
    right, start = WIDTH - RIGHT, 10.0**x.first
    highest = max(peaks.values())
    ends = {"x1": x(start), "y1": y(start * memory), "x2": x(highest / memory), "y2": y(highest)}
    shapes = [el("line", **ends, class_="roof")]
    for dtype, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        at = y(peak)
        shapes.append(el("line", x1=x(peak / memory), x2=right, y1=at, y2=at, class_="roof"))
        name = f"{dtype} {compute.tera(peak)} T"
        shapes.append(el("text", name, x=right + 6, y=at + 4, class_="tick"))
    return shapes


def _point(number: int, row: Mapping[str, Any], x: _Scale, y: _Scale) -> Markup:
    across, up = x(row["intensity"]), y(row["achieved_flops_per_s"])
    return el(
        "g",
        el("title", f"{row['family']} {row['dtype'] or ''}"),
        el("circle", cx=across, cy=up, r=9, class_="dot"),
        el("text", number, x=across, y=up + 4, class_="letter"),
    )
