"""The HTML report in a real browser: offline, silent, and its timeline obeys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_fixture import GATES, make_measurements, make_outcomes, with_hostile_text

from reports.document import build_document
from reports.html import render_html
from reports.json_ import render_json
from reports.timeline import build_timeline

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (set CHROMIUM to its path)"),
    # Playwright's own event loop and transport are closed by its driver, late and loudly.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    m, activity = make_measurements()
    return build_document(m, make_outcomes(m, activity), GATES)


@pytest.fixture(scope="module")
def report(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    m, activity = make_measurements()
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(document, timeline), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    m, activity = make_measurements(hostile=True)
    m, outcomes = with_hostile_text(m, make_outcomes(m, activity))
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(render_html(build_document(m, outcomes, GATES), timeline), encoding="utf-8")
    return path


class Visit:
    """An open page that fails the test on any console message, error or request."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(
            offline=True, viewport={"width": 1280, "height": 900}, **options
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("#tl-canvas[data-ready]")

    def state(self) -> dict[str, str]:
        values: dict[str, str] = self.page.evaluate(
            "({...document.getElementById('tl-canvas').dataset})"
        )
        return values

    def window(self) -> tuple[int, int]:
        state = self.state()
        return int(state["from"]), int(state["to"])

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.noise == []
        assert all(url.startswith(("file:", "blob:")) for url in self.requests), self.requests


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_offline_in_light_and_dark(browser: Any, report: Path, scheme: str) -> None:
    with Visit(browser, report, color_scheme=scheme) as visit:
        background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(c) for c in background[4:-1].split(",")) > 3 * 128
        assert light == (scheme == "light")
        visit.page.click("#theme")
        toggled = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(c) for c in toggled[4:-1].split(",")) > 3 * 128) != light


def test_first_paint_is_quick(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        paint = visit.page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        )
        assert paint < 1000


def test_evidence_moves_the_timeline(browser: Any, report: Path, document: dict[str, Any]) -> None:
    rows = [row for finding in document["findings"] for row in finding["evidence"]]
    with Visit(browser, report) as visit:
        before = visit.window()
        for index, row in enumerate(rows[:2]):
            visit.page.locator("button.show").nth(index).click()
            start, end = visit.window()
            assert start < row["start_ns"] < row["start_ns"] + row["dur_ns"] < end
            assert end - start < (before[1] - before[0]) / 2
            assert visit.state()["mark"] == f"{row['start_ns']},{row['dur_ns']}"
            assert visit.state()["rank"] == str(row["rank"])
            assert visit.page.locator("#tl-canvas").evaluate("e => e === document.activeElement")
            assert visit.page.locator("#tl-canvas").is_visible()


def test_evidence_outside_the_timeline_is_said(
    browser: Any, document: dict[str, Any], tmp_path: Path
) -> None:
    m, activity = make_measurements()
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns, cap=1)
    path = tmp_path / "report.html"
    path.write_text(render_html(document, timeline), encoding="utf-8")
    with Visit(browser, path) as visit:
        before = visit.window()
        visit.page.locator("button.show").first.click()
        assert "the timeline leaves out" in visit.page.text_content("#tl-status")
        assert visit.window() == before


def test_keyboard_zooms_and_pans(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.page.focus("#tl-canvas")
        start, end = visit.window()
        visit.page.keyboard.press("+")
        zoomed = visit.window()
        assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (end - start), rel=0.01)
        visit.page.keyboard.press("ArrowRight")
        panned = visit.window()
        assert panned[0] - zoomed[0] == pytest.approx(0.2 * (zoomed[1] - zoomed[0]), rel=0.01)
        visit.page.keyboard.press("ArrowLeft")
        visit.page.keyboard.press("-")
        assert visit.window() == pytest.approx((start, end), abs=2)
        visit.page.keyboard.press("+")
        visit.page.keyboard.press("f")
        assert visit.window() == (start, end)


def test_wheel_zooms_at_the_pointer_and_drag_pans(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        canvas = visit.page.locator("#tl-canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        middle = box["x"] + 132 + (box["width"] - 132) / 2
        visit.page.mouse.move(middle, box["y"] + 40)
        visit.page.mouse.wheel(0, -50)  # not focused: the page scrolls, the timeline stays
        visit.page.wait_for_timeout(100)
        start, end = visit.window()
        canvas.scroll_into_view_if_needed()
        canvas.focus()
        box = canvas.bounding_box()
        visit.page.mouse.move(middle, box["y"] + 40)
        visit.page.mouse.wheel(0, -50)
        visit.page.wait_for_function(
            f"document.getElementById('tl-canvas').dataset.from !== '{start}'"
        )
        zoomed = visit.window()
        assert zoomed[1] - zoomed[0] < end - start
        assert sum(zoomed) / 2 == pytest.approx((start + end) / 2, rel=0.01)
        visit.page.mouse.down()
        visit.page.mouse.move(middle - 100, box["y"] + 40, steps=4)
        visit.page.mouse.up()
        panned = visit.window()
        share = 100 / (box["width"] - 132)
        assert panned[0] - zoomed[0] == pytest.approx(share * (zoomed[1] - zoomed[0]), rel=0.02)


def test_hover_names_the_slice(browser: Any, report: Path, document: dict[str, Any]) -> None:
    row = document["findings"][0]["evidence"][0]
    with Visit(browser, report) as visit:
        visit.page.locator("button.show").first.click()
        start, end = visit.window()
        box = visit.page.locator("#tl-canvas").bounding_box()
        share = (row["start_ns"] + row["dur_ns"] / 2 - start) / (end - start)
        lane = 22 + 2 * 22 + 8  # third lane: dp_shard
        visit.page.mouse.move(box["x"] + 132 + share * (box["width"] - 132), box["y"] + lane)
        tip = visit.page.locator("#tl-tip")
        tip.wait_for(state="visible")
        assert tip.text_content().startswith(row["name"] + "\n180.0 us at ")
        assert "comm · dp_shard · all_gather · 32 MiB" in tip.text_content()
        assert "exposed 180.0 us" in tip.text_content()


def test_search_counts_and_jumps(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.page.fill("#tl-find", "reduce_scatter")
        assert visit.page.text_content("#tl-status") == "18 slices, 4.680 ms in all"
        before = visit.window()
        visit.page.press("#tl-find", "Enter")
        assert "reduce_scatter · 64 MiB" in visit.page.text_content("#tl-status")
        assert visit.window() != before


def test_ranks_and_steps_can_be_chosen(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        assert visit.state()["rank"] == "3"  # opens with the worst one
        visit.page.select_option("#tl-rank", "5")
        visit.page.select_option("#tl-step", "2")
        first = visit.window()
        visit.page.select_option("#tl-step", "3")
        second = visit.window()
        assert first[0] < second[0]
        visit.page.select_option("#tl-rank", "all")
        assert visit.state()["rank"] == "all"


def test_saved_document_is_the_document(
    browser: Any, report: Path, document: dict[str, Any]
) -> None:
    with Visit(browser, report) as visit:
        with visit.page.expect_download() as download:
            visit.page.click("#save")
        saved = Path(download.value.path()).read_text(encoding="utf-8")
    import json

    assert render_json(json.loads(saved)) == render_json(document)


def test_rank_table_sorts(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.page.locator("#ranks th", has_text="Step ms").click()
        assert visit.page.locator("#ranks tbody td").first.text_content() == "3"


def test_without_script_verdict_and_findings_are_there(browser: Any, report: Path) -> None:
    with Visit(browser, report, java_script_enabled=False) as visit:
        text = visit.page.inner_text("body")
        assert "The largest cost besides compute is exposed tp communication" in text
        assert "All-gathers start only after the compute before them" in text
        assert "The timeline needs JavaScript" in text
        assert not visit.page.locator("#theme").is_visible()
        assert visit.page.locator("#budget svg[role=img]").is_visible()


def test_hostile_names_are_text(browser: Any, hostile: Path) -> None:
    with Visit(browser, hostile) as visit:
        assert visit.page.locator("img").count() == 0
        assert visit.page.locator("script").count() == 3
        assert '</script><img src=x onerror="alert(1)">' in visit.page.inner_text("#findings")
        visit.page.fill("#tl-find", "onerror")
        visit.page.press("#tl-find", "Enter")
        assert "<img src=x" in visit.page.text_content("#tl-status")


def test_narrow_screens_do_not_scroll_sideways(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        visit.page.set_viewport_size({"width": 390, "height": 800})
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_prints(browser: Any, report: Path) -> None:
    with Visit(browser, report) as visit:
        pdf = visit.page.pdf()
        assert pdf.startswith(b"%PDF")
        assert visit.page.locator("#methods details").get_attribute("open") is not None
