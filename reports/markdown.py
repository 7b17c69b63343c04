"""The Markdown report: short enough for a pull-request comment.

Text from a trace goes into code spans or is escaped, so that it can neither form markup nor
mention people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports import compute, text, view
from reports.verdict import verdict

MAX_FINDINGS = 10
MAX_EVIDENCE = 3
_TONES = {"good": "✅", "attention": "⚠️", "bad": "❌", "unknown": "❔"}
_GATES = {True: "✅ pass", False: "❌ FAIL", None: "❔ no verdict"}
_SPECIAL = re.compile(r"([\\`*\[\]<>~|&]|(?<!\w)_|_(?!\w))")
_REFERENCE = re.compile(r"([@#])")  # mentions and issue numbers, which GitHub links even if escaped


def render_markdown(document: Mapping[str, Any]) -> str:
    """A result document as GitHub-flavoured Markdown, ending in a newline."""
    sections = [
        "\n".join(_card(document)),
        "\n".join(_gates(document)),
        "\n".join(_budget(document)),
        "\n".join(_axes(document)),
        "\n".join(_compute(document)),
        "\n".join(_findings(document)),
        "\n".join(_notes(document)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def prose(foreign: str) -> str:
    """Text with everything Markdown or HTML would act on escaped; mentions are broken up."""
    return _REFERENCE.sub("\\1\u2060", _SPECIAL.sub(r"\\\1", text.visible(foreign)))


def code(foreign: str) -> str:
    """Text as a code span that is also safe in a table cell."""
    shown = text.visible(foreign).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {shown} {fence}" if longest else f"{fence}{shown}{fence}"


def _card(document: Mapping[str, Any]) -> Iterator[str]:
    card = verdict(document)
    yield f"## {_TONES[card.tone]} {prose(card.headline)}"
    yield ""
    yield " · ".join(code(fact) for fact in view.job_facts(document))
    yield ""
    yield from (f"- {prose(line)}" for line in card.why)
    yield ""
    value = f" Worth {card.worth}." if card.worth else ""
    yield f"**Next:** {prose(card.action)}{value}"


def _gates(document: Mapping[str, Any]) -> Iterator[str]:
    if document["gates"]:
        rows = [
            (
                _GATES[gate["passed"]],
                code(gate["gate"]),
                text.quantity(gate["value"], gate["unit"]),
                prose(gate["reason"]),
            )
            for gate in document["gates"]
        ]
        yield from _table(("gate", "", "value", "why"), ("l", "l", "r", "l"), rows)


def _budget(document: Mapping[str, Any]) -> Iterator[str]:
    step = document["step"]
    if step:
        ms = text.Milliseconds([step["time_ns"]])
        rows = [
            (prose(p.label), ms(p.ns), text.percent(text.share(p.ns, step["time_ns"])))
            for p in view.parts(step)
        ]
        if step["bubble_ns"] is None:
            rows.append(("pipeline bubble", text.NONE, "not measured"))
        rows.append(("**mean step**", f"**{ms(step['time_ns'])}**", "100 %"))
        yield from _table(("where the time goes", "ms", "share"), ("l", "r", "r"), rows)


def _axes(document: Mapping[str, Any]) -> Iterator[str]:
    axes = document["axes"]
    if not axes:
        return
    ms = text.Milliseconds([axis["comm_ns"] for axis in axes.values()])
    rows = [
        (
            code(name),
            text.number(axis["degree"]),
            text.number(axis["count"]),
            text.size(axis["bytes"]),
            ms(axis["comm_ns"]),
            ms(axis["exposed_ns"]),
            text.percent(axis["overlap_pct"]),
            ms(axis["expected_exposed_ns"]),
            text.words(axis["evidence"] or text.NONE),
        )
        for name, axis in axes.items()
    ]
    head = ("axis", "size", "count", "bytes", "comm ms", "exposed ms", "hidden", "must expose ms")
    yield from _table((*head, "evidence"), ("l", *"rrrrrrr", "l"), rows)


def _compute(document: Mapping[str, Any]) -> Iterator[str]:
    if document["step"] and compute.is_shown(document):
        sides = ("l", "l", *"r" * (len(compute.COLUMNS) - 2))
        rows = [tuple(map(prose, row)) for row in compute.rows(document)]
        yield from _table(compute.COLUMNS, sides, rows)
        yield ""
        yield prose(compute.headline(document))


def _findings(document: Mapping[str, Any]) -> Iterator[str]:
    findings = document["findings"]
    yield f"### Findings ({view.rule_counts(document)})"
    yield ""
    if not findings:
        yield "None."
    for finding in findings[:MAX_FINDINGS]:
        facts = view.finding_facts(finding, document)
        figures = ", ".join(f"{name} {prose(value)}" for name, value in facts)
        yield f"- **{finding['severity']}** {code(finding['rule'])} {prose(finding['title'])}"
        yield f"  <br>{figures}"
        if finding["advice"]:
            yield f"  <br>{prose(finding['advice'])}"
        for row in finding["evidence"][:MAX_EVIDENCE]:
            at = f"rank {row['rank']} at {row['start_ns'] / 1e6:,.3f} ms"
            name = code(text.shorten(text.visible(row["name"]), 80))
            yield f"  - {at}, {text.duration(row['dur_ns'])}: {name}"
    if len(findings) > MAX_FINDINGS:
        yield f"- and {len(findings) - MAX_FINDINGS} more"
    for outcome in document["rules"]:
        if outcome["verdict"] == "error":
            yield f"- rule {code(outcome['rule'])} failed to run: {prose(outcome['reason'])}"


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    for line in (*document["warnings"], *document["conflicts"]):
        yield f"> ⚠️ {prose(line)}"
        yield ">"
    yield ""
    yield "<details><summary>Coverage</summary>"
    yield ""
    yield from (f"- {prose(line)}" for line in view.coverage_lines(document))
    yield ""
    yield f"</details>\n\n<sub>meshscope {document['tool_version']}</sub>"


def _table(
    head: Sequence[str], sides: Sequence[str], rows: Iterable[Sequence[str]]
) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "|".join("---:" if side == "r" else "---" for side in sides) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
