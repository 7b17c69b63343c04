"""The parts of the plan's page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.html.markup import Attribute, Child, Markup, el
from reports.html.tables import Column, figure, section, table
from reports.plan_terminal import giga, mesh_text, seconds, setup_text, short_mesh, whole
from reports.text import NONE, words

SHOWN = 20
"""Candidates in the page's table and document; ``--json`` has all."""
DEGREES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STRATEGIES = {"dp": "DP", "fsdp": "FSDP", "tp": "TP over all", "fsdp+tp": "FSDP + TP"}
SERIES = (
    ("compute", "Compute"), ("dp", "DP"), ("fsdp", "FSDP"), ("tp", "TP over all"),
    ("mixed", "FSDP + TP"),
)  # fmt: skip
VERDICTS: Mapping[bool | None, tuple[str, str]] = {
    True: ("holds", "true"), False: ("fails", "false"), None: ("no verdict", "none"),
}  # fmt: skip
FOLLOWS: Mapping[bool | None, tuple[str, str]] = {
    True: ("followed", "true"), False: ("not followed", "false"), None: ("figure", "none"),
}  # fmt: skip


def header(plan: Mapping[str, Any]) -> Markup:
    """What was planned, and the page's two buttons."""
    request, model, machine = plan["request"], plan["model"], plan["machine"]
    facts = [
        f"{machine['devices']:,} x {machine['name']}",
        f"{request['batch_tokens']:,.0f} tokens a step",
        f"sequences of {request['sequence']:,}",
        f"compute at {machine['efficiency']:.0%} of peak",
    ]
    buttons = [
        el("button", "Dark / light", type="button", id="theme", class_="js-only"),
        el("button", "Save JSON", type="button", id="save", class_="js-only"),
    ]
    return el(
        "header",
        el(
            "div",
            el("p", "meshscope ", plan["tool_version"], class_="brand"),
            el("h1", "Plan: ", el("bdi", model["name"])),
            el("ul", [el("li", fact) for fact in facts], class_="facts"),
        ),
        el("div", buttons, class_="actions"),
        class_="top",
    )


def recommended(plan: Mapping[str, Any]) -> Markup:
    """The best mesh with its figures, parts and memory."""
    best = plan["recommended"]
    if best is None:
        return el(
            "section",
            el("h2", "Recommended", class_="sr"),
            el("p", plan["reason"], class_="headline"),
            id="verdict",
            class_="panel card tone-bad",
        )
    total = sum(best["memory_bytes"].values())
    tiles = [
        figure("Step", seconds(best["step_s"]), f"{best['setup']['tokens']:,} tokens"),
        figure("Tokens a second", f"{best['tokens_per_s']:,.0f}", ""),
        figure("Model FLOPs utilisation", f"{best['mfu_pct']:.1f} %", "of the dense peak"),
        figure("Memory", giga(total), f"of {giga(plan['machine']['memory_bytes'])}"),
    ]
    shares = [
        [name, seconds(value), f"{100 * value / best['step_s']:.1f} %", whole(best, name)]
        for name, value in best["parts_s"].items()
        if value
    ]
    memory = [[name, giga(value)] for name, value in best["memory_bytes"].items()]
    return el(
        "section",
        el("h2", "Recommended", class_="sr"),
        el("p", mesh_text(best), class_="headline"),
        el("p", setup_text(best), class_="lead"),
        el("dl", tiles, class_="tiles"),
        el(
            "div",
            el("div", el("h3", "Step"), table(
                [Column("part"), Column("time", numeric=True), Column("share", numeric=True),
                 Column("of all", numeric=True)],
                shares,
            )),
            el("div", el("h3", "Memory of the heaviest device"), table(
                [Column("category"), Column("size", numeric=True)], memory
            )),
            class_="why",
        ),
        id="verdict",
        class_="panel card tone-good",
    )  # fmt: skip


def what_if(plan: Mapping[str, Any]) -> Markup:
    """Sliders, the two charts with their tables, and the times where the sliders stand."""
    curves = plan["curves"]
    lead = (
        "Compute and communication of the feed-forward block over all layers, as the scaling book "
        "draws them: bf16, links at their datasheet rate, compute at the chosen share of the peak. "
        "Where a strategy's communication lies below compute, it can hide."
    )
    columns = [Column("strategy"), Column("compute", numeric=True),
               Column("communication", numeric=True), Column("step", numeric=True),
               Column("bound by")]  # fmt: skip
    rows: list[Sequence[Child]] = []
    for name, label in STRATEGIES.items():
        row = curves["times"][name]
        over = row["step_s"] > row["math_s"] * (1 + 1e-9)
        shown = f"{label}, Y = {curves['point']['tensor']}" if name == "fsdp+tp" else label
        rows.append([
            shown, seconds(row["math_s"]), seconds(row["comm_s"]), seconds(row["step_s"]),
            "communication" if over else "compute",
        ])  # fmt: skip
    charts = [
        _chart("batch", "Over batch size", "tokens"),
        _chart("chips", "Over chips", "chips"),
    ]
    return section(
        "what-if",
        "What if",
        _controls(curves),
        el("h3", "At this point"),
        el("div", table(columns, rows), id="at-point"),
        el("p", "The charts need script.", class_="no-js"),
        _legend(),
        el("div", charts, class_="charts js-only block"),
        lead=lead,
    )


def _controls(curves: Mapping[str, Any]) -> Markup:
    point = curves["point"]
    degrees = sorted({*DEGREES, point["tensor"]})
    batch, chips = math.log2(point["batch"]), math.log2(point["chips"])
    below = min(9, math.floor(chips))
    sliders = [
        _slider("batch", "Batch", batch - 8, batch + 8, 0.125, batch),
        _slider("chips", "Chips", chips - below, chips + 6, 1, chips),
        _slider(
            "tensor", "Tensor degree Y of FSDP + TP", 0, len(degrees) - 1, 1,
            degrees.index(point["tensor"]), data_list=str(degrees),
        ),
        _slider("efficiency", "Compute, share of peak", 10, 100, 1, 100 * point["efficiency"]),
    ]  # fmt: skip
    selects = [
        _select("model", "Model", [row["name"] for row in curves["models"]]),
        _select("machine", "Hardware", [row["name"] for row in curves["machines"]]),
    ]
    return el("div", selects, sliders, class_="controls js-only block")


def _slider(
    id_: str, label: str, low: float, high: float, step: float, value: float, **more: Attribute
) -> Markup:
    return el(
        "div",
        el("label", f"{label} ", el("output", id=f"o-{id_}", for_=f"c-{id_}"), for_=f"c-{id_}"),
        el("input", type="range", id=f"c-{id_}", min=repr(low), max=repr(high), step=repr(step),
           value=repr(value), **more),
    )  # fmt: skip


def _select(id_: str, label: str, names: Sequence[str]) -> Markup:
    return el(
        "div",
        el("label", label, for_=f"c-{id_}"),
        el("select", [el("option", name) for name in names], id=f"c-{id_}"),
    )


def _chart(id_: str, title: str, unit: str) -> Markup:
    """An empty drawing the script fills, and its table."""
    columns = [Column(unit), *(Column(name, numeric=True) for _, name in SERIES)]
    drawing = el(
        "svg",
        el("title", f"Seconds of a step {title.lower()}"),
        el("desc", "Log-log lines of compute and every strategy's communication; table below."),
        id=f"chart-{id_}",
        viewBox="0 0 560 300",
        role="img",
        class_="chart",
    )
    return el(
        "figure",
        el("figcaption", title),
        drawing,
        el("details", el("summary", "Table"), table(columns, []), id=f"table-{id_}"),
    )


def _legend() -> Markup:
    keys = [
        el("li", el("svg", el("path", d="M0 6H26", class_=f"s-{style}"), width=26, height=12,
                    class_="key", aria_hidden="true"), name)
        for style, name in SERIES
    ]  # fmt: skip
    return el("ul", keys, class_="legend js-only block")


def meshes(plan: Mapping[str, Any]) -> Markup:
    """The ranking, with bars of the parts and why each one loses."""
    rows = [row for row in plan["candidates"] if row["fits"]]
    longest = max((row["step_s"] for row in rows[:SHOWN]), default=1.0)
    columns = [Column("#", numeric=True), Column("mesh"), Column("step", numeric=True),
               Column("parts"), Column("MFU", numeric=True), Column("memory", numeric=True),
               Column("loses by")]  # fmt: skip
    shown: list[Sequence[Child]] = [
        [
            str(row["rank"]),
            el("span", short_mesh(row), class_="mesh"),
            seconds(row["step_s"]),
            _bar(row["parts_s"], longest),
            f"{row['mfu_pct']:.1f} %",
            giga(sum(row["memory_bytes"].values())),
            "" if row["code"] == "best" else row["why"],
        ]
        for row in rows[:SHOWN]
    ]
    considered = len(plan["candidates"])
    lead = f"{considered} meshes considered, {len(rows)} fit; the {len(shown)} fastest are shown."
    return section("meshes", "Ranked meshes", _parts_legend(rows), table(columns, shown), lead=lead)


def _parts_legend(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """The colours of the bars: parts that occur in the shown rows."""
    names = dict.fromkeys(
        name for row in rows[:SHOWN] for name, value in row["parts_s"].items() if value
    )
    keys = [
        el("li", el("svg", el("rect", width=14, height=12, class_=f"k-{_part_key(name)}"),
                    width=14, height=12, class_="swatch", aria_hidden="true"), " ", words(name))
        for name in names
    ]  # fmt: skip
    return el("ul", keys, class_="legend")


def _part_key(name: str) -> str:
    """Colour name of a part of a step."""
    return name.removeprefix("exposed ")


def _bar(parts: Mapping[str, float], longest: float) -> Markup:
    """One step as a bar of its parts; the table's other columns say the same in words."""
    shapes, x = [], 0.0
    for name, value in parts.items():
        width = 100 * value / longest
        box: dict[str, Attribute] = {"x": f"{x:.2f}%", "width": f"{width:.2f}%", "height": 12}
        title = el("title", f"{words(name)} {seconds(value)}")
        shapes.append(el("rect", title, class_=f"k-{_part_key(name)}", **box))
        x += width
    return el("svg", shapes, width=200, height=12, class_="parts", aria_hidden="true")


def strategies(plan: Mapping[str, Any]) -> Markup:
    """The best mesh of every combination of strategies, with memory by category."""
    names = ("weights", "gradients", "optimizer", "gathered", "activations", "logits")
    columns = [Column("strategy"), Column("best mesh"), Column("step", numeric=True),
               *(Column(name, numeric=True) for name in names),
               Column("in all", numeric=True), Column("why not")]  # fmt: skip
    rows: list[Sequence[Child]] = []
    for row in plan["strategies"]:
        memory = row["memory_bytes"]
        sizes = [giga(memory[name]) if memory else NONE for name in names]
        why = "recommended" if row["code"] == "best" else row["why"]
        rows.append([
            row["strategy"],
            el("span", short_mesh(row), class_="mesh"),
            seconds(row["step_s"]) if row["fits"] else NONE,
            *sizes,
            giga(sum(memory.values())) if memory else NONE,
            why,
        ])  # fmt: skip
    lead = "Memory of the heaviest device; what is in all includes the reserve."
    return section("strategies", "Strategies", table(columns, rows), lead=lead)


def conditions(plan: Mapping[str, Any]) -> Markup:
    """Every condition with its numbers."""
    lead = "Rooflines: peak FLOP/s, datasheet link rates, everything overlapped."
    rows = [
        [_pill(VERDICTS[row["holds"]]), row["title"], _formula(row), el("code", row["formula"])]
        for row in plan["conditions"]
    ]
    columns = [Column(""), Column("condition"), Column("with numbers"), Column("formula")]
    return section("conditions", "Conditions", table(columns, rows), lead=lead)


def _formula(row: Mapping[str, Any]) -> Markup:
    note = el("span", row["note"], class_="note") if row["note"] else None
    return el("div", el("code", row["text"]), note)


def _pill(verdict: tuple[str, str]) -> Markup:
    word, tone = verdict
    return el("span", word, class_=f"pill verdict-{tone}")


def checks(plan: Mapping[str, Any]) -> Markup:
    """Rules of thumb."""
    rows = [[_pill(FOLLOWS[row["follows"]]), row["rule"], row["text"]] for row in plan["checks"]]
    columns = [Column(""), Column("rule"), Column("here")]
    return section("checks", "Rules of thumb", table(columns, rows))


def reliability(plan: Mapping[str, Any]) -> Markup:
    """Interruptions, checkpoints, goodput."""
    row = plan["reliability"]
    day = row["tokens_per_day"]
    tiles = [
        figure("Interruptions a day", f"{row['interruptions_per_day']:.2f}",
               f"one every {row['mtbf_s'] / 3600:,.1f} h"),
        figure("Checkpoint every", f"{row['checkpoint_interval_s'] / 60:,.0f} min",
               f"at {row['checkpoint_s']:.0f} s each"),
        figure("Goodput", f"{row['goodput']:.1%}", f"restart {row['restart_s']:.0f} s"),
        figure("Tokens a day", f"{day:.3g}" if day else NONE, ""),
    ]  # fmt: skip
    lead = f"{row['device_hours_per_failure']:,.0f} device-hours an interruption; " + ", ".join(
        row["formulas"]
    )
    return section("reliability", "Over days", el("dl", tiles, class_="tiles"), lead=lead)


def basis(plan: Mapping[str, Any]) -> Markup:
    """Figures of the machine with their sources, what was measured, what is assumed."""
    figures = [
        [row["name"], f"{row['value']:g} {row['unit']}", row["source"]]
        for row in plan["machine"]["figures"]
    ]
    columns = [Column("figure"), Column("value", numeric=True), Column("source")]
    measured = [el("h3", "Measured"), _list(plan["measured"])] if plan["measured"] else None
    return section(
        "basis", "Basis", table(columns, figures), measured,
        el("h3", "Assumed"), _list(plan["assumptions"]),
    )  # fmt: skip


def _list(lines: Sequence[str]) -> Markup:
    return el("ul", [el("li", line) for line in lines])
