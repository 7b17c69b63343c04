"""The HTML report as text: safe, self-contained, and with the document's figures."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_fixture import GATES, HOSTILE, make_measurements, make_outcomes, with_hostile_text

from reports import view
from reports.document import build_document
from reports.html import render_html, svg
from reports.html.markup import Markup, el, json_block
from reports.html.methods import METHODS
from reports.html.page import asset
from reports.text import visible
from reports.timeline import build_timeline


class Page(HTMLParser):
    """Elements with attributes, and text by element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text_of(self, tag: str) -> str:
        return "".join(text for name, text in self.texts if name == tag)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    m, activity = make_measurements()
    return build_document(m, make_outcomes(m, activity), GATES)


@pytest.fixture(scope="module")
def text(document: dict[str, Any]) -> str:
    m, activity = make_measurements()
    return render_html(document, build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_element_is_closed(page: Page) -> None:
    assert page.open == []


def test_policy_allows_exactly_the_page_s_own_style_and_script(page: Page, text: str) -> None:
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        source = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(source) == 1
        digest = base64.b64encode(hashlib.sha256(source[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_is_loaded_and_nothing_is_inline(page: Page, text: str) -> None:
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert "style" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#"), attributes
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", text)


def test_structure_for_assistive_technology(page: Page) -> None:
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in page.all("a")} <= {f"#{id_}" for id_ in ids}
    charts = [a for a in page.all("svg") if a.get("role") == "img"]
    assert len(charts) == 2
    assert len(page.all("desc")) == 2
    hidden = [a for a in page.all("svg") if a.get("aria-hidden") == "true"]
    assert len(charts) + len(hidden) == len(page.all("svg"))


def test_document_is_embedded_whole(document: dict[str, Any], text: str) -> None:
    block = re.search(r'<script type="application/json" id="document">(.*?)</script>', text)
    assert block is not None
    assert json.loads(block[1]) == document


def test_figures_are_on_the_page(page: Page) -> None:
    dd = [text for tag, text in page.texts if tag == "dd"]
    assert dd[:4] == ["7.66 ms", "78.8 %", "17.5 %", "worst: rank 3, 23.9 %"]
    cells = [text for tag, text in page.texts if tag == "td"]
    for figure in ("1.170", "15.3 %", "736 MiB", "94.4 %", "8.292", "23.9 %"):
        assert figure in cells


def test_findings_carry_evidence_to_jump_to(document: dict[str, Any], page: Page) -> None:
    buttons = [b for b in page.all("button") if "data-start" in b]
    rows = [row for finding in document["findings"] for row in finding["evidence"]]
    assert [(int(b["data-rank"] or -1), int(b["data-start"] or -1)) for b in buttons] == [
        (row["rank"], row["start_ns"]) for row in rows
    ]


def test_without_a_timeline_the_page_says_so(document: dict[str, Any]) -> None:
    text = render_html(document)
    assert "written without a timeline" in text
    assert 'id="slices"' not in text
    assert "<canvas" not in text


def test_a_document_without_a_step_still_renders(document: dict[str, Any]) -> None:
    bare = document | {
        "step": None, "axes": {}, "per_rank": [], "findings": [], "gates": [], "warnings": [],
        "exposed_comm_pct": None, "exposed_comm_pct_worst": None, "bubble_pct": None,
    }  # fmt: skip
    page = Page(render_html(bare))
    assert "No verdict: no step could be measured." in page.text_of("p")
    assert not [a for a in page.all("svg") if a.get("role") == "img"]


def test_hostile_text_is_only_ever_text() -> None:
    m, activity = make_measurements(hostile=True)
    m, outcomes = with_hostile_text(m, make_outcomes(m, activity))
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    text = render_html(build_document(m, outcomes, GATES, timeline=timeline), timeline)
    page = Page(text)
    assert "img" not in {tag for tag, _ in page.elements}
    assert len(page.all("script")) == 3
    for raw in ("\u202e", "\x1b", "<img"):
        assert raw not in text
    assert f"Advice {visible(HOSTILE)}" in page.text_of("p")


def test_hostile_axis_names_do_not_reach_attributes(document: dict[str, Any]) -> None:
    axis = document["axes"]["tp"]
    step = document["step"] | {"exposed_comm_ns": {HOSTILE: 5}}
    text = render_html(document | {"axes": {HOSTILE: axis}, "step": step})
    assert "<img" not in text
    assert 'class="k-unknown"' in text


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (el("p", "a<b>&\"'"), "<p>a&lt;b&gt;&amp;&quot;&#x27;</p>"),
        (el("p", Markup("<b>x</b>"), ["y", None, 3]), "<p><b>x</b>y3</p>"),
        (el("td", title='"><script>'), '<td title="&quot;&gt;&lt;script&gt;"></td>'),
        (el("input", hidden=True, name=None, checked=False), "<input hidden>"),
        (el("p", "x", data_rank=3, class_="num"), '<p data-rank="3" class="num">x</p>'),
        (el("p", "a\x00b"), "<p>a\\x00b</p>"),
    ],
)
def test_elements_escape(made: Markup, expected: str) -> None:
    assert made == expected


def test_json_blocks_cannot_be_ended_from_inside() -> None:
    value = {"a": "</script><!--\u2028\u2029&"}
    block = json_block(value, id="x")
    inside = block.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == value


def test_bars_are_to_scale(document: dict[str, Any]) -> None:
    parts = view.parts(document["step"])
    half = [view.Part("compute", "", document["step"]["time_ns"] // 2)]
    drawing = svg.stack([svg.Bar(parts), svg.Bar(half)], title="t", desc="d")
    boxes = [a for a in Page(drawing).all("rect") if a["class"] != "over"]
    widths = [float((a["width"] or "").rstrip("%")) for a in boxes]
    for part, width in zip(parts, widths, strict=False):
        assert width == pytest.approx(100 * part.ns / document["step"]["time_ns"], abs=0.01)
    assert sum(widths[:-1]) == pytest.approx(100, abs=0.05)
    assert widths[-1] == pytest.approx(50, abs=0.01)
    lefts = [float((a["x"] or "").rstrip("%")) for a in boxes]
    for left, width, following in zip(lefts, widths, lefts[1:-1], strict=False):
        assert left + width == pytest.approx(following, abs=0.02)


def test_range_bar_marks_what_must_be_exposed() -> None:
    page = Page(svg.range_bar(50, 25, 10, 100))
    assert [a["width"] for a in page.all("rect")] == ["50.00%", "25.00%"]
    assert page.all("line")[0]["x1"] == "10.00%"
    assert Page(svg.range_bar(50, 25, None, 100)).all("line") == []


def test_every_colour_has_a_rule_and_a_value_in_each_theme() -> None:
    style = asset("report.css")
    for key in view.GLYPHS:
        assert re.search(rf"\.k-{key} {{ fill: var\(--k-{key}\); }}", style), key
        assert len(re.findall(rf"--k-{key}: #", style)) == 3, key


def test_theme_blocks_agree() -> None:
    """Dark by choice and dark by system preference are the same colours."""
    style = asset("report.css")
    blocks = re.findall(r"color-scheme: dark;(.*?)}", style, re.DOTALL)
    assert len(blocks) == 2
    assert blocks[0].split() == blocks[1].split()


def test_every_method_names_a_figure_of_the_document(document: dict[str, Any]) -> None:
    for method in METHODS:
        node: Any = document
        for key in (
            method.key.replace("axes.", "axes.tp.").replace("findings.", "findings.0.").split(".")
        ):
            node = node[int(key)] if isinstance(node, list) else node[key]


def test_every_headline_figure_has_a_method() -> None:
    keys = {method.key for method in METHODS}
    step = ("time_ns", "compute_ns", "exposed_comm_ns", "bubble_ns", "memcpy_ns", "idle_ns")
    axis = ("count", "bytes", "comm_ns", "exposed_ns", "overlap_pct", "expected_exposed_ns")
    assert {f"step.{key}" for key in step} <= keys
    assert {f"axes.{key}" for key in axis} <= keys
    assert {"exposed_comm_pct", "bubble_pct", "findings.savings_ns"} <= keys


def test_script_is_small_and_never_writes_html() -> None:
    script = asset("report.js")
    assert len(script.encode()) <= 20 * 1024
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
    ):
        assert forbidden not in script
    assert "</" not in script


def test_sample_page_is_small(text: str) -> None:
    assert len(text.encode()) < 200_000
