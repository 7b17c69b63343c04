"""The HTML report: one file without a single request, readable without script.

The policy in its head allows exactly the style sheet and script that stand in it, by hash, and
nothing from anywhere else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from reports.html import detail, overview, roofline, svg, waits
from reports.html.markup import Markup, el, join, json_block
from reports.html.pack import pack

if TYPE_CHECKING:
    from reports.timeline import Timeline

NAVIGATION = (
    ("verdict", "Verdict"),
    ("budget", "Budget"),
    ("axes", "Axes"),
    ("waits", "Waits"),
    ("compute", "Compute"),
    ("findings", "Findings"),
    ("timeline", "Timeline"),
    ("steps", "Steps"),
    ("ranks", "Ranks"),
    ("coverage", "Coverage"),
    ("methods", "Methods"),
)


def render_html(document: Mapping[str, Any], timeline: Timeline | None = None) -> str:
    """The report as one HTML file.

    Args:
        document: a result document.
        timeline: slices to draw; without them the page has no timeline.

    Returns:
        The page's text. It embeds the document (``<script id="document">``) and the packed slices.
    """
    style, script = asset("report.css"), asset("report.js")
    sections = [
        overview.card(document),
        overview.gates(document),
        overview.notices(document),
        overview.budget(document),
        detail.axes(document),
        waits.waits(document),
        roofline.roofline(document),
        detail.findings(document),
        detail.timeline(document, timeline),
        overview.steps(document),
        overview.ranks(document),
        detail.coverage(document),
        detail.methods(),
    ]
    present = {name for name in NAVIGATION if f' id="{name[0]}"' in join(sections)}
    links = [el("a", title, href=f"#{id_}") for id_, title in NAVIGATION if (id_, title) in present]
    body = el(
        "body",
        el("a", "Skip to the report", href="#verdict", class_="skip"),
        svg.hatches(),
        overview.header(document),
        el("nav", links, aria_label="Sections"),
        el("main", sections),
        json_block(document, id="document"),
        json_block(pack(timeline), id="slices") if timeline else None,
        el("script", Markup(script)),
    )
    return (
        f"<!doctype html>\n{el('html', head(_title(document), style, script), body, lang='en')}\n"
    )


def head(title: str, style: str, script: str) -> Markup:
    """The head of a page: nothing but this style and this script, by their hashes, may run."""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", Markup(style)),
    )


def _title(document: Mapping[str, Any]) -> str:
    job = document["job"]
    return f"meshscope: {job['strategy'] or 'job'}, {len(job['ranks_seen'])} ranks"


def asset(name: str) -> str:
    """Text of a file in ``reports/html/assets``."""
    return (files("reports.html") / "assets" / name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
