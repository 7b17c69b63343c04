"""The plan on a terminal: the recommended mesh first, then the numbers behind it.

Reads the plan document alone. Everything is a rich ``Text``, never markup, and fits 80 columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.text import NONE, duration, visible

MAX_WIDTH = 100
SHOWN = 8
SHOWN_WORDS = 2  # of a family of strategies; longer ones are in the JSON
HOLDS: Mapping[bool | None, tuple[str, str]] = {
    True: ("yes", "green"),
    False: ("no", "bold red"),
    None: (NONE, "dim"),
}


def render_plan(plan: Mapping[str, Any], console: Console) -> None:
    """Print a plan document on a rich console."""
    width = min(console.width, MAX_WIDTH)
    _head(plan, console, width)
    _recommended(plan, console, width)
    _ranking(plan, console)
    _families(plan, console)
    _losers(plan, console, width)
    _conditions(plan, console, width)
    _checks(plan, console, width)
    _reliability(plan, console, width)
    _notes(plan, console, width)


def mesh_text(row: Mapping[str, Any]) -> str:
    """A candidate's mesh: ``fsdp dp_shard=64,tp=8``."""
    mesh = ",".join(f"{axis}={degree}" for axis, degree in row["mesh"].items())
    return f"{row['data']} {mesh}".strip()


def short_mesh(row: Mapping[str, Any]) -> str:
    """A candidate's mesh as narrow as it reads: ``pp4 hsdp:8x4 tp2``."""
    mesh = row["mesh"]
    data = [mesh[axis] for axis in ("dp_replicate", "dp_shard") if axis in mesh]
    words = [f"pp{mesh['pp']}"] if "pp" in mesh else []
    words += [f"{row['data']}:{'x'.join(map(str, data))}"] if data else []
    words += [f"{axis}{mesh[axis]}" for axis in ("cp", "tp", "ep") if axis in mesh]
    return " ".join(words) or "1 device"


def setup_text(row: Mapping[str, Any]) -> str:
    """A candidate's choices in words."""
    setup = row["setup"]
    one = setup["sequence"] * setup["sequences"]
    parts = [f"{setup['microbatches']} x {one:,} tokens a data rank"]
    if setup["schedule"]:
        chunks = f" of {setup['chunks']} chunks" if setup["chunks"] > 1 else ""
        parts.append(f"{setup['schedule']}{chunks}")
    parts.append("full recomputation" if setup["recompute"] == "full" else "no recomputation")
    return ", ".join(parts)


def whole(row: Mapping[str, Any], part: str) -> str:
    """All communication of an axis, beside what of it is exposed; empty for other parts."""
    comm = row["comm_s"].get(part.removeprefix("exposed "))
    return seconds(comm) if comm is not None and part.startswith("exposed") else ""


def giga(value: float) -> str:
    """Bytes as decimal gigabytes, as datasheets count."""
    scaled = value / 1e9
    return f"{scaled:,.0f} GB" if scaled >= 100 else f"{scaled:.1f} GB"


def seconds(value: float | None) -> str:
    """A time in its own unit."""
    return duration(None if value is None else value * 1e9)


def _head(plan: Mapping[str, Any], console: Console, width: int) -> None:
    request, model, machine = plan["request"], plan["model"], plan["machine"]
    shape = "x".join(map(str, request["slice"])) if request["slice"] else machine["devices"]
    facts = [
        f"{model['name']}, {model['parameters'] / 1e9:.1f}B parameters",
        f"{shape} x {machine['name']}",
        f"{request['batch_tokens']:,.0f} tokens a step",
        f"sequences of {request['sequence']:,}",
        f"compute at {machine['efficiency']:.0%} of peak",
    ]
    console.print(Text(visible(" · ".join(facts)), style="dim"), width=width)
    console.print()


def _recommended(plan: Mapping[str, Any], console: Console, width: int) -> None:
    best = plan["recommended"]
    if best is None:
        console.print(Text(visible(plan["reason"]), style="bold red"), width=width)
        console.print()
        return
    _heading(console, f"Recommended: {mesh_text(best)}")
    console.print(Text(f"  {setup_text(best)}"), width=width)
    speed = f"{best['tokens_per_s']:,.0f} tokens/s, {best['mfu_pct']:.1f} % MFU"
    console.print(Text(f"  step {seconds(best['step_s'])}, {speed}"), width=width)
    table = _table(("part", "left"), ("time", "right"), ("share", "right"), ("of all", "right"))
    for name, value in best["parts_s"].items():
        if value:
            share = f"{100 * value / best['step_s']:.1f} %"
            table.add_row(name, seconds(value), share, whole(best, name))
    console.print(Padding(table, (0, 0, 0, 2)))
    used = {name: value for name, value in best["memory_bytes"].items() if value >= 5e7}
    parts = ", ".join(f"{name} {giga(value)}" for name, value in used.items())
    total = giga(sum(best["memory_bytes"].values()))
    room = giga(plan["machine"]["memory_bytes"])
    memory = Text(f"memory {total} of {room}: {parts}")
    console.print(Padding(memory, (0, 0, 0, 2), expand=False), width=width)
    console.print()


def _ranking(plan: Mapping[str, Any], console: Console) -> None:
    rows = [row for row in plan["candidates"] if row["fits"]]
    if len(rows) < 2:
        return
    _heading(console, f"Ranked meshes ({min(SHOWN, len(rows))} of {len(rows)} that fit)")
    table = _table(
        ("", "right"), ("mesh", "left"), ("step", "right"), ("MFU %", "right"), ("GB", "right"),
        ("loses by", "left"),
    )  # fmt: skip
    for row in rows[:SHOWN]:
        memory = sum(row["memory_bytes"].values()) / 1e9
        table.add_row(
            str(row["rank"]),
            short_mesh(row),
            seconds(row["step_s"]),
            f"{row['mfu_pct']:.1f}",
            f"{memory:,.0f}",
            row["why"],
        )
    console.print(table)
    console.print()


def _families(plan: Mapping[str, Any], console: Console) -> None:
    """The best mesh of every simple strategy, also of those that do not fit."""
    rows = [row for row in plan["strategies"] if row["strategy"].count("+") < SHOWN_WORDS]
    _heading(console, "Best mesh of every strategy of one or two words")
    table = _table(
        ("strategy", "left"), ("mesh", "left"), ("GB", "right"), ("step", "right"),
        ("why not", "left"),
    )  # fmt: skip
    for row in rows:
        memory = f"{sum(row['memory_bytes'].values()) / 1e9:,.0f}" if row["memory_bytes"] else NONE
        step = seconds(row["step_s"]) if row["fits"] else NONE
        why = "recommended" if row["code"] == "best" else row["why"]
        table.add_row(row["strategy"], short_mesh(row), memory, step, why)
    console.print(table)
    console.print()


def _losers(plan: Mapping[str, Any], console: Console, width: int) -> None:
    """How many meshes lose, and by what most."""
    rows: Sequence[Mapping[str, Any]] = plan["candidates"]
    counts = Counter(row["code"] for row in rows if row["code"] != "best")
    if counts:
        words = ", ".join(f"{code} {count}" for code, count in counts.most_common())
        text = f"{len(rows)} meshes considered; the others lose by: {words}"
        console.print(Text(text, style="dim"), width=width)
        console.print()


def _conditions(plan: Mapping[str, Any], console: Console, width: int) -> None:
    _heading(console, "Conditions (rooflines at peak and datasheet rates)")
    for row in plan["conditions"]:
        word, style = HOLDS[row["holds"]]
        line = Text(f"{word:>4}  ", style=style)
        line.append(row["title"], style="bold")
        line.append(f"  {row['formula']}", style="dim")
        console.print(line, width=width)
        _indented(row["text"], console, width)
        if row["note"]:
            _indented(row["note"], console, width, style="dim")
    console.print()


def _checks(plan: Mapping[str, Any], console: Console, width: int) -> None:
    if not plan["checks"]:
        return
    _heading(console, "Rules of thumb")
    for row in plan["checks"]:
        word, style = HOLDS[row["follows"]]
        line = Text(f"{word:>4}  ", style=style)
        line.append(row["rule"], style="bold")
        console.print(line, width=width)
        _indented(row["text"], console, width)
    console.print()


def _reliability(plan: Mapping[str, Any], console: Console, width: int) -> None:
    row = plan["reliability"]
    _heading(console, "Over days")
    lines = [
        f"{row['interruptions_per_day']:.2f} interruptions a day, one every "
        f"{row['mtbf_s'] / 3600:,.1f} h (REL-RATE)",
        f"checkpoint every {row['checkpoint_interval_s'] / 60:,.0f} min at "
        f"{row['checkpoint_s']:.0f} s each (REL-YOUNG-DALY)",
        f"goodput {row['goodput']:.1%} with restarts of {row['restart_s']:.0f} s (REL-GOODPUT)",
    ]
    if row["tokens_per_day"]:
        lines.append(f"{row['tokens_per_day']:.3g} tokens a day")
    for line in lines:
        console.print(Text("  " + line), width=width)
    console.print()


def _notes(plan: Mapping[str, Any], console: Console, width: int) -> None:
    for title, lines in (("Measured", plan["measured"]), ("Assumed", plan["assumptions"])):
        if lines:
            _heading(console, title)
            for line in lines:
                text = Text(visible(line), style="dim")
                console.print(Padding(text, (0, 0, 0, 2), expand=False), width=width)


def _indented(text: str, console: Console, width: int, style: str = "") -> None:
    line = Text(visible(text), style=style)
    console.print(Padding(line, (0, 0, 0, 6), expand=False), width=width)


def _heading(console: Console, title: str) -> None:
    console.print(Text(visible(title), style="bold underline"))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, side in columns:
        if side == "right":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table
