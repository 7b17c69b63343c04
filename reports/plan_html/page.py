"""The plan's page: one file without a single request; its tables are complete without script."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from reports.html.markup import Markup, el, json_block
from reports.html.page import asset as report_asset
from reports.html.page import head
from reports.plan_html import sections

NAVIGATION = (
    ("verdict", "Recommended"),
    ("what-if", "What if"),
    ("meshes", "Meshes"),
    ("strategies", "Strategies"),
    ("conditions", "Conditions"),
    ("checks", "Rules of thumb"),
    ("reliability", "Over days"),
    ("basis", "Basis"),
)


def render_plan_html(plan: Mapping[str, Any]) -> str:
    """The page of a plan document, as text.

    It embeds the document (``<script id="document">``, its long list of candidates cut to those the
    page shows) and the coefficients of the charts. The policy in its head allows exactly the style
    sheet and the script that stand in it, by hash.
    """
    style = report_asset("report.css") + _asset("plan.css")
    script = _asset("plan.js")
    links = [el("a", title, href=f"#{id_}") for id_, title in NAVIGATION]
    kept = {**plan, "candidates": plan["candidates"][: sections.SHOWN]}
    body = el(
        "body",
        el("a", "Skip to the plan", href="#verdict", class_="skip"),
        sections.header(plan),
        el("nav", links, aria_label="Sections"),
        el(
            "main",
            sections.recommended(plan),
            sections.what_if(plan),
            sections.meshes(plan),
            sections.strategies(plan),
            sections.conditions(plan),
            sections.checks(plan),
            sections.reliability(plan),
            sections.basis(plan),
        ),
        json_block(kept, id="document"),
        json_block(plan["curves"], id="curves"),
        el("script", Markup(script)),
    )
    top = head(_title(plan), style, script)
    return f"<!doctype html>\n{el('html', top, body, lang='en')}\n"


def _title(plan: Mapping[str, Any]) -> str:
    return f"meshscope plan: {plan['model']['name']}, {plan['machine']['devices']} devices"


def _asset(name: str) -> str:
    return (files("reports.plan_html") / "assets" / name).read_text(encoding="utf-8")
