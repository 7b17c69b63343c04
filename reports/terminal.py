"""The terminal report: verdict first, then the numbers behind it.

Built from rich ``Text`` objects only, never from markup strings, so a name out of a trace cannot
style or break the output. Reads well at 80 columns and without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from reports import compute, text, view
from reports.verdict import verdict

MAX_WIDTH = 110
MAX_RANKS = 5
MAX_EVIDENCE = 1
INDENT = 8

STYLES: Mapping[str, str] = {
    "compute": "bright_black", "bubble": "yellow", "memcpy": "magenta", "idle": "white",
    "dp_replicate": "cyan", "dp_shard": "blue", "cp": "yellow", "tp": "red", "pp": "green",
    "ep": "magenta", "etp": "bright_magenta", "edp": "bright_blue", "world": "bright_cyan",
    "unknown": "bright_red",
}  # fmt: skip
TONES: Mapping[str, str] = {"good": "green", "attention": "yellow", "bad": "red", "unknown": "cyan"}
SEVERITIES: Mapping[str, str] = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
GATES: Mapping[bool | None, str] = {True: "green", False: "bold red", None: "bold yellow"}


def render_terminal(document: Mapping[str, Any], console: Console) -> None:
    """Print a result document on a rich console; no colour codes when it is not a terminal."""
    width = min(console.width, MAX_WIDTH)
    _card(document, console, width)
    _gates(document, console)
    if document["step"]:
        _budget(document, console, width)
        _axes(document, console)
        _waits(document, console)
        _compute(document, console, width)
        _per_rank(document, console)
    _findings(document, console, width)
    _notes(document, console, width)


def _card(document: Mapping[str, Any], console: Console, width: int) -> None:
    card = verdict(document)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("Verdict", Text(card.headline, style="bold"))
    grid.add_row("Why", Text("\n".join(card.why)))
    grid.add_row("Next", Text(card.action))
    if card.worth:
        grid.add_row("", Text(f"Worth {card.worth}.", style="green"))
    console.print(Text(" · ".join(view.job_facts(document)), style="dim"), width=width)
    console.print(Panel(grid, border_style=TONES[card.tone], width=width))


def _gates(document: Mapping[str, Any], console: Console) -> None:
    if not document["gates"]:
        return
    _heading(console, "Gates")
    table = _table(("", "left"), ("gate", "left"), ("value", "right"), ("why", "left"))
    for gate in document["gates"]:
        word = Text(view.gate_word(gate["passed"]), style=GATES[gate["passed"]])
        value = text.quantity(gate["value"], gate["unit"])
        table.add_row(
            word, Text(text.visible(gate["gate"])), value, Text(text.visible(gate["reason"]))
        )
    console.print(table)
    console.print()


def _budget(document: Mapping[str, Any], console: Console, width: int) -> None:
    step = document["step"]
    parts = view.parts(step)
    glyphs = {part.key: view.GLYPHS[part.key] for part in parts}
    if console.options.ascii_only:
        glyphs |= {"compute": "#", "bubble": "~", "idle": "."}
    bar = Text()
    for part, count in zip(parts, view.cells([p.ns for p in parts], width), strict=True):
        bar.append(glyphs[part.key] * count, style=STYLES[part.key])
    _heading(console, f"Mean step {text.duration(step['time_ns'])}")
    console.print(bar, no_wrap=True, width=width)
    ms = text.Milliseconds([step["time_ns"]])
    table = _table(("", "left"), ("part", "left"), ("ms", "right"), ("share", "right"))
    for part in parts:
        pct = text.percent(text.share(part.ns, step["time_ns"]))
        table.add_row(
            Text(glyphs[part.key], style=STYLES[part.key]), Text(part.label), ms(part.ns), pct
        )
    if step["bubble_ns"] is None:
        table.add_row("", "pipeline bubble", text.NONE, "not measured")
    console.print(table)
    console.print()


def _axes(document: Mapping[str, Any], console: Console) -> None:
    axes = document["axes"]
    if not axes:
        return
    ms = text.Milliseconds([axis["comm_ns"] for axis in axes.values()])
    _heading(console, "Communication per axis and step")
    table = _table(
        ("axis", "whole"),
        ("size", "right"),
        ("count", "right"),
        ("bytes", "right"),
        ("comm\nms", "right"),
        ("exposed\nms", "right"),
        ("hidden", "right"),
        ("must\nexpose", "right"),
        ("evidence", "left"),
    )
    for name, axis in axes.items():
        table.add_row(
            Text(text.visible(name), style=STYLES[view.axis_key(name)]),
            text.number(axis["degree"]),
            text.number(axis["count"]),
            text.size(axis["bytes"]),
            ms(axis["comm_ns"]),
            ms(axis["exposed_ns"]),
            text.percent(axis["overlap_pct"]),
            ms(axis["expected_exposed_ns"]),
            text.words(axis["evidence"] or text.NONE),
        )
    console.print(table)
    console.print()


def _waits(document: Mapping[str, Any], console: Console) -> None:
    axes = {name: axis for name, axis in document["axes"].items() if axis["wait_ns"] is not None}
    if not axes:
        return
    ms = text.Milliseconds([a[key] for a in axes.values() for key in ("wait_ns", "transfer_ns")])
    _heading(console, "Waiting for other ranks, and links, per step")
    table = _table(
        ("axis", "whole"),
        ("wait\nms", "right"),
        ("transfer\nms", "right"),
        ("busbw\nGB/s", "right"),
        ("link\nGB/s", "right"),
        ("of the\nlink", "right"),
        ("late most often", "left"),
    )
    for name, axis in axes.items():
        efficiency = axis["link_efficiency"]
        table.add_row(
            Text(text.visible(name), style=STYLES[view.axis_key(name)]),
            ms(axis["wait_ns"]),
            ms(axis["transfer_ns"]),
            text.rate(axis["busbw_gbps"]),
            text.rate(axis["spec_gbps"]),
            text.percent(None if efficiency is None else 100 * efficiency),
            view.latest(document, name),
        )
    console.print(table)
    console.print()


def _compute(document: Mapping[str, Any], console: Console, width: int) -> None:
    if not compute.is_shown(document):
        return
    _heading(console, "Matrix multiplies per step")
    console.print(
        Padding(Text(compute.headline(document)), (0, 0, 0, 2), expand=False), width=width
    )
    sides = ("whole", "left", *["right"] * (len(compute.COLUMNS) - 2))
    table = _table(*zip(compute.COLUMNS, sides, strict=True))
    for row in compute.rows(document):
        table.add_row(*(Text(text.visible(cell)) for cell in row))
    console.print(table)
    console.print()


def _per_rank(document: Mapping[str, Any], console: Console) -> None:
    rows = sorted(
        document["per_rank"], key=lambda r: (-r["exposed_comm_pct"], r["rank"], r["lane"])
    )
    if len(rows) < 2:
        return
    several_lanes = any(row["lane"] for row in rows)
    ms = text.Milliseconds([row["step"]["time_ns"] for row in rows])
    _heading(
        console,
        f"Ranks with the most exposed communication ({min(MAX_RANKS, len(rows))} of {len(rows)})",
    )
    table = _table(
        ("rank", "right"),
        ("step ms", "right"),
        ("compute ms", "right"),
        ("exposed ms", "right"),
        ("exposed", "right"),
        ("idle ms", "right"),
    )
    for row in rows[:MAX_RANKS]:
        step = row["step"]
        table.add_row(
            f"{row['rank']}:{row['lane']}" if several_lanes else str(row["rank"]),
            ms(step["time_ns"]),
            ms(step["compute_ns"]),
            ms(sum(step["exposed_comm_ns"].values())),
            text.percent(row["exposed_comm_pct"]),
            ms(sum(step["idle_ns"].values())),
        )
    console.print(table)
    console.print()


def _findings(document: Mapping[str, Any], console: Console, width: int) -> None:
    _heading(console, f"Findings, most valuable first ({view.rule_counts(document)})")
    if not document["findings"]:
        console.print("  none")
    for finding in document["findings"]:
        head = Text(f"{finding['severity']:<8}", style=SEVERITIES[finding["severity"]])
        head.append(f"{text.visible(finding['rule'])}  ", style="dim")
        head.append(text.visible(finding["title"]), style="bold")
        console.print(head, width=width)
        for line in _finding_lines(finding, document, width - INDENT):
            console.print(Padding(line, (0, 0, 0, INDENT), expand=False), width=width)
    for outcome in document["rules"]:
        if outcome["verdict"] == "error":
            message = f"rule {outcome['rule']} failed to run: {outcome['reason']}"
            console.print(Text(text.visible(message), style="red"), width=width)
    console.print()


def _finding_lines(
    finding: Mapping[str, Any], document: Mapping[str, Any], width: int
) -> list[Text]:
    facts = view.finding_facts(finding, document)
    lines = [Text(text.visible(finding["advice"]))] if finding["advice"] else []
    lines.append(Text(", ".join(f"{name} {value}" for name, value in facts), style="dim"))
    for row in finding["evidence"][:MAX_EVIDENCE]:
        at = f"rank {row['rank']} at {row['start_ns'] / 1e6:,.3f} ms, "
        at += f"{text.duration(row['dur_ns'])}: "
        name = text.shorten(text.visible(row["name"]), max(width - len(at), 20))
        lines.append(Text(at + name, style="dim"))
    rest = len(finding["evidence"]) - MAX_EVIDENCE
    if rest > 0:
        lines.append(Text(f"and {rest} more", style="dim"))
    return lines


def _notes(document: Mapping[str, Any], console: Console, width: int) -> None:
    for title, lines, style in (
        ("Warnings", [text.visible(w) for w in document["warnings"]], "yellow"),
        ("Labels that disagree", [text.visible(c) for c in document["conflicts"]], "yellow"),
        ("Coverage", view.coverage_lines(document), "dim"),
    ):
        if lines:
            _heading(console, title)
            for line in lines:
                console.print(
                    Padding(Text(line, style=style), (0, 0, 0, 2), expand=False), width=width
                )


def _heading(console: Console, title: str) -> None:
    console.print(Text(title, style="bold underline"))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, side in columns:
        if side == "right":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", no_wrap=side == "whole")
    return table
