"""The page's lower half: axes, findings, timeline, rules, coverage and methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports import text, view
from reports.html import svg
from reports.html.markup import Child, Markup, el
from reports.html.methods import METHODS
from reports.html.tables import Column, section, table

if TYPE_CHECKING:
    from reports.timeline import Timeline

AXIS_COLUMNS = (
    Column("Axis"),
    Column("Size", numeric=True),
    Column("Count", numeric=True),
    Column("Bytes", numeric=True),
    Column("Comm ms", numeric=True),
    Column("Exposed ms", numeric=True),
    Column("Must expose ms", numeric=True),
    Column("Hidden", numeric=True),
    Column("Communication, exposed, must"),
    Column("Evidence"),
)


def axes(document: Mapping[str, Any]) -> Markup | None:
    """Communication per axis and operation, measured against what must be exposed."""
    found = document["axes"]
    if not found:
        return None
    longest = max(axis["comm_ns"] or 0 for axis in found.values())
    ms = text.Milliseconds([longest])
    rows: list[list[Child]] = []
    for name, axis in found.items():
        confidence = axis["confidence"]
        evidence = text.words(axis["evidence"] or "not known")
        if confidence is not None:
            evidence += f" ({100 * confidence:.0f} %)"
        label: Child = [svg.swatch(view.axis_key(name)), " ", el("bdi", name)]
        size = text.number(axis["degree"])
        tip = el("span", evidence, title=axis["evidence_why"] or None)
        rows.append(_axis_row(label, size, axis, ms, longest, tip))
        rows += [
            _axis_row(el("span", text.words(op), class_="op"), "", figures, ms, longest, "")
            for op, figures in axis["ops"].items()
        ]
    why = [el("li", _why(name, axis)) for name, axis in found.items() if axis["expected_why"]]
    return section(
        "axes",
        "Communication per axis",
        table(AXIS_COLUMNS, rows),
        el("ul", why, class_="plain") if why else None,
        el("p", document["job"]["strategy_why"], class_="lead"),
        lead="Per step, mean over kept steps and ranks. Pale: all communication; solid: exposed; "
        "tick: what no schedule of the strategy can hide.",
    )


def _why(name: str, axis: Mapping[str, Any]) -> list[Child]:
    expected = axis["expected_exposed_ns"]
    if expected is None:
        return ["What ", el("b", name), " must expose is not known (", axis["expected_why"], ")."]
    must = text.duration(expected)
    return [el("b", name), f" must expose {must} a step (", axis["expected_why"], ")."]


def _axis_row(
    label: Child,
    size: str,
    axis: Mapping[str, Any],
    ms: text.Milliseconds,
    longest: int,
    evidence: Child,
) -> list[Child]:
    known = axis["comm_ns"] is not None and axis["exposed_ns"] is not None
    expected = axis["expected_exposed_ns"]
    return [
        label,
        size,
        text.number(axis["count"]),
        text.size(axis["bytes"]),
        ms(axis["comm_ns"]),
        ms(axis["exposed_ns"]),
        ms(expected),
        text.percent(axis["overlap_pct"]),
        svg.range_bar(axis["comm_ns"], axis["exposed_ns"], expected, longest) if known else "",
        evidence,
    ]


def findings(document: Mapping[str, Any]) -> Markup:
    """Findings in the document's order, each with its evidence."""
    found = [_finding(f, document) for f in document["findings"]]
    broken = [
        el("li", f"Rule {o['rule']} failed to run: {o['reason']}")
        for o in document["rules"]
        if o["verdict"] == "error"
    ]
    return section(
        "findings",
        "Findings",
        found or el("p", "No rule found anything to report."),
        el("ul", broken, class_="plain bad") if broken else None,
        _rules(document),
        lead="What must be acted on first, the most valuable first; then what is only stated.",
    )


def _finding(finding: Mapping[str, Any], document: Mapping[str, Any]) -> Markup:
    facts = view.finding_facts(finding, document)
    evidence = finding["evidence"]
    shown = (
        el(
            "details",
            el("summary", f"Evidence ({len(evidence)})"),
            _evidence(evidence),
            open=True,
        )
        if evidence
        else None
    )
    return el(
        "article",
        el(
            "h3",
            el("span", finding["severity"], class_=f"pill sev-{finding['severity']}"),
            " ",
            finding["title"],
            " ",
            el("code", finding["rule"]),
        ),
        el(
            "dl",
            [el("div", el("dt", name), el("dd", value)) for name, value in facts],
            class_="facts",
        ),
        el("p", finding["advice"]) if finding["advice"] else None,
        shown,
        el("p", "Rule page: ", el("code", finding["doc"]), class_="lead")
        if finding["doc"]
        else None,
        class_=f"finding edge-{finding['severity']}",
    )


def _evidence(rows: list[Mapping[str, Any]]) -> Markup:
    columns = (
        Column("Rank", numeric=True),
        Column("Step", numeric=True),
        Column("At ms", numeric=True),
        Column("Lasts", numeric=True),
        Column("Event"),
        Column("Note"),
        Column("Timeline"),
    )
    body: list[list[Child]] = [
        [
            str(row["rank"]),
            text.NONE if row["step"] is None else str(row["step"]),
            f"{row['start_ns'] / 1e6:,.3f}",
            text.duration(row["dur_ns"]),
            el(
                "bdi",
                text.shorten(text.visible(row["name"]), 90),
                title=row["name"],
                class_="event",
            ),
            row["note"],
            el(
                "button",
                "Show in timeline",
                type="button",
                class_="js-only show",
                data_rank=row["rank"],
                data_start=row["start_ns"],
                data_dur=row["dur_ns"],
            ),
        ]
        for row in rows
    ]
    return table(columns, body)


def _rules(document: Mapping[str, Any]) -> Markup:
    rows: list[list[Child]] = [
        [el("code", o["rule"]), text.words(o["name"]), text.words(o["verdict"]), o["reason"]]
        for o in document["rules"]
    ]
    columns = (Column("Rule"), Column("Name"), Column("Outcome"), Column("Why"))
    summary = el("summary", f"All rules ({view.rule_counts(document)})")
    return el("details", summary, table(columns, rows))


def timeline(document: Mapping[str, Any], slices: Timeline | None) -> Markup:
    """The timeline's frame; the script fills it."""
    title = "Timeline"
    if slices is None or not slices.windows:
        return section("timeline", title, el("p", "This report was written without a timeline."))
    tools = [
        el("label", "Rank ", el("select", id="tl-rank")),
        el("label", "Step ", el("select", id="tl-step")),
        el(
            "label", "Find ", el("input", id="tl-find", type="search", placeholder="name, axis, op")
        ),
        *(
            el("button", sign, type="button", id=f"tl-{name}", title=hint, aria_label=hint)
            for sign, name, hint in (
                ("+", "in", "Zoom in"),
                ("−", "out", "Zoom out"),
                ("fit", "fit", "Fit the step"),
            )
        ),
    ]
    canvas = el(
        "canvas",
        id="tl-canvas",
        tabindex=0,
        role="img",
        aria_label="Timeline of device work. Arrows move, plus and minus zoom, F fits the step, "
        "N goes to the next match. Every figure it shows is also in the tables.",
    )
    keys = [
        [svg.swatch(key), " ", name]
        for key, name in (("compute", "compute"), ("memcpy", "copies"), ("idle", "idle"))
    ] + [[svg.swatch(view.axis_key(axis)), " ", axis] for axis in document["axes"]]
    return section(
        "timeline",
        title,
        el("p", "The timeline needs JavaScript; all figures are in the tables.", class_="no-js"),
        el(
            "div",
            el("div", tools, class_="tools"),
            el("div", canvas, el("div", id="tl-space"), id="tl-scroll"),
            el("p", id="tl-status", role="status"),
            el("ul", [el("li", key) for key in keys], class_="legend"),
            class_="js-only block",
        ),
        el("p", slices.left_out, class_="lead") if slices.left_out else None,
        lead="Drag to pan; + and − or the wheel (with Ctrl, or after a click) to zoom. Each rank's "
        "time starts with its own first step. The lost-time row shows where communication is "
        "exposed and where the device idles.",
    )


def coverage(document: Mapping[str, Any]) -> Markup:
    """What the figures rest on: inputs, coverage, and why figures are missing."""
    job, reasons = document["job"], document["null_reasons"]
    inputs = document["inputs"]
    return section(
        "coverage",
        "Coverage and inputs",
        el("ul", [el("li", line) for line in view.coverage_lines(document)], class_="plain"),
        el("p", f"Mesh from: {job['mesh_source'] or 'not known'}.", class_="lead"),
        el(
            "details",
            el("summary", f"{view.plural(len(inputs), 'input')}"),
            el("ul", [el("li", el("code", path)) for path in inputs], class_="plain"),
        ),
        el(
            "details",
            el("summary", f"Figures that are not given ({len(reasons)})"),
            table(
                (Column("Figure"), Column("Why")),
                [[el("code", key), why] for key, why in reasons.items()],
            ),
        ),
    )


def methods() -> Markup:
    """Meaning, formula and window of every figure."""
    columns = (
        Column("Figure"),
        Column("Meaning"),
        Column("Formula"),
        Column("Window"),
        Column("Key in the JSON"),
    )
    rows: list[list[Child]] = [
        [m.name, m.meaning, m.formula, m.window, el("code", m.key)] for m in METHODS
    ]
    return section(
        "methods",
        "How every figure is made",
        el("details", el("summary", f"{len(METHODS)} figures"), table(columns, rows)),
        lead="All times are whole nanoseconds inside; | x | is the length of a union of intervals.",
    )
