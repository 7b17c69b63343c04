"""The page's upper half: header, verdict card, gates, budget, steps and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports import text, view
from reports.html import svg
from reports.html.markup import Markup, el
from reports.html.tables import Column, figure, section, table
from reports.verdict import verdict
from reports.view import Part

MAX_BARS = 96
"""More rows than this are not drawn; the data table still holds them."""

MAX_ROWS = 2_000


def header(document: Mapping[str, Any]) -> Markup:
    """Name of the job, its facts, and the page's two buttons."""
    job = document["job"]
    strategy = job["strategy"] or "strategy unknown"
    facts = view.job_facts(document)[1:]
    buttons = [
        el("button", "Dark / light", type="button", id="theme", class_="js-only"),
        el("button", "Save JSON", type="button", id="save", class_="js-only"),
    ]
    expected = f"expected {job['expect']}" if job["expect"] else None
    return el(
        "header",
        el(
            "div",
            el("p", "meshscope ", document["tool_version"], class_="brand"),
            el("h1", "Step analysis: ", el("bdi", strategy)),
            el("ul", [el("li", fact) for fact in (*facts, expected) if fact], class_="facts"),
        ),
        el("div", buttons, class_="actions"),
        class_="top",
    )


def card(document: Mapping[str, Any]) -> Markup:
    """Verdict, why, next, and the four figures everybody asks for."""
    opinion = verdict(document)
    worth = (
        el("span", text.keep_units(f"Worth {opinion.worth}"), class_="worth")
        if opinion.worth
        else None
    )
    return el(
        "section",
        el("h2", "Verdict", class_="sr"),
        el("p", text.keep_units(opinion.headline), class_="headline"),
        el("dl", _tiles(document), class_="tiles"),
        el(
            "div",
            el(
                "div",
                el("h3", "Why"),
                el("ul", [el("li", text.keep_units(line)) for line in opinion.why]),
            ),
            el("div", el("h3", "Next"), el("p", text.keep_units(opinion.action), " ", worth)),
            class_="why",
        ),
        id="verdict",
        class_=f"panel card tone-{opinion.tone}",
    )


def _tiles(document: Mapping[str, Any]) -> list[Markup]:
    step, worst = document["step"], document["exposed_comm_pct_worst"]
    reasons = document["null_reasons"]
    time = step and step["time_ns"]
    compute = text.share(step["compute_ns"], time) if step else None
    many = worst and len(document["per_rank"]) > 1
    return [
        figure("Mean step", text.duration(time), reasons.get("step", "") if not step else ""),
        figure("Compute", text.percent(compute), ""),
        figure(
            "Exposed communication",
            text.percent(document["exposed_comm_pct"]),
            f"worst: rank {worst['rank']}, {text.percent(worst['pct'])}"
            if many
            else reasons.get("exposed_comm_pct", ""),
        ),
        figure(
            "Pipeline bubble",
            text.percent(document["bubble_pct"]),
            reasons.get("bubble_pct", "") if document["bubble_pct"] is None else "",
        ),
    ]


def notices(document: Mapping[str, Any]) -> Markup | None:
    """Warnings and label conflicts: what to know before trusting a figure."""
    lines = [*document["warnings"], *document["conflicts"]]
    if not lines:
        return None
    items = el("ul", [el("li", line) for line in lines])
    return el("section", el("h2", "Warnings"), items, class_="panel notices", id="warnings")


def gates(document: Mapping[str, Any]) -> Markup | None:
    """Gates with their value and, where there is no verdict, why."""
    if not document["gates"]:
        return None
    rows = [
        [
            el(
                "span",
                view.gate_word(gate["passed"]),
                class_=f"pill gate-{str(gate['passed']).lower()}",
            ),
            el("code", gate["gate"]),
            text.quantity(gate["value"], gate["unit"]),
            gate["reason"],
        ]
        for gate in document["gates"]
    ]
    columns = (Column("Outcome"), Column("Gate"), Column("Value", numeric=True), Column("Why"))
    return section("gates", "Gates", table(columns, rows))


def budget(document: Mapping[str, Any]) -> Markup | None:
    """The mean step as one bar, with its legend as the data table."""
    step = document["step"]
    if not step:
        return None
    parts, time = view.parts(step), step["time_ns"]
    ms = text.Milliseconds([time])
    rows: list[list[Any]] = [
        [
            [svg.swatch(part.key), " ", part.label],
            ms(part.ns),
            text.percent(text.share(part.ns, time)),
            view.IDLE_MEANS.get(part.detail, "") if part.kind == "idle" else "",
        ]
        for part in parts
    ]
    if step["bubble_ns"] is None:
        reason = document["null_reasons"].get("bubble_pct", "not measured")
        rows.append(["pipeline bubble", text.NONE, text.NONE, reason])
    rows.append([el("b", "step"), el("b", ms(time)), el("b", "100 %"), ""])
    columns = (
        Column("Part"),
        Column("ms", numeric=True),
        Column("Share", numeric=True),
        Column("Meaning"),
    )
    says = ", ".join(f"{p.label} {text.percent(text.share(p.ns, time))}" for p in parts)
    bar = svg.stack([svg.Bar(parts)], title="Mean step budget", desc=says, thick=True)
    lead = "Mean over kept steps and ranks. At every instant exactly one part holds, so it adds up."
    return section("budget", "Where the step's time goes", bar, table(columns, rows), lead=lead)


def steps(document: Mapping[str, Any]) -> Markup | None:
    """Every step of every rank as a stacked bar, those of the most exposed rank first."""
    columns = document["steps"]
    if not columns["rank"] or document["step"] is None:
        return None
    rows = [i for i, ns in enumerate(columns["compute_ns"]) if ns is not None]
    order = {(r["rank"], r["lane"]): -r["exposed_comm_pct"] for r in document["per_rank"]}
    rank, lane, number = columns["rank"], columns["lane"], columns["step"]
    rows.sort(key=lambda i: (order.get((rank[i], lane[i]), 0.0), rank[i], lane[i], number[i]))
    lanes = any(lane)
    ms = text.Milliseconds(columns["time_ns"])
    bars = [
        svg.Bar(
            _row_parts(columns, i), _row_label(columns, i, lanes), f"{ms(columns['time_ns'][i])} ms"
        )
        for i in rows[:MAX_BARS]
    ]
    shown = f"{len(bars)} of {len(rows)} steps are drawn. " if len(rows) > len(bars) else ""
    lead = f"Ranks with the most exposed communication first. {shown}Colours as above."
    chart = svg.stack(
        bars,
        title="Budget of every step and rank",
        desc="Stacked bars of compute, exposed communication, bubble, copies and idle time, one "
        "for each step of each rank; the table below holds the same figures.",
    )
    data = el(
        "details",
        el("summary", "Data"),
        _step_table(columns, rows[:MAX_ROWS], ms),
    )
    return section("steps", "Steps and ranks", chart, data, lead=lead)


def _row_parts(columns: Mapping[str, Any], row: int) -> list[Part]:
    step = {
        "compute_ns": columns["compute_ns"][row],
        "bubble_ns": columns["bubble_ns"][row],
        "memcpy_ns": columns["memcpy_ns"][row],
        "exposed_comm_ns": {a: ns[row] for a, ns in columns["exposed_comm_ns"].items()},
        "idle_ns": {cause: ns[row] for cause, ns in columns["idle_ns"].items()},
    }
    return view.parts(step)


def _row_label(columns: Mapping[str, Any], row: int, lanes: bool) -> str:
    where = f"rank {columns['rank'][row]}"
    if lanes:
        where += f" device {columns['lane'][row]}"
    dropped = "" if columns["kept"][row] else " (not averaged)"
    return f"{where}, step {columns['step'][row]}{dropped}"


def _step_table(columns: Mapping[str, Any], rows: Sequence[int], ms: text.Milliseconds) -> Markup:
    fields = {"compute": columns["compute_ns"]}
    fields |= {f"exposed {axis}": ns for axis, ns in columns["exposed_comm_ns"].items()}
    fields |= {"bubble": columns["bubble_ns"], "copies": columns["memcpy_ns"]}
    fields |= {f"idle: {text.words(c)}": ns for c, ns in columns["idle_ns"].items()}
    head = [Column("Rank", numeric=True), Column("Step"), Column("Averaged")]
    head += [Column(name, numeric=True) for name in ("step ms", *fields)]
    body = [
        [
            str(columns["rank"][i]),
            columns["label"][i],
            "yes" if columns["kept"][i] else "no",
            ms(columns["time_ns"][i]),
            *(ms(ns[i]) for ns in fields.values()),
        ]
        for i in rows
    ]
    return table(head, body)


def ranks(document: Mapping[str, Any]) -> Markup | None:
    """Each rank's mean step."""
    rows = document["per_rank"]
    if len(rows) < 2:
        return None
    lanes = any(row["lane"] for row in rows)
    ms = text.Milliseconds([row["step"]["time_ns"] for row in rows])
    axes = sorted({axis for row in rows for axis in row["step"]["exposed_comm_ns"]})
    head = [Column("Rank", numeric=True), *([Column("Device", numeric=True)] if lanes else [])]
    names = ["Steps", "Step ms", "Compute ms", *(f"Exposed {a} ms" for a in axes)]
    head += [Column(name, numeric=True) for name in (*names, "Exposed", "Copies ms", "Idle ms")]
    body = [
        [
            str(row["rank"]),
            *([str(row["lane"])] if lanes else []),
            text.number(row["steps_kept"]),
            ms(row["step"]["time_ns"]),
            ms(row["step"]["compute_ns"]),
            *(ms(row["step"]["exposed_comm_ns"].get(axis, 0)) for axis in axes),
            text.percent(row["exposed_comm_pct"]),
            ms(row["step"]["memcpy_ns"]),
            ms(sum(row["step"]["idle_ns"].values())),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return section("ranks", "Ranks", table(head, body), lead="Mean over each rank's kept steps.")
